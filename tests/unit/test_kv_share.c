/* Pages with several holders: whatever sequences take, give, cut, evict, fork and abort, each one reads what it wrote.
 * The model is the plain text of every sequence: a row's values follow from its tokens alone. */
#include <stdlib.h>
#include <string.h>

#include "kv/prefix.h"
#include "support.h"
#include "support/kv_rows.h"

enum { LAYERS = 2, KV_HEADS = 2, PAGE = 16, N = 5, TEXTS = 6, LENGTH = 120, BUDGET = 48 };

static const clb_kv_layout layout = {LAYERS,           KV_HEADS,         KV_HEADS, 8,          8,
                                     COLIBRI_TYPE_F16, COLIBRI_TYPE_F16, PAGE,     .ops = NULL};

/* What N sequences may hold at once: nothing that is shared may make them more. */
#define PLANNED (N * LAYERS * KV_HEADS * ((LENGTH + PAGE - 1) / PAGE))

/* Keeps positions that differ from run to run, and the last ones. */
static int select_some(void *self, const struct colibri_kv_view *view, uint8_t *keep)
{
    uint32_t n = view->n_protected; /* n_keep is more */
    (void)self;
    for (uint32_t i = view->n; i-- > 0;) {
        const bool must = i < view->n_protected || i + 1 == view->n;
        keep[i] = must || (n < view->n_keep && (view->positions[i] * 7 + view->layer) % 5 != 0);
        n += keep[i] && i >= view->n_protected;
    }
    return COLIBRI_OK;
}

/* Head by head, and other ones from pass to pass. */
static uint32_t budget_of(void *self, uint32_t layer, uint32_t head, uint64_t seen)
{
    (void)self;
    return 20 + (uint32_t)((seen * 7 + layer * 13 + head * 29) % 60);
}

static void score(void *self, const struct colibri_kv_view *view, float *out)
{
    (void)self;
    for (uint32_t i = 0; i < view->n; i++)
        out[i] = (float)((view->positions[i] * 37 + view->layer * 11 + view->kv_head * 5) % 101);
}

/* One head as much as it has, the others the rest. */
static int allot(void *self, uint32_t layer, uint32_t n_heads, const struct colibri_kv_view *views,
                 const float *const *scores, uint32_t total, uint32_t *n_keep)
{
    (void)self;
    (void)scores;
    for (uint32_t h = 0; h < n_heads; h++)
        total -= n_keep[h] = views[h].n_protected + 1;
    for (uint32_t k = 0; k < n_heads; k++) {
        const uint32_t h = (layer + views[0].n + k) % n_heads, room = views[h].n - n_keep[h];
        const uint32_t more = room < total ? room : total;
        n_keep[h] += more;
        total -= more;
    }
    return COLIBRI_OK;
}

enum { TRIGGERS = 5, KINDS = 3 };
static struct colibri_kv_strategy drops[TRIGGERS * KINDS];

static int make_strategies(void **state)
{
    static const uint32_t triggers[TRIGGERS] = {
        COLIBRI_KV_AT_PREFILL_END | COLIBRI_KV_AT_OVER_BUDGET, COLIBRI_KV_AT_CHUNK, COLIBRI_KV_AT_OVER_BUDGET,
        COLIBRI_KV_AT_CHUNK | COLIBRI_KV_AT_OVER_BUDGET, COLIBRI_KV_AT_PREFILL_END};
    (void)state;
    for (int i = 0; i < TRIGGERS * KINDS; i++)
        drops[i] = (struct colibri_kv_strategy){
            .struct_size = sizeof drops[i],
            .flags = COLIBRI_KV_FLAG_PER_HEAD,
            .triggers = triggers[i % TRIGGERS],
            .name = "test-drops",
            .create = kv_rows_create,
            .destroy = free,
            .reset = kv_rows_reset,
            .budget = i / TRIGGERS == 1 ? budget_of : NULL,
            .select = i / TRIGGERS == 2 ? NULL : select_some,
            .score = i / TRIGGERS == 2 ? score : NULL,
            .allot = i / TRIGGERS == 2 ? allot : NULL,
        };
    return 0;
}

struct one {
    clb_kv_seq *seq;
    uint32_t n, tokens[LENGTH];
};

struct world {
    clb_kv_cache *cache;
    test_rand rng;
    uint32_t text[TEXTS][LENGTH];
    struct one one[N];
    uint64_t taken, full, forks, aborted, evicted, copied;
};

static uint32_t below(struct world *w, uint32_t n)
{
    return test_rand_below(&w->rng, n);
}

