/* Text -> ids: special tokens first, then the fragments between them through the vocabulary's own method. */
#include <stdlib.h>

#include "text/vocab_impl.h"

void clb_tokens_free(clb_tokens *t)
{
    free(t->ids);
    *t = (clb_tokens){0};
}

int clb_tokens_push(clb_tokens *t, uint32_t id, clb_error *err)
{
    if (t->n == t->cap) {
        const size_t cap = t->cap ? t->cap * 2 : 64;
        uint32_t *grown = cap > SIZE_MAX / sizeof *grown ? NULL : realloc(t->ids, cap * sizeof *grown);
        if (!grown)
            return CLB_NOMEM(err, "token list");
        t->ids = grown;
        t->cap = cap;
    }
    t->ids[t->n++] = id;
    return COLIBRI_OK;
}

/* Text between special tokens, or between one and an end: the places where a space prefix belongs. */
static int fragment(const clb_vocab *v, const char *text, size_t n, clb_tokens *out, clb_error *err)
{
    if (n == 0)
        return COLIBRI_OK;
    switch (v->kind) {
    case CLB_VOCAB_SPM:
        return clb_spm_tokenize(v, text, n, v->add_space_prefix, out, err);
    case CLB_VOCAB_BPE:
        return clb_bpe_tokenize(v, text, n, out, err);
    default:
        return clb_wpm_tokenize(v, text, n, out, err);
    }
}

static int fragments(const clb_vocab *v, const char *text, const uint8_t *taint, size_t n, bool all, clb_tokens *out,
                     clb_error *err)
{
    if (n > UINT32_MAX / 4) /* symbols count in 32 bits, and escaping makes three bytes of one */
        return clb_fail(err, COLIBRI_E_LIMIT, "text of %zu bytes is too long to tokenize at once", n);
    size_t done = 0, begin, end;
    uint32_t id;
    while (clb_specials_next(v, text, n, done, all, taint, &begin, &end, &id)) {
        CLB_TRY(fragment(v, text + done, begin - done, out, err));
        CLB_TRY(clb_tokens_push(out, id, err));
        done = end;
    }
    return fragment(v, text + done, n - done, out, err);
}

int clb_tokenize_marked(const clb_vocab *v, const char *text, const uint8_t *taint, size_t n, clb_tokens *out,
                        clb_error *err)
{
    return fragments(v, text, taint, n, true, out, err);
}

int clb_tokenize(const clb_vocab *v, const char *text, size_t n, uint32_t flags, clb_tokens *out, clb_error *err)
{
    const bool ends = flags & CLB_TOKENIZE_BOS;
    if (ends && v->add_bos)
        CLB_TRY(clb_tokens_push(out, v->bos, err));
    CLB_TRY(fragments(v, text, NULL, n, flags & CLB_TOKENIZE_SPECIAL, out, err));
    if (ends && v->add_sep)
        CLB_TRY(clb_tokens_push(out, v->sep, err));
    if (ends && v->add_eos)
        CLB_TRY(clb_tokens_push(out, v->eos, err));
    return COLIBRI_OK;
}

bool clb_tokens_double_bos(const clb_vocab *v, const clb_tokens *t)
{
    return v->bos != CLB_TOKEN_NONE && t->n >= 2 && t->ids[0] == v->bos && t->ids[1] == v->bos;
}
