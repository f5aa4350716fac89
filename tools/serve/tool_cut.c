/* What a reply ends with that was cut by its length: the begin of a mark, or of a call whose name is not known yet, is
 * neither text nor a call. It is left out, as if the text had been cut in front of it. */
#include <string.h>

#include "serve/tool_impl.h"

void clb_reply_parser_cut(clb_reply_parser *p)
{
    p->cut = true;
}

/* Bytes at the end of the text that may be the begin of the mark. */
static size_t begun(clb_str s, const char *mark)
{
    size_t k = mark ? strlen(mark) : 0;
    for (k = k ? k - 1 : 0; k > 0; k--)
        if (k <= s.n && memcmp(s.p + s.n - k, mark, k) == 0)
            return k;
    return 0;
}

static void forget(clb_reply_parser *p, const char *const *marks, size_t n)
{
    const clb_str rest = clb_rest(p);
    size_t most = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t k = begun(rest, marks[i]);
        most = k > most ? k : most;
    }
    p->buf.n -= most;
    if (p->blanks > p->buf.n - p->at)
        p->blanks = p->buf.n - p->at;
}

static void forget_in_text(clb_reply_parser *p)
{
    const clb_tool_format *f = p->o.format;
    const char *marks[3 * CLB_MARKS + 1];
    size_t n = 0;
    if (p->o.answer && !p->n_calls) { /* what waits is the begin of a mark, or of a call without one */
        p->buf.n = p->at;
        return;
    }
    for (size_t i = 0; i < CLB_MARKS && p->o.tools; i++)
        marks[n++] = f->open[i];
    for (size_t i = 0; i < 2 * CLB_MARKS; i++)
        marks[n++] = f->drop[i];
    marks[n++] = p->unclosed ? p->thought_close : NULL;
    forget(p, marks, n);
    const clb_str rest = clb_rest(p);
    size_t from = 0;
    while (from < rest.n && strchr(" \n\t\r", rest.p[from]))
        from++;
    if (p->start && p->o.reasoning && from < rest.n && clb_begins_thought((clb_str){rest.p + from, rest.n - from}))
        p->buf.n = p->at + from;
}

/* Among calls: what was understood of them is given out, and no half mark with it. */
static void forget_in_calls(clb_reply_parser *p)
{
    const clb_tool_format *f = p->f;
    const char *const marks[] = {
        f->call_open,
        f->call_close,
        f->param_open,
        f->key_end,
        f->value_end,
        f->close[0],
        f->close[1],
        f->close[2],
        f->shape == CLB_SHAPE_BRACES ? "<|\"|>" : NULL,
        f->key_end ? "<arg_value>" : NULL,
    };
    forget(p, marks, sizeof marks / sizeof *marks);
}

/* Without a mark in front, JSON is the begin of a call only if it can go on to name one of the tools at once; whatever
 * white space is in it. */
static bool begins_unmarked(const clb_reply_parser *p, clb_str s)
{
    char text[128];
    size_t n = 0;
    bool within = false;
    for (size_t i = 0; i < s.n; i++) {
        if (!within && strchr(" \n\t\r", s.p[i]))
            continue;
        if (n == sizeof text)
            return false;
        within ^= s.p[i] == '"';
        text[n++] = s.p[i];
    }
    const json_t *tool;
    size_t i;
    json_array_foreach(p->o.tools, i, tool)
    {
        char want[128];
        for (int type = 0; type < 2; type++) { /* Llama 3 may say first that it is a function */
            const int k = snprintf(want, sizeof want, "{%s\"name\":\"%s\"", type ? "\"type\":\"function\"," : "",
                                   json_string_value(json_object_get(json_object_get(tool, "function"), "name")));
            if (k > 0 && (size_t)k < sizeof want && n < (size_t)k && memcmp(text, want, n) == 0)
                return true;
        }
    }
    return false;
}

static void forget_harmony(clb_reply_parser *p)
{
    static const char *const ends[] = {"<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"};
    static const char *const heads[] = {"<|channel|>", "<|start|>", " to=", "<|constrain|>"};
    const clb_str rest = clb_rest(p);
    if (p->phase) {
        forget(p, ends, sizeof ends / sizeof *ends);
        return;
    }
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        if (clb_begins(rest, heads[i]) >= 0)
            p->buf.n = p->at;
}

void clb_forget_cut(clb_reply_parser *p)
{
    if (!p->buf.data)
        return;
    if (clb_harmony(p)) {
        forget_harmony(p);
    } else if (p->mode == CLB_MODE_THOUGHT) {
        const char *const *const open = p->o.tools && !p->o.answer ? clb_marks_in_thoughts(p->o.format) : NULL;
        const char *const marks[] = {p->thought_close, open ? open[0] : NULL, open ? open[1] : NULL,
                                     open ? open[2] : NULL};
        forget(p, marks, sizeof marks / sizeof *marks);
    } else if (p->mode == CLB_MODE_TEXT) {
        forget_in_text(p);
    } else {
        forget_in_calls(p);
    }
}

bool clb_is_cut_call(const clb_reply_parser *p)
{
    const clb_str call = {p->buf.data + p->mark, p->buf.n - p->mark};
    return p->cut && p->final && (!p->unmarked || p->any_in_section || begins_unmarked(p, call));
}