/* What the row at the end of tokens[0..n) is made of. */
static uint32_t tag_of(const uint32_t *tokens, uint32_t n)
{
    uint32_t h = 2166136261u;
    for (uint32_t i = 0; i < n; i++)
        h = (h ^ tokens[i]) * 16777619u;
    return h;
}

static void check_one(const struct one *o)
{
    uint32_t positions[LENGTH], tags[LENGTH];
    assert_int_equal(clb_kv_seq_position(o->seq), o->n);
    for (uint32_t i = 0; i < o->n; i++)
        tags[i] = tag_of(o->tokens, i + 1);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t h = 0; h < KV_HEADS; h++) {
            const clb_kv_view view = clb_kv_view_of(o->seq, layer, h);
            const uint32_t n = clb_kv_seq_positions(o->seq, layer, h, positions, LENGTH);
            for (uint32_t i = 0; i < n; i++)
                kv_rows_check(&view, &layout, tags[positions[i]], layer, h, i, positions[i]);
        }
}

static void check(const struct world *w)
{
    for (int i = 0; i < N; i++)
        if (w->one[i].seq)
            check_one(&w->one[i]);
}

static void create(struct world *w, struct one *o)
{
    const bool evicts = below(w, 2) == 0;
    const clb_kv_seq_options options = {.strategy = evicts ? &drops[below(w, TRIGGERS * KINDS)] : &kv_rows_full,
                                        .ctx = LENGTH,
                                        .budget = evicts ? BUDGET : 0};
    clb_error err;
    assert_ok(clb_kv_seq_create(w->cache, &options, &o->seq, &err), &err);
    o->n = 0;
}

/* A pass over the next n tokens; false: the pool is full, and nothing has changed. */
static bool pass(struct world *w, struct one *o, const uint32_t *text, uint32_t n, bool last)
{
    clb_error err;
    const int rc = clb_kv_begin(o->seq, n, &err);
    if (rc) {
        assert_fails(rc, &err, COLIBRI_E_NOMEM, "the KV cache is full");
        w->full++;
        return false;
    }
    memcpy(o->tokens + o->n, text + o->n, n * sizeof *text);
    for (uint32_t i = 0; i < n; i++)
        kv_rows_write_row(o->seq, &layout, tag_of(o->tokens, o->n + i + 1), i);
    if (below(w, 6) == 0) {
        clb_kv_abort(o->seq);
        w->aborted++;
        check_one(o);
        return pass(w, o, text, n, last);
    }
    const uint32_t kept = last || below(w, 4) ? n : 1 + below(w, n); /* rejected drafts */
    clb_kv_end(o->seq, kept, COLIBRI_PHASE_PREFILL, last);
    o->n += kept;
    return true;
}

static void feed(struct world *w, struct one *o)
{
    const uint32_t *const text = w->text[below(w, TEXTS)];
    const uint32_t n = 1 + below(w, LENGTH - 1);
    uint32_t common = 0;
    clb_kv_taken taken;
    clb_error err;
    while (common < o->n && common < n && o->tokens[common] == text[common])
        common++;
    if (common < o->n && clb_kv_seq_truncate(o->seq, common, &err)) {
        clb_kv_seq_reset(o->seq);
        common = 0;
    }
    o->n = common;
    assert_ok(clb_kv_seq_take_prefix(o->seq, text, n, &taken, &err), &err);
    memcpy(o->tokens, text, n * sizeof *text);
    assert_int_equal(clb_kv_seq_position(o->seq), o->n + taken.memory);
    o->n += taken.memory;
    w->taken += taken.memory;
    while (o->n < n) {
        const uint32_t rows = 1 + below(w, n - o->n < 40 ? n - o->n : 40);
        if (!pass(w, o, text, rows, o->n + rows == n))
            return;
        if (below(w, 4)) /* somebody may forget to */
            clb_kv_seq_give_prefix(o->seq, o->tokens, o->n);
    }
}

static void fork_one(struct world *w, struct one *from)
{
    struct one *const to = &w->one[below(w, N)];
    clb_error err;
    if (to == from)
        return;
    clb_kv_seq_destroy(to->seq);
    assert_ok(clb_kv_seq_fork(from->seq, &to->seq, &err), &err);
    to->n = from->n;
    memcpy(to->tokens, from->tokens, sizeof to->tokens);
    w->forks++;
}

