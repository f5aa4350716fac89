/* The host side of KV strategies against a naive model: random schedules, ragged heads, observed probabilities. */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/kv_rows.h"

enum { LAYERS = 3, KV_HEADS = 2, GROUP = 2, HEADS = KV_HEADS * GROUP, K_DIM = 8, V_DIM = 16, PAGE = 16, MOST = 1200, MOST_ROWS = 60,
       ALL = LAYERS * KV_HEADS };
#define AT(layer, head) ((layer) * KV_HEADS + (head))

/* ---- the model: what every (layer, head) of one sequence must hold ------------------------------------ */

struct model_head {
    uint32_t n, position[MOST];
    double sum[MOST], max[MOST];
    uint64_t appended;
};

struct model {
    uint32_t tag, position, budget[ALL];
    struct model_head head[ALL];
    uint64_t evicted, selections;
    bool checked_by_strategy;
};

/* What the strategy under test is, so that strategy and model agree. */
static struct setup {
    clb_kv_layout layout;
    uint8_t evictable[LAYERS];
    uint32_t triggers, every_steps, needs, budget;
    bool per_head, own_budget, keeps_fewer, by_score;
    uint64_t most_bytes; /* of one sequence, as a plan would reserve */
    struct model *now; /* the model of the sequence that is being driven */
} setup;

static uint32_t mix(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t x = a * 0x9e3779b1u ^ b * 0x85ebca6bu ^ c * 0xc2b2ae35u;
    x = (x ^ (x >> 15)) * 0x2c1b3c6du;
    return x ^ (x >> 13);
}

/* The rule both sides use: the newest and the positions with the highest hash. */
static float liking(uint32_t layer, uint32_t head, uint32_t position)
{
    return (float)(mix(position, layer, head) >> 10); /* few enough bits to be distinct floats; ties: the later */
}

static uint32_t how_many(uint32_t n_keep, uint32_t layer, uint32_t head)
{
    const uint32_t fewer = setup.keeps_fewer ? mix(n_keep, layer, head) % 7 : 0;
    return n_keep > fewer ? n_keep - fewer : n_keep;
}

static void naive_choice(const uint32_t *position, uint32_t n, uint32_t n_keep, uint32_t layer, uint32_t head,
                         uint8_t *keep)
{
    memset(keep, 0, n);
    keep[n - 1] = 1;
    for (uint32_t k = 1; k < how_many(n_keep, layer, head); k++) {
        uint32_t best = n;
        for (uint32_t i = 0; i < n; i++)
            if (!keep[i] && (best == n || liking(layer, head, position[i]) >= liking(layer, head, position[best])))
                best = i;
        keep[best] = 1;
    }
}

/* ---- the strategy under test -------------------------------------------------------------------------- */

static uint32_t strategy_budget(void *self, uint32_t layer, uint32_t kv_head, uint64_t n_seen)
{
    (void)self;
    const uint32_t b = setup.budget, part = b / 2 * (1 + (uint32_t)(n_seen / 64) % 2) / 2;
    return (layer + kv_head) % 2 ? b + part : b - part; /* the sum stays; changes over time */
}

static void check_view(const struct colibri_kv_view *view)
{
    const struct model *m = setup.now;
    const struct model_head *h = &m->head[AT(view->layer, view->kv_head)];
    assert_int_equal(view->n, h->n);
    assert_memory_equal(view->positions, h->position, h->n * sizeof(uint32_t));
    assert_int_equal(view->next_position, m->position);
    assert_true((setup.needs & COLIBRI_KV_NEED_PROB_COLSUM) ? view->prob_sum != NULL : view->prob_sum == NULL);
    assert_true((setup.needs & COLIBRI_KV_NEED_PROB_MAX) ? view->prob_max != NULL : view->prob_max == NULL);
    for (uint32_t i = 0; i < view->n; i++) {
        double sum = 0, max = 0;
        for (uint32_t j = 0; j < KV_HEADS; j++) /* one answer per layer: over all its heads */
            if (j == view->kv_head || !setup.per_head) {
                sum += m->head[AT(view->layer, j)].sum[i];
                max = fmax(max, m->head[AT(view->layer, j)].max[i]);
            }
        if (view->prob_sum)
            assert_true(fabs(view->prob_sum[i] - sum) <= 1e-4 * (1 + sum));
        if (view->prob_max)
            assert_true(fabs(view->prob_max[i] - max) <= 1e-5);
    }
    if (view->read_k)
        for (uint32_t i = 0; i < view->n; i += 1 + view->n / 5) {
            float k[K_DIM], v[V_DIM];
            view->read_k(view, i, k);
            view->read_v(view, i, v);
            for (uint32_t d = 0; d < K_DIM; d++)
                assert_true(k[d] == kv_rows_value(m->tag, view->layer, view->kv_head, view->positions[i], d, 0));
            for (uint32_t d = 0; d < V_DIM; d++)
                assert_true(v[d] == kv_rows_value(m->tag, view->layer, view->kv_head, view->positions[i], d, 1));
        }
    setup.now->checked_by_strategy = true;
}

