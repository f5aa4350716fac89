/* What the GGUF reader refuses, with which status, and that the message says where and why. */
#include "gguf_image.h"

#include "colibri/blocks.h"
#include "gguf/internal.h"

static image im; /* too large for some stacks */

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
    put_bytes(&im, "\x01\0\x02", 3);
    expect_refused(&im, COLIBRI_E_FORMAT, "byte 51: key 0 \"k\": element 2 of a boolean array is 2");
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
                 {1u << 25, CLB_GGUF_U32, 4, "is 33554432"},
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
