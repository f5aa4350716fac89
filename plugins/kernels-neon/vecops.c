/* Vector operations, and their table. Definitions: core/ops. */
#include "vecops.h"
#include "kernels.h"
#include "simd.h"

static void rms_norm(float *y, const float *x, const float *w, size_t n, float eps)
{
    struct lanes lane = lanes_zero();
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        UNROLL
        for (int k = 0; k < 4; k++) {
            const float32x4_t v = vld1q_f32(x + i + 4 * k);
            lane.v[k] = vfmaq_f32(lane.v[k], v, v);
        }
    }
    if (i < n) {
        float part[16] = {0};
        memcpy(part, x + i, (n - i) * sizeof(float));
        UNROLL
        for (int k = 0; k < 4; k++) {
            const float32x4_t v = vld1q_f32(part + 4 * k);
            lane.v[k] = vfmaq_f32(lane.v[k], v, v);
        }
    }
    const float mean = lanes_sum(&lane) / (float)n;
    const float32x4_t s = vdupq_n_f32(1.0f / sqrtf(mean + eps));
    for (i = 0; i < n; i += 4) {
        const float32x4_t v = vmulq_f32(load_upto4(x + i, n - i), s);
        store_upto4(y + i, n - i, w ? vmulq_f32(v, load_upto4(w + i, n - i)) : v);
    }
}

static void rope_pair(float *a, float *b, float c, float s)
{
    const float va = *a, bs = *b * s, bc = *b * c;
    *a = fmaf(va, c, -bs);
    *b = fmaf(va, s, bc);
}

/* Four pairs: a' = a c - b s, b' = a s + b c. */
INLINE void rope4(float32x4_t *a, float32x4_t *b, float32x4x2_t cs)
{
    const float32x4_t va = *a, bs = vmulq_f32(*b, cs.val[1]), bc = vmulq_f32(*b, cs.val[0]);
    *a = vfmaq_f32(vnegq_f32(bs), va, cs.val[0]);
    *b = vfmaq_f32(bc, va, cs.val[1]);
}

static void rope(float *x, const float *cs, size_t n_rot, int neox)
{
    const size_t half = n_rot / 2;
    size_t i = 0;
    for (; i + 4 <= half; i += 4) {
        const float32x4x2_t t = vld2q_f32(cs + 2 * i);
        if (neox) {
            float32x4_t a = vld1q_f32(x + i), b = vld1q_f32(x + i + half);
            rope4(&a, &b, t);
            vst1q_f32(x + i, a);
            vst1q_f32(x + i + half, b);
        } else {
            float32x4x2_t v = vld2q_f32(x + 2 * i);
            rope4(&v.val[0], &v.val[1], t);
            vst2q_f32(x + 2 * i, v);
        }
    }
    for (; i < half; i++)
        if (neox)
            rope_pair(x + i, x + i + half, cs[2 * i], cs[2 * i + 1]);
        else
            rope_pair(x + 2 * i, x + 2 * i + 1, cs[2 * i], cs[2 * i + 1]);
}

static void softmax(float *x, size_t n)
{
    const float32x4_t sum = vdupq_n_f32(exp_sum(x, n, max_of(x, n), x));
    for (size_t i = 0; i < n; i += 4)
        store_upto4(x + i, n - i, vdivq_f32(load_upto4(x + i, n - i), sum));
}

static void swiglu(float *y, const float *g, const float *u, size_t n)
{
    const float32x4_t one = vdupq_n_f32(1.0f);
    for (size_t i = 0; i < n; i += 4) {
        const float32x4_t x = load_upto4(g + i, n - i);
        const float32x4_t silu = vdivq_f32(x, vaddq_f32(one, exp4(vnegq_f32(x))));
        store_upto4(y + i, n - i, vmulq_f32(silu, load_upto4(u + i, n - i)));
    }
}

static void add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += 4)
        store_upto4(y + i, n - i, vaddq_f32(load_upto4(y + i, n - i), load_upto4(x + i, n - i)));
}

static void axpy(float *y, const float *x, float s, size_t n)
{
    const float32x4_t sv = vdupq_n_f32(s);
    for (size_t i = 0; i < n; i += 4)
        store_upto4(y + i, n - i, vfmaq_f32(load_upto4(y + i, n - i), sv, load_upto4(x + i, n - i)));
}

/* Four lines of a group at once: a line alone would wait for its sum. */
static void axpy_x16(float *y, const float *x, size_t group_stride, const float *s, uint32_t n_s, size_t n)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16, x += group_stride) {
        float32x4_t a[4];
        UNROLL
        for (int l = 0; l < 4; l++)
            a[l] = vld1q_f32(y + i + 4 * l);
        for (uint32_t k = 0; k < n_s; k++) {
            const float32x4_t sv = vdupq_n_f32(s[k]);
            UNROLL
            for (int l = 0; l < 4; l++)
                a[l] = vfmaq_f32(a[l], sv, vld1q_f32(x + 16 * (size_t)k + 4 * l));
        }
        UNROLL
        for (int l = 0; l < 4; l++)
            vst1q_f32(y + i + 4 * l, a[l]);
    }
    for (; i < n; i += 4) {
        float32x4_t a = load_upto4(y + i, n - i);
        for (uint32_t k = 0; k < n_s; k++)
            a = vfmaq_f32(a, vdupq_n_f32(s[k]), vld1q_f32(x + 16 * (size_t)k + i % 16));
        store_upto4(y + i, n - i, a);
    }
}

