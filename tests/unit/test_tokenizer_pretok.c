/* Pre-tokenizers: recorded splits of every family, invalid bytes, long runs. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "support.h"
#include "text/pretok.h"

static clb_pretok *open_pre(const char *pre)
{
    clb_error err;
    clb_pretok *p;
    const clb_pretok_name *name = clb_pretok_find(pre);
    if (!name)
        fail_msg("no pre-tokenizer \"%s\"", pre);
    assert_ok(clb_pretok_compile(name->family, &p, &err), &err);
    return p;
}

static void check_case(const clb_pretok *p, const char *family, const json_t *item)
{
    clb_error err;
    clb_pieces got = {0};
    const json_t *text = json_object_get(item, "text"), *pieces = json_object_get(item, "pieces");
    assert_ok(clb_pretok_split(p, json_string_value(text), json_string_length(text), &got, &err), &err);
    size_t begin = 0;
    for (size_t i = 0; i < json_array_size(pieces); i++) {
        const json_t *want = json_array_get(pieces, i);
        const size_t end = i < got.n ? got.end[i] : begin;
        if (end - begin != json_string_length(want) ||
            memcmp(json_string_value(text) + begin, json_string_value(want), end - begin) != 0)
            fail_msg("%s: \"%s\": piece %zu is \"%.*s\", not \"%s\"", family, json_string_value(text), i,
                     (int)(end - begin), json_string_value(text) + begin, json_string_value(want));
        begin = end;
    }
    if (got.n != json_array_size(pieces))
        fail_msg("%s: \"%s\": %zu pieces, not %zu", family, json_string_value(text), got.n, json_array_size(pieces));
    clb_pieces_free(&got);
}

static void recorded_splits(void **state)
{
    (void)state;
    json_error_t jerr;
    json_t *all = json_load_file(TEST_DATA("pretok.json"), 0, &jerr), *cases;
    assert_non_null(all);
    const char *family;
    size_t i, n = 0;
    json_object_foreach(all, family, cases)
    {
        const bool dash = strcmp(family, "tiny-aya") == 0; /* the one family not named like one of its values */
        clb_pretok *p = open_pre(dash ? "tiny_aya" : family);
        const json_t *item;
        json_array_foreach(cases, i, item) check_case(p, family, item);
        n += json_array_size(cases);
        clb_pretok_free(p);
    }
    assert_true(n >= 1000);
    json_decref(all);
}

/* "a|b|c" for the pieces of a text */
static void expect(const char *pre, const char *text, size_t n, const char *want)
{
    clb_error err;
    clb_pieces got = {0};
    clb_pretok *p = open_pre(pre);
    assert_ok(clb_pretok_split(p, text, n, &got, &err), &err);
    char joined[256];
    size_t at = 0, begin = 0;
    for (size_t i = 0; i < got.n; i++) {
        for (; begin < got.end[i]; begin++)
            joined[at++] = text[begin];
        joined[at++] = '|';
    }
    joined[at ? at - 1 : 0] = '\0';
    assert_string_equal(joined, want);
    clb_pieces_free(&got);
    clb_pretok_free(p);
}

static void families_without_recordings(void **state)
{
    (void)state;
    expect("superbpe", "a1234567 12", 11, "a|1|234|567| |12");
    expect("tiny_aya", "1234 12ab 9876543", 17, "1|234| |12|ab| |9|876|543");
    expect("gemma4", "a b\n\nc", 6, "a b|\n\n|c");
    /* the long s is no s, a Mongolian vowel separator no space */
    expect("qwen2", "it'\xC5\xBF x", 7, "it|'\xC5\xBF| x");
    expect("gpt-2",
           "a\xE1\xA0\x8E"
           "b",
           5, "a|\xE1\xA0\x8E|b");
}

static void invalid_bytes_are_symbols(void **state)
{
    (void)state;
    expect("qwen2",
           "ab\xFF\xFE"
           "cd",
           6, "ab|\xFF\xFE|cd");
    expect("qwen2",
           "ab\n\xFF"
           "cd",
           6,
           "ab|\n|\xFF"
           "cd"); /* one symbol sticks to the word after it */
    expect("gpt-2", "ab \x80\x80 cd", 8, "ab| \x80\x80| cd");
    expect("gpt-2", "\xED\xA0\x80", 3, "\xED\xA0\x80"); /* a surrogate: three stray bytes */
    expect("gpt-2", "x\xE4\xB8", 3, "x|\xE4\xB8");      /* cut off */
}

/* Pieces always cover the text, whatever its bytes. */
static void pieces_cover_random_bytes(void **state)
{
    (void)state;
    clb_error err;
    test_rand rng = {7};
    for (const clb_pretok_name *name = clb_pretok_names; name->name; name++) {
        clb_pretok *p = open_pre(name->name);
        clb_pieces got = {0};
        for (int round = 0; round < 40; round++) {
            char text[200];
            const size_t n = 1 + test_rand_below(&rng, sizeof text);
            test_rand_bytes(&rng, text, n);
            for (size_t i = 0; i < n; i++)
                if (round % 2)
                    text[i] = " \n\r'stA1\xC3\x89\xCC\x81"[test_rand_below(&rng, 13)];
            assert_ok(clb_pretok_split(p, text, n, &got, &err), &err);
            assert_int_equal(got.end[got.n - 1], n);
            for (size_t i = 1; i < got.n; i++)
                assert_true(got.end[i] > got.end[i - 1]);
        }
        clb_pieces_free(&got);
        clb_pretok_free(p);
    }
}

/* Work must grow with the text, not with its square: each of these hangs a matcher that backtracks. */
static void long_runs_stay_linear(void **state)
{
    (void)state;
    static const char *const unit[] = {"a",        " ",    "1",  "\n",  "A",  "!",  "\xE4\xB8\xAD",
                                       "\xCC\x81", "\xFF", "a ", " \n", "'s", "12 "};
    clb_error err;
    const size_t n = (size_t)1 << 18;
    char *text = malloc(n);
    assert_non_null(text);
    clb_pieces got = {0};
    for (const clb_pretok_name *name = clb_pretok_names; name->name; name++) {
        if (name != clb_pretok_names && name->family == name[-1].family)
            continue;
        clb_pretok *p = open_pre(name->name);
        for (size_t u = 0; u < sizeof unit / sizeof *unit; u++) {
            for (size_t i = 0, len = strlen(unit[u]); i < n; i++)
                text[i] = unit[u][i % len];
            const uint64_t start = clb_now_ns();
            assert_ok(clb_pretok_split(p, text, n, &got, &err), &err);
            assert_int_equal(got.end[got.n - 1], n);
            if (clb_now_ns() - start > UINT64_C(5000000000))
                fail_msg("%s: 256 KiB of \"%s\" took more than 5 s", name->name, unit[u]);
        }
        clb_pretok_free(p);
    }
    clb_pieces_free(&got);
    free(text);
}

static void unknown_name(void **state)
{
    (void)state;
    assert_null(clb_pretok_find("gpt-3"));
    assert_null(clb_pretok_find(""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_splits),           cmocka_unit_test(families_without_recordings),
        cmocka_unit_test(invalid_bytes_are_symbols), cmocka_unit_test(pieces_cover_random_bytes),
        cmocka_unit_test(long_runs_stay_linear),     cmocka_unit_test(unknown_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
