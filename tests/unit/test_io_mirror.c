/* Asynchronous reads: copies of a file on several drives. */
#include <errno.h>
#include <string.h>

#include "test_io_util.h"

#define PIECE 65536u

static const enum clb_io_engine engines[] = {CLB_IO_URING, CLB_IO_PREAD};

typedef struct mirrors {
    char paths[3][PATH_MAX];
    const char *list[4];
} mirrors;

static void make_mirrors(io_rig *rig, mirrors *m, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        char name[24];
        snprintf(name, sizeof name, "mirror%u", i + 1);
        test_write_file(test_dir_file(&rig->dir, name, m->paths[i]), rig->content, FILE_BYTES);
        m->list[i] = m->paths[i];
    }
}

static void open_mirrored(io_rig *rig, mirrors *m, int engine, uint32_t n, const clb_io_faults *faults)
{
    rig_create(rig);
    make_mirrors(rig, m, n);
    const clb_io_file file = {.path = rig->path, .fd = rig->fd, .mirrors = m->list, .n_mirrors = n};
    const clb_io_options options = {.depth = 8, .piece_bytes = PIECE, .faults = faults, .files = &file, .n_files = 1};
    rig_open(rig, engines[engine], CLB_IO_DIRECT_OFF, &options);
}

static void read_a_lot(io_rig *rig, uint32_t rounds)
{
    for (uint32_t round = 0; round < rounds; round++) {
        for (uint32_t i = 0; i < 8; i++)
            rig_submit(rig, i, i * 400000u + round, 20 * PIECE, CLB_IO_DEMAND);
        rig_collect_all(rig);
    }
}

/* Reads until a drive was found bad; on a busy machine, one may seem slow and be asked for little at first. */
static void read_until_out(io_rig *rig)
{
    clb_io_stats stats;
    for (uint32_t i = 0; clb_io_get_stats(rig->io, &stats), stats.n_drives > 1; i++) {
        assert_true(i < 1000);
        read_a_lot(rig, 1);
    }
}

static void shared_evenly(int engine)
{
    static io_rig rig;
    static mirrors m;
    const clb_io_faults slow = {.bytes_per_second = 100000000};
    open_mirrored(&rig, &m, engine, 3, &slow);
    read_a_lot(&rig, 4);
    clb_io_stats stats;
    clb_io_get_stats(rig.io, &stats);
    assert_int_equal(stats.n_drives, 4);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(stats.drive_bytes[i] > stats.bytes / 20 && stats.drive_bytes[i] < stats.bytes / 4 * 3);
        sum += stats.drive_bytes[i];
    }
    assert_int_equal(sum, stats.bytes);
    rig_destroy(&rig);
}

/* A drive that is far slower than the other gets next to nothing: by the lengths of their queues alone it would get a
 * fifth. */
static void slow_mirror(int engine)
{
    static io_rig rig;
    static mirrors m;
    const clb_io_faults slow = {.bytes_per_second = 2000000, .drives = 2};
    open_mirrored(&rig, &m, engine, 1, &slow);
    read_a_lot(&rig, 2); /* until the speeds are known */
    clb_io_reset_stats(rig.io);
    for (uint32_t i = 0; i < 40; i++) {
        rig_submit(&rig, 0, i * 1000u, 20 * PIECE, CLB_IO_DEMAND);
        rig_collect_all(&rig);
    }
    clb_io_stats stats;
    clb_io_get_stats(rig.io, &stats);
    assert_int_equal(stats.n_drives, 2);
    assert_true(stats.drive_bytes_per_second[1] < 2200000);
    assert_true(stats.drive_bytes[1] < stats.bytes / 12); /* the other one is not held back: a cached file */
    rig_destroy(&rig);
}

