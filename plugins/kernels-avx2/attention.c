/* Attention of the queries that share one KV head. Definition: core/ops/attention.c.
 *
 * Up to BLOCK queries go through a segment together. Keys and values are widened to F32 in steps of 16 to 64 positions,
 * which stay in the L1 cache while the queries pass by in threes. A score tile is 4 keys x 3 queries: twelve sums of
 * lanes 0..7 in registers, put aside while those of lanes 8..15 are made, because all 24 would not fit. A value tile is
 * up to 4 registers of the head dimension x 3 queries; its sums rest in `parts` between steps. Few queries
 * (decode) read keys and values as they are: widening them first would not pay. Quantized ones cost more to convert, so
 * that they are widened from three queries on.
 *
 * The queries of a three may see different numbers of positions. Scores beyond a query's last are computed and not
 * used; values are added to all of them as far as all see, and to each alone from there. */
#include "rows.h"
#include "vecops.h"

#define SEGMENT COLIBRI_ATTN_SEGMENT
#define BLOCK   66u   /* queries at a time */
#define WIDE    4096u /* floats of widened keys or values */
#define STEP    64u   /* positions of a step at most, */
#define KEYS    16u   /* and what they are a multiple of */
#define PANEL   128u  /* dimensions of a step through the values */

/* Queries for which widening pays; fewer read keys and values as they are. */
#define WIDE_FROM       25u
#define WIDE_FROM_QUANT 3u

/* Of a loop that is known or not: Clang warns of what it cannot unroll, and decides well by itself. */
#ifdef __clang__
#define UNROLL_LINES
#else
#define UNROLL_LINES UNROLL
#endif

/* Some queries of a call. */
struct queries {
    const struct colibri_attention_args *a;
    uint32_t first, n;
    const float *q[BLOCK];
    uint32_t seen[BLOCK]; /* positions */
    float *part[BLOCK];   /* of the segment at hand */
    float *score[BLOCK];
    float *weight[BLOCK];
};

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Positions whose `dims` floats fit into WIDE; 0 if that is no whole KEYS. */
static uint32_t step_of(size_t dims)
{
    return least((uint32_t)(WIDE / dims) & ~(KEYS - 1), STEP);
}

static int widens(const struct queries *b, uint32_t type)
{
    return b->n >= (is_quant(type) ? WIDE_FROM_QUANT : WIDE_FROM);
}

static uint32_t segments_of(uint32_t n)
{
    return (n + SEGMENT - 1) / SEGMENT;
}

/* Positions of the segment from `begin` on that query t sees, `most` at most. */
static uint32_t visible(const struct queries *b, uint32_t t, uint32_t begin, uint32_t most)
{
    return b->seen[t] <= begin ? 0 : least(b->seen[t] - begin, most);
}

/* ---- scores ---------------------------------------------------------------------------------------------- */

/* colibri_lanes_sum of four dot products, of which the lanes i and i + 8 are added already. */
INLINE __m128 fold4(__m256 a, __m256 b, __m256 c, __m256 d)
{
    const __m256 ac = _mm256_add_ps(_mm256_permute2f128_ps(a, c, 0x20), _mm256_permute2f128_ps(a, c, 0x31));
    const __m256 bd = _mm256_add_ps(_mm256_permute2f128_ps(b, d, 0x20), _mm256_permute2f128_ps(b, d, 0x31));
    const __m256d x = _mm256_castps_pd(ac), y = _mm256_castps_pd(bd);
    const __m256 pairs = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)),
                                       _mm256_castpd_ps(_mm256_unpackhi_pd(x, y))); /* a a b b, c c d d */
    const __m128 lo = _mm256_castps256_ps128(pairs), hi = _mm256_extractf128_ps(pairs, 1);
    return _mm_add_ps(_mm_shuffle_ps(lo, hi, 0x88), _mm_shuffle_ps(lo, hi, 0xdd));
}

