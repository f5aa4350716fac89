/* The reply parser: tells thoughts, answer and calls apart, whatever the pieces that the text comes in. */
#include <stdlib.h>
#include <string.h>

#include "serve/tool_impl.h"
#include "serve/tool_rules.h"

/* Marks around thoughts, where the reply begins with one. */
static const struct {
    const char *open, *close;
} thoughts[] = {
    {"<think>", "</think>"},
    {"[THINK]", "[/THINK]"},
    {"<seed:think>", "</seed:think>"},
    {"<|START_THINKING|>", "<|END_THINKING|>"},
    {"<|inner_prefix|>", "<|inner_suffix|>"},
    {"<|channel>thought\n", "<channel|>"},
    {"<thinking>", "</thinking>"},
    {"Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"},
};
#define N_THOUGHTS (sizeof thoughts / sizeof *thoughts)

static bool blank(char c);

const char *clb_thought_open(const char *text, size_t n)
{
    while (n && blank(text[n - 1]))
        n--;
    for (size_t i = 0; i < N_THOUGHTS; i++) {
        size_t k = strlen(thoughts[i].open);
        while (k && blank(thoughts[i].open[k - 1]))
            k--;
        if (n >= k && memcmp(text + n - k, thoughts[i].open, k) == 0)
            return thoughts[i].open;
    }
    return NULL;
}

const char *clb_thought_close(const char *open)
{
    for (size_t i = 0; i < N_THOUGHTS; i++)
        if (strcmp(thoughts[i].open, open) == 0)
            return thoughts[i].close;
    return NULL;
}

bool clb_begins_thought(clb_str text)
{
    bool may = false;
    for (size_t i = 0; i < N_THOUGHTS; i++)
        may |= clb_begins(text, thoughts[i].open) == 0;
    return may;
}

bool clb_thought_mark(clb_str token)
{
    for (size_t i = 0; i < N_THOUGHTS; i++)
        for (int k = 0; k < 2; k++) {
            const char *mark = k ? thoughts[i].close : thoughts[i].open;
            if (token.n == strlen(mark) && memcmp(token.p, mark, token.n) == 0)
                return true;
        }
    return false;
}

bool clb_thought_part(clb_str token)
{
    for (size_t i = 0; i < N_THOUGHTS && token.n; i++)
        if (memmem(thoughts[i].open, strlen(thoughts[i].open), token.p, token.n) ||
            memmem(thoughts[i].close, strlen(thoughts[i].close), token.p, token.n))
            return true;
    return false;
}

static bool blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

clb_str clb_rest(const clb_reply_parser *p)
{
    return (clb_str){p->buf.data + p->at, p->buf.n - p->at};
}

void clb_skip_space(clb_reply_parser *p)
{
    while (p->at < p->buf.n && blank(p->buf.data[p->at]))
        p->at++;
}

int clb_begins(clb_str rest, const char *mark)
{
    const size_t n = strlen(mark), both = rest.n < n ? rest.n : n;
    if (both && memcmp(rest.p, mark, both) != 0)
        return -1;
    return both == n;
}

size_t clb_find_mark(clb_str s, const char *const *marks, size_t n, bool final, int *which)
{
    *which = -1;
    for (size_t at = 0; at < s.n; at++) {
        bool may = false;
        for (size_t i = 0; i < n; i++) {
            if (!marks[i] || marks[i][0] != s.p[at])
                continue;
            const int begins = clb_begins((clb_str){s.p + at, s.n - at}, marks[i]);
            if (begins > 0) {
                *which = (int)i;
                return at;
            }
            may |= begins == 0;
        }
        if (may && !final)
            return at;
    }
    return s.n;
}

int clb_take_close(clb_reply_parser *p)
{
    bool may = false;
    for (size_t i = 0; i < CLB_MARKS && p->f->close[i]; i++) {
        const int begins = clb_begins(clb_rest(p), p->f->close[i]);
        if (begins > 0) {
            p->at += strlen(p->f->close[i]);
            return 1;
        }
        may |= begins == 0;
    }
    return may && !p->final ? 0 : -1;
}

