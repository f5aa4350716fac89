/* What strategies learn from queries: the last ones before rotation, their mean and covariance, and the attention that they
 * give to what is kept now.
 *
 * Each (layer, KV head) has a ring of window_w queries, one per position. Everything else is computed when a strategy is
 * asked: the rest of the time a query costs one copy. A pass that is aborted may have overwritten older entries; they
 * then count as unknown until as many queries have come again. */
#include <stdlib.h>
#include <string.h>

#include "colibri/numerics.h"
#include "kv/internal.h"
#include "ops/ops.h"
#include "ops/sincos.h"

static uint32_t group_of(const clb_kv_seq *seq)
{
    return seq->cache->layout.n_heads / seq->cache->layout.n_kv_heads;
}

size_t clb_kv_query_floats(const clb_kv_seq *seq)
{
    return (size_t)group_of(seq) * seq->cache->layout.k_dim;
}

void clb_kv_observe_q(clb_kv_seq *seq, uint32_t layer, uint32_t i, const float *q)
{
    const uint32_t w = seq->traits.window_w;
    if (!(clb_kv_seq_needs(seq) & CLB_KV_NEEDS_QUERIES) || !clb_kv_layer_evicts(seq, layer) || seq->pass_rows - i > w)
        return;
    const size_t floats = clb_kv_query_floats(seq);
    for (uint32_t head = 0; head < seq->cache->layout.n_kv_heads; head++) {
        float *ring = seq->heads[(size_t)layer * seq->cache->layout.n_kv_heads + head].q_ring;
        memcpy(ring + (seq->position + i) % w * floats, q + head * floats, floats * sizeof q[0]);
    }
}

uint32_t clb_kv_queries_known(const clb_kv_seq *seq)
{
    const uint32_t w = seq->traits.window_w;
    uint32_t first = seq->q_top > w ? seq->q_top - w : 0;
    first = first < seq->q_first ? seq->q_first : first;
    return seq->position > first ? seq->position - first : 0;
}

/* The query of `position` in a head's ring: [group][k_dim]. */
static const float *query_at(const clb_kv_seq *seq, const clb_kv_head *h, uint32_t position)
{
    return h->q_ring + position % seq->traits.window_w * clb_kv_query_floats(seq);
}

void clb_kv_last_queries(const clb_kv_seq *seq, uint32_t layer, uint32_t head, uint32_t n_heads, uint32_t n_last,
                         float *out)
{
    const clb_kv_head *h = &seq->heads[(size_t)layer * seq->cache->layout.n_kv_heads + head];
    const size_t floats = clb_kv_query_floats(seq);
    const uint32_t n = n_heads / group_of(seq);
    for (uint32_t r = 0; r < n_last; r++)
        for (uint32_t i = 0; i < n; i++, out += floats)
            memcpy(out, query_at(seq, &h[i], seq->position - n_last + r), floats * sizeof out[0]);
}

void clb_kv_query_stats(const float *q, uint32_t n_last, uint32_t n_heads, uint32_t dim, float *mean, float *cov)
{
    const size_t row = (size_t)n_heads * dim;
    memset(mean, 0, row * sizeof mean[0]);
    memset(cov, 0, row * dim * sizeof cov[0]);
    if (n_last == 0)
        return;
    for (uint32_t r = 0; r < n_last; r++)
        for (size_t d = 0; d < row; d++)
            mean[d] += q[r * row + d];
    for (size_t d = 0; d < row; d++)
        mean[d] /= (float)n_last;
    for (uint32_t r = 0; r < n_last; r++)
        for (uint32_t h = 0; h < n_heads; h++) {
            const float *const x = q + r * row + (size_t)h * dim, *const m = mean + (size_t)h * dim;
            for (uint32_t a = 0; a < dim; a++) {
                float *const c = cov + ((size_t)h * dim + a) * dim;
                const float xa = x[a] - m[a];
                for (uint32_t b = 0; b < dim; b++)
                    c[b] += xa * (x[b] - m[b]);
            }
        }
    for (size_t d = 0; d < row * dim; d++)
        cov[d] /= (float)n_last;
}

/* ---- rotation ---------------------------------------------------------------------------------------------- */

void clb_kv_angles(const clb_kv_layout *l, uint32_t position, float *cs)
{
    for (uint32_t i = 0; i < l->n_rot / 2; i++)
        clb_sincos((double)position * (double)l->inv_freq[i], &cs[2 * i], &cs[2 * i + 1]);
}

