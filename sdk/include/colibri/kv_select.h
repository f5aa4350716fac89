/* For KV strategies that rank positions: the n_keep highest scores, in four passes and without memory of its own. */
#ifndef COLIBRI_KV_SELECT_H
#define COLIBRI_KV_SELECT_H

#include <stdint.h>
#include <string.h>

/* Whole numbers in the order of the floats: NaN below everything, -0 equal to +0. */
static inline uint32_t colibri_kv_rank_key(float x)
{
    uint32_t u;
    if (x != x)
        return 0;
    x = x + 0.0f;
    memcpy(&u, &x, 4);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* keep[i] = 1 for the n_keep highest of score[0..n), else 0. Equal scores: the later index stays, so the result depends on
 * nothing but the scores. (Radix selection of the n_keep-th key, 8 bits a pass.) */
static inline void colibri_kv_keep_top(const float *score, uint32_t n, uint32_t n_keep, uint8_t *keep)
{
    uint32_t want = n_keep, prefix = 0, mask = 0;
    if (n_keep >= n) {
        memset(keep, 1, n);
        return;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        uint32_t count[256] = {0};
        uint32_t digit = 255;
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t key = colibri_kv_rank_key(score[i]);
            if ((key & mask) == prefix)
                count[(key >> shift) & 255u]++;
        }
        while (count[digit] < want)
            want -= count[digit--];
        prefix |= digit << shift;
        mask |= UINT32_C(255) << shift;
    }
    for (uint32_t i = n; i-- > 0;) {
        const uint32_t key = colibri_kv_rank_key(score[i]);
        keep[i] = key > prefix || (key == prefix && want > 0);
        want -= key == prefix && want > 0;
    }
}

#endif
