/* Packing: 16 GGUF rows to one packed group and back (colibri/blocks.h).
 *
 * Every packed block is made of fields, and a field interleaves its elements row by row: element i of row r goes
 * to slot 16 * i + r. With 4-byte elements that is "4 consecutive columns of one row lie together", because the
 * nibbles and bits inside a GGUF byte already pair columns as the packed form wants them. Only the fifth bits of
 * Q5_0 and Q5_1 are moved below the byte: their elements are nibbles. */
#ifndef CLB_QUANT_FORMATS_PACK_H
#define CLB_QUANT_FORMATS_PACK_H

#include "common.h"

struct clb_field {
    uint32_t row, group;  /* byte offset in the row block and in the packed block */
    uint32_t size, count; /* bytes of one element, 0 for a nibble; elements of one row */
};

/* CLB_FIELD(q4_k, qs, q, 4): member `qs` of the row block, `q` of the packed block, in elements of 4 bytes. */
#define CLB_FIELD(type, member, x16_member, elem)                                                                      \
    {                                                                                                                  \
        offsetof(struct colibri_##type, member), offsetof(struct colibri_x16_##type, x16_member), elem,                \
            sizeof(((struct colibri_##type *)0)->member) / (elem)                                                      \
    }
#define CLB_FIELD_NIBBLES(type, member, x16_member)                                                                    \
    {                                                                                                                  \
        offsetof(struct colibri_##type, member), offsetof(struct colibri_x16_##type, x16_member), 0,                   \
            sizeof(((struct colibri_##type *)0)->member) * 2                                                           \
    }

/* Vectors of the compiler, 16 bytes on every baseline. Full groups go through them: loading a model moves each byte of
 * the file once from staging to the packed form, and one element at a time that takes longer than reading the file. */
typedef uint8_t clb_u8x16 __attribute__((vector_size(16)));
typedef uint8_t clb_u8x8 __attribute__((vector_size(8)));
typedef uint16_t clb_u16x8 __attribute__((vector_size(16)));
typedef uint32_t clb_u32x4 __attribute__((vector_size(16)));

/* v[i][k] and v[k][i] change places. */
CLB_INLINE void clb_transpose4(clb_u32x4 v[4])
{
    const clb_u32x4 a = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5);
    const clb_u32x4 b = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7);
    const clb_u32x4 c = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5);
    const clb_u32x4 d = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
    v[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
    v[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
    v[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
    v[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

#define CLB_ZIP_LOW(a, b)  __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define CLB_ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)

/* Four perfect shuffles of the 256 bytes exchange row and column. */
CLB_INLINE void clb_transpose16(clb_u8x16 v[16])
{
#pragma GCC unroll 4
    for (int pass = 0; pass < 4; pass++) {
        clb_u8x16 t[16];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            t[2 * i] = CLB_ZIP_LOW(v[i], v[i + 8]);
            t[2 * i + 1] = CLB_ZIP_HIGH(v[i], v[i + 8]);
        }
        memcpy(v, t, sizeof t);
    }
}

/* One perfect shuffle of 64 bytes: byte i goes to i rotated left by one bit of six. */
CLB_INLINE void clb_shuffle64(clb_u8x16 v[4])
{
    const clb_u8x16 a = CLB_ZIP_LOW(v[0], v[2]), b = CLB_ZIP_HIGH(v[0], v[2]);
    const clb_u8x16 c = CLB_ZIP_LOW(v[1], v[3]), d = CLB_ZIP_HIGH(v[1], v[3]);
    v[0] = a;
    v[1] = b;
    v[2] = c;
    v[3] = d;
}

/* `count` elements of `size` bytes of n_rows rows, one by one. */
CLB_INLINE void clb_pack_elems(const unsigned char *row, size_t row_stride, uint32_t n_rows, unsigned char *group,
                               size_t size, size_t begin, size_t count)
{
    for (size_t i = begin; i < count; i++)
        for (size_t r = 0; r < n_rows; r++)
            memcpy(group + (COLIBRI_GROUP_ROWS * i + r) * size, row + r * row_stride + i * size, size);
}

CLB_INLINE void clb_unpack_elems(const unsigned char *group, uint32_t n_rows, unsigned char *row, size_t row_stride,
                                 size_t size, size_t begin, size_t count)
{
    for (size_t i = begin; i < count; i++)
        for (size_t r = 0; r < n_rows; r++)
            memcpy(row + r * row_stride + i * size, group + (COLIBRI_GROUP_ROWS * i + r) * size, size);
}

/* The same for a full group and a multiple of 4 (words) or 16 (bytes) elements. The other direction swaps loads and
 * stores: `to_group` is constant where this is inlined. */
CLB_INLINE void clb_move_words(unsigned char *row, size_t row_stride, unsigned char *group, size_t count, int to_group)
{
    for (size_t i = 0; i < count; i += 4)
#pragma GCC unroll 4
        for (size_t r = 0; r < COLIBRI_GROUP_ROWS; r += 4) {
            clb_u32x4 v[4];
#pragma GCC unroll 4
            for (size_t k = 0; k < 4; k++)
                memcpy(&v[k], to_group ? row + (r + k) * row_stride + 4 * i : group + (16 * (i + k) + r) * 4, 16);
            clb_transpose4(v);
#pragma GCC unroll 4
            for (size_t k = 0; k < 4; k++)
                memcpy(to_group ? group + (16 * (i + k) + r) * 4 : row + (r + k) * row_stride + 4 * i, &v[k], 16);
        }
}

CLB_INLINE void clb_move_bytes(unsigned char *row, size_t row_stride, unsigned char *group, size_t count, int to_group)
{
    for (size_t i = 0; i < count; i += 16) {
        clb_u8x16 v[16];
#pragma GCC unroll 16
        for (size_t k = 0; k < 16; k++)
            memcpy(&v[k], to_group ? row + k * row_stride + i : group + 16 * (i + k), 16);
        clb_transpose16(v);
#pragma GCC unroll 16
        for (size_t k = 0; k < 16; k++)
            memcpy(to_group ? group + 16 * (i + k) : row + k * row_stride + i, &v[k], 16);
    }
}

/* One 2-byte element per row of a full group, as 64-bit words. */
CLB_INLINE void clb_pack_halves(const unsigned char *row, size_t row_stride, unsigned char *group)
{
#pragma GCC unroll 4
    for (size_t r = 0; r < COLIBRI_GROUP_ROWS; r += 4) {
        uint64_t word = 0;
#pragma GCC unroll 4
        for (size_t k = 0; k < 4; k++) {
            uint16_t h;
            memcpy(&h, row + (r + k) * row_stride, 2);
            word |= (uint64_t)h << (16 * k);
        }
        memcpy(group + 2 * r, &word, 8);
    }
}

/* Elements that the vectors take, of a full group. */
CLB_INLINE size_t clb_vector_part(uint32_t n_rows, size_t size, size_t count)
{
    return n_rows != COLIBRI_GROUP_ROWS ? 0 : size == 4 ? count & ~(size_t)3 : size == 1 ? count & ~(size_t)15 : 0;
}

CLB_INLINE void clb_pack_field(const unsigned char *row, size_t row_stride, uint32_t n_rows, unsigned char *group,
                               size_t size, size_t count)
{
    const size_t done = clb_vector_part(n_rows, size, count);
    unsigned char *r = (unsigned char *)(uintptr_t)row; /* only read */
    if (n_rows == COLIBRI_GROUP_ROWS && size == 2 && count == 1) {
        clb_pack_halves(row, row_stride, group);
        return;
    }
    if (size == 4)
        clb_move_words(r, row_stride, group, done, 1);
    else if (size == 1)
        clb_move_bytes(r, row_stride, group, done, 1);
    clb_pack_elems(row, row_stride, n_rows, group, size, done, count);
}

CLB_INLINE void clb_unpack_field(const unsigned char *group, uint32_t n_rows, unsigned char *row, size_t row_stride,
                                 size_t size, size_t count)
{
    const size_t done = clb_vector_part(n_rows, size, count);
    unsigned char *g = (unsigned char *)(uintptr_t)group; /* only read */
    if (size == 4)
        clb_move_words(row, row_stride, g, done, 0);
    else if (size == 1)
        clb_move_bytes(row, row_stride, g, done, 0);
    clb_unpack_elems(group, n_rows, row, row_stride, size, done, count);
}

/* The 32 bits of 16 rows: nibble c of row r's word becomes nibble r of 64-bit word c. Byte k of all rows holds nibbles
 * 2k and 2k + 1: rows pair up in 16-bit lanes, low and high nibbles part. */
CLB_INLINE void clb_pack_nibbles16(const unsigned char *row, size_t row_stride, unsigned char *group)
{
    uint32_t words[COLIBRI_GROUP_ROWS];
    clb_u8x16 v[4];
    for (size_t r = 0; r < COLIBRI_GROUP_ROWS; r++)
        words[r] = clb_load32(row + r * row_stride);
    memcpy(v, words, sizeof v);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        clb_shuffle64(v); /* byte 4 * row + k to 16 * k + row */
#pragma GCC unroll 4
    for (size_t k = 0; k < 4; k++) {
        const clb_u16x8 pair = (clb_u16x8)v[k]; /* even row in the low byte */
        const clb_u8x8 low = __builtin_convertvector((pair & 15) | (pair >> 4 & 0xf0), clb_u8x8);
        const clb_u8x8 high = __builtin_convertvector((pair >> 4 & 15) | (pair >> 8 & 0xf0), clb_u8x8);
        memcpy(group + 16 * k, &low, 8);
        memcpy(group + 16 * k + 8, &high, 8);
    }
}

CLB_INLINE void clb_unpack_nibbles16(const unsigned char *group, unsigned char *row, size_t row_stride)
{
    clb_u8x16 v[4];
    uint32_t words[COLIBRI_GROUP_ROWS];
#pragma GCC unroll 4
    for (size_t k = 0; k < 4; k++) {
        clb_u8x8 low8, high8;
        memcpy(&low8, group + 16 * k, 8);
        memcpy(&high8, group + 16 * k + 8, 8);
        const clb_u16x8 low = __builtin_convertvector(low8, clb_u16x8),
                        high = __builtin_convertvector(high8, clb_u16x8);
        const clb_u16x8 pair = (low & 15) | (low & 0xf0) << 4 | (high & 15) << 4 | (high & 0xf0) << 8;
        v[k] = (clb_u8x16)pair;
    }
    clb_shuffle64(v);
    clb_shuffle64(v); /* byte 16 * k + row to 4 * row + k */
    memcpy(words, v, sizeof words);
    for (size_t r = 0; r < COLIBRI_GROUP_ROWS; r++)
        memcpy(row + r * row_stride, &words[r], 4);
}

/* Nibble c of row r's word becomes nibble r of 64-bit word c. */
static inline void clb_pack_nibbles(const unsigned char *row, size_t row_stride, uint32_t n_rows, unsigned char *group,
                                    size_t count)
{
    if (n_rows == COLIBRI_GROUP_ROWS && count == 8) {
        clb_pack_nibbles16(row, row_stride, group);
        return;
    }
    for (size_t c = 0; c < count; c++) {
        uint64_t word = 0;
        for (size_t r = 0; r < n_rows; r++)
            word |= (uint64_t)(clb_load32(row + r * row_stride) >> (4 * c) & 15u) << (4 * r);
        memcpy(group + 8 * c, &word, 8);
    }
}

static inline void clb_unpack_nibbles(const unsigned char *group, uint32_t n_rows, unsigned char *row,
                                      size_t row_stride, size_t count)
{
    if (n_rows == COLIBRI_GROUP_ROWS && count == 8) {
        clb_unpack_nibbles16(group, row, row_stride);
        return;
    }
    for (size_t r = 0; r < n_rows; r++) {
        uint32_t word = 0;
        for (size_t c = 0; c < count; c++) {
            uint64_t line;
            memcpy(&line, group + 8 * c, 8);
            word |= (uint32_t)(line >> (4 * r) & 15u) << (4 * c);
        }
        memcpy(row + r * row_stride, &word, 4);
    }
}

/* The loops over fields are unrolled, so that each field's size and count are constants in its copy. */
CLB_INLINE void clb_pack_blocks(const struct clb_field *fields, size_t n_fields, size_t block_bytes, size_t n_blocks,
                                const void *rows, size_t row_stride, uint32_t n_rows, void *group)
{
    for (size_t b = 0; b < n_blocks; b++) {
        const unsigned char *in = (const unsigned char *)rows + b * block_bytes;
        unsigned char *out = (unsigned char *)group + b * block_bytes * COLIBRI_GROUP_ROWS;
#pragma GCC unroll 8
        for (size_t f = 0; f < n_fields; f++) {
            const struct clb_field *d = &fields[f];
            switch (d->size) {
            case 0:
                clb_pack_nibbles(in + d->row, row_stride, n_rows, out + d->group, d->count);
                break;
            case 1:
                clb_pack_field(in + d->row, row_stride, n_rows, out + d->group, 1, d->count);
                break;
            case 2:
                clb_pack_field(in + d->row, row_stride, n_rows, out + d->group, 2, d->count);
                break;
            default:
                clb_pack_field(in + d->row, row_stride, n_rows, out + d->group, 4, d->count);
                break;
            }
        }
    }
}

CLB_INLINE void clb_pack(const struct clb_field *fields, size_t n_fields, size_t block_bytes, size_t n_blocks,
                         const void *rows, size_t row_stride, uint32_t n_rows, void *group)
{
    if (n_rows == COLIBRI_GROUP_ROWS) {
        clb_pack_blocks(fields, n_fields, block_bytes, n_blocks, rows, row_stride, COLIBRI_GROUP_ROWS, group);
        return;
    }
    memset(group, 0, n_blocks * block_bytes * COLIBRI_GROUP_ROWS);
    clb_pack_blocks(fields, n_fields, block_bytes, n_blocks, rows, row_stride, n_rows, group);
}

CLB_INLINE void clb_unpack_blocks(const struct clb_field *fields, size_t n_fields, size_t block_bytes, size_t n_blocks,
                                  const void *group, uint32_t n_rows, void *rows, size_t row_stride)
{
    for (size_t b = 0; b < n_blocks; b++) {
        const unsigned char *in = (const unsigned char *)group + b * block_bytes * COLIBRI_GROUP_ROWS;
        unsigned char *out = (unsigned char *)rows + b * block_bytes;
#pragma GCC unroll 8
        for (size_t f = 0; f < n_fields; f++) {
            const struct clb_field *d = &fields[f];
            switch (d->size) {
            case 0:
                clb_unpack_nibbles(in + d->group, n_rows, out + d->row, row_stride, d->count);
                break;
            case 1:
                clb_unpack_field(in + d->group, n_rows, out + d->row, row_stride, 1, d->count);
                break;
            case 2:
                clb_unpack_field(in + d->group, n_rows, out + d->row, row_stride, 2, d->count);
                break;
            default:
                clb_unpack_field(in + d->group, n_rows, out + d->row, row_stride, 4, d->count);
                break;
            }
        }
    }
}

CLB_INLINE void clb_unpack(const struct clb_field *fields, size_t n_fields, size_t block_bytes, size_t n_blocks,
                           const void *group, uint32_t n_rows, void *rows, size_t row_stride)
{
    if (n_rows == COLIBRI_GROUP_ROWS)
        clb_unpack_blocks(fields, n_fields, block_bytes, n_blocks, group, COLIBRI_GROUP_ROWS, rows, row_stride);
    else
        clb_unpack_blocks(fields, n_fields, block_bytes, n_blocks, group, n_rows, rows, row_stride);
}

/* pack_<type>() and unpack_<type>() of the format interface, from the array <type>_fields. */
#define CLB_DEFINE_PACK(type, elems)                                                                                   \
    static void pack_##type(const void *rows, size_t row_stride, uint32_t n_rows, uint32_t n_cols, void *group)        \
    {                                                                                                                  \
        clb_pack(type##_fields, sizeof(type##_fields) / sizeof(type##_fields[0]), sizeof(struct colibri_##type),       \
                 n_cols / (elems), rows, row_stride, n_rows, group);                                                   \
    }                                                                                                                  \
    static void unpack_##type(const void *group, uint32_t n_rows, uint32_t n_cols, void *rows, size_t row_stride)      \
    {                                                                                                                  \
        clb_unpack(type##_fields, sizeof(type##_fields) / sizeof(type##_fields[0]), sizeof(struct colibri_##type),     \
                   n_cols / (elems), group, n_rows, rows, row_stride);                                                 \
    }

#endif
