/* Files into items. */
#include "compare_kv_tasks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* Cases of one task, not yet in the grid. */
struct found {
    clb_kvc_case *v;
    struct found_name {
        char id[96], group[96];
        double length, depth;
    } * names;
    uint32_t n;
};

/* How a task is put to the strategies: clb_kvc_load_task. */
static const struct mode {
    const char *name;
    uint32_t bit;
    bool of_text;
} modes[] = {{"ask-later", 1, false}, {"at-once", 2, false}, {"decode", 4, true}};
#define ASK_LATER 1u
#define AT_ONCE   2u
#define DECODE    4u

struct reading {
    const clb_kvc_task_options *o;
    enum clb_kvc_kind kind;
    uint32_t modes;
    const char *path, *base;
    char name[160]; /* of the task: base and modes */
    struct found found;
    uint32_t too_long;
};

static int next_case(struct reading *r, clb_kvc_case **v, struct found_name **name, clb_error *err)
{
    struct found *const f = &r->found;
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
    **v = (clb_kvc_case){.kind = r->kind, .at_once = (r->modes & AT_ONCE) != 0};
    **name = (struct found_name){.length = NAN, .depth = NAN};
    f->n++;
    return COLIBRI_OK;
}

/* What cannot be run is dropped again. */
static bool fits(struct reading *r, const clb_kvc_case *v)
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

static const char *text_of(const json_t *o, const char *key)
{
    const char *const text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

/* Tokens before the one that holds the first byte of the question, the last text of its kind in the prompt. */
static int find_question(struct reading *r, clb_kvc_case *v, const char *question, clb_error *err)
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

static int add_text(struct reading *r, const char *text, size_t n, const char *id, const char *group, clb_error *err)
{
    const clb_engine *const e = r->o->engine;
    const uint32_t length = r->o->text_tokens, bos = clb_vocab_bos(e->vocab);
    const bool with_bos = clb_vocab_add_bos(e->vocab) && bos != CLB_TOKEN_NONE;
    clb_tokens all = {0};
    int rc = clb_tokenize(e->vocab, text, n, 0, &all, err);
    const size_t step = length - with_bos;
    for (size_t at = 0, k = 0; !rc && at + step <= all.n; at += step, k++) {
        clb_kvc_case *v;
        struct found_name *name;
        rc = next_case(r, &v, &name, err);
        if (!rc && with_bos)
            rc = clb_tokens_push(&v->ids, bos, err);
        for (size_t i = 0; !rc && i < step; i++)
            rc = clb_tokens_push(&v->ids, all.ids[at + i], err);
        if (rc)
            break;
        if (r->modes & DECODE)
            v->n_context = (uint32_t)v->ids.n / 2;
        snprintf(name->id, sizeof name->id, "%.80s:%zu", id, k + 1);
        snprintf(name->group, sizeof name->group, "%.95s", group);
    }
    clb_tokens_free(&all);
    return rc;
}

static int text_line(struct reading *r, const json_t *o, unsigned line, clb_error *err)
{
    char number[32];
    snprintf(number, sizeof number, "%u", line);
    const json_t *const text = json_object_get(o, "text");
    if (!json_is_string(text))
        return clb_fail(err, COLIBRI_E_FORMAT, "no \"text\"");
    return add_text(r, json_string_value(text), json_string_length(text), *text_of(o, "id") ? text_of(o, "id") : number,
                    *text_of(o, "group") ? text_of(o, "group") : r->base, err);
}

/* ---- recall ---- */

static int recall_line(struct reading *r, const json_t *o, unsigned line, clb_error *err)
{
    const clb_vocab *const vocab = r->o->engine->vocab;
    const json_t *const prompt = json_object_get(o, "prompt"), *const answer = json_object_get(o, "answer");
    const json_t *const distance = json_object_get(o, "distance");
    clb_kvc_case *v;
    struct found_name *name;
    if (!json_is_string(prompt) || !json_is_string(answer) || json_string_length(answer) == 0)
        return clb_fail(err, COLIBRI_E_FORMAT, "needs \"prompt\" and \"answer\"");
    CLB_TRY(next_case(r, &v, &name, err));
    CLB_TRY(clb_tokenize(vocab, json_string_value(prompt), json_string_length(prompt), CLB_TOKENIZE_BOS, &v->ids, err));
    CLB_TRY(clb_tokenize(vocab, json_string_value(answer), json_string_length(answer), 0, &v->answer, err));
    if (v->ids.n == 0 || v->answer.n == 0)
        return clb_fail(err, COLIBRI_E_FORMAT, "prompt or answer has no tokens");
    if (r->modes & ASK_LATER) {
        if (!*text_of(o, "question"))
            return clb_fail(err, COLIBRI_E_FORMAT, "ask-later needs \"question\", the end of the prompt that asks");
        CLB_TRY(find_question(r, v, text_of(o, "question"), err));
    }
    snprintf(v->sort, sizeof v->sort, "%.23s", text_of(o, "kind"));
    if (json_is_number(distance)) {
        name->length = json_number_value(distance);
        snprintf(name->group, sizeof name->group, "%g", name->length);
    } else {
        snprintf(name->group, sizeof name->group, "%.95s", *text_of(o, "group") ? text_of(o, "group") : "all");
    }
    if (*text_of(o, "id"))
        snprintf(name->id, sizeof name->id, "%.95s", text_of(o, "id"));
    else
        snprintf(name->id, sizeof name->id, "%u", line);
    (void)fits(r, v);
    return COLIBRI_OK;
}

static int each_line(struct reading *r, const clb_buf *text, clb_error *err)
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
        int rc = o ? COLIBRI_OK : clb_fail(err, COLIBRI_E_FORMAT, "%s", why.text);
        if (!rc)
            rc = r->kind == CLB_KVC_TEXT ? text_line(r, o, line, err) : recall_line(r, o, line, err);
        json_decref(o);
        if (rc)
            return clb_context(err, "%s, line %u", r->path, line);
    }
    return COLIBRI_OK;
}