/* Passes of two sequences at once: what one will need at its end must not be given to the other. */
static void both(struct world *w, struct one *a, struct one *b)
{
    struct one *const two[2] = {a, b};
    uint32_t n[2] = {0};
    clb_error err;
    if (a == b || !b->seq)
        return;
    for (int i = 0; i < 2; i++) {
        const uint32_t left = LENGTH - two[i]->n;
        n[i] = left ? 1 + below(w, left < 40 ? left : 40) : 0;
        if (n[i] && clb_kv_begin(two[i]->seq, n[i], &err)) {
            assert_int_equal(err.code, COLIBRI_E_NOMEM);
            w->full++;
            n[i] = 0;
        }
    }
    for (int i = 0; i < 2; i++)
        for (uint32_t r = 0; r < n[i]; r++) {
            two[i]->tokens[two[i]->n + r] = below(w, 1000);
            kv_rows_write_row(two[i]->seq, &layout, tag_of(two[i]->tokens, two[i]->n + r + 1), r);
        }
    for (int i = 0; i < 2; i++)
        if (n[i]) {
            clb_kv_end(two[i]->seq, n[i], COLIBRI_PHASE_PREFILL, below(w, 2));
            two[i]->n += n[i];
        }
}

static void cut_one(struct world *w, struct one *o)
{
    const uint32_t n = below(w, o->n + 1);
    if (clb_kv_seq_truncate(o->seq, n, NULL) == COLIBRI_OK)
        o->n = n;
}

static void one_world(uint64_t seed, uint32_t n_pages, struct world *sum)
{
    struct world *w = calloc(1, sizeof *w);
    clb_error err;
    clb_kv_share_stats st;
    assert_non_null(w);
    w->rng.state = seed;
    assert_ok(clb_kv_cache_create(&layout, n_pages * clb_kv_page_bytes(&layout), NULL, &w->cache, &err), &err);
    assert_ok(clb_kv_share(w->cache, "salt", 4, &err), &err);
    for (uint32_t t = 0; t < TEXTS; t++) { /* each goes along with an earlier one for a while */
        const uint32_t along = t ? below(w, LENGTH) : 0;
        memcpy(w->text[t], w->text[t ? below(w, t) : 0], along * sizeof(uint32_t));
        for (uint32_t i = along; i < LENGTH; i++)
            w->text[t][i] = below(w, 1000);
    }
    for (int step = 0; step < 150; step++) {
        struct one *const o = &w->one[below(w, N)];
        if (!o->seq)
            create(w, o);
        const uint32_t what = below(w, 14);
        if (what < 6) {
            feed(w, o);
        } else if (what < 8) {
            fork_one(w, o);
        } else if (what < 10) {
            cut_one(w, o);
        } else if (what < 12) {
            both(w, o, &w->one[below(w, N)]);
        } else if (what == 12) {
            clb_kv_seq_destroy(o->seq);
            o->seq = NULL;
        } else {
            clb_kv_seq_reset(o->seq);
            o->n = 0;
        }
        check(w);
        assert_true(clb_kv_cache_used_bytes(w->cache) <= n_pages * clb_kv_page_bytes(&layout));
    }
    for (int i = 0; i < N; i++) {
        if (w->one[i].seq) {
            clb_kv_stats s;
            clb_kv_seq_stats(w->one[i].seq, &s);
            w->evicted += s.evicted_sum;
        }
        clb_kv_seq_destroy(w->one[i].seq);
    }
    clb_kv_cache_share_stats(w->cache, &st);
    assert_int_equal(st.blocks, st.blocks_idle);
    assert_int_equal(st.bytes_shared, 0);
    assert_int_equal(st.bytes_idle, clb_kv_cache_used_bytes(w->cache));
    assert_int_equal(st.bytes_idle, st.blocks * LAYERS * KV_HEADS * clb_kv_page_bytes(&layout));
    assert_int_equal(st.tokens_reused, w->taken);
    if (n_pages >= PLANNED)
        assert_int_equal(w->full, 0);
    clb_kv_cache_destroy(w->cache);
    sum->taken += w->taken;
    sum->full += w->full;
    sum->forks += w->forks;
    sum->aborted += w->aborted;
    sum->evicted += w->evicted;
    sum->copied += st.copies;
    free(w);
}

static void everything_at_random(void **state)
{
    (void)state;
    struct world sum = {0};
    for (uint64_t seed = 1; seed <= 60; seed++)
        one_world(seed, seed % 4 == 0 ? 60 : seed % 4 == 1 ? 80 : seed % 4 == 2 ? 110 : PLANNED, &sum);
    /* All of it happened. */
    assert_true(sum.taken > 1000 && sum.full > 20 && sum.forks > 100 && sum.aborted > 100 && sum.evicted > 100 &&
                sum.copied > 100);
}

/* ---- merging into values that others read ---- */

