/* GBNF as it is read: what is refused and where, what is equal, and grammars made to take for ever. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "grammar/internal.h"
#include "support/grammar.h"

static int parse(const char *gbnf, clb_grammar **g, clb_error *err)
{
    return clb_grammar_parse((clb_str){gbnf, strlen(gbnf)}, g, err);
}

static bool accepts(const char *gbnf, const char *text)
{
    clb_error err = {0};
    clb_grammar *g;
    clb_matcher *m;
    assert_ok(parse(gbnf, &g, &err), &err);
    assert_ok(clb_matcher_create(g, tree, &m, &err), &err);
    const int rc = clb_matcher_accept_bytes(m, text, strlen(text), &err);
    if (rc && rc != COLIBRI_E_USAGE)
        fail_msg("%s: %s", gbnf, err.msg);
    const bool out = rc == COLIBRI_OK && clb_matcher_may_end(m);
    clb_matcher_destroy(m);
    clb_grammar_release(g);
    return out;
}

static void what_is_wrong_is_named_with_its_place(void **state)
{
    (void)state;
    static const struct {
        const char *gbnf;
        int status;
        const char *message;
    } bad[] = {
        {"", COLIBRI_E_USAGE, "no rule \"root\""},
        {"# nothing\n", COLIBRI_E_USAGE, "no rule \"root\""},
        {"a ::= \"x\"", COLIBRI_E_USAGE, "no rule \"root\""},
        {"root ::= \"a\" b\n", COLIBRI_E_USAGE, "line 1: there is no rule \"b\""},
        {"root ::= \"a\"\nroot ::= \"b\"", COLIBRI_E_USAGE, "line 2, column 5: rule \"root\" is defined twice"},
        {"root = \"a\"", COLIBRI_E_USAGE, "::= is expected"},
        {"::= \"a\"", COLIBRI_E_USAGE, "begins with its name"},
        {"root ::= \"a", COLIBRI_E_USAGE, "line 1, column 12: a literal or class is not closed"},
        {"root ::= \"a\nb\"", COLIBRI_E_USAGE, "not closed"},
        {"root ::= [a", COLIBRI_E_USAGE, "not closed"},
        {"root ::= [a-", COLIBRI_E_USAGE, "not closed"},
        {"root ::= []", COLIBRI_E_USAGE, "without characters"},
        {"root ::= [^]", COLIBRI_E_USAGE, "without characters"},
        {"root ::= [z-a]", COLIBRI_E_USAGE, "ends before it begins"},
        {"root ::= (\"a\"", COLIBRI_E_USAGE, "parenthesis is missing"},
        {"root ::= \"a\")", COLIBRI_E_USAGE, "line 1, column 13: this can neither"},
        {"root ::= *", COLIBRI_E_USAGE, "nothing before it"},
        {"root ::= {3}", COLIBRI_E_USAGE, "nothing before it"},
        {"root ::= \"a\"{", COLIBRI_E_USAGE, "number is missing"},
        {"root ::= \"a\"{2", COLIBRI_E_USAGE, "{n}, {n,} or {n,m}"},
        {"root ::= \"a\"{3,2}", COLIBRI_E_USAGE, "at least 3 and at most 2"},
        {"root ::= \"a\"{99999999999}", COLIBRI_E_LIMIT, "100000000"},
        {"root ::= \"\\q\"", COLIBRI_E_USAGE, "column 11: unknown escape"},
        {"root ::= \"\\x4\"", COLIBRI_E_USAGE, "2 hexadecimal digits"},
        {"root ::= \"\\uD800\"", COLIBRI_E_USAGE, "U+D800 is no character"},
        {"root ::= \"\\U00110000\"", COLIBRI_E_USAGE, "U+110000 is no character"},
        {"root ::= \"\xFF\"", COLIBRI_E_USAGE, "not UTF-8"},
        {"root ::= \"\xE2\x82", COLIBRI_E_USAGE, "not UTF-8"},
        {"root ::= <a", COLIBRI_E_USAGE, "not closed by >"},
        {"root ::= !a", COLIBRI_E_USAGE, "! stands before a token"},
        {"root ::= <[12>", COLIBRI_E_USAGE, "<[id]>"},
        {"root ::= root \"a\" | \"b\"", COLIBRI_E_USAGE, "rule \"root\" is left-recursive"},
        {"root ::= a\na ::= b\nb ::= c | \"x\"\nc ::= a \"y\"", COLIBRI_E_USAGE, "left-recursive"},
        {"root ::= \"x\"? root | \"y\"", COLIBRI_E_USAGE, "left-recursive"},
        {"root ::= e e root \"x\" | \"z\"\ne ::= [a-c]* f?\nf ::= \"\"", COLIBRI_E_USAGE, "left-recursive"},
        {"root ::= \"a\" b\nb ::= \"x\" b", COLIBRI_E_USAGE, "no text matches"},
        {"root ::= [^\\x00-\\U0010FFFF]", COLIBRI_E_USAGE, "no text matches"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        clb_error err = {0};
        clb_grammar *g;
        assert_fails(parse(bad[i].gbnf, &g, &err), &err, bad[i].status, bad[i].message);
        assert_null(g);
        assert_null(strchr(err.msg, '\n'));
    }
}

static void every_form_is_read(void **state)
{
    (void)state;
    static const struct {
        const char *gbnf, *yes[5], *no[5];
    } good[] = {
        {"root ::= \"a\" # comment\n  # another\n\nb-2_C ::= \"x\"", {"a"}, {"", "x", "aa"}},
        {"\r\nroot ::=\r\n \"a\" |\r\n \"b\"\r\n", {"a", "b"}, {"c", "ab"}},
        {"root ::= \"a\"\n  | \"b\"\n\n| (\"c\" \n d\n) # and\nd ::= \"d\"", {"a", "b", "cd"}, {"c", "d"}},
        {"root ::= | \"a\"", {"", "a"}, {"aa"}},
        {"root ::= \"a\" | ", {"", "a"}, {"aa"}},
        {"root ::= \"\" ()", {""}, {"a"}},
        {"root ::= \"\\n\\t\\r\\\"\\\\\\x41\\u00e9\\U0001F600\"", {"\n\t\r\"\\A\xC3\xA9\xF0\x9F\x98\x80"}, {"n"}},
        {"root ::= \"\\xE9\"", {"\xC3\xA9"}, {"\xE9"}},
        {"root ::= [\\]\\\\^-]", {"]", "\\", "^", "-"}, {"[", "_"}},
        {"root ::= [-a]", {"-", "a"}, {"b"}},
        {"root ::= [a-c-e]", {"a", "b", "-", "e"}, {"d"}},
        {"root ::= [^a-c\\n]", {"d", "\xC3\xA9", "\xF4\x8F\xBF\xBF"}, {"a", "\n", "\xED\xA0\x80", "\xF4\x90\x80\x80"}},
        {"root ::= .", {"a", "\n", "\xE4\xB8\xAD"}, {"", "ab", "\xC0\x80", "\xFF", "\xE4\xB8"}},
        {"root ::= \"ab\"*", {"", "abab"}, {"aba", "abb"}},
        {"root ::= \"a\"{2}", {"aa"}, {"a", "aaa"}},
        {"root ::= \"a\"{2,}", {"aa", "aaaaa"}, {"a"}},
        {"root ::= \"a\"{ 1 , 2 }", {"a", "aa"}, {"", "aaa"}},
        {"root ::= \"a\"{,2}", {"", "a", "aa"}, {"aaa"}},
        {"root ::= \"a\"{0}\"b\"", {"b"}, {"ab"}},
        {"root ::= (\"a\" | b)+? \"c\"\nb ::= \"b\"", {"c", "abac"}, {"ab"}},
        {"root ::= (\"x\"?)* \"y\"", {"y", "xxy"}, {"x"}},
        {"root ::= ((\"\")*)* \"y\"", {"y"}, {"yy"}},
        {"root ::= [\xE3\x81\x81-\xE3\x82\x9F]+", {"\xE3\x81\x82\xE3\x82\x84"}, {"\xE3\x82\xA0", "a"}},
        {"root ::= [\\u0000-\\uFFFF]", {"\xEF\xBF\xBF", "\x7F"}, {"\xF0\x90\x80\x80", "\xED\xA0\x80"}},
        {"root ::= a\na ::= \"(\" a \")\" | a2\na2 ::= \"x\"", {"x", "((x))"}, {"(x", "()"}},
        {"root ::= \"a\" root?", {"a", "aaaa"}, {"", "b"}},
        {"root ::= \"if\" | id\nid ::= [a-z]+", {"if", "iffy", "i"}, {"IF"}},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        for (size_t k = 0; k < 5; k++) {
            if ((good[i].yes[k] || k == 0) && !accepts(good[i].gbnf, good[i].yes[k]))
                fail_msg("%s does not accept \"%s\"", good[i].gbnf, good[i].yes[k]);
            if (good[i].no[k] && accepts(good[i].gbnf, good[i].no[k]))
                fail_msg("%s accepts \"%s\"", good[i].gbnf, good[i].no[k]);
        }
}

/* ---- hostile ---- */

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Reads the grammar and follows the text with a mask before each byte; time and memory stay in bounds whatever comes of
 * it. */
