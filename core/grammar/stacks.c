/* Interned sets of frames, and what is done to contexts. */
#include <stdlib.h>
#include <string.h>

#include "grammar/internal.h"

static uint32_t mix(uint32_t h, uint32_t v)
{
    h = (h ^ v) * 0x85EBCA6Bu;
    return h ^ h >> 13;
}

int clb_frame_sets_init(clb_frame_sets *s, clb_error *err)
{
    uint32_t empty;
    bool made;
    *s = (clb_frame_sets){0};
    return clb_frame_sets_intern(s, NULL, 0, 0, 0, &empty, &made, err);
}

void clb_frame_sets_free(clb_frame_sets *s)
{
    free(s->sets);
    free(s->frames);
    free(s->table);
    *s = (clb_frame_sets){0};
}

static int grow_table(clb_frame_sets *s, clb_error *err)
{
    const uint32_t size = s->table_size ? s->table_size * 2 : 256;
    uint32_t *table = calloc(size, sizeof *table);
    if (!table)
        return CLB_NOMEM(err, "a grammar's states");
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t at = s->sets[i].hash & (size - 1);
        while (table[at])
            at = (at + 1) & (size - 1);
        table[at] = i + 1;
    }
    free(s->table);
    s->table = table;
    s->table_size = size;
    return COLIBRI_OK;
}

static bool same(const clb_frame_sets *s, uint32_t set, const clb_frame *frames, uint32_t n, uint8_t flags)
{
    const clb_frame_set *x = &s->sets[set];
    return x->n == n && x->flags == flags && (n == 0 || memcmp(s->frames + x->first, frames, n * sizeof *frames) == 0);
}

int clb_frame_sets_intern(clb_frame_sets *s, const clb_frame *frames, uint32_t n, uint8_t flags, uint16_t depth,
                          uint32_t *out, bool *made, clb_error *err)
{
    uint32_t h = flags;
    for (uint32_t i = 0; i < n; i++)
        h = mix(mix(h, frames[i].state), frames[i].context);
    if (s->n * 2 >= s->table_size)
        CLB_TRY(grow_table(s, err));
    uint32_t at = h & (s->table_size - 1);
    *made = false;
    for (; s->table[at]; at = (at + 1) & (s->table_size - 1))
        if (s->sets[s->table[at] - 1].hash == h && same(s, s->table[at] - 1, frames, n, flags)) {
            *out = s->table[at] - 1;
            return COLIBRI_OK;
        }
    CLB_TRY(clb_grow(&s->sets, s->n, &s->cap, sizeof *s->sets, err));
    const uint32_t first = s->n_frames;
    for (uint32_t i = 0; i < n; i++) {
        CLB_TRY(clb_grow(&s->frames, s->n_frames, &s->cap_frames, sizeof *s->frames, err));
        s->frames[s->n_frames++] = frames[i];
    }
    s->sets[s->n] = (clb_frame_set){.first = first, .n = n, .hash = h, .depth = depth, .flags = flags};
    *out = s->n++;
    s->table[at] = s->n;
    *made = true;
    return COLIBRI_OK;
}

int clb_machine_spend(clb_machine *m, uint64_t work, clb_error *err)
{
    m->work += work;
    if (m->work > CLB_MACHINE_MOST_WORK)
        return clb_fail(err, COLIBRI_E_LIMIT, "the grammar is too ambiguous: one token takes more than %u steps",
                        CLB_MACHINE_MOST_WORK);
    return COLIBRI_OK;
}

static int intern_context(clb_machine *m, const clb_frame *frames, uint32_t n, uint8_t flags, uint32_t *out,
                          clb_error *err)
{
    bool made;
    uint16_t depth = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint16_t below = m->contexts.sets[frames[i].context].depth;
        if (below + 1 > depth)
            depth = (uint16_t)(below + 1);
    }
    if (depth > CLB_GRAMMAR_MOST_STACK)
        return clb_fail(err, COLIBRI_E_LIMIT, "the text nests rules of the grammar more than %d deep",
                        CLB_GRAMMAR_MOST_STACK);
    CLB_TRY(clb_frame_sets_intern(&m->contexts, frames, n, flags, depth, out, &made, err));
    if (!made)
        return COLIBRI_OK;
    CLB_TRY(clb_machine_fits(m, err));
    return clb_machine_spend(m, n, err);
}

