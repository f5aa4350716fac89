/* The host side of a strategy: its answers, their validation, and what replaces a bad one. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "colibri/kv_select.h"
#include "colibri/numerics.h"
#include "kv/future.h"
#include "kv/internal.h"

enum fault {
    FAULT_NONE = -1,
    FAULT_STATUS,
    FAULT_FLAGS,
    FAULT_BEYOND,
    FAULT_NOTHING,
    FAULT_TOO_MANY,
    FAULT_NEWEST,
    FAULT_PROTECTED,
    FAULT_NAN,
    FAULT_SLOW,
    FAULT_ALLOT,
    FAULT_MERGE,
    FAULT_PICK
};

static const char *const fault_text[] = {
    [FAULT_STATUS] = "select returned an error",
    [FAULT_FLAGS] = "select wrote a flag that is neither 0 nor 1",
    [FAULT_BEYOND] = "it wrote beyond the last position",
    [FAULT_NOTHING] = "select kept no position",
    [FAULT_TOO_MANY] = "select kept more positions than allowed",
    [FAULT_NEWEST] = "select dropped the newest position",
    [FAULT_PROTECTED] = "select dropped a protected position",
    [FAULT_NAN] = "score left or wrote a value that is not a number",
    [FAULT_SLOW] = "a call took more than two seconds; it is not asked again",
    [FAULT_ALLOT] = "allot returned an error, wrote beyond the last head, or gave budgets that are too small or exceed the "
                    "layer's",
    [FAULT_MERGE] = "merge returned an error, wrote beyond the last position, or gave a position that is not kept or a "
                    "weight that is not a number",
    [FAULT_PICK] = "pick_pages returned an error, no page, more than allowed, or a flag that is neither 0 nor 1",
};

enum { GUARD = 0xa5 };

/* ---- what a strategy sees ---------------------------------------------------------------------------------- */

/* What view->opaque points to. */
struct clb_kv_reader {
    const clb_kv_seq *seq;
    const clb_kv_head *head;
};

typedef void read_fn(const clb_kv_seq *seq, const clb_kv_head *h, uint32_t i, float *out);

static void read_row(const struct colibri_kv_view *view, uint32_t i, float *out, uint32_t dim, read_fn *fn)
{
    const struct clb_kv_reader *r = view->opaque;
    if (i < view->n)
        fn(r->seq, r->head, i, out);
    else
        memset(out, 0, dim * sizeof out[0]); /* the strategy's mistake must not become ours */
}

static void value(const clb_kv_seq *seq, const clb_kv_head *h, uint32_t i, float *out)
{
    clb_kv_read_v(seq->cache, h, i, out);
}

static void read_k(const struct colibri_kv_view *view, uint32_t i, float *out)
{
    const struct clb_kv_reader *r = view->opaque;
    read_row(view, i, out, r->seq->cache->layout.k_dim, clb_kv_read_rotated);
}

static void read_k_pre(const struct colibri_kv_view *view, uint32_t i, float *out)
{
    const struct clb_kv_reader *r = view->opaque;
    read_row(view, i, out, r->seq->cache->layout.k_dim, clb_kv_read_unrotated);
}

static void read_v(const struct colibri_kv_view *view, uint32_t i, float *out)
{
    const struct clb_kv_reader *r = view->opaque;
    read_row(view, i, out, r->seq->cache->layout.v_dim, value);
}

/* Probabilities over all heads of a layer, for a strategy that gives one answer for them. */
static void layer_probs(clb_kv_seq *seq, uint32_t layer, uint32_t n)
{
    const uint32_t n_kv_heads = seq->cache->layout.n_kv_heads;
    const clb_kv_head *h = &seq->heads[(size_t)layer * n_kv_heads];
    if (h->sum[0])
        memcpy(seq->layer_sum, h->sum[h->cur], n * sizeof(float));
    if (h->max[0])
        memcpy(seq->layer_max, h->max[h->cur], n * sizeof(float));
    for (uint32_t head = 1; head < n_kv_heads; head++) {
        const float *sum = h[head].sum[h[head].cur], *max = h[head].max[h[head].cur];
        for (uint32_t i = 0; sum && i < n; i++)
            seq->layer_sum[i] += sum[i];
        for (uint32_t i = 0; max && i < n; i++)
            seq->layer_max[i] = max[i] > seq->layer_max[i] ? max[i] : seq->layer_max[i];
    }
}

