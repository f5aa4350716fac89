/* Masks: equal to asking for each token of a vocabulary by itself; ends; tokens by name; speed that does not grow with
 * the text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "grammar/internal.h"
#include "support/grammar.h"
#include "support/vocab_image.h"
#include "text/utf8.h"

static uint64_t *mask;

static int load_with_mask(void **state)
{
    if (load(state))
        return -1;
    mask = calloc(clb_vocab_size(vocab) / 64 + 1, sizeof *mask);
    return mask ? 0 : -1;
}

static int unload_with_mask(void **state)
{
    free(mask);
    return unload(state);
}

static clb_grammar *parse(const char *gbnf)
{
    clb_error err = {0};
    clb_grammar *g;
    assert_ok(clb_grammar_parse((clb_str){gbnf, strlen(gbnf)}, &g, &err), &err);
    return g;
}

static clb_matcher *matcher(clb_grammar *g)
{
    clb_error err = {0};
    clb_matcher *m;
    assert_ok(clb_matcher_create(g, tree, &m, &err), &err);
    return m;
}

static bool allowed(uint32_t token)
{
    return mask[token / 64] >> (token % 64) & 1;
}

/* The token's bytes lead somewhere: on the matcher's machine, but byte by byte and without the tree. */
static bool fits(clb_matcher *m, uint32_t token)
{
    clb_error err;
    clb_buf bytes = {0};
    uint32_t config = m->config;
    if (clb_vocab_is_eog(vocab, token))
        return clb_matcher_may_end(m);
    m->machine.work = 0;
    assert_ok(clb_token_bytes(vocab, token, false, &bytes, &err), &err);
    for (size_t i = 0; i < bytes.n && config != CLB_CONFIG_DEAD; i++)
        assert_ok(clb_machine_step(&m->machine, config, (uint8_t)bytes.data[i], &config, &err), &err);
    const bool out = bytes.n > 0 && config != CLB_CONFIG_DEAD;
    clb_buf_free(&bytes);
    return out;
}

/* Follows random allowed tokens; compares the mask with each token at every place. */
static void compare_on_the_way(const char *gbnf, uint64_t seed, unsigned steps, unsigned *places, uint64_t *ones)
{
    clb_error err = {0};
    clb_grammar *g = parse(gbnf);
    clb_matcher *m = matcher(g);
    test_rand rng = {seed};
    const uint32_t n = clb_vocab_size(vocab);
    for (unsigned step = 0; step < steps; step++) {
        uint32_t count = 0, chosen = CLB_TOKEN_NONE;
        memset(mask, 0xAA, (n / 64 + 1) * sizeof *mask);
        assert_ok(clb_matcher_mask(m, mask, &err), &err);
        for (uint32_t t = 0; t < n; t++) {
            if (allowed(t) != fits(m, t)) {
                clb_buf text = {0};
                clb_token_bytes(vocab, t, true, &text, &err);
                fail_msg("%s\nstep %u: token %u \"%s\" is %s in the mask", gbnf, step, t, text.data ? text.data : "",
                         allowed(t) ? "set" : "not set");
            }
            if (allowed(t) && !clb_vocab_is_eog(vocab, t) && test_rand_below(&rng, ++count) == 0)
                chosen = t;
        }
        for (uint32_t t = n; t < (n + 63) / 64 * 64; t++)
            assert_false(allowed(t));
        *ones += count;
        ++*places;
        if (chosen == CLB_TOKEN_NONE) {
            /* A vocabulary of a few tokens may have none for what comes next. */
            assert_true(clb_matcher_may_end(m) || n < 1000);
            break;
        }
        assert_ok(clb_matcher_accept(m, chosen, &err), &err);
    }
    clb_matcher_destroy(m);
    clb_grammar_release(g);
}

#define JSON                                                                                                           \
    "value ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n"                                   \
    "object ::= \"{\" ws (string \":\" ws value (\",\" ws string \":\" ws value)*)? ws \"}\"\n"                        \
    "array ::= \"[\" ws (value (\",\" ws value)*)? ws \"]\"\n"                                                         \
    "string ::= \"\\\"\" char* \"\\\"\"\n"                                                                             \
    "char ::= [^\"\\\\\\x00-\\x1F] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4})\n"                               \
    "number ::= \"-\"? (\"0\" | [1-9] [0-9]*) (\".\" [0-9]+)? ([eE] [-+]? [0-9]+)?\n"                                  \
    "ws ::= [ \\t\\n]*\n"

