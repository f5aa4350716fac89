/* Packed files that lie: each key array wrong in each way it can be, a file cut anywhere, and random damage. */
#include "support/packed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf/internal.h"

static test_dir dir;
static char in_path[PATH_MAX], out_path[PATH_MAX];
static clb_gguf *good; /* the file that is made worse */
static size_t n_tensors, n_runs, n_sums;

/* Tensors: 0 "a" (x16), 1 "b" (floats), 2..4 experts of a layer, 5 "c" (x16, two blocks of checksums). */
static int begin(void **state)
{
    (void)state;
    test_dir_create(&dir);
    test_source s;
    test_source_begin(&s);
    test_source_add(&s, "a", 2, 64, 20, 0);
    test_source_add(&s, "b", 0, 50, 0, 0);
    test_source_add(&s, "blk.0.ffn_gate_exps.weight", 2, 64, 16, 3);
    test_source_add(&s, "blk.0.ffn_up_exps.weight", 0, 64, 16, 3);
    test_source_add(&s, "blk.0.ffn_down_exps.weight", 8, 32, 64, 3);
    test_source_add(&s, "c", 2, 1024, 600, 0);
    clb_gguf *g = test_source_open(&s, test_dir_file(&dir, "in.gguf", in_path));
    test_pack(g, test_dir_file(&dir, "out.colibri", out_path), 1, 0);
    clb_gguf_close(g);
    clb_error err;
    assert_ok(clb_gguf_open(out_path, NULL, NULL, &good, &err), &err);
    n_tensors = (size_t)clb_gguf_n_tensors(good);
    n_runs = good->shards[0].n_runs;
    n_sums = (size_t)clb_gguf_find(good, CLB_PACKED_KEY_CHECKSUMS)->as.arr.n;
    assert_true(n_tensors == 6 && n_runs == 4 && n_sums == 1 + 1 + 3 + 2);
    return 0;
}

static int end(void **state)
{
    (void)state;
    clb_gguf_close(good);
    test_dir_remove(&dir);
    return 0;
}

static int open_with(const test_key *keys, size_t n, const uint64_t *offsets, clb_error *err)
{
    size_t size;
    clb_gguf *g;
    char *bytes = test_packed_rebuild(out_path, keys, n, offsets, &size);
    const int rc = clb_gguf_open_memory(bytes, size, "image", NULL, NULL, &g, err);
    assert_true(!rc == (g != NULL));
    clb_gguf_close(g);
    free(bytes);
    return rc;
}

static void refused(const test_key *keys, size_t n, const uint64_t *offsets, int status, const char *part)
{
    clb_error err;
    const int rc = open_with(keys, n, offsets, &err);
    assert_fails(rc, &err, status, part);
    assert_memory_equal(err.msg, "image: ", 7);
    assert_null(strchr(err.msg, '\n'));
}

static void without(const char *key, int status, const char *part)
{
    const test_key k = {key, {.type = CLB_GGUF_STRING}};
    refused(&k, 1, NULL, status, part);
}

/* The array `key` with element i set to v, or with n elements. */
static void element(const char *key, size_t i, uint64_t v, const char *part)
{
    const clb_gguf_value *old = clb_gguf_find(good, key);
    const unsigned size = clb_gguf_vtype_size(old->as.arr.elem);
    char *items = malloc((size_t)old->as.arr.n * size);
    assert_non_null(items);
    memcpy(items, old->as.arr.items, (size_t)old->as.arr.n * size);
    assert_true(i < old->as.arr.n);
    memcpy(items + i * size, &v, size);
    const test_key k = {key, {.type = CLB_GGUF_ARRAY, .as.arr = {old->as.arr.elem, old->as.arr.n, items}}};
    refused(&k, 1, NULL, COLIBRI_E_FORMAT, part);
    free(items);
}

static void lengths(const char *key, const char *part)
{
    static const uint64_t zeros[64];
    const clb_gguf_value *old = clb_gguf_find(good, key);
    const uint64_t n = old->as.arr.n;
    for (uint64_t m = 0; m <= n + 1; m++) {
        const test_key k = {
            key, {.type = CLB_GGUF_ARRAY, .as.arr = {old->as.arr.elem, m, m > n ? zeros : old->as.arr.items}}};
        if (m != n)
            refused(&k, 1, NULL, COLIBRI_E_FORMAT, part);
    }
    const test_key other = {key, {.type = CLB_GGUF_ARRAY, .as.arr = {CLB_GGUF_F32, n, zeros}}};
    refused(&other, 1, NULL, COLIBRI_E_FORMAT, "expected an array of");
    const test_key scalar = {key, {.type = CLB_GGUF_U64, .as.u = 1}};
    refused(&scalar, 1, NULL, COLIBRI_E_FORMAT, key[0] ? "expected an array of" : "");
    if (strcmp(key, CLB_PACKED_KEY_CHECKSUMS) != 0)
        without(key, COLIBRI_E_FORMAT, "missing");
}

