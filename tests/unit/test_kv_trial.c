/* Trials of KV strategies: attention of later queries, references, what is kept, against what must hold. */
#include "engine/kv_trial.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/engine.h"

#define TINY_MOE TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf")
#define N        200u

static uint32_t ids[N];

static void open_engine(test_engine *e)
{
    static const char *const settings[] = {"threads=1", "ctx=512", "kv-block-size=16", NULL};
    clb_error err;
    assert_ok(test_engine_open(e, TINY_MOE, settings, NULL, &err), &err);
    test_rand rng = {3};
    for (uint32_t i = 0; i < N; i++)
        ids[i] = (uint32_t)(test_rand_f64(&rng) * 4000);
}

static clb_kv_choice choose(const test_engine *e, const char *spec)
{
    clb_error err;
    clb_kv_choice c;
    assert_ok(clb_kv_choice_parse(e->engine->registry, e->config, spec, &c, &err), &err);
    return c;
}

static clb_kv_trial run(const test_engine *e, const clb_kv_choice *choice, clb_kv_trial_input in)
{
    clb_error err;
    clb_kv_trial t;
    in.choice = choice;
    in.ids = ids;
    in.n = in.n ? in.n : N;
    in.chunk = in.chunk ? in.chunk : 32;
    assert_ok(clb_kv_trial_run(e->engine, &in, &t, &err), &err);
    return t;
}

/* Every query gives away exactly 1 per head: what is still to come sums up to the number of queries to come. */
static void future_adds_up(void **state)
{
    (void)state;
    clb_error err;
    test_engine e;
    clb_kv_future *f;
    open_engine(&e);
    const clb_kv_layout *const l = &e.engine->kv_layout;
    const clb_kv_choice recorder = clb_kv_trial_recorder();
    assert_ok(clb_kv_future_create(l, N, &f, &err), &err);
    assert_null(clb_kv_future_of(f, 0, 0, 32));
    clb_kv_trial t = run(&e, &recorder, (clb_kv_trial_input){.record = f});
    assert_true(t.retained > 1 - 1e-12);
    clb_kv_trial_free(&t);
    const uint32_t heads = l->n_heads / l->n_kv_heads;
    for (uint32_t layer = 0; layer < l->n_layers; layer++)
        for (uint32_t h = 0; h < l->n_kv_heads; h++)
            for (uint32_t at = 32; at <= N; at += 24) {
                const float *const v = clb_kv_future_of(f, layer, h, at);
                const uint32_t noted = at == N ? N : at / 32 * 32; /* the last pass ends at 200 */
                double sum = 0;
                assert_non_null(v);
                for (uint32_t i = 0; i < N; i++) {
                    assert_true(v[i] >= 0);
                    sum += (double)v[i];
                }
                if (fabs(sum - (double)(N - noted) * heads) > 1e-3 * N)
                    fail_msg("layer %u head %u at %u: %g instead of %u", layer, h, at, sum, (N - noted) * heads);
            }
    assert_null(clb_kv_future_of(f, 0, 0, 31)); /* nothing was noted before */
    assert_null(clb_kv_future_of(f, l->n_layers, 0, 64));
    assert_null(clb_kv_future_of(f, 0, l->n_kv_heads, 64));
    assert_null(clb_kv_future_of(f, 0, 0, N + 1));
    clb_kv_future_destroy(f);
    test_engine_close(&e);
}

