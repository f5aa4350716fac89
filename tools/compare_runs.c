/* The order of a comparison's runs, and what happens around each. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "compare.h"

/* Logits of side A for lossy comparisons, one row of n_vocab per step. In a file without a name: those of all prompts
 * would be more than the budget. */
struct reference {
    clb_tokens tokens;
    FILE *logits;
};

struct runs {
    clb_comparison *c;
    struct reference *refs; /* [n_prompts]; NULL: not lossy */
    clb_sampler_params sampling;
    uint32_t done, total;
};

static int store_logits(void *ctx, uint32_t step, const float *logits, clb_error *err)
{
    (void)step;
    struct reference *const r = ((void **)ctx)[0];
    const uint32_t n = *(const uint32_t *)((void **)ctx)[1];
    if (fwrite(logits, sizeof *logits, n, r->logits) != n)
        return clb_fail(err, COLIBRI_E_IO, "cannot write the reference logits to a temporary file");
    return COLIBRI_OK;
}

struct against {
    const struct reference *ref;
    clb_compare_run *run;
    float *row;
    uint32_t n_vocab;
};

static int compare_logits(void *ctx, uint32_t step, const float *logits, clb_error *err)
{
    struct against *const a = ctx;
    (void)step;
    if (fread(a->row, sizeof *a->row, a->n_vocab, a->ref->logits) != a->n_vocab)
        return clb_fail(err, COLIBRI_E_IO, "cannot read the reference logits back");
    bool same;
    const double kl = clb_compare_kl(a->row, logits, a->n_vocab, &same);
    a->run->n_compared++;
    a->run->n_same_top += same;
    a->run->kl_sum += kl;
    a->run->kl_max = kl > a->run->kl_max ? kl : a->run->kl_max;
    return COLIBRI_OK;
}

static clb_compare_input input_of(const struct runs *r, uint32_t prompt)
{
    const clb_tokens *const ids = &r->c->prompts.v[prompt].ids;
    clb_compare_input in = {
        .prompt = ids->ids,
        .n_prompt = (uint32_t)ids->n,
        .n_tokens = r->c->n_tokens,
        .ignore_eog = r->c->ignore_eog,
        .sampling = r->sampling,
    };
    in.sampling.seed += prompt;
    return in;
}

/* What side A says without being measured: its tokens are then fed to both sides. */
static int make_references(struct runs *r, clb_error *err)
{
    clb_comparison *const c = r->c;
    clb_side *const a = &c->side[CLB_SIDE_A];
    CLB_TRY(clb_compare_open(c, CLB_SIDE_A, err));
    uint32_t n_vocab = a->engine->model->hp.n_vocab;
    for (uint32_t p = 0; p < c->prompts.n; p++) {
        struct reference *const ref = &r->refs[p];
        clb_compare_run run;
        ref->logits = tmpfile();
        if (!ref->logits)
            return clb_fail(err, COLIBRI_E_IO, "cannot make a temporary file for the reference logits");
        clb_compare_input in = input_of(r, p);
        void *ctx[] = {ref, &n_vocab};
        in.on_logits = store_logits;
        in.ctx = ctx;
        CLB_TRY(clb_compare_measure(a->session, &in, &run, err));
        ref->tokens = run.tokens;
        run.tokens = (clb_tokens){0};
        clb_compare_run_free(&run);
        clb_progress(a->engine->log, "reference", p + 1, c->prompts.n);
    }
    return COLIBRI_OK;
}

