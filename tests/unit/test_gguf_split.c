/* The GGUF reader on models that are split into several files. */
#include "gguf_image.h"

#include <stdio.h>
#include <unistd.h>

#include "colibri/blocks.h"

static image im;

/* One file: tensor `name` of 8 floats, all `value`. no, count, total < 0: the key is left out. */
static void write_shard(const test_dir *dir, const char *file, long no, long count, long total, const char *name,
                        float value)
{
    char path[PATH_MAX];
    put_head(&im, 3, 1, (uint64_t)((no >= 0) + (count >= 0) + (total >= 0) + (no == 0)));
    if (no == 0)
        put_key_text(&im, "general.architecture", "llama");
    if (no >= 0) {
        put_key(&im, "split.no", CLB_GGUF_U16);
        put_int(&im, (uint64_t)no, 2);
    }
    if (count >= 0) {
        put_key(&im, "split.count", CLB_GGUF_U16);
        put_int(&im, (uint64_t)count, 2);
    }
    if (total >= 0) {
        put_key(&im, "split.tensors.count", CLB_GGUF_I32);
        put_int(&im, (uint64_t)total, 4);
    }
    put_tensor_1d(&im, name, 8, COLIBRI_TYPE_F32, 0);
    put_padding(&im, 32);
    for (int i = 0; i < 8; i++)
        put_bytes(&im, &value, sizeof value);
    test_write_file(test_dir_file(dir, file, path), im.b, im.n);
}

static void good_model(const test_dir *dir)
{
    write_shard(dir, "m-00001-of-00003.gguf", 0, 3, 3, "a", 1);
    write_shard(dir, "m-00002-of-00003.gguf", 1, 3, 3, "b", 2);
    write_shard(dir, "m-00003-of-00003.gguf", 2, 3, 3, "c", 3);
}

static int open_in(const test_dir *dir, const char *file, clb_gguf **g, clb_error *err)
{
    char path[PATH_MAX];
    return clb_gguf_open(test_dir_file(dir, file, path), NULL, NULL, g, err);
}

static int setup(void **state)
{
    *state = malloc(sizeof(test_dir));
    test_dir_create(*state);
    return 0;
}

static int teardown(void **state)
{
    test_dir_remove(*state);
    free(*state);
    return 0;
}

static void joins_the_files(void **state)
{
    const test_dir *dir = *state;
    clb_error err = {0};
    clb_gguf *g;
    good_model(dir);
    assert_ok(open_in(dir, "m-00001-of-00003.gguf", &g, &err), &err);
    assert_int_equal(clb_gguf_n_shards(g), 3);
    assert_int_equal(clb_gguf_n_tensors(g), 3);
    assert_int_equal(clb_gguf_n_keys(g), 4); /* of the first file */
    for (uint32_t i = 0; i < 3; i++) {
        const char *name = (const char *[]){"a", "b", "c"}[i];
        const clb_gguf_tensor *t = clb_gguf_find_tensor(g, name);
        assert_ptr_equal(t, clb_gguf_tensor_at(g, i));
        assert_int_equal(t->shard, i);
        float data[8];
        assert_ok(clb_gguf_read(g, t, 0, data, sizeof data, &err), &err);
        assert_true(data[7] == (float)(i + 1));
        char file[32], path[PATH_MAX];
        snprintf(file, sizeof file, "m-0000%u-of-00003.gguf", i + 1);
        assert_string_equal(clb_gguf_shard_path(g, i), test_dir_file(dir, file, path));
        assert_true(clb_gguf_shard_fd(g, i) >= 0);
        assert_int_equal(clb_gguf_shard_size(g, i), t->offset + t->room);
    }
    clb_gguf_close(g);
}

/* Made by Python's gguf package: the same keys as llama.cpp's splitter writes. */
static void reads_files_of_another_writer(void **state)
{
    (void)state;
    clb_error err = {0};
    clb_gguf *g;
    assert_ok(clb_gguf_open(TEST_DATA("gguf/split-00001-of-00003.gguf"), NULL, NULL, &g, &err), &err);
    assert_int_equal(clb_gguf_n_shards(g), 3);
    assert_int_equal(clb_gguf_n_tensors(g), 5);
    for (unsigned i = 0; i < 5; i++) {
        char name[32];
        float data[6];
        snprintf(name, sizeof name, "blk.%u.weight", i);
        const clb_gguf_tensor *t = clb_gguf_find_tensor(g, name);
        assert_non_null(t);
        assert_int_equal(t->shard, i / 2);
        assert_ok(clb_gguf_read(g, t, 0, data, sizeof data, &err), &err);
        assert_true(data[0] == (float)i && data[5] == (float)i);
    }
    clb_gguf_close(g);
    assert_fails(clb_gguf_open(TEST_DATA("gguf/split-00002-of-00003.gguf"), NULL, NULL, &g, &err), &err,
                 COLIBRI_E_USAGE, "is file 2 of 3 of a split model, open the first one: ");
    assert_true(test_contains(err.msg, "gguf/split-00001-of-00003.gguf"));
}

static void names_the_missing_file(void **state)
{
    const test_dir *dir = *state;
    char path[PATH_MAX];
    clb_error err = {0};
    clb_gguf *g;
    good_model(dir);
    assert_int_equal(unlink(test_dir_file(dir, "m-00002-of-00003.gguf", path)), 0);
    assert_fails(open_in(dir, "m-00001-of-00003.gguf", &g, &err), &err, COLIBRI_E_NOT_FOUND,
                 "file 2 of 3 of the split model is missing");
    assert_true(test_contains(err.msg, "m-00002-of-00003.gguf"));
}

