/* A model's bytes by role and tensor type. */
#include "plan_report.h"

static void add(clb_plan_report *r, const char *role, uint32_t type, uint64_t bytes)
{
    for (uint32_t i = 0; i < r->n_roles; i++)
        if (r->role[i].role == role && r->role[i].type == type) {
            r->role[i].bytes += bytes;
            return;
        }
    if (r->n_roles < CLB_PLAN_ROLES && bytes)
        r->role[r->n_roles++] = (clb_plan_role){role, type, bytes};
}

static void add_weights(clb_plan_report *r, const char *role, const clb_weight *const *w, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (w[i]->tensor)
            add(r, role, w[i]->tensor->type, w[i]->m.bytes);
}

static void add_vectors(clb_plan_report *r, const char *role, const clb_vector *const *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (v[i]->tensor) /* they become floats, whatever they are in the file */
            add(r, role, COLIBRI_TYPE_F32, v[i]->tensor->n_elems * sizeof(float));
}

void clb_plan_find_roles(const clb_model *model, clb_plan_report *r)
{
    static const char embeddings[] = "token embeddings", output[] = "output matrix", attention[] = "attention",
                      dense[] = "dense feed-forward", shared[] = "shared experts", router[] = "router",
                      norms[] = "norms and biases", experts[] = "experts";
    r->n_roles = 0;
    add_weights(r, embeddings, (const clb_weight *const[]){&model->token_embd}, 1);
    add_weights(r, output, (const clb_weight *const[]){&model->output}, 1);
    for (uint32_t l = 0; l < model->hp.n_layers; l++) {
        const clb_layer *y = &model->layers[l];
        add_weights(r, attention, (const clb_weight *const[]){&y->q, &y->k, &y->v, &y->o}, 4);
    }
    for (uint32_t l = 0; l < model->hp.n_layers; l++) {
        const clb_layer *y = &model->layers[l];
        add_weights(r, y->moe < 0 ? dense : shared, (const clb_weight *const[]){&y->gate, &y->up, &y->down}, 3);
        add_weights(r, router, (const clb_weight *const[]){&y->router}, 1);
    }
    for (uint32_t l = 0; l < model->hp.n_layers; l++) {
        const clb_layer *y = &model->layers[l];
        add_vectors(r, norms,
                    (const clb_vector *const[]){&y->attn_norm, &y->q_norm, &y->k_norm, &y->ffn_norm, &y->q_bias,
                                                &y->k_bias, &y->v_bias, &y->o_bias, &y->router_select_bias},
                    9);
    }
    add_vectors(r, norms, (const clb_vector *const[]){&model->output_norm, &model->rope_factors}, 2);
    for (uint32_t l = 0; l < model->n_moe_layers; l++)
        for (int p = 0; p < CLB_PARTS; p++) {
            const clb_matrix *m = &model->expert_layers[l].part[p];
            add(r, experts, m->format->gguf_type, m->bytes * model->hp.n_experts);
        }
    for (uint32_t i = 1; i < r->n_roles; i++) /* types of one role stand together, the largest first */
        for (uint32_t k = i; k; k--) {
            clb_plan_role *a = &r->role[k - 1], *b = &r->role[k];
            uint32_t first_a = 0, first_b = 0;
            while (r->role[first_a].role != a->role)
                first_a++;
            while (r->role[first_b].role != b->role)
                first_b++;
            if (first_b > first_a || (first_a == first_b && b->bytes <= a->bytes))
                break;
            const clb_plan_role t = *a;
            *a = *b;
            *b = t;
        }
}
