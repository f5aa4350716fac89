/* Trials whose question comes after the strategy has chosen, texts that are fed token by token, and trials that go on
 * from one pass that they have in common: what must not change, and who sees what. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kv_trial.h"
#include "support/engine.h"

#define TINY_MOE TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf")
#define N        150u
#define CONTEXT  120u
#define ANSWER   5u
#define ALL      8192u

static test_engine e;
static uint32_t ids[N], other[N]; /* the other one asks something else */

static int open_engine(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=1", "ctx=256", "kv-block-size=16", NULL};
    clb_error err;
    assert_ok(test_engine_open(&e, TINY_MOE, settings, NULL, &err), &err);
    /* Room for a second sequence beside a full one. */
    clb_kv_cache_destroy(e.engine->kv);
    assert_ok(clb_kv_cache_create(&e.engine->kv_layout, 3 * clb_kv_bytes(&e.engine->kv_layout, 256), NULL,
                                  &e.engine->kv, &err),
              &err);
    test_rand rng = {5};
    for (uint32_t i = 0; i < N; i++) {
        ids[i] = test_rand_below(&rng, 4000);
        other[i] = i < CONTEXT ? ids[i] : test_rand_below(&rng, 4000);
    }
    return 0;
}

static int close_engine(void **state)
{
    (void)state;
    test_engine_close(&e);
    return 0;
}

static clb_kv_choice choose(const char *spec)
{
    clb_error err;
    clb_kv_choice c;
    assert_ok(clb_kv_choice_parse(e.engine->registry, e.config, spec, &c, &err), &err);
    return c;
}

/* What is kept: every (layer, head) after the last look. */
struct kept {
    uint32_t positions[ALL], n;
    uint32_t at; /* looks at this many tokens only; 0: at the end */
};

static int look(void *ctx, const clb_kv_seq *kv, uint32_t n_seen, clb_error *err)
{
    struct kept *const k = ctx;
    const clb_kv_layout *const l = &e.engine->kv_layout;
    (void)err;
    if (k->at && n_seen != k->at)
        return COLIBRI_OK;
    k->n = 0;
    for (uint32_t layer = 0; layer < l->n_layers; layer++)
        for (uint32_t head = 0; head < l->n_kv_heads; head++) {
            assert_true(k->n + N < ALL);
            k->n += clb_kv_seq_positions(kv, layer, head, k->positions + k->n, ALL - k->n);
        }
    return COLIBRI_OK;
}

static clb_kv_trial run(const clb_kv_choice *choice, clb_kv_trial_input in, struct kept *kept)
{
    clb_error err;
    clb_kv_trial t;
    in.choice = choice;
    in.ids = in.ids ? in.ids : ids;
    in.n = N;
    in.chunk = in.chunk ? in.chunk : 32;
    if (kept) {
        in.look = look;
        in.ctx = kept;
    }
    assert_ok(clb_kv_trial_run(e.engine, &in, &t, &err), &err);
    return t;
}

static bool same_kept(const struct kept *a, const struct kept *b)
{
    return a->n == b->n && memcmp(a->positions, b->positions, a->n * sizeof a->positions[0]) == 0;
}

