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

unsigned clb_wide_head(uint8_t c, uint8_t *lo, uint8_t *hi)
{
    *lo = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
    *hi = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    return c >= 0xC2 && c <= 0xDF ? 1 : c >= 0xE0 && c <= 0xEF ? 2 : c >= 0xF0 && c <= 0xF4 ? 3 : 0;
}

/* What the subtrees of node say, whose character is complete after `left` more bytes, the first of them in lo..hi:
 * groups, and the most characters. */
static void look_below(const clb_token_tree *t, uint32_t node, unsigned left, uint8_t lo, uint8_t hi, uint16_t *groups,
                       unsigned *height)
{
    for (uint32_t c = node + 1; c < t->nodes[node].skip; c = t->nodes[c].skip) {
        const clb_tree_node *child = &t->nodes[c];
        if (left == 0) {
            *groups |= child->groups;
            *height = child->height > *height ? child->height : *height;
        } else if (child->byte < lo || child->byte > hi) {
            *groups |= 1u << CLB_GROUP_BROKEN;
        } else {
            look_below(t, c, left - 1, 0x80, 0xBF, groups, height);
        }
    }
}

static void find_groups(clb_token_tree *t)
{
    for (uint32_t i = t->n_nodes; i-- > 1;) {
        clb_tree_node *node = &t->nodes[i];
        uint8_t lo, hi;
        unsigned height = 0;
        const unsigned left = clb_wide_head(node->byte, &lo, &hi);
        node->groups = (uint16_t)(1u << (node->byte < 0x80 ? clb_byte_group(node->byte)
                                         : left            ? CLB_GROUP_WIDE
                                                           : CLB_GROUP_BROKEN));
        look_below(t, i, left, lo, hi, &node->groups, &height);
        node->height = (uint8_t)(height < UINT8_MAX ? height + 1 : UINT8_MAX);
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
