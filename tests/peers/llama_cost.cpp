// Cost figures of one GGUF in llama.cpp (CPU), printed as one JSON object.
//   llama_cost MODEL.gguf THREADS PROMPT_IDS.txt [name=llama.cpp] [reps=12] [steps=40] [seqs=8] [kv=f16|f32]
#include "llama.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

using clk = std::chrono::steady_clock;
static double ms_since(clk::time_point t) { return std::chrono::duration<double, std::milli>(clk::now() - t).count(); }
static double median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    size_t n = v.size();
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}
static double minimum(const std::vector<double> & v) { return *std::min_element(v.begin(), v.end()); }
static double status_mib(const char * key) {
    std::ifstream f("/proc/self/status");
    std::string s;
    while (std::getline(f, s)) if (s.rfind(key, 0) == 0) return atof(s.c_str() + strlen(key)) / 1024.0;
    return NAN;
}
static void reset_peak() { std::ofstream f("/proc/self/clear_refs"); f << "5"; }
static void die(const char * m) { fprintf(stderr, "llama_cost: %s\n", m); exit(1); }

static std::vector<llama_token> ids;
static int n_vocab;

static void put(llama_batch & b, llama_token t, int pos, int seq, bool logits) {
    int i = b.n_tokens++;
    b.token[i] = t; b.pos[i] = pos; b.n_seq_id[i] = 1; b.seq_id[i][0] = seq; b.logits[i] = logits;
}
static void decode(llama_context * c, llama_batch & b) {
    if (llama_decode(c, b) != 0) die("llama_decode failed");
    llama_synchronize(c);
}
static llama_token argmax(const float * x) { return (llama_token)(std::max_element(x, x + n_vocab) - x); }

