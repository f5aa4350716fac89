/* Attention of the query heads of one KV head. Definition: core/ops/attention.c.
 *
 * Keys are float rows and queries activations, so scores are dot_tile products. Values: registers hold a stretch of
 * the head dimension of one or two heads, positions are added in order. Within a segment all heads take their turn
 * while its keys or values are in the L2 cache. */
#include "dot.h"
#include "vecops.h"

#define SEGMENT   COLIBRI_ATTN_SEGMENT
#define MAX_HEADS 64 /* per pass over the positions */

/* Addresses of positions [begin, begin + n). */
static void find_rows(const void *const *pages, uint32_t page_tokens, size_t row_bytes, uint32_t begin, uint32_t n,
                      const void **row)
{
    uint32_t page = begin / page_tokens, at = begin % page_tokens;
    for (uint32_t i = 0; i < n; i++) {
        row[i] = (const char *)pages[page] + at * row_bytes;
        if (++at == page_tokens) {
            at = 0;
            page++;
        }
    }
}

static size_t elem_bytes(uint32_t type)
{
    return type == COLIBRI_TYPE_F32 ? 4 : 2;
}

/* ---- scores ---------------------------------------------------------------------------------------------- */

/* Scores of heads h.. (one or two) with the positions of rows k[0 .. 4), `valid` of which exist, from i on. */
INLINE void score_tile(const struct colibri_attention_args *a, uint32_t i, const void *const *k, uint32_t valid,
                       uint32_t h, const int heads, const uint32_t type)
{
    const void *w[4];
    for (uint32_t r = 0; r < 4; r++)
        w[r] = k[r < valid ? r : valid - 1];
    const __m128 scale = _mm_set1_ps(a->scale);
    const float *const q[2] = {a->q + h * a->q_stride, a->q + (h + (uint32_t)heads - 1) * a->q_stride};
    float *const s = a->scores + h * a->score_stride + i;
    if (heads == 1) {
        struct lanes acc[4];
        dot_tile(w, q, a->k_dim, 4, 1, type, acc);
        store_upto4(s, valid, _mm_mul_ps(lanes_sum4(acc[0], acc[1], acc[2], acc[3]), scale));
    } else {
        struct lanes p[4], o[4];
        dot_tile(w, q, a->k_dim, 2, 2, type, p);
        dot_tile(w + 2, q, a->k_dim, 2, 2, type, o);
        store_upto4(s, valid, _mm_mul_ps(lanes_sum4(p[0], p[2], o[0], o[2]), scale));
        store_upto4(s + a->score_stride, valid, _mm_mul_ps(lanes_sum4(p[1], p[3], o[1], o[3]), scale));
    }
}

INLINE void score_positions(const struct colibri_attention_args *a, uint32_t begin, uint32_t n, const void *const *k,
                            uint32_t h0, uint32_t h1, const uint32_t type)
{
    for (uint32_t i = 0; i < n; i += 4) {
        uint32_t h = h0;
        for (; h1 - h >= 2; h += 2)
            score_tile(a, begin + i, k + i, n - i, h, 2, type);
        if (h < h1)
            score_tile(a, begin + i, k + i, n - i, h, 1, type);
    }
}

/* ---- values ---------------------------------------------------------------------------------------------- */

/* out[h] += e[h] * sum of p[h][i] * v[i], for dimensions d .. d + 8 * vecs of `heads` heads; all exist. */
INLINE void value_tile(const struct colibri_attention_args *a, const void *const *v, uint32_t n, float (*p)[SEGMENT],
                       const float *e, uint32_t h, uint32_t d, const int heads, const int vecs, const uint32_t type)
{
    __m256 acc[8];
    UNROLL
    for (int k = 0; k < heads * vecs; k++)
        acc[k] = _mm256_setzero_ps();
    for (uint32_t i = 0; i < n; i++) {
        UNROLL
        for (int k = 0; k < vecs; k++) {
            const __m256 x = load_row8(v[i], d + 8 * (uint32_t)k, type);
            UNROLL
            for (int t = 0; t < heads; t++)
                acc[t * vecs + k] = _mm256_fmadd_ps(_mm256_set1_ps(p[t][i]), x, acc[t * vecs + k]);
        }
    }
    UNROLL
    for (int t = 0; t < heads; t++) {
        const __m256 ev = _mm256_set1_ps(e[t]);
        float *const out = a->out + (h + (uint32_t)t) * a->out_stride + d;
        UNROLL
        for (int k = 0; k < vecs; k++)
            _mm256_storeu_ps(out + 8 * k, _mm256_fmadd_ps(acc[t * vecs + k], ev, _mm256_loadu_ps(out + 8 * k)));
    }
}

