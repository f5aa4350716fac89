/* Forks: same text, shared pages, own ways from there on; strategies' state and observed attention go along. */
#include <stdlib.h>
#include <string.h>

#include "support.h"
#include "support/kv_rows.h"

enum { LAYERS = 2, KV_HEADS = 2, PAGE = 16, ROWS = 40, BUDGET = 32 };

static const clb_kv_layout layout = {LAYERS,           KV_HEADS,         KV_HEADS, 32, 32, COLIBRI_TYPE_F16,
                                     COLIBRI_TYPE_F16, PAGE, .ops = NULL};
static const uint64_t all_heads = LAYERS * KV_HEADS;

static clb_kv_cache *open_cache(const clb_kv_layout *l, uint64_t n_pages)
{
    clb_kv_cache *cache;
    clb_error err;
    assert_ok(clb_kv_cache_create(l, n_pages * clb_kv_page_bytes(l), NULL, &cache, &err), &err);
    return cache;
}

static clb_kv_seq *open_seq(clb_kv_cache *cache, const struct colibri_kv_strategy *strategy)
{
    const clb_kv_seq_options o = {.strategy = strategy, .ctx = 500, .budget = strategy == &kv_rows_full ? 0 : BUDGET};
    clb_kv_seq *seq;
    clb_error err;
    assert_ok(clb_kv_seq_create(cache, &o, &seq, &err), &err);
    return seq;
}

static clb_kv_seq *fork_of(clb_kv_seq *seq)
{
    clb_kv_seq *to;
    clb_error err;
    assert_ok(clb_kv_seq_fork(seq, &to, &err), &err);
    return to;
}

static void pass(clb_kv_seq *seq, const clb_kv_layout *l, uint32_t tag, uint32_t n)
{
    clb_error err;
    assert_ok(clb_kv_begin(seq, n, &err), &err);
    kv_rows_write(seq, l, tag, n);
    clb_kv_end(seq, n, COLIBRI_PHASE_PREFILL, true);
}

/* Its rows from `from` on are those of `tag`. */
static void check(const clb_kv_seq *seq, uint32_t tag, uint32_t from, uint32_t to)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t h = 0; h < KV_HEADS; h++) {
            const clb_kv_view v = clb_kv_view_of(seq, layer, h);
            for (uint32_t i = from; i < to; i++)
                kv_rows_check(&v, &layout, tag, layer, h, i, i);
        }
}

static void each_goes_its_way(void **state)
{
    (void)state;
    clb_kv_cache *cache = open_cache(&layout, 200);
    clb_error err;
    clb_kv_stats st;
    clb_kv_seq *a = open_seq(cache, &kv_rows_full);
    pass(a, &layout, 1, ROWS);
    const uint64_t before = clb_kv_cache_used_bytes(cache);
    clb_kv_seq *b = fork_of(a);
    assert_int_equal(clb_kv_cache_used_bytes(cache), before); /* nothing is copied */
    assert_int_not_equal(clb_kv_seq_number(a), clb_kv_seq_number(b));
    assert_int_equal(clb_kv_seq_position(b), ROWS);
    clb_kv_seq_stats(b, &st);
    assert_int_equal(st.bytes, before);
    pass(b, &layout, 2, 5); /* the begun block is copied, once per head */
    assert_int_equal(clb_kv_cache_used_bytes(cache), before + all_heads * clb_kv_page_bytes(&layout));
    pass(a, &layout, 3, 5); /* whose other holder is gone */
    assert_int_equal(clb_kv_cache_used_bytes(cache), before + all_heads * clb_kv_page_bytes(&layout));
    check(a, 1, 0, ROWS);
    check(a, 3, ROWS, ROWS + 5);
    check(b, 1, 0, ROWS);
    check(b, 2, ROWS, ROWS + 5);
    assert_ok(clb_kv_seq_truncate(a, 20, &err), &err); /* inside a block that both hold */
    clb_kv_seq *c = fork_of(b), *d = fork_of(c);
    pass(a, &layout, 4, 30);
    check(a, 1, 0, 20);
    check(a, 4, 20, 50);
    clb_kv_seq_destroy(b);
    check(c, 1, 0, ROWS);
    check(c, 2, ROWS, ROWS + 5);
    clb_kv_seq_destroy(c);
    clb_kv_seq_destroy(a);
    check(d, 1, 0, ROWS);
    pass(d, &layout, 5, 1);
    check(d, 2, ROWS, ROWS + 5);
    clb_kv_seq_destroy(d);
    assert_int_equal(clb_kv_cache_used_bytes(cache), 0);
    clb_kv_cache_destroy(cache);
}

