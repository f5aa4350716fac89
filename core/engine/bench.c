#include "engine/bench.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "base/clock.h"

/* ---- tests ----------------------------------------------------------------------------------------------- */

/* Uniform over the vocabulary. Control tokens are tokens like others here: nothing reads the output. */
static uint32_t next_token(uint64_t *state, uint32_t n_vocab)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(((*state >> 32) * n_vocab) >> 32);
}

static int feed(clb_session *s, uint32_t n, uint64_t *state, clb_error *err)
{
    const clb_engine *e = clb_session_engine(s);
    uint32_t *ids = malloc((size_t)n * sizeof *ids);
    if (!ids)
        return CLB_NOMEM(err, "prompt");
    for (uint32_t i = 0; i < n; i++)
        ids[i] = next_token(state, e->model->hp.n_vocab);
    const int rc = clb_session_extend(s, ids, n, err);
    free(ids);
    return rc;
}

int clb_bench_run(clb_session *s, uint32_t depth, uint32_t n_prompt, uint32_t n_gen, uint64_t *ns, uint64_t *token_ns,
                  clb_error *err)
{
    const clb_engine *e = clb_session_engine(s);
    uint64_t state = 1;
    clb_session_reset(s);
    clb_session_keep_apart(s);
    if (depth)
        CLB_TRY(feed(s, depth, &state, err));
    const uint64_t t0 = clb_now_ns();
    uint64_t before = t0;
    if (n_prompt)
        CLB_TRY(feed(s, n_prompt, &state, err));
    for (uint32_t i = 0; i < n_gen && !n_prompt; i++) {
        CLB_TRY(clb_session_append(s, next_token(&state, e->model->hp.n_vocab), err));
        const uint64_t now = clb_now_ns();
        if (token_ns)
            token_ns[i] = now - before;
        before = now;
    }
    *ns = clb_now_ns() - t0;
    return COLIBRI_OK;
}

struct streams {
    clb_kv_seq **kv;
    clb_span *spans;
    uint32_t *tokens; /* [n + depth]: a prompt, later the next token of each */
    float *logits;
    uint32_t n;
};

static void close_streams(struct streams *s)
{
    for (uint32_t i = 0; s->kv && i < s->n; i++)
        if (s->kv[i])
            clb_kv_seq_destroy(s->kv[i]);
    free(s->kv);
    free(s->spans);
    free(s->tokens);
    free(s->logits);
}

static int open_streams(clb_engine *e, uint32_t n, uint32_t depth, uint64_t *state, struct streams *s, clb_error *err)
{
    const uint32_t n_vocab = e->model->hp.n_vocab;
    *s = (struct streams){.n = n};
    s->kv = calloc(n, sizeof(clb_kv_seq *));
    s->spans = calloc(n, sizeof *s->spans);
    s->tokens = calloc((size_t)n + depth, sizeof *s->tokens);
    s->logits = calloc((size_t)n * n_vocab, sizeof *s->logits);
    if (!s->kv || !s->spans || !s->tokens || !s->logits)
        return CLB_NOMEM(err, "sequences");
    for (uint32_t i = 0; i < n; i++) {
        CLB_TRY(clb_engine_new_sequence(e, &s->kv[i], err));
        for (uint32_t k = 0; k < depth; k++)
            s->tokens[k] = next_token(state, n_vocab);
        for (uint32_t k = 0; k < depth; k += e->batch) {
            const clb_span span = {.kv = s->kv[i],
                                   .tokens = s->tokens + k,
                                   .n = depth - k < e->batch ? depth - k : e->batch,
                                   .phase = COLIBRI_PHASE_PREFILL,
                                   .prefill_done = depth - k <= e->batch};
            CLB_TRY(clb_forward_run(e->forward, &span, 1, s->logits, err));
        }
        s->spans[i] =
            (clb_span){.kv = s->kv[i], .tokens = s->tokens + i, .n = 1, .n_logits = 1, .phase = COLIBRI_PHASE_DECODE};
    }
    return COLIBRI_OK;
}

int clb_bench_streams(clb_engine *e, uint32_t n_streams, uint32_t depth, uint32_t n_gen, uint64_t *ns,
                      uint64_t *token_ns, clb_error *err)
{
    struct streams s;
    uint64_t state = 1;
    int rc = open_streams(e, n_streams, depth, &state, &s, err);
    const uint64_t t0 = clb_now_ns();
    uint64_t before = t0;
    for (uint32_t k = 0; k < n_gen && !rc; k++) {
        for (uint32_t i = 0; i < n_streams; i++)
            s.tokens[i] = next_token(&state, e->model->hp.n_vocab);
        rc = clb_forward_run(e->forward, s.spans, n_streams, s.logits, err);
        const uint64_t now = clb_now_ns();
        if (token_ns)
            token_ns[k] = now - before;
        before = now;
    }
    *ns = before - t0;
    close_streams(&s);
    return rc;
}

