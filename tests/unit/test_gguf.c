/* The GGUF reader on single files: what it reads, and what it refuses. Split files: test_gguf_split.c; damaged ones:
 * test_gguf_damage.c. */
#include "gguf_image.h"

#include <math.h>
#include <stdio.h>

#include "colibri/blocks.h"
#include "gguf/internal.h"

static image im; /* too large for some stacks */

/* ---- reading ---------------------------------------------------------------------------------------- */

static void reads_all_scalars(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint32_t type;
        uint64_t bits;
        unsigned size;
    } scalars[] = {
        {"u8", CLB_GGUF_U8, 0xfe, 1},
        {"i8", CLB_GGUF_I8, 0xfe, 1},
        {"u16", CLB_GGUF_U16, 0xfffe, 2},
        {"i16", CLB_GGUF_I16, 0xfffe, 2},
        {"u32", CLB_GGUF_U32, 0xfffffffe, 4},
        {"i32", CLB_GGUF_I32, 0xfffffffe, 4},
        {"f32", CLB_GGUF_F32, 0xbf000000, 4},
        {"bool", CLB_GGUF_BOOL, 1, 1},
        {"u64", CLB_GGUF_U64, UINT64_MAX - 1, 8},
        {"i64", CLB_GGUF_I64, UINT64_MAX - 1, 8},
        {"f64", CLB_GGUF_F64, 0x3fe0000000000000, 8},
    };
    const size_t n = sizeof scalars / sizeof *scalars;
    put_head(&im, 3, 0, n);
    for (size_t i = 0; i < n; i++) {
        put_key(&im, scalars[i].key, scalars[i].type);
        put_int(&im, scalars[i].bits, scalars[i].size);
    }
    opened o = open_bytes(im.b, im.n);
    assert_ok(o.rc, &o.err);
    assert_int_equal(clb_gguf_n_keys(o.g), n);
    for (size_t i = 0; i < n; i++) {
        const clb_str key = clb_gguf_key(o.g, i);
        assert_string_equal(key.p, scalars[i].key); /* NUL-terminated */
        assert_int_equal(key.n, strlen(scalars[i].key));
        const clb_gguf_value *v = clb_gguf_find(o.g, scalars[i].key);
        assert_ptr_equal(v, clb_gguf_value_at(o.g, i));
        assert_int_equal(v->type, scalars[i].type);
        if (scalars[i].key[0] == 'i')
            assert_int_equal(v->as.i, -2);
        else if (scalars[i].key[0] == 'f')
            assert_true(v->as.f == (scalars[i].size == 4 ? -0.5 : 0.5));
        else
            assert_true(v->as.u == scalars[i].bits);
    }
    assert_null(clb_gguf_find(o.g, "u"));
    assert_null(clb_gguf_find(o.g, ""));
    assert_int_equal(clb_gguf_version(o.g), 3);
    assert_int_equal(clb_gguf_alignment(o.g), 32);
    assert_int_equal(clb_gguf_n_shards(o.g), 1);
    assert_string_equal(clb_gguf_shard_path(o.g, 0), "image");
    assert_int_equal(clb_gguf_shard_size(o.g, 0), im.n);
    assert_int_equal(clb_gguf_shard_fd(o.g, 0), -1);
    close_opened(&o);
}

static const clb_gguf_value *find(const clb_gguf *g, const char *format, const char *name, unsigned i)
{
    char key[64];
    snprintf(key, sizeof key, format, name, i);
    const clb_gguf_value *v = clb_gguf_find(g, key);
    if (!v)
        fail_msg("no key %s", key);
    return v;
}

