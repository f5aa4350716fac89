/* Two tokens through a tiny model within 64 MiB: in one pass, or one by one. */
#ifndef TESTS_FUZZ_TINY_RUN_H
#define TESTS_FUZZ_TINY_RUN_H

#include <string.h>

#include "fuzz.h"
#include "model/forward.h"
#include "plan/memory.h"
#include "plan/plan.h"

#define ROOM     (UINT64_C(64) << 20)
#define N_CTX    64u
#define MAX_ROWS 2u

/* expert_slots: 0: as many as there is room for. */
static inline clb_plan_input tiny_input(const clb_model *model, uint32_t n_workers, uint32_t expert_slots)
{
    const clb_hparams *hp = &model->hp;
    return (clb_plan_input){.model = model,
                            .kv = {.n_layers = hp->n_layers,
                                   .n_heads = hp->n_heads,
                                   .n_kv_heads = hp->n_kv_heads,
                                   .k_dim = hp->k_dim,
                                   .v_dim = hp->v_dim,
                                   .k_type = COLIBRI_TYPE_F16,
                                   .v_type = COLIBRI_TYPE_F16,
                                   .page_tokens = 16},
                            .kv_positions = N_CTX,
                            .ctx = N_CTX,
                            .kv_follows_ctx = true,
                            .n_sequences = 1,
                            .max_rows = MAX_ROWS,
                            .n_workers = n_workers,
                            .budget = clb_memory_resident() + ROOM,
                            .expert_slots = expert_slots};
}

static inline int tiny_load(clb_model *model, clb_registry *registry, const clb_plan *plan, clb_pool *pool,
                            clb_error *err)
{
    const bool moe = model->n_moe_layers > 0;
    const clb_model_load_options load = {.pool = pool,
                                         .mode = CLB_STORE_READ,
                                         .policy = moe ? clb_registry_expert_policy(registry, "lru", err) : NULL,
                                         .class_slots = plan->class_slots,
                                         .preload = moe && plan->all_experts};
    return clb_model_load(model, &load, err);
}

static inline int tiny_forward(clb_model *model, clb_pool *pool, const clb_plan_input *in, clb_forward **out,
                               clb_error *err)
{
    const clb_forward_options options = {.model = model, .pool = pool, .kv_layout = in->kv, .max_rows = MAX_ROWS};
    return clb_forward_create(&options, out, err);
}

static inline int tiny_seq(clb_registry *registry, clb_kv_cache *cache, clb_kv_seq **out, clb_error *err)
{
    const clb_kv_seq_options options = {
        .strategy = clb_registry_kv_strategy(registry, "full", err), .host = clb_registry_host(registry), .ctx = N_CTX};
    return clb_kv_seq_create(cache, &options, out, err);
}

/* logits: [2][n_vocab]. */
static inline int tiny_run(clb_forward *forward, clb_kv_seq *seq, uint32_t n_vocab, bool one_by_one,
                           const clb_lora_set *lora, float *logits, clb_error *err)
{
    const uint32_t step = one_by_one ? 1 : 2, tokens[2] = {n_vocab - 1, 0};
    for (uint32_t i = 0; i < 2; i += step) {
        const clb_span span = {.kv = seq,
                               .tokens = tokens + i,
                               .n = step,
                               .n_logits = step,
                               .lora = lora,
                               .phase = one_by_one ? COLIBRI_PHASE_DECODE : COLIBRI_PHASE_PREFILL};
        CLB_TRY(clb_forward_run(forward, &span, 1, logits + i * (size_t)n_vocab, err));
    }
    return COLIBRI_OK;
}

/* The same bits, or both no number. */
static inline void tiny_same(const float *a, const float *b, size_t n_vocab)
{
    for (size_t i = 0; i < 2 * n_vocab; i++)
        REQUIRE(memcmp(&a[i], &b[i], sizeof a[i]) == 0 || (a[i] != a[i] && b[i] != b[i]));
}

/* An error has a message of one line. */
static inline void explained(int rc, const clb_error *err)
{
    REQUIRE(rc == err->code && *err->msg && !strchr(err->msg, '\n'));
}

#endif
