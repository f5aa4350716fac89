/* GET /residency: which experts are in memory, layer by layer, for a heat map. */
#include <stdlib.h>

#include "serve/app.h"

void clb_serve_residency(void *app, clb_exchange *x)
{
    const clb_app *const a = app;
    const clb_model *const model = a->engine->model;
    const size_t cap = (size_t)model->n_moe_layers * model->hp.n_experts;
    uint8_t *const map = malloc(cap + 1);
    char *const row = malloc(model->hp.n_experts + 1);
    uint32_t n_layers = 0, n_experts = 0;
    clb_error err = {0};
    int rc = map && row ? clb_scheduler_residency(a->scheduler, map, cap, &n_layers, &n_experts, &err)
                        : CLB_NOMEM(&err, "residency");
    clb_scheduler_stats s;
    clb_scheduler_get_stats(a->scheduler, &s);
    json_t *const rows = json_array();
    size_t resident = 0;
    for (uint32_t l = 0; !rc && l < n_layers; l++) {
        for (uint32_t e = 0; e < n_experts; e++) {
            const bool in = map[(size_t)l * n_experts + e] != 0;
            row[e] = in ? '1' : '0';
            resident += in;
        }
        json_array_append_new(rows, json_stringn(row, n_experts)); /* a character per expert */
    }
    free(map);
    free(row);
    if (rc) {
        json_decref(rows);
        clb_reply_status(x, rc, err.msg);
        return;
    }
    clb_reply_json(x, 200,
                   json_pack("{s:i, s:i, s:I, s:o, s:I, s:I, s:I, s:I}", "layers", (int)n_layers, "experts",
                             (int)n_experts, "resident", (json_int_t)resident, "map", rows, "hits",
                             (json_int_t)s.expert_hits, "misses", (json_int_t)s.expert_misses, "read_bytes",
                             (json_int_t)s.expert_bytes_read, "resident_bytes", (json_int_t)s.resident_bytes));
}
