"""Prompts of suites as llama_accept.py reads them: python suite_prompts.py CHECKPOINT_FOLDER N SUITE.toml ... > PROMPTS.jsonl

Takes the first N prompts of each suite, first turns alone, and renders them with the chat template of the folder's
tokenizer_config.json. `prompt` is the token ids, `sha256` that of the rendered text, as in a record's `prompt.sha256`.
Needs jinja2 and tokenizers; written with 3.1.6 and 0.23.3.
"""

import hashlib
import json
import pathlib
import sys
import tomllib

import jinja2
import jinja2.sandbox
import tokenizers

folder, n_prompts, *suites = sys.argv[1:]
config = json.loads((pathlib.Path(folder) / "tokenizer_config.json").read_text())
environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
tokenizer = tokenizers.Tokenizer.from_file(str(pathlib.Path(folder) / "tokenizer.json"))
template = environment.from_string(config["chat_template"])
for path in suites:
    suite = tomllib.loads(pathlib.Path(path).read_text())
    for prompt in suite["prompt"][: int(n_prompts)]:
        text = template.render(
            messages=[{"role": "user", "content": prompt["turns"][0]}],
            add_generation_prompt=True,
            enable_thinking=False,
            bos_token=config.get("bos_token") or "",
            eos_token=config.get("eos_token") or "",
        )
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        print(json.dumps({"id": f"{suite['id']}/{prompt['id']}", "domain": suite["domain"], "sha256": sha256, "prompt": ids}))