static void scale(float *y, float s, size_t n)
{
    const float32x4_t sv = vdupq_n_f32(s);
    for (size_t i = 0; i < n; i += 4)
        store_upto4(y + i, n - i, vmulq_f32(load_upto4(y + i, n - i), sv));
}

/* Scale of a block as colibri_act_block gives it; *inv = 127 / amax, or 0 for a block whose codes are all zero. */
INLINE float act_scale(const float *x, const int n, float *inv)
{
    float32x4_t amax = vdupq_n_f32(0.0f);
    uint32x4_t good = vdupq_n_u32(0xffffffffu);
    for (int i = 0; i < n; i += 4) {
        const float32x4_t abs = vabsq_f32(vld1q_f32(x + i));
        good = vandq_u32(good, vcltq_f32(abs, vdupq_n_f32(INFINITY)));
        amax = max_pass_nan(abs, amax);
    }
    const float max = vmaxvq_f32(amax);
    *inv = 0.0f;
    if (!vminvq_u32(good))
        return NAN;
    if (max < COLIBRI_ACT_TINY)
        return 0.0f;
    *inv = 127.0f / max;
    return max / 127.0f;
}

/* Codes of 16 elements; a broken block (inv 0) has zeros. Converts to nearest even. */
INLINE int8x16_t act_codes(const float *x, float inv)
{
    int16x4_t q[4];
    if (!(inv > 0.0f))
        return vdupq_n_s8(0);
    UNROLL
    for (int i = 0; i < 4; i++)
        q[i] = vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4 * i), inv)));
    return vcombine_s8(vmovn_s16(vcombine_s16(q[0], q[1])), vmovn_s16(vcombine_s16(q[2], q[3])));
}

static void act_q8x32(const float *x, struct colibri_act_q8x32 *out, size_t n)
{
    for (size_t b = 0; b < n / 32; b++) {
        float inv;
        out[b].d = act_scale(x + 32 * b, 32, &inv);
        const int8x16_t q0 = act_codes(x + 32 * b, inv), q1 = act_codes(x + 32 * b + 16, inv);
        out[b].sum = vaddlvq_s8(q0) + vaddlvq_s8(q1);
        vst1q_s8(out[b].q, q0);
        vst1q_s8(out[b].q + 16, q1);
    }
}

static void act_q8x256(const float *x, struct colibri_act_q8x256 *out, size_t n)
{
    for (size_t b = 0; b < n / 256; b++) {
        float inv;
        out[b].d = act_scale(x + 256 * b, 256, &inv);
        out[b].reserved = 0;
        for (int s = 0; s < 16; s++) {
            const int8x16_t q = act_codes(x + 256 * b + 16 * s, inv);
            out[b].bsum[s] = vaddlvq_s8(q);
            vst1q_s8(out[b].q + 16 * s, q);
        }
    }
}

static void f32_to_f16(const float *x, colibri_f16 *out, size_t n)
{
    size_t i = 0;
    for (; i + 4 <= n; i += 4)
        vst1_u16(out + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x + i))));
    if (i < n) {
        uint16_t part[4];
        vst1_u16(part, vreinterpret_u16_f16(vcvt_f16_f32(load_upto4(x + i, n - i))));
        memcpy(out + i, part, (n - i) * sizeof(colibri_f16));
    }
}

static void f16_to_f32(const colibri_f16 *x, float *out, size_t n)
{
    size_t i = 0;
    for (; i + 4 <= n; i += 4)
        vst1q_f32(out + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x + i))));
    if (i < n) {
        uint16_t part[4] = {0};
        float wide[4];
        memcpy(part, x + i, (n - i) * sizeof(colibri_f16));
        vst1q_f32(wide, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(part))));
        memcpy(out + i, wide, (n - i) * sizeof(float));
    }
}

const struct colibri_vecops clb_neon_vecops = {
    .struct_size = sizeof(struct colibri_vecops),
    .max_ulp = COLIBRI_EXACT,
    .rank = NEON_RANK,
    .attention_takes = COLIBRI_ATTN_TAKES_Q8_0 | COLIBRI_ATTN_TAKES_Q4_0 | COLIBRI_ATTN_TAKES_RECENT,
    .name = "neon.vecops",
    .rms_norm = rms_norm,
    .rope = rope,
    .softmax = softmax,
    .swiglu = swiglu,
    .add = add,
    .axpy = axpy,
    .scale = scale,
    .act_q8x32 = act_q8x32,
    .act_q8x256 = act_q8x256,
    .f32_to_f16 = f32_to_f16,
    .attention = clb_neon_attention,
    .axpy_x16 = axpy_x16,
    .f16_to_f32 = f16_to_f32,
};
