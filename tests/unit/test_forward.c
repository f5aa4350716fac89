/* The forward pass: the logits of a row depend on its own sequence alone, and a pass that fails changes nothing. */
#include <stdlib.h>
#include <string.h>

#include "support/rig.h"

#define N_IDS  60u
#define N_SEQS 3u

struct model {
    const char *path;
    size_t n_vocab;
    uint32_t ids[N_SEQS][N_IDS];
    float *alone[N_SEQS]; /* [N_IDS][n_vocab], one sequence in one pass, every expert resident */
};

static struct model models[] = {{.path = TEST_DATA("arch/qwen3moe.gguf")},
                                {.path = TEST_DATA("arch/mixtral.gguf")},
                                {.path = TEST_DATA("arch/llama.gguf")}};
#define N_MODELS (sizeof models / sizeof *models)

static void open_rig(test_rig *rig, const struct model *m, const test_rig_options *o)
{
    clb_error err;
    assert_ok(test_rig_open(rig, m->path, o, &err), &err);
}

static int make_baselines(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        test_rig rig;
        const test_rig_options o = {.threads = 1};
        open_rig(&rig, &models[i], &o);
        models[i].n_vocab = rig.model->hp.n_vocab;
        for (uint32_t s = 0; s < N_SEQS; s++) {
            test_rig_ids(&rig, models[i].ids[s], N_IDS, 100 + s);
            models[i].alone[s] = test_rig_logits(&rig, models[i].ids[s], N_IDS, 0);
        }
        test_rig_close(&rig);
    }
    return 0;
}

static int free_baselines(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++)
        for (uint32_t s = 0; s < N_SEQS; s++)
            free(models[i].alone[s]);
    return 0;
}

static void check_rows(const struct model *m, uint32_t seq, uint32_t first, uint32_t n, const float *logits)
{
    if (memcmp(logits, m->alone[seq] + first * m->n_vocab, n * m->n_vocab * sizeof(float)) != 0)
        fail_msg("%s: rows %u to %u of sequence %u are not the bytes that it has alone", m->path, first, first + n - 1, seq);
}

static void chunks_pages_slots_and_threads(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {1, 5, 16, 33}, pages[] = {16, 48, 256}, slots[] = {0, 1, 3}, threads[] = {1, 3};
    for (size_t i = 0; i < N_MODELS; i++)
        for (size_t p = 0; p < 3; p++)
            for (size_t k = 0; k < 3; k++) {
                test_rig rig;
                const test_rig_options o = {.threads = threads[(p + k) % 2], .page_tokens = pages[p], .slots = slots[k]};
                open_rig(&rig, &models[i], &o);
                if (slots[k] && !rig.model->n_moe_layers) {
                    test_rig_close(&rig);
                    continue;
                }
                for (size_t c = 0; c < 4; c++) {
                    float *logits = test_rig_logits(&rig, models[i].ids[0], N_IDS, chunks[c]);
                    check_rows(&models[i], 0, 0, N_IDS, logits);
                    free(logits);
                }
                test_rig_close(&rig);
            }
}

