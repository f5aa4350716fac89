/* libFuzzer: any bytes as a model. What binds is planned within 64 MiB, loaded and run: two tokens in one pass, then
 * one by one with as few expert slots as possible and more threads. Nothing may crash, and the logits must be the same
 * bits. The mutator knows where keys, shapes, types and weights lie. Seeds: tests/fuzz/corpus/model
 * (tests/oracles/make_model_seeds.py). */
#include "gguf_mutator.h"
#include "text/vocab.h"
#include "tiny_run.h"

static clb_registry *registry;
static clb_pool *pools[2];

static bool geometry(void *ctx, uint32_t type, uint32_t *block_elems, uint32_t *block_bytes)
{
    (void)ctx;
    const struct colibri_format *format = clb_registry_format(registry, type, NULL);
    if (!format)
        return clb_gguf_known_geometry(NULL, type, block_elems, block_bytes);
    *block_elems = format->block_elems;
    *block_bytes = format->block_bytes;
    return true;
}

static void once(void)
{
    clb_error err;
    if (registry)
        return;
    const clb_registry_options options = {0}; /* what is built in, and no CPU bits: the reference */
    REQUIRE(clb_registry_open(&options, &registry, &err) == COLIBRI_OK);
    REQUIRE(clb_pool_create(1, &pools[0], &err) == COLIBRI_OK);
    REQUIRE(clb_pool_create(3, &pools[1], &err) == COLIBRI_OK);
}

/* Loads g and runs the tokens; logits: [2][n_vocab]. False if the model is refused, which the log explains. */
static bool run(const clb_gguf *g, clb_pool *pool, bool few_slots, bool one_by_one, float **logits, size_t *n_vocab)
{
    clb_error err = {0};
    clb_model *model;
    clb_plan plan = {0};
    clb_kv_cache *cache = NULL;
    clb_kv_seq *seq = NULL;
    clb_forward *forward = NULL;
    *logits = NULL;
    int rc = clb_model_bind(g, registry, NULL, &model, &err);
    if (rc) {
        REQUIRE(!model);
        explained(rc, &err);
        return false;
    }
    const clb_hparams *hp = &model->hp;
    const clb_plan_input in = tiny_input(model, clb_pool_workers(pool), few_slots && model->n_moe_layers ? 1 : 0);
    CLB_GO(clb_plan_make(&in, &plan, &err));
    CLB_GO(tiny_load(model, registry, &plan, pool, &err));
    CLB_GO(clb_kv_cache_create(&in.kv, plan.kv_bytes, NULL, &cache, &err));
    CLB_GO(tiny_seq(registry, cache, &seq, &err));
    CLB_GO(tiny_forward(model, pool, &in, &forward, &err));
    *n_vocab = hp->n_vocab;
    *logits = malloc(2 * (size_t)hp->n_vocab * sizeof **logits);
    REQUIRE(*logits);
    CLB_GO(tiny_run(forward, seq, hp->n_vocab, one_by_one, NULL, *logits, &err));
done:
    clb_forward_destroy(forward);
    if (seq)
        clb_kv_seq_destroy(seq);
    clb_kv_cache_destroy(cache);
    clb_plan_free(&plan);
    clb_model_free(model);
    if (rc) {
        explained(rc, &err);
        free(*logits);
        *logits = NULL;
    }
    return rc == COLIBRI_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    clb_gguf *g;
    clb_error err = {0};
    clb_vocab *vocab;
    float *a, *b;
    size_t n_vocab = 0;
    once();
    if (clb_gguf_open_memory(data, size, "fuzz", geometry, NULL, &g, &err))
        return 0;
    const int rc = clb_vocab_load(g, &vocab, &err);
    if (rc)
        explained(rc, &err);
    clb_vocab_free(vocab);
    if (run(g, pools[0], false, false, &a, &n_vocab)) {
        if (run(g, pools[1], true, true, &b, &n_vocab))
            tiny_same(a, b, n_vocab);
        free(b);
    }
    free(a);
    clb_gguf_close(g);
    return 0;
}
