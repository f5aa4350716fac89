/* The GGUF writer: what it writes reads back and equals another writer's bytes. Files: test_gguf_writer_file.c. */
#include "gguf_image.h"

#include <stdio.h>

#include "colibri/blocks.h"
#include "gguf/internal.h"
#include "gguf/writer.h"

static clb_gguf_writer *new_writer(void)
{
    clb_error err = {0};
    clb_gguf_writer *w;
    assert_ok(clb_gguf_writer_create(&w, &err), &err);
    return w;
}

static clb_gguf_new_tensor floats(const char *name, uint64_t n, const void *data)
{
    return (clb_gguf_new_tensor){.name = name, .type = COLIBRI_TYPE_F32, .n_dims = 1, .ne = {n, 1, 1, 1}, .data = data};
}

/* ---- the same bytes as Python's gguf package -------------------------------------------------------- */

static const char greeting[] = "Gr\xc3\xbc\xc3\x9f"
                               "e \xe4\xbd\xa0\xe5\xa5\xbd\n";

static void set_pair(clb_gguf_writer *w, const char *name, clb_gguf_value a, clb_gguf_value b, const void *packed)
{
    char key[64];
    clb_error err = {0};
    snprintf(key, sizeof key, "scalar.%s.0", name);
    assert_ok(clb_gguf_writer_set(w, key, &a, &err), &err);
    snprintf(key, sizeof key, "scalar.%s.1", name);
    assert_ok(clb_gguf_writer_set(w, key, &b, &err), &err);
    snprintf(key, sizeof key, "array.%s", name);
    assert_ok(clb_gguf_writer_set_array(w, key, a.type, packed, 2, &err), &err);
}

#define U(t, v)        ((clb_gguf_value){.type = (t), .as.u = (v)})
#define I(t, v)        ((clb_gguf_value){.type = (t), .as.i = (v)})
#define F(t, v)        ((clb_gguf_value){.type = (t), .as.f = (v)})
#define S(s)           ((clb_gguf_value){.type = CLB_GGUF_STRING, .as.str = {(s), strlen(s)}})
#define A(e, count, p) ((clb_gguf_value){.type = CLB_GGUF_ARRAY, .as.arr = {(e), (count), (p)}})

/* The contents of make_gguf_vectors.py. */
static void fill_all(clb_gguf_writer *w)
{
    clb_error err = {0};
    assert_ok(clb_gguf_writer_set_str(w, "general.architecture", "test", &err), &err);
    assert_ok(clb_gguf_writer_set_u32(w, "general.alignment", 64, &err), &err);
    set_pair(w, "u8", U(CLB_GGUF_U8, 0), U(CLB_GGUF_U8, 255), (const uint8_t[]){0, 255});
    set_pair(w, "i8", I(CLB_GGUF_I8, -128), I(CLB_GGUF_I8, 127), (const int8_t[]){-128, 127});
    set_pair(w, "u16", U(CLB_GGUF_U16, 1), U(CLB_GGUF_U16, 65535), (const uint16_t[]){1, 65535});
    set_pair(w, "i16", I(CLB_GGUF_I16, -32768), I(CLB_GGUF_I16, 32767), (const int16_t[]){-32768, 32767});
    set_pair(w, "u32", U(CLB_GGUF_U32, 2), U(CLB_GGUF_U32, UINT32_MAX), (const uint32_t[]){2, UINT32_MAX});
    set_pair(w, "i32", I(CLB_GGUF_I32, INT32_MIN), I(CLB_GGUF_I32, INT32_MAX), (const int32_t[]){INT32_MIN, INT32_MAX});
    set_pair(w, "f32", F(CLB_GGUF_F32, -0.5), F(CLB_GGUF_F32, 1e-5), (const float[]){-0.5f, 1e-5f});
    set_pair(w, "bool", U(CLB_GGUF_BOOL, 0), U(CLB_GGUF_BOOL, 1), (const uint8_t[]){0, 1});
    set_pair(w, "string", S(""), S(greeting), (const clb_str[]){{"", 0}, {greeting, strlen(greeting)}});
    set_pair(w, "u64", U(CLB_GGUF_U64, 3), U(CLB_GGUF_U64, UINT64_MAX), (const uint64_t[]){3, UINT64_MAX});
    set_pair(w, "i64", I(CLB_GGUF_I64, INT64_MIN), I(CLB_GGUF_I64, INT64_MAX), (const int64_t[]){INT64_MIN, INT64_MAX});
    set_pair(w, "f64", F(CLB_GGUF_F64, 1e300), F(CLB_GGUF_F64, -0.1), (const double[]){1e300, -0.1});
    const clb_gguf_value numbers[] = {A(CLB_GGUF_I32, 3, ((const int32_t[]){1, 2, 3})),
                                      A(CLB_GGUF_I32, 1, ((const int32_t[]){4}))};
    assert_ok(clb_gguf_writer_set_array(w, "array.nested", CLB_GGUF_ARRAY, numbers, 2, &err), &err);
    const clb_gguf_value left[] = {A(CLB_GGUF_STRING, 2, ((const clb_str[]){{"a", 1}, {"bc", 2}}))};
    const clb_gguf_value right[] = {A(CLB_GGUF_STRING, 1, ((const clb_str[]){{"", 0}})),
                                    A(CLB_GGUF_STRING, 1, ((const clb_str[]){{"def", 3}}))};
    const clb_gguf_value both[] = {A(CLB_GGUF_ARRAY, 1, left), A(CLB_GGUF_ARRAY, 2, right)};
    assert_ok(clb_gguf_writer_set_array(w, "array.nested_strings", CLB_GGUF_ARRAY, both, 2, &err), &err);
}

