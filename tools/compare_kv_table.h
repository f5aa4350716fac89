/* Tables of colibri compare --strategies: cells of text, for whoever writes them. */
#ifndef CLB_TOOLS_COMPARE_KV_TABLE_H
#define CLB_TOOLS_COMPARE_KV_TABLE_H

#include "compare_kv.h"

enum clb_kvc_table_kind { CLB_KVC_QUALITY, CLB_KVC_COST };

/* Row 0 has the headings, rows 1 .. n_rows the settings that were measured on the task, in the order of tables. */
typedef struct clb_kvc_table {
    uint32_t task;
    uint32_t n_rows, used;   /* columns in use */
    uint32_t n_columns, row; /* while it is made */
    char **cells;
    uint32_t *settings; /* [n_rows + 1] */
} clb_kvc_table;

int clb_kvc_table_make(const clb_kvc *c, uint32_t task, enum clb_kvc_table_kind kind, clb_kvc_table *out,
                       clb_error *err);
const char *clb_kvc_table_cell(const clb_kvc_table *t, uint32_t row, uint32_t column);
void clb_kvc_table_free(clb_kvc_table *t);

#endif
