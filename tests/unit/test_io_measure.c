/* Measuring a drive, and what AUTO makes of it. */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "test_io_util.h"

/* Out of the page cache: what was written must reach the drive first. */
static void forget(const char *path)
{
    const int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(fsync(fd), 0);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    close(fd);
}

static void both_ways(void **state)
{
    (void)state;
    static io_rig rig;
    rig_create(&rig);
    forget(rig.path);
    clb_io_speed speed;
    clb_error err;
    assert_ok(clb_io_measure(rig.path, 1 << 30, 200000000, &speed, &err), &err);
    assert_true(speed.buffered_bytes_per_second > 1e5);
    if (speed.direct_bytes_per_second > 0) /* this file system has direct reads */
        assert_true(speed.align >= 512 && speed.direct_bytes_per_second > 1e5);
    /* It leaves the page cache as it was: a second measurement finds the file there no more than the first. */
    assert_ok(clb_io_measure(rig.path, 1 << 30, 200000000, &speed, &err), &err);
    assert_true(speed.buffered_bytes_per_second > 1e5);
    rig_destroy(&rig);
}

static void cached(void **state)
{
    (void)state;
    static io_rig rig;
    rig_create(&rig);
    free(test_read_file(rig.path, NULL)); /* all of it is cached, and must not be measured as a drive */
    clb_io_speed speed;
    clb_error err;
    assert_ok(clb_io_measure(rig.path, 1 << 30, 50000000, &speed, &err), &err);
    assert_true(speed.buffered_bytes_per_second <= 0);
    rig_destroy(&rig);
}

static void in_bounds(void **state)
{
    (void)state;
    static io_rig rig;
    rig_create(&rig);
    clb_io_speed speed;
    clb_error err;
    const uint64_t begin = clb_now_ns();
    assert_ok(clb_io_measure(rig.path, UINT64_MAX, 60000000, &speed, &err), &err);
    assert_true(clb_now_ns() - begin < 2000000000); /* 60 ms, on a machine that may be busy */
    assert_ok(clb_io_measure(rig.path, 1, 60000000, &speed, &err), &err);
    test_write_file(rig.path, "x", 1);
    assert_ok(clb_io_measure(rig.path, 1 << 20, 10000000, &speed, &err), &err);
    test_write_file(rig.path, "", 0);
    assert_fails(clb_io_measure(rig.path, 1 << 20, 10000000, &speed, &err), &err, COLIBRI_E_IO, rig.path);
    assert_fails(clb_io_measure(rig.dir.path, 1 << 20, 10000000, &speed, &err), &err, COLIBRI_E_IO, rig.dir.path);
    assert_fails(clb_io_measure("/nonexistent", 1 << 20, 10000000, &speed, &err), &err, COLIBRI_E_NOT_FOUND,
                 "/nonexistent");
    rig_destroy(&rig);
}

/* A file of 96 MiB, sparse: the decision is logged with its figures, taken once for two files on one drive, and what it
 * says is what is done. */
static void automatic(void **state)
{
    (void)state;
    static io_rig rig;
    rig_create(&rig);
    char second[PATH_MAX];
    test_dir_file(&rig.dir, "second", second);
    test_write_text(second, "x");
    assert_int_equal(truncate(rig.path, (off_t)96 << 20), 0);
    assert_int_equal(truncate(second, (off_t)96 << 20), 0);
    forget(rig.path);
    const clb_io_file files[] = {{.path = rig.path, .fd = rig.fd}, {.path = second, .fd = -1}};
    const clb_io_options options = {.files = files, .n_files = 2};
    rig_open(&rig, CLB_IO_AUTO, CLB_IO_DIRECT_AUTO, &options);
    clb_io_stats stats;
    clb_io_get_stats(rig.io, &stats);
    if (!rig_logged(&rig, "read through the page cache:")) { /* there are direct reads here */
        assert_true(rig_logged(&rig, "direct reads "));
        assert_false(rig_logged(&rig, second));
        assert_int_equal(stats.direct, rig_logged(&rig, "reading directly"));
    }
    assert_int_equal(stats.requests + stats.bytes, 0); /* of the probe, nothing is counted */
    rig_submit(&rig, 0, 12345, 3000000, CLB_IO_DEMAND);
    rig_collect_all(&rig);
    rig_destroy(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ways),
        cmocka_unit_test(cached),
        cmocka_unit_test(in_bounds),
        cmocka_unit_test(automatic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
