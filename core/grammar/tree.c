/* The tokens' bytes as a tree, in preorder: a walk is one pass over an array that jumps over what is not allowed. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "grammar/internal.h"

unsigned clb_byte_group(uint8_t c)
{
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return 0;
    if (c >= '0' && c <= '9')
        return 1;
    switch (c) {
    case ' ':
        return 2;
    case '\n':
    case '\r':
    case '\t':
        return 3;
    case '"':
        return 5;
    case '\\':
        return 6;
    case '{':
    case '}':
    case '[':
    case ']':
        return 7;
    case ',':
    case ':':
        return 8;
    case '-':
    case '+':
    case '.':
    case '_':
        return 9;
    case '<':
    case '>':
    case '&':
        return 10;
    case '\'':
    case '`':
        return 11;
    default:
        return c < 0x20 || c == 0x7F ? 4 : 12;
    }
}

struct piece {
    const char *p;
    uint32_t n, id;
};

static int by_bytes(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    const int c = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);
    if (c)
        return c;
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Bytes of all tokens that text is made of. */
static int collect(clb_token_tree *t, clb_buf *bytes, struct piece **out, clb_error *err)
{
    struct piece *pieces = malloc((t->n_vocab + (size_t)1) * sizeof *pieces);
    size_t *at = malloc((t->n_vocab + (size_t)1) * sizeof *at);
    int rc = COLIBRI_OK;
    *out = pieces;
    if (!pieces || !at) {
        rc = CLB_NOMEM(err, "a tree of tokens");
        goto done;
    }
    for (uint32_t id = 0; id < t->n_vocab; id++) {
        const size_t begin = bytes->n;
        if (clb_vocab_is_eog(t->vocab, id)) {
            t->eog[t->n_eog++] = id;
            continue;
        }
        CLB_GO(clb_token_bytes(t->vocab, id, false, bytes, err));
        if (bytes->n == begin || bytes->n - begin >= UINT16_MAX)
            continue;
        at[t->n_ids] = begin;
        pieces[t->n_ids++] = (struct piece){.n = (uint32_t)(bytes->n - begin), .id = id};
    }
    for (uint32_t i = 0; i < t->n_ids; i++) /* the buffer does not move any more */
        pieces[i].p = bytes->data + at[i];
    if (t->n_ids)
        qsort(pieces, t->n_ids, sizeof *pieces, by_bytes);
done:
    free(at);
    return rc;
}

static uint32_t common(const struct piece *a, const struct piece *b)
{
    uint32_t n = 0;
    while (n < a->n && n < b->n && a->p[n] == b->p[n])
        n++;
    return n;
}

static int build(clb_token_tree *t, const struct piece *pieces, clb_error *err)
{
    uint64_t n = 2; /* the root, and the one behind the last */
    for (uint32_t i = 0; i < t->n_ids; i++) {
        n += pieces[i].n - (i ? common(&pieces[i - 1], &pieces[i]) : 0);
        if (pieces[i].n > t->max_depth)
            t->max_depth = pieces[i].n;
    }
    if (n >= UINT32_MAX)
        return clb_fail(err, COLIBRI_E_LIMIT, "a vocabulary of too many bytes");
    t->nodes = calloc(n, sizeof *t->nodes);
    uint32_t *path = calloc(t->max_depth + (size_t)1, sizeof *path); /* node of a depth */
    if (!t->nodes || !path) {
        free(path);
        return CLB_NOMEM(err, "a tree of tokens");
    }
    uint32_t depth = 0;
    t->n_nodes = 1;
    for (uint32_t i = 0; i < t->n_ids; i++) {
        const uint32_t keep = i ? common(&pieces[i - 1], &pieces[i]) : 0;
        for (; depth > keep; depth--)
            t->nodes[path[depth]].skip = t->n_nodes;
        while (depth < pieces[i].n) {
            t->nodes[t->n_nodes] =
                (clb_tree_node){.token = i, .depth = (uint16_t)(depth + 1), .byte = (uint8_t)pieces[i].p[depth]};
            path[++depth] = t->n_nodes++;
        }
        t->ids[i] = pieces[i].id;
    }
    for (;; depth--) {
        t->nodes[path[depth]].skip = t->n_nodes;
        if (depth == 0)
            break;
    }
    t->nodes[t->n_nodes].token = t->n_ids;
    free(path);
    return COLIBRI_OK;
}

