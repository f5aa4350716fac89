/* What callers ask an open handle: counts, lookups, tensor bytes, typed values. */
#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/escape.h"
#include "gguf/internal.h"

uint32_t clb_gguf_version(const clb_gguf *g)
{
    return g->shards[0].version;
}

uint64_t clb_gguf_alignment(const clb_gguf *g)
{
    return g->shards[0].alignment;
}

uint32_t clb_gguf_n_shards(const clb_gguf *g)
{
    return g->n_shards;
}

const char *clb_gguf_shard_path(const clb_gguf *g, uint32_t shard)
{
    assert(shard < g->n_shards);
    return g->shards[shard].src.path;
}

uint64_t clb_gguf_shard_size(const clb_gguf *g, uint32_t shard)
{
    assert(shard < g->n_shards);
    return g->shards[shard].src.size;
}

int clb_gguf_shard_fd(const clb_gguf *g, uint32_t shard)
{
    assert(shard < g->n_shards);
    return g->shards[shard].src.fd;
}

uint64_t clb_gguf_n_keys(const clb_gguf *g)
{
    return g->shards[0].n_keys;
}

clb_str clb_gguf_key(const clb_gguf *g, uint64_t i)
{
    assert(i < g->shards[0].n_keys);
    return g->shards[0].entries[i].key;
}

const clb_gguf_value *clb_gguf_value_at(const clb_gguf *g, uint64_t i)
{
    assert(i < g->shards[0].n_keys);
    return &g->shards[0].entries[i].value;
}

const clb_gguf_value *clb_gguf_shard_find(const clb_gguf_shard *shard, const char *key)
{
    const size_t i = clb_gguf_index_find(&shard->keys, (clb_str){key, strlen(key)});
    return i == CLB_INDEX_NONE ? NULL : &shard->entries[i].value;
}

const clb_gguf_value *clb_gguf_find(const clb_gguf *g, const char *key)
{
    return clb_gguf_shard_find(&g->shards[0], key);
}

uint64_t clb_gguf_n_tensors(const clb_gguf *g)
{
    return g->n_tensors;
}

const clb_gguf_tensor *clb_gguf_tensor_at(const clb_gguf *g, uint64_t i)
{
    assert(i < g->n_tensors);
    return &g->tensors[i];
}

const clb_gguf_tensor *clb_gguf_find_tensor(const clb_gguf *g, const char *name)
{
    const size_t i = clb_gguf_index_find(&g->names, (clb_str){name, strlen(name)});
    return i == CLB_INDEX_NONE ? NULL : &g->tensors[i];
}

int clb_gguf_read(const clb_gguf *g, const clb_gguf_tensor *t, uint64_t offset, void *buf, size_t size, clb_error *err)
{
    const clb_gguf_source *src = &g->shards[t->shard].src;
    const uint64_t end = t->n_bytes ? t->file_bytes : t->room;
    const uint64_t within = t->expert_stride ? offset % t->expert_stride : offset;
    if (within > end || size > end - within || (t->expert_stride && offset / t->expert_stride >= t->ne[2])) {
        char path[304], name[100];
        return clb_fail(err, COLIBRI_E_INTERNAL, "%s: reading %zu bytes at %llu of tensor \"%s\", which has %llu%s",
                        clb_gguf_short_path(src->path, path), size, (unsigned long long)offset,
                        clb_escape(t->name, name, sizeof name), (unsigned long long)end,
                        t->expert_stride ? " per expert" : "");
    }
    return clb_gguf_source_read(src, t->offset + offset, buf, size, err);
}

/* ---- value types ------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    unsigned char size;
    bool is_signed, is_integer;
} vtypes[] = {
    [CLB_GGUF_U8] = {"u8", 1, false, true},          [CLB_GGUF_I8] = {"i8", 1, true, true},
    [CLB_GGUF_U16] = {"u16", 2, false, true},        [CLB_GGUF_I16] = {"i16", 2, true, true},
    [CLB_GGUF_U32] = {"u32", 4, false, true},        [CLB_GGUF_I32] = {"i32", 4, true, true},
    [CLB_GGUF_F32] = {"f32", 4, false, false},       [CLB_GGUF_BOOL] = {"bool", 1, false, false},
    [CLB_GGUF_STRING] = {"string", 0, false, false}, [CLB_GGUF_ARRAY] = {"array", 0, false, false},
    [CLB_GGUF_U64] = {"u64", 8, false, true},        [CLB_GGUF_I64] = {"i64", 8, true, true},
    [CLB_GGUF_F64] = {"f64", 8, false, false},
};

bool clb_gguf_vtype_known(uint32_t type)
{
    return type < sizeof vtypes / sizeof *vtypes;
}

const char *clb_gguf_vtype_name(uint32_t type)
{
    return clb_gguf_vtype_known(type) ? vtypes[type].name : "unknown";
}

unsigned clb_gguf_vtype_size(uint32_t type)
{
    return clb_gguf_vtype_known(type) ? vtypes[type].size : 0;
}

/* ---- typed getters ---------------------------------------------------------------------------------- */

