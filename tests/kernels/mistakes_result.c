/* Kernels with wrong results, most of them right for ordinary input. */
#include "mistakes.h"

#include <unistd.h>

/* ThreadSanitizer sees races before the check does, and ends it with a report of its own. */
#if defined(__SANITIZE_THREAD__)
#define TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TSAN 1
#endif
#endif

static void right(const struct colibri_matmul_args *a, uint32_t type)
{
    fmt_matmul(fmt_find(type), a);
}

static void exact_q4_k(const struct colibri_matmul_args *a)
{
    right(a, COLIBRI_TYPE_Q4_K);
}

/* Calls f for every result of the range. */
static void each(const struct colibri_matmul_args *a, float (*f)(float y))
{
    for (uint32_t t = 0; t < a->n_x; t++)
        for (uint32_t row = 16 * a->group_begin; row < 16 * a->group_end && row < a->n_rows; row++) {
            float *const y = a->y + t * a->y_stride + row;
            *y = f(*y);
        }
}

static float flip_last_bit(float y)
{
    return colibri_bits_f32(colibri_f32_bits(y) ^ 1u);
}

/* One unit in the last place, in one row of one product. */
static void one_ulp(const struct colibri_matmul_args *a)
{
    right(a, COLIBRI_TYPE_Q4_K);
    if (a->group_begin < a->group_end) {
        float *const y = a->y + (a->n_x - 1) * a->y_stride + 16 * (size_t)a->group_begin;
        *y = flip_last_bit(*y);
    }
}

#ifndef TSAN
static void all_groups(const struct colibri_matmul_args *a)
{
    struct colibri_matmul_args b = *a;
    b.group_begin = 0;
    b.group_end = (a->n_rows + 15) / 16;
    right(&b, COLIBRI_TYPE_Q4_K);
}
#endif

static void ignores_index(const struct colibri_matmul_args *a)
{
    struct colibri_matmul_args b = *a;
    b.x_index = NULL;
    b.x_stride = a->x_index ? 0 : a->x_stride;
    right(&b, COLIBRI_TYPE_Q4_K);
}

static void skips_a_row(const struct colibri_matmul_args *a)
{
    struct colibri_matmul_args b = *a;
    b.n_rows = a->n_rows - 1;
    right(&b, COLIBRI_TYPE_Q4_K);
}

static void row_too_far(const struct colibri_matmul_args *a)
{
    right(a, COLIBRI_TYPE_Q4_K);
    if (a->y_stride > a->n_rows && a->n_x > 1)
        a->y[a->n_rows] = 0.0f;
}

/* The same sum in another order: equal for most inputs, and exactly the mistake that reviews miss. */
static void other_order(const struct colibri_matmul_args *a)
{
    for (uint32_t t = 0; t < a->n_x; t++)
        for (uint32_t row = 16 * a->group_begin; row < 16 * a->group_end && row < a->n_rows; row++) {
            const float *const w = (const float *)(const void *)((const char *)a->w + row * (a->group_stride / 16));
            const float *const x = (const void *)((const char *)a->x + (a->x_index ? a->x_index[t] : t) * a->x_stride);
            float sum = 0.0f;
            for (uint32_t c = 0; c < a->n_cols; c++)
                sum = fmaf(w[c], x[c], sum);
            a->y[t * a->y_stride + row] = sum;
        }
}

static float flush(float y)
{
    return fabsf(y) < 0x1p-126f ? 0.0f * y : y;
}

static void loses_subnormals(const struct colibri_matmul_args *a)
{
    right(a, COLIBRI_TYPE_Q4_0);
    each(a, flush);
}

static float no_nan(float y)
{
    return y != y ? 0.0f : y;
}

static void nan_to_zero(const struct colibri_matmul_args *a)
{
    right(a, COLIBRI_TYPE_Q4_K);
    each(a, no_nan);
}

static float no_infinity(float y)
{
    return y > 3.402823466e38f ? 3.402823466e38f : y < -3.402823466e38f ? -3.402823466e38f : y;
}

static void clamps_infinity(const struct colibri_matmul_args *a)
{
    right(a, COLIBRI_TYPE_Q4_0);
    each(a, no_infinity);
}

static const struct colibri_act_q8x32 *act(const struct colibri_matmul_args *a, uint32_t t)
{
    return (const void *)((const char *)a->x + (a->x_index ? a->x_index[t] : t) * a->x_stride);
}

static int saturate16(int v)
{
    return v > 32767 ? 32767 : v < -32768 ? -32768 : v;
}

/* maddubs with |x| and the code with x's sign: right for every code but -128, whose negative is no byte. */
static void sign_of_byte(const struct colibri_matmul_args *a)
{
    for (uint32_t t = 0; t < a->n_x; t++)
        for (uint32_t row = 16 * a->group_begin; row < 16 * a->group_end && row < a->n_rows; row++) {
            const struct colibri_x16_q8_0 *const w = (const void *)((const char *)a->w + row / 16 * a->group_stride);
            const struct colibri_act_q8x32 *const x = act(a, t);
            float acc = 0.0f;
            for (uint32_t b = 0; b < a->n_cols / 32; b++) {
                int isum = 0;
                for (uint32_t c = 0; c < 32; c += 2) {
                    int pair = 0;
                    for (uint32_t k = c; k < c + 2; k++) {
                        const int q = w[b].q[k / 4][4 * (row % 16) + k % 4];
                        pair += x[b].q[k] < 0 ? -x[b].q[k] * (int8_t)(uint8_t)-q : x[b].q[k] * q;
                    }
                    isum += saturate16(pair);
                }
                acc = fmaf(colibri_f16_f32(w[b].d[row % 16]) * x[b].d, (float)isum, acc);
            }
            a->y[t * a->y_stride + row] = acc;
        }
}

