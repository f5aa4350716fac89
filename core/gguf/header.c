/* The header of one GGUF file.
 *
 * The same code runs twice. The first pass checks everything and counts; then exactly the memory that is needed is
 * allocated at once, the header's bytes stop moving, and the second pass fills in views of them. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/escape.h"
#include "gguf/internal.h"
#include "gguf/packed.h"

#define MIN_KEY_RECORD    14u /* length, one byte, type, smallest value */
#define MIN_TENSOR_RECORD 33u /* length, one byte, n_dims, one dim, type, offset */

typedef struct scan {
    clb_gguf_source *src;
    const unsigned char *bytes; /* second pass: the sealed block */
    uint64_t pos, limit;
    uint64_t n_values, n_strs; /* first pass: counted; second: still free */
    clb_gguf_value *values;    /* second pass */
    clb_str *strs;
    const char *what; /* "key" or "tensor": the record being parsed */
    uint64_t record;
    clb_str name; /* of the record, once known */
    clb_error *err;
} scan;

/* The value is the code; a macro, so that the compiler sees that it is never OK. */
#define bad(s, code, at, ...) (report((s), (code), (at), __VA_ARGS__), (code))

static CLB_PRINTF(4, 5) void report(const scan *s, int code, uint64_t at, const char *fmt, ...)
{
    if (!s->err)
        return;
    char path[304], where[160] = "", detail[384], name[100];
    va_list args;
    va_start(args, fmt);
    vsnprintf(detail, sizeof detail, fmt, args);
    va_end(args);
    if (s->what && s->name.p)
        snprintf(where, sizeof where, "%s %llu \"%s\": ", s->what, (unsigned long long)s->record,
                 clb_escape(s->name, name, sizeof name));
    else if (s->what)
        snprintf(where, sizeof where, "%s %llu: ", s->what, (unsigned long long)s->record);
    clb_error_set(s->err, code, "%s: byte %llu: %s%s", clb_gguf_short_path(s->src->path, path), (unsigned long long)at,
                  where, detail);
}

/* Takes the next n bytes: *out points at them until the next call of take. */
static int take(scan *s, uint64_t n, const char *what, const unsigned char **out)
{
    const uint64_t left = s->src->size - s->pos;
    if (n > left)
        return bad(s, COLIBRI_E_FORMAT, s->pos,
                   "%s needs %llu bytes, but the file ends after %llu (incomplete download?)", what,
                   (unsigned long long)n, (unsigned long long)left);
    if (n > s->limit - s->pos)
        return bad(s, COLIBRI_E_LIMIT, s->pos, "the header exceeds %llu MiB",
                   (unsigned long long)(CLB_GGUF_MAX_HEADER >> 20));
    if (!s->bytes)
        CLB_TRY(clb_gguf_source_need(s->src, (size_t)(s->pos + n), s->err));
    const unsigned char *base = s->bytes ? s->bytes : s->src->borrowed ? s->src->borrowed : s->src->block;
    *out = base + s->pos;
    s->pos += n;
    return COLIBRI_OK;
}

static int take_u32(scan *s, const char *what, uint32_t *out)
{
    const unsigned char *p = NULL;
    CLB_TRY(take(s, 4, what, &p));
    *out = clb_le32(p);
    return COLIBRI_OK;
}

static int take_u64(scan *s, const char *what, uint64_t *out)
{
    const unsigned char *p = NULL;
    CLB_TRY(take(s, 8, what, &p));
    *out = clb_le64(p);
    return COLIBRI_OK;
}

static int take_str(scan *s, const char *what, clb_str *out)
{
    uint64_t n = 0;
    const unsigned char *p = NULL;
    CLB_TRY(take_u64(s, what, &n));
    CLB_TRY(take(s, n, what, &p));
    *out = (clb_str){(const char *)p, (size_t)n};
    return COLIBRI_OK;
}

/* A key or tensor name: 1..max bytes, none of them NUL. */
static int take_name(scan *s, const char *what, uint64_t max, clb_str *out)
{
    const uint64_t at = s->pos;
    uint64_t n = 0;
    const unsigned char *p = NULL;
    CLB_TRY(take_u64(s, what, &n));
    if (n == 0)
        return bad(s, COLIBRI_E_FORMAT, at, "%s is empty", what);
    if (n > max)
        return bad(s, COLIBRI_E_FORMAT, at, "%s of %llu bytes, at most %llu are allowed", what, (unsigned long long)n,
                   (unsigned long long)max);
    CLB_TRY(take(s, n, what, &p));
    if (memchr(p, 0, (size_t)n))
        return bad(s, COLIBRI_E_FORMAT, at + 8, "%s contains a NUL byte", what);
    *out = (clb_str){(const char *)p, (size_t)n};
    return COLIBRI_OK;
}

