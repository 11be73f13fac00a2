"""One Ray task a shard of a plan. Not run yet.

    draftbench plan --matrix matrix.toml --checkpoints /models --out /shared/plan.json
    python contrib/ray/shards.py /shared/plan.json /shared/runs 8
    draftbench merge /shared/merged /shared/runs/shard-*

`draftbench`, the plan and the models must be at the same places on every node. Running it again resumes what is not done.
"""

import subprocess
import sys

import ray


# A whole machine for each, so that shards do not slow one another down: start nodes with --resources='{"machine": 1}'.
@ray.remote(resources={"machine": 1}, max_retries=3)
def run_shard(plan: str, out: str, number: int, of: int) -> int:
    command = ["draftbench", "run", "--plan", plan, "--shard", f"{number}/{of}", "--keep-going"]
    return subprocess.run([*command, "--resume", f"{out}/shard-{number}"]).returncode


def main() -> int:
    plan, out, of = sys.argv[1], sys.argv[2], int(sys.argv[3])
    ray.init(address="auto")
    codes = ray.get([run_shard.remote(plan, out, number, of) for number in range(1, of + 1)])
    for number, code in enumerate(codes, start=1):
        print(f"shard {number}/{of}: exit code {code}")
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
