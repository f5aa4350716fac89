/* colibri inspect --json. Numbers are exact: integers above 2^63 - 1 and floats that JSON cannot write become strings;
 * strings that are not UTF-8 become {"hex": "..."}. */
#include "inspect.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/escape.h"

static json_t *text_json(clb_str s, bool *cut, bool full)
{
    if (clb_is_utf8(s)) {
        *cut = *cut || (!full && s.n > CLB_INSPECT_TEXT);
        return json_stringn_nocheck(s.p, full ? s.n : clb_inspect_cut(s, CLB_INSPECT_TEXT));
    }
    clb_buf hex = {0};
    size_t n = s.n;
    if (!full && n > CLB_INSPECT_TEXT) {
        *cut = true;
        n = CLB_INSPECT_TEXT;
    }
    json_t *o = json_object();
    for (size_t i = 0; i < n; i++) {
        if (clb_buf_printf(&hex, NULL, "%02x", (unsigned char)s.p[i]))
            break;
    }
    json_object_set_new(o, "hex", hex.n == 2 * n && hex.data ? json_string_nocheck(hex.data) : NULL);
    clb_buf_free(&hex);
    return o;
}

/* Names, paths and other short texts: never cut. */
static json_t *whole_text(clb_str s)
{
    bool cut = false;
    return text_json(s, &cut, true);
}

static json_t *unsigned_json(uint64_t v)
{
    char digits[24];
    if (v <= INT64_MAX)
        return json_integer((json_int_t)v);
    snprintf(digits, sizeof digits, "%" PRIu64, v);
    return json_string(digits);
}

/* A float is written with as few digits as bring it back, not with the 17 of the double next to it. */
static json_t *float_json(double v, bool single)
{
    char text[40];
    double back = v;
    if (!isfinite(v))
        return json_string(isnan(v) ? "nan" : v > 0 ? "inf" : "-inf");
    for (int digits = 6; single && digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        back = strtod(text, NULL);
        if ((float)back == (float)v)
            break;
    }
    return json_real(back);
}

static json_t *value_json(const clb_gguf_value *v, bool *cut, bool full);

static json_t *item_json(const clb_gguf_value *array, uint64_t i, bool *cut, bool full)
{
    clb_gguf_value item = {.type = array->as.arr.elem};
    if (item.type == CLB_GGUF_ARRAY)
        return value_json((const clb_gguf_value *)array->as.arr.items + i, cut, full);
    if (item.type == CLB_GGUF_STRING)
        (void)clb_gguf_item_str(array, i, &item.as.str, NULL);
    else if (item.type == CLB_GGUF_F32 || item.type == CLB_GGUF_F64)
        (void)clb_gguf_item_f64(array, i, &item.as.f, NULL);
    else if (item.type == CLB_GGUF_U64)
        memcpy(&item.as.u, (const char *)array->as.arr.items + i * 8, 8);
    else
        (void)clb_gguf_item_i64(array, i, &item.as.i, NULL);
    return value_json(&item, cut, full);
}

static json_t *value_json(const clb_gguf_value *v, bool *cut, bool full)
{
    switch (v->type) {
    case CLB_GGUF_STRING:
        return text_json(v->as.str, cut, full);
    case CLB_GGUF_ARRAY: {
        uint64_t n = v->as.arr.n;
        if (!full && n > CLB_INSPECT_ITEMS) {
            n = CLB_INSPECT_ITEMS;
            *cut = true;
        }
        json_t *a = json_array();
        for (uint64_t i = 0; i < n; i++)
            json_array_append_new(a, item_json(v, i, cut, full));
        return a;
    }
    case CLB_GGUF_F32:
    case CLB_GGUF_F64:
        return float_json(v->as.f, v->type == CLB_GGUF_F32);
    case CLB_GGUF_BOOL:
        return json_boolean(v->as.u);
    case CLB_GGUF_I8:
    case CLB_GGUF_I16:
    case CLB_GGUF_I32:
    case CLB_GGUF_I64:
        return json_integer(v->as.i);
    default:
        return unsigned_json(v->as.u);
    }
}

