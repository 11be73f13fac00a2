#!/usr/bin/env bash
# Trains everything in assets/tiny and runs/study again, in the order in which one needs the other. A killed run goes on from its last
# checkpoint when this is started again. Last the temperatures of confidences are fitted, to answers with thinking on, which the study does not read.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release
bin="${CARGO_TARGET_DIR:-target}/release/draftbench"
train() { for recipe in "${@:2}"; do "$bin" train "$1" "training/recipes/$recipe.toml"; done; }

train target tiny-qwen3 tiny-qwen3-draft tiny-llama tiny-moe
train dflash tiny-qwen3-dflash tiny-qwen3-dflash-15 tiny-qwen3-dflash-inplace tiny-llama-dflash tiny-moe-dflash
train eagle3 tiny-qwen3-eagle3
train dspark tiny-qwen3-dspark
train domino tiny-qwen3-domino
train dcoco tiny-qwen3-dcoco tiny-qwen3-dcoco-15 tiny-qwen3-dcoco-no-pair tiny-qwen3-dcoco-no-candidate \
    tiny-qwen3-dcoco-frozen tiny-qwen3-dcoco-light tiny-qwen3-dcoco-wide

rm -rf runs/rated
"$bin" run --methods dspark:calibration=off,dcoco:calibration=off --sampling greedy --thinking on --prompts 24 --max-new 128 \
    --out runs/rated --checkpoints assets/tiny
for method in dspark dcoco; do
    "$bin" analyse calibrate runs/rated --method "$method:calibration=off" --out "assets/tiny/tiny-qwen3-$method/calibration.json"
done
