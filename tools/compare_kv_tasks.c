/* Files into items. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare_kv_reading.h"
#include "model_run.h"

void clb_kvc_cases_free(clb_kvc_cases *cases)
{
    for (uint32_t i = 0; i < cases->n; i++) {
        clb_tokens_free(&cases->v[i].ids);
        clb_tokens_free(&cases->v[i].answer);
        free(cases->v[i].key);
    }
    free(cases->v);
    *cases = (clb_kvc_cases){0};
}

/* How a task is put to the strategies: clb_kvc_load_task. */
static const struct mode {
    const char *name;
    uint32_t bit;
    bool of_text;
} modes[] = {
    {"ask-later", CLB_KVC_ASK_LATER, false}, {"at-once", CLB_KVC_AT_ONCE, false}, {"decode", CLB_KVC_DECODE, true}};
int clb_kvc_next_case(struct clb_kvc_reading *r, clb_kvc_case **v, struct clb_kvc_found_name **name, clb_error *err)
{
    struct clb_kvc_found *const f = &r->found;
    if (r->o->cancelled && r->o->cancelled(r->o->cancelled_ctx))
        return clb_fail(err, COLIBRI_E_CANCELLED, "stopped on request");
    if (f->n == CLB_KVC_MOST_ITEMS)
        return clb_fail(err, COLIBRI_E_LIMIT, "more than %u items", CLB_KVC_MOST_ITEMS);
    if ((f->n & (f->n + 1)) == 0) { /* 0, 1, 3, 7, ... */
        const size_t cap = 2 * (size_t)f->n + 1;
        void *const a = realloc(f->v, cap * sizeof *f->v);
        f->v = a ? a : f->v;
        void *const b = realloc(f->names, cap * sizeof *f->names);
        f->names = b ? b : f->names;
        if (!a || !b)
            return CLB_NOMEM(err, "items");
    }
    *v = &f->v[f->n];
    *name = &f->names[f->n];
    **v = (clb_kvc_case){.kind = r->kind, .at_once = (r->modes & CLB_KVC_AT_ONCE) != 0};
    **name = (struct clb_kvc_found_name){.length = NAN, .depth = NAN};
    f->n++;
    return COLIBRI_OK;
}

bool clb_kvc_fits(struct clb_kvc_reading *r, const clb_kvc_case *v)
{
    if (v->ids.n + v->answer.n + v->n_generate <= r->o->engine->ctx)
        return true;
    clb_kvc_case *const last = &r->found.v[--r->found.n];
    clb_tokens_free(&last->ids);
    clb_tokens_free(&last->answer);
    free(last->key);
    r->too_long++;
    return false;
}

/* So many bytes have more tokens than the context whatever they are: not worth the time of finding out how many. */
static bool surely_too_long(struct clb_kvc_reading *r, size_t n)
{
    const clb_engine *const e = r->o->engine;
    for (uint32_t id = 0; !r->longest && id < clb_vocab_size(e->vocab); id++) {
        const size_t bytes = clb_token_text(e->vocab, id).n;
        r->longest = bytes > r->longest ? bytes : r->longest;
    }
    return n > (1u << 16) && r->longest && n / r->longest > e->ctx;
}