static void refuses_what_does_not_belong_together(void **state)
{
    const test_dir *dir = *state;
    clb_error err = {0};
    clb_gguf *g;
    const char *first = "m-00001-of-00003.gguf", *second = "m-00002-of-00003.gguf", *third = "m-00003-of-00003.gguf";
    good_model(dir);
    write_shard(dir, second, 2, 3, 3, "b", 2);
    assert_fails(open_in(dir, first, &g, &err), &err, COLIBRI_E_FORMAT, "says that it is file 3 of 3, expected file 2");
    write_shard(dir, second, 1, 4, 3, "b", 2);
    assert_fails(open_in(dir, first, &g, &err), &err, COLIBRI_E_FORMAT, "says that it is file 2 of 4");
    write_shard(dir, second, -1, -1, -1, "b", 2);
    assert_fails(open_in(dir, first, &g, &err), &err, COLIBRI_E_FORMAT, "expected file 2 of 3");
    write_shard(dir, second, 1, 3, 3, "a", 2);
    assert_fails(open_in(dir, first, &g, &err), &err, COLIBRI_E_FORMAT, "a second tensor is named \"a\"");
    assert_true(test_contains(err.msg, second) && test_contains(err.msg, first));
    good_model(dir);
    write_shard(dir, first, 0, 3, 4, "a", 1);
    assert_fails(open_in(dir, first, &g, &err), &err, COLIBRI_E_FORMAT,
                 "split.tensors.count is 4, but the 3 files have 3 tensors");
    write_shard(dir, first, 0, 3, -1, "a", 1);
    assert_ok(open_in(dir, first, &g, &err), &err); /* the total may be left out */
    clb_gguf_close(g);
    good_model(dir);
    char path[PATH_MAX];
    assert_int_equal(truncate(test_dir_file(dir, third, path), (off_t)im.n - 1), 0);
    assert_fails(open_in(dir, first, &g, &err), &err, COLIBRI_E_FORMAT, third);
    assert_true(test_contains(err.msg, "needs 32 bytes"));
}

static void starts_from_the_first_file_only(void **state)
{
    const test_dir *dir = *state;
    char path[PATH_MAX];
    clb_error err = {0};
    clb_gguf *g;
    good_model(dir);
    assert_fails(open_in(dir, "m-00003-of-00003.gguf", &g, &err), &err, COLIBRI_E_USAGE, "is file 3 of 3");
    assert_true(test_contains(err.msg, test_dir_file(dir, "m-00001-of-00003.gguf", path)));
    write_shard(dir, "renamed.gguf", 1, 3, 3, "b", 2);
    assert_fails(open_in(dir, "renamed.gguf", &g, &err), &err, COLIBRI_E_USAGE, "the file whose split.no is 0");
}

static void needs_the_names_of_the_pattern(void **state)
{
    const test_dir *dir = *state;
    static const char *const wrong[] = {"m.gguf",
                                        "m-00001-of-00004.gguf",
                                        "m-00002-of-00003.gguf",
                                        "m-00001-of-00003.gguf.bak",
                                        "-0001-of-00003.gguf",
                                        "m-00001-of-    3.gguf",
                                        "m-+0001-of-00003.gguf"};
    clb_error err = {0};
    clb_gguf *g;
    good_model(dir);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_shard(dir, wrong[i], 0, 3, 3, "a", 1);
        assert_fails(open_in(dir, wrong[i], &g, &err), &err, COLIBRI_E_FORMAT, "-00001-of-00003.gguf, so the others");
    }
    good_model(dir);
    write_shard(dir, "-00001-of-00003.gguf", 0, 3, 3, "a", 1); /* nothing in front is fine, but it has no others */
    assert_fails(open_in(dir, "-00001-of-00003.gguf", &g, &err), &err, COLIBRI_E_NOT_FOUND, "/-00002-of-00003.gguf");
}

static void bounds_the_count(void **state)
{
    const test_dir *dir = *state;
    clb_error err = {0};
    clb_gguf *g;
    write_shard(dir, "m-00001-of-65535.gguf", 0, 65535, 3, "a", 1);
    assert_fails(open_in(dir, "m-00001-of-65535.gguf", &g, &err), &err, COLIBRI_E_LIMIT, "65535 files");
    write_shard(dir, "one.gguf", 0, 1, 1, "a", 1);
    assert_ok(open_in(dir, "one.gguf", &g, &err), &err);
    assert_int_equal(clb_gguf_n_shards(g), 1);
    clb_gguf_close(g);
    write_shard(dir, "zero.gguf", 0, 0, -1, "a", 1);
    assert_ok(open_in(dir, "zero.gguf", &g, &err), &err);
    clb_gguf_close(g);
    /* Wrong type of a split key. */
    char path[PATH_MAX];
    put_head(&im, 3, 0, 1);
    put_key_text(&im, "split.count", "three");
    test_write_file(test_dir_file(dir, "text.gguf", path), im.b, im.n);
    assert_fails(open_in(dir, "text.gguf", &g, &err), &err, COLIBRI_E_FORMAT, "\"split.count\" is of type string");
}

static void is_not_for_memory(void **state)
{
    (void)state;
    put_head(&im, 3, 0, 1);
    put_key(&im, "split.count", CLB_GGUF_U16);
    put_int(&im, 2, 2);
    expect_refused(&im, COLIBRI_E_UNSUPPORTED, "split into 2 cannot be read from memory");
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(joins_the_files),
        TEST(reads_files_of_another_writer),
        TEST(names_the_missing_file),
        TEST(refuses_what_does_not_belong_together),
        TEST(starts_from_the_first_file_only),
        TEST(needs_the_names_of_the_pattern),
        TEST(bounds_the_count),
        TEST(is_not_for_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
