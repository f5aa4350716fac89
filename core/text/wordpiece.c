/* WordPiece ("bert"): normalise, cut at spaces and around punctuation and ideographs, then the longest token that fits,
 * again and again; a word that cannot be covered is one UNK.
 *
 * The rules are those of BERT's own tokenizer (github.com/google-research/bert, tokenization.py). GGUF files mark the
 * beginning of a word with U+2581 instead of continuations with "##". */
#include <string.h>
#include <utf8proc.h>

#include "text/utf8.h"
#include "text/vocab_impl.h"

#define MAX_WORD_CHARS 100 /* longer words are UNK, as in the original */

static bool ideograph(uint32_t c)
{
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B820 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

static bool white(uint32_t c, utf8proc_category_t cat)
{
    return c == '\t' || c == '\n' || c == '\r' || (cat >= UTF8PROC_CATEGORY_ZS && cat <= UTF8PROC_CATEGORY_ZP);
}

static bool other(utf8proc_category_t cat)
{
    return cat == UTF8PROC_CATEGORY_CC || cat == UTF8PROC_CATEGORY_CF || cat == UTF8PROC_CATEGORY_CN ||
           cat == UTF8PROC_CATEGORY_CO || cat == UTF8PROC_CATEGORY_CS;
}

static bool punctuation(uint32_t c, utf8proc_category_t cat)
{
    if (c < 0x80)
        return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
    return cat >= UTF8PROC_CATEGORY_PC && cat <= UTF8PROC_CATEGORY_PO;
}

/* A word in normal form, with U+2581 in front. */
typedef struct word {
    clb_buf text;
    size_t chars;
} word;

static int flush(const clb_vocab *v, word *w, clb_tokens *out, clb_error *err)
{
    if (w->chars == 0)
        return COLIBRI_OK;
    const size_t first = out->n;
    bool covered = w->chars <= MAX_WORD_CHARS;
    for (size_t i = 0; covered && i < w->text.n;) {
        size_t len = w->text.n - i < v->max_sym ? w->text.n - i : v->max_sym;
        uint32_t id = CLB_SYM_NONE;
        while (len && (id = clb_symtab_find(&v->syms, w->text.data + i, len)) == CLB_SYM_NONE)
            len--;
        covered = id != CLB_SYM_NONE;
        if (covered)
            CLB_TRY(clb_tokens_push(out, id, err));
        i += len;
    }
    w->text.n = w->chars = 0;
    if (covered)
        return COLIBRI_OK;
    out->n = first;
    return v->unk != CLB_TOKEN_NONE ? clb_tokens_push(out, v->unk, err) : COLIBRI_OK;
}

static int add_char(word *w, uint32_t c, clb_error *err)
{
    char utf8[4];
    if (w->chars++ == 0)
        CLB_TRY(clb_buf_append(&w->text, CLB_SPM_SPACE, 3, err));
    return clb_buf_append(&w->text, utf8, clb_utf8_encode(c, utf8), err);
}

/* One character that normalisation left. */
static int feed(const clb_vocab *v, word *w, uint32_t c, clb_tokens *out, clb_error *err)
{
    const utf8proc_category_t cat = utf8proc_category((utf8proc_int32_t)c);
    if (white(c, cat))
        return flush(v, w, out, err);
    if (c == 0 || c == 0xFFFD || other(cat) || (v->strip_accents && cat == UTF8PROC_CATEGORY_MN))
        return COLIBRI_OK;
    const bool alone = punctuation(c, cat) || ideograph(c);
    if (alone)
        CLB_TRY(flush(v, w, out, err));
    CLB_TRY(add_char(w, v->lowercase ? (uint32_t)utf8proc_tolower((utf8proc_int32_t)c) : c, err));
    return alone ? flush(v, w, out, err) : COLIBRI_OK;
}

int clb_wpm_tokenize(const clb_vocab *v, const char *text, size_t n, clb_tokens *out, clb_error *err)
{
    word w = {0};
    int rc = COLIBRI_OK;
    for (size_t i = 0; i < n;) {
        uint32_t c = 0xFFFD;
        const size_t len = clb_utf8_decode(text + i, n - i, &c);
        i += len ? len : 1;
        utf8proc_int32_t parts[32];
        int last = 0;
        utf8proc_ssize_t k = 1;
        parts[0] = (utf8proc_int32_t)c;
        if (v->strip_accents)
            k = utf8proc_decompose_char((utf8proc_int32_t)c, parts, 32, UTF8PROC_DECOMPOSE, &last);
        for (utf8proc_ssize_t j = 0; j < k && j < 32; j++)
            CLB_GO(feed(v, &w, (uint32_t)parts[j], out, err));
    }
    CLB_GO(flush(v, &w, out, err));
done:
    clb_buf_free(&w.text);
    return rc;
}
