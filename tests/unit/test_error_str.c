/* Errors, byte buffers, nearest names, sizes for people. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/str.h"
#include "support.h"

/* ---- errors ---- */

static int fails_at(int where, clb_error *err)
{
    if (where == 1)
        return clb_fail(err, COLIBRI_E_FORMAT, "bad %s at %d", "magic", 7);
    if (where == 2)
        return clb_fail_errno(err, COLIBRI_E_IO, ENOENT, "cannot open %s", "x.gguf");
    if (where == 3)
        return CLB_NOMEM(err, "a table");
    return COLIBRI_OK;
}

static int with_try(int where, int *passed, clb_error *err)
{
    *passed = 0;
    CLB_TRY(fails_at(where, err));
    *passed = 1;
    return COLIBRI_OK;
}

static int with_go(int where, int *released, clb_error *err)
{
    int rc = COLIBRI_OK;
    *released = 0;
    CLB_GO(fails_at(where, err));
    *released = 10;
done:
    *released += 1;
    return rc;
}

static void value_equals_code(void **state)
{
    (void)state;
    clb_error err;
    int n;
    assert_int_equal(fails_at(1, &err), COLIBRI_E_FORMAT);
    assert_int_equal(err.code, COLIBRI_E_FORMAT);
    assert_string_equal(err.msg, "bad magic at 7");
    assert_int_equal(fails_at(2, &err), COLIBRI_E_IO);
    assert_int_equal(err.code, COLIBRI_E_IO);
    assert_string_equal(err.msg, "cannot open x.gguf: No such file or directory");
    assert_int_equal(fails_at(3, &err), COLIBRI_E_NOMEM);
    assert_string_equal(err.msg, "out of memory: a table");
    for (int where = 0; where <= 3; where++) { /* nobody listens: the same values */
        const int want = fails_at(where, &err);
        assert_int_equal(fails_at(where, NULL), want);
        assert_int_equal(with_try(where, &n, NULL), want);
        assert_int_equal(n, want == COLIBRI_OK);
        assert_int_equal(with_go(where, &n, &err), want);
        assert_int_equal(n, want ? 1 : 11);
    }
}

static void long_messages_are_cut(void **state)
{
    (void)state;
    clb_error err;
    char big[3000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    assert_int_equal(clb_fail(&err, COLIBRI_E_USAGE, "%s", big), COLIBRI_E_USAGE);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
    assert_int_equal(clb_fail_errno(&err, COLIBRI_E_IO, EACCES, "%s", big), COLIBRI_E_IO);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
}

/* Names from files and requests may hold anything. */
static void messages_are_one_printable_line(void **state)
{
    (void)state;
    clb_error err;
    clb_fail(&err, COLIBRI_E_FORMAT, "tensor %s of %s", "a\nb\x1b[2J\xff\xe2\x80\xae", "C:\\x \xc3\xa4");
    assert_string_equal(err.msg, "tensor a\\nb\\x1b[2J\\xff\\u202e of C:\\x \xc3\xa4");
    clb_context(&err, "%s", "line 1\r\nline 2");
    assert_string_equal(err.msg, "line 1\\r\\nline 2: tensor a\\nb\\x1b[2J\\xff\\u202e of C:\\x \xc3\xa4");
    clb_fail_errno(&err, COLIBRI_E_IO, ENOENT, "%.*s", 3, "\n\xc3\xa4"); /* what was cut inside a character */
    assert_string_equal(err.msg, "\\n\xc3\xa4: No such file or directory");
    clb_fail_errno(&err, COLIBRI_E_IO, ENOENT, "%.*s", 2, "\n\xc3\xa4");
    assert_string_equal(err.msg, "\\n\\xc3: No such file or directory");
    char big[1000];
    memset(big, '\n', sizeof big - 1); /* twice as long when it is stored */
    big[sizeof big - 1] = '\0';
    clb_fail(&err, COLIBRI_E_IO, "x%s", big);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
    clb_fail(&err, COLIBRI_E_IO, "%s", big);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 2); /* not half of an escape */
}