int clb_context_push(clb_machine *m, uint32_t state, uint32_t below, uint32_t *out, clb_error *err)
{
    const clb_frame frame = {state, below};
    return intern_context(m, &frame, 1, 0, out, err);
}

/* ---- unions, remembered ---- */

static uint32_t union_slot(const clb_machine *m, uint32_t a, uint32_t b)
{
    uint32_t at = mix(mix(0, a), b) & (m->unions_size - 1);
    while (m->unions[at].a && (m->unions[at].a != a || m->unions[at].b != b))
        at = (at + 1) & (m->unions_size - 1);
    return at;
}

static int remember_union(clb_machine *m, uint32_t a, uint32_t b, uint32_t result, clb_error *err)
{
    if (m->n_unions * 2 >= m->unions_size) {
        const uint32_t old_size = m->unions_size, size = old_size ? old_size * 2 : 64;
        clb_union *old = m->unions, *grown = calloc(size, sizeof *grown);
        if (!grown)
            return CLB_NOMEM(err, "a grammar's states");
        m->unions = grown;
        m->unions_size = size;
        for (uint32_t i = 0; i < old_size; i++)
            if (old[i].a)
                grown[union_slot(m, old[i].a, old[i].b)] = old[i];
        free(old);
    }
    m->unions[union_slot(m, a, b)] = (clb_union){a, b, result};
    m->n_unions++;
    return COLIBRI_OK;
}

static int scratch_push(clb_machine *m, clb_frame f, clb_error *err)
{
    CLB_TRY(clb_grow(&m->scratch, m->n_scratch, &m->cap_scratch, sizeof *m->scratch, err));
    m->scratch[m->n_scratch++] = f;
    return COLIBRI_OK;
}

/* The frames of both, merged; the sets may move while deeper ones are made. */
static int merge_frames(clb_machine *m, uint32_t a, uint32_t b, clb_error *err)
{
    const clb_frame_set x = m->contexts.sets[a], y = m->contexts.sets[b];
    uint32_t i = 0, k = 0;
    CLB_TRY(clb_machine_spend(m, x.n + (uint64_t)y.n, err));
    while (i < x.n || k < y.n) {
        clb_frame f;
        if (k == y.n || (i < x.n && m->contexts.frames[x.first + i].state < m->contexts.frames[y.first + k].state)) {
            f = m->contexts.frames[x.first + i++];
        } else if (i == x.n || m->contexts.frames[x.first + i].state > m->contexts.frames[y.first + k].state) {
            f = m->contexts.frames[y.first + k++];
        } else {
            const clb_frame g = m->contexts.frames[y.first + k++];
            f = m->contexts.frames[x.first + i++];
            CLB_TRY(clb_context_union(m, f.context, g.context, &f.context, err));
        }
        CLB_TRY(scratch_push(m, f, err));
    }
    return COLIBRI_OK;
}

int clb_context_union(clb_machine *m, uint32_t a, uint32_t b, uint32_t *out, clb_error *err)
{
    if (a == b || b == CLB_CONTEXT_NONE) {
        *out = a;
        return COLIBRI_OK;
    }
    if (a == CLB_CONTEXT_NONE) {
        *out = b;
        return COLIBRI_OK;
    }
    if (a > b) {
        const uint32_t c = a;
        a = b;
        b = c;
    }
    if (m->unions_size) {
        const clb_union *known = &m->unions[union_slot(m, a, b)];
        if (known->a) {
            *out = known->result;
            return COLIBRI_OK;
        }
    }
    const uint32_t base = m->n_scratch;
    const uint8_t flags = m->contexts.sets[a].flags | m->contexts.sets[b].flags;
    int rc = merge_frames(m, a, b, err);
    if (!rc)
        rc = intern_context(m, m->n_scratch > base ? m->scratch + base : NULL, m->n_scratch - base, flags, out, err);
    m->n_scratch = base;
    CLB_TRY(rc);
    return remember_union(m, a, b, *out, err);
}
