/* inih does the grammar; the reader in front of it adds what a strict parser owes its user and inih leaves out: it
 * refuses NUL bytes, control characters, over-long lines and text after "[section]" (inih drops or cuts them), removes
 * indentation (inih would join an indented key to the line before), counts lines (a build of inih may not hand them
 * out) and keeps the section's full name (inih keeps 49 bytes). */
#include "config/ini.h"

#include <ini.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* inih's own limit is 200 bytes a line, on the stack. Debian's and Ubuntu's build (as of 55) takes it from these
 * variables, others fix it when inih is compiled: there the reader refuses longer lines, instead of having a value cut.
 * Raising the limit changes nothing for another user of inih in the same process but the length of the lines it may
 * read. */
extern int ini_max_line __attribute__((weak));
extern int ini_initial_alloc __attribute__((weak));
extern bool ini_use_stack __attribute__((weak));

#define LINE_MAX_BYTES 65536

static size_t line_limit;

static void raise_limit(void)
{
    line_limit = INI_MAX_LINE;
    if (&ini_max_line && &ini_initial_alloc && &ini_use_stack) {
        ini_max_line = LINE_MAX_BYTES;
        ini_initial_alloc = LINE_MAX_BYTES;
        ini_use_stack = false;
        line_limit = LINE_MAX_BYTES;
    }
}

typedef struct reader {
    const char *name;
    const char *p, *end;       /* text not read yet */
    const char *cur, *cur_end; /* rest of the current line */
    bool in_line;
    unsigned line;
    char section[256];
    clb_ini_fn fn;
    void *ctx;
    int rc; /* first error: reading ends */
    clb_error *err;
} reader;

static int located(reader *r, int rc)
{
    r->rc = rc;
    if (r->err)
        clb_context(r->err, "%s:%u", r->name, r->line);
    return rc;
}

static bool blank(char c)
{
    return c == ' ' || c == '\t';
}

/* "[name]", then nothing but a comment. */
static int section_line(reader *r)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    const char *p = r->cur + 1, *close = memchr(p, ']', (size_t)(r->cur_end - p));
    if (!close)
        return clb_fail(r->err, COLIBRI_E_FORMAT, "section line without ']'");
    const size_t n = (size_t)(close - p);
    for (size_t i = 0; i < n; i++) {
        if (!memchr(allowed, p[i], sizeof allowed - 1))
            return clb_fail(r->err, COLIBRI_E_FORMAT, "a section name has letters, digits, '-', '_' and '.' only");
    }
    if (!n || n >= sizeof r->section)
        return clb_fail(r->err, COLIBRI_E_FORMAT, "section name of %zu bytes (1 to %zu allowed)", n,
                        sizeof r->section - 1);
    const char *rest = close + 1;
    while (rest < r->cur_end && blank(*rest))
        rest++;
    if (rest < r->cur_end && *rest != ';' && *rest != '#')
        return clb_fail(r->err, COLIBRI_E_FORMAT, "text after [%.*s]: keys go on lines of their own", (int)n, p);
    memcpy(r->section, p, n);
    r->section[n] = '\0';
    return r->fn(r->ctx, r->section, NULL, NULL, r->line, r->err);
}

static int next_line(reader *r)
{
    const size_t left = (size_t)(r->end - r->p);
    const char *newline = memchr(r->p, '\n', left);
    r->line++;
    r->cur = r->p;
    r->cur_end = newline ? newline : r->end;
    r->p = newline ? newline + 1 : r->end;
    r->in_line = true;
    if (r->line == 1 && r->cur_end - r->cur >= 3 && !memcmp(r->cur, "\xEF\xBB\xBF", 3))
        r->cur += 3;
    if (r->cur_end > r->cur && r->cur_end[-1] == '\r')
        r->cur_end--;
    while (r->cur < r->cur_end && blank(*r->cur))
        r->cur++;
    while (r->cur < r->cur_end && blank(r->cur_end[-1]))
        r->cur_end--;
    for (const char *p = r->cur; p < r->cur_end; p++) {
        if (!*p)
            return clb_fail(r->err, COLIBRI_E_FORMAT, "NUL byte: this is not a text file in UTF-8");
        if (((unsigned char)*p < 0x20 && *p != '\t') || *p == 0x7f)
            return clb_fail(r->err, COLIBRI_E_FORMAT, "control character 0x%02x", (unsigned char)*p);
    }
    /* inih's buffer holds the line, its end and a NUL. */
    if ((size_t)(r->cur_end - r->cur) > line_limit - 3)
        return clb_fail(r->err, COLIBRI_E_LIMIT, "line of %zu bytes; at most %zu are read",
                        (size_t)(r->cur_end - r->cur), line_limit - 3);
    return r->cur < r->cur_end && *r->cur == '[' ? section_line(r) : COLIBRI_OK;
}

