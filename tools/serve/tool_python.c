/* Calls as Python would write them, [f(a=1, b='x')], and in Gemma's braces, call:f{a:1,b:<|"|>x<|"|>}. */
#include <string.h>

#include "serve/tool_impl.h"

enum { P_BEGIN, P_NAME, P_ARGUMENT, P_NEXT, P_AFTER, P_BRACES };

static bool name_char(char c)
{
    return c && strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.", c);
}

/* A name at the rest's begin: its length, 0 if there is none or it may go on. */
static size_t name_length(const clb_reply_parser *p, clb_str rest)
{
    size_t n = 0;
    while (n < rest.n && name_char(rest.p[n]))
        n++;
    return n < rest.n || p->final ? n : 0;
}

static int begin_call(clb_reply_parser *p, size_t n, enum clb_read *out, clb_error *err)
{
    const clb_str rest = clb_rest(p);
    const clb_str name = {rest.p, n};
    *out = CLB_READ_BAD;
    if (n == 0 || n >= sizeof p->tool || (p->unmarked && !p->any_in_section && !clb_tool_known(p, name)))
        return COLIBRI_OK;
    memcpy(p->tool, name.p, n);
    p->tool[n] = '\0';
    clb_literal_begin(&p->literal, p->f->shape == CLB_SHAPE_BRACES);
    *out = CLB_READ_ON;
    return clb_put_call(p, name, (clb_str){"", 0}, err);
}

/* "f(" */
static int read_name(clb_reply_parser *p, enum clb_read *out, clb_error *err)
{
    clb_skip_space(p);
    const clb_str rest = clb_rest(p);
    const size_t n = name_length(p, rest);
    *out = CLB_READ_MORE;
    if (n == 0 && !(rest.n && !name_char(rest.p[0])) && !p->final && rest.n < 256)
        return COLIBRI_OK;
    *out = CLB_READ_BAD;
    if (n == 0 || n >= rest.n || rest.p[n] != '(')
        return COLIBRI_OK;
    CLB_TRY(begin_call(p, n, out, err));
    if (*out == CLB_READ_BAD)
        return COLIBRI_OK;
    p->at += n + 1;
    p->first_param = true;
    p->phase = P_ARGUMENT;
    return COLIBRI_OK;
}

static int end_call(clb_reply_parser *p, clb_error *err)
{
    CLB_TRY(clb_put_arguments(p, p->first_param ? "{}" : "}", p->first_param ? 2 : 1, err));
    p->phase = P_NEXT;
    return clb_put_call_end(p, err);
}

/* "a='x'" once it is complete, or ")" */
static int read_argument(clb_reply_parser *p, enum clb_read *out, clb_error *err)
{
    while (p->at < p->buf.n && strchr(" \n\t\r,", p->buf.data[p->at]))
        p->at++;
    const clb_str rest = clb_rest(p);
    *out = rest.n ? CLB_READ_ON : CLB_READ_MORE;
    if (rest.n == 0)
        return COLIBRI_OK;
    if (rest.p[0] == ')') {
        p->at++;
        return end_call(p, err);
    }
    size_t n = 0;
    while (n < rest.n && name_char(rest.p[n]))
        n++;
    size_t i = n;
    while (i < rest.n && strchr(" \n\t", rest.p[i]))
        i++;
    if (i >= rest.n) {
        *out = CLB_READ_MORE;
        return COLIBRI_OK;
    }
    if (n == 0 || rest.p[i] != '=') { /* not an argument */
        *out = CLB_READ_BAD;
        return COLIBRI_OK;
    }
    for (i++; i < rest.n && strchr(" \n\t", rest.p[i]);)
        i++;
    if (i >= rest.n && !p->final) { /* where the value begins is not certain */
        *out = CLB_READ_MORE;
        return COLIBRI_OK;
    }
    *out = clb_literal_read(&p->literal, (clb_str){rest.p + i, rest.n - i}, p->final && !p->cut, err);
    if (*out == CLB_READ_BAD || (*out == CLB_READ_MORE && !p->final))
        return COLIBRI_OK;
    clb_buf json = {0};
    int rc = COLIBRI_OK;
    CLB_GO(clb_buf_append(&json, p->first_param ? "{\"" : ", \"", p->first_param ? 2 : 3, err));
    CLB_GO(clb_json_escape(&json, rest.p, n, err));
    CLB_GO(clb_buf_append(&json, "\": ", 3, err));
    CLB_GO(clb_buf_append(&json, p->literal.out.data ? p->literal.out.data : "", p->literal.out.n, err));
    CLB_GO(clb_put_arguments(p, json.data, json.n, err));
    p->first_param = false;
    p->at += i + p->literal.used;
    clb_literal_begin(&p->literal, false);
done:
    clb_buf_free(&json);
    return rc;
}

