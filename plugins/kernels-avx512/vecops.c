/* Vector operations, and their table. Definitions: core/ops. */
#include "vecops.h"
#include "kernels.h"
#include "simd.h"

/* Runs BODY with i = 0, 16, .. and the mask m of the elements that exist. */
#define FOR_LINES(n, BODY)                                                                                             \
    do {                                                                                                               \
        size_t i = 0;                                                                                                  \
        for (; i + 16 <= (n); i += 16) {                                                                               \
            const __mmask16 m = 0xffff;                                                                                \
            BODY                                                                                                       \
        }                                                                                                              \
        if (i < (n)) {                                                                                                 \
            const __mmask16 m = first16((n)-i);                                                                        \
            BODY                                                                                                       \
        }                                                                                                              \
    } while (0)

#define LOAD(p)     _mm512_maskz_loadu_ps(m, (p) + i)
#define STORE(p, v) _mm512_mask_storeu_ps((p) + i, m, v)

static void rms_norm(float *y, const float *x, const float *w, size_t n, float eps)
{
    __m512 lane = _mm512_setzero_ps();
    FOR_LINES(n, {
        const __m512 v = LOAD(x);
        lane = _mm512_fmadd_ps(v, v, lane);
    });
    const float mean = lanes_sum(lane) / (float)n;
    const __m512 s = _mm512_set1_ps(1.0f / sqrtf(mean + eps));
    if (w)
        FOR_LINES(n, { STORE(y, _mm512_mul_ps(_mm512_mul_ps(LOAD(x), s), LOAD(w))); });
    else
        FOR_LINES(n, { STORE(y, _mm512_mul_ps(LOAD(x), s)); });
}

/* Pairs (i, i + half): whole lines of a and b with even and odd elements of the table. */
static void rope_neox(float *x, const float *cs, size_t half)
{
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    for (size_t i = 0; i < half; i += 16) {
        const size_t left = half - i;
        const __mmask16 m = first16(left);
        const __m512 t0 = _mm512_maskz_loadu_ps(first16(2 * left), cs + 2 * i);
        const __m512 t1 = _mm512_maskz_loadu_ps(left > 8 ? first16(2 * left - 16) : 0, cs + 2 * i + 16);
        const __m512 c = _mm512_permutex2var_ps(t0, even, t1), s = _mm512_permutex2var_ps(t0, odd, t1);
        const __m512 a = LOAD(x), b = LOAD(x + half);
        const __m512 bs = _mm512_mul_ps(b, s), bc = _mm512_mul_ps(b, c);
        STORE(x, _mm512_fmsub_ps(a, c, bs));
        STORE(x + half, _mm512_fmadd_ps(a, s, bc));
    }
}

/* Pairs (2i, 2i+1): in lane 2i, a cos - b sin; in lane 2i+1, a sin + b cos. */
static void rope_norm(float *x, const float *cs, size_t n)
{
    const __m512 odd_bits = _mm512_castsi512_ps(_mm512_set1_epi64(INT64_C(0x0000000080000000)));
    FOR_LINES(n, {
        const __m512 v = LOAD(x);
        const __m512 t = LOAD(cs);
        const __m512 a = _mm512_moveldup_ps(v);
        const __m512 b = _mm512_movehdup_ps(v);
        const __m512 swapped = _mm512_permute_ps(t, 0xb1);                    /* sin, cos */
        const __m512 bt = _mm512_xor_ps(_mm512_mul_ps(b, swapped), odd_bits); /* -(b sin), b cos */
        STORE(x, _mm512_fmadd_ps(a, t, bt));
    });
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
    const __m512 max = _mm512_set1_ps(max_of(x, n));
    __m512 lane = _mm512_setzero_ps();
    FOR_LINES(n, {
        const __m512 e = exp_below(_mm512_sub_ps(LOAD(x), max));
        STORE(x, e);
        lane = _mm512_mask_add_ps(lane, m, lane, e);
    });
    const __m512 sum = _mm512_set1_ps(lanes_sum(lane));
    FOR_LINES(n, { STORE(x, _mm512_div_ps(LOAD(x), sum)); });
}

static void swiglu(float *y, const float *g, const float *u, size_t n)
{
    const __m512 one = _mm512_set1_ps(1.0f), sign = _mm512_set1_ps(-0.0f);
    FOR_LINES(n, {
        const __m512 x = LOAD(g);
        const __m512 silu = _mm512_div_ps(x, _mm512_add_ps(one, exp512(_mm512_xor_ps(x, sign))));
        STORE(y, _mm512_mul_ps(silu, LOAD(u)));
    });
}

static void add(float *y, const float *x, size_t n)
{
    FOR_LINES(n, { STORE(y, _mm512_add_ps(LOAD(y), LOAD(x))); });
}

static void axpy(float *y, const float *x, float s, size_t n)
{
    const __m512 sv = _mm512_set1_ps(s);
    FOR_LINES(n, { STORE(y, _mm512_fmadd_ps(sv, LOAD(x), LOAD(y))); });
}