static int strategy_select(void *self, const struct colibri_kv_view *view, uint8_t *keep)
{
    (void)self;
    check_view(view);
    naive_choice(view->positions, view->n, view->n_keep, view->layer, view->kv_head, keep);
    return COLIBRI_OK;
}

static void strategy_score(void *self, const struct colibri_kv_view *view, float *out)
{
    (void)self;
    check_view(view);
    for (uint32_t i = 0; i < view->n; i++)
        out[i] = liking(view->layer, view->kv_head, view->positions[i]);
}

static void strategy_on_append(void *self, uint32_t layer, uint32_t kv_head, uint32_t n)
{
    (void)self;
    setup.now->head[AT(layer, kv_head)].appended += n;
}

static void strategy_on_evict(void *self, uint32_t layer, uint32_t kv_head, const uint32_t *kept, uint32_t n_kept)
{
    (void)self;
    (void)layer;
    (void)kv_head;
    for (uint32_t i = 1; i < n_kept; i++)
        assert_true(kept[i] > kept[i - 1]);
}

static struct colibri_kv_strategy make_strategy(void)
{
    return (struct colibri_kv_strategy){
        .struct_size = sizeof(struct colibri_kv_strategy),
        .flags = setup.per_head ? COLIBRI_KV_FLAG_PER_HEAD : 0,
        .needs = setup.needs,
        .triggers = setup.triggers,
        .every_steps = setup.every_steps,
        .name = "test",
        .create = kv_rows_create,
        .destroy = free,
        .reset = kv_rows_reset,
        .budget = setup.own_budget ? strategy_budget : NULL,
        .select = setup.by_score ? NULL : strategy_select,
        .score = setup.by_score ? strategy_score : NULL,
        .on_append = strategy_on_append,
        .on_evict = strategy_on_evict,
    };
}

/* ---- driving one sequence and its model --------------------------------------------------------------- */

static float score_of(uint32_t tag, uint32_t layer, uint32_t q_head, uint32_t row_position, uint32_t position)
{
    return (float)(mix(tag + row_position, layer * HEADS + q_head, position) % 1000u) * 0.008f - 3.0f;
}

/* Attention of rows 0..n of the open pass, in row order per (layer, head). */
static void observe(clb_kv_seq *seq, uint32_t tag, uint32_t n, struct model *m)
{
    static float s[GROUP][MOST + 512];
    static uint32_t position[MOST];
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t head = 0; head < KV_HEADS; head++) {
            const uint32_t before = clb_kv_seq_positions(seq, layer, head, position, MOST);
            const uint32_t first = clb_kv_seq_position(seq);
            for (uint32_t i = 0; i < n; i++)
                position[before + i] = first + i;
            for (uint32_t row = 0; row < n; row++) {
                const uint32_t visible = before + row + 1;
                float max_sum[GROUP][2];
                for (uint32_t g = 0; g < GROUP; g++) {
                    double total = 0;
                    max_sum[g][0] = -INFINITY;
                    for (uint32_t i = 0; i < visible; i++) {
                        s[g][i] = score_of(tag, layer, head * GROUP + g, first + row, position[i]);
                        max_sum[g][0] = fmaxf(max_sum[g][0], s[g][i]);
                    }
                    for (uint32_t i = 0; i < visible; i++)
                        total += exp((double)s[g][i] - max_sum[g][0]);
                    max_sum[g][1] = (float)total;
                    for (uint32_t i = 0; m && i < visible; i++) {
                        struct model_head *h = &m->head[AT(layer, head)];
                        const double p = exp((double)s[g][i] - max_sum[g][0]) / total;
                        h->sum[i] += p;
                        h->max[i] = fmax(h->max[i], p);
                    }
                }
                clb_kv_observe(seq, layer, head, s[0], MOST + 512, max_sum[0], GROUP, visible);
            }
        }
}

