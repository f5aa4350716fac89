/* Passkeys: keys hidden in filler, at each depth of texts of each length. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare_kv_reading.h"
#include "model_run.h"

struct passkey {
    const json_t *o;
    clb_tokens filler;
    uint64_t seed;
};

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* n tokens of the filler from `at` on, around its end if need be. */
static int filler_text(const struct passkey *p, const clb_vocab *vocab, size_t at, size_t n, clb_buf *out,
                       clb_error *err)
{
    for (size_t i = 0; i < n; i++)
        CLB_TRY(clb_token_bytes(vocab, p->filler.ids[(at + i) % p->filler.n], false, out, err));
    return COLIBRI_OK;
}

static int replace_key(const char *text, const char *key, clb_buf *out, clb_error *err)
{
    for (const char *at; (at = strstr(text, "{key}")); text = at + 5) {
        CLB_TRY(clb_buf_append(out, text, (size_t)(at - text), err));
        CLB_TRY(clb_buf_append(out, key, strlen(key), err));
    }
    return clb_buf_append(out, text, strlen(text), err);
}

/* intro, filler, needle at `depth` %, filler, question; in a turn of the user if the model has turns. */
static int build_prompt(struct clb_kvc_reading *r, const struct passkey *p, const char *key, uint32_t n_filler,
                        uint32_t depth, size_t start, clb_tokens *ids, clb_error *err)
{
    const clb_vocab *const vocab = r->o->engine->vocab;
    const char *const prefix = clb_kvc_text_of(p->o, "answer_prefix");
    const size_t before = (size_t)((uint64_t)n_filler * depth / 100);
    clb_buf text = {0};
    int rc = clb_buf_append(&text, clb_kvc_text_of(p->o, "intro"), strlen(clb_kvc_text_of(p->o, "intro")), err);
    if (!rc)
        rc = filler_text(p, vocab, start, before, &text, err);
    if (!rc)
        rc = replace_key(clb_kvc_text_of(p->o, "needle"), key, &text, err);
    if (!rc)
        rc = filler_text(p, vocab, start + before, n_filler - before, &text, err);
    if (!rc)
        rc = clb_buf_append(&text, clb_kvc_text_of(p->o, "question"), strlen(clb_kvc_text_of(p->o, "question")), err);
    ids->n = 0;
    if (!rc && r->o->chat) {
        const clb_message message = {"user", text.data};
        rc = clb_chat_tokenize(r->o->chat, vocab, &message, 1, 1, ids, err);
        if (!rc)
            rc = clb_tokenize(vocab, prefix, strlen(prefix), 0, ids, err);
    } else if (!rc) {
        rc = clb_buf_append(&text, prefix, strlen(prefix), err);
        if (!rc)
            rc = clb_tokenize(vocab, text.data, text.n, CLB_TOKENIZE_BOS, ids, err);
    }
    clb_buf_free(&text);
    return rc;
}

static int needle(struct clb_kvc_reading *r, const struct passkey *p, uint32_t length, uint32_t depth, uint32_t k,
                  clb_error *err)
{
    clb_kvc_case *v;
    struct clb_kvc_found_name *name;
    char key[16];
    if (length > r->o->engine->ctx) {
        r->too_long++;
        return COLIBRI_OK;
    }
    const uint64_t random = mix(mix(p->seed + length) + 1000 * (uint64_t)depth + k + 1);
    const size_t start = (size_t)(random % p->filler.n);
    snprintf(key, sizeof key, "%05u", (unsigned)(10000 + (random >> 32) % 90000));
    CLB_TRY(clb_kvc_next_case(r, &v, &name, err));
    v->key = strdup(key);
    v->n_generate = 12;
    if (!v->key)
        return CLB_NOMEM(err, "items");
    CLB_TRY(build_prompt(r, p, key, 0, depth, start, &v->ids, err)); /* what the rest takes */
    if (v->ids.n + v->n_generate >= length)
        return clb_fail(err, COLIBRI_E_USAGE, "a length of %u has no room for filler", length);
    /* Pieces of text do not always become the tokens that they came from: come near, from below. */
    uint32_t n = length - v->n_generate - (uint32_t)v->ids.n;
    for (int i = 0; i < 4; i++) {
        CLB_TRY(build_prompt(r, p, key, n, depth, start, &v->ids, err));
        const uint64_t total = v->ids.n + v->n_generate;
        if (total <= length)
            break;
        n -= (uint32_t)(total - length) < n ? (uint32_t)(total - length) : n;
    }
    if (r->modes & CLB_KVC_ASK_LATER)
        CLB_TRY(clb_kvc_find_question(r, v, clb_kvc_text_of(p->o, "question"), err));
    name->length = length;
    name->depth = depth;
    snprintf(name->group, sizeof name->group, "%u tokens, %u%%", length, depth);
    snprintf(name->id, sizeof name->id, "%u-%u-%u", length, depth, k + 1);
    (void)clb_kvc_fits(r, v);
    return COLIBRI_OK;
}