/* Blocks whose scale is zero are left out: wrong where the activation's scale is NaN. Sums of 16 bits that saturate
 * after five quads instead of being widened: right for all but the largest codes. */
static void q4_0(const struct colibri_matmul_args *a, bool skip_zero, bool narrow)
{
    for (uint32_t t = 0; t < a->n_x; t++)
        for (uint32_t row = 16 * a->group_begin; row < 16 * a->group_end && row < a->n_rows; row++) {
            const struct colibri_x16_q4_0 *const w = (const void *)((const char *)a->w + row / 16 * a->group_stride);
            const struct colibri_act_q8x32 *const x = act(a, t);
            float acc = 0.0f;
            for (uint32_t b = 0; b < a->n_cols / 32; b++) {
                const float d = colibri_f16_f32(w[b].d[row % 16]);
                if (skip_zero && d == 0.0f)
                    continue;
                int isum = -8 * x[b].sum, run = 0;
                for (uint32_t c = 0; c < 32; c++) {
                    const unsigned byte = w[b].q[c % 16 / 4][4 * (row % 16) + c % 4];
                    const int product = (int)(c < 16 ? byte & 15u : byte >> 4) * x[b].q[c];
                    run = narrow ? saturate16(run + product) : run + product;
                }
                acc = fmaf(d * x[b].d, (float)(isum + run), acc);
            }
            a->y[t * a->y_stride + row] = acc;
        }
}

static void skips_zero_scales(const struct colibri_matmul_args *a)
{
    q4_0(a, true, false);
}

static void saturates(const struct colibri_matmul_args *a)
{
    q4_0(a, false, true);
}

/* ---- hidden state -------------------------------------------------------------------------------------------------
 */

/* Right the first time, one bit off when called with the very same arguments again. */
static void second_call(const struct colibri_matmul_args *a)
{
    static _Thread_local struct colibri_matmul_args last;
    right(a, COLIBRI_TYPE_Q4_K);
    if (memcmp(&last, a, sizeof(last)) == 0)
        each(a, flip_last_bit);
    last = *a;
}

/* Keeps results by address and shape, as if weights never changed. */
static void remembers_address(const struct colibri_matmul_args *a)
{
    static _Thread_local struct colibri_matmul_args last;
    static _Thread_local float kept[4096];
    const bool known = memcmp(&last, a, sizeof(last)) == 0;
    const size_t n = (a->n_x - 1) * a->y_stride + a->n_rows;
    right(a, COLIBRI_TYPE_Q4_K);
    for (uint32_t t = 0; t < a->n_x && n <= 4096; t++)
        for (uint32_t row = 16 * a->group_begin; row < 16 * a->group_end && row < a->n_rows; row++) {
            const size_t at = t * a->y_stride + row;
            if (known)
                a->y[at] = kept[at];
            else
                kept[at] = a->y[at];
        }
    if (n <= 4096)
        last = *a;
}

/* Passes its arguments through a static variable: right unless two threads meet. */
#ifndef TSAN
static void static_buffer(const struct colibri_matmul_args *a)
{
    static struct colibri_matmul_args shared;
    shared = *a;
    usleep(200);
    const struct colibri_matmul_args mine = shared;
    right(&mine, COLIBRI_TYPE_Q4_0);
}
#endif

static uint32_t calls;

static void counts_calls(const struct colibri_matmul_args *a)
{
    __atomic_fetch_add(&calls, 1u, __ATOMIC_RELAXED);
    right(a, COLIBRI_TYPE_Q4_K);
}

#define Q4_K COLIBRI_TYPE_Q4_K
#define Q4_0 COLIBRI_TYPE_Q4_0
const struct mistake mistakes_result[] = {
    {"right", NULL, Q4_K, 0, exact_q4_k, 0, NULL, 0},
    {"one-ulp", "reference", Q4_K, 0, one_ulp, 0, NULL, 0},
#ifndef TSAN
    {"all-groups", "outside the range", Q4_K, 0, all_groups, 0, NULL, 0},
#endif
    {"ignores-index", "reference", Q4_K, 0, ignores_index, 0, NULL, 0},
    {"skips-a-row", "was not written", Q4_K, 0, skips_a_row, 0, NULL, 0},
    {"row-too-far", "outside the range", Q4_K, 0, row_too_far, 0, NULL, 0},
    {"other-order", "reference", COLIBRI_TYPE_F32, 0, other_order, 0, NULL, 0},
    {"loses-subnormals", "reference", Q4_0, 0, loses_subnormals, 0, NULL, 0},
    {"nan-to-zero", "nan", Q4_K, 0, nan_to_zero, 0, NULL, 0},
    {"clamps-infinity", "inf", Q4_0, 0, clamps_infinity, 0, NULL, 0},
    {"sign-of-byte", "reference", COLIBRI_TYPE_Q8_0, 0, sign_of_byte, 0, NULL, 0},
    {"skips-zero-scales", "nan", Q4_0, 0, skips_zero_scales, 0, NULL, 0},
    {"saturates", "reference", Q4_0, 0, saturates, 0, NULL, 0},
    {"second-call", "called again", Q4_K, 0, second_call, 0, NULL, 0},
    {"remembers-address", "other contents", Q4_K, 0, remembers_address, 0, NULL, 0},
#ifndef TSAN
    {"static-buffer", "two threads", Q4_0, 0, static_buffer, 0, NULL, 0},
#endif
    {"counts-calls", "changed writable data", Q4_K, 0, counts_calls, 0, &calls, sizeof(calls)},
    {0},
};