static int scalar(scan *s, uint32_t type, clb_gguf_value *out)
{
    const unsigned char *p = NULL;
    const uint64_t at = s->pos;
    const unsigned size = clb_gguf_vtype_size(type);
    CLB_TRY(take(s, size, "a value", &p));
    const uint64_t bits = size == 8   ? clb_le64(p)
                          : size == 4 ? clb_le32(p)
                          : size == 2 ? p[0] | (unsigned)p[1] << 8
                                      : *p;
    switch (type) {
    case CLB_GGUF_I8:
        out->as.i = (int64_t)(int8_t)bits; /* NOLINT(bugprone-signed-char-misuse): the sign is meant */
        break;
    case CLB_GGUF_I16:
        out->as.i = (int16_t)bits;
        break;
    case CLB_GGUF_I32:
        out->as.i = (int32_t)bits;
        break;
    case CLB_GGUF_I64:
        out->as.i = (int64_t)bits;
        break;
    case CLB_GGUF_F32: {
        const uint32_t low = (uint32_t)bits;
        float f;
        memcpy(&f, &low, sizeof f);
        out->as.f = (double)f;
        break;
    }
    case CLB_GGUF_F64:
        memcpy(&out->as.f, &bits, sizeof bits);
        break;
    case CLB_GGUF_BOOL:
        if (bits > 1)
            return bad(s, COLIBRI_E_FORMAT, at, "a boolean is %u, expected 0 or 1", (unsigned)bits);
        out->as.u = bits;
        break;
    default:
        out->as.u = bits;
    }
    return COLIBRI_OK;
}

static int parse_value(scan *s, uint32_t type, unsigned depth, clb_gguf_value *out);

static int array(scan *s, unsigned depth, clb_gguf_value *out)
{
    const uint64_t at = s->pos;
    uint32_t elem = 0;
    uint64_t n = 0;
    CLB_TRY(take_u32(s, "an array's element type", &elem));
    CLB_TRY(take_u64(s, "an array's length", &n));
    if (!clb_gguf_vtype_known(elem))
        return bad(s, COLIBRI_E_FORMAT, at, "array of value type %u, known are 0 to 12", elem);
    const unsigned size = clb_gguf_vtype_size(elem);
    const unsigned least = size ? size : elem == CLB_GGUF_STRING ? 8 : 12;
    const uint64_t left = s->src->size - s->pos;
    if (n > left / least)
        return bad(s, COLIBRI_E_FORMAT, at + 4, "array of %llu %s does not fit into the remaining %llu bytes",
                   (unsigned long long)n, clb_gguf_vtype_name(elem), (unsigned long long)left);
    out->as.arr.elem = (enum clb_gguf_vtype)elem;
    out->as.arr.n = n;
    if (size) {
        const unsigned char *p = NULL;
        CLB_TRY(take(s, n * size, "an array", &p));
        for (uint64_t i = 0; elem == CLB_GGUF_BOOL && i < n; i++) {
            if (p[i] > 1)
                return bad(s, COLIBRI_E_FORMAT, at + 12 + i, "element %llu of a boolean array is %u, expected 0 or 1",
                           (unsigned long long)i, p[i]);
        }
        out->as.arr.items = p;
        return COLIBRI_OK;
    }
    if (elem == CLB_GGUF_ARRAY && depth >= CLB_GGUF_MAX_DEPTH)
        return bad(s, COLIBRI_E_LIMIT, at, "arrays are nested deeper than %u", CLB_GGUF_MAX_DEPTH);

    clb_gguf_value *values = NULL, dummy;
    clb_str *strs = NULL, dummy_str;
    uint64_t *pool = elem == CLB_GGUF_STRING ? &s->n_strs : &s->n_values;
    if (!s->bytes) {
        *pool += n;
    } else {
        assert(n <= *pool);
        *pool -= n;
        if (elem == CLB_GGUF_STRING) {
            strs = s->strs;
            s->strs += n;
        } else {
            values = s->values;
            s->values += n;
        }
    }
    for (uint64_t i = 0; i < n; i++) {
        if (elem == CLB_GGUF_STRING)
            CLB_TRY(take_str(s, "a string in an array", strs ? &strs[i] : &dummy_str));
        else
            CLB_TRY(parse_value(s, CLB_GGUF_ARRAY, depth + 1, values ? &values[i] : &dummy));
    }
    out->as.arr.items = strs ? (const void *)strs : values;
    return COLIBRI_OK;
}