/* Scores of n widened keys, rounded up to whole fours, with up to three queries. */
INLINE void score_some(const float *k, uint32_t n, const float *const *query, uint32_t dim, float *const *to, float by,
                       uint32_t at, const int queries, const uint32_t lines, const int whole)
{
    const float *q[3];
    float *s[3];
    const __m128 scale = _mm_set1_ps(by);
    UNROLL
    for (int t = 0; t < queries; t++) {
        q[t] = query[t];
        s[t] = to[t] + at;
    }
    for (uint32_t r = 0; r < n; r += 4, k += 64 * (size_t)lines) {
        __m256 low[12];
        UNROLL
        for (int half = 0; half < 2; half++) {
            __m256 acc[12];
            UNROLL
            for (int j = 0; j < 4 * queries; j++)
                acc[j] = _mm256_setzero_ps();
            UNROLL_LINES
            for (uint32_t l = 0; l < lines; l++) {
                const size_t d = 16 * (size_t)l + 8 * (size_t)half;
                __m256 x[3];
                UNROLL
                for (int t = 0; t < queries; t++) {
                    x[t] = whole || d + 8 <= dim ? _mm256_loadu_ps(q[t] + d)
                                                 : load_row_upto8(q[t], d, d < dim ? dim - d : 0, COLIBRI_TYPE_F32);
                    IN_REGISTER(x[t]);
                }
                UNROLL
                for (int j = 0; j < 4; j++) {
                    __m256 w = _mm256_load_ps(k + 16 * (size_t)j * lines + d);
                    if (lines != 4) /* measured: 64 dimensions lose by it */
                        IN_REGISTER(w);
                    UNROLL
                    for (int t = 0; t < queries; t++)
                        acc[queries * j + t] = _mm256_fmadd_ps(w, x[t], acc[queries * j + t]);
                }
            }
            UNROLL
            for (int j = 0; j < 4 * queries; j++)
                low[j] = half ? _mm256_add_ps(low[j], acc[j]) : acc[j];
        }
        UNROLL
        for (int t = 0; t < queries; t++)
            _mm_storeu_ps(
                s[t] + r,
                _mm_mul_ps(fold4(low[t], low[queries + t], low[2 * queries + t], low[3 * queries + t]), scale));
    }
}

/* Three queries; the usual dimensions are unrolled. */
NOINLINE void score_three(const struct queries *b, uint32_t t, uint32_t i, uint32_t n, const float *k)
{
    const uint32_t dim = b->a->k_dim;
    const float by = b->a->scale;
    switch (dim) {
    case 64:
        score_some(k, n, b->q + t, 64, b->score + t, by, i, 3, 4, 1);
        break;
    case 80:
        score_some(k, n, b->q + t, 80, b->score + t, by, i, 3, 5, 1);
        break;
    case 96:
        score_some(k, n, b->q + t, 96, b->score + t, by, i, 3, 6, 1);
        break;
    case 128:
        score_some(k, n, b->q + t, 128, b->score + t, by, i, 3, 8, 1);
        break;
    default:
        score_some(k, n, b->q + t, dim, b->score + t, by, i, 3, (dim + 15) / 16, 0);
        break;
    }
}

NOINLINE void score_wide(const struct queries *b, uint32_t begin, uint32_t i, uint32_t most, const float *k)
{
    const uint32_t dim = b->a->k_dim, lines = (dim + 15) / 16;
    for (uint32_t t = 0; t < b->n; t += 3) {
        const uint32_t count = least(b->n - t, 3);
        uint32_t n = 0;
        for (uint32_t j = 0; j < count; j++) {
            const uint32_t v = visible(b, t + j, begin + i, most);
            n = v > n ? v : n;
        }
        if (count == 3)
            score_three(b, t, i, n, k);
        else if (count == 2)
            score_some(k, n, b->q + t, dim, b->score + t, b->a->scale, i, 2, lines, 0);
        else
            score_some(k, n, b->q + t, dim, b->score + t, b->a->scale, i, 1, lines, 0);
    }
}

/* Scores of the n positions from the segment's i-th on, whose keys k are read as they are, with one or two queries.
 * Nothing is written beyond those. */
INLINE void score_keys(const struct queries *b, uint32_t t, uint32_t i, uint32_t n, const void *const *k,
                       const int queries, const uint32_t type)
{
    const uint32_t dim = b->a->k_dim;
    const __m128 scale = _mm_set1_ps(b->a->scale);
    float *const s = b->score[t] + i;
    for (uint32_t r = 0; r < n; r += 4) {
        const uint32_t left = n - r;
        const void *last[4];
        const void *const *w = k + r;
        if (left < 4) {
            for (uint32_t j = 0; j < 4; j++)
                last[j] = w[least(j, left - 1)];
            w = last;
        }
        if (queries == 1) {
            struct lanes acc[4];
            dot_keys(w, b->q + t, dim, 4, 1, type, acc);
            store_upto4(s + r, left, _mm_mul_ps(lanes_sum4(acc[0], acc[1], acc[2], acc[3]), scale));
        } else {
            struct lanes p[4], o[4];
            dot_keys(w, b->q + t, dim, 2, 2, type, p);
            dot_keys(w + 2, b->q + t, dim, 2, 2, type, o);
            store_upto4(s + r, left, _mm_mul_ps(lanes_sum4(p[0], p[2], o[0], o[2]), scale));
            store_upto4(b->score[t + 1] + i + r, left, _mm_mul_ps(lanes_sum4(p[1], p[3], o[1], o[3]), scale));
        }
    }
}

