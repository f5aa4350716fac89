/* Vector operations, and their table. Definitions: core/ops. */
#include "vecops.h"
#include "kernels.h"
#include "simd.h"

/* Elements [i, i + 8) of p, those below n only. */
INLINE __m256 load_upto(const float *p, size_t i, size_t n)
{
    return n - i >= 8 ? _mm256_loadu_ps(p + i) : _mm256_maskload_ps(p + i, first8(n - i));
}

INLINE void store_upto(float *p, size_t i, size_t n, __m256 v)
{
    if (n - i >= 8)
        _mm256_storeu_ps(p + i, v);
    else
        _mm256_maskstore_ps(p + i, first8(n - i), v);
}

static void rms_norm(float *y, const float *x, const float *w, size_t n, float eps)
{
    struct lanes lane = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m256 lo = _mm256_loadu_ps(x + i), hi = _mm256_loadu_ps(x + i + 8);
        lane.lo = _mm256_fmadd_ps(lo, lo, lane.lo);
        lane.hi = _mm256_fmadd_ps(hi, hi, lane.hi);
    }
    if (i < n) {
        const __m256 lo = load_upto(x, i, n);
        const __m256 hi = n - i > 8 ? load_upto(x, i + 8, n) : _mm256_setzero_ps();
        lane.lo = _mm256_fmadd_ps(lo, lo, lane.lo);
        lane.hi = _mm256_fmadd_ps(hi, hi, lane.hi);
    }
    const float mean = lanes_sum(lane) / (float)n;
    const __m256 s = _mm256_set1_ps(1.0f / sqrtf(mean + eps));
    for (i = 0; i < n; i += 8) {
        const __m256 v = _mm256_mul_ps(load_upto(x, i, n), s);
        store_upto(y, i, n, w ? _mm256_mul_ps(v, load_upto(w, i, n)) : v);
    }
}

/* Pairs (i, i + half): whole lines of a and b with even and odd elements of the table. */
static void rope_neox(float *x, const float *cs, size_t half)
{
    const __m256i order = _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7);
    for (size_t i = 0; i < half; i += 8) {
        const __m256 t0 = load_upto(cs, 2 * i, 2 * half);
        const __m256 t1 = half - i > 4 ? load_upto(cs, 2 * i + 8, 2 * half) : _mm256_setzero_ps();
        /* shuffles work within 128 bits: bring c0..7 and s0..7 into order afterwards */
        const __m256 c = _mm256_permutevar8x32_ps(_mm256_shuffle_ps(t0, t1, 0x88), order);
        const __m256 s = _mm256_permutevar8x32_ps(_mm256_shuffle_ps(t0, t1, 0xdd), order);
        const __m256 a = load_upto(x, i, half), b = load_upto(x + half, i, half);
        const __m256 bs = _mm256_mul_ps(b, s), bc = _mm256_mul_ps(b, c);
        store_upto(x, i, half, _mm256_fmsub_ps(a, c, bs));
        store_upto(x + half, i, half, _mm256_fmadd_ps(a, s, bc));
    }
}

/* Pairs (2i, 2i+1): in lane 2i, a cos - b sin; in lane 2i+1, a sin + b cos. */
static void rope_norm(float *x, const float *cs, size_t n)
{
    for (size_t i = 0; i < n; i += 8) {
        const __m256 v = load_upto(x, i, n), t = load_upto(cs, i, n);
        const __m256 a = _mm256_moveldup_ps(v), b = _mm256_movehdup_ps(v);
        const __m256 bt = _mm256_mul_ps(b, _mm256_permute_ps(t, 0xb1)); /* b sin, b cos */
        store_upto(x, i, n, _mm256_fmaddsub_ps(a, t, bt));
    }
}

static void rope(float *x, const float *cs, size_t n_rot, int neox)
{
    if (neox)
        rope_neox(x, cs, n_rot / 2);
    else
        rope_norm(x, cs, n_rot / 2 * 2);
}

static void softmax(float *x, size_t n)
{
    const __m256 sum = _mm256_set1_ps(exp_sum(x, n, max_of(x, n), x));
    for (size_t i = 0; i < n; i += 8)
        store_upto(x, i, n, _mm256_div_ps(load_upto(x, i, n), sum));
}

static void swiglu(float *y, const float *g, const float *u, size_t n)
{
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    for (size_t i = 0; i < n; i += 8) {
        const __m256 x = load_upto(g, i, n);
        const __m256 silu = _mm256_div_ps(x, _mm256_add_ps(one, exp256(_mm256_xor_ps(x, sign))));
        store_upto(y, i, n, _mm256_mul_ps(silu, load_upto(u, i, n)));
    }
}

static void add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += 8)
        store_upto(y, i, n, _mm256_add_ps(load_upto(y, i, n), load_upto(x, i, n)));
}

static void axpy(float *y, const float *x, float s, size_t n)
{
    const __m256 sv = _mm256_set1_ps(s);
    for (size_t i = 0; i < n; i += 8)
        store_upto(y, i, n, _mm256_fmadd_ps(sv, load_upto(x, i, n), load_upto(y, i, n)));
}

