/* Predictions: hit rates against simulations, the file of rates, and arithmetic that follows its inputs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plan/predict.h"
#include "support/rig.h"
#include "support/synth.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOW true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SLOW true
#endif
#endif
#ifndef SLOW
#define SLOW false /* sanitizers make the scalar reference too slow to be measured in time */
#endif

#define MIB      (UINT64_C(1) << 20)
#define TINY_MOE TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf")

/* ---- hit rates ------------------------------------------------------------------------------------------- */

/* LRU over `held` of n items, top_k different ones in each visit, chances by weight: share that is there. */
static double simulate(uint32_t n, uint32_t top_k, uint32_t held, double exponent)
{
    double weight[128];
    uint64_t last[128] = {0}, clock = 0, hits = 0, uses = 0;
    bool there[128] = {false};
    uint32_t n_there = 0;
    test_rand rng = {7};
    double all = 0;
    uint32_t order[128];
    for (uint32_t i = 0; i < n; i++) {
        all += weight[i] = pow((double)i + 1, -exponent);
        order[i] = i;
    }
    for (uint32_t visit = 0; visit < 20000; visit++) {
        bool drawn[128] = {false};
        /* top_k of them, each with exactly its chance: systematic sampling in random order */
        for (uint32_t i = n; i > 1; i--) {
            const uint32_t k = test_rand_below(&rng, i), t = order[i - 1];
            order[i - 1] = order[k];
            order[k] = t;
        }
        double at = (double)test_rand_below(&rng, 1u << 30) / (1u << 30), sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            sum += weight[order[i]] * top_k / all;
            drawn[order[i]] = sum > at;
            at += sum > at ? 1 : 0;
        }
        for (uint32_t i = 0; i < n; i++) { /* what the visit needs is not thrown out by it */
            uses += drawn[i] && visit >= 1000;
            hits += drawn[i] && visit >= 1000 && there[i];
            last[i] = drawn[i] ? ++clock : last[i];
        }
        for (uint32_t i = 0; i < n; i++) {
            if (!drawn[i] || there[i])
                continue;
            if (n_there == held) {
                uint32_t oldest = n;
                for (uint32_t j = 0; j < n; j++)
                    if (there[j] && (oldest == n || last[j] < last[oldest]))
                        oldest = j;
                there[oldest] = false;
                n_there--;
            }
            there[i] = true;
            n_there++;
        }
    }
    return (double)hits / (double)uses;
}

static void skewed_draws(void **state)
{
    (void)state;
    static const uint32_t held[] = {12, 16, 24, 32, 48};
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) {
        const double even = clb_hit_rate_zipf(64, 8, held[i], 0);
        assert_true(fabs(even - held[i] / 64.0) < 1e-6);
        for (double exponent = 0.3; exponent < 0.8; exponent += 0.3) {
            const double formula = clb_hit_rate_zipf(64, 8, held[i], exponent);
            const double simulated = simulate(64, 8, held[i], exponent);
            if (fabs(formula - simulated) > 0.04)
                fail_msg("%u of 64 slots, exponent %.1f: %.3f by the formula, %.3f by simulation", held[i], exponent,
                         formula, simulated);
            assert_true(formula > even);
        }
    }
    double before = 0;
    for (double slots = 0; slots <= 64; slots += 0.5) {
        const double hit = clb_hit_rate_zipf(64, 8, slots, CLB_TYPICAL_SKEW);
        assert_true(hit >= before - 1e-9 && hit <= 1);
        before = hit;
    }
    assert_true(before > 0.999);
    assert_true(clb_hit_rate_zipf(64, 8, 0, 1) <= 0);
    assert_true(clb_hit_rate_zipf(8, 8, 4, 1) > 0.499 && clb_hit_rate_zipf(8, 8, 4, 1) < 0.501);
    /* what the header promises of published rates */
    assert_true(fabs(clb_hit_rate_zipf(64, 8, 8, CLB_TYPICAL_SKEW) - 0.32) < 0.01);
    assert_true(fabs(clb_hit_rate_zipf(64, 8, 24, CLB_TYPICAL_SKEW) - 0.61) < 0.01);
}

#define LAYERS  3u
#define EXPERTS 8u
#define TOP_K   2u

