/* Asynchronous reads: who goes first. With a drive that is held back, pieces complete in about the order in which they
 * were issued. "About": a thread may wake up late. Requests whose order is compared are therefore long compared with
 * what is in flight at a time. */
#include <string.h>

#include "base/clock.h"
#include "test_io_util.h"

#define PIECE 65536u

/* A piece takes 2 ms. */
static const clb_io_faults slow = {.bytes_per_second = (uint64_t)PIECE * 500};

static const enum clb_io_engine engines[] = {CLB_IO_URING, CLB_IO_PREAD};

static void open_slow(io_rig *rig, int engine, uint32_t depth)
{
    const clb_io_options options = {.depth = depth, .piece_bytes = PIECE, .faults = &slow};
    rig_create(rig);
    rig_open(rig, engines[engine], CLB_IO_DIRECT_OFF, &options);
    rig_submit(rig, 0, 0, 30 * PIECE, CLB_IO_DEMAND); /* so that the drive's speed is known */
    rig_collect_all(rig);
}

static void expect_next(io_rig *rig, uint32_t tag)
{
    const clb_io_done done = rig_collect(rig);
    assert_int_equal(done.status, COLIBRI_OK);
    assert_int_equal(done.tag, tag);
}

static uint64_t pieces_issued(const io_rig *rig)
{
    clb_io_stats stats;
    clb_io_get_stats(rig->io, &stats);
    return stats.pieces;
}

static void demand_overtakes(int engine)
{
    static io_rig rig;
    open_slow(&rig, engine, 8);
    rig_submit(&rig, 0, 0, 80 * PIECE, CLB_IO_PREFETCH);
    rig_submit(&rig, 1, 0, 30 * PIECE, CLB_IO_PREFETCH);
    usleep(10000);
    const uint64_t before = pieces_issued(&rig), begin = clb_now_ns();
    assert_true(before >= 31);
    rig_submit(&rig, 2, 0, 2 * PIECE, CLB_IO_DEMAND);
    expect_next(&rig, 2);
    /* What was in flight, the demand, and what was issued while its last piece was read. */
    assert_true(pieces_issued(&rig) <= before + 2 + 4 + (clb_now_ns() - begin) / 2000000 + 1);
    expect_next(&rig, 0);
    expect_next(&rig, 1);
    rig_destroy(&rig);
}

/* A prefetch is held back as long as the demand reads by themselves keep the drive busy. */
static void demand_first(int engine)
{
    static io_rig rig;
    open_slow(&rig, engine, 4);
    clb_error err;
    const clb_io_read reads[] = {
        *rig_read(&rig, 0, 0, 20 * PIECE, CLB_IO_PREFETCH),
        *rig_read(&rig, 1, 100, 20 * PIECE, CLB_IO_DEMAND),
        *rig_read(&rig, 2, 200, 20 * PIECE, CLB_IO_DEMAND),
        *rig_read(&rig, 3, 300, 20 * PIECE, CLB_IO_DEMAND),
    };
    assert_ok(clb_io_submit(rig.io, reads, 4, &err), &err);
    expect_next(&rig, 1);
    expect_next(&rig, 2);
    expect_next(&rig, 3);
    expect_next(&rig, 0);
    rig_destroy(&rig);
}

static void promote(int engine)
{
    static io_rig rig;
    open_slow(&rig, engine, 4);
    rig_submit(&rig, 0, 0, 10 * PIECE, CLB_IO_PREFETCH);
    rig_submit(&rig, 1, 0, 60 * PIECE, CLB_IO_PREFETCH);
    rig_submit(&rig, 2, 0, 20 * PIECE, CLB_IO_PREFETCH);
    rig_submit(&rig, 3, 0, 3 * PIECE, CLB_IO_PREFETCH);
    expect_next(&rig, 0);
    clb_io_promote(rig.io, 3);  /* nothing of it was issued */
    clb_io_promote(rig.io, 99); /* unknown */
    expect_next(&rig, 3);
    /* Tag 1 is on its way with most of its pieces not issued: what comes now must not wait for them, but for those of a
     * promoted one it must. */
    clb_io_promote(rig.io, 1);
    clb_io_promote(rig.io, 1);
    rig_submit(&rig, 4, 0, 20 * PIECE, CLB_IO_DEMAND);
    expect_next(&rig, 1);
    expect_next(&rig, 4);
    expect_next(&rig, 2);
    rig_destroy(&rig);
}

