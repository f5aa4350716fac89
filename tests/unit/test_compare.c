/* Comparisons: what runs measure, and what is concluded from runs whose truth is known. */
#include "engine/compare.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "support/engine.h"

#define TINY_MOE TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf")
#define STEPS    8u

/* ---- conclusions ------------------------------------------------------------------------------------------------ */

/* A run whose tokens take `ms` each; hits of 100 look-ups. */
static clb_compare_run make_run(uint32_t prompt, uint32_t round, uint32_t side, bool second, double ms, uint64_t hits)
{
    clb_compare_run r = {.prompt = prompt, .round = round, .side = side, .second = second, .n_prompt = 10};
    r.prompt_ns = (uint64_t)(ms * 20e6);
    r.step_ns = calloc(STEPS, sizeof *r.step_ns);
    r.hash = calloc(STEPS + 1, sizeof *r.hash);
    assert_non_null(r.step_ns);
    assert_non_null(r.hash);
    for (uint32_t i = 0; i < STEPS; i++) {
        clb_error err;
        assert_ok(clb_tokens_push(&r.tokens, 7 * prompt + i, &err), &err);
        r.step_ns[i] = (uint64_t)(ms * 1e6);
        r.hash[i] = prompt * 1000 + i;
    }
    r.hash[STEPS] = prompt;
    r.in_steps.hits = hits;
    r.in_steps.misses = 100 - hits;
    r.in_steps.bytes_read = (100 - hits) << 20;
    return r;
}

struct truth {
    uint32_t n_prompts, rounds;
    double slower;              /* B's time over A's */
    double slower_when_b_first; /* the same where B ran first; 0: no other */
    double noise;               /* relative, of each run */
    int hits_more;
};

static size_t make_runs(const struct truth *t, clb_compare_run *runs)
{
    test_rand rng = {1};
    size_t n = 0;
    for (uint32_t round = 0; round < t->rounds; round++)
        for (uint32_t p = 0; p < t->n_prompts; p++) {
            const bool b_first = (round + p) % 2;
            const double base = 1.0 + p; /* prompts differ much more than sides */
            const double factor = b_first && t->slower_when_b_first > 0 ? t->slower_when_b_first : t->slower;
            const double x = 1 + t->noise * (test_rand_f64(&rng) - 0.5), y = 1 + t->noise * (test_rand_f64(&rng) - 0.5);
            runs[n++] = make_run(p, round, CLB_SIDE_A, b_first, base * x, 40 + p % 5);
            runs[n++] = make_run(p, round, CLB_SIDE_B, !b_first, base * factor * y,
                                 (uint64_t)(40 + (int)(p % 5) + t->hits_more));
        }
    return n;
}

static clb_compare_summary conclude(const struct truth *t)
{
    clb_compare_run runs[256];
    clb_error err;
    clb_compare_summary s;
    const size_t n = make_runs(t, runs);
    assert_true(n <= 256);
    assert_ok(clb_compare_summarize(runs, n, t->n_prompts, 1, &s, &err), &err);
    for (size_t i = 0; i < n; i++)
        clb_compare_run_free(&runs[i]);
    return s;
}

