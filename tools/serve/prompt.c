/* The prompt of a chat request. */
#include "serve/prompt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/json_values.h"
#include "serve/prompt_impl.h"
#include "serve/tool_grammar.h"

#define DATA_MOST ((size_t)256 << 20) /* of all values; the HTTP side bounds the body */

static void set(clb_jdata *d, clb_jvalue *dict, const char *key, const clb_jvalue *value)
{
    clb_jdata_set(d, dict, (clb_str){key, strlen(key)}, value);
}

static bool mentions(const clb_chat_format *chat, const char *word)
{
    const clb_str s = clb_chat_source(chat);
    return memmem(s.p, s.n, word, strlen(word)) != NULL;
}

/* SmolLM3 takes its tools under another name. */
static clb_jvalue *functions_of(clb_jdata *d, const json_t *tools)
{
    clb_jvalue *list = clb_jdata_list(d);
    const json_t *tool;
    size_t i;
    json_array_foreach(tools, i, tool) clb_jdata_push(d, list, clb_json_values(d, json_object_get(tool, "function")));
    return list;
}

/* Variables besides messages and tools. */
static clb_jvalue *more_values(clb_adapter *a, const clb_chat_format *chat, bool forced, const json_t *tools)
{
    clb_jvalue *more = clb_jdata_dict(a->d);
    const char *key;
    json_t *value;
    if (forced && a->caps->thinking) /* a grammar leaves no room for thoughts */
        set(a->d, more, "enable_thinking", clb_jdata_bool(a->d, false));
    if (forced && mentions(chat, "thinking"))
        set(a->d, more, "thinking", clb_jdata_bool(a->d, false));
    if (tools && !a->caps->tools && mentions(chat, "xml_tools"))
        set(a->d, more, "xml_tools", functions_of(a->d, tools));
    json_object_foreach((json_t *)a->request->kwargs, key, value) set(a->d, more, key, clb_json_values(a->d, value));
    return more;
}

static int append(clb_jinja_output *o, const char *text, clb_error *err)
{
    CLB_TRY(clb_buf_append(&o->text, text, strlen(text), err));
    for (size_t i = 0; text[i]; i++)
        CLB_TRY(clb_buf_append(&o->taint, "\0", 1, err));
    return COLIBRI_OK;
}

/* What the reply goes on from: an open thought, or the mark of who is spoken to. */
static const char *opened_by(const clb_jinja_output *o, const clb_tool_format *f)
{
    size_t n = o->text.n;
    const char *mark = clb_thought_open(o->text.data, n);
    if (mark && !o->taint.data[n - 1])
        return mark;
    while (n && strchr(" \n", o->text.data[n - 1]))
        n--;
    if (strcmp(f->name, "functionary-v3.2") == 0 && n >= 3 && memcmp(o->text.data + n - 3, ">>>", 3) == 0)
        return ">>>";
    return "";
}

/* Marks of the format, or of thoughts, are tokens that are not shown unless asked for. */
static bool needs_special(const clb_vocab *vocab, const clb_tool_format *f, bool calls, bool thoughts)
{
    const char *const within[] = {f->call_open, f->call_close, f->sep, f->param_open, f->key_end, f->value_end};
    const char *marks[4 * CLB_MARKS + sizeof within / sizeof *within];
    size_t n = 0;
    if (f->shape == CLB_SHAPE_HARMONY)
        return true;
    for (size_t i = 0; i < CLB_MARKS && calls; i++) {
        if (f->open[i])
            marks[n++] = f->open[i];
        if (f->close[i])
            marks[n++] = f->close[i];
    }
    for (size_t i = 0; i < sizeof within / sizeof *within && calls; i++)
        if (within[i] && within[i][0])
            marks[n++] = within[i];
    for (size_t i = 0; i < 2 * CLB_MARKS; i++)
        if (f->drop[i] && f->drop[i][0] == '<')
            marks[n++] = f->drop[i];
    const uint32_t size = clb_vocab_size(vocab);
    for (uint32_t id = 0; id < size; id++) {
        if (!clb_vocab_is_control(vocab, id))
            continue;
        const clb_str text = clb_token_text(vocab, id);
        for (size_t i = 0; i < n; i++)
            if (text.n && text.n <= strlen(marks[i]) && memcmp(marks[i], text.p, text.n) == 0)
                return true;
        if (thoughts && clb_thought_mark(text))
            return true;
    }
    return false;
}

