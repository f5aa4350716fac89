/* Exact definition of attention over kept positions.
 *
 * For head h and kept position i (segment g = i / 512, G = number of segments):
 *   s[i]   = dot16(q, k[i]) * scale             16 virtual lanes over k_dim, F16 keys widened exactly
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
 * With one segment and no sink this is plain softmax attention: e_0 = exp(0) = 1 exactly. Scores beyond n_kv, up to
 * the next multiple of 16, have no defined value on return. A score of +inf or a NaN makes its head's L NaN (or, for
 * all scores -inf, -inf minus -inf does), and with it all of its output. */
#include "ops/ops.h"

#include "colibri/numerics.h"

static const void *position(const void *const *pages, uint32_t page_tokens, uint32_t i, uint32_t dim, uint32_t type)
{
    const size_t elem = type == COLIBRI_TYPE_F32 ? 4 : 2;
    return (const char *)pages[i / page_tokens] + (size_t)(i % page_tokens) * dim * elem;
}

static void score_head(const struct colibri_attention_args *a, uint32_t h)
{
    const float *const q = a->q + h * a->q_stride;
    float *const s = a->scores + h * a->score_stride;
    for (uint32_t i = 0; i < a->n_kv; i++) {
        const void *const k = position(a->k_pages, a->page_tokens, i, a->k_dim, a->k_type);
        const float dot =
            a->k_type == COLIBRI_TYPE_F32 ? colibri_dot_f32(k, q, a->k_dim) : colibri_dot_f16(k, q, a->k_dim);
        s[i] = dot * a->scale;
    }
}

static float segment_max(const float *s, uint32_t n)
{
    float max = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        max = s[i] > max ? s[i] : max;
    return max;
}

static uint32_t segment_size(uint32_t n_kv, uint32_t begin)
{
    return n_kv - begin < COLIBRI_ATTN_SEGMENT ? n_kv - begin : COLIBRI_ATTN_SEGMENT;
}

/* out += e * (values of one segment weighted by p) */
static void add_values(const struct colibri_attention_args *a, uint32_t begin, uint32_t n, const float *p, float e,
                       float *out)
{
    for (uint32_t d = 0; d < a->v_dim; d++) {
        float o = 0.0f;
        for (uint32_t i = 0; i < n; i++) {
            const void *const v = position(a->v_pages, a->page_tokens, begin + i, a->v_dim, a->v_type);
            const float x =
                a->v_type == COLIBRI_TYPE_F32 ? ((const float *)v)[d] : colibri_f16_f32(((const colibri_f16 *)v)[d]);
            o = fmaf(p[i], x, o);
        }
        out[d] = fmaf(o, e, out[d]);
    }
}

static void attend_head(const struct colibri_attention_args *a, uint32_t h)
{
    const float *const s = a->scores + h * a->score_stride;
    float *const out = a->out + h * a->out_stride;

    float max = -INFINITY;
    for (uint32_t begin = 0; begin < a->n_kv; begin += COLIBRI_ATTN_SEGMENT) {
        const float m = segment_max(s + begin, segment_size(a->n_kv, begin));
        max = m > max ? m : max;
    }
    if (a->sinks)
        max = a->sinks[h] > max ? a->sinks[h] : max;
    max = max + 0.0f;

    float sum = 0.0f;
    for (uint32_t d = 0; d < a->v_dim; d++)
        out[d] = 0.0f;
    for (uint32_t begin = 0; begin < a->n_kv; begin += COLIBRI_ATTN_SEGMENT) {
        const uint32_t n = segment_size(a->n_kv, begin);
        const float m = segment_max(s + begin, n);
        float p[COLIBRI_ATTN_SEGMENT];
        float lane[COLIBRI_LANES] = {0};
        for (uint32_t i = 0; i < n; i++) {
            p[i] = colibri_expf(s[begin + i] - m);
            lane[i % COLIBRI_LANES] += p[i];
        }
        const float e = colibri_expf(m - max);
        sum = fmaf(colibri_lanes_sum(lane), e, sum);
        add_values(a, begin, n, p, e, out);
    }
    if (a->sinks)
        sum = sum + colibri_expf(a->sinks[h] - max);
    for (uint32_t d = 0; d < a->v_dim; d++)
        out[d] = out[d] / sum;
    if (a->max_sum) {
        a->max_sum[2 * h] = max;
        a->max_sum[2 * h + 1] = sum;
    }
}

void clb_ref_attention(const struct colibri_attention_args *args)
{
    for (uint32_t h = 0; h < args->n_heads; h++) {
        score_head(args, h);
        attend_head(args, h);
    }
}
