/* The packed 6-bit sub-scales of the superblock formats. */
#ifndef CLB_QUANT_FORMATS_KSCALES_H
#define CLB_QUANT_FORMATS_KSCALES_H

#include "common.h"

/* Q4_K, Q5_K: 8 scales and 8 minimums of 6 bits. Bytes 0-3 and 4-7 hold scales and minimums 0-3 in their low 6 bits;
 * bytes 8-11 hold the low nibbles of scales (low) and minimums (high) 4-7, whose top 2 bits are those of bytes 0-7. */
static inline void clb_get_scales_mins(const uint8_t b[12], int16_t sc[8], int16_t m[8])
{
    for (int j = 0; j < 4; j++) {
        sc[j] = b[j] & 63;
        m[j] = b[j + 4] & 63;
        sc[j + 4] = (int16_t)((b[j + 8] & 15) | (b[j] >> 6 << 4));
        m[j + 4] = (int16_t)((b[j + 8] >> 4) | (b[j + 4] >> 6 << 4));
    }
}

static inline void clb_put_scales_mins(uint8_t b[12], const int16_t sc[8], const int16_t m[8])
{
    for (int j = 0; j < 4; j++) {
        b[j] = (uint8_t)(sc[j] | sc[j + 4] >> 4 << 6);
        b[j + 4] = (uint8_t)(m[j] | m[j + 4] >> 4 << 6);
        b[j + 8] = (uint8_t)((sc[j + 4] & 15) | (m[j + 4] & 15) << 4);
    }
}

/* Q3_K: 16 signed scales of 6 bits, stored plus 32. Bytes 0-7: low nibbles of scales 0-7 (low) and 8-15 (high);
 * byte 8 + j % 4: top bits of scale j at bit 2 * (j / 4). */
static inline void clb_get_scales_q3(const uint8_t b[12], int16_t sc[16])
{
    for (int j = 0; j < 16; j++)
        sc[j] = (int16_t)(((b[j % 8] >> (j / 8 * 4) & 15) | (b[8 + j % 4] >> (j / 4 * 2) & 3) << 4) - 32);
}

static inline void clb_put_scales_q3(uint8_t b[12], const int16_t sc[16])
{
    memset(b, 0, 12);
    for (int j = 0; j < 16; j++) {
        const int v = sc[j] + 32;
        b[j % 8] = (uint8_t)(b[j % 8] | (v & 15) << (j / 8 * 4));
        b[8 + j % 4] = (uint8_t)(b[8 + j % 4] | v >> 4 << (j / 4 * 2));
    }
}

#endif