static const char *const grammars[] = {
    "root ::= value\n" JSON,
    "root ::= object\n" JSON,
    "root ::= \"{\\\"name\\\": \" string \", \\\"age\\\": \" number \"}\"\n" JSON,
    "root ::= string{0,3} ([a-z] [a-z ]{0,40} | number)\n" JSON,
    "root ::= .*",
    "root ::= [^\\n]{3,9} \"\\n\"",
    "root ::= [\xE3\x81\x81-\xE3\x82\x9F\xE4\xB8\x80-\xE9\xBE\xBF]+ | [^a-zA-Z0-9]{4}",
    "root ::= (word \" \")* word \".\"\nword ::= [A-Za-z]+ | [0-9]+",
    "root ::= a | b\na ::= [a-z]* \"x\" a | \"1\"\nb ::= [a-y]* \"x\" b | \"2\"",
    "root ::= item+\nitem ::= \"- \" [^\\n]+ \"\\n\" | \"(\" item* \")\"",
    "root ::= e\ne ::= t ((\" + \" | \" - \") t)*\nt ::= f (\" * \" f)*\nf ::= [a-z]+ | \"(\" e \")\" | [0-9]{1,3}",
    "root ::= [\\x00-\\x7F]{0,200}",
    "root ::= [A-Za-z0-9 ]{2} [A-Za-z]{0,9}",
    "root ::= \"\xE2\x82\xAC\xF0\x9F\x98\x80\" .? [\\u0400-\\u04FF]*",
};

static void a_mask_is_what_each_token_by_itself_would_be(void **state)
{
    (void)state;
    unsigned places = 0;
    uint64_t ones = 0;
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++)
        for (uint64_t seed = 0; seed < 2; seed++)
            compare_on_the_way(grammars[i], 77 + seed, 18, &places, &ones);
    print_message("%u places, %.0f tokens allowed on average\n", places, (double)ones / places);
    assert_true(places > 250);
}

/* Tokens that end within characters, begin within them, or are no UTF-8 at all, as byte-level vocabularies have them.
 */
static void any_bytes_may_be_tokens(void **state)
{
    (void)state;
    enum { N = 300 };
    static const uint8_t alphabet[] = {'a',  'e',  '"',  '\n', '{',  0xC3, 0xA9, 0xE4, 0xB8,
                                       0xAD, 0xF0, 0x9F, 0x98, 0x80, 0xED, 0xC0, 0xFF};
    static char texts[N][32];
    static small_token tokens[N + 2];
    clb_error err = {0};
    test_rand rng = {404};
    unsigned places = 0, n = 0;
    uint64_t ones = 0;
    while (n < N) {
        size_t len = 0;
        for (uint32_t k = 1 + test_rand_below(&rng, 6); k > 0; k--) {
            const uint32_t c = alphabet[test_rand_below(&rng, sizeof alphabet)];
            len += clb_utf8_encode(clb_char_of_byte((uint8_t)c), texts[n] + len);
        }
        texts[n][len] = 0;
        bool known = false;
        for (unsigned i = 0; i < n && !known; i++)
            known = strcmp(texts[i], texts[n]) == 0;
        tokens[n] = (small_token){texts[n], T_NORMAL, 0};
        n += !known;
    }
    tokens[n] = (small_token){"<|endoftext|>", T_CONTROL, 0};
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id=300", NULL};
    static const char *const merges[] = {NULL};
    clb_vocab *const whole_vocab = vocab;
    clb_token_tree *const whole_tree = tree;
    vocab = small_vocab_load(&(small_vocab){"gpt2", "gpt-2", NULL, tokens, merges, keys, false, false});
    assert_ok(clb_token_tree_create(vocab, &tree, &err), &err);
    assert_int_equal(tree->n_ids, N);
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++)
        for (uint64_t seed = 0; seed < 6; seed++)
            compare_on_the_way(grammars[i], seed, 12, &places, &ones);
    assert_true(places > 300);
    clb_token_tree_destroy(tree);
    clb_vocab_free(vocab);
    vocab = whole_vocab;
    tree = whole_tree;
}

