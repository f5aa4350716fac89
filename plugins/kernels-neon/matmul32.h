/* The formats with 32-column blocks: how codes and scales are read. Compiled twice: for sdot (matmul32.c) and for smmla
 * (matmul32_i8mm.c), which define
 *   TABLE the component table; MATMUL, PREFIX, RANK, MIN_X, CPU_EXTRA (kernels.h) */
#include "gemm.h"
#include "kernels.h"
#include "simd.h"

/* Low nibbles are quads 0..3, high nibbles quads 4..7. */
INLINE void load_nibbles(const uint8_t q[4][64], const int quarter, uint8x16_t n[8])
{
    load_lines(q, quarter, 4, n);
    UNROLL
    for (int j = 0; j < 4; j++) {
        n[4 + j] = high_nibbles(n[j]);
        n[j] = low_nibbles(n[j]);
    }
}

INLINE void unpack_nibbles(const uint8_t q[4][64], const int quarter, struct lines *l)
{
    uint8x16_t n[8];
    load_nibbles(q, quarter, n);
    UNROLL
    for (int j = 0; j < 8; j++)
        l->q[j] = vreinterpretq_s8_u8(n[j]);
}

/* Bit i of qh[c] is the fifth bit of byte i of line c. Byte 2 * quarter of it has rows 0 and 1 of a quarter, the next
 * byte rows 2 and 3: a table lookup in qh[2j], qh[2j+1] brings each to the lanes of its rows. */
INLINE void unpack_5bit(const uint8_t q[4][64], const uint64_t qh[8], const int quarter, struct lines *l)
{
#if MMLA /* two rows by two quads; the next register has the next two rows */
    const uint8x16_t bits =
        vcombine_u8(vcreate_u8(UINT64_C(0x0804020108040201)), vcreate_u8(UINT64_C(0x8040201080402010)));
    const uint8x16_t first = vreinterpretq_u8_u64(vdupq_n_u64(UINT64_C(0x0808080800000000)));
    const int next = 1;
#else /* four rows by one quad; the next register has the next quad */
    const uint8x16_t bits = vreinterpretq_u8_u64(vdupq_n_u64(UINT64_C(0x8040201008040201)));
    const uint8x16_t first = vcombine_u8(vdup_n_u8(0), vdup_n_u8(1));
    const int next = 8;
#endif
    uint8x16_t n[8];
    load_nibbles(q, quarter, n);
    UNROLL
    for (int j = 0; j < 8; j++) {
        const uint8x16_t qh2 = vreinterpretq_u8_u64(vld1q_u64(qh + j / 2 * 2));
        const uint8x16_t at = vaddq_u8(first, vdupq_n_u8((uint8_t)(2 * quarter + (j % 2 ? next : 0))));
        const uint8x16_t fifth = vandq_u8(vtstq_u8(vqtbl1q_u8(qh2, at), bits), vdupq_n_u8(16));
        l->q[j] = vreinterpretq_s8_u8(vorrq_u8(n[j], fifth));
    }
}

INLINE void unpack_lookup(const uint8_t q[4][64], const int quarter, const int8_t values[16], struct lines *l)
{
    const int8x16_t table = vld1q_s8(values);
    uint8x16_t n[8];
    load_nibbles(q, quarter, n);
    UNROLL
    for (int j = 0; j < 8; j++)
        l->q[j] = vqtbl1q_s8(table, n[j]);
}

INLINE void unpack_q4_0(const struct colibri_x16_q4_0 *w, const int quarter, struct lines *l)
{
    unpack_nibbles(w->q, quarter, l);
}

INLINE void unpack_q4_1(const struct colibri_x16_q4_1 *w, const int quarter, struct lines *l)
{
    unpack_nibbles(w->q, quarter, l);
}

INLINE void unpack_q5_0(const struct colibri_x16_q5_0 *w, const int quarter, struct lines *l)
{
    unpack_5bit(w->q, w->qh, quarter, l);
}