/* All queries. */
INLINE void score_all(const struct queries *b, uint32_t begin, uint32_t i, uint32_t n, const void *const *k,
                      const uint32_t type)
{
    for (uint32_t t = 0; t < b->n; t += 2) {
        const uint32_t count = least(b->n - t, 2), seen = visible(b, t + count - 1, begin + i, n);
        if (count == 2)
            score_keys(b, t, i, seen, k, 2, type);
        else
            score_keys(b, t, i, seen, k, 1, type);
    }
}

NOINLINE void score_segment(const struct queries *b, uint32_t begin, uint32_t n, const struct rows *k)
{
    const struct colibri_attention_args *const a = b->a;
    const size_t dims = ((size_t)a->k_dim + 15) & ~(size_t)15;
    const uint32_t step = step_of(dims);
    if (step && widens(b, k->type)) {
        _Alignas(32) float wide[WIDE];
        for (uint32_t i = 0; i < n; i += step) {
            const uint32_t count = least(n - i, step);
            widen(k, i, (count + 3) & ~3u, 0, a->k_dim, dims, wide);
            score_wide(b, begin, i, count, wide);
        }
        return;
    }
    const uint32_t typed = least(k->typed, n);
    switch (k->type) {
    case COLIBRI_TYPE_F32:
        score_all(b, begin, 0, typed, k->row, COLIBRI_TYPE_F32);
        break;
    case COLIBRI_TYPE_Q8_0:
        score_all(b, begin, 0, typed, k->row, COLIBRI_TYPE_Q8_0);
        break;
    case COLIBRI_TYPE_Q4_0:
        score_all(b, begin, 0, typed, k->row, COLIBRI_TYPE_Q4_0);
        break;
    default:
        score_all(b, begin, 0, typed, k->row, COLIBRI_TYPE_F16);
        break;
    }
    score_all(b, begin, typed, n - typed, k->row + typed, COLIBRI_TYPE_F16);
}

/* ---- values ---------------------------------------------------------------------------------------------- */

/* o[t] += sum of p[t][i] * v[i], 8 * vecs dimensions: d.. of v, at.. of o. */
INLINE void value_tile(const void *const *v, uint32_t d, uint32_t n, float *const *p, uint32_t i0, float *const *o,
                       uint32_t at, const int queries, const int vecs, const uint32_t type)
{
    __m256 acc[12];
    float *to[3];
    const float *w[3];
    const size_t offset = row_bytes(type, d);
    UNROLL
    for (int t = 0; t < queries; t++) {
        to[t] = o[t] + at;
        w[t] = p[t] + i0;
        UNROLL
        for (int k = 0; k < vecs; k++)
            acc[t * vecs + k] = _mm256_loadu_ps(to[t] + 8 * k);
    }
    for (uint32_t i = 0; i < n; i++) {
        const void *const row = (const char *)v[i] + offset;
        __m256 wv[3], block[4];
        UNROLL
        for (int t = 0; t < queries; t++)
            wv[t] = _mm256_set1_ps(w[t][i]);
        UNROLL
        for (int k = 0; k < vecs; k++) {
            __m256 x;
            if (is_quant(type)) {
                if (k % 4 == 0)
                    load_block(row, (size_t)k / 4, type, block);
                x = block[k % 4];
            } else {
                x = load_row8(row, 8 * (size_t)k, type);
            }
            IN_REGISTER(x);
            UNROLL
            for (int t = 0; t < queries; t++)
                acc[t * vecs + k] = _mm256_fmadd_ps(wv[t], x, acc[t * vecs + k]);
        }
    }
    UNROLL
    for (int t = 0; t < queries; t++) {
        UNROLL
        for (int k = 0; k < vecs; k++)
            _mm256_storeu_ps(to[t] + 8 * k, acc[t * vecs + k]);
    }
}

/* Three queries, all dimensions of a panel in tiles of 4 or 3 registers, the last of which may be smaller. */
INLINE void value_three(const void *const *v, uint32_t d, uint32_t n, float *const *p, uint32_t i0, float *const *o,
                        uint32_t at, uint32_t lines, const uint32_t type)
{
    for (uint32_t k = 0; k < lines;) {
        const uint32_t left = lines - k, part = left >= 7 || left == 4 ? 4 : least(left, 3);
        const uint32_t dk = d + 8 * k, ok = at + 8 * k;
        if (part == 4)
            value_tile(v, dk, n, p, i0, o, ok, 3, 4, type);
        else if (part == 3)
            value_tile(v, dk, n, p, i0, o, ok, 3, 3, type);
        else if (part == 2)
            value_tile(v, dk, n, p, i0, o, ok, 3, 2, type);
        else
            value_tile(v, dk, n, p, i0, o, ok, 3, 1, type);
        k += part;
    }
}