/* An empty one may be forked; one inside a pass may not. */
static void when(void **state)
{
    (void)state;
    clb_kv_cache *cache = open_cache(&layout, 40);
    clb_error err;
    clb_kv_seq *a = open_seq(cache, &kv_rows_full), *none;
    clb_kv_seq *b = fork_of(a);
    pass(b, &layout, 1, 3);
    check(b, 1, 0, 3);
    assert_ok(clb_kv_begin(a, 2, &err), &err);
    assert_fails(clb_kv_seq_fork(a, &none, &err), &err, COLIBRI_E_INTERNAL, "inside a pass");
    assert_null(none);
    clb_kv_abort(a);
    clb_kv_seq_destroy(a);
    clb_kv_seq_destroy(b);
    clb_kv_cache_destroy(cache);
}

/* Copies of the begun block are part of what a pass asks for: if there is no room, nothing has happened. */
static void no_room_for_copies(void **state)
{
    (void)state;
    clb_kv_cache *cache = open_cache(&layout, 3 * all_heads);
    clb_error err;
    clb_kv_seq *a = open_seq(cache, &kv_rows_full);
    pass(a, &layout, 1, ROWS);
    clb_kv_seq *b = fork_of(a);
    assert_fails(clb_kv_begin(b, 1, &err), &err, COLIBRI_E_NOMEM, "the KV cache is full");
    check(b, 1, 0, ROWS);
    clb_kv_seq_destroy(a); /* then it needs none */
    pass(b, &layout, 2, 8);
    check(b, 1, 0, ROWS);
    check(b, 2, ROWS, ROWS + 8);
    clb_kv_seq_destroy(b);
    clb_kv_cache_destroy(cache);
}

/* ---- state ---- */

struct counter {
    uint64_t n;
};

static void count(void *self, uint32_t layer, uint32_t kv_head, uint32_t n)
{
    (void)layer;
    (void)kv_head;
    ((struct counter *)self)->n += n;
}

static void *create_counter(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    (void)config;
    (void)why;
    (void)why_size;
    return calloc(1, sizeof(struct counter));
}

static void reset_counter(void *self)
{
    *(struct counter *)self = (struct counter){0};
}

static void *fork_counter(void *self)
{
    struct counter *copy = malloc(sizeof *copy);
    if (copy)
        *copy = *(const struct counter *)self;
    return copy;
}

static void *cannot(void *self)
{
    (void)self;
    return NULL;
}

/* Which ones stay depends on how much it has seen, and on the attention that they got. */
static int select_counted(void *self, const struct colibri_kv_view *view, uint8_t *keep)
{
    const struct counter *c = self;
    uint32_t n = 0;
    for (uint32_t i = view->n; i-- > 0;) {
        const uint32_t mix = (uint32_t)(c->n + (uint64_t)(view->prob_sum[i] * 1000)) + view->positions[i];
        keep[i] = n < view->n_keep && (mix % 3 != 0 || i < view->n_keep - n);
        n += keep[i];
    }
    return COLIBRI_OK;
}