static void model_budgets(struct model *m)
{
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t h = 0; h < KV_HEADS; h++)
            m->budget[AT(l, h)] =
                setup.own_budget ? strategy_budget(NULL, l, setup.per_head ? h : 0, m->position) : setup.budget;
}

static void model_evict(struct model *m, uint32_t n_rows, uint32_t slack)
{
    static uint8_t keep[MOST];
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t h = 0; h < KV_HEADS; h++) {
            struct model_head *x = &m->head[AT(l, h)];
            const uint32_t b = m->budget[AT(l, h)];
            uint32_t n = 0;
            if (!setup.evictable[l] || x->n <= b || x->n + n_rows <= b + slack)
                continue;
            naive_choice(x->position, x->n, b, l, setup.per_head ? h : 0, keep);
            for (uint32_t i = 0; i < x->n; i++)
                if (keep[i]) {
                    x->position[n] = x->position[i];
                    x->sum[n] = x->sum[i];
                    x->max[n++] = x->max[i];
                }
            m->evicted += x->n - n;
            m->selections += setup.per_head || h == 0;
            x->n = n;
        }
}

static uint64_t pages_of(const struct model *m)
{
    uint64_t pages = 0;
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t h = 0; h < KV_HEADS; h++)
            pages += (m->head[AT(l, h)].n + PAGE - 1) / PAGE;
    return pages;
}

static void check_all(clb_kv_seq *seq, const struct model *m)
{
    static uint32_t position[MOST];
    clb_kv_stats st;
    uint64_t kept = 0;
    assert_int_equal(clb_kv_seq_position(seq), m->position);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t h = 0; h < KV_HEADS; h++) {
            const clb_kv_view view = clb_kv_view_of(seq, l, h);
            const struct model_head *x = &m->head[AT(l, h)];
            assert_int_equal(view.n_before, x->n);
            assert_int_equal(clb_kv_seq_positions(seq, l, h, position, MOST), x->n);
            assert_memory_equal(position, x->position, x->n * sizeof position[0]);
            for (uint32_t i = 0; i < x->n; i++)
                kv_rows_check(&view, &setup.layout, m->tag, l, h, i, x->position[i]);
            assert_int_equal(x->appended, m->position);
            kept += x->n;
        }
    clb_kv_seq_stats(seq, &st);
    assert_int_equal(st.kept_sum, kept);
    assert_int_equal(st.evicted_sum, m->evicted);
    assert_int_equal(st.selections, m->selections);
    assert_int_equal(st.bad_answers, 0);
    assert_int_equal(st.bytes, pages_of(m) * clb_kv_page_bytes(&setup.layout));
}

/* One random pass on both sides. Returns false if it did not fit. */
static bool random_pass(clb_kv_seq *seq, struct model *m, test_rand *rng, uint64_t free_pages, uint32_t *steps)
{
    const bool prefill = test_rand_below(rng, 4) == 0;
    const uint32_t n = prefill ? 1 + test_rand_below(rng, MOST_ROWS) : 1 + test_rand_below(rng, 3);
    const bool done = prefill && test_rand_below(rng, 2);
    struct model *saved = malloc(sizeof *saved);
    clb_error err;
    assert_non_null(saved);
    *saved = *m;
    setup.now = saved;

    /* what must happen */
    uint64_t pages = 0;
    model_budgets(m);
    if (setup.triggers & COLIBRI_KV_AT_OVER_BUDGET) {
        for (uint32_t l = 0; l < LAYERS; l++)
            for (uint32_t h = 0; h < KV_HEADS; h++) {
                const uint32_t x = m->head[AT(l, h)].n, b = m->budget[AT(l, h)];
                const bool over = setup.evictable[l] && x > b && x + n > b + PAGE;
                pages += ((over ? b : x) + n + PAGE - 1) / PAGE;
            }
        model_evict(m, n, PAGE);
    } else {
        for (uint32_t i = 0; i < ALL; i++)
            pages += (m->head[i].n + n + PAGE - 1) / PAGE;
    }
    const bool fits = pages <= pages_of(saved) + free_pages;
    const int rc = clb_kv_begin(seq, n, &err);
    assert_int_equal(rc, fits ? COLIBRI_OK : COLIBRI_E_NOMEM);
    if (!fits) {
        *m = *saved;
        free(saved);
        check_all(seq, m);
        return false;
    }
    setup.now = m;
    clb_kv_stats st;
    clb_kv_seq_stats(seq, &st);
    assert_true(st.bytes <= setup.most_bytes);
    kv_rows_write(seq, &setup.layout, m->tag, n);
    if (test_rand_below(rng, 6) == 0) { /* a pass that comes to nothing */
        observe(seq, m->tag ^ 77, n, NULL);
        clb_kv_abort(seq);
        free(saved);
        check_all(seq, m);
        return true;
    }
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t h = 0; h < KV_HEADS; h++) {
            struct model_head *x = &m->head[AT(l, h)];
            for (uint32_t i = 0; i < n; i++) {
                x->position[x->n + i] = m->position + i;
                x->sum[x->n + i] = x->max[x->n + i] = 0;
            }
        }
    if (test_rand_below(rng, 8)) /* or one that nobody looked at */
        observe(seq, m->tag, n, m);
    for (uint32_t i = 0; i < ALL; i++)
        m->head[i].n += n;
    m->position += n;
    bool cut = prefill && (setup.triggers & COLIBRI_KV_AT_CHUNK);
    cut |= done && (setup.triggers & COLIBRI_KV_AT_PREFILL_END);
    if (!prefill && (setup.triggers & COLIBRI_KV_AT_STEPS) && (*steps += n) >= setup.every_steps) {
        *steps = 0;
        cut = true;
    }
    *saved = *m; /* the strategy looks at the state before eviction */
    setup.now = saved;
    clb_kv_end(seq, n, prefill ? COLIBRI_PHASE_PREFILL : COLIBRI_PHASE_DECODE, done);
    for (uint32_t i = 0; i < ALL; i++)
        m->head[i].appended = saved->head[i].appended;
    if (cut) {
        model_budgets(m);
        model_evict(m, 0, 0);
    }
    free(saved);
    check_all(seq, m);
    return true;
}

