/* Attention of the queries that share one KV head. Definition: core/ops/attention.c.
 *
 * Up to BLOCK queries go through a segment together. Keys and values are widened to F32 in steps of 16 to 64 positions,
 * which stay in the L1 cache while the queries pass by in twos. Scores are dot_tile products of 2 keys x 2 queries. A
 * value tile is 32 dimensions x 2 queries; its sums rest in `parts` between steps. Few queries (decode) read
 * keys and values as they are: widening them first would not pay.
 *
 * The two queries of a tile may see different numbers of positions. Scores beyond a query's last are computed and not
 * used; values are added to both as far as both see, and to each alone from there. */
#include "rows.h"
#include "vecops.h"

#define SEGMENT COLIBRI_ATTN_SEGMENT
#define BLOCK   64u   /* queries at a time */
#define WIDE    4096u /* floats of widened keys or values */
#define STEP    64u   /* positions of a step at most, */
#define KEYS    16u   /* and what they are a multiple of */
#define PANEL   128u  /* dimensions of a step through the values */

/* Queries for which widening pays, by instruction counts; fewer read keys and values as they are. */
#define WIDE_FROM       9u
#define WIDE_FROM_QUANT 5u

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

/* Scores of the n positions from the segment's i-th on, whose keys are at k, with one or two queries. Nothing is
 * written beyond those. */
INLINE void score_keys(const struct queries *b, uint32_t t, uint32_t i, uint32_t n, const void *const *k,
                       const int queries, const uint32_t type)
{
    const uint32_t dim = b->a->k_dim;
    const float scale = b->a->scale;
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
            store_upto4(s + r, left, vmulq_n_f32(lanes_sum4(&acc[0], &acc[1], &acc[2], &acc[3]), scale));
        } else {
            struct lanes p[4], o[4];
            dot_keys(w, b->q + t, dim, 2, 2, type, p);
            dot_keys(w + 2, b->q + t, dim, 2, 2, type, o);
            store_upto4(s + r, left, vmulq_n_f32(lanes_sum4(&p[0], &p[2], &o[0], &o[2]), scale));
            store_upto4(b->score[t + 1] + i + r, left, vmulq_n_f32(lanes_sum4(&p[1], &p[3], &o[1], &o[3]), scale));
        }
    }
}

INLINE void score_all(const struct queries *b, uint32_t begin, uint32_t i, uint32_t most, const void *const *k,
                      const uint32_t type)
{
    for (uint32_t t = 0; t < b->n; t += 2) {
        const uint32_t count = least(b->n - t, 2), n = visible(b, t + count - 1, begin + i, most);
        if (count == 2)
            score_keys(b, t, i, n, k, 2, type);
        else
            score_keys(b, t, i, n, k, 1, type);
    }
}