/* ---- what a subtree says, if it begins between two characters ---- */

/* Continuation bytes that may follow a first byte, and how many; 0: it begins no character. */
static unsigned wide_head(uint8_t c, uint8_t *lo, uint8_t *hi)
{
    *lo = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
    *hi = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    return c >= 0xC2 && c <= 0xDF ? 1 : c >= 0xE0 && c <= 0xEF ? 2 : c >= 0xF0 && c <= 0xF4 ? 3 : 0;
}

/* Below node, `left` continuation bytes are due, the first of them in lo..hi. */
static uint16_t wide_groups(const clb_token_tree *t, uint32_t node, unsigned left, uint8_t lo, uint8_t hi)
{
    uint16_t groups = 1u << CLB_GROUP_WIDE;
    for (uint32_t c = node + 1; c < t->nodes[node].skip; c = t->nodes[c].skip) {
        if (left == 0)
            groups |= t->nodes[c].groups;
        else if (t->nodes[c].byte < lo || t->nodes[c].byte > hi)
            groups |= 1u << CLB_GROUP_BROKEN;
        else
            groups |= wide_groups(t, c, left - 1, 0x80, 0xBF);
    }
    return groups;
}

static void find_groups(clb_token_tree *t)
{
    for (uint32_t i = t->n_nodes; i-- > 1;) {
        clb_tree_node *node = &t->nodes[i];
        uint8_t lo, hi;
        const unsigned left = wide_head(node->byte, &lo, &hi);
        if (node->byte >= 0x80) {
            node->groups = left ? wide_groups(t, i, left, lo, hi) : (uint16_t)(1u << CLB_GROUP_BROKEN);
            continue;
        }
        node->groups = (uint16_t)(1u << clb_byte_group(node->byte));
        for (uint32_t c = i + 1; c < node->skip; c = t->nodes[c].skip)
            node->groups |= t->nodes[c].groups;
    }
}

int clb_token_tree_create(const clb_vocab *vocab, clb_token_tree **out, clb_error *err)
{
    clb_token_tree *t = calloc(1, sizeof *t);
    struct piece *pieces = NULL;
    clb_buf bytes = {0};
    int rc = COLIBRI_OK;
    *out = NULL;
    if (!t)
        return CLB_NOMEM(err, "a tree of tokens");
    t->vocab = vocab;
    t->n_vocab = clb_vocab_size(vocab);
    t->made_ns = clb_now_ns();
    t->ids = malloc((t->n_vocab + (size_t)1) * sizeof *t->ids);
    t->eog = malloc((t->n_vocab + (size_t)1) * sizeof *t->eog);
    if (!t->ids || !t->eog)
        CLB_GO(CLB_NOMEM(err, "a tree of tokens"));
    CLB_GO(collect(t, &bytes, &pieces, err));
    CLB_GO(build(t, pieces, err));
    find_groups(t);
    *out = t;
    t = NULL;
done:
    free(pieces);
    clb_buf_free(&bytes);
    clb_token_tree_destroy(t);
    return rc;
}

void clb_token_tree_destroy(clb_token_tree *t)
{
    if (!t)
        return;
    free(t->nodes);
    free(t->ids);
    free(t->eog);
    free(t);
}

/* ---- walks ---- */

/* The config after each byte of lo..hi is the same one, which *next then is. */
static int same_step(clb_machine *m, uint32_t config, unsigned lo, unsigned hi, uint32_t *next, bool *same,
                     clb_error *err)
{
    CLB_TRY(clb_machine_step(m, config, (uint8_t)lo, next, err));
    for (unsigned c = lo + 1; *same && c <= hi; c++) {
        uint32_t other;
        CLB_TRY(clb_machine_step(m, config, (uint8_t)c, &other, err));
        *same = other == *next;
    }
    return COLIBRI_OK;
}

