/* Quantized caches with a recent window share prefixes: whatever is taken from others, from memory or from files,
 * logits are those of a session that computes everything itself. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kv/prefix.h"
#include "support/engine.h"

#define WIDE TEST_DATA("arch/qwen3.gguf") /* heads of 32 */

enum { LENGTH = 200, EDIT = 137 };

static clb_session *make(const test_engine *e)
{
    clb_error err;
    clb_session *s;
    assert_ok(clb_session_create(e->engine, &s, &err), &err);
    return s;
}

static void feed(clb_session *s, const uint32_t *ids, uint32_t n)
{
    clb_error err;
    assert_ok(clb_session_feed(s, ids, n, NULL, &err), &err);
    assert_int_equal(clb_kv_seq_position(clb_session_kv(s)), n);
}

/* One engine shares, the other computes. */
struct pair {
    test_engine shares, computes;
    uint32_t ids[LENGTH + 100], edit[LENGTH + 100];
};

static void open_pair(struct pair *p, const char *const *settings, const char *folder)
{
    const char *with[16] = {"kv-share=yes", "threads=2"}, *without[16] = {"kv-share=no", "threads=1"};
    char in[120];
    size_t n = 2;
    clb_error err;
    test_rand rng = {12};
    const test_engine_hooks four = {.n_sequences = 4}, one = {.n_sequences = 1};
    for (; *settings; settings++, n++)
        with[n] = without[n] = *settings;
    if (folder) {
        snprintf(in, sizeof in, "prompt-cache=%s", folder);
        with[n] = in;
    }
    assert_ok(test_engine_open(&p->shares, WIDE, with, &four, &err), &err);
    assert_ok(test_engine_open(&p->computes, WIDE, without, &one, &err), &err);
    const uint32_t n_vocab = p->shares.engine->model->hp.n_vocab;
    for (uint32_t i = 0; i < LENGTH + 100; i++)
        p->ids[i] = test_rand_below(&rng, n_vocab);
    memcpy(p->edit, p->ids, sizeof p->ids);
    p->edit[EDIT] = (p->ids[EDIT] + 1) % n_vocab;
}

static void close_pair(struct pair *p)
{
    clb_kv_share_stats st;
    clb_kv_cache_share_stats(p->shares.engine->kv, &st);
    assert_int_equal(st.blocks, st.blocks_idle); /* no session is left */
    assert_int_equal(clb_kv_cache_used_bytes(p->shares.engine->kv), st.bytes_idle);
    assert_true(st.bytes_windows <= st.bytes_idle);
    test_engine_close(&p->shares);
    test_engine_close(&p->computes);
}

static void check(struct pair *p, const clb_session *s, const uint32_t *ids, uint32_t n)
{
    clb_session *fresh = make(&p->computes);
    feed(fresh, ids, n);
    assert_memory_equal(clb_session_logits(s), clb_session_logits(fresh),
                        p->shares.engine->model->hp.n_vocab * sizeof(float));
    clb_session_destroy(fresh);
}

/* The next tokens, too: the window slides over what was taken. */
static void check_on(struct pair *p, clb_session *s, const uint32_t *ids, uint32_t n, uint32_t more)
{
    clb_session *fresh = make(&p->computes);
    clb_error err;
    feed(fresh, ids, n);
    for (uint32_t i = n; i < n + more; i++) {
        assert_ok(clb_session_append(s, ids[i], &err), &err);
        assert_ok(clb_session_append(fresh, ids[i], &err), &err);
        assert_memory_equal(clb_session_logits(s), clb_session_logits(fresh),
                            p->shares.engine->model->hp.n_vocab * sizeof(float));
    }
    clb_session_destroy(fresh);
}