/* Random batches: any of the sequences, any number of their next rows, any number of logits. */
static void batch_mates_never_matter(void **state)
{
    (void)state;
    static const uint32_t slots[] = {0, 2, 5};
    test_rand rng = {2024};
    for (size_t i = 0; i < N_MODELS; i++)
        for (size_t k = 0; k < 3; k++) {
            clb_error err;
            test_rig rig;
            const test_rig_options o = {.slots = slots[k], .max_rows = 40, .page_tokens = 16};
            open_rig(&rig, &models[i], &o);
            const size_t n_vocab = models[i].n_vocab;
            float *out = malloc((41 * n_vocab) * sizeof *out);
            assert_non_null(out);
            for (uint32_t round = 0; round < 4; round++) {
                clb_kv_seq *kv[N_SEQS];
                uint32_t at[N_SEQS] = {0};
                for (uint32_t s = 0; s < N_SEQS; s++)
                    kv[s] = test_rig_sequence(&rig);
                while (at[0] + at[1] + at[2] < N_SEQS * N_IDS) {
                    clb_span spans[N_SEQS];
                    uint32_t who[N_SEQS], n = 0, rows = 0, wanted = 0;
                    for (uint32_t s0 = 0; s0 < N_SEQS; s0++) {
                        const uint32_t s = (s0 + round) % N_SEQS, left = N_IDS - at[s], room = 40 - rows;
                        uint32_t take = test_rand_below(&rng, 16);
                        take = take > left ? left : take;
                        take = take > room ? room : take;
                        if (take == 0)
                            continue;
                        spans[n] = (clb_span){.kv = kv[s],
                                              .tokens = models[i].ids[s] + at[s],
                                              .n = take,
                                              .n_logits = test_rand_below(&rng, take + 1),
                                              .phase = take == 1 ? COLIBRI_PHASE_DECODE : COLIBRI_PHASE_PREFILL};
                        rows += take;
                        wanted += spans[n].n_logits;
                        who[n++] = s;
                    }
                    if (n == 0)
                        continue;
                    for (size_t f = 0; f < n_vocab; f++)
                        out[wanted * n_vocab + f] = 12345.0f; /* what lies behind the wanted logits */
                    assert_ok(clb_forward_run(rig.forward, spans, n, out, &err), &err);
                    const float *row = out;
                    for (uint32_t s = 0; s < n; s++) {
                        at[who[s]] += spans[s].n;
                        check_rows(&models[i], who[s], at[who[s]] - spans[s].n_logits, spans[s].n_logits, row);
                        row += spans[s].n_logits * n_vocab;
                    }
                    for (size_t f = 0; f < n_vocab; f++)
                        assert_true(row[f] == 12345.0f);
                }
                for (uint32_t s = 0; s < N_SEQS; s++)
                    clb_kv_seq_destroy(kv[s]);
            }
            assert_int_equal(clb_kv_cache_used_bytes(rig.kv), 0);
            free(out);
            test_rig_close(&rig);
        }
}

/* After a refused pass both sequences are where they were, and go on to the same bytes. */
static void refused_passes_change_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        clb_error err;
        test_rig rig;
        const test_rig_options o = {.max_rows = 32, .ctx = 64};
        open_rig(&rig, &models[i], &o);
        const struct model *m = &models[i];
        const size_t n_vocab = m->n_vocab;
        float *out = malloc(N_IDS * n_vocab * sizeof *out);
        clb_kv_seq *a = test_rig_sequence(&rig), *b = test_rig_sequence(&rig);
        assert_non_null(out);
        clb_span start[] = {{.kv = a, .tokens = m->ids[0], .n = 10}, {.kv = b, .tokens = m->ids[1], .n = 20}};
        assert_ok(clb_forward_run(rig.forward, start, 2, NULL, &err), &err); /* no logits wanted */
        const uint64_t used = clb_kv_cache_used_bytes(rig.kv);

        clb_span many[] = {{.kv = a, .tokens = m->ids[0] + 10, .n = 20, .n_logits = 20}, {.kv = b, .tokens = m->ids[1] + 20, .n = 13}};
        assert_fails(clb_forward_run(rig.forward, many, 2, out, &err), &err, COLIBRI_E_LIMIT, "more than 32 rows");
        uint32_t bad[4] = {0, 1, 2, (uint32_t)n_vocab};
        clb_span unknown[] = {{.kv = a, .tokens = m->ids[0] + 10, .n = 4}, {.kv = b, .tokens = bad, .n = 4, .n_logits = 1}};
        assert_fails(clb_forward_run(rig.forward, unknown, 2, out, &err), &err, COLIBRI_E_USAGE, "outside the vocabulary");
        bad[3] = UINT32_MAX;
        assert_int_equal(clb_forward_run(rig.forward, unknown, 2, out, NULL), COLIBRI_E_USAGE);
        /* the second sequence has no room: the first must be taken back too */
        clb_span fill = {.kv = b, .tokens = m->ids[1] + 20, .n = 30};
        assert_ok(clb_forward_run(rig.forward, &fill, 1, NULL, &err), &err);
        clb_span full[] = {{.kv = a, .tokens = m->ids[0] + 10, .n = 10, .n_logits = 10}, {.kv = b, .tokens = m->ids[0], .n = 15}};
        assert_fails(clb_forward_run(rig.forward, full, 2, out, &err), &err, COLIBRI_E_LIMIT, "");
        assert_int_equal(clb_kv_seq_position(a), 10);
        assert_int_equal(clb_kv_seq_position(b), 50);
        assert_true(clb_kv_cache_used_bytes(rig.kv) >= used);

        clb_span on[] = {{.kv = a, .tokens = m->ids[0] + 10, .n = 20, .n_logits = 20}, {.kv = b, .tokens = m->ids[1] + 50, .n = 10, .n_logits = 10}};
        assert_ok(clb_forward_run(rig.forward, on, 2, out, &err), &err);
        check_rows(m, 0, 10, 20, out);
        check_rows(m, 1, 50, 10, out + 20 * n_vocab);
        clb_kv_seq_destroy(a);
        clb_kv_seq_destroy(b);
        free(out);
        test_rig_close(&rig);
    }
}

