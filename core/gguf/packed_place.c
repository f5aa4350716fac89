/* Where each tensor of a packed file lies: its keys, checked against the file, against each other, and against the
 * geometry of the tensors. Nothing is believed: a block that leaves the file or another block could show bytes of one
 * tensor as another's, a wrong count would be read beyond an array's end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/escape.h"
#include "gguf/internal.h"
#include "gguf/packed.h"

static int bad_key(const clb_gguf_shard *shard, const char *key, const char *detail, clb_error *err)
{
    char path[304];
    return clb_fail(err, COLIBRI_E_FORMAT, "%s: key \"%s\": %s", clb_gguf_short_path(shard->src.path, path), key,
                    detail);
}

/* The items of an array key of exactly n elements (any number if n is CLB_INDEX_NONE, then *count is it). */
static int get_array(const clb_gguf_shard *shard, const char *key, enum clb_gguf_vtype elem, size_t n,
                     const unsigned char **items, uint64_t *count, clb_error *err)
{
    char detail[160];
    const clb_gguf_value *v = clb_gguf_shard_find(shard, key);
    if (!v || v->type != CLB_GGUF_ARRAY || v->as.arr.elem != elem) {
        snprintf(detail, sizeof detail, "%s, expected an array of %s",
                 !v                          ? "missing"
                 : v->type != CLB_GGUF_ARRAY ? "not an array"
                                             : "an array of another type",
                 clb_gguf_vtype_name(elem));
        return bad_key(shard, key, detail, err);
    }
    if (n != CLB_INDEX_NONE && v->as.arr.n != n) {
        snprintf(detail, sizeof detail, "%llu elements, expected %zu", (unsigned long long)v->as.arr.n, n);
        return bad_key(shard, key, detail, err);
    }
    *items = v->as.arr.items;
    if (count)
        *count = v->as.arr.n;
    return COLIBRI_OK;
}

static int check_version(const clb_gguf_shard *shard, clb_error *err)
{
    char path[304];
    uint64_t version;
    const clb_gguf_value *v = clb_gguf_shard_find(shard, CLB_PACKED_KEY_VERSION);
    if (!v)
        return bad_key(shard, CLB_PACKED_KEY_VERSION, "missing, expected a u32", err);
    CLB_TRY(clb_gguf_value_u64(v, shard->src.path, CLB_PACKED_KEY_VERSION, &version, err));
    if (version != CLB_PACKED_VERSION)
        return clb_fail(err, COLIBRI_E_UNSUPPORTED,
                        "%s: packed format version %llu, supported is %u: pack the GGUF file again",
                        clb_gguf_short_path(shard->src.path, path), (unsigned long long)version, CLB_PACKED_VERSION);
    if (shard->alignment != CLB_PACKED_ALIGNMENT)
        return bad_key(shard, "general.alignment", "expected 4096 in a packed file", err);
    return COLIBRI_OK;
}

/* *n_sums is 0 if the file has none. */
static int find_sums(clb_gguf_shard *shard, uint64_t *n_sums, clb_error *err)
{
    static const char algorithm[] = "xxh3-64";
    char path[304], name[60];
    *n_sums = 0;
    if (!clb_gguf_shard_find(shard, CLB_PACKED_KEY_CHECKSUMS))
        return COLIBRI_OK;
    const clb_gguf_value *v = clb_gguf_shard_find(shard, CLB_PACKED_KEY_CHECKSUM);
    if (!v || v->type != CLB_GGUF_STRING)
        return bad_key(shard, CLB_PACKED_KEY_CHECKSUM, "missing or not a string", err);
    if (v->as.str.n != sizeof algorithm - 1 || memcmp(v->as.str.p, algorithm, sizeof algorithm - 1) != 0)
        return clb_fail(err, COLIBRI_E_UNSUPPORTED, "%s: checksums of kind \"%s\", supported is \"%s\"",
                        clb_gguf_short_path(shard->src.path, path), clb_escape(v->as.str, name, sizeof name),
                        algorithm);
    return get_array(shard, CLB_PACKED_KEY_CHECKSUMS, CLB_GGUF_U64, CLB_INDEX_NONE, &shard->sums, n_sums, err);
}

static int by_run_offset(const void *a, const void *b)
{
    const clb_packed_run *const *x = a, *const *y = b;
    return ((*x)->offset > (*y)->offset) - ((*x)->offset < (*y)->offset);
}

static int check_run_overlaps(const clb_gguf_shard *shard, clb_error *err)
{
    const size_t n = shard->n_runs;
    const clb_packed_run **order = malloc((n + 1) * sizeof(const clb_packed_run *));
    if (!order)
        return CLB_NOMEM(err, "the blocks of a packed file");
    for (size_t i = 0; i < n; i++)
        order[i] = &shard->runs[i];
    qsort(order, n, sizeof(const clb_packed_run *), by_run_offset);
    int rc = COLIBRI_OK;
    for (size_t i = 0; !rc && i + 1 < n; i++)
        if (order[i + 1]->offset - order[i]->offset < order[i]->bytes) {
            char detail[160];
            snprintf(detail, sizeof detail, "runs %zu and %zu overlap", (size_t)(order[i] - shard->runs),
                     (size_t)(order[i + 1] - shard->runs));
            rc = bad_key(shard, CLB_PACKED_KEY_RUN_OFFSETS, detail, err);
        }
    free(order);
    return rc;
}

