/* Attention of the queries that share one KV head. Definition: core/ops/attention.c.
 *
 * Up to BLOCK queries go through a segment together. Keys and values are widened to F32 in steps of
 * 16 to 64 positions, which stay in the L1 cache while the queries pass by in fours. A score tile is 4 keys x 4 queries
 * in 16 registers, whose 16 sums are made by one transposing tree. A value tile is up to 5 registers of the head
 * dimension x 4 queries; its sums rest in `parts` between blocks of positions. Few queries
 * (decode) read keys and values as they are: widening them first would not pay.
 *
 * The queries of a four may see different numbers of positions. Scores beyond a query's last are computed and not used;
 * values are added to all four as far as all of them see, and to each alone from there. */
#include "dot.h"
#include "vecops.h"

#define SEGMENT   COLIBRI_ATTN_SEGMENT
#define BLOCK     64u   /* queries at a time */
#define WIDE      4096u /* floats of widened keys or values */
#define KEYS      16u   /* positions: steps are multiples of it, and */
#define STEP      64u   /* this at most */
#define PANEL     128u  /* dimensions of a step through the values */
#define WIDE_FROM 17u   /* queries for which widening pays */

/* Of a loop that is known or not: Clang warns of what it cannot unroll, and decides well by itself. */
#ifdef __clang__
#define UNROLL_LINES
#else
#define UNROLL_LINES UNROLL
#endif

/* Some queries of a call. Arrays are filled up to whole fours by repeating the last query: what is computed for it
 * twice is the same, and stored to the same place. */
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

static uint32_t segments_of(uint32_t n)
{
    return (n + SEGMENT - 1) / SEGMENT;
}

/* Bytes of n elements: of a row, or of what precedes a line of it (for blocks a multiple of 32). */
INLINE size_t bytes_of(const uint32_t type, size_t n)
{
    return type == COLIBRI_TYPE_F32    ? 4 * n
           : type == COLIBRI_TYPE_Q8_0 ? n / 32 * sizeof(struct colibri_q8_0)
           : type == COLIBRI_TYPE_Q4_0 ? n / 32 * sizeof(struct colibri_q4_0)
                                       : 2 * n;
}

/* Positions of the segment from `begin` on that query t sees, `most` at most. */
static uint32_t visible(const struct queries *b, uint32_t t, uint32_t begin, uint32_t most)
{
    return b->seen[t] <= begin ? 0 : least(b->seen[t] - begin, most);
}

/* row[i] = address of the i-th position of a segment, i in [from, n): page 0 holds the positions from `first` of the
 * segment on, which may be negative. */
static void find_rows(const void *const *pages, uint32_t page_tokens, size_t row_bytes, int64_t first, uint32_t from,
                      uint32_t n, const void **row)
{
    const uint32_t at0 = (uint32_t)((int64_t)from - first);
    uint32_t page = at0 / page_tokens, at = at0 % page_tokens;
    for (uint32_t i = from; i < n; i++) {
        row[i] = (const char *)pages[page] + at * row_bytes;
        if (++at == page_tokens) {
            at = 0;
            page++;
        }
    }
}

/* The positions of a segment that share a type; the last ones may come from the recent pages. */
struct run {
    uint32_t from, n; /* [from, n) */
    uint32_t type;
};

/* Keys or values of the n positions of the segment that begins at `begin`: addresses, and one or two runs, returned. */
static int find_runs(const struct colibri_attention_args *a, const int keys, uint32_t begin, uint32_t n,
                     const void **row, struct run *run)
{
    const uint32_t dim = keys ? a->k_dim : a->v_dim, type = keys ? a->k_type : a->v_type;
    const void *const *const recent = !COLIBRI_HAS(a, recent_begin) ? NULL : keys ? a->k_recent : a->v_recent;
    const uint32_t old = !recent ? n : a->recent_begin <= begin ? 0 : least(a->recent_begin - begin, n);
    int runs = 0;
    if (old) {
        find_rows(keys ? a->k_pages : a->v_pages, a->page_tokens, bytes_of(type, dim), -(int64_t)begin, 0, old, row);
        run[runs++] = (struct run){0, old, type};
    }
    if (old < n) {
        find_rows(recent, a->page_tokens, bytes_of(COLIBRI_TYPE_F16, dim), (int64_t)a->recent_first - begin, old, n,
                  row);
        run[runs++] = (struct run){old, n, COLIBRI_TYPE_F16};
    }
    return runs;
}

