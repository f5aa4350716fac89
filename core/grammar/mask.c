/* Masks: which tokens may come next.
 *
 * Most of what a state allows does not depend on its stacks: within a string every token without a quote, whatever the
 * string is part of. So the states of one context are looked at over an unknown stack first; that gives a mask and the
 * places in the tree where the unknown stack was reached, and is remembered with the grammar. What the true stack
 * allows from those places on is walked each time, and is little. Whole masks are remembered by config too. */
#include <stdlib.h>
#include <string.h>

#include "grammar/internal.h"

#define MOST_POPS     1024 /* beyond it one walk with the true stacks is cheaper */
#define MOST_CONTEXTS 16

/* What states allow over an unknown stack. */
struct local_mask {
    uint32_t n_pops; /* MOST_POPS + 1: too many, there are no bits */
    uint32_t *pops;
    uint64_t bits[];
};

/* Of one grammar and one tree; under the grammar's lock. */
struct clb_mask_cache {
    const clb_token_tree *tree;
    uint64_t made_ns;
    clb_machine machine;
    clb_walk walk;
    struct local_mask **masks; /* by config of machine */
    uint32_t n_masks, cap_masks;
    uint64_t bytes;
};

static size_t n_words(const clb_token_tree *t)
{
    return (t->n_vocab + (size_t)63) / 64;
}

static void forget_masks(struct clb_mask_cache *c)
{
    for (uint32_t i = 0; i < c->n_masks; i++)
        free(c->masks[i]);
    free(c->masks);
    c->masks = NULL;
    c->n_masks = c->cap_masks = 0;
    c->bytes = 0;
    c->walk.n_open = 0;
    clb_machine_free(&c->machine);
}

void clb_mask_cache_free(struct clb_mask_cache *c)
{
    if (!c)
        return;
    forget_masks(c);
    free(c->walk.pops);
    free(c->walk.stack);
    free(c->walk.open);
    free(c);
}

/* The grammar's cache, made anew for another tree. */
static int open_cache(clb_grammar *g, const clb_token_tree *tree, struct clb_mask_cache **out, clb_error *err)
{
    struct clb_mask_cache *c = g->masks;
    if (c && (c->tree != tree || c->made_ns != tree->made_ns)) {
        clb_mask_cache_free(c);
        c = g->masks = NULL;
    }
    if (!c) {
        c = calloc(1, sizeof *c);
        if (!c)
            return CLB_NOMEM(err, "a grammar's masks");
        c->tree = tree;
        c->made_ns = tree->made_ns;
        c->walk.most_pops = MOST_POPS;
        c->walk.pops = malloc((MOST_POPS + 1) * sizeof *c->walk.pops);
        c->walk.stack = malloc((tree->max_depth + (size_t)1) * sizeof *c->walk.stack);
        if (!c->walk.pops || !c->walk.stack) {
            clb_mask_cache_free(c);
            return CLB_NOMEM(err, "a grammar's masks");
        }
        g->masks = c;
    }
    if (c->machine.g && (c->bytes > CLB_MASKS_MOST_BYTES || clb_machine_bytes(&c->machine) > CLB_MACHINE_SOFT_BYTES))
        forget_masks(c);
    if (!c->machine.g)
        CLB_TRY(clb_machine_init(&c->machine, g, err));
    c->machine.work = 0;
    *out = c;
    return COLIBRI_OK;
}

static int make_local(struct clb_mask_cache *c, uint32_t config, clb_error *err)
{
    const clb_token_tree *t = c->tree;
    const size_t words = n_words(t);
    struct local_mask *mask = calloc(1, sizeof *mask + words * sizeof *mask->bits + (MOST_POPS + 1) * sizeof(uint32_t));
    if (!mask)
        return CLB_NOMEM(err, "a grammar's masks");
    c->walk.bits = mask->bits;
    c->walk.n_pops = 0;
    const int rc = clb_tree_walk(&c->machine, t, 0, config, &c->walk, err);
    if (rc) {
        free(mask);
        return rc;
    }
    mask->n_pops = c->walk.n_pops;
    size_t size = sizeof *mask;
    if (mask->n_pops <= MOST_POPS) {
        memcpy(mask->bits + words, c->walk.pops, mask->n_pops * sizeof *c->walk.pops);
        size += words * sizeof *mask->bits + mask->n_pops * sizeof *c->walk.pops;
    }
    struct local_mask *smaller = realloc(mask, size);
    mask = smaller ? smaller : mask;
    mask->pops = (uint32_t *)(mask->bits + words);
    c->masks[config] = mask;
    c->bytes += size;
    return COLIBRI_OK;
}

static int find_local(struct clb_mask_cache *c, const uint32_t *states, uint32_t n, const struct local_mask **out,
                      clb_error *err)
{
    uint32_t config;
    CLB_TRY(clb_machine_open(&c->machine, states, n, &config, err));
    while (c->n_masks <= config) {
        CLB_TRY(clb_grow(&c->masks, c->n_masks, &c->cap_masks, sizeof *c->masks, err));
        c->masks[c->n_masks++] = NULL;
    }
    if (!c->masks[config])
        CLB_TRY(make_local(c, config, err));
    *out = c->masks[config];
    return COLIBRI_OK;
}

