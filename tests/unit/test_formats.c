/* The catalogue of formats, and dequantization against vectors recorded from the gguf package
 * (tests/oracles/record_formats.py): equal bits for random blocks, random scales included. */
#include "test_format_util.h"

#include <ctype.h>
#include <stdio.h>

struct expected {
    uint32_t type;
    const char *name;
    uint32_t elems, bytes;
    const char *act;
};

static const struct expected catalogue[N_FORMATS] = {
    {0, "F32", 1, 4, "f32"},          {1, "F16", 1, 2, "f32"},
    {2, "Q4_0", 32, 18, "q8x32"},     {3, "Q4_1", 32, 20, "q8x32"},
    {6, "Q5_0", 32, 22, "q8x32"},     {7, "Q5_1", 32, 24, "q8x32"},
    {8, "Q8_0", 32, 34, "q8x32"},     {10, "Q2_K", 256, 84, "q8x256"},
    {11, "Q3_K", 256, 110, "q8x256"}, {12, "Q4_K", 256, 144, "q8x256"},
    {13, "Q5_K", 256, 176, "q8x256"}, {14, "Q6_K", 256, 210, "q8x256"},
    {20, "IQ4_NL", 32, 18, "q8x32"},  {23, "IQ4_XS", 256, 136, "q8x256"},
    {30, "BF16", 1, 2, "f32"},        {39, "MXFP4", 32, 17, "q8x32"}};

static void test_catalogue(void **state)
{
    (void)state;
    const struct colibri_format *formats[N_FORMATS];
    all_formats(formats);
    for (size_t i = 0; i < N_FORMATS; i++) {
        const struct colibri_format *f = formats[i];
        const struct expected *e = &catalogue[i];
        assert_int_equal(f->struct_size, sizeof *f);
        assert_int_equal(f->gguf_type, e->type);
        assert_string_equal(f->name, e->name);
        assert_int_equal(f->block_elems, e->elems);
        assert_int_equal(f->block_bytes, e->bytes);
        assert_string_equal(f->act, e->act);
        const int rows = f->layout == COLIBRI_LAYOUT_ROWS;
        assert_int_equal(rows, e->elems == 1);
        assert_int_equal(f->act_block_elems, e->elems);
        assert_int_equal(f->act_block_bytes, rows ? 4 : e->elems == 32 ? 40 : 296);
        assert_true(f->dequantize && f->quantize && f->quantize_act && f->dot && f->matmul);
        assert_int_equal(f->pack == NULL, rows);
        assert_int_equal(f->unpack == NULL, rows);
    }
}

/* Every plugin of a format carries a note that agrees with it, and knows no other interface. */
static void test_plugins(void **state)
{
    (void)state;
    size_t found = 0;
    for (const struct colibri_plugin *const *p = clb_builtin_plugins; *p; p++) {
        const struct colibri_note_desc *note = &(*p)->note->desc;
        if (!(note->kinds & COLIBRI_KIND_FORMAT))
            continue;
        char symbol[96] = "colibri_plugin_";
        size_t n = strlen(symbol);
        for (const char *c = note->id; *c; c++)
            symbol[n++] = (char)(isalnum((unsigned char)*c) ? *c : '_');
        assert_string_equal(note->symbol, symbol);
        assert_null((*p)->get(COLIBRI_IFACE_MATMUL, 0));
        assert_null((*p)->get("colibri.format/2", 0));
        assert_null((*p)->get(COLIBRI_IFACE_FORMAT, UINT32_MAX));
        found++;
    }
    assert_int_equal(found, 11);
}

static void test_vectors(void **state)
{
    (void)state;
    const struct colibri_format *formats[N_FORMATS];
    all_formats(formats);
    for (size_t i = 0; i < N_FORMATS; i++) {
        const struct colibri_format *f = formats[i];
        char path[512], lower[16] = {0};
        for (size_t k = 0; f->name[k] && k < sizeof lower - 1; k++)
            lower[k] = (char)tolower((unsigned char)f->name[k]);
        snprintf(path, sizeof path, "%s/formats/%s.bin", COLIBRI_TEST_DATA, lower);
        size_t size;
        char *file = test_read_file(path, &size);
        const size_t blocks = f->block_elems == 1 ? 256 : 8, n = blocks * f->block_elems;
        assert_int_equal(size, blocks * f->block_bytes + n * sizeof(float));
        /* Row blocks as aligned as they are in a GGUF file. */
        unsigned char *in = test_alloc(blocks * f->block_bytes);
        float *out = test_alloc(n * sizeof(float)), *want = test_alloc(n * sizeof(float));
        memcpy(in, file, blocks * f->block_bytes);
        memcpy(want, file + blocks * f->block_bytes, n * sizeof(float));
        f->dequantize(in, out, n);
        for (size_t k = 0; k < n; k++)
            if (!same_float(out[k], want[k]))
                fail_msg("%s: element %zu is %a instead of %a", f->name, k, (double)out[k], (double)want[k]);
        free(file);
        free(in);
        free(out);
        free(want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_catalogue), cmocka_unit_test(test_plugins),
                                       cmocka_unit_test(test_vectors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
