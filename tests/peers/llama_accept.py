"""Acceptance of an exported drafter in stock llama.cpp: python llama_accept.py --target T.gguf --drafter D.gguf PROMPTS.jsonl

Runs PyPI's xllamacpp in this process, greedily, caches in f32 and without flash attention, and prints one JSON object:
of each prompt the tokens, drafted and accepted, and its text; of every domain and of all, tau = tokens / (tokens - accepted).
A line of PROMPTS is {"id", "prompt": rendered text or token ids}, with "domain" and "sha256" if they are known
(suite_prompts.py writes such lines).

With --records RUN/records.jsonl of `draftbench run --keep-tokens` on the same prompts, it pairs them by the rendered
text and adds what draftbench counted, by the same formula, and how many tokens the two texts have in common.
Needs xllamacpp; written with 2026.10.11549.
"""

import argparse
import collections
import json
import pathlib

import xllamacpp as x


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("prompts", type=pathlib.Path)
    parser.add_argument("--target", required=True, help="GGUF file of the target")
    parser.add_argument("--drafter", help="GGUF file of `draftbench export gguf`; left out, nothing is drafted")
    parser.add_argument("--kind", choices=["dflash", "dspark"], help="--spec-type that `draftbench export gguf` named")
    parser.add_argument("--n-max", type=int, default=7, help="draft tokens a round; fewer than gamma is another block")
    parser.add_argument("--max-new", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--records", type=pathlib.Path, help="records.jsonl of draftbench")
    parser.add_argument("--method", help="arm of the records, such as dflash")
    parser.add_argument("--verbose", action="store_true", help="let llama.cpp say what it loads")
    args = parser.parse_args()
    if args.drafter and not args.kind:
        parser.error("--drafter needs --kind")
    if args.records and not args.method:
        parser.error("--records needs --method")
    return args


def server(args):
    f32 = x.ggml_type.GGML_TYPE_F32
    params = x.CommonParams()
    params.model.path = args.target
    params.n_ctx = 2048
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
    params.cache_type_k = params.cache_type_v = f32
    params.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.warmup = False
    params.fit_params = False
    params.verbosity = 4 if args.verbose else 1
    if args.drafter:
        kind = f"COMMON_SPECULATIVE_TYPE_DRAFT_{args.kind.upper()}"
        params.speculative.types = [getattr(x.common_speculative_type, kind)]
        draft = params.speculative.draft
        draft.mparams.path = args.drafter
        draft.n_max, draft.n_min, draft.p_min = args.n_max, 0, 0.0
        draft.cache_type_k = draft.cache_type_v = f32
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = args.threads
    return x.Server(params)


def answer(running, prompt, max_new):
    asked = {
        "prompt": prompt,
        "n_predict": max_new,
        "temperature": 0,
        "cache_prompt": False,
        "return_tokens": True,
        # Token ids are in this part alone.
        "verbose": True,
    }
    said = running.handle_completions(asked)
    if "__verbose" not in said:
        raise SystemExit(f"llama.cpp refused a prompt: {said}")
    said = said["__verbose"]
    timings = said["timings"]
    return {
        "n_prompt": timings["prompt_n"],
        "n_tokens": timings["predicted_n"],
        "n_drafted": timings.get("draft_n", 0),
        "n_accepted": timings.get("draft_n_accepted", 0),
        "tokens": said["tokens"],
        "text": said["content"],
    }


def counted(rounds, max_new):
    """Drafted and accepted tokens as llama.cpp counts them: it drafts no more than the answer has room for behind the
    target's own token, and of a round that ends with a stop token among its drafts it takes that for the target's own,
    unless it is the last draft."""
    n_drafted = n_accepted = 0
    n_tokens = 1
    for drafted, accepted, committed in zip(rounds["drafted"], rounds["accepted"], rounds["committed"]):
        drafted = min(drafted, max_new - n_tokens - 1)
        accepted = min(accepted, drafted)
        if committed <= accepted < drafted or committed < accepted:
            accepted = committed - 1
        n_drafted += drafted
        n_accepted += accepted
        n_tokens += committed
    return {"n_drafted": n_drafted, "n_accepted": n_accepted}


def ours(path, method, max_new):
    """Answers of draftbench's records by the hash of the rendered prompt."""
    found = {}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        outcome = record["outcome"].get("ok")
        cell = record["cell"]
        if cell["method"] != method or cell["sampling"] != "greedy" or cell["concurrency"] != 1 or not outcome:
            continue
        found.setdefault(
            record["prompt"]["sha256"],
            {
                "n_prompt": record["prompt"]["n_tokens"],
                "n_tokens": outcome["n_tokens"],
                **counted(outcome["rounds"], max_new),
                "tokens": outcome.get("tokens") or [],
            },
        )
    return found


def tau(answers):
    tokens = sum(one["n_tokens"] for one in answers)
    accepted = sum(one["n_accepted"] for one in answers)
    return round(tokens / (tokens - accepted), 4) if tokens > accepted else None


def common(a, b):
    pairs = zip(a, b)
    return next((i for i, (left, right) in enumerate(pairs) if left != right), min(len(a), len(b)))


def main():
    args = arguments()
    prompts = [json.loads(line) for line in args.prompts.read_text().splitlines()]
    recorded = ours(args.records, args.method, args.max_new) if args.records else {}
    running = server(args)
    pools = collections.defaultdict(lambda: ([], []))
    printed = []
    for prompt in prompts:
        theirs = answer(running, prompt["prompt"], args.max_new)
        mine = recorded.get(prompt.get("sha256"))
        row = {"id": prompt["id"], "tau": tau([theirs]), **theirs}
        if mine:
            n_common = common(theirs["tokens"], mine["tokens"])
            row |= {"draftbench": {"tau": tau([mine]), **mine}, "n_common": n_common}
            row["same_text"] = theirs["tokens"] == mine["tokens"]
        printed.append(row)
        # Both taus are of the prompts that both have.
        if recorded and not mine:
            continue
        for pool in (prompt.get("domain", "?"), "all"):
            pools[pool][0].append(theirs)
            pools[pool][1].extend([mine] if mine else [])
    if args.records and not any(mine for _, mine in pools.values()):
        raise SystemExit(f"{args.records}: no greedy answer of {args.method!r} to any of these prompts")
    taus = {
        pool: {"prompts": len(theirs), "llama_cpp": tau(theirs), **({"draftbench": tau(mine)} if mine else {})}
        for pool, (theirs, mine) in pools.items()
    }
    print(json.dumps({"tau": taus, "answers": printed}, indent=1, ensure_ascii=False))


main()
