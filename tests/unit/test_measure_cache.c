/* The file of measured times: what is written is read again, and nothing else is believed. */
#include "support.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plugin/measure.h"

static clb_measure_record record_of(uint32_t n_cols, uint32_t n)
{
    clb_measure_record r = {.key = {.cpu = "Test CPU 2000 @ 3.00GHz",
                                    .bits = {{UINT64_C(0x8000000000000001), 7}},
                                    .type = 2,
                                    .layout = 1,
                                    .act = "q8x32",
                                    .n_rows = 4096,
                                    .n_cols = n_cols,
                                    .n_x = 16,
                                    .n_threads = 8},
                            .when = 1700000000,
                            .n = n};
    for (uint32_t i = 0; i < n; i++) {
        snprintf(r.time[i].component, sizeof r.time[i].component, "kernel-%u.q4_0", i);
        strcpy(r.time[i].plugin, "org.example.kernels");
        strcpy(r.time[i].version, "1.2.3");
        strcpy(r.time[i].build, "1f00-00112233aabbccdd");
        r.time[i].ps = 1000 + i;
    }
    return r;
}

static void put(clb_measure_records *all, uint32_t n_cols, uint32_t n)
{
    clb_error err;
    const clb_measure_record r = record_of(n_cols, n);
    assert_ok(clb_measure_put(all, &r, &err), &err);
}

static void assert_same(const clb_measure_record *a, const clb_measure_record *b)
{
    assert_true(clb_measure_key_equal(&a->key, &b->key));
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->when, b->when);
    for (uint32_t i = 0; i < a->n; i++) {
        assert_string_equal(a->time[i].component, b->time[i].component);
        assert_string_equal(a->time[i].plugin, b->time[i].plugin);
        assert_string_equal(a->time[i].version, b->time[i].version);
        assert_string_equal(a->time[i].build, b->time[i].build);
        assert_int_equal(a->time[i].ps, b->time[i].ps);
    }
}

static void test_round_trip(void **state)
{
    (void)state;
    test_dir dir;
    char path[PATH_MAX];
    clb_error err;
    clb_measure_records out = {0}, in = {0}, more = {0};
    test_dir_create(&dir);
    test_dir_file(&dir, "not/there/yet/kernels", path);
    assert_int_equal(clb_measure_load(path, &in, NULL, &err), COLIBRI_E_NOT_FOUND);
    put(&out, 512, 1);
    put(&out, 1024, CLB_MEASURE_RIVALS);
    put(&out, 1024, 3); /* replaces */
    assert_int_equal(out.n, 2);
    assert_ok(clb_measure_save(path, &out, false, &err), &err);
    assert_ok(clb_measure_load(path, &in, NULL, &err), &err);
    assert_int_equal(in.n, 2);
    assert_same(&in.at[0], &out.at[0]);
    assert_same(&in.at[1], &out.at[1]);
    /* Another process has its own: both stay, and what both have is the later one's. */
    put(&more, 2048, 2);
    put(&more, 512, 4);
    assert_ok(clb_measure_save(path, &more, false, &err), &err);
    in.n = 0;
    assert_ok(clb_measure_load(path, &in, NULL, &err), &err);
    assert_int_equal(in.n, 3);
    assert_int_equal(clb_measure_find(&in, &more.at[1].key)->n, 4);
    assert_same(clb_measure_find(&in, &out.at[1].key), &out.at[1]);
    /* Each field of the key counts. */
    clb_measure_key k = in.at[0].key;
#define DIFFERS(change)                                                                                                \
    do {                                                                                                               \
        const clb_measure_key before = k;                                                                              \
        change;                                                                                                        \
        assert_null(clb_measure_find(&in, &k));                                                                        \
        k = before;                                                                                                    \
    } while (0)
    DIFFERS(k.cpu[0] = 'X');
    DIFFERS(k.bits.w[1] ^= 1);
    DIFFERS(k.type++);
    DIFFERS(k.layout--);
    DIFFERS(k.act[0] = 'x');
    DIFFERS(k.n_rows--);
    DIFFERS(k.n_cols++);
    DIFFERS(k.n_x++);
    DIFFERS(k.n_threads++);
    assert_non_null(clb_measure_find(&in, &k));
    free(out.at);
    free(in.at);
    free(more.at);
    test_dir_remove(&dir);
}