static int produce_q8(void *ctx, uint64_t offset, void *buf, size_t size, clb_error *err)
{
    (void)err;
    uint64_t *calls = ctx;
    assert_int_equal(offset, 0);
    assert_int_equal(size, 136);
    ++*calls;
    for (size_t i = 0; i < size; i++)
        ((unsigned char *)buf)[i] = (unsigned char)i;
    return COLIBRI_OK;
}

static void writes_what_another_writer_writes(void **state)
{
    (void)state;
    static const uint16_t halves[12] = {0x0000, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500,
                                        0x4600, 0x4700, 0x4800, 0x4880, 0x4900, 0x4980};
    static const float quarters[5] = {0, 0.25f, 0.5f, 0.75f, 1};
    int32_t ids[24];
    int8_t bytes[12];
    for (int i = 0; i < 24; i++)
        ids[i] = i;
    for (int i = 0; i < 12; i++)
        bytes[i] = (int8_t)i;
    uint64_t calls = 0;
    const clb_gguf_new_tensor tensors[] = {
        {.name = "one.weight", .type = 0, .n_dims = 1, .ne = {5}, .data = quarters},
        {.name = "two.weight", .type = 1, .n_dims = 2, .ne = {4, 3}, .data = halves},
        {.name = "three.ids", .type = 26, .n_dims = 3, .ne = {4, 3, 2}, .data = ids},
        {.name = "four.bytes", .type = 24, .n_dims = 4, .ne = {3, 2, 1, 2}, .n_bytes = 12, .data = bytes},
        {.name = "q8.weight", .type = 8, .n_dims = 2, .ne = {64, 2}, .produce = produce_q8, .ctx = &calls},
    };
    clb_gguf_writer *w = new_writer();
    clb_error err = {0};
    fill_all(w);
    for (size_t i = 0; i < 5; i++)
        assert_ok(clb_gguf_writer_add_tensor(w, &tensors[i], &err), &err);
    clb_buf out = {0};
    uint64_t size = 0;
    assert_ok(clb_gguf_writer_size(w, &size, &err), &err);
    assert_ok(clb_gguf_writer_write_buf(w, &out, &err), &err);
    assert_int_equal(calls, 1);
    size_t n;
    char *expected = test_read_file(TEST_DATA("gguf/all.gguf"), &n);
    assert_int_equal(out.n, n);
    assert_int_equal(size, n);
    assert_memory_equal(out.data, expected, n);

    /* Copying every key of what was read makes the same header again. */
    clb_gguf *g;
    clb_gguf_writer *again = new_writer();
    assert_ok(clb_gguf_open_memory(out.data, out.n, "first", NULL, NULL, &g, &err), &err);
    assert_ok(clb_gguf_writer_copy_keys(again, g, &err), &err);
    for (size_t i = 0; i < 5; i++)
        assert_ok(clb_gguf_writer_add_tensor(again, &tensors[i], &err), &err);
    clb_buf out2 = {0};
    assert_ok(clb_gguf_writer_write_buf(again, &out2, &err), &err);
    assert_int_equal(out2.n, n);
    assert_memory_equal(out2.data, expected, n);
    clb_gguf_close(g);
    clb_gguf_writer_free(again);
    clb_gguf_writer_free(w);
    clb_buf_free(&out);
    clb_buf_free(&out2);
    free(expected);
}

