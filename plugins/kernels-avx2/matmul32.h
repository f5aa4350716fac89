/* The formats with 32-column blocks, and their table. Compiled twice: matmul32.c and matmul32_vnni.c. */
#include "kernels.h"
#include "panel.h"

/* Quad j: low nibbles are quads 0..3, high nibbles quads 4..7. */
INLINE __m256i nibbles(const uint8_t q[4][64], const int half, const int j)
{
    const __m256i v = load256(q[j % 4] + 32 * half);
    return j < 4 ? low_nibbles(v) : high_nibbles(v);
}

/* Bit i of qh[j] is the fifth bit of byte i of quad j. */
INLINE __m256i fifth_bits(const uint64_t qh[8], const int half, const int j)
{
    const __m256i first = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3,
                                           3, 3, 3, 3, 3, 3);
    const __m256i spread = half ? _mm256_add_epi8(first, _mm256_set1_epi8(4)) : first;
    const __m256i bits = _mm256_set1_epi64x((long long)UINT64_C(0x8040201008040201));
    return where_bits(_mm256_shuffle_epi8(_mm256_set1_epi64x((long long)qh[j]), spread), bits, 16);
}

INLINE __m256i lookup(__m256i codes, __m128i table)
{
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes);
}

INLINE __m256i quad_q4_0(const struct colibri_x16_q4_0 *w, const int half, const int j)
{
    return nibbles(w->q, half, j);
}

INLINE __m256i quad_q4_1(const struct colibri_x16_q4_1 *w, const int half, const int j)
{
    return nibbles(w->q, half, j);
}

INLINE __m256i quad_q5_0(const struct colibri_x16_q5_0 *w, const int half, const int j)
{
    return _mm256_or_si256(nibbles(w->q, half, j), fifth_bits(w->qh, half, j));
}

INLINE __m256i quad_q5_1(const struct colibri_x16_q5_1 *w, const int half, const int j)
{
    return _mm256_or_si256(nibbles(w->q, half, j), fifth_bits(w->qh, half, j));
}

INLINE __m256i quad_q8_0(const struct colibri_x16_q8_0 *w, const int half, const int j)
{
    return signed_codes(load256(w->q[j] + 32 * half));
}

INLINE __m256i quad_iq4_nl(const struct colibri_x16_iq4_nl *w, const int half, const int j)
{
    return lookup(nibbles(w->q, half, j), iq4_table());
}

INLINE __m256i magnitudes_q8_0(const struct colibri_x16_q8_0 *w, const int half, const int j)
{
    return _mm256_abs_epi8(load256(w->q[j] + 32 * half));
}

INLINE __m256i magnitudes_iq4_nl(const struct colibri_x16_iq4_nl *w, const int half, const int j)
{
    return lookup(nibbles(w->q, half, j), _mm_abs_epi8(iq4_table()));
}

/* Values -12..12 become 0..24: unsigned codes, which need no sign step and allow chains. */
INLINE __m256i quad_mxfp4(const struct colibri_x16_mxfp4 *w, const int half, const int j)
{
    static const int8_t values[16] = COLIBRI_MXFP4_VALUES;
    const __m128i table = _mm_add_epi8(_mm_loadu_si128((const void *)values), _mm_set1_epi8(12));
    return lookup(nibbles(w->q, half, j), table);
}

#define SCALE_D(name)                                                                                                  \
    INLINE __m256 scale_##name(const struct colibri_x16_##name *w, const int half)                                     \
    {                                                                                                                  \
        return load_f16(w->d + 8 * half);                                                                              \
    }
SCALE_D(q4_0)
SCALE_D(q4_1)
SCALE_D(q5_0)
SCALE_D(q5_1)
SCALE_D(q8_0)
SCALE_D(iq4_nl)

/* colibri_e8m0_half */
INLINE __m256 scale_mxfp4(const struct colibri_x16_mxfp4 *w, const int half)
{
    const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(w->e + 8 * half)));
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    const __m256i is_tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, is_tiny));
}

#define NAME    q4_0
#define DIRECT  4
#define OFFSET  8
#define CHAIN   8
#define SIGNED  0
#define HAS_MIN 0
#include "tile32.h"

#define NAME    q4_1
#define DIRECT  4
#define OFFSET  0
#define CHAIN   8
#define SIGNED  0
#define HAS_MIN 1
#include "tile32.h"

#define NAME    q5_0
#define DIRECT  2
#define OFFSET  16
#define CHAIN   4
#define SIGNED  0
#define HAS_MIN 0
#include "tile32.h"

#define NAME    q5_1
#define DIRECT  2
#define OFFSET  0
#define CHAIN   4
#define SIGNED  0
#define HAS_MIN 1
#include "tile32.h"

#define NAME    q8_0
#define DIRECT  4
#define OFFSET  0
#define CHAIN   1
#define SIGNED  1
#define HAS_MIN 0
#include "tile32.h"

#define NAME    iq4_nl
#define DIRECT  4
#define OFFSET  0
#define CHAIN   1
#define SIGNED  1
#define HAS_MIN 0
#include "tile32.h"

#define NAME    mxfp4
#define DIRECT  4
#define OFFSET  12
#define CHAIN   4
#define SIGNED  0
#define HAS_MIN 0
#include "tile32.h"

const struct colibri_matmul TABLE[N_MATMUL32] = {
    X16_MATMUL(Q4_0, q4_0, COLIBRI_ACT_Q8X32),   X16_MATMUL(Q4_1, q4_1, COLIBRI_ACT_Q8X32),
    X16_MATMUL(Q5_0, q5_0, COLIBRI_ACT_Q8X32),   X16_MATMUL(Q5_1, q5_1, COLIBRI_ACT_Q8X32),
    X16_MATMUL(Q8_0, q8_0, COLIBRI_ACT_Q8X32),   X16_MATMUL(IQ4_NL, iq4_nl, COLIBRI_ACT_Q8X32),
    X16_MATMUL(MXFP4, mxfp4, COLIBRI_ACT_Q8X32),
};