static void random_schedules(void **state)
{
    (void)state;
    enum { SEQS = 3 };
    const uint32_t trigger_sets[] = {
        COLIBRI_KV_AT_OVER_BUDGET,
        COLIBRI_KV_AT_OVER_BUDGET | COLIBRI_KV_AT_CHUNK | COLIBRI_KV_AT_PREFILL_END,
        COLIBRI_KV_AT_PREFILL_END,
        COLIBRI_KV_AT_STEPS | COLIBRI_KV_AT_CHUNK,
    };
    uint64_t refused = 0, evicted = 0;
    for (uint32_t round = 0; round < 48; round++) {
        test_rand rng = {round + 100};
        setup = (struct setup){
            .layout = {LAYERS, HEADS, KV_HEADS, K_DIM, V_DIM, COLIBRI_TYPE_F16, COLIBRI_TYPE_F16, PAGE, .evictable = setup.evictable},
            .triggers = trigger_sets[round % 4],
            .every_steps = 5,
            .per_head = round / 4 % 2,
            .own_budget = round / 8 % 2,
            .by_score = round % 3 == 0,
            .budget = 20 + test_rand_below(&rng, 60),
        };
        setup.keeps_fewer = !setup.by_score && round % 2;
        setup.needs = test_rand_below(&rng, 4) * COLIBRI_KV_NEED_PROB_COLSUM; /* none, sum, max, both */
        if (setup.per_head)
            setup.needs |= COLIBRI_KV_NEED_K_POST_ROPE | COLIBRI_KV_NEED_V;
        memcpy(setup.evictable, round % 5 ? "\1\1\1" : "\1\0\1", LAYERS);
        const uint64_t n_pages = round / 2 % 2 ? 10000 : 40 + test_rand_below(&rng, 60);
        clb_kv_cache *cache;
        clb_kv_seq *seq[SEQS];
        uint32_t steps[SEQS] = {0};
        struct model *model = calloc(SEQS, sizeof *model);
        clb_error err;
        assert_non_null(model);
        assert_ok(clb_kv_cache_create(&setup.layout, n_pages * clb_kv_page_bytes(&setup.layout), NULL, &cache, &err),
                  &err);
        const struct colibri_kv_strategy strategy = make_strategy();
        const clb_kv_seq_options o = {.strategy = &strategy, .ctx = MOST - 64, .budget = setup.budget};
        const clb_kv_traits traits = clb_kv_traits_of(&strategy, NULL, CLB_KV_AS_DECLARED);
        setup.most_bytes = clb_kv_bytes(
            &setup.layout, clb_kv_most_positions(&setup.layout, &traits, o.ctx, o.budget, MOST_ROWS));
        for (uint32_t i = 0; i < SEQS; i++) {
            model[i].tag = i + 1;
            assert_ok(clb_kv_seq_create(cache, &o, &seq[i], &err), &err);
        }
        for (uint32_t step = 0; step < 60; step++) {
            const uint32_t i = test_rand_below(&rng, SEQS);
            uint64_t used = 0;
            for (uint32_t j = 0; j < SEQS; j++)
                used += pages_of(&model[j]);
            assert_int_equal(clb_kv_cache_used_bytes(cache), used * clb_kv_page_bytes(&setup.layout));
            if (!random_pass(seq[i], &model[i], &rng, n_pages - used, &steps[i])) {
                refused++;
                if (test_rand_below(&rng, 3) == 0) {
                    clb_kv_seq_reset(seq[i]);
                    model[i] = (struct model){.tag = model[i].tag};
                    steps[i] = 0;
                    check_all(seq[i], &model[i]);
                }
            }
        }
        for (uint32_t i = 0; i < SEQS; i++) {
            evicted += model[i].evicted;
            clb_kv_seq_destroy(seq[i]);
        }
        assert_int_equal(clb_kv_cache_used_bytes(cache), 0);
        clb_kv_cache_destroy(cache);
        free(model);
    }
    assert_true(refused > 20 && evicted > 10000); /* the schedules reach what they are for */
}

