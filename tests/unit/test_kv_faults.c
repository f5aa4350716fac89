/* KV strategies that answer badly, ask for too much or cannot be served: the run goes on, the reason is told. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/kv_rows.h"

enum { LAYERS = 2, KV_HEADS = 2, HEADS = 4, DIM = 8, PAGE = 16, BUDGET = 40 };

static const clb_kv_layout layout = {LAYERS, HEADS, KV_HEADS, DIM, DIM, COLIBRI_TYPE_F32, COLIBRI_TYPE_F32, PAGE, .ops = NULL};

enum lie { ERROR, NOTHING, ALL, ONE_TOO_MANY, ODD_FLAG, BEYOND, NOT_THE_NEWEST, NAN_SCORE, NO_SCORE, N_LIES };

static const char *const expected[N_LIES] = {
    [ERROR] = "error",      [NOTHING] = "no position",       [ALL] = "more positions", [ONE_TOO_MANY] = "more positions",
    [ODD_FLAG] = "flag",    [BEYOND] = "beyond",             [NOT_THE_NEWEST] = "newest",
    [NAN_SCORE] = "number", [NO_SCORE] = "number",
};

static enum lie lie;

static int lying_select(void *self, const struct colibri_kv_view *view, uint8_t *keep)
{
    const uint32_t n = view->n, k = view->n_keep;
    (void)self;
    memset(keep + (n - k), 1, k); /* a good answer, but for: */
    switch (lie) {
    case ERROR:
        return COLIBRI_E_INTERNAL;
    case NOTHING:
        memset(keep, 0, n);
        break;
    case ALL:
        memset(keep, 1, n);
        break;
    case ONE_TOO_MANY:
        keep[0] = 1;
        break;
    case ODD_FLAG:
        keep[n - 1] = 2;
        break;
    case BEYOND:
        keep[n] = 1;
        break;
    case NOT_THE_NEWEST:
        keep[n - 1] = 0;
        break;
    default:
        break;
    }
    return COLIBRI_OK;
}

static void lying_score(void *self, const struct colibri_kv_view *view, float *out)
{
    (void)self;
    for (uint32_t i = 0; i < view->n; i++)
        if (lie == NAN_SCORE || i != view->n / 2)
            out[i] = lie == NAN_SCORE && i == 3 ? NAN : (float)(view->n - i);
}

static struct {
    int calls;
    char strategy[64], what[128];
} reported;

static void note(void *ctx, const char *strategy, const char *what)
{
    assert_ptr_equal(ctx, &reported);
    reported.calls++;
    snprintf(reported.strategy, sizeof reported.strategy, "%s", strategy);
    snprintf(reported.what, sizeof reported.what, "%s", what);
}

static struct colibri_kv_strategy base_strategy(void)
{
    return (struct colibri_kv_strategy){
        .struct_size = sizeof(struct colibri_kv_strategy),
        .flags = COLIBRI_KV_FLAG_PER_HEAD,
        .triggers = COLIBRI_KV_AT_CHUNK | COLIBRI_KV_AT_OVER_BUDGET,
        .name = "liar",
        .create = kv_rows_create,
        .destroy = free,
        .reset = kv_rows_reset,
        .select = lying_select,
    };
}

static clb_kv_cache *open_cache(void)
{
    clb_kv_cache *cache;
    clb_error err;
    assert_ok(clb_kv_cache_create(&layout, 1 << 20, NULL, &cache, &err), &err);
    return cache;
}

static void pass(clb_kv_seq *seq, uint32_t n, enum colibri_phase phase)
{
    clb_error err;
    assert_ok(clb_kv_begin(seq, n, &err), &err);
    kv_rows_write(seq, &layout, 1, n);
    clb_kv_end(seq, n, phase, false);
}

