#include "store/matrix.h"

#include <string.h>

int clb_matrix_bind(clb_registry *reg, uint32_t gguf_type, uint32_t n_rows, uint32_t n_cols, const char *name,
                    clb_matrix *out, clb_error *err)
{
    *out = (clb_matrix){0};
    const struct colibri_format *format = clb_registry_format(reg, gguf_type, err);
    if (!format)
        return clb_context(err, "tensor %s", name);
    if (n_cols % format->block_elems || n_cols % format->act_block_elems)
        return clb_fail(err, COLIBRI_E_FORMAT, "tensor %s: %u columns are not a multiple of %s's block of %u", name,
                        n_cols, format->name, format->block_elems);
    if (n_rows == 0 || n_rows > UINT32_MAX - COLIBRI_GROUP_ROWS)
        return clb_fail(err, COLIBRI_E_FORMAT, "tensor %s: %u rows are not possible", name, n_rows);
    out->format = format;
    out->n_rows = n_rows;
    out->n_cols = n_cols;
    out->row_bytes = (uint64_t)n_cols / format->block_elems * format->block_bytes;
    out->group_stride = out->row_bytes * COLIBRI_GROUP_ROWS;
    const uint64_t groups = (n_rows + COLIBRI_GROUP_ROWS - 1) / COLIBRI_GROUP_ROWS;
    out->bytes = format->layout == COLIBRI_LAYOUT_ROWS ? out->row_bytes * n_rows : out->group_stride * groups;
    const struct colibri_matmul *kernels[CLB_X_CLASSES];
    clb_registry_kernels(reg, format, n_rows, n_cols, kernels);
    for (unsigned c = 0; c < CLB_X_CLASSES; c++) {
        out->run[c] = kernels[c] ? kernels[c]->run : format->matmul;
        if (kernels[c] && kernels[c]->scratch_bytes > out->scratch_bytes)
            out->scratch_bytes = kernels[c]->scratch_bytes;
    }
    return COLIBRI_OK;
}

void clb_matrix_pack_groups(const clb_matrix *m, const void *rows, void *dst, uint32_t group_begin, uint32_t group_end)
{
    const uint8_t *src = rows;
    uint8_t *out = dst;
    for (uint32_t g = group_begin; g < group_end; g++) {
        const uint32_t first = g * COLIBRI_GROUP_ROWS;
        const uint32_t left = m->n_rows - first;
        const uint32_t n = left < COLIBRI_GROUP_ROWS ? left : COLIBRI_GROUP_ROWS;
        const uint8_t *from = src + (uint64_t)first * m->row_bytes;
        if (m->format->layout == COLIBRI_LAYOUT_ROWS)
            memcpy(out + g * m->group_stride, from, n * m->row_bytes);
        else
            m->format->pack(from, m->row_bytes, n, m->n_cols, out + g * m->group_stride);
    }
}

size_t clb_matrix_row_scratch(const clb_matrix *m)
{
    return m->format->layout == COLIBRI_LAYOUT_ROWS ? 0 : (size_t)m->group_stride;
}

void clb_matrix_get_row(const clb_matrix *m, uint32_t row, float *out, void *scratch)
{
    const uint8_t *data = m->data;
    if (m->format->layout == COLIBRI_LAYOUT_ROWS) {
        m->format->dequantize(data + row * m->row_bytes, out, m->n_cols);
        return;
    }
    const uint32_t g = row / COLIBRI_GROUP_ROWS, in_group = row % COLIBRI_GROUP_ROWS;
    m->format->unpack(data + g * m->group_stride, in_group + 1, m->n_cols, scratch, m->row_bytes);
    m->format->dequantize((const uint8_t *)scratch + in_group * m->row_bytes, out, m->n_cols);
}
