/* Asynchronous reads: what happens if a drive fails, reads short, or the file shrinks. */
#include <errno.h>
#include <string.h>

#include "test_io_util.h"

#define PIECE 65536u

static const enum clb_io_engine engines[] = {CLB_IO_URING, CLB_IO_URING, CLB_IO_PREAD, CLB_IO_PREAD};
static const enum clb_io_direct directs[] = {CLB_IO_DIRECT_ON, CLB_IO_DIRECT_OFF, CLB_IO_DIRECT_ON, CLB_IO_DIRECT_OFF};

static void open_faulty(io_rig *rig, int kind, const clb_io_faults *faults)
{
    const clb_io_options options = {.depth = 4, .piece_bytes = PIECE, .faults = faults};
    rig_create(rig);
    rig_open(rig, engines[kind], directs[kind], &options);
}

static bool is_direct(int kind)
{
    return directs[kind] == CLB_IO_DIRECT_ON;
}

static void one_piece_fails(int kind)
{
    static io_rig rig;
    const clb_io_faults faults = {.fail_first = 3, .fail_count = 1, .fail_errno = EIO};
    open_faulty(&rig, kind, &faults);
    rig_submit(&rig, 5, 0, 40 * PIECE, CLB_IO_DEMAND);
    rig_submit(&rig, 6, 1000, 3 * PIECE, CLB_IO_DEMAND);
    uint32_t failed = 0;
    for (uint32_t i = 0; i < 2; i++) {
        const clb_io_done done = rig_collect(&rig);
        assert_int_equal(done.status, done.tag == 5 ? COLIBRI_E_IO : COLIBRI_OK);
        failed += done.status != 0;
    }
    assert_int_equal(failed, 1);
    assert_int_equal(clb_io_outstanding(rig.io), 0);
    clb_error err;
    assert_fails(clb_io_error(rig.io, 5, &err), &err, COLIBRI_E_IO, rig.path);
    assert_true(test_contains(err.msg, strerror(EIO)) && test_contains(err.msg, "at 131072"));
    assert_fails(clb_io_error(rig.io, 6, &err), &err, COLIBRI_E_NOT_FOUND, "6");
    clb_io_stats stats;
    clb_io_get_stats(rig.io, &stats);
    assert_true(stats.pieces < 20); /* the rest of the failed one was not read */
    assert_int_equal(stats.n_drives, 1);
    rig_submit(&rig, 5, 0, 40 * PIECE, CLB_IO_DEMAND); /* the same tag again, and the only drive is asked again */
    rig_collect_all(&rig);
    rig_destroy(&rig);
}

static void all_pieces_fail(int kind)
{
    static io_rig rig;
    const clb_io_faults faults = {.fail_first = 1, .fail_count = UINT64_MAX, .fail_errno = EIO};
    open_faulty(&rig, kind, &faults);
    for (uint32_t i = 0; i < 10; i++)
        rig_submit(&rig, i, i * 1000u, 10 * PIECE, (int)(i & 1));
    clb_io_done done[10];
    uint32_t n = 0;
    while (clb_io_outstanding(rig.io))
        n += clb_io_collect(rig.io, &done[n], 10 - n, true);
    assert_int_equal(n, 10);
    for (uint32_t i = 0; i < 10; i++) { /* each has its message */
        assert_int_equal(done[i].status, COLIBRI_E_IO);
        clb_error err;
        assert_fails(clb_io_error(rig.io, done[i].tag, &err), &err, COLIBRI_E_IO, strerror(EIO));
    }
    rig_destroy(&rig);
}

/* Errors that say "again" are followed, but not for ever. */
static void again(int kind)
{
    static const int errnos[] = {EINTR, EAGAIN};
    for (int i = 0; i < 2; i++) {
        static io_rig rig;
        const clb_io_faults faults = {.fail_first = 1, .fail_count = 7, .fail_errno = errnos[i]};
        open_faulty(&rig, kind, &faults);
        rig_submit(&rig, 0, 12345, 10 * PIECE, CLB_IO_DEMAND);
        rig_collect_all(&rig);
        clb_io_stats stats;
        clb_io_get_stats(rig.io, &stats);
        assert_true(stats.retried >= 7);
        rig_destroy(&rig);
    }
    static io_rig rig;
    const clb_io_faults faults = {.fail_first = 1, .fail_count = UINT64_MAX, .fail_errno = EAGAIN};
    open_faulty(&rig, kind, &faults);
    rig_submit(&rig, 0, 12345, PIECE, CLB_IO_DEMAND);
    assert_int_equal(rig_collect(&rig).status, COLIBRI_E_IO);
    rig_destroy(&rig);
}

/* A file system that opens a file for direct reads and then refuses them. */
static void direct_refused(int kind)
{
    static io_rig rig;
    const clb_io_faults faults = {.fail_first = 2, .fail_count = 1, .fail_errno = EINVAL};
    open_faulty(&rig, kind, &faults);
    rig_submit(&rig, 0, 12345, 10 * PIECE, CLB_IO_DEMAND);
    assert_int_equal(rig_collect(&rig).status, is_direct(kind) ? COLIBRI_OK : COLIBRI_E_IO);
    rig_destroy(&rig);
}

