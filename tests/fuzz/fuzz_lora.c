/* libFuzzer: any bytes as an adapter of three tiny models (dense, experts, experts with a shared one). What is taken
 * has what it says it needs, and runs: two tokens in one pass, then one by one with more threads; nothing may crash,
 * and the logits must be the same bits. With strength 0, and afterwards without it, they are those of the model alone.
 * Seeds: tests/fuzz/corpus/lora (tests/oracles/make_lora_seeds.py). */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_mutator.h"
#include "model/forward.h"
#include "model/lora.h"
#include "plan/memory.h"
#include "plan/plan.h"

#define ROOM     (UINT64_C(64) << 20)
#define MOST     (UINT64_C(32) << 20) /* of an adapter's data */
#define N_CTX    64u
#define MAX_ROWS 2u
#define N_MODELS 3u

#define REQUIRE(cond)                                                                                                  \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                                                 \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);

struct machine {
    clb_pool *pool;
    clb_forward *forward;
};

struct tiny {
    clb_gguf *g;
    clb_model *model;
    clb_plan_input in;
    clb_kv_cache *cache;
    struct machine one, more;
    float *plain; /* [2][n_vocab], of the model alone */
};

static clb_registry *registry;
static struct tiny models[N_MODELS];

static bool geometry(void *ctx, uint32_t type, uint32_t *block_elems, uint32_t *block_bytes)
{
    (void)ctx;
    return clb_gguf_known_geometry(NULL, type, block_elems, block_bytes);
}

static void create_machine(const struct tiny *t, uint32_t threads, struct machine *m)
{
    clb_error err;
    REQUIRE(!clb_pool_create(threads, &m->pool, &err));
    const clb_forward_options options = {
        .model = t->model, .pool = m->pool, .kv_layout = t->in.kv, .max_rows = MAX_ROWS};
    REQUIRE(!clb_forward_create(&options, &m->forward, &err));
}

/* Logits of two tokens: [2][n_vocab]; free() them. */
static float *run(const struct tiny *t, const struct machine *m, bool one_by_one, const clb_lora_set *set)
{
    clb_error err;
    clb_kv_seq *seq;
    const uint32_t n_vocab = t->model->hp.n_vocab, step = one_by_one ? 1 : 2, tokens[2] = {n_vocab - 1, 0};
    const clb_kv_seq_options options = {.strategy = clb_registry_kv_strategy(registry, "full", &err),
                                        .host = clb_registry_host(registry),
                                        .ctx = N_CTX};
    float *const logits = malloc(2 * (size_t)n_vocab * sizeof *logits);
    REQUIRE(logits && !clb_kv_seq_create(t->cache, &options, &seq, &err));
    for (uint32_t i = 0; i < 2; i += step) {
        const clb_span span = {.kv = seq,
                               .tokens = tokens + i,
                               .n = step,
                               .n_logits = step,
                               .lora = set,
                               .phase = one_by_one ? COLIBRI_PHASE_DECODE : COLIBRI_PHASE_PREFILL};
        REQUIRE(!clb_forward_run(m->forward, &span, 1, logits + i * (size_t)n_vocab, &err));
    }
    clb_kv_seq_destroy(seq);
    return logits;
}