/* The full cache does not notice where the question begins or how a text is fed: the same bits. */
static void full_is_full(void **state)
{
    (void)state;
    clb_kv_choice full = choose("full");
    clb_kv_trial plain = run(&full, (clb_kv_trial_input){.n_generate = ANSWER}, NULL);
    uint32_t answer[ANSWER];
    assert_int_equal(plain.generated.n, ANSWER);
    memcpy(answer, plain.generated.ids, sizeof answer);
    for (uint32_t chunk = 7; chunk <= N; chunk += N - 7) {
        clb_kv_trial later =
            run(&full, (clb_kv_trial_input){.n_generate = ANSWER, .n_context = CONTEXT, .chunk = chunk}, NULL);
        assert_int_equal(later.generated.n, ANSWER);
        assert_memory_equal(later.generated.ids, answer, sizeof answer);
        assert_int_equal(later.n_prefill, N);
        assert_int_equal(later.n_decode, ANSWER - 1);
        clb_kv_trial_free(&later);
        later = run(&full, (clb_kv_trial_input){.answer = answer, .n_answer = ANSWER, .n_context = CONTEXT}, NULL);
        assert_int_equal(later.n_right, ANSWER);
        clb_kv_trial_free(&later);
    }
    clb_kv_trial_free(&plain);
    plain = run(&full, (clb_kv_trial_input){.text = true, .scored = N / 2}, NULL);
    for (uint32_t from = N / 2; from >= N / 2 - 20; from -= 20) {
        clb_kv_trial fed = run(&full, (clb_kv_trial_input){.text = true, .scored = N / 2, .n_context = from}, NULL);
        assert_int_equal(fed.n_scored, N - N / 2 - 1);
        assert_int_equal(fed.n_scored, plain.n_scored);
        assert_memory_equal(fed.nll, plain.nll, fed.n_scored * sizeof fed.nll[0]);
        assert_int_equal(fed.n_prefill, from);
        assert_int_equal(fed.n_decode, N - from);
        clb_kv_trial_free(&fed);
    }
    clb_kv_trial_free(&plain);
    clb_kv_choice_free(&full);
}

/* What snapkv keeps of the context depends on the question that it sees, and not on one that comes later. */
static void sees_no_question(void **state)
{
    (void)state;
    clb_kv_choice snapkv = choose("snapkv");
    static struct kept a, b;
    for (int later = 0; later < 2; later++) {
        a.at = b.at = later ? CONTEXT : N;
        clb_kv_trial_input in = {.n_generate = 1, .n_context = later ? CONTEXT : 0, .budget = 60, .chunk = N};
        clb_kv_trial x = run(&snapkv, in, &a);
        in.ids = other;
        clb_kv_trial y = run(&snapkv, in, &b);
        assert_true(a.n && b.n);
        assert_int_equal(same_kept(&a, &b), later);
        clb_kv_trial_free(&x);
        clb_kv_trial_free(&y);
    }
    clb_kv_choice_free(&snapkv);
}

/* ---- a strategy that writes down when it is asked ---- */

static struct {
    uint32_t n, ends, steps, n_last;
    uint64_t position[64];
} asked;

static void *probe_create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    (void)config;
    (void)why;
    (void)why_size;
    return &asked;
}

static void probe_nothing(void *self)
{
    (void)self;
}

static void probe_score(void *self, const struct colibri_kv_view *view, float *out)
{
    (void)self;
    for (uint32_t i = 0; i < view->n; i++)
        out[i] = (float)i;
    if (view->layer || view->kv_head)
        return;
    asked.ends += view->trigger == COLIBRI_KV_AT_PREFILL_END;
    asked.steps += view->trigger == COLIBRI_KV_AT_STEPS;
    asked.n_last = view->n_last;
    if (asked.n < 64)
        asked.position[asked.n++] = view->next_position;
}

static const struct colibri_kv_strategy probe = {
    .struct_size = sizeof probe,
    .flags = COLIBRI_KV_FLAG_PER_HEAD | COLIBRI_KV_FLAG_DETERMINISTIC,
    .needs = COLIBRI_KV_NEED_Q_LAST_W,
    .triggers = COLIBRI_KV_AT_PREFILL_END | COLIBRI_KV_AT_STEPS,
    .window_w = 200,
    .every_steps = 4,
    .name = "probe",
    .summary = "writes down when it is asked",
    .source = "none",
    .create = probe_create,
    .destroy = probe_nothing,
    .reset = probe_nothing,
    .score = probe_score,
};

