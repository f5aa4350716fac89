/* Loading a vocabulary from a GGUF's tokenizer.* keys, all of them untrusted. */
#include "text/vocab.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/escape.h"
#include "text/utf8.h"
#include "text/vocab_impl.h"

#define KEY(name) "tokenizer.ggml." name

void clb_vocab_free(clb_vocab *v)
{
    if (!v)
        return;
    free(v->model);
    free(v->pre);
    free(v->tokens);
    free(v->texts);
    free(v->pieces);
    free(v->virtuals);
    clb_symtab_free(&v->syms);
    clb_merges_free(&v->merges);
    clb_specials_free(&v->specials);
    clb_pretok_free(v->pretok);
    free(v);
}

static int copy_str(const clb_gguf *g, const char *key, const char *absent, char **out, clb_error *err)
{
    clb_str s = {absent, absent ? strlen(absent) : 0};
    const int rc = clb_gguf_get_str(g, key, &s, err);
    if (rc && (rc != COLIBRI_E_NOT_FOUND || !absent))
        return rc;
    *out = strndup(s.p, s.n);
    return *out ? COLIBRI_OK : CLB_NOMEM(err, key);
}

static int get_array(const clb_gguf *g, const char *key, const clb_gguf_value **out, clb_error *err)
{
    *out = clb_gguf_find(g, key);
    if (*out && (*out)->type != CLB_GGUF_ARRAY)
        return clb_fail(err, COLIBRI_E_FORMAT, "%s is not an array", key);
    return COLIBRI_OK;
}

/* Names the nearest value and one of each family: all of them would fill the screen. */
static int unknown_pre(const char *pre, clb_error *err)
{
    const char *names[256];
    char shown[64];
    size_t n = 0;
    for (; n < 256 && clb_pretok_names[n].name; n++)
        names[n] = clb_pretok_names[n].name;
    const long nearest = clb_nearest(pre, names, n);
    clb_buf list = {0};
    for (size_t i = 0; i < n; i++)
        if (i == 0 || clb_pretok_names[i].family != clb_pretok_names[i - 1].family)
            if (clb_buf_printf(&list, NULL, "%s%s", i ? ", " : "", names[i]))
                break;
    const int rc =
        clb_fail(err, COLIBRI_E_UNSUPPORTED, "unknown pre-tokenizer \"%s\" (" KEY("pre") ")%s%s%s; known families: %s",
                 clb_escape((clb_str){pre, strlen(pre)}, shown, sizeof shown), nearest >= 0 ? ", did you mean \"" : "",
                 nearest >= 0 ? names[nearest] : "", nearest >= 0 ? "\"?" : "", list.data ? list.data : "");
    clb_buf_free(&list);
    return rc;
}

/* What model and pre-tokenizer decide before the file's own keys are asked. */
static int set_kind(clb_vocab *v, const clb_gguf *g, clb_error *err)
{
    static const char *const known[] = {"llama", "gpt2", "gemma4", "bert"};
    CLB_TRY(copy_str(g, KEY("model"), NULL, &v->model, err));
    if (strcmp(v->model, "llama") == 0) {
        v->kind = CLB_VOCAB_SPM;
        v->add_bos = v->add_space_prefix = true;
        return copy_str(g, KEY("pre"), "default", &v->pre, err);
    }
    if (strcmp(v->model, "bert") == 0) {
        v->kind = CLB_VOCAB_WPM;
        v->add_bos = v->add_sep = v->lowercase = true;
        return copy_str(g, KEY("pre"), "default", &v->pre, err);
    }
    const bool gemma4 = strcmp(v->model, "gemma4") == 0;
    if (!gemma4 && strcmp(v->model, "gpt2") != 0) {
        char shown[64];
        const long i = clb_nearest(v->model, known, sizeof known / sizeof *known);
        return clb_fail(err, COLIBRI_E_UNSUPPORTED,
                        "unknown tokenizer \"%s\" (" KEY("model") ")%s%s%s; known: llama, gpt2, gemma4, bert",
                        clb_escape((clb_str){v->model, strlen(v->model)}, shown, sizeof shown),
                        i >= 0 ? ", did you mean \"" : "", i >= 0 ? known[i] : "", i >= 0 ? "\"?" : "");
    }
    v->kind = CLB_VOCAB_BPE;
    const int rc = copy_str(g, KEY("pre"), gemma4 ? "gemma4" : NULL, &v->pre, err);
    if (rc == COLIBRI_E_NOT_FOUND) /* guessing gives text that looks right and is not */
        return clb_fail(
            err, COLIBRI_E_UNSUPPORTED,
            "the file does not say how to split words (" KEY("pre") " is missing): convert the model again");
    CLB_TRY(rc);
    const clb_pretok_name *p = clb_pretok_find(gemma4 ? "gemma4" : v->pre);
    if (!p)
        return unknown_pre(v->pre, err);
    v->add_bos = p->flags & CLB_PRE_ADD_BOS;
    v->add_sep = p->flags & CLB_PRE_ADD_SEP;
    v->ignore_merges = p->flags & CLB_PRE_IGNORE_MERGES;
    v->raw = p->flags & CLB_PRE_RAW;
    return clb_pretok_compile(p->family, &v->pretok, err);
}

