/* Activation rows and their quantized forms.
 *
 * A clb_acts points at one set of float rows and holds what has been quantized of them, one form per activation format.
 * Buffers grow as needed and are kept. */
#ifndef CLB_MODEL_ACTS_H
#define CLB_MODEL_ACTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "colibri/format.h"
#include "colibri/kernel.h"

#define CLB_MAX_ACT_FORMS 6 /* distinct activation formats in one model */

typedef struct clb_acts {
    const float *x;
    size_t stride; /* floats */
    uint32_t n_rows, n_cols;
    struct {
        const char *act;
        const struct colibri_format *format; /* one that uses it */
        void *data;
        size_t row_bytes, cap;
        bool ready;
    } form[CLB_MAX_ACT_FORMS];
    uint32_t n_forms;
} clb_acts;

/* Points acts at new rows; buffers are kept. */
void clb_acts_set(clb_acts *acts, const float *x, size_t stride, uint32_t n_rows, uint32_t n_cols);
void clb_acts_free(clb_acts *acts);

/* The form that `format` wants: *form is its index, -1 for the float rows themselves. *missing: it is reserved, but not
 * quantized yet. */
int clb_acts_reserve(clb_acts *acts, const struct colibri_format *format, int *form, bool *missing, clb_error *err);
/* Reserves it and promises that clb_acts_quantize is called for every row and column that a product will use. */
int clb_acts_promise(clb_acts *acts, const struct colibri_format *format, int *form, clb_error *err);
/* Columns [begin, begin + n) of a row, x pointing at the first of them; both multiples of the form's block. */
void clb_acts_quantize(const clb_acts *acts, int form, const struct colibri_vecops *ops, uint32_t row, uint32_t begin,
                       uint32_t n, const float *x);

/* Address and stride in bytes of the rows that a product with this form takes. */
static inline const void *clb_acts_rows(const clb_acts *acts, int form, size_t *stride)
{
    *stride = form < 0 ? acts->stride * sizeof(float) : acts->form[form].row_bytes;
    return form < 0 ? (const void *)acts->x : acts->form[form].data;
}

#endif