int clb_read_after(clb_reply_parser *p, unsigned phase, enum clb_read *out)
{
    const char *again = p->f->call_open;
    clb_skip_space(p);
    *out = CLB_READ_ON;
    const int begins = again[0] ? clb_begins(clb_rest(p), again) : -1;
    const int closed = begins > 0 ? -1 : clb_take_close(p);
    if (begins > 0) {
        p->at += strlen(again);
        p->phase = phase;
    } else if ((begins == 0 || closed == 0) && !p->final) {
        *out = CLB_READ_MORE;
    } else {
        p->mode = CLB_MODE_TEXT;
    }
    return COLIBRI_OK;
}

static void begin_calls(clb_reply_parser *p, bool unmarked)
{
    p->mode = CLB_MODE_CALL;
    p->f = p->o.format;
    p->phase = 0;
    p->in_list = p->in_call = p->any_in_section = p->in_thought = false;
    p->unmarked = unmarked;
}

/* How much of the mark is nothing but a mark: one that begins a call, or a list of them, is read with it. */
static size_t mark_taken(const clb_tool_format *f, const char *mark, size_t n)
{
    if (f->call_open && n && n == strlen(f->call_open) && memcmp(mark, f->call_open, n) == 0)
        return 0;
    return n && mark[n - 1] == '[' ? n - 1 : n;
}

/* A reply with calls that ends inside of the mark of one more (cut by its length) says nothing by that. */
static void forget_begun_mark(clb_reply_parser *p, const char *const *marks, size_t n)
{
    int which;
    const clb_str rest = clb_rest(p);
    const size_t at = clb_find_mark(rest, marks, n, false, &which);
    for (size_t i = 0; i < at; i++)
        if (!blank(rest.p[i]))
            return;
    if (which < 0)
        p->buf.n = p->at + at;
}

/* The text of the answer as far as the next mark. */
static int read_text(clb_reply_parser *p, enum clb_read *out, clb_error *err)
{
    const char *marks[3 * CLB_MARKS + 1];
    size_t n = 0;
    for (size_t i = 0; i < CLB_MARKS; i++)
        marks[n++] = p->o.tools ? p->o.format->open[i] : NULL;
    for (size_t i = 0; i < 2 * CLB_MARKS; i++)
        marks[n++] = p->o.format->drop[i];
    marks[n++] = p->unclosed ? p->thought_close : NULL;
    int which;
    if (p->final && p->n_calls)
        forget_begun_mark(p, marks, n);
    const clb_str rest = clb_rest(p);
    const size_t end =
        clb_find_mark((clb_str){rest.p + p->blanks, rest.n - p->blanks}, marks, n, p->final, &which) + p->blanks;
    /* white space waits: in front of a call it is no text */
    size_t text = end;
    while ((p->o.tools || which >= CLB_MARKS) && text > 0 && blank(rest.p[text - 1]))
        text--;
    *out = CLB_READ_MORE;
    if (text > 0) {
        size_t from = 0;
        while (p->after_thought && from < text && blank(rest.p[from]))
            from++;
        if (from < text) {
            CLB_TRY(clb_put_content(p, rest.p + from, text - from, err));
            p->after_thought = false;
        }
        p->at += text;
        p->blanks = end - text;
        *out = CLB_READ_ON;
    }
    p->blanks = end - text;
    if (p->after_thought) { /* nothing but white space so far */
        p->at += p->blanks;
        p->blanks = 0;
    }
    if (which < 0) {
        if (p->final && p->blanks && !p->n_calls)
            CLB_TRY(clb_put_content(p, clb_rest(p).p, p->blanks, err));
        if (p->final) {
            p->at += p->blanks;
            p->blanks = 0;
        }
        return COLIBRI_OK;
    }
    *out = CLB_READ_ON;
    if (which >= CLB_MARKS) { /* a mark that is no text */
        const bool late = which == (int)n - 1; /* the end of a thought, behind calls */
        if (p->blanks && !late)
            CLB_TRY(clb_put_content(p, clb_rest(p).p, p->blanks, err));
        p->at += p->blanks + strlen(marks[which]);
        p->blanks = 0;
        if (late) {
            p->unclosed = false;
            p->after_thought = true;
        }
        return COLIBRI_OK;
    }
    p->mark = p->at;
    p->at += p->blanks;
    p->blanks = 0;
    begin_calls(p, false);
    p->at += mark_taken(p->f, marks[which], strlen(marks[which]));
    return COLIBRI_OK;
}

