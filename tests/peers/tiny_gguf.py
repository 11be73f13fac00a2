"""A small Qwen3 checkpoint as a GGUF file in f32: python tiny_gguf.py FOLDER OUT.gguf

For a target of assets/tiny, so that llama.cpp can run it with the drafters beside it. The names of its tokens are right,
how text is cut into them is not: ask it token ids. Needs gguf, safetensors, torch; written with 0.19.0, 0.8.0, 2.15.0.
"""

import json
import pathlib
import sys

import gguf
import torch
from safetensors.torch import load_file

folder, out = pathlib.Path(sys.argv[1]), sys.argv[2]
config = json.loads((folder / "config.json").read_text())
tokenizer = json.loads((folder / "tokenizer.json").read_text())
generation = json.loads((folder / "generation_config.json").read_text())
if config["model_type"] != "qwen3":
    sys.exit(f"{folder}: is a model of {config['model_type']}, only those of qwen3 are written")
n_layers, vocab = config["num_hidden_layers"], config["vocab_size"]

writer = gguf.GGUFWriter(out, "qwen3")
writer.add_context_length(config["max_position_embeddings"])
writer.add_embedding_length(config["hidden_size"])
writer.add_block_count(n_layers)
writer.add_feed_forward_length(config["intermediate_size"])
writer.add_head_count(config["num_attention_heads"])
writer.add_head_count_kv(config["num_key_value_heads"])
writer.add_key_length(config["head_dim"])
writer.add_value_length(config["head_dim"])
writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
writer.add_rope_freq_base(config["rope_theta"])
writer.add_file_type(gguf.LlamaFileType.ALL_F32)

names = {token: name for name, token in tokenizer["model"]["vocab"].items()}
kinds = dict.fromkeys(names, gguf.TokenType.NORMAL)
for added in tokenizer["added_tokens"]:
    names[added["id"]] = added["content"]
    kinds[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
writer.add_tokenizer_model("gpt2")
writer.add_tokenizer_pre("qwen2")
writer.add_token_list([names.get(i, f"[PAD{i}]") for i in range(vocab)])
writer.add_token_types([kinds.get(i, gguf.TokenType.UNUSED) for i in range(vocab)])
writer.add_token_merges(merges)
stop = generation["eos_token_id"]
stop = stop if isinstance(stop, list) else [stop]
writer.add_eos_token_id(stop[0])
if len(stop) > 1:
    writer.add_eot_token_id(stop[1])
writer.add_add_bos_token(False)

tensors = load_file(folder / "model.safetensors")
table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, n_layers)
for name, tensor in tensors.items():
    if name == "lm_head.weight" and config.get("tie_word_embeddings"):
        continue
    writer.add_tensor(table.get_name(name, try_suffixes=(".weight",)), tensor.to(torch.float32).numpy())
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
