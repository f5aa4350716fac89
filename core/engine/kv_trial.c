#include "engine/kv_trial.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define SLICE_BYTES (4u << 20) /* logits that are looked at together */
#define NOTE_EVERY  8u         /* generated tokens between two notes of attention */

/* What has been read, and what it took. */
struct clb_kv_trial_base {
    clb_kv_seq *kv;
    clb_kv_traits traits; /* of the choice it was read under */
    bool picks_pages;
    float *logits; /* [n_vocab] of the last token */
    uint32_t n;
    uint64_t ns, attention_ns, peak_bytes;
};

struct run {
    clb_engine *e;
    const clb_kv_trial_input *in;
    clb_kv_trial *out;
    clb_kv_seq *kv;
    uint32_t n_vocab, slice;
    float *logits;     /* [slice][n_vocab] */
    float *reference;  /* [n_vocab] */
    uint32_t position; /* of the first row that the sink gets in this pass */
    uint64_t prefill_attention_ns;
    uint64_t peak_bytes; /* between passes; where a base lives beside it the cache's peak is not its own */
    int rc;
    clb_error *err;
};

void clb_kv_trial_free(clb_kv_trial *t)
{
    clb_tokens_free(&t->generated);
    free(t->kl);
    free(t->nll);
    *t = (clb_kv_trial){0};
}

static uint32_t top_of(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

static double log_of_sum(const float *x, uint32_t n)
{
    double max = (double)x[0], sum = 0;
    for (uint32_t i = 1; i < n; i++)
        max = (double)x[i] > max ? (double)x[i] : max;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return log(sum) + max;
}

/* Of softmax(x) from softmax(ref), exact over the vocabulary. */
static double divergence(const float *ref, const float *x, uint32_t n, double ref_z, double x_z)
{
    double kl = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double lp = (double)ref[i] - ref_z;
        kl += exp(lp) * (lp - ((double)x[i] - x_z));
    }
    return kl > 0 ? kl : 0; /* rounding of equal ones */
}

static void compare_row(struct run *r, const float *x, double x_z, uint32_t next)
{
    clb_kv_trial *const t = r->out;
    if (fread(r->reference, sizeof *r->reference, r->n_vocab, r->in->reference_in) != r->n_vocab) {
        r->rc = clb_fail(r->err, COLIBRI_E_IO, "cannot read the reference logits back");
        return;
    }
    const double ref_z = log_of_sum(r->reference, r->n_vocab);
    t->kl[t->n_compared++] = divergence(r->reference, x, r->n_vocab, ref_z, x_z);
    t->n_same_top += top_of(r->reference, r->n_vocab) == top_of(x, r->n_vocab);
    const double dp = exp((double)x[next] - x_z) - exp((double)r->reference[next] - ref_z);
    t->delta_p_sum += dp;
    t->delta_p_squares += dp * dp;
}

static void take_rows(void *ctx, uint32_t first, uint32_t n, const float *logits)
{
    struct run *const r = ctx;
    for (uint32_t i = 0; i < n && !r->rc; i++) {
        const uint32_t position = r->position + first + i;
        const float *const x = logits + (size_t)i * r->n_vocab;
        if (position + 1 >= r->in->n)
            return;
        const uint32_t next = r->in->ids[position + 1];
        const double z = log_of_sum(x, r->n_vocab);
        const double nll = z - (double)x[next];
        r->out->nll_sum += nll;
        r->out->nll[r->out->n_scored++] = nll;
        if (r->in->reference_out && fwrite(x, sizeof *x, r->n_vocab, r->in->reference_out) != r->n_vocab)
            r->rc = clb_fail(r->err, COLIBRI_E_IO, "cannot write the reference logits to a temporary file");
        else if (r->in->reference_in)
            compare_row(r, x, z, next);
    }
}

static void note_peak(struct run *r)
{
    clb_kv_stats stats;
    clb_kv_seq_stats(r->kv, &stats);
    r->peak_bytes = stats.bytes > r->peak_bytes ? stats.bytes : r->peak_bytes;
}

/* What strategies that know the future are told: after every pass over a prompt, and now and then while generating. */
static int note_attention(struct run *r, enum colibri_phase phase, clb_error *err)
{
    if (!r->in->record || (phase == COLIBRI_PHASE_DECODE && r->out->n_decode % NOTE_EVERY))
        return COLIBRI_OK;
    return clb_kv_future_note(r->in->record, r->kv, err);
}