static void one_fails(int engine)
{
    for (uint32_t bad = 0; bad < 2; bad++) {
        static io_rig rig;
        static mirrors m;
        const clb_io_faults dead = {.fail_first = 3, .fail_count = UINT64_MAX, .fail_errno = EIO, .drives = 1u << bad};
        open_mirrored(&rig, &m, engine, 1, &dead);
        read_a_lot(&rig, 3); /* all arrive, with the right bytes */
        read_until_out(&rig);
        clb_io_stats stats;
        clb_io_get_stats(rig.io, &stats);
        assert_int_equal(stats.n_drives, 1);
        assert_true(rig_logged(&rig, "from now on"));
        assert_true(rig_logged(&rig, bad ? m.paths[0] : rig.path) && rig_logged(&rig, strerror(EIO)));
        uint32_t warnings = 0;
        for (uint32_t i = 0; i < rig.n_lines && i < 8; i++)
            warnings += test_contains(rig.lines[i], "from now on");
        assert_int_equal(warnings, 1);
        const uint64_t before = stats.drive_bytes[bad], pieces = stats.pieces;
        read_a_lot(&rig, 1);
        clb_io_get_stats(rig.io, &stats);
        assert_int_equal(stats.drive_bytes[bad], before); /* it is not asked any more */
        assert_int_equal(stats.pieces - pieces, 8 * 20);
        rig_destroy(&rig);
    }
}

static void all_fail(int engine)
{
    static io_rig rig;
    static mirrors m;
    const clb_io_faults dead = {.fail_first = 1, .fail_count = UINT64_MAX, .fail_errno = EIO};
    open_mirrored(&rig, &m, engine, 2, &dead);
    for (uint32_t round = 0; round < 2; round++) { /* the second time, all are known to be bad */
        rig_submit(&rig, 0, 0, 3 * PIECE, CLB_IO_DEMAND);
        rig_submit(&rig, 1, 0, 1, CLB_IO_PREFETCH);
        assert_int_equal(rig_collect(&rig).status, COLIBRI_E_IO);
        assert_int_equal(rig_collect(&rig).status, COLIBRI_E_IO);
        clb_error err;
        assert_fails(clb_io_error(rig.io, 0, &err), &err, COLIBRI_E_IO, strerror(EIO));
    }
    rig_destroy(&rig);
}

/* A copy that is cut while it is in use; the one of another file on the same drive stays in use. */
static void copy_shrinks(int engine)
{
    static io_rig rig;
    static mirrors m;
    rig_create(&rig);
    make_mirrors(&rig, &m, 3);
    const char *second[] = {m.paths[2]};
    const clb_io_file files[] = {
        {.path = rig.path, .fd = rig.fd, .mirrors = m.list, .n_mirrors = 1},
        {.path = m.paths[1], .fd = -1, .mirrors = second, .n_mirrors = 1},
    };
    const clb_io_faults slow = {.bytes_per_second = 200000000};
    const clb_io_options options = {.depth = 8, .piece_bytes = PIECE, .files = files, .n_files = 2, .faults = &slow};
    rig_open(&rig, engines[engine], CLB_IO_DIRECT_OFF, &options);
    read_a_lot(&rig, 1);
    assert_int_equal(truncate(m.paths[0], 1000), 0);
    read_until_out(&rig);
    assert_true(rig_logged(&rig, "shrank"));
    clb_io_stats stats;
    clb_io_get_stats(rig.io, &stats);
    assert_int_equal(stats.n_drives, 1);
    const uint64_t before = stats.drive_bytes[1];
    clb_error err;
    for (uint32_t round = 0; round < 4; round++) {
        for (uint32_t i = 0; i < 8; i++) {
            clb_io_read read = *rig_read(&rig, i, i * 400000u, 20 * PIECE, CLB_IO_DEMAND);
            read.file = 1;
            assert_ok(clb_io_submit(rig.io, &read, 1, &err), &err);
        }
        rig_collect_all(&rig);
    }
    clb_io_get_stats(rig.io, &stats);
    assert_true(stats.drive_bytes[1] > before);
    rig_destroy(&rig);
}

