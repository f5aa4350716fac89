/* Expressions -> automata of bytes and calls.
 *
 * A call costs a stack frame, and a state inside a called rule knows nothing of what follows the call. Small rules
 * without endless repetition (characters, digits, names) are therefore copied to where they are used; longer ones
 * (strings, numbers, objects) are called, so that what is found out about their inside serves every place that uses
 * them. */
#include <stdlib.h>
#include <string.h>

#include "grammar/internal.h"
#include "text/utf8.h"

#define NOT_COPIED  UINT32_MAX
#define COPY_MOST   48u   /* states of a rule that is copied */
#define REPEAT_MOST 2048u /* states of a counted repetition; beyond it, what is repeated becomes a rule of its own */
#define CHAIN_MOST  32    /* rules within rules that are looked through to find out */
#define MEASURING   (NOT_COPIED - 1)
#define NO_EDGE     UINT32_MAX

typedef struct builder {
    const clb_gbnf_tree *t;
    clb_nfa *a;
    uint32_t *head; /* [states] first edge */
    uint32_t cap_states, cap_head, cap_flags, cap_edges, cap_start;
    uint32_t *size;    /* [rules] states of a rule if it may be copied; 0: not known yet */
    uint32_t *hoisted; /* [nodes] rule made of what is repeated, + 1 */
    clb_error *err;
} builder;

static int new_state(builder *b, uint32_t *out)
{
    clb_nfa *a = b->a;
    if (a->n_states == CLB_GRAMMAR_MOST_STATES)
        return clb_fail(b->err, COLIBRI_E_LIMIT,
                        "the grammar is too large: more than %u states (are there large counts of repetition?)",
                        CLB_GRAMMAR_MOST_STATES);
    CLB_TRY(clb_grow(&b->head, a->n_states, &b->cap_head, sizeof *b->head, b->err));
    CLB_TRY(clb_grow(&a->flags, a->n_states, &b->cap_flags, sizeof *a->flags, b->err));
    b->head[a->n_states] = NO_EDGE;
    a->flags[a->n_states] = 0;
    *out = a->n_states++;
    return COLIBRI_OK;
}

/* While building, edges of a state are a list, and arg is its link; the argument goes into `to` of a second record. */
typedef struct raw_edge {
    clb_edge e;
    uint32_t next;
} raw_edge;

static raw_edge *raw(const builder *b)
{
    return (raw_edge *)b->a->edges;
}

static int new_edge(builder *b, uint32_t from, clb_edge e)
{
    clb_nfa *a = b->a;
    if (a->n_edges == CLB_GRAMMAR_MOST_EDGES)
        return clb_fail(b->err, COLIBRI_E_LIMIT, "the grammar is too large: more than %u edges",
                        CLB_GRAMMAR_MOST_EDGES);
    CLB_TRY(clb_grow(&a->edges, a->n_edges, &b->cap_edges, sizeof(raw_edge), b->err));
    raw(b)[a->n_edges] = (raw_edge){e, b->head[from]};
    b->head[from] = a->n_edges++;
    return COLIBRI_OK;
}

static int empty_edge(builder *b, uint32_t from, uint32_t to)
{
    return new_edge(b, from, (clb_edge){.kind = CLB_EDGE_EMPTY, .to = to});
}

static int byte_edge(builder *b, uint32_t from, uint32_t to, uint8_t lo, uint8_t hi)
{
    return new_edge(b, from, (clb_edge){.kind = CLB_EDGE_BYTE, .lo = lo, .hi = hi, .to = to});
}

/* ---- characters ---- */

/* rest[k]: a state from which any k continuation bytes lead to `to`. */
struct tails {
    uint32_t to, rest[4];
};

static int tail(builder *b, struct tails *t, unsigned k, uint32_t *out)
{
    if (k == 0) {
        *out = t->to;
        return COLIBRI_OK;
    }
    if (t->rest[k] == NO_EDGE) {
        uint32_t below, s;
        CLB_TRY(tail(b, t, k - 1, &below));
        CLB_TRY(new_state(b, &s));
        CLB_TRY(byte_edge(b, s, below, 0x80, 0xBF));
        t->rest[k] = s;
    }
    *out = t->rest[k];
    return COLIBRI_OK;
}