/* config stays itself over every character beyond ASCII, and every byte on the way is allowed. */
static int stays_over_wide(clb_machine *m, uint32_t config, bool *stays, clb_error *err)
{
    *stays = true;
    for (unsigned c = 0xC2; *stays && c <= 0xF4; c++) {
        uint8_t lo, hi;
        uint32_t at;
        unsigned left = wide_head((uint8_t)c, &lo, &hi);
        CLB_TRY(clb_machine_step(m, config, (uint8_t)c, &at, err));
        for (; *stays && left; left--, lo = 0x80, hi = 0xBF)
            CLB_TRY(same_step(m, at, lo, hi, &at, stays, err));
        *stays = *stays && at == config;
    }
    return COLIBRI_OK;
}

static int find_closed(clb_machine *m, uint32_t config, uint32_t *closed, clb_error *err)
{
    uint32_t open = 0;
    *closed = 0;
    if (m->configs.sets[config].flags & CLB_AT_OPEN)
        return COLIBRI_OK; /* every node counts */
    for (unsigned c = 0; c < 0x80; c++) {
        uint32_t next;
        const uint32_t group = 1u << clb_byte_group((uint8_t)c);
        if (open & group)
            continue;
        CLB_TRY(clb_machine_step(m, config, (uint8_t)c, &next, err));
        if (next != config)
            open |= group;
    }
    *closed = ~open & ((1u << CLB_GROUP_WIDE) - 1);
    if (*closed) {
        bool stays;
        CLB_TRY(stays_over_wide(m, config, &stays, err));
        if (stays)
            *closed |= 1u << CLB_GROUP_WIDE;
    }
    return COLIBRI_OK;
}

/* Groups over which config stays itself; ones that loop over letters, that is: others are not worth the question. */
static int closed_groups(clb_machine *m, clb_walk *w, uint32_t config, uint32_t *out, clb_error *err)
{
    const uint32_t unknown = UINT32_MAX;
    while (w->n_closed <= config) {
        CLB_TRY(clb_grow(&w->closed, w->n_closed, &w->cap_closed, sizeof *w->closed, err));
        w->closed[w->n_closed++] = unknown;
    }
    if (w->closed[config] == unknown) {
        uint32_t next, closed = 0;
        CLB_TRY(clb_machine_step(m, config, 'e', &next, err));
        if (next == config)
            CLB_TRY(find_closed(m, config, &closed, err));
        w->closed[config] = closed;
    }
    *out = w->closed[config];
    return COLIBRI_OK;
}

int clb_tree_walk(clb_machine *m, const clb_token_tree *t, uint32_t node, uint32_t config, clb_walk *w, clb_error *err)
{
    const clb_tree_node *nodes = t->nodes;
    const uint32_t end = nodes[node].skip;
    uint32_t closed;
    /* stack: config and closed groups of each depth. */
    uint32_t *stack = w->stack;
    stack[2 * nodes[node].depth] = config;
    CLB_TRY(closed_groups(m, w, config, &closed, err));
    stack[2 * nodes[node].depth + 1] = closed;
    for (uint32_t i = node + 1; i < end;) {
        const clb_tree_node *at = &nodes[i];
        const uint32_t *above = stack + 2 * (at->depth - 1u);
        uint32_t next;
        if ((at->groups & ~above[1]) == 0) {
            for (uint32_t k = at->token, last = nodes[at->skip].token; k < last; k++)
                clb_bit_set(w->bits, t->ids[k]);
            i = at->skip;
            continue;
        }
        CLB_TRY(clb_machine_step(m, above[0], at->byte, &next, err));
        if (next == CLB_CONFIG_DEAD) {
            i = at->skip;
            continue;
        }
        for (uint32_t k = at->token, last = nodes[i + 1].token; k < last; k++)
            clb_bit_set(w->bits, t->ids[k]);
        if (at->skip > i + 1) {
            if (next == above[0]) {
                stack[2u * at->depth + 1] = above[1];
            } else {
                CLB_TRY(closed_groups(m, w, next, &closed, err));
                stack[2u * at->depth + 1] = closed;
            }
            stack[2u * at->depth] = next;
            if (w->pops && (m->configs.sets[next].flags & CLB_AT_OPEN)) {
                if (w->n_pops == w->most_pops) {
                    w->n_pops++;
                    return COLIBRI_OK;
                }
                w->pops[w->n_pops++] = i;
            }
        }
        i++;
    }
    return COLIBRI_OK;
}