/* The different contexts of a config's states; false if they are more than MOST_CONTEXTS. */
static bool list_contexts(const clb_machine *m, uint32_t config, uint32_t *contexts, uint32_t *n)
{
    const clb_frame_set set = m->configs.sets[config];
    *n = 0;
    for (uint32_t i = 0; i < set.n; i++) {
        const uint32_t context = m->configs.frames[set.first + i].context;
        uint32_t k = 0;
        while (k < *n && contexts[k] != context)
            k++;
        if (k < *n)
            continue;
        if (*n == MOST_CONTEXTS)
            return false;
        contexts[(*n)++] = context;
    }
    return true;
}

static int states_of(clb_matcher *m, uint32_t context, uint32_t *n, clb_error *err)
{
    const clb_machine *machine = &m->machine;
    const clb_frame_set set = machine->configs.sets[m->config];
    *n = 0;
    for (uint32_t i = 0; i < set.n; i++) {
        const clb_frame f = machine->configs.frames[set.first + i];
        if (f.context != context)
            continue;
        CLB_TRY(clb_grow(&m->states, *n, &m->cap_states, sizeof *m->states, err));
        m->states[(*n)++] = f.state;
    }
    return COLIBRI_OK;
}

/* What the states of one context allow; *whole: they pop nearly everywhere, a walk with true stacks has to do. */
static int add_context(clb_matcher *m, struct clb_mask_cache *cache, uint32_t context, uint64_t *bits, bool *whole,
                       clb_error *err)
{
    const struct local_mask *local;
    uint32_t n, config;
    CLB_TRY(states_of(m, context, &n, err));
    CLB_TRY(find_local(cache, m->states, n, &local, err));
    *whole = local->n_pops > MOST_POPS;
    if (*whole)
        return COLIBRI_OK;
    for (size_t i = 0, words = n_words(m->tree); i < words; i++)
        bits[i] |= local->bits[i];
    if (local->n_pops == 0)
        return COLIBRI_OK;
    CLB_TRY(clb_machine_pop(&m->machine, context, &config, err));
    if (m->machine.configs.sets[config].n == 0)
        return COLIBRI_OK;
    m->walk.bits = bits;
    for (uint32_t i = 0; i < local->n_pops; i++)
        CLB_TRY(clb_tree_walk(&m->machine, m->tree, local->pops[i], config, &m->walk, err));
    return COLIBRI_OK;
}

static int fill_by_contexts(clb_matcher *m, uint64_t *bits, bool *whole, clb_error *err)
{
    struct clb_mask_cache *cache;
    uint32_t contexts[MOST_CONTEXTS], n;
    if (!list_contexts(&m->machine, m->config, contexts, &n)) {
        *whole = true;
        return COLIBRI_OK;
    }
    CLB_TRY(open_cache(m->g, m->tree, &cache, err));
    for (uint32_t i = 0; i < n && !*whole; i++)
        CLB_TRY(add_context(m, cache, contexts[i], bits, whole, err));
    return COLIBRI_OK;
}

/* Whole tokens that the grammar names. */
static void add_marks(const clb_matcher *m, uint64_t *bits)
{
    const clb_machine *machine = &m->machine;
    const clb_nfa *a = &m->g->nfa;
    const clb_frame_set set = machine->configs.sets[m->config];
    for (uint32_t i = 0; i < set.n; i++) {
        const uint32_t s = machine->configs.frames[set.first + i].state;
        if (!(a->flags[s] & CLB_STATE_MARKS))
            continue;
        for (uint32_t k = a->first[s]; k < a->first[s + 1]; k++) {
            const clb_edge *e = &a->edges[k];
            if (e->kind != CLB_EDGE_TOKEN)
                continue;
            const uint32_t token = m->resolved[e->arg];
            if (!m->g->marks[e->arg].negated) {
                clb_bit_set(bits, token);
                continue;
            }
            const uint32_t word = token / 64;
            const bool before = bits[word] >> (token % 64) & 1;
            for (uint32_t t = 0; t < m->tree->n_ids; t++)
                clb_bit_set(bits, m->tree->ids[t]);
            if (!before)
                bits[word] &= ~(UINT64_C(1) << (token % 64));
        }
    }
}

int clb_matcher_fill(clb_matcher *m, uint64_t *bits, clb_error *err)
{
    bool whole = false;
    m->machine.work = 0;
    memset(bits, 0, n_words(m->tree) * sizeof *bits);
    if (m->machine.configs.sets[m->config].n) {
        pthread_mutex_lock(&m->g->lock);
        int rc = fill_by_contexts(m, bits, &whole, err);
        pthread_mutex_unlock(&m->g->lock);
        if (!rc && whole) {
            m->walk.bits = bits;
            rc = clb_tree_walk(&m->machine, m->tree, 0, m->config, &m->walk, err);
        }
        CLB_TRY(rc);
    }
    add_marks(m, bits);
    if (m->machine.configs.sets[m->config].flags & CLB_AT_END)
        for (uint32_t i = 0; i < m->tree->n_eog; i++)
            clb_bit_set(bits, m->tree->eog[i]);
    return COLIBRI_OK;
}