/* The dimensions behind the last whole line of 8, one head. */
INLINE void value_tail(const struct colibri_attention_args *a, const void *const *v, uint32_t n, const float *p,
                       float e, uint32_t h, uint32_t d, const uint32_t type)
{
    const __m256i mask = first8(a->v_dim - d);
    __m256 acc = _mm256_setzero_ps();
    for (uint32_t i = 0; i < n; i++)
        acc = _mm256_fmadd_ps(_mm256_set1_ps(p[i]), load_row_part(v[i], d, a->v_dim - d, type), acc);
    float *const out = a->out + h * a->out_stride + d;
    _mm256_maskstore_ps(out, mask, _mm256_fmadd_ps(acc, _mm256_set1_ps(e), _mm256_maskload_ps(out, mask)));
}

INLINE void add_values(const struct colibri_attention_args *a, const void *const *v, uint32_t n, float (*p)[SEGMENT],
                       const float *e, uint32_t h, uint32_t count, const uint32_t type)
{
    uint32_t d = 0;
    if (count == 2) {
        for (; a->v_dim - d >= 32; d += 32)
            value_tile(a, v, n, p, e, h, d, 2, 4, type);
        for (; a->v_dim - d >= 8; d += 8)
            value_tile(a, v, n, p, e, h, d, 2, 1, type);
    } else {
        for (; a->v_dim - d >= 64; d += 64)
            value_tile(a, v, n, p, e, h, d, 1, 8, type);
        for (; a->v_dim - d >= 8; d += 8)
            value_tile(a, v, n, p, e, h, d, 1, 1, type);
    }
    if (d < a->v_dim)
        for (uint32_t t = 0; t < count; t++)
            value_tail(a, v, n, p[t], e[t], h + t, d, type);
}

/* ---- the whole ------------------------------------------------------------------------------------------- */

static void attend(const struct colibri_attention_args *a, uint32_t h0, uint32_t h1)
{
    const void *row[SEGMENT];
    float max[MAX_HEADS], sum[MAX_HEADS];
    for (uint32_t begin = 0; begin < a->n_kv; begin += SEGMENT) {
        const uint32_t n = a->n_kv - begin < SEGMENT ? a->n_kv - begin : SEGMENT;
        find_rows(a->k_pages, a->page_tokens, a->k_dim * elem_bytes(a->k_type), begin, n, row);
        if (a->k_type == COLIBRI_TYPE_F32)
            score_positions(a, begin, n, row, h0, h1, COLIBRI_TYPE_F32);
        else
            score_positions(a, begin, n, row, h0, h1, COLIBRI_TYPE_F16);
    }
    for (uint32_t h = h0; h < h1; h++) {
        float m = max_of(a->scores + h * a->score_stride, a->n_kv);
        if (a->sinks)
            m = a->sinks[h] > m ? a->sinks[h] : m;
        max[h - h0] = m + 0.0f;
        sum[h - h0] = 0.0f;
        memset(a->out + h * a->out_stride, 0, a->v_dim * sizeof(float));
    }
    for (uint32_t begin = 0; begin < a->n_kv; begin += SEGMENT) {
        const uint32_t n = a->n_kv - begin < SEGMENT ? a->n_kv - begin : SEGMENT;
        find_rows(a->v_pages, a->page_tokens, a->v_dim * elem_bytes(a->v_type), begin, n, row);
        for (uint32_t h = h0; h < h1; h += 2) {
            const uint32_t count = h1 - h < 2 ? h1 - h : 2;
            float p[2][SEGMENT], e[2];
            for (uint32_t t = 0; t < count; t++) {
                const float *const s = a->scores + (h + t) * a->score_stride + begin;
                const float m = max_of(s, n);
                const float l = exp_sum(s, n, m, p[t]);
                e[t] = exp1(m - max[h - h0 + t]);
                sum[h - h0 + t] = fmaf(l, e[t], sum[h - h0 + t]);
            }
            if (a->v_type == COLIBRI_TYPE_F32)
                add_values(a, row, n, p, e, h, count, COLIBRI_TYPE_F32);
            else
                add_values(a, row, n, p, e, h, count, COLIBRI_TYPE_F16);
        }
    }
    for (uint32_t h = h0; h < h1; h++) {
        float *const out = a->out + h * a->out_stride;
        if (a->sinks)
            sum[h - h0] = sum[h - h0] + exp1(a->sinks[h] - max[h - h0]);
        for (uint32_t d = 0; d < a->v_dim; d++)
            out[d] = out[d] / sum[h - h0];
        if (a->max_sum) {
            a->max_sum[2 * h] = max[h - h0];
            a->max_sum[2 * h + 1] = sum[h - h0];
        }
    }
}

void clb_avx2_attention(const struct colibri_attention_args *a)
{
    for (uint32_t h = 0; h < a->n_heads; h += MAX_HEADS)
        attend(a, h, a->n_heads - h < MAX_HEADS ? a->n_heads : h + MAX_HEADS);
}
