/* Sessions that share what they have in common: whatever is taken from others, logits are those of a session that computes
 * everything itself. */
#include <stdlib.h>
#include <string.h>

#include "kv/prefix.h"
#include "support/engine.h"

#define SMALL TEST_DATA("arch/qwen3moe.gguf")
#define WIDE  TEST_DATA("arch/qwen3.gguf") /* heads of 32 */

enum { MOST = 400 };

static clb_session *make(test_engine *e)
{
    clb_error err;
    clb_session *s;
    assert_ok(clb_session_create(e->engine, &s, &err), &err);
    return s;
}

static void open_engine(test_engine *e, const char *model, const char *const *settings, uint32_t n_sequences)
{
    clb_error err;
    const test_engine_hooks hooks = {.n_sequences = n_sequences};
    assert_ok(test_engine_open(e, model, settings, &hooks, &err), &err);
}

static void some_ids(const test_engine *e, uint32_t *ids, uint32_t n, uint64_t seed)
{
    test_rand rng = {seed};
    for (uint32_t i = 0; i < n; i++)
        ids[i] = test_rand_below(&rng, e->engine->model->hp.n_vocab);
}

static void feed(clb_session *s, const uint32_t *ids, size_t n)
{
    clb_error err;
    size_t reused = SIZE_MAX;
    assert_ok(clb_session_feed(s, ids, n, &reused, &err), &err);
    const clb_reuse r = clb_session_reuse(s);
    assert_int_equal(reused, r.session + r.memory + r.disk);
    assert_int_equal(clb_session_n_tokens(s), n);
    assert_int_equal(clb_kv_seq_position(clb_session_kv(s)), n);
}

/* Two engines over the same model: one shares, the other computes. */
struct pair {
    test_engine shares, computes;
};

static void same_logits(struct pair *p, const clb_session *s, const uint32_t *ids, size_t n)
{
    clb_session *fresh = make(&p->computes);
    feed(fresh, ids, n);
    assert_int_equal(clb_session_reuse(fresh).memory, 0);
    assert_memory_equal(clb_session_logits(s), clb_session_logits(fresh),
                        p->shares.engine->model->hp.n_vocab * sizeof(float));
    clb_session_destroy(fresh);
}

static void open_pair(struct pair *p, const char *model, const char *const *settings)
{
    const char *with[16] = {"kv-share=yes", "kv-block-size=16", "threads=2"},
               *without[16] = {"kv-share=no", "kv-block-size=16", "threads=1"};
    size_t n = 3;
    for (; *settings; settings++, n++)
        with[n] = without[n] = *settings;
    open_engine(&p->shares, model, with, 4);
    open_engine(&p->computes, model, without, 2);
}

static void close_pair(struct pair *p)
{
    clb_kv_share_stats st;
    clb_kv_cache_share_stats(p->shares.engine->kv, &st);
    assert_int_equal(st.blocks, st.blocks_idle); /* no session is left */
    assert_int_equal(clb_kv_cache_used_bytes(p->shares.engine->kv), st.bytes_idle);
    assert_int_equal(st.bytes_shared, 0);
    test_engine_close(&p->shares);
    test_engine_close(&p->computes);
}

/* Turns of several conversations that begin alike, with an edit in the middle, in F16, F32 and types without a window. */
static void conversations(void **state)
{
    (void)state;
    static const char *const cases[][6] = {
        {"ctx=400", "batch=24", NULL},
        {"ctx=400", "batch=64", "kv-type=f32", NULL},
        {"ctx=400", "batch=16", "kv-type=q8_0", "kv-recent=0", NULL},
        {"ctx=400", "batch=400", "kv-type=q4_0", "kv-recent=0", NULL},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const bool quantized = c >= 2;
        struct pair p;
        clb_error err;
        uint32_t ids[MOST], edit[MOST];
        open_pair(&p, quantized ? WIDE : SMALL, cases[c]);
        some_ids(&p.shares, ids, MOST, 5);
        memcpy(edit, ids, sizeof ids);
        edit[137] = (ids[137] + 1) % p.shares.engine->model->hp.n_vocab;
        clb_session *a = make(&p.shares), *b = make(&p.shares);
        feed(a, ids, 100);
        assert_int_equal(clb_session_reuse(a).memory, 0);
        same_logits(&p, a, ids, 100);
        for (uint32_t i = 100; i < 150; i++) /* generated: their rows are like any other's */
            assert_ok(clb_session_append(a, ids[i], &err), &err);
        feed(a, ids, 220); /* the next turn */
        assert_int_equal(clb_session_reuse(a).session, 150);
        same_logits(&p, a, ids, 220);
        feed(b, ids, 161); /* another session: whole blocks of it */
        assert_int_equal(clb_session_reuse(b).memory, 160);
        same_logits(&p, b, ids, 161);
        feed(b, edit, 220); /* diverges in a block: up to there its own, then computed */
        assert_int_equal(clb_session_reuse(b).session, 137);
        assert_int_equal(clb_session_reuse(b).memory, 0);
        same_logits(&p, b, edit, 220);
        feed(a, ids, 230); /* what b did is not seen */
        same_logits(&p, a, ids, 230);
        clb_session *third = make(&p.shares);
        feed(third, edit, 220);
        assert_int_equal(clb_session_reuse(third).memory, 208);
        same_logits(&p, third, edit, 220);
        feed(third, ids, 220); /* back to the other branch: its own to 137, the rest known; the begun block gives way */
        assert_int_equal(clb_session_reuse(third).session, 137);
        assert_int_equal(clb_session_reuse(third).memory, 208 - 137);
        same_logits(&p, third, ids, 220);
        clb_session_destroy(a);
        clb_session_destroy(b);
        clb_session_destroy(third);
        clb_session *last = make(&p.shares); /* nobody holds them any more, and they are still known */
        feed(last, ids, 220);
        assert_int_equal(clb_session_reuse(last).memory, 208);
        same_logits(&p, last, ids, 220);
        clb_session_reset(last);
        feed(last, ids, 16); /* the last token is computed: no whole block is left */
        assert_int_equal(clb_session_reuse(last).memory, 0);
        same_logits(&p, last, ids, 16);
        clb_session_destroy(last);
        close_pair(&p);
    }
}

