/* libFuzzer: any bytes as an adapter of three tiny models (dense, experts, experts with a shared one). What is taken
 * has what it says it needs, and runs: two tokens in one pass, then one by one with more threads; nothing may crash,
 * and the logits must be the same bits. With strength 0, and afterwards without it, they are those of the model alone.
 * Seeds: tests/fuzz/corpus/lora (tests/oracles/make_lora_seeds.py). */
#include "gguf_mutator.h"
#include "model/lora.h"
#include "tiny_run.h"

#define MOST     (UINT64_C(32) << 20) /* of an adapter's data */
#define N_MODELS 3u

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
    REQUIRE(!tiny_forward(t->model, m->pool, &t->in, &m->forward, &err));
}

/* Logits of two tokens: [2][n_vocab]; free() them. */
static float *run(const struct tiny *t, const struct machine *m, bool one_by_one, const clb_lora_set *set)
{
    clb_error err;
    clb_kv_seq *seq;
    const uint32_t n_vocab = t->model->hp.n_vocab;
    float *const logits = malloc(2 * (size_t)n_vocab * sizeof *logits);
    REQUIRE(logits && !tiny_seq(registry, t->cache, &seq, &err));
    REQUIRE(!tiny_run(m->forward, seq, n_vocab, one_by_one, set, logits, &err));
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
    clb_pool *pool;
    REQUIRE(!clb_pool_create(1, &pool, &err));
    t->in = tiny_input(t->model, 1, 0);
    REQUIRE(!clb_plan_make(&t->in, &plan, &err));
    REQUIRE(!t->model->n_moe_layers || plan.all_experts);
    REQUIRE(!tiny_load(t->model, registry, &plan, pool, &err));
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
    tiny_same(a, b, t->model->hp.n_vocab);
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
        explained(rc, &err);
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
