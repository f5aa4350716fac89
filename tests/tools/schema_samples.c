/* Samples of JSON schemas, for tests/schemas: what the grammar of a schema allows, token by token, and which texts it
 * accepts.
 *
 *     schema_samples MODEL.gguf < REQUESTS > ANSWERS
 *
 * One JSON object a line: {"schema": ..., or "gbnf": "...", "seed": n, "samples": n, "texts": [...]} ->
 * {"samples": [...], "accepted": [...], "unfinished": n} or {"error": "...", "status": "..."}. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar.h"
#include "serve/schema.h"

#define MOST_TOKENS 4000
#define LOOSE       40 /* tokens drawn at random before the text is led to its end */

struct walker {
    clb_vocab *vocab;
    clb_token_tree *tree;
    uint64_t *mask;
    uint32_t *allowed;
    uint32_t of_byte[256]; /* CLB_TOKEN_NONE: no such token */
    uint64_t state;
};

static uint32_t below(struct walker *w, uint32_t n)
{
    uint64_t z = w->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ z >> 31) % n);
}

/* A token of this byte alone, if one is allowed. */
static bool closing(const struct walker *w, char byte, uint32_t *token)
{
    *token = w->of_byte[(unsigned char)byte];
    return *token != CLB_TOKEN_NONE && w->mask[*token / 64] >> (*token % 64) & 1;
}

static int find_bytes(struct walker *w, clb_error *err)
{
    for (int i = 0; i < 256; i++)
        w->of_byte[i] = CLB_TOKEN_NONE;
    for (uint32_t t = 0; t < clb_vocab_size(w->vocab); t++) {
        clb_buf text = {0};
        const int rc = clb_token_bytes(w->vocab, t, false, &text, err);
        if (!rc && text.n == 1)
            w->of_byte[(unsigned char)*text.data] = t;
        clb_buf_free(&text);
        CLB_TRY(rc);
    }
    return COLIBRI_OK;
}

static uint32_t choose(struct walker *w, uint32_t n, uint32_t step)
{
    uint32_t token;
    if (step > LOOSE)
        for (const char *c = "\"}],"; *c; c++)
            if (below(w, 8) && closing(w, *c, &token))
                return token;
    return w->allowed[below(w, n)];
}

static int sample(struct walker *w, clb_grammar *grammar, clb_buf *out, bool *finished, clb_error *err)
{
    const uint32_t n_vocab = clb_vocab_size(w->vocab);
    clb_matcher *m;
    CLB_TRY(clb_matcher_create(grammar, w->tree, &m, err));
    int rc = COLIBRI_OK;
    *finished = false;
    for (uint32_t step = 0; step < MOST_TOKENS && !*finished; step++) {
        uint32_t n = 0;
        if (clb_matcher_must_end(m) || (clb_matcher_may_end(m) && below(w, 3) == 0)) {
            *finished = true;
            break;
        }
        CLB_GO(clb_matcher_mask(m, w->mask, err));
        for (uint32_t t = 0; t < n_vocab; t++)
            if (w->mask[t / 64] >> (t % 64) & 1 && !clb_vocab_is_eog(w->vocab, t))
                w->allowed[n++] = t;
        if (n == 0) {
            rc = clb_fail(err, COLIBRI_E_INTERNAL, "nothing is allowed after: %s", out->data ? out->data : "");
            goto done;
        }
        const uint32_t token = choose(w, n, step);
        CLB_GO(clb_matcher_accept(m, token, err));
        CLB_GO(clb_token_bytes(w->vocab, token, false, out, err));
    }
done:
    clb_matcher_destroy(m);
    return rc;
}

static int answer(struct walker *w, const json_t *request, json_t *reply, clb_error *err)
{
    const json_t *gbnf = json_object_get(request, "gbnf"), *texts = json_object_get(request, "texts");
    clb_buf text = {0};
    clb_grammar *grammar = NULL;
    json_t *samples = json_array(), *accepted = json_array();
    int rc = COLIBRI_OK, unfinished = 0;
    json_object_set_new(reply, "samples", samples);
    json_object_set_new(reply, "accepted", accepted);
    w->state = (uint64_t)json_integer_value(json_object_get(request, "seed"));
    if (gbnf)
        CLB_GO(clb_buf_append(&text, json_string_value(gbnf), json_string_length(gbnf), err));
    else
        CLB_GO(clb_schema_to_gbnf(json_object_get(request, "schema"), &text, err));
    if (json_is_true(json_object_get(request, "show")))
        json_object_set_new(reply, "gbnf", json_stringn(text.data, text.n));
    CLB_GO(clb_grammar_parse((clb_str){text.data, text.n}, &grammar, err));
    for (json_int_t i = 0; i < json_integer_value(json_object_get(request, "samples")); i++) {
        clb_buf out = {0};
        bool finished;
        rc = sample(w, grammar, &out, &finished, err);
        if (!rc && finished)
            json_array_append_new(samples, json_stringn_nocheck(out.data ? out.data : "", out.n));
        unfinished += !rc && !finished;
        clb_buf_free(&out);
        if (rc)
            goto done;
    }
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *t = json_array_get(texts, i);
        clb_matcher *m;
        CLB_GO(clb_matcher_create(grammar, w->tree, &m, err));
        rc = clb_matcher_accept_bytes(m, json_string_value(t), json_string_length(t), err);
        json_array_append_new(accepted, json_boolean(rc == COLIBRI_OK && clb_matcher_may_end(m)));
        clb_matcher_destroy(m);
        if (rc && rc != COLIBRI_E_USAGE)
            goto done;
        rc = COLIBRI_OK;
    }
    json_object_set_new(reply, "unfinished", json_integer(unfinished));
done:
    clb_grammar_release(grammar);
    clb_buf_free(&text);
    return rc;
}

int main(int argc, char **argv)
{
    struct walker w = {0};
    clb_error err = {0};
    clb_gguf *g = NULL;
    char *line = NULL;
    size_t cap = 0;
    if (argc != 2 || clb_gguf_open(argv[1], NULL, NULL, &g, &err) || clb_vocab_load(g, &w.vocab, &err) ||
        clb_token_tree_create(w.vocab, &w.tree, &err) || find_bytes(&w, &err)) {
        fprintf(stderr, "%s\n", argc != 2 ? "usage: schema_samples MODEL.gguf" : err.msg);
        return 1;
    }
    clb_gguf_close(g);
    w.mask = calloc(clb_vocab_size(w.vocab) / 64 + 1, sizeof *w.mask);
    w.allowed = calloc(clb_vocab_size(w.vocab) + 1, sizeof *w.allowed);
    if (!w.mask || !w.allowed)
        return 1;
    while (getline(&line, &cap, stdin) > 0) {
        json_error_t where;
        json_t *request = json_loads(line, 0, &where), *reply = json_object();
        const int rc = request ? answer(&w, request, reply, &err) : clb_fail(&err, COLIBRI_E_USAGE, "%s", where.text);
        if (rc) {
            json_object_clear(reply);
            json_object_set_new(reply, "error", json_string_nocheck(err.msg));
            json_object_set_new(reply, "status", json_string(clb_status_name(rc)));
        }
        json_dumpf(reply, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(request);
        json_decref(reply);
    }
    free(line);
    free(w.mask);
    free(w.allowed);
    clb_token_tree_destroy(w.tree);
    clb_vocab_free(w.vocab);
    return 0;
}