/* The shortcuts (remembered masks, subtrees without a walk) are taken: the same mask from the tree alone. */
static void a_walk_with_true_stacks_gives_the_same(void **state)
{
    (void)state;
    clb_error err = {0};
    static const char text[] = "{\"a\":[{\"b\":\"quo";
    clb_grammar *g = parse(grammars[0]);
    clb_matcher *m = matcher(g);
    uint64_t *other = calloc(clb_vocab_size(vocab) / 64 + 1, sizeof *other);
    assert_non_null(other);
    for (size_t i = 0; i <= sizeof text - 1; i++) {
        if (i)
            assert_ok(clb_matcher_accept_bytes(m, text + i - 1, 1, &err), &err);
        assert_ok(clb_matcher_mask(m, mask, &err), &err);
        memset(other, 0, (clb_vocab_size(vocab) / 64 + 1) * sizeof *other);
        m->walk.bits = other;
        assert_ok(clb_tree_walk(&m->machine, tree, 0, m->config, &m->walk, &err), &err);
        assert_memory_equal(mask, other, (clb_vocab_size(vocab) / 64) * sizeof *other);
    }
    free(other);
    clb_matcher_destroy(m);
    clb_grammar_release(g);
}

/* ---- ends ---- */

static void a_text_ends_where_root_ends(void **state)
{
    (void)state;
    clb_error err = {0};
    clb_grammar *g = parse("root ::= \"a\" \"b\"?");
    clb_matcher *m = matcher(g);
    const uint32_t eos = clb_vocab_eos(vocab);
    assert_ok(clb_matcher_mask(m, mask, &err), &err);
    assert_false(allowed(eos));
    assert_false(clb_matcher_may_end(m));
    assert_fails(clb_matcher_accept(m, eos, &err), &err, COLIBRI_E_USAGE, "ends the text where the grammar wants more");
    assert_ok(clb_matcher_accept_bytes(m, "a", 1, &err), &err);
    assert_ok(clb_matcher_mask(m, mask, &err), &err);
    assert_true(allowed(eos));
    assert_true(clb_matcher_may_end(m));
    assert_false(clb_matcher_must_end(m));
    assert_ok(clb_matcher_accept_bytes(m, "b", 1, &err), &err);
    assert_true(clb_matcher_must_end(m));
    assert_ok(clb_matcher_mask(m, mask, &err), &err);
    for (uint32_t t = 0; t < clb_vocab_size(vocab); t++)
        assert_int_equal(allowed(t), clb_vocab_is_eog(vocab, t));
    assert_fails(clb_matcher_accept_bytes(m, "c", 1, &err), &err, COLIBRI_E_USAGE, "does not allow");
    assert_ok(clb_matcher_accept(m, eos, &err), &err);
    assert_true(clb_matcher_must_end(m));
    assert_fails(clb_matcher_accept_bytes(m, "b", 1, &err), &err, COLIBRI_E_USAGE, "after the end");
    clb_matcher_destroy(m);
    clb_grammar_release(g);
}

static void a_refused_token_changes_nothing(void **state)
{
    (void)state;
    clb_error err = {0};
    clb_grammar *g = parse("root ::= [0-9]+");
    clb_matcher *m = matcher(g);
    uint32_t letter = CLB_TOKEN_NONE, digit = CLB_TOKEN_NONE;
    for (uint32_t t = 0; t < clb_vocab_size(vocab); t++) {
        clb_buf b = {0};
        assert_ok(clb_token_bytes(vocab, t, false, &b, &err), &err);
        letter = b.n == 1 && *b.data == 'a' ? t : letter;
        digit = b.n == 1 && *b.data == '7' ? t : digit;
        clb_buf_free(&b);
    }
    assert_fails(clb_matcher_accept(m, letter, &err), &err, COLIBRI_E_USAGE, "does not allow token");
    assert_fails(clb_matcher_accept(m, clb_vocab_size(vocab), &err), &err, COLIBRI_E_USAGE, "outside the vocabulary");
    assert_ok(clb_matcher_accept(m, digit, &err), &err);
    assert_fails(clb_matcher_accept(m, letter, &err), &err, COLIBRI_E_USAGE, "does not allow token");
    assert_true(clb_matcher_may_end(m));
    clb_matcher_destroy(m);
    clb_grammar_release(g);
}

/* ---- tokens by name ---- */

