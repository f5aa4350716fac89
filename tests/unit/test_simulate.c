/* Replays: the engine's own counts, optima by brute force, next uses, times and read-ahead worked out by hand. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "replay/replay.h"
#include "support/component.h"
#include "support/engine.h"
#include "support/traces.h"

static test_dir dir;

/* ---- policies of this file: they need no plugin ---- */

/* Recency, by the host's numbering; belady by next_use. */
struct own {
    uint32_t n_experts;
    uint64_t now;
    uint64_t (*next_use)(void *ctx, uint32_t layer, uint32_t expert);
    void *ctx;
    uint64_t stamp[];
};

static void *own_create(const struct colibri_policy_config *c, char *why, size_t size)
{
    (void)why;
    (void)size;
    struct own *const s = calloc(1, sizeof *s + (size_t)c->n_layers * c->n_experts * sizeof s->stamp[0]);
    assert_non_null(s);
    s->n_experts = c->n_experts;
    s->next_use = c->next_use;
    s->ctx = c->next_use_ctx;
    return s;
}

static void own_reset(void *self)
{
    (void)self;
}

static void own_route(void *self, const struct colibri_route *route)
{
    struct own *const s = self;
    s->now++;
    for (uint32_t i = 0; i < route->n_union; i++)
        s->stamp[(size_t)route->layer * s->n_experts + route->union_ids[i]] = s->now;
}

static double recency(void *self, uint32_t layer, uint32_t expert)
{
    const struct own *const s = self;
    return (double)s->stamp[(size_t)layer * s->n_experts + expert];
}

static double nearness(void *self, uint32_t layer, uint32_t expert)
{
    const struct own *const s = self;
    return -(double)s->next_use(s->ctx, layer, expert);
}

static const struct colibri_expert_policy own_lru = {.struct_size = sizeof own_lru,
                                                     .flags = COLIBRI_POLICY_LOSSLESS,
                                                     .name = "own-lru",
                                                     .create = own_create,
                                                     .destroy = free,
                                                     .reset = own_reset,
                                                     .on_route = own_route,
                                                     .score = recency};
static const struct colibri_expert_policy own_belady = {.struct_size = sizeof own_belady,
                                                        .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_ORACLE,
                                                        .name = "own-belady",
                                                        .create = own_create,
                                                        .destroy = free,
                                                        .reset = own_reset,
                                                        .score = nearness};

static clb_trace *make(const test_trace_shape *shape)
{
    char path[PATH_MAX];
    return test_trace_make(shape, test_dir_file(&dir, "made.clbt", path));
}

static clb_replay_result replay(const clb_replay_index *x, const clb_replay_options *o)
{
    clb_error err;
    clb_replay_result r;
    assert_ok(clb_replay_run(x, o, &r, &err), &err);
    return r;
}

/* ---- against simple programs ---- */

/* One layer, one expert at a time: then both are textbook caches. */
static uint64_t textbook_hits(const uint32_t *ids, uint32_t n, uint32_t slots, bool belady)
{
    uint32_t have[64], used[64], count = 0;
    uint64_t hits = 0;
    for (uint32_t t = 0; t < n; t++) {
        uint32_t at = 0;
        while (at < count && have[at] != ids[t])
            at++;
        if (at < count) {
            hits++;
        } else if (count < slots) {
            count++;
        } else {
            uint64_t worst = 0;
            at = 0;
            for (uint32_t i = 0; i < count; i++) {
                uint32_t next = t + 1;
                while (next < n && ids[next] != have[i])
                    next++;
                const uint64_t rank = belady ? (next == n ? n + 1 : next) : n - used[i];
                if (rank > worst) {
                    worst = rank;
                    at = i;
                }
            }
        }
        have[at] = ids[t];
        used[at] = t;
    }
    return hits;
}

static void textbook(void **state)
{
    (void)state;
    clb_error err;
    for (uint64_t seed = 0; seed < 8; seed++) {
        clb_trace *const t = make(&(test_trace_shape){.n_layers = 1,
                                                      .n_experts = 24,
                                                      .top_k = 1,
                                                      .gates = CLB_GATES_NONE,
                                                      .units = 1,
                                                      .decode = 400,
                                                      .seed = seed});
        clb_replay_index x;
        assert_ok(clb_replay_index_make(t, &x, &err), &err);
        for (uint32_t slots = 1; slots < 24; slots += 3) {
            clb_replay_options o = {.policy = &own_lru, .n_slots = slots};
            clb_replay_result lru = replay(&x, &o);
            o.policy = &own_belady;
            clb_replay_result best = replay(&x, &o);
            assert_int_equal(lru.stats.hits, textbook_hits(t->ids, 400, slots, false));
            assert_int_equal(best.stats.hits, textbook_hits(t->ids, 400, slots, true));
            assert_true(best.stats.hits >= lru.stats.hits);
            assert_int_equal(lru.stats.hits + lru.stats.misses, 400);
            clb_replay_result_free(&lru);
            clb_replay_result_free(&best);
        }
        clb_replay_index_free(&x);
        clb_trace_close(t);
    }
}