void clb_kv_rotate(const clb_kv_layout *l, float *x, const float *cs)
{
    if (!l->n_rot)
        return;
    if (l->ops && l->ops->rope)
        l->ops->rope(x, cs, l->n_rot, l->rope_neox);
    else
        clb_ref_rope(x, cs, l->n_rot, l->rope_neox);
}

int clb_kv_ranks_reserve(clb_kv_cache *cache, uint32_t n, uint32_t most, clb_error *err)
{
    const clb_kv_layout *l = &cache->layout;
    if (n <= cache->n_ranks || !l->n_rot)
        return COLIBRI_OK;
    if (!l->inv_freq)
        return clb_fail(err, COLIBRI_E_INTERNAL, "KV cache: compacted positions without the model's rotation");
    uint32_t cap = n + n / 2;
    if (n <= most && most < cap)
        cap = most;
    float *more = realloc(cache->rank_cs, (size_t)cap * l->n_rot * sizeof *more);
    if (!more)
        return CLB_NOMEM(err, "rotations of the KV cache");
    cache->rank_cs = more;
    for (; cache->n_ranks < cap; cache->n_ranks++)
        clb_kv_angles(l, cache->n_ranks, more + (size_t)cache->n_ranks * l->n_rot);
    return COLIBRI_OK;
}

const float *clb_kv_row_cs(const clb_kv_seq *seq, uint32_t layer, uint32_t kv_head, uint32_t i)
{
    return clb_kv_rank_cs(seq->cache, seq->heads[(size_t)layer * seq->cache->layout.n_kv_heads + kv_head].n + i);
}

const float *clb_kv_rank_cs(const clb_kv_cache *cache, uint32_t rank)
{
    return cache->rank_cs + (size_t)rank * cache->layout.n_rot;
}

void clb_kv_read_rotated(const clb_kv_seq *seq, const clb_kv_head *h, uint32_t i, float *out)
{
    clb_kv_read_k(seq->cache, h, i, out);
    if (seq->traits.positions == COLIBRI_KV_POS_COMPACT && seq->cache->layout.n_rot)
        clb_kv_rotate(&seq->cache->layout, out, clb_kv_rank_cs(seq->cache, i));
}

void clb_kv_keys(const clb_kv_seq *seq, uint32_t layer, uint32_t kv_head, uint32_t begin, uint32_t end, float *out)
{
    const clb_kv_head *h = &seq->heads[(size_t)layer * seq->cache->layout.n_kv_heads + kv_head];
    for (uint32_t i = begin; i < end; i++, out += seq->cache->layout.k_dim)
        clb_kv_read_rotated(seq, h, i, out);
}

void clb_kv_read_unrotated(const clb_kv_seq *seq, const clb_kv_head *h, uint32_t i, float *out)
{
    const clb_kv_layout *l = &seq->cache->layout;
    float *const cs = seq->cs;
    clb_kv_read_k(seq->cache, h, i, out);
    if (seq->traits.positions == COLIBRI_KV_POS_COMPACT || !l->n_rot)
        return;
    clb_kv_angles(l, h->positions[i], cs);
    for (uint32_t d = 1; d < l->n_rot; d += 2)
        cs[d] = -cs[d];
    clb_kv_rotate(l, out, cs);
}

/* ---- attention of the last queries -------------------------------------------------------------------------- */

/* One query position over the first n of the keys in seq->last.keys: adds its probabilities to out[0..n). */
static void add_query(clb_kv_seq *seq, const float *q, uint32_t n, float *out)
{
    const clb_kv_layout *l = &seq->cache->layout;
    const uint32_t group = group_of(seq);
    const void *page = seq->last.keys;
    struct colibri_attention_args a = {
        .struct_size = sizeof a,
        .n_heads = group,
        .k_dim = l->k_dim,
        .v_dim = 1, /* the values do not matter */
        .n_kv = n,
        .page_tokens = seq->scratch_cap,
        .k_type = COLIBRI_TYPE_F32,
        .v_type = COLIBRI_TYPE_F32,
        .k_pages = &page,
        .v_pages = &page,
        .q = q,
        .q_stride = l->k_dim,
        .scale = l->attention_scale,
        .scores = seq->last.scores,
        .score_stride = seq->last.stride,
        .out = seq->last.out,
        .out_stride = 1,
        .max_sum = seq->last.max_sum,
        .n_rows = 1,
        .stages = COLIBRI_ATTN_SEGMENTS | COLIBRI_ATTN_COMBINE,
        .segment_end = (n + COLIBRI_ATTN_SEGMENT - 1) / COLIBRI_ATTN_SEGMENT,
        .weights = seq->last.weights,
        .parts = seq->last.parts,
    };
    (l->ops && l->ops->attention ? l->ops->attention : clb_ref_attention)(&a);
    for (uint32_t h = 0; h < group; h++)
        clb_kv_add_probs(out, a.scores + h * a.score_stride, a.max_sum[2 * h], a.max_sum[2 * h + 1], n);
}