static int keep_first(void *self, const struct colibri_kv_view *view, uint8_t *keep)
{
    (void)self;
    memset(keep, 1, view->n_keep - 1);
    keep[view->n - 1] = 1;
    return COLIBRI_OK;
}

static int into_first(void *self, const struct colibri_kv_view *view, const uint8_t *keep, uint32_t *into,
                      float *weight)
{
    (void)self;
    for (uint32_t i = 0; i < view->n; i++)
        if (!keep[i]) {
            into[i] = 0;
            weight[i] = 1;
        }
    return COLIBRI_OK;
}

/* The first page stays as it is but for the value of its first row: no row moves there, and it is copied all the same.
 */
static void merging_changes_nobody_else(void **state)
{
    (void)state;
    struct colibri_kv_strategy merges = drops[0];
    struct world w = {.rng = {9}};
    struct one a = {0}, b = {0};
    uint32_t text[64];
    clb_kv_taken taken;
    clb_error err;
    merges.select = keep_first;
    merges.merge = into_first;
    for (uint32_t i = 0; i < 64; i++)
        text[i] = i;
    const clb_kv_seq_options of_a = {.strategy = &kv_rows_full, .ctx = LENGTH};
    const clb_kv_seq_options of_b = {.strategy = &merges, .ctx = LENGTH, .budget = BUDGET};
    assert_ok(clb_kv_cache_create(&layout, PLANNED * clb_kv_page_bytes(&layout), NULL, &w.cache, &err), &err);
    assert_ok(clb_kv_share(w.cache, "", 0, &err), &err);
    assert_ok(clb_kv_seq_create(w.cache, &of_a, &a.seq, &err), &err);
    assert_ok(clb_kv_seq_create(w.cache, &of_b, &b.seq, &err), &err);
    while (!pass(&w, &a, text, 64, true))
        ;
    clb_kv_seq_give_prefix(a.seq, a.tokens, a.n);
    assert_ok(clb_kv_seq_take_prefix(b.seq, text, 64, &taken, &err), &err);
    assert_int_equal(taken.memory, BUDGET);
    memcpy(b.tokens, text, sizeof text);
    b.n = BUDGET;
    const clb_kv_view before = clb_kv_view_of(b.seq, 0, 0);
    const float value = kv_rows_read(&layout, before.v_pages, 8, 0, 0);
    assert_true(pass(&w, &b, text, 16, true));
    const clb_kv_view after = clb_kv_view_of(b.seq, 0, 0);
    assert_true(kv_rows_read(&layout, after.v_pages, 8, 0, 0) != value); /* it did merge */
    check_one(&a);
    clb_kv_seq_destroy(a.seq);
    clb_kv_share_stats st;
    clb_kv_cache_share_stats(w.cache, &st);
    assert_int_equal(st.blocks, 4);
    assert_int_equal(st.blocks_idle, 4); /* b holds none any more: they may go */
    clb_kv_seq_destroy(b.seq);
    clb_kv_cache_destroy(w.cache);
}

/* ---- rooms and rules ---- */

/* A sequence may always do what the plan reserved for it, whatever idle or shared prefixes lie there. */
static void sharing_takes_no_room_away(void **state)
{
    (void)state;
    for (int k = -1; k < TRIGGERS * KINDS; k++) {
        const clb_kv_seq_options options = {
            .strategy = k < 0 ? &kv_rows_full : &drops[k], .ctx = LENGTH, .budget = k < 0 ? 0 : BUDGET};
        const clb_kv_traits traits = clb_kv_traits_of(options.strategy, NULL, CLB_KV_AS_DECLARED);
        struct world w = {.rng = {5}};
        clb_error err;
        const uint64_t plan =
            clb_kv_bytes(&layout, clb_kv_most_positions(&layout, &traits, LENGTH, options.budget, PAGE));
        assert_ok(clb_kv_cache_create(&layout, plan, NULL, &w.cache, &err), &err);
        assert_ok(clb_kv_share(w.cache, "", 0, &err), &err);
        for (int round = 0; round < 20; round++) {
            struct one o = {0};
            uint32_t text[LENGTH];
            for (uint32_t i = 0; i < LENGTH; i++)
                text[i] = i < 40 ? i : below(&w, 50);
            assert_ok(clb_kv_seq_create(w.cache, &options, &o.seq, &err), &err);
            clb_kv_taken taken;
            assert_ok(clb_kv_seq_take_prefix(o.seq, text, LENGTH, &taken, &err), &err);
            memcpy(o.tokens, text, sizeof text);
            o.n = taken.memory;
            while (o.n < LENGTH) {
                const uint32_t left = LENGTH - o.n;
                assert_true(pass(&w, &o, text, left < PAGE ? left : PAGE, left <= PAGE));
                clb_kv_seq_give_prefix(o.seq, o.tokens, o.n);
            }
            check_one(&o);
            clb_kv_seq_destroy(o.seq);
        }
        clb_kv_cache_destroy(w.cache);
    }
}