/* ---- passkeys ---- */

struct passkey {
    const json_t *o;
    clb_tokens filler;
    uint64_t seed;
};

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* n tokens of the filler from `at` on, around its end if need be. */
static int filler_text(const struct passkey *p, const clb_vocab *vocab, size_t at, size_t n, clb_buf *out,
                       clb_error *err)
{
    for (size_t i = 0; i < n; i++)
        CLB_TRY(clb_token_bytes(vocab, p->filler.ids[(at + i) % p->filler.n], false, out, err));
    return COLIBRI_OK;
}

static int replace_key(const char *text, const char *key, clb_buf *out, clb_error *err)
{
    for (const char *at; (at = strstr(text, "{key}")); text = at + 5) {
        CLB_TRY(clb_buf_append(out, text, (size_t)(at - text), err));
        CLB_TRY(clb_buf_append(out, key, strlen(key), err));
    }
    return clb_buf_append(out, text, strlen(text), err);
}

/* intro, filler, needle at `depth` %, filler, question; in a turn of the user if the model has turns. */
static int build_prompt(struct reading *r, const struct passkey *p, const char *key, uint32_t n_filler, uint32_t depth,
                        size_t start, clb_tokens *ids, clb_error *err)
{
    const clb_vocab *const vocab = r->o->engine->vocab;
    const char *const prefix = text_of(p->o, "answer_prefix");
    const size_t before = (size_t)((uint64_t)n_filler * depth / 100);
    clb_buf text = {0};
    int rc = clb_buf_append(&text, text_of(p->o, "intro"), strlen(text_of(p->o, "intro")), err);
    if (!rc)
        rc = filler_text(p, vocab, start, before, &text, err);
    if (!rc)
        rc = replace_key(text_of(p->o, "needle"), key, &text, err);
    if (!rc)
        rc = filler_text(p, vocab, start + before, n_filler - before, &text, err);
    if (!rc)
        rc = clb_buf_append(&text, text_of(p->o, "question"), strlen(text_of(p->o, "question")), err);
    ids->n = 0;
    if (!rc && r->o->chat) {
        const clb_message message = {"user", text.data};
        rc = clb_chat_tokenize(r->o->chat, vocab, &message, 1, 1, ids, err);
        if (!rc)
            rc = clb_tokenize(vocab, prefix, strlen(prefix), 0, ids, err);
    } else if (!rc) {
        rc = clb_buf_append(&text, prefix, strlen(prefix), err);
        if (!rc)
            rc = clb_tokenize(vocab, text.data, text.n, CLB_TOKENIZE_BOS, ids, err);
    }
    clb_buf_free(&text);
    return rc;
}