/* How many tokens lie in front of the first user's words. Without the first token's quirks it would be exact; a token
 * less of the system prompt does no harm. */
static uint32_t protected_tokens(const clb_vocab *vocab, const clb_jinja_output *o, const json_t *messages,
                                 const clb_tokens *tokens)
{
    const json_t *m;
    size_t i, place = 0;
    json_array_foreach(messages, i, m)
    {
        const char *role = json_string_value(json_object_get(m, "role"));
        const json_t *content = json_object_get(m, "content");
        if (!role || strcmp(role, "user") != 0)
            continue;
        if (json_is_array(content))
            content = json_object_get(json_array_get(content, 0), "text");
        const char *text = json_string_value(content);
        size_t n = json_string_length(content);
        while (n && strchr(" \n\t\r", *text)) {
            text++;
            n--;
        }
        const char *at = n ? memmem(o->text.data, o->text.n, text, n < 64 ? n : 64) : NULL;
        while (at && !o->taint.data[at - o->text.data])
            at = memmem(at + 1, o->text.n - (size_t)(at + 1 - o->text.data), text, n < 64 ? n : 64);
        place = at ? (size_t)(at - o->text.data) : 0;
        break;
    }
    clb_buf bytes = {0};
    clb_error err;
    uint32_t n = 0;
    while (n < tokens->n && clb_token_bytes(vocab, tokens->ids[n], true, &bytes, &err) == COLIBRI_OK &&
           bytes.n <= place)
        n++;
    clb_buf_free(&bytes);
    return n;
}

static bool any_strict(const json_t *tools)
{
    const json_t *tool;
    size_t i;
    json_array_foreach(
        tools, i, tool) if (json_is_true(json_object_get(json_object_get(tool, "function"), "strict"))) return true;
    return false;
}

/* What a mistake that is found from here on is one of. */
static void blame(const clb_adapter *a, const char *param)
{
    if (a->param)
        snprintf(a->param, 64, "%s", param);
}

static int finish(const clb_chat_format *chat, const clb_vocab *vocab, const clb_adapter *a, const json_t *tools,
                  clb_jinja_output *o, clb_prompt *out, clb_error *err)
{
    const clb_prompt_request *q = a->request;
    const bool must = tools && (q->choice == CLB_TOOLS_REQUIRED || q->choice == CLB_TOOLS_NAMED);
    const char *opened = a->continued ? "" : opened_by(o, a->format);
    clb_buf prefill = {0}, gbnf = {0};
    int rc = COLIBRI_OK;
    if ((must || q->constrained) && clb_thought_close(opened)) {
        CLB_GO(append(o, o->text.data[o->text.n - 1] == '\n' ? "\n" : "\n\n", err));
        CLB_GO(append(o, clb_thought_close(opened), err));
        CLB_GO(append(o, "\n\n", err));
        opened = "";
    }
    if (must) {
        blame(a, "tools");
        CLB_GO(clb_tool_grammar(a->format, vocab, tools, q->choice == CLB_TOOLS_NAMED ? q->tool_name : NULL,
                                q->one_call, &prefill, &gbnf, err));
        blame(a, "");
        const bool twice = strcmp(opened, ">>>") == 0; /* the mark is there already */
        CLB_GO(append(o, prefill.n ? prefill.data + (twice ? 3 : 0) : "", err));
        opened = prefill.n ? prefill.data : "";
    }
    /* strict functions that need not be called: a grammar where calls have a mark, else the model's word */
    const bool strict = any_strict(tools) && clb_tool_may_be_constrained(a->format);
    if (tools && q->choice == CLB_TOOLS_AUTO && (q->answer || strict)) {
        const clb_tool_auto may = {.format = a->format,
                                   .vocab = vocab,
                                   .tree = q->tree,
                                   .tools = tools,
                                   .one_call = q->one_call,
                                   .answer = q->answer,
                                   .opened = opened,
                                   .thoughts = q->reasoning};
        blame(a, "tools");
        CLB_GO(clb_tool_grammar_auto(&may, &gbnf, err));
        blame(a, "");
    }
    out->format = a->format;
    out->special = needs_special(vocab, a->format, tools != NULL, q->reasoning);
    out->opened = strdup(opened);
    if (!out->opened)
        CLB_GO(CLB_NOMEM(err, "prompt"));
    CLB_GO(clb_chat_tokenize_marked(chat, vocab, o, &out->tokens, err));
    if (a->any_system)
        out->n_protected = protected_tokens(vocab, o, q->messages, &out->tokens);
    if (gbnf.n) {
        out->gbnf = gbnf.data;
        gbnf = (clb_buf){0};
    }
done:
    clb_buf_free(&prefill);
    clb_buf_free(&gbnf);
    return rc;
}