static void open_model(struct tiny *t, const char *name)
{
    char path[512];
    clb_error err;
    clb_plan plan;
    snprintf(path, sizeof path, "%s/%s", COLIBRI_FUZZ_CORPUS, name);
    REQUIRE(!clb_gguf_open(path, geometry, NULL, &t->g, &err));
    REQUIRE(!clb_model_bind(t->g, registry, NULL, &t->model, &err));
    const clb_hparams *hp = &t->model->hp;
    clb_pool *pool;
    REQUIRE(!clb_pool_create(1, &pool, &err));
    t->in = (clb_plan_input){.model = t->model,
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
                             .n_workers = 1,
                             .budget = clb_memory_resident() + ROOM};
    REQUIRE(!clb_plan_make(&t->in, &plan, &err));
    const clb_model_load_options load = {
        .pool = pool,
        .mode = CLB_STORE_READ,
        .policy = t->model->n_moe_layers ? clb_registry_expert_policy(registry, "lru", &err) : NULL,
        .class_slots = plan.class_slots,
        .preload = t->model->n_moe_layers > 0};
    REQUIRE(!clb_model_load(t->model, &load, &err));
    REQUIRE(!clb_kv_cache_create(&t->in.kv, plan.kv_bytes, NULL, &t->cache, &err));
    clb_plan_free(&plan);
    create_machine(t, 1, &t->one);
    create_machine(t, 3, &t->more);
    t->plain = run(t, &t->one, false, NULL);
}

static void once(void)
{
    static const char *const names[N_MODELS] = {"model/llama", "model/qwen3moe", "model/granitemoe"};
    clb_error err;
    if (registry)
        return;
    const clb_registry_options options = {0}; /* what is built in, and no CPU bits: the reference */
    REQUIRE(!clb_registry_open(&options, &registry, &err));
    for (size_t i = 0; i < N_MODELS; i++)
        open_model(&models[i], names[i]);
}

static void check_same(const struct tiny *t, float *a, const float *b)
{
    for (size_t i = 0; i < 2 * (size_t)t->model->hp.n_vocab; i++)
        REQUIRE(memcmp(&a[i], &b[i], sizeof a[i]) == 0 || (a[i] != a[i] && b[i] != b[i]));
    free(a);
}

static void check_parts(const struct tiny *t, const clb_lora *lora)
{
    uint64_t bytes = 0;
    uint32_t n = 0, rank = 0;
    for (uint32_t l = 0; l < t->model->hp.n_layers; l++)
        for (int target = 0; target < CLB_LORA_TARGETS; target++) {
            const clb_lora_part *p = clb_lora_part_of(lora, l, (enum clb_lora_target)target);
            if (!p)
                continue;
            const uint64_t experts = target >= CLB_LORA_EXPERT_GATE ? t->model->hp.n_experts : 1;
            bytes += (p->a_stride + clb_lora_b_floats(p)) * experts * sizeof(float);
            rank = p->rank > rank ? p->rank : rank;
            n++;
        }
    REQUIRE(n && n == lora->n_parts && rank == lora->rank && bytes == lora->bytes && !lora->file);
}

static void try_on(const struct tiny *t, const uint8_t *data, size_t size)
{
    clb_error err = {0};
    clb_gguf *g;
    clb_lora *lora;
    int rc = clb_gguf_open_memory(data, size, "fuzz", geometry, NULL, &g, &err);
    if (rc)
        return;
    rc = clb_lora_look_in(t->model, g, "fuzz", &lora, &err);
    if (!rc && lora->bytes > MOST) {
        clb_lora_close(lora);
        return;
    }
    if (!rc && ((rc = clb_lora_bind(lora, t->model, &err)) || (rc = clb_lora_read(lora, NULL, NULL, &err))))
        clb_lora_close(lora);
    if (rc) {
        REQUIRE(rc == err.code && *err.msg && !strchr(err.msg, '\n'));
        return;
    }
    check_parts(t, lora);
    const clb_lora_set on = {.n = 1, .use = {{lora, 0.5f}}}, off = {.n = 1, .use = {{lora, 0.0f}}};
    float *const with = run(t, &t->one, false, &on);
    check_same(t, run(t, &t->more, true, &on), with);
    check_same(t, run(t, &t->one, false, &off), t->plain);
    check_same(t, run(t, &t->one, false, NULL), t->plain);
    free(with);
    clb_lora_close(lora);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    once();
    for (size_t i = 0; i < N_MODELS; i++)
        try_on(&models[i], data, size);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    return mutate_gguf(data, size, max_size, seed);
}