static clb_trace *random_trace(uint32_t n_passes, uint32_t decode_from)
{
    clb_trace *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->info = (clb_trace_info){.n_layers = LAYERS, .n_experts = EXPERTS, .top_k = TOP_K};
    t->n_passes = n_passes;
    t->passes = calloc(n_passes, sizeof *t->passes);
    t->ids = calloc((size_t)n_passes * 5 * LAYERS * TOP_K, sizeof *t->ids);
    assert_non_null(t->passes);
    assert_non_null(t->ids);
    test_rand rng = {3};
    for (uint32_t p = 0; p < n_passes; p++) {
        clb_trace_pass *pass = &t->passes[p];
        pass->phase = p < decode_from ? COLIBRI_PHASE_PREFILL : COLIBRI_PHASE_DECODE;
        pass->n_rows = p < decode_from ? 5 : 1;
        pass->first_row = t->n_rows;
        t->n_rows += pass->n_rows;
        for (uint32_t l = 0; l < LAYERS; l++)
            for (uint32_t r = 0; r < pass->n_rows; r++) {
                uint32_t *ids = t->ids + clb_trace_at(t, p, l) + (size_t)r * TOP_K;
                const uint32_t a = test_rand_below(&rng, EXPERTS), b = test_rand_below(&rng, EXPERTS);
                ids[0] = a < b ? a : b; /* low numbers are more frequent */
                ids[1] = (ids[0] + 1 + test_rand_below(&rng, EXPERTS - 1)) % EXPERTS;
            }
    }
    return t;
}

static void free_trace(clb_trace *t)
{
    free(t->passes);
    free(t->ids);
    free(t);
}

/* LRU with so many slots for the whole model, by brute force: hits among decoding uses that are not the first. */
static uint64_t brute_force(const clb_trace *t, uint32_t slots, uint64_t *uses)
{
    uint64_t last[LAYERS * EXPERTS] = {0}, clock = 0, hits = 0;
    bool seen[LAYERS * EXPERTS] = {false};
    *uses = 0;
    for (uint32_t p = 0; p < t->n_passes; p++)
        for (uint32_t l = 0; l < LAYERS; l++)
            for (uint32_t e = 0; e < EXPERTS; e++) {
                const uint32_t n = t->passes[p].n_rows * TOP_K, *ids = t->ids + clb_trace_at(t, p, l);
                bool used = false;
                for (uint32_t i = 0; i < n; i++)
                    used = used || ids[i] == e;
                if (!used)
                    continue;
                const uint32_t block = l * EXPERTS + e;
                uint32_t younger = 0;
                for (uint32_t b = 0; b < LAYERS * EXPERTS; b++)
                    younger += seen[b] && last[b] > last[block];
                if (seen[block] && t->passes[p].phase == COLIBRI_PHASE_DECODE) {
                    ++*uses;
                    hits += younger < slots;
                }
                seen[block] = true;
                last[block] = ++clock;
            }
    return hits;
}

static void trace_curves(void **state)
{
    (void)state;
    clb_error err;
    clb_hit_curve curve;
    clb_trace *t = random_trace(400, 60);
    assert_ok(clb_hit_curve_make(t, &curve, &err), &err);
    assert_int_equal(curve.n_blocks, LAYERS * EXPERTS);
    for (uint32_t slots = 0; slots <= LAYERS * EXPERTS; slots++) {
        uint64_t uses;
        assert_int_equal(curve.hits[slots], brute_force(t, slots, &uses));
        assert_int_equal(curve.uses, uses);
    }
    const double middle = clb_hit_curve_at(&curve, 10.5);
    assert_true(middle >= clb_hit_curve_at(&curve, 10) && middle <= clb_hit_curve_at(&curve, 11));
    assert_true(clb_hit_curve_at(&curve, LAYERS * EXPERTS) > 0.999);
    assert_true(clb_hit_curve_at(&curve, 1e9) > 0.999);
    clb_hit_curve_free(&curve);
    for (uint32_t p = 0; p < 400; p++)
        t->passes[p].phase = COLIBRI_PHASE_PREFILL;
    assert_fails(clb_hit_curve_make(t, &curve, &err), &err, COLIBRI_E_USAGE, "too few");
    assert_null(curve.hits);
    free_trace(t);
}

