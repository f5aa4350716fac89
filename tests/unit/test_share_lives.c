/* Eight sequences that come and go in one batch, as a scheduler would run them: the same prompts at the same time,
 * forks, passes that are given up, requests cancelled in the middle of a prompt, and a pool that does not suffice for
 * all. Each row has the logits of a lone run, and whoever finds no room fails alone. */
#include <stdlib.h>
#include <string.h>

#include "kv/prefix.h"
#include "support/engine.h"

#define WIDE TEST_DATA("arch/qwen3.gguf") /* heads of 32 */

enum { N = 8, TEXTS = 7, LENGTH = 150, BATCH = 64, STEPS = 250 };

struct one {
    clb_kv_seq *kv; /* NULL: none */
    const uint32_t *text;
    const float *logits; /* of the text's rows, alone */
    uint32_t n, goal;
};

struct world {
    test_engine e;
    test_rand rng;
    uint32_t n_vocab, text[TEXTS][LENGTH];
    float *alone[TEXTS], *logits;
    struct one one[N];
    int break_after; /* polls of `cancelled`; < 0: never */
    uint64_t rows, taken, full, window_full, cancelled, broken, forks, done;
};

static struct world *current; /* `cancelled` gets the hooks' context */

static bool cancelled(void *ctx)
{
    (void)ctx;
    return current->break_after >= 0 && current->break_after-- == 0;
}

static uint32_t below(struct world *w, uint32_t n)
{
    return test_rand_below(&w->rng, n);
}

static void end(struct one *o)
{
    clb_kv_seq_destroy(o->kv);
    *o = (struct one){0};
}

static void take(struct world *w, struct one *o)
{
    clb_kv_taken taken;
    clb_error err;
    const uint32_t before = clb_kv_seq_position(o->kv);
    assert_ok(clb_kv_seq_take_prefix(o->kv, o->text, o->goal - 1, &taken, &err), &err);
    o->n = clb_kv_seq_position(o->kv);
    assert_int_equal(o->n, before + taken.memory);
    w->taken += taken.memory;
}

static void begin(struct world *w, struct one *o)
{
    const uint32_t t = below(w, TEXTS);
    clb_error err;
    assert_ok(clb_engine_new_sequence(w->e.engine, &o->kv, &err), &err);
    o->text = w->text[t];
    o->logits = w->alone[t];
    o->goal = 2 + below(w, LENGTH - 1);
    take(w, o);
}

static void fork_to(struct world *w, struct one *from, struct one *to)
{
    clb_error err;
    const int rc = clb_kv_seq_fork(from->kv, &to->kv, &err);
    if (rc) { /* the copies of its window found no room */
        assert_int_equal(rc, COLIBRI_E_NOMEM);
        assert_null(to->kv);
        w->window_full++;
        return;
    }
    clb_kv_seq *const kv = to->kv;
    *to = *from;
    to->kv = kv;
    w->forks++;
}

/* One pass over some of them. */
static void pass(struct world *w)
{
    clb_span spans[N];
    struct one *who[N];
    uint32_t n = 0, room = BATCH;
    clb_error err;
    for (uint32_t i = 0, from = below(w, N); i < N; i++) {
        struct one *const o = &w->one[(from + i) % N];
        if (!o->kv || !room || o->n == o->goal || below(w, 4) == 0)
            continue;
        if (below(w, 4) == 0)
            take(w, o); /* what others have computed meanwhile */
        const uint32_t left = o->goal - o->n, most = left < room ? left : room;
        const uint32_t rows = below(w, 3) ? most : 1 + below(w, most);
        spans[n] = (clb_span){.kv = o->kv,
                              .tokens = o->text + o->n,
                              .n = rows,
                              .n_logits = rows,
                              .phase = rows == 1 ? COLIBRI_PHASE_DECODE : COLIBRI_PHASE_PREFILL,
                              .prefill_done = rows == left};
        who[n++] = o;
        room -= rows;
    }
    w->break_after = below(w, 6) ? -1 : (int)below(w, 3);
    while (n) {
        const int rc = clb_forward_run(w->e.engine->forward, spans, n, w->logits, &err);
        if (!rc)
            break;
        for (uint32_t i = 0; i < n; i++) /* nobody has changed */
            assert_int_equal(clb_kv_seq_position(who[i]->kv), who[i]->n);
        if (rc == COLIBRI_E_CANCELLED) {
            w->broken++;
            if (below(w, 3) == 0) /* in the middle of its prompt */
                end(who[--n]);
            continue;
        }
        assert_int_equal(rc, COLIBRI_E_NOMEM);
        if (strstr(err.msg, "the KV cache is full")) { /* not for what nobody holds */
            clb_kv_share_stats st;
            clb_kv_cache_share_stats(w->e.engine->kv, &st);
            assert_int_equal(st.blocks_idle + st.windows, 0);
            w->full++;
        } else {
            assert_non_null(strstr(err.msg, "no room for the recent window"));
            w->window_full++;
        }
        end(who[--n]); /* the last one that came fails, the others go on */
    }
    uint32_t row = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct one *const o = who[i];
        if (memcmp(w->logits + (size_t)row * w->n_vocab, o->logits + (size_t)o->n * w->n_vocab,
                   (size_t)spans[i].n * w->n_vocab * sizeof(float)) != 0)
            fail_msg("rows %u to %u differ from those of a lone run", o->n, o->n + spans[i].n);
        row += spans[i].n;
        o->n += spans[i].n;
        if (below(w, 8)) /* somebody may forget to */
            clb_kv_seq_give_prefix(o->kv, o->text, o->n);
    }
    w->rows += row;
}

