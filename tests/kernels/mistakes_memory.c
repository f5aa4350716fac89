/* Kernels that read or write where they must not. */
#include "mistakes.h"

static void right(const struct colibri_matmul_args *a)
{
    fmt_matmul(fmt_find(COLIBRI_TYPE_Q4_K), a);
}

static void reads_behind(const struct colibri_matmul_args *a)
{
    right(a);
    if (a->group_end == (a->n_rows + 15) / 16) {
        const volatile char *const end = (const char *)a->w + a->group_end * a->group_stride;
        (void)end[63]; /* a whole line: the alignment may leave less than one before the guard page */
    }
}

/* The index of a row that does not exist, as a prefetching loop does. */
static void index_behind(const struct colibri_matmul_args *a)
{
    right(a);
    if (a->x_index)
        (void)*(const volatile uint32_t *)(a->x_index + a->n_x);
}

static void writes_input(const struct colibri_matmul_args *a)
{
    right(a);
    uint8_t *const w = (uint8_t *)(uintptr_t)a->w; // NOLINT(performance-no-int-to-ptr)
    *(volatile uint8_t *)w = *w;                   /* the same value: nothing but the page's protection can tell */
}

static void scratch_too_small(const struct colibri_matmul_args *a)
{
    right(a);
    memset(a->scratch, 1, 101); /* says 100; the alignment leaves room before the guard page */
}

static void scratch_from_below(const struct colibri_matmul_args *a)
{
    right(a);
    ((volatile char *)a->scratch)[-1] = 1;
}

/* Scratch is not zeroed. */
static void scratch_zeroed(const struct colibri_matmul_args *a)
{
    const uint8_t *const s = a->scratch;
    right(a);
    if (s[0] && a->group_begin < a->group_end)
        a->y[16 * (size_t)a->group_begin] += (float)s[0] * 1e20f;
}

static void traps(const struct colibri_matmul_args *a)
{
    right(a);
#if defined(__x86_64__)
    __asm__ volatile("ud2");
#else
    __builtin_trap();
#endif
}

#define Q4_K COLIBRI_TYPE_Q4_K
const struct mistake mistakes_memory[] = {
    {"reads-behind", "touched w", Q4_K, 0, reads_behind, 0, NULL, 0},
    {"index-behind", "touched x_index", Q4_K, 0, index_behind, 0, NULL, 0},
    {"writes-input", "wrote to w, which is input", Q4_K, 0, writes_input, 0, NULL, 0},
    {"scratch-too-small", "wrote behind scratch", Q4_K, 100, scratch_too_small, 0, NULL, 0},
    {"scratch-from-below", "scratch", Q4_K, 4096, scratch_from_below, 0, NULL, 0},
    {"scratch-zeroed", "reference", Q4_K, 128, scratch_zeroed, 0, NULL, 0},
    {"traps", "crash: signal", Q4_K, 0, traps, 0, NULL, 0},
    {0},
};