static void who_sees_what(void **state)
{
    (void)state;
    const clb_kv_choice choice = {.strategy = &probe, .traits = clb_kv_traits_of(&probe, NULL, CLB_KV_AS_DECLARED)};
    memset(&asked, 0, sizeof asked);
    clb_kv_trial t = run(&choice, (clb_kv_trial_input){.budget = 40, .n_context = CONTEXT, .n_generate = 2}, NULL);
    assert_int_equal(asked.n, 1); /* at the context's end, never at the question's */
    assert_int_equal(asked.ends, 1);
    assert_int_equal(asked.position[0], CONTEXT);
    assert_int_equal(asked.n_last, CONTEXT); /* of a window of 200 */
    clb_kv_trial_free(&t);
    memset(&asked, 0, sizeof asked);
    t = run(&choice, (clb_kv_trial_input){.budget = 40, .n_generate = 2}, NULL);
    assert_int_equal(asked.n, 1);
    assert_int_equal(asked.position[0], N);
    assert_int_equal(asked.n_last, N);
    clb_kv_trial_free(&t);
    /* Generated tokens are steps; those of a text that is read as a prompt are not. */
    memset(&asked, 0, sizeof asked);
    t = run(&choice, (clb_kv_trial_input){.budget = 40, .text = true, .scored = 100, .n_context = 100}, NULL);
    assert_int_equal(asked.ends, 1);
    assert_int_equal(asked.steps, (N - 100) / 4);
    assert_int_equal(asked.position[0], 100);
    assert_int_equal(asked.position[1], 104);
    assert_true(t.decode_ns && t.prefill_ns && t.attention_tokens == N - 100);
    clb_kv_trial_free(&t);
    memset(&asked, 0, sizeof asked);
    t = run(&choice, (clb_kv_trial_input){.budget = 40, .text = true, .scored = 100}, NULL);
    assert_int_equal(asked.steps, 0);
    assert_int_equal(asked.ends, 1);
    clb_kv_trial_free(&t);
}

/* Pages are picked for generated tokens: a text that is read as a prompt says nothing about that. */
static void picks_pages(void **state)
{
    (void)state;
    clb_kv_choice quest = choose("quest"), full = choose("full");
    FILE *const file = tmpfile();
    assert_non_null(file);
    clb_kv_trial t = run(&full, (clb_kv_trial_input){.text = true, .scored = 100, .reference_out = file}, NULL);
    clb_kv_trial_free(&t);
    for (int fed = 0; fed < 2; fed++) {
        rewind(file);
        t = run(&quest,
                (clb_kv_trial_input){
                    .text = true, .scored = 100, .n_context = fed ? 100 : 0, .reference_in = file, .budget = 32},
                NULL);
        assert_true(fed ? t.kl[t.n_compared - 1] > 1e-4 : t.kl[t.n_compared - 1] < 1e-12);
        clb_kv_trial_free(&t);
    }
    fclose(file);
    clb_kv_choice_free(&quest);
    clb_kv_choice_free(&full);
}

/* Attention is noted while a text is fed, too: what is still to come adds up. */
static void future_of_fed_text(void **state)
{
    (void)state;
    clb_error err;
    clb_kv_future *f;
    const clb_kv_layout *const l = &e.engine->kv_layout;
    const clb_kv_choice recorder = clb_kv_trial_recorder();
    assert_ok(clb_kv_future_create(l, N, &f, &err), &err);
    clb_kv_trial t =
        run(&recorder, (clb_kv_trial_input){.text = true, .scored = 96, .n_context = 96, .record = f}, NULL);
    clb_kv_trial_free(&t);
    for (uint32_t at = 96; at <= N; at += 9) {
        const uint32_t noted = at == N ? N : 96 + (at - 96) / 8 * 8;
        const float *const v = clb_kv_future_of(f, 0, 0, at);
        double sum = 0;
        assert_non_null(v);
        for (uint32_t i = 0; i < N; i++)
            sum += (double)v[i];
        if (fabs(sum - (double)(N - noted) * (l->n_heads / l->n_kv_heads)) > 1e-3 * N)
            fail_msg("at %u: %g, %u queries to come", at, sum, N - noted);
    }
    clb_kv_future_destroy(f);
}

/* ---- one pass for many ---- */

static clb_kv_trial_base *base_of(const clb_kv_choice *choice, clb_kv_trial_input in)
{
    clb_error err;
    clb_kv_trial_base *base;
    in.choice = choice;
    in.ids = ids;
    in.n = N;
    assert_ok(clb_kv_trial_base_create(e.engine, &in, &base, &err), &err);
    return base;
}