static void the_good_one_opens(void **state)
{
    (void)state;
    clb_error err;
    assert_ok(open_with(NULL, 0, NULL, &err), &err);
    /* Without checksums it is a valid file, and nothing is compared. */
    const test_key none = {CLB_PACKED_KEY_CHECKSUMS, {.type = CLB_GGUF_STRING}};
    assert_ok(open_with(&none, 1, NULL, &err), &err);
}

static void versions(void **state)
{
    (void)state;
    const test_key later = {CLB_PACKED_KEY_VERSION, {.type = CLB_GGUF_U32, .as.u = 2}};
    refused(&later, 1, NULL, COLIBRI_E_UNSUPPORTED, "packed format version 2, supported is 1");
    without(CLB_PACKED_KEY_VERSION, COLIBRI_E_FORMAT, "missing");
    const test_key text = {CLB_PACKED_KEY_VERSION, {.type = CLB_GGUF_STRING, .as.str = {"1", 1}}};
    refused(&text, 1, NULL, COLIBRI_E_FORMAT, "expected an integer");
    const test_key sums = {CLB_PACKED_KEY_CHECKSUM, {.type = CLB_GGUF_STRING, .as.str = {"crc32", 5}}};
    refused(&sums, 1, NULL, COLIBRI_E_UNSUPPORTED, "\"crc32\"");
    without(CLB_PACKED_KEY_CHECKSUM, COLIBRI_E_FORMAT, "missing or not a string");
    const test_key alignment = {"general.alignment", {.type = CLB_GGUF_U32, .as.u = 2048}};
    refused(&alignment, 1, NULL, COLIBRI_E_FORMAT, "general.alignment");
    without("general.alignment", COLIBRI_E_FORMAT, "general.alignment");
    without(CLB_PACKED_KEY_HEADER, COLIBRI_E_FORMAT, "the first key");
    const test_key narrow = {CLB_PACKED_KEY_HEADER, {.type = CLB_GGUF_U32, .as.u = 0}};
    refused(&narrow, 1, NULL, COLIBRI_E_FORMAT, "the first key");
    const test_key wrong = {CLB_PACKED_KEY_HEADER, {.type = CLB_GGUF_U64, .as.u = 12345}};
    refused(&wrong, 1, NULL, COLIBRI_E_FORMAT, "do not match their checksum");
}

static void arrays_of_wrong_lengths(void **state)
{
    (void)state;
    lengths(CLB_PACKED_KEY_LAYOUTS, "elements, expected");
    lengths(CLB_PACKED_KEY_RUNS, "elements, expected");
    lengths(CLB_PACKED_KEY_RUN_OFFSETS, "");
    lengths(CLB_PACKED_KEY_RUN_BYTES, "elements, expected");
    lengths(CLB_PACKED_KEY_BLOCK_BYTES, "elements, expected");
    lengths(CLB_PACKED_KEY_CHECKSUMS, "checksums than blocks");
    lengths(CLB_PACKED_KEY_MARKS, "elements, expected");
}