static void test_grows_no_further(void **state)
{
    (void)state;
    test_dir dir;
    char path[PATH_MAX];
    clb_error err;
    clb_measure_records out = {0}, in = {0};
    struct stat st;
    test_dir_create(&dir);
    test_dir_file(&dir, "kernels", path);
    for (uint32_t i = 1; i <= 700; i++)
        put(&out, i, CLB_MEASURE_RIVALS);
    assert_ok(clb_measure_save(path, &out, false, &err), &err);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size <= 1 << 20);
    assert_ok(clb_measure_load(path, &in, NULL, &err), &err);
    assert_true(in.n >= 256 && in.n <= 512);
    assert_int_equal(in.at[in.n - 1].key.n_cols, 700); /* the newest */
    free(out.at);
    free(in.at);
    test_dir_remove(&dir);
}

/* ---- damage ----------------------------------------------------------------------------------------------- */

static void refuse(const char *path, const void *data, size_t n, const char *what)
{
    clb_error err;
    clb_measure_records in = {0};
    test_write_file(path, data, n);
    const int rc = clb_measure_load(path, &in, NULL, &err);
    if (rc != COLIBRI_E_FORMAT || in.n)
        fail_msg("%s: status %d, %zu records", what, rc, in.n);
    assert_null(strchr(err.msg, '\n'));
    free(in.at);
}

static void test_damage(void **state)
{
    (void)state;
    test_dir dir;
    char path[PATH_MAX], what[64];
    clb_error err;
    clb_measure_records out = {0};
    size_t n;
    test_dir_create(&dir);
    test_dir_file(&dir, "kernels", path);
    put(&out, 512, 2);
    assert_ok(clb_measure_save(path, &out, false, &err), &err);
    char *const good = test_read_file(path, &n);
    for (size_t i = 0; i < n; i++) {
        snprintf(what, sizeof what, "the first %zu bytes", i);
        refuse(path, good, i, what);
    }
    for (size_t i = 0; i < n; i++) {
        const int bit = (int)(i % 8);
        snprintf(what, sizeof what, "bit %d of byte %zu", bit, i);
        good[i] = (char)(good[i] ^ 1 << bit);
        refuse(path, good, n, what);
        good[i] = (char)(good[i] ^ 1 << bit);
    }
    char *const twice = malloc(2 * n);
    memcpy(twice, good, n);
    memcpy(twice + n, good, n);
    refuse(path, twice, 2 * n, "two files in one");
    char *const large = calloc(1, (1 << 20) + 1);
    memcpy(large, good, n);
    refuse(path, large, (1 << 20) + 1, "a file that is too large");
    free(large);
    free(twice);
    free(good);
    free(out.at);
    test_dir_remove(&dir);
}