/* `dims` (rounded up to whole lines, zeros behind the `left` that exist) of n rows from dimension d on. */
INLINE void widen_type(const void *const *row, uint32_t n, uint32_t d, uint32_t left, size_t dims, float *to,
                       const uint32_t type)
{
    const __mmask16 tail = first16(left % 16 ? left % 16 : 16);
    for (uint32_t i = 0; i < n; i++, to += dims) {
        size_t k = 0;
        for (; is_block_type(type) && k < left; k += 32) {
            _mm512_store_ps(to + k, load_row(row[i], d + k, type));
            _mm512_store_ps(to + k + 16, load_row(row[i], d + k + 16, type));
        }
        for (; k + 16 <= left; k += 16)
            _mm512_store_ps(to + k, load_row(row[i], d + k, type));
        if (k < left)
            _mm512_store_ps(to + k, load_row_tail(row[i], d + k, type, tail));
    }
}

static void widen(const void *const *row, uint32_t n, uint32_t d, uint32_t left, size_t dims, uint32_t type, float *to)
{
    switch (type) {
    case COLIBRI_TYPE_F32:
        widen_type(row, n, d, left, dims, to, COLIBRI_TYPE_F32);
        break;
    case COLIBRI_TYPE_Q8_0:
        widen_type(row, n, d, left, dims, to, COLIBRI_TYPE_Q8_0);
        break;
    case COLIBRI_TYPE_Q4_0:
        widen_type(row, n, d, left, dims, to, COLIBRI_TYPE_Q4_0);
        break;
    default:
        widen_type(row, n, d, left, dims, to, COLIBRI_TYPE_F16);
        break;
    }
}

/* ---- scores ---------------------------------------------------------------------------------------------- */

/* How many of the `most` positions from `begin` on any query of the four sees. */
static uint32_t seen_by_four(const struct queries *b, uint32_t t, uint32_t begin, uint32_t most)
{
    uint32_t n = 0;
    for (uint32_t j = 0; j < 4; j++) {
        const uint32_t v = visible(b, t + j, begin, most);
        n = v > n ? v : n;
    }
    return n;
}

/* Scores of n widened keys, rounded up to whole fours, with four queries. */
INLINE void score_four(const float *k, uint32_t n, const float *const *query, uint32_t dim, float *const *to, float by,
                       uint32_t at, const uint32_t lines, const int whole)
{
    const float *const q[4] = {query[0], query[1], query[2], query[3]};
    float *const s[4] = {to[0] + at, to[1] + at, to[2] + at, to[3] + at};
    const __mmask16 tail = first16(dim - 16 * (lines - 1));
    const __m512 scale = _mm512_set1_ps(by);
    for (uint32_t r = 0; r < n; r += 4) {
        __m512 acc[16];
        UNROLL
        for (int j = 0; j < 16; j++)
            acc[j] = _mm512_setzero_ps();
        UNROLL_LINES
        for (uint32_t l = 0; l < lines; l++) {
            __m512 x[4];
            UNROLL
            for (int t = 0; t < 4; t++)
                x[t] = whole || l + 1 < lines ? _mm512_loadu_ps(q[t] + 16 * l)
                                              : _mm512_maskz_loadu_ps(tail, q[t] + 16 * l);
            UNROLL
            for (int j = 0; j < 4; j++) {
                const __m512 w = _mm512_load_ps(k + 16 * ((size_t)j * lines + l));
                UNROLL
                for (int t = 0; t < 4; t++)
                    acc[4 * j + t] = _mm512_fmadd_ps(w, x[t], acc[4 * j + t]);
            }
        }
        k += 64 * (size_t)lines;
        const __m512 v = _mm512_mul_ps(fold_lanes(acc, 1, 4), scale);
        _mm_storeu_ps(s[0] + r, _mm512_castps512_ps128(v));
        _mm_storeu_ps(s[1] + r, _mm512_extractf32x4_ps(v, 1));
        _mm_storeu_ps(s[2] + r, _mm512_extractf32x4_ps(v, 2));
        _mm_storeu_ps(s[3] + r, _mm512_extractf32x4_ps(v, 3));
    }
}