/* The CPU's kernels, those of as many threads first; neither the reference, nor what is old, nor another CPU's. */
static void range_of_remembered_kernels(void **state)
{
    (void)state;
    clb_error err;
    test_dir dir;
    char path[PATH_MAX];
    double least = 0, most = 0;
    const uint64_t now = (uint64_t)time(NULL);
    const struct {
        const char *key;
        uint64_t age;
        double rate;
    } lines[] = {{"kernel Some CPU Q8_0 a b threads 4 columns 64", 5, 7e9},
                 {"kernel Some CPU Q4_0 a b threads 2 columns 64", 5, 3e9},
                 {"kernel Some CPU Q4_K a b threads 2 columns 64", 5, 5e9},
                 {"kernel Some CPU Q6_K a b threads 2 columns 96", 5, 4e9},
                 {"kernel Some CPU F32 reference reference threads 2 columns 64", 5, 1e8},
                 {"kernel Some CPU Q5_K a b threads 2 columns 64", 5000000, 9e9},
                 {"kernel Some CPU2 Q5_K a b threads 2 columns 64", 5, 8e9},
                 {"drive 3", 5, 2e9}};
    test_dir_create(&dir);
    test_dir_file(&dir, "rates", path);
    assert_false(clb_rates_remembered_range(path, "Some CPU", 2, &least, &most));
    clb_rate_records r = {0};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        clb_rate_record one = {.when = now - lines[i].age, .value = {lines[i].rate, 1, 1, 0}};
        snprintf(one.key, sizeof one.key, "%s", lines[i].key);
        assert_ok(clb_rate_records_put(&r, &one, &err), &err);
    }
    assert_ok(clb_rate_records_save(path, &r, &err), &err);
    assert_true(clb_rates_remembered_range(path, "Some CPU", 2, &least, &most));
    assert_true(fabs(least - 3e9) < 1 && fabs(most - 5e9) < 1);
    assert_true(clb_rates_remembered_range(path, "Some CPU", 4, &least, &most));
    assert_true(fabs(least - 7e9) < 1 && fabs(most - 7e9) < 1);
    assert_true(clb_rates_remembered_range(path, "Some CPU", 16, &least, &most));
    assert_true(fabs(least - 3e9) < 1 && fabs(most - 7e9) < 1);
    assert_false(clb_rates_remembered_range(path, "Some", 2, &least, &most)); /* its name only begins like that */
    assert_false(clb_rates_remembered_range(path, "Other CPU", 2, &least, &most));
    clb_rate_records_free(&r);
    test_dir_remove(&dir);
}

/* ---- rates ----------------------------------------------------------------------------------------------- */

static void rates_are_remembered(void **state)
{
    (void)state;
    clb_error err;
    test_dir dir;
    char path[PATH_MAX];
    test_dir_create(&dir);
    test_dir_file(&dir, "a/b/rates", path);
    clb_rate_records r = {0};
    assert_int_equal(clb_rate_records_load(path, &r, &err), COLIBRI_E_NOT_FOUND);
    for (uint32_t i = 0; i < 300; i++) { /* more than are kept: the oldest go */
        clb_rate_record one = {.when = 1000 + i, .value = {1.5e9 + i, 0.25, 3, 0}};
        snprintf(one.key, sizeof one.key, "drive %u", i);
        assert_ok(clb_rate_records_put(&r, &one, &err), &err);
    }
    assert_ok(clb_rate_records_save(path, &r, &err), &err);
    clb_rate_records back = {0};
    assert_ok(clb_rate_records_load(path, &back, &err), &err);
    assert_int_equal(back.n, r.n);
    const clb_rate_record *found = clb_rate_records_find(&back, "drive 299", 2000, 1000);
    assert_non_null(found);
    assert_true(fabs(found->value[0] - (1.5e9 + 299)) < 1e5 && fabs(found->value[1] - 0.25) < 1e-9);
    assert_null(clb_rate_records_find(&back, "drive 299", 3000, 1000)); /* too old */
    assert_null(clb_rate_records_find(&back, "drive 299", 1200, 1000)); /* from the future */
    assert_null(clb_rate_records_find(&back, "drive 0", 2000, 10000));
    clb_rate_records_free(&back);
    clb_rate_records_free(&r);
    static const char *const bad[] = {"",
                                      "colibri rates 2\n",
                                      "colibri rates 1\nkey\t1\t1\t2\t3\t4",
                                      "colibri rates 1\nkey\t1\t1\t2\t3\n",
                                      "colibri rates 1\nkey\t1\t1\t2\t3\t4\t5\n",
                                      "colibri rates 1\nkey\t1\t-1\t2\t3\t4\n",
                                      "colibri rates 1\nkey\t1\tnan\t2\t3\t4\n",
                                      "colibri rates 1\nkey\t1\t1e300\t2\t3\t4\n",
                                      "colibri rates 1\nk\x01y\t1\t1\t2\t3\t4\n",
                                      "colibri rates 1\n\t1\t1\t2\t3\t4\n",
                                      "colibri rates 1\nkey\t99999999999999999999999\t1\t2\t3\t4\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        test_write_text(path, bad[i]);
        if (clb_rate_records_load(path, &back, &err) != COLIBRI_E_FORMAT)
            fail_msg("case %zu was read", i);
        assert_int_equal(back.n, 0);
    }
    unlink(path);
    mkfifo(path, 0600);
    assert_int_equal(clb_rate_records_load(path, &back, &err), COLIBRI_E_FORMAT); /* and does not wait for a writer */
    test_dir_remove(&dir);
}

