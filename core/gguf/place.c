/* Where each tensor of one file lies: sizes from the geometry of its type, checked against the file and against the
 * other tensors. */
#include <stdio.h>
#include <stdlib.h>

#include "base/escape.h"
#include "gguf/internal.h"

#define SHOWN 100

int clb_gguf_bad_tensor(const clb_gguf_shard *shard, const clb_gguf_tensor *t, const char *detail, clb_error *err)
{
    char path[304], name[SHOWN];
    return clb_fail(err, COLIBRI_E_FORMAT, "%s: tensor \"%s\": %s", clb_gguf_short_path(shard->src.path, path),
                    clb_escape(t->name, name, sizeof name), detail);
}

int clb_gguf_size_tensor(const clb_gguf *g, const clb_gguf_shard *shard, clb_gguf_tensor *t, clb_error *err)
{
    char detail[200], buf[16];
    t->n_elems = 1;
    for (uint32_t d = 0; d < t->n_dims; d++) {
        if (t->ne[d] > INT64_MAX / t->n_elems)
            return clb_gguf_bad_tensor(shard, t, "the product of its dimensions overflows", err);
        t->n_elems *= t->ne[d];
    }
    uint32_t elems = 0, bytes = 0;
    if (!g->geometry(g->geometry_ctx, t->type, &elems, &bytes) || elems == 0)
        return COLIBRI_OK; /* a type we know nothing about: n_bytes stays 0 */
    if (t->ne[0] % elems) {
        snprintf(detail, sizeof detail, "%llu columns of %s, expected a multiple of %u", (unsigned long long)t->ne[0],
                 clb_gguf_type_name(t->type, buf), elems);
        return clb_gguf_bad_tensor(shard, t, detail, err);
    }
    const uint64_t blocks = t->n_elems / elems;
    if (bytes && blocks > INT64_MAX / bytes)
        return clb_gguf_bad_tensor(shard, t, "its size in bytes overflows", err);
    t->n_bytes = t->file_bytes = blocks * bytes;
    return COLIBRI_OK;
}

/* t->offset: from the data section to absolute. */
static int place_tensor(const clb_gguf_shard *shard, clb_gguf_tensor *t, clb_error *err)
{
    char detail[256];
    if (t->offset % shard->alignment) {
        snprintf(detail, sizeof detail, "data offset %llu, expected a multiple of the alignment %llu",
                 (unsigned long long)t->offset, (unsigned long long)shard->alignment);
        return clb_gguf_bad_tensor(shard, t, detail, err);
    }
    const uint64_t size = shard->src.size;
    const uint64_t need = t->n_bytes ? t->n_bytes : 1; /* unknown types have at least a byte */
    if (shard->data > size || t->offset > size - shard->data || need > size - shard->data - t->offset) {
        snprintf(detail, sizeof detail,
                 "needs %llu bytes at %llu + %llu, but the file ends at byte %llu (incomplete download?)",
                 (unsigned long long)need, (unsigned long long)shard->data, (unsigned long long)t->offset,
                 (unsigned long long)size);
        return clb_gguf_bad_tensor(shard, t, detail, err);
    }
    t->offset += shard->data;
    t->room = size - t->offset;
    return COLIBRI_OK;
}

static int by_offset(const void *a, const void *b)
{
    const clb_gguf_tensor *x = *(const clb_gguf_tensor *const *)a, *y = *(const clb_gguf_tensor *const *)b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x < y ? -1 : x > y;
}

static int check_overlaps(const clb_gguf_shard *shard, const clb_gguf_tensor *tensors, size_t n, clb_error *err)
{
    const clb_gguf_tensor **order = malloc(n * sizeof(const clb_gguf_tensor *));
    if (!order)
        return CLB_NOMEM(err, "the tensor order of a GGUF file");
    for (size_t i = 0; i < n; i++)
        order[i] = &tensors[i];
    qsort(order, n, sizeof(const clb_gguf_tensor *), by_offset);
    int rc = COLIBRI_OK;
    for (size_t i = 0; !rc && i + 1 < n; i++) {
        const clb_gguf_tensor *a = order[i], *b = order[i + 1];
        if (b->offset - a->offset >= (a->n_bytes ? a->n_bytes : 1))
            continue;
        char detail[256], name[SHOWN];
        snprintf(detail, sizeof detail, "its %llu bytes at byte %llu overlap those of \"%s\" at byte %llu",
                 (unsigned long long)a->n_bytes, (unsigned long long)a->offset, clb_escape(b->name, name, sizeof name),
                 (unsigned long long)b->offset);
        rc = clb_gguf_bad_tensor(shard, a, detail, err);
    }
    free(order);
    return rc;
}

int clb_gguf_place_tensors(const clb_gguf *g, const clb_gguf_shard *shard, clb_gguf_tensor *tensors, size_t n,
                           clb_error *err)
{
    for (size_t i = 0; i < n; i++) {
        CLB_TRY(clb_gguf_size_tensor(g, shard, &tensors[i], err));
        CLB_TRY(place_tensor(shard, &tensors[i], err));
    }
    return n > 1 ? check_overlaps(shard, tensors, n, err) : COLIBRI_OK;
}