static int survive(const char *gbnf, size_t n, const char *text, double *seconds)
{
    clb_error err = {0};
    clb_grammar *g;
    clb_matcher *m = NULL;
    uint64_t *mask = calloc(clb_vocab_size(vocab) / 64 + 1, sizeof *mask);
    const double begin = cpu_seconds();
    assert_non_null(mask);
    int rc = clb_grammar_parse((clb_str){gbnf, n}, &g, &err);
    if (!rc)
        rc = clb_matcher_create(g, tree, &m, &err);
    for (size_t i = 0; !rc && text[i]; i++) {
        rc = clb_matcher_mask(m, mask, &err);
        if (!rc)
            rc = clb_matcher_accept_bytes(m, text + i, 1, &err);
        assert_true(clb_machine_bytes(&m->machine) < 2 * (uint64_t)CLB_MACHINE_MOST_BYTES);
    }
    *seconds = cpu_seconds() - begin;
    assert_true(rc == COLIBRI_OK || *err.msg);
    clb_matcher_destroy(m);
    clb_grammar_release(g);
    free(mask);
    return rc;
}

static char *repeated(const char *before, const char *part, size_t times, const char *after)
{
    clb_error err;
    clb_buf b = {0};
    assert_ok(clb_buf_printf(&b, &err, "%s", before), &err);
    for (size_t i = 0; i < times; i++)
        assert_ok(clb_buf_append(&b, part, strlen(part), &err), &err);
    assert_ok(clb_buf_printf(&b, &err, "%s", after), &err);
    return b.data;
}

