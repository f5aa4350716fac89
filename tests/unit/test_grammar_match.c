/* Grammars against a naive matcher: random grammars, random texts, every prefix.
 *
 * The naive matcher knows nothing of automata or stacks: it asks, for an expression and a place in the text, at which
 * places the expression may end, and whether it may go on beyond the text's end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar.h"
#include "support/grammar.h"
#include "text/utf8.h"

#define MOST_NODES 400
#define MOST_RULES 6
#define MOST_TEXT  24

enum kind { TEXT, CLASS, REF, SEQ, ALT, REPEAT };

struct range {
    uint32_t lo, hi;
};

struct node {
    enum kind kind;
    char text[16];
    struct range ranges[3];
    unsigned n_ranges;
    bool negated;
    unsigned rule, least, most; /* most 99: for ever */
    unsigned child[4], n_children;
};

struct grammar {
    struct node nodes[MOST_NODES];
    unsigned n_nodes, rules[MOST_RULES], n_rules;
    bool full;
};

/* ---- random grammars ---- */

static const uint32_t letters[] = {'a', 'b', 'c', 0xE9, 0x4E2D, 0x1F600, 0xEA, '"', '\n'};

static uint32_t letter(test_rand *rng)
{
    return letters[test_rand_below(rng, test_rand_below(rng, 3) ? 3 : sizeof letters / sizeof *letters)];
}

static unsigned new_node(struct grammar *g, enum kind kind)
{
    if (g->n_nodes == MOST_NODES) {
        g->full = true;
        return 0;
    }
    g->nodes[g->n_nodes] = (struct node){.kind = kind};
    return g->n_nodes++;
}

static unsigned expression(struct grammar *g, test_rand *rng, int depth)
{
    const uint32_t pick = test_rand_below(rng, depth > 3 ? 3 : 10);
    unsigned at;
    if (pick < 1) {
        at = new_node(g, TEXT);
        size_t n = 0;
        for (uint32_t i = test_rand_below(rng, 3); i > 0; i--)
            n += clb_utf8_encode(letter(rng), g->nodes[at].text + n);
        g->nodes[at].text[n] = 0;
        return at;
    }
    if (pick < 2) {
        at = new_node(g, CLASS);
        g->nodes[at].negated = test_rand_below(rng, 4) == 0;
        g->nodes[at].n_ranges = 1 + test_rand_below(rng, 3);
        for (unsigned i = 0; i < g->nodes[at].n_ranges; i++) {
            const uint32_t a = letter(rng), b = test_rand_below(rng, 2) ? a : letter(rng);
            g->nodes[at].ranges[i] = (struct range){a < b ? a : b, a < b ? b : a};
        }
        return at;
    }
    if (pick < 4) {
        at = new_node(g, REF);
        g->nodes[at].rule = test_rand_below(rng, g->n_rules);
        return at;
    }
    if (pick < 6) {
        at = new_node(g, REPEAT);
        const unsigned child = expression(g, rng, depth + 1);
        g->nodes[at].child[0] = child;
        g->nodes[at].n_children = 1;
        g->nodes[at].least = test_rand_below(rng, 3);
        g->nodes[at].most = test_rand_below(rng, 2) ? 99 : g->nodes[at].least + test_rand_below(rng, 3);
        return at;
    }
    at = new_node(g, pick < 8 ? SEQ : ALT);
    const unsigned n = 1 + test_rand_below(rng, 4);
    g->nodes[at].n_children = 0;
    for (unsigned i = 0; i < n; i++) {
        const unsigned child = expression(g, rng, depth + 1);
        g->nodes[at].child[g->nodes[at].n_children++] = child;
    }
    return at;
}

static void print_char(clb_buf *out, uint32_t c)
{
    clb_error err;
    char bytes[4];
    if (c == '"' || c == '\n')
        assert_ok(clb_buf_printf(out, &err, c == '"' ? "\\\"" : "\\n"), &err);
    else if (c == 0xE9)
        assert_ok(clb_buf_printf(out, &err, "\\xE9"), &err);
    else if (c == 0x1F600)
        assert_ok(clb_buf_printf(out, &err, "\\U0001F600"), &err);
    else if (c == 0xEA)
        assert_ok(clb_buf_printf(out, &err, "\\u00ea"), &err);
    else
        assert_ok(clb_buf_append(out, bytes, clb_utf8_encode(c, bytes), &err), &err);
}

