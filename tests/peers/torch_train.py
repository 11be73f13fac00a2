"""A training step of a DFlash drafter in PyTorch, in draft positions a second: python torch_train.py f32|bf16 THREADS

The shapes are those of training/recipes/smollm2-135m-dflash.toml: three Qwen3 layers of width 576, five taps, blocks of
seven rows, 64 anchors a text, 8,192 ids through a frozen head, AdamW with clipping. Texts and states are random, four
texts of 250 tokens a step, and cost what real ones do: the target's pass is left out, as it is where draftbench keeps
states. bf16 is autocast over f32 weights. Prints one JSON object: medians over 20 steps behind 3 that are not counted.
"""

import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F

HIDDEN, INNER, HEADS, KV_HEADS, HEAD = 576, 1536, 9, 3, 64
LAYERS, TAPS, ROWS, ANCHORS, VOCAB = 3, 5, 7, 64, 8192
TEXTS, LENGTH = 4, 250


class RmsNorm(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight, 1e-5)


def matrix(inner, outer):
    return torch.nn.Linear(inner, outer, bias=False)


def turn(x, positions):
    """Rotary angles on [texts, heads, rows, HEAD]."""
    frequencies = 1e5 ** (-torch.arange(0, HEAD, 2) / HEAD)
    angles = positions[:, None, :, None] * frequencies
    angles = torch.cat([angles, angles], -1)
    half = torch.cat([-x[..., HEAD // 2 :], x[..., : HEAD // 2]], -1)
    return x * angles.cos() + half * angles.sin()


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.post = RmsNorm(HIDDEN), RmsNorm(HIDDEN)
        self.q, self.o = matrix(HIDDEN, HEADS * HEAD), matrix(HEADS * HEAD, HIDDEN)
        self.k, self.v = matrix(HIDDEN, KV_HEADS * HEAD), matrix(HIDDEN, KV_HEADS * HEAD)
        self.q_norm, self.k_norm = RmsNorm(HEAD), RmsNorm(HEAD)
        self.gate, self.up, self.down = matrix(HIDDEN, INNER), matrix(HIDDEN, INNER), matrix(INNER, HIDDEN)

    def forward(self, x, context, at, mask):
        heads = lambda y, n: y.unflatten(-1, (n, HEAD)).transpose(1, 2)
        normed = self.norm(x)
        seen = torch.cat([context, normed], 1)
        q = turn(self.q_norm(heads(self.q(normed), HEADS)), at["rows"])
        k = turn(self.k_norm(heads(self.k(seen), KV_HEADS)), at["keys"])
        v = heads(self.v(seen), KV_HEADS)
        mixed = F.scaled_dot_product_attention(q, k, v.to(q.dtype), attn_mask=mask, enable_gqa=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        normed = self.post(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Trunk(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = matrix(TAPS * HIDDEN, HIDDEN)
        self.hidden_norm, self.norm = RmsNorm(HIDDEN), RmsNorm(HIDDEN)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, taps, x, at, mask):
        context = self.hidden_norm(self.fc(taps))
        for layer in self.layers:
            x = layer(x, context, at, mask)
        return self.norm(x)


def batch():
    """Positions and who sees whom: a block sees the text before its anchor, and itself."""
    anchors = torch.stack([torch.randperm(LENGTH - 60)[:ANCHORS].sort().values + 50 for _ in range(TEXTS)])
    rows = (anchors[:, :, None] + torch.arange(ROWS)).flatten(1)
    keys = torch.cat([torch.arange(LENGTH).expand(TEXTS, -1), rows], 1)
    block = torch.arange(ANCHORS).repeat_interleave(ROWS)
    before = torch.arange(LENGTH) < anchors.repeat_interleave(ROWS, 1)[..., None]
    own = (block[:, None] == block).expand(TEXTS, -1, -1)
    return {"rows": rows.float(), "keys": keys.float()}, torch.cat([before, own], 2)[:, None]


def main():
    dtype, threads = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(1)
    torch.set_num_threads(threads)
    trunk, head = Trunk(), torch.randn(VOCAB, HIDDEN) * 0.02
    optimizer = torch.optim.AdamW(trunk.parameters(), 1e-4, (0.9, 0.95), 1e-8, weight_decay=0.1)
    weights = torch.exp(-torch.arange(ROWS) / 4.0).repeat(TEXTS * ANCHORS)
    if dtype == "bf16":
        head = head.bfloat16()
    seconds = []
    for _ in range(23):
        at, mask = batch()
        taps = torch.randn(TEXTS, LENGTH, TAPS * HIDDEN)
        slots = torch.randn(TEXTS, ANCHORS * ROWS, HIDDEN)
        labels = torch.randint(VOCAB, (TEXTS * ANCHORS * ROWS,))
        began = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            logits = F.linear(trunk(taps, slots, at, mask).flatten(0, 1), head)
        loss = (F.cross_entropy(logits.float(), labels, reduction="none") * weights).sum() / weights.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trunk.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    positions = TEXTS * ANCHORS * ROWS
    step = statistics.median(seconds[3:])
    print(
        json.dumps(
            {
                "torch": torch.__version__,
                "dtype": dtype,
                "threads": threads,
                "values": sum(p.numel() for p in trunk.parameters()),
                "step_s": round(step, 3),
                "slowest_s": round(max(seconds[3:]), 3),
                "draft_positions_per_s": round(positions / step),
            }
        )
    )


main()
