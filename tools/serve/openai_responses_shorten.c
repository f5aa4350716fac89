/* truncation "auto" of the Responses API: the oldest part of a conversation that does not fit the context is left out.
 *
 * A conversation is a row of turns, each a user's messages and the steps of the assistant's that follow; a step is a
 * message with its calls and their results. It is shortened from the beginning, one after the other: of each turn the
 * user's messages but the last, then the steps but the last, then what remains of the turn, which goes at once. So what
 * is left always begins with a user's words, which many templates insist on and others silently take the first message
 * for, and no result is without its call. What the system says stays, and of the last turn its last user's message and
 * its last step. */
#include <stdlib.h>
#include <string.h>

#include "serve/chat_shape.h"
#include "serve/openai_responses.h"

#define NOBODY SIZE_MAX

static bool is_of(const json_t *messages, size_t i, const char *role)
{
    return strcmp(clb_shape_text(json_array_get(messages, i), "role"), role) == 0;
}

static bool is_systems(const json_t *messages, size_t i)
{
    return is_of(messages, i, "system") || is_of(messages, i, "developer");
}

/* head[i]: the message that begins the step that i belongs to. A result belongs to the latest call of its id, wherever
 * that is; one without a call is a step by itself. False: no memory. */
static bool find_steps(const json_t *messages, size_t *head)
{
    json_t *const callers = json_object(); /* id of a call -> its message */
    bool fine = callers != NULL;
    const json_t *m, *call;
    size_t i, k;
    json_array_foreach(messages, i, m)
    {
        head[i] = i;
        json_array_foreach(json_object_get(m, "tool_calls"), k, call) fine =
            json_object_set_new(callers, clb_shape_text(call, "id"), json_integer((json_int_t)i)) == 0 && fine;
        const json_t *caller =
            is_of(messages, i, "tool") ? json_object_get(callers, clb_shape_text(m, "tool_call_id")) : NULL;
        if (caller)
            head[i] = (size_t)json_integer_value(caller);
    }
    json_decref(callers);
    return fine;
}

/* The turn that begins at `from`: its end, its last user's message and its last step, which may be NOBODY. */
static size_t look_at_turn(const json_t *messages, const size_t *head, size_t from, size_t *user, size_t *step)
{
    size_t i;
    *user = *step = NOBODY;
    for (i = from; i < json_array_size(messages); i++) {
        if (is_systems(messages, i) || head[i] != i)
            continue;
        if (!is_of(messages, i, "user"))
            *step = i;
        else if (*step != NOBODY)
            break;
        else
            *user = i;
    }
    return i;
}

int clb_responses_cuts(const json_t *messages, uint32_t **out, uint32_t *n_cuts, clb_refusal *r)
{
    const size_t n = json_array_size(messages);
    size_t *const head = calloc(n + 1, sizeof *head);
    uint32_t *const cut = calloc(n + 1, sizeof *cut);
    *out = cut;
    *n_cuts = 0;
    if (!head || !cut || !find_steps(messages, head)) {
        free(head);
        free(cut);
        *out = NULL;
        return clb_refuse_nomem(r);
    }
    const size_t answered = n ? head[n - 1] : 0; /* by what will be said next: late results may be of an old call */
    for (size_t from = 0, end; from < n; from = end) {
        size_t user, step;
        end = look_at_turn(messages, head, from, &user, &step);
        for (int users = 1; users >= 0; users--)
            for (size_t i = from; i < end; i++)
                if (!is_systems(messages, i) && head[i] == i && i != user && i != step && i != answered &&
                    is_of(messages, i, "user") == (users == 1))
                    cut[i] = ++*n_cuts;
        if (end == n)
            break;
        const bool user_goes = user != NOBODY && (answered < from || answered >= end);
        const bool step_goes = step != NOBODY && step != answered;
        *n_cuts += user_goes || step_goes;
        if (user_goes)
            cut[user] = *n_cuts;
        if (step_goes)
            cut[step] = *n_cuts;
    }
    for (size_t i = 0; i < n; i++)
        cut[i] = cut[head[i]];
    free(head);
    return COLIBRI_OK;
}

/* ---- prompts ---- */

typedef struct shortener {
    const clb_app *app;
    const clb_prompt_request *request;
    const uint32_t *cut;
    clb_prompt *prompt; /* the best one so far */
} shortener;

