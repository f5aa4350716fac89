/* A lane: one sequence of a request, from its prompt to the end of its text. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/sched_internal.h"
#include "kv/prefix.h"

void clb_lane_free(clb_scheduler *s, clb_lane *lane)
{
    clb_adapters_release(&s->o.engine->adapters, &lane->lora);
    lane->lora.n = 0;
    if (lane->kv)
        clb_kv_seq_destroy(lane->kv);
    clb_tokens_free(&lane->held);
    clb_tokens_free(&lane->goal);
    clb_sampler_destroy(lane->sampler);
    clb_matcher_destroy(lane->matcher);
    clb_text_stream_free(&lane->stream);
    free(lane->allowed);
    free(lane->infos);
    free(lane->sum);
    lane->kv = NULL;
}

static int copy_tokens(clb_tokens *to, const uint32_t *ids, size_t n, clb_error *err)
{
    to->n = 0;
    for (size_t i = 0; i < n; i++)
        CLB_TRY(clb_tokens_push(to, ids[i], err));
    return COLIBRI_OK;
}

static int open_sequence(clb_scheduler *s, clb_lane *lane, clb_error *err)
{
    const clb_request_options *o = &lane->request->o;
    CLB_TRY(clb_engine_new_sequence(s->o.engine, &lane->kv, err));
    if (lane->lora_hash != s->lora_hash)
        clb_kv_seq_set_salt(lane->kv, lane->lora_hash ? lane->lora_hash : 1);
    if (o->n_protected)
        CLB_TRY(clb_kv_seq_protect(lane->kv, o->n_protected, err));
    return copy_tokens(&lane->goal, o->prompt, o->n_prompt, err);
}

static int open_sampler(clb_scheduler *s, clb_lane *lane, clb_error *err)
{
    const clb_request_options *o = &lane->request->o;
    clb_sampler_params params = o->sampling;
    params.seed += lane->choice;
    CLB_TRY(clb_sampler_create(&params, s->n_vocab, &lane->sampler, err));
    for (size_t i = 0; i < o->n_bias; i++)
        CLB_TRY(clb_sampler_add_bias(lane->sampler, o->bias[i].token, o->bias[i].bias, err));
    for (size_t i = 0; i < o->n_prompt; i++)
        clb_sampler_accept(lane->sampler, o->prompt[i]);
    if (o->grammar) {
        CLB_TRY(clb_matcher_create(o->grammar, o->tree, &lane->matcher, err));
        lane->allowed = calloc((s->n_vocab + 63) / 64, sizeof *lane->allowed);
        if (!lane->allowed)
            return CLB_NOMEM(err, "request");
    }
    lane->stream.stops = o->stops;
    lane->stream.n_stops = o->n_stops;
    return COLIBRI_OK;
}

int clb_lane_start(clb_scheduler *s, clb_lane *lane, clb_error *err)
{
    const clb_request_options *o = &lane->request->o;
    lane->first_read = true;
    CLB_TRY(clb_adapters_take(&s->o.engine->adapters, o->lora_given, o->lora, o->n_lora, &lane->lora, err));
    lane->lora_hash = clb_lora_set_hash(&lane->lora, s->secret);
    lane->apart = o->score_prompt || o->embed;
    if (!o->embed)
        CLB_TRY(open_sampler(s, lane, err));
    if (lane->choice) {
        lane->state = CLB_LANE_WAITS;
        return COLIBRI_OK;
    }
    if (o->embed) {
        lane->sum = calloc(s->o.engine->model->hp.n_embd, sizeof *lane->sum);
        if (!lane->sum)
            return CLB_NOMEM(err, "request");
    }
    lane->state = CLB_LANE_READS;
    return open_sequence(s, lane, err);
}

static int add_info(clb_lane *lane, const clb_token_info *info, clb_error *err)
{
    if (lane->n_infos == lane->cap_infos) {
        const size_t cap = lane->cap_infos ? lane->cap_infos * 2 : 16;
        clb_token_info *grown = realloc(lane->infos, cap * sizeof *grown);
        if (!grown)
            return CLB_NOMEM(err, "tokens of a request");
        lane->infos = grown;
        lane->cap_infos = cap;
    }
    lane->infos[lane->n_infos++] = *info;
    return COLIBRI_OK;
}

/* ---- the prompt is in ---- */

static int copy_to(clb_lane *from, clb_lane *lane, clb_error *err)
{
    const int rc = clb_kv_seq_fork(from->kv, &lane->kv, err);
    if (rc)
        return rc;
    lane->logits = from->logits;
    lane->n_reused = from->n_reused;
    lane->state = CLB_LANE_SAMPLES;
    lane->first_read = false; /* what it reads from here on is what a shift leaves */
    return copy_tokens(&lane->held, from->held.ids, from->held.n, err);
}