/* One pass. rows: they go to the sink, which takes time, so that texts have no speed of reading; a generated token's
 * single row is looked at afterwards. */
static int pass(struct run *r, const uint32_t *ids, uint32_t n, uint32_t n_logits, enum colibri_phase phase, bool done,
                bool rows, clb_error *err)
{
    const clb_span span = {
        .kv = r->kv, .tokens = ids, .n = n, .n_logits = n_logits, .phase = phase, .prefill_done = done};
    const clb_logits_sink sink = {.buffer = r->logits, .rows = r->slice, .take = take_rows, .ctx = r};
    const uint64_t began = clb_now_ns();
    const int rc = rows ? clb_forward_run_to(r->e->forward, &span, 1, &sink, err)
                        : clb_forward_run(r->e->forward, &span, 1, r->logits, err);
    const uint64_t ns = clb_now_ns() - began;
    if (rc || r->rc)
        return rc ? rc : r->rc;
    if (phase == COLIBRI_PHASE_PREFILL) {
        r->out->prefill_ns += ns;
        r->out->n_prefill += n;
    } else {
        r->out->decode_ns += ns;
        r->out->n_decode += n;
    }
    note_peak(r);
    CLB_TRY(note_attention(r, phase, err));
    return r->in->look ? r->in->look(r->in->ctx, r->kv, clb_kv_seq_position(r->kv), err) : COLIBRI_OK;
}

static uint32_t context_of(const clb_kv_trial_input *in)
{
    return in->n_context ? in->n_context : in->n;
}

/* Tokens [from, to) in pieces; `ends`: the prompt ends there for the strategy. */
static int read_part(struct run *r, uint32_t from, uint32_t to, bool ends, clb_error *err)
{
    const clb_kv_trial_input *const in = r->in;
    for (uint32_t at = from; at < to;) {
        const uint32_t n = to - at < in->chunk ? to - at : in->chunk;
        uint32_t wanted = at + n == in->n;
        if (in->text) {
            wanted = at + n <= in->scored ? 0 : at >= in->scored ? n : at + n - in->scored;
            r->position = at + n - wanted;
        }
        CLB_TRY(pass(r, in->ids + at, n, wanted, COLIBRI_PHASE_PREFILL, ends && at + n == to, in->text, err));
        at += n;
    }
    return COLIBRI_OK;
}

/* The rest of a text, as if it were generated. */
static int read_by_token(struct run *r, clb_error *err)
{
    const clb_kv_trial_input *const in = r->in;
    for (uint32_t at = context_of(in); at < in->n; at++) {
        CLB_TRY(pass(r, in->ids + at, 1, 1, COLIBRI_PHASE_DECODE, false, false, err));
        r->position = at;
        if (at >= in->scored)
            take_rows(r, 0, 1, r->logits);
        if (r->rc)
            return r->rc;
    }
    return COLIBRI_OK;
}

static int read_prompt(struct run *r, clb_error *err)
{
    const clb_kv_trial_input *const in = r->in;
    const uint32_t n = context_of(in);
    if (!in->base)
        CLB_TRY(read_part(r, 0, n, true, err));
    return in->text ? COLIBRI_OK : read_part(r, n, in->n, false, err);
}

/* Greedy generation gives the answer exactly if each of its tokens is the most probable one after those before it. */
static int read_answer(struct run *r, clb_error *err)
{
    for (uint32_t i = 0; i < r->in->n_answer; i++) {
        r->out->n_right += top_of(r->logits, r->n_vocab) == r->in->answer[i];
        if (i + 1 < r->in->n_answer)
            CLB_TRY(pass(r, &r->in->answer[i], 1, 1, COLIBRI_PHASE_DECODE, false, false, err));
    }
    return COLIBRI_OK;
}

static int generate(struct run *r, clb_error *err)
{
    for (uint32_t i = 0; i < r->in->n_generate; i++) {
        const uint32_t token = top_of(r->logits, r->n_vocab);
        if (clb_vocab_is_eog(r->e->vocab, token))
            break;
        CLB_TRY(clb_tokens_push(&r->out->generated, token, err));
        if (i + 1 < r->in->n_generate)
            CLB_TRY(pass(r, &token, 1, 1, COLIBRI_PHASE_DECODE, false, false, err));
    }
    return COLIBRI_OK;
}

