/* Calls as names in front of JSON arguments. */
#include <string.h>

#include "serve/tool_impl.h"

#define HEADER_MOST 2048 /* bytes before the arguments */

enum { N_BEGIN, N_HEADER, N_ARGUMENTS, N_CLOSE, N_AFTER };

static clb_str trimmed(clb_str s)
{
    while (s.n && (s.p[0] == ' ' || s.p[0] == '\n' || s.p[0] == '\r' || s.p[0] == '\t')) {
        s.p++;
        s.n--;
    }
    while (s.n && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\n' || s.p[s.n - 1] == '\r' || s.p[s.n - 1] == '\t'))
        s.n--;
    return s;
}

static void drop_suffix(clb_str *s, const char *end)
{
    const size_t n = strlen(end);
    if (s->n >= n && memcmp(s->p + s->n - n, end, n) == 0)
        s->n -= n;
    *s = trimmed(*s);
}

/* The part behind the last `mark` in s, or all of s; *before: what is in front of it. */
static clb_str behind(clb_str s, const char *mark, clb_str *before)
{
    const size_t n = mark ? strlen(mark) : 0;
    *before = (clb_str){s.p, 0};
    for (size_t i = s.n >= n && n ? s.n - n + 1 : 0; i-- > 0;)
        if (memcmp(s.p + i, mark, n) == 0) {
            *before = (clb_str){s.p, i};
            return (clb_str){s.p + i + n, s.n - i - n};
        }
    return s;
}

/* "name", "function<sep>name\n```json", "name<sep>", "functions.name:0<sep>", "name[CALL_ID]id[ARGS]" */
static void read_name(const clb_reply_parser *p, clb_str text, clb_str *name, clb_str *id)
{
    clb_str before;
    clb_str s = trimmed(text);
    drop_suffix(&s, "```json");
    drop_suffix(&s, "```");
    *name = trimmed(behind(s, p->f->sep, &before));
    if (name->n == 0)
        *name = trimmed(before);
    *id = (clb_str){"", 0};
    clb_str with_id = behind(*name, "[CALL_ID]", &before);
    if (before.n) {
        *id = with_id;
        *name = trimmed(before);
    }
    if (name->n > 10 && memcmp(name->p, "functions.", 10) == 0) {
        const char *colon = memrchr(name->p, ':', name->n);
        if (colon)
            *id = *name;
        *name = (clb_str){name->p + 10, (colon ? (size_t)(colon - name->p) : name->n) - 10};
    }
}

static bool good_name(clb_str s)
{
    if (s.n == 0 || s.n > 128)
        return false;
    for (size_t i = 0; i < s.n; i++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/$", s.p[i]) || !s.p[i])
            return false;
    return true;
}

/* Whether the text can begin a header: nothing but what names are made of comes before what may follow one. */
static bool begins_name(clb_str s, const char *sep)
{
    const char stops[] = {'{', '[', '<', '`', ' ', '\n', '\r', '\t', sep[0]};
    size_t from = 0, i;
    while (from < s.n && strchr(" \n\r\t", s.p[from]))
        from++;
    for (i = from; i < s.n; i++)
        if (memchr(stops, s.p[i], sizeof stops))
            break;
    return i == from || good_name((clb_str){s.p + from, i - from});
}

static int read_named_header(clb_reply_parser *p, enum clb_read *out, clb_error *err)
{
    const clb_str rest = clb_rest(p);
    if (!begins_name(rest, p->f->sep)) { /* text need not wait for a brace */
        *out = CLB_READ_BAD;
        return COLIBRI_OK;
    }
    const char *brace = memchr(rest.p, '{', rest.n);
    const char *close = p->f->call_close[0] ? memmem(rest.p, rest.n, p->f->call_close, strlen(p->f->call_close)) : NULL;
    const char *line = p->f->sep[0] == '\n' && p->f->open[0][0] == '>' ? memchr(rest.p, '\n', rest.n) : NULL;
    const bool closed = close && (!brace || close < brace);
    clb_str name, id;
    if (line && line - rest.p == 3 && memcmp(rest.p, "all", 3) == 0) { /* the answer, to everybody */
        p->at += 4;
        p->mode = CLB_MODE_TEXT;
        p->answered = true;
        *out = CLB_READ_ON;
        return COLIBRI_OK;
    }
    if ((brace || closed) && (closed ? close : brace) - rest.p > HEADER_MOST) {
        *out = CLB_READ_BAD;
        return COLIBRI_OK;
    }
    if (!brace && !closed) {
        *out = p->final || rest.n > HEADER_MOST ? CLB_READ_BAD : CLB_READ_MORE;
        return COLIBRI_OK;
    }
    read_name(p, (clb_str){rest.p, (size_t)((closed ? close : brace) - rest.p)}, &name, &id);
    *out = CLB_READ_BAD;
    if (!good_name(name))
        return COLIBRI_OK;
    *out = CLB_READ_ON;
    CLB_TRY(clb_put_call(p, name, id, err));
    p->at += (size_t)((closed ? close : brace) - rest.p);
    if (closed) {
        CLB_TRY(clb_put_arguments(p, "{}", 2, err));
        CLB_TRY(clb_put_call_end(p, err));
        p->phase = N_CLOSE;
        return COLIBRI_OK;
    }
    p->phase = N_ARGUMENTS;
    clb_begin_json_value(p);
    return COLIBRI_OK;
}

/* The end of a fence and the closing mark of a call, where they are. */
static int read_named_close(clb_reply_parser *p, enum clb_read *out)
{
    const char *const ends[] = {"```", p->f->call_close};
    const size_t before = p->at;
    for (size_t i = 0; i < 2; i++) {
        clb_skip_space(p);
        const int begins = ends[i][0] ? clb_begins(clb_rest(p), ends[i]) : -1;
        if (begins == 0 && !p->final) {
            p->at = before;
            *out = CLB_READ_MORE;
            return COLIBRI_OK;
        }
        if (begins > 0)
            p->at += strlen(ends[i]);
        else if (begins == 0 && p->cut)
            p->at = p->buf.n;
    }
    p->phase = N_AFTER;
    *out = CLB_READ_ON;
    return COLIBRI_OK;
}

static int read_named_begin(clb_reply_parser *p, enum clb_read *out)
{
    clb_skip_space(p);
    *out = p->final ? CLB_READ_BAD : CLB_READ_MORE;
    if (p->at >= p->buf.n)
        return COLIBRI_OK;
    *out = CLB_READ_ON;
    const char c = p->buf.data[p->at];
    if (c == '[' || c == '{') { /* the older way of the family */
        static const clb_tool_format json = {
            .name = "json", .shape = CLB_SHAPE_JSON, .open = {"["}, .name_key = "name", .arguments_key = "arguments"};
        p->f = &json;
        p->phase = 0;
        return COLIBRI_OK;
    }
    const int begins = clb_begins(clb_rest(p), p->f->call_open);
    if (begins > 0) {
        p->at += strlen(p->f->call_open);
        p->phase = N_HEADER;
    } else {
        *out = begins == 0 && !p->final ? CLB_READ_MORE : CLB_READ_BAD;
    }
    return COLIBRI_OK;
}

int clb_read_named(clb_reply_parser *p, enum clb_read *out, clb_error *err)
{
    switch (p->phase) {
    case N_BEGIN:
        return read_named_begin(p, out);
    case N_HEADER:
        return read_named_header(p, out, err);
    case N_ARGUMENTS:
        CLB_TRY(clb_read_json_value(p, out, err));
        if (*out == CLB_READ_ON) {
            p->phase = N_CLOSE;
            CLB_TRY(clb_put_call_end(p, err));
        }
        return COLIBRI_OK;
    case N_CLOSE:
        return read_named_close(p, out);
    default:
        return clb_read_after(p, N_HEADER, out);
    }
}
