"""Two tiny GGUF files of random weights and what is in them: python gguf.py FOLDER, where FOLDER is this one.

Writes FOLDER/tiny-llama.gguf, FOLDER/tiny-qwen3.gguf and FOLDER/gguf.json: hashes of every tensor as PyPI's gguf
dequantises it, greedy continuations by transformers with those tensors, and token ids by the tokenizers library.
Rows of llama's queries and keys are reordered on the way in, as llama.cpp's convert_hf_to_gguf.py does.
Needs gguf, torch, transformers, tokenizers; written with 0.19.0, 2.15.0, 5.24.0 and its tokenizers.
"""

import hashlib
import json
import pathlib
import sys

sys.path.pop(0)  # This file is named like the package.

import gguf
import numpy
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

TYPES = [gguf.GGMLQuantizationType[name] for name in ("Q8_0", "Q4_0", "Q4_1", "F16", "BF16", "F32")]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXTS = [
    "Hello'Ve world 123\n\n  foo",
    "the theme of them  12,345\t\n x",
    "e\u0301 Å é 🙂 日本語 ½",
    "<|im_start|>user\n<think>the<|im_end|><|endoftext|>",
]
CORPUS = ["the theme of the other weather, then them and these: foo, food, fool\n  x = x + 1\n" * 4]

folder = pathlib.Path(sys.argv[1])
shape = dict(
    vocab_size=304, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, max_position_embeddings=1024, rms_norm_eps=1e-5,
)


def tokenizer(pre):
    out = Tokenizer(models.BPE())
    if pre == "smollm":
        first = pre_tokenizers.Digits(individual_digits=True)
    else:
        first = pre_tokenizers.Split(Regex(QWEN2), "isolated")
        out.normalizer = normalizers.NFC()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre == "smollm")
    out.pre_tokenizer = pre_tokenizers.Sequence([first, byte_level])
    out.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False)
    out.train_from_iterator(CORPUS, trainer)
    return out


def write_tokenizer(writer, pre, tokens):
    model = json.loads(tokens.to_str())["model"]
    rows = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    types = [3] * 3 + [4] + [1] * (len(rows) - 4)
    # Rows that fill the embedding up.
    fill = 2
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(rows + [f"[PAD{i}]" for i in range(fill)])
    writer.add_token_types(types + [5] * fill)
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(0)
    writer.add_chat_template(TEMPLATE)


def permuted(rows, n_heads):
    pairs = rows.reshape(n_heads, 2, rows.shape[0] // n_heads // 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def make(arch, pre, model, config):
    writer = gguf.GGUFWriter(str(folder / f"tiny-{arch}.gguf"), arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_license("apache-2.0")
    tokens = tokenizer(pre)
    write_tokenizer(writer, pre, tokens)
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, arch.upper()), config.num_hidden_layers)
    state, tensors = {}, []
    for i, (name, value) in enumerate(model.state_dict().items()):
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        value = value.numpy()
        kind = TYPES[i % len(TYPES)] if value.ndim == 2 else TYPES[-1]
        kept = gguf.dequantize(gguf.quantize(value, kind), kind).astype(numpy.float32)
        state[name] = torch.from_numpy(kept)
        tensors.append({"name": name, "type": kind.name, "shape": list(kept.shape), "sha256": hashlib.sha256(kept.tobytes()).hexdigest()})
        if arch == "llama" and ".q_proj." in name:
            value = permuted(value, config.num_attention_heads)
        if arch == "llama" and ".k_proj." in name:
            value = permuted(value, config.num_key_value_heads)
        own = names.get_name(name, try_suffixes=(".weight",))
        data = gguf.quantize(value, kind)
        writer.add_tensor(own, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model.load_state_dict(state, strict=not config.tie_word_embeddings)
    prompt = tokens.encode(TEXTS[0], add_special_tokens=False).ids
    with torch.no_grad():
        ids = torch.tensor([prompt])
        for _ in range(24):
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
    encoded = [{"text": text, "ids": tokens.encode(text, add_special_tokens=False).ids} for text in TEXTS]
    return {
        "file": f"tiny-{arch}.gguf", "tensors": tensors, "prompt": prompt, "output": ids[0, len(prompt) :].tolist(), "tokens": encoded,
    }


out = []
for arch, pre, config, kind in [
    ("llama", "smollm", LlamaConfig(**shape, tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 5000.0}), LlamaForCausalLM),
    ("qwen3", "qwen2", Qwen3Config(**shape, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1e6}), Qwen3ForCausalLM),
]:
    torch.manual_seed(7)
    model = kind(config).eval()
    for name, value in model.named_parameters():
        value.data = 1 + 0.3 * torch.randn_like(value) if "norm" in name else 0.3 * torch.randn_like(value)
    out.append(make(arch, pre, model, config))
(folder / "gguf.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")