int clb_begins_head(const clb_reply_parser *p, clb_str text)
{
    const json_t *tool;
    clb_buf head = {0};
    size_t i;
    int most = -1;
    json_array_foreach(p->o.tools, i, tool)
    {
        head.n = 0;
        if (clb_write_head(p->o.format, json_string_value(json_object_get(json_object_get(tool, "function"), "name")),
                           &head, NULL))
            break;
        const int begins = clb_begins(text, head.data);
        most = begins > most ? begins : most;
    }
    clb_buf_free(&head);
    return most;
}

/* A reply of a grammar: calls from its first byte on, or none. */
static int read_answer(clb_reply_parser *p, enum clb_read *out, clb_error *err)
{
    const clb_tool_format *f = p->o.format;
    *out = CLB_READ_MORE;
    while (p->after_thought && p->at < p->buf.n && blank(p->buf.data[p->at]))
        p->at++;
    const clb_str rest = clb_rest(p);
    if (rest.n == 0)
        return COLIBRI_OK;
    p->after_thought = false;
    int most = f->bare && p->o.tools && !p->answered ? clb_begins_head(p, rest) : -1;
    const bool unmarked = most > 0;
    size_t mark = 0;
    for (size_t i = 0; i < CLB_MARKS && f->open[i] && p->o.tools && !p->answered && !unmarked; i++) {
        const int begins = clb_begins(rest, f->open[i]);
        most = begins > most ? begins : most;
        if (begins > 0 && strlen(f->open[i]) > mark)
            mark = strlen(f->open[i]);
    }
    if (most == 0 && !p->final)
        return COLIBRI_OK;
    if (most > 0) {
        p->mark = p->at;
        begin_calls(p, unmarked);
        p->at += mark_taken(f, p->buf.data + p->at, mark);
        *out = CLB_READ_ON;
        return COLIBRI_OK;
    }
    p->answered = true;
    p->at = p->buf.n;
    return clb_put_content(p, rest.p, rest.n, err);
}

/* How the reply begins: thoughts, a call without a mark, or neither. */
static int read_start(clb_reply_parser *p, enum clb_read *out, clb_error *err)
{
    const clb_str all = clb_rest(p);
    size_t skip = 0;
    bool may = false;
    (void)err;
    *out = CLB_READ_ON;
    while (skip < all.n && blank(all.p[skip]))
        skip++;
    const clb_str rest = {all.p + skip, all.n - skip};
    for (size_t i = 0; i < N_THOUGHTS && p->o.reasoning; i++) {
        const int begins = clb_begins(rest, thoughts[i].open);
        may |= begins == 0;
        if (begins <= 0)
            continue;
        p->at += skip + strlen(thoughts[i].open);
        p->mode = CLB_MODE_THOUGHT;
        p->thought_close = thoughts[i].close;
        p->start = false;
        p->after_thought = true;
        return COLIBRI_OK;
    }
    const bool bare = p->o.tools && p->o.format->bare;
    if ((may || (bare && rest.n == 0)) && !p->final) {
        *out = CLB_READ_MORE;
        return COLIBRI_OK;
    }
    p->start = false;
    if (bare && rest.n && rest.p[0] == '{' && !p->o.answer) {
        p->mark = p->at;
        p->at += skip;
        begin_calls(p, true);
    }
    return COLIBRI_OK;
}