static void ends_stay_after_a_bad_answer(void **state)
{
    (void)state;
    for (int which = 0; which < N_LIES; which++) {
        lie = (enum lie)which;
        clb_kv_cache *cache = open_cache();
        struct colibri_kv_strategy strategy = base_strategy();
        if (lie >= NAN_SCORE) {
            strategy.select = NULL;
            strategy.score = lying_score;
        }
        const clb_kv_seq_options o = {.strategy = &strategy, .ctx = 1000, .budget = BUDGET, .misbehaved = note,
                                      .misbehaved_ctx = &reported};
        clb_kv_seq *seq;
        clb_error err;
        memset(&reported, 0, sizeof reported);
        assert_ok(clb_kv_seq_create(cache, &o, &seq, &err), &err);
        pass(seq, 70, COLIBRI_PHASE_PREFILL);
        for (int again = 0; again < 2; again++) {
            for (uint32_t l = 0; l < LAYERS; l++)
                for (uint32_t h = 0; h < KV_HEADS; h++) {
                    uint32_t position[BUDGET];
                    const clb_kv_view v = clb_kv_view_of(seq, l, h);
                    assert_int_equal(clb_kv_seq_positions(seq, l, h, position, BUDGET), BUDGET);
                    for (uint32_t i = 0; i < BUDGET; i++) {
                        assert_int_equal(position[i], i < 4 ? i : clb_kv_seq_position(seq) - BUDGET + i);
                        kv_rows_check(&v, &layout, 1, l, h, i, position[i]);
                    }
                }
            clb_kv_stats st;
            clb_kv_seq_stats(seq, &st);
            assert_int_equal(st.bad_answers, st.selections);
            const uint32_t asked = LAYERS * KV_HEADS * (uint32_t)(again + 1);
            assert_int_equal(st.selections, asked < CLB_KV_BAD_ANSWERS_MOST ? asked : CLB_KV_BAD_ANSWERS_MOST);
            assert_int_equal(reported.calls, 1); /* once per kind of fault */
            assert_string_equal(reported.strategy, "liar");
            if (!strstr(reported.what, expected[lie]))
                fail_msg("lie %d reported as: %s", which, reported.what);
            pass(seq, 10, COLIBRI_PHASE_PREFILL);
        }
        clb_kv_seq_destroy(seq);
        clb_kv_cache_destroy(cache);
    }
}

static void oldest_first(void *self, const struct colibri_kv_view *view, float *out)
{
    (void)self;
    for (uint32_t i = 0; i < view->n; i++)
        out[i] = -(float)view->positions[i];
}

/* The newest position stays, whatever its score. */
static void scores_keep_the_newest(void **state)
{
    (void)state;
    clb_kv_cache *cache = open_cache();
    struct colibri_kv_strategy strategy = base_strategy();
    strategy.select = NULL;
    strategy.score = oldest_first;
    const clb_kv_seq_options o = {.strategy = &strategy, .ctx = 1000, .budget = BUDGET};
    clb_kv_seq *seq;
    clb_error err;
    clb_kv_stats st;
    uint32_t position[BUDGET];
    assert_ok(clb_kv_seq_create(cache, &o, &seq, &err), &err);
    pass(seq, 100, COLIBRI_PHASE_PREFILL);
    clb_kv_seq_stats(seq, &st);
    assert_int_equal(st.bad_answers, 0);
    assert_int_equal(clb_kv_seq_positions(seq, 0, 0, position, BUDGET), BUDGET);
    for (uint32_t i = 0; i < BUDGET - 1; i++)
        assert_int_equal(position[i], i);
    assert_int_equal(position[BUDGET - 1], 99);
    clb_kv_seq_destroy(seq);
    clb_kv_cache_destroy(cache);
}

/* ---- budgets ------------------------------------------------------------------------------------------- */

static uint32_t ragged(void *self, uint32_t layer, uint32_t kv_head, uint64_t n_seen)
{
    (void)self;
    (void)layer;
    (void)n_seen;
    return kv_head ? 8 : 2 * BUDGET - 8;
}

static uint32_t greedy(void *self, uint32_t layer, uint32_t kv_head, uint64_t n_seen)
{
    (void)self;
    (void)n_seen;
    return layer == 0 && kv_head == 0 ? 0 : UINT32_MAX - kv_head;
}

static int newest_select(void *self, const struct colibri_kv_view *view, uint8_t *keep)
{
    (void)self;
    memset(keep + (view->n - view->n_keep), 1, view->n_keep);
    return COLIBRI_OK;
}