static void context_goes_in_front(void **state)
{
    (void)state;
    clb_error err;
    clb_fail(&err, COLIBRI_E_IO, "short read");
    assert_int_equal(clb_context(&err, "expert %u of layer %u", 3u, 1u), COLIBRI_E_IO);
    assert_string_equal(err.msg, "expert 3 of layer 1: short read");
    assert_int_equal(clb_context(&err, "%s", "model.gguf"), COLIBRI_E_IO);
    assert_string_equal(err.msg, "model.gguf: expert 3 of layer 1: short read");
    assert_int_not_equal(clb_context(NULL, "nobody listens"), COLIBRI_OK);
}

/* Every length of context around the size of the message: cut at the end, never past it. */
static void context_is_cut(void **state)
{
    (void)state;
    struct {
        clb_error err;
        unsigned char guard[64];
    } s;
    char head[1200], want[2400];
    for (size_t n = 900; n < sizeof head; n++)
        for (size_t old = 0; old < 1024; old += 341) {
            memset(s.guard, 0xa5, sizeof s.guard);
            memset(s.err.msg, 'm', sizeof s.err.msg);
            s.err.msg[old] = '\0';
            s.err.code = COLIBRI_E_LIMIT;
            memset(head, 'h', n);
            head[n] = '\0';
            assert_int_equal(clb_context(&s.err, "%s", head), COLIBRI_E_LIMIT);
            assert_non_null(memchr(s.err.msg, 0, sizeof s.err.msg));
            const size_t kept = n < sizeof s.err.msg - 9 ? n : sizeof s.err.msg - 9;
            size_t len = kept;
            memset(want, 'h', kept);
            memcpy(want + len, ": ", 2);
            len += 2;
            memset(want + len, 'm', old);
            len += old;
            want[len < sizeof s.err.msg ? len : sizeof s.err.msg - 1] = '\0';
            assert_string_equal(s.err.msg, want);
            for (size_t i = 0; i < sizeof s.guard; i++)
                assert_int_equal(s.guard[i], 0xa5);
        }
}

static void statuses_have_names(void **state)
{
    (void)state;
    assert_int_equal(COLIBRI_OK, 0);
    assert_string_equal(clb_status_name(COLIBRI_E_NOT_FOUND), "NOT_FOUND");
    assert_string_equal(clb_status_text(COLIBRI_OK), "success");
    assert_string_equal(clb_status_name(-1), "UNKNOWN");
    assert_string_equal(clb_status_name(99), "UNKNOWN");
    assert_string_equal(clb_status_text(99), "unknown status");
    assert_int_equal(clb_status_exit_code(COLIBRI_OK), 0);
    assert_int_equal(clb_status_exit_code(COLIBRI_E_USAGE), 2);
    assert_int_equal(clb_status_exit_code(COLIBRI_E_CANCELLED), 130);
    assert_int_equal(clb_status_exit_code(99), 70);
    for (int a = 0; a <= COLIBRI_E_BUSY; a++)
        for (int b = 0; b < a; b++) { /* exit codes tell failures apart */
            assert_string_not_equal(clb_status_name(a), clb_status_name(b));
            assert_int_not_equal(clb_status_exit_code(a), clb_status_exit_code(b));
        }
}

/* ---- buffers ---- */

static void buffers_grow(void **state)
{
    (void)state;
    clb_error err;
    clb_buf buf = {0};
    test_rand rng = {5};
    char piece[300], *mirror = calloc(1, 200000);
    size_t n = 0;
    assert_non_null(mirror);
    assert_ok(clb_buf_append(&buf, "", 0, &err), &err);
    assert_non_null(buf.data);
    assert_int_equal(buf.data[0], '\0');
    assert_ok(clb_buf_append(&buf, NULL, 0, &err), &err);
    for (int i = 0; i < 1000; i++) {
        const size_t len = test_rand_below(&rng, sizeof piece);
        test_rand_bytes(&rng, piece, len);
        if (i % 3 == 0) {
            assert_ok(clb_buf_printf(&buf, &err, "%d:%.*s", i, (int)strnlen(piece, len), piece), &err);
            n += (size_t)sprintf(mirror + n, "%d:%.*s", i, (int)strnlen(piece, len), piece);
        } else {
            assert_ok(clb_buf_append(&buf, piece, len, &err), &err);
            memcpy(mirror + n, piece, len);
            n += len;
        }
        assert_int_equal(buf.n, n);
        assert_true(buf.cap > buf.n);
        assert_int_equal(buf.data[buf.n], '\0');
        assert_true(n < 199000);
    }
    assert_memory_equal(buf.data, mirror, n);
    /* a size that cannot be: refused, nothing changed */
    assert_int_equal(clb_buf_append(&buf, piece, SIZE_MAX - 4, &err), COLIBRI_E_NOMEM);
    assert_int_equal(buf.n, n);
    clb_buf_free(&buf);
    assert_null(buf.data);
    assert_int_equal(buf.cap, 0);
    clb_buf_free(&buf);
    free(mirror);
}

