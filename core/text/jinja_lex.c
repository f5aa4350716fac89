/* Tokens of a Jinja template, with trim_blocks and lstrip_blocks. */
#include <string.h>

#include "text/jinja_impl.h"
#include "text/utf8.h"

typedef struct lexer {
    clb_jarena *arena;
    const char *p, *begin, *end;
    uint32_t line;
    bool line_start; /* the last token ended with a newline */
    clb_jtoken *tokens;
    size_t n, cap;
    clb_error *err;
} lexer;

static int fail(const lexer *l, const char *what)
{
    return clb_fail(l->err, COLIBRI_E_UNSUPPORTED, "line %u: %s", l->line, what);
}

static int push(lexer *l, enum clb_jtoken_type type, const char *p, size_t n)
{
    if (l->n == l->cap) {
        const size_t cap = l->cap ? l->cap * 2 : 256;
        void *grown;
        CLB_TRY(clb_jalloc(l->arena, cap * sizeof *l->tokens, &grown, l->err));
        if (l->n)
            memcpy(grown, l->tokens, l->n * sizeof *l->tokens);
        l->tokens = grown;
        l->cap = cap;
    }
    l->tokens[l->n++] = (clb_jtoken){type, l->line, {p, n}};
    return COLIBRI_OK;
}

static bool at(const lexer *l, const char *s)
{
    return (size_t)(l->end - l->p) >= strlen(s) && memcmp(l->p, s, strlen(s)) == 0;
}

static bool white(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void advance(lexer *l, size_t n)
{
    for (; n; n--)
        l->line += *l->p++ == '\n';
}

/* Behind a tag: "-" eats all white space, a block or comment eats one newline unless "+" forbids it. */
static void after_tag(lexer *l, bool strip, bool keep, bool trim)
{
    l->line_start = false;
    if (strip)
        while (l->p < l->end && white(*l->p)) {
            l->line_start = *l->p == '\n';
            advance(l, 1);
        }
    else if (trim && !keep && l->p < l->end && *l->p == '\n') {
        advance(l, 1);
        l->line_start = true;
    }
}

/* The text in front of a tag, without what the tag takes away. `sign` is what follows "{%": '-', '+' or other. */
static int text_before(lexer *l, const char *from, const char *to, char sign, bool block)
{
    if (sign == '-') {
        while (to > from && white(to[-1]))
            to--;
    } else if (block && sign != '+') {
        const char *line = to;
        while (line > from && line[-1] != '\n')
            line--;
        bool blank = line > from || l->line_start;
        for (const char *q = line; q < to; q++)
            blank = blank && white(*q);
        if (blank)
            to = line;
    }
    return to > from ? push(l, JT_TEXT, from, (size_t)(to - from)) : COLIBRI_OK;
}

static bool name_char(char c, bool first)
{
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (!first && c >= '0' && c <= '9');
}

static int hex(const char *p, size_t n, uint32_t *out)
{
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        const char c = p[i];
        const int d = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
        if (d < 0)
            return 0;
        *out = *out << 4 | (uint32_t)d;
    }
    return *out <= 0x10FFFF && (*out < 0xD800 || *out > 0xDFFF);
}

/* One escape at p (behind the backslash) of n bytes; returns how many were used, 0 if it stands for itself. */
static size_t escape(const char *p, size_t n, char out[4], size_t *out_n)
{
    static const char plain[] = "n\nt\tr\r\\\\''\"\"a\ab\bf\fv\v0\0";
    uint32_t cp;
    *out_n = 1;
    for (size_t i = 0; i + 1 < sizeof plain; i += 2)
        if (*p == plain[i]) {
            out[0] = plain[i + 1];
            return 1;
        }
    const size_t digits = *p == 'x' ? 2 : *p == 'u' ? 4 : *p == 'U' ? 8 : 0;
    if (digits && n > digits && hex(p + 1, digits, &cp)) {
        *out_n = clb_utf8_encode(cp, out);
        return digits + 1;
    }
    *out_n = 0;
    return *p == '\n' ? 1 : 0;
}

