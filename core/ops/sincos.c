/* See sincos.h. The series are the plain Taylor series, long enough for doubles on the reduced ranges. */
#include "ops/sincos.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* pi/2 in three parts; the first two have 30 significant bits, so that n * part is exact for |n| < 2^23. */
#define PIO2_1       0x1.921fb54p+0
#define PIO2_2       0x1.10b46118p-30
#define PIO2_3       0x1.313198a2e0370p-61
#define TWO_OVER_PI  0x1.45f306dc9c883p-1
#define ROUND_DOUBLE 6755399441055744.0 /* 1.5 * 2^52: adding and subtracting it rounds to the nearest even integer */
#define LN2          0x1.62e42fefa39efp-1
#define LOG2_E       0x1.71547652b82fep+0

/* |r| <= pi/4 + a little: the first dropped term is below 1e-18. Nested: r(1 - r2/(2*3)(1 - r2/(4*5)(...))) */
static double sin_reduced(double r)
{
    const double r2 = r * r;
    double p = 1.0;
    for (int k = 18; k >= 2; k -= 2)
        p = 1.0 - r2 / (double)(k * (k + 1)) * p;
    return r * p;
}

static double cos_reduced(double r)
{
    const double r2 = r * r;
    double p = 1.0;
    for (int k = 19; k >= 1; k -= 2)
        p = 1.0 - r2 / (double)(k * (k + 1)) * p;
    return p;
}

void clb_sincos(double angle, float *c, float *s)
{
    if (!(angle > -1e7 && angle < 1e7)) {
        *c = NAN;
        *s = NAN;
        return;
    }
    const double n = (angle * TWO_OVER_PI + ROUND_DOUBLE) - ROUND_DOUBLE;
    const double r = ((angle - n * PIO2_1) - n * PIO2_2) - n * PIO2_3;
    const double cr = cos_reduced(r), sr = sin_reduced(r);
    switch ((int)((int64_t)n & 3)) {
    case 0:
        *c = (float)cr;
        *s = (float)sr;
        break;
    case 1:
        *c = (float)-sr;
        *s = (float)cr;
        break;
    case 2:
        *c = (float)-cr;
        *s = (float)-sr;
        break;
    default:
        *c = (float)sr;
        *s = (float)-cr;
        break;
    }
}

double clb_log2(double x)
{
    uint64_t u;
    memcpy(&u, &x, 8);
    int e = (int)(u >> 52) - 1023;
    u = (u & UINT64_C(0x000fffffffffffff)) | UINT64_C(0x3ff0000000000000);
    double m;
    memcpy(&m, &u, 8);
    if (m > 1.4142135623730951) {
        m = m * 0.5;
        e++;
    }
    /* ln m = 2 artanh(z) = 2 z (1 + z^2/3 + z^4/5 + ...), |z| <= 0.1716 */
    const double z = (m - 1.0) / (m + 1.0), z2 = z * z;
    double p = 0.0;
    for (int k = 25; k >= 1; k -= 2)
        p = p * z2 + 1.0 / (double)k;
    return (double)e + 2.0 * z * p * LOG2_E;
}

double clb_exp2(double x)
{
    const double n = (x + ROUND_DOUBLE) - ROUND_DOUBLE;
    const double z = (x - n) * LN2;
    double p = 1.0;
    for (int k = 16; k >= 1; k--) /* 1 + z(1 + z/2(1 + z/3(...))), |z| <= 0.3466 */
        p = 1.0 + z / (double)k * p;
    const uint64_t u = (uint64_t)((int64_t)n + 1023) << 52;
    double pow2;
    memcpy(&pow2, &u, 8);
    return p * pow2;
}

void clb_rope_inv_freq(float *inv_freq, size_t n, double base)
{
    const double l = clb_log2(base);
    for (size_t i = 0; i < n; i++)
        inv_freq[i] = (float)clb_exp2(-((double)i * l) / (double)n);
}
