/* The embedded model's vocabulary and its token tree, for tests of grammars: cmocka group fixtures. */
#ifndef CLB_TESTS_SUPPORT_GRAMMAR_H
#define CLB_TESTS_SUPPORT_GRAMMAR_H

#include "grammar/grammar.h"
#include "support.h"

static clb_vocab *vocab;
static clb_token_tree *tree;

static int load(void **state)
{
    (void)state;
    clb_error err;
    clb_gguf *g;
    if (clb_gguf_open(TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf"), NULL, NULL, &g, &err) ||
        clb_vocab_load(g, &vocab, &err) || clb_token_tree_create(vocab, &tree, &err)) {
        print_error("%s\n", err.msg);
        return -1;
    }
    clb_gguf_close(g);
    return 0;
}

static int unload(void **state)
{
    (void)state;
    clb_token_tree_destroy(tree);
    clb_vocab_free(vocab);
    return 0;
}

#endif