static void tokens_are_named_by_text_or_number(void **state)
{
    (void)state;
    clb_error err = {0};
    char gbnf[200];
    uint32_t control = CLB_TOKEN_NONE;
    for (uint32_t t = 0; t < clb_vocab_size(vocab) && control == CLB_TOKEN_NONE; t++) {
        const clb_str s = clb_token_text(vocab, t);
        if (clb_vocab_is_control(vocab, t) && !clb_vocab_is_eog(vocab, t) && s.n > 2 && s.p[0] == '<' &&
            s.p[s.n - 1] == '>')
            control = t;
    }
    assert_int_not_equal(control, CLB_TOKEN_NONE);
    const clb_str name = clb_token_text(vocab, control);
    snprintf(gbnf, sizeof gbnf, "root ::= %.*s !%.*s{0,2} <[%u]> \"ok\"", (int)name.n, name.p, (int)name.n, name.p,
             control);
    clb_grammar *g = parse(gbnf);
    clb_matcher *m = matcher(g);
    assert_ok(clb_matcher_mask(m, mask, &err), &err);
    for (uint32_t t = 0; t < clb_vocab_size(vocab); t++)
        assert_int_equal(allowed(t), t == control);
    assert_ok(clb_matcher_accept(m, control, &err), &err);
    for (int i = 0; i < 3; i++) {
        uint32_t ordinary = CLB_TOKEN_NONE, n = 0;
        assert_ok(clb_matcher_mask(m, mask, &err), &err);
        assert_true(allowed(control));
        for (uint32_t t = 0; t < clb_vocab_size(vocab); t++)
            if (allowed(t) && t != control) {
                assert_false(clb_vocab_is_control(vocab, t));
                ordinary = t;
                n++;
            }
        assert_int_equal(n > 1000, i < 2);
        if (i < 2)
            assert_ok(clb_matcher_accept(m, ordinary, &err), &err);
    }
    assert_ok(clb_matcher_accept(m, control, &err), &err);
    assert_ok(clb_matcher_accept_bytes(m, "ok", 2, &err), &err);
    assert_true(clb_matcher_must_end(m));
    clb_matcher_destroy(m);
    clb_grammar_release(g);
    g = parse("root ::= <no such token>");
    assert_fails(clb_matcher_create(g, tree, &m, &err), &err, COLIBRI_E_USAGE, "<no such token>");
    clb_grammar_release(g);
    g = parse("root ::= <[4000000]>");
    assert_fails(clb_matcher_create(g, tree, &m, &err), &err, COLIBRI_E_USAGE, "4000000");
    clb_grammar_release(g);
    snprintf(gbnf, sizeof gbnf, "root ::= <[%u]>", clb_vocab_eos(vocab));
    g = parse(gbnf);
    assert_fails(clb_matcher_create(g, tree, &m, &err), &err, COLIBRI_E_USAGE, "ends a text");
    clb_grammar_release(g);
}

/* ---- long texts, several matchers, several trees ---- */

static void memory_and_time_do_not_grow_with_the_text(void **state)
{
    (void)state;
    clb_error err = {0};
    clb_grammar *g = parse(grammars[0]);
    clb_matcher *m = matcher(g);
    uint64_t bytes = 0;
    assert_ok(clb_matcher_accept_bytes(m, "[", 1, &err), &err);
    for (int i = 0; i < 20000; i++) {
        char text[64];
        const int n = snprintf(text, sizeof text, "%s{\"k%d\":[\"%d\",-%d.5e3,{}]}", i ? "," : "", i, i * 7, i);
        assert_ok(clb_matcher_accept_bytes(m, text, (size_t)n, &err), &err);
        if (i == 100)
            bytes = clb_machine_bytes(&m->machine);
    }
    assert_true(clb_machine_bytes(&m->machine) <= bytes);
    assert_ok(clb_matcher_accept_bytes(m, "]", 1, &err), &err);
    assert_true(clb_matcher_must_end(m));
    clb_matcher_destroy(m);
    clb_grammar_release(g);
}

static void what_lies_behind_is_forgotten_when_it_grows(void **state)
{
    (void)state;
    clb_error err = {0};
    /* Every closing bracket leads to stacks that were not there before: two sorts of brackets, all nestings. */
    clb_grammar *g = parse("root ::= n n*\nn ::= \"(\" n* \")\" | \"[\" n* \"]\" | \"a\" n* \"z\"");
    clb_matcher *m = matcher(g);
    test_rand rng = {5};
    char open[40];
    uint64_t most = 0;
    for (int i = 0; i < 40000; i++) {
        unsigned n = 0;
        while (n < 30) {
            static const char kinds[] = "([a";
            open[n++] = kinds[test_rand_below(&rng, 3)];
        }
        assert_ok(clb_matcher_accept_bytes(m, open, n, &err), &err);
        while (n--)
            assert_ok(clb_matcher_accept_bytes(m, open[n] == '(' ? ")" : open[n] == '[' ? "]" : "z", 1, &err), &err);
        if (clb_machine_bytes(&m->machine) > most)
            most = clb_machine_bytes(&m->machine);
    }
    assert_true(clb_matcher_may_end(m));
    assert_ok(clb_matcher_mask(m, mask, &err), &err);
    print_message("at most %.1f MiB\n", (double)most / 1048576);
    assert_true(most < 2 * (uint64_t)CLB_MACHINE_SOFT_BYTES);
    assert_true(most > CLB_MACHINE_SOFT_BYTES / 2); /* else this test shows nothing */
    clb_matcher_destroy(m);
    clb_grammar_release(g);
}