static int answer(clb_session *s, clb_sampler *sampler, uint32_t n_gen, uint64_t t0, uint64_t *ttft_ns,
                  uint64_t *token_ns, clb_error *err)
{
    uint64_t before = t0;
    for (uint32_t i = 0; i < n_gen; i++) {
        uint32_t token;
        CLB_TRY(clb_sampler_sample(sampler, clb_session_logits(s), &token, err));
        if (i == 0)
            *ttft_ns = before = clb_now_ns();
        CLB_TRY(clb_session_append(s, token, err));
        const uint64_t now = clb_now_ns();
        token_ns[i] = now - before;
        before = now;
    }
    *ttft_ns -= t0;
    return COLIBRI_OK;
}

int clb_bench_answer(clb_session *s, const uint32_t *ids, uint32_t n, uint32_t n_gen, uint64_t *prompt_ns,
                     uint64_t *ttft_ns, uint64_t *token_ns, clb_error *err)
{
    const clb_engine *e = clb_session_engine(s);
    const clb_sampler_params greedy = {.repeat_penalty = 1.0};
    clb_sampler *sampler;
    CLB_TRY(clb_sampler_create(&greedy, e->model->hp.n_vocab, &sampler, err));
    clb_session_reset(s);
    clb_session_keep_apart(s);
    const uint64_t t0 = clb_now_ns();
    *ttft_ns = t0;
    int rc = clb_session_extend(s, ids, n, err);
    *prompt_ns = clb_now_ns() - t0;
    if (!rc)
        rc = answer(s, sampler, n_gen, t0, ttft_ns, token_ns, err);
    clb_sampler_destroy(sampler);
    return rc;
}

/* ---- bytes ----------------------------------------------------------------------------------------------- */

uint64_t clb_bench_weight_bytes(const clb_model *model)
{
    const clb_model_sizes sizes = clb_model_get_sizes(model);
    const clb_matrix *out = model->output.tensor ? &model->output.m : &model->token_embd.m;
    uint64_t n = sizes.dense_bytes + out->bytes;
    if (model->hp.n_experts)
        n += sizes.expert_bytes / model->hp.n_experts * model->hp.top_k;
    return n;
}

uint64_t clb_bench_kv_bytes(const clb_engine *e, uint32_t n_kv)
{
    const clb_kv_layout *l = &e->kv_layout;
    return (uint64_t)l->n_layers * l->n_kv_heads * clb_kv_position_bytes(l) * n_kv;
}

/* ---- memory bandwidth ------------------------------------------------------------------------------------ */

/* Well beyond any cache, small beside a model. */
#define AREA ((size_t)256 << 20)

struct bandwidth {
    uint64_t *area;
    uint64_t sink; /* keeps the reads from being left out */
};

static void fill(void *ctx, uint32_t worker, uint32_t n_workers)
{
    struct bandwidth *b = ctx;
    const size_t n = AREA / sizeof *b->area;
    for (size_t i = n * worker / n_workers; i < n * (worker + 1) / n_workers; i++)
        b->area[i] = i;
}

static void read_part(void *ctx, uint32_t worker, uint32_t n_workers)
{
    struct bandwidth *b = ctx;
    const size_t n = AREA / sizeof *b->area / 8; /* cache lines */
    const uint64_t *p = b->area + n * worker / n_workers * 8, *const end = b->area + n * (worker + 1) / n_workers * 8;
    uint64_t sum[8] = {0};
    for (; p < end; p += 8)
        for (int k = 0; k < 8; k++)
            sum[k] += p[k];
    for (int k = 1; k < 8; k++)
        sum[0] += sum[k];
    __atomic_fetch_add(&b->sink, sum[0], __ATOMIC_RELAXED);
}

int clb_bandwidth_measure(clb_pool *pool, uint32_t passes, double *out, clb_error *err)
{
    struct bandwidth b = {0};
    b.area = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b.area == MAP_FAILED)
        return CLB_NOMEM(err, "bandwidth measurement");
    madvise(b.area, AREA, MADV_HUGEPAGE); /* as the weights have them */
    clb_pool_run(pool, fill, &b);
    *out = 0;
    for (uint32_t i = 0; i < passes; i++) {
        const uint64_t t0 = clb_now_ns();
        clb_pool_run(pool, read_part, &b);
        const double rate = (double)AREA * 1e9 / (double)(clb_now_ns() - t0);
        *out = rate > *out ? rate : *out;
    }
    munmap(b.area, AREA);
    return COLIBRI_OK;
}
