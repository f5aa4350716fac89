/* A made-up text in the real KV cache, and what must become of it in double precision.
 *
 * Keys, values and queries of every position are a hash of where they belong, known before rotation. The model beside
 * the cache holds which positions each (layer, KV head) keeps (it follows on_evict) and the attention that they drew.
 */
#ifndef TEST_KV_HOST_H
#define TEST_KV_HOST_H

#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "colibri/numerics.h"
#include "kv/internal.h"
#include "ops/ops.h"
#include "support/kv_rows.h"

enum {
    KVH_LAYERS = 2,
    KVH_KV_HEADS = 2,
    KVH_GROUP = 2,
    KVH_HEADS = 4,
    KVH_DIM = 32,
    KVH_ROT = 24,
    KVH_PAGE = 16,
    KVH_MOST = 480
};
enum kvh_what { KVH_K = 1, KVH_V, KVH_Q };

static const float kvh_inv_freq[KVH_ROT / 2] = {1,     0.6f,  0.35f, 0.2f,   0.12f,  0.07f,
                                                0.04f, 0.02f, 0.01f, 0.005f, 0.002f, 0.001f};

struct kvh_head {
    uint32_t n, position[KVH_MOST];
    double sum[KVH_MOST], max[KVH_MOST];
};

struct kvh {
    clb_kv_layout layout;
    struct colibri_kv_strategy strategy;
    clb_kv_cache *cache;
    clb_kv_seq *seq;
    struct kvh_head head[KVH_LAYERS][KVH_KV_HEADS];
    int n_faults; /* kinds of faults told */
    char fault[200];
};

static struct kvh *kvh_now __attribute__((unused)); /* for callbacks */

static inline clb_kv_layout kvh_layout(uint32_t k_type, uint32_t v_type)
{
    return (clb_kv_layout){
        .n_layers = KVH_LAYERS,
        .n_heads = KVH_HEADS,
        .n_kv_heads = KVH_KV_HEADS,
        .k_dim = KVH_DIM,
        .v_dim = KVH_DIM,
        .k_type = k_type,
        .v_type = v_type,
        .page_tokens = KVH_PAGE,
        .n_rot = KVH_ROT,
        .inv_freq = kvh_inv_freq,
        .attention_scale = 0.4f,
    };
}

/* In [-1, 1), with 20 bits. `head`: a query head for KVH_Q, else a KV head. */
static inline float kvh_value(enum kvh_what what, uint32_t layer, uint32_t head, uint32_t position, uint32_t d)
{
    uint32_t x = (uint32_t)what * 0x9e3779b1u ^ layer * 0x85ebca6bu ^ head * 0xc2b2ae35u ^ position * 0x27d4eb2fu;
    x = (x ^ (x >> 15)) * 0x2c1b3c6du ^ d * 0x165667b1u;
    x = (x ^ (x >> 12)) * 0x297a2d39u;
    x = (x ^ (x >> 14)) * 0x85ebca6bu;
    return (float)(x >> 12) * 0x1p-19f - 1.0f;
}

/* The same in double, rotated to position `at`; no rotation if at < 0. */
static inline void kvh_rotated(const clb_kv_layout *l, enum kvh_what what, uint32_t layer, uint32_t head,
                               uint32_t position, double at, double *out)
{
    double x[KVH_DIM];
    for (uint32_t d = 0; d < KVH_DIM; d++)
        out[d] = x[d] = (double)kvh_value(what, layer, head, position, d);
    for (uint32_t i = 0; at >= 0 && i < l->n_rot / 2; i++) {
        const uint32_t a = l->rope_neox ? i : 2 * i, b = l->rope_neox ? i + l->n_rot / 2 : 2 * i + 1;
        const double c = cos(at * (double)l->inv_freq[i]), s = sin(at * (double)l->inv_freq[i]);
        out[a] = x[a] * c - x[b] * s;
        out[b] = x[b] * c + x[a] * s;
    }
}

static inline bool kvh_compact(const struct kvh *h)
{
    return clb_kv_seq_compact(h->seq);
}

/* Probabilities that query head `q_head` of the token `position` gives to the first n of what (layer, its KV head)
 * holds, the token itself counting as at `at`. */