/* Attention that is still to come, of the heads that the answer is for; NULL if it cannot be known. */
static const float *future(clb_kv_seq *seq, uint32_t layer, uint32_t head, uint32_t n_heads, uint32_t n)
{
    const clb_kv_head *h = &seq->heads[(size_t)layer * seq->cache->layout.n_kv_heads + head];
    for (uint32_t k = 0; k < n_heads; k++) {
        const float *const f = clb_kv_future_of(seq->future, layer, head + k, seq->position);
        if (!f)
            return NULL;
        for (uint32_t i = 0; i < n; i++)
            seq->last.future[i] = f[h->positions[i]] + (k ? seq->last.future[i] : 0.0f);
    }
    return seq->last.future;
}

static uint32_t n_protected(const clb_kv_seq *seq, const clb_kv_head *h, uint32_t n_keep)
{
    uint32_t n = 0;
    while (n < h->n && n < seq->n_protected && n + 1 < n_keep && h->positions[n] < seq->n_protected)
        n++;
    return n;
}

/* The view of one answer. What costs time to make is shared scratch memory: it is valid until the next view. */
static struct colibri_kv_view view_of(clb_kv_seq *seq, uint32_t layer, uint32_t head, uint32_t n_keep, uint32_t trigger,
                                      const struct clb_kv_reader *reader)
{
    const clb_kv_layout *l = &seq->cache->layout;
    const clb_kv_head *h = reader->head;
    /* Whoever is not asked any more needs nothing. */
    const uint32_t needs = seq->gives_up ? 0 : seq->traits.needs, n = h->n, heads = seq->traits.per_head ? 1 : l->n_kv_heads;
    const bool one_answer = !seq->traits.per_head;
    struct colibri_kv_view view = {
        .struct_size = sizeof view,
        .layer = layer,
        .kv_head = head,
        .n = n,
        .n_keep = n_keep,
        .n_prompt = seq->n_prompt,
        .next_position = seq->position,
        .positions = h->positions,
        .read_k = needs & COLIBRI_KV_NEED_K_POST_ROPE ? read_k : NULL,
        .read_v = needs & COLIBRI_KV_NEED_V ? read_v : NULL,
        .read_k_pre = needs & COLIBRI_KV_NEED_K_PRE_ROPE ? read_k_pre : NULL,
        .opaque = reader,
        .trigger = trigger,
        .n_protected = n_protected(seq, h, n_keep),
        .n_system = seq->n_system,
        .n_heads = heads * (l->n_heads / l->n_kv_heads),
    };
    if (one_answer && needs)
        layer_probs(seq, layer, n);
    view.prob_sum = one_answer && h->sum[0] ? seq->layer_sum : h->sum[h->cur];
    view.prob_max = one_answer && h->max[0] ? seq->layer_max : h->max[h->cur];
    if (needs & CLB_KV_NEEDS_QUERIES)
        view.n_last = clb_kv_queries_known(seq);
    if (needs & COLIBRI_KV_NEED_PROB_LAST_W) {
        memset(seq->last.prob, 0, n * sizeof(float));
        for (uint32_t k = 0; k < heads; k++)
            clb_kv_last_probs(seq, layer, head + k, view.n_last, seq->last.prob);
        view.prob_last = seq->last.prob;
    }
    if (needs & (COLIBRI_KV_NEED_Q_LAST_W | COLIBRI_KV_NEED_Q_STATS)) {
        clb_kv_last_queries(seq, layer, head, view.n_heads, view.n_last, seq->last.q);
        view.q_last = needs & COLIBRI_KV_NEED_Q_LAST_W ? seq->last.q : NULL;
    }
    if (needs & COLIBRI_KV_NEED_Q_STATS) {
        clb_kv_query_stats(seq->last.q, view.n_last, view.n_heads, l->k_dim, seq->last.mean, seq->last.cov);
        view.q_mean = seq->last.mean;
        view.q_cov = seq->last.cov;
    }
    if (needs & COLIBRI_KV_NEED_FUTURE)
        view.prob_future = future(seq, layer, head, heads, n);
    return view;
}

