/* From the engine's routing hook to a trace. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "replay/trace.h"

struct clb_recorder {
    clb_trace_writer *writer;
    clb_trace_info info;
    uint64_t (*now_ns)(void);
    uint64_t began; /* the recording */
    const uint32_t *tokens;
    uint64_t n_tokens, done; /* of what is being fed, in complete passes */
    uint32_t phase;
    /* the pass that is being collected */
    uint32_t n_rows, next_layer; /* 0, 0: none */
    uint64_t start;
    uint32_t *sequences, *ids;
    float *gates;
    clb_trace_guess *ahead;
    uint64_t cap_rows;
    clb_error error;
};

int clb_recorder_create(clb_trace_writer *writer, const clb_trace_info *info, uint64_t (*now_ns)(void),
                        clb_recorder **out, clb_error *err)
{
    clb_recorder *const r = calloc(1, sizeof *r);
    if (!r)
        return CLB_NOMEM(err, "the recorder");
    r->writer = writer;
    r->info = *info;
    r->now_ns = now_ns;
    r->began = now_ns();
    *out = r;
    return COLIBRI_OK;
}

static void free_pass(clb_recorder *r)
{
    free(r->sequences);
    free(r->ids);
    free(r->gates);
    free(r->ahead);
    r->sequences = r->ids = NULL;
    r->gates = NULL;
    r->ahead = NULL;
    r->cap_rows = 0;
}

void clb_recorder_destroy(clb_recorder *r)
{
    if (!r)
        return;
    free_pass(r);
    free(r);
}

static int room(clb_recorder *r, uint32_t rows, clb_error *err)
{
    if (rows <= r->cap_rows)
        return COLIBRI_OK;
    free_pass(r);
    const size_t choices = (size_t)rows * r->info.n_layers * r->info.top_k;
    const size_t guesses = (size_t)rows * r->info.n_layers * r->info.ahead_layers * r->info.ahead_top;
    r->sequences = malloc(rows * sizeof *r->sequences);
    r->ids = malloc(choices * sizeof *r->ids);
    r->gates = malloc(choices * sizeof *r->gates);
    r->ahead = malloc((guesses + 1) * sizeof *r->ahead);
    if (!r->sequences || !r->ids || !r->gates || !r->ahead) {
        free_pass(r);
        return CLB_NOMEM(err, "the recorder");
    }
    r->cap_rows = rows;
    return COLIBRI_OK;
}

static uint32_t count_sequences(const uint32_t *sequences, uint32_t n)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++) { /* rows of a sequence lie together */
        bool seen = false;
        for (uint32_t j = i; j-- > 0 && !seen;)
            seen = sequences[j] == sequences[i];
        count += !seen;
        if (count == 1 && i > 8 && sequences[i] == sequences[0] && sequences[n - 1] == sequences[0])
            return 1; /* one sequence: no need to compare them all */
    }
    return count;
}

static int put_pass(clb_recorder *r, clb_error *err)
{
    const uint64_t now = r->now_ns();
    const clb_trace_put put = {.phase = r->phase,
                               .n_rows = r->n_rows,
                               .n_sequences = count_sequences(r->sequences, r->n_rows),
                               .tokens = r->done + r->n_rows <= r->n_tokens ? r->tokens + r->done : NULL,
                               .sequences = r->sequences,
                               .start_ns = r->start - r->began,
                               .took_ns = now - r->start,
                               .ids = r->ids,
                               .gates = r->info.gates ? r->gates : NULL,
                               .ahead = r->info.ahead_layers ? r->ahead : NULL};
    r->done += r->n_rows;
    r->n_rows = r->next_layer = 0;
    return clb_trace_pass_put(r->writer, &put, err);
}

/* The `top` largest logits of a row, best first; ties to the lower id; -INFINITY is no guess. */
static void best_guesses(const float *logits, uint32_t n, uint32_t top, clb_trace_guess *out)
{
    uint32_t have = 0;
    for (uint32_t e = 0; e < n; e++) {
        const float v = logits[e];
        if (!(v > -INFINITY) || (have == top && !(v > out[top - 1].logit)))
            continue;
        uint32_t at = have < top ? have++ : top - 1;
        for (; at && out[at - 1].logit < v; at--)
            out[at] = out[at - 1];
        out[at] = (clb_trace_guess){e, v};
    }
    for (; have < top; have++)
        out[have] = (clb_trace_guess){UINT32_MAX, -INFINITY};
}

static void copy_ahead(clb_recorder *r, const struct colibri_route *route)
{
    const clb_trace_info *const i = &r->info;
    const size_t per_row = (size_t)i->ahead_layers * i->ahead_top;
    clb_trace_guess *const out = r->ahead + (size_t)route->layer * route->n_rows * per_row;
    for (uint32_t row = 0; row < route->n_rows; row++)
        for (uint32_t a = 0; a < i->ahead_layers; a++) {
            clb_trace_guess *const g = out + row * per_row + (size_t)a * i->ahead_top;
            const float *const logits = a < route->n_ahead && route->ahead_logits[a]
                                            ? route->ahead_logits[a] + (size_t)row * i->n_experts
                                            : NULL;
            best_guesses(logits, logits ? i->n_experts : 0, i->ahead_top, g);
        }
}

static int take_route(clb_recorder *r, const struct colibri_route *route, clb_error *err)
{
    const clb_trace_info *const i = &r->info;
    if (route->layer == 0) { /* what was not finished is dropped: the pass was cancelled */
        CLB_TRY(room(r, route->n_rows, err));
        r->n_rows = route->n_rows;
        r->next_layer = 0;
        r->start = r->now_ns();
        for (uint32_t row = 0; row < route->n_rows; row++)
            r->sequences[row] = route->row_sequence ? route->row_sequence[row] : 0;
    }
    if (route->layer != r->next_layer || route->n_rows != r->n_rows || route->top_k != i->top_k)
        return clb_fail(err, COLIBRI_E_INTERNAL, "trace: layer %u with %u rows came after layer %u with %u rows",
                        route->layer, route->n_rows, r->next_layer, r->n_rows);
    const size_t n = (size_t)route->n_rows * i->top_k, at = n * route->layer;
    memcpy(r->ids + at, route->ids, n * sizeof *r->ids);
    memcpy(r->gates + at, route->gates, n * sizeof *r->gates);
    if (i->ahead_layers)
        copy_ahead(r, route);
    r->next_layer++;
    return COLIBRI_OK;
}

/* Passes end when the next one begins: only then is it known how long they took. */
static int close_pass(clb_recorder *r, clb_error *err)
{
    return r->n_rows && r->next_layer == r->info.n_layers ? put_pass(r, err) : COLIBRI_OK;
}

void clb_recorder_feed(clb_recorder *r, uint32_t phase, const uint32_t *tokens, uint64_t n)
{
    r->phase = phase;
    r->tokens = tokens;
    r->n_tokens = n;
    r->done = 0;
    r->n_rows = r->next_layer = 0;
}

void clb_recorder_route(void *recorder, const struct colibri_route *route)
{
    clb_recorder *const r = recorder;
    if (r->error.code)
        return;
    if ((route->layer == 0 && close_pass(r, &r->error)) || take_route(r, route, &r->error))
        r->n_rows = r->next_layer = 0;
}

int clb_recorder_flush(clb_recorder *r, clb_error *err)
{
    if (!r->error.code && close_pass(r, &r->error) == COLIBRI_OK)
        return COLIBRI_OK;
    if (err)
        *err = r->error;
    return r->error.code;
}