static inline void kvh_probs(const struct kvh *h, uint32_t layer, uint32_t q_head, uint32_t position, double at,
                             uint32_t n, double *p)
{
    const struct kvh_head *x = &h->head[layer][q_head / KVH_GROUP];
    double q[KVH_DIM], k[KVH_DIM], most = -(double)INFINITY, total = 0;
    kvh_rotated(&h->layout, KVH_Q, layer, q_head, position, at, q);
    for (uint32_t i = 0; i < n; i++) {
        kvh_rotated(&h->layout, KVH_K, layer, q_head / KVH_GROUP, x->position[i], kvh_compact(h) ? i : x->position[i],
                    k);
        p[i] = 0;
        for (uint32_t d = 0; d < KVH_DIM; d++)
            p[i] += q[d] * k[d];
        p[i] *= (double)h->layout.attention_scale;
        most = fmax(most, p[i]);
    }
    for (uint32_t i = 0; i < n; i++)
        total += p[i] = exp(p[i] - most);
    for (uint32_t i = 0; i < n; i++)
        p[i] /= total;
}

/* ---- the strategy's side ------------------------------------------------------------------------------- */

static inline void kvh_on_evict(void *self, uint32_t layer, uint32_t kv_head, const uint32_t *kept, uint32_t n_kept)
{
    struct kvh_head *x = &kvh_now->head[layer][kv_head];
    (void)self;
    for (uint32_t j = 0; j < n_kept; j++) {
        assert_true(kept[j] < x->n && (j == 0 || kept[j] > kept[j - 1]));
        x->position[j] = x->position[kept[j]];
        x->sum[j] = x->sum[kept[j]];
        x->max[j] = x->max[kept[j]];
    }
    x->n = n_kept;
}

/* Some of the old positions, the same ones whenever asked, and the newest. */
static inline float kvh_liking(const struct colibri_kv_view *view, uint32_t i)
{
    const uint32_t x = (view->positions[i] + 1000 * view->layer + 7000 * view->kv_head) * 2654435761u;
    return (float)(x >> 12);
}

static inline void kvh_score(void *self, const struct colibri_kv_view *view, float *out)
{
    (void)self;
    for (uint32_t i = 0; i < view->n; i++)
        out[i] = kvh_liking(view, i);
}

static inline int kvh_select(void *self, const struct colibri_kv_view *view, uint8_t *keep)
{
    uint32_t n = view->n_protected + 1;
    (void)self;
    memset(keep, 1, view->n_protected);
    keep[view->n - 1] = 1;
    for (; n < view->n_keep; n++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t i = 0; i < view->n; i++)
            if (!keep[i] && (best == UINT32_MAX || kvh_liking(view, i) >= kvh_liking(view, best)))
                best = i;
        if (best == UINT32_MAX) /* all stay */
            break;
        keep[best] = 1;
    }
    return COLIBRI_OK;
}

static inline struct colibri_kv_strategy kvh_strategy(void)
{
    return (struct colibri_kv_strategy){
        .struct_size = sizeof(struct colibri_kv_strategy),
        .flags = COLIBRI_KV_FLAG_PER_HEAD,
        .triggers = COLIBRI_KV_AT_CHUNK | COLIBRI_KV_AT_OVER_BUDGET,
        .name = "fake",
        .create = kv_rows_create,
        .destroy = free,
        .reset = kv_rows_reset,
        .select = kvh_select,
        .on_evict = kvh_on_evict,
    };
}

/* ---- driving the host ---------------------------------------------------------------------------------- */

static inline void kvh_note(void *ctx, const char *strategy, const char *what)
{
    struct kvh *h = ctx;
    assert_string_equal(strategy, h->strategy.name);
    h->n_faults++;
    snprintf(h->fault, sizeof h->fault, "%s", what);
}

/* h->layout and h->strategy are set. */
static inline void kvh_open(struct kvh *h, uint32_t budget, uint32_t n_protected)
{
    const clb_kv_seq_options o = {.strategy = &h->strategy,
                                  .ctx = KVH_MOST,
                                  .budget = budget,
                                  .n_protected = n_protected,
                                  .misbehaved = kvh_note,
                                  .misbehaved_ctx = h};
    clb_error err;
    kvh_now = h;
    memset(h->head, 0, sizeof h->head);
    h->n_faults = 0;
    h->fault[0] = 0;
    assert_ok(clb_kv_cache_create(&h->layout, 8 << 20, NULL, &h->cache, &err), &err);
    assert_ok(clb_kv_seq_create(h->cache, &o, &h->seq, &err), &err);
}