static int needle(struct reading *r, const struct passkey *p, uint32_t length, uint32_t depth, uint32_t k,
                  clb_error *err)
{
    clb_kvc_case *v;
    struct found_name *name;
    char key[16];
    const uint64_t random = mix(mix(p->seed + length) + 1000 * (uint64_t)depth + k + 1);
    const size_t start = (size_t)(random % p->filler.n);
    snprintf(key, sizeof key, "%05u", (unsigned)(10000 + (random >> 32) % 90000));
    CLB_TRY(next_case(r, &v, &name, err));
    v->key = strdup(key);
    v->n_generate = 12;
    if (!v->key)
        return CLB_NOMEM(err, "items");
    CLB_TRY(build_prompt(r, p, key, 0, depth, start, &v->ids, err)); /* what the rest takes */
    if (v->ids.n + v->n_generate >= length)
        return clb_fail(err, COLIBRI_E_USAGE, "a length of %u has no room for filler", length);
    /* Pieces of text do not always become the tokens that they came from: come near, from below. */
    uint32_t n = length - v->n_generate - (uint32_t)v->ids.n;
    for (int i = 0; i < 4; i++) {
        CLB_TRY(build_prompt(r, p, key, n, depth, start, &v->ids, err));
        const uint64_t total = v->ids.n + v->n_generate;
        if (total <= length)
            break;
        n -= (uint32_t)(total - length) < n ? (uint32_t)(total - length) : n;
    }
    if (r->modes & ASK_LATER)
        CLB_TRY(find_question(r, v, text_of(p->o, "question"), err));
    name->length = length;
    name->depth = depth;
    snprintf(name->group, sizeof name->group, "%u tokens, %u%%", length, depth);
    snprintf(name->id, sizeof name->id, "%u-%u-%u", length, depth, k + 1);
    (void)fits(r, v);
    return COLIBRI_OK;
}

static int read_filler(struct reading *r, struct passkey *p, clb_error *err)
{
    char path[4096];
    clb_buf text = {0};
    const char *const file = text_of(p->o, "filler");
    const int folder = *file == '/' ? 0 : (int)(r->base - r->path);
    if (!*file || snprintf(path, sizeof path, "%.*s%s", folder, r->path, file) >= (int)sizeof path)
        return clb_fail(err, COLIBRI_E_FORMAT, "needs \"filler\", the name of a text file");
    int rc = clb_read_input(path, &text, err);
    if (!rc)
        rc = clb_tokenize(r->o->engine->vocab, text.data ? text.data : "", text.n, 0, &p->filler, err);
    if (!rc && p->filler.n == 0)
        rc = clb_fail(err, COLIBRI_E_USAGE, "%s is empty", path);
    clb_buf_free(&text);
    return rc;
}

