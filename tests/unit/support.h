/* Helpers of the unit tests: cmocka with the headers it needs, scratch folders, whole files, test data, repeatable
 * random numbers, skipping. A helper that fails ends the program with a message: a test must not go on with half its
 * input. */
#ifndef CLB_TESTS_SUPPORT_H
#define CLB_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above. */
#include <cmocka.h>
#include <limits.h>
#include <stdbool.h>

#include "base/error.h"

/* Path of a file below tests/data or examples; `rel` is a string literal. */
#define TEST_DATA(rel)    (COLIBRI_TEST_DATA "/" rel)
#define TEST_EXAMPLE(rel) (COLIBRI_EXAMPLES "/" rel)

/* assert_int_equal(expr, COLIBRI_OK) that prints err.msg on failure. */
#define assert_ok(expr, err)                                                                                           \
    do {                                                                                                               \
        const int test_rc_ = (expr);                                                                                   \
        if (test_rc_ != COLIBRI_OK)                                                                                    \
            fail_msg("%s: %s: %s", #expr, clb_status_name(test_rc_), (err)->msg);                                      \
    } while (0)
/* The status is `code` and the message contains `part`. */
#define assert_fails(expr, err, status, part)                                                                          \
    do {                                                                                                               \
        const int test_rc_ = (expr);                                                                                   \
        if (test_rc_ != (status))                                                                                      \
            fail_msg("%s: %s instead of %s (%s)", #expr, clb_status_name(test_rc_), clb_status_name(status),           \
                     test_rc_ ? (err)->msg : "no message");                                                            \
        if (!test_contains((err)->msg, (part)))                                                                        \
            fail_msg("%s: message \"%s\" lacks \"%s\"", #expr, (err)->msg, (part));                                    \
    } while (0)

bool test_contains(const char *text, const char *part);

/* A new empty folder (mode 0700) below $TMPDIR or /tmp, absolute. */
typedef struct test_dir {
    char path[PATH_MAX];
} test_dir;

void test_dir_create(test_dir *dir);
/* Removes it with everything inside; symbolic links are not followed. */
void test_dir_remove(const test_dir *dir);
/* "<dir>/<name>" into out; returns out. */
char *test_dir_file(const test_dir *dir, const char *name, char out[PATH_MAX]);

void test_write_file(const char *path, const void *data, size_t n);
void test_write_text(const char *path, const char *text);
/* The whole file, followed by one NUL that *n does not count; free() it. n may be NULL. */
char *test_read_file(const char *path, size_t *n);

/* Repeatable random numbers (splitmix64): seed it with any number, `test_rand rng = {42};`. */
typedef struct test_rand {
    uint64_t state;
} test_rand;

uint64_t test_rand_u64(test_rand *rng);
uint32_t test_rand_below(test_rand *rng, uint32_t n);      /* 0 .. n-1; n > 0 */
double test_rand_f64(test_rand *rng);                      /* [0, 1) */
float test_rand_f32(test_rand *rng, float min, float max); /* [min, max) */
void test_rand_bytes(test_rand *rng, void *out, size_t n);

/* Says why and ends the program with 77, which CTest shows as skipped. Call it before the first test runs. */
_Noreturn void test_skip(const char *fmt, ...) CLB_PRINTF(1, 2);

#endif
