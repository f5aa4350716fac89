/* Memory layouts: GGUF row blocks, the packed x16 groups, and quantized activations.
 *
 * Row blocks are the bytes of a GGUF tensor: the layouts published with ggml, little-endian.
 *
 * Packed x16: 16 consecutive rows ("a group") of one matrix, block column after block column. Inside a block,
 * the weights of 4 consecutive columns of one row lie together, so that one 64-byte line holds
 * 16 rows x 4 columns: byte [4 * r + k] belongs to row r and column quad*4 + k. With nibbles, one byte holds
 * two columns; which two is stated below. Every packed block is a bit permutation of the 16 row blocks that
 * it came from and has exactly 16 times their size. Rows that a last group lacks are zero bytes.
 *
 * Float formats (F32, F16, BF16) are multiplied in row layout: their dot product sums columns in 16 virtual
 * lanes (numerics.h), for which a row is already in the right order, and GGUF rows can be used in place. */
#ifndef COLIBRI_BLOCKS_H
#define COLIBRI_BLOCKS_H

#include <stdint.h>

/* GGUF tensor type ids (the numbers of the file format). */
enum colibri_gguf_type {
    COLIBRI_TYPE_F32 = 0,
    COLIBRI_TYPE_F16 = 1,
    COLIBRI_TYPE_Q4_0 = 2,
    COLIBRI_TYPE_Q4_1 = 3,
    COLIBRI_TYPE_Q5_0 = 6,
    COLIBRI_TYPE_Q5_1 = 7,
    COLIBRI_TYPE_Q8_0 = 8,
    COLIBRI_TYPE_Q2_K = 10,
    COLIBRI_TYPE_Q3_K = 11,
    COLIBRI_TYPE_Q4_K = 12,
    COLIBRI_TYPE_Q5_K = 13,
    COLIBRI_TYPE_Q6_K = 14,
    COLIBRI_TYPE_IQ4_NL = 20,
    COLIBRI_TYPE_IQ4_XS = 23,
    COLIBRI_TYPE_BF16 = 30,
    COLIBRI_TYPE_MXFP4 = 39
};

#define COLIBRI_GROUP_ROWS 16u

enum colibri_layout {
    COLIBRI_LAYOUT_ROWS = 0, /* GGUF rows, one after the other */
    COLIBRI_LAYOUT_X16 = 1   /* packed groups of 16 rows */
};

typedef uint16_t colibri_f16; /* IEEE binary16 bits */

/* ---- GGUF row blocks ------------------------------------------------------------------------------ */

struct colibri_q4_0 { colibri_f16 d; uint8_t qs[16]; };                     /* low: col i, high: col i+16 */
struct colibri_q4_1 { colibri_f16 d, m; uint8_t qs[16]; };
struct colibri_q5_0 { colibri_f16 d; uint8_t qh[4]; uint8_t qs[16]; };      /* bit c of qh: col c */
struct colibri_q5_1 { colibri_f16 d, m; uint8_t qh[4]; uint8_t qs[16]; };
struct colibri_q8_0 { colibri_f16 d; int8_t qs[32]; };
struct colibri_iq4_nl { colibri_f16 d; uint8_t qs[16]; };
struct colibri_mxfp4 { uint8_t e; uint8_t qs[16]; };
struct colibri_q2_k { uint8_t scales[16]; uint8_t qs[64]; colibri_f16 d, dmin; };
struct colibri_q3_k { uint8_t hmask[32]; uint8_t qs[64]; uint8_t scales[12]; colibri_f16 d; };
struct colibri_q4_k { colibri_f16 d, dmin; uint8_t scales[12]; uint8_t qs[128]; };
struct colibri_q5_k { colibri_f16 d, dmin; uint8_t scales[12]; uint8_t qh[32]; uint8_t qs[128]; };
struct colibri_q6_k { uint8_t ql[128]; uint8_t qh[64]; int8_t scales[16]; colibri_f16 d; };
struct colibri_iq4_xs { colibri_f16 d; uint16_t scales_h; uint8_t scales_l[4]; uint8_t qs[128]; };

/* ---- packed x16 blocks: 32 columns ------------------------------------------------------------------ */

/* q[j] is line j of 4: low nibbles = columns 4j..4j+3, high nibbles = columns 16+4j..16+4j+3.
 * qh[c] has the fifth bits of column quad c (columns 4c..4c+3): bit 4*r + k is row r, column 4c + k. */