static void refused(void **state)
{
    (void)state;
    static io_rig rig;
    static mirrors m;
    rig_create(&rig);
    make_mirrors(&rig, &m, 3);
    m.list[3] = m.paths[2];
    const uint32_t files = count_files();
    clb_error err;
    clb_io_file file = {.path = rig.path, .fd = rig.fd, .mirrors = m.list, .n_mirrors = 1};
    const clb_io_options options = {.files = &file, .n_files = 1};

    file.n_mirrors = 4;
    assert_fails(clb_io_open(&options, &rig.io, &err), &err, COLIBRI_E_LIMIT, "at most 3");
    file.n_mirrors = 1;
    /* Another size. */
    assert_int_equal(truncate(m.paths[0], (off_t)FILE_BYTES - 1), 0);
    assert_fails(clb_io_open(&options, &rig.io, &err), &err, COLIBRI_E_FORMAT, "5243656 bytes instead of 5243657");
    assert_true(test_contains(err.msg, m.paths[0]));
    /* The same size and another content: a part of it, as of a copy that was broken off (zeros at the end), the whole
     * of it (another version), or one that differs in its middle. */
    static uint8_t other[FILE_BYTES];
    const uint64_t from[] = {FILE_BYTES - 3000, 0, FILE_BYTES / 4}, to[] = {FILE_BYTES, FILE_BYTES, FILE_BYTES / 2};
    for (int i = 0; i < 3; i++) {
        memcpy(other, rig.content, FILE_BYTES);
        memset(other + from[i], 0, (size_t)(to[i] - from[i]));
        test_write_file(m.paths[0], other, FILE_BYTES);
        assert_fails(clb_io_open(&options, &rig.io, &err), &err, COLIBRI_E_FORMAT, "is no copy of");
    }
    assert_int_equal(unlink(m.paths[0]), 0);
    assert_fails(clb_io_open(&options, &rig.io, &err), &err, COLIBRI_E_NOT_FOUND, "mirror1");
    assert_true(test_contains(err.msg, "mirror of"));
    assert_null(rig.io);
    assert_int_equal(count_files(), files);
    rig_destroy(&rig);
}

/* Directly too: copies have the alignment of the strictest drive. */
static void direct(void **state)
{
    (void)state;
    static io_rig rig;
    static mirrors m;
    rig_create(&rig);
    make_mirrors(&rig, &m, 2);
    const clb_io_file file = {.path = rig.path, .fd = rig.fd, .mirrors = m.list, .n_mirrors = 2};
    const clb_io_options options = {.depth = 8, .piece_bytes = PIECE, .files = &file, .n_files = 1};
    rig_open(&rig, CLB_IO_AUTO, CLB_IO_DIRECT_ON, &options);
    read_a_lot(&rig, 3);
    clb_io_stats stats;
    clb_io_get_stats(rig.io, &stats);
    assert_true(stats.direct && stats.n_drives == 3 && stats.drive_bytes[2] > 0);
    rig_destroy(&rig);
}

#define BOTH_ENGINES(test)                                                                                             \
    static void test##_uring(void **state)                                                                             \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        test(0);                                                                                                       \
    }                                                                                                                  \
    static void test##_pread(void **state)                                                                             \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        test(1);                                                                                                       \
    }
BOTH_ENGINES(shared_evenly)
BOTH_ENGINES(slow_mirror)
BOTH_ENGINES(one_fails)
BOTH_ENGINES(all_fail)
BOTH_ENGINES(copy_shrinks)
#define BOTH(test) cmocka_unit_test(test##_uring), cmocka_unit_test(test##_pread)

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(shared_evenly), BOTH(slow_mirror),         BOTH(one_fails),          BOTH(all_fail),
        BOTH(copy_shrinks),  cmocka_unit_test(refused), cmocka_unit_test(direct),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