static bool all(const uint8_t *p, unsigned n, uint8_t byte)
{
    for (unsigned i = 0; i < n; i++)
        if (p[i] != byte)
            return false;
    return true;
}

/* Byte sequences from lo to hi, both of n bytes, in order. */
static int sequences(builder *b, struct tails *t, uint32_t from, const uint8_t *lo, const uint8_t *hi, unsigned n)
{
    static const uint8_t least[4] = {0x80, 0x80, 0x80, 0x80}, most[4] = {0xBF, 0xBF, 0xBF, 0xBF};
    uint32_t mid;
    if (n == 1)
        return byte_edge(b, from, t->to, lo[0], hi[0]);
    if (lo[0] == hi[0] && !(all(lo + 1, n - 1, 0x80) && all(hi + 1, n - 1, 0xBF))) {
        CLB_TRY(new_state(b, &mid));
        CLB_TRY(byte_edge(b, from, mid, lo[0], lo[0]));
        return sequences(b, t, mid, lo + 1, hi + 1, n - 1);
    }
    unsigned first = lo[0], last = hi[0];
    if (!all(lo + 1, n - 1, 0x80)) {
        CLB_TRY(new_state(b, &mid));
        CLB_TRY(byte_edge(b, from, mid, lo[0], lo[0]));
        CLB_TRY(sequences(b, t, mid, lo + 1, most, n - 1));
        first++;
    }
    if (!all(hi + 1, n - 1, 0xBF)) {
        CLB_TRY(new_state(b, &mid));
        CLB_TRY(byte_edge(b, from, mid, hi[0], hi[0]));
        CLB_TRY(sequences(b, t, mid, least, hi + 1, n - 1));
        last--;
    }
    if (first > last)
        return COLIBRI_OK;
    CLB_TRY(tail(b, t, n - 1, &mid));
    return byte_edge(b, from, mid, (uint8_t)first, (uint8_t)last);
}

static int build_set(builder *b, const clb_gbnf_node *node, uint32_t from, uint32_t to)
{
    static const uint32_t ends[4] = {0x7F, 0x7FF, 0xFFFF, 0x10FFFF}; /* last character of n bytes */
    struct tails t = {.to = to, .rest = {NO_EDGE, NO_EDGE, NO_EDGE, NO_EDGE}};
    for (uint32_t i = 0; i < node->b; i++) {
        const clb_gbnf_range r = b->t->ranges[node->a + i];
        for (unsigned n = 1; n <= 4; n++) {
            const uint32_t begin = n == 1 ? 0 : ends[n - 2] + 1;
            const uint32_t lo = r.lo > begin ? r.lo : begin, hi = r.hi < ends[n - 1] ? r.hi : ends[n - 1];
            char lo_bytes[4], hi_bytes[4];
            if (lo > hi)
                continue;
            clb_utf8_encode(lo, lo_bytes);
            clb_utf8_encode(hi, hi_bytes);
            CLB_TRY(sequences(b, &t, from, (const uint8_t *)lo_bytes, (const uint8_t *)hi_bytes, n));
        }
    }
    return COLIBRI_OK;
}

static int build_text(builder *b, const clb_gbnf_node *node, uint32_t from, uint32_t to)
{
    if (node->b == 0)
        return empty_edge(b, from, to);
    for (uint32_t i = 0; i < node->b; i++) {
        const uint8_t c = (uint8_t)b->t->text[node->a + i];
        uint32_t next = to;
        if (i + 1 < node->b)
            CLB_TRY(new_state(b, &next));
        CLB_TRY(byte_edge(b, from, next, c, c));
        from = next;
    }
    return COLIBRI_OK;
}

/* ---- what is copied ---- */

static uint32_t node_size(builder *b, uint32_t node, int chain);

/* Rough number of states of a rule, or NOT_COPIED. A rule that leads back to itself is not copied, so that copies end:
 * of each circle at least one rule stays a call. */
static uint32_t rule_size(builder *b, uint32_t rule, int chain)
{
    if (b->size[rule] == MEASURING || chain == CHAIN_MOST) {
        b->size[rule] = NOT_COPIED;
    } else if (b->size[rule] == 0) {
        b->size[rule] = MEASURING;
        const uint32_t n = node_size(b, b->t->rules[rule].body, chain + 1);
        b->size[rule] = n <= COPY_MOST && b->size[rule] == MEASURING ? n + 1 : NOT_COPIED;
    }
    return b->size[rule];
}

