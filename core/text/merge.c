#include "text/merge.h"

#include <stdlib.h>

#define NONE UINT32_MAX

int clb_merger_add(clb_merger *m, uint32_t begin, uint32_t len, uint32_t id, clb_error *err)
{
    if (m->n == m->symbols_cap) {
        const size_t cap = m->symbols_cap ? m->symbols_cap * 2 : 64;
        clb_symbol *grown = realloc(m->symbols, cap * sizeof *grown);
        if (!grown)
            return CLB_NOMEM(err, "tokenizer symbols");
        m->symbols = grown;
        m->symbols_cap = cap;
    }
    m->symbols[m->n++] = (clb_symbol){.begin = begin, .len = len, .id = id};
    return COLIBRI_OK;
}

void clb_merger_free(clb_merger *m)
{
    free(m->symbols);
    free(m->heap);
    *m = (clb_merger){0};
}

static bool before(const clb_pair *a, const clb_pair *b)
{
    return a->order < b->order || (a->order == b->order && a->left < b->left);
}

static int heap_push(clb_merger *m, clb_pair pair, clb_error *err)
{
    if (m->heap_n == m->heap_cap) {
        const size_t cap = m->heap_cap ? m->heap_cap * 2 : 64;
        clb_pair *grown = realloc(m->heap, cap * sizeof *grown);
        if (!grown)
            return CLB_NOMEM(err, "tokenizer heap");
        m->heap = grown;
        m->heap_cap = cap;
    }
    size_t i = m->heap_n++;
    while (i > 0 && before(&pair, &m->heap[(i - 1) / 2])) {
        m->heap[i] = m->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    m->heap[i] = pair;
    return COLIBRI_OK;
}

static clb_pair heap_pop(clb_merger *m)
{
    const clb_pair top = m->heap[0], last = m->heap[--m->heap_n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= m->heap_n)
            break;
        if (child + 1 < m->heap_n && before(&m->heap[child + 1], &m->heap[child]))
            child++;
        if (!before(&m->heap[child], &last))
            break;
        m->heap[i] = m->heap[child];
        i = child;
    }
    m->heap[i] = last;
    return top;
}

static int consider(clb_merger *m, const clb_vocab *v, const char *text, uint32_t left, uint32_t right,
                    clb_pair_fn pair, clb_error *err)
{
    if (left == NONE || right == NONE)
        return COLIBRI_OK;
    const clb_symbol *a = &m->symbols[left], *b = &m->symbols[right];
    clb_pair p = {.left = left, .len = a->len + b->len};
    return pair(v, text, a, b, &p.order, &p.result) ? heap_push(m, p, err) : COLIBRI_OK;
}

int clb_merger_run(clb_merger *m, const clb_vocab *v, const char *text, clb_pair_fn pair, clb_error *err)
{
    m->heap_n = 0;
    for (size_t i = 0; i < m->n; i++) {
        m->symbols[i].prev = i ? (uint32_t)(i - 1) : NONE;
        m->symbols[i].next = i + 1 < m->n ? (uint32_t)(i + 1) : NONE;
    }
    for (size_t i = 1; i < m->n; i++)
        CLB_TRY(consider(m, v, text, (uint32_t)(i - 1), (uint32_t)i, pair, err));
    while (m->heap_n) {
        const clb_pair p = heap_pop(m);
        clb_symbol *left = &m->symbols[p.left];
        /* Symbols only grow or vanish, so an entry is stale exactly when the lengths no longer add up. */
        if (left->len == 0 || left->next == NONE || left->len + m->symbols[left->next].len != p.len)
            continue;
        clb_symbol *right = &m->symbols[left->next];
        left->len = p.len;
        left->id = p.result;
        right->len = 0;
        left->next = right->next;
        if (left->next != NONE)
            m->symbols[left->next].prev = p.left;
        CLB_TRY(consider(m, v, text, left->prev, p.left, pair, err));
        CLB_TRY(consider(m, v, text, p.left, left->next, pair, err));
    }
    return COLIBRI_OK;
}