/* Random turns in three sessions over a few texts with common starts. */
static void random_turns(void **state)
{
    (void)state;
    static const char *const settings[] = {"ctx=160", "batch=48", NULL};
    enum { N = 3, TEXTS = 5, LENGTH = 160 };
    struct pair p;
    uint32_t text[TEXTS][LENGTH];
    test_rand rng = {99};
    uint64_t taken = 0;
    open_pair(&p, SMALL, settings);
    some_ids(&p.shares, text[0], LENGTH, 3);
    for (uint32_t t = 1; t < TEXTS; t++) {
        const uint32_t fork_at = test_rand_below(&rng, LENGTH);
        some_ids(&p.shares, text[t], LENGTH, 3 + t);
        memcpy(text[t], text[test_rand_below(&rng, t)], fork_at * sizeof text[t][0]);
    }
    clb_session *s[N];
    for (int i = 0; i < N; i++)
        s[i] = make(&p.shares);
    for (int turn = 0; turn < 60; turn++) {
        clb_session *const one = s[test_rand_below(&rng, N)];
        const uint32_t *const ids = text[test_rand_below(&rng, TEXTS)];
        const uint32_t n = 1 + test_rand_below(&rng, LENGTH);
        if (test_rand_below(&rng, 8) == 0)
            clb_session_reset(one);
        feed(one, ids, n);
        taken += clb_session_reuse(one).memory;
        same_logits(&p, one, ids, n);
    }
    assert_true(taken > 300);
    for (int i = 0; i < N; i++)
        clb_session_destroy(s[i]);
    close_pair(&p);
}

/* Strategies that look at keys and values take what a fresh run would still have whole; those that count attention take nothing; those
 * that look at chosen pages do not pass on what they computed that way. Logits are those of a fresh session under each. */
