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

int clb_spm_tokenize(const clb_vocab *v, const char *text, size_t n, bool prefix, clb_tokens *out, clb_error *err)
{
    clb_buf escaped = {0};
    clb_merger m = {0};
    int rc = COLIBRI_OK;
    CLB_GO(clb_escape_spaces(text, n, prefix, &escaped, err));
    for (size_t i = 0; i < escaped.n;) {
        const size_t found = clb_utf8_decode(escaped.data + i, escaped.n - i, NULL), len = found ? found : 1;
        const uint32_t id = clb_symtab_find(&v->syms, escaped.data + i, len);
        CLB_GO(clb_merger_add(&m, (uint32_t)i, (uint32_t)len, id, err));
        i += len;
    }
    CLB_GO(clb_merger_run(&m, v, escaped.data, scored, err));
    for (size_t i = 0; i < m.n; i++) {
        const clb_symbol *s = &m.symbols[i];
        if (s->len == 0)
            continue;
        CLB_GO(s->id != CLB_SYM_NONE ? clb_tokens_push(out, s->id, err)
                                     : clb_push_bytes(v, escaped.data + s->begin, s->len, out, err));
    }
done:
    clb_merger_free(&m);
    clb_buf_free(&escaped);
    return rc;
}
