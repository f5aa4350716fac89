/* A weight matrix as the kernels see it, and the loading of resident ones.
 *
 * Binding (clb_matrix_bind) fixes format, shape, sizes and kernels from the GGUF's tensor list; loading fills in
 * `data`. Between the two the planner knows every size without having read a weight. */
#ifndef CLB_STORE_MATRIX_H
#define CLB_STORE_MATRIX_H

#include <stdint.h>

#include "base/error.h"
#include "base/log.h"
#include "base/pool.h"
#include "colibri/format.h"
#include "gguf/gguf.h"
#include "plugin/registry.h"

typedef void (*clb_matmul_fn)(const struct colibri_matmul_args *args);

typedef struct clb_matrix {
    const struct colibri_format *format;
    uint32_t n_rows, n_cols; /* output x input */
    uint64_t row_bytes;      /* of a GGUF row */
    uint64_t group_stride;   /* 16 * row_bytes */
    uint64_t bytes;          /* in the layout that is multiplied, padded groups included */
    clb_matmul_fn run[CLB_X_CLASSES]; /* by clb_x_class of the number of activation rows */
    size_t scratch_bytes;             /* what any of them wants per thread */
    const void *data;        /* NULL until loaded; experts never have it */
} clb_matrix;

/* Shape n_rows x n_cols of the given tensor type; kernels from the registry. */
int clb_matrix_bind(clb_registry *reg, uint32_t gguf_type, uint32_t n_rows, uint32_t n_cols, const char *name,
                    clb_matrix *out, clb_error *err);

/* Packs groups [group_begin, group_end) of m's GGUF rows at `rows` into `dst`, in the matrix's layout. */
void clb_matrix_pack_groups(const clb_matrix *m, const void *rows, void *dst, uint32_t group_begin, uint32_t group_end);

/* Row `row` of a loaded matrix as floats; scratch: clb_matrix_row_scratch bytes. */
void clb_matrix_get_row(const clb_matrix *m, uint32_t row, float *out, void *scratch);
size_t clb_matrix_row_scratch(const clb_matrix *m);

#endif