static const char *const types[][2] = {
    {"kv-type-k=q8_0", "kv-type-v=q8_0"}, {"kv-type-k=q8_0", "kv-type-v=q4_0"}, {"kv-type-k=q4_0", "kv-type-v=q4_0"},
    {"kv-type-k=q4_0", "kv-type-v=q8_0"}, {"kv-type-k=f16", "kv-type-v=q8_0"},  {"kv-type-k=q4_0", "kv-type-v=f16"},
    {"kv-type-k=f32", "kv-type-v=q4_0"},  {"kv-type-k=q8_0", "kv-type-v=f32"},
};
static const struct {
    const char *size, *recent, *batch;
    uint32_t block;
} shapes[] = {
    {"kv-block-size=16", "kv-recent=64", "batch=40", 16},  {"kv-block-size=32", "kv-recent=64", "batch=512", 32},
    {"kv-block-size=64", "kv-recent=64", "batch=100", 64}, {"kv-block-size=32", "kv-recent=16", "batch=33", 32},
    {"kv-block-size=16", "kv-recent=48", "batch=512", 16}, {"kv-block-size=64", "kv-recent=80", "batch=24", 64},
    {"kv-block-size=32", "kv-recent=256", "batch=64", 32}};

static void every_type(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t c = 0; c < sizeof shapes / sizeof *shapes; c++) {
            if (t && c != t % 3 && c != 3 + t % 4) /* all shapes with one pair, two with each other one */
                continue;
            const char *const settings[] = {"ctx=400",        types[t][0],     types[t][1], shapes[c].size,
                                            shapes[c].recent, shapes[c].batch, NULL};
            const uint32_t block = shapes[c].block, whole = (LENGTH - 1) / block * block;
            struct pair p;
            clb_error err;
            open_pair(&p, settings, NULL);
            clb_session *a = make(&p.shares), *b = make(&p.shares);
            feed(a, p.ids, LENGTH);
            assert_int_equal(clb_session_reuse(a).memory, 0);
            check(&p, a, p.ids, LENGTH);
            feed(b, p.ids, LENGTH); /* the same prompt */
            assert_int_equal(clb_session_reuse(b).memory, whole);
            check(&p, b, p.ids, LENGTH);
            check_on(&p, b, p.ids, LENGTH, 70);
            clb_session_reset(b);
            feed(b, p.edit, LENGTH); /* another text from the middle on: the middle of a pass, too */
            assert_int_equal(clb_session_reuse(b).memory, EDIT / block * block);
            check(&p, b, p.edit, LENGTH);
            check_on(&p, b, p.edit, LENGTH, 3);
            for (uint32_t i = LENGTH; i < LENGTH + 50; i++)
                assert_ok(clb_session_append(a, p.ids[i], &err), &err);
            feed(a, p.ids, LENGTH + 90); /* the next turn */
            assert_int_equal(clb_session_reuse(a).session, LENGTH + 50);
            check(&p, a, p.ids, LENGTH + 90);
            feed(a, p.edit, LENGTH); /* an edit far before the window: what is left of it is known */
            assert_true(clb_session_reuse(a).session + clb_session_reuse(a).memory >= whole);
            check(&p, a, p.edit, LENGTH);
            feed(a, p.ids, LENGTH + 10); /* and back */
            assert_true(clb_session_reuse(a).session + clb_session_reuse(a).memory >= whole);
            check(&p, a, p.ids, LENGTH + 10);
            clb_session_destroy(a);
            clb_session_destroy(b);
            clb_session *last = make(&p.shares); /* nobody holds them any more */
            feed(last, p.ids, LENGTH);
            assert_int_equal(clb_session_reuse(last).memory, whole);
            check(&p, last, p.ids, LENGTH);
            clb_session_destroy(last);
            close_pair(&p);
        }
}

/* A session that has a begun block and a window of its own goes on with what another one computed. */
static void goes_on_from_its_own(void **state)
{
    (void)state;
    const char *const settings[] = {"ctx=400", "kv-type=q8_0", "kv-block-size=16", "kv-recent=64", NULL};
    struct pair p;
    open_pair(&p, settings, NULL);
    for (uint32_t own = 1; own < LENGTH; own += 13) {
        clb_session *a = make(&p.shares), *b = make(&p.shares);
        uint32_t other[LENGTH];
        memcpy(other, p.ids, sizeof other);
        other[own] = (other[own] + 3) % p.shares.engine->model->hp.n_vocab;
        feed(a, p.ids, LENGTH);
        feed(b, other, own + 1);
        feed(b, p.ids, LENGTH);
        assert_int_equal(clb_session_reuse(b).session, own);
        assert_int_equal(clb_session_reuse(b).memory, own < 192 ? 192 - own : 0);
        check(&p, b, p.ids, LENGTH);
        clb_session_destroy(a);
        clb_session_destroy(b);
    }
    close_pair(&p);
}

