/* Opening and closing: one file, a split model, or bytes in memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/escape.h"
#include "gguf/internal.h"

#define NUMBERS_LEN 15 /* "-00001-of-00005" */

static int create(clb_gguf_geometry geometry, void *geometry_ctx, clb_gguf **out, clb_error *err)
{
    clb_gguf *g = calloc(1, sizeof *g);
    clb_gguf_shard *shards = calloc(1, sizeof *shards);
    if (!g || !shards) {
        free(g);
        free(shards);
        return CLB_NOMEM(err, "a GGUF handle");
    }
    g->geometry = geometry ? geometry : clb_gguf_known_geometry;
    g->geometry_ctx = geometry_ctx;
    g->shards = shards;
    g->n_shards = 1;
    *out = g;
    return COLIBRI_OK;
}

void clb_gguf_close(clb_gguf *g)
{
    if (!g)
        return;
    for (uint32_t i = 0; i < g->n_shards; i++) {
        clb_gguf_shard *shard = &g->shards[i];
        clb_gguf_source_close(&shard->src);
        clb_gguf_index_free(&shard->keys);
        free(shard->arena);
        free(shard->runs);
    }
    clb_gguf_index_free(&g->names);
    free(g->tensors);
    free(g->shards);
    free(g);
}

/* An integer key of one shard; absent: def. */
static int split_key(const clb_gguf_shard *shard, const char *key, uint64_t def, uint64_t *out, clb_error *err)
{
    const clb_gguf_value *v = clb_gguf_shard_find(shard, key);
    *out = def;
    return v ? clb_gguf_value_u64(v, shard->src.path, key, out, err) : COLIBRI_OK;
}

static int split_no_count(const clb_gguf_shard *shard, uint64_t *no, uint64_t *count, clb_error *err)
{
    CLB_TRY(split_key(shard, "split.no", 0, no, err));
    return split_key(shard, "split.count", 0, count, err);
}

/* The path of shard `no` (from 0) of `count`, made from the path of another shard of the same model; *out is NULL if
 * that path does not end in -NNNNN-of-NNNNN.gguf (.colibri for packed files). */
static int shard_path(const clb_gguf_shard *like, uint64_t no, uint64_t count, char **out, clb_error *err)
{
    const char *path = like->src.path, *extension = like->packed ? ".colibri" : ".gguf";
    const size_t n = strlen(path), tail = NUMBERS_LEN + strlen(extension);
    unsigned a, b;
    int end = 0;
    *out = NULL;
    if (n < tail || strcmp(path + n - strlen(extension), extension) != 0 ||
        sscanf(path + n - tail, "-%5u-of-%5u%n", &a, &b, &end) != 2 || end != NUMBERS_LEN)
        return COLIBRI_OK;
    if (asprintf(out, "%.*s-%05u-of-%05u%s", (int)(n - tail), path, (unsigned)no + 1, (unsigned)count, extension) < 0) {
        *out = NULL;
        return CLB_NOMEM(err, "the path of a split model's file");
    }
    return COLIBRI_OK;
}

static int refuse_later_shard(const clb_gguf_shard *shard, uint64_t no, uint64_t count, clb_error *err)
{
    const char *path = shard->src.path;
    char buf[304], buf2[304];
    char *first = NULL;
    if (count <= CLB_GGUF_MAX_SHARDS)
        CLB_TRY(shard_path(shard, 0, count, &first, err));
    const int rc = clb_fail(err, COLIBRI_E_USAGE, "%s is file %llu of %llu of a split model, open the first one: %s",
                            clb_gguf_short_path(path, buf), (unsigned long long)no + 1, (unsigned long long)count,
                            first ? clb_gguf_short_path(first, buf2) : "the file whose split.no is 0");
    free(first);
    return rc;
}

static int open_shard(clb_gguf *g, uint32_t i, const char *path, uint64_t count, clb_error *err)
{
    clb_gguf_shard *shard = &g->shards[i];
    const int rc = clb_gguf_source_open(&shard->src, path, err);
    if (rc == COLIBRI_E_NOT_FOUND)
        return clb_context(err, "file %u of %llu of the split model is missing", i + 1, (unsigned long long)count);
    if (rc)
        return rc;
    CLB_TRY(clb_gguf_shard_load(g, i, err));
    uint64_t its_no, its_count;
    CLB_TRY(split_no_count(shard, &its_no, &its_count, err));
    char buf[304];
    if (shard->packed != g->shards[0].packed)
        return clb_fail(err, COLIBRI_E_FORMAT,
                        "%s: one of packed and plain files of the same split model, expected all of "
                        "one kind",
                        clb_gguf_short_path(path, buf));
    if (its_no != i || its_count != count)
        return clb_fail(err, COLIBRI_E_FORMAT, "%s: says that it is file %llu of %llu, expected file %u of %llu",
                        clb_gguf_short_path(path, buf), (unsigned long long)its_no + 1, (unsigned long long)its_count,
                        i + 1, (unsigned long long)count);
    return COLIBRI_OK;
}