static int read_runs(clb_gguf_shard *shard, clb_error *err)
{
    const unsigned char *offsets, *bytes, *blocks;
    uint64_t n, n_sums, sum = 0;
    char detail[200];
    CLB_TRY(get_array(shard, CLB_PACKED_KEY_RUN_OFFSETS, CLB_GGUF_U64, CLB_INDEX_NONE, &offsets, &n, err));
    if (n > shard->n_tensors)
        return bad_key(shard, CLB_PACKED_KEY_RUN_OFFSETS, "more runs than tensors", err);
    CLB_TRY(get_array(shard, CLB_PACKED_KEY_RUN_BYTES, CLB_GGUF_U64, (size_t)n, &bytes, NULL, err));
    CLB_TRY(get_array(shard, CLB_PACKED_KEY_BLOCK_BYTES, CLB_GGUF_U64, (size_t)n, &blocks, NULL, err));
    CLB_TRY(find_sums(shard, &n_sums, err));
    shard->runs = calloc((size_t)n + 1, sizeof *shard->runs);
    if (!shard->runs)
        return CLB_NOMEM(err, "the blocks of a packed file");
    shard->n_runs = (uint32_t)n;
    const uint64_t size = shard->src.size;
    for (uint64_t i = 0; i < n; i++) {
        clb_packed_run *r = &shard->runs[i];
        *r = (clb_packed_run){clb_le64(offsets + 8 * i), clb_le64(bytes + 8 * i), clb_le64(blocks + 8 * i), sum};
        if (r->offset % CLB_PACKED_ALIGNMENT || r->bytes == 0 || r->block == 0) {
            snprintf(detail, sizeof detail,
                     "run %llu: %llu bytes in blocks of %llu at %llu, expected more than 0 bytes at "
                     "a multiple of %u",
                     (unsigned long long)i, (unsigned long long)r->bytes, (unsigned long long)r->block,
                     (unsigned long long)r->offset, CLB_PACKED_ALIGNMENT);
            return bad_key(shard, CLB_PACKED_KEY_RUN_OFFSETS, detail, err);
        }
        if (shard->data > size || r->offset > size - shard->data || r->bytes > size - shard->data - r->offset) {
            snprintf(detail, sizeof detail,
                     "run %llu needs %llu bytes at %llu + %llu, but the file ends at byte %llu (incomplete copy?)",
                     (unsigned long long)i, (unsigned long long)r->bytes, (unsigned long long)shard->data,
                     (unsigned long long)r->offset, (unsigned long long)size);
            return bad_key(shard, CLB_PACKED_KEY_RUN_OFFSETS, detail, err);
        }
        r->offset += shard->data;
        const uint64_t n_blocks = (r->bytes - 1) / r->block + 1;
        if (shard->sums && n_blocks > n_sums - sum)
            return bad_key(shard, CLB_PACKED_KEY_CHECKSUMS, "fewer checksums than blocks", err);
        sum += n_blocks; /* each run lies in the file, and the number of runs is bounded by the header: no overflow */
    }
    if (shard->sums && sum != n_sums)
        return bad_key(shard, CLB_PACKED_KEY_CHECKSUMS, "more checksums than blocks", err);
    return check_run_overlaps(shard, err);
}

