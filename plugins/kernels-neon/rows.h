/* Rows of keys and values: where they lie, and their elements as F32. */
#ifndef KERNELS_NEON_ROWS_H
#define KERNELS_NEON_ROWS_H

#include "dot.h"

#define QUANT_BLOCK 32u /* elements */

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

static size_t row_bytes(uint32_t type, size_t dims)
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

INLINE float32x4_t block_scale(const colibri_f16 *d)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_dup_u16(d)));
}

/* 16 elements of block b of a quantized row, the first or second half: scale * code, which has no rounding to do. */
INLINE struct lanes load_half(const void *row, size_t b, const int half, const uint32_t type)
{
    struct lanes l;
    if (type == COLIBRI_TYPE_Q8_0) {
        /* a code at the upper end of 32 bits is code * 2^24, which the conversion divides by that */
        static const uint8_t to_top[4][16] = {
            {255, 255, 255, 0, 255, 255, 255, 1, 255, 255, 255, 2, 255, 255, 255, 3},
            {255, 255, 255, 4, 255, 255, 255, 5, 255, 255, 255, 6, 255, 255, 255, 7},
            {255, 255, 255, 8, 255, 255, 255, 9, 255, 255, 255, 10, 255, 255, 255, 11},
            {255, 255, 255, 12, 255, 255, 255, 13, 255, 255, 255, 14, 255, 255, 255, 15},
        };
        const struct colibri_q8_0 *const q = (const struct colibri_q8_0 *)row + b;
        const float32x4_t d = block_scale(&q->d);
        const int8x16_t codes = vld1q_s8(q->qs + 16 * half);
        UNROLL
        for (int k = 0; k < 4; k++) {
            const int32x4_t top = vreinterpretq_s32_s8(vqtbl1q_s8(codes, vld1q_u8(to_top[k])));
            l.v[k] = vmulq_f32(vcvtq_n_f32_s32(top, 24), d);
        }
        return l;
    }
    /* -8 .. 7 as F32: only the upper two bytes are not zero */
    static const uint8_t upper[16] = {0xc1, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xbf,
                                      0x00, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40};
    static const uint8_t lower[16] = {0x00, 0xe0, 0xc0, 0xa0, 0x80, 0x40, 0x00, 0x80,
                                      0x00, 0x80, 0x00, 0x40, 0x80, 0xa0, 0xc0, 0xe0};
    const struct colibri_q4_0 *const q = (const struct colibri_q4_0 *)row + b;
    const float32x4_t d = block_scale(&q->d);
    const uint8x16_t bytes = vld1q_u8(q->qs), nibbles = half ? high_nibbles(bytes) : low_nibbles(bytes);
    const uint8x16_t up = vqtbl1q_u8(vld1q_u8(upper), nibbles), lo = vqtbl1q_u8(vld1q_u8(lower), nibbles);
    const uint16x8_t zero = vdupq_n_u16(0);
    UNROLL
    for (int k = 0; k < 4; k += 2) {
        const uint16x8_t words = vreinterpretq_u16_u8(k ? vzip2q_u8(lo, up) : vzip1q_u8(lo, up));
        l.v[k] = vmulq_f32(vreinterpretq_f32_u16(vzip1q_u16(zero, words)), d);
        l.v[k + 1] = vmulq_f32(vreinterpretq_f32_u16(vzip2q_u16(zero, words)), d);
    }
    return l;
}

/* dot_tile of rows of any type. */
INLINE void dot_keys(const void *const *w, const float *const *x, size_t n, const int rows, const int tile,
                     const uint32_t type, struct lanes *acc)
{
    if (!is_quant(type)) {
        dot_tile(w, x, n, rows, tile, type, acc);
        return;
    }
    UNROLL
    for (int k = 0; k < rows * tile; k++)
        acc[k] = lanes_zero();
    for (size_t b = 0; b < n / QUANT_BLOCK; b++) {
        UNROLL
        for (int half = 0; half < 2; half++) {
            struct lanes xv[2];
            UNROLL
            for (int t = 0; t < tile; t++)
                xv[t] = load_row16(x[t], QUANT_BLOCK * b + 16 * (size_t)half, COLIBRI_TYPE_F32);
            UNROLL
            for (int r = 0; r < rows; r++) {
                const struct lanes wv = load_half(w[r], b, half, type);
                UNROLL
                for (int t = 0; t < tile; t++)
                    add_products(&acc[r * tile + t], &wv, &xv[t]);
            }
        }
    }
}

INLINE void store_lanes(float *to, const struct lanes *x)
{
    UNROLL
    for (int part = 0; part < 4; part++)
        vst1q_f32(to + 4 * part, x->v[part]);
}

/* `dims` (the `left` that exist rounded up to 16, zeros behind them) of n rows from dimension d on. */
INLINE void widen_rows(const void *const *row, uint32_t n, uint32_t d, uint32_t left, size_t dims, float *to,
                       const uint32_t type)
{
    for (uint32_t i = 0; i < n; i++, to += dims) {
        if (is_quant(type)) {
            for (size_t k = 0; k < dims; k += QUANT_BLOCK) {
                const size_t b = (d + k) / QUANT_BLOCK;
                const struct lanes x = load_half(row[i], b, 0, type), y = load_half(row[i], b, 1, type);
                store_lanes(to + k, &x);
                store_lanes(to + k + 16, &y);
            }
            continue;
        }
        for (size_t k = 0; k < dims; k += 16) {
            const struct lanes x =
                k + 16 <= left ? load_row16(row[i], d + k, type) : load_row_part(row[i], d + k, left - k, type);
            store_lanes(to + k, &x);
        }
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
