/* slow: SmolLM2: how much sooner the first token comes when 800 tokens of its prompt were computed by another session.
 *
 * The model is not in the repository: COLIBRI_TEST_SMOLLM2 names the GGUF. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/engine.h"

enum { COMMON = 800, OWN = 24, ROUNDS = 5 };

/* CPU time of the process: what else runs on the machine does not count. */
static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double first_token(clb_session *s, const uint32_t *ids, uint32_t n)
{
    clb_error err;
    const double t0 = seconds();
    assert_ok(clb_session_feed(s, ids, n, NULL, &err), &err);
    return seconds() - t0;
}

static void a_common_prefix_saves_its_time(void **state)
{
    (void)state;
    static const char *const settings[] = {"kv-share=yes", "ctx=1024", "threads=1", NULL};
    const test_engine_hooks hooks = {.n_sequences = 2};
    const char *const model = getenv("COLIBRI_TEST_SMOLLM2");
    clb_error err;
    test_engine e;
    double first[ROUNDS], second[ROUNDS];
    if (!model || !*model) {
        print_message("SKIPPED: COLIBRI_TEST_SMOLLM2 is not set to the path of SmolLM2-135M-Instruct Q4_1\n");
        skip();
    }
    assert_ok(test_engine_open(&e, model, settings, &hooks, &err), &err);
    const size_t n_vocab = e.engine->model->hp.n_vocab;
    for (uint32_t r = 0; r < ROUNDS; r++) {
        uint32_t ids[2][COMMON + OWN];
        test_rand rng = {r + 1};
        clb_session *s[2];
        for (uint32_t i = 0; i < COMMON + OWN; i++) {
            ids[0][i] = 100 + test_rand_below(&rng, 40000);
            ids[1][i] = i < COMMON ? ids[0][i] : 100 + test_rand_below(&rng, 40000);
        }
        for (int i = 0; i < 2; i++)
            assert_ok(clb_session_create(e.engine, &s[i], &err), &err);
        first[r] = first_token(s[0], ids[0], COMMON + OWN);
        second[r] = first_token(s[1], ids[1], COMMON + OWN);
        assert_int_equal(clb_session_reuse(s[0]).memory, 0);
        assert_int_equal(clb_session_reuse(s[1]).memory, COMMON / e.engine->kv_layout.page_tokens * e.engine->kv_layout.page_tokens);
        if (r == 0) { /* the same logits as without: session 0 computes text 1 from its own prefix on */
            assert_ok(clb_session_feed(s[0], ids[1], COMMON + OWN, NULL, &err), &err);
            assert_memory_equal(clb_session_logits(s[0]), clb_session_logits(s[1]), n_vocab * sizeof(float));
        }
        clb_session_destroy(s[0]);
        clb_session_destroy(s[1]);
    }
    qsort(first, ROUNDS, sizeof *first, ascending);
    qsort(second, ROUNDS, sizeof *second, ascending);
    print_message("first token: %.1f ms, with the prefix of another session %.1f ms (medians of %d, CPU time)\n",
                  1e3 * first[ROUNDS / 2], 1e3 * second[ROUNDS / 2], ROUNDS);
    assert_true(second[ROUNDS / 2] <= first[ROUNDS / 2] / 4);
    test_engine_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_common_prefix_saves_its_time)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