static struct colibri_kv_strategy counting = {
    .struct_size = sizeof(struct colibri_kv_strategy),
    .flags = COLIBRI_KV_FLAG_PER_HEAD,
    .needs = COLIBRI_KV_NEED_PROB_COLSUM,
    .triggers = COLIBRI_KV_AT_OVER_BUDGET,
    .name = "test-counting",
    .create = create_counter,
    .destroy = free,
    .reset = reset_counter,
    .on_append = count,
    .select = select_counted,
    .fork = fork_counter,
};

static void observed_pass(clb_kv_seq *seq, uint32_t tag)
{
    clb_error err;
    float scores[600], max_sum[2];
    assert_ok(clb_kv_begin(seq, 1, &err), &err);
    kv_rows_write(seq, &layout, tag, 1);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t h = 0; h < KV_HEADS; h++) {
            const uint32_t n = clb_kv_view_of(seq, layer, h).n_before + 1;
            max_sum[0] = 3;
            max_sum[1] = (float)n;
            for (uint32_t i = 0; i < n; i++)
                scores[i] = (float)((i * 7 + tag * 13 + layer) % 11) / 4;
            clb_kv_observe(seq, layer, h, scores, 600, max_sum, 1, n);
        }
    clb_kv_end(seq, 1, COLIBRI_PHASE_DECODE, false);
}

static void same_positions(const clb_kv_seq *a, const clb_kv_seq *b)
{
    uint32_t x[600], y[600];
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t h = 0; h < KV_HEADS; h++) {
            const uint32_t n = clb_kv_seq_positions(a, layer, h, x, 600);
            assert_int_equal(clb_kv_seq_positions(b, layer, h, y, 600), n);
            assert_memory_equal(x, y, n * sizeof *x);
        }
}

/* A fork that goes on like its origin keeps the same positions, through many selections. */
static void state_goes_along(void **state)
{
    (void)state;
    clb_kv_cache *cache = open_cache(&layout, 200);
    clb_kv_seq *a = open_seq(cache, &counting);
    clb_kv_stats st;
    for (uint32_t i = 0; i < 75; i++)
        observed_pass(a, i);
    clb_kv_seq *b = fork_of(a), *other = fork_of(a);
    same_positions(a, b);
    for (uint32_t i = 75; i < 200; i++) {
        observed_pass(a, i);
        observed_pass(other, i * 5 + 1);
        observed_pass(b, i);
        same_positions(a, b);
    }
    clb_kv_seq_stats(b, &st);
    assert_true(st.evicted_sum > 0);
    clb_kv_seq_destroy(a);
    clb_kv_seq_destroy(b);
    clb_kv_seq_destroy(other);
    assert_int_equal(clb_kv_cache_used_bytes(cache), 0);
    clb_kv_cache_destroy(cache);
}

/* ---- instances of a fork are made for what it holds, whatever budgets are said meanwhile ---- */

static uint32_t first_heads_budget;

static void *create_sized(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    uint32_t *const most = malloc(sizeof *most);
    (void)why;
    (void)why_size;
    if (most)
        *most = config->max_positions;
    return most;
}

static uint32_t fickle(void *self, uint32_t layer, uint32_t kv_head, uint64_t n_seen)
{
    (void)self;
    (void)n_seen;
    return layer == 0 && kv_head == 0 ? first_heads_budget : 8;
}

static void score_sized(void *self, const struct colibri_kv_view *view, float *out)
{
    const uint32_t *const most = self;
    if (view->n > *most)
        fail_msg("a view of %u, and room was made for %u", view->n, *most);
    for (uint32_t i = 0; i < view->n; i++)
        out[i] = (float)i;
}

