/* The formats with 32-column blocks, and their table. Compiled twice: matmul32.c and matmul32_vnni.c. */
#include "kernels.h"
#include "simd.h"
#include "tile.h"

/* Bit i of qh[c] is the fifth bit of byte i of line c: a byte mask as it stands. */
INLINE void add_fifth_bits(const uint64_t qh[8], struct lines *l)
{
    UNROLL
    for (int j = 0; j < 8; j++)
        l->q[j] = _mm512_mask_add_epi8(l->q[j], qh[j], l->q[j], _mm512_set1_epi8(16));
}

INLINE void unpack_q4_0(const struct colibri_x16_q4_0 *w, struct lines *l)
{
    unpack_nibbles(w->q, l);
}

INLINE void unpack_q4_1(const struct colibri_x16_q4_1 *w, struct lines *l)
{
    unpack_nibbles(w->q, l);
}

INLINE void unpack_q5_0(const struct colibri_x16_q5_0 *w, struct lines *l)
{
    unpack_nibbles(w->q, l);
    add_fifth_bits(w->qh, l);
}

INLINE void unpack_q5_1(const struct colibri_x16_q5_1 *w, struct lines *l)
{
    unpack_nibbles(w->q, l);
    add_fifth_bits(w->qh, l);
}

INLINE void unpack_q8_0(const struct colibri_x16_q8_0 *w, struct lines *l)
{
    UNROLL
    for (int j = 0; j < 8; j++)
        l->q[j] = _mm512_loadu_si512(w->q[j]);
    lines_signed(l, 8);
}

INLINE void unpack_iq4_nl(const struct colibri_x16_iq4_nl *w, struct lines *l)
{
    unpack_nibbles(w->q, l);
    lookup_iq4(l);
}

/* Values -12..12 become 4..28: unsigned codes that still allow chains. */
INLINE void unpack_mxfp4(const struct colibri_x16_mxfp4 *w, struct lines *l)
{
    static const int8_t values[16] = COLIBRI_MXFP4_VALUES;
    unpack_nibbles(w->q, l);
    lookup(l, _mm_add_epi8(_mm_loadu_si128((const void *)values), _mm_set1_epi8(16)));
}

#define SCALE_D(name)                                                                                                  \
    INLINE __m512 scale_##name(const struct colibri_x16_##name *w)                                                     \
    {                                                                                                                  \
        return load_f16(w->d);                                                                                         \
    }
SCALE_D(q4_0)
SCALE_D(q4_1)
SCALE_D(q5_0)
SCALE_D(q5_1)
SCALE_D(q8_0)
SCALE_D(iq4_nl)

/* colibri_e8m0_half */
INLINE __m512 scale_mxfp4(const struct colibri_x16_mxfp4 *w)
{
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)w->e));
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __m512i tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2)), tiny));
}

#define SIGNED_OFFSET (VNNI ? 128 : 0) /* see lines_signed */

#define NAME    q4_0
#define OFFSET  8
#define CHAIN   8
#define SIGNED  0
#define HAS_MIN 0
#include "tile32.h"

#define NAME    q4_1
#define OFFSET  0
#define CHAIN   8
#define SIGNED  0
#define HAS_MIN 1
#include "tile32.h"

#define NAME    q5_0
#define OFFSET  16
#define CHAIN   4
#define SIGNED  0
#define HAS_MIN 0
#include "tile32.h"

#define NAME    q5_1
#define OFFSET  0
#define CHAIN   4
#define SIGNED  0
#define HAS_MIN 1
#include "tile32.h"

#define NAME    q8_0
#define OFFSET  SIGNED_OFFSET
#define CHAIN   1
#define SIGNED  1
#define HAS_MIN 0
#include "tile32.h"

#define NAME    iq4_nl
#define OFFSET  SIGNED_OFFSET
#define CHAIN   1
#define SIGNED  1
#define HAS_MIN 0
#include "tile32.h"

#define NAME    mxfp4
#define OFFSET  16
#define CHAIN   4
#define SIGNED  0
#define HAS_MIN 0
#include "tile32.h"

#define SCRATCH 0
const struct colibri_matmul TABLE[] = {
    X16_MATMUL(Q4_0, q4_0, COLIBRI_ACT_Q8X32),   X16_MATMUL(Q4_1, q4_1, COLIBRI_ACT_Q8X32),
    X16_MATMUL(Q5_0, q5_0, COLIBRI_ACT_Q8X32),   X16_MATMUL(Q5_1, q5_1, COLIBRI_ACT_Q8X32),
    X16_MATMUL(Q8_0, q8_0, COLIBRI_ACT_Q8X32),   X16_MATMUL(IQ4_NL, iq4_nl, COLIBRI_ACT_Q8X32),
    X16_MATMUL(MXFP4, mxfp4, COLIBRI_ACT_Q8X32),
};