static void print_node(const struct grammar *g, unsigned at, clb_buf *out)
{
    const struct node *n = &g->nodes[at];
    clb_error err;
    switch (n->kind) {
    case TEXT:
        clb_buf_printf(out, &err, "\"");
        for (size_t i = 0; n->text[i];) {
            uint32_t c;
            i += clb_utf8_decode(n->text + i, strlen(n->text + i), &c);
            print_char(out, c);
        }
        clb_buf_printf(out, &err, "\"");
        break;
    case CLASS:
        clb_buf_printf(out, &err, n->negated ? "[^" : "[");
        for (unsigned i = 0; i < n->n_ranges; i++) {
            print_char(out, n->ranges[i].lo);
            if (n->ranges[i].hi != n->ranges[i].lo) {
                clb_buf_printf(out, &err, "-");
                print_char(out, n->ranges[i].hi);
            }
        }
        clb_buf_printf(out, &err, "]");
        break;
    case REF:
        clb_buf_printf(out, &err, n->rule ? "rule-%u" : "root", n->rule);
        break;
    case SEQ:
    case ALT:
        clb_buf_printf(out, &err, "(");
        for (unsigned i = 0; i < n->n_children; i++) {
            if (i)
                clb_buf_printf(out, &err, n->kind == ALT ? "\n | " : " ");
            print_node(g, n->child[i], out);
        }
        clb_buf_printf(out, &err, ")");
        break;
    case REPEAT:
        print_node(g, n->child[0], out);
        if (n->most == 99)
            clb_buf_printf(out, &err, n->least == 0 ? "*" : n->least == 1 ? "+" : "{%u,}", n->least);
        else if (n->least == 0 && n->most == 1)
            clb_buf_printf(out, &err, "?");
        else if (n->least == n->most)
            clb_buf_printf(out, &err, "{%u}", n->least);
        else
            clb_buf_printf(out, &err, "{%u,%u}", n->least, n->most);
        break;
    }
}

/* ---- the naive matcher ---- */

struct place {
    uint32_t ends; /* bit i: it may end before byte i */
    bool beyond;   /* it may be unfinished where the text ends */
    bool known;
};

struct naive {
    const struct grammar *g;
    const char *text;
    unsigned n;
    struct place memo[MOST_NODES][MOST_TEXT + 1];
    bool productive[MOST_RULES];
};

static bool in_class(const struct node *n, uint32_t c)
{
    for (unsigned i = 0; i < n->n_ranges; i++)
        if (c >= n->ranges[i].lo && c <= n->ranges[i].hi)
            return !n->negated;
    return n->negated;
}

/* p[0..n) are the first bytes of a character of the class. */
static bool begins_class_char(const struct node *node, const char *p, unsigned n)
{
    for (uint32_t c = 0x80; c <= 0x10FFFF; c = c == 0xD7FF ? 0xE000 : c + 1) {
        char bytes[4];
        if (in_class(node, c) && clb_utf8_encode(c, bytes) > n && memcmp(bytes, p, n) == 0)
            return true;
    }
    return false;
}

static struct place match(struct naive *v, unsigned at, unsigned from);

static struct place match_from_all(struct naive *v, unsigned at, uint32_t places)
{
    struct place all = {0};
    for (unsigned i = 0; i <= v->n; i++)
        if (places >> i & 1) {
            const struct place p = match(v, at, i);
            all.ends |= p.ends;
            all.beyond = all.beyond || p.beyond;
        }
    return all;
}

static bool productive(const struct naive *v, unsigned at)
{
    const struct node *n = &v->g->nodes[at];
    bool any = false, all = true;
    for (unsigned i = 0; i < n->n_children; i++) {
        const bool p = productive(v, n->child[i]);
        any = any || p;
        all = all && p;
    }
    switch (n->kind) {
    case TEXT:
        return true;
    case CLASS:
        return true; /* none here is empty */
    case REF:
        return v->productive[n->rule];
    case SEQ:
        return all;
    case ALT:
        return any;
    case REPEAT:
        return n->least == 0 || any;
    }
    return false;
}

