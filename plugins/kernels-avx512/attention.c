/* Attention of the query heads of one KV head. Definition: core/ops/attention.c.
 *
 * Keys are float rows and queries activations, so scores are dot_tile products. Values: registers hold a stretch of
 * the head dimension of up to four heads, positions are added in order. Within a segment all heads take their turn
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

/* Scores of heads h.. (count of them) with the positions of rows k[0 .. valid) from i on. */
INLINE void score_tile(const struct colibri_attention_args *a, uint32_t i, const void *const *k, uint32_t valid,
                       uint32_t h, uint32_t count, const int rows, const int tile, const uint32_t type)
{
    const void *w[8];
    const float *q[4];
    __m512 acc[16];
    for (uint32_t r = 0; r < (uint32_t)rows; r++)
        w[r] = k[r < valid ? r : valid - 1];
    for (uint32_t t = 0; t < (uint32_t)tile; t++)
        q[t] = a->q + (h + (t < count ? t : count - 1)) * a->q_stride;
    dot_tile(w, q, a->k_dim, rows, tile, type, acc);
    const __m128 scale = _mm_set1_ps(a->scale);
    UNROLL
    for (int t = 0; t < tile; t++) {
        if ((uint32_t)t >= count)
            continue;
        float *const s = a->scores + (h + (uint32_t)t) * a->score_stride + i;
        UNROLL
        for (int r = 0; r < rows; r += 4)
            if ((uint32_t)r < valid)
                _mm_mask_storeu_ps(s + r, (__mmask8)(first16(valid - (uint32_t)r) & 15u),
                                   _mm_mul_ps(dot_sum4(acc, r, tile, t), scale));
    }
}

INLINE void score_positions(const struct colibri_attention_args *a, uint32_t begin, uint32_t n, const void *const *k,
                            uint32_t h0, uint32_t h1, const uint32_t type)
{
    for (uint32_t i = 0; i < n; i += 8)
        for (uint32_t h = h0; h < h1;) {
            const uint32_t left = h1 - h, valid = n - i;
            const uint32_t count = left < 4 ? left : 4;
            if (left == 1) {
                score_tile(a, begin + i, k + i, valid, h, 1, 8, 1, type);
            } else if (left == 2) {
                score_tile(a, begin + i, k + i, valid, h, 2, 4, 2, type);
                if (valid > 4)
                    score_tile(a, begin + i + 4, k + i + 4, valid - 4, h, 2, 4, 2, type);
            } else {
                score_tile(a, begin + i, k + i, valid, h, count, 4, 4, type);
                if (valid > 4)
                    score_tile(a, begin + i + 4, k + i + 4, valid - 4, h, count, 4, 4, type);
            }
            h += count;
        }
}

/* ---- weights --------------------------------------------------------------------------------------------- */

/* p[i] = exp(s[i] - max); returns their sum. */
static float exp_segment(const float *s, uint32_t n, float max, float *p)
{
    const __m512 m = _mm512_set1_ps(max);
    __m512 lane = _mm512_setzero_ps();
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m512 e = exp512(_mm512_sub_ps(_mm512_loadu_ps(s + i), m));
        _mm512_storeu_ps(p + i, e);
        lane = _mm512_add_ps(lane, e);
    }
    if (i < n) {
        const __mmask16 mask = first16(n - i);
        const __m512 e = exp512(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, s + i), m));
        _mm512_mask_storeu_ps(p + i, mask, e);
        lane = _mm512_mask_add_ps(lane, mask, lane, e);
    }
    return lanes_sum(lane);
}

static float exp1(float x)
{
    return _mm512_cvtss_f32(exp512(_mm512_set1_ps(x)));
}

/* ---- values ---------------------------------------------------------------------------------------------- */