static int string(lexer *l)
{
    const char quote = *l->p;
    const char *q = l->p + 1;
    while (q < l->end && *q != quote)
        q += *q == '\\' && q + 1 < l->end ? 2 : 1;
    if (q >= l->end)
        return fail(l, "a string without an end");
    void *copy;
    CLB_TRY(clb_jalloc(l->arena, (size_t)(q - l->p), &copy, l->err));
    char *to = copy;
    for (const char *s = l->p + 1; s < q;) {
        char bytes[4];
        size_t n = 0, used = 0;
        if (*s == '\\' && (used = escape(s + 1, (size_t)(q - s - 1), bytes, &n)) > 0) {
            memcpy(to, bytes, n);
            to += n;
            s += 1 + used;
        } else {
            *to++ = *s++;
        }
    }
    CLB_TRY(push(l, JT_STRING, copy, (size_t)(to - (char *)copy)));
    advance(l, (size_t)(q + 1 - l->p));
    return COLIBRI_OK;
}

static int number(lexer *l)
{
    const char *q = l->p;
    bool is_float = false;
    while (q < l->end && ((*q >= '0' && *q <= '9') || *q == '_'))
        q++;
    /* behind a dot it is an index: list.1.0 */
    const bool index = l->n && l->tokens[l->n - 1].type == JT_OP && l->tokens[l->n - 1].s.p[0] == '.';
    if (!index && q + 1 < l->end && *q == '.' && q[1] >= '0' && q[1] <= '9') {
        is_float = true;
        for (q++; q < l->end && *q >= '0' && *q <= '9';)
            q++;
    }
    if (!index && q < l->end && (*q == 'e' || *q == 'E')) {
        const char *e = q + 1 + (q + 1 < l->end && (q[1] == '+' || q[1] == '-'));
        if (e < l->end && *e >= '0' && *e <= '9') {
            is_float = true;
            for (q = e; q < l->end && *q >= '0' && *q <= '9';)
                q++;
        }
    }
    CLB_TRY(push(l, is_float ? JT_FLOAT : JT_INT, l->p, (size_t)(q - l->p)));
    advance(l, (size_t)(q - l->p));
    return COLIBRI_OK;
}

static int operator(lexer *l)
{
    static const char *const ops[] = {"==", "!=", ">=", "<=", "//", "**", "+", "-", "/", "*", "%", "~", "[",
                                      "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (at(l, ops[i])) {
            CLB_TRY(push(l, JT_OP, ops[i], strlen(ops[i])));
            advance(l, strlen(ops[i]));
            return COLIBRI_OK;
        }
    return fail(l, "a character that is no part of an expression");
}

/* Inside {{ }} or {% %} up to and with its end. */
static int tag(lexer *l, bool block)
{
    size_t depth = 0; /* of brackets: a }} may close two dicts */
    const char *const close = block ? "%}" : "}}";
    for (;;) {
        while (l->p < l->end && white(*l->p))
            advance(l, 1);
        if (l->p >= l->end)
            return fail(l, block ? "{% without %}" : "{{ without }}");
        const bool minus = *l->p == '-', plus = *l->p == '+' && block;
        if (depth == 0 && ((size_t)(l->end - l->p) > (minus || plus) + 1u) &&
            memcmp(l->p + (minus || plus), close, 2) == 0) {
            CLB_TRY(push(l, block ? JT_BLOCK_END : JT_VAR_END, l->p, 2));
            advance(l, 2u + (minus || plus));
            after_tag(l, minus, plus, block);
            return COLIBRI_OK;
        }
        const char c = *l->p;
        if (c == '"' || c == '\'') {
            CLB_TRY(string(l));
        } else if (c >= '0' && c <= '9') {
            CLB_TRY(number(l));
        } else if (name_char(c, true)) {
            const char *q = l->p;
            while (q < l->end && name_char(*q, false))
                q++;
            CLB_TRY(push(l, JT_NAME, l->p, (size_t)(q - l->p)));
            advance(l, (size_t)(q - l->p));
        } else {
            if (strchr("([{", c))
                depth++;
            else if (strchr(")]}", c))
                depth -= depth > 0;
            CLB_TRY(operator(l));
        }
    }
}

