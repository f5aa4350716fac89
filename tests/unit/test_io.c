/* Asynchronous reads: every engine, directly and through the page cache, brings the bytes of the file and nothing else.
 * Also meant for ThreadSanitizer. */
#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "test_io_util.h"

static const struct {
    enum clb_io_engine engine;
    enum clb_io_direct direct;
    const char *name;
} kinds[] = {
    {CLB_IO_URING, CLB_IO_DIRECT_ON, "io_uring"},
    {CLB_IO_URING, CLB_IO_DIRECT_OFF, "io_uring"},
    {CLB_IO_PREAD, CLB_IO_DIRECT_ON, "pread"},
    {CLB_IO_PREAD, CLB_IO_DIRECT_OFF, "pread"},
};

/* One test for each kind of reader. */
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
#define ALL_KINDS(test)                                                                                                \
    cmocka_unit_test(test##_uring_direct), cmocka_unit_test(test##_uring_buffered),                                    \
        cmocka_unit_test(test##_pread_direct), cmocka_unit_test(test##_pread_buffered)

static void open_kind(io_rig *rig, int kind, const clb_io_options *options)
{
    rig_create(rig);
    rig_open(rig, kinds[kind].engine, kinds[kind].direct, options);
}

static void check_kind(const io_rig *rig, int kind)
{
    clb_io_stats stats;
    clb_io_get_stats(rig->io, &stats);
    assert_string_equal(stats.engine, kinds[kind].name);
    assert_int_equal(stats.direct, kinds[kind].direct == CLB_IO_DIRECT_ON);
    assert_int_equal(stats.n_drives, 1);
    const uint64_t align = clb_io_align(rig->io);
    if (stats.direct) {
        assert_true(align >= 512 && (align & (align - 1)) == 0);
        assert_int_equal(clb_io_lead(rig->io, 3 * align + 5), 5);
        assert_int_equal(clb_io_room(rig->io, 3 * align + 5, align), 2 * align);
        assert_int_equal(clb_io_room(rig->io, 3 * align, align), align);
    } else {
        assert_int_equal(align, 1);
        assert_int_equal(clb_io_lead(rig->io, 12345), 0);
        assert_int_equal(clb_io_room(rig->io, 12345, 678), 678);
    }
}

static uint64_t random_size(test_rand *rng, int shape)
{
    switch (shape) {
    case 0:
        return 1 + test_rand_below(rng, 64);
    case 1:
        return 1 + test_rand_below(rng, 20000);
    default:
        return 1 + test_rand_below(rng, 3u << 20);
    }
}

static void random_ranges(int kind)
{
    static io_rig rig;
    open_kind(&rig, kind, NULL);
    check_kind(&rig, kind);
    test_rand rng = {(uint64_t)kind + 1};
    uint64_t n = 0, bytes = 0;
    for (int round = 0; round < 60; round++) {
        const uint32_t batch = 1 + test_rand_below(&rng, 40);
        clb_io_read reads[40];
        for (uint32_t i = 0; i < batch; i++) {
            const uint64_t size = random_size(&rng, round % 3);
            const uint64_t offset = test_rand_u64(&rng) % (FILE_BYTES - size + 1);
            reads[i] = *rig_read(&rig, i, offset, size, (int)test_rand_below(&rng, 2));
            bytes += size;
        }
        clb_error err;
        assert_ok(clb_io_submit(rig.io, reads, batch, &err), &err);
        n += batch;
        assert_int_equal(clb_io_outstanding(rig.io), batch);
        for (uint32_t i = 0; i < batch; i++) {
            const clb_io_done done = rig_collect(&rig);
            assert_int_equal(done.status, COLIBRI_OK);
            assert_true(done.wait_ns > 0 && done.wait_ns < UINT64_C(100) * 1000000000);
        }
        assert_int_equal(clb_io_outstanding(rig.io), 0);
    }
    clb_io_done done;
    assert_int_equal(clb_io_collect(rig.io, &done, 1, true), 0); /* nothing to wait for */
    clb_io_stats stats;
    clb_io_get_stats(rig.io, &stats);
    assert_int_equal(stats.requests, n);
    assert_true(stats.pieces >= n && stats.bytes >= bytes && stats.busy_ns > 0);
    assert_int_equal(stats.drive_bytes[0], stats.bytes);
    assert_true(stats.drive_bytes_per_second[0] > 0);
    clb_io_reset_stats(rig.io);
    clb_io_get_stats(rig.io, &stats);
    assert_int_equal(stats.requests + stats.pieces + stats.bytes + stats.busy_ns, 0);
    rig_destroy(&rig);
}
EACH_KIND(random_ranges)

/* The last block of the file is short; every byte of it and all around it. */
static void file_end(int kind)
{
    static io_rig rig;
    open_kind(&rig, kind, NULL);
    rig_submit(&rig, 0, FILE_BYTES - 1, 1, CLB_IO_DEMAND);
    rig_submit(&rig, 1, FILE_BYTES - 777, 777, CLB_IO_DEMAND);
    rig_submit(&rig, 2, FILE_BYTES - 778, 778, CLB_IO_DEMAND);
    rig_submit(&rig, 3, FILE_BYTES - 5000, 4999, CLB_IO_DEMAND);
    rig_submit(&rig, 4, 0, FILE_BYTES, CLB_IO_DEMAND);
    rig_submit(&rig, 5, 0, 1, CLB_IO_DEMAND);
    rig_collect_all(&rig);
    rig_destroy(&rig);
}
EACH_KIND(file_end)

/* Pieces smaller than requests, fewer in flight than there are pieces, down to one at a time. */
static void small_pieces(int kind)
{
    for (uint32_t depth = 1; depth <= 5; depth++) {
        static io_rig rig;
        const clb_io_options options = {.depth = depth, .piece_bytes = 10000};
        open_kind(&rig, kind, &options);
        for (uint32_t i = 0; i < 8; i++)
            rig_submit(&rig, i, i * 300001u, 900001, (int)(i & 1));
        rig_collect_all(&rig);
        rig_destroy(&rig);
    }
}
EACH_KIND(small_pieces)

/* More requests at once than there was room for, before any is collected. */
static void many_at_once(int kind)
{
    static io_rig rig;
    open_kind(&rig, kind, NULL);
    test_rand rng = {99};
    for (uint32_t i = 0; i < MOST_READS; i++)
        rig_submit(&rig, i, test_rand_below(&rng, (uint32_t)FILE_BYTES - 4000), 4000, (int)(i & 1));
    assert_int_equal(clb_io_outstanding(rig.io), MOST_READS);
    clb_io_done done[7];
    uint32_t n = 0;
    for (uint32_t got; (got = clb_io_collect(rig.io, done, 7, true)) > 0; n += got)
        for (uint32_t i = 0; i < got; i++) {
            assert_int_equal(done[i].status, COLIBRI_OK);
            rig_check_content(&rig, done[i].tag);
        }
    assert_int_equal(n, MOST_READS);
    rig_destroy(&rig);
}
EACH_KIND(many_at_once)

/* Completions come in while the caller does not wait. */
static void without_waiting(int kind)
{
    static io_rig rig;
    const clb_io_options options = {.depth = 2, .piece_bytes = 65536};
    open_kind(&rig, kind, &options);
    for (uint32_t round = 0; round < 5; round++) {
        rig_submit(&rig, 0, 100000 * round, 3000000, CLB_IO_DEMAND);
        clb_io_done done;
        for (int ms = 0; !clb_io_collect(rig.io, &done, 1, false); ms++) {
            assert_true(ms < 20000);
            usleep(1000);
        }
        assert_int_equal(done.status, COLIBRI_OK);
        rig.reads[0].pending = false;
        rig_check_content(&rig, 0);
    }
    /* Not even by polling: all of it, many times what may be in flight, is there after a while. */
    rig_submit(&rig, 0, 0, 4000000, CLB_IO_PREFETCH);
    clb_io_stats stats;
    for (int ms = 0; clb_io_get_stats(rig.io, &stats), stats.pieces < 5 * (3000000 / 65536) + 61; ms++) {
        assert_true(ms < 20000);
        usleep(1000);
    }
    rig_collect_all(&rig);
    rig_destroy(&rig);
}
EACH_KIND(without_waiting)

static uint32_t own_threads; /* set by main: sanitizers have theirs */

static void close_in_flight(int kind)
{
    for (uint32_t round = 0; round < 20; round++) {
        static io_rig rig;
        const uint32_t files = count_files();
        open_kind(&rig, kind, NULL);
        for (uint32_t i = 0; i < 12; i++)
            rig_submit(&rig, i, i * 1000u, 4000000, (int)(i % 2));
        if (round % 2)
            rig_collect(&rig);
        clb_io_close(rig.io);
        rig.io = NULL;
        wait_for_threads(own_threads);
        for (uint32_t i = 0; i < 12; i++)
            rig_check_guards(&rig, i);
        rig_destroy(&rig);
        assert_int_equal(count_files(), files);
    }
}
EACH_KIND(close_in_flight)

static void cancel(int kind)
{
    static io_rig rig;
    const clb_io_faults slow = {.bytes_per_second = 20000000};
    const clb_io_options options = {.depth = 1, .piece_bytes = 4096, .faults = &slow};
    open_kind(&rig, kind, &options);
    rig_submit(&rig, 0, 0, 4000000, CLB_IO_DEMAND); /* 200 ms */
    rig_submit(&rig, 1, 0, 4000000, CLB_IO_PREFETCH);
    rig_submit(&rig, 2, 0, 10, CLB_IO_PREFETCH);
    clb_io_cancel(rig.io, 1);
    clb_io_cancel(rig.io, 77); /* unknown */
    clb_io_done done = rig_collect(&rig);
    assert_int_equal(done.tag, 1); /* nothing of it was issued, so it is through at once */
    assert_int_equal(done.status, COLIBRI_E_CANCELLED);
    clb_io_cancel(rig.io, 1); /* gone */
    clb_io_cancel(rig.io, 0);
    clb_io_cancel(rig.io, 0);
    uint32_t seen = 0;
    for (uint32_t i = 0; i < 2; i++) {
        done = rig_collect(&rig);
        seen |= 1u << done.tag;
        assert_int_equal(done.status, done.tag == 0 ? COLIBRI_E_CANCELLED : COLIBRI_OK);
    }
    assert_int_equal(seen, 5);
    clb_io_stats stats;
    clb_io_get_stats(rig.io, &stats);
    assert_true(stats.bytes < 4000000);
    rig_destroy(&rig);
}
EACH_KIND(cancel)

/* Random requests, cancels and promotions: each request comes back once, with its bytes or as cancelled. */
static void at_random(int kind)
{
    static io_rig rig;
    const clb_io_options options = {.depth = 6, .piece_bytes = 30000};
    open_kind(&rig, kind, &options);
    test_rand rng = {(uint64_t)kind + 500};
    for (uint32_t step = 0; step < 3000; step++) {
        const uint32_t tag = test_rand_below(&rng, 64);
        switch (test_rand_below(&rng, 4)) {
        case 0:
            if (!rig.reads[tag].pending) {
                const uint64_t size = random_size(&rng, 1);
                rig_submit(&rig, tag, test_rand_u64(&rng) % (FILE_BYTES - size), size, (int)test_rand_below(&rng, 2));
            }
            break;
        case 1:
            if (test_rand_below(&rng, 4) == 0)
                clb_io_cancel(rig.io, tag);
            break;
        case 2:
            clb_io_promote(rig.io, tag);
            break;
        default:
            if (clb_io_outstanding(rig.io)) {
                const clb_io_done done = rig_collect(&rig);
                assert_true(done.status == COLIBRI_OK || done.status == COLIBRI_E_CANCELLED);
            }
        }
    }
    while (clb_io_outstanding(rig.io))
        rig_collect(&rig);
    for (uint32_t i = 0; i < 64; i++)
        assert_false(rig.reads[i].pending);
    rig_destroy(&rig);
}
EACH_KIND(at_random)

/* A reader whose caller is bound to one CPU must not bind its threads. */
static void threads_are_free(void **state)
{
    (void)state;
    cpu_set_t before, one, now;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    if (CPU_COUNT(&before) < 2)
        skip();
    CPU_ZERO(&one);
    for (size_t c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &before)) {
            CPU_SET(c, &one);
            break;
        }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    static io_rig rig;
    rig_create(&rig);
    rig_open(&rig, CLB_IO_PREAD, CLB_IO_DIRECT_OFF, NULL);
    rig_submit(&rig, 0, 0, 1000, CLB_IO_DEMAND);
    rig_collect_all(&rig);
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    uint32_t others = 0;
    for (const struct dirent *d; (d = readdir(tasks)) != NULL;) {
        const pid_t task = (pid_t)strtol(d->d_name, NULL, 10);
        if (task <= 0 || task == getpid())
            continue;
        others++;
        assert_int_equal(sched_getaffinity(task, sizeof now, &now), 0);
        assert_true(CPU_COUNT(&now) > 1);
    }
    closedir(tasks);
    assert_true(others >= 1);
    rig_destroy(&rig);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

/* What AUTO does for a small file, and what it says if io_uring cannot be had: no descriptor is left for the ring. */
static void automatic(void **state)
{
    (void)state;
    static io_rig rig;
    rig_create(&rig);
    rig_open(&rig, CLB_IO_AUTO, CLB_IO_DIRECT_AUTO, NULL);
    clb_io_stats stats;
    clb_io_get_stats(rig.io, &stats);
    assert_false(stats.direct);
    rig_submit(&rig, 0, 5, 100000, CLB_IO_DEMAND);
    rig_collect_all(&rig);
    clb_io_close(rig.io);
    rig.io = NULL;

    struct rlimit before, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = (rlim_t)rig.fd + 1;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    clb_error err;
    const clb_io_file file = {.path = rig.path, .fd = rig.fd};
    clb_io_options options = {.files = &file, .n_files = 1, .direct = CLB_IO_DIRECT_OFF, .log = &rig.log};
    options.engine = CLB_IO_URING;
    assert_fails(clb_io_open(&options, &rig.io, &err), &err, COLIBRI_E_UNSUPPORTED, "io_uring cannot be used");
    options.engine = CLB_IO_AUTO;
    assert_ok(clb_io_open(&options, &rig.io, &err), &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_true(rig_logged(&rig, "io_uring cannot be used"));
    clb_io_get_stats(rig.io, &stats);
    assert_string_equal(stats.engine, "pread");
    rig_submit(&rig, 0, 5, 100000, CLB_IO_DEMAND);
    rig_collect_all(&rig);
    rig_destroy(&rig);
}

/* Makes a system call fail in this process from now on. */
static void forbid(int call, int errnum)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)errnum),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        _exit(77);
}

