/* Packing: lossless both ways, missing rows are zero, and every element is where colibri/blocks.h says. */
#include "test_format_util.h"

static void round_trip(const struct colibri_format *f, uint32_t n_rows, uint32_t n_cols, test_rand *rng)
{
    const size_t row_bytes = row_bytes_of(f, n_cols), stride = row_bytes + 2 * test_rand_below(rng, 3);
    unsigned char *rows = malloc(stride * n_rows), *back = malloc(stride * n_rows);
    unsigned char *group = malloc(16 * row_bytes);
    assert_true(rows && back && group);
    test_rand_bytes(rng, rows, stride * n_rows);
    memset(group, 0xa5, 16 * row_bytes);
    f->pack(rows, stride, n_rows, n_cols, group);
    memset(back, 0x5a, stride * n_rows);
    f->unpack(group, n_rows, n_cols, back, stride);
    for (uint32_t r = 0; r < n_rows; r++) {
        assert_memory_equal(rows + r * stride, back + r * stride, row_bytes);
        for (size_t i = row_bytes; i < stride; i++) /* bytes between rows belong to the caller */
            assert_int_equal(back[r * stride + i], 0x5a);
    }
    /* Missing rows: packing 16 rows of which the last are zero bytes gives the same group. */
    unsigned char *full = calloc(16, row_bytes), *group16 = malloc(16 * row_bytes);
    assert_true(full && group16);
    for (uint32_t r = 0; r < n_rows; r++)
        memcpy(full + r * row_bytes, rows + r * stride, row_bytes);
    f->pack(full, row_bytes, 16, n_cols, group16);
    assert_memory_equal(group, group16, 16 * row_bytes);
    free(rows);
    free(back);
    free(group);
    free(full);
    free(group16);
}

static void test_round_trip(void **state)
{
    (void)state;
    test_rand rng = {1};
    const struct colibri_format *formats[N_FORMATS];
    all_formats(formats);
    for (size_t i = 0; i < N_FORMATS; i++)
        if (formats[i]->layout == COLIBRI_LAYOUT_X16)
            for (uint32_t n_rows = 1; n_rows <= 16; n_rows++)
                for (uint32_t blocks = 1; blocks <= 5; blocks += 2)
                    round_trip(formats[i], n_rows, blocks * formats[i]->block_elems, &rng);
}

/* The other direction: any packed bytes survive unpack and pack. */
static void test_group_round_trip(void **state)
{
    (void)state;
    test_rand rng = {2};
    const struct colibri_format *formats[N_FORMATS];
    all_formats(formats);
    for (size_t i = 0; i < N_FORMATS; i++) {
        const struct colibri_format *f = formats[i];
        if (f->layout != COLIBRI_LAYOUT_X16)
            continue;
        const uint32_t n_cols = 3 * f->block_elems;
        const size_t row_bytes = row_bytes_of(f, n_cols);
        unsigned char *group = malloc(16 * row_bytes), *rows = malloc(16 * row_bytes), *back = malloc(16 * row_bytes);
        assert_true(group && rows && back);
        test_rand_bytes(&rng, group, 16 * row_bytes);
        f->unpack(group, 16, n_cols, rows, row_bytes);
        f->pack(rows, row_bytes, 16, n_cols, back);
        assert_memory_equal(group, back, 16 * row_bytes);
        free(group);
        free(rows);
        free(back);
    }
}

static void test_elements(void **state)
{
    (void)state;
    test_rand rng = {3};
    const struct colibri_format *formats[N_FORMATS];
    all_formats(formats);
    for (size_t i = 0; i < N_FORMATS; i++) {
        const struct colibri_format *f = formats[i];
        if (f->layout != COLIBRI_LAYOUT_X16)
            continue;
        const uint32_t n_cols = 512;
        const size_t row_bytes = row_bytes_of(f, n_cols);
        unsigned char *rows = test_alloc(16 * row_bytes), *group = test_alloc(16 * row_bytes);
        test_rand_bytes(&rng, rows, 16 * row_bytes);
        f->pack(rows, row_bytes, 16, n_cols, group);
        for (unsigned r = 0; r < 16; r++) {
            float want[512];
            f->dequantize(rows + r * row_bytes, want, n_cols);
            for (unsigned c = 0; c < n_cols; c++) {
                const struct elem e = packed_elem(f->gguf_type, group, r, c);
                float got = e.d * (float)e.sc * (float)e.q;
                if (has_minimum(f->gguf_type))
                    got = f->block_elems == 32 ? got + e.m : got - e.dmin * (float)e.min;
                if (!same_float(got, want[c]))
                    fail_msg("%s: row %u column %u is %a, dequantized %a", f->name, r, c, (double)got, (double)want[c]);
            }
        }
        free(rows);
        free(group);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_round_trip), cmocka_unit_test(test_group_round_trip),
                                       cmocka_unit_test(test_elements)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
