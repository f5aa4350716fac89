#include "text/pretok.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/str.h"
#include "text/utf8.h"

struct clb_pretok {
    const clb_pretok_family *family;
    size_t n;
    pcre2_code *code[CLB_PRETOK_MAX_PASSES];
};

/* PCRE2's \s also takes U+180E; the tokenizers mean the White_Space property. */
#define WHITE                                                                                                          \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

static int expand(const char *regex, clb_buf *out, clb_error *err)
{
    int in_class = 0;
    for (const char *p = regex; *p; p++) {
        if (*p == '\\') {
            p++;
            if (*p == 's')
                CLB_TRY(clb_buf_printf(out, err, in_class ? "%s" : "[%s]", WHITE));
            else if (*p == 'S' && !in_class)
                CLB_TRY(clb_buf_printf(out, err, "[^%s]", WHITE));
            else
                CLB_TRY(clb_buf_append(out, p - 1, 2, err));
            continue;
        }
        if (*p == '[')
            in_class = 1;
        else if (*p == ']')
            in_class = 0;
        CLB_TRY(clb_buf_append(out, p, 1, err));
    }
    return COLIBRI_OK;
}

static int compile(const char *regex, pcre2_code **out, clb_error *err)
{
    clb_buf full = {0};
    int rc = COLIBRI_OK, code;
    size_t at;
    CLB_GO(expand(regex, &full, err));
    *out = pcre2_compile((PCRE2_SPTR)full.data, full.n, PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &code, &at, NULL);
    if (!*out) {
        PCRE2_UCHAR text[128];
        pcre2_get_error_message(code, text, sizeof text);
        CLB_GO(clb_fail(err, code == PCRE2_ERROR_HEAP_FAILED ? COLIBRI_E_NOMEM : COLIBRI_E_INTERNAL,
                        "pre-tokenizer expression at %zu: %s", at, (const char *)text));
    }
    /* Where code may not be generated (no support, W^X policy) the interpreter does the same, slower. */
    (void)pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE);
done:
    clb_buf_free(&full);
    return rc;
}

int clb_pretok_compile(const clb_pretok_family *family, clb_pretok **out, clb_error *err)
{
    clb_pretok *p = calloc(1, sizeof *p);
    if (!p)
        return CLB_NOMEM(err, "pre-tokenizer");
    p->family = family;
    for (; family->pass[p->n].kind != CLB_PASS_END; p->n++) {
        assert(p->n < CLB_PRETOK_MAX_PASSES);
        const int rc = compile(family->pass[p->n].regex, &p->code[p->n], err);
        if (rc) {
            clb_pretok_free(p);
            return rc;
        }
    }
    *out = p;
    return COLIBRI_OK;
}

void clb_pretok_free(clb_pretok *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->n; i++)
        pcre2_code_free(p->code[i]);
    free(p);
}

void clb_pieces_free(clb_pieces *p)
{
    free(p->end);
    *p = (clb_pieces){0};
}

static int push(clb_pieces *p, size_t end, clb_error *err)
{
    if (p->n == p->cap) {
        const size_t cap = p->cap ? p->cap * 2 : 64;
        size_t *grown = realloc(p->end, cap * sizeof *grown);
        if (!grown)
            return CLB_NOMEM(err, "pre-tokenizer pieces");
        p->end = grown;
        p->cap = cap;
    }
    p->end[p->n++] = end;
    return COLIBRI_OK;
}

/* What one call needs: match data and a stack may not be shared between threads. */
typedef struct matcher {
    pcre2_match_data *data;
    pcre2_match_context *ctx;
    pcre2_jit_stack *stack;
} matcher;

static void matcher_free(matcher *m)
{
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->ctx);
    pcre2_jit_stack_free(m->stack);
}

static int matcher_init(matcher *m, clb_error *err)
{
    m->data = pcre2_match_data_create(1, NULL);
    m->ctx = pcre2_match_context_create(NULL);
    m->stack = pcre2_jit_stack_create((size_t)32 << 10, (size_t)4 << 20, NULL); /* NULL where there is no JIT */
    if (!m->data || !m->ctx)
        return CLB_NOMEM(err, "pre-tokenizer");
    /* The expressions are ours and do linear work; a limit would only cut off long texts. */
    pcre2_set_match_limit(m->ctx, UINT32_MAX);
    pcre2_set_heap_limit(m->ctx, UINT32_MAX);
    if (m->stack)
        pcre2_jit_stack_assign(m->ctx, NULL, m->stack);
    return COLIBRI_OK;
}

