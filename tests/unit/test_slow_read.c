/* The bad drive for whole programs does what it says: the reader, run in a process of its own behind
 * tests/tools/slow_read.c. */
#include <errno.h>
#include <string.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "test_io_util.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED
#endif
#endif

#define PIECE 65536u
#define SHIM  COLIBRI_TEST_BINARY_DIR "/tests/slow_read.so"

/* In the child: reads the file in 16 pieces; exit code 0 if all bytes are right, 1 if the read failed with EIO, 2 for
 * anything else. Prints the milliseconds it took. */
static int child(const char *path)
{
    size_t n;
    char *content = test_read_file(path, &n); /* fread: not slowed */
    const clb_io_file file = {.path = path, .fd = -1};
    const clb_io_options options = {
        .engine = CLB_IO_PREAD, .direct = CLB_IO_DIRECT_OFF, .files = &file, .n_files = 1, .piece_bytes = PIECE};
    clb_io *io;
    clb_error err;
    if (clb_io_open(&options, &io, &err))
        return 2;
    char *to = malloc(n);
    const clb_io_read read = {.size = n, .dst = to};
    clb_io_done done;
    const uint64_t begin = clb_now_ns();
    if (!to || clb_io_submit(io, &read, 1, &err) || clb_io_collect(io, &done, 1, true) != 1)
        return 2;
    printf("%llu", (unsigned long long)((clb_now_ns() - begin) / 1000000));
    int code = done.status == COLIBRI_OK && !memcmp(to, content, n) ? 0 : 2;
    if (done.status == COLIBRI_E_IO && clb_io_error(io, 0, &err) == COLIBRI_E_IO && strstr(err.msg, strerror(EIO)))
        code = 1;
    clb_io_close(io);
    free(to);
    free(content);
    return code;
}

struct run {
    int code;
    unsigned ms, reads;
};

static struct run run_child(const test_dir *dir, const char *settings)
{
    char file[PATH_MAX], log[PATH_MAX], command[3 * PATH_MAX];
    test_dir_file(dir, "model", file);
    test_dir_file(dir, "log", log);
    snprintf(command, sizeof command, "LD_PRELOAD=%s SLOW_READ_LOG=%s %s exec /proc/%d/exe %s", SHIM, log, settings,
             (int)getpid(), file);
    FILE *out = popen(command, "r");
    assert_non_null(out);
    struct run run = {.code = -1};
    char line[32];
    if (fgets(line, sizeof line, out))
        run.ms = (unsigned)strtoul(line, NULL, 10);
    const int status = pclose(out);
    assert_true(WIFEXITED(status));
    run.code = WEXITSTATUS(status);
    char *reads = test_read_file(log, NULL);
    run.reads = (unsigned)strtoul(reads, NULL, 10);
    free(reads);
    return run;
}

static void behind_the_shim(void **state)
{
    (void)state;
    test_dir dir;
    test_dir_create(&dir);
    char file[PATH_MAX];
    static uint8_t content[16 * PIECE];
    test_rand rng = {3};
    test_rand_bytes(&rng, content, sizeof content);
    test_write_file(test_dir_file(&dir, "model", file), content, sizeof content);

    struct run run = run_child(&dir, "SLOW_READ_PATH=other");
    assert_true(run.code == 0 && run.reads == 0);
    run = run_child(&dir, "SLOW_READ_PATH=model");
    assert_true(run.code == 0 && run.reads == 16);
    run = run_child(&dir, "SLOW_READ_PATH=model SLOW_READ_FAIL=5");
    assert_true(run.code == 1 && run.reads >= 5);
    run = run_child(&dir, "SLOW_READ_PATH=model SLOW_READ_FAIL=17");
    assert_true(run.code == 0 && run.reads == 16);
    run = run_child(&dir, "SLOW_READ_PATH=model SLOW_READ_FAIL=2+");
    assert_int_equal(run.code, 1);
    run = run_child(&dir, "SLOW_READ_PATH=model SLOW_READ_FAIL=5 SLOW_READ_SKIP=12");
    assert_int_equal(run.code, 0);
    run = run_child(&dir, "SLOW_READ_PATH=model SLOW_READ_FAIL=4 SLOW_READ_SKIP=12");
    assert_int_equal(run.code, 1);
    run = run_child(&dir, "SLOW_READ_PATH=model SLOW_READ_FAIL=1+ SLOW_READ_ONLY=direct");
    assert_true(run.code == 0 && run.reads == 0);
    run = run_child(&dir, "SLOW_READ_PATH=model SLOW_READ_SHORT=10000");
    assert_true(run.code == 0 && run.reads == 16 * 7);
    run = run_child(&dir, "SLOW_READ_PATH=model SLOW_READ_RATE=10000000"); /* 105 ms */
    assert_true(run.code == 0 && run.ms >= 104);
    test_dir_remove(&dir);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return child(argv[1]);
#ifdef SANITIZED
    test_skip("sanitizers want to be the first library of a process");
#endif
    const struct CMUnitTest tests[] = {cmocka_unit_test(behind_the_shim)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