/* t->offset: from the data section to absolute, which fits: the run contains it. */
static int place_in_run(const clb_gguf_shard *shard, clb_gguf_tensor *t, unsigned layout, bool taken, clb_error *err)
{
    const clb_packed_run *run = &shard->runs[t->run];
    const bool x16 = layout & CLB_PACKED_X16;
    const uint64_t n_rows = t->n_elems / t->ne[0], row_bytes = t->n_bytes / n_rows;
    char detail[256];
    if (t->n_bytes == 0 || t->n_bytes > shard->src.size || row_bytes > UINT64_MAX >> 8)
        return clb_gguf_bad_tensor(shard, t, t->n_bytes ? "larger than the file" : "of a type without known size", err);
    if (x16 && (t->n_dims < 2 || t->ne[3] != 1 || (t->ne[2] != 1 && !(layout & CLB_PACKED_EXPERTS))))
        return clb_gguf_bad_tensor(shard, t, "only matrices can be in groups of 16 rows", err);
    const uint64_t begin = run->offset - shard->data;
    if (t->offset < begin || t->offset - begin >= run->bytes)
        return clb_gguf_bad_tensor(shard, t, "does not begin in its run", err);
    const uint64_t at = t->offset - begin;
    t->packed = x16;
    if (!(layout & CLB_PACKED_EXPERTS)) {
        t->file_bytes = clb_packed_rows_bytes(row_bytes, n_rows, x16);
        if (taken)
            return clb_gguf_bad_tensor(shard, t, "another tensor is in the same run", err);
        if (at != 0 || run->bytes != t->file_bytes || run->block != clb_packed_unit(row_bytes, x16)) {
            snprintf(detail, sizeof detail, "its run has %llu bytes in blocks of %llu, expected %llu in blocks of %llu",
                     (unsigned long long)run->bytes, (unsigned long long)run->block, (unsigned long long)t->file_bytes,
                     (unsigned long long)clb_packed_unit(row_bytes, x16));
            return clb_gguf_bad_tensor(shard, t, detail, err);
        }
    } else {
        const uint64_t n = t->ne[2];
        if (t->n_dims != 3)
            return clb_gguf_bad_tensor(shard, t, "experts have three dimensions", err);
        t->file_bytes = clb_packed_rows_bytes(row_bytes, t->ne[1], x16);
        if (run->block % CLB_PACKED_ALIGNMENT || run->bytes % n || run->bytes / n != run->block ||
            at % CLB_PACKED_PART || at > run->block || t->file_bytes > run->block - at) {
            snprintf(detail, sizeof detail,
                     "its part of %llu bytes at %llu does not fit blocks of %llu bytes for %llu "
                     "experts in a run of %llu",
                     (unsigned long long)t->file_bytes, (unsigned long long)at, (unsigned long long)run->block,
                     (unsigned long long)n, (unsigned long long)run->bytes);
            return clb_gguf_bad_tensor(shard, t, detail, err);
        }
        t->expert_stride = t->block_bytes = run->block;
        t->block_offset = run->offset;
    }
    t->offset += shard->data;
    t->room = shard->src.size - t->offset;
    return COLIBRI_OK;
}

static int by_offset(const void *a, const void *b)
{
    const clb_gguf_tensor *x = *(const clb_gguf_tensor *const *)a, *y = *(const clb_gguf_tensor *const *)b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Parts inside blocks; runs do not overlap each other. */
static int check_part_overlaps(const clb_gguf_shard *shard, const clb_gguf_tensor *tensors, size_t n, clb_error *err)
{
    const clb_gguf_tensor **order = malloc((n + 1) * sizeof(const clb_gguf_tensor *));
    if (!order)
        return CLB_NOMEM(err, "the tensor order of a packed file");
    for (size_t i = 0; i < n; i++)
        order[i] = &tensors[i];
    qsort(order, n, sizeof(const clb_gguf_tensor *), by_offset);
    int rc = COLIBRI_OK;
    for (size_t i = 0; !rc && i + 1 < n; i++) {
        const clb_gguf_tensor *a = order[i], *b = order[i + 1];
        if (a->run == b->run && (b->offset - a->offset < a->file_bytes || !a->expert_stride || !b->expert_stride))
            rc = clb_gguf_bad_tensor(shard, a, "its part of a block overlaps another tensor's", err);
    }
    free(order);
    return rc;
}

static int check_marks(const clb_gguf_shard *shard, clb_error *err)
{
    const unsigned char *types, *marks;
    uint64_t n;
    CLB_TRY(get_array(shard, CLB_PACKED_KEY_TYPES, CLB_GGUF_U32, CLB_INDEX_NONE, &types, &n, err));
    return get_array(shard, CLB_PACKED_KEY_MARKS, CLB_GGUF_U64, (size_t)n, &marks, NULL, err);
}

int clb_packed_place_tensors(const clb_gguf *g, clb_gguf_shard *shard, clb_gguf_tensor *tensors, size_t n,
                             clb_error *err)
{
    const unsigned char *layouts, *runs;
    CLB_TRY(check_version(shard, err));
    CLB_TRY(get_array(shard, CLB_PACKED_KEY_LAYOUTS, CLB_GGUF_U8, n, &layouts, NULL, err));
    CLB_TRY(get_array(shard, CLB_PACKED_KEY_RUNS, CLB_GGUF_U32, n, &runs, NULL, err));
    CLB_TRY(check_marks(shard, err));
    CLB_TRY(read_runs(shard, err));
    unsigned char *taken = calloc((size_t)shard->n_runs + 1, 1);
    if (!taken)
        return CLB_NOMEM(err, "the blocks of a packed file");
    int rc = COLIBRI_OK;
    for (size_t i = 0; i < n; i++) {
        clb_gguf_tensor *t = &tensors[i];
        CLB_GO(clb_gguf_size_tensor(g, shard, t, err));
        t->run = clb_le32(runs + 4 * i);
        if (t->run >= shard->n_runs || layouts[i] > (CLB_PACKED_X16 | CLB_PACKED_EXPERTS))
            CLB_GO(clb_gguf_bad_tensor(shard, t, "of an unknown layout, or in a run that is not there", err));
        CLB_GO(place_in_run(shard, t, layouts[i], taken[t->run], err));
        taken[t->run] = 1;
    }
    for (uint32_t r = 0; r < shard->n_runs; r++)
        if (!taken[r])
            CLB_GO(bad_key(shard, CLB_PACKED_KEY_RUNS, "a run without a tensor", err));
    rc = check_part_overlaps(shard, tensors, n, err);
done:
    free(taken);
    return rc;
}