static void strategies(void **state)
{
    (void)state;
    static const struct {
        const char *strategy, *positions;
        uint32_t taken; /* of 150 tokens, by the second session */
    } cases[] = {{"kv-strategy=keydiff", "kv-positions=original", 64},
                 {"kv-strategy=l2-norm", "kv-positions=compact", 64},
                 {"kv-strategy=lagkv", "kv-positions=auto", 64},
                 {"kv-strategy=sliding-window", "kv-positions=auto", 64},
                 {"kv-strategy=streaming", "kv-positions=auto", 64},
                 {"kv-strategy=pyramid/keydiff", "kv-positions=auto", 64},
                 {"kv-strategy=ada/l2-norm", "kv-positions=auto", 64},
                 {"kv-strategy=chunk/lagkv", "kv-positions=auto", 64},
                 {"kv-strategy=block/keydiff", "kv-positions=auto", 64},
                 {"kv-strategy=random", "kv-positions=auto", 64},
                 {"kv-strategy=ada/h2o", "kv-positions=auto", 0},
                 {"kv-strategy=important-tokens", "kv-positions=auto", 0},
                 {"kv-strategy=tova", "kv-positions=auto", 64},
                 {"kv-strategy=expected-attention", "kv-positions=auto", 0},
                 {"kv-strategy=cam/keydiff", "kv-positions=auto", 0},
                 {"kv-strategy=h2o", "kv-positions=auto", 0},
                 {"kv-strategy=snapkv", "kv-positions=auto", 0},
                 {"kv-strategy=quest", "kv-positions=auto", 144}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int batch = 0; batch < 3; batch++) {
            static const char *const batches[] = {"batch=16", "batch=40", "batch=100"};
            const char *const settings[] = {"ctx=400", batches[batch], cases[c].strategy, cases[c].positions,
                                            "kv-budget=64", NULL};
            struct pair p;
            clb_error err;
            uint32_t ids[MOST];
            open_pair(&p, SMALL, settings);
            some_ids(&p.shares, ids, MOST, 7);
            clb_session *a = make(&p.shares), *b = make(&p.shares);
            /* Known: what is there before the first eviction. Short prompts first. */
            feed(a, ids, 30);
            same_logits(&p, a, ids, 30);
            feed(a, ids, 64);
            for (uint32_t i = 64; i < 80; i++) /* more than the budget, before anything is dropped: known, but not for all */
                assert_ok(clb_session_append(a, ids[i], &err), &err);
            feed(a, ids, 150);
            clb_session_reset(a);
            feed(a, ids, 150);
            same_logits(&p, a, ids, 150);
            assert_int_equal(clb_session_reuse(a).memory, cases[c].taken);
            feed(b, ids, 150);
            assert_int_equal(clb_session_reuse(b).memory, cases[c].taken);
            same_logits(&p, b, ids, 150);
            for (uint32_t i = 150; i < 200; i++) {
                assert_ok(clb_session_append(a, ids[i], &err), &err);
                assert_ok(clb_session_append(b, ids[i], &err), &err);
            }
            assert_memory_equal(clb_session_logits(a), clb_session_logits(b),
                                p.shares.engine->model->hp.n_vocab * sizeof(float));
            clb_session_destroy(b);
            b = make(&p.shares); /* of generated tokens nothing is known that full attention did not compute */
            feed(b, ids, 200);
            assert_true(clb_session_reuse(b).memory <= 144);
            same_logits(&p, b, ids, 200);
            clb_session_destroy(a);
            clb_session_destroy(b);
            close_pair(&p);
        }
}

/* Strategies that look at the last queries take what comes before those of the first selection: nobody misses the others. */
static void strategies_that_look_at_queries(void **state)
{
    (void)state;
    static const struct {
        const char *strategy, *positions;
        uint32_t taken; /* of 280 tokens, with a budget of 200; with budgets of their own: at least one block of these */
    } cases[] = {{"kv-strategy=tova", "kv-positions=auto", 192}, /* one query */
                 {"kv-strategy=snapkv", "kv-positions=auto", 128}, /* 64: 201 - 64 = 137 */
                 {"kv-strategy=snapkv", "kv-positions=compact", 128},
                 {"kv-strategy=chunk/snapkv", "kv-positions=auto", 192},
                 {"kv-strategy=ada/snapkv", "kv-positions=auto", 192},
                 {"kv-strategy=pyramid/snapkv", "kv-positions=auto", 192},
                 {"kv-strategy=expected-attention", "kv-positions=auto", 64}, /* 128 */
                 {"kv-strategy=cam/snapkv", "kv-positions=auto", 0}, /* it counts attention, too */
                 {"kv-strategy=h2o", "kv-positions=auto", 0}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int batch = 0; batch < 3; batch++) {
            static const char *const batches[] = {"batch=16", "batch=40", "batch=100"};
            const char *const settings[] = {"ctx=400", batches[batch], cases[c].strategy, cases[c].positions,
                                            "kv-budget=200", NULL};
            struct pair p;
            clb_error err;
            uint32_t ids[MOST];
            open_pair(&p, SMALL, settings);
            some_ids(&p.shares, ids, MOST, 27 + (uint32_t)batch);
            clb_session *a = make(&p.shares), *b = make(&p.shares);
            feed(a, ids, 200); /* nothing is dropped: all of it is known */
            same_logits(&p, a, ids, 200);
            feed(b, ids, 280);
            const uint32_t taken = clb_session_reuse(b).memory, most = cases[c].taken;
            if (strchr(cases[c].strategy, '/') ? taken > most || (most && !taken) : taken != most)
                fail_msg("%s took %u of %u in passes of %s", cases[c].strategy, taken, most, batches[batch]);
            same_logits(&p, b, ids, 280);
            clb_session *fresh = make(&p.computes);
            feed(fresh, ids, 280);
            for (uint32_t i = 280; i < 310; i++) {
                assert_ok(clb_session_append(b, ids[i], &err), &err);
                assert_ok(clb_session_append(fresh, ids[i], &err), &err);
                assert_memory_equal(clb_session_logits(b), clb_session_logits(fresh),
                                    p.shares.engine->model->hp.n_vocab * sizeof(float));
            }
            clb_session_destroy(a);
            a = make(&p.shares); /* the prompt ends just beyond the budget: the first selection is there */
            feed(a, ids, 202);
            same_logits(&p, a, ids, 202);
            assert_true(clb_session_reuse(a).memory <= most);
            clb_session_destroy(fresh);
            clb_session_destroy(a);
            clb_session_destroy(b);
            close_pair(&p);
        }
}