static int wrong_type(const char *file, const char *key, const clb_gguf_value *v, const char *expected, clb_error *err)
{
    char path[304];
    return clb_fail(err, COLIBRI_E_FORMAT, "%s: key \"%s\" is of type %s, expected %s", clb_gguf_short_path(file, path),
                    key, clb_gguf_vtype_name(v->type), expected);
}

static int absent(const clb_gguf *g, const char *key, clb_error *err)
{
    char path[304];
    return clb_fail(err, COLIBRI_E_NOT_FOUND, "%s: has no key \"%s\"", clb_gguf_short_path(g->shards[0].src.path, path),
                    key);
}

int clb_gguf_value_u64(const clb_gguf_value *v, const char *file, const char *key, uint64_t *out, clb_error *err)
{
    char path[304];
    if (!vtypes[v->type].is_integer)
        return wrong_type(file, key, v, "an integer", err);
    if (vtypes[v->type].is_signed && v->as.i < 0)
        return clb_fail(err, COLIBRI_E_FORMAT, "%s: key \"%s\" is %lld, expected 0 or more",
                        clb_gguf_short_path(file, path), key, (long long)v->as.i);
    *out = vtypes[v->type].is_signed ? (uint64_t)v->as.i : v->as.u;
    return COLIBRI_OK;
}

int clb_gguf_get_u64(const clb_gguf *g, const char *key, uint64_t *out, clb_error *err)
{
    const clb_gguf_value *v = clb_gguf_find(g, key);
    return v ? clb_gguf_value_u64(v, g->shards[0].src.path, key, out, err) : absent(g, key, err);
}

int clb_gguf_get_u32(const clb_gguf *g, const char *key, uint32_t *out, clb_error *err)
{
    uint64_t v;
    char path[304];
    CLB_TRY(clb_gguf_get_u64(g, key, &v, err));
    if (v > UINT32_MAX)
        return clb_fail(err, COLIBRI_E_FORMAT, "%s: key \"%s\" is %llu, expected at most %u",
                        clb_gguf_short_path(g->shards[0].src.path, path), key, (unsigned long long)v, UINT32_MAX);
    *out = (uint32_t)v;
    return COLIBRI_OK;
}

int clb_gguf_get_f32(const clb_gguf *g, const char *key, float *out, clb_error *err)
{
    const clb_gguf_value *v = clb_gguf_find(g, key);
    char path[304];
    if (!v)
        return absent(g, key, err);
    if (v->type != CLB_GGUF_F32 && v->type != CLB_GGUF_F64)
        return wrong_type(g->shards[0].src.path, key, v, "f32", err);
    if (isfinite(v->as.f) && fabs(v->as.f) > (double)FLT_MAX)
        return clb_fail(err, COLIBRI_E_FORMAT, "%s: key \"%s\" is %g, expected a value in the range of f32",
                        clb_gguf_short_path(g->shards[0].src.path, path), key, v->as.f);
    *out = (float)v->as.f;
    return COLIBRI_OK;
}

int clb_gguf_get_bool(const clb_gguf *g, const char *key, bool *out, clb_error *err)
{
    const clb_gguf_value *v = clb_gguf_find(g, key);
    if (!v)
        return absent(g, key, err);
    if (v->type != CLB_GGUF_BOOL)
        return wrong_type(g->shards[0].src.path, key, v, "bool", err);
    *out = v->as.u != 0;
    return COLIBRI_OK;
}

int clb_gguf_get_str(const clb_gguf *g, const char *key, clb_str *out, clb_error *err)
{
    const clb_gguf_value *v = clb_gguf_find(g, key);
    if (!v)
        return absent(g, key, err);
    if (v->type != CLB_GGUF_STRING)
        return wrong_type(g->shards[0].src.path, key, v, "string", err);
    *out = v->as.str;
    return COLIBRI_OK;
}