/* The usual dimensions are unrolled. */
NOINLINE void score_wide(const struct queries *b, uint32_t begin, uint32_t i, uint32_t most, const float *k)
{
    const uint32_t dim = b->a->k_dim, lines = (dim + 15) / 16;
    const float by = b->a->scale;
    for (uint32_t t = 0; t < b->n; t += 4) {
        const uint32_t n = seen_by_four(b, t, begin + i, most);
        switch (dim) {
        case 64:
            score_four(k, n, b->q + t, 64, b->score + t, by, i, 4, 1);
            break;
        case 80:
            score_four(k, n, b->q + t, 80, b->score + t, by, i, 5, 1);
            break;
        case 96:
            score_four(k, n, b->q + t, 96, b->score + t, by, i, 6, 1);
            break;
        case 128:
            score_four(k, n, b->q + t, 128, b->score + t, by, i, 8, 1);
            break;
        default:
            score_four(k, n, b->q + t, dim, b->score + t, by, i, lines, 0);
            break;
        }
    }
}

/* Scores of positions i .. i + 16 of the segment, whose keys are k[0 .. 16), read as they are. */
INLINE void score_keys(const struct queries *b, uint32_t begin, uint32_t i, const void *const *k, const uint32_t type)
{
    const uint32_t dim = b->a->k_dim;
    const __m512 scale = _mm512_set1_ps(b->a->scale);
    __m512 acc[16];
    for (uint32_t t = 0; t < b->n; t += 4) {
        const float *const *const q = b->q + t;
        const uint32_t n = seen_by_four(b, t, begin + i, KEYS);
        if (b->n - t == 1) {
            /* Memory gives rows of floats faster a few at a time; blocks are short, and wait for arithmetic. */
            const int rows = is_block_type(type) ? 16 : 8;
            UNROLL
            for (int r = 0; r < 16; r += rows)
                dot_tile(k + r, q, dim, rows, 1, type, acc + r);
            _mm512_storeu_ps(b->score[t] + i, _mm512_mul_ps(fold_lanes(acc, 4, 1), scale));
        } else if (b->n - t == 2) {
            for (uint32_t r = 0; r < n; r += 8) {
                dot_tile(k + r, q, dim, 8, 2, type, acc); /* acc[2 * key + query] */
                __m512 order[16];
                UNROLL
                for (int j = 0; j < 16; j++) /* block 2 * query + half, element key % 4 */
                    order[4 * (2 * (j % 2) + j / 8) + j / 2 % 4] = acc[j];
                const __m512 s = _mm512_mul_ps(fold_lanes(order, 4, 1), scale);
                _mm256_storeu_ps(b->score[t] + i + r, _mm512_castps512_ps256(s));
                _mm256_storeu_ps(b->score[t + 1] + i + r, _mm512_extractf32x8_ps(s, 1));
            }
        } else {
            for (uint32_t r = 0; r < n; r += 4) {
                dot_tile(k + r, q, dim, 4, 4, type, acc); /* acc[4 * key + query] */
                const __m512 s = _mm512_mul_ps(fold_lanes(acc, 1, 4), scale);
                _mm_storeu_ps(b->score[t] + i + r, _mm512_castps512_ps128(s));
                _mm_storeu_ps(b->score[t + 1] + i + r, _mm512_extractf32x4_ps(s, 1));
                _mm_storeu_ps(b->score[t + 2] + i + r, _mm512_extractf32x4_ps(s, 2));
                _mm_storeu_ps(b->score[t + 3] + i + r, _mm512_extractf32x4_ps(s, 3));
            }
        }
    }
}