/* Gemma: "f{...}", given out once it is complete. */
static int read_braces(clb_reply_parser *p, enum clb_read *out, clb_error *err)
{
    const clb_str rest = clb_rest(p);
    *out = CLB_READ_MORE;
    if (!p->in_call) {
        const size_t n = name_length(p, rest);
        if (n == 0 && !(rest.n && !name_char(rest.p[0])) && !p->final)
            return COLIBRI_OK;
        *out = CLB_READ_BAD;
        if (n == 0 || n >= rest.n || rest.p[n] != '{')
            return COLIBRI_OK;
        CLB_TRY(begin_call(p, n, out, err));
        p->at += *out == CLB_READ_ON ? n : 0;
        return COLIBRI_OK;
    }
    *out = clb_literal_read(&p->literal, rest, p->final && !p->cut, err);
    if (*out == CLB_READ_BAD || (*out == CLB_READ_MORE && !p->final))
        return COLIBRI_OK;
    CLB_TRY(clb_put_arguments(p, p->literal.out.data, p->literal.out.n, err));
    p->at += p->literal.used;
    p->phase = P_AFTER;
    return *out == CLB_READ_ON ? clb_put_call_end(p, err) : COLIBRI_OK;
}

int clb_read_python(clb_reply_parser *p, enum clb_read *out, clb_error *err)
{
    *out = CLB_READ_ON;
    if (p->phase == P_NAME)
        return read_name(p, out, err);
    if (p->phase == P_ARGUMENT)
        return read_argument(p, out, err);
    if (p->phase == P_BRACES)
        return read_braces(p, out, err);
    clb_skip_space(p);
    const clb_str rest = clb_rest(p);
    if (rest.n == 0 && (p->phase == P_BEGIN || !p->final)) {
        *out = p->final ? CLB_READ_BAD : CLB_READ_MORE;
        return COLIBRI_OK;
    }
    if (p->phase == P_BEGIN && p->f->shape == CLB_SHAPE_BRACES) {
        const int begins = clb_begins(rest, p->f->call_open);
        *out = begins > 0 ? CLB_READ_ON : begins == 0 && !p->final ? CLB_READ_MORE : CLB_READ_BAD;
        p->at += begins > 0 ? strlen(p->f->call_open) : 0;
        p->phase = begins > 0 ? P_BRACES : P_BEGIN;
        return COLIBRI_OK;
    }
    if (p->phase == P_BEGIN) {
        p->at += rest.p[0] == '[';
        p->phase = P_NAME;
        return COLIBRI_OK;
    }
    if (p->phase == P_NEXT && rest.n && rest.p[0] == ',') {
        p->at++;
        p->phase = P_NAME;
        return COLIBRI_OK;
    }
    if (p->phase == P_NEXT) {
        p->at += rest.n && rest.p[0] == ']';
        p->phase = P_AFTER;
        return COLIBRI_OK;
    }
    const int closed = clb_take_close(p);
    if (closed == 0)
        *out = CLB_READ_MORE;
    else
        p->mode = CLB_MODE_TEXT;
    return COLIBRI_OK;
}