static inline void kvh_close(struct kvh *h)
{
    clb_kv_seq_destroy(h->seq);
    assert_int_equal(clb_kv_cache_used_bytes(h->cache), 0);
    clb_kv_cache_destroy(h->cache);
}

static inline void kvh_turn_to(const struct kvh *h, float *x, const float *cs)
{
    clb_kv_rotate(&h->layout, x, cs);
}

/* Keys and values of row i of the open pass. `off` is added to the positions that the rows are made of. */
static inline void kvh_write_row(struct kvh *h, uint32_t layer, uint32_t i, uint32_t off)
{
    float k[KVH_KV_HEADS * KVH_DIM], v[KVH_KV_HEADS * KVH_DIM], q[KVH_HEADS * KVH_DIM], cs[KVH_ROT];
    const uint32_t position = clb_kv_seq_position(h->seq) + i;
    clb_kv_angles(&h->layout, position, cs);
    for (uint32_t head = 0; head < KVH_KV_HEADS; head++) {
        for (uint32_t d = 0; d < KVH_DIM; d++) {
            k[head * KVH_DIM + d] = kvh_value(KVH_K, layer, head, position + off, d);
            v[head * KVH_DIM + d] = kvh_value(KVH_V, layer, head, position + off, d);
        }
        if (!kvh_compact(h))
            kvh_turn_to(h, k + head * KVH_DIM, cs);
    }
    for (uint32_t head = 0; head < KVH_HEADS; head++)
        for (uint32_t d = 0; d < KVH_DIM; d++)
            q[head * KVH_DIM + d] = kvh_value(KVH_Q, layer, head, position + off, d);
    clb_kv_write(h->seq, layer, i, k, v);
    clb_kv_observe_q(h->seq, layer, i, q);
}

struct kvh_result {
    float scores[KVH_GROUP][KVH_MOST + 32], max_sum[KVH_GROUP][2], out[KVH_GROUP][KVH_DIM];
};

/* Attention of row i of the open pass as the model's code does it, by the reference. */
static inline void kvh_attend(const struct kvh *h, uint32_t layer, uint32_t kv_head, uint32_t i, struct kvh_result *r)
{
    static float keys[(KVH_MOST + 32) * KVH_DIM], q[KVH_GROUP][KVH_DIM];
    static float weights[KVH_GROUP * COLIBRI_ATTN_SEGMENT] __attribute__((aligned(64)));
    static float parts[4096] __attribute__((aligned(64)));
    const clb_kv_view v = clb_kv_view_of(h->seq, layer, kv_head);
    const uint32_t n = v.n_before + i + 1, position = clb_kv_seq_position(h->seq) + i;
    const void *key_page = keys;
    static const void *key_pages[KVH_MOST / KVH_PAGE + 4];
    float cs[KVH_ROT];
    if (kvh_compact(h)) {
        memcpy(cs, clb_kv_row_cs(h->seq, layer, kv_head, i), sizeof cs);
        clb_kv_keys(h->seq, layer, kv_head, 0, n, keys);
        for (uint32_t p = 0; p * KVH_PAGE < n; p++)
            key_pages[p] = (const float *)key_page + (size_t)p * KVH_PAGE * KVH_DIM;
    } else {
        clb_kv_angles(&h->layout, position, cs);
    }
    for (uint32_t g = 0; g < KVH_GROUP; g++) {
        for (uint32_t d = 0; d < KVH_DIM; d++)
            q[g][d] = kvh_value(KVH_Q, layer, kv_head * KVH_GROUP + g, position, d);
        kvh_turn_to(h, q[g], cs);
    }
    const struct colibri_attention_args a = {
        .struct_size = sizeof a,
        .n_heads = KVH_GROUP,
        .k_dim = KVH_DIM,
        .v_dim = KVH_DIM,
        .n_kv = n,
        .page_tokens = KVH_PAGE,
        .k_type = kvh_compact(h) ? (uint32_t)COLIBRI_TYPE_F32 : h->layout.k_type,
        .v_type = h->layout.v_type,
        .k_pages = kvh_compact(h) ? key_pages : v.k_pages,
        .v_pages = v.v_pages,
        .q = q[0],
        .q_stride = KVH_DIM,
        .scale = h->layout.attention_scale,
        .scores = r->scores[0],
        .score_stride = KVH_MOST + 32,
        .out = r->out[0],
        .out_stride = KVH_DIM,
        .max_sum = r->max_sum[0],
        .n_rows = 1,
        .stages = COLIBRI_ATTN_SEGMENTS | COLIBRI_ATTN_COMBINE,
        .segment_end = (n + COLIBRI_ATTN_SEGMENT - 1) / COLIBRI_ATTN_SEGMENT,
        .weights = weights,
        .parts = parts,
        .k_recent = v.k_recent,
        .v_recent = v.v_recent,
        .recent_first = v.recent_first,
        .recent_begin = v.k_recent ? clb_kv_recent_begin(h->seq, layer, kv_head, i) : 0,
    };
    clb_ref_attention(&a);
}