/* Against tests/data/gguf/all.gguf, made by Python's gguf package; the values are those of make_gguf_vectors.py. */
static void reads_a_file_of_another_writer(void **state)
{
    (void)state;
    static const char greeting[] = "Gr\xc3\xbc\xc3\x9f"
                                   "e \xe4\xbd\xa0\xe5\xa5\xbd\n";
    clb_error err = {0};
    clb_gguf *g;
    assert_ok(clb_gguf_open(TEST_DATA("gguf/all.gguf"), NULL, NULL, &g, &err), &err);
    assert_int_equal(clb_gguf_n_keys(g), 40);
    assert_int_equal(clb_gguf_alignment(g), 64);

    static const struct {
        const char *name;
        enum clb_gguf_vtype type;
        uint64_t u[2];
    } unsigned_[] = {{"u8", CLB_GGUF_U8, {0, 255}},
                     {"u16", CLB_GGUF_U16, {1, 65535}},
                     {"u32", CLB_GGUF_U32, {2, UINT32_MAX}},
                     {"u64", CLB_GGUF_U64, {3, UINT64_MAX}},
                     {"bool", CLB_GGUF_BOOL, {0, 1}}};
    for (size_t i = 0; i < sizeof unsigned_ / sizeof *unsigned_; i++) {
        const clb_gguf_value *array = find(g, "array.%s", unsigned_[i].name, 0);
        assert_int_equal(array->type, CLB_GGUF_ARRAY);
        assert_int_equal(array->as.arr.elem, unsigned_[i].type);
        assert_int_equal(array->as.arr.n, 2);
        for (unsigned k = 0; k < 2; k++) {
            const clb_gguf_value *v = find(g, "scalar.%s.%u", unsigned_[i].name, k);
            assert_int_equal(v->type, unsigned_[i].type);
            assert_true(v->as.u == unsigned_[i].u[k]);
            int64_t item = -1;
            if (unsigned_[i].u[k] > INT64_MAX) {
                assert_fails(clb_gguf_item_i64(array, k, &item, &err), &err, COLIBRI_E_FORMAT, "at most");
                continue;
            }
            assert_ok(clb_gguf_item_i64(array, k, &item, &err), &err);
            assert_true(item == (int64_t)unsigned_[i].u[k]);
        }
    }
    static const struct {
        const char *name;
        enum clb_gguf_vtype type;
        int64_t i[2];
    } signed_[] = {{"i8", CLB_GGUF_I8, {-128, 127}},
                   {"i16", CLB_GGUF_I16, {-32768, 32767}},
                   {"i32", CLB_GGUF_I32, {INT32_MIN, INT32_MAX}},
                   {"i64", CLB_GGUF_I64, {INT64_MIN, INT64_MAX}}};
    for (size_t i = 0; i < sizeof signed_ / sizeof *signed_; i++) {
        for (unsigned k = 0; k < 2; k++) {
            const clb_gguf_value *v = find(g, "scalar.%s.%u", signed_[i].name, k);
            assert_int_equal(v->type, signed_[i].type);
            assert_true(v->as.i == signed_[i].i[k]);
            int64_t item = 0;
            assert_ok(clb_gguf_item_i64(find(g, "array.%s", signed_[i].name, 0), k, &item, &err), &err);
            assert_true(item == signed_[i].i[k]);
        }
    }
    static const struct {
        const char *name;
        double f[2];
    } floats[] = {{"f32", {-0.5, (double)1e-5f}}, {"f64", {1e300, -0.1}}};
    for (size_t i = 0; i < 2; i++) {
        for (unsigned k = 0; k < 2; k++) {
            double item = 0;
            assert_true(find(g, "scalar.%s.%u", floats[i].name, k)->as.f == floats[i].f[k]);
            assert_ok(clb_gguf_item_f64(find(g, "array.%s", floats[i].name, 0), k, &item, &err), &err);
            assert_true(item == floats[i].f[k]);
        }
    }
    for (unsigned k = 0; k < 2; k++) {
        const char *expected = k ? greeting : "";
        clb_str item;
        const clb_str s = find(g, "scalar.%s.%u", "string", k)->as.str;
        assert_int_equal(s.n, strlen(expected));
        assert_memory_equal(s.p, expected, s.n);
        assert_ok(clb_gguf_item_str(find(g, "array.%s", "string", 0), k, &item, &err), &err);
        assert_int_equal(item.n, s.n);
        assert_memory_equal(item.p, expected, s.n);
    }

    const clb_gguf_value *nested = clb_gguf_find(g, "array.nested");
    assert_int_equal(nested->as.arr.elem, CLB_GGUF_ARRAY);
    assert_int_equal(nested->as.arr.n, 2);
    const clb_gguf_value *inner = nested->as.arr.items;
    int64_t third = 0, last = 0;
    assert_ok(clb_gguf_item_i64(&inner[0], 2, &third, &err), &err);
    assert_ok(clb_gguf_item_i64(&inner[1], 0, &last, &err), &err);
    assert_int_equal(third, 3);
    assert_int_equal(last, 4);
    inner = clb_gguf_find(g, "array.nested_strings")->as.arr.items;
    clb_str s;
    assert_ok(clb_gguf_item_str((const clb_gguf_value *)inner[0].as.arr.items, 1, &s, &err), &err);
    assert_int_equal(s.n, 2);
    assert_memory_equal(s.p, "bc", 2);
    assert_int_equal(inner[1].as.arr.n, 2);
    assert_ok(clb_gguf_item_str((const clb_gguf_value *)inner[1].as.arr.items + 1, 0, &s, &err), &err);
    assert_int_equal(s.n, 3);
    assert_memory_equal(s.p, "def", 3);

    /* Offsets as Python's reader prints them. */
    static const struct {
        const char *name;
        uint32_t type, n_dims;
        uint64_t ne[4], n_bytes, offset;
    } tensors[] = {{"one.weight", 0, 1, {5, 1, 1, 1}, 20, 1856},
                   {"two.weight", 1, 2, {4, 3, 1, 1}, 24, 1920},
                   {"three.ids", 26, 3, {4, 3, 2, 1}, 96, 1984},
                   {"four.bytes", 24, 4, {3, 2, 1, 2}, 12, 2112},
                   {"q8.weight", 8, 2, {64, 2, 1, 1}, 136, 2176}};
    assert_int_equal(clb_gguf_n_tensors(g), 5);
    for (size_t i = 0; i < 5; i++) {
        const clb_gguf_tensor *t = clb_gguf_find_tensor(g, tensors[i].name);
        assert_non_null(t);
        assert_ptr_equal(t, clb_gguf_tensor_at(g, i));
        assert_string_equal(t->name.p, tensors[i].name);
        assert_int_equal(t->type, tensors[i].type);
        assert_int_equal(t->n_dims, tensors[i].n_dims);
        assert_memory_equal(t->ne, tensors[i].ne, sizeof t->ne);
        assert_int_equal(t->n_elems, t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]);
        assert_int_equal(t->n_bytes, tensors[i].n_bytes);
        assert_int_equal(t->offset, tensors[i].offset);
        assert_int_equal(t->room, clb_gguf_shard_size(g, 0) - t->offset);
    }
    int32_t ids[24];
    float f[2];
    const clb_gguf_tensor *t = clb_gguf_find_tensor(g, "three.ids");
    assert_ok(clb_gguf_read(g, t, 0, ids, sizeof ids, &err), &err);
    for (int i = 0; i < 24; i++)
        assert_int_equal(ids[i], i);
    t = clb_gguf_find_tensor(g, "one.weight");
    assert_ok(clb_gguf_read(g, t, 12, f, sizeof f, &err), &err);
    assert_true(f[0] == 0.75f && f[1] == 1.0f);
    assert_ok(clb_gguf_read(g, t, 20, f, 0, &err), &err);
    assert_fails(clb_gguf_read(g, t, 16, f, 5, &err), &err, COLIBRI_E_INTERNAL, "one.weight");
    assert_fails(clb_gguf_read(g, t, UINT64_MAX, f, 4, &err), &err, COLIBRI_E_INTERNAL, "one.weight");
    clb_gguf_close(g);
}