/* ---- nearest names ---- */

static void edit_distances(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b;
        size_t want;
    } cases[] = {
        {"", "", 0},
        {"", "abc", 3},
        {"abc", "", 3},
        {"abc", "abc", 0},
        {"abc", "ABC", 0},
        {"kitten", "sitting", 3},
        {"lru", "lfu", 1},
        {"ab", "ba", 1},
        {"abcd", "abdc", 1},
        {"abcd", "acbd", 1},
        {"abcd", "badc", 2},
        {"ca", "abc", 3},
        {"threads", "thread", 1},
        {"max-memory", "maxmemory", 1},
        {"flaw", "lawn", 2},
        {"a", "b", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(clb_edit_distance(cases[i].a, cases[i].b), cases[i].want);
        assert_int_equal(clb_edit_distance(cases[i].b, cases[i].a), cases[i].want);
    }
    char a[200], b[200]; /* capped, not overrun */
    memset(a, 'a', sizeof a - 1);
    memset(b, 'b', sizeof b - 1);
    a[sizeof a - 1] = b[sizeof b - 1] = '\0';
    assert_int_equal(clb_edit_distance(a, b), 64);
    assert_int_equal(clb_edit_distance(a, a), 0);
    assert_int_equal(clb_edit_distance(a, ""), 64);
}

static void nearest_names(void **state)
{
    (void)state;
    static const char *const names[] = {"model", "max-memory", "threads", "lru", "lfu"};
    const size_t n = sizeof names / sizeof *names;
    assert_int_equal(clb_nearest("modle", names, n), 0);
    assert_int_equal(clb_nearest("MAX_MEMORY", names, n), 1);
    assert_int_equal(clb_nearest("thraeds", names, n), 2);
    assert_int_equal(clb_nearest("lxu", names, n), 3); /* equally near: the first */
    assert_int_equal(clb_nearest("wholly-different", names, n), -1);
    assert_int_equal(clb_nearest("anything", names, 0), -1);
}

static void sizes_for_people(void **state)
{
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *want;
    } cases[] = {
        {0, "0 B"},
        {1, "1 B"},
        {1023, "1023 B"},
        {1024, "1.0 KiB"},
        {1536, "1.5 KiB"},
        {1048575, "1.0 MiB"}, /* not "1024.0 KiB" */
        {1048576, "1.0 MiB"},
        {(UINT64_C(1) << 30) - 1, "1.0 GiB"},
        {UINT64_C(3) << 29, "1.5 GiB"},
        {UINT64_C(1) << 40, "1.0 TiB"},
        {UINT64_C(1) << 50, "1.0 PiB"},
        {UINT64_MAX, "16384.0 PiB"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[24];
        assert_ptr_equal(clb_human_bytes(cases[i].bytes, out), out);
        assert_string_equal(out, cases[i].want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(value_equals_code),
        cmocka_unit_test(long_messages_are_cut),
        cmocka_unit_test(messages_are_one_printable_line),
        cmocka_unit_test(context_goes_in_front),
        cmocka_unit_test(context_is_cut),
        cmocka_unit_test(statuses_have_names),
        cmocka_unit_test(buffers_grow),
        cmocka_unit_test(edit_distances),
        cmocka_unit_test(nearest_names),
        cmocka_unit_test(sizes_for_people),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
