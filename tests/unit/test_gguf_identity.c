/* What tells models apart: the same for a copy with its time, another one for another weight, key or time. */
#include "support.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gguf/identity.h"

#define MODEL TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf")

static char path[] = "/tmp/clb-identity-XXXXXX";

/* Of the copy with byte `at` changed (0: none), of second `time`. */
static void identity(uint64_t at, time_t time, uint8_t out[CLB_GGUF_IDENTITY])
{
    clb_error err;
    clb_gguf *g;
    const int fd = open(path, O_RDWR);
    uint8_t byte, other;
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    other = at ? byte ^ 1 : byte;
    assert_int_equal(pwrite(fd, &other, 1, (off_t)at), 1);
    const struct timespec times[2] = {{.tv_sec = time}, {.tv_sec = time}};
    assert_int_equal(futimens(fd, times), 0);
    assert_ok(clb_gguf_open(path, NULL, NULL, &g, &err), &err);
    assert_ok(clb_gguf_identity(g, out, &err), &err);
    clb_gguf_close(g);
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

static void test_identity(void **state)
{
    (void)state;
    uint8_t a[CLB_GGUF_IDENTITY], b[CLB_GGUF_IDENTITY];
    clb_error err;
    clb_gguf *g;
    assert_ok(clb_gguf_open(MODEL, NULL, NULL, &g, &err), &err);
    const uint64_t n = clb_gguf_n_tensors(g);
    uint64_t *ends = malloc(2 * n * sizeof *ends);
    assert_non_null(ends);
    for (uint64_t i = 0; i < n; i++) {
        const clb_gguf_tensor *t = clb_gguf_tensor_at(g, i);
        ends[2 * i] = t->offset;
        ends[2 * i + 1] = t->offset + t->n_bytes - 1;
    }
    clb_gguf_close(g);
    char command[PATH_MAX + 64];
    close(mkstemp(path));
    snprintf(command, sizeof command, "cp '%s' %s", MODEL, path);
    assert_int_equal(system(command), 0);
    identity(0, 1000, a);
    identity(0, 1000, b);
    assert_memory_equal(a, b, sizeof a);
    identity(0, 1001, b);
    assert_memory_not_equal(a, b, sizeof a);
    for (uint64_t i = 0; i < 2 * n; i++) { /* first and last weight of every tensor */
        identity(ends[i], 1000, b);
        if (memcmp(a, b, sizeof a) == 0)
            fail_msg("byte %llu does not count", (unsigned long long)ends[i]);
    }
    free(ends);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_identity)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