static clb_rates_options rate_options(const test_rig *rig, const char *file, bool measure)
{
    return (clb_rates_options){
        .model = rig->model, .pool = rig->pool, .cpu_model = "a CPU", .cache_file = file, .measure = measure};
}

static void rates_are_measured_once(void **state)
{
    (void)state;
    clb_error err;
    test_dir dir;
    char path[PATH_MAX];
    test_dir_create(&dir);
    test_dir_file(&dir, "rates", path);
    test_rig rig;
    const test_rig_options o = {0};
    assert_ok(test_rig_open(&rig, TINY_MOE, &o, &err), &err);
    clb_rates_options options = rate_options(&rig, path, false);
    clb_rates assumed, first, second;
    clb_rates_get(&options, &assumed);
    assert_int_equal(assumed.drive_source, CLB_RATE_ASSUMED);
    assert_true(assumed.n_kernels >= 2 && assumed.drive_bytes_per_second > 0);
    assert_int_equal(access(path, F_OK), -1); /* assumptions are not remembered */
    options.measure = true;
    clb_rates_get(&options, &first);
    assert_int_equal(first.n_kernels, assumed.n_kernels);
    uint32_t measured = 0;
    for (uint32_t i = 0; i < first.n_kernels; i++) {
        const clb_rate_kernel *k = &first.kernel[i];
        measured += k->source == CLB_RATE_MEASURED;
        assert_true(k->decode_bytes_per_second > 1e6 && k->decode_bytes_per_second < 1e13);
        assert_true(k->prefill_macs_per_second > 1e6 && k->prefill_macs_per_second < 1e15);
    }
    assert_true(SLOW || measured > 0);
    assert_true(first.loop_ns > 0);
    clb_rates_get(&options, &second);
    for (uint32_t i = 0; i < first.n_kernels; i++)
        if (first.kernel[i].source == CLB_RATE_MEASURED) {
            assert_int_equal(second.kernel[i].source, CLB_RATE_REMEMBERED);
            assert_true(fabs(second.kernel[i].decode_bytes_per_second / first.kernel[i].decode_bytes_per_second - 1) <
                        1e-4);
        }
    options.again = true;
    clb_rates_get(&options, &second);
    measured = 0;
    for (uint32_t i = 0; i < first.n_kernels; i++)
        measured += second.kernel[i].source == CLB_RATE_MEASURED;
    assert_true(SLOW || measured > 0);
    options.again = false;
    options.cpu_model = "another CPU";
    options.measure = false;
    clb_rates_get(&options, &second);
    for (uint32_t i = 0; i < first.n_kernels; i++)
        assert_int_equal(second.kernel[i].source, CLB_RATE_ASSUMED);
    test_rig_close(&rig);
    test_dir_remove(&dir);
}

/* ---- predictions ----------------------------------------------------------------------------------------- */

struct bench {
    test_rig rig;
    clb_plan_input in;
    clb_rates rates;
};

static void open_bench(struct bench *b, const char *path)
{
    clb_error err;
    const test_rig_options o = {0};
    assert_ok(test_rig_open(&b->rig, path, &o, &err), &err);
    const clb_hparams *hp = &b->rig.model->hp;
    b->in = (clb_plan_input){.model = b->rig.model,
                             .kv = {.n_layers = hp->n_layers,
                                    .n_heads = hp->n_heads,
                                    .n_kv_heads = hp->n_kv_heads,
                                    .k_dim = hp->k_dim,
                                    .v_dim = hp->v_dim,
                                    .k_type = COLIBRI_TYPE_F16,
                                    .v_type = COLIBRI_TYPE_F16,
                                    .page_tokens = 32},
                             .kv_positions = 1024,
                             .ctx = 1024,
                             .n_sequences = 1,
                             .max_rows = 64,
                             .n_workers = 2,
                             .budget = 1024 * MIB,
                             .resident = 8 * MIB};
    const clb_rates_options options = rate_options(&b->rig, NULL, false);
    clb_rates_get(&options, &b->rates);
}