static void score_segment(const struct queries *b, uint32_t begin, uint32_t n, const struct rows *k)
{
    const struct colibri_attention_args *const a = b->a;
    const size_t dims = ((size_t)a->k_dim + 15) & ~(size_t)15;
    const uint32_t step = step_of(dims);
    if (step && widens(b, k->type)) {
        _Alignas(16) float wide[WIDE];
        const void *row[STEP];
        for (uint32_t i = 0; i < step; i++)
            row[i] = wide + i * dims;
        for (uint32_t i = 0; i < n; i += step) {
            const uint32_t count = least(n - i, step);
            widen(k, i, count, 0, a->k_dim, dims, wide);
            score_all(b, begin, i, count, row, COLIBRI_TYPE_F32);
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

/* o[t] += sum of p[t][i] * v[i], 16 * vecs dimensions: d.. of v, at.. of o. */
INLINE void value_tile(const void *const *v, uint32_t d, uint32_t n, float *const *p, uint32_t i0, float *const *o,
                       uint32_t at, const int queries, const int vecs, const uint32_t type)
{
    struct lanes acc[4];
    UNROLL
    for (int t = 0; t < queries; t++) {
        UNROLL
        for (int k = 0; k < vecs; k++)
            acc[t * vecs + k] = load_row16(o[t], at + 16 * (size_t)k, COLIBRI_TYPE_F32);
    }
    for (uint32_t i = 0; i < n; i++) {
        UNROLL
        for (int k = 0; k < vecs; k++) {
            const struct lanes x = is_quant(type) ? load_half(v[i], d / QUANT_BLOCK + (size_t)k / 2, k % 2, type)
                                                  : load_row16(v[i], d + 16 * (size_t)k, type);
            UNROLL
            for (int t = 0; t < queries; t++) {
                UNROLL
                for (int part = 0; part < 4; part++)
                    acc[t * vecs + k].v[part] = vfmaq_n_f32(acc[t * vecs + k].v[part], x.v[part], p[t][i0 + i]);
            }
        }
    }
    UNROLL
    for (int t = 0; t < queries; t++) {
        UNROLL
        for (int k = 0; k < vecs; k++) {
            UNROLL
            for (int part = 0; part < 4; part++)
                vst1q_f32(o[t] + at + 16 * k + 4 * part, acc[t * vecs + k].v[part]);
        }
    }
}

/* `queries` of them, one or two, all lines of 16 dimensions. */
INLINE void value_few(const void *const *v, uint32_t d, uint32_t n, float *const *p, uint32_t i0, float *const *o,
                      uint32_t at, uint32_t lines, const int queries, const uint32_t type)
{
    uint32_t k = 0;
    if (queries == 1)
        for (; k + 4 <= lines; k += 4)
            value_tile(v, d + 16 * k, n, p, i0, o, at + 16 * k, queries, 4, type);
    for (; k + 2 <= lines; k += 2)
        value_tile(v, d + 16 * k, n, p, i0, o, at + 16 * k, queries, 2, type);
    if (k < lines && !is_quant(type))
        value_tile(v, d + 16 * k, n, p, i0, o, at + 16 * k, queries, 1, type);
}

/* Positions begin + i0 .. begin + i0 + n, whose values are v[0 .. n), dimensions at .. at + 16 * lines. */
INLINE void add_values(const struct queries *b, uint32_t begin, uint32_t i0, uint32_t n, const void *const *v,
                       uint32_t d, uint32_t at, uint32_t lines, const uint32_t type)
{
    for (uint32_t t = 0; t < b->n; t += 2) {
        const uint32_t count = least(b->n - t, 2);
        uint32_t all = n;
        for (uint32_t j = 0; j < count; j++)
            all = visible(b, t + j, begin + i0, all);
        float *const *const p = b->weight + t;
        float *const *const o = b->part + t;
        if (count == 2)
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

static void value_segment(const struct queries *b, uint32_t begin, uint32_t n, const struct rows *v)
{
    const struct colibri_attention_args *const a = b->a;
    if (a->v_dim % 16 == 0 && !widens(b, v->type)) {
        const uint32_t typed = least(v->typed, n), lines = a->v_dim / 16;
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
    _Alignas(16) float wide[WIDE];
    const void *row[STEP];
    for (uint32_t d = 0; d < a->v_dim; d += PANEL) {
        const uint32_t left = least(a->v_dim - d, PANEL), dims = (left + 15) & ~15u, step = step_of(dims);
        for (uint32_t i = 0; i < step; i++)
            row[i] = wide + (size_t)i * dims;
        for (uint32_t i = 0; i < n; i += step) {
            const uint32_t count = least(n - i, step);
            widen(v, i, count, d, left, dims, wide);
            add_values(b, begin, i, count, row, 0, d, dims / 16, COLIBRI_TYPE_F32);
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
    const float32x4_t l = vdupq_n_f32(sum);
    for (uint32_t d = 0; d < a->v_dim; d += 4) {
        float32x4_t o = vdupq_n_f32(0.0f);
        for (uint32_t g = 0; g < n_segments; g++)
            o = vfmaq_n_f32(o, vld1q_f32(part + g * step + d), sums[g * step + 2]);
        store_upto4(out + d, a->v_dim - d, vdivq_f32(o, l));
    }
    if (a->max_sum) {
        a->max_sum[2 * (size_t)query] = max;
        a->max_sum[2 * (size_t)query + 1] = sum;
    }
}

void clb_neon_attention(const struct colibri_attention_args *a)
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