/* A child ends with 0 if all was as it should be. */
static void expect_child(pid_t pid)
{
    int status;
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* Containers forbid io_uring, old kernels have none: AUTO reads with threads and says why, "uring" is refused. */
static void forbidden(void **state)
{
    (void)state;
    static const int errnos[] = {EPERM, ENOSYS};
    for (int i = 0; i < 2; i++) {
        static io_rig rig;
        rig_create(&rig);
        const pid_t pid = fork();
        if (pid == 0) {
            forbid(SYS_io_uring_setup, errnos[i]);
            const clb_io_file file = {.path = rig.path, .fd = rig.fd};
            clb_io_options options = {.files = &file, .n_files = 1, .direct = CLB_IO_DIRECT_OFF, .log = &rig.log};
            clb_error err;
            options.engine = CLB_IO_URING;
            int wrong = clb_io_open(&options, &rig.io, &err) != COLIBRI_E_UNSUPPORTED;
            wrong += !test_contains(err.msg, i ? "this kernel has none" : "the system forbids it");
            options.engine = CLB_IO_AUTO;
            wrong += clb_io_open(&options, &rig.io, &err) != COLIBRI_OK;
            wrong += !rig_logged(&rig, i ? "this kernel has none" : "the system forbids it");
            clb_io_stats stats;
            clb_io_get_stats(rig.io, &stats);
            wrong += strcmp(stats.engine, "pread") != 0;
            rig_submit(&rig, 0, 5, 100000, CLB_IO_DEMAND);
            rig_collect_all(&rig);
            clb_io_close(rig.io);
            _exit(wrong);
        }
        expect_child(pid);
        rig_destroy(&rig);
    }
}

/* A ring that takes no more requests: they fail, and nothing waits for them. */
static void ring_breaks(void **state)
{
    (void)state;
    static io_rig rig;
    rig_create(&rig);
    rig_open(&rig, CLB_IO_URING, CLB_IO_DIRECT_OFF, NULL);
    clb_io_close(rig.io); /* it can be had; the child opens its own, a ring belongs to one process */
    rig.io = NULL;
    const pid_t pid = fork();
    if (pid == 0) {
        rig_open(&rig, CLB_IO_URING, CLB_IO_DIRECT_OFF, NULL);
        forbid(SYS_io_uring_enter, ENXIO);
        int wrong = 0;
        for (uint32_t round = 0; round < 5; round++) {
            for (uint32_t i = 0; i < 10; i++)
                rig_submit(&rig, i, i * 1000u, 2000000, (int)(i & 1));
            while (clb_io_outstanding(rig.io)) {
                clb_error err;
                const clb_io_done done = rig_collect(&rig);
                wrong += done.status != COLIBRI_E_IO || clb_io_error(rig.io, done.tag, &err) != COLIBRI_E_IO ||
                         !test_contains(err.msg, strerror(ENXIO));
            }
        }
        clb_io_close(rig.io);
        _exit(wrong != 0);
    }
    expect_child(pid);
    rig_destroy(&rig);
}

/* "ON" where it cannot be, and a path that leads to another file now. */
static void refused(void **state)
{
    (void)state;
    static io_rig rig;
    rig_create(&rig);
    clb_error err;
    clb_io_file file = {.path = "/proc/self/status", .fd = -1};
    const clb_io_options options = {.files = &file, .n_files = 1, .direct = CLB_IO_DIRECT_ON};
    assert_fails(clb_io_open(&options, &rig.io, &err), &err, COLIBRI_E_UNSUPPORTED, "cannot be read directly");
    assert_null(rig.io);
    char other[PATH_MAX];
    test_write_text(test_dir_file(&rig.dir, "other", other), "another file");
    file = (clb_io_file){.path = other, .fd = rig.fd};
    assert_fails(clb_io_open(&options, &rig.io, &err), &err, COLIBRI_E_UNSUPPORTED, "other");
    file = (clb_io_file){.path = "/nonexistent/file", .fd = -1};
    assert_fails(clb_io_open(&options, &rig.io, &err), &err, COLIBRI_E_NOT_FOUND, "/nonexistent/file");
    rig_destroy(&rig);
}

static void *no_work(void *arg)
{
    return arg;
}

int main(void)
{
    pthread_t first; /* brings up what a sanitizer starts with it */
    assert_int_equal(pthread_create(&first, NULL, no_work, NULL), 0);
    pthread_join(first, NULL);
    usleep(100000);
    own_threads = count_threads();
    const struct CMUnitTest tests[] = {
        ALL_KINDS(random_ranges),    ALL_KINDS(file_end),         ALL_KINDS(small_pieces),
        ALL_KINDS(many_at_once),     ALL_KINDS(without_waiting),  ALL_KINDS(close_in_flight),
        ALL_KINDS(cancel),           ALL_KINDS(at_random),        cmocka_unit_test(threads_are_free),
        cmocka_unit_test(automatic), cmocka_unit_test(forbidden), cmocka_unit_test(ring_breaks),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
