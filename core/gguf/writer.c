/* The contents of a new GGUF file: keys, tensors, layout. Where the bytes go is in writer_file.c. */
#include "gguf/writer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/escape.h"
#include "gguf/internal.h"
#include "gguf/packed.h"
#include "gguf/writer_internal.h"

#define CHUNK        ((size_t)1 << 20)
#define PREFIX_BYTES 24u /* magic, version, two counts */

typedef struct new_key {
    char *name;
    clb_buf value; /* type and value as they appear in the file */
} new_key;

typedef struct new_tensor {
    clb_str name; /* owned, NUL-terminated; first: clb_gguf_index */
    clb_gguf_new_tensor as;
    uint64_t n_bytes, offset; /* in the data section */
} new_tensor;

struct clb_gguf_writer {
    new_key *keys;
    size_t n_keys, cap_keys;
    new_tensor *tensors;
    size_t n_tensors, cap_tensors;
    uint64_t alignment;
};

int clb_gguf_writer_create(clb_gguf_writer **out, clb_error *err)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return CLB_NOMEM(err, "a GGUF writer");
    (*out)->alignment = CLB_GGUF_DEFAULT_ALIGNMENT;
    return COLIBRI_OK;
}

static void free_key(new_key *key)
{
    free(key->name);
    clb_buf_free(&key->value);
}

void clb_gguf_writer_free(clb_gguf_writer *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->n_keys; i++)
        free_key(&w->keys[i]);
    for (size_t i = 0; i < w->n_tensors; i++)
        free((char *)w->tensors[i].name.p);
    free(w->keys);
    free(w->tensors);
    free(w);
}

/* Makes room for one more element: returns the array, moved perhaps, or NULL (items is valid still). */
static void *grow(void *items, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return items;
    const size_t more = *cap ? 2 * *cap : 16;
    void *bigger = realloc(items, more * size);
    if (bigger)
        *cap = more;
    return bigger;
}

static int put_u32(clb_buf *buf, uint32_t v, clb_error *err)
{
    const unsigned char b[4] = {(unsigned char)v, (unsigned char)(v >> 8), (unsigned char)(v >> 16),
                                (unsigned char)(v >> 24)};
    return clb_buf_append(buf, b, sizeof b, err);
}

static int put_u64(clb_buf *buf, uint64_t v, clb_error *err)
{
    CLB_TRY(put_u32(buf, (uint32_t)v, err));
    return put_u32(buf, (uint32_t)(v >> 32), err);
}

static int put_str(clb_buf *buf, clb_str s, clb_error *err)
{
    CLB_TRY(put_u64(buf, s.n, err));
    return clb_buf_append(buf, s.p, s.n, err);
}

/* ---- keys ------------------------------------------------------------------------------------------- */

static int put_scalar(clb_buf *buf, const clb_gguf_value *v, clb_error *err)
{
    uint64_t bits = v->as.u; /* signed values: two's complement, cut to the width */
    const unsigned size = clb_gguf_vtype_size(v->type);
    if (v->type == CLB_GGUF_BOOL && bits > 1)
        return clb_fail(err, COLIBRI_E_USAGE, "a boolean is %llu, expected 0 or 1", (unsigned long long)bits);
    if (v->type == CLB_GGUF_F32) {
        const float f = (float)v->as.f;
        uint32_t low;
        memcpy(&low, &f, sizeof low);
        bits = low;
    } else if (v->type == CLB_GGUF_F64) {
        memcpy(&bits, &v->as.f, sizeof bits);
    }
    unsigned char b[8];
    for (unsigned i = 0; i < size; i++)
        b[i] = (unsigned char)(bits >> (8 * i));
    return clb_buf_append(buf, b, size, err);
}

static int put_value(clb_buf *buf, const clb_gguf_value *v, unsigned depth, clb_error *err);

