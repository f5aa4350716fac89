/* gpt-oss: messages in channels. analysis holds thoughts, final the answer, commentary calls (to=functions.f) and words
 * to the user about them.
 *
 *     <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary to=functions.f
 * <|constrain|>json<|message|>{...}
 */
#include <string.h>

#include "serve/tool_impl.h"

enum { H_HEADER, H_BODY };
enum { BODY_NEW, BODY_OBJECT, BODY_TEXT }; /* of a call */

#define HEADER_MOST 512

static const char message_mark[] = "<|message|>";
static const char *const ends[] = {"<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"};
#define N_ENDS (sizeof ends / sizeof *ends)

static clb_str word_behind(clb_str s, const char *mark)
{
    const char *at = memmem(s.p, s.n, mark, strlen(mark));
    clb_str word = {"", 0};
    if (!at)
        return word;
    word.p = at + strlen(mark);
    while (word.p + word.n < s.p + s.n && !strchr(" <\n\t", word.p[word.n]))
        word.n++;
    return word;
}

/* "assistant<|channel|>commentary to=functions.f <|constrain|>json", in whatever order */
static int begin_message(clb_reply_parser *p, clb_str head, clb_error *err)
{
    const clb_str channel = word_behind(head, "<|channel|>");
    clb_str to = word_behind(head, "to=");
    const size_t n = channel.n < sizeof p->channel - 1 ? channel.n : sizeof p->channel - 1;
    memcpy(p->channel, channel.p, n);
    p->channel[n] = '\0';
    if (to.n > 10 && memcmp(to.p, "functions.", 10) == 0) {
        to.p += 10;
        to.n -= 10;
    }
    p->phase = H_BODY;
    p->first_param = true;
    if (to.n == 0 || !p->o.tools || (to.n == 4 && memcmp(to.p, "user", 4) == 0))
        return COLIBRI_OK;
    strcpy(p->channel, "call");
    p->scan = (clb_value_scan){0};
    p->value_kind = BODY_NEW;
    return clb_put_call(p, to, (clb_str){"", 0}, err);
}

static int put_body(clb_reply_parser *p, const char *text, size_t n, clb_error *err)
{
    if (strcmp(p->channel, "call") == 0) {
        if (n)
            p->first_param = false;
        return clb_put_arguments(p, text, n, err);
    }
    return strcmp(p->channel, "analysis") == 0 && p->o.reasoning ? clb_put_thought(p, text, n, err)
                                                                 : clb_put_content(p, text, n, err);
}

static int end_message(clb_reply_parser *p, clb_error *err)
{
    p->phase = H_HEADER;
    if (!p->in_call)
        return COLIBRI_OK;
    if (p->first_param)
        CLB_TRY(clb_put_arguments(p, "{}", 2, err));
    return clb_put_call_end(p, err);
}

/* Arguments as an object, up to its end: marks in its strings are text. */
static int read_object(clb_reply_parser *p, enum clb_read *out, clb_error *err)
{
    if (p->value_kind == BODY_NEW)
        clb_skip_space(p);
    const clb_str rest = clb_rest(p);
    *out = rest.n ? CLB_READ_ON : CLB_READ_MORE;
    if (rest.n == 0)
        return COLIBRI_OK;
    if (p->value_kind == BODY_NEW) {
        p->value_kind = rest.p[0] == '{' ? BODY_OBJECT : BODY_TEXT;
        return COLIBRI_OK;
    }
    const size_t n = clb_value_scan_on(&p->scan, rest.p, rest.n);
    CLB_TRY(put_body(p, rest.p, n, err));
    p->at += n;
    *out = p->scan.done ? CLB_READ_ON : CLB_READ_MORE;
    return COLIBRI_OK;
}

int clb_read_harmony(clb_reply_parser *p, enum clb_read *out, clb_error *err)
{
    const clb_str rest = clb_rest(p);
    int which;
    *out = CLB_READ_MORE;
    if (rest.n == 0)
        return COLIBRI_OK;
    if (p->phase == H_HEADER) {
        /* a reply that does not begin with a header is text: the marks are not shown, or the model forgot them */
        const bool header = clb_begins(rest, "<|channel|>") >= 0 || clb_begins(rest, "<|start|>") >= 0 ||
                            clb_begins(rest, " to=") >= 0 || clb_begins(rest, "<|constrain|>") >= 0;
        const char *at = memmem(rest.p, rest.n, message_mark, sizeof message_mark - 1);
        const bool near = at && at - rest.p <= HEADER_MOST;
        if (header && near) {
            p->at += (size_t)(at - rest.p) + sizeof message_mark - 1;
            *out = CLB_READ_ON;
            return begin_message(p, (clb_str){rest.p, (size_t)(at - rest.p)}, err);
        }
        if (header && !p->final && rest.n < HEADER_MOST + sizeof message_mark)
            return COLIBRI_OK;
        strcpy(p->channel, "final");
        p->phase = H_BODY;
        *out = CLB_READ_ON;
        if (!header)
            return COLIBRI_OK;
        p->at++; /* its mark is text too */
        return clb_put_content(p, rest.p, 1, err);
    }
    if (p->o.answer && strcmp(p->channel, "final") == 0) { /* marks in it are its characters */
        p->at = p->buf.n;
        return clb_put_content(p, rest.p, rest.n, err);
    }
    if (p->in_call && p->value_kind != BODY_TEXT && !p->scan.done)
        return read_object(p, out, err);
    const size_t end = clb_find_mark(rest, ends, N_ENDS, p->final, &which);
    if (!p->in_call || p->value_kind == BODY_TEXT) /* behind an object there is nothing that counts */
        CLB_TRY(put_body(p, rest.p, end, err));
    p->at += end;
    if (which < 0)
        return COLIBRI_OK;
    *out = CLB_READ_ON;
    if (which < 3) /* the end of a message; the others begin the next one */
        p->at += strlen(ends[which]);
    return end_message(p, err);
}