int main(int argc, char ** argv) {
    if (argc < 4) die("usage: llama_cost MODEL THREADS IDS [name=] [reps=] [steps=] [seqs=] [kv=]");
    std::string name = "llama.cpp", kv = "f16";
    int reps = 12, steps = 40, seqs = 8, t = atoi(argv[2]);
    for (int i = 4; i < argc; i++) {
        std::string a = argv[i];
        if (a.rfind("name=", 0) == 0) name = a.substr(5);
        else if (a.rfind("reps=", 0) == 0) reps = atoi(a.c_str() + 5);
        else if (a.rfind("steps=", 0) == 0) steps = atoi(a.c_str() + 6);
        else if (a.rfind("seqs=", 0) == 0) seqs = atoi(a.c_str() + 5);
        else if (a.rfind("kv=", 0) == 0) kv = a.substr(3);
        else die("unknown argument");
    }
    { std::ifstream f(argv[3]); llama_token x; while (f >> x) ids.push_back(x); }
    if (ids.size() < 512) die("need 512 prompt ids");

    llama_log_set([](ggml_log_level l, const char * s, void *) { if (l >= GGML_LOG_LEVEL_ERROR && l != GGML_LOG_LEVEL_CONT) fputs(s, stderr); }, nullptr);
    llama_backend_init();
    auto t0 = clk::now();
    auto mp = llama_model_default_params();
    llama_model * m = llama_model_load_from_file(argv[1], mp);
    if (!m) die("cannot load model");
    double load_ms = ms_since(t0);
    n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(m));
    double peak_load = status_mib("VmHWM:");
    reset_peak();

    auto cp = llama_context_default_params();
    cp.n_ctx = 1024; cp.n_batch = 512; cp.n_ubatch = 512; cp.n_threads = t; cp.n_threads_batch = t; cp.n_seq_max = 1;
    cp.type_k = cp.type_v = kv == "f32" ? GGML_TYPE_F32 : GGML_TYPE_F16;
    llama_context * c = llama_init_from_model(m, cp);
    if (!c) die("cannot make context");
    auto mem = llama_get_memory(c);
    llama_batch b = llama_batch_init(512, 0, 1);

    auto prefill = [&](int n) {
        llama_memory_clear(mem, true);
        b.n_tokens = 0;
        for (int i = 0; i < n; i++) put(b, ids[i], i, 0, i == n - 1);
        decode(c, b);
        return argmax(llama_get_logits_ith(c, n - 1));
    };
    prefill(512); // warm-up: touches all weights

    fputs("stage a\n", stderr);
    // (a) greedy decode, context 236 + 8 warm-up steps, then `steps` timed ones (argmax included)
    std::vector<llama_token> greedy;
    llama_token tok = prefill(236);
    greedy.push_back(tok);
    std::vector<double> a;
    for (int i = 0; i < 8 + steps; i++) {
        auto s = clk::now();
        b.n_tokens = 0;
        put(b, tok, 236 + i, 0, true);
        decode(c, b);
        tok = argmax(llama_get_logits_ith(c, 0));
        double d = ms_since(s);
        if (i >= 8) a.push_back(d);
        greedy.push_back(tok);
    }
    double a_sum = 0; for (double x : a) a_sum += x;

    fputs("stage b\n", stderr);
    // (b) forward of n tokens at cache 256, logits for all; the sizes are interleaved
    const int ns[] = {1, 2, 4, 8, 16, 32};
    std::vector<std::vector<double>> f(6);
    prefill(256);
    int agree = 0; // argmax of the 32-token pass against the 1-token pass, first position
    llama_token first1 = -1, first32 = -1;
    for (int r = -2; r < reps; r++) {
        for (int k = 0; k < 6; k++) {
            b.n_tokens = 0;
            for (int i = 0; i < ns[k]; i++) put(b, ids[256 + i], 256 + i, 0, true);
            auto s = clk::now();
            decode(c, b);
            volatile float touch = llama_get_logits(c)[0]; (void) touch;
            double d = ms_since(s);
            if (r >= 0) f[k].push_back(d);
            if (k == 0) first1 = argmax(llama_get_logits_ith(c, 0));
            if (k == 5) first32 = argmax(llama_get_logits_ith(c, 0));
            if (!llama_memory_seq_rm(mem, 0, 256, -1)) die("rollback refused");
            if (llama_memory_seq_pos_max(mem, 0) != 255) die("rollback wrong");
        }
    }
    agree = first1 == first32;

    fputs("stage c\n", stderr);
    // (c) 512-token prompt from empty, logits for the last
    std::vector<double> p;
    for (int r = 0; r < std::max(3, reps / 4); r++) {
        llama_memory_clear(mem, true);
        b.n_tokens = 0;
        for (int i = 0; i < 512; i++) put(b, ids[i], i, 0, i == 511);
        auto s = clk::now();
        decode(c, b);
        volatile float touch = llama_get_logits_ith(c, 511)[0]; (void) touch;
        p.push_back(ms_since(s));
    }
    double peak_single = status_mib("VmHWM:"), anon_single = status_mib("RssAnon:"), file_single = status_mib("RssFile:");
    llama_free(c);

    fputs("stage d\n", stderr);
    // (d) `seqs` sequences, one token each per step, each at context about 256, own KV streams
    cp.n_seq_max = seqs; cp.n_ctx = 512 * seqs; cp.kv_unified = false;
    c = llama_init_from_model(m, cp);
    if (!c) die("cannot make batch context");
    mem = llama_get_memory(c);
    // one prompt of 240 tokens, copied into all streams; then each sequence gets another token and goes its own way
    std::vector<llama_token> cur(seqs);
    b.n_tokens = 0;
    for (int i = 0; i < 240; i++) put(b, ids[i], i, 0, i == 239);
    decode(c, b);
    for (int q = 1; q < seqs; q++) llama_memory_seq_cp(mem, 0, q, -1, -1);
    for (int q = 0; q < seqs; q++) {
        cur[q] = ids[256 + 16 * (q % 16)];
        if (llama_memory_seq_pos_max(mem, q) != 239) die("sequence copy failed");
    }
    std::vector<double> e;
    int dsteps = std::max(10, steps * 3 / 4);
    for (int i = 0; i < 3 + dsteps; i++) {
        auto s = clk::now();
        b.n_tokens = 0;
        for (int q = 0; q < seqs; q++) put(b, cur[q], 240 + i, q, true);
        decode(c, b);
        for (int q = 0; q < seqs; q++) cur[q] = argmax(llama_get_logits_ith(c, q));
        double d = ms_since(s);
        if (i >= 3) e.push_back(d);
    }
    double peak_all = status_mib("VmHWM:");

    char desc[128]; llama_model_desc(m, desc, sizeof desc);
    printf("{\"engine\":\"%s\",\"model\":\"%s\",\"desc\":\"%s\",\"threads\":%d,\"kv\":\"%s\",\"reps\":%d", name.c_str(), argv[1], desc, t, kv.c_str(), reps);
    printf(",\"weights_mib\":%.1f,\"load_ms\":%.0f", llama_model_size(m) / 1048576.0, load_ms);
    printf(",\"decode\":{\"context\":\"244-%d\",\"steps\":%zu,\"tok_s_median\":%.2f,\"tok_s_best\":%.2f,\"tok_s_mean\":%.2f,\"ms_median\":%.3f,\"ms_min\":%.3f}",
           244 + steps, a.size(), 1000 / median(a), 1000 / minimum(a), 1000 * a.size() / a_sum, median(a), minimum(a));
    printf(",\"forward\":{\"cache\":256,\"n\":[");
    for (int k = 0; k < 6; k++) {
        printf("%s{\"n\":%d,\"ms_median\":%.3f,\"ms_min\":%.3f,\"c_median\":%.3f,\"c_min\":%.3f}", k ? "," : "", ns[k],
               median(f[k]), minimum(f[k]), median(f[k]) / median(f[0]), minimum(f[k]) / minimum(f[0]));
    }
    printf("],\"argmax_1_equals_32\":%s}", agree ? "true" : "false");
    printf(",\"prompt512\":{\"tok_s_median\":%.1f,\"tok_s_best\":%.1f,\"reps\":%zu}", 512e3 / median(p), 512e3 / minimum(p), p.size());
    printf(",\"batch\":{\"seqs\":%d,\"context\":\"243-%d\",\"steps\":%zu,\"tok_s_median\":%.2f,\"tok_s_best\":%.2f,\"ms_median\":%.3f}",
           seqs, 243 + dsteps, e.size(), seqs * 1000 / median(e), seqs * 1000 / minimum(e), median(e));
    printf(",\"rss_mib\":{\"peak\":%.1f,\"peak_load\":%.1f,\"peak_single\":%.1f,\"anon_single\":%.1f,\"file_single\":%.1f}",
           std::max(peak_load, peak_all), peak_load, peak_single, anon_single, file_single);
    printf(",\"greedy\":[");
    for (size_t i = 0; i < std::min<size_t>(32, greedy.size()); i++) printf("%s%d", i ? "," : "", greedy[i]);
    std::string info = llama_print_system_info();
    printf("],\"system\":\"%s\"}\n", info.c_str());
    llama_free(c); llama_model_free(m);
}
