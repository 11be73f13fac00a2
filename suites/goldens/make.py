"""Renders conversations with the transformers library: python make.py FOLDER CONFIG, where FOLDER is this one.

"qwen3" is the template in CONFIG, the tokenizer_config.json of a published Qwen3; thinking.jinja is this project's own
wording of what it does to conversations without tools, and must give the same texts. The rest is FOLDER/*.jinja.
Writes FOLDER/rendered.json. Needs transformers and jinja2; written with 5.24.0 and 3.1.6. The clock stands still at the date that draftbench tells templates.
"""

import datetime
import json
import pathlib
import sys

from transformers.utils import chat_template_utils


class Still(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


chat_template_utils.datetime = Still

TALK = [" Name a prime.\n", "<think>\nSmall ones do.\n</think>\n\nSeven.  ", "Another <b>one</b>, é?"]
CASES = [
    ("one turn", None, ["What is 2 + 3?"]),
    ("system", " Be brief.\n", ["What is 2 + 3?"]),
    ("three turns", None, TALK),
    ("system and three turns", "Be brief.", TALK),
    ("an answer without thoughts", None, ["a", "b", "c"]),
]

folder = pathlib.Path(sys.argv[1])
out = []
templates = {path.stem: path.read_text() for path in folder.glob("*.jinja") if path.stem != "thinking"}
templates["qwen3"] = json.loads(pathlib.Path(sys.argv[2]).read_text())["chat_template"]
for stem, template in sorted(templates.items()):
    for name, system, turns in CASES:
        for thinking in (False, True):
            messages = [{"role": "system", "content": system}] if system is not None else []
            roles = ("user", "assistant")
            messages += [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
            texts, _ = chat_template_utils.render_jinja_template(
                [messages],
                chat_template=template,
                add_generation_prompt=True,
                enable_thinking=thinking,
                bos_token="<|begin|>",
                eos_token="<|end|>",
            )
            case = {"template": stem, "case": name, "system": system, "turns": turns}
            out.append(case | {"thinking": thinking, "text": texts[0]})
text = json.dumps(out, ensure_ascii=False, indent=1) + "\n"
(folder / "rendered.json").write_text(text)