static int put_array(clb_buf *buf, const clb_gguf_value *v, unsigned depth, clb_error *err)
{
    const enum clb_gguf_vtype elem = v->as.arr.elem;
    const uint64_t n = v->as.arr.n;
    if (!clb_gguf_vtype_known(elem))
        return clb_fail(err, COLIBRI_E_USAGE, "an array of unknown type %u", (unsigned)elem);
    if (elem == CLB_GGUF_ARRAY && depth >= CLB_GGUF_MAX_DEPTH)
        return clb_fail(err, COLIBRI_E_USAGE, "arrays are nested deeper than %u", CLB_GGUF_MAX_DEPTH);
    CLB_TRY(put_u32(buf, (uint32_t)elem, err));
    CLB_TRY(put_u64(buf, n, err));
    const unsigned size = clb_gguf_vtype_size(elem);
    if (size) {
        if (n > CLB_GGUF_MAX_HEADER / size)
            return clb_fail(err, COLIBRI_E_USAGE, "an array of %llu elements is too large", (unsigned long long)n);
        const unsigned char *p = v->as.arr.items;
        for (uint64_t i = 0; elem == CLB_GGUF_BOOL && i < n; i++) {
            if (p[i] > 1)
                return clb_fail(err, COLIBRI_E_USAGE, "a boolean in an array is %u, expected 0 or 1", p[i]);
        }
        return clb_buf_append(buf, p, (size_t)n * size, err);
    }
    for (uint64_t i = 0; i < n; i++) {
        if (elem == CLB_GGUF_STRING) {
            CLB_TRY(put_str(buf, ((const clb_str *)v->as.arr.items)[i], err));
            continue;
        }
        const clb_gguf_value *inner = &((const clb_gguf_value *)v->as.arr.items)[i];
        if (inner->type != CLB_GGUF_ARRAY)
            return clb_fail(err, COLIBRI_E_USAGE, "an array of arrays contains a value of type %s",
                            clb_gguf_vtype_name(inner->type));
        CLB_TRY(put_array(buf, inner, depth + 1, err));
    }
    return COLIBRI_OK;
}

static int put_value(clb_buf *buf, const clb_gguf_value *v, unsigned depth, clb_error *err)
{
    if (!clb_gguf_vtype_known(v->type))
        return clb_fail(err, COLIBRI_E_USAGE, "unknown value type %u", (unsigned)v->type);
    CLB_TRY(put_u32(buf, (uint32_t)v->type, err));
    if (v->type == CLB_GGUF_STRING)
        return put_str(buf, v->as.str, err);
    return v->type == CLB_GGUF_ARRAY ? put_array(buf, v, depth, err) : put_scalar(buf, v, err);
}

static new_key *find_key(const clb_gguf_writer *w, const char *name)
{
    for (size_t i = 0; i < w->n_keys; i++) {
        if (strcmp(w->keys[i].name, name) == 0)
            return &w->keys[i];
    }
    return NULL;
}

static int set(clb_gguf_writer *w, const char *key, const clb_gguf_value *value, clb_error *err)
{
    const size_t len = strlen(key);
    if (len == 0 || len > CLB_GGUF_MAX_KEY_LEN)
        return clb_fail(err, COLIBRI_E_USAGE, "a key of %zu bytes, expected 1 to %u", len, CLB_GGUF_MAX_KEY_LEN);
    const bool is_alignment = strcmp(key, "general.alignment") == 0;
    const uint64_t a = value->as.u;
    if (is_alignment && (value->type != CLB_GGUF_U32 || a < 8 || a > CLB_GGUF_MAX_ALIGNMENT || (a & (a - 1))))
        return clb_fail(err, COLIBRI_E_USAGE, "expected a u32, a power of two from 8 to %llu",
                        (unsigned long long)CLB_GGUF_MAX_ALIGNMENT);
    new_key *k = find_key(w, key);
    if (!k && w->n_keys == CLB_GGUF_MAX_KEYS)
        return clb_fail(err, COLIBRI_E_USAGE, "more than %u keys", CLB_GGUF_MAX_KEYS);
    clb_buf encoded = {0};
    int rc = COLIBRI_OK;
    CLB_GO(put_value(&encoded, value, 1, err));
    if (!k) {
        new_key *keys = grow(w->keys, w->n_keys, &w->cap_keys, sizeof *keys);
        if (!keys)
            CLB_GO(CLB_NOMEM(err, "the keys of a GGUF writer"));
        w->keys = keys;
        char *name = strdup(key);
        if (!name)
            CLB_GO(CLB_NOMEM(err, "a key"));
        k = &keys[w->n_keys++];
        *k = (new_key){.name = name};
    }
    clb_buf_free(&k->value);
    k->value = encoded;
    if (is_alignment)
        w->alignment = a;
    return COLIBRI_OK;
done:
    clb_buf_free(&encoded);
    return rc;
}

int clb_gguf_writer_set(clb_gguf_writer *w, const char *key, const clb_gguf_value *value, clb_error *err)
{
    char name[100];
    const int rc = set(w, key, value, err);
    if (rc)
        clb_context(err, "GGUF key \"%s\"", clb_escape((clb_str){key, strlen(key)}, name, sizeof name));
    return rc;
}