static void elements_that_lie(void **state)
{
    (void)state;
    static const uint64_t huge[] = {1ull << 62, UINT64_MAX, UINT64_MAX - 4095, 1ull << 63, (1ull << 52) + 4096};
    const clb_packed_run *runs = good->shards[0].runs;
    const uint64_t data = good->shards[0].data;
    const char *layouts = CLB_PACKED_KEY_LAYOUTS;
    element(layouts, 0, 4, "unknown layout");
    element(layouts, 0, 0, "expected 720 in blocks of 262144"); /* rows, in a run that is larger */
    element(layouts, 0, CLB_PACKED_EXPERTS, "experts have three dimensions");
    element(layouts, 1, CLB_PACKED_X16, "only matrices");
    element(layouts, 2, CLB_PACKED_X16, "only matrices");
    element(layouts, 2, 0, "its run has");
    element(CLB_PACKED_KEY_RUNS, 0, 4, "a run that is not there");
    element(CLB_PACKED_KEY_RUNS, 0, UINT32_MAX, "a run that is not there");
    element(CLB_PACKED_KEY_RUNS, 0, 1, "does not begin in its run");
    element(CLB_PACKED_KEY_RUNS, 3, 3, "does not begin in its run");
    element(CLB_PACKED_KEY_RUN_OFFSETS, 0, 64, "a multiple of 4096");
    element(CLB_PACKED_KEY_RUN_OFFSETS, 1, 0, "overlap");
    element(CLB_PACKED_KEY_RUN_OFFSETS, 1, runs[2].offset - data, "overlap");
    element(CLB_PACKED_KEY_RUN_OFFSETS, 3, runs[2].offset - data + 4096, "overlap");
    element(CLB_PACKED_KEY_RUN_BYTES, 0, 0, "more than 0 bytes");
    element(CLB_PACKED_KEY_RUN_BYTES, 0, runs[0].bytes - 1, "its run has");
    element(CLB_PACKED_KEY_RUN_BYTES, 2, runs[2].bytes - 4096, "does not fit blocks");
    element(CLB_PACKED_KEY_RUN_BYTES, 2, runs[2].block, "");
    element(CLB_PACKED_KEY_BLOCK_BYTES, 0, 0, "more than 0 bytes");
    element(CLB_PACKED_KEY_BLOCK_BYTES, 1, 4096, "its run has");
    element(CLB_PACKED_KEY_BLOCK_BYTES, 3, 1, "fewer checksums");
    element(CLB_PACKED_KEY_BLOCK_BYTES, 2, 4096, ""); /* smaller than the parts */
    element(CLB_PACKED_KEY_BLOCK_BYTES, 2, runs[2].block + 1, "");
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++)
        for (size_t r = 0; r < n_runs; r++) {
            element(CLB_PACKED_KEY_RUN_OFFSETS, r, huge[i] & ~4095ull, "the file ends");
            element(CLB_PACKED_KEY_RUN_BYTES, r, huge[i], "the file ends");
            element(CLB_PACKED_KEY_BLOCK_BYTES, r, huge[i], "");
        }
}

/* Blocks for fewer or more experts than the tensors have: all three sizes agree among each other. */
static void blocks_of_another_number(void **state)
{
    (void)state;
    const clb_packed_run *runs = good->shards[0].runs;
    for (int more = 0; more < 2; more++) {
        uint64_t bytes[4], sums[16] = {0};
        for (size_t r = 0; r < n_runs; r++)
            bytes[r] = runs[r].bytes;
        bytes[2] = runs[2].block * (more ? 4 : 2);
        const test_key keys[] = {
            {CLB_PACKED_KEY_RUN_BYTES, {.type = CLB_GGUF_ARRAY, .as.arr = {CLB_GGUF_U64, n_runs, bytes}}},
            {CLB_PACKED_KEY_CHECKSUMS,
             {.type = CLB_GGUF_ARRAY, .as.arr = {CLB_GGUF_U64, n_sums + (more ? 1 : -1ull), sums}}},
        };
        refused(keys, 2, NULL, COLIBRI_E_FORMAT, more ? "overlap" : "does not fit blocks");
    }
}

static void offsets_that_lie(void **state)
{
    (void)state;
    const uint64_t data = good->shards[0].data;
    for (size_t t = 0; t < n_tensors; t++) {
        const clb_gguf_tensor *x = clb_gguf_tensor_at(good, t);
        const uint64_t right = x->offset - data, step = x->expert_stride ? x->expert_stride : 64;
        /* Another place in the same block is not a lie that can be seen. */
        const uint64_t wrong[] = {right + 1,         right + step,
                                  right + 3 * step,  right - step,
                                  1ull << 62,        0,
                                  UINT64_MAX - 4095, clb_gguf_tensor_at(good, t ? 0 : 1)->offset - data};
        for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
            uint64_t offsets[6];
            for (size_t i = 0; i < n_tensors; i++)
                offsets[i] = clb_gguf_tensor_at(good, i)->offset - data;
            offsets[t] = wrong[k];
            if (wrong[k] != right)
                refused(NULL, 0, offsets, COLIBRI_E_FORMAT, "tensor \"");
        }
    }
    /* Two parts of a block swapped is not a lie that can be seen, but two in one place is. */
    uint64_t offsets[6];
    for (size_t i = 0; i < n_tensors; i++)
        offsets[i] = clb_gguf_tensor_at(good, i)->offset - data;
    offsets[3] = offsets[2];
    refused(NULL, 0, offsets, COLIBRI_E_FORMAT, "overlaps another");
}