static int read_filler(struct clb_kvc_reading *r, struct passkey *p, clb_error *err)
{
    char path[4096];
    clb_buf text = {0};
    const char *const file = clb_kvc_text_of(p->o, "filler");
    const int folder = *file == '/' ? 0 : (int)(r->base - r->path);
    if (!*file || snprintf(path, sizeof path, "%.*s%s", folder, r->path, file) >= (int)sizeof path)
        return clb_fail(err, COLIBRI_E_FORMAT, "needs \"filler\", the name of a text file");
    int rc = clb_read_input(path, &text, err);
    if (!rc)
        rc = clb_tokenize(r->o->engine->vocab, text.data ? text.data : "", text.n, 0, &p->filler, err);
    if (!rc && p->filler.n == 0)
        rc = clb_fail(err, COLIBRI_E_USAGE, "%s is empty", path);
    clb_buf_free(&text);
    return rc;
}

int clb_kvc_read_passkey(struct clb_kvc_reading *r, const clb_buf *text, clb_error *err)
{
    json_error_t why;
    json_t *const o = json_loadb(text->data ? text->data : "", text->n, JSON_REJECT_DUPLICATES, &why);
    if (!o)
        return clb_fail(err, COLIBRI_E_FORMAT, "%s, line %d: %s", r->path, why.line, why.text);
    const json_t *const lengths = json_object_get(o, "lengths"), *const depths = json_object_get(o, "depths");
    const json_t *const n = json_object_get(o, "repeats"), *const seed = json_object_get(o, "seed");
    const json_int_t repeats = n ? json_integer_value(n) : 1; /* 0 if it is none */
    struct passkey p = {.o = o, .seed = (uint64_t)json_integer_value(json_object_get(o, "seed"))};
    int rc = COLIBRI_OK;
    if (!strstr(clb_kvc_text_of(o, "needle"), "{key}") || !*clb_kvc_text_of(o, "question") ||
        !json_array_size(lengths) || !json_array_size(depths) || repeats < 1 || repeats > 1000 ||
        (seed && !json_is_integer(seed)))
        rc = clb_fail(
            err, COLIBRI_E_FORMAT,
            "needs \"needle\" with {key}, \"question\", \"lengths\" and \"depths\"; \"repeats\" (1 to 1000) and "
            "\"seed\" are whole numbers");
    if (!rc && json_array_size(lengths) * json_array_size(depths) > CLB_KVC_MOST_ITEMS / (size_t)repeats)
        rc = clb_fail(err, COLIBRI_E_LIMIT, "lengths x depths x repeats are more than %u items", CLB_KVC_MOST_ITEMS);
    if (!rc)
        rc = read_filler(r, &p, err);
    for (size_t i = 0; !rc && i < json_array_size(lengths); i++)
        for (size_t j = 0; !rc && j < json_array_size(depths); j++)
            for (json_int_t k = 0; !rc && k < repeats; k++) {
                const json_int_t length = json_integer_value(json_array_get(lengths, i));
                const json_int_t depth = json_integer_value(json_array_get(depths, j));
                if (!json_is_integer(json_array_get(depths, j)) || length < 16 || length > (1 << 24) || depth < 0 ||
                    depth > 100)
                    rc = clb_fail(err, COLIBRI_E_FORMAT, "lengths are tokens, at least 16, and depths per cent");
                else
                    rc = needle(r, &p, (uint32_t)length, (uint32_t)depth, (uint32_t)k, err);
            }
    clb_tokens_free(&p.filler);
    json_decref(o);
    return rc ? clb_context(err, "%s", r->path) : COLIBRI_OK;
}
