/* Rows of a pass are written by several threads, probabilities of different heads likewise: run it under
 * ThreadSanitizer (COLIBRI_SANITIZE=thread) to see that they share nothing. */
#include "support.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support/kv_rows.h"

enum { LAYERS = 2, KV_HEADS = 2, DIM = 16, PAGE = 16, ROWS = 40, THREADS = 2 };

static const clb_kv_layout layout = {LAYERS, KV_HEADS, KV_HEADS, DIM, DIM, COLIBRI_TYPE_F16, COLIBRI_TYPE_F16, PAGE, .ops = NULL};

struct worker {
    pthread_t thread;
    clb_kv_seq *seq;
    uint32_t number;
};

static void *write_rows(void *arg)
{
    const struct worker *w = arg;
    for (uint32_t row = w->number; row < ROWS; row += THREADS)
        kv_rows_write_row(w->seq, &layout, 1, row);
    return NULL;
}

static void *observe_heads(void *arg)
{
    const struct worker *w = arg;
    float scores[8 * ROWS] = {0};
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t row = 0; row < ROWS; row++) {
            const uint32_t n = clb_kv_view_of(w->seq, layer, w->number).n_before + row + 1;
            const float max_sum[2] = {0, (float)n};
            clb_kv_observe(w->seq, layer, w->number, scores, 8 * ROWS, max_sum, 1, n);
        }
    return NULL;
}

static void run(clb_kv_seq *seq, void *(*fn)(void *))
{
    struct worker w[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        w[i] = (struct worker){.seq = seq, .number = i};
        assert_int_equal(pthread_create(&w[i].thread, NULL, fn, &w[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(w[i].thread, NULL);
}

static uint32_t selects;

static int keep_newest(void *self, const struct colibri_kv_view *view, uint8_t *keep)
{
    (void)self;
    selects++;
    /* all scores are equal: every row gives each position it sees 1 / n */
    assert_true(view->prob_sum[0] > view->prob_sum[view->n - 1] && view->prob_sum[view->n - 1] > 0);
    memset(keep + (view->n - view->n_keep), 1, view->n_keep);
    return COLIBRI_OK;
}

static void threads_share_nothing(void **state)
{
    (void)state;
    const struct colibri_kv_strategy strategy = {
        .struct_size = sizeof strategy,
        .flags = COLIBRI_KV_FLAG_PER_HEAD,
        .needs = COLIBRI_KV_NEED_PROB_COLSUM,
        .triggers = COLIBRI_KV_AT_CHUNK,
        .name = "test",
        .create = kv_rows_create,
        .destroy = free,
        .reset = kv_rows_reset,
        .select = keep_newest,
    };
    const clb_kv_seq_options o = {.strategy = &strategy, .ctx = 1000, .budget = 100};
    clb_kv_cache *cache;
    clb_kv_seq *seq;
    clb_error err;
    uint32_t position[1000];
    assert_ok(clb_kv_cache_create(&layout, 1 << 20, NULL, &cache, &err), &err);
    assert_ok(clb_kv_seq_create(cache, &o, &seq, &err), &err);
    for (int pass = 0; pass < 6; pass++) {
        assert_ok(clb_kv_begin(seq, ROWS, &err), &err);
        run(seq, write_rows);
        run(seq, observe_heads);
        clb_kv_end(seq, ROWS, COLIBRI_PHASE_PREFILL, false);
    }
    assert_true(selects >= LAYERS * KV_HEADS);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t h = 0; h < KV_HEADS; h++) {
            const clb_kv_view v = clb_kv_view_of(seq, layer, h);
            const uint32_t n = clb_kv_seq_positions(seq, layer, h, position, 1000);
            assert_int_equal(n, 100);
            for (uint32_t i = 0; i < n; i++)
                kv_rows_check(&v, &layout, 1, layer, h, i, position[i]);
        }
    clb_kv_seq_destroy(seq);
    clb_kv_cache_destroy(cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_share_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