/* ---- contents --------------------------------------------------------------------------------------- */

static void replaces_and_removes_keys(void **state)
{
    (void)state;
    clb_error err = {0};
    clb_gguf_writer *w = new_writer();
    char key[32];
    for (uint32_t i = 0; i < 40; i++) {
        snprintf(key, sizeof key, "k%u", i);
        assert_ok(clb_gguf_writer_set_u32(w, key, i, &err), &err);
    }
    assert_ok(clb_gguf_writer_set_str(w, "k3", "three", &err), &err);
    assert_ok(clb_gguf_writer_set_u64(w, "k4", UINT64_MAX, &err), &err);
    assert_ok(clb_gguf_writer_set_i32(w, "k5", -5, &err), &err);
    assert_ok(clb_gguf_writer_set_f32(w, "k6", 0.1f, &err), &err);
    assert_ok(clb_gguf_writer_set_bool(w, "k7", true, &err), &err);
    clb_gguf_writer_remove(w, "k0");
    clb_gguf_writer_remove(w, "k20");
    clb_gguf_writer_remove(w, "k39");
    clb_gguf_writer_remove(w, "none");
    clb_buf out = {0};
    assert_ok(clb_gguf_writer_write_buf(w, &out, &err), &err);
    opened o = open_bytes(out.data, out.n);
    assert_ok(o.rc, &o.err);
    assert_int_equal(clb_gguf_n_keys(o.g), 37);
    assert_string_equal(clb_gguf_key(o.g, 2).p, "k3"); /* it kept its place */
    assert_string_equal(clb_gguf_key(o.g, 36).p, "k38");
    assert_null(clb_gguf_find(o.g, "k20"));
    clb_str s;
    assert_ok(clb_gguf_get_str(o.g, "k3", &s, &err), &err);
    assert_int_equal(s.n, 5);
    assert_true(clb_gguf_find(o.g, "k4")->as.u == UINT64_MAX);
    assert_int_equal(clb_gguf_find(o.g, "k5")->as.i, -5);
    assert_true(clb_gguf_find(o.g, "k6")->as.f == (double)0.1f);
    assert_int_equal(clb_gguf_find(o.g, "k7")->type, CLB_GGUF_BOOL);
    close_opened(&o);
    clb_buf_free(&out);
    clb_gguf_writer_free(w);
}

static void copies_the_model_not_its_files(void **state)
{
    (void)state;
    clb_error err = {0};
    clb_gguf *g;
    clb_gguf_writer *w = new_writer();
    assert_ok(clb_gguf_open(TEST_DATA("gguf/split-00001-of-00003.gguf"), NULL, NULL, &g, &err), &err);
    assert_non_null(clb_gguf_find(g, "split.count"));
    assert_ok(clb_gguf_writer_copy_keys(w, g, &err), &err);
    clb_buf out = {0};
    assert_ok(clb_gguf_writer_write_buf(w, &out, &err), &err);
    opened o = open_bytes(out.data, out.n);
    assert_ok(o.rc, &o.err);
    assert_int_equal(clb_gguf_n_keys(o.g), 2);
    assert_non_null(clb_gguf_find(o.g, "general.architecture"));
    assert_non_null(clb_gguf_find(o.g, "general.name"));
    close_opened(&o);
    clb_buf_free(&out);
    clb_gguf_writer_free(w);
    clb_gguf_close(g);
}