static void verdicts_follow_the_truth(void **state)
{
    (void)state;
    clb_compare_summary s = conclude(&(struct truth){12, 2, .slower = 0.9, .noise = 0.02, .hits_more = 3});
    const clb_compare_result *const decode = &s.result[CLB_COMPARE_DECODE], *const ttft = &s.result[CLB_COMPARE_TTFT];
    assert_true(fabs(decode->change - 1 / 0.9) < 0.01);
    assert_true(decode->low > 1 && decode->low <= decode->change && decode->change <= decode->high);
    assert_int_equal(decode->verdict, CLB_WIN);
    assert_int_equal(decode->n, 12);
    assert_true(decode->detectable > 0 && decode->detectable < 0.02);
    assert_true(fabs(ttft->change - 0.9) < 0.01); /* a ratio of times: B takes less */
    assert_int_equal(ttft->verdict, CLB_WIN);
    assert_int_equal(s.result[CLB_COMPARE_HIT_DECODE].verdict, CLB_WIN);
    assert_true(fabs(s.result[CLB_COMPARE_HIT_DECODE].change - 3) < 1e-9);
    assert_int_equal(s.result[CLB_COMPARE_BYTES].verdict, CLB_WIN); /* fewer */
    assert_true(fabs(s.result[CLB_COMPARE_BYTES].change + 3.0 / STEPS) < 1e-9);
    assert_true(decode->p < 0.05 && decode->p_holm >= decode->p);
    /* Geometric mean of 1000 / (1 .. 12) tokens per second. */
    assert_true(fabs(decode->mean[CLB_SIDE_A] / (1000 / exp(lgamma(13) / 12)) - 1) < 0.02);

    s = conclude(&(struct truth){12, 2, .slower = 1.1, .noise = 0.02, .hits_more = -3});
    assert_int_equal(s.result[CLB_COMPARE_DECODE].verdict, CLB_LOSS);
    assert_int_equal(s.result[CLB_COMPARE_P99].verdict, CLB_LOSS);
    assert_int_equal(s.result[CLB_COMPARE_HIT_DECODE].verdict, CLB_LOSS);

    s = conclude(&(struct truth){12, 2, .slower = 1.001, .noise = 0.1});
    assert_int_equal(s.result[CLB_COMPARE_DECODE].verdict, CLB_TIE);
    assert_true(s.result[CLB_COMPARE_DECODE].detectable > 0.001); /* and it says that it could not have seen it */
    assert_int_equal(s.result[CLB_COMPARE_HIT_DECODE].verdict, CLB_TIE);

    s = conclude(&(struct truth){1, 3, .slower = 0.5}); /* one prompt says nothing about others */
    assert_int_equal(s.result[CLB_COMPARE_DECODE].verdict, CLB_TIE);
    assert_true(isinf(s.result[CLB_COMPARE_DECODE].detectable));
}

static void gate_wants_both_orders(void **state)
{
    (void)state;
    clb_compare_summary s = conclude(&(struct truth){10, 2, .slower = 0.9});
    assert_true(s.gate.passed);
    assert_true(fabs(s.gate.gain - 1 / 0.9) < 1e-6 && fabs(s.gate.gain_b_first - 1 / 0.9) < 1e-6);
    s = conclude(&(struct truth){10, 2, .slower = 0.98}); /* 2 % are not 3 */
    assert_false(s.gate.passed);
    /* Faster only where it runs second: an effect of the order. */
    s = conclude(&(struct truth){10, 2, .slower = 0.8, .slower_when_b_first = 1.01});
    assert_true(s.gate.gain > CLB_GATE_GAIN && s.gate.gain_a_first > CLB_GATE_GAIN);
    assert_false(s.gate.passed);
    s = conclude(&(struct truth){1, 2, .slower = 0.5}); /* one prompt says nothing about others */
    assert_true(s.gate.gain > 1.9 && s.gate.gain_a_first > 1.9 && s.gate.gain_b_first > 1.9);
    assert_false(s.gate.passed);
    s = conclude(&(struct truth){5, 2, .slower = 0.5}); /* nor do five, however clear they look */
    assert_int_equal(s.result[CLB_COMPARE_DECODE].verdict, CLB_WIN);
    assert_true(s.gate.n == 5 && s.gate.too_few);
    assert_false(s.gate.passed);
    s = conclude(&(struct truth){6, 2, .slower = 0.5});
    assert_true(s.gate.n == 6 && !s.gate.too_few && s.gate.passed);
    s = conclude(&(struct truth){1, 1, .slower = 0.5}); /* one order alone */
    assert_true(isnan(s.gate.gain_b_first));
    assert_false(s.gate.passed);

    /* Faster, but the first token takes 30 % longer. */
    clb_compare_run runs[64];
    clb_error err;
    const struct truth t = {8, 2, .slower = 0.8};
    const size_t n = make_runs(&t, runs);
    for (size_t i = 0; i < n; i++)
        if (runs[i].side == CLB_SIDE_B)
            runs[i].prompt_ns = runs[i].prompt_ns * 13 / 8;
    assert_ok(clb_compare_summarize(runs, n, t.n_prompts, 1, &s, &err), &err);
    assert_true(s.gate.gain > 1.2 && fabs(s.gate.ttft - 1.3) < 0.01);
    assert_false(s.gate.passed);
    for (size_t i = 0; i < n; i++)
        clb_compare_run_free(&runs[i]);
}