void clb_kv_last_probs(clb_kv_seq *seq, uint32_t layer, uint32_t head, uint32_t n_last, float *out)
{
    const clb_kv_layout *l = &seq->cache->layout;
    const clb_kv_head *h = &seq->heads[(size_t)layer * l->n_kv_heads + head];
    const bool compact = seq->traits.positions == COLIBRI_KV_POS_COMPACT;
    const uint32_t group = group_of(seq);
    for (uint32_t i = 0; i < h->n; i++)
        clb_kv_read_rotated(seq, h, i, seq->last.keys + (size_t)i * l->k_dim);
    for (uint32_t r = 0, n = 0; r < n_last; r++) {
        const uint32_t position = seq->position - n_last + r;
        while (n < h->n && h->positions[n] <= position) /* what is kept of what it saw */
            n++;
        if (n == 0)
            continue;
        memcpy(seq->last.query, query_at(seq, h, position), clb_kv_query_floats(seq) * sizeof(float));
        if (l->n_rot) {
            clb_kv_angles(l, compact ? n - 1 : position, seq->cs);
            for (uint32_t g = 0; g < group; g++)
                clb_kv_rotate(l, seq->last.query + (size_t)g * l->k_dim, seq->cs);
        }
        add_query(seq, seq->last.query, n, out);
    }
}

/* ---- memory ------------------------------------------------------------------------------------------------- */

static bool floats(float **p, size_t n)
{
    float *more = aligned_alloc(64, (n * sizeof **p + 127) & ~(size_t)63);
    free(*p);
    *p = more;
    return more != NULL;
}

bool clb_kv_queries_reserve(clb_kv_seq *seq, uint32_t n)
{
    const clb_kv_layout *l = &seq->cache->layout;
    const uint32_t needs = clb_kv_seq_needs(seq), group = group_of(seq);
    const size_t heads = seq->traits.per_head ? group : l->n_heads, row = heads * l->k_dim, w = seq->traits.window_w;
    const size_t segments = (n + COLIBRI_ATTN_SEGMENT - 1) / COLIBRI_ATTN_SEGMENT;
    seq->last.stride = segments * COLIBRI_ATTN_SEGMENT;
    if (l->n_rot && !seq->cs && !floats(&seq->cs, l->n_rot))
        return false;
    if ((needs & (COLIBRI_KV_NEED_Q_LAST_W | COLIBRI_KV_NEED_Q_STATS)) && !seq->last.q && !floats(&seq->last.q, w * row))
        return false;
    if ((needs & COLIBRI_KV_NEED_Q_STATS) && !seq->last.mean &&
        (!floats(&seq->last.mean, row) || !floats(&seq->last.cov, row * l->k_dim)))
        return false;
    if (needs & COLIBRI_KV_NEED_FUTURE && !floats(&seq->last.future, n))
        return false;
    if (!(needs & COLIBRI_KV_NEED_PROB_LAST_W))
        return true;
    return floats(&seq->last.prob, n) && floats(&seq->last.keys, (size_t)n * l->k_dim) &&
           floats(&seq->last.scores, group * seq->last.stride) && floats(&seq->last.max_sum, (size_t)2 * group) &&
           floats(&seq->last.out, group) && floats(&seq->last.weights, (size_t)group * COLIBRI_ATTN_SEGMENT) &&
           floats(&seq->last.parts, segments * group * colibri_attn_part_floats(1)) &&
           floats(&seq->last.query, (size_t)group * l->k_dim);
}

void clb_kv_queries_free(clb_kv_seq *seq)
{
    float *const all[] = {seq->cs,        seq->last.q,      seq->last.mean,    seq->last.cov,
                          seq->last.prob, seq->last.future, seq->last.keys,    seq->last.scores,
                          seq->last.out,  seq->last.max_sum, seq->last.weights, seq->last.parts,
                          seq->last.query};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}
