#include "ops/hadamard.h"

#include <math.h>

uint32_t clb_hadamard_block(uint32_t dim)
{
    const uint32_t b = dim & (0u - dim);
    return b < CLB_HADAMARD_MOST ? b : CLB_HADAMARD_MOST;
}

/* Distances 1 and 2 of four neighbours. */
static void four(float *x)
{
    const float a = x[0] + x[1], b = x[0] - x[1], c = x[2] + x[3], d = x[2] - x[3];
    x[0] = a + c;
    x[1] = b + d;
    x[2] = a - c;
    x[3] = b - d;
}

/* Distances h and 2h, h a multiple of 4: the loop is over lanes, so that compilers make vectors of it. */
static void two_distances(float *restrict x, uint32_t n, uint32_t h)
{
    for (uint32_t i = 0; i < n; i += 4 * h)
        for (uint32_t j = i; j < i + h; j += 4)
            for (uint32_t l = j; l < j + 4; l++) {
                const float a = x[l] + x[l + h], b = x[l] - x[l + h];
                const float c = x[l + 2 * h] + x[l + 3 * h], d = x[l + 2 * h] - x[l + 3 * h];
                x[l] = a + c;
                x[l + h] = b + d;
                x[l + 2 * h] = a - c;
                x[l + 3 * h] = b - d;
            }
}

static void one_distance(float *restrict x, uint32_t n, uint32_t h)
{
    for (uint32_t i = 0; i < n; i += 2 * h)
        for (uint32_t j = i; j < i + h; j++) {
            const float a = x[j], b = x[j + h];
            x[j] = a + b;
            x[j + h] = a - b;
        }
}

static void block(float *x, uint32_t n, float scale)
{
    for (uint32_t i = 0; n >= 4 && i < n; i += 4)
        four(x + i);
    uint32_t h = n >= 4 ? 4 : 1;
    for (; h >= 4 && 4 * h <= n; h *= 4)
        two_distances(x, n, h);
    for (; 2 * h <= n; h *= 2)
        one_distance(x, n, h);
    for (uint32_t i = 0; i < n; i++)
        x[i] *= scale;
}

void clb_hadamard(float *x, uint32_t dim)
{
    const uint32_t n = clb_hadamard_block(dim);
    const float scale = 1.0f / sqrtf((float)n); /* both operations are rounded correctly everywhere */
    for (uint32_t i = 0; n > 1 && i < dim; i += n)
        block(x + i, n, scale);
}