static void forgetting_changes_nothing(void **state)
{
    (void)state;
    clb_error err = {0};
    static const char text[] = "abxacy(ab)xa";
    clb_grammar *g =
        parse("root ::= p*\np ::= \"a\" q* | \"(\" p+ \")\" | r\nq ::= [bc] | \"b\" q2\nq2 ::= \"x\"?\nr ::= [xy] p?");
    clb_matcher *kept = matcher(g), *forgetful = matcher(g);
    const size_t size = clb_vocab_size(vocab) / 64 * sizeof *mask;
    uint64_t *other = calloc(1, size + sizeof *other);
    assert_non_null(other);
    unsigned ends = 0;
    for (size_t i = 0; i < sizeof text; i++) {
        forgetful->walk.n_open = 0;
        assert_ok(clb_machine_forget(&forgetful->machine, &forgetful->config, &err), &err);
        assert_int_equal(clb_matcher_may_end(kept), clb_matcher_may_end(forgetful));
        assert_int_equal(clb_matcher_must_end(kept), clb_matcher_must_end(forgetful));
        ends += clb_matcher_may_end(kept);
        assert_ok(clb_matcher_fill(kept, mask, &err), &err);
        assert_ok(clb_matcher_fill(forgetful, other, &err), &err);
        assert_memory_equal(mask, other, size);
        if (i + 1 < sizeof text) {
            assert_ok(clb_matcher_accept_bytes(kept, text + i, 1, &err), &err);
            assert_ok(clb_matcher_accept_bytes(forgetful, text + i, 1, &err), &err);
        }
    }
    assert_true(ends > 5 && ends < sizeof text);
    free(other);
    clb_matcher_destroy(kept);
    clb_matcher_destroy(forgetful);
    clb_grammar_release(g);
}

static void matchers_share_a_grammar_and_leave_each_other_alone(void **state)
{
    (void)state;
    clb_error err = {0};
    clb_grammar *g = parse(grammars[0]);
    clb_matcher *a = matcher(g), *b = matcher(g);
    clb_token_tree *second;
    assert_ok(clb_token_tree_create(vocab, &second, &err), &err);
    clb_matcher *c;
    assert_ok(clb_matcher_create(g, second, &c, &err), &err);
    clb_grammar_release(g); /* they hold it */
    assert_ok(clb_matcher_accept_bytes(a, "{\"x", 3, &err), &err);
    assert_ok(clb_matcher_accept_bytes(b, "[1", 2, &err), &err);
    uint64_t *of_a = calloc(clb_vocab_size(vocab) / 64 + 1, sizeof *of_a);
    assert_non_null(of_a);
    assert_ok(clb_matcher_mask(a, of_a, &err), &err);
    assert_ok(clb_matcher_mask(b, mask, &err), &err);
    assert_memory_not_equal(of_a, mask, clb_vocab_size(vocab) / 8);
    assert_ok(clb_matcher_accept_bytes(c, "{\"x", 3, &err), &err);
    assert_ok(clb_matcher_mask(c, mask, &err), &err); /* another tree: its own masks */
    assert_memory_equal(of_a, mask, clb_vocab_size(vocab) / 8);
    assert_ok(clb_matcher_accept_bytes(a, "y", 1, &err), &err);
    assert_ok(clb_matcher_mask(a, mask, &err), &err);
    assert_memory_equal(of_a, mask, clb_vocab_size(vocab) / 8);
    free(of_a);
    clb_matcher_destroy(a);
    clb_matcher_destroy(b);
    clb_matcher_destroy(c);
    clb_token_tree_destroy(second);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mask_is_what_each_token_by_itself_would_be),
        cmocka_unit_test(any_bytes_may_be_tokens),
        cmocka_unit_test(a_walk_with_true_stacks_gives_the_same),
        cmocka_unit_test(a_text_ends_where_root_ends),
        cmocka_unit_test(a_refused_token_changes_nothing),
        cmocka_unit_test(tokens_are_named_by_text_or_number),
        cmocka_unit_test(memory_and_time_do_not_grow_with_the_text),
        cmocka_unit_test(what_lies_behind_is_forgotten_when_it_grows),
        cmocka_unit_test(forgetting_changes_nothing),
        cmocka_unit_test(matchers_share_a_grammar_and_leave_each_other_alone),
    };
    return cmocka_run_group_tests(tests, load_with_mask, unload_with_mask);
}