static uint32_t capped_sum(uint64_t a, uint64_t b)
{
    return a + b >= MEASURING ? NOT_COPIED : (uint32_t)(a + b);
}

static uint32_t node_size(builder *b, uint32_t node, int chain)
{
    const clb_gbnf_node *n = &b->t->nodes[node];
    uint32_t sum = 0;
    switch (n->kind) {
    case CLB_GBNF_TEXT:
        return n->b;
    case CLB_GBNF_SET:
        for (uint32_t i = 0; i < n->b; i++)
            sum = capped_sum(sum, b->t->ranges[n->a + i].hi < 0x80 ? 1 : 6);
        return sum;
    case CLB_GBNF_REF:
        sum = rule_size(b, n->a, chain);
        return sum == NOT_COPIED ? 1 : sum;
    case CLB_GBNF_TOKEN:
        return 1;
    case CLB_GBNF_REPEAT:
        if (n->b == CLB_GBNF_FOREVER)
            return NOT_COPIED;
        sum = node_size(b, n->child, chain);
        if (sum == NOT_COPIED)
            return sum;
        return (uint64_t)(sum + 1) * n->b >= MEASURING ? NOT_COPIED : (sum + 1) * n->b + 1;
    case CLB_GBNF_SEQ:
    case CLB_GBNF_ALT:
        for (uint32_t c = n->child; c != CLB_GBNF_NONE && sum != NOT_COPIED; c = b->t->nodes[c].next)
            sum = capped_sum(sum, (uint64_t)node_size(b, c, chain) + 1);
        return sum;
    }
    return NOT_COPIED;
}

/* ---- expressions ---- */

static int build_node(builder *b, uint32_t node, uint32_t from, uint32_t to);

static int call(builder *b, uint32_t rule, uint32_t from, uint32_t to)
{
    return new_edge(b, from, (clb_edge){.kind = CLB_EDGE_CALL, .to = to, .arg = rule});
}

static int build_sequence(builder *b, const clb_gbnf_node *n, uint32_t from, uint32_t to)
{
    if (n->child == CLB_GBNF_NONE)
        return empty_edge(b, from, to);
    for (uint32_t c = n->child; c != CLB_GBNF_NONE; c = b->t->nodes[c].next) {
        uint32_t next = to;
        if (b->t->nodes[c].next != CLB_GBNF_NONE)
            CLB_TRY(new_state(b, &next));
        CLB_TRY(build_node(b, c, from, next));
        from = next;
    }
    return COLIBRI_OK;
}

static int new_rule(builder *b, uint32_t *rule)
{
    uint32_t s;
    CLB_TRY(new_state(b, &s));
    CLB_TRY(clb_grow(&b->a->start, b->a->n_rules, &b->cap_start, sizeof *b->a->start, b->err));
    b->a->start[b->a->n_rules] = s;
    *rule = b->a->n_rules++;
    return COLIBRI_OK;
}

static int build_rule(builder *b, uint32_t rule, uint32_t body)
{
    uint32_t end;
    CLB_TRY(new_state(b, &end));
    b->a->flags[end] = CLB_STATE_FINAL;
    return build_node(b, body, b->a->start[rule], end);
}

/* What is repeated, once. */
static int build_repeated(builder *b, uint32_t node, bool hoist, uint32_t from, uint32_t to)
{
    const uint32_t child = b->t->nodes[node].child;
    if (!hoist)
        return build_node(b, child, from, to);
    if (!b->hoisted[node]) {
        uint32_t rule;
        CLB_TRY(new_rule(b, &rule));
        CLB_TRY(build_rule(b, rule, child));
        b->hoisted[node] = rule + 1;
    }
    return call(b, b->hoisted[node] - 1, from, to);
}

