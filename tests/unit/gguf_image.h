/* GGUF bytes laid down field by field, right or wrong, without the writer. */
#ifndef CLB_TESTS_GGUF_IMAGE_H
#define CLB_TESTS_GGUF_IMAGE_H

#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "gguf/gguf.h"

typedef struct image {
    unsigned char b[1 << 18];
    size_t n;
} image;

static inline void put_bytes(image *im, const void *data, size_t n)
{
    assert_true(im->n + n <= sizeof im->b);
    memcpy(im->b + im->n, data, n);
    im->n += n;
}

static inline void put_int(image *im, uint64_t v, unsigned size)
{
    for (unsigned i = 0; i < size; i++) {
        const unsigned char b = (unsigned char)(v >> (8 * i));
        put_bytes(im, &b, 1);
    }
}

static inline void put_text(image *im, const char *s)
{
    put_int(im, strlen(s), 8);
    put_bytes(im, s, strlen(s));
}

static inline void put_head(image *im, uint32_t version, uint64_t n_tensors, uint64_t n_keys)
{
    im->n = 0;
    put_bytes(im, "GGUF", 4);
    put_int(im, version, 4);
    put_int(im, n_tensors, 8);
    put_int(im, n_keys, 8);
}

static inline void put_key(image *im, const char *key, uint32_t type)
{
    put_text(im, key);
    put_int(im, type, 4);
}

static inline void put_key_u32(image *im, const char *key, uint32_t v)
{
    put_key(im, key, CLB_GGUF_U32);
    put_int(im, v, 4);
}

static inline void put_key_text(image *im, const char *key, const char *v)
{
    put_key(im, key, CLB_GGUF_STRING);
    put_text(im, v);
}

static inline void put_array_head(image *im, uint32_t elem, uint64_t n)
{
    put_int(im, elem, 4);
    put_int(im, n, 8);
}

static inline void put_tensor(image *im, const char *name, uint32_t n_dims, const uint64_t *ne, uint32_t type,
                              uint64_t offset)
{
    put_text(im, name);
    put_int(im, n_dims, 4);
    for (uint32_t d = 0; d < n_dims; d++)
        put_int(im, ne[d], 8);
    put_int(im, type, 4);
    put_int(im, offset, 8);
}

static inline void put_tensor_1d(image *im, const char *name, uint64_t n, uint32_t type, uint64_t offset)
{
    put_tensor(im, name, 1, &n, type, offset);
}

static inline void put_padding(image *im, size_t alignment)
{
    while (im->n % alignment)
        put_int(im, 0, 1);
}

/* n bytes of tensor data: 0, 1, 2, ... */
static inline void put_data(image *im, size_t n)
{
    for (size_t i = 0; i < n; i++)
        put_int(im, i & 0xff, 1);
}

/* From an exactly sized heap copy, so that AddressSanitizer sees every byte read behind the end. */
typedef struct opened {
    clb_gguf *g;
    unsigned char *bytes;
    clb_error err;
    int rc;
} opened;

static inline opened open_bytes(const void *data, size_t n)
{
    opened o = {0};
    o.bytes = malloc(n ? n : 1);
    assert_non_null(o.bytes);
    memcpy(o.bytes, data, n);
    o.rc = clb_gguf_open_memory(o.bytes, n, "image", NULL, NULL, &o.g, &o.err);
    assert_true((o.rc == COLIBRI_OK) == (o.g != NULL));
    return o;
}

static inline void close_opened(opened *o)
{
    clb_gguf_close(o->g);
    free(o->bytes);
    *o = (opened){0};
}

/* Refused with this status, and the message has this text. */
static inline void expect_refused(const image *im, int status, const char *part)
{
    opened o = open_bytes(im->b, im->n);
    assert_fails(o.rc, &o.err, status, part);
    close_opened(&o);
}

static inline void expect_opens(const image *im)
{
    opened o = open_bytes(im->b, im->n);
    assert_ok(o.rc, &o.err);
    close_opened(&o);
}

#endif
