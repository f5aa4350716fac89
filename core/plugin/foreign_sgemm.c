/* A BLAS sgemm as a kernel for F32 weights: y = x * W^T. No context comes with a kernel's call, so `run` is a closure.
 *
 * W has n_cols contiguous floats a row, a chunk of rows is a matrix with leading dimension n_cols; x and y have strides
 * of their own. BLAS sums in whatever order is fastest, so the result is declared inexact without a bound. */
#include <limits.h>
#include <string.h>

#include "plugin/foreign_private.h"
#include "plugin/fpstate.h"

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 }; /* of the C interface of BLAS */

int clb_foreign_sgemm_convention(const char *signature, bool *fortran, clb_error *err)
{
    *fortran = !strcmp(signature, "sgemm_");
    if (*fortran || !strcmp(signature, "cblas_sgemm"))
        return COLIBRI_OK;
    return clb_fail(err, COLIBRI_E_USAGE,
                    "'%.80s': a matrix product follows one of two conventions, cblas_sgemm (C, 32-bit integers) or "
                    "sgemm_ (Fortran, 32-bit integers)",
                    signature);
}

typedef struct gemm {
    int rows, k, m, ldx, ldy; /* m rows of x */
    const float *w, *x;
    float *y;
} gemm;

static void call_cblas(clb_foreign_call *call, const gemm *g)
{
    int order = ROW_MAJOR, ta = NO_TRANS, tb = TRANS, m = g->m, n = g->rows, k = g->k, ldx = g->ldx, ldy = g->ldy;
    float alpha = 1, beta = 0;
    const float *x = g->x, *w = g->w;
    float *y = g->y;
    void *args[] = {&order, &ta, &tb, &m, &n, &k, &alpha, &x, &ldx, &w, &k, &beta, &y, &ldy};
    ffi_call(&call->cif, call->fn, NULL, args);
}

/* Column by column, the same bytes are the transposed matrices: y^T = W * x^T. */
static void call_fortran(clb_foreign_call *call, const gemm *g)
{
    int m = g->rows, n = g->m, k = g->k, ldx = g->ldx, ldy = g->ldy;
    float alpha = 1, beta = 0;
    char ta = 'T', tb = 'N';
    const void *p[] = {&ta, &tb, &m, &n, &k, &alpha, g->w, &k, g->x, &ldx, &beta, g->y, &ldy};
    size_t length = 1; /* Fortran compilers pass the lengths of character arguments behind the others */
    void *args[15];
    for (int i = 0; i < 13; i++)
        args[i] = &p[i];
    args[13] = args[14] = &length;
    ffi_call(&call->cif, call->fn, NULL, args);
}

/* Activation rows t .. that follow each other in memory. */
static uint32_t run_length(const struct colibri_matmul_args *a, uint32_t t)
{
    if (!a->x_index)
        return a->n_x - t;
    uint32_t n = 1;
    while (t + n < a->n_x && a->x_index[t + n] == a->x_index[t] + n)
        n++;
    return n;
}

static void product(clb_foreign *f, const struct colibri_matmul_args *a)
{
    const uint32_t first = COLIBRI_GROUP_ROWS * a->group_begin;
    const uint64_t end = (uint64_t)COLIBRI_GROUP_ROWS * a->group_end;
    const uint32_t rows = (uint32_t)(end < a->n_rows ? end : a->n_rows) - first;
    const float *const w = (const float *)((const char *)a->w + a->group_stride * a->group_begin);
    for (uint32_t t = 0, n; t < a->n_x; t += n) {
        const uint32_t at = a->x_index ? a->x_index[t] : t;
        n = run_length(a, t);
        if (a->x_stride / sizeof(float) > INT_MAX || a->y_stride > INT_MAX)
            n = 1; /* strides that BLAS cannot be told do not matter for one row */
        gemm g = {.rows = (int)rows,
                  .k = (int)a->n_cols,
                  .m = (int)n,
                  .ldx = n > 1 ? (int)(a->x_stride / sizeof(float)) : (int)a->n_cols,
                  .ldy = n > 1 ? (int)a->y_stride : (int)rows,
                  .w = w,
                  .x = (const float *)((const char *)a->x + a->x_stride * at),
                  .y = a->y + a->y_stride * t + first};
        if (f->sgemm.fortran)
            call_fortran(&f->sgemm.gemm, &g);
        else
            call_cblas(&f->sgemm.gemm, &g);
    }
}

static void run(ffi_cif *cif, void *result, void **args, void *ctx)
{
    (void)cif;
    (void)result;
    clb_foreign *const f = ctx;
    const struct colibri_matmul_args *const a = *(const struct colibri_matmul_args *const *)args[0];
    if (a->group_begin >= a->group_end || (uint64_t)a->group_begin * COLIBRI_GROUP_ROWS >= a->n_rows)
        return;
    const clb_fpstate before = clb_fpstate_get();
    product(f, a);
    if (!clb_fpstate_same(before, clb_fpstate_get())) {
        clb_fpstate_set(before);
        clb_foreign_complain(f, f->spec.symbol);
    }
}

int clb_foreign_sgemm_load(clb_foreign *f, clb_error *err)
{
    static ffi_type *cblas[] = {&ffi_type_sint, &ffi_type_sint,  &ffi_type_sint,    &ffi_type_sint, &ffi_type_sint,
                                &ffi_type_sint, &ffi_type_float, &ffi_type_pointer, &ffi_type_sint, &ffi_type_pointer,
                                &ffi_type_sint, &ffi_type_float, &ffi_type_pointer, &ffi_type_sint};
    static ffi_type *fortran[] = {&ffi_type_pointer, &ffi_type_pointer, &ffi_type_pointer, &ffi_type_pointer,
                                  &ffi_type_pointer, &ffi_type_pointer, &ffi_type_pointer, &ffi_type_pointer,
                                  &ffi_type_pointer, &ffi_type_pointer, &ffi_type_pointer, &ffi_type_pointer,
                                  &ffi_type_pointer, &ffi_type_uint64,  &ffi_type_uint64};
    static ffi_type *of_run[] = {&ffi_type_pointer};
    _Static_assert(sizeof(size_t) == 8, "lengths of Fortran strings are passed as 64-bit numbers");
    clb_foreign_call *const call = &f->sgemm.gemm;
    CLB_TRY(clb_foreign_find(f, f->spec.symbol, &call->fn, err));
    if (ffi_prep_cif(&call->cif, FFI_DEFAULT_ABI, f->sgemm.fortran ? 15 : 14, &ffi_type_void,
                     f->sgemm.fortran ? fortran : cblas) != FFI_OK)
        return clb_fail(err, COLIBRI_E_INTERNAL, "libffi cannot call %s", f->spec.symbol);
    void *code = NULL;
    CLB_TRY(clb_foreign_closure(f, &ffi_type_void, of_run, 1, run, &code, err));
    struct colibri_matmul *const t = &f->sgemm.table;
    *t = (struct colibri_matmul){.struct_size = sizeof *t,
                                 .gguf_type = COLIBRI_TYPE_F32,
                                 .layout = COLIBRI_LAYOUT_ROWS,
                                 .max_ulp = UINT32_MAX,
                                 .rank = f->spec.rank,
                                 .min_x = f->spec.min_x,
                                 .name = f->spec.name,
                                 .act = COLIBRI_ACT_F32};
    memcpy(&t->run, &code, sizeof code);
    return COLIBRI_OK;
}
