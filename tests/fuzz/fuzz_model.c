/* libFuzzer: any bytes as a model. What binds is planned within 64 MiB, loaded and run: two tokens in one pass, then one by
 * one with as few expert slots as possible and more threads. Nothing may crash, and the logits must be the same bits.
 * The mutator knows where keys, shapes, types and weights lie. Seeds: tests/fuzz/corpus/model
 * (tests/oracles/make_model_seeds.py). */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
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

/* ---- mutation ---- */

enum { MAX_SPOTS = 256 };

struct spots {
    struct {
        size_t at, n;
    } spot[MAX_SPOTS];
    size_t n, data; /* where the header ends */
};

struct cursor {
    const uint8_t *p;
    size_t at, size;
    bool bad;
};

static uint64_t take(struct cursor *c, size_t n)
{
    uint64_t v = 0;
    if (c->bad || n > c->size - c->at) {
        c->bad = true;
        return 0;
    }
    memcpy(&v, c->p + c->at, n < 8 ? n : 8);
    c->at += n;
    return v;
}

static void skip_string(struct cursor *c)
{
    const uint64_t n = take(c, 8);
    take(c, n < c->size ? (size_t)n : c->size + 1);
}

static void note(struct spots *s, size_t at, size_t n)
{
    if (s->n < MAX_SPOTS) {
        s->spot[s->n].at = at;
        s->spot[s->n++].n = n;
    }
}

static void skip_value(struct cursor *c, struct spots *s, uint32_t type)
{
    const unsigned n = clb_gguf_vtype_size(type);
    if (n) {
        if (s)
            note(s, c->at, n);
        take(c, n);
    } else if (type == CLB_GGUF_STRING) {
        skip_string(c);
    } else if (type == CLB_GGUF_ARRAY) {
        const uint32_t elem = (uint32_t)take(c, 4);
        const uint64_t count = take(c, 8);
        for (uint64_t i = 0; i < count && !c->bad; i++)
            skip_value(c, NULL, elem);
    } else {
        c->bad = true;
    }
}

/* Scalars of keys, and dimensions, types and offsets of tensors. */
static bool survey(const uint8_t *data, size_t size, struct spots *s)
{
    struct cursor c = {data, 0, size, false};
    s->n = 0;
    take(&c, 8);
    const uint64_t n_tensors = take(&c, 8), n_keys = take(&c, 8);
    for (uint64_t i = 0; i < n_keys && !c.bad; i++) {
        skip_string(&c);
        skip_value(&c, s, (uint32_t)take(&c, 4));
    }
    for (uint64_t i = 0; i < n_tensors && !c.bad; i++) {
        skip_string(&c);
        const uint64_t n_dims = take(&c, 4);
        for (uint64_t d = 0; d < n_dims && !c.bad; d++) {
            note(s, c.at, 8);
            take(&c, 8);
        }
        note(s, c.at, 4);
        take(&c, 4);
        note(s, c.at, 8);
        take(&c, 8);
    }
    s->data = c.at;
    return !c.bad && s->n;
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static uint64_t interesting(uint64_t old, uint64_t r)
{
    static const uint64_t values[] = {0, 1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 64, 255, 256, 4096, 65535, 65536,
                                      UINT64_C(1) << 20, UINT64_C(1) << 24, UINT64_C(1) << 30, INT32_MAX,
                                      UINT64_C(1) << 31, UINT32_MAX, UINT64_C(1) << 32, INT64_MAX, UINT64_MAX,
                                      0x7fc00000, 0x7f800000, 0xff800000, 0x00000001, 0x7f7fffff, 0x3f800000};
    switch (r % 4) {
    case 0:
        return old + 1;
    case 1:
        return old - 1;
    case 2:
        return (r >> 2) % 2 ? old * 2 : old / 2;
    default:
        return values[(r >> 2) % (sizeof values / sizeof *values)];
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    static struct spots s;
    uint64_t state = seed;
    const uint64_t r = next_random(&state) % 16;
    if (r < 3 || size > max_size || !survey(data, size, &s))
        return LLVMFuzzerMutate(data, size, max_size);
    if (r < 12) { /* one or two fields of the header */
        for (uint64_t k = 0; k <= r % 2; k++) {
            const size_t i = next_random(&state) % s.n;
            uint64_t v = 0;
            memcpy(&v, data + s.spot[i].at, s.spot[i].n);
            v = interesting(v, next_random(&state));
            memcpy(data + s.spot[i].at, &v, s.spot[i].n);
        }
        return size;
    }
    if (s.data >= size)
        return size;
    size_t at = s.data + next_random(&state) % (size - s.data); /* weights: a run of NaN, infinity or anything */
    at &= ~(size_t)3;
    const uint32_t bits[] = {0x7fc00000, 0x7f800000, 0xff800000, 0x7c007c00, 0x7e007e00, 0, 0x7f7fffff,
                             (uint32_t)next_random(&state)};
    const uint32_t value = bits[next_random(&state) % 8];
    const size_t n = 1 + next_random(&state) % (r == 12 ? 4 : 2048);
    for (size_t i = 0; i < n && at + 4 <= size; i++, at += 4)
        memcpy(data + at, &value, 4);
    return size;
}
