/* Rows of keys and values: where they lie, and their elements as F32. */
#ifndef KERNELS_AVX2_ROWS_H
#define KERNELS_AVX2_ROWS_H

#include "dot.h"

#define QUANT_BLOCK 32u /* elements */

/* One load or conversion, not one inside of each fma that uses it, which is what GCC makes of it. */
#ifdef __clang__
#define IN_REGISTER(v) (void)(v)
#else
#define IN_REGISTER(v) __asm__("" : "+x"(v))
#endif

/* ---- where ------------------------------------------------------------------------------------------------- */

/* Rows of some positions, one after the other. */
struct rows {
    const void *const *row; /* repeated behind the last one up to a whole four */
    uint32_t typed;         /* rows of `type`: those from here on are F16 */
    uint32_t type;
};

INLINE int is_quant(uint32_t type)
{
    return type == COLIBRI_TYPE_Q8_0 || type == COLIBRI_TYPE_Q4_0;
}

/* Bytes of `dims` elements of a row, whole blocks if it is quantized. */
INLINE size_t row_bytes(uint32_t type, size_t dims)
{
    switch (type) {
    case COLIBRI_TYPE_F32:
        return dims * sizeof(float);
    case COLIBRI_TYPE_Q8_0:
        return dims / QUANT_BLOCK * sizeof(struct colibri_q8_0);
    case COLIBRI_TYPE_Q4_0:
        return dims / QUANT_BLOCK * sizeof(struct colibri_q4_0);
    default:
        return dims * sizeof(colibri_f16);
    }
}

/* Addresses of rows [begin, begin + n). */
static void find_rows(const void *const *pages, uint32_t page_tokens, size_t bytes, uint32_t begin, uint32_t n,
                      const void **row)
{
    uint32_t page = begin / page_tokens, at = begin % page_tokens;
    for (uint32_t i = 0; i < n; i++) {
        row[i] = (const char *)pages[page] + at * bytes;
        if (++at == page_tokens) {
            at = 0;
            page++;
        }
    }
}

/* Positions [begin, begin + n), from recent_begin on those of `recent`, if it is there. `row` has room for n rounded up
 * to a whole four. */
static struct rows find(const struct colibri_attention_args *a, const void *const *pages, const void *const *recent,
                        uint32_t type, uint32_t dim, uint32_t begin, uint32_t n, const void **row)
{
    const uint32_t left = a->recent_begin > begin ? a->recent_begin - begin : 0, typed = recent && left < n ? left : n;
    if (typed)
        find_rows(pages, a->page_tokens, row_bytes(type, dim), begin, typed, row);
    if (typed < n)
        find_rows(recent, a->page_tokens, row_bytes(COLIBRI_TYPE_F16, dim), begin + typed - a->recent_first, n - typed,
                  row + typed);
    for (uint32_t i = n; i % 4; i++)
        row[i] = row[n - 1];
    return (struct rows){row, typed < n ? typed : UINT32_MAX, type};
}

/* ---- elements ---------------------------------------------------------------------------------------------- */

INLINE __m256 block_scale(colibri_f16 d)
{
    return _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(d)));
}

/* Block b of a quantized row: scale * code, which has no rounding to do. Nibbles go to the upper end of 32 bits, which
 * makes code * 2^28 of them, bit 3 turned round being the sign of code = nibble - 8; the scale brings 2^-28. */
INLINE void load_block(const void *row, size_t b, const uint32_t type, __m256 *v)
{
    if (type == COLIBRI_TYPE_Q8_0) {
        const struct colibri_q8_0 *const q = (const struct colibri_q8_0 *)row + b;
        const __m256 d = block_scale(q->d);
        UNROLL
        for (int k = 0; k < 4; k++)
            v[k] = _mm256_mul_ps(
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(q->qs + 8 * k)))), d);
        return;
    }
    const struct colibri_q4_0 *const q = (const struct colibri_q4_0 *)row + b;
    const __m256 d = _mm256_mul_ps(block_scale(q->d), _mm256_set1_ps(1.0f / (float)(1 << 28)));
    const __m256i to_top = _mm256_setr_epi8(-1, -1, -1, 0, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1, 3, /**/
                                            -1, -1, -1, 4, -1, -1, -1, 5, -1, -1, -1, 6, -1, -1, -1, 7);
    const __m256i to_top8 = _mm256_setr_epi8(-1, -1, -1, 8, -1, -1, -1, 9, -1, -1, -1, 10, -1, -1, -1, 11, /**/
                                             -1, -1, -1, 12, -1, -1, -1, 13, -1, -1, -1, 14, -1, -1, -1, 15);
    const __m256i codes = _mm256_xor_si256(_mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)q->qs)),
                                           _mm256_set1_epi8((char)0x88));
    const __m256i high = _mm256_set1_epi32((int)0xf0000000u);
    const __m256i a = _mm256_shuffle_epi8(codes, to_top), c = _mm256_shuffle_epi8(codes, to_top8);
    v[0] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_slli_epi32(a, 4)), d);
    v[1] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_slli_epi32(c, 4)), d);
    v[2] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_and_si256(a, high)), d);
    v[3] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_and_si256(c, high)), d);
}