static void next_uses(void **state)
{
    (void)state;
    clb_error err;
    clb_trace *const t = make(&(test_trace_shape){
        .n_layers = 3, .n_experts = 10, .top_k = 3, .gates = CLB_GATES_F32, .units = 3, .prompt_rows = 7, .decode = 9});
    clb_replay_index x;
    assert_ok(clb_replay_index_make(t, &x, &err), &err);
    for (uint32_t v = 0; v < x.n_visits; v++)
        for (uint64_t i = x.union_first[v]; i < x.union_first[v + 1]; i++) {
            const uint32_t layer = v % 3;
            uint32_t rows = 0, want = CLB_NEVER;
            float gates = 0;
            const clb_trace_pass *const p = &t->passes[v / 3];
            for (uint32_t k = 0; k < p->n_rows * 3; k++)
                if (t->ids[clb_trace_at(t, v / 3, layer) + k] == x.union_ids[i]) {
                    rows++;
                    gates += t->gates[clb_trace_at(t, v / 3, layer) + k];
                }
            assert_int_equal(x.union_rows[i], rows);
            assert_true(x.union_gates[i] == gates);
            assert_true(i == x.union_first[v] || x.union_ids[i - 1] < x.union_ids[i]);
            for (uint32_t later = v + 3; later < x.n_visits && want == CLB_NEVER; later += 3)
                for (uint64_t k = x.union_first[later]; k < x.union_first[later + 1]; k++)
                    want = x.union_ids[k] == x.union_ids[i] ? later : want;
            assert_int_equal(x.next[i], want);
        }
    uint64_t bins[CLB_REUSE_BINS], cold, sum = 0;
    assert_ok(clb_reuse_distances(&x, bins, &cold, &err), &err);
    for (uint32_t b = 0; b < CLB_REUSE_BINS; b++)
        sum += bins[b];
    assert_int_equal(sum + cold, x.n_lookups);
    clb_replay_index_free(&x);
    clb_trace_close(t);
}

/* A global lru of s slots hits exactly the reuse distances below s, if experts come one at a time. */
static void reuse_distances(void **state)
{
    (void)state;
    clb_error err;
    clb_trace *const t = make(&(test_trace_shape){
        .n_layers = 1, .n_experts = 60, .top_k = 1, .gates = CLB_GATES_NONE, .units = 1, .decode = 1000, .seed = 5});
    clb_replay_index x;
    uint64_t bins[CLB_REUSE_BINS], cold, below = 0;
    assert_ok(clb_replay_index_make(t, &x, &err), &err);
    assert_ok(clb_reuse_distances(&x, bins, &cold, &err), &err);
    for (uint32_t b = 0; b < 6; b++) {
        below += bins[b];
        clb_replay_result r = replay(&x, &(clb_replay_options){.policy = &own_lru, .n_slots = 1u << b});
        assert_int_equal(r.stats.hits, below);
        clb_replay_result_free(&r);
    }
    clb_replay_index_free(&x);
    clb_trace_close(t);
}

/* ---- resets, pools, preload ---- */