static void reads_version_2(void **state)
{
    (void)state;
    put_head(&im, 2, 1, 1);
    put_key_text(&im, "general.architecture", "llama");
    put_tensor_1d(&im, "t", 4, COLIBRI_TYPE_F32, 0);
    put_padding(&im, 32);
    const size_t data = im.n;
    put_data(&im, 16);
    opened o = open_bytes(im.b, im.n);
    assert_ok(o.rc, &o.err);
    assert_int_equal(clb_gguf_version(o.g), 2);
    assert_int_equal(clb_gguf_find_tensor(o.g, "t")->offset, data);
    unsigned char bytes[16];
    assert_ok(clb_gguf_read(o.g, clb_gguf_find_tensor(o.g, "t"), 0, bytes, 16, &o.err), &o.err);
    assert_memory_equal(bytes, im.b + data, 16);
    close_opened(&o);
}

static void reads_an_empty_model(void **state)
{
    (void)state;
    put_head(&im, 3, 0, 0);
    opened o = open_bytes(im.b, im.n);
    assert_ok(o.rc, &o.err);
    assert_int_equal(clb_gguf_n_keys(o.g), 0);
    assert_int_equal(clb_gguf_n_tensors(o.g), 0);
    assert_null(clb_gguf_find(o.g, "general.architecture"));
    assert_null(clb_gguf_find_tensor(o.g, "token_embd.weight"));
    close_opened(&o);
}

/* Strings are any bytes; empty arrays exist in real files. */
static void reads_odd_but_valid_values(void **state)
{
    (void)state;
    put_head(&im, 3, 0, 4);
    put_key(&im, "binary", CLB_GGUF_STRING);
    put_int(&im, 4, 8);
    put_bytes(&im, "a\0\xff\n", 4);
    put_key(&im, "no.strings", CLB_GGUF_ARRAY);
    put_array_head(&im, CLB_GGUF_STRING, 0);
    put_key(&im, "no.floats", CLB_GGUF_ARRAY);
    put_array_head(&im, CLB_GGUF_F32, 0);
    put_key(&im, "\xc3\xa9 any bytes \x01", CLB_GGUF_U8);
    put_int(&im, 7, 1);
    opened o = open_bytes(im.b, im.n);
    assert_ok(o.rc, &o.err);
    clb_str s;
    double f;
    assert_ok(clb_gguf_get_str(o.g, "binary", &s, &o.err), &o.err);
    assert_int_equal(s.n, 4);
    assert_memory_equal(s.p, "a\0\xff\n", 4);
    assert_fails(clb_gguf_item_str(clb_gguf_find(o.g, "no.strings"), 0, &s, &o.err), &o.err, COLIBRI_E_FORMAT,
                 "element 0 of an array that has 0");
    assert_fails(clb_gguf_item_f64(clb_gguf_find(o.g, "no.floats"), 0, &f, &o.err), &o.err, COLIBRI_E_FORMAT, "has 0");
    assert_non_null(clb_gguf_find(o.g, "\xc3\xa9 any bytes \x01"));
    close_opened(&o);
}