const char *clb_kvc_text_of(const json_t *o, const char *key)
{
    const char *const text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

int clb_kvc_find_question(struct clb_kvc_reading *r, clb_kvc_case *v, const char *question, clb_error *err)
{
    clb_buf text = {0};
    uint32_t *const ends = malloc((v->ids.n + 1) * sizeof *ends); /* bytes up to the end of each token */
    const char *at = NULL;
    int rc = ends ? COLIBRI_OK : CLB_NOMEM(err, "items");
    for (size_t i = 0; i < v->ids.n && !rc; i++) {
        rc = clb_token_bytes(r->o->engine->vocab, v->ids.ids[i], false, &text, err);
        ends[i] = (uint32_t)text.n;
    }
    question += strspn(question, " \t\r\n"); /* templates may trim what stands there */
    for (const char *next = text.data && *question ? strstr(text.data, question) : NULL; next;
         next = strstr(next + 1, question))
        at = next;
    while (!rc && at && v->n_context < v->ids.n && ends[v->n_context] <= (size_t)(at - text.data))
        v->n_context++;
    if (!rc && !v->n_context)
        rc = clb_fail(err, COLIBRI_E_FORMAT,
                      at ? "there is nothing before the question"
                         : "\"question\" is not in the prompt: it is the end of it that asks");
    free(ends);
    clb_buf_free(&text);
    return rc;
}

/* ---- texts ---- */

static int add_text(struct clb_kvc_reading *r, const char *text, size_t n, const char *id, const char *group,
                    clb_error *err)
{
    const clb_engine *const e = r->o->engine;
    const uint32_t length = r->o->text_tokens, bos = clb_vocab_bos(e->vocab);
    const bool with_bos = clb_vocab_add_bos(e->vocab) && bos != CLB_TOKEN_NONE;
    clb_tokens all = {0};
    int rc = clb_tokenize(e->vocab, text, n, 0, &all, err);
    const size_t step = length - with_bos;
    r->too_short += !rc && all.n < step;
    for (size_t at = 0, k = 0; !rc && at + step <= all.n; at += step, k++) {
        clb_kvc_case *v;
        struct clb_kvc_found_name *name;
        rc = clb_kvc_next_case(r, &v, &name, err);
        if (!rc && with_bos)
            rc = clb_tokens_push(&v->ids, bos, err);
        for (size_t i = 0; !rc && i < step; i++)
            rc = clb_tokens_push(&v->ids, all.ids[at + i], err);
        if (rc)
            break;
        if (r->modes & CLB_KVC_DECODE)
            v->n_context = (uint32_t)v->ids.n / 2;
        snprintf(name->id, sizeof name->id, "%.80s:%zu", id, k + 1);
        snprintf(name->group, sizeof name->group, "%.95s", group);
    }
    clb_tokens_free(&all);
    return rc;
}

static int text_line(struct clb_kvc_reading *r, const json_t *o, unsigned line, clb_error *err)
{
    char number[32];
    snprintf(number, sizeof number, "%u", line);
    const json_t *const text = json_object_get(o, "text");
    if (!json_is_string(text))
        return clb_fail(err, COLIBRI_E_FORMAT, "no \"text\"");
    return add_text(r, json_string_value(text), json_string_length(text),
                    *clb_kvc_text_of(o, "id") ? clb_kvc_text_of(o, "id") : number,
                    *clb_kvc_text_of(o, "group") ? clb_kvc_text_of(o, "group") : r->base, err);
}

/* ---- recall ---- */

static int recall_line(struct clb_kvc_reading *r, const json_t *o, unsigned line, clb_error *err)
{
    const clb_vocab *const vocab = r->o->engine->vocab;
    const json_t *const prompt = json_object_get(o, "prompt"), *const answer = json_object_get(o, "answer");
    const json_t *const distance = json_object_get(o, "distance");
    clb_kvc_case *v;
    struct clb_kvc_found_name *name;
    if (!json_is_string(prompt) || !json_is_string(answer) || json_string_length(answer) == 0)
        return clb_fail(err, COLIBRI_E_FORMAT, "needs \"prompt\" and \"answer\"");
    if (surely_too_long(r, json_string_length(prompt)) || surely_too_long(r, json_string_length(answer))) {
        r->too_long++;
        return COLIBRI_OK;
    }
    CLB_TRY(clb_kvc_next_case(r, &v, &name, err));
    CLB_TRY(clb_tokenize(vocab, json_string_value(prompt), json_string_length(prompt), CLB_TOKENIZE_BOS, &v->ids, err));
    CLB_TRY(clb_tokenize(vocab, json_string_value(answer), json_string_length(answer), 0, &v->answer, err));
    if (v->ids.n == 0 || v->answer.n == 0)
        return clb_fail(err, COLIBRI_E_FORMAT, "prompt or answer has no tokens");
    if (r->modes & CLB_KVC_ASK_LATER) {
        if (!*clb_kvc_text_of(o, "question"))
            return clb_fail(err, COLIBRI_E_FORMAT, "ask-later needs \"question\", the end of the prompt that asks");
        CLB_TRY(clb_kvc_find_question(r, v, clb_kvc_text_of(o, "question"), err));
    }
    snprintf(v->sort, sizeof v->sort, "%.23s", clb_kvc_text_of(o, "kind"));
    if (json_is_number(distance)) {
        name->length = json_number_value(distance);
        snprintf(name->group, sizeof name->group, "%g", name->length);
    } else {
        snprintf(name->group, sizeof name->group, "%.95s",
                 *clb_kvc_text_of(o, "group") ? clb_kvc_text_of(o, "group") : "all");
    }
    if (*clb_kvc_text_of(o, "id"))
        snprintf(name->id, sizeof name->id, "%.95s", clb_kvc_text_of(o, "id"));
    else
        snprintf(name->id, sizeof name->id, "%u", line);
    (void)clb_kvc_fits(r, v);
    return COLIBRI_OK;
}

static int each_line(struct clb_kvc_reading *r, const clb_buf *text, clb_error *err)
{
    unsigned line = 0;
    for (size_t at = 0; at < text->n;) {
        const char *const p = text->data + at, *const end = memchr(p, '\n', text->n - at);
        const size_t n = end ? (size_t)(end - p) : text->n - at;
        at += n + 1;
        line++;
        if (strspn(p, " \t\r\n") >= n)
            continue;
        json_error_t why;
        json_t *const o = json_loadb(p, n, JSON_REJECT_DUPLICATES, &why);
        int rc = COLIBRI_OK;
        if (!o)
            rc = clb_fail(err, COLIBRI_E_FORMAT, "%s; each line must be a JSON object with %s", why.text,
                          r->kind == CLB_KVC_TEXT ? "\"text\""
                                                  : "\"prompt\" and \"answer\" (a plain text goes with --task text=FILE)");
        else
            rc = r->kind == CLB_KVC_TEXT ? text_line(r, o, line, err) : recall_line(r, o, line, err);
        json_decref(o);
        if (rc)
            return clb_context(err, "%s, line %u", r->path, line);
    }
    return COLIBRI_OK;
}

/* ---- into the grid ---- */

static int keep(clb_kvc *c, struct clb_kvc_reading *r, uint32_t task, clb_kvc_cases *out, clb_error *err)
{
    const uint32_t n = r->found.n, most = r->o->most_items && r->o->most_items < n ? r->o->most_items : n;
    void *const bigger = realloc(out->v, ((size_t)out->n + most + 1) * sizeof *out->v);
    if (!bigger)
        return CLB_NOMEM(err, "items");
    out->v = bigger;
    for (uint32_t i = 0; i < most; i++) {
        const uint32_t at =
            (uint32_t)(((uint64_t)i * n + n / 2) / most % n); /* evenly, from the middle of each stretch */
        const struct clb_kvc_found_name *const name = &r->found.names[at];
        clb_kvc_case *const v = &r->found.v[at];
        CLB_TRY(clb_kvc_add_item(c, task, name->id, name->group, name->length, name->depth, &v->item, err));
        out->v[out->n++] = *v;
        *v = (clb_kvc_case){0};
    }
    return COLIBRI_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Results are told apart by the ids of their items. */
static int check_ids(const struct clb_kvc_reading *r, clb_error *err)
{
    const char **const ids = malloc((r->found.n + 1) * sizeof *ids);
    int rc = ids ? COLIBRI_OK : CLB_NOMEM(err, "items");
    for (uint32_t i = 0; i < r->found.n && !rc; i++)
        ids[i] = r->found.names[i].id;
    if (!rc)
        qsort(ids, r->found.n, sizeof *ids, compare_names);
    for (uint32_t i = 1; i < r->found.n && !rc; i++)
        if (!strcmp(ids[i - 1], ids[i]))
            rc = clb_fail(err, COLIBRI_E_FORMAT, "%s: the id %s is there twice", r->path, ids[i]);
    free(ids);
    return rc;
}

static int check_task(const clb_kvc *c, uint32_t task, const clb_kvc_cases *cases, clb_error *err)
{
    for (uint32_t i = 0; i < cases->n; i++)
        if (c->items[cases->v[i].item].task == task)
            return clb_fail(err, COLIBRI_E_USAGE, "--task: %s is given twice", c->tasks[task].name);
    return COLIBRI_OK;
}

static int load(clb_kvc *c, struct clb_kvc_reading *r, const clb_buf *text, clb_kvc_cases *out, clb_error *err)
{
    char hash[40];
    uint32_t task;
    clb_kvc_hash(text->data ? text->data : "", text->n, hash);
    const bool lines = text->n && text->data[strspn(text->data, " \t\r\n")] == '{';
    if (r->kind == CLB_KVC_PASSKEY)
        CLB_TRY(clb_kvc_read_passkey(r, text, err));
    else if (r->kind == CLB_KVC_RECALL || lines)
        CLB_TRY(each_line(r, text, err));
    else
        CLB_TRY(add_text(r, text->data ? text->data : "", text->n, r->base, r->base, err));
    if (r->too_long && r->found.n)
        clb_logf(r->o->log, COLIBRI_LOG_WARN,
                 "%s: %u of %u items are longer than the context of %u and left out (--ctx)", r->path, r->too_long,
                 r->too_long + r->found.n, r->o->engine->ctx);
    if (r->too_short && r->found.n)
        clb_logf(r->o->log, COLIBRI_LOG_WARN, "%s: %u texts have less than %u tokens and are left out", r->path,
                 r->too_short, r->o->text_tokens);
    if (!r->found.n && !r->too_long && !r->too_short)
        return clb_fail(err, COLIBRI_E_USAGE, "%s is empty: no items", r->path);
    if (!r->found.n && r->too_long)
        return clb_fail(err, COLIBRI_E_USAGE, "%s: all items are longer than the context of %u (--ctx)", r->path,
                        r->o->engine->ctx);
    if (!r->found.n)
        return clb_fail(err, COLIBRI_E_USAGE, "%s: no text has the %u tokens of a piece", r->path, r->o->text_tokens);
    CLB_TRY(check_ids(r, err));
    CLB_TRY(clb_kvc_add_task(c, r->kind, r->name, r->path, hash, &task, err));
    CLB_TRY(check_task(c, task, out, err));
    return keep(c, r, task, out, err);
}

uint32_t clb_kvc_pass_of(const clb_kvc_case *item)
{
    const uint32_t n = (uint32_t)item->ids.n, context = item->n_context;
    return !context ? n : context > n - context ? context : n - context;
}

int clb_kvc_check_passes(const clb_kvc *c, const clb_kvc_cases *cases, const clb_engine *engine, bool all,
                         clb_error *err)
{
    for (uint32_t i = 0; i < cases->n; i++) {
        const clb_kvc_case *const v = &cases->v[i];
        if (v->kind != CLB_KVC_TEXT && (all || v->at_once) && clb_kvc_pass_of(v) > engine->batch)
            return clb_fail(
                err, COLIBRI_E_USAGE, "%s: item %.60s has %u tokens in one piece, and passes have at most %u (--batch)",
                v->at_once ? "at-once" : "--see-question", c->ids[v->item], clb_kvc_pass_of(v), engine->batch);
    }
    return COLIBRI_OK;
}

static bool is_word(const char *text, size_t n, const char *word)
{
    return strlen(word) == n && !strncmp(text, word, n);
}

/* "recall:ask-later+at-once": kind and modes. */
static int read_kind(struct clb_kvc_reading *r, const char *text, size_t n, clb_error *err)
{
    const char *const colon = memchr(text, ':', n), *const end = text + n;
    const size_t n_kind = colon ? (size_t)(colon - text) : n;
    int kind = 0;
    while (kind < CLB_KVC_KINDS && !is_word(text, n_kind, clb_kvc_kind_name((enum clb_kvc_kind)kind)))
        kind++;
    if (kind == CLB_KVC_KINDS)
        return COLIBRI_E_USAGE;
    r->kind = (enum clb_kvc_kind)kind;
    for (const char *at = colon; at && at < end;) {
        const char *const word = at + 1, *const plus = memchr(word, '+', (size_t)(end - word));
        const size_t length = (size_t)((plus ? plus : end) - word);
        size_t i = 0;
        while (i < sizeof modes / sizeof *modes && !is_word(word, length, modes[i].name))
            i++;
        if (i == sizeof modes / sizeof *modes)
            return clb_fail(err, COLIBRI_E_USAGE,
                            "--task %.*s: \"%.*s\" is no mode: ask-later, at-once (recall, "
                            "passkey), decode (text)",
                            (int)(n < 80 ? n : 80), text, (int)(length < 40 ? length : 40), word);
        if (modes[i].of_text != (r->kind == CLB_KVC_TEXT))
            return clb_fail(err, COLIBRI_E_USAGE, "--task %.*s: %s is for %s", (int)(n < 80 ? n : 80), text,
                            modes[i].name, modes[i].of_text ? "texts" : "recall and passkey");
        r->modes |= modes[i].bit;
        at = plus;
    }
    return COLIBRI_OK;
}

/* "recall.jsonl (ask-later, at-once)": items under other modes are other items. */
static void name_task(struct clb_kvc_reading *r)
{
    size_t n = (size_t)snprintf(r->name, sizeof r->name, "%.100s", r->base);
    bool any = false;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (r->modes & modes[i].bit) {
            n += (size_t)snprintf(r->name + n, sizeof r->name - n, "%s%s", any ? ", " : " (", modes[i].name);
            any = true;
        }
    if (any)
        snprintf(r->name + n, sizeof r->name - n, ")");
}

int clb_kvc_load_task(clb_kvc *c, const char *assignment, const clb_kvc_task_options *options, clb_kvc_cases *out,
                      clb_error *err)
{
    struct clb_kvc_reading r = {.o = options};
    const char *const is = strchr(assignment, '=');
    clb_error why = {0};
    int rc = is && is[1] ? read_kind(&r, assignment, (size_t)(is - assignment), &why) : COLIBRI_E_USAGE;
    if (rc && !*why.msg)
        return clb_fail(err, COLIBRI_E_USAGE,
                        "--task %.80s: must be text=FILE, recall=FILE or passkey=FILE, perhaps with a mode "
                        "(recall:ask-later=FILE)",
                        assignment);
    if (rc) {
        *err = why;
        return rc;
    }
    clb_buf text = {0};
    r.path = is + 1;
    r.base = strrchr(r.path, '/') ? strrchr(r.path, '/') + 1 : r.path;
    name_task(&r);
    rc = clb_read_input(r.path, &text, err);
    if (!rc)
        rc = load(c, &r, &text, out, err);
    clb_buf_free(&text);
    clb_kvc_cases left = {.v = r.found.v, .n = r.found.n};
    clb_kvc_cases_free(&left);
    free(r.found.names);
    return rc;
}
