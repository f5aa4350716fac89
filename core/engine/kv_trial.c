#include "engine/kv_trial.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define SLICE_BYTES (4u << 20) /* logits that are looked at together */

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

/* One pass. The time of a text's passes has the scoring of its logits in it: texts have no speed. */
static int pass(struct run *r, const uint32_t *ids, uint32_t n, uint32_t n_logits, enum colibri_phase phase, bool done,
                bool sink_rows, clb_error *err)
{
    const clb_span span = {
        .kv = r->kv, .tokens = ids, .n = n, .n_logits = n_logits, .phase = phase, .prefill_done = done};
    const clb_logits_sink sink = {.buffer = r->logits, .rows = r->slice, .take = take_rows, .ctx = r};
    const uint64_t began = clb_now_ns();
    const int rc = sink_rows ? clb_forward_run_to(r->e->forward, &span, 1, &sink, err)
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
    if (r->in->record && phase == COLIBRI_PHASE_PREFILL)
        CLB_TRY(clb_kv_future_note(r->in->record, r->kv, err));
    return r->in->look ? r->in->look(r->in->ctx, r->kv, clb_kv_seq_position(r->kv), err) : COLIBRI_OK;
}

static int read_prompt(struct run *r, clb_error *err)
{
    const clb_kv_trial_input *const in = r->in;
    for (uint32_t at = 0; at < in->n;) {
        const uint32_t n = in->n - at < in->chunk ? in->n - at : in->chunk;
        const bool last = at + n == in->n;
        uint32_t wanted = last;
        if (in->text) {
            wanted = at + n <= in->scored ? 0 : at >= in->scored ? n : at + n - in->scored;
            r->position = at + n - wanted;
        }
        CLB_TRY(pass(r, in->ids + at, n, wanted, COLIBRI_PHASE_PREFILL, last, in->text, err));
        at += n;
    }
    return COLIBRI_OK;
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
    t->peak_bytes = clb_kv_cache_peak_bytes(r->e->kv);
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

int clb_kv_trial_run(clb_engine *e, const clb_kv_trial_input *in, clb_kv_trial *out, clb_error *err)
{
    *out = (clb_kv_trial){0};
    CLB_TRY(check(e, in, err));
    struct run r = {.e = e, .in = in, .out = out, .n_vocab = e->model->hp.n_vocab, .err = err};
    r.slice = (uint32_t)(SLICE_BYTES / (r.n_vocab * sizeof(float)));
    r.slice = r.slice < 4 ? 4 : r.slice > 64 ? 64 : r.slice;
    r.logits = malloc((size_t)r.slice * r.n_vocab * sizeof *r.logits);
    r.reference = malloc(r.n_vocab * sizeof *r.reference);
    out->kl = calloc((size_t)in->n + 1, sizeof *out->kl);
    out->nll = calloc((size_t)in->n + 1, sizeof *out->nll);
    clb_profile profile = {0};
    int rc = r.logits && r.reference && out->kl && out->nll ? COLIBRI_OK : CLB_NOMEM(err, "a trial");
    clb_kv_cache_reset_peak(e->kv);
    if (!rc)
        rc = clb_engine_new_sequence_with(e, in->choice, in->budget, &r.kv, err);
    clb_forward_profile(e->forward, &profile);
    if (!rc)
        rc = read_prompt(&r, err);
    r.prefill_attention_ns = profile.wall_ns[CLB_PHASE_ATTENTION];
    if (!rc && in->n_answer)
        rc = read_answer(&r, err);
    if (!rc && in->n_generate)
        rc = generate(&r, err);
    if (!rc && in->record)
        rc = clb_kv_future_note(in->record, r.kv, err);
    if (!rc && in->record)
        clb_kv_future_finish(in->record);
    clb_forward_profile(e->forward, NULL);
    if (!rc)
        finish(&r, &profile);
    if (r.kv)
        clb_kv_seq_destroy(r.kv);
    free(r.logits);
    free(r.reference);
    return rc;
}