/* The run's keys; k[0] is the segment's first, and the addresses of whole KEYS around the run are there. */
NOINLINE void score_run(const struct queries *b, uint32_t begin, const struct run *run, const void *const *k)
{
    const struct colibri_attention_args *const a = b->a;
    const size_t dims = ((size_t)a->k_dim + 15) & ~(size_t)15;
    const uint32_t step = step_of(dims), from = run->from & ~(KEYS - 1);
    if (b->n >= WIDE_FROM && step) {
        _Alignas(64) float wide[WIDE];
        for (uint32_t i = from; i < run->n; i += step) {
            const uint32_t count = least(run->n - i, step);
            widen(k + i, (count + 3) & ~3u, 0, a->k_dim, dims, run->type, wide);
            score_wide(b, begin, i, count, wide);
        }
        return;
    }
    for (uint32_t i = from; i < run->n; i += KEYS)
        switch (run->type) {
        case COLIBRI_TYPE_F32:
            score_keys(b, begin, i, k + i, COLIBRI_TYPE_F32);
            break;
        case COLIBRI_TYPE_Q8_0:
            score_keys(b, begin, i, k + i, COLIBRI_TYPE_Q8_0);
            break;
        case COLIBRI_TYPE_Q4_0:
            score_keys(b, begin, i, k + i, COLIBRI_TYPE_Q4_0);
            break;
        default:
            score_keys(b, begin, i, k + i, COLIBRI_TYPE_F16);
            break;
        }
}

/* Scores come in whole KEYS, with the nearest key of the run where it has none. If two runs share some, the second
 * run's scores are put aside while the first run is at it. */
static void score_segment(const struct queries *b, uint32_t begin, const struct run *run, int runs, const void **row)
{
    const struct run *const last = &run[runs - 1];
    const uint32_t split = last->from % KEYS, at = last->from - split;
    const void *line[KEYS];
    float aside[BLOCK][KEYS];
    for (uint32_t i = last->n; i % KEYS; i++)
        row[i] = row[i - 1];
    for (uint32_t i = 0; i < split; i++) {
        line[i] = row[at + i];
        row[at + i] = row[last->from];
    }
    score_run(b, begin, last, row);
    if (runs == 1)
        return;
    for (uint32_t t = 0; t < b->n && split; t++)
        _mm512_storeu_ps(aside[t], _mm512_loadu_ps(b->score[t] + at));
    for (uint32_t i = 0; split && i < KEYS; i++)
        row[at + i] = line[i < split ? i : split - 1];
    score_run(b, begin, run, row);
    for (uint32_t t = 0; t < b->n && split; t++)
        _mm512_mask_storeu_ps(b->score[t] + at, (__mmask16)~first16(split), _mm512_loadu_ps(aside[t]));
}

/* ---- weights --------------------------------------------------------------------------------------------- */

/* p[i] = exp(s[i] - max); returns their sum. p may be s. */
static float exp_segment(const float *s, uint32_t n, float max, float *p)
{
    const __m512 m = _mm512_set1_ps(max);
    __m512 lane = _mm512_setzero_ps();
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m512 e = exp_below(_mm512_sub_ps(_mm512_loadu_ps(s + i), m));
        _mm512_storeu_ps(p + i, e);
        lane = _mm512_add_ps(lane, e);
    }
    if (i < n) {
        const __mmask16 mask = first16(n - i);
        const __m512 e = exp_below(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, s + i), m));
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