static int parse_value(scan *s, uint32_t type, unsigned depth, clb_gguf_value *out)
{
    out->type = (enum clb_gguf_vtype)type;
    if (type == CLB_GGUF_STRING)
        return take_str(s, "a string", &out->as.str);
    if (type == CLB_GGUF_ARRAY)
        return array(s, depth, out);
    return scalar(s, type, out);
}

/* Ends a name inside the sealed block. The byte behind a name is the first one of the field that follows it, and that
 * field has been read already. */
static void terminate(const scan *s, clb_str name)
{
    if (s->bytes)
        s->src->block[name.p - (const char *)s->bytes + (ptrdiff_t)name.n] = '\0';
}

static int parse_key(scan *s, clb_gguf_entry *out)
{
    uint32_t type = 0;
    clb_str key;
    s->name.p = NULL;
    CLB_TRY(take_name(s, "a key", CLB_GGUF_MAX_KEY_LEN, &key));
    char kept[80]; /* the block may move before an error is worded */
    const size_t n = key.n < sizeof kept ? key.n : sizeof kept;
    memcpy(kept, key.p, n);
    s->name = (clb_str){kept, n};
    const uint64_t at = s->pos;
    int rc = take_u32(s, "a value's type", &type);
    if (!rc && !clb_gguf_vtype_known(type))
        rc = bad(s, COLIBRI_E_FORMAT, at, "unknown value type %u, known are 0 to 12", type);
    if (!rc)
        rc = parse_value(s, type, 1, &out->value);
    s->name.p = NULL;
    if (rc)
        return rc;
    terminate(s, key);
    out->key = key;
    return COLIBRI_OK;
}

static int parse_tensor(scan *s, clb_gguf_tensor *out)
{
    clb_str name;
    s->name.p = NULL;
    CLB_TRY(take_name(s, "a tensor name", CLB_GGUF_MAX_NAME_LEN, &name));
    char kept[CLB_GGUF_MAX_NAME_LEN];
    memcpy(kept, name.p, name.n);
    s->name = (clb_str){kept, name.n};
    *out = (clb_gguf_tensor){.ne = {1, 1, 1, 1}};
    const uint64_t at = s->pos;
    int rc = take_u32(s, "the number of dimensions", &out->n_dims);
    if (!rc && (out->n_dims < 1 || out->n_dims > CLB_GGUF_MAX_DIMS))
        rc = bad(s, COLIBRI_E_FORMAT, at, "%u dimensions, expected 1 to 4", out->n_dims);
    for (uint32_t d = 0; !rc && d < out->n_dims; d++) {
        rc = take_u64(s, "a dimension", &out->ne[d]);
        if (!rc && out->ne[d] == 0)
            rc = bad(s, COLIBRI_E_FORMAT, s->pos - 8, "dimension %u is 0", d);
    }
    if (!rc)
        rc = take_u32(s, "the tensor type", &out->type);
    if (!rc)
        rc = take_u64(s, "the tensor offset", &out->offset);
    s->name.p = NULL;
    if (rc)
        return rc;
    terminate(s, name);
    out->name = name;
    return COLIBRI_OK;
}

