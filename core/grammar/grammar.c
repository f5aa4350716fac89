/* Grammars and matchers as others see them. */
#include "grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

#include "grammar/internal.h"

/* ---- grammars ---- */

/* Bytes that no edge tells apart. */
static void find_classes(clb_grammar *g)
{
    bool cut[257] = {false};
    for (uint32_t e = 0; e < g->nfa.n_edges; e++)
        if (g->nfa.edges[e].kind == CLB_EDGE_BYTE) {
            cut[g->nfa.edges[e].lo] = true;
            cut[g->nfa.edges[e].hi + 1] = true;
        }
    uint32_t class = 0;
    for (unsigned c = 0; c < 256; c++) {
        if (c && cut[c])
            class ++;
        g->class_of[c] = (uint8_t) class;
        g->class_byte[class] = (uint8_t)c;
    }
    g->n_classes = class + 1;
}

int clb_grammar_parse(clb_str gbnf, clb_grammar **out, clb_error *err)
{
    clb_gbnf_tree tree;
    clb_grammar *g = calloc(1, sizeof *g);
    *out = NULL;
    if (!g)
        return CLB_NOMEM(err, "a grammar");
    atomic_init(&g->holders, 1);
    pthread_mutex_init(&g->lock, NULL);
    int rc = clb_gbnf_read(gbnf, &tree, err);
    if (!rc)
        rc = clb_nfa_build(&tree, &g->nfa, err);
    if (!rc)
        rc = clb_nfa_check(&g->nfa, &tree, err);
    if (!rc) {
        find_classes(g);
        g->marks = tree.marks;
        g->n_marks = tree.n_marks;
        g->mark_text = tree.text;
        tree.marks = NULL;
        tree.text = NULL;
        *out = g;
        g = NULL;
    }
    clb_gbnf_tree_free(&tree);
    clb_grammar_release(g);
    return rc;
}

clb_grammar *clb_grammar_hold(clb_grammar *g)
{
    atomic_fetch_add(&g->holders, 1);
    return g;
}

void clb_grammar_release(clb_grammar *g)
{
    if (!g || atomic_fetch_sub(&g->holders, 1) != 1)
        return;
    clb_mask_cache_free(g->masks);
    pthread_mutex_destroy(&g->lock);
    clb_nfa_free(&g->nfa);
    free(g->marks);
    free(g->mark_text);
    free(g);
}

/* ---- matchers ---- */

/* Which token a mark of the grammar means in this vocabulary. */
static int resolve_mark(const clb_matcher *m, const clb_token_mark *mark, uint32_t *token, clb_error *err)
{
    const clb_vocab *v = m->tree->vocab;
    *token = mark->id;
    if (mark->text_n) {
        const char *text = m->g->mark_text + mark->text;
        for (*token = 0; *token < m->tree->n_vocab; ++*token) {
            const clb_str s = clb_token_text(v, *token);
            if (s.n == mark->text_n && memcmp(s.p, text, s.n) == 0)
                break;
        }
        if (*token == m->tree->n_vocab)
            return clb_fail(err, COLIBRI_E_USAGE, "the grammar names the token %.*s, which the model does not have",
                            (int)(mark->text_n < 100 ? mark->text_n : 100), text);
    } else if (mark->id >= m->tree->n_vocab) {
        return clb_fail(err, COLIBRI_E_USAGE, "the grammar names token %u; the model has %u", mark->id,
                        m->tree->n_vocab);
    }
    if (clb_vocab_is_eog(v, *token) && !mark->negated)
        return clb_fail(err, COLIBRI_E_USAGE,
                        "the grammar names token %u, which ends a text: a text ends where root does", *token);
    return COLIBRI_OK;
}

int clb_matcher_create(clb_grammar *grammar, const clb_token_tree *tree, clb_matcher **out, clb_error *err)
{
    clb_matcher *m = calloc(1, sizeof *m);
    int rc = COLIBRI_OK;
    *out = NULL;
    if (!m)
        return CLB_NOMEM(err, "a matcher");
    m->g = clb_grammar_hold(grammar);
    m->tree = tree;
    m->walk.stack = malloc((tree->max_depth + (size_t)1) * sizeof *m->walk.stack);
    m->resolved = malloc((grammar->n_marks + (size_t)1) * sizeof *m->resolved);
    if (!m->walk.stack || !m->resolved)
        CLB_GO(CLB_NOMEM(err, "a matcher"));
    for (uint32_t i = 0; i < grammar->n_marks; i++)
        CLB_GO(resolve_mark(m, &grammar->marks[i], &m->resolved[i], err));
    CLB_GO(clb_machine_init(&m->machine, grammar, err));
    CLB_GO(clb_machine_begin(&m->machine, &m->config, err));
    *out = m;
    m = NULL;
done:
    clb_matcher_destroy(m);
    return rc;
}

void clb_matcher_destroy(clb_matcher *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < sizeof m->known / sizeof *m->known; i++)
        free(m->known[i].bits);
    clb_machine_free(&m->machine);
    free(m->walk.stack);
    free(m->walk.open);
    free(m->resolved);
    free(m->states);
    clb_grammar_release(m->g);
    free(m);
}

