/* Little-endian numbers in byte buffers. */
#ifndef CLB_REPLAY_BYTES_H
#define CLB_REPLAY_BYTES_H

#include <stdint.h>
#include <string.h>

static inline uint16_t clb_get16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}
static inline uint32_t clb_get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline uint64_t clb_get64(const uint8_t *p)
{
    return clb_get32(p) | (uint64_t)clb_get32(p + 4) << 32;
}
static inline float clb_get_f32(const uint8_t *p)
{
    const uint32_t bits = clb_get32(p);
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}
static inline double clb_get_f64(const uint8_t *p)
{
    const uint64_t bits = clb_get64(p);
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static inline uint8_t *clb_put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
    return p + 2;
}
static inline uint8_t *clb_put32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> 8 * i);
    return p + 4;
}
static inline uint8_t *clb_put64(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(v >> 8 * i);
    return p + 8;
}
static inline uint8_t *clb_put_f32(uint8_t *p, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return clb_put32(p, bits);
}
static inline uint8_t *clb_put_f64(uint8_t *p, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return clb_put64(p, bits);
}

#endif
