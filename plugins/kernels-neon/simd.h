/* Shared by the NEON kernel units: loads, products of code lines, the lane tree, exp.
 *
 * A 64-byte line of the x16 layout (16 rows x 4 columns) is four q registers: quarter 0 has rows 0..3, and so on; a
 * 32-bit lane belongs to one row. One q register of activations holds 16 columns, of which sdot takes 4 by lane.
 *
 * Units built for i8mm pair the lines first: from the registers of quads 2j and 2j+1 of a quarter, zip1 makes 8 columns
 * of rows 0 and 1, zip2 those of rows 2 and 3, which is the shape that smmla multiplies with 8 columns of two
 * activation rows. All codes are unpacked by operations on bytes, so pairing comes first, on packed bytes.
 *
 * sdot and smmla multiply signed bytes exactly into 32 bits: codes need no sign step. Unsigned codes are below 64, so
 * that usmmla would gain nothing. */
#ifndef KERNELS_NEON_SIMD_H
#define KERNELS_NEON_SIMD_H

#include <arm_neon.h>

#include "colibri/kernel.h"
#include "colibri/numerics.h"

#define INLINE   static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline))
/* Tiles are unrolled so that accumulators live in registers; a sanitizer's checks would make that code endless. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNROLL
#elif defined(__clang__)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define UNROLL
#else
#define UNROLL _Pragma("clang loop unroll(full)")
#endif
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
/* Loops over chunks of superblocks are not unrolled: their scales would not fit the registers any better. */
#ifdef __clang__
#define NO_UNROLL _Pragma("clang loop unroll(disable)")
#else
#define NO_UNROLL _Pragma("GCC unroll 1")
#endif

#ifdef __ARM_FEATURE_MATMUL_INT8
#define MMLA 1
#else
#define MMLA 0
#endif

