/* Selection by measurement: who is timed, what the times decide, what is remembered. The kernels are those of
 * tests/plugins-bad/measure.c, which count their calls; time is made from the counts. The file: test_measure_cache.c.
 */
#include "support/registry.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cpu/cpu.h"
#include "plugin/measure.h"

/* As in the plugin. */
struct counted {
    struct colibri_matmul table;
    atomic_uint *runs;
};

typedef struct cost {
    const char *component;
    int64_t ns; /* of one call; negative: the clock goes backwards */
} cost;

typedef struct rig {
    fixture f;
    cost costs[8];
    char file[PATH_MAX];
} rig;

static unsigned runs_of(const clb_component_view *c)
{
    return atomic_load(((const struct counted *)c->table)->runs);
}

static bool is_counted(const clb_component_view *c)
{
    return c->iface == CLB_IFACE_MATMUL && strstr(c->name, ".q4_0") &&
           ((const struct colibri_matmul *)c->table)->rank >= 1000;
}

static uint64_t now(void *ctx)
{
    const rig *const r = ctx;
    int64_t t = INT64_C(1) << 60;
    for (size_t i = 0; i < clb_registry_n_components(r->f.reg); i++) {
        clb_component_view c;
        clb_registry_component(r->f.reg, i, &c);
        for (const cost *k = r->costs; k->component && is_counted(&c); k++)
            if (!strncmp(k->component, c.name, strlen(k->component)))
                t += k->ns * (int64_t)runs_of(&c);
    }
    return (uint64_t)t;
}

/* Calls of all kernels of this process so far. */
static unsigned runs(const rig *r)
{
    unsigned n = 0;
    for (size_t i = 0; i < clb_registry_n_components(r->f.reg); i++) {
        clb_component_view c;
        clb_registry_component(r->f.reg, i, &c);
        n += is_counted(&c) ? runs_of(&c) : 0;
    }
    return n;
}

static void begin(rig *r)
{
    memset(r, 0, sizeof *r);
    fixture_begin(&r->f);
    fixture_install(&r->f, "measure", NULL);
    test_dir_file(&r->f.dir, "cache/kernels", r->file);
    r->f.options.measure = (clb_measure_options){.enabled = true,
                                                 .cpu_model = "Test CPU",
                                                 .n_threads = 1,
                                                 .cache_file = r->file,
                                                 .max_bytes = (uint64_t)4 << 20,
                                                 .now = now,
                                                 .now_ctx = r};
}

static void set_costs(rig *r, int64_t slow, int64_t middle, int64_t fast)
{
    const cost costs[] = {{"slow", slow},  {"middle", middle}, {"fast", fast},
                          {"batch", 5000}, {"lossy", 1},       {"more", 5000}};
    memset(r->costs, 0, sizeof r->costs);
    memcpy(r->costs, costs, sizeof costs);
}

/* Names of the kernels of all classes for a Q4_0 matrix, in a new registry: "a a b b". */
static const char *kernels_of(rig *r, uint32_t n_rows, uint32_t n_cols, char out[256])
{
    clb_error err;
    const struct colibri_matmul *k[CLB_X_CLASSES];
    const struct colibri_format *const q4 = clb_registry_format(r->f.reg, COLIBRI_TYPE_Q4_0, &err);
    assert_non_null(q4);
    clb_registry_kernels(r->f.reg, q4, n_rows, n_cols, k);
    *out = '\0';
    for (unsigned c = 0; c < CLB_X_CLASSES; c++) {
        const char *const name = k[c] ? k[c]->name : "none";
        snprintf(out + strlen(out), 256 - strlen(out), "%s%.*s", c ? " " : "", (int)strcspn(name, "."), name);
    }
    return out;
}

/* Opens a new registry and asks it. */
static const char *ask(rig *r, char out[256])
{
    fixture_open(&r->f);
    return kernels_of(r, 256, 512, out);
}

static clb_selection_stats stats(const rig *r)
{
    return clb_registry_selection(r->f.reg);
}

/* ---- the decision ----------------------------------------------------------------------------------------- */