/* Next match in text[0..n) from `at`; *found = 0 if there is none. */
static int next_match(const pcre2_code *code, matcher *m, const char *text, size_t n, size_t at, size_t *begin,
                      size_t *end, int *found, clb_error *err)
{
    int rc = pcre2_match(code, (PCRE2_SPTR)text, n, at, PCRE2_NO_UTF_CHECK, m->data, m->ctx);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, (PCRE2_SPTR)text, n, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m->data, m->ctx);
    *found = rc >= 0;
    if (rc == PCRE2_ERROR_NOMATCH)
        return COLIBRI_OK;
    if (rc == PCRE2_ERROR_NOMEMORY || rc == PCRE2_ERROR_HEAPLIMIT)
        return CLB_NOMEM(err, "matching the pre-tokenizer");
    if (rc < 0)
        return clb_fail(err, rc == PCRE2_ERROR_NOMEMORY ? COLIBRI_E_NOMEM : COLIBRI_E_INTERNAL,
                        "pre-tokenizer match failed at byte %zu (PCRE2 error %d)", at, rc);
    const size_t *o = pcre2_get_ovector_pointer(m->data);
    *begin = o[0];
    *end = o[1];
    return COLIBRI_OK;
}

/* A run of digits [begin, end) in threes from the right; digits have any UTF-8 length. */
static int push_threes(const char *text, size_t begin, size_t end, size_t base, clb_pieces *out, clb_error *err)
{
    size_t digits = 0;
    for (size_t i = begin; i < end; i++)
        digits += (text[i] & 0xC0) != 0x80;
    size_t seen = 0;
    for (size_t i = begin; i < end; i++)
        if ((text[i] & 0xC0) != 0x80) {
            if (i > begin && (digits - seen) % 3 == 0)
                CLB_TRY(push(out, base + i, err));
            seen++;
        }
    return push(out, base + end, err);
}

/* One pass over one piece text[0..n), which begins at `base` in the whole. */
static int cut(const clb_pretok *p, size_t pass, matcher *m, const char *text, size_t n, size_t base, clb_pieces *out,
               clb_error *err)
{
    size_t done = 0, at = 0;
    while (at < n) {
        size_t begin = 0, end = 0;
        int found;
        CLB_TRY(next_match(p->code[pass], m, text, n, at, &begin, &end, &found, err));
        if (!found)
            break;
        if (end <= begin) /* would never end */
            return clb_fail(err, COLIBRI_E_INTERNAL, "pre-tokenizer %s matches nothing", p->family->name);
        if (begin > done)
            CLB_TRY(push(out, base + begin, err));
        if (p->family->pass[pass].kind == CLB_PASS_RIGHT3)
            CLB_TRY(push_threes(text, begin, end, base, out, err));
        else
            CLB_TRY(push(out, base + end, err));
        done = at = end;
    }
    return done < n ? push(out, base + n, err) : COLIBRI_OK;
}

/* All passes over valid UTF-8. */
static int split_valid(const clb_pretok *p, const char *text, size_t n, clb_pieces *out, clb_error *err)
{
    matcher m = {0};
    clb_pieces before = {0};
    int rc = COLIBRI_OK;
    CLB_GO(matcher_init(&m, err));
    CLB_GO(push(out, n, err));
    for (size_t pass = 0; pass < p->n; pass++) {
        const clb_pieces swap = before;
        before = *out;
        *out = swap;
        out->n = 0;
        size_t begin = 0;
        for (size_t i = 0; i < before.n; i++) {
            CLB_GO(cut(p, pass, &m, text + begin, before.end[i] - begin, begin, out, err));
            begin = before.end[i];
        }
    }
done:
    matcher_free(&m);
    clb_pieces_free(&before);
    return rc;
}

#define REPLACEMENT "\xEF\xBF\xBD"

/* Bytes that begin no valid sequence, and a copy of the text with U+FFFD in place of each. */
static int sanitize(const char *text, size_t n, size_t first_bad, clb_buf *copy, clb_pieces *bad, clb_error *err)
{
    CLB_TRY(clb_buf_append(copy, text, first_bad, err));
    for (size_t i = first_bad; i < n;) {
        const size_t len = clb_utf8_decode(text + i, n - i, NULL);
        if (len) {
            CLB_TRY(clb_buf_append(copy, text + i, len, err));
        } else {
            CLB_TRY(push(bad, copy->n, err));
            CLB_TRY(clb_buf_append(copy, REPLACEMENT, 3, err));
        }
        i += len ? len : 1;
    }
    return COLIBRI_OK;
}

int clb_pretok_split(const clb_pretok *p, const char *text, size_t n, clb_pieces *out, clb_error *err)
{
    out->n = 0;
    if (n == 0)
        return COLIBRI_OK;
    size_t valid = 0;
    while (valid < n) {
        const size_t len = clb_utf8_decode(text + valid, n - valid, NULL);
        if (!len)
            break;
        valid += len;
    }
    if (valid == n)
        return split_valid(p, text, n, out, err);

    clb_buf copy = {0};
    clb_pieces bad = {0};
    int rc = COLIBRI_OK;
    CLB_GO(sanitize(text, n, valid, &copy, &bad, err));
    CLB_GO(split_valid(p, copy.data, copy.n, out, err));
    for (size_t i = 0, k = 0; i < out->n; i++) { /* back to offsets of the original */
        while (k < bad.n && bad.end[k] < out->end[i])
            k++;
        out->end[i] -= 2 * k;
    }
done:
    clb_buf_free(&copy);
    clb_pieces_free(&bad);
    return rc;
}
