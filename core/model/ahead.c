/* Routers of later layers, asked before their turn. The residual stream changes little from one layer to the next, so
 * layer l + 1's norm and router, applied to what layer l sees, name most of the experts that l + 1 will choose (Eliseev
 * and Mazur, arXiv:2312.17238). Costs one norm and one small product per layer and row; results are only a hint. */
#include <stdlib.h>

#include "model/forward_internal.h"

int clb_forward_ahead_create(clb_forward *f, clb_error *err)
{
    const clb_hparams *hp = f->hp;
    const clb_model *model = f->model;
    if (!model->n_moe_layers)
        return COLIBRI_OK;
    f->n_ahead = clb_store_ahead(model->store);
    if (f->n_ahead < f->options.ahead)
        f->n_ahead = f->options.ahead < 2 ? f->options.ahead : 2;
    if (!f->n_ahead)
        return COLIBRI_OK;
    f->ahead_h = malloc(CLB_AHEAD_ROWS * (size_t)hp->n_embd * sizeof *f->ahead_h);
    f->ahead_logits = malloc((size_t)f->n_ahead * CLB_AHEAD_ROWS * hp->n_experts * sizeof *f->ahead_logits);
    f->moe_layers = calloc(model->n_moe_layers, sizeof *f->moe_layers);
    if (!f->ahead_h || !f->ahead_logits || !f->moe_layers)
        return CLB_NOMEM(err, "prediction of experts");
    for (uint32_t il = 0; il < hp->n_layers; il++)
        if (model->layers[il].moe >= 0)
            f->moe_layers[model->layers[il].moe] = il;
    return COLIBRI_OK;
}

int clb_forward_ahead(clb_forward *f, struct colibri_route *route, const float **where, clb_error *err)
{
    const clb_hparams *hp = f->hp;
    if (!f->n_ahead || f->n_rows > CLB_AHEAD_ROWS || (!f->options.ahead && !clb_store_asks(f->model->store)))
        return COLIBRI_OK;
    uint32_t n = 0;
    for (; n < f->n_ahead && route->layer + 1 + n < f->model->n_moe_layers; n++) {
        const clb_layer *l = &f->model->layers[f->moe_layers[route->layer + 1 + n]];
        float *logits = f->ahead_logits + (size_t)n * CLB_AHEAD_ROWS * hp->n_experts;
        if (!l->router.m.data) /* streamed, and not here */
            break;
        for (uint32_t r = 0; r < f->n_rows; r++)
            f->compute.ops->rms_norm(f->ahead_h + (size_t)r * hp->n_embd, f->x + (size_t)r * hp->n_embd, l->ffn_norm.v,
                                     hp->n_embd, hp->rms_eps);
        clb_acts_set(&f->acts_ahead, f->ahead_h, hp->n_embd, f->n_rows, hp->n_embd);
        const clb_job job = {&l->router.m, l->router.m.data, &f->acts_ahead, NULL, 0, f->n_rows, logits, hp->n_experts};
        CLB_TRY(clb_compute_run(&f->compute, &job, 1, err));
        where[n] = logits;
    }
    route->n_ahead = n;
    route->ahead_logits = where;
    return COLIBRI_OK;
}
