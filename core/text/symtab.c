#include "text/symtab.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"

#define K1 0x9E3779B97F4A7C15u
#define K2 0xD6E8FEB86659FD93u

uint64_t clb_hash_seed(void)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = clb_now_ns() * K1; /* early boot: worse, still not constant */
    return seed;
}

static uint64_t mix(uint64_t h, uint64_t w)
{
    h = (h ^ w) * K2;
    return h ^ (h >> 32);
}

static uint64_t hash(const char *p, size_t n, uint64_t seed)
{
    uint64_t h = seed ^ ((uint64_t)n * K1), w;
    while (n >= 8) {
        memcpy(&w, p, 8);
        h = mix(h, w);
        p += 8;
        n -= 8;
    }
    w = 0;
    memcpy(&w, p, n);
    return mix(mix(h, w), seed);
}

/* Least power of two that keeps the table at most half full. */
static uint64_t table_size(uint32_t cap)
{
    uint64_t size = 16;
    while (size < (uint64_t)cap * 2)
        size *= 2;
    return size;
}

int clb_symtab_init(clb_symtab *t, uint32_t cap, uint64_t seed, clb_error *err)
{
    *t = (clb_symtab){.cap = cap, .seed = seed};
    const uint64_t size = table_size(cap);
    if (size > UINT32_MAX)
        return clb_fail(err, COLIBRI_E_LIMIT, "vocabulary of %u strings is too large", cap);
    t->mask = (uint32_t)(size - 1);
    t->slots = malloc(size * sizeof *t->slots);
    t->strs = calloc(cap ? cap : 1, sizeof *t->strs);
    if (!t->slots || !t->strs) {
        clb_symtab_free(t);
        return CLB_NOMEM(err, "vocabulary index");
    }
    memset(t->slots, 0xff, size * sizeof *t->slots);
    return COLIBRI_OK;
}

void clb_symtab_free(clb_symtab *t)
{
    free(t->slots);
    free(t->strs);
    *t = (clb_symtab){0};
}

static uint32_t slot_of(const clb_symtab *t, const char *p, size_t n)
{
    uint32_t i = (uint32_t)hash(p, n, t->seed) & t->mask;
    while (t->slots[i] != CLB_SYM_NONE) {
        const clb_str s = t->strs[t->slots[i]];
        if (s.n == n && memcmp(s.p, p, n) == 0)
            break;
        i = (i + 1) & t->mask;
    }
    return i;
}

uint32_t clb_symtab_find(const clb_symtab *t, const char *p, size_t n)
{
    return n ? t->slots[slot_of(t, p, n)] : CLB_SYM_NONE;
}

uint32_t clb_symtab_add(clb_symtab *t, clb_str s, int hidden)
{
    const uint32_t id = t->n++;
    t->strs[id] = s;
    if (!hidden && s.n) {
        const uint32_t i = slot_of(t, s.p, s.n);
        if (t->slots[i] == CLB_SYM_NONE)
            t->slots[i] = id;
    }
    return id;
}

int clb_symtab_grow(clb_symtab *t, uint32_t more, clb_error *err)
{
    clb_symtab big;
    if (more > UINT32_MAX - t->cap)
        return clb_fail(err, COLIBRI_E_LIMIT, "vocabulary of more than %u strings", UINT32_MAX);
    CLB_TRY(clb_symtab_init(&big, t->cap + more, t->seed, err));
    memcpy(big.strs, t->strs, t->n * sizeof *t->strs);
    big.n = t->n;
    for (uint64_t i = 0; i <= t->mask; i++)
        if (t->slots[i] != CLB_SYM_NONE) {
            const clb_str s = big.strs[t->slots[i]];
            big.slots[slot_of(&big, s.p, s.n)] = t->slots[i];
        }
    clb_symtab_free(t);
    *t = big;
    return COLIBRI_OK;
}

int clb_merges_init(clb_merges *m, uint32_t cap, uint64_t seed, clb_error *err)
{
    const uint64_t size = table_size(cap);
    *m = (clb_merges){.mask = size - 1, .seed = seed};
    m->slots = malloc(size * sizeof *m->slots);
    if (!m->slots)
        return CLB_NOMEM(err, "merge table");
    for (uint64_t i = 0; i < size; i++)
        m->slots[i].key = UINT64_MAX;
    return COLIBRI_OK;
}

void clb_merges_free(clb_merges *m)
{
    free(m->slots);
    *m = (clb_merges){0};
}

static uint64_t merge_slot(const clb_merges *m, uint64_t key)
{
    uint64_t i = mix(key * K1, m->seed) & m->mask;
    while (m->slots[i].key != UINT64_MAX && m->slots[i].key != key)
        i = (i + 1) & m->mask;
    return i;
}

void clb_merges_add(clb_merges *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t result)
{
    const uint64_t key = (uint64_t)left << 32 | right;
    clb_merge *slot = &m->slots[merge_slot(m, key)];
    if (slot->key == key)
        return;
    *slot = (clb_merge){.key = key, .rank = rank, .result = result};
    m->n++;
}

const clb_merge *clb_merges_find(const clb_merges *m, uint32_t left, uint32_t right)
{
    if (left == CLB_SYM_NONE || right == CLB_SYM_NONE || !m->slots)
        return NULL;
    const clb_merge *slot = &m->slots[merge_slot(m, (uint64_t)left << 32 | right)];
    return slot->key == UINT64_MAX ? NULL : slot;
}