static void finds_every_one_of_many_names(void **state)
{
    (void)state;
    const unsigned n = 1500;
    char name[32];
    put_head(&im, 3, n, n);
    for (unsigned i = 0; i < n; i++) {
        snprintf(name, sizeof name, "k.%u", i);
        put_key_u32(&im, name, i);
    }
    for (unsigned i = 0; i < n; i++) {
        snprintf(name, sizeof name, "blk.%u", i);
        put_tensor_1d(&im, name, 1, COLIBRI_TYPE_F32, (uint64_t)i * 32);
    }
    put_padding(&im, 32);
    put_data(&im, (n - 1) * 32 + 4); /* the last padding may be missing */
    opened o = open_bytes(im.b, im.n);
    assert_ok(o.rc, &o.err);
    for (unsigned i = 0; i < n; i++) {
        uint32_t v = 0;
        snprintf(name, sizeof name, "k.%u", i);
        assert_ok(clb_gguf_get_u32(o.g, name, &v, &o.err), &o.err);
        assert_int_equal(v, i);
        snprintf(name, sizeof name, "blk.%u", i);
        assert_ptr_equal(clb_gguf_find_tensor(o.g, name), clb_gguf_tensor_at(o.g, i));
    }
    assert_null(clb_gguf_find(o.g, "k.1500"));
    assert_null(clb_gguf_find_tensor(o.g, "k.0"));
    close_opened(&o);
}

static bool pairs_only(void *ctx, uint32_t type, uint32_t *elems, uint32_t *bytes)
{
    *elems = 2;
    *bytes = 3;
    return type == *(const uint32_t *)ctx;
}

static void takes_sizes_from_the_geometry(void **state)
{
    (void)state;
    put_head(&im, 3, 2, 0);
    put_tensor_1d(&im, "special", 4, 77, 0);
    put_tensor_1d(&im, "unknown", 4, COLIBRI_TYPE_F32, 32);
    put_padding(&im, 32);
    put_data(&im, 64);
    uint32_t special = 77;
    clb_error err = {0};
    clb_gguf *g;
    assert_ok(clb_gguf_open_memory(im.b, im.n, "image", pairs_only, &special, &g, &err), &err);
    const clb_gguf_tensor *t = clb_gguf_find_tensor(g, "special");
    assert_int_equal(t->n_bytes, 6);
    assert_int_equal(t->room, 64);
    t = clb_gguf_find_tensor(g, "unknown");
    assert_int_equal(t->n_bytes, 0);
    assert_int_equal(t->n_elems, 4);
    unsigned char bytes[33];
    assert_ok(clb_gguf_read(g, t, 0, bytes, 32, &err), &err); /* up to the end of the file */
    assert_fails(clb_gguf_read(g, t, 0, bytes, 33, &err), &err, COLIBRI_E_INTERNAL, "unknown");
    clb_gguf_close(g);

    char buf[16];
    assert_string_equal(clb_gguf_type_name(COLIBRI_TYPE_Q4_K, buf), "Q4_K");
    assert_string_equal(clb_gguf_type_name(4, buf), "type 4");
    assert_string_equal(clb_gguf_type_name(UINT32_MAX, buf), "type 4294967295");
    uint32_t elems, n_bytes;
    assert_true(clb_gguf_known_geometry(NULL, COLIBRI_TYPE_MXFP4, &elems, &n_bytes));
    assert_int_equal(elems, 32);
    assert_int_equal(n_bytes, 17);
    assert_false(clb_gguf_known_geometry(NULL, 5, &elems, &n_bytes));
    assert_false(clb_gguf_known_geometry(NULL, 4000000000u, &elems, &n_bytes));
}

/* ---- typed getters ---------------------------------------------------------------------------------- */