static void open_world(struct world *w, const char *const *settings, uint64_t seed)
{
    const char *with[12] = {"kv-share=yes", "threads=2", "ctx=150", "batch=64"},
               *without[12] = {"kv-share=no", "threads=1", "ctx=150", "batch=64"};
    const test_engine_hooks some = {.n_sequences = 2, .cancelled = cancelled}, lone = {.n_sequences = 1};
    test_engine alone;
    clb_error err;
    current = w;
    w->rng.state = seed;
    w->break_after = -1;
    for (size_t n = 4; *settings; settings++, n++)
        with[n] = without[n] = *settings;
    assert_ok(test_engine_open(&w->e, WIDE, with, &some, &err), &err);
    assert_ok(test_engine_open(&alone, WIDE, without, &lone, &err), &err);
    w->n_vocab = w->e.engine->model->hp.n_vocab;
    w->logits = malloc((size_t)BATCH * w->n_vocab * sizeof(float));
    for (uint32_t t = 0; t < TEXTS; t++) { /* most go along with an earlier one for a while */
        const uint32_t along = t ? below(w, LENGTH) : 0;
        memcpy(w->text[t], w->text[t ? below(w, t) : 0], along * sizeof(uint32_t));
        for (uint32_t i = along; i < LENGTH; i++)
            w->text[t][i] = below(w, w->n_vocab);
        w->alone[t] = test_engine_logits(alone.engine, w->text[t], LENGTH, 50);
    }
    test_engine_close(&alone);
}

static void close_world(struct world *w)
{
    clb_kv_share_stats st;
    for (int i = 0; i < N; i++)
        if (w->one[i].kv)
            end(&w->one[i]);
    clb_kv_cache_share_stats(w->e.engine->kv, &st);
    assert_int_equal(st.blocks, st.blocks_idle);
    assert_int_equal(st.bytes_shared, 0);
    assert_int_equal(clb_kv_cache_used_bytes(w->e.engine->kv), st.bytes_idle);
    test_engine_close(&w->e);
    for (uint32_t t = 0; t < TEXTS; t++)
        free(w->alone[t]);
    free(w->logits);
}

static void lives(void **state)
{
    (void)state;
    static const char *const cases[][4] = {{"kv-block-size=16", NULL},
                                           {"kv-type=q8_0", "kv-block-size=16", "kv-recent=32", NULL},
                                           {"kv-type-k=q8_0", "kv-type-v=q4_0", "kv-block-size=32", NULL}};
    struct world sum = {0};
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct world *const w = calloc(1, sizeof *w);
        assert_non_null(w);
        open_world(w, cases[seed % 3], seed);
        for (int step = 0; step < STEPS; step++) {
            struct one *const o = &w->one[below(w, N)], *const other = &w->one[below(w, N)];
            const uint32_t what = below(w, 8);
            if (!o->kv) {
                begin(w, o);
            } else if (what == 0 && !other->kv) {
                fork_to(w, o, other);
            } else if (what == 1) {
                end(o); /* cancelled, wherever it is */
                w->cancelled++;
            }
            pass(w);
            for (int i = 0; i < N; i++)
                if (w->one[i].kv && w->one[i].n == w->one[i].goal && below(w, 6) == 0) { /* some stay for a while */
                    end(&w->one[i]);
                    w->done++;
                }
        }
        close_world(w);
        sum.rows += w->rows;
        sum.taken += w->taken;
        sum.full += w->full;
        sum.window_full += w->window_full;
        sum.cancelled += w->cancelled;
        sum.broken += w->broken;
        sum.forks += w->forks;
        sum.done += w->done;
        free(w);
    }
    print_message(
        "%llu rows, %llu taken, %llu times full, %llu without room for a window, %llu cancelled, %llu passes given up, "
        "%llu forks, %llu done\n",
        (unsigned long long)sum.rows, (unsigned long long)sum.taken, (unsigned long long)sum.full,
        (unsigned long long)sum.window_full, (unsigned long long)sum.cancelled, (unsigned long long)sum.broken,
        (unsigned long long)sum.forks, (unsigned long long)sum.done);
    /* All of it happened. */
    assert_true(sum.taken > 1000 && sum.full > 20 && sum.window_full > 20 && sum.cancelled > 20 && sum.broken > 20 &&
                sum.forks > 10 && sum.done > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