static void as_alone(const char *spec, const clb_kv_choice *choice, clb_kv_trial_input in,
                     const clb_kv_trial_base *base, const char *read_by)
{
    static struct kept alone, shared;
    clb_kv_trial want = run(choice, in, &alone);
    in.base = base;
    clb_kv_trial got = run(choice, in, &shared);
    if (got.generated.n != want.generated.n || !same_kept(&shared, &alone) ||
        memcmp(got.generated.ids, want.generated.ids, want.generated.n * sizeof(uint32_t)) != 0 ||
        fabs(got.retained - want.retained) > 0 || got.bytes != want.bytes || got.n_prefill != N ||
        got.n_decode != want.n_decode || got.bad_answers != want.bad_answers)
        fail_msg("%s at %u, context %u, read under %s: not as alone", spec, in.budget, in.n_context, read_by);
    clb_kv_trial_free(&want);
    clb_kv_trial_free(&got);
}

/* From the common pass on: the same tokens, positions and bytes as alone, whatever the budget, in any order, and
 * whichever of the strategies that record the same it was read under. */
static void same_from_base(void **state)
{
    (void)state;
    static const char *const specs[] = {"sliding-window",
                                        "streaming",
                                        "keydiff",
                                        "l2-norm",
                                        "lagkv",
                                        "random",
                                        "important-tokens",
                                        "h2o",
                                        "ada/h2o",
                                        "cam/h2o",
                                        "snapkv",
                                        "ada/snapkv",
                                        "pyramid/snapkv",
                                        "block/snapkv",
                                        "chunk/snapkv",
                                        "tova",
                                        "expected-attention",
                                        "quest"};
    static const uint32_t budgets[] = {70, 24, 110, 70};
    enum { SPECS = sizeof specs / sizeof *specs };
    clb_kv_choice choices[SPECS];
    uint32_t n_shared = 0;
    for (uint32_t i = 0; i < SPECS; i++)
        choices[i] = choose(specs[i]);
    for (uint32_t i = 0; i < SPECS; i++)
        for (uint32_t context = 0; context <= CONTEXT; context += CONTEXT) {
            clb_kv_trial_input in = {.n_context = context, .chunk = context ? CONTEXT : N, .n_generate = ANSWER};
            clb_kv_trial_base *const base = base_of(&choices[i], in);
            assert_non_null(base);
            assert_true(clb_kv_trial_base_fits(base, &choices[i]));
            for (size_t b = 0; b < sizeof budgets / sizeof *budgets; b++) {
                in.budget = budgets[b];
                as_alone(specs[i], &choices[i], in, base, specs[i]);
            }
            in.budget = 40;
            for (uint32_t k = 0; context && k < SPECS; k++)
                if (k != i && clb_kv_trial_base_fits(base, &choices[k])) {
                    as_alone(specs[k], &choices[k], in, base, specs[i]);
                    n_shared++;
                }
            clb_kv_trial_base_destroy(base);
        }
    assert_true(n_shared >= 6 * 5 + 5 * 4); /* those that need no attention; those of snapkv */
    /* What another one records is not there. */
    clb_kv_trial_base *const base = base_of(&choices[0], (clb_kv_trial_input){.chunk = N});
    assert_false(clb_kv_trial_base_fits(base, &choices[7]));
    clb_error err;
    clb_kv_trial t;
    const clb_kv_trial_input in = {.choice = &choices[7], .ids = ids, .n = N, .chunk = N, .budget = 40, .base = base};
    assert_fails(clb_kv_trial_run(e.engine, &in, &t, &err), &err, COLIBRI_E_UNSUPPORTED, "needs from the start");
    clb_kv_trial_free(&t);
    clb_kv_trial_base_destroy(base);
    for (uint32_t i = 0; i < SPECS; i++)
        clb_kv_choice_free(&choices[i]);
}