/* Files with a sound checksum that somebody made by hand. */
static void test_hostile(void **state)
{
    (void)state;
#define SHAPE "shape\tCPU\tff\t0\t2\t1\tq8x32\t64\t64\t1\t2\t1700000000\n"
#define TIME  "time\ta.q4_0\torg.example\t1.0\t10-ff\t5\n"
    static const char *const bad[] = {
        TIME,  /* of what? */
        SHAPE, /* no times */
        SHAPE SHAPE TIME,
        SHAPE TIME "\n", /* an empty line */
        SHAPE TIME "other\n",
        SHAPE "time\ta.q4_0\torg.example\t1.0\t10-ff\t0\n", /* no time at all */
        SHAPE "time\ta.q4_0\torg.example\t1.0\t10-ff\t-5\n",
        SHAPE "time\ta.q4_0\torg.example\t1.0\t10-ff\tnan\n",
        SHAPE "time\ta.q4_0\torg.example\t1.0\t10-ff\t1e3\n",
        SHAPE "time\ta.q4_0\torg.example\t1.0\t10-ff\t99999999999999999999999\n",
        SHAPE "time\ta.q4_0\torg.example\t1.0\t10-ff\t1000000000000000001\n",
        SHAPE "time\ta.q4_0\torg.example\t1.0\t10-ff\t5\t5\n", /* one field too many */
        SHAPE "time\ta.q4_0\torg.example\t1.0\t5\n",
        SHAPE "time\ta q4_0\torg.example\t1.0\t10-ff\t5\n", /* no component's name */
        SHAPE "time\ta.q4_0\torg.Example\t1.0\t10-ff\t5\n",
        SHAPE "time\ta.q4_0\torg.example\t1.0\033[2J\t10-ff\t5\n",
        SHAPE "time\ta.q4_0\torg.example\t1.0\t../..\t5\n",
        SHAPE "time\ta.q4_0\torg.example\t1.0.0.0.0.0.0.0.0.0.0\t10-ff\t5\n", /* longer than a version */
        SHAPE "time\taaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\torg.example\t1.0\t10-ff\t5\n",
        "shape\tCPU\033c\tff\t0\t2\t1\tq8x32\t64\t64\t1\t2\t1700000000\n" TIME,
        "shape\tCPU\tFF\t0\t2\t1\tq8x32\t64\t64\t1\t2\t1700000000\n" TIME,
        "shape\tCPU\tff\t0\t4294967296\t1\tq8x32\t64\t64\t1\t2\t1700000000\n" TIME,
        "shape\tCPU\tff\t0\t2\t1\tq8x32\t0\t64\t1\t2\t1700000000\n" TIME,
        "shape\tCPU\tff\t0\t2\t1\tq8x32\t64\t64\t1\t0\t1700000000\n" TIME,
        "shape\tCPU\tff\t0\t2\t1\tq8x32\t64\t 64\t1\t2\t1700000000\n" TIME,
        "shape\tCPU\tff\t0\t2\t1\tq8x32\t64\t64\t1\t2\n" TIME,
        SHAPE TIME TIME TIME TIME TIME TIME TIME TIME TIME TIME TIME TIME TIME TIME TIME TIME TIME, /* 17 */
    };
    test_dir dir;
    char path[PATH_MAX], text[4096], what[32];
    clb_error err;
    clb_measure_records in = {0};
    test_dir_create(&dir);
    test_dir_file(&dir, "kernels", path);
    for (size_t i = 0; i <= sizeof bad / sizeof *bad; i++) {
        const bool good = i == sizeof bad / sizeof *bad; /* the frame itself is sound */
        uint64_t h = UINT64_C(0xcbf29ce484222325);
        snprintf(text, sizeof text, "colibri kernel times 1\n%s", good ? SHAPE TIME SHAPE TIME TIME : bad[i]);
        for (const char *p = text; *p; p++)
            h = (h ^ (unsigned char)*p) * UINT64_C(0x100000001b3);
        snprintf(text + strlen(text), sizeof text - strlen(text), "end\t%llx\n", (unsigned long long)h);
        snprintf(what, sizeof what, "case %zu", i);
        if (!good)
            refuse(path, text, strlen(text), what);
    }
    test_write_text(path, text);
    assert_ok(clb_measure_load(path, &in, NULL, &err), &err);
    assert_int_equal(in.n, 1);
    assert_int_equal(in.at[0].n, 2);
    free(in.at);
    test_dir_remove(&dir);
}

/* ---- what else may be there ------------------------------------------------------------------------------- */