static void forks_have_room_for_what_they_hold(void **state)
{
    (void)state;
    static const struct colibri_kv_strategy sized = {
        .struct_size = sizeof(struct colibri_kv_strategy),
        .flags = COLIBRI_KV_FLAG_PER_HEAD,
        .triggers = COLIBRI_KV_AT_CHUNK | COLIBRI_KV_AT_OVER_BUDGET,
        .name = "test-fickle",
        .create = create_sized,
        .destroy = free,
        .reset = kv_rows_reset,
        .budget = fickle,
        .score = score_sized,
    };
    const clb_kv_seq_options o = {.strategy = &sized, .ctx = 500, .budget = BUDGET, .max_rows = ROWS};
    clb_kv_cache *cache = open_cache(&layout, 200);
    clb_kv_seq *a;
    clb_error err;
    first_heads_budget = 3 * BUDGET;
    assert_ok(clb_kv_seq_create(cache, &o, &a, &err), &err);
    for (uint32_t i = 0; i < 4; i++)
        pass(a, &layout, i, ROWS);
    first_heads_budget = 8;
    clb_kv_seq *b = fork_of(a);
    for (uint32_t i = 0; i < 4; i++) {
        pass(a, &layout, i, ROWS);
        pass(b, &layout, i, ROWS);
    }
    same_positions(a, b);
    clb_kv_seq_destroy(a);
    clb_kv_seq_destroy(b);
    clb_kv_cache_destroy(cache);
}

static void state_that_cannot_be_copied(void **state)
{
    (void)state;
    clb_error err;
    clb_kv_cache *cache = open_cache(&layout, 40);
    for (int i = 0; i < 2; i++) {
        counting.fork = i ? cannot : NULL;
        clb_kv_seq *a = open_seq(cache, &counting), *b;
        observed_pass(a, 1);
        const uint64_t before = clb_kv_cache_used_bytes(cache);
        assert_fails(clb_kv_seq_fork(a, &b, &err), &err, COLIBRI_E_UNSUPPORTED, "test-counting");
        assert_null(b);
        assert_int_equal(clb_kv_cache_used_bytes(cache), before);
        observed_pass(a, 2); /* it is none the worse for it */
        clb_kv_seq_destroy(a);
    }
    counting.fork = fork_counter;
    assert_int_equal(clb_kv_cache_used_bytes(cache), 0);
    clb_kv_cache_destroy(cache);
}

/* The F16 copies of one sequence's last positions, 58 to 90, are those of `tag`. */
static void check_copies(const clb_kv_seq *seq, const clb_kv_layout *l, uint32_t tag)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t h = 0; h < KV_HEADS; h++) {
            const clb_kv_view v = clb_kv_view_of(seq, layer, h);
            assert_true(v.recent_first <= 58);
            for (uint32_t i = 58; i < 90; i++)
                for (uint32_t d = 0; d < l->k_dim; d++) {
                    const uint32_t at = i - v.recent_first;
                    const colibri_f16 *const k = v.k_recent[at / PAGE];
                    assert_true(colibri_f16_f32(k[at % PAGE * l->k_dim + d]) == kv_rows_value(tag, layer, h, i, d, 0));
                }
        }
}

/* Quantized, with a window of F16 copies: the fork has copies of its own. */
static void recent_windows_are_copied(void **state)
{
    (void)state;
    clb_kv_layout l = layout;
    l.k_type = l.v_type = COLIBRI_TYPE_Q8_0;
    l.recent = 32;
    clb_kv_cache *cache = open_cache(&l, 200);
    clb_error err;
    clb_kv_seq *a = open_seq(cache, &kv_rows_full);
    pass(a, &l, 1, 90);
    clb_kv_seq *b = fork_of(a);
    check_copies(b, &l, 1);
    assert_ok(clb_kv_seq_truncate(a, 85, &err), &err);
    pass(a, &l, 3, 5);
    check_copies(b, &l, 1);
    clb_kv_seq_destroy(a);
    check_copies(b, &l, 1);
    clb_kv_seq_destroy(b);
    assert_int_equal(clb_kv_cache_used_bytes(cache), 0);
    clb_kv_cache_destroy(cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_goes_its_way), cmocka_unit_test(when),
        cmocka_unit_test(no_room_for_copies), cmocka_unit_test(state_goes_along),
        cmocka_unit_test(forks_have_room_for_what_they_hold),
        cmocka_unit_test(state_that_cannot_be_copied), cmocka_unit_test(recent_windows_are_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