static int build_repeat(builder *b, uint32_t node, uint32_t from, uint32_t to)
{
    const clb_gbnf_node *n = &b->t->nodes[node];
    const bool forever = n->b == CLB_GBNF_FOREVER;
    const uint32_t copies = forever ? n->a : n->b;
    bool hoist = false;
    if (copies > 1) {
        const uint32_t size = node_size(b, n->child, 0);
        hoist = size == NOT_COPIED ? copies > 8 && b->t->nodes[n->child].kind != CLB_GBNF_REF
                                   : size > 1 && (uint64_t)size * copies > REPEAT_MOST;
    }
    for (uint32_t i = 0; i < n->a; i++) {
        uint32_t next;
        CLB_TRY(new_state(b, &next));
        CLB_TRY(build_repeated(b, node, hoist, from, next));
        from = next;
    }
    if (forever) {
        uint32_t loop;
        CLB_TRY(new_state(b, &loop));
        CLB_TRY(empty_edge(b, from, loop));
        CLB_TRY(build_repeated(b, node, hoist, loop, loop));
        return empty_edge(b, loop, to);
    }
    for (uint32_t i = n->a; i < n->b; i++) {
        uint32_t next;
        CLB_TRY(new_state(b, &next));
        CLB_TRY(empty_edge(b, from, to));
        CLB_TRY(build_repeated(b, node, hoist, from, next));
        from = next;
    }
    return empty_edge(b, from, to);
}

static int build_node(builder *b, uint32_t node, uint32_t from, uint32_t to)
{
    const clb_gbnf_node *n = &b->t->nodes[node];
    switch (n->kind) {
    case CLB_GBNF_TEXT:
        return build_text(b, n, from, to);
    case CLB_GBNF_SET:
        return build_set(b, n, from, to);
    case CLB_GBNF_REF: {
        const uint32_t body = b->t->rules[n->a].body;
        return rule_size(b, n->a, 0) == NOT_COPIED ? call(b, n->a, from, to) : build_node(b, body, from, to);
    }
    case CLB_GBNF_TOKEN:
        return new_edge(b, from, (clb_edge){.kind = CLB_EDGE_TOKEN, .to = to, .arg = n->a});
    case CLB_GBNF_SEQ:
        return build_sequence(b, n, from, to);
    case CLB_GBNF_ALT:
        for (uint32_t c = n->child; c != CLB_GBNF_NONE; c = b->t->nodes[c].next) {
            uint32_t begin; /* a choice that loops back to its own begin must not come past the others */
            CLB_TRY(new_state(b, &begin));
            CLB_TRY(empty_edge(b, from, begin));
            CLB_TRY(build_node(b, c, begin, to));
        }
        return COLIBRI_OK;
    case CLB_GBNF_REPEAT:
        return build_repeat(b, node, from, to);
    }
    return clb_fail(b->err, COLIBRI_E_INTERNAL, "an unknown kind of grammar expression");
}

/* Lists of edges -> one array, in order of the states. */
static int pack(builder *b)
{
    clb_nfa *a = b->a;
    clb_edge *edges = malloc((a->n_edges + 1) * sizeof *edges);
    a->first = malloc((a->n_states + (size_t)1) * sizeof *a->first);
    if (!edges || !a->first) {
        free(edges);
        return CLB_NOMEM(b->err, "a grammar");
    }
    uint32_t n = 0;
    for (uint32_t s = 0; s < a->n_states; s++) {
        a->first[s] = n;
        for (uint32_t e = b->head[s]; e != NO_EDGE; e = raw(b)[e].next)
            edges[n++] = raw(b)[e].e;
    }
    a->first[a->n_states] = n;
    free(a->edges);
    a->edges = edges;
    return COLIBRI_OK;
}

int clb_nfa_build(const clb_gbnf_tree *t, clb_nfa *out, clb_error *err)
{
    *out = (clb_nfa){.root = t->root};
    builder b = {.t = t, .a = out, .err = err};
    int rc = COLIBRI_OK;
    b.size = calloc(t->n_rules + (size_t)1, sizeof *b.size);
    b.hoisted = calloc(t->n_nodes + (size_t)1, sizeof *b.hoisted);
    if (!b.size || !b.hoisted) {
        rc = CLB_NOMEM(err, "a grammar");
        goto done;
    }
    for (uint32_t i = 0; i < t->n_rules; i++) {
        uint32_t rule;
        CLB_GO(new_rule(&b, &rule));
    }
    for (uint32_t i = 0; i < t->n_rules; i++)
        CLB_GO(build_rule(&b, i, t->rules[i].body));
    rc = pack(&b);
done:
    free(b.size);
    free(b.hoisted);
    free(b.head);
    return rc;
}

void clb_nfa_free(clb_nfa *a)
{
    free(a->first);
    free(a->flags);
    free(a->edges);
    free(a->start);
    *a = (clb_nfa){0};
}