/* Strategies over quantized types: those that evict lose their window's order, and give nothing from there on. */
static void with_strategies(void **state)
{
    (void)state;
    static const struct {
        const char *strategy, *positions;
        uint32_t taken;
    } cases[] = {{"kv-strategy=keydiff", "kv-positions=original", 96},
                 {"kv-strategy=sliding-window", "kv-positions=original", 96},
                 {"kv-strategy=streaming", "kv-positions=compact", 96},
                 {"kv-strategy=quest", "kv-positions=auto", 192},
                 {"kv-strategy=h2o", "kv-positions=original", 0}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const char *const settings[] = {"ctx=400",          "kv-type=q8_0",     cases[c].strategy,
                                        cases[c].positions, "kv-budget=100",    "kv-recent=32",
                                        "batch=48",         "kv-block-size=32", NULL};
        struct pair p;
        open_pair(&p, settings, NULL);
        clb_session *a = make(&p.shares), *b = make(&p.shares);
        feed(a, p.ids, LENGTH);
        feed(b, p.ids, LENGTH);
        assert_int_equal(clb_session_reuse(b).memory, cases[c].taken);
        check(&p, b, p.ids, LENGTH);
        check_on(&p, b, p.ids, LENGTH, 40);
        clb_session_destroy(a);
        clb_session_destroy(b);
        close_pair(&p);
    }
}

/* ---- where memory is short ---- */

/* Room for four sequences of 96 tokens and nothing else: windows and blocks leave, passes never fail, logits stay. */
static void little_room(void **state)
{
    (void)state;
    const char *const settings[] = {"ctx=96", "kv-type=q4_0", "kv-block-size=16", "kv-recent=32", "batch=24", NULL};
    enum { N = 4, TEXTS = 6 };
    struct pair p;
    test_rand rng = {77};
    uint32_t text[TEXTS][96];
    uint64_t taken = 0;
    clb_kv_share_stats st;
    open_pair(&p, settings, NULL);
    for (uint32_t t = 0; t < TEXTS; t++)
        for (uint32_t i = 0; i < 96; i++)
            text[t][i] = t && i < 15 * t ? text[t - 1][i] : test_rand_below(&rng, p.shares.engine->model->hp.n_vocab);
    clb_session *s[N];
    for (int i = 0; i < N; i++)
        s[i] = make(&p.shares);
    for (int turn = 0; turn < 120; turn++) {
        clb_session *const one = s[test_rand_below(&rng, N)];
        const uint32_t *const ids = text[test_rand_below(&rng, TEXTS)];
        const uint32_t n = 1 + test_rand_below(&rng, 96);
        if (test_rand_below(&rng, 4) == 0)
            clb_session_reset(one);
        feed(one, ids, n);
        taken += clb_session_reuse(one).memory;
        check(&p, one, ids, n);
    }
    clb_kv_cache_share_stats(p.shares.engine->kv, &st);
    assert_true(taken > 500 && st.blocks_dropped > 0 && st.windows < st.blocks);
    for (int i = 0; i < N; i++)
        clb_session_destroy(s[i]);
    close_pair(&p);
}

/* Inner windows leave for something else, and a prefix is then taken up to a block that has one. Where somebody has
 * gone on from, and at the end, they stay. */