const char *const *clb_marks_in_thoughts(const clb_tool_format *f)
{
    static const char *const begins[] = {"<|", "<\xEF\xBD\x9C", "[TOOL_CALLS]"}; /* the second with a wide bar */
    for (size_t i = 0; f->open[0] && i < sizeof begins / sizeof *begins; i++)
        if (strncmp(f->open[0], begins[i], strlen(begins[i])) == 0)
            return f->open;
    return NULL;
}

static int read_thought(clb_reply_parser *p, enum clb_read *out, clb_error *err)
{
    int which;
    const clb_str rest = clb_rest(p);
    const char *const *const open = p->o.tools && !p->o.answer ? clb_marks_in_thoughts(p->o.format) : NULL;
    const char *const marks[] = {p->thought_close, open ? open[0] : NULL, open ? open[1] : NULL, open ? open[2] : NULL};
    size_t end = clb_find_mark(rest, marks, sizeof marks / sizeof *marks, p->final, &which), text = end;
    *out = which >= 0 ? CLB_READ_ON : CLB_READ_MORE;
    while (text > 0 && blank(rest.p[text - 1]))
        text--;
    size_t from = 0;
    while (p->after_thought && from < text && blank(rest.p[from])) /* here: the thought has not begun */
        from++;
    if (from < text) {
        CLB_TRY(clb_put_thought(p, rest.p + from, text - from, err));
        p->after_thought = false;
        *out = CLB_READ_ON;
    }
    if (text > 0)
        p->at += text;
    if (which < 0) {
        if (p->final)
            p->at += end - text;
        return COLIBRI_OK;
    }
    p->mark = p->at;
    p->at += end - text;
    if (which > 0) { /* a call without an end of the thought */
        begin_calls(p, false);
        p->in_thought = p->unclosed = true;
        p->at += mark_taken(p->f, marks[which], strlen(marks[which]));
        return COLIBRI_OK;
    }
    p->at += strlen(p->thought_close);
    p->mode = CLB_MODE_TEXT;
    p->after_thought = true;
    p->start = p->o.format->bare; /* a call without a mark may follow */
    return COLIBRI_OK;
}

static int read_call(clb_reply_parser *p, enum clb_read *out, clb_error *err)
{
    switch (p->f->shape) {
    case CLB_SHAPE_NAMED:
        return clb_read_named(p, out, err);
    case CLB_SHAPE_XML:
        return clb_read_xml(p, out, err);
    case CLB_SHAPE_PYTHON:
    case CLB_SHAPE_BRACES:
        return clb_read_python(p, out, err);
    default:
        return clb_read_json(p, out, err);
    }
}

bool clb_harmony(const clb_reply_parser *p)
{
    return p->o.format->shape == CLB_SHAPE_HARMONY && (p->o.tools || p->o.reasoning);
}

static int step(clb_reply_parser *p, enum clb_read *out, clb_error *err)
{
    *out = CLB_READ_MORE;
    if (clb_harmony(p))
        return clb_read_harmony(p, out, err);
    if (p->mode == CLB_MODE_THOUGHT)
        return read_thought(p, out, err);
    if (p->mode == CLB_MODE_TEXT && p->start)
        return read_start(p, out, err);
    if (p->mode == CLB_MODE_TEXT)
        return p->o.answer && !p->n_calls ? read_answer(p, out, err) : read_text(p, out, err);
    CLB_TRY(read_call(p, out, err));
    if (*out != CLB_READ_BAD)
        return COLIBRI_OK;
    /* what looked like calls is text, from the mark on if there was none among them */
    *out = CLB_READ_ON;
    p->mode = CLB_MODE_TEXT;
    p->blanks = 0;
    p->answered = true;
    if (p->in_call)
        CLB_TRY(clb_put_call_end(p, err));
    if (clb_is_cut_call(p)) {
        p->at = p->buf.n;
        return COLIBRI_OK;
    }
    if (p->any_in_section)
        return COLIBRI_OK;
    const size_t end = p->at > p->mark ? p->at : p->mark + 1;
    p->at = end;
    p->after_thought = false;
    if (p->in_thought) {
        p->mode = CLB_MODE_THOUGHT;
        p->unclosed = false;
    }
    return p->in_thought ? clb_put_thought(p, p->buf.data + p->mark, end - p->mark, err)
                         : clb_put_content(p, p->buf.data + p->mark, end - p->mark, err);
}