static int read_tokens(clb_vocab *v, const clb_gguf *g, clb_error *err)
{
    const clb_gguf_value *list, *scores, *types;
    CLB_TRY(get_array(g, KEY("tokens"), &list, err));
    CLB_TRY(get_array(g, KEY("scores"), &scores, err));
    CLB_TRY(get_array(g, KEY("token_type"), &types, err));
    if (!list)
        return clb_fail(err, COLIBRI_E_NOT_FOUND, KEY("tokens") " is missing: the file has no vocabulary");
    if (list->as.arr.n == 0 || list->as.arr.n > INT32_MAX / 4)
        return clb_fail(err, COLIBRI_E_FORMAT, "a vocabulary of %llu tokens", (unsigned long long)list->as.arr.n);
    v->n = (uint32_t)list->as.arr.n;
    if (scores && scores->as.arr.n != v->n)
        return clb_fail(err, COLIBRI_E_FORMAT, KEY("scores") " has %llu entries for %u tokens",
                        (unsigned long long)scores->as.arr.n, v->n);
    if (types && types->as.arr.n != v->n)
        return clb_fail(err, COLIBRI_E_FORMAT, KEY("token_type") " has %llu entries for %u tokens",
                        (unsigned long long)types->as.arr.n, v->n);
    if (!scores && v->kind == CLB_VOCAB_SPM)
        return clb_fail(err, COLIBRI_E_FORMAT, KEY("scores") " is missing: a \"llama\" vocabulary merges by score");

    v->tokens = calloc(v->n, sizeof *v->tokens);
    if (!v->tokens)
        return CLB_NOMEM(err, "vocabulary");
    uint64_t total = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        clb_str s;
        if (clb_gguf_item_str(list, i, &s, err))
            return clb_context(err, KEY("tokens"));
        if (s.n > CLB_TOKEN_MAX_BYTES)
            return clb_fail(err, COLIBRI_E_LIMIT, "token %u is %zu bytes long; at most %d", i, s.n,
                            CLB_TOKEN_MAX_BYTES);
        total += s.n;
    }
    if (total > INT32_MAX)
        return clb_fail(err, COLIBRI_E_LIMIT, "the vocabulary's texts are %llu bytes", (unsigned long long)total);
    v->texts = malloc(total + 1);
    v->pieces = malloc(2 * total + 1); /* index_tokens; no piece is longer than its text */
    if (!v->texts || !v->pieces)
        return CLB_NOMEM(err, "vocabulary texts");
    uint32_t at = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        clb_token *t = &v->tokens[i];
        clb_str s;
        double score = 0;
        int64_t type = CLB_TOKEN_NORMAL;
        if (clb_gguf_item_str(list, i, &s, err))
            return clb_context(err, KEY("tokens"));
        if (scores && clb_gguf_item_f64(scores, i, &score, err))
            return clb_context(err, KEY("scores"));
        if (types && clb_gguf_item_i64(types, i, &type, err))
            return clb_context(err, KEY("token_type"));
        if (isnan(score))
            return clb_fail(err, COLIBRI_E_FORMAT, KEY("scores") "[%u] is not a number", i);
        memcpy(v->texts + at, s.p, s.n);
        *t = (clb_token){.text = at, .text_n = (uint32_t)s.n, .score = (float)score};
        t->type = (uint8_t)(type >= CLB_TOKEN_NORMAL && type <= CLB_TOKEN_BYTE ? type : CLB_TOKEN_UNDEFINED);
        at += (uint32_t)s.n;
    }
    return COLIBRI_OK;
}