static void differences_are_found_and_lonely_runs_left_out(void **state)
{
    (void)state;
    clb_compare_run runs[64];
    clb_error err;
    clb_compare_summary s;
    const struct truth t = {4, 3, .slower = 1};
    const size_t n = make_runs(&t, runs);
    assert_ok(clb_compare_summarize(runs, n, t.n_prompts, 1, &s, &err), &err);
    assert_false(s.differs);
    assert_int_equal(s.n_pairs, 12);
    assert_int_equal(s.n_equal_pairs, 12);
    /* Interrupted after an odd number of runs. */
    assert_ok(clb_compare_summarize(runs, n - 1, t.n_prompts, 1, &s, &err), &err);
    assert_int_equal(s.n_pairs, 11);
    assert_ok(clb_compare_summarize(runs, 1, t.n_prompts, 1, &s, &err), &err);
    assert_int_equal(s.n_pairs, 0);
    assert_false(s.result[CLB_COMPARE_DECODE].present);
    assert_false(s.gate.passed);

    clb_compare_run *const b = &runs[2 * (4 + 2) + 1]; /* round 1, prompt 2, B */
    assert_int_equal(b->prompt, 2);
    assert_int_equal(b->side, CLB_SIDE_B);
    b->hash[STEPS] ^= 1; /* the last logits alone */
    assert_ok(clb_compare_summarize(runs, n, t.n_prompts, 1, &s, &err), &err);
    assert_true(s.differs);
    assert_false(s.tokens_differ);
    assert_int_equal(s.n_equal_pairs, 11);
    assert_int_equal(s.prompt, 2);
    assert_int_equal(s.round, 1);
    assert_int_equal(s.step, STEPS);
    b->tokens.ids[3]++;
    assert_ok(clb_compare_summarize(runs, n, t.n_prompts, 1, &s, &err), &err);
    assert_true(s.tokens_differ);
    assert_int_equal(s.step, 3);
    b->tokens.ids[3]--;
    b->hash[STEPS] ^= 1;
    b->tokens.n = 5; /* one ended earlier */
    b->hash[5] = runs[2 * (4 + 2)].hash[5];
    assert_ok(clb_compare_summarize(runs, n, t.n_prompts, 1, &s, &err), &err);
    assert_true(s.differs && s.tokens_differ);
    assert_int_equal(s.step, 5);
    b->tokens.n = STEPS;
    runs[2 * 8].hash[0] ^= 1; /* A differs from itself in round 2: not reproducible, so not equal */
    assert_int_equal(runs[2 * 8].side, CLB_SIDE_A);
    assert_ok(clb_compare_summarize(runs, n, t.n_prompts, 1, &s, &err), &err);
    assert_true(s.differs);
    assert_int_equal(s.round, 2);
    for (size_t i = 0; i < n; i++)
        clb_compare_run_free(&runs[i]);
}

static void values_of_one_run(void **state)
{
    (void)state;
    clb_compare_run r = make_run(0, 0, 0, false, 2.0, 25);
    for (uint32_t i = 0; i < STEPS; i++)
        r.step_ns[i] = (i + 1) * 1000000ull; /* 1 .. 8 ms */
    r.in_prompt = (clb_compare_counters){.hits = 50, .late = 10, .misses = 40};
    assert_true(fabs(clb_compare_value(&r, CLB_COMPARE_DECODE) - STEPS / 0.036) < 1e-6);
    assert_true(fabs(clb_compare_value(&r, CLB_COMPARE_TTFT) - 40) < 1e-9);
    assert_true(fabs(clb_compare_value(&r, CLB_COMPARE_PREFILL) - 250) < 1e-9);
    assert_true(fabs(clb_compare_value(&r, CLB_COMPARE_P50) - 4.5) < 1e-9);
    assert_true(fabs(clb_compare_value(&r, CLB_COMPARE_P99) - 7.93) < 1e-9);
    assert_true(fabs(clb_compare_value(&r, CLB_COMPARE_HIT_ALL) - 37.5) < 1e-9); /* late is no hit */
    assert_true(fabs(clb_compare_value(&r, CLB_COMPARE_HIT_DECODE) - 25) < 1e-9);
    assert_true(fabs(clb_compare_value(&r, CLB_COMPARE_BYTES) - 75.0 / STEPS) < 1e-9);
    r.in_prompt = r.in_steps = (clb_compare_counters){0}; /* a dense model */
    assert_true(isnan(clb_compare_value(&r, CLB_COMPARE_HIT_ALL)) && isnan(clb_compare_value(&r, CLB_COMPARE_BYTES)));
    r.tokens.n = 0;
    assert_true(isnan(clb_compare_value(&r, CLB_COMPARE_DECODE)) && isnan(clb_compare_value(&r, CLB_COMPARE_P99)));
    clb_compare_run_free(&r);
}