/* out[h] += e[h] * sum of p[h][i] * v[i], for dimensions d .. d + 16 * vecs (those that exist) of `heads` heads. */
INLINE void value_tile(const struct colibri_attention_args *a, const void *const *v, uint32_t n, float (*p)[SEGMENT],
                       const float *e, uint32_t h, uint32_t count, uint32_t d, const int heads, const int vecs,
                       const uint32_t type)
{
    __m512 acc[16];
    __mmask16 mask[8];
    UNROLL
    for (int k = 0; k < vecs; k++) {
        const uint32_t at = d + 16 * (uint32_t)k;
        mask[k] = at < a->v_dim ? first16(a->v_dim - at) : 0;
    }
    UNROLL
    for (int k = 0; k < heads * vecs; k++)
        acc[k] = _mm512_setzero_ps();
    const int whole = a->v_dim - d >= 16 * (uint32_t)vecs;
    for (uint32_t i = 0; i < n; i++) {
        __m512 x[8];
        UNROLL
        for (int k = 0; k < vecs; k++) {
            const uint32_t at = d + 16 * (uint32_t)k;
            x[k] = whole ? load_row(v[i], at, type) : load_row_tail(v[i], at, type, mask[k]);
        }
        UNROLL
        for (int t = 0; t < heads; t++) {
            const __m512 w = _mm512_set1_ps(p[t][i]);
            UNROLL
            for (int k = 0; k < vecs; k++)
                acc[t * vecs + k] = _mm512_fmadd_ps(w, x[k], acc[t * vecs + k]);
        }
    }
    UNROLL
    for (int t = 0; t < heads; t++) {
        if ((uint32_t)t >= count)
            continue;
        const __m512 ev = _mm512_set1_ps(e[t]);
        float *const out = a->out + (h + (uint32_t)t) * a->out_stride + d;
        UNROLL
        for (int k = 0; k < vecs; k++) {
            const __m512 o = _mm512_maskz_loadu_ps(mask[k], out + 16 * k);
            _mm512_mask_storeu_ps(out + 16 * k, mask[k], _mm512_fmadd_ps(acc[t * vecs + k], ev, o));
        }
    }
}

INLINE void add_values(const struct colibri_attention_args *a, const void *const *v, uint32_t n, float (*p)[SEGMENT],
                       const float *e, uint32_t h, uint32_t count, const uint32_t type)
{
    if (count == 1)
        for (uint32_t d = 0; d < a->v_dim; d += 128)
            value_tile(a, v, n, p, e, h, 1, d, 1, 8, type);
    else if (count == 2)
        for (uint32_t d = 0; d < a->v_dim; d += 64)
            value_tile(a, v, n, p, e, h, 2, d, 2, 4, type);
    else
        for (uint32_t d = 0; d < a->v_dim; d += 64)
            value_tile(a, v, n, p, e, h, count, d, 4, 4, type);
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
        for (uint32_t h = h0; h < h1; h += 4) {
            const uint32_t count = h1 - h < 4 ? h1 - h : 4;
            float p[4][SEGMENT], e[4];
            for (uint32_t t = 0; t < count; t++) {
                const float *const s = a->scores + (h + t) * a->score_stride + begin;
                const float m = max_of(s, n);
                const float l = exp_segment(s, n, m, p[t]);
                e[t] = exp1(m - max[h - h0 + t]);
                sum[h - h0 + t] = fmaf(l, e[t], sum[h - h0 + t]);
            }
            if (count == 3) /* the fourth head of the tile is not stored */
                memset(p[3], 0, n * sizeof(float));
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
        const __m512 l = _mm512_set1_ps(sum[h - h0]);
        for (uint32_t d = 0; d < a->v_dim; d += 16) {
            const __mmask16 m = first16(a->v_dim - d);
            _mm512_mask_storeu_ps(out + d, m, _mm512_div_ps(_mm512_maskz_loadu_ps(m, out + d), l));
        }
        if (a->max_sum) {
            a->max_sum[2 * h] = max[h - h0];
            a->max_sum[2 * h + 1] = sum[h - h0];
        }
    }
}

void clb_avx512_attention(const struct colibri_attention_args *a)
{
    for (uint32_t h = 0; h < a->n_heads; h += MAX_HEADS)
        attend(a, h, a->n_heads - h < MAX_HEADS ? a->n_heads : h + MAX_HEADS);
}