/* The figures of memory are a trial's own, though the base lives beside it. */
static void costs_from_base(void **state)
{
    (void)state;
    clb_kv_choice h2o = choose("h2o");
    clb_kv_trial_input in = {.n_context = CONTEXT, .chunk = CONTEXT, .n_generate = ANSWER, .budget = 32};
    clb_kv_trial want = run(&h2o, in, NULL);
    clb_kv_trial_base *const base = base_of(&h2o, in);
    assert_non_null(base);
    in.base = base;
    for (int again = 0; again < 2; again++) {
        clb_kv_trial got = run(&h2o, in, NULL);
        assert_int_equal(got.peak_bytes, want.peak_bytes);
        assert_int_equal(got.bytes, want.bytes);
        assert_true(got.prefill_ns && got.attention_ns && got.attention_tokens == ANSWER - 1);
        clb_kv_trial_free(&got);
    }
    clb_kv_trial_free(&want);
    clb_kv_trial_base_destroy(base);
    clb_kv_choice_free(&h2o);
}

static uint32_t stingy_budget(void *self, uint32_t layer, uint32_t kv_head, uint64_t n_seen)
{
    (void)self;
    (void)layer;
    (void)kv_head;
    (void)n_seen;
    return 50;
}

/* No base where there is more than one pass, or where the strategy drops something although there is room; one that has
 * decided something cannot be forked to another budget. */
static void refusals(void **state)
{
    (void)state;
    clb_error err;
    clb_kv_trial t;
    clb_kv_choice h2o = choose("h2o");
    struct colibri_kv_strategy stingy = probe;
    stingy.budget = stingy_budget;
    stingy.triggers |= COLIBRI_KV_AT_CHUNK;
    const clb_kv_choice decides = {.strategy = &stingy, .traits = clb_kv_traits_of(&stingy, NULL, CLB_KV_AS_DECLARED)};
    assert_null(base_of(&decides, (clb_kv_trial_input){.chunk = N}));
    assert_null(base_of(&h2o, (clb_kv_trial_input){.chunk = N - 1}));
    assert_null(base_of(&h2o, (clb_kv_trial_input){.chunk = N, .text = true, .scored = 10}));
    clb_kv_trial_input in = {.choice = &h2o, .ids = ids, .n = N, .chunk = 32, .n_context = N};
    assert_fails(clb_kv_trial_run(e.engine, &in, &t, &err), &err, COLIBRI_E_USAGE, "something must follow");
    in = (clb_kv_trial_input){
        .choice = &h2o, .ids = ids, .n = N, .chunk = 32, .text = true, .scored = 50, .n_context = 51};
    assert_fails(clb_kv_trial_run(e.engine, &in, &t, &err), &err, COLIBRI_E_USAGE, "something must follow");

    clb_kv_seq *seq, *fork;
    float *const logits = malloc(e.engine->model->hp.n_vocab * sizeof *logits);
    assert_non_null(logits);
    assert_ok(clb_engine_new_sequence_with(e.engine, &h2o, 40, &seq, &err), &err);
    clb_span span = {.kv = seq, .tokens = ids, .n = 30, .n_logits = 1, .phase = COLIBRI_PHASE_PREFILL};
    assert_ok(clb_forward_run(e.engine->forward, &span, 1, logits, &err), &err);
    const clb_kv_seq_options at_20 = {.strategy = h2o.strategy, .params = h2o.params, .budget = 20};
    assert_ok(clb_kv_seq_fork_late(seq, &at_20, &fork, &err), &err); /* 30 are kept: nothing was decided */
    clb_kv_stats stats;
    clb_kv_seq_stats(fork, &stats);
    assert_int_equal(stats.kept_max, 20);
    clb_kv_seq_stats(seq, &stats);
    assert_int_equal(stats.kept_min, 30);
    clb_kv_seq_destroy(fork);
    span.tokens += 30;
    assert_ok(clb_forward_run(e.engine->forward, &span, 1, logits, &err), &err);
    assert_fails(clb_kv_seq_fork_late(seq, &at_20, &fork, &err), &err, COLIBRI_E_UNSUPPORTED, "has decided something");
    assert_null(fork);
    clb_kv_seq_destroy(seq);
    free(logits);
    clb_kv_choice_free(&h2o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_is_full),    cmocka_unit_test(sees_no_question),   cmocka_unit_test(who_sees_what),
        cmocka_unit_test(picks_pages),     cmocka_unit_test(future_of_fed_text), cmocka_unit_test(same_from_base),
        cmocka_unit_test(costs_from_base), cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, open_engine, close_engine);
}
