/* libFuzzer: a grammar, a NUL, a text that is followed in it with masks on the way. Each mask must say of every token
 * what following its bytes says. COLIBRI_FUZZ_MODEL names a model for the vocabulary; without it examples/tiny-moe
 * below the current folder is taken. Seeds: tests/fuzz/corpus/gbnf. */
#include <string.h>

#include "example_vocab.h"
#include "grammar/internal.h"

static const clb_vocab *vocab;
static clb_token_tree *tree;
static uint64_t *mask;

static void load(void)
{
    clb_error err;
    vocab = example();
    REQUIRE(!clb_token_tree_create(vocab, &tree, &err));
    mask = calloc(clb_vocab_size(vocab) / 64 + 1, sizeof *mask);
}

/* Every 97th token, from another one each time. */
static void compare(clb_matcher *m, uint32_t first)
{
    clb_error err;
    for (uint32_t t = first % 97; t < clb_vocab_size(vocab); t += 97) {
        clb_buf bytes = {0};
        uint32_t config = m->config;
        int rc = COLIBRI_OK;
        if (clb_vocab_is_eog(vocab, t))
            continue;
        m->machine.work = 0;
        REQUIRE(clb_token_bytes(vocab, t, false, &bytes, &err) == COLIBRI_OK);
        for (size_t i = 0; !rc && i < bytes.n && config != CLB_CONFIG_DEAD; i++)
            rc = clb_machine_step(&m->machine, config, (uint8_t)bytes.data[i], &config, &err);
        const bool fits = bytes.n && config != CLB_CONFIG_DEAD;
        clb_buf_free(&bytes);
        if (rc || m->g->n_marks)
            return;
        REQUIRE(fits == (mask[t / 64] >> (t % 64) & 1));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    clb_error err = {0};
    clb_grammar *g;
    clb_matcher *m;
    if (!tree)
        load();
    const uint8_t *end = memchr(data, 0, size);
    const size_t n = end ? (size_t)(end - data) : size;
    if (clb_grammar_parse((clb_str){(const char *)data, n}, &g, &err)) {
        REQUIRE(*err.msg && !strchr(err.msg, '\n'));
        return 0;
    }
    if (clb_matcher_create(g, tree, &m, &err) == COLIBRI_OK) {
        int rc = COLIBRI_OK;
        REQUIRE(clb_matcher_may_end(m) || m->machine.configs.sets[m->config].n); /* no dead ends */
        for (size_t i = n + 1; !rc && i < size && i < n + 40; i++) {
            rc = clb_matcher_mask(m, mask, &err);
            if (!rc)
                compare(m, (uint32_t)i * 31u);
            if (!rc)
                rc = clb_matcher_accept_bytes(m, (const char *)data + i, 1, &err);
            REQUIRE(rc == COLIBRI_OK || rc == COLIBRI_E_USAGE || rc == COLIBRI_E_LIMIT);
        }
        clb_matcher_destroy(m);
    }
    clb_grammar_release(g);
    return 0;
}