static void test_fast_one_wins(void **state)
{
    (void)state;
    rig r;
    char text[256];
    begin(&r);
    set_costs(&r, 1000, 1000, 500);
    assert_string_equal(ask(&r, text), "fast fast fast fast");
    assert_int_equal(stats(&r).n_measured, 4);
    assert_int_equal(stats(&r).n_overturned, 4);
    assert_true(stats(&r).ns > 0);
    const unsigned before = runs(&r);
    assert_true(before > 0);
    /* The next layer's matrix of this shape: no stopwatch. */
    assert_string_equal(kernels_of(&r, 256, 512, text), "fast fast fast fast");
    assert_int_equal(runs(&r), before);
    assert_int_equal(stats(&r).n_measured, 4);
    assert_string_equal(kernels_of(&r, 512, 512, text), "fast fast fast fast");
    assert_true(runs(&r) > before);
    /* By rank it is the slow one, and nothing runs. */
    r.f.options.measure.enabled = false;
    const unsigned measured = runs(&r);
    assert_string_equal(ask(&r, text), "slow slow slow slow");
    assert_int_equal(runs(&r), measured);
    assert_false(stats(&r).measure);
    fixture_end(&r.f);
}

static void test_margin(void **state)
{
    (void)state;
    rig r;
    char text[256];
    begin(&r);
    r.f.options.measure.cache_file = NULL;
    set_costs(&r, 1000, 5000, 975);
    assert_string_equal(ask(&r, text), "slow slow slow slow"); /* 2.5 % are noise */
    assert_int_equal(stats(&r).n_overturned, 0);
    set_costs(&r, 1000, 5000, 965);
    assert_string_equal(ask(&r, text), "fast fast fast fast");
    set_costs(&r, 1000, 910, 900); /* both beat rank's choice; between them rank decides */
    assert_string_equal(ask(&r, text), "middle middle middle middle");
    set_costs(&r, 1000, 990, 975); /* nobody beats it by more than the margin, even if each beats the next */
    assert_string_equal(ask(&r, text), "slow slow slow slow");
    fixture_end(&r.f);
}

static void test_who_takes_part(void **state)
{
    (void)state;
    static const char *const prefer[] = {"slow.q4_0"}, *const deny[] = {"test.measure"};
    rig r;
    char text[256];
    begin(&r);
    r.f.options.measure.cache_file = NULL;
    set_costs(&r, 1000, 1000, 500);
    r.costs[3].ns = 100; /* batch: from 8 rows */
    assert_string_equal(ask(&r, text), "fast fast batch batch");
    /* What the user prefers is no matter of time, and the only one in its place is not timed. */
    unsigned before = runs(&r);
    r.f.options.prefer = prefer;
    r.f.options.n_prefer = 1;
    assert_string_equal(ask(&r, text), "slow slow slow slow");
    assert_int_equal(runs(&r), before);
    r.f.options.n_prefer = 0;
    /* A lossy kernel may be chosen by rank, never by the clock. */
    r.f.options.allow_inexact = true;
    assert_string_equal(ask(&r, text), "lossy lossy lossy lossy");
    assert_int_equal(runs(&r), before);
    r.f.options.allow_inexact = false;
    r.f.options.deny = deny;
    r.f.options.n_deny = 1;
    assert_string_equal(ask(&r, text), "none none none none");
    fixture_end(&r.f);
}

static void test_useless_clocks(void **state)
{
    (void)state;
    rig r;
    char text[256];
    begin(&r);
    static const int64_t costs[][3] = {{0, 0, 0}, {1000, 1000, 0}, {1000, 1000, -5}, {-1000, -1000, -1000}};
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++) {
        set_costs(&r, costs[i][0], costs[i][1], costs[i][2]);
        assert_string_equal(ask(&r, text), "slow slow slow slow");
        assert_int_equal(stats(&r).n_by_rank, 4);
        assert_int_equal(clb_registry_n_measurements(r.f.reg), 0);
        assert_int_equal(access(r.file, F_OK), -1);
        const unsigned before = runs(&r);
        kernels_of(&r, 256, 512, text); /* not tried again for every layer */
        assert_int_equal(runs(&r), before);
    }
    fixture_end(&r.f);
}