static void check(const char *what, char *gbnf, const char *text, int expected)
{
    double seconds;
    const int rc = survive(gbnf, strlen(gbnf), text, &seconds);
    print_message("%-28s %-8s %.3f s\n", what, clb_status_name(rc), seconds);
    assert_int_equal(rc, expected);
    assert_true(seconds < 10); /* sanitizers included; below one without */
    free(gbnf);
}

static void hostile_grammars_end(void **state)
{
    (void)state;
    static const char as[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    check("parentheses", repeated("root ::= ", "(", 100000, ""), "", COLIBRI_E_LIMIT);
    check("parentheses allowed", repeated("root ::= ((((((((((\"a\"", ")", 10, ""), "a", COLIBRI_OK);
    check("a million", repeated("root ::= [^a]{1000000}", "", 0, ""), "", COLIBRI_E_LIMIT);
    check("a million of a million", repeated("root ::= ((\"a\"{1000000}){1000000}){1000000}", "", 0, ""), "",
          COLIBRI_E_LIMIT);
    check("nothing a million times", repeated("root ::= (\"\"{1000000}){1000000}", "", 0, ""), "", COLIBRI_E_LIMIT);
    check("a hundred thousand", repeated("root ::= \"a\"{0,100000}", "", 0, ""), as, COLIBRI_OK);
    check("counts of counts", repeated("root ::= ((\"a\"{0,50}){0,50}){0,50}", "", 0, ""), as, COLIBRI_OK);
    check("endless in endless", repeated("root ::= (((((\"a\"*)*)*)*)*)*", "", 0, ""), as, COLIBRI_OK);
    check("repetitions", repeated("root ::= \"a\"", "*", 100, ""), "", COLIBRI_E_LIMIT);
    check("many optional", repeated("root ::= ", "\"a\"? ", 2000, ""), "aaaaaaaa", COLIBRI_OK);
    check("two to the n", repeated("root ::= ", "(\"a\" | \"aa\" | \"a\") ", 60, ""), as, COLIBRI_OK);
    check("ambiguous stacks",
          repeated("root ::= s\ns ::= \"a\" s b | \"a\" s c | \"a\"\nb ::= \"b\" | \"\" \"d\"\nc ::= \"c\" | \"d\"", "",
                   0, ""),
          as, COLIBRI_OK);
    check("ambiguous pairs", repeated("root ::= \"a\" (root root)? | \"a\" root", "", 0, ""), as, COLIBRI_OK);
    check("deeper than allowed", repeated("root ::= \"a\" root \"b\" | \"c\"", "", 0, ""), as, COLIBRI_OK);
    check("long literal", repeated("root ::= \"", "abcdefghij", 100000, "\""), "", COLIBRI_E_LIMIT);
    check("large class", repeated("root ::= [", "\xC4\x80\xC6\x80\xC8\x80\xE4\xB8\x80\xE5\xB8\x80", 50000, "]+"),
          "\xC4\x80\xE4\xB8\x80", COLIBRI_OK);
    check("many classes", repeated("root ::= (", "[^\xC4\x80\xC6\x80\xE4\xB8\x80] | ", 4000, "\"x\")+"), "aaaa",
          COLIBRI_OK);
    check("no end of states", repeated("root ::= ([ab]* \"a\" [ab]{200} | [a-z]* \"b\" .{300})", "", 0, ""), as,
          COLIBRI_OK);
    clb_error err;
    clb_buf chain = {0};
    for (int i = 0; i < 20000; i++)
        assert_ok(clb_buf_printf(&chain, &err, "%s ::= r%d | \"b\" r%d\n", i ? "" : "root", i + 1, i + 1), &err);
    clb_buf_free(&chain);
    for (int i = 0; i < 20000; i++) {
        char name[16];
        snprintf(name, sizeof name, i ? "r%d" : "root", i);
        assert_ok(clb_buf_printf(&chain, &err, "%s ::= r%d | \"b\" r%d\n", name, i + 1, i + 1), &err);
    }
    assert_ok(clb_buf_printf(&chain, &err, "r20000 ::= \"a\"\n"), &err);
    check("a chain of rules", chain.data, "bbba", COLIBRI_OK);
    clb_buf wide = {0};
    assert_ok(clb_buf_printf(&wide, &err, "root ::= (r0"), &err);
    for (int i = 1; i < 3000; i++)
        assert_ok(clb_buf_printf(&wide, &err, " | r%d", i), &err);
    assert_ok(clb_buf_printf(&wide, &err, ")*\n"), &err);
    for (int i = 0; i < 3000; i++)
        assert_ok(clb_buf_printf(&wide, &err, "r%d ::= \"a\" [a-z]* \"%d\" [a-z]*\n", i, i), &err);
    check("many rules at once", wide.data, "aaaa", COLIBRI_OK);
}

static void stacks_have_a_bottom(void **state)
{
    (void)state;
    clb_error err = {0};
    clb_grammar *g;
    clb_matcher *m;
    assert_ok(parse("root ::= \"(\" root \")\" | \"x\"", &g, &err), &err);
    assert_ok(clb_matcher_create(g, tree, &m, &err), &err);
    int rc = COLIBRI_OK, n = 0;
    for (; !rc && n < 5000; n++)
        rc = clb_matcher_accept_bytes(m, "(", 1, &err);
    assert_int_equal(rc, COLIBRI_E_LIMIT);
    assert_true(test_contains(err.msg, "1000 deep"));
    assert_true(n > 900 && n < 1100);
    /* What was there before is still there. */
    assert_ok(clb_matcher_accept_bytes(m, "x)", 2, &err), &err);
    clb_matcher_destroy(m);
    clb_grammar_release(g);
}

static void random_bytes_never_do_harm(void **state)
{
    (void)state;
    static const char *const pieces[] = {"root", "::=", "\"", "[",  "]", "(", ")",  "{", "}",    "*",
                                         "+",    "?",   "|",  "\n", " ", "#", "\\", "a", "-",    "^",
                                         ",",    "1",   "<",  ">",  "!", ".", "0",  "9", "\"a\""};
    test_rand rng = {99};
    for (int round = 0; round < 20000; round++) {
        clb_error err = {0};
        clb_buf b = {0};
        clb_grammar *g;
        assert_ok(clb_buf_printf(&b, &err, "%s", test_rand_below(&rng, 4) ? "root ::= " : ""), &err);
        for (uint32_t i = test_rand_below(&rng, 24); i > 0; i--)
            assert_ok(clb_buf_printf(&b, &err, "%s", pieces[test_rand_below(&rng, sizeof pieces / sizeof *pieces)]),
                      &err);
        const int rc = clb_grammar_parse((clb_str){b.data, b.n}, &g, &err);
        assert_true(rc == COLIBRI_OK || ((rc == COLIBRI_E_USAGE || rc == COLIBRI_E_LIMIT) && *err.msg));
        clb_grammar_release(g);
        clb_buf_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_wrong_is_named_with_its_place),
        cmocka_unit_test(every_form_is_read),
        cmocka_unit_test(hostile_grammars_end),
        cmocka_unit_test(stacks_have_a_bottom),
        cmocka_unit_test(random_bytes_never_do_harm),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