/* Four groups at once: a group alone would wait for its sum. */
static void axpy_x16(float *y, const float *x, size_t group_stride, const float *s, uint32_t n_s, size_t n)
{
    size_t i = 0;
    for (; i + 64 <= n; i += 64, x += 4 * group_stride) {
        __m512 a = _mm512_loadu_ps(y + i), b = _mm512_loadu_ps(y + i + 16), c = _mm512_loadu_ps(y + i + 32),
               d = _mm512_loadu_ps(y + i + 48);
        for (uint32_t k = 0; k < n_s; k++) {
            const float *const p = x + 16 * (size_t)k;
            const __m512 sv = _mm512_set1_ps(s[k]);
            a = _mm512_fmadd_ps(sv, _mm512_loadu_ps(p), a);
            b = _mm512_fmadd_ps(sv, _mm512_loadu_ps(p + group_stride), b);
            c = _mm512_fmadd_ps(sv, _mm512_loadu_ps(p + 2 * group_stride), c);
            d = _mm512_fmadd_ps(sv, _mm512_loadu_ps(p + 3 * group_stride), d);
        }
        _mm512_storeu_ps(y + i, a);
        _mm512_storeu_ps(y + i + 16, b);
        _mm512_storeu_ps(y + i + 32, c);
        _mm512_storeu_ps(y + i + 48, d);
    }
    for (; i < n; i += 16, x += group_stride) {
        const __mmask16 m = n - i < 16 ? first16(n - i) : (__mmask16)0xffff;
        __m512 a = _mm512_maskz_loadu_ps(m, y + i);
        for (uint32_t k = 0; k < n_s; k++)
            a = _mm512_fmadd_ps(_mm512_set1_ps(s[k]), _mm512_loadu_ps(x + 16 * (size_t)k), a);
        _mm512_mask_storeu_ps(y + i, m, a);
    }
}

static void scale(float *y, float s, size_t n)
{
    const __m512 sv = _mm512_set1_ps(s);
    FOR_LINES(n, { STORE(y, _mm512_mul_ps(LOAD(y), sv)); });
}

/* colibri_act_block of n = 16 * lines elements: scale to d, codes as 32-bit lanes; returns 0 for a block without codes.
 */
INLINE int act_block(const float *x, const int lines, float *d, __m512i *q)
{
    const __m512i abs_bits = _mm512_set1_epi32(0x7fffffff);
    const __m512 inf = _mm512_set1_ps(INFINITY);
    __m512 v[16], amax = _mm512_setzero_ps();
    __mmask16 bad = 0;
    UNROLL
    for (int i = 0; i < lines; i++) {
        v[i] = _mm512_loadu_ps(x + 16 * i);
        const __m512 abs = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v[i]), abs_bits));
        bad |= _mm512_cmp_ps_mask(abs, inf, _CMP_NLT_UQ);
        amax = _mm512_max_ps(abs, amax);
    }
    const float max = _mm512_reduce_max_ps(amax);
    if (bad || max < COLIBRI_ACT_TINY) {
        *d = bad ? NAN : 0.0f;
        return 0;
    }
    const __m512 inv = _mm512_set1_ps(127.0f / max);
    UNROLL
    for (int i = 0; i < lines; i++) /* rounds to nearest even, as adding and subtracting 1.5 * 2^23 does */
        q[i] = _mm512_cvtps_epi32(_mm512_mul_ps(v[i], inv));
    *d = max / 127.0f;
    return 1;
}

static void act_q8x32(const float *x, struct colibri_act_q8x32 *out, size_t n)
{
    for (size_t b = 0; b < n / 32; b++) {
        __m512i q[2];
        if (!act_block(x + 32 * b, 2, &out[b].d, q)) {
            out[b].sum = 0;
            memset(out[b].q, 0, sizeof(out[b].q));
            continue;
        }
        out[b].sum = _mm512_reduce_add_epi32(_mm512_add_epi32(q[0], q[1]));
        _mm_storeu_si128((void *)out[b].q, _mm512_cvtepi32_epi8(q[0]));
        _mm_storeu_si128((void *)(out[b].q + 16), _mm512_cvtepi32_epi8(q[1]));
    }
}

static void act_q8x256(const float *x, struct colibri_act_q8x256 *out, size_t n)
{
    for (size_t b = 0; b < n / 256; b++) {
        __m512i q[16];
        out[b].reserved = 0;
        if (!act_block(x + 256 * b, 16, &out[b].d, q)) {
            memset(out[b].bsum, 0, sizeof(out[b].bsum));
            memset(out[b].q, 0, sizeof(out[b].q));
            continue;
        }
        UNROLL
        for (int s = 0; s < 16; s++) {
            out[b].bsum[s] = (int16_t)_mm512_reduce_add_epi32(q[s]);
            _mm_storeu_si128((void *)(out[b].q + 16 * s), _mm512_cvtepi32_epi8(q[s]));
        }
    }
}

static void f32_to_f16(const float *x, colibri_f16 *out, size_t n)
{
    FOR_LINES(n, {
        const __m256i h = _mm512_maskz_cvtps_ph(m, LOAD(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm256_mask_storeu_epi16(out + i, m, h);
    });
}

static void f16_to_f32(const colibri_f16 *x, float *out, size_t n)
{
    FOR_LINES(n, { STORE(out, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, x + i))); });
}

const struct colibri_vecops clb_avx512_vecops = {
    .struct_size = sizeof(struct colibri_vecops),
    .attention_takes = COLIBRI_ATTN_TAKES_Q8_0 | COLIBRI_ATTN_TAKES_Q4_0 | COLIBRI_ATTN_TAKES_RECENT,
    .max_ulp = COLIBRI_EXACT,
    .rank = AVX512_RANK,
    .name = "avx512.vecops",
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
    .attention = clb_avx512_attention,
    .axpy_x16 = axpy_x16,
    .f16_to_f32 = f16_to_f32,
};