static int get_id(const clb_vocab *v, const clb_gguf *g, const char *key, uint32_t *id, clb_error *err)
{
    uint32_t found = CLB_TOKEN_NONE;
    CLB_TRY(clb_gguf_get_u32_or(g, key, *id < v->n ? *id : CLB_TOKEN_NONE, &found, err));
    if (found >= v->n && found != CLB_TOKEN_NONE)
        return clb_fail(err, COLIBRI_E_FORMAT, "%s is %u, outside the vocabulary of %u", key, found, v->n);
    *id = found;
    return COLIBRI_OK;
}

/* Ids and switches: the file's keys over the defaults of the model. */
static int set_ids(clb_vocab *v, const clb_gguf *g, clb_error *err)
{
    v->bos = v->eos = v->unk = v->sep = CLB_TOKEN_NONE;
    if (v->kind == CLB_VOCAB_SPM) {
        v->unk = 0;
        v->bos = 1;
        v->eos = 2;
    } else if (v->kind == CLB_VOCAB_WPM) {
        v->unk = 100;
        v->bos = 101;
        v->sep = 102;
    } else if (v->n > 11 && v->tokens[11].type == CLB_TOKEN_CONTROL) {
        v->bos = v->eos = 11; /* Falcon files without the keys */
    }
    CLB_TRY(get_id(v, g, KEY("bos_token_id"), &v->bos, err));
    CLB_TRY(get_id(v, g, KEY("eos_token_id"), &v->eos, err));
    CLB_TRY(get_id(v, g, KEY("unknown_token_id"), &v->unk, err));
    CLB_TRY(get_id(v, g, KEY("seperator_token_id"), &v->sep, err)); /* spelled like this in the format */
    CLB_TRY(clb_gguf_get_bool_or(g, KEY("add_bos_token"), v->add_bos, &v->add_bos, err));
    CLB_TRY(clb_gguf_get_bool_or(g, KEY("add_eos_token"), v->add_eos, &v->add_eos, err));
    CLB_TRY(clb_gguf_get_bool_or(g, KEY("add_sep_token"), v->add_sep, &v->add_sep, err));
    CLB_TRY(clb_gguf_get_bool_or(g, KEY("add_space_prefix"), v->add_space_prefix, &v->add_space_prefix, err));
    if (v->raw)
        v->add_bos = true; /* Gemma 4: early files say false, the model needs it */
    if (v->kind == CLB_VOCAB_WPM) {
        CLB_TRY(clb_gguf_get_bool_or(g, KEY("normalizer.lowercase"), v->lowercase, &v->lowercase, err));
        CLB_TRY(clb_gguf_get_bool_or(g, KEY("normalizer.strip_accents"), v->lowercase, &v->strip_accents, err));
    }
    v->add_bos &= v->bos != CLB_TOKEN_NONE;
    v->add_eos &= v->eos != CLB_TOKEN_NONE;
    v->add_sep &= v->sep != CLB_TOKEN_NONE;
    return COLIBRI_OK;
}

/* "<0x0A>" -> 10, else -1 */
static int byte_text(const char *p, size_t n)
{
    unsigned b;
    char text[7] = {0};
    if (n != 6)
        return -1;
    memcpy(text, p, 6);
    return memcmp(p, "<0x", 3) == 0 && p[5] == '>' && sscanf(text, "<0x%2X>", &b) == 1 ? (int)b : -1;
}

static uint32_t unescape(const char *p, size_t n, char *out)
{
    uint32_t k = 0;
    for (size_t i = 0; i < n;) {
        if (n - i >= 3 && memcmp(p + i, CLB_SPM_SPACE, 3) == 0) {
            out[k++] = ' ';
            i += 3;
        } else {
            out[k++] = p[i++];
        }
    }
    return k;
}

static bool verbatim(const clb_token *t)
{
    return t->type == CLB_TOKEN_CONTROL || t->type == CLB_TOKEN_USER_DEFINED || t->type == CLB_TOKEN_UNKNOWN;
}

/* Pieces of all tokens, and the table of lookup strings: byte-level BPE looks bytes up, the others the stored text.
 * The pool has room for twice the texts, so that a verbatim token can have both. */