/* `queries` of them, one or two. */
INLINE void value_few(const void *const *v, uint32_t d, uint32_t n, float *const *p, uint32_t i0, float *const *o,
                      uint32_t at, uint32_t lines, const int queries, const uint32_t type)
{
    uint32_t k = 0;
    if (queries == 1)
        for (; k + 8 <= lines; k += 8)
            value_tile(v, d + 8 * k, n, p, i0, o, at + 8 * k, queries, 8, type);
    for (; k + 4 <= lines; k += 4)
        value_tile(v, d + 8 * k, n, p, i0, o, at + 8 * k, queries, 4, type);
    if (!is_quant(type))
        for (; k < lines; k++)
            value_tile(v, d + 8 * k, n, p, i0, o, at + 8 * k, queries, 1, type);
}

/* Positions begin + i0 .. begin + i0 + n, whose values are v[0 .. n), dimensions at .. at + 8 * lines. */
INLINE void add_values(const struct queries *b, uint32_t begin, uint32_t i0, uint32_t n, const void *const *v,
                       uint32_t d, uint32_t at, uint32_t lines, const uint32_t type)
{
    for (uint32_t t = 0; t < b->n; t += 3) {
        const uint32_t count = least(b->n - t, 3);
        uint32_t all = n;
        for (uint32_t j = 0; j < count; j++)
            all = visible(b, t + j, begin + i0, all);
        float *const *const p = b->weight + t;
        float *const *const o = b->part + t;
        if (count == 3 && !is_quant(type)) /* WIDE_FROM_QUANT: there are no three */
            value_three(v, d, all, p, i0, o, at, lines, type);
        else if (count == 2)
            value_few(v, d, all, p, i0, o, at, lines, 2, type);
        else
            value_few(v, d, all, p, i0, o, at, lines, 1, type);
        for (uint32_t j = 0; j < count; j++) {
            const uint32_t more = visible(b, t + j, begin + i0, n) - all;
            if (more)
                value_few(v + all, d, more, p + j, i0 + all, o + j, at, lines, 1, type);
        }
    }
}

NOINLINE void value_segment(const struct queries *b, uint32_t begin, uint32_t n, const struct rows *v)
{
    const struct colibri_attention_args *const a = b->a;
    if (a->v_dim % 8 == 0 && !widens(b, v->type)) {
        const uint32_t typed = least(v->typed, n), lines = a->v_dim / 8;
        switch (v->type) {
        case COLIBRI_TYPE_F32:
            add_values(b, begin, 0, typed, v->row, 0, 0, lines, COLIBRI_TYPE_F32);
            break;
        case COLIBRI_TYPE_Q8_0:
            add_values(b, begin, 0, typed, v->row, 0, 0, lines, COLIBRI_TYPE_Q8_0);
            break;
        case COLIBRI_TYPE_Q4_0:
            add_values(b, begin, 0, typed, v->row, 0, 0, lines, COLIBRI_TYPE_Q4_0);
            break;
        default:
            add_values(b, begin, 0, typed, v->row, 0, 0, lines, COLIBRI_TYPE_F16);
            break;
        }
        if (typed < n)
            add_values(b, begin, typed, n - typed, v->row + typed, 0, 0, lines, COLIBRI_TYPE_F16);
        return;
    }
    _Alignas(32) float wide[WIDE];
    const void *row[STEP];
    for (uint32_t d = 0; d < a->v_dim; d += PANEL) {
        const uint32_t left = least(a->v_dim - d, PANEL), dims = (left + 15) & ~15u, step = step_of(dims);
        for (uint32_t i = 0; i < step; i++)
            row[i] = wide + (size_t)i * dims;
        for (uint32_t i = 0; i < n; i += step) {
            const uint32_t count = least(n - i, step);
            widen(v, i, count, d, left, dims, wide);
            add_values(b, begin, i, count, row, 0, d, (left + 7) / 8, COLIBRI_TYPE_F32);
        }
    }
}

/* ---- the whole ------------------------------------------------------------------------------------------- */