static void converts_where_the_value_fits(void **state)
{
    (void)state;
    put_head(&im, 3, 0, 8);
    put_key(&im, "i32", CLB_GGUF_I32);
    put_int(&im, 5, 4);
    put_key(&im, "negative", CLB_GGUF_I64);
    put_int(&im, (uint64_t)-1, 8);
    put_key(&im, "big", CLB_GGUF_U64);
    put_int(&im, (uint64_t)1 << 32, 8);
    put_key(&im, "f64", CLB_GGUF_F64);
    put_int(&im, 0x3fe0000000000000, 8); /* 0.5 */
    put_key(&im, "huge", CLB_GGUF_F64);
    put_int(&im, 0x7fefffffffffffff, 8); /* DBL_MAX */
    put_key(&im, "nan", CLB_GGUF_F32);
    put_int(&im, 0x7fc00000, 4);
    put_key(&im, "yes", CLB_GGUF_BOOL);
    put_int(&im, 1, 1);
    put_key_text(&im, "text", "x");
    opened o = open_bytes(im.b, im.n);
    clb_error *err = &o.err;
    assert_ok(o.rc, err);
    uint32_t u = 99;
    uint64_t u64 = 99;
    float f = 99;
    bool b = false;
    clb_str s = {0};
    assert_ok(clb_gguf_get_u32(o.g, "i32", &u, err), err);
    assert_int_equal(u, 5);
    assert_ok(clb_gguf_get_u64(o.g, "big", &u64, err), err);
    assert_true(u64 == (uint64_t)1 << 32);
    assert_ok(clb_gguf_get_f32(o.g, "f64", &f, err), err);
    assert_true(f == 0.5f);
    assert_ok(clb_gguf_get_f32(o.g, "nan", &f, err), err);
    assert_true(isnan(f));
    assert_ok(clb_gguf_get_bool(o.g, "yes", &b, err), err);
    assert_true(b);
    assert_ok(clb_gguf_get_str(o.g, "text", &s, err), err);
    assert_int_equal(s.n, 1);

    assert_fails(clb_gguf_get_u32(o.g, "big", &u, err), err, COLIBRI_E_FORMAT, "\"big\" is 4294967296");
    assert_fails(clb_gguf_get_u64(o.g, "negative", &u64, err), err, COLIBRI_E_FORMAT, "\"negative\" is -1");
    assert_fails(clb_gguf_get_f32(o.g, "huge", &f, err), err, COLIBRI_E_FORMAT, "\"huge\"");
    assert_fails(clb_gguf_get_u32(o.g, "f64", &u, err), err, COLIBRI_E_FORMAT, "of type f64, expected an integer");
    assert_fails(clb_gguf_get_u32(o.g, "yes", &u, err), err, COLIBRI_E_FORMAT, "of type bool");
    assert_fails(clb_gguf_get_bool(o.g, "i32", &b, err), err, COLIBRI_E_FORMAT, "of type i32, expected bool");
    assert_fails(clb_gguf_get_f32(o.g, "i32", &f, err), err, COLIBRI_E_FORMAT, "expected f32");
    assert_fails(clb_gguf_get_str(o.g, "i32", &s, err), err, COLIBRI_E_FORMAT, "expected string");

    u = 99;
    assert_fails(clb_gguf_get_u32(o.g, "none", &u, err), err, COLIBRI_E_NOT_FOUND, "image: has no key \"none\"");
    assert_int_equal(u, 99);
    assert_fails(clb_gguf_get_str(o.g, "none", &s, err), err, COLIBRI_E_NOT_FOUND, "none");
    assert_ok(clb_gguf_get_u32_or(o.g, "none", 7, &u, err), err);
    assert_int_equal(u, 7);
    assert_ok(clb_gguf_get_u32_or(o.g, "i32", 7, &u, err), err);
    assert_int_equal(u, 5);
    assert_ok(clb_gguf_get_f32_or(o.g, "none", 0.25f, &f, err), err);
    assert_true(f == 0.25f);
    assert_ok(clb_gguf_get_bool_or(o.g, "none", true, &b, err), err);
    assert_true(b);
    assert_int_equal(clb_gguf_get_u32_or(o.g, "text", 7, &u, err), COLIBRI_E_FORMAT);
    assert_int_equal(clb_gguf_get_f32_or(o.g, "text", 7, &f, err), COLIBRI_E_FORMAT);
    assert_int_equal(clb_gguf_get_bool_or(o.g, "text", true, &b, err), COLIBRI_E_FORMAT);
    int64_t item;
    assert_fails(clb_gguf_item_i64(clb_gguf_find(o.g, "text"), 0, &item, err), err, COLIBRI_E_FORMAT, "an array");
    close_opened(&o);
}

/* ---- refusing: start and keys ----------------------------------------------------------------------- */

static void refuses_what_is_not_gguf_2_or_3(void **state)
{
    (void)state;
    im.n = 0;
    expect_refused(&im, COLIBRI_E_FORMAT, "the file is empty");
    put_text(&im, "no model");
    memcpy(im.b, "%PDF", 4);
    expect_refused(&im, COLIBRI_E_FORMAT, "starts with 25 50 44 46, expected 47 47 55 46");
    memcpy(im.b, "vers", 4);
    expect_refused(&im, COLIBRI_E_FORMAT, "Git LFS");
    memcpy(im.b, "tjgg", 4);
    expect_refused(&im, COLIBRI_E_FORMAT, "GGJT");
    put_head(&im, 1, 0, 0);
    expect_refused(&im, COLIBRI_E_UNSUPPORTED, "version 1");
    put_head(&im, 4, 0, 0);
    expect_refused(&im, COLIBRI_E_UNSUPPORTED, "version 4");
    put_head(&im, 0, 0, 0);
    expect_refused(&im, COLIBRI_E_UNSUPPORTED, "version 0");
    put_head(&im, 0x03000000, 0, 0);
    expect_refused(&im, COLIBRI_E_UNSUPPORTED, "big-endian");
    memcpy(im.b, "FUGG", 4);
    expect_refused(&im, COLIBRI_E_UNSUPPORTED, "big-endian");
}

static void refuses_absurd_counts(void **state)
{
    (void)state;
    static const uint64_t counts[] = {1, 1000, (uint64_t)1 << 32, (uint64_t)1 << 61, (uint64_t)1 << 63, UINT64_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        put_head(&im, 3, 0, counts[i]);
        expect_refused(&im, COLIBRI_E_FORMAT, "byte 16: ");
        put_head(&im, 3, counts[i], 0);
        expect_refused(&im, COLIBRI_E_FORMAT, "byte 8: ");
        put_head(&im, 3, 0, 1);
        put_key(&im, "k", CLB_GGUF_STRING);
        put_int(&im, counts[i], 8);
        expect_refused(&im, COLIBRI_E_FORMAT, "byte 45: key 0 \"k\": a string needs");
        for (uint32_t elem = 0; elem <= 12; elem++) {
            put_head(&im, 3, 0, 1);
            put_key(&im, "k", CLB_GGUF_ARRAY);
            put_array_head(&im, elem, counts[i]);
            expect_refused(&im, COLIBRI_E_FORMAT, "does not fit into the remaining 0 bytes");
        }
    }
    /* Just too many for the bytes that follow. */
    put_head(&im, 3, 0, 1);
    put_key(&im, "k", CLB_GGUF_ARRAY);
    put_array_head(&im, CLB_GGUF_U64, 3);
    put_data(&im, 23);
    expect_refused(&im, COLIBRI_E_FORMAT, "array of 3 u64 does not fit into the remaining 23 bytes");
    put_data(&im, 1);
    expect_opens(&im);
}

