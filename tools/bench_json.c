/* One object per test, under the names that llama-bench uses where it has them. */
#include <sys/resource.h>

#include "bench.h"

static json_t *split_json(const clb_bench *b, const clb_bench_test *t)
{
    const double n = clb_pool_workers(b->engine->pool);
    json_t *phases = json_array();
    for (int p = 0; p < CLB_PHASE_COUNT; p++) {
        const double wall = (double)t->profile.wall_ns[p], busy = (double)atomic_load(&t->profile.busy_ns[p]);
        if (t->profile.wall_ns[p])
            json_array_append_new(phases, json_pack("{s:s, s:f, s:f}", "phase", clb_phase_name((enum clb_phase)p),
                                                    "seconds", wall / 1e9, "waiting_seconds", (n * wall - busy) / 1e9));
    }
    return json_pack("{s:f, s:I, s:I, s:o}", "seconds", (double)t->profile.pass_ns / 1e9, "passes",
                     (json_int_t)t->profile.passes, "parallel_loops", (json_int_t)t->profile.loops, "phases", phases);
}

static uint64_t peak_rss(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) ? 0 : (uint64_t)usage.ru_maxrss * 1024;
}

static void set(json_t *o, const char *key, double value)
{
    json_object_set_new(o, key, json_real(value));
}

static void set_samples(json_t *o, const clb_bench_test *t)
{
    json_t *ns = json_array(), *ts = json_array();
    const double tokens = clb_bench_tokens(t);
    for (uint32_t i = 0; i < t->n; i++) {
        json_array_append_new(ns, json_integer((json_int_t)t->ns[i]));
        json_array_append_new(ts, json_real(tokens * 1e9 / (double)t->ns[i]));
    }
    json_object_set_new(o, "samples_ns", ns);
    json_object_set_new(o, "samples_ts", ts);
}

json_t *clb_bench_json(const clb_bench *b, const clb_bench_test *t)
{
    const clb_engine *e = b->engine;
    const clb_bench_figures f = clb_bench_figures_of(b, t);
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:o, s:s, s:I, s:i, s:i, s:s, s:s, s:i, s:i, s:i, s:s}", "engine", "colibri",
                  "version", COLIBRI_VERSION, "test", t->name, "model_filename", clb_json_text(b->path), "model_type",
                  e->model->arch->name, "model_size", (json_int_t)clb_bench_model_bytes(e->model), "n_batch",
                  (int)e->batch, "n_threads", (int)clb_pool_workers(e->pool), "type_k",
                  clb_kv_type_name(e->kv_layout.k_type), "type_v", clb_kv_type_name(e->kv_layout.v_type), "n_prompt",
                  (int)t->n_prompt, "n_gen", (int)t->n_gen, "n_depth", (int)t->depth, "test_time", b->when);
    if (!o)
        return NULL;
    if (t->n_streams > 1)
        json_object_set_new(o, "n_streams", json_integer((json_int_t)t->n_streams));
    json_object_set_new(o, "cpu_info", clb_json_text(b->topology.model));
    json_object_set_new(o, "avg_ns", json_integer((json_int_t)f.avg_ns));
    json_object_set_new(o, "stddev_ns", json_integer((json_int_t)f.stddev_ns));
    set(o, "avg_ts", f.avg_ts);
    set(o, "stddev_ts", f.stddev_ts);
    set(o, "median_ts", f.median_ts);
    set_samples(o, t);
    set(o, "load_seconds", (double)e->load_ns / 1e9);
    json_object_set_new(o, "peak_rss_bytes", json_integer((json_int_t)peak_rss()));
    json_object_set_new(o, "weight_bytes_per_token", json_integer((json_int_t)clb_bench_weight_bytes(e->model)));
    if (t->ids) {
        set(o, "ttft_ms", f.ttft_ms);
        set(o, "gen_median_ts", f.gen_ts);
        set(o, "gen_stddev_ts", f.gen_stddev);
    }
    if (t->n_token_ns) {
        set(o, "token_p50_ms", f.p50_ms);
        set(o, "token_p99_ms", f.p99_ms);
    }
    if (f.bandwidth > 0.0) {
        json_object_set_new(o, "bytes_per_token", json_integer((json_int_t)f.bytes_per_token));
        set(o, "read_bandwidth", f.bandwidth);
        set(o, "bandwidth_share", f.bandwidth_share);
    }
    if (f.hit_rate >= 0.0)
        set(o, "hit_rate", f.hit_rate);
    set(o, "drive_bytes_per_token", f.drive_bytes_per_token);
    if (b->drive_rate > 0.0) {
        set(o, "drive_bandwidth", b->drive_rate);
        set(o, "drive_share", f.drive_share);
    }
    if (t->has_profile)
        json_object_set_new(o, "split", split_json(b, t));
    return o;
}