static json_t *metadata_json(const clb_gguf *g, bool full)
{
    json_t *list = json_array();
    for (uint64_t i = 0; i < clb_gguf_n_keys(g); i++) {
        const clb_gguf_value *v = clb_gguf_value_at(g, i);
        bool cut = false;
        json_t *o = json_object();
        json_object_set_new(o, "key", whole_text(clb_gguf_key(g, i)));
        json_object_set_new(o, "type", json_string(clb_gguf_vtype_name(v->type)));
        if (v->type == CLB_GGUF_ARRAY) {
            json_object_set_new(o, "element_type", json_string(clb_gguf_vtype_name(v->as.arr.elem)));
            json_object_set_new(o, "count", unsigned_json(v->as.arr.n));
        }
        json_object_set_new(o, "value", value_json(v, &cut, full));
        if (cut)
            json_object_set_new(o, "abbreviated", json_true());
        json_array_append_new(list, o);
    }
    return list;
}

/* Keys for scripts. */
static const char *const role_keys[CLB_ROLE_COUNT] = {
    [CLB_ROLE_ATTENTION] = "attention",   [CLB_ROLE_FFN] = "dense_ffn", [CLB_ROLE_EXPERTS] = "experts",
    [CLB_ROLE_SHARED] = "shared_experts", [CLB_ROLE_ROUTER] = "router", [CLB_ROLE_EMBEDDING] = "embeddings",
    [CLB_ROLE_OUTPUT] = "output",         [CLB_ROLE_OTHER] = "other"};