/* Blocks that come in place of a session's own bring their own bounds of keys: the pages that generated tokens look at are those
 * that a fresh session chooses. */
static void bounds_follow_blocks(void **state)
{
    (void)state;
    static const char *const settings[] = {"ctx=300", "batch=64", "kv-strategy=quest", "kv-budget=32", NULL};
    struct pair p;
    clb_error err;
    uint32_t ids[MOST], other[MOST];
    open_pair(&p, SMALL, settings);
    some_ids(&p.shares, ids, MOST, 10);
    some_ids(&p.shares, other, MOST, 11);
    memcpy(other, ids, 9 * sizeof *ids);
    clb_session *a = make(&p.shares), *b = make(&p.shares), *fresh = make(&p.computes);
    feed(a, ids, 150);
    feed(b, other, 150);
    assert_ok(clb_session_append(b, other[150], &err), &err);
    feed(b, ids, 150);
    assert_int_equal(clb_session_reuse(b).memory, 144 - 9);
    feed(fresh, ids, 150);
    for (uint32_t i = 150; i < 190; i++) {
        assert_ok(clb_session_append(b, ids[i], &err), &err);
        assert_ok(clb_session_append(fresh, ids[i], &err), &err);
        assert_memory_equal(clb_session_logits(b), clb_session_logits(fresh),
                            p.shares.engine->model->hp.n_vocab * sizeof(float));
    }
    clb_session_destroy(a);
    clb_session_destroy(b);
    clb_session_destroy(fresh);
    close_pair(&p);
}

/* What is protected stays so when a session's begun block gives way to a known one. */
static void protection_survives(void **state)
{
    (void)state;
    static const char *const settings[] = {"ctx=300", "batch=32", "kv-strategy=keydiff", "kv-budget=64", NULL};
    struct pair p;
    clb_error err;
    uint32_t ids[MOST], kept[200];
    open_pair(&p, SMALL, settings);
    some_ids(&p.shares, ids, MOST, 9);
    clb_session *a = make(&p.shares), *b = make(&p.shares);
    feed(a, ids, 64);
    assert_ok(clb_session_protect(b, 7, &err), &err);
    uint32_t other[10];
    memcpy(other, ids, sizeof other);
    other[9] = (ids[9] + 1) % p.shares.engine->model->hp.n_vocab;
    feed(b, other, 10);
    feed(b, ids, 200);
    assert_int_equal(clb_session_reuse(b).session, 9);
    assert_int_equal(clb_session_reuse(b).memory, 64 - 9);
    const uint32_t n = clb_kv_seq_positions(clb_session_kv(b), 0, 0, kept, 200);
    assert_true(n <= 64 + 16 && n >= 7);
    for (uint32_t i = 0; i < 7; i++)
        assert_int_equal(kept[i], i);
    clb_session_destroy(a);
    clb_session_destroy(b);
    close_pair(&p);
}

/* One sequence's worth of pages and no more: idle prefixes leave, and nothing ever fails for them. With memory of their own they
 * stay. */
static void idle_prefixes_leave(void **state)
{
    (void)state;
    for (int more = 0; more < 2; more++) {
        const char *const settings[] = {"kv-share=yes", "ctx=128", "batch=32", "kv-block-size=16", "threads=1",
                                        more ? "kv-share-memory=64M" : "kv-share-memory=0", NULL};
        test_engine e;
        uint32_t ids[128];
        clb_kv_share_stats st;
        open_engine(&e, SMALL, settings, 1);
        for (uint64_t text = 1; text <= 5; text++) {
            clb_session *s = make(&e);
            some_ids(&e, ids, 128, text);
            feed(s, ids, 128);
            clb_session_destroy(s);
        }
        clb_kv_cache_share_stats(e.engine->kv, &st);
        assert_int_equal(st.blocks_dropped != 0, !more);
        assert_int_equal(st.blocks, more ? 40 : 8);
        clb_session *s = make(&e);
        some_ids(&e, ids, 128, 1); /* the first text */
        feed(s, ids, 128);
        assert_int_equal(clb_session_reuse(s).memory, more ? 112 : 0);
        clb_session_destroy(s);
        test_engine_close(&e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversations),        cmocka_unit_test(random_turns),
        cmocka_unit_test(strategies_that_look_at_queries),
        cmocka_unit_test(bounds_follow_blocks),
        cmocka_unit_test(strategies),
        cmocka_unit_test(protection_survives),  cmocka_unit_test(idle_prefixes_leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