static void predict(struct bench *b, clb_prediction *out, clb_plan *plan)
{
    clb_error err;
    assert_ok(clb_plan_make(&b->in, plan, &err), &err);
    const clb_predict_input in = {
        .model = b->rig.model, .plan_input = &b->in, .plan = plan, .rates = &b->rates, .n_kv = 256};
    clb_predict(&in, out);
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-6 * fabs(b) + 1e-9;
}

static void experts_cost_what_they_cost(void **state)
{
    (void)state;
    struct bench b;
    clb_prediction full, half, slow;
    clb_plan plan;
    open_bench(&b, TINY_MOE);
    const clb_model *model = b.rig.model;
    predict(&b, &full, &plan);
    assert_true(plan.all_experts);
    assert_false(full.needs_drive);
    assert_true(near(full.decode_low.hit, 1) && near(full.decode_low.ns, full.decode_high.ns));
    assert_true(near(full.decode_low.ns, full.dense_ns + full.expert_ns + full.kv_ns + full.loop_ns));
    assert_true(near(full.expert_uses, (double)model->n_moe_layers * model->hp.top_k));
    const clb_model_sizes sizes = clb_model_get_sizes(model);
    assert_true(near(full.expert_bytes, (double)sizes.expert_bytes / model->hp.n_experts * model->hp.top_k));
    clb_plan_free(&plan);

    b.in.expert_slots = model->n_moe_layers * model->hp.n_experts / 2;
    predict(&b, &half, &plan);
    assert_true(half.needs_drive);
    assert_true(near(half.decode_low.hit, (double)plan.n_slots / plan.n_experts));
    assert_true(half.decode_high.hit > half.decode_low.hit);
    assert_true(near(half.decode_low.drive_bytes, half.expert_uses * half.bytes_per_use * (1 - half.decode_low.hit)));
    assert_true(half.decode_low.tokens_per_second < full.decode_low.tokens_per_second);
    assert_true(half.decode_low.tokens_per_second <= half.decode_high.tokens_per_second);
    assert_true(half.prefill_low.tokens_per_second <= full.prefill_low.tokens_per_second);
    clb_plan_free(&plan);
    b.rates.drive_bytes_per_second /= 1000; /* drive-bound: then a drive of half the speed halves the tokens */
    predict(&b, &half, &plan);
    clb_plan_free(&plan);
    b.rates.drive_bytes_per_second /= 2;
    predict(&b, &slow, &plan);
    clb_plan_free(&plan);
    assert_true(near(slow.decode_low.drive_ns, 2 * half.decode_low.drive_ns));
    assert_true(fabs(half.decode_low.tokens_per_second / slow.decode_low.tokens_per_second - 2) < 0.05);
    double before = 0;
    for (uint32_t slots = 8; slots <= 160; slots += 8) {
        b.in.expert_slots = slots;
        predict(&b, &half, &plan);
        assert_true(half.decode_high.tokens_per_second >= before);
        before = half.decode_high.tokens_per_second;
        clb_plan_free(&plan);
    }
    test_rig_close(&b.rig);
}

static void streamed_layers_are_read_each_time(void **state)
{
    (void)state;
    test_dir dir;
    char path[PATH_MAX];
    test_dir_create(&dir);
    test_dir_file(&dir, "model.gguf", path);
    static const test_shape shape = {4, 256, 512, 0, 0, 4, 2, 64, 2048};
    test_write_model(path, &shape);
    struct bench b;
    clb_prediction p;
    clb_plan plan;
    open_bench(&b, path);
    double before = 1e30;
    for (uint32_t keep = 4; keep >= 1; keep--) {
        b.in.resident_layers = keep;
        predict(&b, &p, &plan);
        assert_true(near(p.stream_bytes, (double)plan.streamed_file_bytes));
        assert_true(near(p.decode_low.drive_bytes, p.stream_bytes) && near(p.prefill_high.drive_bytes, p.stream_bytes));
        assert_int_equal(p.needs_drive, keep < 4);
        assert_true(near(p.expert_uses, 0) && near(p.decode_low.hit, 1));
        assert_true(p.decode_low.tokens_per_second < before || keep == 4);
        before = p.decode_low.tokens_per_second;
        clb_plan_free(&plan);
    }
    test_rig_close(&b.rig);
    test_dir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(skewed_draws),
        cmocka_unit_test(trace_curves),
        cmocka_unit_test(rates_are_remembered),
        cmocka_unit_test(range_of_remembered_kernels),
        cmocka_unit_test(rates_are_measured_once),
        cmocka_unit_test(experts_cost_what_they_cost),
        cmocka_unit_test(streamed_layers_are_read_each_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