/* o[t] += sum of p[t][i] * v[i], 16 * vecs dimensions: d.. of v, at.. of o. */
INLINE void value_tile(const void *const *v, uint32_t d, uint32_t n, float *const *p, uint32_t i0, float *const *o,
                       uint32_t at, const int queries, const int vecs, const uint32_t type)
{
    __m512 acc[24];
    float *to[4];
    const float *w[4];
    const size_t offset = bytes_of(type, d);
    UNROLL
    for (int t = 0; t < queries; t++) {
        to[t] = o[t] + at;
        w[t] = p[t] + i0;
        UNROLL
        for (int k = 0; k < vecs; k++)
            acc[t * vecs + k] = _mm512_load_ps(to[t] + 16 * k);
    }
    for (uint32_t i = 0; i < n; i++) {
        const void *const row = (const char *)v[i] + offset;
        __m512 x[8];
        UNROLL
        for (int k = 0; k < vecs; k++)
            x[k] = load_row(row, 16 * (size_t)k, type);
        UNROLL
        for (int t = 0; t < queries; t++) {
            const __m512 wv = _mm512_set1_ps(w[t][i]);
            UNROLL
            for (int k = 0; k < vecs; k++)
                acc[t * vecs + k] = _mm512_fmadd_ps(wv, x[k], acc[t * vecs + k]);
        }
    }
    UNROLL
    for (int t = 0; t < queries; t++) {
        UNROLL
        for (int k = 0; k < vecs; k++)
            _mm512_store_ps(to[t] + 16 * k, acc[t * vecs + k]);
    }
}

/* Four queries (or fewer, repeated), all dimensions of a panel in tiles of 3 to 5 lines. */
INLINE void value_four(const void *const *v, uint32_t d, uint32_t n, float *const *p, uint32_t i0, float *const *o,
                       uint32_t at, uint32_t lines, const uint32_t type)
{
    for (uint32_t k = 0; k < lines;) {
        const uint32_t left = lines - k; /* of blocks whole ones */
        const uint32_t part = left == 6 && !is_block_type(type) ? 3 : left == 5 || left < 4 ? left : 4;
        const uint32_t dk = d + 16 * k, ok = at + 16 * k;
        switch (part) {
        case 5:
            value_tile(v, dk, n, p, i0, o, ok, 4, 5, type);
            break;
        case 4:
            value_tile(v, dk, n, p, i0, o, ok, 4, 4, type);
            break;
        case 3:
            value_tile(v, dk, n, p, i0, o, ok, 4, 3, type);
            break;
        case 2:
            value_tile(v, dk, n, p, i0, o, ok, 4, 2, type);
            break;
        default:
            value_tile(v, dk, n, p, i0, o, ok, 4, 1, type);
            break;
        }
        k += part;
    }
}

/* `queries` of them, one or two. */
INLINE void value_few(const void *const *v, uint32_t d, uint32_t n, float *const *p, uint32_t i0, float *const *o,
                      uint32_t at, uint32_t lines, const int queries, const uint32_t type)
{
    uint32_t k = 0;
    for (; k + 8 <= lines; k += 8)
        value_tile(v, d + 16 * k, n, p, i0, o, at + 16 * k, queries, 8, type);
    for (; k + 4 <= lines; k += 4)
        value_tile(v, d + 16 * k, n, p, i0, o, at + 16 * k, queries, 4, type);
    for (; is_block_type(type) && k < lines; k += 2)
        value_tile(v, d + 16 * k, n, p, i0, o, at + 16 * k, queries, 2, type);
    for (; k < lines; k++)
        value_tile(v, d + 16 * k, n, p, i0, o, at + 16 * k, queries, 1, type);
}

