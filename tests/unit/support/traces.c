#include "support/traces.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Different experts, often those of the row before. */
static void choose(test_rand *rng, const test_trace_shape *s, uint32_t *last, uint32_t *ids)
{
    for (uint32_t k = 0; k < s->top_k; k++) {
        bool again = true;
        while (again) {
            const uint32_t e = test_rand_below(rng, s->n_experts);
            ids[k] = test_rand_below(rng, 3) ? last[k] : test_rand_below(rng, 2) ? e / 2 : e;
            again = false;
            for (uint32_t j = 0; j < k; j++)
                again |= ids[j] == ids[k];
            if (again) {
                ids[k] = e;
                again = false;
                for (uint32_t j = 0; j < k; j++)
                    again |= ids[j] == e;
            }
        }
    }
    memcpy(last, ids, s->top_k * sizeof *last);
}

static void put(clb_trace_writer *w, const test_trace_shape *s, test_rand *rng, uint32_t *last, uint32_t rows,
                uint32_t phase, uint64_t start)
{
    clb_error err;
    const size_t choices = (size_t)rows * s->n_layers * s->top_k,
                 guesses = (size_t)rows * s->n_layers * s->ahead_layers * s->ahead_top;
    uint32_t *const ids = malloc(choices * sizeof *ids), *const tokens = malloc(2 * rows * sizeof *tokens);
    float *const gates = malloc(choices * sizeof *gates);
    clb_trace_guess *const ahead = malloc((guesses + 1) * sizeof *ahead);
    assert_true(ids && tokens && gates && ahead);
    for (uint32_t l = 0; l < s->n_layers; l++)
        for (uint32_t r = 0; r < rows; r++)
            choose(rng, s, last + l * s->top_k, ids + ((size_t)l * rows + r) * s->top_k);
    for (size_t i = 0; i < choices; i++)
        gates[i] = s->gates == CLB_GATES_F16 ? (float)test_rand_below(rng, 64) / 64 : test_rand_f32(rng, 0, 1);
    for (uint32_t r = 0; r < rows; r++) {
        tokens[r] = test_rand_below(rng, 5000);
        tokens[rows + r] = r < rows / 2 ? 0 : rows > 3;
    }
    for (size_t i = 0; i < guesses; i++)
        ahead[i] = i % 7 == 6
                       ? (clb_trace_guess){UINT32_MAX, 0}
                       : (clb_trace_guess){test_rand_below(rng, s->n_experts), (float)test_rand_below(rng, 32) / 4 - 4};
    const clb_trace_put pass = {.phase = phase,
                                .n_rows = rows,
                                .n_sequences = rows > 3 ? 2 : 1,
                                .tokens = tokens,
                                .sequences = tokens + rows,
                                .start_ns = start,
                                .took_ns = 17 + rows,
                                .ids = ids,
                                .gates = s->gates ? gates : NULL,
                                .ahead = s->ahead_layers ? ahead : NULL};
    assert_ok(clb_trace_pass_put(w, &pass, &err), &err);
    free(ids);
    free(tokens);
    free(gates);
    free(ahead);
}

clb_trace *test_trace_make(const test_trace_shape *s, const char *path)
{
    clb_error err;
    test_rand rng = {s->seed + 1};
    clb_trace_writer *w;
    clb_trace *t;
    uint64_t *const bytes = calloc(s->n_layers, sizeof *bytes);
    uint32_t *const last = calloc((size_t)s->n_layers * s->top_k, sizeof *last);
    assert_true(bytes && last);
    for (uint32_t l = 0; l < s->n_layers; l++)
        bytes[l] = s->expert_bytes;
    for (uint32_t i = 0; i < s->n_layers * s->top_k; i++)
        last[i] = i % s->n_experts;
    clb_trace_info info = {.n_layers = s->n_layers,
                           .n_experts = s->n_experts,
                           .top_k = s->top_k,
                           .expert_bytes = bytes,
                           .gates = s->gates,
                           .ahead_layers = s->ahead_layers,
                           .ahead_top = s->ahead_top};
    snprintf(info.model, sizeof info.model, "a \"model\", made up");
    snprintf(info.arch, sizeof info.arch, "none");
    assert_ok(clb_trace_create(path, true, &info, &w, &err), &err);
    uint64_t start = 5;
    for (uint32_t u = 0; u < s->units; u++) {
        char label[64];
        snprintf(label, sizeof label, "unit, \"%u\"", u);
        assert_ok(clb_trace_unit_begin(w, label, &err), &err);
        if (s->prompt_rows)
            put(w, s, &rng, last, s->prompt_rows, COLIBRI_PHASE_PREFILL, start += 100);
        for (uint32_t i = 0; i < s->decode; i++)
            put(w, s, &rng, last, 1, COLIBRI_PHASE_DECODE, start += 100);
    }
    assert_ok(clb_trace_finish(w, &(clb_trace_rates){1, 2, 3, 4, 5e9, 6}, &err), &err);
    assert_ok(clb_trace_open(path, &t, &err), &err);
    free(bytes);
    free(last);
    return t;
}

void test_trace_same(const clb_trace *a, const clb_trace *b, bool lossy)
{
    assert_int_equal(a->info.n_layers, b->info.n_layers);
    assert_int_equal(a->info.n_experts, b->info.n_experts);
    assert_int_equal(a->info.top_k, b->info.top_k);
    assert_int_equal(a->n_units, b->n_units);
    assert_int_equal(a->n_passes, b->n_passes);
    assert_int_equal(a->n_rows, b->n_rows);
    const size_t choices = (size_t)a->n_rows * a->info.n_layers * a->info.top_k;
    assert_memory_equal(a->ids, b->ids, choices * sizeof *a->ids);
    assert_int_equal(a->gates != NULL, b->gates != NULL);
    if (a->gates)
        assert_memory_equal(a->gates, b->gates, choices * sizeof *a->gates);
    assert_memory_equal(a->tokens, b->tokens, a->n_rows * sizeof *a->tokens);
    assert_memory_equal(a->sequences, b->sequences, a->n_rows * sizeof *a->sequences);
    for (uint64_t u = 0; u < a->n_units; u++) {
        assert_string_equal(a->units[u].label, b->units[u].label);
        assert_int_equal(a->units[u].n_passes, b->units[u].n_passes);
        assert_int_equal(a->units[u].first_row, b->units[u].first_row);
    }
    for (uint64_t p = 0; p < a->n_passes; p++) {
        assert_int_equal(a->passes[p].phase, b->passes[p].phase);
        assert_int_equal(a->passes[p].n_rows, b->passes[p].n_rows);
        assert_int_equal(a->passes[p].n_sequences, b->passes[p].n_sequences);
        if (!lossy) {
            assert_int_equal(a->passes[p].start_ns, b->passes[p].start_ns);
            assert_int_equal(a->passes[p].took_ns, b->passes[p].took_ns);
        }
    }
    if (lossy)
        return;
    assert_string_equal(a->info.model, b->info.model);
    assert_string_equal(a->info.arch, b->info.arch);
    assert_memory_equal(&a->rates, &b->rates, sizeof a->rates);
    assert_memory_equal(a->info.expert_bytes, b->info.expert_bytes, a->info.n_layers * sizeof *a->info.expert_bytes);
    assert_int_equal(a->info.ahead_layers, b->info.ahead_layers);
    if (a->ahead)
        assert_memory_equal(a->ahead, b->ahead,
                            a->n_rows * a->info.n_layers * a->info.ahead_layers * a->info.ahead_top * sizeof *a->ahead);
}