static void test_other_things(void **state)
{
    (void)state;
    test_dir dir;
    char path[PATH_MAX], link_path[PATH_MAX], below[PATH_MAX];
    clb_error err;
    clb_measure_records out = {0}, in = {0};
    struct stat st;
    bool foreign;
    test_dir_create(&dir);
    put(&out, 512, 2);
    /* Somebody's letter: left alone, unless the place is ours. */
    test_write_text(test_dir_file(&dir, "letter", path), "Dear Ada,\n");
    assert_int_equal(clb_measure_load(path, &in, &foreign, &err), COLIBRI_E_FORMAT);
    assert_true(foreign);
    assert_int_equal(clb_measure_save(path, &out, false, &err), COLIBRI_E_USAGE);
    char *const letter = test_read_file(path, NULL);
    assert_string_equal(letter, "Dear Ada,\n");
    free(letter);
    assert_ok(clb_measure_save(path, &out, true, &err), &err);
    assert_ok(clb_measure_load(path, &in, &foreign, &err), &err);
    assert_false(foreign);
    /* A damaged one of ours is replaced; an empty one is nobody's. */
    assert_int_equal(truncate(path, 100), 0);
    assert_ok(clb_measure_save(path, &out, false, &err), &err);
    assert_int_equal(truncate(path, 0), 0);
    assert_ok(clb_measure_save(path, &out, false, &err), &err);
    /* A link stays a link. */
    assert_int_equal(symlink("letter", test_dir_file(&dir, "link", link_path)), 0);
    put(&out, 1024, 2);
    assert_ok(clb_measure_save(link_path, &out, false, &err), &err);
    assert_int_equal(lstat(link_path, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    in.n = 0;
    assert_ok(clb_measure_load(path, &in, NULL, &err), &err);
    assert_int_equal(in.n, 2);
    /* One that others may write to is not believed, and replaced by one that they may not. */
    in.n = 0;
    assert_int_equal(chmod(path, 0622), 0);
    assert_int_equal(clb_measure_load(path, &in, &foreign, &err), COLIBRI_E_USAGE);
    assert_int_equal(in.n, 0);
    assert_false(foreign);
    assert_ok(clb_measure_save(path, &out, false, &err), &err);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    /* A folder, a pipe: neither read (which would hang) nor replaced. */
    assert_int_equal(mkfifo(test_dir_file(&dir, "pipe", path), 0600), 0);
    assert_int_equal(clb_measure_load(path, &in, NULL, &err), COLIBRI_E_FORMAT);
    assert_int_equal(clb_measure_save(path, &out, true, &err), COLIBRI_E_USAGE);
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_int_equal(clb_measure_load(dir.path, &in, NULL, &err), COLIBRI_E_FORMAT);
    assert_int_equal(clb_measure_save(dir.path, &out, true, &err), COLIBRI_E_USAGE);
    /* No place to write to. */
    test_write_text(test_dir_file(&dir, "file", path), "");
    test_dir_file(&dir, "file/kernels", below);
    assert_int_equal(clb_measure_load(below, &in, NULL, &err), COLIBRI_E_NOT_FOUND);
    assert_int_equal(clb_measure_save(below, &out, true, &err), COLIBRI_E_IO);
    assert_int_equal(in.n, 0);
    free(in.at);
    free(out.at);
    test_dir_remove(&dir);
}

static void test_default_path(void **state)
{
    (void)state;
    char path[64];
    setenv("HOME", "/home/ada", 1);
    setenv("XDG_CACHE_HOME", "/var/ada", 1);
    assert_true(clb_measure_default_path(path, sizeof path));
    assert_string_equal(path, "/var/ada/colibri/kernels");
    setenv("XDG_CACHE_HOME", "relative", 1);
    assert_true(clb_measure_default_path(path, sizeof path));
    assert_string_equal(path, "/home/ada/.cache/colibri/kernels");
    assert_false(clb_measure_default_path(path, 20));
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", "", 1);
    assert_false(clb_measure_default_path(path, sizeof path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_grows_no_further), cmocka_unit_test(test_damage),
        cmocka_unit_test(test_hostile),    cmocka_unit_test(test_other_things),     cmocka_unit_test(test_default_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