static bool countdown(void *ctx)
{
    uint32_t *left = ctx;
    return (*left)-- == 0;
}

/* Stopped before each of the layers in turn. */
static void cancelled_passes_change_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        clb_error err;
        test_rig rig;
        uint32_t left = UINT32_MAX;
        const test_rig_options o = {.cancelled = countdown, .hooks_ctx = &left, .slots = models[i].path == models[2].path ? 0 : 2};
        open_rig(&rig, &models[i], &o);
        const struct model *m = &models[i];
        float *out = malloc(N_IDS * m->n_vocab * sizeof *out);
        assert_non_null(out);
        clb_kv_seq *kv = test_rig_sequence(&rig);
        for (uint32_t at = 0; at < N_IDS; at += 10) {
            const clb_span span = {.kv = kv, .tokens = m->ids[2] + at, .n = 10, .n_logits = 10};
            for (uint32_t il = 0; il < rig.model->hp.n_layers; il++) {
                left = il;
                assert_fails(clb_forward_run(rig.forward, &span, 1, out, &err), &err, COLIBRI_E_CANCELLED, "stopped on request");
                assert_int_equal(clb_kv_seq_position(kv), at);
            }
            left = UINT32_MAX;
            assert_ok(clb_forward_run(rig.forward, &span, 1, out, &err), &err);
            check_rows(m, 2, at, 10, out);
        }
        clb_kv_seq_destroy(kv);
        free(out);
        test_rig_close(&rig);
    }
}

/* A pass of many rows is stopped inside of layers, too: at each place where it can be. */
static void long_passes_stop_inside_of_layers(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        clb_error err;
        test_rig rig;
        uint32_t left = 0;
        const test_rig_options o = {.cancelled = countdown,
                                    .hooks_ctx = &left,
                                    .max_rows = N_SEQS * N_IDS,
                                    .slots = models[i].path == models[2].path ? 0 : 3};
        left = UINT32_MAX; /* loading asks, too */
        open_rig(&rig, &models[i], &o);
        const struct model *m = &models[i];
        float *const out = malloc(N_SEQS * N_IDS * m->n_vocab * sizeof *out);
        assert_non_null(out);
        clb_span spans[N_SEQS];
        for (uint32_t s = 0; s < N_SEQS; s++)
            spans[s] = (clb_span){.kv = test_rig_sequence(&rig), .tokens = m->ids[s], .n = N_IDS, .n_logits = N_IDS};
        uint32_t stops = 0;
        for (int rc = COLIBRI_E_CANCELLED; rc; stops++) {
            left = stops;
            rc = clb_forward_run(rig.forward, spans, N_SEQS, out, &err);
            if (rc)
                assert_int_equal(rc, COLIBRI_E_CANCELLED);
            for (uint32_t s = 0; s < N_SEQS && rc; s++)
                assert_int_equal(clb_kv_seq_position(spans[s].kv), 0);
            assert_true(stops < 10000);
        }
        assert_true(stops > 4 * rig.model->hp.n_layers);
        for (uint32_t s = 0; s < N_SEQS; s++) {
            check_rows(m, s, 0, N_IDS, out + (size_t)s * N_IDS * m->n_vocab);
            clb_kv_seq_destroy(spans[s].kv);
        }
        free(out);
        test_rig_close(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_pages_slots_and_threads),
        cmocka_unit_test(batch_mates_never_matter),
        cmocka_unit_test(refused_passes_change_nothing),
        cmocka_unit_test(cancelled_passes_change_nothing),
        cmocka_unit_test(long_passes_stop_inside_of_layers),
    };
    return cmocka_run_group_tests(tests, make_baselines, free_baselines);
}
