/* Whole conversations: their values as the template's variables, and prompts that end within the last message. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "text/chat_impl.h"
#include "text/jinja_impl.h"

/* `more` first: nothing of it takes the place of what the conversation consists of. */
static int run(const clb_chat_format *format, const clb_chat_values *v, const clb_jvalue *messages, bool generation,
               clb_jinja_output *out, clb_error *err)
{
    const struct {
        const char *name;
        const clb_jvalue *value;
    } own[] = {{"messages", messages}, {"tools", v->tools}, {"documents", v->documents}};
    const clb_jdict *more = v->more && v->more->type == J_DICT ? v->more->as.dict : NULL;
    const size_t n_more = more ? more->n : 0, most = n_more + 3;
    clb_jvalue *items = calloc(2 * most, sizeof *items);
    if (!items)
        return CLB_NOMEM(err, "chat template");
    clb_jdict all = {.keys = items, .values = items + most};
    for (size_t i = 0; i < n_more; i++, all.n++) {
        all.keys[all.n] = more->keys[i];
        all.values[all.n] = more->values[i];
    }
    for (size_t i = 0; i < 3; i++)
        if (own[i].value) {
            all.keys[all.n] = clb_jstr_lit(own[i].name);
            all.values[all.n++] = *own[i].value;
        }
    const clb_jvalue values = {.type = J_DICT, .as.dict = &all};
    clb_jinja_input in = {
        .add_generation_prompt = generation, .now = v->now ? v->now : (int64_t)time(NULL), .values = &values};
    const int rc = clb_chat_run(format, &in, out, err);
    free(items);
    return rc;
}

static clb_jstr trimmed(clb_jstr s)
{
    clb_jstrip(&s, NULL, true, true, &s);
    return s;
}

/* Offset behind the last place where `what` was copied from a message; 0: nowhere. */
static size_t find_last(const clb_jinja_output *o, clb_jstr what)
{
    if (what.n == 0 || o->text.n < what.n)
        return 0;
    for (size_t i = o->text.n - what.n + 1; i-- > 0;)
        if (o->text.data[i] == what.p[0] && memcmp(o->text.data + i, what.p, what.n) == 0 &&
            !memchr(o->taint.data + i, 0, what.n))
            return i + what.n;
    return 0;
}

/* The last message, of the assistant, is not over. Its text as the template prints it ends the prompt; where the
 * template prints it in another way, it follows the opening of a turn. */
static int continued(const clb_chat_format *format, const clb_chat_values *v, clb_jinja_output *out, clb_error *err)
{
    const clb_jlist *list = v->messages->as.list;
    const clb_jvalue *last = list->n ? &list->items[list->n - 1] : NULL;
    const clb_jvalue *content = last && last->type == J_DICT ? clb_jdict_at(last->as.dict, "content") : NULL;
    if (!content || content->type != J_STR)
        return clb_fail(err, COLIBRI_E_USAGE, "only a message with text can be gone on with");
    const clb_jstr text = trimmed(content->as.s);
    CLB_TRY(run(format, v, v->messages, false, out, err));
    const size_t end = find_last(out, text);
    if (end) {
        out->text.n = out->taint.n = end;
        out->text.data[end] = out->taint.data[end] = '\0';
        return COLIBRI_OK;
    }
    clb_jlist before = *list;
    before.n--;
    const clb_jvalue rest = {.type = J_LIST, .as.list = &before};
    out->text.n = out->taint.n = 0;
    CLB_TRY(run(format, v, &rest, true, out, err));
    CLB_TRY(clb_buf_append(&out->text, text.p, text.n, err));
    for (size_t i = 0; i < text.n; i++)
        CLB_TRY(clb_buf_append(&out->taint, "\1", 1, err));
    return COLIBRI_OK;
}

int clb_chat_render_marked(const clb_chat_format *format, const clb_chat_values *v, clb_jinja_output *out,
                           clb_error *err)
{
    if (!v->messages || v->messages->type != J_LIST)
        return clb_fail(err, COLIBRI_E_USAGE, "messages are a list");
    return v->continue_last ? continued(format, v, out, err) : run(format, v, v->messages, v->add_generation, out, err);
}