/* fgets over the text, for inih. Every line gets its newline, the last one too. */
static char *read_piece(char *out, int size, void *stream)
{
    reader *r = stream;
    if (r->rc || size < 2)
        return NULL;
    if (!r->in_line) {
        if (r->p == r->end)
            return NULL;
        const int rc = next_line(r);
        if (rc) {
            located(r, rc);
            return NULL;
        }
    }
    size_t n = (size_t)(r->cur_end - r->cur);
    if (n > (size_t)size - 1)
        n = (size_t)size - 1;
    memcpy(out, r->cur, n);
    r->cur += n;
    if (r->cur == r->cur_end && n < (size_t)size - 1) {
        out[n++] = '\n';
        r->in_line = false;
    }
    out[n] = '\0';
    return out;
}

/* Takes quotes off and refuses two mistakes that would otherwise become part of the value. *out is `value` or *copy. */
static int unquote(reader *r, const char *key, const char *value, char **copy, const char **out)
{
    const size_t n = strlen(value);
    *out = value;
    if (*value == '"') {
        const char *close = strchr(value + 1, '"');
        if (!close || close != value + n - 1)
            return clb_fail(r->err, COLIBRI_E_FORMAT,
                            "%.80s: a quoted value is \"...\" without '\"' inside; ';' after a blank starts a comment, "
                            "even there",
                            key);
        *copy = strndup(value + 1, n - 2);
        if (!*copy)
            return CLB_NOMEM(r->err, "reading an INI file");
        *out = *copy;
        return COLIBRI_OK;
    }
    for (size_t i = 0; i < n; i++) {
        if (value[i] == '#' && (i == 0 || blank(value[i - 1])))
            return clb_fail(r->err, COLIBRI_E_FORMAT,
                            "%.80s: '#' after a blank: start the comment with ';', or quote the value", key);
    }
    return COLIBRI_OK;
}

#if INI_HANDLER_LINENO /* a choice of whoever built inih */
static int on_entry(void *user, const char *section, const char *key, const char *value, int line)
{
    (void)line;
#else
static int on_entry(void *user, const char *section, const char *key, const char *value)
{
#endif
    (void)section; /* at most 49 bytes of it */
    reader *r = user;
    if (r->rc)
        return 0;
    char *copy = NULL;
    const char *plain = value;
    int rc;
    if (!*key)
        rc = clb_fail(r->err, COLIBRI_E_FORMAT, "no key before '='");
    else if (!*r->section)
        rc = clb_fail(r->err, COLIBRI_E_FORMAT, "'%.80s' stands before any [section]", key);
    else if ((rc = unquote(r, key, value, &copy, &plain)) == COLIBRI_OK)
        rc = r->fn(r->ctx, r->section, key, plain, r->line, r->err);
    free(copy);
    if (rc)
        located(r, rc);
    return rc == COLIBRI_OK;
}

int clb_ini_parse(const char *text, size_t n, const char *name, clb_ini_fn fn, void *ctx, clb_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, raise_limit);
    reader r = {.name = name, .p = text, .end = text + n, .fn = fn, .ctx = ctx, .err = err};
    const int line = ini_parse_stream(read_piece, &r, on_entry, &r);
    if (line == -2)
        return CLB_NOMEM(err, "reading an INI file");
    /* inih goes on after a line it does not understand: that line may come before our own first error. */
    if (line > 0 && (!r.rc || (unsigned)line < r.line))
        return clb_fail(err, COLIBRI_E_FORMAT, "%s:%d: neither [section] nor key = value", name, line);
    return r.rc;
}