static void refuses_bad_keys(void **state)
{
    (void)state;
    put_head(&im, 3, 0, 1);
    put_key_u32(&im, "", 1);
    put_data(&im, 16);
    expect_refused(&im, COLIBRI_E_FORMAT, "byte 24: key 0: a key is empty");
    put_head(&im, 3, 0, 1);
    put_int(&im, 3, 8);
    put_bytes(&im, "a\0b", 3);
    put_int(&im, CLB_GGUF_U32, 4);
    put_int(&im, 1, 4);
    expect_refused(&im, COLIBRI_E_FORMAT, "byte 32: key 0: a key contains a NUL byte");
    put_head(&im, 3, 0, 1);
    put_int(&im, 65536, 8);
    put_data(&im, 65536);
    expect_refused(&im, COLIBRI_E_FORMAT, "a key of 65536 bytes");
    put_head(&im, 3, 0, 1);
    put_int(&im, 65535, 8);
    for (int i = 0; i < 65535; i++)
        put_int(&im, 'k', 1);
    put_int(&im, CLB_GGUF_U8, 4);
    put_int(&im, 1, 1);
    expect_opens(&im);
    put_head(&im, 3, 0, 3);
    put_key_u32(&im, "twice", 1);
    put_key_u32(&im, "once", 1);
    put_key_text(&im, "twice", "x");
    expect_refused(&im, COLIBRI_E_FORMAT, "key 2 \"twice\" has the name of key 0");
}

static void refuses_bad_values(void **state)
{
    (void)state;
    static const uint32_t types[] = {13, 14, 255, 0x01000000, UINT32_MAX};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        put_head(&im, 3, 0, 1);
        put_key(&im, "k", types[i]);
        put_data(&im, 32);
        expect_refused(&im, COLIBRI_E_FORMAT, "byte 33: key 0 \"k\": unknown value type");
        put_head(&im, 3, 0, 1);
        put_key(&im, "k", CLB_GGUF_ARRAY);
        put_array_head(&im, types[i], 1);
        put_data(&im, 32);
        expect_refused(&im, COLIBRI_E_FORMAT, "array of value type");
    }
    put_head(&im, 3, 0, 1);
    put_key(&im, "k", CLB_GGUF_BOOL);
    put_int(&im, 2, 1);
    expect_refused(&im, COLIBRI_E_FORMAT, "byte 37: key 0 \"k\": a boolean is 2, expected 0 or 1");
    put_head(&im, 3, 0, 1);
    put_key(&im, "k", CLB_GGUF_ARRAY);
    put_array_head(&im, CLB_GGUF_BOOL, 3);
    put_bytes(&im, "\x01\0\xff", 3);
    expect_refused(&im, COLIBRI_E_FORMAT, "byte 51: key 0 \"k\": element 2 of a boolean array is 255");
}

static void bounds_the_nesting_of_arrays(void **state)
{
    (void)state;
    for (unsigned depth = CLB_GGUF_MAX_DEPTH - 1; depth <= CLB_GGUF_MAX_DEPTH + 1; depth++) {
        put_head(&im, 3, 0, 1);
        put_key(&im, "deep", CLB_GGUF_ARRAY);
        for (unsigned d = 1; d < depth; d++)
            put_array_head(&im, CLB_GGUF_ARRAY, 1);
        put_array_head(&im, CLB_GGUF_U16, 1);
        put_int(&im, 4711, 2);
        if (depth > CLB_GGUF_MAX_DEPTH) {
            expect_refused(&im, COLIBRI_E_LIMIT, "nested deeper than 8");
            continue;
        }
        opened o = open_bytes(im.b, im.n);
        assert_ok(o.rc, &o.err);
        const clb_gguf_value *v = clb_gguf_find(o.g, "deep");
        for (unsigned d = 1; d < depth; d++) {
            assert_int_equal(v->as.arr.elem, CLB_GGUF_ARRAY);
            v = v->as.arr.items;
        }
        int64_t item = 0;
        assert_ok(clb_gguf_item_i64(v, 0, &item, &o.err), &o.err);
        assert_int_equal(item, 4711);
        close_opened(&o);
    }
}

static void escapes_names_in_messages(void **state)
{
    (void)state;
    put_head(&im, 3, 0, 1);
    put_key(&im, "\x1b[2J\xe2\x80\xae\xff\n", 99);
    expect_refused(&im, COLIBRI_E_FORMAT, "\"\\x1b[2J\\u202e\\xff\\n\"");
}

/* ---- refusing: tensors ------------------------------------------------------------------------------ */