/* ---- answers ------------------------------------------------------------------------------------------------ */

/* Scores into `out`. */
static enum fault ask_scores(clb_kv_seq *seq, const struct colibri_kv_view *view, float *out)
{
    for (uint32_t i = 0; i < view->n; i++)
        out[i] = NAN;
    out[view->n] = colibri_bits_f32(CLB_KV_GUARD);
    seq->strategy->score(seq->self, view, out);
    if (colibri_f32_bits(out[view->n]) != CLB_KV_GUARD)
        return FAULT_BEYOND;
    for (uint32_t i = 0; i < view->n; i++)
        if (out[i] != out[i])
            return FAULT_NAN;
    return FAULT_NONE;
}

/* The n_keep best of the scores; the newest and the protected ones come first whatever theirs are. */
static void keep_best(clb_kv_seq *seq, const struct colibri_kv_view *view, float *score, uint32_t n_keep)
{
    const uint32_t n = view->n, fixed = view->n_protected;
    if (n_keep >= n) {
        memset(seq->keep, 1, n);
        return;
    }
    memset(seq->keep, 1, fixed);
    colibri_kv_keep_top(score + fixed, n - 1 - fixed, n_keep - 1 - fixed, seq->keep + fixed);
    seq->keep[n - 1] = 1;
}

/* The strategy's answer in seq->keep. */
static enum fault ask(clb_kv_seq *seq, const struct colibri_kv_view *view)
{
    const struct colibri_kv_strategy *s = seq->strategy;
    const uint32_t n = view->n;
    uint32_t kept = 0;
    if (!s->select) {
        const enum fault fault = ask_scores(seq, view, seq->score);
        if (fault == FAULT_NONE)
            keep_best(seq, view, seq->score, view->n_keep);
        return fault;
    }
    memset(seq->keep, 0, n);
    seq->keep[n] = GUARD;
    if (s->select(seq->self, view, seq->keep) != COLIBRI_OK)
        return FAULT_STATUS;
    if (seq->keep[n] != GUARD)
        return FAULT_BEYOND;
    for (uint32_t i = 0; i < n; i++) {
        if (seq->keep[i] > 1)
            return FAULT_FLAGS;
        kept += seq->keep[i];
    }
    if (kept == 0)
        return FAULT_NOTHING;
    if (kept > view->n_keep)
        return FAULT_TOO_MANY;
    for (uint32_t i = 0; i < view->n_protected; i++)
        if (!seq->keep[i])
            return FAULT_PROTECTED;
    return seq->keep[n - 1] ? FAULT_NONE : FAULT_NEWEST;
}

/* What stays instead of a bad answer: the protected or the first positions, and the newest ones. */
static void keep_ends(clb_kv_seq *seq, const struct colibri_kv_view *view, uint32_t n_keep)
{
    uint32_t first = view->n_protected > 4 ? view->n_protected : 4;
    first = first < n_keep ? first : n_keep - 1;
    if (n_keep >= view->n)
        first = view->n;
    memset(seq->keep, 0, view->n);
    memset(seq->keep, 1, first);
    memset(seq->keep + view->n - (n_keep < view->n ? n_keep - first : 0), 1, n_keep < view->n ? n_keep - first : 0);
}

static void report(clb_kv_seq *seq, enum fault fault)
{
    const uint32_t bit = 1u << fault;
    seq->bad_answers++;
    seq->gives_up = seq->gives_up || fault == FAULT_SLOW || seq->bad_answers >= CLB_KV_BAD_ANSWERS_MOST;
    if (seq->faults_reported & bit)
        return;
    seq->faults_reported |= bit;
    if (seq->misbehaved)
        seq->misbehaved(seq->misbehaved_ctx, seq->strategy->name, fault_text[fault]);
    else
        clb_logf(seq->cache->log, COLIBRI_LOG_WARN, "KV strategy %s: %s; the first and the newest positions stay instead",
                 seq->strategy->name, fault_text[fault]);
}