static void aligns_tensors(void **state)
{
    (void)state;
    static const uint32_t alignments[] = {8, 32, 4096};
    static const float data[5] = {1, 2, 3, 4, 5};
    for (size_t i = 0; i < 3; i++) {
        clb_error err = {0};
        clb_gguf_writer *w = new_writer();
        assert_ok(clb_gguf_writer_set_u32(w, "general.alignment", alignments[i], &err), &err);
        const clb_gguf_new_tensor a = floats("a", 5, data), b = floats("b", 2, data);
        assert_ok(clb_gguf_writer_add_tensor(w, &a, &err), &err);
        assert_ok(clb_gguf_writer_add_tensor(w, &b, &err), &err);
        clb_buf out = {0};
        assert_ok(clb_gguf_writer_write_buf(w, &out, &err), &err);
        assert_int_equal(out.n % alignments[i], 0);
        opened o = open_bytes(out.data, out.n);
        assert_ok(o.rc, &o.err);
        const clb_gguf_tensor *t = clb_gguf_find_tensor(o.g, "b");
        assert_int_equal(t->offset % alignments[i], 0);
        float got[2];
        assert_ok(clb_gguf_read(o.g, t, 0, got, sizeof got, &err), &err);
        assert_true(got[0] == 1 && got[1] == 2);
        close_opened(&o);
        clb_buf_free(&out);
        /* Without the key: the default again. */
        clb_gguf_writer_remove(w, "general.alignment");
        assert_ok(clb_gguf_writer_write_buf(w, &out, &err), &err);
        o = open_bytes(out.data, out.n);
        assert_ok(o.rc, &o.err);
        assert_int_equal(clb_gguf_alignment(o.g), 32);
        close_opened(&o);
        clb_buf_free(&out);
        clb_gguf_writer_free(w);
    }
}

static int produce_counting(void *ctx, uint64_t offset, void *buf, size_t size, clb_error *err)
{
    (void)err;
    uint64_t *next = ctx;
    assert_true(offset == *next && size <= (size_t)1 << 20);
    *next += size;
    for (size_t i = 0; i < size; i++)
        ((unsigned char *)buf)[i] = (unsigned char)((offset + i) * 7 >> 3);
    return COLIBRI_OK;
}

static void asks_for_large_tensors_piece_by_piece(void **state)
{
    (void)state;
    clb_error err = {0};
    clb_gguf_writer *w = new_writer();
    uint64_t next = 0;
    const uint64_t n = ((uint64_t)5 << 19) + 3; /* bytes; not a multiple of the piece */
    const clb_gguf_new_tensor big = {
        .name = "big", .type = 24, .n_dims = 1, .ne = {n}, .produce = produce_counting, .ctx = &next};
    assert_ok(clb_gguf_writer_add_tensor(w, &big, &err), &err);
    clb_buf out = {0};
    assert_ok(clb_gguf_writer_write_buf(w, &out, &err), &err);
    assert_int_equal(next, n);
    opened o = open_bytes(out.data, out.n);
    assert_ok(o.rc, &o.err);
    const clb_gguf_tensor *t = clb_gguf_find_tensor(o.g, "big");
    assert_int_equal(t->n_bytes, n);
    for (uint64_t i = 0; i < n; i += 4099)
        assert_int_equal((unsigned char)out.data[t->offset + i], (unsigned char)(i * 7 >> 3));
    close_opened(&o);
    clb_buf_free(&out);
    clb_gguf_writer_free(w);
}

