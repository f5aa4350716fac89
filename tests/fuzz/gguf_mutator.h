/* For fuzzers whose input is a GGUF file: a mutator that knows where the fields of its header and the data lie. It is
 * defined here: one file of a program includes it. */
#ifndef TESTS_FUZZ_GGUF_MUTATOR_H
#define TESTS_FUZZ_GGUF_MUTATOR_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "gguf/gguf.h"

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);

enum { MAX_SPOTS = 256 };

struct spots {
    struct {
        size_t at, n;
    } spot[MAX_SPOTS];
    size_t n, data; /* where the header ends */
};

struct cursor {
    const uint8_t *p;
    size_t at, size;
    bool bad;
};

static uint64_t take(struct cursor *c, size_t n)
{
    uint64_t v = 0;
    if (c->bad || n > c->size - c->at) {
        c->bad = true;
        return 0;
    }
    memcpy(&v, c->p + c->at, n < 8 ? n : 8);
    c->at += n;
    return v;
}

static void skip_string(struct cursor *c)
{
    const uint64_t n = take(c, 8);
    take(c, n < c->size ? (size_t)n : c->size + 1);
}

static void note(struct spots *s, size_t at, size_t n)
{
    if (s->n < MAX_SPOTS) {
        s->spot[s->n].at = at;
        s->spot[s->n++].n = n;
    }
}

static void skip_value(struct cursor *c, struct spots *s, uint32_t type)
{
    const unsigned n = clb_gguf_vtype_size(type);
    if (n) {
        if (s)
            note(s, c->at, n);
        take(c, n);
    } else if (type == CLB_GGUF_STRING) {
        skip_string(c);
    } else if (type == CLB_GGUF_ARRAY) {
        const uint32_t elem = (uint32_t)take(c, 4);
        const uint64_t count = take(c, 8);
        for (uint64_t i = 0; i < count && !c->bad; i++)
            skip_value(c, NULL, elem);
    } else {
        c->bad = true;
    }
}

/* Scalars of keys, and dimensions, types and offsets of tensors. */
static bool survey(const uint8_t *data, size_t size, struct spots *s)
{
    struct cursor c = {data, 0, size, false};
    s->n = 0;
    take(&c, 8);
    const uint64_t n_tensors = take(&c, 8), n_keys = take(&c, 8);
    for (uint64_t i = 0; i < n_keys && !c.bad; i++) {
        skip_string(&c);
        skip_value(&c, s, (uint32_t)take(&c, 4));
    }
    for (uint64_t i = 0; i < n_tensors && !c.bad; i++) {
        skip_string(&c);
        const uint64_t n_dims = take(&c, 4);
        for (uint64_t d = 0; d < n_dims && !c.bad; d++) {
            note(s, c.at, 8);
            take(&c, 8);
        }
        note(s, c.at, 4);
        take(&c, 4);
        note(s, c.at, 8);
        take(&c, 8);
    }
    s->data = c.at;
    return !c.bad && s->n;
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static uint64_t interesting(uint64_t old, uint64_t r)
{
    static const uint64_t values[] = {0,
                                      1,
                                      2,
                                      3,
                                      7,
                                      15,
                                      16,
                                      17,
                                      31,
                                      32,
                                      33,
                                      64,
                                      255,
                                      256,
                                      4096,
                                      65535,
                                      65536,
                                      UINT64_C(1) << 20,
                                      UINT64_C(1) << 24,
                                      UINT64_C(1) << 30,
                                      INT32_MAX,
                                      UINT64_C(1) << 31,
                                      UINT32_MAX,
                                      UINT64_C(1) << 32,
                                      INT64_MAX,
                                      UINT64_MAX,
                                      0x7fc00000,
                                      0x7f800000,
                                      0xff800000,
                                      0x00000001,
                                      0x7f7fffff,
                                      0x3f800000};
    switch (r % 4) {
    case 0:
        return old + 1;
    case 1:
        return old - 1;
    case 2:
        return (r >> 2) % 2 ? old * 2 : old / 2;
    default:
        return values[(r >> 2) % (sizeof values / sizeof *values)];
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    static struct spots s;
    uint64_t state = seed;
    const uint64_t r = next_random(&state) % 16;
    if (r < 3 || size > max_size || !survey(data, size, &s))
        return LLVMFuzzerMutate(data, size, max_size);
    if (r < 12) { /* one or two fields of the header */
        for (uint64_t k = 0; k <= r % 2; k++) {
            const size_t i = next_random(&state) % s.n;
            uint64_t v = 0;
            memcpy(&v, data + s.spot[i].at, s.spot[i].n);
            v = interesting(v, next_random(&state));
            memcpy(data + s.spot[i].at, &v, s.spot[i].n);
        }
        return size;
    }
    if (s.data >= size)
        return size;
    size_t at = s.data + next_random(&state) % (size - s.data); /* weights: a run of NaN, infinity or anything */
    at &= ~(size_t)3;
    const uint32_t bits[] = {0x7fc00000, 0x7f800000, 0xff800000, 0x7c007c00,
                             0x7e007e00, 0,          0x7f7fffff, (uint32_t)next_random(&state)};
    const uint32_t value = bits[next_random(&state) % 8];
    const size_t n = 1 + next_random(&state) % (r == 12 ? 4 : 2048);
    for (size_t i = 0; i < n && at + 4 <= size; i++, at += 4)
        memcpy(data + at, &value, 4);
    return size;
}

#endif
