/* Exact definition of attention over kept positions.
 *
 * For a query (row r, head h), which sees n = n_kv + r kept positions in segments of 512 (G of them):
 *   s[i]   = dot16(q, k[i]) * scale             16 virtual lanes over k_dim, keys of all types widened exactly
 *   m_g    = max of s over the segment           starts at -inf, a NaN is passed over
 *   p[i]   = exp(s[i] - m_g)
 *   l_g    = sum of p, lane (i - 512 g) % 16, lanes by colibri_lanes_sum
 *   o_g[d] = fma(p[i], v[i][d], o_g[d]) for i in order, from 0
 *   M      = (max of m_g and of the sink) + 0    the addition makes -0 into +0, so that M has one bit pattern
 *   e_g    = exp(m_g - M)
 *   L      = fma(l_g, e_g, L) for g in order, from 0; then, with a sink, L = L + exp(sink - M)
 *   o[d]   = fma(o_g[d], e_g, o[d]) for g in order, from 0
 *   out[d] = o[d] / L
 *
 * With one segment and no sink this is plain softmax attention: e_0 = exp(0) = 1 exactly. A score of +inf or a NaN
 * makes its query's L NaN (or, for all scores -inf, -inf minus -inf does), and with it all of its output.
 *
 * Elements of Q8_0 and Q4_0 are scale * code, which needs no rounding. With recent pages, positions from recent_begin
 * on come from those, as F16; what the other pages hold of them does not matter.
 *
 * Segments do not depend on each other, so they may be computed in any order and by several threads; what is left of
 * one is m_g, l_g and o_g, not its scores. */
#include "ops/ops.h"

#include "colibri/numerics.h"

/* A kept position's key or value, and what it is made of. */
struct row {
    const void *p;
    uint32_t type;
};

static struct row row_of(const void *const *pages, uint32_t page_tokens, uint32_t i, uint32_t dim, uint32_t type)
{
    const size_t bytes = type == COLIBRI_TYPE_F32    ? dim * (size_t)4
                         : type == COLIBRI_TYPE_Q8_0 ? dim / 32 * sizeof(struct colibri_q8_0)
                         : type == COLIBRI_TYPE_Q4_0 ? dim / 32 * sizeof(struct colibri_q4_0)
                                                     : dim * (size_t)2;
    return (struct row){(const char *)pages[i / page_tokens] + i % page_tokens * bytes, type};
}

static struct row key_of(const struct colibri_attention_args *a, uint32_t i)
{
    return a->k_recent && i >= a->recent_begin
               ? row_of(a->k_recent, a->page_tokens, i - a->recent_first, a->k_dim, COLIBRI_TYPE_F16)
               : row_of(a->k_pages, a->page_tokens, i, a->k_dim, a->k_type);
}

static struct row value_of(const struct colibri_attention_args *a, uint32_t i)
{
    return a->v_recent && i >= a->recent_begin
               ? row_of(a->v_recent, a->page_tokens, i - a->recent_first, a->v_dim, COLIBRI_TYPE_F16)
               : row_of(a->v_pages, a->page_tokens, i, a->v_dim, a->v_type);
}

/* scale * code has at most 11 + 8 significant bits: no rounding. An infinite scale makes code 0 a NaN. */
static float element(struct row row, size_t d)
{
    switch (row.type) {
    case COLIBRI_TYPE_F32:
        return ((const float *)row.p)[d];
    case COLIBRI_TYPE_Q8_0: {
        const struct colibri_q8_0 *const b = (const struct colibri_q8_0 *)row.p + d / 32;
        return colibri_f16_f32(b->d) * (float)b->qs[d % 32];
    }
    case COLIBRI_TYPE_Q4_0: {
        const struct colibri_q4_0 *const b = (const struct colibri_q4_0 *)row.p + d / 32;
        const int code = d % 32 < 16 ? b->qs[d % 16] & 15 : b->qs[d % 16] >> 4;
        return colibri_f16_f32(b->d) * (float)(code - 8);
    }
    default:
        return colibri_f16_f32(((const colibri_f16 *)row.p)[d]);
    }
}

/* dot16: as colibri_dot_f32 of the row's elements. */
static float dot(struct row row, const float *q, uint32_t dim)
{
    if (row.type == COLIBRI_TYPE_F32)
        return colibri_dot_f32(row.p, q, dim);
    if (row.type == COLIBRI_TYPE_F16)
        return colibri_dot_f16(row.p, q, dim);
    float lane[COLIBRI_LANES] = {0}; /* whole blocks: no incomplete line */
    for (uint32_t d = 0; d < dim; d++)
        lane[d % COLIBRI_LANES] = fmaf(element(row, d), q[d], lane[d % COLIBRI_LANES]);
    return colibri_lanes_sum(lane);
}