static void cut_files(void **state)
{
    (void)state;
    size_t n;
    char *bytes = test_read_file(out_path, &n);
    const clb_gguf_tensor *last = clb_gguf_tensor_at(good, n_tensors - 1);
    for (size_t at = 0; at < last->offset + last->file_bytes; at += at < 6000 ? 1 : 997) {
        char *exact = malloc(at ? at : 1);
        clb_gguf *g;
        clb_error err;
        assert_non_null(exact);
        memcpy(exact, bytes, at);
        assert_fails(clb_gguf_open_memory(exact, at, "image", NULL, NULL, &g, &err), &err, COLIBRI_E_FORMAT, "image: ");
        assert_null(strchr(err.msg, '\n'));
        free(exact);
    }
    free(bytes);
}

/* Whatever opens is consistent: all that can be read is inside the file, and nothing crashes. */
static void walk(const clb_gguf *g)
{
    clb_error err;
    for (uint64_t i = 0; i < clb_gguf_n_tensors(g); i++) {
        const clb_gguf_tensor *t = clb_gguf_tensor_at(g, i);
        char *bytes = malloc((size_t)(t->expert_stride ? t->block_bytes : t->file_bytes));
        assert_non_null(bytes);
        for (uint64_t e = 0; e < (t->expert_stride ? t->ne[2] : 1); e++) {
            assert_ok(clb_gguf_read(g, t, e * t->expert_stride, bytes, (size_t)t->file_bytes, &err), &err);
            if (t->expert_stride)
                assert_ok(clb_gguf_read_block(g, t, e, bytes, &err), &err);
            const int rc =
                clb_gguf_verify_block(g, t, e, bytes, t->expert_stride ? t->block_bytes : t->file_bytes, &err);
            assert_true(rc == COLIBRI_OK || rc == COLIBRI_E_FORMAT);
        }
        free(bytes);
    }
}

static void random_damage(void **state)
{
    (void)state;
    size_t n;
    char *bytes = test_packed_rebuild(out_path, NULL, 0, NULL, &n), *copy = malloc(n);
    assert_non_null(copy);
    test_rand rng = {11};
    uint32_t opened = 0;
    const uint32_t header = (uint32_t)good->shards[0].data;
    for (int i = 0; i < 4000; i++) {
        memcpy(copy, bytes, n);
        for (uint32_t k = 0, flips = 1 + test_rand_below(&rng, 3); k < flips; k++)
            copy[24 + test_rand_below(&rng, header - 24)] = (char)test_rand_u64(&rng);
        clb_gguf *g;
        clb_error err;
        const size_t size = i % 5 == 0 ? n - test_rand_below(&rng, 5000) : n;
        if (clb_gguf_open_memory(copy, size, "image", NULL, NULL, &g, &err))
            continue;
        opened++;
        walk(g);
        clb_gguf_close(g);
    }
    assert_in_range(opened, 100, 3900); /* neither everything nor nothing is refused */
    free(copy);
    free(bytes);
}

/* Other programs must not take packed bytes for plain ones, nor this one plain files for packed ones. */
static void magics(void **state)
{
    (void)state;
    size_t n;
    clb_gguf *g;
    clb_error err;
    char *bytes = test_read_file(out_path, &n);
    assert_memory_equal(bytes, "CLBR", 4);
    bytes[4] = 2;
    assert_fails(clb_gguf_open_memory(bytes, n, "image", NULL, NULL, &g, &err), &err, COLIBRI_E_UNSUPPORTED,
                 "structure version 2");
    free(bytes);
    bytes = test_read_file(in_path, &n);
    memcpy(bytes, "CLBR", 4);
    assert_fails(clb_gguf_open_memory(bytes, n, "image", NULL, NULL, &g, &err), &err, COLIBRI_E_FORMAT,
                 "the first key");
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_good_one_opens),
        cmocka_unit_test(versions),
        cmocka_unit_test(arrays_of_wrong_lengths),
        cmocka_unit_test(elements_that_lie),
        cmocka_unit_test(blocks_of_another_number),
        cmocka_unit_test(offsets_that_lie),
        cmocka_unit_test(cut_files),
        cmocka_unit_test(random_damage),
        cmocka_unit_test(magics),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