/* dot_tile of quantized rows. */
INLINE void dot_blocks(const void *const *w, const float *const *x, size_t n, const int rows, const int tile,
                       const uint32_t type, struct lanes *acc)
{
    UNROLL
    for (int k = 0; k < rows * tile; k++)
        acc[k].lo = acc[k].hi = _mm256_setzero_ps();
    for (size_t b = 0; b < n / QUANT_BLOCK; b++) {
        UNROLL
        for (int r = 0; r < rows; r++) {
            __m256 v[4];
            load_block(w[r], b, type, v);
            UNROLL
            for (int t = 0; t < tile; t++) {
                struct lanes *const s = &acc[r * tile + t];
                const float *const xb = x[t] + QUANT_BLOCK * b;
                s->lo = _mm256_fmadd_ps(v[0], _mm256_loadu_ps(xb), s->lo);
                s->hi = _mm256_fmadd_ps(v[1], _mm256_loadu_ps(xb + 8), s->hi);
                s->lo = _mm256_fmadd_ps(v[2], _mm256_loadu_ps(xb + 16), s->lo);
                s->hi = _mm256_fmadd_ps(v[3], _mm256_loadu_ps(xb + 24), s->hi);
            }
        }
    }
}

INLINE void dot_keys(const void *const *w, const float *const *x, size_t n, const int rows, const int tile,
                     const uint32_t type, struct lanes *acc)
{
    if (is_quant(type))
        dot_blocks(w, x, n, rows, tile, type, acc);
    else
        dot_tile(w, x, n, rows, tile, type, acc);
}

/* `dims` (the `left` that exist rounded up to 16, zeros behind them) of n rows from dimension d on. */
INLINE void widen_rows(const void *const *row, uint32_t n, uint32_t d, uint32_t left, size_t dims, float *to,
                       const uint32_t type)
{
    for (uint32_t i = 0; i < n; i++, to += dims) {
        size_t k = 0;
        if (is_quant(type)) {
            for (; k < dims; k += QUANT_BLOCK) {
                __m256 v[4];
                load_block(row[i], (d + k) / QUANT_BLOCK, type, v);
                UNROLL
                for (int j = 0; j < 4; j++)
                    _mm256_store_ps(to + k + 8 * j, v[j]);
            }
            continue;
        }
        for (; k + 8 <= left; k += 8)
            _mm256_store_ps(to + k, load_row8(row[i], d + k, type));
        for (; k < dims; k += 8)
            _mm256_store_ps(to + k, load_row_upto8(row[i], d + k, k < left ? left - k : 0, type));
    }
}

/* The same of rows i .. i + n of r. */
static void widen(const struct rows *r, uint32_t i, uint32_t n, uint32_t d, uint32_t left, size_t dims, float *to)
{
    const uint32_t typed = r->typed <= i ? 0 : r->typed - i < n ? r->typed - i : n;
    const void *const *const row = r->row + i;
    switch (r->type) {
    case COLIBRI_TYPE_F32:
        widen_rows(row, typed, d, left, dims, to, COLIBRI_TYPE_F32);
        break;
    case COLIBRI_TYPE_Q8_0:
        widen_rows(row, typed, d, left, dims, to, COLIBRI_TYPE_Q8_0);
        break;
    case COLIBRI_TYPE_Q4_0:
        widen_rows(row, typed, d, left, dims, to, COLIBRI_TYPE_Q4_0);
        break;
    default:
        widen_rows(row, typed, d, left, dims, to, COLIBRI_TYPE_F16);
        break;
    }
    widen_rows(row + typed, n - typed, d, left, dims, to + typed * dims, COLIBRI_TYPE_F16);
}

#endif