static void units(void **state)
{
    (void)state;
    clb_error err;
    const test_trace_shape shape = {
        .n_layers = 2, .n_experts = 12, .top_k = 2, .gates = CLB_GATES_F32, .units = 3, .prompt_rows = 5, .decode = 30};
    clb_trace *const t = make(&shape);
    clb_replay_index x;
    assert_ok(clb_replay_index_make(t, &x, &err), &err);
    clb_replay_options o = {.policy = &own_lru, .n_slots = 10, .reset_units = true, .window = 8};
    clb_replay_result r = replay(&x, &o);
    uint64_t hits = 0, lookups = 0, layers = 0;
    for (uint32_t u = 0; u < 3; u++)
        for (int k = 0; k < CLB_COUNTS; k++) {
            hits += r.units[u][k].hits;
            lookups += r.units[u][k].lookups;
        }
    for (uint32_t l = 0; l < 2; l++)
        layers += r.layer_hits[l];
    assert_int_equal(hits, r.stats.hits);
    assert_int_equal(layers, r.stats.hits);
    assert_int_equal(lookups, x.n_lookups);
    assert_int_equal(r.n_series, 90 / 8);
    assert_int_equal(r.series_unit[1], 30 / 8);
    assert_int_equal(r.units[0][CLB_COUNT_DECODE].rows, 30);
    /* The first unit is the same without resets; the second one starts cold. */
    o.reset_units = false;
    clb_replay_result warm = replay(&x, &o);
    assert_int_equal(warm.units[0][0].hits, r.units[0][0].hits);
    assert_int_equal(warm.units[0][1].hits, r.units[0][1].hits);
    assert_int_equal(r.units[1][0].hits, 0);
    assert_true(warm.units[1][0].hits > 0);
    /* With an oracle, what is used after the reset is not worth keeping: as good as the unit on its own. */
    o.reset_units = true;
    o.policy = &own_belady;
    clb_replay_result best = replay(&x, &o);
    assert_true(best.stats.hits >= r.stats.hits);
    clb_replay_result_free(&best);
    clb_replay_result_free(&warm);
    clb_replay_result_free(&r);
    /* Room for all: everything is there from the start, unless the cache is to be cold. */
    o = (clb_replay_options){.policy = &own_lru, .n_slots = 24};
    r = replay(&x, &o);
    assert_int_equal(r.stats.misses, 0);
    clb_replay_result_free(&r);
    o.cold = true;
    r = replay(&x, &o);
    assert_in_range(r.stats.misses, 1, 24);
    assert_int_equal(r.stats.evictions, 0);
    clb_replay_result_free(&r);
    /* Pools of layers: equally many, and too few are refused. */
    o = (clb_replay_options){.policy = &own_lru, .n_slots = 9, .layer_pools = true};
    r = replay(&x, &o);
    assert_int_equal(r.used_slots, 8);
    clb_replay_result_free(&r);
    o.n_slots = 1;
    assert_fails(clb_replay_run(&x, &o, &r, &err), &err, COLIBRI_E_USAGE, "at least 2");
    clb_trace *joined;
    const clb_trace *const both[] = {t, t};
    assert_ok(clb_trace_join(both, 2, &joined, &err), &err);
    assert_int_equal(joined->n_units, 6);
    assert_int_equal(joined->n_rows, 2 * t->n_rows);
    clb_trace_close(joined);
    clb_replay_index_free(&x);
    clb_trace_close(t);
}

/* ---- times, by hand ---- */

/* One layer, two experts a token; 1 ms to read each, 10 us for the layer, 100 us for an expert. */
static const clb_trace_rates rates = {.decode_layer_ns = 1e4,
                                      .decode_expert_ns = 1e5,
                                      .prefill_layer_ns = 1e4,
                                      .prefill_expert_ns = 1e5,
                                      .read_bytes_per_s = 1e9,
                                      .read_latency_ns = 5e4};

static clb_trace *tokens(const uint32_t (*ids)[2], uint32_t n, uint32_t n_layers)
{
    clb_error err;
    char path[PATH_MAX];
    clb_trace_writer *w;
    clb_trace *t;
    uint64_t bytes[4] = {1000000, 1000000, 1000000, 1000000};
    const clb_trace_info info = {.n_layers = n_layers, .n_experts = 8, .top_k = 2, .expert_bytes = bytes};
    test_dir_file(&dir, "hand.clbt", path);
    assert_ok(clb_trace_create(path, true, &info, &w, &err), &err);
    for (uint32_t i = 0; i < n; i += n_layers) {
        const clb_trace_put put = {.phase = COLIBRI_PHASE_DECODE, .n_rows = 1, .n_sequences = 1, .ids = ids[i]};
        assert_ok(clb_trace_pass_put(w, &put, &err), &err);
    }
    assert_ok(clb_trace_finish(w, NULL, &err), &err);
    assert_ok(clb_trace_open(path, &t, &err), &err);
    return t;
}