/* Lanes that cannot have a copy (a strategy with state that it cannot copy) read the prompt themselves. */
static int share_prompt(clb_scheduler *s, clb_lane *lane, clb_error *err)
{
    for (uint32_t i = 1; i < lane->request->o.n_choices; i++) {
        clb_lane *const other = &lane->request->lanes[i];
        if (other->state != CLB_LANE_WAITS)
            continue;
        const int rc = copy_to(lane, other, err);
        if (rc != COLIBRI_E_UNSUPPORTED) {
            CLB_TRY(rc);
            continue;
        }
        CLB_TRY(open_sequence(s, other, err));
        other->state = CLB_LANE_READS;
    }
    return COLIBRI_OK;
}

static int give_embedding(clb_scheduler *s, clb_lane *lane, clb_error *err)
{
    const uint32_t n = s->o.engine->model->hp.n_embd;
    float *const out = malloc(n * sizeof *out);
    if (!out)
        return CLB_NOMEM(err, "an embedding");
    double norm = 0.0;
    for (uint32_t i = 0; i < n; i++)
        norm += lane->sum[i] * lane->sum[i];
    norm = norm > 0.0 ? sqrt(norm) : 1.0;
    for (uint32_t i = 0; i < n; i++)
        out[i] = (float)(lane->sum[i] / norm);
    const clb_request_event e = {
        .kind = CLB_EVENT_EMBEDDED, .n_prompt = (uint32_t)lane->goal.n, .embedding = out, .n_embedding = n};
    clb_request_event_out(lane->request, &e);
    free(out);
    return COLIBRI_OK;
}

/* Where the bytes of the prompt's tokens begin, and their scores. */
static int give_scores(clb_scheduler *s, clb_lane *lane, clb_error *err)
{
    clb_buf bytes = {0};
    int rc = COLIBRI_OK;
    for (size_t i = 0; i < lane->n_infos && !rc; i++) {
        lane->infos[i].text_offset = (uint32_t)bytes.n;
        if (lane->infos[i].token < clb_vocab_size(s->o.engine->vocab))
            rc = clb_token_bytes(s->o.engine->vocab, lane->infos[i].token, lane->request->o.special, &bytes, err);
        lane->infos[i].n_bytes = (uint32_t)bytes.n - lane->infos[i].text_offset;
    }
    if (!rc) {
        const clb_request_event e = {.kind = CLB_EVENT_SCORED,
                                     .n_prompt = (uint32_t)lane->goal.n,
                                     .text = bytes.n ? bytes.data : "",
                                     .n_text = bytes.n,
                                     .tokens = lane->infos,
                                     .n_tokens = lane->n_infos};
        clb_request_event_out(lane->request, &e);
    }
    lane->n_infos = 0;
    clb_buf_free(&bytes);
    return rc;
}

void clb_lane_score(clb_scheduler *s, clb_lane *lane, uint32_t row, const float *logits)
{
    const clb_request_options *o = &lane->request->o;
    const size_t at = lane->held.n + row + 1; /* the token that these logits are about */
    if (at >= lane->goal.n)
        return;
    clb_token_info info = {.token = lane->goal.ids[at]};
    info.n_top = o->n_logprobs > 0 ? (uint32_t)o->n_logprobs : 0;
    clb_logprobs(logits, s->n_vocab, info.token, &info.self, info.n_top, info.top);
    if (!lane->n_infos) {
        const clb_token_info first = {.token = lane->goal.ids[0], .self = {lane->goal.ids[0], NAN}};
        lane->rc = add_info(lane, &first, &lane->err);
    }
    if (!lane->rc)
        lane->rc = add_info(lane, &info, &lane->err);
}

static void end(clb_scheduler *s, clb_lane *lane, enum clb_finish finish, const char *stop)
{
    const clb_request_event e = {.kind = CLB_EVENT_CHOICE,
                                 .choice = lane->choice,
                                 .n_prompt = (uint32_t)lane->request->o.n_prompt,
                                 .n_reused = lane->n_reused,
                                 .finish = finish,
                                 .stop = stop,
                                 .n_generated = lane->n_generated};
    lane->state = CLB_LANE_OVER;
    clb_request_event_out(lane->request, &e);
    clb_request_lane_over(s, lane->request);
}

int clb_lane_read(clb_scheduler *s, clb_lane *lane, clb_error *err)
{
    clb_request *const r = lane->request;
    if (lane->first_read && !lane->choice) {
        r->first_ns = clb_now_ns();
        if (r->o.embed)
            CLB_TRY(give_embedding(s, lane, err));
        if (r->o.score_prompt && lane->n_infos == 0) { /* a prompt of one token has nothing to score */
            const clb_token_info only = {.token = lane->goal.ids[0], .self = {lane->goal.ids[0], NAN}};
            CLB_TRY(add_info(lane, &only, err));
        }
        if (r->o.score_prompt)
            CLB_TRY(give_scores(s, lane, err));
        if (r->o.embed || r->o.no_text) {
            for (uint32_t i = 0; i < r->o.n_choices; i++)
                r->lanes[i].state = CLB_LANE_OVER;
            r->n_open = 1;
            end(s, lane, CLB_FINISH_LENGTH, NULL);
            return COLIBRI_OK;
        }
        CLB_TRY(share_prompt(s, lane, err));
    }
    lane->state = lane->first_read ? CLB_LANE_SAMPLES : CLB_LANE_GENERATES;
    lane->first_read = false;
    return COLIBRI_OK;
}