static void refuses_what_the_reader_would_refuse(void **state)
{
    (void)state;
    clb_error err = {0};
    clb_gguf_writer *w = new_writer();
    static char long_key[65537];
    memset(long_key, 'k', 65536);
    assert_fails(clb_gguf_writer_set_u32(w, "", 1, &err), &err, COLIBRI_E_USAGE, "a key of 0 bytes");
    assert_fails(clb_gguf_writer_set_u32(w, long_key, 1, &err), &err, COLIBRI_E_USAGE, "a key of 65536 bytes");
    assert_fails(clb_gguf_writer_set(w, "k", &U(CLB_GGUF_BOOL, 2), &err), &err, COLIBRI_E_USAGE,
                 "\"k\": a boolean is 2");
    assert_fails(clb_gguf_writer_set_array(w, "k", CLB_GGUF_BOOL, "\2", 1, &err), &err, COLIBRI_E_USAGE, "boolean");
    assert_fails(clb_gguf_writer_set(w, "k", &U((enum clb_gguf_vtype)13, 2), &err), &err, COLIBRI_E_USAGE, "type 13");
    assert_fails(clb_gguf_writer_set_array(w, "k", (enum clb_gguf_vtype)99, "", 1, &err), &err, COLIBRI_E_USAGE, "99");
    const clb_gguf_value mixed[] = {U(CLB_GGUF_U8, 1)};
    assert_fails(clb_gguf_writer_set_array(w, "k", CLB_GGUF_ARRAY, mixed, 1, &err), &err, COLIBRI_E_USAGE,
                 "contains a value of type u8");
    clb_gguf_value deep[CLB_GGUF_MAX_DEPTH + 1];
    deep[0] = A(CLB_GGUF_U8, 1, "x");
    for (unsigned i = 1; i <= CLB_GGUF_MAX_DEPTH; i++)
        deep[i] = A(CLB_GGUF_ARRAY, 1, &deep[i - 1]);
    assert_fails(clb_gguf_writer_set(w, "k", &deep[CLB_GGUF_MAX_DEPTH], &err), &err, COLIBRI_E_USAGE, "nested deeper");
    assert_ok(clb_gguf_writer_set(w, "deepest", &deep[CLB_GGUF_MAX_DEPTH - 1], &err), &err);
    static const uint32_t alignments[] = {0, 4, 24, 1u << 25, 1u << 31};
    for (size_t i = 0; i < 5; i++)
        assert_fails(clb_gguf_writer_set_u32(w, "general.alignment", alignments[i], &err), &err, COLIBRI_E_USAGE,
                     "power of two");
    assert_fails(clb_gguf_writer_set_u64(w, "general.alignment", 64, &err), &err, COLIBRI_E_USAGE, "u32");

    static const float data[64];
    clb_gguf_new_tensor t = floats("", 4, data);
    assert_fails(clb_gguf_writer_add_tensor(w, &t, &err), &err, COLIBRI_E_USAGE, "a name of 0 bytes");
    long_key[256] = '\0';
    t.name = long_key;
    assert_fails(clb_gguf_writer_add_tensor(w, &t, &err), &err, COLIBRI_E_USAGE, "a name of 256 bytes");
    t = floats("t", 4, NULL);
    assert_fails(clb_gguf_writer_add_tensor(w, &t, &err), &err, COLIBRI_E_USAGE, "neither data nor");
    t = floats("t", 0, data);
    assert_fails(clb_gguf_writer_add_tensor(w, &t, &err), &err, COLIBRI_E_USAGE, "dimension 0 is 0");
    t = floats("t", UINT64_MAX, data);
    assert_fails(clb_gguf_writer_add_tensor(w, &t, &err), &err, COLIBRI_E_USAGE, "too large");
    t = floats("t", INT64_MAX, data);
    assert_fails(clb_gguf_writer_add_tensor(w, &t, &err), &err, COLIBRI_E_USAGE, "overflows");
    t = floats("t", 4, data);
    t.n_dims = 5;
    assert_fails(clb_gguf_writer_add_tensor(w, &t, &err), &err, COLIBRI_E_USAGE, "5 dimensions");
    t = floats("t", 4, data);
    t.n_bytes = 15;
    assert_fails(clb_gguf_writer_add_tensor(w, &t, &err), &err, COLIBRI_E_USAGE, "15 bytes were given");
    t = floats("t", 48, data);
    t.type = COLIBRI_TYPE_Q8_0;
    assert_fails(clb_gguf_writer_add_tensor(w, &t, &err), &err, COLIBRI_E_USAGE, "multiple of 32");
    t = floats("t", 4, data);
    t.type = 77;
    assert_fails(clb_gguf_writer_add_tensor(w, &t, &err), &err, COLIBRI_E_USAGE, "type 77 has no known geometry");
    t.n_bytes = 10;
    assert_ok(clb_gguf_writer_add_tensor(w, &t, &err), &err);

    clb_buf out = {0};
    assert_ok(clb_gguf_writer_write_buf(w, &out, &err), &err);
    opened o = open_bytes(out.data, out.n); /* nothing refused has left a trace */
    assert_ok(o.rc, &o.err);
    assert_int_equal(clb_gguf_n_keys(o.g), 1);
    assert_int_equal(clb_gguf_n_tensors(o.g), 1);
    close_opened(&o);
    clb_buf_free(&out);
    t = floats("t", 4, data);
    assert_ok(clb_gguf_writer_add_tensor(w, &t, &err), &err);
    assert_fails(clb_gguf_writer_write_buf(w, &out, &err), &err, COLIBRI_E_USAGE, "both named \"t\"");
    assert_int_equal(out.n, 0);
    clb_gguf_writer_free(w);
    clb_gguf_writer_free(NULL);
}