void clb_kv_report_pick(clb_kv_seq *seq)
{
    if (seq->pick_failed)
        report(seq, FAULT_PICK);
    if (seq->pick_slow)
        report(seq, FAULT_SLOW);
    seq->pick_failed = seq->pick_slow = false;
}

bool clb_kv_check_time(clb_kv_seq *seq, uint64_t began_ns)
{
    if (clb_now_ns() - began_ns <= CLB_KV_CALL_MOST_NS)
        return false;
    report(seq, FAULT_SLOW);
    return true;
}

static uint32_t list_kept(clb_kv_seq *seq, uint32_t n)
{
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (seq->keep[i])
            seq->kept[n_kept++] = i;
    return n_kept;
}

static bool merges(const clb_kv_seq *seq)
{
    return CLB_KV_HAS(seq->strategy, merge) && !seq->gives_up;
}

/* The survivors in seq->keep move together; in between dropped values may be merged. */
static void carry_out(clb_kv_seq *seq, const struct colibri_kv_view *view, uint32_t n_kept)
{
    clb_kv_head *h = &seq->heads[(size_t)view->layer * seq->cache->layout.n_kv_heads + view->kv_head];
    bool merge = merges(seq) && n_kept < view->n;
    if (merge) {
        const uint64_t t0 = clb_now_ns();
        merge = clb_kv_merge_ask(seq, view);
        clb_kv_check_time(seq, t0);
        merge = merge && clb_kv_merge_plan(seq, view, h, n_kept);
        if (!merge)
            report(seq, FAULT_MERGE);
    }
    clb_kv_compact(seq, view->layer, view->kv_head, n_kept);
    if (merge)
        clb_kv_merge_apply(seq, h, n_kept);
}

/* One answer, for one head or for all of a layer. */
static void select_layer(clb_kv_seq *seq, uint32_t layer, uint32_t head, uint32_t trigger)
{
    const clb_kv_layout *l = &seq->cache->layout;
    const size_t at = (size_t)layer * l->n_kv_heads + head;
    const struct clb_kv_reader reader = {seq, &seq->heads[at]};
    const uint32_t n_keep = seq->budgets[at];
    const struct colibri_kv_view view = view_of(seq, layer, head, n_keep, trigger, &reader);
    enum fault fault = FAULT_NONE;
    const bool asked = !seq->gives_up;
    if (asked) {
        const uint64_t t0 = clb_now_ns();
        seq->selections++;
        fault = ask(seq, &view);
        clb_kv_check_time(seq, t0);
    }
    if (fault != FAULT_NONE)
        report(seq, fault);
    if (!asked || fault != FAULT_NONE)
        keep_ends(seq, &view, n_keep);
    const uint32_t n_kept = list_kept(seq, view.n);
    assert(n_kept >= 1 && n_kept <= n_keep);
    carry_out(seq, &view, n_kept);
    /* One answer serves all heads of a layer: they hold the same positions. */
    for (uint32_t other = head + 1; !seq->traits.per_head && other < l->n_kv_heads; other++)
        clb_kv_compact(seq, layer, other, n_kept);
}

static bool allotment_fits(const struct colibri_kv_view *views, const uint32_t *n_keep, uint32_t n, uint64_t total)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (n_keep[i] <= views[i].n_protected)
            return false;
        sum += n_keep[i] < views[i].n ? n_keep[i] : views[i].n;
    }
    return sum <= total;
}

bool clb_kv_across_reserve(clb_kv_seq *seq)
{
    const uint32_t n = seq->cache->layout.n_kv_heads;
    if (!CLB_KV_HAS(seq->strategy, allot) || seq->across.views)
        return true;
    seq->across.readers = calloc(n, sizeof *seq->across.readers);
    seq->across.scores = calloc(n, sizeof *seq->across.scores);
    seq->across.n_keep = calloc((size_t)n + 1, sizeof *seq->across.n_keep);
    seq->across.views = calloc(n, sizeof *seq->across.views);
    return seq->across.readers && seq->across.scores && seq->across.n_keep && seq->across.views;
}

