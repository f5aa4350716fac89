/* tokenizer.ggml.merges: "left right" in the order of rank. */
#include <stdlib.h>
#include <string.h>

#include "base/escape.h"
#include "text/utf8.h"
#include "text/vocab_impl.h"

#define KEY "tokenizer.ggml.merges"

/* One merge: the lookup strings of its halves, side by side. */
typedef struct pair {
    char text[2 * CLB_TOKEN_MAX_BYTES];
    uint32_t left, n; /* bytes of the left half, of both */
    bool usable;      /* false: a character outside the alphabet, so that no word can hold it */
} pair;

static int read_pair(const clb_vocab *v, const clb_gguf_value *list, uint64_t i, pair *p, clb_error *err)
{
    clb_str s;
    if (clb_gguf_item_str(list, i, &s, err))
        return clb_context(err, KEY);
    /* The first character belongs to the left half even if it is a space. */
    const char *space = s.n > 2 ? memchr(s.p + 1, ' ', s.n - 2) : NULL;
    if (!space) {
        char shown[48];
        return clb_fail(err, COLIBRI_E_FORMAT, KEY "[%llu] is not a pair: \"%s\"", (unsigned long long)i,
                        clb_escape(s, shown, sizeof shown));
    }
    const size_t left = (size_t)(space - s.p), right = s.n - left - 1;
    if (left > CLB_TOKEN_MAX_BYTES || right > CLB_TOKEN_MAX_BYTES)
        return clb_fail(err, COLIBRI_E_LIMIT, KEY "[%llu] is longer than %d bytes", (unsigned long long)i,
                        CLB_TOKEN_MAX_BYTES);
    if (v->raw) {
        memcpy(p->text, s.p, left);
        memcpy(p->text + left, space + 1, right);
        p->left = (uint32_t)left;
        p->n = (uint32_t)(left + right);
        p->usable = true;
        return COLIBRI_OK;
    }
    uint32_t right_n;
    p->usable = clb_alphabet_decode(s.p, left, p->text, &p->left);
    p->usable &= clb_alphabet_decode(space + 1, right, p->text + p->left, &right_n);
    p->n = p->left + right_n;
    return COLIBRI_OK;
}

/* Id of a string, made up if no token has it. */
static uint32_t intern(clb_vocab *v, const char *p, size_t n, size_t *used)
{
    const uint32_t id = clb_symtab_find(&v->syms, p, n);
    if (id != CLB_SYM_NONE)
        return id;
    char *copy = memcpy(v->virtuals + *used, p, n);
    *used += n;
    return clb_symtab_add(&v->syms, (clb_str){copy, n}, 0);
}

int clb_vocab_read_merges(clb_vocab *v, const clb_gguf *g, uint64_t seed, clb_error *err)
{
    const clb_gguf_value *list = clb_gguf_find(g, KEY);
    if (!list || list->type != CLB_GGUF_ARRAY)
        return clb_fail(err, list ? COLIBRI_E_FORMAT : COLIBRI_E_NOT_FOUND, KEY " is %s",
                        list ? "not an array" : "missing");
    const uint64_t n = list->as.arr.n;
    if (n > INT32_MAX / 4)
        return clb_fail(err, COLIBRI_E_LIMIT, "%llu merges", (unsigned long long)n);
    pair *p = malloc(sizeof *p);
    if (!p)
        return CLB_NOMEM(err, KEY);

    /* Halves and results are nearly always tokens; room for those that are not is counted first. */
    int rc = COLIBRI_OK;
    uint32_t missing = 0;
    size_t missing_bytes = 0, used = 0;
    for (uint64_t i = 0; i < n; i++) {
        CLB_GO(read_pair(v, list, i, p, err));
        const struct {
            uint32_t at, n;
        } part[3] = {{0, p->left}, {p->left, p->n - p->left}, {0, p->n}};
        for (size_t k = 0; k < 3 && p->usable; k++)
            if (clb_symtab_find(&v->syms, p->text + part[k].at, part[k].n) == CLB_SYM_NONE) {
                missing++;
                missing_bytes += part[k].n;
            }
    }
    if (missing) {
        CLB_GO(clb_symtab_grow(&v->syms, missing, err));
        v->virtuals = malloc(missing_bytes);
        if (!v->virtuals)
            CLB_GO(CLB_NOMEM(err, KEY));
    }
    CLB_GO(clb_merges_init(&v->merges, (uint32_t)n, seed, err));
    for (uint64_t i = 0; i < n; i++) {
        CLB_GO(read_pair(v, list, i, p, err));
        if (!p->usable)
            continue;
        const uint32_t left = intern(v, p->text, p->left, &used);
        const uint32_t right = intern(v, p->text + p->left, p->n - p->left, &used);
        clb_merges_add(&v->merges, left, right, (uint32_t)i, intern(v, p->text, p->n, &used));
    }
done:
    free(p);
    return rc;
}