/* Random contents, written and read: every value comes back with the same bits. */
static void returns_random_contents(void **state)
{
    (void)state;
    test_rand rng = {7};
    for (int round = 0; round < 60; round++) {
        clb_error err = {0};
        clb_gguf_writer *w = new_writer();
        unsigned char packed[64][64];
        uint32_t types[64], n[64], alignment = 8u << test_rand_below(&rng, 6);
        const uint32_t n_keys = 1 + test_rand_below(&rng, 64);
        assert_ok(clb_gguf_writer_set_u32(w, "general.alignment", alignment, &err), &err);
        for (uint32_t i = 0; i < n_keys; i++) {
            static const uint32_t scalar_types[] = {0, 1, 2, 3, 4, 5, 6, 10, 11, 12};
            char key[16];
            types[i] = scalar_types[test_rand_below(&rng, 10)];
            n[i] = test_rand_below(&rng, 9);
            test_rand_bytes(&rng, packed[i], 64);
            snprintf(key, sizeof key, "a%u", i);
            assert_ok(clb_gguf_writer_set_array(w, key, types[i], packed[i], n[i], &err), &err);
            snprintf(key, sizeof key, "s%u", i);
            const clb_gguf_value s = {.type = CLB_GGUF_STRING, .as.str = {(const char *)packed[i], n[i] * 7}};
            assert_ok(clb_gguf_writer_set(w, key, &s, &err), &err);
        }
        const uint32_t n_tensors = test_rand_below(&rng, 10);
        for (uint32_t i = 0; i < n_tensors; i++) {
            char name[16];
            snprintf(name, sizeof name, "t%u", i);
            const clb_gguf_new_tensor t = floats(name, 1 + test_rand_below(&rng, 16), packed[0]);
            assert_ok(clb_gguf_writer_add_tensor(w, &t, &err), &err);
        }
        clb_buf out = {0};
        uint64_t size;
        assert_ok(clb_gguf_writer_size(w, &size, &err), &err);
        assert_ok(clb_gguf_writer_write_buf(w, &out, &err), &err);
        assert_int_equal(out.n, size);
        opened o = open_bytes(out.data, out.n);
        assert_ok(o.rc, &o.err);
        assert_int_equal(clb_gguf_n_keys(o.g), 1 + 2 * n_keys);
        assert_int_equal(clb_gguf_n_tensors(o.g), n_tensors);
        for (uint32_t i = 0; i < n_keys; i++) {
            char key[16];
            snprintf(key, sizeof key, "a%u", i);
            const clb_gguf_value *v = clb_gguf_find(o.g, key);
            assert_int_equal(v->as.arr.elem, types[i]);
            assert_int_equal(v->as.arr.n, n[i]);
            assert_memory_equal(v->as.arr.items, packed[i], n[i] * clb_gguf_vtype_size(types[i]));
            snprintf(key, sizeof key, "s%u", i);
            v = clb_gguf_find(o.g, key);
            assert_int_equal(v->as.str.n, n[i] * 7);
            assert_memory_equal(v->as.str.p, packed[i], n[i] * 7);
        }
        for (uint32_t i = 0; i < n_tensors; i++) {
            const clb_gguf_tensor *t = clb_gguf_tensor_at(o.g, i);
            assert_memory_equal(out.data + t->offset, packed[0], t->n_bytes);
        }
        close_opened(&o);
        clb_buf_free(&out);
        clb_gguf_writer_free(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_what_another_writer_writes),
        cmocka_unit_test(replaces_and_removes_keys),
        cmocka_unit_test(copies_the_model_not_its_files),
        cmocka_unit_test(aligns_tensors),
        cmocka_unit_test(asks_for_large_tensors_piece_by_piece),
        cmocka_unit_test(refuses_what_the_reader_would_refuse),
        cmocka_unit_test(returns_random_contents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