static void times(void **state)
{
    (void)state;
    clb_error err;
    static const uint32_t ids[][2] = {{0, 1}, {0, 1}, {0, 2}};
    clb_trace *const t = tokens(ids, 3, 1);
    clb_replay_index x;
    assert_ok(clb_replay_index_make(t, &x, &err), &err);
    clb_replay_result r = replay(&x, &(clb_replay_options){.policy = &own_lru, .n_slots = 4, .rates = rates});
    const clb_replay_count *const c = &r.units[0][CLB_COUNT_DECODE];
    /* 1: two reads, the second arrives at 10 + 2000 + 50 us, the first was multiplied by then: 2060 + 100.
     * 2: two hits: 10 + 200.
     * 3: a hit while the other is read: 10 + max(100, 1050) + 100. */
    const double want = 2160e3 + 210e3 + 1160e3;
    if (fabs(c->ns - want) > 1)
        fail_msg("%f ns instead of %f", c->ns, want);
    /* Waited: 1050 for the first, then from 1160 to 2060; and 950. */
    if (fabs(c->stall_ns - (1050e3 + 900e3 + 950e3)) > 1)
        fail_msg("%f ns of waiting", c->stall_ns);
    assert_int_equal(c->missed_bytes, 3000000);
    assert_int_equal(c->bytes, 6000000);
    clb_replay_result_free(&r);
    clb_replay_index_free(&x);
    clb_trace_close(t);
}

/* ---- read-ahead ---- */

struct seer {
    uint64_t useful, late, wasted, asked;
};
static struct seer seen;
static uint32_t seer_expert; /* layer 0 routed: says that layer 1 will want this expert and its neighbour */

static void *seer_create(const struct colibri_policy_config *c, char *why, size_t size)
{
    (void)why;
    (void)size;
    assert_int_equal(c->n_layers, 2);
    seen = (struct seer){0};
    return &seen;
}

static void seer_destroy(void *self)
{
    (void)self;
}

static uint32_t seer_predict(void *self, uint32_t layer, uint64_t budget, uint64_t deadline,
                             struct colibri_prediction *out, uint32_t max)
{
    (void)self;
    (void)deadline;
    seen.asked++;
    assert_true(budget > 0);
    if (layer || max < 2)
        return 0;
    out[0] = (struct colibri_prediction){.layer = 1, .expert = seer_expert, .confidence = 1};
    out[1] = (struct colibri_prediction){.layer = 1, .expert = seer_expert + 1, .confidence = 1};
    return 2;
}

static void seer_result(void *self, uint32_t layer, uint32_t expert, uint32_t result)
{
    (void)self;
    (void)expert;
    assert_int_equal(layer, 1);
    seen.useful += result == COLIBRI_PREDICTION_USEFUL;
    seen.late += result == COLIBRI_PREDICTION_LATE;
    seen.wasted += result == COLIBRI_PREDICTION_WASTED;
}

static const struct colibri_predictor seer = {.struct_size = sizeof seer,
                                              .name = "seer",
                                              .create = seer_create,
                                              .destroy = seer_destroy,
                                              .predict = seer_predict,
                                              .on_result = seer_result};

/* Layer 0 always wants 0 and 1; layer 1 wants 2 and 3, then 4 and 5, then 6 and 7, and again, and has room for two
 * pairs: lru always misses. The seer says 2 and 3, which are read when they are not there: right each time. */
