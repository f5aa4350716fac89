#include "gguf/index.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"

static uint64_t rotl(uint64_t v, unsigned n)
{
    return v << n | v >> (64 - n);
}

static void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = rotl(v[1], 13) ^ v[0];
    v[3] = rotl(v[3], 16) ^ v[2];
    v[0] = rotl(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = rotl(v[1], 17) ^ v[2];
    v[3] = rotl(v[3], 21) ^ v[0];
    v[2] = rotl(v[2], 32);
}

/* SipHash-1-3 (Aumasson and Bernstein 2012, reduced rounds as hash tables use it). */
static uint64_t hash(const uint64_t key[2], clb_str s)
{
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du, key[0] ^ 0x6c7967656e657261u,
                     key[1] ^ 0x7465646279746573u};
    for (size_t i = 0; i <= s.n; i += 8) {
        const size_t n = s.n - i < 8 ? s.n - i : 8;
        uint64_t m = 0;
        if (n)
            memcpy(&m, s.p + i, n);
        if (n < 8)
            m |= (uint64_t)s.n << 56;
        v[3] ^= m;
        sip_round(v);
        v[0] ^= m;
    }
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

static clb_str name_at(const clb_gguf_index *index, size_t i)
{
    clb_str s;
    memcpy(&s, index->base + i * index->stride, sizeof s);
    return s;
}

/* The slot that holds name, or the free one where it belongs. */
static size_t probe(const clb_gguf_index *index, clb_str name)
{
    size_t slot = (size_t)hash(index->key, name) & index->mask;
    for (; index->slots[slot]; slot = (slot + 1) & index->mask) {
        const clb_str have = name_at(index, index->slots[slot] - 1);
        if (have.n == name.n && memcmp(have.p, name.p, name.n) == 0)
            break;
    }
    return slot;
}

int clb_gguf_index_build(clb_gguf_index *index, const void *records, size_t stride, size_t n, size_t *dup,
                         size_t *first, clb_error *err)
{
    size_t n_slots = 8;
    while (n_slots < 2 * n)
        n_slots *= 2;
    *index = (clb_gguf_index){.base = records, .stride = stride, .mask = n_slots - 1};
    if (getrandom(index->key, sizeof index->key, GRND_NONBLOCK) != (ssize_t)sizeof index->key) {
        index->key[0] = clb_now_ns();
        index->key[1] = (uint64_t)(uintptr_t)index;
    }
    index->slots = calloc(n_slots, sizeof *index->slots);
    if (!index->slots)
        return CLB_NOMEM(err, "the index of names of a GGUF file");
    *dup = *first = CLB_INDEX_NONE;
    for (size_t i = 0; i < n; i++) {
        const size_t slot = probe(index, name_at(index, i));
        if (index->slots[slot]) {
            *dup = i;
            *first = index->slots[slot] - 1;
            break;
        }
        index->slots[slot] = (uint32_t)(i + 1);
    }
    return COLIBRI_OK;
}

size_t clb_gguf_index_find(const clb_gguf_index *index, clb_str name)
{
    if (!index->slots)
        return CLB_INDEX_NONE;
    const uint32_t found = index->slots[probe(index, name)];
    return found ? found - 1 : CLB_INDEX_NONE;
}

void clb_gguf_index_free(clb_gguf_index *index)
{
    free(index->slots);
    *index = (clb_gguf_index){0};
}