static int check(const clb_engine *e, const clb_kv_trial_input *in, clb_error *err)
{
    const uint64_t all = (uint64_t)in->n + in->n_answer + in->n_generate;
    if (in->n_context >= in->n || (in->text && in->n_context > in->scored))
        return clb_fail(err, COLIBRI_E_USAGE, "a trial of %u tokens whose context has %u: something must follow", in->n,
                        in->n_context);
    if (in->n < (in->text ? 2u : 1u) || in->chunk < 1 || in->chunk > e->batch || (in->text && in->scored + 1 >= in->n))
        return clb_fail(err, COLIBRI_E_USAGE, "a trial of %u tokens in pieces of %u: pieces are at most %u (--batch)",
                        in->n, in->chunk, e->batch);
    if (all > e->ctx)
        return clb_fail(err, COLIBRI_E_LIMIT, "%llu tokens are more than the context of %u (--ctx)",
                        (unsigned long long)all, e->ctx);
    return COLIBRI_OK;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void finish(struct run *r, const clb_profile *profile)
{
    clb_kv_trial *const t = r->out;
    clb_kv_stats stats;
    clb_kv_seq_stats(r->kv, &stats);
    const uint64_t all = stats.kept_sum + stats.evicted_sum;
    t->retained = all ? (double)stats.kept_sum / (double)all : 1;
    t->bytes = stats.bytes;
    t->peak_bytes = r->in->base ? r->peak_bytes : clb_kv_cache_peak_bytes(r->e->kv);
    t->bad_answers = stats.bad_answers;
    const uint64_t attention = profile->wall_ns[CLB_PHASE_ATTENTION];
    t->attention_ns = t->n_decode ? attention - r->prefill_attention_ns : attention;
    t->attention_tokens = t->n_decode ? t->n_decode : t->n_prefill;
    if (t->n_compared > 1)
        qsort(t->kl, t->n_compared, sizeof *t->kl, compare_doubles);
}

clb_kv_choice clb_kv_trial_recorder(void)
{
    const struct colibri_kv_strategy *const recorder = clb_kv_future_recorder();
    return (clb_kv_choice){
        .strategy = recorder,
        .traits = clb_kv_traits_of(recorder, NULL, CLB_KV_AS_DECLARED),
    };
}

static int open_run(struct run *r, clb_error *err)
{
    r->n_vocab = r->e->model->hp.n_vocab;
    r->slice = (uint32_t)(SLICE_BYTES / (r->n_vocab * sizeof(float)));
    r->slice = r->slice < 4 ? 4 : r->slice > 64 ? 64 : r->slice;
    r->logits = malloc((size_t)r->slice * r->n_vocab * sizeof *r->logits);
    r->reference = malloc(r->n_vocab * sizeof *r->reference);
    r->out->kl = calloc((size_t)r->in->n + 1, sizeof *r->out->kl);
    r->out->nll = calloc((size_t)r->in->n + 1, sizeof *r->out->nll);
    if (!r->logits || !r->reference || !r->out->kl || !r->out->nll)
        return CLB_NOMEM(err, "a trial");
    clb_kv_cache_reset_peak(r->e->kv);
    return COLIBRI_OK;
}

static void close_run(struct run *r)
{
    clb_forward_profile(r->e->forward, NULL);
    if (r->kv)
        clb_kv_seq_destroy(r->kv);
    free(r->logits);
    free(r->reference);
}

/* A copy of the base under this trial's choice and budget, with what reading it took. */
static int begin_at(struct run *r, const clb_kv_trial_base *base, clb_error *err)
{
    const clb_kv_choice *const choice = r->in->choice;
    const clb_kv_seq_options options = {
        .strategy = choice->strategy,
        .params = choice->params,
        .child = choice->child,
        .positions = choice->positions,
        .n_protected = choice->n_protected,
        .future = choice->future,
        .budget = r->in->budget && r->in->budget < r->e->ctx ? r->in->budget : r->e->ctx,
    };
    const uint64_t began = clb_now_ns();
    CLB_TRY(clb_kv_seq_fork_late(base->kv, &options, &r->kv, err));
    memcpy(r->logits, base->logits, r->n_vocab * sizeof *r->logits);
    r->out->prefill_ns = base->ns + clb_now_ns() - began;
    r->out->n_prefill = base->n;
    r->peak_bytes = base->peak_bytes;
    return COLIBRI_OK;
}

int clb_kv_trial_run(clb_engine *e, const clb_kv_trial_input *in, clb_kv_trial *out, clb_error *err)
{
    *out = (clb_kv_trial){0};
    CLB_TRY(check(e, in, err));
    struct run r = {.e = e, .in = in, .out = out, .err = err};
    clb_profile profile = {0};
    int rc = COLIBRI_OK;
    CLB_GO(open_run(&r, err));
    CLB_GO(in->base ? begin_at(&r, in->base, err)
                    : clb_engine_new_sequence_with(e, in->choice, in->budget, &r.kv, err));
    profile.wall_ns[CLB_PHASE_ATTENTION] = in->base ? in->base->attention_ns : 0;
    clb_forward_profile(e->forward, &profile);
    CLB_GO(read_prompt(&r, err));
    r.prefill_attention_ns = profile.wall_ns[CLB_PHASE_ATTENTION];
    if (in->text)
        CLB_GO(read_by_token(&r, err));
    if (in->n_answer)
        CLB_GO(read_answer(&r, err));
    if (in->n_generate)
        CLB_GO(generate(&r, err));
    if (in->record) {
        CLB_GO(clb_kv_future_note(in->record, r.kv, err));
        clb_kv_future_finish(in->record);
    }
    finish(&r, &profile);
done:
    close_run(&r);
    return rc;
}

/* ---- what several trials begin with ---- */

void clb_kv_trial_base_destroy(clb_kv_trial_base *base)
{
    if (!base)
        return;
    if (base->kv)
        clb_kv_seq_destroy(base->kv);
    free(base->logits);
    free(base);
}

bool clb_kv_trial_base_fits(const clb_kv_trial_base *base, const clb_kv_choice *choice)
{
    return base->picks_pages == choice->picks_pages && clb_kv_traits_alike(&base->traits, &choice->traits);
}

static int read_base(clb_engine *e, const clb_kv_trial_input *in, clb_kv_trial_base *base, clb_error *err)
{
    clb_profile profile = {0};
    CLB_TRY(clb_engine_new_sequence_with(e, in->choice, e->ctx, &base->kv, err));
    const clb_span span = {
        .kv = base->kv, .tokens = in->ids, .n = base->n, .n_logits = 1, .phase = COLIBRI_PHASE_PREFILL};
    clb_kv_cache_reset_peak(e->kv);
    clb_forward_profile(e->forward, &profile);
    const uint64_t began = clb_now_ns();
    const int rc = clb_forward_run(e->forward, &span, 1, base->logits, err);
    base->ns = clb_now_ns() - began;
    clb_forward_profile(e->forward, NULL);
    base->attention_ns = profile.wall_ns[CLB_PHASE_ATTENTION];
    base->peak_bytes = clb_kv_cache_peak_bytes(e->kv);
    return rc;
}

int clb_kv_trial_base_create(clb_engine *e, const clb_kv_trial_input *in, clb_kv_trial_base **out, clb_error *err)
{
    *out = NULL;
    CLB_TRY(check(e, in, err));
    if (in->text || context_of(in) > in->chunk || in->choice->traits.stateful)
        return COLIBRI_OK;
    clb_kv_trial_base *const base = calloc(1, sizeof *base);
    if (!base)
        return CLB_NOMEM(err, "a trial");
    base->n = context_of(in);
    base->traits = in->choice->traits;
    base->picks_pages = in->choice->picks_pages;
    base->logits = malloc(e->model->hp.n_vocab * sizeof *base->logits);
    int rc = base->logits ? read_base(e, in, base, err) : CLB_NOMEM(err, "a trial");
    clb_kv_stats stats = {0};
    if (!rc)
        clb_kv_seq_stats(base->kv, &stats);
    if (rc || stats.selections || stats.evicted_sum || stats.bad_answers)
        clb_kv_trial_base_destroy(base);
    else
        *out = base;
    return rc;
}
