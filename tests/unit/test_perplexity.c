/* slow: perplexity of the embedded model on its held-out texts, against llama.cpp's and PyTorch's. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/perplexity.h"
#include "support/engine.h"

#define N_CTX  512
#define CHUNKS 16

static const char *const settings[] = {"ctx=512", "batch=512", NULL};

static void check_topics(const char *model, const char *column, double tolerance)
{
    clb_error err;
    test_engine e;
    json_error_t json_err;
    json_t *data = json_load_file(TEST_DATA("tiny-moe/perplexity.json"), 0, &json_err);
    assert_non_null(data);
    assert_ok(test_engine_open(&e, model, settings, NULL, &err), &err);
    const char *topic;
    json_t *entry;
    size_t n_topics = 0;
    json_object_foreach(json_object_get(data, "topics"), topic, entry)
    {
        char path[512];
        size_t n;
        clb_tokens ids = {0};
        clb_perplexity p;
        snprintf(path, sizeof path, "%s/tiny-moe/%s", COLIBRI_TEST_DATA,
                 json_string_value(json_object_get(entry, "file")));
        char *text = test_read_file(path, &n);
        assert_ok(clb_tokenize(e.engine->vocab, text, n, CLB_TOKENIZE_SPECIAL, &ids, &err), &err);
        const json_t *first = json_object_get(entry, "first_ids");
        for (size_t i = 0; i < json_array_size(first); i++)
            assert_int_equal(ids.ids[i], json_integer_value(json_array_get(first, i)));
        assert_ok(clb_perplexity_run(e.engine, ids.ids, ids.n, N_CTX, CHUNKS, NULL, NULL, &p, &err), &err);
        const double want = json_real_value(json_object_get(json_object_get(entry, "perplexity"), column));
        const double got = clb_perplexity_value(&p), off = got / want - 1.0;
        print_message("%-7s %8.4f +/- %.4f, %s %8.4f: %+.3f %%\n", topic, got, clb_perplexity_stderr(&p), column, want,
                      100 * off);
        assert_true(want > 1.0);
        assert_int_equal(p.n_scored, CHUNKS * (N_CTX / 2 - 1));
        if (!(fabs(off) <= tolerance))
            fail_msg("%s: perplexity %g is more than %g %% off %g", topic, got, 100 * tolerance, want);
        clb_tokens_free(&ids);
        free(text);
        n_topics++;
    }
    assert_int_equal(n_topics, 8);
    test_engine_close(&e);
    json_decref(data);
}

static void q4_k_m_near_llama_cpp(void **state)
{
    (void)state;
    check_topics(TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf"), "llama_cpp_q4_k_m", 0.01);
}

static void f16_near_pytorch(void **state)
{
    (void)state;
    const char *path = getenv("COLIBRI_TEST_TINY_MOE_F16");
    if (!path || !*path) {
        print_message("SKIPPED: COLIBRI_TEST_TINY_MOE_F16 is not set to the path of tiny-moe-f16.gguf\n");
        skip();
    }
    check_topics(path, "pytorch_f16", 0.005);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(q4_k_m_near_llama_cpp),
        cmocka_unit_test(f16_near_pytorch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
