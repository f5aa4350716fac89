#include "model/acts.h"

#include <stdlib.h>
#include <string.h>

void clb_acts_set(clb_acts *acts, const float *x, size_t stride, uint32_t n_rows, uint32_t n_cols)
{
    acts->x = x;
    acts->stride = stride;
    acts->n_rows = n_rows;
    acts->n_cols = n_cols;
    for (uint32_t i = 0; i < acts->n_forms; i++)
        acts->form[i].ready = false;
}

void clb_acts_free(clb_acts *acts)
{
    for (uint32_t i = 0; i < acts->n_forms; i++)
        free(acts->form[i].data);
    *acts = (clb_acts){0};
}

int clb_acts_reserve(clb_acts *acts, const struct colibri_format *format, int *form, bool *missing, clb_error *err)
{
    *form = -1;
    *missing = false;
    if (strcmp(format->act, COLIBRI_ACT_F32) == 0)
        return COLIBRI_OK;
    uint32_t f = 0;
    while (f < acts->n_forms && strcmp(acts->form[f].act, format->act) != 0)
        f++;
    *form = (int)f;
    if (f < acts->n_forms && acts->form[f].ready)
        return COLIBRI_OK;
    if (f == CLB_MAX_ACT_FORMS)
        return clb_fail(err, COLIBRI_E_LIMIT, "more than %d activation formats in one model", CLB_MAX_ACT_FORMS);
    const size_t row_bytes = (size_t)(acts->n_cols / format->act_block_elems) * format->act_block_bytes;
    const size_t need = row_bytes * acts->n_rows;
    if (f == acts->n_forms)
        acts->n_forms++;
    if (acts->form[f].cap < need) {
        free(acts->form[f].data);
        const size_t cap = (need + 4095) & ~(size_t)4095;
        acts->form[f].data = aligned_alloc(64, cap);
        acts->form[f].cap = acts->form[f].data ? cap : 0;
    }
    acts->form[f].act = format->act;
    acts->form[f].format = format;
    acts->form[f].row_bytes = row_bytes;
    if (!acts->form[f].data)
        return CLB_NOMEM(err, "activation buffers");
    *missing = true;
    return COLIBRI_OK;
}

int clb_acts_promise(clb_acts *acts, const struct colibri_format *format, int *form, clb_error *err)
{
    bool missing;
    CLB_TRY(clb_acts_reserve(acts, format, form, &missing, err));
    if (missing)
        acts->form[*form].ready = true;
    return COLIBRI_OK;
}

void clb_acts_quantize(const clb_acts *acts, int form, const struct colibri_vecops *ops, uint32_t row, uint32_t begin,
                       uint32_t n, const float *x)
{
    const struct colibri_format *const format = acts->form[form].format;
    uint8_t *const to = (uint8_t *)acts->form[form].data + row * acts->form[form].row_bytes +
                        (size_t)(begin / format->act_block_elems) * format->act_block_bytes;
    if (strcmp(format->act, COLIBRI_ACT_Q8X32) == 0)
        ops->act_q8x32(x, (struct colibri_act_q8x32 *)(void *)to, n);
    else if (strcmp(format->act, COLIBRI_ACT_Q8X256) == 0)
        ops->act_q8x256(x, (struct colibri_act_q8x256 *)(void *)to, n);
    else
        format->quantize_act(x, to, n);
}