int clb_gguf_writer_set_u32(clb_gguf_writer *w, const char *key, uint32_t v, clb_error *err)
{
    return clb_gguf_writer_set(w, key, &(clb_gguf_value){.type = CLB_GGUF_U32, .as.u = v}, err);
}

int clb_gguf_writer_set_u64(clb_gguf_writer *w, const char *key, uint64_t v, clb_error *err)
{
    return clb_gguf_writer_set(w, key, &(clb_gguf_value){.type = CLB_GGUF_U64, .as.u = v}, err);
}

int clb_gguf_writer_set_i32(clb_gguf_writer *w, const char *key, int32_t v, clb_error *err)
{
    return clb_gguf_writer_set(w, key, &(clb_gguf_value){.type = CLB_GGUF_I32, .as.i = v}, err);
}

int clb_gguf_writer_set_f32(clb_gguf_writer *w, const char *key, float v, clb_error *err)
{
    return clb_gguf_writer_set(w, key, &(clb_gguf_value){.type = CLB_GGUF_F32, .as.f = (double)v}, err);
}

int clb_gguf_writer_set_bool(clb_gguf_writer *w, const char *key, bool v, clb_error *err)
{
    return clb_gguf_writer_set(w, key, &(clb_gguf_value){.type = CLB_GGUF_BOOL, .as.u = v}, err);
}

int clb_gguf_writer_set_str(clb_gguf_writer *w, const char *key, const char *v, clb_error *err)
{
    return clb_gguf_writer_set(w, key, &(clb_gguf_value){.type = CLB_GGUF_STRING, .as.str = {v, strlen(v)}}, err);
}

int clb_gguf_writer_set_array(clb_gguf_writer *w, const char *key, enum clb_gguf_vtype elem, const void *items,
                              uint64_t n, clb_error *err)
{
    const clb_gguf_value v = {.type = CLB_GGUF_ARRAY, .as.arr = {elem, n, items}};
    return clb_gguf_writer_set(w, key, &v, err);
}

int clb_gguf_writer_copy_keys(clb_gguf_writer *w, const clb_gguf *g, clb_error *err)
{
    for (uint64_t i = 0; i < clb_gguf_n_keys(g); i++) {
        const clb_str key = clb_gguf_key(g, i);
        if (strncmp(key.p, "split.", 6) != 0 && strncmp(key.p, CLB_PACKED_KEYS, sizeof CLB_PACKED_KEYS - 1) != 0)
            CLB_TRY(clb_gguf_writer_set(w, key.p, clb_gguf_value_at(g, i), err));
    }
    return COLIBRI_OK;
}

void clb_gguf_writer_remove(clb_gguf_writer *w, const char *key)
{
    new_key *k = find_key(w, key);
    if (!k)
        return;
    free_key(k);
    const size_t after = w->n_keys - (size_t)(k - w->keys) - 1;
    memmove(k, k + 1, after * sizeof *k);
    w->n_keys--;
    if (strcmp(key, "general.alignment") == 0)
        w->alignment = CLB_GGUF_DEFAULT_ALIGNMENT;
}

/* ---- tensors ---------------------------------------------------------------------------------------- */

static int tensor_bytes(const clb_gguf_new_tensor *t, uint64_t *out, clb_error *err)
{
    char buf[16];
    uint32_t elems = 0, bytes = 0;
    uint64_t n = 1;
    if (t->n_dims < 1 || t->n_dims > CLB_GGUF_MAX_DIMS)
        return clb_fail(err, COLIBRI_E_USAGE, "%u dimensions, expected 1 to 4", t->n_dims);
    for (uint32_t d = 0; d < t->n_dims; d++) {
        if (t->ne[d] == 0 || t->ne[d] > INT64_MAX / n)
            return clb_fail(err, COLIBRI_E_USAGE, "dimension %u is 0 or too large", d);
        n *= t->ne[d];
    }
    if (!clb_gguf_known_geometry(NULL, t->type, &elems, &bytes)) {
        *out = t->n_bytes;
        return t->n_bytes ? COLIBRI_OK
                          : clb_fail(err, COLIBRI_E_USAGE, "%s has no known geometry and no size was given",
                                     clb_gguf_type_name(t->type, buf));
    }
    if (t->ne[0] % elems)
        return clb_fail(err, COLIBRI_E_USAGE, "%llu columns of %s, expected a multiple of %u",
                        (unsigned long long)t->ne[0], clb_gguf_type_name(t->type, buf), elems);
    if (n / elems > INT64_MAX / bytes)
        return clb_fail(err, COLIBRI_E_USAGE, "its size in bytes overflows");
    *out = n / elems * bytes;
    if (t->n_bytes && t->n_bytes != *out)
        return clb_fail(err, COLIBRI_E_USAGE, "%llu bytes were given, %s of this shape has %llu",
                        (unsigned long long)t->n_bytes, clb_gguf_type_name(t->type, buf), (unsigned long long)*out);
    return COLIBRI_OK;
}