static void divergence_and_hash(void **state)
{
    (void)state;
    const float a[] = {1.0f, 2.0f, 0.5f}, shifted[] = {101.0f, 102.0f, 100.5f}, b[] = {2.0f, 1.0f, 0.5f};
    bool same;
    assert_true(fabs(clb_compare_kl(a, shifted, 3, &same)) < 1e-6 && same); /* softmax does not see a shift */
    /* p - q is +-d for the two that are exchanged: sum p (log p - log q) = (p1 - p0) (l1 - l0). */
    const double z = exp(1.0) + exp(2.0) + exp(0.5);
    assert_true(fabs(clb_compare_kl(a, b, 3, &same) - (exp(2.0) - exp(1.0)) / z) < 1e-9);
    assert_false(same);
    float c[3];
    memcpy(c, a, sizeof c);
    assert_true(clb_compare_hash(a, 3) == clb_compare_hash(c, 3));
    c[2] = nextafterf(c[2], 1);
    assert_true(clb_compare_hash(a, 3) != clb_compare_hash(c, 3));
    assert_true(clb_compare_hash(a, 3) != clb_compare_hash(b, 3));
    assert_true(clb_compare_hash(a, 3) != clb_compare_hash(a, 2));
}

/* ---- runs in the engine ----------------------------------------------------------------------------------------- */

static const uint32_t prompt[] = {10, 200, 3000, 41, 52, 63, 740, 85, 96, 107};

static clb_compare_input sampled(void)
{
    return (clb_compare_input){
        .prompt = prompt,
        .n_prompt = 10,
        .n_tokens = 12,
        .ignore_eog = true,
        .sampling = {.temperature = 0.8, .top_k = 40, .top_p = 0.95, .repeat_penalty = 1, .seed = 3},
    };
}

static int count_logits(void *ctx, uint32_t step, const float *logits, clb_error *err)
{
    (void)err;
    uint32_t *const n = ctx;
    assert_int_equal(step, *n);
    assert_true(isfinite(logits[0]));
    ++*n;
    return COLIBRI_OK;
}

static void runs_repeat_and_cold_runs_are_cold(void **state)
{
    (void)state;
    static const char *const settings[][5] = {{"threads=2", "ctx=64", "expert-slots=20", NULL},
                                              {"threads=1", "ctx=64", "expert-slots=60", "batch=4", NULL}};
    clb_compare_run first = {0};
    for (int i = 0; i < 2; i++) {
        clb_error err;
        test_engine e;
        clb_session *s;
        assert_ok(test_engine_open(&e, TINY_MOE, settings[i], NULL, &err), &err);
        assert_ok(clb_session_create(e.engine, &s, &err), &err);
        clb_compare_input in = sampled();
        uint32_t n_logits = 0;
        in.on_logits = count_logits;
        in.ctx = &n_logits;
        clb_compare_run cold, again, warm;
        clb_compare_make_cold(e.engine, e.config);
        assert_ok(clb_compare_measure(s, &in, &cold, &err), &err);
        assert_int_equal(n_logits, 13);
        assert_int_equal(cold.tokens.n, 12);
        in.on_logits = NULL;
        assert_ok(clb_compare_measure(s, &in, &warm, &err), &err);
        clb_compare_make_cold(e.engine, e.config);
        assert_ok(clb_compare_measure(s, &in, &again, &err), &err);
        /* Each look-up is counted once, and a cold run is the same each time. */
        assert_int_equal(cold.in_steps.hits + cold.in_steps.misses, 12 * 5 * 4);
        assert_int_equal(cold.in_prompt.hits, again.in_prompt.hits);
        assert_int_equal(cold.in_steps.hits, again.in_steps.hits);
        assert_int_equal(cold.in_steps.bytes_read, again.in_steps.bytes_read);
        assert_true(cold.in_prompt.misses > 0 && cold.in_prompt.bytes_read > 0 && cold.peak_rss > 0);
        if (i == 1) /* with room for most, the second run finds them */
            assert_true(warm.in_prompt.misses < cold.in_prompt.misses);
        assert_memory_equal(cold.hash, again.hash, 13 * sizeof *cold.hash);
        assert_memory_equal(cold.hash, warm.hash, 13 * sizeof *cold.hash);
        for (int k = 0; k < 12; k++)
            assert_true(cold.step_ns[k] > 0);
        if (i == 0) {
            first = cold;
        } else { /* placement decides speed, never logits */
            assert_memory_equal(first.hash, cold.hash, 13 * sizeof *cold.hash);
            assert_memory_equal(first.tokens.ids, cold.tokens.ids, 12 * sizeof *cold.tokens.ids);
            clb_compare_run_free(&cold);
        }
        clb_compare_run_free(&warm);
        clb_compare_run_free(&again);
        clb_session_destroy(s);
        test_engine_close(&e);
    }
    clb_compare_run_free(&first);
}