static void heads_of_different_length_free_memory(void **state)
{
    (void)state;
    clb_kv_cache *cache = open_cache();
    struct colibri_kv_strategy strategy = base_strategy();
    strategy.select = newest_select;
    strategy.budget = ragged;
    const clb_kv_seq_options o = {.strategy = &strategy, .ctx = 1000, .budget = BUDGET};
    clb_kv_seq *seq;
    clb_error err;
    clb_kv_stats st;
    assert_ok(clb_kv_seq_create(cache, &o, &seq, &err), &err);
    pass(seq, 200, COLIBRI_PHASE_PREFILL);
    clb_kv_seq_stats(seq, &st);
    assert_int_equal(st.kept_min, 8);
    assert_int_equal(st.kept_max, 72);
    /* 72 positions take 5 pages, 8 take 1 */
    assert_int_equal(clb_kv_cache_used_bytes(cache), LAYERS * (5 + 1) * clb_kv_page_bytes(&layout));
    for (uint32_t h = 0; h < KV_HEADS; h++) {
        const clb_kv_view v = clb_kv_view_of(seq, 1, h);
        const uint32_t n = h ? 8 : 72;
        assert_int_equal(v.n_before, n);
        for (uint32_t i = 0; i < n; i++)
            kv_rows_check(&v, &layout, 1, 1, h, i, 200 - n + i);
    }
    /* decoding: never more than a page over, whatever the length */
    for (int i = 0; i < 100; i++) {
        pass(seq, 1, COLIBRI_PHASE_DECODE);
        clb_kv_seq_stats(seq, &st);
        assert_true(st.kept_max <= 72 + PAGE && st.kept_min <= 8 + PAGE);
    }
    assert_true(st.selections <= LAYERS * KV_HEADS * (1 + 100 / PAGE + 1)); /* a page at a time, not each token */
    clb_kv_seq_destroy(seq);

    strategy.budget = greedy;
    assert_ok(clb_kv_seq_create(cache, &o, &seq, &err), &err);
    pass(seq, 400, COLIBRI_PHASE_PREFILL);
    clb_kv_seq_stats(seq, &st);
    assert_true(st.kept_sum <= (uint64_t)LAYERS * KV_HEADS * BUDGET);
    assert_true(st.kept_sum >= (uint64_t)LAYERS * KV_HEADS * (BUDGET - 1));
    assert_int_equal(st.kept_min, 1);
    clb_kv_seq_destroy(seq);
    clb_kv_cache_destroy(cache);
}

/* Room that only an eviction makes counts; a pass that does not fit even so evicts nothing. */
static void full_pool(void **state)
{
    (void)state;
    clb_kv_cache *cache;
    clb_error err;
    struct colibri_kv_strategy strategy = base_strategy();
    strategy.select = newest_select;
    const clb_kv_seq_options o = {.strategy = &strategy, .ctx = 1000, .budget = BUDGET};
    clb_kv_seq *seq;
    clb_kv_stats st;
    const uint64_t row = LAYERS * KV_HEADS * clb_kv_page_bytes(&layout);
    assert_ok(clb_kv_cache_create(&layout, 4 * row, NULL, &cache, &err), &err); /* 64 positions */
    assert_ok(clb_kv_seq_create(cache, &o, &seq, &err), &err);
    for (uint32_t i = 0; i < BUDGET + PAGE; i++)
        pass(seq, 1, COLIBRI_PHASE_DECODE);
    assert_fails(clb_kv_begin(seq, 25, &err), &err, COLIBRI_E_NOMEM, "KV cache is full"); /* 40 + 25 > 64 */
    clb_kv_seq_stats(seq, &st);
    assert_int_equal(st.kept_min, BUDGET + PAGE);
    assert_int_equal(st.selections, 0);
    pass(seq, 24, COLIBRI_PHASE_DECODE); /* 40 + 24 */
    clb_kv_seq_stats(seq, &st);
    assert_int_equal(st.kept_min, 64);
    clb_kv_seq_destroy(seq);
    clb_kv_cache_destroy(cache);
}

/* ---- wrappers that keep something from their child ------------------------------------------------------ */

static void follow_append(void *self, uint32_t layer, uint32_t kv_head, uint32_t n)
{
    (void)self;
    (void)layer;
    (void)kv_head;
    (void)n;
}

static void follow_evict(void *self, uint32_t layer, uint32_t kv_head, const uint32_t *kept, uint32_t n_kept)
{
    (void)kept;
    follow_append(self, layer, kv_head, n_kept);
}