/* Three groups at once: a group alone would wait for its sum. */
static void axpy_x16(float *y, const float *x, size_t group_stride, const float *s, uint32_t n_s, size_t n)
{
    size_t i = 0;
    for (; i + 48 <= n; i += 48, x += 3 * group_stride) {
        __m256 a[6];
        UNROLL
        for (int l = 0; l < 6; l++)
            a[l] = _mm256_loadu_ps(y + i + 8 * l);
        for (uint32_t k = 0; k < n_s; k++) {
            const float *const p = x + 16 * (size_t)k;
            const __m256 sv = _mm256_set1_ps(s[k]);
            UNROLL
            for (int l = 0; l < 6; l++)
                a[l] = _mm256_fmadd_ps(sv, _mm256_loadu_ps(p + (size_t)(l / 2) * group_stride + 8 * (l % 2)), a[l]);
        }
        UNROLL
        for (int l = 0; l < 6; l++)
            _mm256_storeu_ps(y + i + 8 * l, a[l]);
    }
    for (; i < n; i += 8) {
        const float *const p = x + i % 48 / 16 * group_stride + i % 16;
        __m256 a = load_upto(y, i, n);
        for (uint32_t k = 0; k < n_s; k++)
            a = _mm256_fmadd_ps(_mm256_set1_ps(s[k]), _mm256_loadu_ps(p + 16 * (size_t)k), a);
        store_upto(y, i, n, a);
    }
}

static void scale(float *y, float s, size_t n)
{
    const __m256 sv = _mm256_set1_ps(s);
    for (size_t i = 0; i < n; i += 8)
        store_upto(y, i, n, _mm256_mul_ps(load_upto(y, i, n), sv));
}

/* Scale of a block as colibri_act_block gives it; *inv = 127 / amax, or 0 for a block whose codes are all zero. */
INLINE float act_scale(const float *x, const int n, float *inv)
{
    const __m256 abs_bits = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    const __m256 inf = _mm256_set1_ps(INFINITY);
    __m256 amax = _mm256_setzero_ps(), bad = amax;
    for (int i = 0; i < n; i += 8) {
        const __m256 abs = _mm256_and_ps(_mm256_loadu_ps(x + i), abs_bits);
        bad = _mm256_or_ps(bad, _mm256_cmp_ps(abs, inf, _CMP_NLT_UQ));
        amax = _mm256_max_ps(abs, amax);
    }
    const float max = max_lane(amax);
    *inv = 0.0f;
    if (_mm256_movemask_ps(bad))
        return NAN;
    if (max < COLIBRI_ACT_TINY)
        return 0.0f;
    *inv = 127.0f / max;
    return max / 127.0f;
}

/* Codes of 32 elements. Converting rounds to nearest even, as adding and subtracting 1.5 * 2^23 does. */
INLINE __m256i act_codes(const float *x, __m256 inv)
{
    __m256i q[4];
    UNROLL
    for (int i = 0; i < 4; i++)
        q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), inv));
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* Sums of four neighbouring codes in 32-bit lanes. */
INLINE __m256i sum4(__m256i codes)
{
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), codes), _mm256_set1_epi16(1));
}

/* Sums of codes 0..15 and 16..31 in lanes 0 and 1. */
INLINE __m128i sum16(__m256i codes)
{
    const __m256i s = sum4(codes);
    const __m128i t = _mm_hadd_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    return _mm_hadd_epi32(t, t);
}

static void act_q8x32(const float *x, struct colibri_act_q8x32 *out, size_t n)
{
    for (size_t b = 0; b < n / 32; b++) {
        float inv;
        const float d = act_scale(x + 32 * b, 32, &inv);
        /* a broken block must not reach the codes: infinity * 0 would convert to a nonzero one */
        const __m256i q = inv > 0.0f ? act_codes(x + 32 * b, _mm256_set1_ps(inv)) : _mm256_setzero_si256();
        const __m128i s = sum16(q);
        out[b].d = d;
        out[b].sum = _mm_cvtsi128_si32(s) + _mm_extract_epi32(s, 1);
        _mm256_storeu_si256((void *)out[b].q, q);
    }
}

static void act_q8x256(const float *x, struct colibri_act_q8x256 *out, size_t n)
{
    for (size_t b = 0; b < n / 256; b++) {
        float inv;
        out[b].d = act_scale(x + 256 * b, 256, &inv);
        out[b].reserved = 0;
        for (int k = 0; k < 8; k++) {
            const __m256i q =
                inv > 0.0f ? act_codes(x + 256 * b + 32 * k, _mm256_set1_ps(inv)) : _mm256_setzero_si256();
            const __m128i s = sum16(q);
            out[b].bsum[2 * k] = (int16_t)_mm_cvtsi128_si32(s);
            out[b].bsum[2 * k + 1] = (int16_t)_mm_extract_epi32(s, 1);
            _mm256_storeu_si256((void *)(out[b].q + 32 * k), q);
        }
    }
}

static void f32_to_f16(const float *x, colibri_f16 *out, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((void *)(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    if (i < n) {
        uint16_t part[8];
        _mm_storeu_si128((void *)part, _mm256_cvtps_ph(load_upto(x, i, n), _MM_FROUND_TO_NEAREST_INT));
        memcpy(out + i, part, (n - i) * sizeof(colibri_f16));
    }
}

static void f16_to_f32(const colibri_f16 *x, float *out, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(x + i))));
    if (i < n) {
        uint16_t part[8] = {0};
        float wide[8];
        memcpy(part, x + i, (n - i) * sizeof(colibri_f16));
        _mm256_storeu_ps(wide, _mm256_cvtph_ps(_mm_loadu_si128((const void *)part)));
        memcpy(out + i, wide, (n - i) * sizeof(float));
    }
}

const struct colibri_vecops clb_avx2_vecops = {
    .struct_size = sizeof(struct colibri_vecops),
    .max_ulp = COLIBRI_EXACT,
    .rank = AVX2_RANK,
    .attention_takes = COLIBRI_ATTN_TAKES_Q8_0 | COLIBRI_ATTN_TAKES_Q4_0 | COLIBRI_ATTN_TAKES_RECENT,
    .name = "avx2.vecops",
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
    .attention = clb_avx2_attention,
    .axpy_x16 = axpy_x16,
    .f16_to_f32 = f16_to_f32,
};