static int add(clb_gguf_writer *w, const clb_gguf_new_tensor *tensor, clb_error *err)
{
    uint64_t n_bytes = 0;
    const size_t len = strlen(tensor->name);
    if (len == 0 || len > CLB_GGUF_MAX_NAME_LEN)
        return clb_fail(err, COLIBRI_E_USAGE, "a name of %zu bytes, expected 1 to %u", len, CLB_GGUF_MAX_NAME_LEN);
    if (!tensor->data && !tensor->produce)
        return clb_fail(err, COLIBRI_E_USAGE, "it has neither data nor a function that delivers them");
    if (w->n_tensors == CLB_GGUF_MAX_TENSORS)
        return clb_fail(err, COLIBRI_E_USAGE, "more than %u tensors", CLB_GGUF_MAX_TENSORS);
    CLB_TRY(tensor_bytes(tensor, &n_bytes, err));
    new_tensor *tensors = grow(w->tensors, w->n_tensors, &w->cap_tensors, sizeof *tensors);
    if (!tensors)
        return CLB_NOMEM(err, "the tensors of a GGUF writer");
    w->tensors = tensors;
    char *name = strdup(tensor->name);
    if (!name)
        return CLB_NOMEM(err, "a tensor name");
    new_tensor *t = &tensors[w->n_tensors++];
    *t = (new_tensor){.name = {name, len}, .as = *tensor, .n_bytes = n_bytes};
    t->as.name = name;
    return COLIBRI_OK;
}

int clb_gguf_writer_add_tensor(clb_gguf_writer *w, const clb_gguf_new_tensor *tensor, clb_error *err)
{
    char name[100];
    const int rc = add(w, tensor, err);
    if (rc)
        clb_context(err, "GGUF tensor \"%s\"",
                    clb_escape((clb_str){tensor->name, strlen(tensor->name)}, name, sizeof name));
    return rc;
}

/* ---- layout ----------------------------------------------------------------------------------------- */

static uint64_t padded(const clb_gguf_writer *w, uint64_t n)
{
    return (n + w->alignment - 1) & ~(w->alignment - 1);
}

/* Checks names and gives each tensor its offset; *data_bytes is the size of the data section. */
static int lay_out(clb_gguf_writer *w, uint64_t *data_bytes, clb_error *err)
{
    clb_gguf_index index = {0};
    size_t dup, first;
    const int rc = clb_gguf_index_build(&index, w->tensors, sizeof *w->tensors, w->n_tensors, &dup, &first, err);
    clb_gguf_index_free(&index);
    CLB_TRY(rc);
    char name[100];
    if (dup != CLB_INDEX_NONE)
        return clb_fail(err, COLIBRI_E_USAGE, "GGUF tensors %zu and %zu are both named \"%s\"", first, dup,
                        clb_escape(w->tensors[dup].name, name, sizeof name));
    uint64_t at = 0;
    for (size_t i = 0; i < w->n_tensors; i++) {
        if (w->tensors[i].n_bytes > (uint64_t)INT64_MAX - 2 * CLB_GGUF_MAX_ALIGNMENT - at)
            return clb_fail(err, COLIBRI_E_USAGE, "the GGUF file's size overflows");
        w->tensors[i].offset = at;
        at = padded(w, at + w->tensors[i].n_bytes);
    }
    *data_bytes = at;
    return COLIBRI_OK;
}

/* Where the data section begins; without tensors there is none. */
static uint64_t data_begins(const clb_gguf_writer *w, uint64_t header)
{
    return w->n_tensors ? padded(w, header) : header;
}

static uint64_t header_bytes(const clb_gguf_writer *w)
{
    uint64_t n = PREFIX_BYTES;
    for (size_t i = 0; i < w->n_keys; i++)
        n += 8 + strlen(w->keys[i].name) + w->keys[i].value.n;
    for (size_t i = 0; i < w->n_tensors; i++)
        n += 8 + w->tensors[i].name.n + 4 + 8 * (uint64_t)w->tensors[i].as.n_dims + 4 + 8;
    return n;
}