static int run(clb_reply_parser *p, clb_error *err)
{
    enum clb_read read = CLB_READ_ON;
    while (read == CLB_READ_ON && !p->status && (p->at < p->buf.n || p->final)) {
        const size_t before = p->at;
        const enum clb_parser_mode mode = p->mode;
        const unsigned phase = p->phase;
        p->status = step(p, &read, err);
        if (p->final && p->at == before && p->mode == mode && p->phase == phase && p->at == p->buf.n)
            break;
    }
    /* what was taken need not be kept, unless a mark may have to become text */
    const size_t keep = p->mode == CLB_MODE_CALL && !p->any_in_section && p->mark < p->at ? p->mark : p->at;
    if (keep > 4096 && keep > p->buf.n / 2) {
        memmove(p->buf.data, p->buf.data + keep, p->buf.n - keep);
        p->buf.n -= keep;
        p->at -= keep;
        p->mark -= p->mark < keep ? p->mark : keep;
    }
    return p->status;
}

int clb_reply_parser_feed(clb_reply_parser *p, const char *text, size_t n, clb_error *err)
{
    if (p->status)
        return p->status;
    CLB_TRY(clb_buf_append(&p->buf, text, n, err));
    return n ? run(p, err) : COLIBRI_OK;
}

int clb_reply_parser_finish(clb_reply_parser *p, clb_error *err)
{
    if (p->status)
        return p->status;
    if (p->cut)
        clb_forget_cut(p);
    p->final = true;
    if (p->buf.data)
        CLB_TRY(run(p, err));
    if (p->in_call && p->o.format->shape == CLB_SHAPE_HARMONY && p->first_param &&
        !p->cut) /* its closing mark is no text */
        CLB_TRY(clb_put_arguments(p, "{}", 2, err));
    if (p->in_call) { /* what is left of it says nothing: the begin of a parameter's name */
        p->at = p->buf.n;
        CLB_TRY(clb_put_call_end(p, err));
    }
    const clb_str rest = clb_rest(p);
    return p->buf.data && rest.n ? clb_put_content(p, rest.p, rest.n, err) : COLIBRI_OK;
}

bool clb_reply_parser_thinks(const clb_reply_parser *p)
{
    if (p->o.format->shape == CLB_SHAPE_HARMONY)
        return p->o.reasoning && p->phase && strcmp(p->channel, "analysis") == 0;
    return p->mode == CLB_MODE_THOUGHT;
}

uint32_t clb_reply_parser_calls(const clb_reply_parser *p)
{
    return p->n_calls;
}

int clb_reply_parser_create(const clb_reply_parser_options *options, clb_reply_parser **out, clb_error *err)
{
    clb_reply_parser *p = calloc(1, sizeof *p);
    *out = NULL;
    if (!p)
        return CLB_NOMEM(err, "parser of a reply");
    p->o = *options;
    p->f = options->format;
    p->start = options->reasoning || options->format->bare;
    strcpy(p->channel, "final");
    const char *opened = options->opened ? options->opened : "";
    const int rc = clb_reply_parser_feed(p, opened, strlen(opened), err);
    if (rc) {
        clb_reply_parser_free(p);
        return rc;
    }
    *out = p;
    return COLIBRI_OK;
}

void clb_reply_parser_free(clb_reply_parser *p)
{
    if (!p)
        return;
    clb_buf_free(&p->buf);
    clb_buf_free(&p->literal.out);
    free(p);
}