/* A pass of n rows in both, of which the first `stay` stay; `observe`: the strategy is shown the attention. */
static inline void kvh_pass_of(struct kvh *h, uint32_t n, uint32_t stay, enum colibri_phase phase, bool observe)
{
    static struct kvh_result r;
    static double p[KVH_MOST];
    clb_error err;
    kvh_now = h;
    assert_ok(clb_kv_begin(h->seq, n, &err), &err);
    const uint32_t first = clb_kv_seq_position(h->seq);
    for (uint32_t layer = 0; layer < KVH_LAYERS; layer++) {
        for (uint32_t i = 0; i < n; i++)
            kvh_write_row(h, layer, i, 0);
        for (uint32_t head = 0; head < KVH_KV_HEADS; head++) {
            struct kvh_head *x = &h->head[layer][head];
            const uint32_t before = x->n;
            assert_true(before + n <= KVH_MOST);
            for (uint32_t i = 0; i < n; i++) {
                x->position[before + i] = first + i;
                x->sum[before + i] = x->max[before + i] = 0;
            }
            for (uint32_t i = 0; observe && i < n; i++) {
                const uint32_t seen = before + i + 1;
                kvh_attend(h, layer, head, i, &r);
                clb_kv_observe(h->seq, layer, head, r.scores[0], KVH_MOST + 32, r.max_sum[0], KVH_GROUP, seen);
                for (uint32_t g = 0; g < KVH_GROUP; g++) {
                    kvh_probs(h, layer, head * KVH_GROUP + g, first + i, kvh_compact(h) ? before + i : first + i, seen,
                              p);
                    for (uint32_t j = 0; j < seen; j++) {
                        x->sum[j] += p[j];
                        x->max[j] = fmax(x->max[j], p[j]);
                    }
                }
            }
            x->n = before + stay;
        }
    }
    clb_kv_end(h->seq, stay, phase, false);
}

static inline void kvh_pass(struct kvh *h, uint32_t n, enum colibri_phase phase, bool observe)
{
    kvh_pass_of(h, n, n, phase, observe);
}

/* A pass of n rows of other tokens that comes to nothing. */
static inline void kvh_aborted_pass(struct kvh *h, uint32_t n)
{
    static struct kvh_result r;
    clb_error err;
    kvh_now = h;
    assert_ok(clb_kv_begin(h->seq, n, &err), &err);
    for (uint32_t layer = 0; layer < KVH_LAYERS; layer++) {
        for (uint32_t i = 0; i < n; i++)
            kvh_write_row(h, layer, i, 5000);
        for (uint32_t head = 0; head < KVH_KV_HEADS; head++) {
            kvh_attend(h, layer, head, 0, &r);
            clb_kv_observe(h->seq, layer, head, r.scores[0], KVH_MOST + 32, r.max_sum[0], KVH_GROUP,
                           h->head[layer][head].n + 1);
        }
    }
    clb_kv_abort(h->seq);
}

/* The cache holds what the model holds. */
static inline void kvh_check_positions(const struct kvh *h)
{
    uint32_t position[KVH_MOST];
    for (uint32_t layer = 0; layer < KVH_LAYERS; layer++)
        for (uint32_t head = 0; head < KVH_KV_HEADS; head++) {
            const struct kvh_head *x = &h->head[layer][head];
            assert_int_equal(clb_kv_seq_positions(h->seq, layer, head, position, KVH_MOST), x->n);
            assert_memory_equal(position, x->position, x->n * sizeof position[0]);
        }
}

#define kvh_near(got, want, by)                                                                                        \
    do {                                                                                                               \
        const double kvh_a_ = (double)(got), kvh_b_ = (double)(want);                                                  \
        if (!(fabs(kvh_a_ - kvh_b_) <= (by)))                                                                          \
            fail_msg("%s is %.9g, should be %.9g", #got, kvh_a_, kvh_b_);                                              \
    } while (0)

#endif
