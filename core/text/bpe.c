/* Byte-level byte-pair encoding, and its sibling on raw UTF-8 (Gemma 4). */
#include <string.h>

#include "text/merge.h"
#include "text/utf8.h"

int clb_push_bytes(const clb_vocab *v, const char *p, size_t n, clb_tokens *out, clb_error *err)
{
    bool all = true;
    for (size_t i = 0; i < n; i++)
        all &= v->byte_id[(uint8_t)p[i]] != CLB_TOKEN_NONE;
    if (!all) /* the vocabulary cannot say it */
        return v->unk != CLB_TOKEN_NONE ? clb_tokens_push(out, v->unk, err) : COLIBRI_OK;
    for (size_t i = 0; i < n; i++)
        CLB_TRY(clb_tokens_push(out, v->byte_id[(uint8_t)p[i]], err));
    return COLIBRI_OK;
}

static bool ranked(const clb_vocab *v, const char *text, const clb_symbol *left, const clb_symbol *right, double *order,
                   uint32_t *result)
{
    (void)text;
    const clb_merge *m = clb_merges_find(&v->merges, left->id, right->id);
    if (!m)
        return false;
    *order = m->rank;
    *result = m->result;
    return true;
}

/* Words of a few characters, which is most of them: looking at every pair beats keeping a heap. */
#define SHORT 24

static int merge_short(const clb_vocab *v, clb_symbol *s, size_t n)
{
    const clb_merge *pair[SHORT];
    for (size_t i = 0; i + 1 < n; i++)
        pair[i] = clb_merges_find(&v->merges, s[i].id, s[i + 1].id);
    while (n > 1) {
        size_t best = n;
        for (size_t i = 0; i + 1 < n; i++)
            if (pair[i] && (best == n || pair[i]->rank < pair[best]->rank))
                best = i;
        if (best == n)
            break;
        s[best].len += s[best + 1].len;
        s[best].id = pair[best]->result;
        n--;
        memmove(&s[best + 1], &s[best + 2], (n - best - 1) * sizeof *s);
        memmove(&pair[best], &pair[best + 1], (n - best - 1) * sizeof *pair);
        if (best > 0)
            pair[best - 1] = clb_merges_find(&v->merges, s[best - 1].id, s[best].id);
        if (best + 1 < n)
            pair[best] = clb_merges_find(&v->merges, s[best].id, s[best + 1].id);
    }
    return (int)n;
}

/* A symbol that is a merge half but no token comes out byte by byte, as llama.cpp does. */
static int push_symbol(const clb_vocab *v, const char *text, const clb_symbol *s, clb_tokens *out, clb_error *err)
{
    if (s->id < v->n)
        return clb_tokens_push(out, s->id, err);
    if (v->raw)
        return clb_push_bytes(v, text + s->begin, s->len, out, err);
    for (uint32_t i = 0; i < s->len; i++)
        CLB_TRY(clb_push_bytes(v, text + s->begin + i, 1, out, err));
    return COLIBRI_OK;
}

static size_t symbol_bytes(const clb_vocab *v, const char *p, size_t n)
{
    if (!v->raw)
        return 1;
    const size_t len = clb_utf8_decode(p, n, NULL);
    return len ? len : 1;
}

static bool only_newlines(const char *p, size_t n)
{
    while (n && p[n - 1] == '\n')
        n--;
    return n == 0;
}

static int word(const clb_vocab *v, clb_merger *m, const char *p, size_t n, clb_tokens *out, clb_error *err)
{
    if (v->ignore_merges || (v->raw && only_newlines(p, n))) {
        const uint32_t id = clb_symtab_find(&v->syms, p, n);
        if (id < v->n)
            return clb_tokens_push(out, id, err);
    }
    m->n = 0;
    for (size_t i = 0; i < n;) {
        const size_t len = symbol_bytes(v, p + i, n - i);
        const uint32_t id = len == 1 && !v->raw ? v->byte_sym[(uint8_t)p[i]] : clb_symtab_find(&v->syms, p + i, len);
        CLB_TRY(clb_merger_add(m, (uint32_t)i, (uint32_t)len, id, err));
        i += len;
    }
    if (m->n <= SHORT)
        m->n = (size_t)merge_short(v, m->symbols, m->n);
    else
        CLB_TRY(clb_merger_run(m, v, p, ranked, err));
    for (size_t i = 0; i < m->n; i++)
        if (m->symbols[i].len)
            CLB_TRY(push_symbol(v, p, &m->symbols[i], out, err));
    return COLIBRI_OK;
}

static int words(const clb_vocab *v, const char *text, size_t n, clb_tokens *out, clb_error *err)
{
    clb_pieces pieces = {0};
    clb_merger m = {0};
    int rc = COLIBRI_OK;
    CLB_GO(clb_pretok_split(v->pretok, text, n, &pieces, err));
    size_t begin = 0;
    for (size_t i = 0; i < pieces.n; i++)
        for (size_t len; begin < pieces.end[i]; begin += len) {
            len = pieces.end[i] - begin;
            if (v->raw)
                len = clb_spaced_word(v, text + begin, len);
            CLB_GO(word(v, &m, text + begin, len, out, err));
        }
done:
    clb_merger_free(&m);
    clb_pieces_free(&pieces);
    return rc;
}

int clb_bpe_tokenize(const clb_vocab *v, const char *text, size_t n, clb_tokens *out, clb_error *err)
{
    if (!v->raw)
        return words(v, text, n, out, err);
    clb_buf escaped = {0};
    int rc = COLIBRI_OK;
    CLB_GO(clb_escape_spaces(text, n, false, &escaped, err));
    CLB_GO(words(v, escaped.data, escaped.n, out, err));
done:
    clb_buf_free(&escaped);
    return rc;
}
