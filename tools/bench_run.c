/* Running tests: warm-up, measured runs, one more with the clock in every loop. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench.h"
#include "engine/compare.h"

#define SUSTAINED_STEP_NS UINT64_C(10000000000)

void clb_bench_test_free(clb_bench_test *t)
{
    free(t->ns);
    free(t->ttft_ns);
    free(t->gen_ns);
    free(t->bandwidth);
    free(t->token_ns);
    t->ns = t->ttft_ns = t->gen_ns = t->token_ns = NULL;
    t->bandwidth = NULL;
}

static int reserve(const clb_bench *b, clb_bench_test *t, clb_error *err)
{
    const size_t tokens = (size_t)b->runs * t->n_gen;
    t->ns = calloc(b->runs, sizeof *t->ns);
    t->ttft_ns = calloc(b->runs, sizeof *t->ttft_ns);
    t->gen_ns = calloc(b->runs, sizeof *t->gen_ns);
    t->bandwidth = calloc(b->runs, sizeof *t->bandwidth);
    t->token_ns = calloc(tokens ? tokens : 1, sizeof *t->token_ns);
    return t->ns && t->ttft_ns && t->gen_ns && t->bandwidth && t->token_ns ? COLIBRI_OK : CLB_NOMEM(err, "results");
}

/* Random tokens. */
static int run_random(clb_bench *b, const clb_bench_test *t, uint32_t depth, uint32_t n_gen, uint64_t *ns,
                      uint64_t *tokens, clb_error *err)
{
    if (t->n_streams > 1)
        return clb_bench_streams(b->engine, t->n_streams, depth, n_gen, ns, tokens, err);
    return clb_bench_run(b->session, depth, t->n_prompt, n_gen, ns, t->n_prompt ? NULL : tokens, err);
}

static int run_once(clb_bench *b, clb_bench_test *t, uint32_t run, clb_error *err)
{
    uint64_t *const tokens = t->token_ns + t->n_token_ns;
    if (!t->ids) {
        CLB_TRY(run_random(b, t, t->depth, t->n_gen, &t->ns[run], tokens, err));
        t->n_token_ns += t->n_prompt ? 0 : t->n_gen;
        return COLIBRI_OK;
    }
    CLB_TRY(clb_bench_answer(b->session, t->ids, t->n_prompt, t->n_gen, &t->ns[run], &t->ttft_ns[run], tokens, err));
    for (uint32_t i = 0; i < t->n_gen; i++)
        t->gen_ns[run] += tokens[i];
    t->n_token_ns += t->n_gen;
    return COLIBRI_OK;
}

static void count(const clb_bench *b, const clb_store_stats *before, clb_bench_test *t, uint64_t ns)
{
    clb_store_stats now;
    clb_store_get_stats(b->engine->model->store, &now);
    t->hits += now.hits - before->hits;
    t->misses += now.misses + now.late - before->misses - before->late;
    t->drive_bytes +=
        now.expert_bytes_read - before->expert_bytes_read + now.layer_bytes_read - before->layer_bytes_read;
    t->drive_ns += ns;
}

/* Apart from the others, which it would slow down. */
static int run_split(clb_bench *b, clb_bench_test *t, clb_error *err)
{
    uint64_t ns;
    clb_session_reset(b->session);
    clb_forward_profile(b->engine->forward, &t->profile);
    const int rc = run_random(b, t, 0, t->n_gen, &ns, NULL, err);
    clb_forward_profile(b->engine->forward, NULL);
    t->has_profile = rc == COLIBRI_OK;
    return rc;
}

int clb_bench_test_run(clb_bench *b, clb_bench_test *t, clb_error *err)
{
    uint64_t ns;
    CLB_TRY(reserve(b, t, err));
    if (b->warm_up && !b->reset)
        CLB_TRY(t->ids ? clb_bench_run(b->session, 0, 0, t->n_gen < 4 ? t->n_gen : 4, &ns, NULL, err)
                       : run_random(b, t, 0, t->n_gen < 4 ? t->n_gen : 4, &ns, NULL, err));
    for (t->n = 0; t->n < b->runs;) {
        clb_store_stats before;
        if ((!t->n_prompt && t->n_streams < 2) || t->ids) /* streams: how many experts they share is not known */
            CLB_TRY(clb_bandwidth_measure(b->engine->pool, 2, &t->bandwidth[t->n], err));
        if (b->reset)
            clb_compare_make_cold(b->engine, clb_args_config(b->args));
        clb_store_get_stats(b->engine->model->store, &before);
        const uint64_t t0 = clb_now_ns();
        CLB_TRY(run_once(b, t, t->n, err));
        count(b, &before, t, clb_now_ns() - t0);
        t->n++;
        clb_progress(b->engine->log, t->name, t->n, b->runs);
    }
    return b->split && !t->ids ? run_split(b, t, err) : COLIBRI_OK;
}

int clb_bench_sustained(clb_bench *b, double minutes, clb_error *err)
{
    enum { STEP = 16 };
    const uint64_t t0 = clb_now_ns(), end = t0 + (uint64_t)(minutes * 60e9);
    uint64_t since = t0, tokens = 0, ns, now = t0;
    double first = 0.0, last = 0.0, least = 0.0;
    printf("| seconds | tok/s | of the first |\n|---:|---:|---:|\n");
    while (now < end) {
        CLB_TRY(clb_bench_run(b->session, 0, 0, STEP, &ns, NULL, err));
        tokens += STEP;
        now = clb_now_ns();
        if (now - since < SUSTAINED_STEP_NS && now < end)
            continue;
        last = (double)tokens * 1e9 / (double)(now - since);
        first = first > 0.0 ? first : last;
        least = least > 0.0 && least < last ? least : last;
        printf("| %.0f | %.2f | %.0f %% |\n", (double)(now - t0) / 1e9, last, 100 * last / first);
        if (fflush(stdout))
            return clb_fail(err, COLIBRI_E_IO, "cannot write standard output");
        since = now;
        tokens = 0;
    }
    printf("\n%s: the last ten seconds ran at %.0f %% of the first ones, the slowest at %.0f %%\n",
           last < 0.9 * first ? "slows down (heat, power limits, or others on the machine)" : "holds its speed",
           100 * last / first, 100 * least / first);
    return COLIBRI_OK;
}