static int comment(lexer *l)
{
    const char *q = memmem(l->p, (size_t)(l->end - l->p), "#}", 2);
    if (!q)
        return fail(l, "{# without #}");
    const bool minus = q[-1] == '-', plus = q[-1] == '+';
    advance(l, (size_t)(q + 2 - l->p));
    after_tag(l, minus, plus, true);
    return COLIBRI_OK;
}

/* "{% raw %}": returns with l->p behind "{% endraw %}", or does nothing if the tag at hand is another one. */
static int raw(lexer *l, bool *was)
{
    const char *q = l->p + 2 + (l->p[2] == '-' || l->p[2] == '+');
    while (q < l->end && white(*q))
        q++;
    *was = l->end - q > 3 && memcmp(q, "raw", 3) == 0 && !name_char(q[3], false);
    if (!*was)
        return COLIBRI_OK;
    const char *close = memmem(q, (size_t)(l->end - q), "%}", 2);
    if (!close)
        return fail(l, "{% raw without %}");
    const bool minus = close[-1] == '-';
    advance(l, (size_t)(close + 2 - l->p));
    after_tag(l, minus, close[-1] == '+', true);
    const char *from = l->p;
    for (const char *e = from; (e = memmem(e, (size_t)(l->end - e), "{%", 2)); e += 2) {
        const char *name = e + 2 + (e[2] == '-' || e[2] == '+');
        while (name < l->end && white(*name))
            name++;
        if (l->end - name < 6 || memcmp(name, "endraw", 6) != 0)
            continue;
        const char *end = memmem(name, (size_t)(l->end - name), "%}", 2);
        if (!end)
            break;
        CLB_TRY(text_before(l, from, e, e[2], true));
        advance(l, (size_t)(end + 2 - l->p));
        after_tag(l, end[-1] == '-', end[-1] == '+', true);
        return COLIBRI_OK;
    }
    return fail(l, "{% raw %} without {% endraw %}");
}

int clb_jlex(clb_jarena *a, clb_str source, clb_jtoken **out, clb_error *err)
{
    lexer l = {.arena = a,
               .p = source.p,
               .begin = source.p,
               .end = source.p + source.n,
               .line = 1,
               .line_start = true,
               .err = err};
    if (source.n && source.p[source.n - 1] == '\n')
        l.end--; /* one newline at the end of the file is not part of the template */
    while (l.p < l.end) {
        const char *q = l.p;
        while (q + 1 < l.end && !(q[0] == '{' && (q[1] == '{' || q[1] == '%' || q[1] == '#')))
            q++;
        if (q + 1 >= l.end) {
            CLB_TRY(push(&l, JT_TEXT, l.p, (size_t)(l.end - l.p)));
            break;
        }
        const bool block = q[1] != '{';
        const char sign = q + 2 < l.end ? q[2] : '\0';
        CLB_TRY(text_before(&l, l.p, q, sign, block));
        advance(&l, (size_t)(q - l.p));
        if (q[1] == '#') {
            advance(&l, 2);
            CLB_TRY(comment(&l));
            continue;
        }
        bool was_raw = false;
        if (q[1] == '%')
            CLB_TRY(raw(&l, &was_raw));
        if (was_raw)
            continue;
        CLB_TRY(push(&l, block ? JT_BLOCK_BEGIN : JT_VAR_BEGIN, q, 2));
        advance(&l, 2u + (sign == '-' || (block && sign == '+')));
        CLB_TRY(tag(&l, block));
    }
    CLB_TRY(push(&l, JT_END, l.end, 0));
    *out = l.tokens;
    return COLIBRI_OK;
}