int clb_gguf_get_u32_or(const clb_gguf *g, const char *key, uint32_t def, uint32_t *out, clb_error *err)
{
    *out = def;
    return clb_gguf_find(g, key) ? clb_gguf_get_u32(g, key, out, err) : COLIBRI_OK;
}

int clb_gguf_get_f32_or(const clb_gguf *g, const char *key, float def, float *out, clb_error *err)
{
    *out = def;
    return clb_gguf_find(g, key) ? clb_gguf_get_f32(g, key, out, err) : COLIBRI_OK;
}

int clb_gguf_get_bool_or(const clb_gguf *g, const char *key, bool def, bool *out, clb_error *err)
{
    *out = def;
    return clb_gguf_find(g, key) ? clb_gguf_get_bool(g, key, out, err) : COLIBRI_OK;
}

/* ---- array elements --------------------------------------------------------------------------------- */

static int check_item(const clb_gguf_value *array, uint64_t i, clb_error *err)
{
    if (array->type != CLB_GGUF_ARRAY)
        return clb_fail(err, COLIBRI_E_FORMAT, "a value of type %s, expected an array",
                        clb_gguf_vtype_name(array->type));
    if (i >= array->as.arr.n)
        return clb_fail(err, COLIBRI_E_FORMAT, "element %llu of an array that has %llu", (unsigned long long)i,
                        (unsigned long long)array->as.arr.n);
    return COLIBRI_OK;
}

static int wrong_elem(const clb_gguf_value *array, const char *expected, clb_error *err)
{
    return clb_fail(err, COLIBRI_E_FORMAT, "an array of %s, expected %s", clb_gguf_vtype_name(array->as.arr.elem),
                    expected);
}

/* The bits of element i, little-endian, zero-extended. */
static uint64_t item_bits(const clb_gguf_value *array, uint64_t i)
{
    const unsigned size = vtypes[array->as.arr.elem].size;
    const unsigned char *p = (const unsigned char *)array->as.arr.items + i * size;
    uint64_t bits = 0;
    for (unsigned b = 0; b < size; b++)
        bits |= (uint64_t)p[b] << (8 * b);
    return bits;
}

int clb_gguf_item_i64(const clb_gguf_value *array, uint64_t i, int64_t *out, clb_error *err)
{
    CLB_TRY(check_item(array, i, err));
    const enum clb_gguf_vtype elem = array->as.arr.elem;
    if (!vtypes[elem].is_integer && elem != CLB_GGUF_BOOL)
        return wrong_elem(array, "integers", err);
    const uint64_t bits = item_bits(array, i);
    if (elem == CLB_GGUF_U64 && bits > INT64_MAX)
        return clb_fail(err, COLIBRI_E_FORMAT, "element %llu of an array is %llu, expected at most %lld",
                        (unsigned long long)i, (unsigned long long)bits, (long long)INT64_MAX);
    const unsigned shift = vtypes[elem].is_signed ? 64u - 8u * vtypes[elem].size : 0u;
    *out = (int64_t)(bits << shift) >> shift; /* sign-extends: both GCC and Clang shift arithmetically */
    return COLIBRI_OK;
}

int clb_gguf_item_f64(const clb_gguf_value *array, uint64_t i, double *out, clb_error *err)
{
    CLB_TRY(check_item(array, i, err));
    const uint64_t bits = item_bits(array, i);
    if (array->as.arr.elem == CLB_GGUF_F64) {
        memcpy(out, &bits, sizeof bits);
    } else if (array->as.arr.elem == CLB_GGUF_F32) {
        const uint32_t low = (uint32_t)bits;
        float f;
        memcpy(&f, &low, sizeof f);
        *out = (double)f;
    } else {
        return wrong_elem(array, "floats", err);
    }
    return COLIBRI_OK;
}

int clb_gguf_item_str(const clb_gguf_value *array, uint64_t i, clb_str *out, clb_error *err)
{
    CLB_TRY(check_item(array, i, err));
    if (array->as.arr.elem != CLB_GGUF_STRING)
        return wrong_elem(array, "strings", err);
    *out = ((const clb_str *)array->as.arr.items)[i];
    return COLIBRI_OK;
}