static void tokens_can_be_forced_and_limits_hold(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=1", "ctx=24", NULL};
    static const uint32_t forced[] = {5, 6, 7, 8};
    clb_error err;
    test_engine e;
    clb_session *s;
    clb_compare_run run;
    assert_ok(test_engine_open(&e, TINY_MOE, settings, NULL, &err), &err);
    assert_ok(clb_session_create(e.engine, &s, &err), &err);
    clb_compare_input in = sampled();
    in.forced = forced;
    in.n_tokens = 4;
    assert_ok(clb_compare_measure(s, &in, &run, &err), &err);
    assert_int_equal(run.tokens.n, 4);
    assert_memory_equal(run.tokens.ids, forced, sizeof forced);
    /* The last hash is of the logits after the last token. */
    const uint32_t all[] = {10, 200, 3000, 41, 52, 63, 740, 85, 96, 107, 5, 6, 7, 8};
    clb_session_reset(s);
    assert_ok(clb_session_feed(s, all, 14, NULL, &err), &err);
    assert_true(run.hash[4] == clb_compare_hash(clb_session_logits(s), e.engine->model->hp.n_vocab));
    clb_compare_run_free(&run);
    in.n_tokens = 15;
    assert_fails(clb_compare_measure(s, &in, &run, &err), &err, COLIBRI_E_LIMIT, "--ctx");
    clb_session_destroy(s);
    test_engine_close(&e);
}

/* Pages of a file that are in the page cache; -1: the file system is memory itself. */
static long cached_pages(const char *path)
{
    struct statfs fs;
    const int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    const off_t size = lseek(fd, 0, SEEK_END);
    const size_t pages = ((size_t)size + 4095) / 4096;
    assert_int_equal(fstatfs(fd, &fs), 0);
    void *const map = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0);
    unsigned char *const in = malloc(pages);
    assert_true(map != MAP_FAILED);
    assert_non_null(in);
    assert_int_equal(mincore(map, (size_t)size, in), 0);
    long n = 0;
    for (size_t i = 0; i < pages; i++)
        n += in[i] & 1;
    free(in);
    munmap(map, (size_t)size);
    close(fd);
    return fs.f_type == TMPFS_MAGIC ? -1 : n;
}

static void cold_runs_leave_no_file_in_the_page_cache(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=1", "ctx=64", "expert-slots=20", NULL};
    test_dir dir;
    char path[PATH_MAX];
    clb_error err;
    test_engine e;
    size_t n;
    test_dir_create(&dir);
    test_dir_file(&dir, "copy.gguf", path);
    char *const data = test_read_file(TINY_MOE, &n);
    test_write_file(path, data, n);
    free(data);
    const int fd = open(path, O_RDONLY); /* what is not on the drive yet cannot be dropped */
    assert_true(fd >= 0);
    assert_int_equal(fsync(fd), 0);
    close(fd);
    const long before = cached_pages(path);
    assert_ok(test_engine_open(&e, path, settings, NULL, &err), &err);
    clb_compare_make_cold(e.engine, e.config);
    const long after = cached_pages(path);
    if (before < 0)
        print_message("the scratch folder is in memory: page cache not checked\n");
    else
        assert_true(after * 10 < (long)(n / 4096)); /* the header may be mapped */
    test_engine_close(&e);
    test_dir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verdicts_follow_the_truth),
        cmocka_unit_test(gate_wants_both_orders),
        cmocka_unit_test(differences_are_found_and_lonely_runs_left_out),
        cmocka_unit_test(values_of_one_run),
        cmocka_unit_test(divergence_and_hash),
        cmocka_unit_test(runs_repeat_and_cold_runs_are_cold),
        cmocka_unit_test(tokens_can_be_forced_and_limits_hold),
        cmocka_unit_test(cold_runs_leave_no_file_in_the_page_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