/* The host would never call the child's: the chain would be something else than its name says. */
static void what_wrappers_must_hand_on(void **state)
{
    (void)state;
    clb_kv_cache *cache = open_cache();
    struct colibri_kv_strategy outer = base_strategy(), inner = base_strategy();
    struct colibri_kv_strategy middle = base_strategy();
    struct colibri_kv_child last = {.struct_size = sizeof last, .strategy = &inner};
    struct colibri_kv_child first = {.struct_size = sizeof first, .strategy = &middle, .child = &last};
    const clb_kv_seq_options o = {.strategy = &outer, .child = &first, .ctx = 1000, .budget = BUDGET};
    clb_kv_seq *seq;
    clb_error err;
    outer.flags |= COLIBRI_KV_FLAG_WRAPPER;
    middle.flags |= COLIBRI_KV_FLAG_WRAPPER;
    outer.name = "outer";
    middle.name = "middle";
    assert_ok(clb_kv_seq_create(cache, &o, &seq, &err), &err);
    clb_kv_seq_destroy(seq);
    inner.budget = ragged;
    assert_fails(clb_kv_seq_create(cache, &o, &seq, &err), &err, COLIBRI_E_PLUGIN, "middle: liar has budget");
    middle.budget = ragged;
    assert_fails(clb_kv_seq_create(cache, &o, &seq, &err), &err, COLIBRI_E_PLUGIN, "outer: middle has budget");
    outer.budget = ragged;
    inner.on_append = follow_append;
    assert_fails(clb_kv_seq_create(cache, &o, &seq, &err), &err, COLIBRI_E_PLUGIN, "liar has on_append");
    inner.on_append = NULL;
    inner.on_evict = follow_evict;
    assert_fails(clb_kv_seq_create(cache, &o, &seq, &err), &err, COLIBRI_E_PLUGIN, "liar has on_evict");
    middle.on_evict = outer.on_evict = follow_evict;
    assert_ok(clb_kv_seq_create(cache, &o, &seq, &err), &err);
    clb_kv_seq_destroy(seq);
    clb_kv_cache_destroy(cache);
}

/* ---- what is refused, and why --------------------------------------------------------------------------- */

static void *refusing_create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    snprintf(why, why_size, "a budget of %u is too small", config->budget);
    return NULL;
}

static void *params_create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    assert_int_equal(config->struct_size, sizeof *config);
    assert_int_equal(config->n_layers, LAYERS);
    assert_int_equal(config->n_heads, HEADS);
    assert_int_equal(config->n_kv_heads, KV_HEADS);
    assert_int_equal(config->budget, 1000);
    assert_int_equal(config->page_tokens, PAGE);
    assert_int_equal(config->evictable[LAYERS - 1], 1);
    assert_int_equal(config->seed, 5);
    snprintf(why, why_size, "%g %g", config->params[0], config->params[1]);
    return NULL;
}

static uint64_t endless(const struct colibri_kv_config *config)
{
    (void)config;
    return UINT64_MAX;
}

static void refusals(void **state)
{
    (void)state;
    clb_kv_cache *cache = open_cache();
    struct colibri_kv_strategy s = base_strategy();
    clb_kv_seq_options o = {.strategy = &s, .ctx = 1000, .seed = 5};
    clb_kv_seq *seq;
    clb_error err;
#define REFUSED(change, code, part)                                             \
    s = base_strategy();                                                        \
    change;                                                                     \
    assert_fails(clb_kv_seq_create(cache, &o, &seq, &err), &err, code, part);   \
    assert_null(seq)
    REFUSED(s.needs = COLIBRI_KV_NEED_WO_NORM | COLIBRI_KV_NEED_HIDDEN, COLIBRI_E_UNSUPPORTED, ": WO_NORM HIDDEN");
    REFUSED(s.needs = COLIBRI_KV_NEED_PROB_LAST_W, COLIBRI_E_PLUGIN, "window_w is 0");
    REFUSED(s.needs = COLIBRI_KV_NEED_FUTURE, COLIBRI_E_UNSUPPORTED, "future");
    REFUSED(s.needs = COLIBRI_KV_NEED_PAGE_MINMAX, COLIBRI_E_PLUGIN, "PAGE_MINMAX");
    REFUSED(s.flags |= COLIBRI_KV_FLAG_WRAPPER, COLIBRI_E_USAGE, "liar/");
    REFUSED(s.needs = 0x80000000u, COLIBRI_E_UNSUPPORTED, "unknown");
    REFUSED((s.needs = COLIBRI_KV_NEED_V, s.flags = 0), COLIBRI_E_PLUGIN, "PER_HEAD");
    REFUSED(s.select = NULL, COLIBRI_E_PLUGIN, "neither select nor score");
    REFUSED(s.triggers = 0, COLIBRI_E_PLUGIN, "trigger");
    REFUSED(s.triggers = COLIBRI_KV_AT_STEPS, COLIBRI_E_PLUGIN, "every_steps");
    REFUSED(s.create = NULL, COLIBRI_E_PLUGIN, "create");
    REFUSED(s.reset = NULL, COLIBRI_E_PLUGIN, "reset");
    REFUSED(s.struct_size = 40, COLIBRI_E_PLUGIN, "struct_size 40");
    REFUSED(s.state_bytes = endless, COLIBRI_E_PLUGIN, "liar says that one instance takes 17179869184 GiB");
    REFUSED(s.create = refusing_create, COLIBRI_E_USAGE, "liar: a budget of 1000 is too small");
    const struct colibri_param params[] = {{"a", 0, 9, 4, 1, "a"}, {"b", 0, 9, 0.5, 0, "b"}};
    REFUSED((s.create = params_create, s.params = params, s.n_params = 2), COLIBRI_E_USAGE, "liar: 4 0.5");
    const double given[] = {7, 8};
    o.params = given;
    REFUSED((s.create = params_create, s.params = params, s.n_params = 2), COLIBRI_E_USAGE, "liar: 7 8");
    o.n_protected = 1000;
    REFUSED((void)0, COLIBRI_E_USAGE, "1000 protected positions leave nothing");
    o.n_protected = 0;
    o.ctx = 0;
    REFUSED((void)0, COLIBRI_E_USAGE, "context of 0");
    clb_kv_cache_destroy(cache); /* asserts that no half-made sequence is left */
}