static json_t *tensors_json(const clb_inspection *in)
{
    json_t *list = json_array();
    for (uint64_t i = 0; i < clb_gguf_n_tensors(in->g); i++) {
        const clb_gguf_tensor *t = clb_gguf_tensor_at(in->g, i);
        char type[16];
        json_t *o = json_object(), *shape = json_array();
        for (uint32_t d = 0; d < t->n_dims; d++)
            json_array_append_new(shape, unsigned_json(t->ne[d]));
        json_object_set_new(o, "name", whole_text(t->name));
        json_object_set_new(o, "type", json_string(clb_gguf_type_name(t->type, type)));
        json_object_set_new(o, "type_id", json_integer(t->type));
        json_object_set_new(o, "shape", shape);
        json_object_set_new(o, "role", json_string(role_keys[clb_role_of(t->name)]));
        json_object_set_new(o, "bytes", t->n_bytes ? unsigned_json(t->n_bytes) : json_null());
        json_object_set_new(o, "offset", unsigned_json(t->offset));
        json_object_set_new(o, "file", json_integer(t->shard));
        if (clb_gguf_is_packed(in->g)) {
            json_object_set_new(o, "layout", json_string(t->packed ? "x16" : "rows"));
            json_object_set_new(o, "expert_stride", unsigned_json(t->expert_stride));
        }
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *tally_json(const clb_tally *t)
{
    json_t *o = json_object();
    json_object_set_new(o, "bytes", unsigned_json(t->bytes));
    json_object_set_new(o, "parameters", unsigned_json(t->params));
    json_object_set_new(o, "tensors", unsigned_json(t->tensors));
    return o;
}

/* null, a number, or {"min", "max"} where layers differ. */
static json_t *ints_json(clb_ints v)
{
    if (!v.n)
        return json_null();
    if (v.min == v.max)
        return json_integer(v.min);
    json_t *o = json_object();
    json_object_set_new(o, "min", json_integer(v.min));
    json_object_set_new(o, "max", json_integer(v.max));
    return o;
}

static json_t *optional_text(clb_str s)
{
    return s.n ? whole_text(s) : json_null();
}

static void add_model(json_t *o, const clb_inspection *in)
{
    json_object_set_new(o, "architecture", optional_text(in->arch));
    json_object_set_new(o, "name", optional_text(in->name));
    json_object_set_new(o, "parameters", unsigned_json(in->total.params));
    json_object_set_new(o, "parameters_per_token", in->token_bytes ? unsigned_json(in->token_params) : json_null());
    json_object_set_new(o, "weight_bytes", unsigned_json(in->total.bytes));
    json_object_set_new(o, "weight_bytes_per_token", in->token_bytes ? unsigned_json(in->token_bytes) : json_null());
    json_object_set_new(o, "context_length", ints_json(in->context));
    json_object_set_new(o, "layers", ints_json(in->layers));
    json_object_set_new(o, "width", ints_json(in->width));
    json_object_set_new(o, "heads", ints_json(in->heads));
    json_object_set_new(o, "kv_heads", ints_json(in->kv_heads));
    json_object_set_new(o, "key_width", ints_json(in->key_width));
    json_object_set_new(o, "value_width", ints_json(in->value_width));
    json_object_set_new(o, "feed_forward", ints_json(in->ffn));
    json_t *e = json_null();
    if (in->experts.n && in->experts.max > 0) {
        e = json_object();
        json_object_set_new(e, "count", ints_json(in->experts));
        json_object_set_new(e, "used_per_token", ints_json(in->used));
        json_object_set_new(e, "shared", ints_json(in->shared));
        json_object_set_new(e, "feed_forward", ints_json(in->expert_ffn));
        json_object_set_new(e, "layers", unsigned_json(in->expert_layers));
        json_object_set_new(e, "min_bytes", unsigned_json(in->expert_min));
        json_object_set_new(e, "max_bytes", unsigned_json(in->expert_max));
    }
    json_object_set_new(o, "experts", e);
    json_t *t = json_object();
    json_object_set_new(t, "model", optional_text(in->tokenizer));
    json_object_set_new(t, "pre", optional_text(in->pre));
    json_object_set_new(t, "tokens", unsigned_json(in->n_vocab));
    json_object_set_new(t, "chat_template", json_boolean(in->has_template));
    json_object_set_new(o, "tokenizer", t);
}

static json_t *files_json(const clb_gguf *g)
{
    json_t *files = json_array();
    for (uint32_t i = 0; i < clb_gguf_n_shards(g); i++) {
        json_t *f = json_object();
        const char *path = clb_gguf_shard_path(g, i);
        json_object_set_new(f, "path", whole_text((clb_str){path, strlen(path)}));
        json_object_set_new(f, "bytes", unsigned_json(clb_gguf_shard_size(g, i)));
        json_array_append_new(files, f);
    }
    return files;
}

/* Doubles need 17 digits to come back; floats, as float_json makes them, look better with 15. */
static bool has_doubles(const clb_gguf *g)
{
    for (uint64_t i = 0; i < clb_gguf_n_keys(g); i++) {
        const clb_gguf_value *v = clb_gguf_value_at(g, i);
        if (v->type == CLB_GGUF_F64 ||
            (v->type == CLB_GGUF_ARRAY && (v->as.arr.elem == CLB_GGUF_F64 || v->as.arr.elem == CLB_GGUF_ARRAY)))
            return true;
    }
    return false;
}

int clb_inspect_print_json(const clb_inspection *in, bool metadata, bool tensors, bool full, clb_error *err)
{
    json_t *o = json_object(), *roles = json_object(), *types = json_array();
    json_object_set_new(o, "files", files_json(in->g));
    json_object_set_new(o, "gguf_version", json_integer(clb_gguf_version(in->g)));
    json_object_set_new(o, "alignment", unsigned_json(clb_gguf_alignment(in->g)));
    json_object_set_new(o, "packed", json_boolean(clb_gguf_is_packed(in->g)));
    json_object_set_new(o, "checksums", json_boolean(clb_gguf_is_packed(in->g) && clb_gguf_has_checksums(in->g)));
    add_model(o, in);
    for (int r = 0; r < CLB_ROLE_COUNT; r++)
        json_object_set_new(roles, role_keys[r], tally_json(&in->roles[r]));
    json_object_set_new(o, "roles", roles);
    for (size_t i = 0; i < in->n_types; i++) {
        char name[16];
        json_t *t = tally_json(&in->types[i].sum);
        json_object_set_new(t, "type", json_string(clb_gguf_type_name(in->types[i].type, name)));
        json_object_set_new(t, "type_id", json_integer(in->types[i].type));
        json_array_append_new(types, t);
    }
    json_object_set_new(o, "types", types);
    if (metadata)
        json_object_set_new(o, "metadata", metadata_json(in->g, full));
    if (tensors)
        json_object_set_new(o, "tensors", tensors_json(in));
    const size_t precision = metadata && has_doubles(in->g) ? 17 : 15;
    /* ASCII: U+009B and its like must not reach a terminal. */
    char *text = json_dumps(o, JSON_INDENT(2) | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(precision));
    json_decref(o);
    if (!text)
        return CLB_NOMEM(err, "the JSON report");
    puts(text);
    free(text);
    return COLIBRI_OK;
}