static int measure(struct runs *r, uint32_t side, uint32_t prompt, uint32_t round, bool second, clb_error *err)
{
    clb_comparison *const c = r->c;
    clb_side *const s = &c->side[side];
    clb_compare_input in = input_of(r, prompt);
    clb_compare_run run = {0}, compared = {0};
    struct against against = {.run = &compared, .n_vocab = s->engine->model->hp.n_vocab};
    if (r->refs) {
        in.forced = r->refs[prompt].tokens.ids;
        in.n_tokens = (uint32_t)r->refs[prompt].tokens.n;
        if (side == CLB_SIDE_B) {
            against.ref = &r->refs[prompt];
            against.row = malloc(against.n_vocab * sizeof *against.row);
            if (!against.row)
                return CLB_NOMEM(err, "logits");
            rewind(against.ref->logits);
            in.on_logits = compare_logits;
            in.ctx = &against;
        }
    }
    if (!c->warm)
        clb_compare_make_cold(s->engine, s->config);
    const int rc = clb_compare_measure(s->session, &in, &run, err);
    free(against.row);
    if (rc)
        return rc;
    run.prompt = prompt;
    run.round = round;
    run.side = side;
    run.second = second;
    run.n_compared = compared.n_compared;
    run.n_same_top = compared.n_same_top;
    run.kl_sum = compared.kl_sum;
    run.kl_max = compared.kl_max;
    c->runs[c->n_runs++] = run;
    clb_progress(s->engine->log, "comparing", ++r->done, r->total);
    return COLIBRI_OK;
}

/* Not measured: brings code, buffers and, for warm runs, the cache into the state in which the first run finds them. */
static int warm_up(const struct runs *r, clb_side *s, clb_error *err)
{
    clb_compare_run run;
    clb_compare_input in = input_of(r, r->c->prompts.n - 1);
    if (!r->c->warm) {
        in.n_prompt = in.n_prompt < 16 ? in.n_prompt : 16;
        in.n_tokens = in.n_tokens < 4 ? in.n_tokens : 4;
    }
    CLB_TRY(clb_compare_measure(s->session, &in, &run, err));
    clb_compare_run_free(&run);
    return COLIBRI_OK;
}

/* A B, then B A, then A B: each prompt begins with the other side than the one before, and in the next round with the
 * other side than in this one. */
static int run_together(struct runs *r, clb_error *err)
{
    for (uint32_t s = 0; s < CLB_SIDES; s++)
        CLB_TRY(warm_up(r, &r->c->side[s], err));
    for (uint32_t round = 0; round < r->c->rounds; round++)
        for (uint32_t p = 0; p < r->c->prompts.n; p++)
            for (uint32_t turn = 0; turn < CLB_SIDES; turn++)
                CLB_TRY(measure(r, (round + p + turn) % 2, p, round, turn == 1, err));
    return COLIBRI_OK;
}

/* All prompts on A, all on B, then all on B again and all on A: the same order, in blocks. */
static int run_in_turn(struct runs *r, clb_error *err)
{
    for (uint32_t round = 0; round < r->c->rounds; round++)
        for (uint32_t turn = 0; turn < CLB_SIDES; turn++) {
            const uint32_t side = (round + turn) % 2;
            clb_side *const s = &r->c->side[side];
            clb_compare_close_side(&r->c->side[!side]);
            const bool fresh = s->engine == NULL || r->c->n_runs == 0;
            CLB_TRY(clb_compare_open(r->c, side, err));
            if (fresh)
                CLB_TRY(warm_up(r, s, err));
            for (uint32_t p = 0; p < r->c->prompts.n; p++)
                CLB_TRY(measure(r, side, p, round, turn == 1, err));
        }
    return COLIBRI_OK;
}

int clb_compare_all_runs(clb_comparison *c, clb_error *err)
{
    struct runs r = {.c = c, .total = c->rounds * c->prompts.n * CLB_SIDES};
    r.sampling = clb_engine_sampler_params(clb_args_config(c->args));
    r.sampling.seed = c->seed;
    int rc = COLIBRI_OK;
    c->runs = calloc(r.total, sizeof *c->runs);
    if (!c->runs)
        return CLB_NOMEM(err, "runs");
    if (*c->lossy) {
        r.refs = calloc(c->prompts.n, sizeof *r.refs);
        if (!r.refs)
            return CLB_NOMEM(err, "references");
        CLB_GO(make_references(&r, err));
    }
    rc = c->together ? run_together(&r, err) : run_in_turn(&r, err);
done:
    for (uint32_t p = 0; r.refs && p < c->prompts.n; p++) {
        clb_tokens_free(&r.refs[p].tokens);
        if (r.refs[p].logits)
            fclose(r.refs[p].logits);
    }
    free(r.refs);
    if (rc == COLIBRI_E_CANCELLED) { /* what is complete is still worth knowing */
        c->interrupted = true;
        rc = COLIBRI_OK;
    }
    return rc;
}