int clb_prompt_make(const clb_chat_format *chat, const clb_vocab *vocab, const clb_prompt_request *request,
                    clb_prompt *out, char param[64], clb_error *err)
{
    const json_t *tools = request->choice != CLB_TOOLS_NONE && json_array_size(request->tools) ? request->tools : NULL;
    const bool forced = request->constrained || (tools && request->choice != CLB_TOOLS_AUTO);
    clb_adapter a = {
        .request = request, .caps = clb_chat_get_caps(chat), .format = clb_tool_format_of(chat), .param = param};
    clb_jinja_output o = {{0}, {0}};
    int rc = COLIBRI_OK;
    *out = (clb_prompt){0};
    if (param)
        param[0] = '\0';
    if (!json_is_array(request->messages) || json_array_size(request->messages) == 0)
        return clb_fail(err, COLIBRI_E_USAGE, "messages must be a list of at least one message");
    CLB_TRY(clb_jdata_create(DATA_MOST, &a.d, err));
    a.tools = tools && (a.caps->tools || mentions(chat, "xml_tools"));
    if (tools && !a.tools) {
        if (!clb_tool_writes(a.format))
            a.format = clb_tool_format_by_name("generic");
        CLB_GO(clb_tool_explain(a.format, tools, request->one_call, &a.system, err));
    }
    clb_chat_values v = {.add_generation = true};
    clb_jvalue *messages;
    CLB_GO(clb_adapt_messages(&a, &messages, err));
    v.messages = messages;
    v.tools = a.tools && a.caps->tools ? clb_json_values(a.d, tools) : NULL;
    v.documents = clb_json_values(a.d, request->documents);
    v.more = more_values(&a, chat, forced, tools);
    v.continue_last = a.continued;
    CLB_GO(clb_jdata_status(a.d, err));
    CLB_GO(clb_chat_render_marked(chat, &v, &o, err));
    CLB_GO(finish(chat, vocab, &a, tools, &o, out, err));
done:
    if (rc)
        clb_prompt_free(out);
    clb_marked_free(&a.system);
    clb_jinja_output_free(&o);
    clb_jdata_free(a.d);
    return rc;
}

void clb_prompt_free(clb_prompt *p)
{
    clb_tokens_free(&p->tokens);
    free(p->opened);
    free(p->gbnf);
    *p = (clb_prompt){0};
}

clb_prompt_reply clb_prompt_take_reply(clb_prompt *p, const clb_prompt_request *request)
{
    const clb_prompt_reply reply = {.format = p->format,
                                    .tools = request->choice == CLB_TOOLS_NONE ? NULL
                                                                               : json_incref((json_t *)request->tools),
                                    .opened = p->opened,
                                    .reasoning = request->reasoning,
                                    .answer = request->constrained};
    p->opened = NULL;
    return reply;
}

void clb_prompt_reply_free(clb_prompt_reply *reply)
{
    json_decref(reply->tools);
    free(reply->opened);
    *reply = (clb_prompt_reply){0};
}

int clb_prompt_reply_parser(const clb_prompt_reply *reply,
                            int (*on_piece)(void *ctx, const clb_piece *piece, clb_error *err), void *ctx,
                            clb_reply_parser **out, clb_error *err)
{
    const clb_reply_parser_options options = {.format = reply->format,
                                              .tools = reply->tools,
                                              .reasoning = reply->reasoning,
                                              .answer = reply->answer,
                                              .opened = reply->opened,
                                              .on_piece = on_piece,
                                              .ctx = ctx};
    return clb_reply_parser_create(&options, out, err);
}
