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

CLB_INLINE void clb_pack_field(const unsigned char *row, size_t row_stride, uint32_t n_rows, unsigned char *group,
                               size_t size, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (size_t r = 0; r < n_rows; r++)
            memcpy(group + (COLIBRI_GROUP_ROWS * i + r) * size, row + r * row_stride + i * size, size);
}

CLB_INLINE void clb_unpack_field(const unsigned char *group, uint32_t n_rows, unsigned char *row, size_t row_stride,
                                 size_t size, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (size_t r = 0; r < n_rows; r++)
            memcpy(row + r * row_stride + i * size, group + (COLIBRI_GROUP_ROWS * i + r) * size, size);
}

/* Nibble c of row r's word becomes nibble r of 64-bit word c. */
static inline void clb_pack_nibbles(const unsigned char *row, size_t row_stride, uint32_t n_rows, unsigned char *group,
                                    size_t count)
{
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

CLB_INLINE void clb_pack(const struct clb_field *fields, size_t n_fields, size_t block_bytes, size_t n_blocks,
                         const void *rows, size_t row_stride, uint32_t n_rows, void *group)
{
    if (n_rows < COLIBRI_GROUP_ROWS)
        memset(group, 0, n_blocks * block_bytes * COLIBRI_GROUP_ROWS);
    for (size_t b = 0; b < n_blocks; b++) {
        const unsigned char *in = (const unsigned char *)rows + b * block_bytes;
        unsigned char *out = (unsigned char *)group + b * block_bytes * COLIBRI_GROUP_ROWS;
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

CLB_INLINE void clb_unpack(const struct clb_field *fields, size_t n_fields, size_t block_bytes, size_t n_blocks,
                           const void *group, uint32_t n_rows, void *rows, size_t row_stride)
{
    for (size_t b = 0; b < n_blocks; b++) {
        const unsigned char *in = (const unsigned char *)group + b * block_bytes * COLIBRI_GROUP_ROWS;
        unsigned char *out = (unsigned char *)rows + b * block_bytes;
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
