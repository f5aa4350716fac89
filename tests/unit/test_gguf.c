/* The GGUF reader on good files. What it refuses: test_gguf_refuse.c; damaged files: test_gguf_damage.c; split models:
 * test_gguf_split.c. */
#include "gguf_image.h"

#include <math.h>
#include <stdio.h>

#include "colibri/blocks.h"

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
    /* Downwards: "k.15" comes before "k.1", which must not be taken for it. */
    for (unsigned i = n; i-- > 0;) {
        snprintf(name, sizeof name, "k.%u", i);
        put_key_u32(&im, name, i);
    }
    for (unsigned i = n; i-- > 0;) {
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
        assert_ptr_equal(clb_gguf_find_tensor(o.g, name), clb_gguf_tensor_at(o.g, n - 1 - i));
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

static void does_not_mix_up_element_types(void **state)
{
    (void)state;
    clb_error err = {0};
    clb_gguf *g;
    int64_t n;
    double f;
    clb_str s;
    assert_ok(clb_gguf_open(TEST_DATA("gguf/all.gguf"), NULL, NULL, &g, &err), &err);
    static const char *const not_ints[] = {"array.f32", "array.f64", "array.string", "array.nested"};
    static const char *const not_floats[] = {"array.u8", "array.i64", "array.bool", "array.string", "array.nested"};
    static const char *const not_strings[] = {"array.u8", "array.f32", "array.bool", "array.nested_strings"};
    for (size_t i = 0; i < 4; i++)
        assert_fails(clb_gguf_item_i64(clb_gguf_find(g, not_ints[i]), 0, &n, &err), &err, COLIBRI_E_FORMAT, "integers");
    for (size_t i = 0; i < 5; i++)
        assert_fails(clb_gguf_item_f64(clb_gguf_find(g, not_floats[i]), 0, &f, &err), &err, COLIBRI_E_FORMAT, "floats");
    for (size_t i = 0; i < 4; i++)
        assert_fails(clb_gguf_item_str(clb_gguf_find(g, not_strings[i]), 0, &s, &err), &err, COLIBRI_E_FORMAT,
                     "expected strings");
    clb_gguf_close(g);
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
    assert_fails(clb_gguf_get_f32(o.g, "none", &f, err), err, COLIBRI_E_NOT_FOUND, "none");
    assert_fails(clb_gguf_get_bool(o.g, "none", &b, err), err, COLIBRI_E_NOT_FOUND, "none");
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
        cmocka_unit_test(does_not_mix_up_element_types),
        cmocka_unit_test(converts_where_the_value_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