/* The full cache is no distance from itself in whatever pieces; perplexity and divergence are those of the logits. */
static void references(void **state)
{
    (void)state;
    test_engine e;
    open_engine(&e);
    const clb_kv_choice full = choose(&e, "full"), window = choose(&e, "sliding-window");
    FILE *const file = tmpfile();
    assert_non_null(file);
    clb_kv_trial t = run(&e, &full, (clb_kv_trial_input){.text = true, .scored = 100, .reference_out = file});
    assert_int_equal(t.n_scored, N - 101); /* the last row has no token after it */
    assert_int_equal(t.n_compared, 0);
    const double nll = t.nll_sum;
    clb_kv_trial_free(&t);
    rewind(file);
    t = run(&e, &full, (clb_kv_trial_input){.text = true, .scored = 100, .reference_in = file, .chunk = 7});
    assert_int_equal(t.n_compared, N - 101);
    assert_int_equal(t.n_same_top, N - 101);
    assert_true(t.kl[t.n_compared - 1] < 1e-12 && t.delta_p_squares < 1e-20);
    assert_true(fabs(t.nll_sum - nll) < 1e-9);
    clb_kv_trial_free(&t);
    rewind(file);
    t = run(&e, &window, (clb_kv_trial_input){.text = true, .scored = 100, .reference_in = file, .budget = 48});
    assert_true(t.kl[0] >= 0 && t.kl[t.n_compared - 1] > 1e-6);
    for (uint32_t i = 1; i < t.n_compared; i++)
        assert_true(t.kl[i - 1] <= t.kl[i]);
    assert_true(t.retained < 0.4 && t.bytes < t.peak_bytes);
    /* The last rows once more, from the logits themselves. */
    float *const logits = test_engine_logits(e.engine, ids, N, 0);
    const uint32_t v = e.engine->model->hp.n_vocab;
    double sum = 0;
    for (uint32_t i = 100; i + 1 < N; i++) {
        double z = 0;
        for (uint32_t k = 0; k < v; k++)
            z += exp((double)logits[(size_t)i * v + k]);
        sum += log(z) - (double)logits[(size_t)i * v + ids[i + 1]];
    }
    assert_true(fabs(sum - nll) < 1e-6 * sum);
    free(logits);
    clb_kv_trial_free(&t);
    fclose(file);
    clb_kv_choice_free((clb_kv_choice *)(uintptr_t)&full);
    clb_kv_choice_free((clb_kv_choice *)(uintptr_t)&window);
    test_engine_close(&e);
}

/* What the full cache generates greedily is what it takes for the right answer, and another answer is wrong from there
 * on. */
static void answers(void **state)
{
    (void)state;
    test_engine e;
    open_engine(&e);
    const clb_kv_choice full = choose(&e, "full");
    clb_kv_trial t = run(&e, &full, (clb_kv_trial_input){.n = 60, .n_generate = 6});
    assert_int_equal(t.generated.n, 6);
    uint32_t answer[6];
    memcpy(answer, t.generated.ids, sizeof answer);
    assert_int_equal(t.n_decode, 5);
    assert_int_equal(t.n_prefill, 60);
    clb_kv_trial_free(&t);
    t = run(&e, &full, (clb_kv_trial_input){.n = 60, .answer = answer, .n_answer = 6});
    assert_int_equal(t.n_right, 6);
    clb_kv_trial_free(&t);
    answer[5] ^= 1;
    t = run(&e, &full, (clb_kv_trial_input){.n = 60, .answer = answer, .n_answer = 6});
    assert_int_equal(t.n_right, 5);
    clb_kv_trial_free(&t);
    clb_kv_choice_free((clb_kv_choice *)(uintptr_t)&full);
    test_engine_close(&e);
}

/* The peak is that of this trial, not of an earlier, larger one; what does not fit is said before anything is computed.
 */
static void costs(void **state)
{
    (void)state;
    clb_error err;
    test_engine e;
    open_engine(&e);
    const clb_kv_choice full = choose(&e, "full");
    clb_kv_trial t = run(&e, &full, (clb_kv_trial_input){0});
    const uint64_t large = t.peak_bytes;
    assert_true(t.bytes == large && large >= clb_kv_bytes(&e.engine->kv_layout, N));
    clb_kv_trial_free(&t);
    t = run(&e, &full, (clb_kv_trial_input){.n = 32});
    assert_true(t.peak_bytes < large / 4);
    assert_true(t.attention_ns && t.attention_tokens == 32);
    clb_kv_trial_free(&t);
    clb_kv_trial_input in = {.choice = &full, .ids = ids, .n = N, .chunk = 32, .n_generate = 400};
    assert_fails(clb_kv_trial_run(e.engine, &in, &t, &err), &err, COLIBRI_E_LIMIT,
                 "600 tokens are more than the context of 512");
    clb_kv_trial_free(&t);
    in = (clb_kv_trial_input){.choice = &full, .ids = ids, .n = N, .chunk = e.engine->batch + 1};
    assert_fails(clb_kv_trial_run(e.engine, &in, &t, &err), &err, COLIBRI_E_USAGE, "--batch");
    clb_kv_trial_free(&t);
    clb_kv_choice_free((clb_kv_choice *)(uintptr_t)&full);
    test_engine_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(future_adds_up),
        cmocka_unit_test(references),
        cmocka_unit_test(answers),
        cmocka_unit_test(costs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