INLINE float32x4_t load_f16(const colibri_f16 *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

INLINE uint8x16_t low_nibbles(uint8x16_t v)
{
    return vandq_u8(v, vdupq_n_u8(15));
}

INLINE uint8x16_t high_nibbles(uint8x16_t v)
{
    return vshrq_n_u8(v, 4);
}

/* A run of quarter lines of codes; with MMLA, q[2j] and q[2j+1] are the paired lines 2j and 2j+1. */
struct lines {
    int8x16_t q[8];
};

/* a and b: what belongs to quads 2j and 2j+1, 4 bytes per row. */
INLINE void pair_lines(uint8x16_t *a, uint8x16_t *b)
{
#if MMLA
    const uint32x4_t u = vreinterpretq_u32_u8(*a), v = vreinterpretq_u32_u8(*b);
    *a = vreinterpretq_u8_u32(vzip1q_u32(u, v));
    *b = vreinterpretq_u8_u32(vzip2q_u32(u, v));
#else
    (void)a, (void)b;
#endif
}

/* Bytes of quarter `quarter` of n lines; n is even. */
INLINE void load_lines(const uint8_t (*line)[64], const int quarter, const int n, uint8x16_t *v)
{
    UNROLL
    for (int j = 0; j < n; j += 2) {
        v[j] = vld1q_u8(line[j] + 16 * quarter);
        v[j + 1] = vld1q_u8(line[j + 1] + 16 * quarter);
        pair_lines(&v[j], &v[j + 1]);
    }
}

/* acc + products of four lines with the 16 columns in x */
INLINE int32x4_t dot4(int32x4_t acc, const int8x16_t *q, int8x16_t x)
{
    acc = vdotq_laneq_s32(acc, q[0], x, 0);
    acc = vdotq_laneq_s32(acc, q[1], x, 1);
    acc = vdotq_laneq_s32(acc, q[2], x, 2);
    return vdotq_laneq_s32(acc, q[3], x, 3);
}

/* start + per row: sum over n = 4 or 8 lines of code * x. */
INLINE int32x4_t dot_lines(int32x4_t start, const struct lines *l, const int8_t *x, const int n)
{
    const int32x4_t s = dot4(start, l->q, vld1q_s8(x));
    return n == 4 ? s : dot4(s, l->q + 4, vld1q_s8(x + 16));
}

/* A sum of a 32-column block is below 32 * 128 * 127 < 2^22 in magnitude. Started at the bits of 1.5 * 2^23, it is the
 * integer part of a float in [2^23, 2^24), whose steps are 1: one subtraction, which has no rounding to do, converts
 * it. Cores such as Cortex-A76 have fewer pipes for conversions. */
#define MAGIC_BITS 0x4b400000
INLINE float32x4_t magic_f32(int32x4_t s)
{
    return vsubq_f32(vreinterpretq_f32_s32(s), vdupq_n_f32(12582912.0f));
}

/* acc + sum of side[k] * sums[k], k < 8 */
INLINE int32x4_t side8(int32x4_t acc, const int16x4_t *side, int16x8_t sums)
{
    acc = vmlal_laneq_s16(acc, side[0], sums, 0);
    acc = vmlal_laneq_s16(acc, side[1], sums, 1);
    acc = vmlal_laneq_s16(acc, side[2], sums, 2);
    acc = vmlal_laneq_s16(acc, side[3], sums, 3);
    acc = vmlal_laneq_s16(acc, side[4], sums, 4);
    acc = vmlal_laneq_s16(acc, side[5], sums, 5);
    acc = vmlal_laneq_s16(acc, side[6], sums, 6);
    return vmlal_laneq_s16(acc, side[7], sums, 7);
}

/* ---- rows ------------------------------------------------------------------------------------------------ */

/* n items in `parts` parts whose sizes differ by at most 1: where part i begins. */
INLINE uint32_t part_begin(uint32_t n, uint32_t parts, uint32_t i)
{
    return n / parts * i + (i < n % parts ? i : n % parts);
}

INLINE uint32_t parts_of(uint32_t n, uint32_t most)
{
    return (n + most - 1) / most;
}

/* Activation rows t, t+1, .. of a product. */
INLINE void gather_x(const struct colibri_matmul_args *a, uint32_t t, const int tile, const void **x)
{
    for (int i = 0; i < tile; i++) {
        const uint32_t ti = t + (uint32_t)i;
        x[i] = (const char *)a->x + (size_t)(a->x_index ? a->x_index[ti] : ti) * a->x_stride;
    }
}

/* How many activation rows to take over all groups before the next ones: they stay in the L2 cache meanwhile. */
INLINE uint32_t token_block(const struct colibri_matmul_args *a, uint32_t tile)
{
    const size_t fit = (192u << 10) / (a->x_stride ? a->x_stride : 1);
    return fit < 2 * tile ? 2 * tile : fit > 240 ? 240 : (uint32_t)fit / tile * tile;
}

/* Stores the first n <= 4 of v. */
INLINE void store_upto4(float *y, size_t n, float32x4_t v)
{
    if (n >= 4) {
        vst1q_f32(y, v);
        return;
    }
    float part[4];
    vst1q_f32(part, v);
    memcpy(y, part, n * sizeof(float));
}

/* The n <= 4 elements at p, zeros behind. */
INLINE float32x4_t load_upto4(const float *p, size_t n)
{
    if (n >= 4)
        return vld1q_f32(p);
    float part[4] = {0};
    memcpy(part, p, n * sizeof(float));
    return vld1q_f32(part);
}

/* Stores the rows of quarter `quarter` that exist. */
INLINE void store_rows(const struct colibri_matmul_args *a, uint32_t g, const int quarter, uint32_t t, float32x4_t v)
{
    const size_t row = 16 * (size_t)g + 4 * (size_t)quarter;
    if (row < a->n_rows)
        store_upto4(a->y + (size_t)t * a->y_stride + row, a->n_rows - row, v);
}

/* ---- 16 virtual lanes: v[0] has lanes 0..3, v[3] lanes 12..15 ---------------------------------------------- */

struct lanes {
    float32x4_t v[4];
};

INLINE struct lanes lanes_zero(void)
{
    const float32x4_t z = vdupq_n_f32(0.0f);
    return (struct lanes){{z, z, z, z}};
}

INLINE float32x4_t lanes_fold4(const struct lanes *a)
{
    return vaddq_f32(vaddq_f32(a->v[0], a->v[2]), vaddq_f32(a->v[1], a->v[3]));
}

/* colibri_lanes_sum of four: additions of the same pairs in the same order, four at a time. */
INLINE float32x4_t lanes_sum4(const struct lanes *a, const struct lanes *b, const struct lanes *c,
                              const struct lanes *d)
{
    const float32x4_t a4 = lanes_fold4(a), b4 = lanes_fold4(b), c4 = lanes_fold4(c), d4 = lanes_fold4(d);
    const float32x4_t ab =
        vcombine_f32(vadd_f32(vget_low_f32(a4), vget_high_f32(a4)), vadd_f32(vget_low_f32(b4), vget_high_f32(b4)));
    const float32x4_t cd =
        vcombine_f32(vadd_f32(vget_low_f32(c4), vget_high_f32(c4)), vadd_f32(vget_low_f32(d4), vget_high_f32(d4)));
    return vpaddq_f32(ab, cd);
}

INLINE float lanes_sum(const struct lanes *a)
{
    const float32x4_t t4 = lanes_fold4(a);
    return vpadds_f32(vadd_f32(vget_low_f32(t4), vget_high_f32(t4)));
}

/* Larger of both; a NaN in x is passed over. */
INLINE float32x4_t max_pass_nan(float32x4_t x, float32x4_t max)
{
    return vbslq_f32(vcgtq_f32(x, max), x, max);
}

/* colibri_expf */
INLINE float32x4_t exp4(float32x4_t x)
{
    const float32x4_t round = vdupq_n_f32(COLIBRI_EXP_ROUND);
    const float32x4_t biased = vfmaq_f32(round, x, vdupq_n_f32(COLIBRI_EXP_LOG2E));
    const float32x4_t n = vsubq_f32(biased, round);
    float32x4_t r = vfmaq_f32(x, n, vdupq_n_f32(-COLIBRI_EXP_LN2_HI));
    r = vfmaq_f32(r, n, vdupq_n_f32(-COLIBRI_EXP_LN2_LO));
    float32x4_t p = vdupq_n_f32(COLIBRI_EXP_C6);
    p = vfmaq_f32(vdupq_n_f32(COLIBRI_EXP_C5), p, r);
    p = vfmaq_f32(vdupq_n_f32(COLIBRI_EXP_C4), p, r);
    p = vfmaq_f32(vdupq_n_f32(COLIBRI_EXP_C3), p, r);
    p = vfmaq_f32(vdupq_n_f32(COLIBRI_EXP_C2), p, r);
    p = vfmaq_f32(vdupq_n_f32(COLIBRI_EXP_C1), p, r);
    p = vfmaq_f32(r, p, vmulq_f32(r, r));
    p = vaddq_f32(p, vdupq_n_f32(1.0f));
    const int32x4_t pow2 = vshlq_n_s32(vaddq_s32(vreinterpretq_s32_f32(biased), vdupq_n_s32(127)), 23);
    p = vmulq_f32(p, vreinterpretq_f32_s32(pow2));
    /* both comparisons are false for a NaN, whose p is a NaN already */
    p = vbslq_f32(vcltq_f32(x, vdupq_n_f32(COLIBRI_EXP_MIN)), vdupq_n_f32(0.0f), p);
    return vbslq_f32(vcgtq_f32(x, vdupq_n_f32(COLIBRI_EXP_MAX)), vdupq_n_f32(INFINITY), p);
}

#endif