static int read_passkey(struct reading *r, const clb_buf *text, clb_error *err)
{
    json_error_t why;
    json_t *const o = json_loadb(text->data ? text->data : "", text->n, JSON_REJECT_DUPLICATES, &why);
    if (!o)
        return clb_fail(err, COLIBRI_E_FORMAT, "%s, line %d: %s", r->path, why.line, why.text);
    const json_t *const lengths = json_object_get(o, "lengths"), *const depths = json_object_get(o, "depths");
    const json_int_t repeats =
        json_is_integer(json_object_get(o, "repeats")) ? json_integer_value(json_object_get(o, "repeats")) : 1;
    struct passkey p = {.o = o, .seed = (uint64_t)json_integer_value(json_object_get(o, "seed"))};
    int rc = COLIBRI_OK;
    if (!strstr(text_of(o, "needle"), "{key}") || !*text_of(o, "question") || !json_array_size(lengths) ||
        !json_array_size(depths) || repeats < 1 || repeats > 1000)
        rc = clb_fail(err, COLIBRI_E_FORMAT,
                      "needs \"needle\" with {key}, \"question\", \"lengths\", \"depths\" and \"repeats\"");
    if (!rc)
        rc = read_filler(r, &p, err);
    for (size_t i = 0; !rc && i < json_array_size(lengths); i++)
        for (size_t j = 0; !rc && j < json_array_size(depths); j++)
            for (json_int_t k = 0; !rc && k < repeats; k++) {
                const json_int_t length = json_integer_value(json_array_get(lengths, i));
                const json_int_t depth = json_integer_value(json_array_get(depths, j));
                if (length < 16 || length > (1 << 24) || depth < 0 || depth > 100)
                    rc = clb_fail(err, COLIBRI_E_FORMAT, "lengths are tokens, at least 16, and depths per cent");
                else
                    rc = needle(r, &p, (uint32_t)length, (uint32_t)depth, (uint32_t)k, err);
            }
    clb_tokens_free(&p.filler);
    json_decref(o);
    return rc ? clb_context(err, "%s", r->path) : COLIBRI_OK;
}

/* ---- into the grid ---- */

static int keep(clb_kvc *c, struct reading *r, uint32_t task, clb_kvc_cases *out, clb_error *err)
{
    const uint32_t n = r->found.n, most = r->o->most_items && r->o->most_items < n ? r->o->most_items : n;
    void *const bigger = realloc(out->v, ((size_t)out->n + most + 1) * sizeof *out->v);
    if (!bigger)
        return CLB_NOMEM(err, "items");
    out->v = bigger;
    for (uint32_t i = 0; i < most; i++) {
        const uint32_t at =
            (uint32_t)(((uint64_t)i * n + n / 2) / most % n); /* evenly, from the middle of each stretch */
        const struct found_name *const name = &r->found.names[at];
        clb_kvc_case *const v = &r->found.v[at];
        CLB_TRY(clb_kvc_add_item(c, task, name->id, name->group, name->length, name->depth, &v->item, err));
        out->v[out->n++] = *v;
        *v = (clb_kvc_case){0};
    }
    return COLIBRI_OK;
}

static int load(clb_kvc *c, struct reading *r, const clb_buf *text, clb_kvc_cases *out, clb_error *err)
{
    char hash[40];
    uint32_t task;
    clb_kvc_hash(text->data ? text->data : "", text->n, hash);
    const bool lines = text->n && text->data[strspn(text->data, " \t\r\n")] == '{';
    if (r->kind == CLB_KVC_PASSKEY)
        CLB_TRY(read_passkey(r, text, err));
    else if (r->kind == CLB_KVC_RECALL || lines)
        CLB_TRY(each_line(r, text, err));
    else
        CLB_TRY(add_text(r, text->data ? text->data : "", text->n, r->base, r->base, err));
    if (r->too_long)
        clb_logf(r->o->log, COLIBRI_LOG_WARN,
                 "%s: %u of %u items are longer than the context of %u and left out (--ctx)", r->path, r->too_long,
                 r->too_long + r->found.n, r->o->engine->ctx);
    if (!r->found.n)
        return clb_fail(err, COLIBRI_E_USAGE, "%s has no item that fits (texts: %u tokens and more)", r->path,
                        r->o->text_tokens);
    CLB_TRY(clb_kvc_add_task(c, r->kind, r->name, r->path, hash, &task, err));
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
static int read_kind(struct reading *r, const char *text, size_t n, clb_error *err)
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
static void name_task(struct reading *r)
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
    struct reading r = {.o = options};
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