static int index_tokens(clb_vocab *v, uint64_t seed, clb_error *err)
{
    const bool bytes = v->kind == CLB_VOCAB_BPE && !v->raw;
    CLB_TRY(clb_symtab_init(&v->syms, v->n, seed, err));
    uint32_t at = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        clb_token *t = &v->tokens[i];
        const char *text = v->texts + t->text;
        clb_str key = {text, t->text_n};
        bool findable = true;
        t->piece = at;
        if (bytes) {
            findable = clb_alphabet_decode(text, t->text_n, v->pieces + at, &t->piece_n);
            key = (clb_str){v->pieces + at, t->piece_n};
            at += t->piece_n;
        }
        if (verbatim(t)) {
            t->piece = at;
            t->piece_n = t->text_n;
            memcpy(v->pieces + at, text, t->text_n);
            at += t->piece_n;
        } else if (t->type == CLB_TOKEN_BYTE && byte_text(text, t->text_n) >= 0) {
            t->piece = at;
            t->piece_n = 1;
            v->pieces[at++] = (char)byte_text(text, t->text_n);
        } else if (!bytes) {
            t->piece_n = unescape(text, t->text_n, v->pieces + at);
            at += t->piece_n;
        }
        clb_symtab_add(&v->syms, key, !findable);
        if (findable && key.n > v->max_sym)
            v->max_sym = (uint32_t)key.n;
    }
    return COLIBRI_OK;
}

/* After the merges: their halves count too. */
static bool words_apart(const clb_vocab *v)
{
    for (uint32_t i = 0; i < v->syms.n; i++) {
        const clb_str s = v->syms.strs[i];
        for (size_t k = 1; k + 3 <= s.n; k++)
            if (memcmp(s.p + k, CLB_SPM_SPACE, 3) == 0 && (k < 3 || memcmp(s.p + k - 3, CLB_SPM_SPACE, 3) != 0))
                return false;
    }
    return true;
}

static void find_bytes(clb_vocab *v)
{
    const bool bytes = v->kind == CLB_VOCAB_BPE && !v->raw;
    for (unsigned b = 0; b < 256; b++) {
        const char c = (char)b;
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", b);
        v->byte_sym[b] = clb_symtab_find(&v->syms, &c, 1);
        v->byte_id[b] = bytes ? CLB_TOKEN_NONE : clb_symtab_find(&v->syms, text, 6);
        if (v->byte_id[b] == CLB_TOKEN_NONE && v->byte_sym[b] < v->n)
            v->byte_id[b] = v->byte_sym[b];
    }
}

int clb_vocab_load(const clb_gguf *g, clb_vocab **out, clb_error *err)
{
    *out = NULL;
    clb_vocab *v = calloc(1, sizeof *v);
    if (!v)
        return CLB_NOMEM(err, "vocabulary");
    const uint64_t seed = clb_hash_seed();
    int rc = COLIBRI_OK;
    CLB_GO(set_kind(v, g, err));
    CLB_GO(read_tokens(v, g, err));
    CLB_GO(set_ids(v, g, err));
    CLB_GO(index_tokens(v, seed, err));
    if (v->kind == CLB_VOCAB_BPE)
        CLB_GO(clb_vocab_read_merges(v, g, seed, err));
    find_bytes(v);
    v->words_apart = v->kind != CLB_VOCAB_BPE || v->raw ? words_apart(v) : false;
    CLB_GO(clb_vocab_find_specials(v, g, err));
    *out = v;
    v = NULL;
done:
    clb_vocab_free(v);
    return rc;
}

uint32_t clb_vocab_size(const clb_vocab *v)
{
    return v->n;
}

const char *clb_vocab_model(const clb_vocab *v)
{
    return v->model;
}

const char *clb_vocab_pre(const clb_vocab *v)
{
    return v->pre;
}

uint32_t clb_vocab_bos(const clb_vocab *v)
{
    return v->bos;
}

uint32_t clb_vocab_eos(const clb_vocab *v)
{
    return v->eos;
}

bool clb_vocab_add_bos(const clb_vocab *v)
{
    return v->add_bos;
}

bool clb_vocab_add_eos(const clb_vocab *v)
{
    return v->add_eos;
}

bool clb_vocab_is_eog(const clb_vocab *v, uint32_t id)
{
    return id < v->n && (v->tokens[id].flags & CLB_TF_EOG);
}

clb_str clb_token_text(const clb_vocab *v, uint32_t id)
{
    if (id >= v->n)
        return (clb_str){"", 0};
    return (clb_str){v->texts + v->tokens[id].text, v->tokens[id].text_n};
}