/* Positions begin + i0 .. begin + i0 + n, whose values are v[0 .. n), dimensions at .. at + 16 * lines. */
INLINE void add_values(const struct queries *b, uint32_t begin, uint32_t i0, uint32_t n, const void *const *v,
                       uint32_t d, uint32_t at, uint32_t lines, const uint32_t type)
{
    for (uint32_t t = 0; t < b->n; t += 4) {
        const uint32_t count = least(b->n - t, 4);
        uint32_t all = n;
        for (uint32_t j = 0; j < 4; j++)
            all = visible(b, t + j, begin + i0, all);
        float *const *const p = b->weight + t;
        float *const *const o = b->part + t;
        if (count > 2)
            value_four(v, d, all, p, i0, o, at, lines, type);
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

/* The run's values; v[0] is the segment's first. */
NOINLINE void value_run(const struct queries *b, uint32_t begin, const struct run *run, const void *const *v)
{
    const struct colibri_attention_args *const a = b->a;
    const uint32_t lines = (a->v_dim + 15) / 16, from = run->from, n = run->n - from;
    _Alignas(64) float wide[WIDE];
    const void *row[STEP];
    if (b->n < WIDE_FROM && a->v_dim % 16 == 0) {
        switch (run->type) {
        case COLIBRI_TYPE_F32:
            add_values(b, begin, from, n, v + from, 0, 0, lines, COLIBRI_TYPE_F32);
            return;
        case COLIBRI_TYPE_Q8_0:
            add_values(b, begin, from, n, v + from, 0, 0, lines, COLIBRI_TYPE_Q8_0);
            return;
        case COLIBRI_TYPE_Q4_0:
            add_values(b, begin, from, n, v + from, 0, 0, lines, COLIBRI_TYPE_Q4_0);
            return;
        default:
            add_values(b, begin, from, n, v + from, 0, 0, lines, COLIBRI_TYPE_F16);
            return;
        }
    }
    for (uint32_t d = 0; d < a->v_dim; d += PANEL) {
        const uint32_t left = least(a->v_dim - d, PANEL), part = (left + 15) / 16, step = step_of(16 * part);
        for (uint32_t i = 0; i < step; i++)
            row[i] = wide + (size_t)i * 16 * part;
        for (uint32_t i = from; i < run->n; i += step) {
            const uint32_t count = least(run->n - i, step);
            widen(v + i, count, d, left, (size_t)16 * part, run->type, wide);
            add_values(b, begin, i, count, row, 0, d, part, COLIBRI_TYPE_F32);
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
    for (uint32_t t = 0; t < BLOCK && t < ((b->n + 3) & ~3u); t++) {
        const uint32_t query = b->first + least(t, b->n - 1);
        b->part[t] = part_of(a, query, g);
        b->weight[t] = a->weights + (size_t)query * SEGMENT;
        b->score[t] = a->scores ? a->scores + query * a->score_stride + begin : b->weight[t];
    }
    struct run run[2];
    const int k_runs = find_runs(a, 1, begin, n, row, run);
    score_segment(b, begin, run, k_runs, row);
    for (uint32_t t = 0; t < b->n; t++) {
        const uint32_t seen = visible(b, t, begin, n);
        float *const sums = part_sums(a, b->part[t]);
        sums[0] = max_of(b->score[t], seen);
        sums[1] = exp_segment(b->score[t], seen, sums[0], b->weight[t]);
        memset(b->part[t], 0, ((a->v_dim + 15u) & ~(size_t)15) * sizeof(float));
    }
    const int v_runs = find_runs(a, 0, begin, n, row, run);
    for (int i = 0; i < v_runs; i++)
        value_run(b, begin, &run[i], row);
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
    const __m512 l = _mm512_set1_ps(sum);
    for (uint32_t d = 0; d < a->v_dim; d += 16) {
        __m512 o = _mm512_setzero_ps();
        for (uint32_t g = 0; g < n_segments; g++)
            o = _mm512_fmadd_ps(_mm512_load_ps(part + g * step + d), _mm512_set1_ps(sums[g * step + 2]), o);
        _mm512_mask_storeu_ps(out + d, first16(a->v_dim - d), _mm512_div_ps(o, l));
    }
    if (a->max_sum) {
        a->max_sum[2 * (size_t)query] = max;
        a->max_sum[2 * (size_t)query + 1] = sum;
    }
}

void clb_avx512_attention(const struct colibri_attention_args *a)
{
    const uint32_t n = a->n_rows * a->n_heads;
    struct queries b;
    b.a = a;
    for (b.first = 0; b.first < n; b.first += b.n) {
        b.n = least(n - b.first, BLOCK);
        for (uint32_t t = 0; t < ((b.n + 3) & ~3u); t++) {
            const uint32_t query = b.first + least(t, b.n - 1), row = query / a->n_heads;
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