static void read_ahead(void **state)
{
    (void)state;
    clb_error err;
    uint32_t ids[120][2];
    for (uint32_t i = 0; i < 120; i++)
        for (uint32_t k = 0; k < 2; k++)
            ids[i][k] = i % 2 ? 2 + 2 * (i / 2 % 3) + k : k;
    clb_trace *const t = tokens(ids, 120, 2);
    clb_replay_index x;
    assert_ok(clb_replay_index_make(t, &x, &err), &err);
    clb_replay_options o = {.policy = &own_lru, .n_slots = 8, .layer_pools = true, .rates = rates, .prefetch_depth = 1};
    clb_replay_result without = replay(&x, &o);
    assert_int_equal(without.stats.misses, 2 + 120);
    o.predictor = &seer;
    seer_expert = 2;
    /* A layer takes 210 us, a read 1000: too late, but less waiting. */
    clb_replay_result slow = replay(&x, &o);
    assert_true(slow.late >= 38 && slow.useful == 0);
    assert_int_equal(slow.stats.late, slow.late);
    assert_int_equal(seen.late, slow.late);
    assert_int_equal(slow.stats.misses + slow.late, without.stats.misses);
    assert_true(slow.units[0][1].stall_ns < without.units[0][1].stall_ns);
    /* 10 us and 10 of latency: in time. */
    o.rates.read_bytes_per_s = 1e11;
    o.rates.read_latency_ns = 1e4;
    clb_replay_result fast = replay(&x, &o);
    assert_true(fast.useful >= 38 && fast.late == 0);
    assert_int_equal(fast.useful, fast.stats.prefetch_useful);
    assert_int_equal(seen.useful, fast.useful);
    assert_int_equal(fast.stats.misses + fast.useful, without.stats.misses);
    assert_int_equal(fast.prefetched_bytes, fast.useful * 1000000);
    /* A predictor that is always wrong is asked, and hardly listened to any more. */
    seer_expert = 0;
    clb_replay_result wrong = replay(&x, &o);
    assert_int_equal(wrong.useful + wrong.late, 0);
    assert_in_range(wrong.wasted, 10, 40);
    assert_int_equal(seen.wasted, wrong.wasted);
    assert_int_equal(seen.asked, 120);
    /* What the slow drive has not begun when its turn has come is called off. */
    o.rates = rates;
    o.rates.read_bytes_per_s = 1e8;
    clb_replay_result hopeless = replay(&x, &o);
    assert_true(hopeless.cancelled > 5);
    assert_int_equal(seen.wasted, hopeless.wasted + hopeless.cancelled);
    clb_replay_result_free(&without);
    clb_replay_result_free(&slow);
    clb_replay_result_free(&fast);
    clb_replay_result_free(&wrong);
    clb_replay_result_free(&hopeless);
    clb_replay_index_free(&x);
    clb_trace_close(t);
}

static bool stop(void *ctx)
{
    (void)ctx;
    return true;
}

static void stopped(void **state)
{
    (void)state;
    clb_error err;
    clb_trace *const t = make(&(test_trace_shape){
        .n_layers = 1, .n_experts = 4, .top_k = 1, .gates = CLB_GATES_NONE, .units = 1, .decode = 9});
    clb_replay_index x;
    clb_replay_result r;
    assert_ok(clb_replay_index_make(t, &x, &err), &err);
    const clb_replay_options o = {.policy = &own_lru, .n_slots = 2, .cancelled = stop};
    assert_fails(clb_replay_run(&x, &o, &r, &err), &err, COLIBRI_E_CANCELLED, "on request");
    clb_replay_index_free(&x);
    clb_trace_close(t);
}

/* ---- the engine ---- */

struct recording {
    clb_recorder *recorder;
};

static void on_route(void *ctx, const struct colibri_route *route)
{
    const struct recording *const r = ctx;
    if (r->recorder)
        clb_recorder_route(r->recorder, route);
}