static void short_reads(int kind)
{
    static const uint64_t sizes[] = {1, 511, 512, 4096, 8192, 50000, 60000};
    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        static io_rig rig;
        const clb_io_faults faults = {.short_first = 2, .short_count = 15, .short_bytes = sizes[i]};
        open_faulty(&rig, kind, &faults);
        rig_submit(&rig, 0, 4097, 12 * PIECE + 5, CLB_IO_DEMAND);
        rig_submit(&rig, 1, FILE_BYTES - 3 * PIECE, 3 * PIECE, CLB_IO_DEMAND);
        rig_collect_all(&rig);
        clb_io_stats stats;
        clb_io_get_stats(rig.io, &stats);
        assert_true(stats.retried > 0);
        rig_destroy(&rig);
    }
}

/* A direct read of nothing is looked into through the page cache; there, nothing is the end of the file. */
static void empty_read(int kind)
{
    static io_rig rig;
    const clb_io_faults faults = {.short_first = 2, .short_count = 1, .short_bytes = 0};
    open_faulty(&rig, kind, &faults);
    rig_submit(&rig, 0, 4097, 12 * PIECE, CLB_IO_DEMAND);
    assert_int_equal(rig_collect(&rig).status, is_direct(kind) ? COLIBRI_OK : COLIBRI_E_IO);
    clb_error err;
    if (!is_direct(kind))
        assert_fails(clb_io_error(rig.io, 0, &err), &err, COLIBRI_E_IO, "nothing can be read");
    rig_destroy(&rig);
}

static void truncated(int kind)
{
    static io_rig rig;
    open_faulty(&rig, kind, NULL);
    rig_submit(&rig, 0, 3000000, 1000000, CLB_IO_DEMAND);
    rig_collect_all(&rig);
    assert_int_equal(truncate(rig.path, 3333333), 0);
    rig_submit(&rig, 0, 3000000, 1000000, CLB_IO_DEMAND);
    rig_submit(&rig, 1, 4000000, 10, CLB_IO_DEMAND);
    rig_submit(&rig, 2, 3333333 - 100, 100, CLB_IO_DEMAND);
    for (uint32_t i = 0; i < 3; i++) {
        const clb_io_done done = rig_collect(&rig);
        assert_int_equal(done.status, done.tag == 2 ? COLIBRI_OK : COLIBRI_E_IO);
    }
    clb_error err;
    assert_fails(clb_io_error(rig.io, 0, &err), &err, COLIBRI_E_IO, "shrank from 5243657 to 3333333 bytes");
    assert_true(test_contains(err.msg, rig.path));
    assert_fails(clb_io_error(rig.io, 1, &err), &err, COLIBRI_E_IO, "shrank");
    rig_destroy(&rig);
}

static void shrinks_while_reading(int kind)
{
    static io_rig rig;
    const clb_io_faults faults = {.bytes_per_second = 50000000};
    open_faulty(&rig, kind, &faults);
    rig_submit(&rig, 0, 0, FILE_BYTES, CLB_IO_DEMAND); /* 100 ms */
    usleep(20000);
    assert_int_equal(truncate(rig.path, (off_t)FILE_BYTES - 400000), 0);
    assert_int_equal(rig_collect(&rig).status, COLIBRI_E_IO);
    clb_error err;
    assert_fails(clb_io_error(rig.io, 0, &err), &err, COLIBRI_E_IO, "shrank");
    rig_destroy(&rig);
}

#define EACH_KIND(test)                                                                                                \
    static void test##_uring_direct(void **state)                                                                      \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        test(0);                                                                                                       \
    }                                                                                                                  \
    static void test##_uring_buffered(void **state)                                                                    \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        test(1);                                                                                                       \
    }                                                                                                                  \
    static void test##_pread_direct(void **state)                                                                      \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        test(2);                                                                                                       \
    }                                                                                                                  \
    static void test##_pread_buffered(void **state)                                                                    \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        test(3);                                                                                                       \
    }
EACH_KIND(one_piece_fails)
EACH_KIND(all_pieces_fail)
EACH_KIND(again)
EACH_KIND(direct_refused)
EACH_KIND(short_reads)
EACH_KIND(empty_read)
EACH_KIND(truncated)
EACH_KIND(shrinks_while_reading)
#define ALL_KINDS(test)                                                                                                \
    cmocka_unit_test(test##_uring_direct), cmocka_unit_test(test##_uring_buffered),                                    \
        cmocka_unit_test(test##_pread_direct), cmocka_unit_test(test##_pread_buffered)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ALL_KINDS(one_piece_fails), ALL_KINDS(all_pieces_fail), ALL_KINDS(again),     ALL_KINDS(direct_refused),
        ALL_KINDS(short_reads),     ALL_KINDS(empty_read),      ALL_KINDS(truncated), ALL_KINDS(shrinks_while_reading),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