static void test_limits(void **state)
{
    (void)state;
    rig r;
    char text[256];
    begin(&r);
    set_costs(&r, 1000000000, 1000000000, 1000000); /* a second for a call */
    assert_string_equal(ask(&r, text), "slow slow slow slow");
    assert_true(stats(&r).ns >= CLB_MEASURE_LIMIT_NS);
    assert_true(runs(&r) < 200);
    assert_null(strstr(r.f.log_text, "took"));
    kernels_of(&r, 512, 512, text);
    kernels_of(&r, 1024, 512, text);
    const char *const said = strstr(r.f.log_text, "measuring kernels took");
    assert_non_null(said);
    assert_null(strstr(said + 1, "measuring kernels took"));
    assert_int_equal(stats(&r).n_by_rank, 12);
    /* Next to no room for buffers. */
    set_costs(&r, 1000, 1000, 500);
    r.f.options.measure.max_bytes = 100000;
    assert_string_equal(ask(&r, text), "slow slow slow slow");
    assert_true(test_contains(r.f.log_text, "chosen by rank, not measured"));
    r.f.options.measure.max_bytes = CLB_MEASURE_MIN_BYTES;
    assert_string_equal(ask(&r, text), "fast fast fast fast");
    /* A shape that is none. */
    const unsigned before = runs(&r);
    assert_string_equal(kernels_of(&r, 0, 512, text), "slow slow slow slow");
    assert_string_equal(kernels_of(&r, 16, 33, text), "slow slow slow slow");
    assert_int_equal(runs(&r), before);
    fixture_end(&r.f);
}

/* ---- memory ----------------------------------------------------------------------------------------------- */