/* Before a step: memory of what lies far behind is given back. */
static int tidy(clb_matcher *m, clb_error *err)
{
    m->machine.work = 0;
    if (clb_machine_bytes(&m->machine) < CLB_MACHINE_SOFT_BYTES)
        return COLIBRI_OK;
    for (size_t i = 0; i < sizeof m->known / sizeof *m->known; i++)
        m->known[i].config = CLB_CONFIG_DEAD;
    m->walk.n_open = 0;
    return clb_machine_forget(&m->machine, &m->config, err);
}

int clb_matcher_mask(clb_matcher *m, uint64_t *allowed, clb_error *err)
{
    const size_t size = (m->tree->n_vocab + (size_t)63) / 64 * sizeof *allowed;
    CLB_TRY(tidy(m, err));
    if (m->ended) {
        memset(allowed, 0, size);
        for (uint32_t i = 0; i < m->tree->n_eog; i++)
            clb_bit_set(allowed, m->tree->eog[i]);
        return COLIBRI_OK;
    }
    for (size_t i = 0; i < sizeof m->known / sizeof *m->known; i++)
        if (m->known[i].config == m->config) {
            memcpy(allowed, m->known[i].bits, size);
            return COLIBRI_OK;
        }
    CLB_TRY(clb_matcher_fill(m, allowed, err));
    struct clb_known_mask *k = &m->known[m->next_known];
    if (!k->bits)
        k->bits = malloc(size + 1);
    if (!k->bits)
        return COLIBRI_OK; /* it need not be remembered */
    memcpy(k->bits, allowed, size);
    k->config = m->config;
    m->next_known = (m->next_known + 1) % (uint32_t)(sizeof m->known / sizeof *m->known);
    return COLIBRI_OK;
}

/* The config after n bytes; CLB_CONFIG_DEAD with *at: byte that does not fit. */
static int follow_bytes(clb_matcher *m, const char *bytes, size_t n, uint32_t *config, size_t *at, clb_error *err)
{
    *config = m->config;
    for (*at = 0; *at < n && *config != CLB_CONFIG_DEAD; ++*at)
        CLB_TRY(clb_machine_step(&m->machine, *config, (uint8_t)bytes[*at], config, err));
    return COLIBRI_OK;
}

int clb_matcher_accept(clb_matcher *m, uint32_t token, clb_error *err)
{
    clb_buf bytes = {0};
    uint32_t next = CLB_CONFIG_DEAD;
    size_t at;
    if (token >= m->tree->n_vocab)
        return clb_fail(err, COLIBRI_E_USAGE, "token %u is outside the vocabulary of %u", token, m->tree->n_vocab);
    if (clb_vocab_is_eog(m->tree->vocab, token)) {
        if (!clb_matcher_may_end(m))
            return clb_fail(err, COLIBRI_E_USAGE, "token %u ends the text where the grammar wants more", token);
        m->ended = true;
        return COLIBRI_OK;
    }
    if (m->ended)
        return clb_fail(err, COLIBRI_E_USAGE, "token %u comes after the end of the text", token);
    CLB_TRY(tidy(m, err));
    int rc = clb_token_bytes(m->tree->vocab, token, false, &bytes, err);
    if (!rc && bytes.n && bytes.n < UINT16_MAX)
        rc = follow_bytes(m, bytes.data, bytes.n, &next, &at, err);
    if (!rc && m->g->n_marks)
        rc = clb_machine_token(&m->machine, m->config, next, m->resolved, token, bytes.n > 0, &next, err);
    clb_buf_free(&bytes);
    CLB_TRY(rc);
    if (next == CLB_CONFIG_DEAD)
        return clb_fail(err, COLIBRI_E_USAGE, "the grammar does not allow token %u here", token);
    m->config = next;
    return COLIBRI_OK;
}

int clb_matcher_accept_bytes(clb_matcher *m, const char *bytes, size_t n, clb_error *err)
{
    const size_t piece = 256; /* bytes between two looks at memory and work */
    if (m->ended && n)
        return clb_fail(err, COLIBRI_E_USAGE, "bytes after the end of the text");
    for (size_t done = 0; done < n;) {
        const size_t k = n - done < piece ? n - done : piece;
        uint32_t next;
        size_t at;
        CLB_TRY(tidy(m, err));
        CLB_TRY(follow_bytes(m, bytes + done, k, &next, &at, err));
        if (next == CLB_CONFIG_DEAD)
            return clb_fail(err, COLIBRI_E_USAGE, "the grammar does not allow byte %zu of the text", done + at);
        m->config = next;
        done += k;
    }
    return COLIBRI_OK;
}

bool clb_matcher_may_end(const clb_matcher *m)
{
    return m->ended || (m->machine.configs.sets[m->config].flags & CLB_AT_END);
}

bool clb_matcher_must_end(const clb_matcher *m)
{
    return m->ended || (clb_matcher_may_end(m) && m->machine.configs.sets[m->config].n == 0);
}