struct colibri_x16_q4_0 { colibri_f16 d[16]; uint8_t q[4][64]; };
struct colibri_x16_q4_1 { colibri_f16 d[16], m[16]; uint8_t q[4][64]; };
struct colibri_x16_q5_0 { colibri_f16 d[16]; uint64_t qh[8]; uint8_t q[4][64]; };
struct colibri_x16_q5_1 { colibri_f16 d[16], m[16]; uint64_t qh[8]; uint8_t q[4][64]; };
struct colibri_x16_q8_0 { colibri_f16 d[16]; int8_t q[8][64]; }; /* line j: columns 4j..4j+3 */
struct colibri_x16_iq4_nl { colibri_f16 d[16]; uint8_t q[4][64]; };
struct colibri_x16_mxfp4 { uint8_t e[16]; uint8_t q[4][64]; };

/* ---- packed x16 superblocks: 256 columns ------------------------------------------------------------ */

/* 6-bit scale words: s[w][r] is little-endian word w of row r's 12 scale bytes, so that one 16-lane register
 * holds one word of every row. Sub-block = 32 columns (Q4_K, Q5_K, IQ4_XS) or 16 (Q2_K, Q3_K, Q6_K). */

/* q[c][j]: chunk c of 64 columns, line j of 8: low = columns 64c+4j.., high = columns 64c+32+4j.. */
struct colibri_x16_q4_k { colibri_f16 d[16], dmin[16]; uint32_t s[3][16]; uint8_t q[4][8][64]; };
/* qh[j]: byte of columns 4j..4j+3 modulo 32; bit b of it is sub-block b's fifth bit. */
struct colibri_x16_q5_k { colibri_f16 d[16], dmin[16]; uint32_t s[3][16]; uint8_t qh[8][64]; uint8_t q[4][8][64]; };
/* n = half of 128 columns. ql[n][i], i < 8: low = columns 128n+4i.., high = columns 128n+64+4i..;
 * i >= 8: low = columns 128n+32+4(i-8).., high = columns 128n+96+4(i-8)...
 * qh[n][j]: bits 2s,2s+1 belong to columns 128n+32s+4j... scales[s][r]: sub-block s of row r. */
struct colibri_x16_q6_k { colibri_f16 d[16]; int8_t scales[16][16]; uint8_t qh[2][8][64]; uint8_t ql[2][16][64]; };
/* q[n][j]: bits 2s,2s+1 belong to columns 128n+32s+4j..; scales[s][r]: low nibble scale, high nibble min. */
struct colibri_x16_q2_k { colibri_f16 d[16], dmin[16]; uint8_t scales[16][16]; uint8_t q[2][8][64]; };
/* q as Q2_K. hmask[j]: byte of columns 4j.. modulo 32; bit b belongs to columns 32b+4j... */
struct colibri_x16_q3_k { colibri_f16 d[16]; uint32_t s[3][16]; uint8_t hmask[8][64]; uint8_t q[2][8][64]; };
/* q[b][j]: sub-block b: low = columns 32b+4j.., high = columns 32b+16+4j..; scales_l[r]: 4 bytes of row r. */
struct colibri_x16_iq4_xs { colibri_f16 d[16]; uint16_t scales_h[16]; uint32_t scales_l[16]; uint8_t q[8][4][64]; };

/* ---- activations ------------------------------------------------------------------------------------ */

#define COLIBRI_ACT_F32 "f32"       /* float[n_cols], for float weights */
#define COLIBRI_ACT_Q8X32 "q8x32"   /* struct colibri_act_q8x32[n_cols / 32] */
#define COLIBRI_ACT_Q8X256 "q8x256" /* struct colibri_act_q8x256[n_cols / 256] */

struct colibri_act_q8x32 { float d; int32_t sum; int8_t q[32]; };                      /* sum of q */
struct colibri_act_q8x256 { float d; int32_t reserved; int16_t bsum[16]; int8_t q[256]; }; /* sums of 16 q */

/* Codebooks (values of nibble codes). MXFP4 values are doubled, its scale is halved to match. */
#define COLIBRI_IQ4_VALUES {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
#define COLIBRI_MXFP4_VALUES {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

#ifndef __cplusplus
#define COLIBRI_SAME_SIZE(name) \
    _Static_assert(sizeof(struct colibri_x16_##name) == 16 * sizeof(struct colibri_##name), #name)
COLIBRI_SAME_SIZE(q4_0);
COLIBRI_SAME_SIZE(q4_1);
COLIBRI_SAME_SIZE(q5_0);
COLIBRI_SAME_SIZE(q5_1);
COLIBRI_SAME_SIZE(q8_0);
COLIBRI_SAME_SIZE(iq4_nl);
COLIBRI_SAME_SIZE(mxfp4);
COLIBRI_SAME_SIZE(q2_k);
COLIBRI_SAME_SIZE(q3_k);
COLIBRI_SAME_SIZE(q4_k);
COLIBRI_SAME_SIZE(q5_k);
COLIBRI_SAME_SIZE(q6_k);
COLIBRI_SAME_SIZE(iq4_xs);
#undef COLIBRI_SAME_SIZE
#endif

#endif