static float *part_of(const struct colibri_attention_args *a, uint32_t query, uint32_t g)
{
    return a->parts + ((size_t)query * segments_of(a->n_kv + a->n_rows - 1) + g) * colibri_attn_part_floats(a->v_dim);
}

/* m_g and l_g follow the lines of o_g. */
static float *part_sums(const struct colibri_attention_args *a, float *part)
{
    return part + ((a->v_dim + 15) & ~15u);
}

static void attend_segment(struct queries *b, uint32_t g)
{
    const struct colibri_attention_args *const a = b->a;
    const uint32_t begin = g * SEGMENT;
    const uint32_t n = visible(b, b->n - 1, begin, SEGMENT); /* the last query sees most */
    const void *row[SEGMENT];
    for (uint32_t t = 0; t < b->n; t++) {
        const uint32_t query = b->first + t;
        b->part[t] = part_of(a, query, g);
        b->weight[t] = a->weights + (size_t)query * SEGMENT;
        b->score[t] = a->scores ? a->scores + query * a->score_stride + begin : b->weight[t];
    }
    struct rows rows = find(a, a->k_pages, a->k_recent, a->k_type, a->k_dim, begin, n, row);
    score_segment(b, begin, n, &rows);
    for (uint32_t t = 0; t < b->n; t++) {
        const uint32_t seen = visible(b, t, begin, n);
        float *const sums = part_sums(a, b->part[t]);
        sums[0] = max_of(b->score[t], seen);
        sums[1] = exp_sum(b->score[t], seen, sums[0], b->weight[t]);
        memset(b->part[t], 0, ((a->v_dim + 15u) & ~(size_t)15) * sizeof(float));
    }
    rows = find(a, a->v_pages, a->v_recent, a->v_type, a->v_dim, begin, n, row);
    value_segment(b, begin, n, &rows);
}

static void combine(const struct queries *b, uint32_t t)
{
    const struct colibri_attention_args *const a = b->a;
    const uint32_t query = b->first + t, n_segments = segments_of(b->seen[t]), h = query % a->n_heads;
    const size_t step = colibri_attn_part_floats(a->v_dim);
    float *const part = part_of(a, query, 0), *const sums = part_sums(a, part);
    float *const out = a->out + query / a->n_heads * a->out_row_stride + h * a->out_stride;
    float max = -INFINITY, sum = 0.0f;
    for (uint32_t g = 0; g < n_segments; g++)
        max = sums[g * step] > max ? sums[g * step] : max;
    if (a->sinks)
        max = a->sinks[h] > max ? a->sinks[h] : max;
    max = max + 0.0f;
    for (uint32_t g = 0; g < n_segments; g++) {
        const float e = exp1(sums[g * step] - max);
        sum = fmaf(sums[g * step + 1], e, sum);
        sums[g * step + 2] = e;
    }
    if (a->sinks)
        sum = sum + exp1(a->sinks[h] - max);
    const __m256 l = _mm256_set1_ps(sum);
    for (uint32_t d = 0; d < a->v_dim; d += 8) {
        __m256 o = _mm256_setzero_ps();
        for (uint32_t g = 0; g < n_segments; g++)
            o = _mm256_fmadd_ps(_mm256_loadu_ps(part + g * step + d), _mm256_set1_ps(sums[g * step + 2]), o);
        o = _mm256_div_ps(o, l);
        if (a->v_dim - d >= 8)
            _mm256_storeu_ps(out + d, o);
        else
            _mm256_maskstore_ps(out + d, first8(a->v_dim - d), o);
    }
    if (a->max_sum) {
        a->max_sum[2 * (size_t)query] = max;
        a->max_sum[2 * (size_t)query + 1] = sum;
    }
}

void clb_avx2_attention(const struct colibri_attention_args *a)
{
    const uint32_t n = a->n_rows * a->n_heads;
    struct queries b;
    b.a = a;
    for (b.first = 0; b.first < n; b.first += b.n) {
        b.n = least(n - b.first, BLOCK);
        for (uint32_t t = 0; t < b.n; t++) {
            const uint32_t query = b.first + t, row = query / a->n_heads;
            b.q[t] = a->q + row * a->q_row_stride + query % a->n_heads * a->q_stride;
            b.seen[t] = a->n_kv + row;
        }
        const uint32_t end = least(a->segment_end, segments_of(b.seen[b.n - 1]));
        for (uint32_t g = a->segment_begin; (a->stages & COLIBRI_ATTN_SEGMENTS) && g < end; g++)
            attend_segment(&b, g);
        for (uint32_t t = 0; (a->stages & COLIBRI_ATTN_COMBINE) && t < b.n; t++)
            combine(&b, t);
    }
}