static int open_other_shards(clb_gguf *g, clb_error *err)
{
    uint64_t no, count, total;
    const char *path = g->shards[0].src.path;
    char buf[304];
    CLB_TRY(split_no_count(&g->shards[0], &no, &count, err));
    if (count > 1 && no != 0)
        return refuse_later_shard(&g->shards[0], no, count, err);
    if (count <= 1)
        return COLIBRI_OK;
    if (count > CLB_GGUF_MAX_SHARDS)
        return clb_fail(err, COLIBRI_E_LIMIT, "%s: split into %llu files, at most %u are read",
                        clb_gguf_short_path(path, buf), (unsigned long long)count, CLB_GGUF_MAX_SHARDS);
    char *own;
    CLB_TRY(shard_path(&g->shards[0], 0, count, &own, err));
    const bool fits = own && strcmp(own, path) == 0;
    free(own);
    if (!fits)
        return clb_fail(err, COLIBRI_E_FORMAT,
                        "%s: is the first of %llu files, but its name does not end in -00001-of-%05llu%s, so the "
                        "others cannot be found: give all files their original names",
                        clb_gguf_short_path(path, buf), (unsigned long long)count, (unsigned long long)count,
                        g->shards[0].packed ? ".colibri" : ".gguf");

    clb_gguf_shard *shards = realloc(g->shards, (size_t)count * sizeof *shards);
    if (!shards)
        return CLB_NOMEM(err, "the files of a split model");
    g->shards = shards;
    memset(shards + 1, 0, ((size_t)count - 1) * sizeof *shards);
    g->n_shards = (uint32_t)count;
    for (uint32_t i = 1; i < g->n_shards; i++) {
        char *next;
        CLB_TRY(shard_path(&g->shards[0], i, count, &next, err));
        const int rc = open_shard(g, i, next, count, err);
        free(next);
        if (rc)
            return rc;
    }
    CLB_TRY(split_key(&g->shards[0], "split.tensors.count", g->n_tensors, &total, err));
    if (total != g->n_tensors)
        return clb_fail(err, COLIBRI_E_FORMAT, "%s: split.tensors.count is %llu, but the %u files have %llu tensors",
                        clb_gguf_short_path(path, buf), (unsigned long long)total, g->n_shards,
                        (unsigned long long)g->n_tensors);
    return COLIBRI_OK;
}

static int index_tensors(clb_gguf *g, clb_error *err)
{
    size_t dup, first;
    CLB_TRY(clb_gguf_index_build(&g->names, g->tensors, sizeof *g->tensors, (size_t)g->n_tensors, &dup, &first, err));
    if (dup == CLB_INDEX_NONE)
        return COLIBRI_OK;
    const clb_gguf_tensor *t = &g->tensors[dup], *other = &g->tensors[first];
    const clb_gguf_shard *shard = &g->shards[t->shard];
    char name[100], path[304], path2[304];
    const char *where = clb_gguf_short_path(shard->src.path, path);
    const char *first_in =
        t->shard == other->shard ? "the file" : clb_gguf_short_path(g->shards[other->shard].src.path, path2);
    return clb_fail(err, COLIBRI_E_FORMAT, "%s: byte %llu: a second tensor is named \"%s\", the first is in %s", where,
                    (unsigned long long)((const unsigned char *)t->name.p - shard->src.block),
                    clb_escape(t->name, name, sizeof name), first_in);
}

int clb_gguf_open(const char *path, clb_gguf_geometry geometry, void *geometry_ctx, clb_gguf **out, clb_error *err)
{
    clb_gguf *g;
    *out = NULL;
    CLB_TRY(create(geometry, geometry_ctx, &g, err));
    int rc = COLIBRI_OK;
    CLB_GO(clb_gguf_source_open(&g->shards[0].src, path, err));
    CLB_GO(clb_gguf_shard_load(g, 0, err));
    CLB_GO(open_other_shards(g, err));
    CLB_GO(index_tensors(g, err));
    *out = g;
    return COLIBRI_OK;
done:
    clb_gguf_close(g);
    return rc;
}

int clb_gguf_open_memory(const void *data, size_t size, const char *name, clb_gguf_geometry geometry,
                         void *geometry_ctx, clb_gguf **out, clb_error *err)
{
    clb_gguf *g;
    uint64_t no, count;
    *out = NULL;
    CLB_TRY(create(geometry, geometry_ctx, &g, err));
    int rc = COLIBRI_OK;
    CLB_GO(clb_gguf_source_borrow(&g->shards[0].src, data, size, name, err));
    CLB_GO(clb_gguf_shard_load(g, 0, err));
    CLB_GO(split_no_count(&g->shards[0], &no, &count, err));
    if (count > 1)
        CLB_GO(clb_fail(err, COLIBRI_E_UNSUPPORTED,
                        "%s: file %llu of a model split into %llu cannot be read from memory", name,
                        (unsigned long long)no + 1, (unsigned long long)count));
    CLB_GO(index_tensors(g, err));
    *out = g;
    return COLIBRI_OK;
done:
    clb_gguf_close(g);
    return rc;
}