INLINE void unpack_q5_1(const struct colibri_x16_q5_1 *w, const int quarter, struct lines *l)
{
    unpack_5bit(w->q, w->qh, quarter, l);
}

INLINE void unpack_q8_0(const struct colibri_x16_q8_0 *w, const int quarter, struct lines *l)
{
    uint8x16_t v[8];
    load_lines((const void *)w->q, quarter, 8, v);
    UNROLL
    for (int j = 0; j < 8; j++)
        l->q[j] = vreinterpretq_s8_u8(v[j]);
}

INLINE void unpack_iq4_nl(const struct colibri_x16_iq4_nl *w, const int quarter, struct lines *l)
{
    static const int8_t values[16] = COLIBRI_IQ4_VALUES;
    unpack_lookup(w->q, quarter, values, l);
}

INLINE void unpack_mxfp4(const struct colibri_x16_mxfp4 *w, const int quarter, struct lines *l)
{
    static const int8_t values[16] = COLIBRI_MXFP4_VALUES;
    unpack_lookup(w->q, quarter, values, l);
}

#define SCALE_D(name)                                                                                                  \
    INLINE float32x4_t scale_##name(const struct colibri_x16_##name *w, const int quarter)                             \
    {                                                                                                                  \
        return load_f16(w->d + 4 * quarter);                                                                           \
    }
SCALE_D(q4_0)
SCALE_D(q4_1)
SCALE_D(q5_0)
SCALE_D(q5_1)
SCALE_D(q8_0)
SCALE_D(iq4_nl)

/* colibri_e8m0_half */
INLINE float32x4_t scale_mxfp4(const struct colibri_x16_mxfp4 *w, const int quarter)
{
    uint32_t four;
    memcpy(&four, w->e + 4 * quarter, 4);
    const uint32x4_t e = vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)))));
    const uint32x4_t normal = vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23);
    const uint32x4_t tiny = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(e));
    return vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(e, vdupq_n_u32(2)), tiny, normal));
}

#define NAME       q4_0
#define PANEL_FROM (MMLA ? 8 : 17)
#define OFFSET     8
#define HAS_MIN    0
#include "tile32.h"

#define NAME       q4_1
#define PANEL_FROM (MMLA ? 8 : 17)
#define OFFSET     0
#define HAS_MIN    1
#include "tile32.h"

#define NAME       q5_0
#define PANEL_FROM 5
#define OFFSET     16
#define HAS_MIN    0
#include "tile32.h"

#define NAME       q5_1
#define PANEL_FROM 5
#define OFFSET     0
#define HAS_MIN    1
#include "tile32.h"

#define NAME       q8_0
#define PANEL_FROM (MMLA ? 8 : 17)
#define OFFSET     0
#define HAS_MIN    0
#include "tile32.h"

#define NAME       iq4_nl
#define PANEL_FROM (MMLA ? 5 : 9)
#define OFFSET     0
#define HAS_MIN    0
#include "tile32.h"

#define NAME       mxfp4
#define PANEL_FROM 5
#define OFFSET     0
#define HAS_MIN    0
#include "tile32.h"

const struct colibri_matmul TABLE[N_MATMUL32] = {
    X16_MATMUL(Q4_0, q4_0, COLIBRI_ACT_Q8X32),   X16_MATMUL(Q4_1, q4_1, COLIBRI_ACT_Q8X32),
    X16_MATMUL(Q5_0, q5_0, COLIBRI_ACT_Q8X32),   X16_MATMUL(Q5_1, q5_1, COLIBRI_ACT_Q8X32),
    X16_MATMUL(Q8_0, q8_0, COLIBRI_ACT_Q8X32),   X16_MATMUL(IQ4_NL, iq4_nl, COLIBRI_ACT_Q8X32),
    X16_MATMUL(MXFP4, mxfp4, COLIBRI_ACT_Q8X32),
};