/* Feeds a prompt and 40 tokens of its own choice twice over, recording; the counts of the engine's cache. */
static clb_store_stats run_engine(const char *text, const char *const *settings, const char *path)
{
    clb_error err;
    struct recording rec = {0};
    const test_engine_hooks hooks = {.on_route = on_route, .ctx = &rec};
    test_engine e;
    clb_session *s;
    clb_tokens ids = {0};
    clb_trace_writer *w;
    assert_ok(test_engine_open(&e, TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf"), settings, &hooks, &err), &err);
    const clb_model *const m = e.engine->model;
    uint64_t bytes[64] = {0};
    clb_trace_info info = {.n_layers = m->n_moe_layers,
                           .n_experts = m->hp.n_experts,
                           .top_k = m->hp.top_k,
                           .expert_bytes = bytes,
                           .gates = CLB_GATES_F32};
    assert_in_range(info.n_layers, 1, 64);
    for (uint32_t l = 0; l < info.n_layers; l++)
        for (int p = 0; p < CLB_PARTS; p++)
            bytes[l] += m->expert_layers[l].part[p].bytes;
    assert_ok(clb_trace_create(path, true, &info, &w, &err), &err);
    assert_ok(clb_recorder_create(w, &info, clb_now_ns, &rec.recorder, &err), &err);
    assert_ok(clb_tokenize(e.engine->vocab, text, strlen(text), 0, &ids, &err), &err);
    assert_ok(clb_session_create(e.engine, &s, &err), &err);
    for (int round = 0; round < 2; round++) {
        clb_session_reset(s);
        assert_ok(clb_trace_unit_begin(w, round ? "again" : "first", &err), &err);
        clb_recorder_feed(rec.recorder, COLIBRI_PHASE_PREFILL, ids.ids, ids.n);
        assert_ok(clb_session_extend(s, ids.ids, ids.n, &err), &err);
        assert_ok(clb_recorder_flush(rec.recorder, &err), &err);
        for (int i = 0; i < 40; i++) {
            const uint32_t token = test_argmax(clb_session_logits(s), m->hp.n_vocab);
            clb_recorder_feed(rec.recorder, COLIBRI_PHASE_DECODE, &token, 1);
            assert_ok(clb_session_append(s, token, &err), &err);
            assert_ok(clb_recorder_flush(rec.recorder, &err), &err);
        }
    }
    clb_store_stats stats;
    clb_store_get_stats(m->store, &stats);
    clb_recorder_destroy(rec.recorder);
    rec.recorder = NULL;
    assert_ok(clb_trace_finish(w, NULL, &err), &err);
    clb_session_destroy(s);
    clb_tokens_free(&ids);
    test_engine_close(&e);
    return stats;
}

static void the_engines_counts(void **state)
{
    (void)state;
    clb_error err;
    static const char *const texts[] = {
        "#include <stdio.h>\n\nint main(void)\n{\n    printf(\"hello\\n\");\n    return 0;\n}\n",
        "In the beginning was the word, and the word was long, and nobody knew what it meant."};
    static const struct {
        const char *file, *ident, *name;
    } policies[] = {
        {"expert-policy-lru", "colibri_expert_policy_lru", "lru"},
        {"expert-policy-lfu", "colibri_expert_policy_lfu", "lfu"},
        {"expert-policy-frequency_weighted", "colibri_expert_policy_frequency_weighted", "frequency-weighted"}};
    /* 6 slots: a prompt's layer takes several waves. */
    static const uint32_t slots[] = {6, 16, 40, 80, 144};
    static const char *const pools[] = {"global", "layer"};
    for (size_t p = 0; p < sizeof policies / sizeof *policies; p++) {
        const struct colibri_expert_policy *const policy =
            test_component(policies[p].file, policies[p].ident, COLIBRI_IFACE_EXPERT_POLICY);
        double params[16] = {0};
        assert_in_range(policy->n_params, 0, 16);
        for (uint32_t i = 0; i < policy->n_params; i++)
            params[i] = policy->params[i].value;
        for (size_t k = 0; k < sizeof slots / sizeof *slots; k++)
            for (size_t pool = 0; pool < 2; pool++) {
                char a[64], b[64], c[64], path[PATH_MAX];
                snprintf(a, sizeof a, "store.expert-slots=%u", slots[k]);
                snprintf(b, sizeof b, "store.expert-policy=%s", policies[p].name);
                snprintf(c, sizeof c, "store.expert-pool=%s", pools[pool]);
                const char *const settings[] = {"ctx=256", "threads=2", "store.expert-profile=none", a, b, c, NULL};
                test_dir_file(&dir, "engine.clbt", path);
                const clb_store_stats want = run_engine(texts[(k + pool) % 2], settings, path);
                clb_trace *t;
                clb_replay_index x;
                assert_ok(clb_trace_open(path, &t, &err), &err);
                assert_ok(clb_replay_index_make(t, &x, &err), &err);
                clb_replay_result got = replay(&x, &(clb_replay_options){.policy = policy,
                                                                         .params = params,
                                                                         .n_slots = slots[k],
                                                                         .layer_pools = pool == 1,
                                                                         .rates = rates});
                if (got.stats.hits != want.hits || got.stats.misses != want.misses ||
                    got.stats.evictions != want.evictions)
                    fail_msg("%s, %u slots, %s: replay has %llu hits, %llu misses, %llu evictions, the engine %llu, "
                             "%llu, %llu",
                             policies[p].name, slots[k], pools[pool], (unsigned long long)got.stats.hits,
                             (unsigned long long)got.stats.misses, (unsigned long long)got.stats.evictions,
                             (unsigned long long)want.hits, (unsigned long long)want.misses,
                             (unsigned long long)want.evictions);
                assert_true(want.misses > 0 && (want.hits > 0 || slots[k] < 40));
                clb_replay_result_free(&got);
                clb_replay_index_free(&x);
                clb_trace_close(t);
            }
    }
}

static int set_up(void **state)
{
    (void)state;
    test_dir_create(&dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    test_dir_remove(&dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(textbook),        cmocka_unit_test(next_uses),
        cmocka_unit_test(reuse_distances), cmocka_unit_test(units),
        cmocka_unit_test(times),           cmocka_unit_test(read_ahead),
        cmocka_unit_test(stopped),         cmocka_unit_test(the_engines_counts),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
