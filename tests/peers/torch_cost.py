"""Cost figures of SmolLM2 in transformers/torch (CPU), one JSON object, same fields as llama_cost.
   torch_cost.py MODEL_DIR f32|bf16 THREADS PROMPT_IDS.txt [reps=12] [steps=40] [seqs=8]"""
import sys, os, json, time, statistics as st
d, dt, th, idf = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
opt = dict(reps=12, steps=40, seqs=8); opt.update((k, int(v)) for k, v in (x.split("=") for x in sys.argv[5:]))
reps, steps, seqs = opt["reps"], opt["steps"], opt["seqs"]
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(th)
os.environ["HF_HUB_OFFLINE"] = "1"
t0 = time.perf_counter()
import torch, transformers
from transformers import AutoModelForCausalLM, DynamicCache
torch.set_num_threads(th)
import_ms = (time.perf_counter() - t0) * 1e3

def status(key):
    for l in open("/proc/self/status"):
        if l.startswith(key): return int(l.split()[1]) / 1024
rss_import = status("VmRSS:")
t0 = time.perf_counter()
m = AutoModelForCausalLM.from_pretrained(d, dtype=torch.float32 if dt == "f32" else torch.bfloat16).eval()
load_ms = (time.perf_counter() - t0) * 1e3
peak_load = status("VmHWM:")
try: open("/proc/self/clear_refs", "w").write("5")
except OSError: pass
ids = [int(x) for x in open(idf).read().split()][:512]
assert len(ids) == 512
T = lambda x: torch.tensor(x, dtype=torch.long)

def fwd(tokens, cache, keep):
    return m(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=keep).logits
clock = lambda: time.perf_counter() * 1e3
weights = sum(p.numel() * p.element_size() for p in m.parameters()) / 2**20

with torch.inference_mode():
    def prefill(n):
        c = DynamicCache(config=m.config)
        return c, int(fwd(T([ids[:n]]), c, 1)[0, -1].argmax())
    prefill(512)
    # (a)
    print('stage a', file=sys.stderr)
    c, tok = prefill(236)
    greedy, a = [tok], []
    for i in range(8 + steps):
        s = clock()
        tok = int(fwd(T([[tok]]), c, 1)[0, -1].argmax())
        if i >= 8: a.append(clock() - s)
        greedy.append(tok)
    # (b)
    print('stage b', file=sys.stderr)
    ns = [1, 2, 4, 8, 16, 32]
    f = {n: [] for n in ns}
    c, _ = prefill(256)
    first = {}
    for r in range(-2, reps):
        for n in ns:
            x = T([ids[256:256 + n]])
            s = clock()
            lg = fwd(x, c, 0)
            e = clock() - s
            assert lg.shape[1] == n
            if r >= 0: f[n].append(e)
            first[n] = int(lg[0, 0].argmax())
            c.crop(-n)
            assert c.get_seq_length() == 256
    # (c)
    print('stage c', file=sys.stderr)
    p = []
    for _ in range(max(3, reps // 4)):
        c = DynamicCache(config=m.config); x = T([ids])
        s = clock(); fwd(x, c, 1); p.append(clock() - s)
    peak_single = status("VmHWM:")
    # (d)
    print('stage d', file=sys.stderr)
    c, _ = prefill(240)
    c.batch_repeat_interleave(seqs)
    cur = T([ids[256 + 16 * (q % 16)] for q in range(seqs)])
    e, dsteps = [], max(10, steps * 3 // 4)
    for i in range(3 + dsteps):
        s = clock()
        cur = fwd(cur[:, None], c, 1)[:, -1].argmax(-1); cur.tolist()
        if i >= 3: e.append(clock() - s)
    peak_all = status("VmHWM:")

R = lambda x: round(x, 3)
M, L = st.median, min
print(json.dumps({
    "engine": "transformers", "model": d, "desc": f"transformers {transformers.__version__} torch {torch.__version__} {dt} {m.config._attn_implementation}",
    "threads": th, "kv": dt, "reps": reps, "weights_mib": round(weights, 1), "load_ms": round(load_ms), "import_ms": round(import_ms),
    "decode": {"context": f"244-{244 + steps}", "steps": len(a), "tok_s_median": R(1e3 / M(a)), "tok_s_best": R(1e3 / L(a)),
               "tok_s_mean": R(1e3 * len(a) / sum(a)), "ms_median": R(M(a)), "ms_min": R(L(a))},
    "forward": {"cache": 256, "n": [{"n": n, "ms_median": R(M(f[n])), "ms_min": R(L(f[n])), "c_median": R(M(f[n]) / M(f[1])),
                                     "c_min": R(L(f[n]) / L(f[1]))} for n in ns], "argmax_1_equals_32": first[1] == first[32]},
    "prompt512": {"tok_s_median": R(512e3 / M(p)), "tok_s_best": R(512e3 / L(p)), "reps": len(p)},
    "batch": {"seqs": seqs, "context": f"243-{243 + dsteps}", "steps": len(e), "tok_s_median": R(seqs * 1e3 / M(e)),
              "tok_s_best": R(seqs * 1e3 / L(e)), "ms_median": R(M(e))},
    "rss_mib": {"peak": R(max(peak_load, peak_all)), "peak_load": R(peak_load), "peak_single": R(peak_single), "after_import": R(rss_import)},
    "greedy": greedy[:32], "rope": str(getattr(m.config, "rope_parameters", None)),
    "system": torch.backends.cpu.get_cpu_capability()}))
