/* Real vocabularies that are too large for the repository:
 * - COLIBRI_TEST_VOCAB_DIR: llama.cpp's ggml-vocab-*.gguf with their .inp and .out beside them;
 * - COLIBRI_TEST_TOKENIZERS_DIR: NAME.gguf as written by tests/oracles/record_tokenizers.py, ids in tokenizers.json;
 * - COLIBRI_TEST_SMOLLM2: SmolLM2-135M-Instruct. */
#include <glob.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"
#include "text/vocab.h"

static clb_vocab *load(const char *path)
{
    clb_error err;
    clb_gguf *g;
    clb_vocab *v;
    assert_ok(clb_gguf_open(path, NULL, NULL, &g, &err), &err);
    assert_ok(clb_vocab_load(g, &v, &err), &err);
    clb_gguf_close(g);
    return v;
}

/* "12 34" against ids */
static void check_line(const clb_vocab *v, const char *path, const char *text, size_t n, const char *line)
{
    clb_error err;
    clb_tokens got = {0};
    assert_ok(clb_tokenize(v, text, n, 0, &got, &err), &err);
    size_t i = 0;
    for (char *end;; line = end, i++) {
        const unsigned long id = strtoul(line, &end, 10);
        if (end == line)
            break;
        if (i >= got.n || got.ids[i] != id)
            fail_msg("%s: \"%.*s\": token %zu is not %lu", path, (int)n, text, i, id);
    }
    assert_int_equal(got.n, i);
    clb_tokens_free(&got);
}

static void llama_cpp_vectors(void **state)
{
    (void)state;
    static const char separator[] = "\n__ggml_vocab_test__\n";
    const char *dir = getenv("COLIBRI_TEST_VOCAB_DIR");
    char pattern[PATH_MAX];
    glob_t found;
    size_t files = 0;
    if (!dir) {
        print_message("COLIBRI_TEST_VOCAB_DIR is unset\n");
        skip();
    }
    snprintf(pattern, sizeof pattern, "%s/*.gguf.inp", dir);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    for (size_t f = 0; f < found.gl_pathc; f++, files++) {
        char path[PATH_MAX], outputs[PATH_MAX + 8];
        snprintf(path, sizeof path, "%.*s", (int)(strlen(found.gl_pathv[f]) - 4), found.gl_pathv[f]);
        snprintf(outputs, sizeof outputs, "%s.out", path);
        clb_vocab *v = load(path);
        size_t n, cases = 0;
        char *in = test_read_file(found.gl_pathv[f], &n), *out = test_read_file(outputs, NULL), *line = out;
        for (const char *p = in, *end; (end = strstr(p, separator)); p = end + strlen(separator), cases++) {
            char *next = strchr(line, '\n');
            *next = '\0';
            check_line(v, path, p, (size_t)(end - p), line);
            line = next + 1;
        }
        print_message("%s: %zu cases\n", path, cases);
        assert_true(cases > 40);
        free(in);
        free(out);
        clb_vocab_free(v);
    }
    globfree(&found);
    assert_true(files > 0);
}

static void check_ids(const clb_vocab *v, const char *name, const json_t *item, const char *key, uint32_t flags)
{
    const json_t *text = json_object_get(item, "text"), *ids = json_object_get(item, key), *id;
    clb_error err;
    clb_tokens got = {0};
    size_t i;
    if (!ids)
        return;
    assert_ok(clb_tokenize(v, json_string_value(text), json_string_length(text), flags, &got, &err), &err);
    json_array_foreach(ids, i, id) if (i >= got.n || json_integer_value(id) != got.ids[i])
        fail_msg("%s: \"%s\": token %zu is %d, not %d", name, json_string_value(text), i,
                 i < got.n ? (int)got.ids[i] : -1, (int)json_integer_value(id));
    assert_int_equal(got.n, json_array_size(ids));
    clb_tokens_free(&got);
}

static void recorded_vocabularies(void **state)
{
    (void)state;
    const char *dir = getenv("COLIBRI_TEST_TOKENIZERS_DIR"), *smollm2 = getenv("COLIBRI_TEST_SMOLLM2"), *name;
    json_t *all = json_load_file(TEST_DATA("tokenizers.json"), 0, NULL), *of, *item;
    size_t i, n = 0;
    if (!dir && !smollm2) {
        print_message("COLIBRI_TEST_TOKENIZERS_DIR and COLIBRI_TEST_SMOLLM2 are unset\n");
        json_decref(all);
        skip();
    }
    assert_non_null(all);
    json_object_foreach(all, name, of)
    {
        char path[PATH_MAX] = "";
        if (strcmp(name, "smollm2") == 0 && smollm2)
            snprintf(path, sizeof path, "%s", smollm2);
        else if (dir && strcmp(name, "tiny-moe") != 0 && strcmp(name, "smollm2") != 0)
            snprintf(path, sizeof path, "%s/%s.gguf", dir, name);
        if (!path[0])
            continue;
        clb_vocab *v = load(path);
        assert_int_equal(clb_vocab_size(v), json_integer_value(json_object_get(of, "n_vocab")));
        json_array_foreach(json_object_get(of, "cases"), i, item)
        {
            check_ids(v, name, item, "ids", CLB_TOKENIZE_SPECIAL);
            /* llama.cpp lets the text of a user forge gpt-oss's channel marks; Colibri does not */
            if (strcmp(name, "gpt-oss") != 0)
                check_ids(v, name, item, "unparsed", 0);
        }
        print_message("%s: %zu cases\n", name, i);
        clb_vocab_free(v);
        n++;
    }
    assert_true(n > 0);
    json_decref(all);
}

int main(void)
{
    if (!getenv("COLIBRI_TEST_VOCAB_DIR") && !getenv("COLIBRI_TEST_TOKENIZERS_DIR") && !getenv("COLIBRI_TEST_SMOLLM2"))
        test_skip("COLIBRI_TEST_VOCAB_DIR, COLIBRI_TEST_TOKENIZERS_DIR and COLIBRI_TEST_SMOLLM2 are unset");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_cpp_vectors),
        cmocka_unit_test(recorded_vocabularies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
