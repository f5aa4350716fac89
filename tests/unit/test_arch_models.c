/* Every architecture against transformers: tiny random models with recorded float32 logits (tests/data/arch). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/engine.h"

/* With f32 weights and an f32 KV cache only rounding differs. The recorded programs agree with each other to 1.4e-5. */
#define TOLERANCE 1e-4

static void compare(const char *name, const char *const *settings, uint32_t chunk, double tolerance)
{
    char path[512];
    clb_error err;
    test_engine e;
    test_ref ref;
    snprintf(path, sizeof path, "%s/arch/%s.gguf", COLIBRI_TEST_DATA, name);
    assert_ok(test_engine_open(&e, path, settings, NULL, &err), &err);
    snprintf(path, sizeof path, "%s/arch/%s.ref", COLIBRI_TEST_DATA, name);
    test_ref_open(&ref, path);
    double worst = 0.0;
    for (uint32_t p = 0; p < ref.n_prompts; p++) {
        const struct test_ref_prompt *prompt = &ref.prompt[p];
        assert_int_equal(prompt->n_vocab, e.engine->model->hp.n_vocab);
        float *logits = test_engine_logits(e.engine, prompt->ids, prompt->n, chunk);
        const double d = test_max_abs_diff(logits, prompt->logits, (size_t)prompt->n * prompt->n_vocab);
        worst = d > worst ? d : worst;
        free(logits);
    }
    print_message("%-17s chunk %u: max |difference| %.2e\n", name, chunk, worst);
    if (!(worst <= tolerance))
        fail_msg("%s: logits differ from the recorded ones by %g (allowed %g)", name, worst, tolerance);
    test_ref_close(&ref);
    test_engine_close(&e);
}

static const char *const f32_kv[] = {"kv-type=f32", "threads=2", NULL};
static const char *const full_batch[] = {"kv-type=f32", "threads=2", "batch=7", NULL}; /* every row of every buffer */
static const char *const f16_kv[] = {"threads=1", NULL};
static const char *const scalar[] = {"kv-type=f32", "threads=1", "mask=all", NULL};

static void one_arch(void **state)
{
    const char *name = *state;
    compare(name, f32_kv, 0, TOLERANCE);
    compare(name, full_batch, 7, TOLERANCE);
    compare(name, scalar, 0, TOLERANCE);
    compare(name, f16_kv, 1, 3e-2);
}

#define ARCH(name) {"arch " name, one_arch, NULL, NULL, (void *)(uintptr_t)(name)}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ARCH("llama"),    ARCH("llama3"), ARCH("mixtral"), ARCH("qwen2"),      ARCH("qwen3"),
        ARCH("qwen3moe"), ARCH("olmoe"),  ARCH("granite"), ARCH("granitemoe"), ARCH("granitemoe_shared"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
