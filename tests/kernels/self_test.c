/* Deliberately wrong kernels: the checks must catch every one of them. */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ops/ops.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

static void right(const struct colibri_matmul_args *a, uint32_t type)
{
    fmt_matmul(fmt_find(type), a);
}

static void exact_q4_k(const struct colibri_matmul_args *a)
{
    right(a, COLIBRI_TYPE_Q4_K);
}

/* One unit in the last place, in one row of one product. */
static void one_ulp(const struct colibri_matmul_args *a)
{
    right(a, COLIBRI_TYPE_Q4_K);
    if (a->group_begin < a->group_end) {
        float *const y = a->y + (a->n_x - 1) * a->y_stride + 16 * (size_t)a->group_begin;
        *y = colibri_bits_f32(colibri_f32_bits(*y) ^ 1u);
    }
}

static void all_groups(const struct colibri_matmul_args *a)
{
    struct colibri_matmul_args b = *a;
    b.group_begin = 0;
    b.group_end = (a->n_rows + 15) / 16;
    right(&b, COLIBRI_TYPE_Q4_K);
}

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

static void flushes_to_zero(const struct colibri_matmul_args *a)
{
    right(a, COLIBRI_TYPE_Q4_K);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8000u);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(fp_control() | UINT64_C(1) << 24));
#endif
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

static void reads_behind(const struct colibri_matmul_args *a)
{
    right(a, COLIBRI_TYPE_Q4_K);
    if (a->group_end == (a->n_rows + 15) / 16) {
        const volatile char *const end = (const char *)a->w + a->group_end * a->group_stride;
        (void)end[63]; /* a whole line: the alignment may leave less than one before the guard page */
    }
}

static void lazy_softmax(float *x, size_t n)
{
    clb_ref_softmax(x, n);
    if (n > 16) /* multiplying by the reciprocal instead of dividing */
        x[n - 1] = x[n - 1] * (1.0f + 0x1p-23f);
}

static void short_attention(const struct colibri_attention_args *a)
{
    struct colibri_attention_args b = *a;
    b.n_kv -= a->n_kv > 512; /* loses the last position of a second segment */
    clb_ref_attention(&b);
}

/* Runs in a child, so that a crash counts as caught. Returns 1 if the check saw the mistake. */
static int caught(const struct options *o, const struct colibri_matmul *m, const struct colibri_vecops *v)
{
    fflush(stdout);
    const pid_t pid = fork();
    if (pid < 0) {
        perror("kernelcheck: fork");
        exit(1);
    }
    if (pid == 0) {
        if (!freopen("/dev/null", "w", stderr)) /* crash messages of the mistake */
            _exit(2);
        struct report rep = {.o = o, .quiet = true};
        if (m)
            check_matmul(&rep, m);
        else
            check_vecops(&rep, v);
        _exit(rep.failures ? 1 : 0);
    }
    int status = 0;
    if (waitpid(pid, &status, 0) != pid)
        return 0;
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int self_test(const struct options *o)
{
    static const struct {
        const char *name;
        uint32_t type, layout;
        const char *act;
        void (*run)(const struct colibri_matmul_args *args);
        int is_wrong;
    } kernels[] = {
        {"right", COLIBRI_TYPE_Q4_K, COLIBRI_LAYOUT_X16, COLIBRI_ACT_Q8X256, exact_q4_k, 0},
        {"one-ulp", COLIBRI_TYPE_Q4_K, COLIBRI_LAYOUT_X16, COLIBRI_ACT_Q8X256, one_ulp, 1},
        {"all-groups", COLIBRI_TYPE_Q4_K, COLIBRI_LAYOUT_X16, COLIBRI_ACT_Q8X256, all_groups, 1},
        {"ignores-index", COLIBRI_TYPE_Q4_K, COLIBRI_LAYOUT_X16, COLIBRI_ACT_Q8X256, ignores_index, 1},
        {"skips-a-row", COLIBRI_TYPE_Q4_K, COLIBRI_LAYOUT_X16, COLIBRI_ACT_Q8X256, skips_a_row, 1},
        {"row-too-far", COLIBRI_TYPE_Q4_K, COLIBRI_LAYOUT_X16, COLIBRI_ACT_Q8X256, row_too_far, 1},
        {"reads-behind", COLIBRI_TYPE_Q4_K, COLIBRI_LAYOUT_X16, COLIBRI_ACT_Q8X256, reads_behind, 1},
        {"flushes-to-zero", COLIBRI_TYPE_Q4_K, COLIBRI_LAYOUT_X16, COLIBRI_ACT_Q8X256, flushes_to_zero, 1},
        {"other-order", COLIBRI_TYPE_F32, COLIBRI_LAYOUT_ROWS, COLIBRI_ACT_F32, other_order, 1},
    };
    int missed = 0;
    for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++) {
        const struct colibri_matmul m = {
            .struct_size = sizeof(m),
            .gguf_type = kernels[i].type,
            .layout = kernels[i].layout,
            .min_x = 1,
            .name = kernels[i].name,
            .act = kernels[i].act,
            .run = kernels[i].run,
        };
        const int as_expected = caught(o, &m, NULL) == kernels[i].is_wrong;
        printf("%s %s kernel '%s'\n", as_expected ? "ok:" : "MISSED:", kernels[i].is_wrong ? "refuses" : "accepts",
               kernels[i].name);
        missed += !as_expected;
    }
    struct colibri_vecops v = *clb_vecops_reference();
    struct {
        const char *what, *member;
        int is_wrong;
        struct colibri_vecops v;
    } tables[] = {
        {"reference", NULL, 0, v}, {"lazy-softmax", ".softmax", 1, v}, {"short-attention", ".attention", 1, v}};
    tables[1].v.softmax = lazy_softmax;
    tables[2].v.attention = short_attention;
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        struct options wide = *o;
        wide.filter = tables[i].member;
        if (tables[i].is_wrong && wide.work < 1000000)
            wide.work = 1000000; /* a second segment needs more than 512 positions */
        const int as_expected = caught(&wide, NULL, &tables[i].v) == tables[i].is_wrong;
        printf("%s %s vector operations '%s'\n",
               as_expected ? "ok:" : "MISSED:", tables[i].is_wrong ? "refuses" : "accepts", tables[i].what);
        missed += !as_expected;
    }
    return missed;
}