/* ---- sums do not depend on chunks or on aborted passes ------------------------------------------------- */

static struct {
    float sum[LAYERS][KV_HEADS][MOST], max[LAYERS][KV_HEADS][MOST];
    uint32_t n;
} captured;

static int capture(void *self, const struct colibri_kv_view *view, uint8_t *keep)
{
    (void)self;
    memcpy(captured.sum[view->layer][view->kv_head], view->prob_sum, view->n * sizeof(float));
    memcpy(captured.max[view->layer][view->kv_head], view->prob_max, view->n * sizeof(float));
    captured.n = view->n;
    memset(keep + (view->n - view->n_keep), 1, view->n_keep);
    return COLIBRI_OK;
}

static void chunks_never_show(void **state)
{
    (void)state;
    enum { N = 100 };
    static float sum[LAYERS][KV_HEADS][MOST], max[LAYERS][KV_HEADS][MOST];
    const uint32_t chunk[] = {N, 1, 7, 33, 64};
    setup = (struct setup){.layout = {LAYERS, HEADS, KV_HEADS, K_DIM, V_DIM, COLIBRI_TYPE_F16, COLIBRI_TYPE_F16, PAGE,
                                      .evictable = NULL},
                           .needs = COLIBRI_KV_NEED_PROB_COLSUM | COLIBRI_KV_NEED_PROB_MAX,
                           .triggers = COLIBRI_KV_AT_PREFILL_END,
                           .per_head = true};
    struct colibri_kv_strategy strategy = make_strategy();
    strategy.select = capture;
    strategy.on_append = NULL;
    strategy.on_evict = NULL;
    clb_kv_cache *cache;
    clb_error err;
    assert_ok(clb_kv_cache_create(&setup.layout, 1 << 20, NULL, &cache, &err), &err);
    for (size_t c = 0; c < sizeof chunk / sizeof chunk[0]; c++) {
        const clb_kv_seq_options o = {.strategy = &strategy, .ctx = N, .budget = 10};
        clb_kv_seq *seq;
        assert_ok(clb_kv_seq_create(cache, &o, &seq, &err), &err);
        for (uint32_t at = 0; at < N; at += chunk[c]) {
            const uint32_t n = N - at < chunk[c] ? N - at : chunk[c];
            assert_ok(clb_kv_begin(seq, n, &err), &err);
            kv_rows_write(seq, &setup.layout, 1, n);
            if (c % 2) {
                observe(seq, 99, n, NULL);
                clb_kv_abort(seq);
                assert_ok(clb_kv_begin(seq, n, &err), &err);
                kv_rows_write(seq, &setup.layout, 1, n);
            }
            observe(seq, 1, n, NULL);
            clb_kv_end(seq, n, COLIBRI_PHASE_PREFILL, at + n == N);
        }
        assert_int_equal(captured.n, N);
        if (c == 0) {
            memcpy(sum, captured.sum, sizeof sum);
            memcpy(max, captured.max, sizeof max);
            assert_true(sum[1][1][0] > 1.0f && max[1][1][0] == 1.0f); /* the first row sees only itself */
        }
        assert_memory_equal(sum, captured.sum, sizeof sum);
        assert_memory_equal(max, captured.max, sizeof max);
        clb_kv_seq_destroy(seq);
    }
    clb_kv_cache_destroy(cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_schedules),
        cmocka_unit_test(chunks_never_show),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