/* How long a demand read waits behind prefetch reads, and that these do not keep it from being issued at once. */
static void short_wait(int engine)
{
    static io_rig rig;
    open_slow(&rig, engine, 32);
    const uint64_t before = pieces_issued(&rig), begin = clb_now_ns();
    rig_submit(&rig, 0, 0, 80 * PIECE, CLB_IO_PREFETCH);
    rig_submit(&rig, 2, 0, 80 * PIECE, CLB_IO_PREFETCH);
    usleep(5000);
    const uint64_t issued = pieces_issued(&rig) - before;
    assert_true(issued >= 4 && issued <= 4 + (clb_now_ns() - begin) / 2000000 + 1);
    rig_submit(&rig, 1, 0, PIECE, CLB_IO_DEMAND);
    const clb_io_done done = rig_collect(&rig);
    assert_int_equal(done.tag, 1);
    /* Four pieces in flight and its own: 10 ms, and time for a busy machine to wake somebody. All: 320 ms. */
    assert_true(done.wait_ns > 2000000 && done.wait_ns < 160000000);
    rig_collect_all(&rig);
    rig_destroy(&rig);
}

/* The drive is busy while something is in flight, and not a moment longer, whether the caller looks or not. */
static void busy_time(int engine)
{
    static io_rig rig;
    open_slow(&rig, engine, 4);
    for (int round = 0; round < 3; round++) {
        clb_io_reset_stats(rig.io);
        const uint64_t begin = clb_now_ns();
        rig_submit(&rig, 0, 0, 20 * PIECE, CLB_IO_DEMAND); /* 40 ms */
        if (round)
            usleep(300000);
        const uint64_t until = clb_now_ns();
        rig_collect_all(&rig);
        clb_io_stats stats;
        clb_io_get_stats(rig.io, &stats);
        assert_true(stats.busy_ns >= 39000000);
        assert_true(stats.busy_ns <= clb_now_ns() - begin);
        if (round) /* it ended long before anybody looked */
            assert_true(stats.busy_ns < until - begin - 50000000);
        usleep(20000);
        const uint64_t busy = stats.busy_ns;
        clb_io_get_stats(rig.io, &stats);
        assert_true(stats.busy_ns == busy);
    }
    /* Nor while nothing is asked for between two reads. */
    clb_io_reset_stats(rig.io);
    const uint64_t begin = clb_now_ns();
    for (int i = 0; i < 2; i++) {
        usleep(100000);
        rig_submit(&rig, 0, 0, PIECE, CLB_IO_DEMAND);
        rig_collect_all(&rig);
    }
    clb_io_stats idle;
    clb_io_get_stats(rig.io, &idle);
    assert_true(idle.busy_ns >= 3900000 && idle.busy_ns + 199000000 < clb_now_ns() - begin);
    /* The speed that is reported is that of the drive. */
    for (uint32_t i = 0; i < 4; i++) {
        rig_submit(&rig, 0, 0, 40 * PIECE, CLB_IO_DEMAND);
        rig_collect_all(&rig);
    }
    clb_io_stats stats;
    clb_io_get_stats(rig.io, &stats);
    assert_true(stats.drive_bytes_per_second[0] > 0.2 * (double)slow.bytes_per_second);
    assert_true(stats.drive_bytes_per_second[0] < 1.1 * (double)slow.bytes_per_second);
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
BOTH_ENGINES(demand_overtakes)
BOTH_ENGINES(demand_first)
BOTH_ENGINES(promote)
BOTH_ENGINES(short_wait)
BOTH_ENGINES(busy_time)
#define BOTH(test) cmocka_unit_test(test##_uring), cmocka_unit_test(test##_pread)

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(demand_overtakes), BOTH(demand_first), BOTH(promote), BOTH(short_wait), BOTH(busy_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