static void test_remembered(void **state)
{
    (void)state;
    rig r;
    char text[256];
    struct stat st;
    begin(&r);
    set_costs(&r, 1000, 1000, 500);
    ask(&r, text);
    assert_int_equal(stat(r.file, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    /* The clock says otherwise by now, but nobody looks at it. */
    unsigned before = runs(&r);
    set_costs(&r, 1000, 1000, 2000);
    assert_string_equal(ask(&r, text), "fast fast fast fast");
    assert_int_equal(runs(&r), before);
    assert_int_equal(stats(&r).n_remembered, 4);
    assert_int_equal(stats(&r).n_overturned, 4);
    /* Other machines' times, and those of other thread counts, are not taken, and not lost. */
    const struct colibri_cpu_bits all = r.f.options.cpu;
    for (int i = 0; i < 3; i++) {
        const clb_measure_options saved = r.f.options.measure;
        if (i == 0)
            r.f.options.measure.cpu_model = "Other CPU\t\x1b";
        else if (i == 1)
            r.f.options.measure.n_threads = 2;
        else
            r.f.options.cpu = (struct colibri_cpu_bits){{0}};
        if (i != 1 || !clb_cpu_empty(all)) {
            before = runs(&r);
            assert_string_equal(ask(&r, text), "slow slow slow slow");
            assert_int_not_equal(runs(&r), before);
            before = runs(&r);
            ask(&r, text);
            assert_int_equal(runs(&r), before);
        }
        r.f.options.measure = saved;
        r.f.options.cpu = all;
        assert_string_equal(ask(&r, text), "fast fast fast fast");
        assert_int_equal(runs(&r), before);
    }
    fixture_end(&r.f);
}

static void test_other_builds(void **state)
{
    (void)state;
    static const char *const deny[] = {"test.measure-more"};
    rig r;
    char text[256];
    begin(&r);
    set_costs(&r, 1000, 1000, 500);
    ask(&r, text);
    /* Same id, same version, other bytes (and another name: the dynamic linker would take it for the one it has). */
    char path[PATH_MAX];
    set_costs(&r, 1000, 1000, 2000);
    assert_int_equal(remove(test_dir_file(&r.f.dir, "measure.so", path)), 0);
    fixture_install(&r.f, "measure-rebuilt", NULL);
    assert_string_equal(ask(&r, text), "slow slow slow slow");
    assert_int_equal(stats(&r).n_measured, 4);
    ask(&r, text);
    assert_int_equal(stats(&r).n_remembered, 4);
    /* A new candidate has no time, and times of another day do not compare with those of today. */
    fixture_install(&r.f, "measure-more", NULL);
    ask(&r, text);
    assert_int_equal(stats(&r).n_measured, 4);
    /* One that is gone does not matter: the others have theirs. */
    r.f.options.deny = deny;
    r.f.options.n_deny = 1;
    assert_string_equal(ask(&r, text), "slow slow slow slow");
    assert_int_equal(stats(&r).n_remembered, 4);
    /* A file that was touched since it was examined may be another one. */
    fixture_open(&r.f);
    fixture_load_all(&r.f);
    const struct timespec times[2] = {{1000, 0}, {1000, 0}};
    assert_int_equal(utimensat(0, test_dir_file(&r.f.dir, "measure-rebuilt.so", path), times, 0), 0);
    assert_string_equal(kernels_of(&r, 4096, 512, text), "slow slow slow slow");
    assert_int_equal(stats(&r).n_measured, 4); /* for now */
    ask(&r, text);
    kernels_of(&r, 4096, 512, text);
    assert_int_equal(stats(&r).n_measured, 4); /* but it was not remembered */
    fixture_end(&r.f);
}

static size_t count(const char *text, const char *part)
{
    size_t n = 0;
    for (; (text = strstr(text, part)) != NULL; text++)
        n++;
    return n;
}

static void test_bad_file(void **state)
{
    (void)state;
    rig r;
    char text[256];
    begin(&r);
    set_costs(&r, 1000, 1000, 500);
    ask(&r, text);
    /* Cut short: one warning, measured again, and whole again. */
    assert_int_equal(truncate(r.file, 200), 0);
    assert_string_equal(ask(&r, text), "fast fast fast fast");
    kernels_of(&r, 512, 512, text);
    assert_int_equal(count(r.f.log_text, "\n1 ") + (*r.f.log_text == '1'), 2); /* the linked-in format is the other */
    assert_int_equal(count(r.f.log_text, "remembered kernel times ignored, kernels are measured again: "), 1);
    assert_int_equal(stats(&r).n_measured, 8);
    ask(&r, text);
    assert_int_equal(stats(&r).n_remembered, 4);
    assert_int_equal(count(r.f.log_text, "remembered kernel times ignored"), 0);
    /* Something else, where the user pointed: stays as it is. At the default place it is replaced. */
    test_write_text(r.file, "Dear Ada,\n");
    assert_string_equal(ask(&r, text), "fast fast fast fast");
    assert_int_equal(count(r.f.log_text, "measured again and not remembered: "), 1);
    char *const letter = test_read_file(r.file, NULL);
    assert_string_equal(letter, "Dear Ada,\n");
    free(letter);
    r.f.options.measure.cache_file_is_ours = true;
    ask(&r, text);
    assert_int_equal(stats(&r).n_measured, 4);
    ask(&r, text);
    assert_int_equal(stats(&r).n_remembered, 4);
    /* Where nothing can be written, a run goes on, says so once, and not as a warning. */
    snprintf(r.file + strlen(r.file), sizeof r.file - strlen(r.file), "/below-a-file");
    assert_string_equal(ask(&r, text), "fast fast fast fast");
    kernels_of(&r, 512, 512, text);
    assert_int_equal(stats(&r).n_measured, 8);
    assert_int_equal(count(r.f.log_text, "2 kernel times are not remembered: "), 1);
    fixture_end(&r.f);
}

static void test_large_shapes_share(void **state)
{
    (void)state;
    rig r;
    char text[256];
    begin(&r);
    set_costs(&r, 1000, 1000, 500);
    fixture_open(&r.f);
    kernels_of(&r, 50000, 256, text);
    const unsigned before = runs(&r);
    assert_string_equal(kernels_of(&r, 151936, 256, text), "fast fast fast fast");
    assert_int_equal(runs(&r), before);
    kernels_of(&r, 4095, 256, text);
    assert_int_not_equal(runs(&r), before);
    fixture_end(&r.f);
}

/* ---- reports ---------------------------------------------------------------------------------------------- */

static void test_explained(void **state)
{
    (void)state;
    rig r;
    char text[256];
    clb_error err;
    const char *chosen;
    clb_verdict v = {0};
    begin(&r);
    set_costs(&r, 1000, 1000, 500);
    ask(&r, text);
    assert_string_equal(kernels_of(&r, 32, 64, text), "fast fast fast fast");
    set_costs(&r, 1000, 1000, 5000);
    fixture_open(&r.f);
    fixture_load_all(&r.f);
    const unsigned before = runs(&r);
    assert_ok(clb_registry_explain(r.f.reg, "q4_0", &v, &chosen, &err), &err);
    assert_string_equal(chosen, "fast.q4_0");
    assert_int_equal(runs(&r), before); /* both shapes are remembered */
    assert_true(fixture_verdict_has(&v, "rank", true, "rank 1300 against"));
    assert_true(fixture_verdict_has(&v, "rows", true, "1 row at a time, 256 x 512 weights, 1 thread, measured on 20"));
    assert_true(fixture_verdict_has(&v, "rows", true, "32 or more rows at a time, 32 x 64 weights"));
    assert_true(fixture_verdict_has(&v, "time", true, "fast.q4_0: 0.0"));
    assert_true(fixture_verdict_has(&v, "time", false, "slow.q4_0: 0.0"));
    assert_true(fixture_verdict_has(&v, "measure", true, "fast.q4_0 takes 50.0 % less time than slow.q4_0"));
    assert_true(fixture_verdict_has(&v, "choice", true, "kernel: fast.q4_0"));
    assert_int_equal(clb_registry_n_measurements(r.f.reg), 8);
    for (size_t i = 0; i < 8; i++) {
        clb_measurement_view m;
        clb_registry_measurement(r.f.reg, i, &m);
        assert_string_equal(m.chosen, "fast.q4_0");
        assert_string_equal(m.by_rank, "slow.q4_0");
        assert_string_equal(m.record->time[0].component, "slow.q4_0");
        assert_false(m.record->fresh);
    }
    clb_verdict_free(&v);
    /* Without a file there is no shape: one is made up and measured. */
    r.f.options.measure.cache_file = NULL;
    fixture_open(&r.f);
    assert_ok(clb_registry_explain(r.f.reg, "fast.q4_0", &v, &chosen, &err), &err);
    assert_string_equal(chosen, "slow.q4_0");
    assert_true(fixture_verdict_has(&v, "rows", true, "2048 x 2048 weights, 1 thread, measured now"));
    assert_true(fixture_verdict_has(&v, "measure", true, "nobody is more than 3 % faster than slow.q4_0"));
    clb_verdict_free(&v);
    fixture_end(&r.f);
}

/* ---- real kernels ----------------------------------------------------------------------------------------- */

/* Every format's kernels on shapes with tails and on one that does not fill a group, on two threads, under the real
 * clock: nothing is written or read where it should not be (the sanitizers see that), and what is chosen fits. */
static void test_real_kernels(void **state)
{
    (void)state;
    static const uint32_t rows[] = {1, 40, 5000};
    fixture f;
    fixture_begin(&f);
    f.dirs[0] = COLIBRI_TEST_PLUGIN_DIR;
    f.options.measure =
        (clb_measure_options){.enabled = true, .cpu_model = "Test CPU", .n_threads = 2, .max_bytes = 2 << 20};
    fixture_open(&f);
    unsigned n = 0;
    for (uint32_t type = 0; type < 40; type++) {
        clb_error err;
        const struct colibri_format *const format = clb_type_name(type) ? clb_registry_format(f.reg, type, &err) : NULL;
        if (!format)
            continue;
        const uint32_t cols = format->block_elems < 32 ? 35 : format->block_elems * 3, row = rows[n++ % 3];
        const struct colibri_matmul *k[CLB_X_CLASSES];
        clb_registry_kernels(f.reg, format, row, cols, k);
        for (unsigned c = 0; c < CLB_X_CLASSES; c++)
            assert_true(!k[c] || (k[c]->gguf_type == type && k[c]->max_ulp == COLIBRI_EXACT));
    }
    assert_true(n >= 15);
    const clb_selection_stats s = clb_registry_selection(f.reg);
    print_message("%u decisions measured in %.2f s, %u differ from rank\n", s.n_measured, (double)s.ns / 1e9,
                  s.n_overturned);
    if (clb_cpu_has(&f.options.cpu, COLIBRI_CPU_BIT_AVX512F)) /* two plugins and three kernels for most formats */
        assert_true(s.n_measured > 0);
    fixture_end(&f);
}

int main(void)
{
    unsetenv("COLIBRI_PLUGIN_PATH");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fast_one_wins),  cmocka_unit_test(test_margin),
        cmocka_unit_test(test_who_takes_part), cmocka_unit_test(test_useless_clocks),
        cmocka_unit_test(test_limits),         cmocka_unit_test(test_remembered),
        cmocka_unit_test(test_other_builds),   cmocka_unit_test(test_large_shapes_share),
        cmocka_unit_test(test_bad_file),       cmocka_unit_test(test_explained),
        cmocka_unit_test(test_real_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
