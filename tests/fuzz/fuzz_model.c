/* libFuzzer: any bytes as a model. What binds is planned within 64 MiB, loaded and run: two tokens in one pass, then one by
 * one with as few expert slots as possible and more threads. Nothing may crash, and the logits must be the same bits.
 * The mutator knows where keys, shapes, types and weights lie. Seeds: tests/fuzz/corpus/model
 * (tests/oracles/make_model_seeds.py). */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_mutator.h"
#include "model/forward.h"
#include "plan/memory.h"
#include "plan/plan.h"
#include "text/vocab.h"

#define ROOM    (UINT64_C(64) << 20)
#define N_CTX   64u
#define MAX_ROWS 2u

#define REQUIRE(cond)                                                                                                  \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                                                 \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);

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

static void explained(int rc, const clb_error *err)
{
    REQUIRE(rc == err->code && *err->msg && !strchr(err->msg, '\n'));
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
    const struct colibri_kv_strategy *strategy = clb_registry_kv_strategy(registry, "full", &err);
    const clb_plan_input in = {
        .model = model,
        .kv = {.n_layers = hp->n_layers,
               .n_heads = hp->n_heads,
               .n_kv_heads = hp->n_kv_heads,
               .k_dim = hp->k_dim,
               .v_dim = hp->v_dim,
               .k_type = COLIBRI_TYPE_F16, .v_type = COLIBRI_TYPE_F16,
               .page_tokens = 16},
        .kv_positions = N_CTX,
        .ctx = N_CTX,
        .kv_follows_ctx = true,
        .n_sequences = 1,
        .max_rows = MAX_ROWS,
        .n_workers = clb_pool_workers(pool),
        .budget = clb_memory_resident() + ROOM,
        .expert_slots = few_slots && model->n_moe_layers ? 1 : 0,
    };
    CLB_GO(clb_plan_make(&in, &plan, &err));
    const clb_model_load_options load = {
        .pool = pool,
        .mode = CLB_STORE_READ,
        .policy = model->n_moe_layers ? clb_registry_expert_policy(registry, "lru", &err) : NULL,
        .class_slots = plan.class_slots,
        .preload = plan.all_experts && model->n_moe_layers,
    };
    CLB_GO(clb_model_load(model, &load, &err));
    CLB_GO(clb_kv_cache_create(&in.kv, plan.kv_bytes, NULL, &cache, &err));
    const clb_kv_seq_options seq_options = {.strategy = strategy, .host = clb_registry_host(registry), .ctx = N_CTX};
    CLB_GO(clb_kv_seq_create(cache, &seq_options, &seq, &err));
    const clb_forward_options options = {.model = model, .pool = pool, .kv_layout = in.kv, .max_rows = MAX_ROWS};
    CLB_GO(clb_forward_create(&options, &forward, &err));
    *n_vocab = hp->n_vocab;
    *logits = malloc(2 * (size_t)hp->n_vocab * sizeof **logits);
    REQUIRE(*logits);
    const uint32_t tokens[2] = {hp->n_vocab - 1, 0};
    const uint32_t step = one_by_one ? 1 : 2;
    for (uint32_t i = 0; i < 2; i += step) {
        const clb_span span = {.kv = seq,
                               .tokens = tokens + i,
                               .n = step,
                               .n_logits = step,
                               .phase = one_by_one ? COLIBRI_PHASE_DECODE : COLIBRI_PHASE_PREFILL};
        CLB_GO(clb_forward_run(forward, &span, 1, *logits + i * (size_t)hp->n_vocab, &err));
    }
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

static bool same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b);
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
            for (size_t i = 0; i < 2 * n_vocab; i++)
                REQUIRE(same(a[i], b[i]));
        free(b);
    }
    free(a);
    clb_gguf_close(g);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    return mutate_gguf(data, size, max_size, seed);
}