/* The prompt of what is left after `cuts` cuts. */
static int make(const shortener *s, uint32_t cuts, clb_prompt *out, clb_error *err)
{
    clb_prompt_request request = *s->request;
    json_t *const left = json_array();
    json_t *m;
    size_t i;
    int rc = left ? COLIBRI_OK : CLB_NOMEM(err, "a shorter conversation");
    *out = (clb_prompt){0};
    json_array_foreach(s->request->messages, i, m)
    {
        const bool stays = !s->cut[i] || s->cut[i] > cuts;
        if (!rc && stays && json_array_append(left, m))
            rc = CLB_NOMEM(err, "a shorter conversation");
    }
    request.messages = left;
    if (!rc)
        rc = clb_prompt_make(s->app->chat, s->app->engine->vocab, &request, out, NULL, err);
    json_decref(left);
    return rc;
}

static void keep(shortener *s, clb_prompt *prompt)
{
    clb_prompt_free(s->prompt);
    *s->prompt = *prompt;
    *prompt = (clb_prompt){0};
}

/* The fewest cuts that leave at most `goal` tokens, where `enough` do and none are too few. What a template refuses to
 * show counts as too long. */
static int fewest(shortener *s, uint32_t enough, size_t goal, clb_error *err)
{
    for (uint32_t few = 0; enough - few > 1;) {
        const uint32_t middle = few + (enough - few) / 2;
        clb_prompt prompt;
        const int rc = make(s, middle, &prompt, err);
        if (rc && rc != COLIBRI_E_USAGE)
            return rc;
        if (!rc && prompt.tokens.n <= goal) {
            enough = middle;
            keep(s, &prompt);
        } else {
            few = middle;
        }
        clb_prompt_free(&prompt);
    }
    return COLIBRI_OK;
}

/* template_says: to the shortest conversation, or NULL. */
static int refuse(clb_refusal *r, size_t whole, size_t least, uint32_t ctx, const char *template_says)
{
    char text[sizeof r->message];
    const int n = snprintf(
        text, sizeof text,
        "This model's maximum context length is %u tokens. However, your prompt has %zu tokens, and %zu of them in "
        "what 'truncation' leaves as it is. Please reduce its length, or start the server with a larger --ctx.",
        ctx, whole, least);
    if (template_says)
        snprintf(text + n, sizeof text - (size_t)n, " Nothing could be left out: %.300s", template_says);
    clb_refuse_as(r, COLIBRI_E_LIMIT, 400, "invalid_request_error", "context_length_exceeded", text);
    snprintf(r->param, sizeof r->param, "input");
    r->n_prompt = whole > UINT32_MAX ? UINT32_MAX : (uint32_t)whole;
    r->n_ctx = ctx;
    return COLIBRI_E_LIMIT;
}

int clb_responses_shorten(const clb_app *app, const clb_prompt_request *request, uint32_t max_tokens,
                          clb_prompt *prompt, clb_refusal *r)
{
    const uint32_t ctx = app->engine->ctx;
    const size_t whole = prompt->tokens.n, most = ctx / 16 ? ctx / 16 : 1;
    const size_t room = max_tokens && max_tokens < most ? max_tokens : most, limit = ctx > room ? ctx - room : 1;
    if (app->engine->kv_choice.traits.evicts || whole <= limit)
        return COLIBRI_OK;
    /* Cut in whole eighths of the context: while a conversation grows by less, it is cut at the same place, and what is
     * left of it begins with the same tokens, which need not be computed again. */
    const size_t step = ctx / 8 ? ctx / 8 : 1, drop = (whole - limit + step - 1) / step * step;
    uint32_t *cut, n_cuts;
    clb_error err = {0};
    CLB_TRY(clb_responses_cuts(request->messages, &cut, &n_cuts, r));
    shortener s = {.app = app, .request = request, .cut = cut, .prompt = prompt};
    size_t least = whole;
    int rc = COLIBRI_OK;
    if (n_cuts) {
        clb_prompt shortest;
        rc = make(&s, n_cuts, &shortest, &err);
        if (!rc) {
            least = shortest.tokens.n;
            keep(&s, &shortest);
            rc = least <= limit ? fewest(&s, n_cuts, drop < whole && least <= whole - drop ? whole - drop : limit, &err)
                                : COLIBRI_OK;
        }
    }
    free(cut);
    if (rc && rc != COLIBRI_E_USAGE)
        return clb_refuse_status(r, rc, err.msg);
    return least > ctx ? refuse(r, whole, least, ctx, rc ? err.msg : NULL) : COLIBRI_OK;
}