/* One tensor with n_data bytes in the data section. */
static void one_tensor(uint32_t n_dims, const uint64_t *ne, uint32_t type, uint64_t offset, size_t n_data)
{
    put_head(&im, 3, 1, 0);
    put_tensor(&im, "t", n_dims, ne, type, offset);
    put_padding(&im, 32);
    put_data(&im, n_data);
}

static void refuses_bad_shapes(void **state)
{
    (void)state;
    static const uint64_t one[5] = {1, 1, 1, 1, 1};
    one_tensor(0, one, COLIBRI_TYPE_F32, 0, 64);
    expect_refused(&im, COLIBRI_E_FORMAT, "tensor 0 \"t\": 0 dimensions, expected 1 to 4");
    one_tensor(5, one, COLIBRI_TYPE_F32, 0, 64);
    expect_refused(&im, COLIBRI_E_FORMAT, "5 dimensions");
    one_tensor(2, (const uint64_t[]){4, 0}, COLIBRI_TYPE_F32, 0, 64);
    expect_refused(&im, COLIBRI_E_FORMAT, "dimension 1 is 0");
    one_tensor(2, (const uint64_t[]){(uint64_t)1 << 32, (uint64_t)1 << 32}, COLIBRI_TYPE_F32, 0, 64);
    expect_refused(&im, COLIBRI_E_FORMAT, "the product of its dimensions overflows");
    one_tensor(1, (const uint64_t[]){UINT64_MAX}, COLIBRI_TYPE_F32, 0, 64);
    expect_refused(&im, COLIBRI_E_FORMAT, "overflows");
    one_tensor(4, (const uint64_t[]){65536, 65536, 65536, 65536}, COLIBRI_TYPE_F32, 0, 64);
    expect_refused(&im, COLIBRI_E_FORMAT, "overflows");
    one_tensor(1, (const uint64_t[]){(uint64_t)1 << 62}, COLIBRI_TYPE_F32, 0, 64);
    expect_refused(&im, COLIBRI_E_FORMAT, "its size in bytes overflows");
    one_tensor(2, (const uint64_t[]){33, 32}, COLIBRI_TYPE_Q8_0, 0, 4096);
    expect_refused(&im, COLIBRI_E_FORMAT, "33 columns of Q8_0, expected a multiple of 32");
    one_tensor(2, (const uint64_t[]){32, 33}, COLIBRI_TYPE_Q8_0, 0, 34 * 33);
    expect_opens(&im);
    one_tensor(2, (const uint64_t[]){128, 2}, COLIBRI_TYPE_Q4_K, 0, 4096);
    expect_refused(&im, COLIBRI_E_FORMAT, "128 columns of Q4_K");
}

static void refuses_bad_names(void **state)
{
    (void)state;
    char name[300];
    memset(name, 'n', sizeof name);
    for (size_t n = 255; n <= 256; n++) {
        name[n] = '\0';
        put_head(&im, 3, 1, 0);
        put_tensor_1d(&im, name, 1, COLIBRI_TYPE_F32, 0);
        put_padding(&im, 32);
        put_data(&im, 4);
        if (n == 255)
            expect_opens(&im);
        else
            expect_refused(&im, COLIBRI_E_FORMAT, "a tensor name of 256 bytes, at most 255");
        name[n] = 'n';
    }
    put_head(&im, 3, 1, 0);
    put_tensor_1d(&im, "", 1, COLIBRI_TYPE_F32, 0);
    put_data(&im, 64);
    expect_refused(&im, COLIBRI_E_FORMAT, "a tensor name is empty");
    put_head(&im, 3, 1, 0);
    put_tensor_1d(&im, "a?b", 1, COLIBRI_TYPE_F32, 0);
    im.b[33] = 0;
    put_data(&im, 64);
    expect_refused(&im, COLIBRI_E_FORMAT, "NUL byte");
    put_head(&im, 3, 2, 0);
    put_tensor_1d(&im, "same", 1, COLIBRI_TYPE_F32, 0);
    put_tensor_1d(&im, "same", 1, COLIBRI_TYPE_F32, 32);
    put_padding(&im, 32);
    put_data(&im, 64);
    expect_refused(&im, COLIBRI_E_FORMAT, "a second tensor is named \"same\"");
}