static struct place match_new(struct naive *v, unsigned at, unsigned from)
{
    const struct node *n = &v->g->nodes[at];
    const char *p = v->text + from;
    const unsigned left = v->n - from;
    struct place out = {0};
    switch (n->kind) {
    case TEXT: {
        const unsigned len = (unsigned)strlen(n->text);
        if (left >= len)
            out.ends = memcmp(p, n->text, len) == 0 ? 1u << (from + len) : 0;
        else
            out.beyond = memcmp(p, n->text, left) == 0;
        return out;
    }
    case CLASS: {
        uint32_t c;
        const size_t len = clb_utf8_decode(p, left, &c);
        if (len)
            out.ends = in_class(n, c) ? 1u << (from + len) : 0;
        else
            out.beyond = left == 0 || begins_class_char(n, p, left);
        return out;
    }
    case REF:
        return match(v, v->g->rules[n->rule], from);
    case SEQ:
        out.ends = 1u << from;
        for (unsigned i = 0; i < n->n_children; i++) {
            const struct place next = match_from_all(v, n->child[i], out.ends);
            out.ends = next.ends;
            out.beyond = out.beyond || next.beyond;
        }
        return out;
    case ALT:
        for (unsigned i = 0; i < n->n_children; i++) {
            const struct place one = match(v, n->child[i], from);
            if (!productive(v, n->child[i]))
                continue;
            out.ends |= one.ends;
            out.beyond = out.beyond || one.beyond;
        }
        return out;
    case REPEAT: {
        uint32_t reached = 1u << from;
        struct place next;
        for (unsigned i = 0; i < n->least; i++) {
            next = match_from_all(v, n->child[0], reached);
            out.beyond = out.beyond || next.beyond;
            reached = next.ends;
        }
        if (!productive(v, n->child[0]))
            return (struct place){.ends = n->least ? 0 : reached};
        for (unsigned i = n->least; i < n->most; i++) {
            next = match_from_all(v, n->child[0], reached);
            out.beyond = out.beyond || next.beyond;
            if ((reached | next.ends) == reached)
                break;
            reached |= next.ends;
        }
        out.ends = reached;
        return out;
    }
    }
    return out;
}

static struct place match(struct naive *v, unsigned at, unsigned from)
{
    struct place *memo = &v->memo[at][from];
    if (!memo->known) {
        const struct place p = productive(v, at) ? match_new(v, at, from) : (struct place){0};
        *memo = p;
        memo->known = true;
    }
    return *memo;
}

static void find_productive(struct naive *v)
{
    memset(v->productive, 0, sizeof v->productive);
    for (unsigned round = 0; round < MOST_RULES; round++)
        for (unsigned r = 0; r < v->g->n_rules; r++)
            v->productive[r] = v->productive[r] || productive(v, v->g->rules[r]);
}

/* ---- the comparison ---- */

struct counts {
    unsigned refused, compared, whole, dead, unfinished;
};

/* Every prefix of the text: viable and complete as the naive matcher says. */
static void compare(const struct grammar *g, clb_grammar *grammar, const char *gbnf, const char *text, unsigned n,
                    struct naive *v, struct counts *counts)
{
    clb_error err = {0};
    clb_matcher *m;
    assert_ok(clb_matcher_create(grammar, tree, &m, &err), &err);
    bool alive = true;
    for (unsigned i = 0; i <= n; i++) {
        memset(v->memo, 0, sizeof v->memo);
        *v = (struct naive){.g = g, .text = text, .n = i};
        find_productive(v);
        const struct place whole = match(v, g->rules[0], 0);
        const bool ends = whole.ends >> i & 1, viable = ends || whole.beyond;
        if (i && alive) {
            const int rc = clb_matcher_accept_bytes(m, text + i - 1, 1, &err);
            if (rc && rc != COLIBRI_E_USAGE)
                fail_msg("%s: %s", gbnf, err.msg);
            alive = rc == COLIBRI_OK;
        }
        if (alive != viable || (alive && clb_matcher_may_end(m) != ends))
            fail_msg("%s\ntext \"%.*s\": naive says %s%s, the matcher %s%s", gbnf, (int)i, text,
                     viable ? "viable" : "dead", ends ? ", complete" : "", alive ? "viable" : "dead",
                     alive && clb_matcher_may_end(m) ? ", complete" : "");
        counts->compared++;
        counts->whole += ends;
        counts->dead += !viable;
        counts->unfinished += viable && !ends;
        if (!viable)
            break;
        /* Nothing may follow exactly if no byte can. */
        if (clb_matcher_must_end(m))
            assert_false(whole.beyond);
    }
    clb_matcher_destroy(m);
}