int clb_gguf_writer_size(clb_gguf_writer *w, uint64_t *out, clb_error *err)
{
    uint64_t data;
    CLB_TRY(lay_out(w, &data, err));
    *out = data_begins(w, header_bytes(w)) + data;
    return COLIBRI_OK;
}

static int put_header(const clb_gguf_writer *w, const char *magic, const uint64_t *offsets, clb_buf *buf,
                      clb_error *err)
{
    CLB_TRY(clb_buf_append(buf, magic, 4, err));
    CLB_TRY(put_u32(buf, 3, err));
    CLB_TRY(put_u64(buf, w->n_tensors, err));
    CLB_TRY(put_u64(buf, w->n_keys, err));
    for (size_t i = 0; i < w->n_keys; i++) {
        const new_key *k = &w->keys[i];
        CLB_TRY(put_str(buf, (clb_str){k->name, strlen(k->name)}, err));
        CLB_TRY(clb_buf_append(buf, k->value.data, k->value.n, err));
    }
    for (size_t i = 0; i < w->n_tensors; i++) {
        const new_tensor *t = &w->tensors[i];
        CLB_TRY(put_str(buf, t->name, err));
        CLB_TRY(put_u32(buf, t->as.n_dims, err));
        for (uint32_t d = 0; d < t->as.n_dims; d++)
            CLB_TRY(put_u64(buf, t->as.ne[d], err));
        CLB_TRY(put_u32(buf, t->as.type, err));
        CLB_TRY(put_u64(buf, offsets ? offsets[i] : t->offset, err));
    }
    return COLIBRI_OK;
}

int clb_gguf_writer_header(const clb_gguf_writer *w, const char *magic, const uint64_t *offsets, clb_buf *out,
                           clb_error *err)
{
    if (header_bytes(w) > CLB_GGUF_MAX_HEADER)
        return clb_fail(err, COLIBRI_E_USAGE, "the GGUF header exceeds %llu MiB",
                        (unsigned long long)(CLB_GGUF_MAX_HEADER >> 20));
    CLB_TRY(put_header(w, magic, offsets, out, err));
    assert(out->n == header_bytes(w));
    return COLIBRI_OK;
}

static int put_zeros(const clb_gguf_sink *sink, uint64_t n, clb_error *err)
{
    static const char zeros[4096];
    while (n) {
        const size_t part = n < sizeof zeros ? (size_t)n : sizeof zeros;
        CLB_TRY(sink->put(sink->ctx, zeros, part, err));
        n -= part;
    }
    return COLIBRI_OK;
}

static int put_tensor(const new_tensor *t, const clb_gguf_sink *sink, char **chunk, clb_error *err)
{
    if (!t->as.data && !*chunk && !(*chunk = malloc(CHUNK)))
        return CLB_NOMEM(err, "a GGUF writer's buffer");
    for (uint64_t at = 0; at < t->n_bytes;) {
        const size_t n = t->n_bytes - at < CHUNK ? (size_t)(t->n_bytes - at) : CHUNK;
        const char *from = t->as.data ? (const char *)t->as.data + at : *chunk;
        if (!t->as.data)
            CLB_TRY(t->as.produce(t->as.ctx, at, *chunk, n, err));
        CLB_TRY(sink->put(sink->ctx, from, n, err));
        at += n;
    }
    return COLIBRI_OK;
}

int clb_gguf_writer_emit(clb_gguf_writer *w, const clb_gguf_sink *sink, clb_error *err)
{
    clb_buf header = {0};
    char *chunk = NULL;
    uint64_t data;
    int rc = COLIBRI_OK;
    CLB_GO(lay_out(w, &data, err));
    CLB_GO(clb_gguf_writer_header(w, "GGUF", NULL, &header, err));
    CLB_GO(sink->put(sink->ctx, header.data, header.n, err));
    CLB_GO(put_zeros(sink, data_begins(w, header.n) - header.n, err));
    for (size_t i = 0; i < w->n_tensors; i++) {
        const new_tensor *t = &w->tensors[i];
        CLB_GO(put_tensor(t, sink, &chunk, err));
        CLB_GO(put_zeros(sink, padded(w, t->offset + t->n_bytes) - t->offset - t->n_bytes, err));
    }
done:
    free(chunk);
    clb_buf_free(&header);
    return rc;
}
