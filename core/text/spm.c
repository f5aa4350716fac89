/* SentencePiece models of the BPE kind ("llama"): the pair whose union has the best score is merged first. */
#include <string.h>

#include "text/merge.h"
#include "text/utf8.h"

int clb_escape_spaces(const char *text, size_t n, bool prefix, clb_buf *out, clb_error *err)
{
    if (prefix)
        CLB_TRY(clb_buf_append(out, CLB_SPM_SPACE, 3, err));
    size_t from = 0;
    for (size_t i = 0; i < n; i++)
        if (text[i] == ' ') {
            CLB_TRY(clb_buf_append(out, text + from, i - from, err));
            CLB_TRY(clb_buf_append(out, CLB_SPM_SPACE, 3, err));
            from = i + 1;
        }
    return clb_buf_append(out, text + from, n - from, err);
}

static bool scored(const clb_vocab *v, const char *text, const clb_symbol *left, const clb_symbol *right, double *order,
                   uint32_t *result)
{
    const uint32_t len = left->len + right->len;
    if (len > v->max_sym)
        return false;
    *result = clb_symtab_find(&v->syms, text + left->begin, len);
    if (*result == CLB_SYM_NONE)
        return false;
    *order = -(double)v->tokens[*result].score;
    return true;
}

static bool space_at(const char *p, size_t n)
{
    return n >= 3 && memcmp(p, CLB_SPM_SPACE, 3) == 0;
}

size_t clb_spaced_word(const clb_vocab *v, const char *text, size_t n)
{
    size_t i = 0;
    if (!v->words_apart)
        return n;
    while (space_at(text + i, n - i))
        i += 3;
    while (i < n) {
        const char *next = memchr(text + i, CLB_SPM_SPACE[0], n - i);
        i = next ? (size_t)(next - text) : n;
        if (space_at(text + i, n - i))
            break;
        i += i < n;
    }
    return i;
}

static int word(const clb_vocab *v, clb_merger *m, const char *p, size_t n, clb_tokens *out, clb_error *err)
{
    m->n = 0;
    for (size_t i = 0; i < n;) {
        const size_t found = clb_utf8_decode(p + i, n - i, NULL), len = found ? found : 1;
        CLB_TRY(clb_merger_add(m, (uint32_t)i, (uint32_t)len, clb_symtab_find(&v->syms, p + i, len), err));
        i += len;
    }
    CLB_TRY(clb_merger_run(m, v, p, scored, err));
    for (size_t i = 0; i < m->n; i++) {
        const clb_symbol *s = &m->symbols[i];
        if (s->len)
            CLB_TRY(s->id != CLB_SYM_NONE ? clb_tokens_push(out, s->id, err)
                                          : clb_push_bytes(v, p + s->begin, s->len, out, err));
    }
    return COLIBRI_OK;
}

int clb_spm_tokenize(const clb_vocab *v, const char *text, size_t n, bool prefix, clb_tokens *out, clb_error *err)
{
    clb_buf escaped = {0};
    clb_merger m = {0};
    int rc = COLIBRI_OK;
    CLB_GO(clb_escape_spaces(text, n, prefix, &escaped, err));
    for (size_t i = 0, len; i < escaped.n; i += len) {
        len = clb_spaced_word(v, escaped.data + i, escaped.n - i);
        CLB_GO(word(v, &m, escaped.data + i, len, out, err));
    }
done:
    clb_merger_free(&m);
    clb_buf_free(&escaped);
    return rc;
}