void clb_kv_across_free(clb_kv_seq *seq)
{
    free(seq->across.readers);
    free(seq->across.scores);
    free(seq->across.n_keep);
    free(seq->across.views);
}

static float *scores_of(const clb_kv_seq *seq, uint32_t head)
{
    return seq->score + head * ((size_t)seq->scratch_cap + 1);
}

/* Heads of a layer share a budget, by their scores. */
static void select_across(clb_kv_seq *seq, uint32_t layer, uint32_t trigger)
{
    const uint32_t n_heads = seq->cache->layout.n_kv_heads;
    const uint64_t total = clb_kv_layer_budget(seq, layer);
    const uint32_t even = (uint32_t)(total / n_heads);
    struct clb_kv_reader *const readers = seq->across.readers;
    struct colibri_kv_view *const views = seq->across.views;
    enum fault fault = FAULT_NONE;
    const bool asked = !seq->gives_up;
    uint64_t spent = 0; /* by the strategy, not by what it is shown */
    for (uint32_t head = 0; head < n_heads; head++) {
        readers[head] = (struct clb_kv_reader){seq, &seq->heads[(size_t)layer * n_heads + head]};
        views[head] = view_of(seq, layer, head, even, trigger, &readers[head]);
        float *const scores = scores_of(seq, head);
        seq->across.scores[head] = scores;
        seq->across.n_keep[head] = 0;
        if (!asked || fault != FAULT_NONE)
            continue;
        seq->selections++;
        const uint64_t t0 = clb_now_ns();
        fault = ask_scores(seq, &views[head], scores);
        spent += clb_now_ns() - t0;
    }
    const uint64_t t1 = clb_now_ns();
    seq->across.n_keep[n_heads] = CLB_KV_GUARD;
    if (asked && fault == FAULT_NONE &&
        (seq->strategy->allot(seq->self, layer, n_heads, views, seq->across.scores, (uint32_t)total,
                              seq->across.n_keep) != COLIBRI_OK ||
         seq->across.n_keep[n_heads] != CLB_KV_GUARD || !allotment_fits(views, seq->across.n_keep, n_heads, total)))
        fault = FAULT_ALLOT;
    clb_kv_check_time(seq, t1 - spent);
    if (fault != FAULT_NONE)
        report(seq, fault);
    const bool accepted = asked && fault == FAULT_NONE;
    for (uint32_t head = 0; head < n_heads; head++) {
        if (!accepted)
            keep_ends(seq, &views[head], even);
        else
            keep_best(seq, &views[head], scores_of(seq, head), seq->across.n_keep[head]);
        const uint32_t n_kept = list_kept(seq, views[head].n);
        /* Of what the views share, only the last one's is left: for merging each is made again. */
        if (merges(seq) && n_kept < views[head].n)
            views[head] = view_of(seq, layer, head, accepted ? seq->across.n_keep[head] : even, trigger, &readers[head]);
        carry_out(seq, &views[head], n_kept);
    }
}

void clb_kv_evict(clb_kv_seq *seq, uint32_t n_rows, uint32_t trigger)
{
    const uint32_t n_kv_heads = seq->cache->layout.n_kv_heads;
    if (!seq->traits.evicts)
        return;
    for (uint32_t layer = 0; layer < seq->cache->layout.n_layers; layer++) {
        if (clb_kv_allots(seq)) {
            if (clb_kv_overflows(seq, layer, 0, n_rows))
                select_across(seq, layer, trigger);
            continue;
        }
        /* One answer serves all heads of a layer: they hold the same positions and overflow together. */
        for (uint32_t head = 0; head < (seq->traits.per_head ? n_kv_heads : 1); head++)
            if (clb_kv_overflows(seq, layer, head, n_rows))
                select_layer(seq, layer, head, trigger);
    }
}
