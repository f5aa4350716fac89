#include "support/rig.h"

#include <stdlib.h>
#include <string.h>

#include "plugin/open.h"

static uint32_t or_default(uint32_t value, uint32_t fallback)
{
    return value ? value : fallback;
}

static void open_registry(test_rig *rig, const test_rig_options *o)
{
    clb_error err;
    clb_config *config;
    assert_ok(clb_config_create(&config, &err), &err);
    assert_ok(clb_registry_from_config(config, COLIBRI_TEST_PLUGIN_DIR, o->log, &rig->registry, &err), &err);
    clb_config_destroy(config);
}

static void choose_slots(test_rig *rig, uint32_t slots)
{
    const uint32_t n = rig->model->n_moe_layers;
    uint32_t *class_of = calloc(n + 1, sizeof *class_of);
    uint64_t *bytes = calloc(n + 1, sizeof *bytes);
    rig->class_slots = calloc(n + 1, sizeof *rig->class_slots);
    assert_true(class_of && bytes && rig->class_slots);
    const uint32_t n_classes = clb_store_classes(rig->model->expert_layers, n, class_of, bytes);
    for (uint32_t c = 0; c < n_classes; c++)
        rig->class_slots[c] = slots;
    free(class_of);
    free(bytes);
}

int test_rig_open(test_rig *rig, const char *path, const test_rig_options *o, clb_error *err)
{
    *rig = (test_rig){.ctx = or_default(o->ctx, 256)};
    open_registry(rig, o);
    assert_ok(clb_gguf_open(path, NULL, NULL, &rig->gguf, err), err);
    assert_ok(clb_model_bind(rig->gguf, rig->registry, o->log, &rig->model, err), err);
    assert_ok(clb_pool_create(or_default(o->threads, 2), &rig->pool, err), err);
    const clb_hparams *hp = &rig->model->hp;
    clb_model_load_options load = {
        .pool = rig->pool,
        .log = o->log,
        .mode = o->mode,
        .policy = o->policy,
        .seed = 1,
        .preload = o->slots == 0 && rig->model->n_moe_layers,
    };
    double params[16] = {0};
    if (!load.policy && rig->model->n_moe_layers) {
        load.policy = clb_registry_expert_policy(rig->registry, "lru", err);
        assert_non_null(load.policy);
        assert_in_range(load.policy->n_params, 0, 16);
    }
    load.policy_params = params;
    if (o->slots) {
        choose_slots(rig, o->slots);
        load.class_slots = rig->class_slots;
    }
    if (o->before_load)
        o->before_load(o->hooks_ctx);
    CLB_TRY(clb_model_load(rig->model, &load, err));
    const clb_kv_layout layout = {.n_layers = hp->n_layers,
                                  .n_heads = hp->n_heads,
                                  .n_kv_heads = hp->n_kv_heads,
                                  .k_dim = hp->k_dim,
                                  .v_dim = hp->v_dim,
                                  .k_type = COLIBRI_TYPE_F16, .v_type = COLIBRI_TYPE_F16,
                                  .page_tokens = or_default(o->page_tokens, 32)};
    assert_ok(clb_kv_cache_create(&layout, 4 * clb_kv_bytes(&layout, rig->ctx), o->log, &rig->kv, err), err);
    const clb_forward_options forward = {.model = rig->model,
                                         .pool = rig->pool,
                                         .kv_layout = layout,
                                         .max_rows = or_default(o->max_rows, 64),
                                         .on_route = o->on_route,
                                         .on_route_ctx = o->hooks_ctx,
                                         .cancelled = o->cancelled,
                                         .cancelled_ctx = o->hooks_ctx};
    assert_ok(clb_forward_create(&forward, &rig->forward, err), err);
    return COLIBRI_OK;
}

void test_rig_close(test_rig *rig)
{
    clb_forward_destroy(rig->forward);
    if (rig->kv)
        clb_kv_cache_destroy(rig->kv);
    clb_model_free(rig->model);
    clb_pool_destroy(rig->pool);
    clb_gguf_close(rig->gguf);
    clb_registry_close(rig->registry);
    free(rig->class_slots);
    *rig = (test_rig){0};
}

clb_kv_seq *test_rig_sequence(test_rig *rig)
{
    clb_error err;
    clb_kv_seq *seq;
    const clb_kv_seq_options options = {.strategy = clb_registry_kv_strategy(rig->registry, "full", &err),
                                        .host = clb_registry_host(rig->registry),
                                        .ctx = rig->ctx};
    assert_non_null(options.strategy);
    assert_ok(clb_kv_seq_create(rig->kv, &options, &seq, &err), &err);
    return seq;
}

float *test_rig_logits(test_rig *rig, const uint32_t *ids, uint32_t n, uint32_t chunk)
{
    clb_error err;
    const size_t n_vocab = rig->model->hp.n_vocab;
    float *logits = malloc(n * n_vocab * sizeof *logits);
    assert_non_null(logits);
    clb_kv_seq *kv = test_rig_sequence(rig);
    for (uint32_t at = 0; at < n;) {
        const uint32_t step = chunk && chunk < n - at ? chunk : n - at;
        const clb_span span = {.kv = kv,
                               .tokens = ids + at,
                               .n = step,
                               .n_logits = step,
                               .phase = step == 1 ? COLIBRI_PHASE_DECODE : COLIBRI_PHASE_PREFILL};
        assert_ok(clb_forward_run(rig->forward, &span, 1, logits + at * n_vocab, &err), &err);
        at += step;
    }
    clb_kv_seq_destroy(kv);
    return logits;
}

void test_rig_ids(const test_rig *rig, uint32_t *ids, uint32_t n, uint64_t seed)
{
    test_rand rng = {seed};
    for (uint32_t i = 0; i < n; i++)
        ids[i] = test_rand_below(&rng, rig->model->hp.n_vocab);
}