static void back_to_a_window(void **state)
{
    (void)state;
    const char *const settings[] = {"ctx=400", "kv-type=q8_0", "kv-block-size=16", "kv-recent=32", "batch=400", NULL};
    enum { EARLIER = 60 };
    struct pair p;
    clb_kv_share_stats st;
    uint32_t other[300];
    open_pair(&p, settings, NULL);
    const uint32_t n_vocab = p.shares.engine->model->hp.n_vocab;
    clb_session *a = make(&p.shares), *b = make(&p.shares), *more[3];
    feed(a, p.ids, LENGTH);
    clb_kv_cache_share_stats(p.shares.engine->kv, &st);
    assert_int_equal(st.windows, LENGTH / 16);
    feed(b, p.edit, LENGTH);
    assert_int_equal(clb_session_reuse(b).memory, EDIT / 16 * 16);
    clb_session_destroy(b);
    for (uint32_t k = 0; k < 3; k++) { /* the pool has room for 1600 tokens without windows */
        test_rand rng = {500 + k};
        for (uint32_t i = 0; i < 300; i++)
            other[i] = test_rand_below(&rng, n_vocab);
        more[k] = make(&p.shares);
        feed(more[k], other, 300);
    }
    clb_kv_cache_share_stats(p.shares.engine->kv, &st);
    assert_true(st.windows < st.blocks);
    clb_session_destroy(more[0]);
    b = make(&p.shares);
    memcpy(other, p.ids, sizeof other);
    other[EARLIER] = (p.ids[EARLIER] + 1) % n_vocab;
    feed(b, other, LENGTH); /* inside: there is no window any more */
    assert_int_equal(clb_session_reuse(b).memory, 0);
    check(&p, b, other, LENGTH);
    clb_session_reset(b);
    p.edit[EDIT] = (p.ids[EDIT] + 2) % n_vocab; /* where the first edit went on from */
    feed(b, p.edit, LENGTH);
    assert_int_equal(clb_session_reuse(b).memory, EDIT / 16 * 16);
    check(&p, b, p.edit, LENGTH);
    clb_session_reset(b);
    feed(b, p.ids, LENGTH); /* to the end */
    assert_int_equal(clb_session_reuse(b).memory, LENGTH / 16 * 16);
    check(&p, b, p.ids, LENGTH);
    clb_session_destroy(a);
    clb_session_destroy(b);
    clb_session_destroy(more[1]);
    clb_session_destroy(more[2]);
    close_pair(&p);
}

/* ---- from run to run ---- */

static uint32_t files(const char *folder, bool windows, bool damage)
{
    uint32_t n = 0;
    off_t largest = 0;
    DIR *const d = opendir(folder);
    assert_non_null(d);
    for (int round = 0; round < 2; round++) {
        rewinddir(d);
        for (struct dirent *f; (f = readdir(d)) != NULL;) {
            struct stat st;
            char path[400];
            snprintf(path, sizeof path, "%s/%s", folder, f->d_name);
            if (*f->d_name == '.' || stat(path, &st))
                continue;
            if (!round) {
                largest = st.st_size > largest ? st.st_size : largest;
            } else if (!windows || st.st_size == largest) { /* F16: the larger ones */
                n++;
                if (damage)
                    assert_int_equal(truncate(path, st.st_size - 64), 0);
            }
        }
    }
    closedir(d);
    return n;
}

static void from_run_to_run(void **state)
{
    (void)state;
    for (size_t c = 0; c < 4; c++) {
        const bool tight = c == 3; /* a context that the prompt fills: no room for windows in memory */
        const char *const settings[] = {tight ? "ctx=200" : "ctx=400",
                                        types[c][0],
                                        types[c][1],
                                        shapes[tight ? 0 : c].size,
                                        shapes[tight ? 0 : c].recent,
                                        shapes[tight ? 0 : c].batch,
                                        NULL};
        const uint32_t block = shapes[tight ? 0 : c].block, whole = (LENGTH - 1) / block * block;
        char folder[] = "/tmp/clb-window-XXXXXX", command[80];
        struct pair p;
        assert_non_null(mkdtemp(folder));
        for (int run = 0; run < 5; run++) {
            clb_session *s;
            open_pair(&p, settings, folder);
            s = make(&p.shares);
            feed(s, p.ids, LENGTH);
            assert_int_equal(clb_session_reuse(s).disk, run == 0 || run == 3 ? 0 : whole);
            check(&p, s, p.ids, LENGTH);
            clb_session_reset(s);
            feed(s, p.edit, LENGTH);
            check(&p, s, p.edit, LENGTH);
            if (run == 1)
                assert_int_equal(clb_session_reuse(s).memory + clb_session_reuse(s).disk, whole);
            clb_session_destroy(s);
            close_pair(&p);
            assert_int_equal(files(folder, true, false), files(folder, false, false) / 2);
            if (run == 2) /* all windows damaged: nothing is taken, and they are written again */
                assert_true(files(folder, true, true) > 0);
        }
        snprintf(command, sizeof command, "rm -rf %s", folder);
        assert_int_equal(system(command), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type),  cmocka_unit_test(goes_on_from_its_own), cmocka_unit_test(with_strategies),
        cmocka_unit_test(little_room), cmocka_unit_test(back_to_a_window),     cmocka_unit_test(from_run_to_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