/* What a file that does not begin with "GGUF" is, if it is something people have lying around. */
static int wrong_magic(const scan *s, const unsigned char *p)
{
    static const struct {
        const char *magic, *what;
    } known[] = {{"lmgg", "an old GGML file: convert the original model again"},
                 {"tjgg", "an old GGJT file: convert the original model again"},
                 {"fmgg", "an old GGMF file: convert the original model again"},
                 {"vers", "perhaps a Git LFS pointer: fetch the real file (git lfs pull)"},
                 {"PK\003\004", "a zip archive, perhaps a PyTorch checkpoint: convert it to GGUF"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (memcmp(p, known[i].magic, 4) == 0)
            return bad(s, COLIBRI_E_FORMAT, 0, "not a GGUF file but %s", known[i].what);
    }
    if (memcmp(p, "FUGG", 4) == 0)
        return bad(s, COLIBRI_E_UNSUPPORTED, 0, "a big-endian GGUF file, only little-endian is read");
    return bad(s, COLIBRI_E_FORMAT, 0, "starts with %02x %02x %02x %02x, expected 47 47 55 46 (\"GGUF\")", p[0], p[1],
               p[2], p[3]);
}

static int parse_prefix(scan *s, clb_gguf_shard *shard, uint64_t tensors_allowed)
{
    const unsigned char *p = NULL;
    if (s->src->size == 0)
        return bad(s, COLIBRI_E_FORMAT, 0, "the file is empty");
    CLB_TRY(take(s, 4, "the magic number", &p));
    shard->packed = memcmp(p, CLB_PACKED_MAGIC, 4) == 0;
    if (!shard->packed && memcmp(p, "GGUF", 4) != 0)
        return wrong_magic(s, p);
    CLB_TRY(take_u32(s, "the version", &shard->version));
    if (shard->packed && shard->version != 3)
        return bad(s, COLIBRI_E_UNSUPPORTED, 4, "structure version %u of a packed file, supported is 3",
                   shard->version);
    if (shard->version && (shard->version & 0xffff) == 0)
        return bad(s, COLIBRI_E_UNSUPPORTED, 4, "version 0x%08x: a big-endian GGUF file, only little-endian is read",
                   shard->version);
    if (shard->version == 1)
        return bad(s, COLIBRI_E_UNSUPPORTED, 4,
                   "GGUF version 1, supported are 2 and 3: convert the original model again");
    if (shard->version != 2 && shard->version != 3)
        return bad(s, COLIBRI_E_UNSUPPORTED, 4, "GGUF version %u, supported are 2 and 3", shard->version);
    CLB_TRY(take_u64(s, "the tensor count", &shard->n_tensors));
    CLB_TRY(take_u64(s, "the key count", &shard->n_keys));
    const uint64_t left = s->src->size - s->pos;
    if (shard->n_tensors > left / MIN_TENSOR_RECORD)
        return bad(s, COLIBRI_E_FORMAT, 8,
                   "%llu tensors do not fit into the remaining %llu bytes (incomplete download?)",
                   (unsigned long long)shard->n_tensors, (unsigned long long)left);
    if (shard->n_keys > left / MIN_KEY_RECORD)
        return bad(s, COLIBRI_E_FORMAT, 16, "%llu keys do not fit into the remaining %llu bytes (incomplete download?)",
                   (unsigned long long)shard->n_keys, (unsigned long long)left);
    if (shard->n_tensors > tensors_allowed)
        return bad(s, COLIBRI_E_LIMIT, 8, "%llu tensors, at most %u are read", (unsigned long long)shard->n_tensors,
                   CLB_GGUF_MAX_TENSORS);
    if (shard->n_keys > CLB_GGUF_MAX_KEYS)
        return bad(s, COLIBRI_E_LIMIT, 16, "%llu keys, at most %u are read", (unsigned long long)shard->n_keys,
                   CLB_GGUF_MAX_KEYS);
    return COLIBRI_OK;
}

/* tensors: NULL in the first pass. */
static int pass(scan *s, clb_gguf_shard *shard, uint64_t tensors_allowed, clb_gguf_tensor *tensors)
{
    clb_gguf_entry entry;
    clb_gguf_tensor tensor;
    s->pos = 0;
    CLB_TRY(parse_prefix(s, shard, tensors_allowed));
    s->what = "key";
    for (s->record = 0; s->record < shard->n_keys; s->record++)
        CLB_TRY(parse_key(s, s->bytes ? &shard->entries[s->record] : &entry));
    assert(!s->bytes || tensors || shard->n_tensors == 0);
    s->what = "tensor";
    for (s->record = 0; s->record < shard->n_tensors; s->record++)
        CLB_TRY(parse_tensor(s, s->bytes ? &tensors[s->record] : &tensor));
    s->what = NULL;
    return COLIBRI_OK;
}

/* Room for entries, nested values and string views in one block. The counts are bounded by the header's bytes, of which
 * each element took at least 8. */
static int allocate(scan *s, clb_gguf_shard *shard)
{
    const size_t entries = (size_t)shard->n_keys * sizeof *shard->entries;
    const size_t values = (size_t)s->n_values * sizeof *s->values;
    const size_t strs = (size_t)s->n_strs * sizeof *s->strs;
    char *arena = calloc(1, entries + values + strs + 1);
    if (!arena)
        return CLB_NOMEM(s->err, "the metadata of a GGUF file");
    shard->arena = arena;
    shard->entries = (void *)arena;
    s->values = (void *)(arena + entries);
    s->strs = (void *)(arena + entries + values);
    return COLIBRI_OK;
}

static int read_alignment(const scan *s, clb_gguf_shard *shard)
{
    shard->alignment = CLB_GGUF_DEFAULT_ALIGNMENT;
    static const char key[] = "general.alignment";
    const size_t found = clb_gguf_index_find(&shard->keys, (clb_str){key, sizeof key - 1});
    if (found == CLB_INDEX_NONE)
        return COLIBRI_OK;
    const clb_gguf_value *v = &shard->entries[found].value;
    const uint64_t at = (uint64_t)((const unsigned char *)shard->entries[found].key.p - s->bytes);
    if (v->type != CLB_GGUF_U32)
        return bad(s, COLIBRI_E_FORMAT, at, "general.alignment is of type %s, expected u32",
                   clb_gguf_vtype_name(v->type));
    const uint64_t a = v->as.u;
    if (a < 8 || a > CLB_GGUF_MAX_ALIGNMENT || (a & (a - 1)))
        return bad(s, COLIBRI_E_FORMAT, at, "general.alignment is %llu, expected a power of two from 8 to %llu",
                   (unsigned long long)a, (unsigned long long)CLB_GGUF_MAX_ALIGNMENT);
    shard->alignment = a;
    return COLIBRI_OK;
}

static int index_keys(const scan *s, clb_gguf_shard *shard)
{
    size_t dup, first;
    char name[100];
    CLB_TRY(clb_gguf_index_build(&shard->keys, shard->entries, sizeof *shard->entries, (size_t)shard->n_keys, &dup,
                                 &first, s->err));
    if (dup == CLB_INDEX_NONE)
        return COLIBRI_OK;
    const clb_str key = shard->entries[dup].key;
    return bad(s, COLIBRI_E_FORMAT, (uint64_t)((const unsigned char *)key.p - s->bytes),
               "key %zu \"%s\" has the name of key %zu", dup, clb_escape(key, name, sizeof name), first);
}

int clb_gguf_shard_load(clb_gguf *g, uint32_t i, clb_error *err)
{
    clb_gguf_shard *shard = &g->shards[i];
    const uint64_t tensors_allowed = CLB_GGUF_MAX_TENSORS - g->n_tensors;
    scan s = {.src = &shard->src, .limit = CLB_GGUF_MAX_HEADER - g->header_bytes, .err = err};
    CLB_TRY(pass(&s, shard, tensors_allowed, NULL));

    const uint64_t header = s.pos;
    CLB_TRY(clb_gguf_source_seal(&shard->src, (size_t)header, err));
    s.bytes = shard->src.block;
    if (shard->packed)
        CLB_TRY(clb_packed_check_header(shard, s.bytes, (size_t)header, err));
    CLB_TRY(allocate(&s, shard));
    if (shard->n_tensors) {
        const size_t n = (size_t)(g->n_tensors + shard->n_tensors);
        clb_gguf_tensor *tensors = realloc(g->tensors, n * sizeof *tensors);
        if (!tensors)
            return CLB_NOMEM(err, "the tensor list of a GGUF file");
        g->tensors = tensors;
    }
    clb_gguf_tensor *mine = g->tensors ? g->tensors + g->n_tensors : NULL;
    CLB_TRY(pass(&s, shard, tensors_allowed, mine));
    assert(s.pos == header && s.n_values == 0 && s.n_strs == 0);

    CLB_TRY(index_keys(&s, shard));
    CLB_TRY(read_alignment(&s, shard));
    shard->data = (header + shard->alignment - 1) & ~(shard->alignment - 1);
    for (uint64_t t = 0; t < shard->n_tensors; t++)
        mine[t].shard = i;
    if (shard->packed)
        CLB_TRY(clb_packed_place_tensors(g, shard, mine, (size_t)shard->n_tensors, err));
    else
        CLB_TRY(clb_gguf_place_tensors(g, shard, mine, (size_t)shard->n_tensors, err));
    g->n_tensors += shard->n_tensors;
    g->header_bytes += header;
    return COLIBRI_OK;
}