static uint32_t segments_of(uint32_t n)
{
    return (n + COLIBRI_ATTN_SEGMENT - 1) / COLIBRI_ATTN_SEGMENT;
}

/* o_g[v_dim], m_g, l_g of one query and segment. */
static float *part_of(const struct colibri_attention_args *a, size_t query, uint32_t g)
{
    return a->parts + (query * segments_of(a->n_kv + a->n_rows - 1) + g) * colibri_attn_part_floats(a->v_dim);
}

static void score(const struct colibri_attention_args *a, const float *q, uint32_t begin, uint32_t n, float *s)
{
    for (uint32_t i = 0; i < n; i++)
        s[i] = dot(key_of(a, begin + i), q, a->k_dim) * a->scale;
}

static void segment(const struct colibri_attention_args *a, uint32_t row, uint32_t h, uint32_t g)
{
    const size_t query = (size_t)row * a->n_heads + h;
    const uint32_t begin = g * COLIBRI_ATTN_SEGMENT, left = a->n_kv + row - begin;
    const uint32_t n = left < COLIBRI_ATTN_SEGMENT ? left : COLIBRI_ATTN_SEGMENT;
    float *const p = a->weights + query * COLIBRI_ATTN_SEGMENT;
    float *const o = part_of(a, query, g);
    score(a, a->q + row * a->q_row_stride + h * a->q_stride, begin, n, p);
    if (a->scores)
        memcpy(a->scores + query * a->score_stride + begin, p, n * sizeof(float));

    float max = -INFINITY, lane[COLIBRI_LANES] = {0};
    for (uint32_t i = 0; i < n; i++)
        max = p[i] > max ? p[i] : max;
    for (uint32_t i = 0; i < n; i++) {
        p[i] = colibri_expf(p[i] - max);
        lane[i % COLIBRI_LANES] += p[i];
    }
    for (uint32_t d = 0; d < a->v_dim; d++)
        o[d] = 0.0f;
    o[a->v_dim] = max;
    o[a->v_dim + 1] = colibri_lanes_sum(lane);
    for (uint32_t i = 0; i < n; i++) {
        const struct row v = value_of(a, begin + i);
        for (uint32_t d = 0; d < a->v_dim; d++)
            o[d] = fmaf(p[i], element(v, d), o[d]);
    }
}

static void combine(const struct colibri_attention_args *a, uint32_t row, uint32_t h)
{
    const size_t query = (size_t)row * a->n_heads + h;
    const uint32_t n_segments = segments_of(a->n_kv + row), v_dim = a->v_dim;
    float *const out = a->out + row * a->out_row_stride + h * a->out_stride;
    float max = -INFINITY, sum = 0.0f;
    for (uint32_t g = 0; g < n_segments; g++) {
        const float m = part_of(a, query, g)[v_dim];
        max = m > max ? m : max;
    }
    if (a->sinks)
        max = a->sinks[h] > max ? a->sinks[h] : max;
    max = max + 0.0f;

    for (uint32_t d = 0; d < v_dim; d++)
        out[d] = 0.0f;
    for (uint32_t g = 0; g < n_segments; g++) {
        const float *const o = part_of(a, query, g);
        const float e = colibri_expf(o[v_dim] - max);
        sum = fmaf(o[v_dim + 1], e, sum);
        for (uint32_t d = 0; d < v_dim; d++)
            out[d] = fmaf(o[d], e, out[d]);
    }
    if (a->sinks)
        sum = sum + colibri_expf(a->sinks[h] - max);
    for (uint32_t d = 0; d < v_dim; d++)
        out[d] = out[d] / sum;
    if (a->max_sum) {
        a->max_sum[2 * query] = max;
        a->max_sum[2 * query + 1] = sum;
    }
}

void clb_ref_attention(const struct colibri_attention_args *a)
{
    for (uint32_t row = 0; row < a->n_rows; row++)
        for (uint32_t h = 0; h < a->n_heads; h++) {
            const uint32_t n_segments = segments_of(a->n_kv + row);
            const uint32_t end = a->segment_end < n_segments ? a->segment_end : n_segments;
            for (uint32_t g = a->segment_begin; (a->stages & COLIBRI_ATTN_SEGMENTS) && g < end; g++)
                segment(a, row, h, g);
            if (a->stages & COLIBRI_ATTN_COMBINE)
                combine(a, row, h);
        }
}