/* A prefix can be used again only if it is what a fresh run would hold. */
static void truncation_of_what_was_shortened(void **state)
{
    (void)state;
    clb_kv_cache *cache = open_cache();
    struct colibri_kv_strategy s = base_strategy();
    s.select = newest_select;
    const clb_kv_seq_options o = {.strategy = &s, .ctx = 1000, .budget = BUDGET};
    clb_kv_seq *seq;
    clb_error err;
    assert_ok(clb_kv_seq_create(cache, &o, &seq, &err), &err);
    pass(seq, 30, COLIBRI_PHASE_PREFILL);
    assert_ok(clb_kv_seq_truncate(seq, 20, &err), &err); /* nothing dropped yet */
    pass(seq, 40, COLIBRI_PHASE_PREFILL);
    assert_fails(clb_kv_seq_truncate(seq, 50, &err), &err, COLIBRI_E_UNSUPPORTED, "dropped");
    assert_int_equal(clb_kv_seq_position(seq), 60);
    assert_ok(clb_kv_seq_truncate(seq, 60, &err), &err);
    assert_ok(clb_kv_seq_truncate(seq, 0, &err), &err);
    assert_int_equal(clb_kv_cache_used_bytes(cache), 0);
    clb_kv_seq_destroy(seq);
    s.needs = COLIBRI_KV_NEED_PROB_COLSUM;
    assert_ok(clb_kv_seq_create(cache, &o, &seq, &err), &err);
    pass(seq, 30, COLIBRI_PHASE_PREFILL);
    assert_fails(clb_kv_seq_truncate(seq, 20, &err), &err, COLIBRI_E_UNSUPPORTED, "remembers");
    clb_kv_seq_destroy(seq);
    clb_kv_cache_destroy(cache);
}

/* Layers that must keep all are bounded by the context, however the others shrink. */
static void layers_that_keep_all(void **state)
{
    (void)state;
    const uint8_t evictable[LAYERS] = {1, 0};
    clb_kv_layout l = layout;
    l.evictable = evictable;
    clb_kv_cache *cache;
    clb_error err;
    assert_ok(clb_kv_cache_create(&l, 1 << 20, NULL, &cache, &err), &err);
    struct colibri_kv_strategy s = base_strategy();
    s.select = newest_select;
    const clb_kv_seq_options o = {.strategy = &s, .ctx = 100, .budget = BUDGET};
    clb_kv_seq *seq;
    assert_ok(clb_kv_seq_create(cache, &o, &seq, &err), &err);
    for (int i = 0; i < 100; i++)
        pass(seq, 1, COLIBRI_PHASE_DECODE);
    assert_fails(clb_kv_begin(seq, 1, &err), &err, COLIBRI_E_LIMIT, "100 tokens");
    const clb_kv_view a = clb_kv_view_of(seq, 0, 0), b = clb_kv_view_of(seq, 1, 0);
    assert_true(a.n_before <= BUDGET + PAGE);
    assert_int_equal(b.n_before, 100);
    kv_rows_check(&b, &layout, 1, 1, 0, 3, 3);
    clb_kv_seq_destroy(seq);
    clb_kv_cache_destroy(cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_stay_after_a_bad_answer),
        cmocka_unit_test(scores_keep_the_newest),
        cmocka_unit_test(heads_of_different_length_free_memory),
        cmocka_unit_test(full_pool),
        cmocka_unit_test(what_wrappers_must_hand_on),
        cmocka_unit_test(refusals),
        cmocka_unit_test(truncation_of_what_was_shortened),
        cmocka_unit_test(layers_that_keep_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