/* ---- text ---- */

void clb_lane_sample(clb_scheduler *s, clb_lane *lane)
{
    const clb_request_options *o = &lane->request->o;
    clb_token_info *info = &lane->sampled;
    *info = (clb_token_info){0};
    lane->rc = lane->matcher ? clb_matcher_mask(lane->matcher, lane->allowed, &lane->err) : COLIBRI_OK;
    if (!lane->rc)
        lane->rc = clb_sampler_sample_masked(lane->sampler, lane->logits, lane->allowed, &info->token, &lane->err);
    if (lane->rc || o->n_logprobs < 0)
        return;
    info->n_top = (uint32_t)o->n_logprobs;
    clb_logprobs(lane->logits, s->n_vocab, info->token, &info->self, info->n_top, info->top);
}

/* n pending bytes go out, with the tokens that end in them (all of them at the end of the text). */
static void give(clb_lane *lane, size_t n, bool all)
{
    const size_t end_at = lane->n_text + n;
    size_t k = 0;
    while (k < lane->n_infos && (all || lane->infos[k].text_offset + lane->infos[k].n_bytes <= end_at))
        k++;
    if (n || k) {
        const clb_request_event e = {.kind = CLB_EVENT_TEXT,
                                     .choice = lane->choice,
                                     .text = n ? lane->stream.pending.data : "",
                                     .n_text = n,
                                     .tokens = lane->infos,
                                     .n_tokens = k,
                                     .n_generated = lane->n_generated};
        clb_request_event_out(lane->request, &e);
    }
    clb_text_stream_take(&lane->stream, n);
    lane->n_text = end_at;
    if (k)
        memmove(lane->infos, lane->infos + k, (lane->n_infos - k) * sizeof *lane->infos);
    lane->n_infos -= k;
}

/* A full context drops its older half (as clb_session_shift does) and reads what is left again. */
static int shift(clb_scheduler *s, clb_lane *lane, clb_error *err)
{
    const size_t n = lane->held.n;
    size_t first, keep;
    clb_shift_rule(s->o.engine, n, lane->request->o.n_protected, &first, &keep);
    const size_t drop = n - first - keep;
    if (!keep)
        return COLIBRI_E_LIMIT;
    lane->goal.n = 0;
    for (size_t i = 0; i < n; i++)
        if (i < first || i >= first + drop)
            CLB_TRY(clb_tokens_push(&lane->goal, lane->held.ids[i], err));
    clb_kv_seq_reset(lane->kv);
    if (lane->request->o.n_protected)
        CLB_TRY(clb_kv_seq_protect(lane->kv, lane->request->o.n_protected, err));
    lane->held.n = 0;
    lane->state = CLB_LANE_READS;
    lane->waited = true; /* the start may be known */
    return COLIBRI_OK;
}

int clb_lane_advance(clb_scheduler *s, clb_lane *lane, clb_error *err)
{
    const clb_request_options *o = &lane->request->o;
    const clb_engine *engine = s->o.engine;
    const uint32_t token = lane->sampled.token;
    clb_sampler_accept(lane->sampler, token);
    /* A grammar lets one through only where the text may end, and nothing can follow it. */
    if ((!o->ignore_eog || lane->matcher) && clb_vocab_is_eog(engine->vocab, token)) {
        give(lane, lane->stream.pending.n, true);
        end(s, lane, CLB_FINISH_STOP, NULL);
        return COLIBRI_OK;
    }
    if (lane->matcher)
        CLB_TRY(clb_matcher_accept(lane->matcher, token, err));
    lane->n_generated++;
    lane->sampled.text_offset = (uint32_t)(lane->n_text + lane->stream.pending.n);
    if (token < clb_vocab_size(engine->vocab))
        CLB_TRY(clb_token_bytes(engine->vocab, token, o->special, &lane->stream.pending, err));
    lane->sampled.n_bytes = (uint32_t)(lane->n_text + lane->stream.pending.n) - lane->sampled.text_offset;
    CLB_TRY(add_info(lane, &lane->sampled, err));
    const char *stop;
    const size_t ready = clb_text_stream_ready(&lane->stream, &stop);
    give(lane, ready, false);
    if (stop) {
        end(s, lane, CLB_FINISH_STOP, stop);
        return COLIBRI_OK;
    }
    const bool done = lane->matcher && clb_matcher_must_end(lane->matcher);
    if (done || lane->n_generated == o->max_tokens) {
        give(lane, lane->stream.pending.n, true);
        end(s, lane, done ? CLB_FINISH_STOP : CLB_FINISH_LENGTH, NULL);
        return COLIBRI_OK;
    }
    lane->next = token;
    lane->state = CLB_LANE_GENERATES;
    if (!clb_kv_seq_full(lane->kv))
        return COLIBRI_OK;
    int rc = engine->context_shift ? shift(s, lane, err) : COLIBRI_E_LIMIT;
    if (rc == COLIBRI_E_LIMIT) {
        give(lane, lane->stream.pending.n, true);
        end(s, lane, CLB_FINISH_CONTEXT, NULL);
        rc = COLIBRI_OK;
    }
    return rc;
}