/* A text that the grammar likes: bytes that keep it alive, found by trying. */
static unsigned lucky_text(clb_grammar *grammar, test_rand *rng, char *text)
{
    clb_error err;
    unsigned n = 0;
    const unsigned most = test_rand_below(rng, MOST_TEXT - 8);
    while (n < most) {
        bool found = false;
        for (int attempt = 0; attempt < 6 && !found; attempt++) {
            clb_matcher *m;
            char more[4];
            const size_t k = clb_utf8_encode(letter(rng), more);
            assert_ok(clb_matcher_create(grammar, tree, &m, &err), &err);
            memcpy(text + n, more, k);
            found = clb_matcher_accept_bytes(m, text, n + k, &err) == COLIBRI_OK;
            clb_matcher_destroy(m);
            n += found ? (unsigned)k : 0;
        }
        if (!found)
            break;
    }
    for (uint32_t i = test_rand_below(rng, 3); i > 0; i--) { /* and perhaps what it does not like */
        const size_t k = clb_utf8_encode(letter(rng), text + n);
        n += test_rand_below(rng, 2) ? (unsigned)k : 1;
    }
    return n;
}

static void random_grammars_match_as_the_naive_matcher_says(void **state)
{
    (void)state;
    test_rand rng = {20261130};
    struct grammar *g = malloc(sizeof *g);
    struct naive *v = malloc(sizeof *v);
    struct counts counts = {0};
    assert_non_null(g);
    assert_non_null(v);
    for (unsigned round = 0; round < 2500; round++) {
        clb_error err = {0};
        clb_buf gbnf = {0};
        clb_grammar *grammar;
        *g = (struct grammar){.n_rules = 1 + test_rand_below(&rng, MOST_RULES)};
        for (unsigned r = 0; r < g->n_rules; r++)
            g->rules[r] = expression(g, &rng, 0);
        if (g->full)
            continue;
        for (unsigned r = 0; r < g->n_rules; r++) {
            assert_ok(clb_buf_printf(&gbnf, &err, r ? "rule-%u ::= " : "root ::= ", r), &err);
            print_node(g, g->rules[r], &gbnf);
            assert_ok(clb_buf_printf(&gbnf, &err, " # rule %u\n", r), &err);
        }
        const int rc = clb_grammar_parse((clb_str){gbnf.data, gbnf.n}, &grammar, &err);
        if (rc) { /* left recursion, or no text at all */
            if (rc != COLIBRI_E_USAGE ||
                (!test_contains(err.msg, "left-recursive") && !test_contains(err.msg, "no text")))
                fail_msg("%s: %s", gbnf.data, err.msg);
            counts.refused++;
        } else {
            for (unsigned i = 0; i < 6; i++) {
                char text[MOST_TEXT + 4];
                const unsigned n = lucky_text(grammar, &rng, text);
                compare(g, grammar, gbnf.data, text, n, v, &counts);
            }
            clb_grammar_release(grammar);
        }
        clb_buf_free(&gbnf);
    }
    print_message("%u refused, %u prefixes: %u complete, %u dead, %u unfinished\n", counts.refused, counts.compared,
                  counts.whole, counts.dead, counts.unfinished);
    assert_true(counts.refused < 2000);
    assert_true(counts.whole > 2000 && counts.dead > 1000 && counts.unfinished > 2000);
    free(g);
    free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_grammars_match_as_the_naive_matcher_says),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
