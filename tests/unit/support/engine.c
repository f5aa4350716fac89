#include "support/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int test_engine_open(test_engine *e, const char *model, const char *const *settings, const test_engine_hooks *hooks,
                     clb_error *err)
{
    *e = (test_engine){0};
    CLB_TRY(clb_config_create(&e->config, err));
    char assignment[4200];
    snprintf(assignment, sizeof assignment, "model.model=%s", model);
    CLB_TRY(clb_config_set(e->config, assignment, "test", err));
    CLB_TRY(clb_config_set(e->config, "kv-share=no", "test", err));
    for (; settings && *settings; settings++)
        CLB_TRY(clb_config_set(e->config, *settings, "test", err));
    clb_engine_options options = {.config = e->config, .builtin_plugin_dir = COLIBRI_TEST_PLUGIN_DIR, .n_sequences = 1};
    if (hooks) {
        options.on_route = hooks->on_route;
        options.on_route_ctx = hooks->ctx;
        options.adjust_route = hooks->adjust_route;
        options.adjust_route_ctx = hooks->ctx;
        options.interruptible = hooks->interruptible;
        options.cancelled = hooks->cancelled;
        options.cancelled_ctx = hooks->ctx;
        if (hooks->n_sequences)
            options.n_sequences = hooks->n_sequences;
        if (hooks->plugin_dir)
            options.builtin_plugin_dir = hooks->plugin_dir;
    }
    return clb_engine_open(&options, &e->engine, err);
}

void test_engine_close(test_engine *e)
{
    clb_engine_close(e->engine);
    clb_config_destroy(e->config);
    *e = (test_engine){0};
}

float *test_engine_logits(clb_engine *engine, const uint32_t *ids, uint32_t n, uint32_t chunk)
{
    clb_error err;
    clb_kv_seq *kv;
    const size_t n_vocab = engine->model->hp.n_vocab;
    float *logits = malloc(n * n_vocab * sizeof *logits);
    assert_non_null(logits);
    assert_ok(clb_engine_new_sequence(engine, &kv, &err), &err);
    for (uint32_t at = 0; at < n;) {
        const uint32_t step = chunk && chunk < n - at ? chunk : n - at;
        const clb_span span = {.kv = kv,
                               .tokens = ids + at,
                               .n = step,
                               .n_logits = step,
                               .phase = step == 1 ? COLIBRI_PHASE_DECODE : COLIBRI_PHASE_PREFILL};
        assert_ok(clb_forward_run(engine->forward, &span, 1, logits + at * n_vocab, &err), &err);
        at += step;
    }
    clb_kv_seq_destroy(kv);
    return logits;
}

static uint32_t read_u32(const char **at)
{
    uint32_t v;
    memcpy(&v, *at, 4);
    *at += 4;
    return v;
}

void test_ref_open(test_ref *ref, const char *path)
{
    size_t size;
    ref->file = test_read_file(path, &size);
    const char *at = ref->file;
    assert_true(size > 12 && memcmp(at, "CLBREF1", 8) == 0);
    at += 8;
    ref->n_prompts = read_u32(&at);
    assert_in_range(ref->n_prompts, 1, 8);
    for (uint32_t i = 0; i < ref->n_prompts; i++) {
        struct test_ref_prompt *p = &ref->prompt[i];
        p->n = read_u32(&at);
        p->n_vocab = read_u32(&at);
        p->ids = (const uint32_t *)(const void *)at;
        at += 4 * (size_t)p->n;
        p->logits = (const float *)(const void *)at;
        at += 4 * (size_t)p->n * p->n_vocab;
        assert_true(at <= ref->file + size);
    }
}

void test_ref_close(test_ref *ref)
{
    free(ref->file);
    ref->file = NULL;
}

double test_max_abs_diff(const float *a, const float *b, size_t n)
{
    double worst = 0.0;
    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - (double)b[i]);
        if (!(d == d))
            return INFINITY;
        worst = d > worst ? d : worst;
    }
    return worst;
}

uint32_t test_argmax(const float *x, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return (uint32_t)best;
}
