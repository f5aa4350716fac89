/* Prompts of a comparison. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "compare.h"

#define MAX_PROMPTS 10000u

void clb_prompts_free(clb_prompts *prompts)
{
    for (uint32_t i = 0; i < prompts->n; i++) {
        free(prompts->v[i].id);
        free(prompts->v[i].topic);
        free(prompts->v[i].text);
        clb_tokens_free(&prompts->v[i].ids);
    }
    free(prompts->v);
    *prompts = (clb_prompts){0};
}

static int add(clb_prompts *prompts, const char *id, const char *topic, const char *text, size_t n, bool raw,
               clb_error *err)
{
    if (n == 0)
        return clb_fail(err, COLIBRI_E_USAGE, "the prompt is empty");
    if (prompts->n == MAX_PROMPTS)
        return clb_fail(err, COLIBRI_E_LIMIT, "more than %u prompts", MAX_PROMPTS);
    clb_prompt *const more = realloc(prompts->v, (prompts->n + 1) * sizeof *more);
    if (!more)
        return CLB_NOMEM(err, "prompts");
    prompts->v = more;
    clb_prompt *const p = &more[prompts->n++];
    *p = (clb_prompt){.id = strdup(id), .topic = strdup(topic), .text = malloc(n + 1), .n = n, .raw = raw};
    if (!p->id || !p->topic || !p->text)
        return CLB_NOMEM(err, "prompts");
    memcpy(p->text, text, n);
    p->text[n] = '\0';
    return COLIBRI_OK;
}

static int add_line(clb_prompts *prompts, const char *line, size_t n, clb_error *err)
{
    static const char *const keys[] = {"prompt", "id", "topic", "raw"};
    json_error_t json_error;
    json_t *const o = json_loadb(line, n, JSON_REJECT_DUPLICATES, &json_error);
    if (!o)
        return clb_fail(err, COLIBRI_E_FORMAT, "%s", json_error.text);
    const char *key;
    json_t *value;
    int rc = json_is_object(o) ? COLIBRI_OK : clb_fail(err, COLIBRI_E_FORMAT, "not a JSON object");
    json_object_foreach(o, key, value)
    {
        size_t k = 0;
        while (k < 4 && strcmp(keys[k], key) != 0)
            k++;
        const bool right = k < 3 ? json_is_string(value) : json_is_boolean(value);
        if (k == 4)
            rc = clb_fail(err, COLIBRI_E_FORMAT, "unknown key \"%.60s\" (there are prompt, id, topic, raw)", key);
        else if (!right)
            rc = clb_fail(err, COLIBRI_E_FORMAT, "\"%s\" must be %s", key, k < 3 ? "a string" : "true or false");
    }
    const json_t *const prompt = json_object_get(o, "prompt");
    if (!rc && !prompt)
        rc = clb_fail(err, COLIBRI_E_FORMAT, "no \"prompt\"");
    if (!rc) {
        char number[32];
        snprintf(number, sizeof number, "%u", prompts->n + 1);
        const char *const id = json_string_value(json_object_get(o, "id"));
        const char *const topic = json_string_value(json_object_get(o, "topic"));
        rc = add(prompts, id ? id : number, topic ? topic : "", json_string_value(prompt), json_string_length(prompt),
                 json_is_true(json_object_get(o, "raw")), err);
    }
    json_decref(o);
    return rc;
}

static int add_lines(clb_prompts *prompts, const char *name, const char *text, size_t n, clb_error *err)
{
    unsigned number = 0;
    for (size_t at = 0; at < n;) {
        const char *const end = memchr(text + at, '\n', n - at);
        const size_t len = end ? (size_t)(end - text) - at : n - at;
        number++;
        if (strspn(text + at, " \t\r\n") < len && add_line(prompts, text + at, len, err))
            return clb_context(err, "%s:%u", name, number);
        at += len + 1;
    }
    return COLIBRI_OK;
}

static int add_file(clb_prompts *prompts, const char *path, clb_error *err)
{
    clb_buf text = {0};
    int rc = clb_read_input(path, &text, err);
    if (rc)
        goto done;
    const char *const base = strrchr(path, '/');
    if (text.n && text.data[strspn(text.data, " \t\r\n")] == '{')
        rc = add_lines(prompts, path, text.data, text.n, err);
    else if (add(prompts, base ? base + 1 : path, "", text.data, text.n, false, err))
        rc = clb_context(err, "%s", path);
done:
    clb_buf_free(&text);
    return rc;
}

int clb_prompts_read(const char *const *files, size_t n, clb_prompts *out, clb_error *err)
{
    *out = (clb_prompts){0};
    int rc = COLIBRI_OK;
    for (size_t i = 0; i < n && !rc; i++)
        rc = add_file(out, files[i], err);
    if (n == 0)
        rc = add_lines(out, "default.jsonl", (const char *)clb_default_prompts, clb_default_prompts_size, err);
    if (rc)
        clb_prompts_free(out);
    return rc;
}

static int tokenize(clb_prompt *p, const clb_chat_format *chat, const clb_engine *engine, clb_error *err)
{
    CLB_TRY(clb_check_prompt_size(engine, p->n, err));
    if (!chat || p->raw)
        return clb_tokenize(engine->vocab, p->text, p->n, CLB_TOKENIZE_BOS | CLB_TOKENIZE_SPECIAL, &p->ids, err);
    if (memchr(p->text, 0, p->n))
        return clb_fail(err, COLIBRI_E_USAGE,
                        "contains a NUL byte: with a chat template it must be text (or use --raw)");
    const clb_message message = {"user", p->text};
    return clb_chat_tokenize(chat, engine->vocab, &message, 1, 1, &p->ids, err);
}

int clb_prompts_tokenize(clb_prompts *prompts, clb_args *args, const clb_engine *engine, clb_error *err)
{
    const clb_chat_format *chat;
    CLB_TRY(clb_open_chat(args, engine, &chat, err));
    int rc = COLIBRI_OK;
    for (uint32_t i = 0; i < prompts->n && !rc; i++) {
        clb_prompt *const p = &prompts->v[i];
        p->ids.n = 0;
        rc = tokenize(p, chat, engine, err);
        if (!rc && p->ids.n == 0)
            rc = clb_fail(err, COLIBRI_E_USAGE, "has no tokens");
        if (rc)
            rc = clb_context(err, "prompt %.80s", p->id);
    }
    clb_chat_free(chat);
    return rc;
}