static void refuses_tensors_outside_the_file(void **state)
{
    (void)state;
    const uint64_t four[] = {4};
    one_tensor(1, four, COLIBRI_TYPE_F32, 0, 16);
    expect_opens(&im);
    one_tensor(1, four, COLIBRI_TYPE_F32, 0, 15);
    expect_refused(&im, COLIBRI_E_FORMAT, "tensor \"t\": needs 16 bytes at 64 + 0, but the file ends at byte 79");
    one_tensor(1, four, COLIBRI_TYPE_F32, 32, 48);
    expect_opens(&im);
    one_tensor(1, four, COLIBRI_TYPE_F32, 32, 32);
    expect_refused(&im, COLIBRI_E_FORMAT, "the file ends at byte 96");
    static const uint64_t far[] = {64, (uint64_t)1 << 40, (uint64_t)1 << 63, UINT64_MAX - 31};
    for (size_t i = 0; i < sizeof far / sizeof *far; i++) {
        one_tensor(1, four, COLIBRI_TYPE_F32, far[i], 48);
        expect_refused(&im, COLIBRI_E_FORMAT, "but the file ends");
        one_tensor(1, four, 77, far[i], 48); /* of unknown size, still outside */
        expect_refused(&im, COLIBRI_E_FORMAT, "but the file ends");
    }
    one_tensor(1, four, 77, 32, 33);
    expect_opens(&im);
    static const uint64_t odd[] = {1, 16, 31, 33, UINT64_MAX};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        one_tensor(1, four, COLIBRI_TYPE_F32, odd[i], 64);
        expect_refused(&im, COLIBRI_E_FORMAT, "expected a multiple of the alignment 32");
    }
    /* The header ends before the data section would begin. */
    put_head(&im, 3, 1, 0);
    put_tensor_1d(&im, "t", 4, 77, 0);
    expect_refused(&im, COLIBRI_E_FORMAT, "but the file ends");
}

static void refuses_overlapping_tensors(void **state)
{
    (void)state;
    static const struct {
        uint32_t type[3];
        uint64_t offset[3];
        bool fine;
    } cases[] = {
        {{0, 0, 0}, {0, 32, 64}, true},   {{0, 0, 0}, {64, 0, 32}, true},
        {{0, 0, 0}, {0, 64, 64}, false},  {{0, 0, 0}, {64, 32, 64}, false},
        {{77, 0, 0}, {0, 32, 64}, true},  {{77, 77, 0}, {0, 0, 64}, false},
        {{77, 0, 0}, {32, 32, 0}, false}, {{28, 0, 0}, {0, 32, 64}, false} /* 64 bytes at 0 */,
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_head(&im, 3, 3, 0);
        for (unsigned t = 0; t < 3; t++)
            put_tensor_1d(&im, (const char *[]){"a", "b", "c"}[t], 8, cases[i].type[t], cases[i].offset[t]);
        put_padding(&im, 32);
        put_data(&im, 256);
        if (cases[i].fine)
            expect_opens(&im);
        else
            expect_refused(&im, COLIBRI_E_FORMAT, "overlap those of");
    }
}

static void checks_the_alignment_key(void **state)
{
    (void)state;
    static const struct {
        uint64_t value;
        uint32_t type;
        unsigned size;
        const char *refused;
    } cases[] = {{8, CLB_GGUF_U32, 4, NULL},
                 {32, CLB_GGUF_U32, 4, NULL},
                 {4096, CLB_GGUF_U32, 4, NULL},
                 {0, CLB_GGUF_U32, 4, "is 0, expected a power of two"},
                 {4, CLB_GGUF_U32, 4, "is 4"},
                 {24, CLB_GGUF_U32, 4, "is 24"},
                 {1u << 31, CLB_GGUF_U32, 4, "is 2147483648"},
                 {64, CLB_GGUF_U64, 8, "of type u64, expected u32"},
                 {64, CLB_GGUF_I32, 4, "of type i32, expected u32"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_head(&im, 3, 2, 1);
        put_key(&im, "general.alignment", cases[i].type);
        put_int(&im, cases[i].value, cases[i].size);
        const size_t step = cases[i].refused ? 64 : cases[i].value;
        put_tensor_1d(&im, "a", 2, COLIBRI_TYPE_F32, 0);
        put_tensor_1d(&im, "b", 2, COLIBRI_TYPE_F32, step);
        put_padding(&im, step);
        const size_t data = im.n;
        put_data(&im, step + 8);
        if (cases[i].refused) {
            expect_refused(&im, COLIBRI_E_FORMAT, cases[i].refused);
            continue;
        }
        opened o = open_bytes(im.b, im.n);
        assert_ok(o.rc, &o.err);
        assert_int_equal(clb_gguf_alignment(o.g), cases[i].value);
        assert_int_equal(clb_gguf_find_tensor(o.g, "b")->offset, data + cases[i].value);
        close_opened(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_all_scalars),
        cmocka_unit_test(reads_a_file_of_another_writer),
        cmocka_unit_test(reads_version_2),
        cmocka_unit_test(reads_an_empty_model),
        cmocka_unit_test(reads_odd_but_valid_values),
        cmocka_unit_test(finds_every_one_of_many_names),
        cmocka_unit_test(takes_sizes_from_the_geometry),
        cmocka_unit_test(converts_where_the_value_fits),
        cmocka_unit_test(refuses_what_is_not_gguf_2_or_3),
        cmocka_unit_test(refuses_absurd_counts),
        cmocka_unit_test(refuses_bad_keys),
        cmocka_unit_test(refuses_bad_values),
        cmocka_unit_test(bounds_the_nesting_of_arrays),
        cmocka_unit_test(escapes_names_in_messages),
        cmocka_unit_test(refuses_bad_shapes),
        cmocka_unit_test(refuses_bad_names),
        cmocka_unit_test(refuses_tensors_outside_the_file),
        cmocka_unit_test(refuses_overlapping_tensors),
        cmocka_unit_test(checks_the_alignment_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
