/* Loading: resident weights into the store, then the expert slots. */
#include <stdlib.h>

#include "model/model.h"

/* Calls fn for every resident matrix / vector of the model, in file-independent order. */
#define NO_LAYER UINT32_MAX
typedef int (*weight_fn)(void *ctx, uint32_t layer, clb_weight *w); /* layer: NO_LAYER for those of the model */
typedef int (*vector_fn)(void *ctx, clb_vector *v);

static int visit(clb_model *model, weight_fn on_weight, vector_fn on_vector, void *ctx)
{
    clb_weight *const tops[] = {&model->token_embd, &model->output};
    clb_vector *const top_vectors[] = {&model->output_norm, &model->rope_factors};
    for (size_t i = 0; i < sizeof tops / sizeof *tops; i++)
        if (tops[i]->tensor)
            CLB_TRY(on_weight(ctx, NO_LAYER, tops[i]));
    for (size_t i = 0; i < sizeof top_vectors / sizeof *top_vectors; i++)
        if (top_vectors[i]->tensor)
            CLB_TRY(on_vector(ctx, top_vectors[i]));
    for (uint32_t il = 0; il < model->hp.n_layers; il++) {
        clb_layer *l = &model->layers[il];
        clb_weight *const weights[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down, &l->router};
        clb_vector *const vectors[] = {&l->attn_norm, &l->q_norm, &l->k_norm, &l->ffn_norm,          &l->q_bias,
                                       &l->k_bias,    &l->v_bias, &l->o_bias, &l->router_select_bias};
        for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
            if (weights[i]->tensor)
                CLB_TRY(on_weight(ctx, il, weights[i]));
        for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
            if (vectors[i]->tensor)
                CLB_TRY(on_vector(ctx, vectors[i]));
    }
    return COLIBRI_OK;
}

static void size_work(clb_model_sizes *s, const clb_matrix *m)
{
    if (m->group_stride > s->widest_group)
        s->widest_group = m->group_stride;
    if (m->scratch_bytes > s->kernel_scratch)
        s->kernel_scratch = m->scratch_bytes;
}

static int size_weight(void *ctx, uint32_t layer, clb_weight *w)
{
    (void)layer;
    clb_model_sizes *s = ctx;
    s->dense_bytes += w->m.bytes;
    size_work(s, &w->m);
    return COLIBRI_OK;
}

static int size_vector(void *ctx, clb_vector *v)
{
    clb_model_sizes *s = ctx;
    s->dense_bytes += v->tensor->n_elems * sizeof(float);
    return COLIBRI_OK;
}

clb_model_sizes clb_model_get_sizes(const clb_model *model)
{
    clb_model_sizes s = {0};
    /* the visitor only reads here */
    (void)visit((clb_model *)(uintptr_t)model, size_weight, size_vector, &s);
    s.embedding_bytes = model->token_embd.m.bytes + (model->output.tensor ? model->output.m.bytes : 0);
    s.dense_bytes -= s.embedding_bytes;
    for (uint32_t l = 0; l < model->n_moe_layers; l++)
        for (int p = 0; p < CLB_PARTS; p++) {
            const clb_matrix *m = &model->expert_layers[l].part[p];
            s.expert_bytes += m->bytes * model->hp.n_experts;
            size_work(&s, m);
        }
    s.kernel_scratch += clb_matrix_row_scratch(&model->token_embd.m);
    return s;
}

struct load_ctx {
    clb_store *store;
    uint32_t n_layers, n_streamed;
    clb_error *err;
};

static int load_weight(void *ctx, uint32_t layer, clb_weight *w)
{
    const struct load_ctx *c = ctx;
    if (layer != NO_LAYER && clb_model_streams(layer, c->n_layers, c->n_streamed))
        return clb_store_stream_matrix(c->store, layer, w->tensor, w->offset, &w->m, c->err);
    return clb_store_load_matrix(c->store, w->tensor, w->offset, &w->m, c->err);
}

static int load_vector(void *ctx, clb_vector *v)
{
    const struct load_ctx *c = ctx;
    return clb_store_load_floats(c->store, v->tensor, &v->v, c->err);
}

int clb_model_load(clb_model *model, const clb_model_load_options *options, clb_error *err)
{
    const clb_model_sizes sizes = clb_model_get_sizes(model);
    const clb_store_options store_options = {
        .gguf = model->gguf,
        .registry = model->registry,
        .pool = options->pool,
        .log = options->log,
        .mode = options->mode,
        .mlock = options->mlock,
        .drop_cache = options->drop_cache,
        .verify = options->verify,
        .io = options->io,
        .direct = options->direct,
        .io_cpus = options->io_cpus,
        .cancelled = options->cancelled,
        .cancelled_ctx = options->cancelled_ctx,
        .mirror_dirs = options->mirror_dirs,
        .n_mirror_dirs = options->n_mirror_dirs,
        .expected_bytes = sizes.embedding_bytes + sizes.dense_bytes + (options->preload ? sizes.expert_bytes : 0),
    };
    CLB_TRY(clb_store_create(&store_options, &model->store, err));
    struct load_ctx ctx = {model->store, model->hp.n_layers, options->n_streamed_layers, err};
    CLB_TRY(visit(model, load_weight, load_vector, &ctx));
    if (model->n_moe_layers) {
        const clb_expert_pool pool = {
            .layers = model->expert_layers,
            .n_layers = model->n_moe_layers,
            .n_experts = model->hp.n_experts,
            .top_k = model->hp.top_k,
            .class_slots = options->class_slots,
            .policy = options->policy,
            .params = options->policy_params,
            .layer_pools = options->layer_pools,
            .predictor = options->predictor,
            .predictor_params = options->predictor_params,
            .prefetch_depth = options->prefetch_depth,
            .seed = options->seed,
            .preload = options->preload,
        };
        CLB_TRY(clb_store_open_experts(model->store, &pool, err));
    }
    CLB_TRY(clb_store_load(model->store, err)); /* what no preloading took along */
    CLB_TRY(clb_store_open_layers(model->store, options->n_stream_slots, err));
    clb_progress(options->log, "loading weights", store_options.expected_bytes, store_options.expected_bytes);
    return COLIBRI_OK;
}

void clb_model_free(clb_model *model)
{
    if (!model)
        return;
    clb_store_destroy(model->store);
    free(model->layers);
    free(model->expert_layers);
    free(model->expert_tensors);
    free(model->used);
    free(model);
}
