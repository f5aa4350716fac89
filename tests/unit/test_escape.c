/* Text of files in messages and on terminals. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/escape.h"

static clb_str str(const char *s)
{
    return (clb_str){s, strlen(s)};
}

/* From an exactly sized copy, so that AddressSanitizer sees a look behind its end. */
static void assert_escaped(clb_str in, const char *expected)
{
    char out[256];
    char *copy = malloc(in.n + !in.n);
    memcpy(copy, in.p, in.n);
    assert_string_equal(clb_escape((clb_str){copy, in.n}, out, sizeof out), expected);
    free(copy);
}

static void keeps_text(void **state)
{
    (void)state;
    assert_escaped(str(""), "");
    assert_escaped(str("plain \"text\" ~"), "plain \"text\" ~");
    assert_escaped(str("\xc3\xa4\xe4\xbd\xa0\xf0\x9f\x90\xa6"), "\xc3\xa4\xe4\xbd\xa0\xf0\x9f\x90\xa6");
    assert_escaped(str("\xc2\xa0\xf4\x8f\xbf\xbf"), "\xc2\xa0\xf4\x8f\xbf\xbf"); /* U+00A0, U+10FFFF */
}

static void escapes_controls(void **state)
{
    (void)state;
    assert_escaped((clb_str){"\0\n\r\t\\\x1b\x7f", 7}, "\\x00\\n\\r\\t\\\\\\x1b\\x7f");
    assert_escaped(str("\xc2\x80\xc2\x9b\xc2\x9f"), "\\x80\\x9b\\x9f"); /* C1: U+009B starts terminal sequences */
    assert_escaped(str("\xe2\x80\xae\xe2\x80\xa8\xe2\x81\xa6\xef\xbb\xbf\xe2\x80\x8e"),
                   "\\u202e\\u2028\\u2066\\ufeff\\u200e");
}

static void escapes_what_is_not_utf8(void **state)
{
    (void)state;
    static const char *const bad[] = {"\x80",
                                      "\xbf",
                                      "\xc0\xaf",
                                      "\xc1\xbf",
                                      "\xe0\x9f\xbf",
                                      "\xed\xa0\x80",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xff",
                                      "\xc3",
                                      "\xe4\xbd",
                                      "\xf0\x9f\x90",
                                      "\xc3(",
                                      "\xe4\xbd(",
                                      "\xf0\x9f\x90("};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char expected[64] = "";
        for (const char *p = bad[i]; *p; p++)
            snprintf(expected + strlen(expected), sizeof expected - strlen(expected), *p == '(' ? "(" : "\\x%02x",
                     (unsigned char)*p);
        assert_escaped(str(bad[i]), expected);
        assert_false(clb_is_utf8(str(bad[i])));
    }
    assert_true(clb_is_utf8(str("\xc3\xa4 \x1b\xf0\x9f\x90\xa6")));
    assert_true(clb_is_utf8((clb_str){"\0", 1}));
}

/* What fits, and never a cut character or escape before the dots. */
static void cuts_at_whole_pieces(void **state)
{
    (void)state;
    static const char text[] = "ab\xc3\xa4\x1b\xe4\xbd\xa0z";
    static const char whole[] = "ab\xc3\xa4\\x1b\xe4\xbd\xa0z";
    for (size_t cap = 4; cap <= sizeof whole + 2; cap++) {
        char *out = malloc(cap); /* exactly: AddressSanitizer watches the end */
        clb_escape(str(text), out, cap);
        const size_t n = strlen(out);
        assert_true(n < cap);
        if (cap >= sizeof whole) {
            assert_string_equal(out, whole);
        } else {
            assert_true(n >= 3 && strcmp(out + n - 3, "...") == 0);
            assert_memory_equal(out, whole, n - 3);
            static const size_t ends[] = {0, 1, 2, 4, 8, 11};
            bool at_end = false;
            for (size_t i = 0; i < 6; i++)
                at_end |= n - 3 == ends[i];
            assert_true(at_end);
        }
        free(out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_text),
        cmocka_unit_test(escapes_controls),
        cmocka_unit_test(escapes_what_is_not_utf8),
        cmocka_unit_test(cuts_at_whole_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