/* A selection that frees more than it copies still copies first. Without room for that it is refused, and nothing has
 * changed; when nobody else holds the pages it works without copies. */
static void copies_come_before_what_they_free(void **state)
{
    (void)state;
    const struct colibri_kv_strategy *const over_budget = &drops[2];
    const clb_kv_seq_options of_a = {.strategy = &kv_rows_full, .ctx = LENGTH};
    const clb_kv_seq_options of_b = {.strategy = over_budget, .ctx = LENGTH, .budget = BUDGET};
    struct world w = {.rng = {10}};
    struct one a = {0}, b = {0};
    uint32_t text[LENGTH];
    clb_kv_taken taken;
    clb_kv_share_stats st;
    clb_error err;
    for (uint32_t i = 0; i < LENGTH; i++)
        text[i] = i;
    const uint64_t n_pages = (2 + 4) * LAYERS * KV_HEADS; /* two of both, four of b */
    assert_ok(clb_kv_cache_create(&layout, n_pages * clb_kv_page_bytes(&layout), NULL, &w.cache, &err), &err);
    assert_ok(clb_kv_share(w.cache, "", 0, &err), &err);
    assert_ok(clb_kv_seq_create(w.cache, &of_a, &a.seq, &err), &err);
    assert_ok(clb_kv_seq_create(w.cache, &of_b, &b.seq, &err), &err);
    assert_true(pass(&w, &a, text, 2 * PAGE, true));
    clb_kv_seq_give_prefix(a.seq, a.tokens, a.n);
    assert_ok(clb_kv_seq_take_prefix(b.seq, text, LENGTH, &taken, &err), &err);
    assert_int_equal(taken.memory, 2 * PAGE);
    memcpy(b.tokens, text, sizeof text);
    b.n = taken.memory;
    assert_true(pass(&w, &b, text, BUDGET - b.n, true));
    assert_true(pass(&w, &b, text, 6 * PAGE - BUDGET, true));
    assert_int_equal(clb_kv_cache_used_bytes(w.cache), n_pages * clb_kv_page_bytes(&layout));
    const uint32_t before = b.n;
    assert_false(pass(&w, &b, text, 1, true));
    assert_int_equal(b.n, before);
    check_one(&a);
    check_one(&b);
    clb_kv_seq_destroy(a.seq);
    assert_true(pass(&w, &b, text, 1, true));
    check_one(&b);
    clb_kv_cache_share_stats(w.cache, &st);
    assert_int_equal(st.copies, 0);
    assert_int_equal(st.blocks, 0);
    clb_kv_seq_destroy(b.seq);
    assert_int_equal(clb_kv_cache_used_bytes(w.cache), 0);
    clb_kv_cache_destroy(w.cache);
}

/* Sharing is turned on once and before anything else; without it nothing is known. */
static void turned_on_once(void **state)
{
    (void)state;
    struct world w = {.rng = {6}};
    clb_error err;
    clb_kv_taken taken;
    const uint32_t text[32] = {1, 2, 3};
    assert_ok(clb_kv_cache_create(&layout, 100 * clb_kv_page_bytes(&layout), NULL, &w.cache, &err), &err);
    create(&w, &w.one[0]);
    assert_ok(clb_kv_seq_take_prefix(w.one[0].seq, text, 32, &taken, &err), &err);
    assert_int_equal(taken.memory + taken.disk, 0);
    clb_kv_seq_give_prefix(w.one[0].seq, text, 0);
    assert_fails(clb_kv_share(w.cache, "", 0, &err), &err, COLIBRI_E_INTERNAL, "before the first sequence");
    clb_kv_seq_destroy(w.one[0].seq);
    assert_ok(clb_kv_share(w.cache, "", 0, &err), &err);
    assert_fails(clb_kv_share(w.cache, "", 0, &err), &err, COLIBRI_E_INTERNAL, "once");
    clb_kv_cache_destroy(w.cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_at_random),
        cmocka_unit_test(merging_changes_nobody_else),
        cmocka_unit_test(sharing_takes_no_room_away),
        cmocka_unit_test(copies_come_before_what_they_free),
        cmocka_unit_test(turned_on_once),
    };
    return cmocka_run_group_tests(tests, make_strategies, NULL);
}
