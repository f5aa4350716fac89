/* The registry: which component serves a job, reports, explanations, hosts. */
#include "support/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "ops/ops.h"

/* ---- selection -------------------------------------------------------------------------------------------- */

static void test_selection_order(void **state)
{
    (void)state;
    fixture f;
    fixture_begin(&f);
    fixture_install(&f, "good", NULL);
    fixture_install(&f, "inexact", NULL);
    /* inexact.q4_0 (900, 4 ULP) and sse3.q4_0 (800), then good.q4_0 and twin.q4_0 (100 each); layouts and
     * activations that do not fit have rank 990. */
#if defined(__x86_64__)
    fixture_open(&f);
    assert_string_equal(fixture_kernel_for(&f, 1), "sse3.q4_0");
    const struct colibri_cpu_bits all = clb_cpu_known();
    f.options.cpu = clb_cpu_mask(f.options.cpu, all);
#endif
    fixture_open(&f);
    assert_string_equal(fixture_kernel_for(&f, 1), "good.q4_0"); /* same rank: "test.good" < "test.inexact" */
    assert_string_equal(fixture_kernel_for(&f, 7), "good.q4_0");
    assert_string_equal(fixture_kernel_for(&f, 8), "good.q4_0.batch"); /* same rank, larger min_x */
    assert_string_equal(fixture_kernel_for(&f, 4096), "good.q4_0.batch");
    f.options.allow_inexact = true;
    fixture_open(&f);
    assert_string_equal(fixture_kernel_for(&f, 1), "inexact.q4_0");

    static const char *const component[] = {"twin.q4_0"}, *const plugin[] = {"nobody.here", "test.good"};
    static const char *const both[] = {"good.q4_0.batch", "twin.*"};
    f.options.prefer = component;
    f.options.n_prefer = 1;
    fixture_open(&f);
    assert_string_equal(fixture_kernel_for(&f, 1), "twin.q4_0");
    f.options.prefer = plugin;
    f.options.n_prefer = 2;
    fixture_open(&f);
    assert_string_equal(fixture_kernel_for(&f, 1), "good.q4_0");
    assert_true(test_contains(f.log_text, "is called 'nobody.here'"));
    f.options.prefer = both;
    fixture_open(&f);
    assert_string_equal(fixture_kernel_for(&f, 1), "twin.q4_0"); /* the batch kernel does not fit one row */
    assert_string_equal(fixture_kernel_for(&f, 9), "good.q4_0.batch");
    fixture_end(&f);
}

static void test_vecops_merge(void **state)
{
    (void)state;
    fixture f;
    fixture_begin(&f);
    fixture_install(&f, "good", NULL);       /* add, rank 100 */
    fixture_install(&f, "bad_tables", NULL); /* add, rank 0 */
    fixture_open(&f);
    const struct colibri_vecops *const v = clb_registry_vecops(f.reg), *const ref = clb_vecops_reference();
    assert_ptr_equal((const void *)(uintptr_t)v->softmax, (const void *)(uintptr_t)ref->softmax);
    assert_ptr_not_equal((const void *)(uintptr_t)v->add, (const void *)(uintptr_t)ref->add);
    for (size_t i = 0; i < clb_n_vecop_members; i++) {
        const void *code;
        memcpy(&code, (const char *)v + clb_vecop_members[i].offset, sizeof code);
        assert_non_null(code);
    }
    float y[3] = {1, 2, 3};
    const float x[3] = {10, 20, 30};
    v->add(y, x, 3);
    assert_float_equal(y[2], 33, 0);
    clb_verdict trace = {0};
    const char *chosen;
    clb_error err;
    assert_ok(clb_registry_explain(f.reg, "add", &trace, &chosen, &err), &err);
    assert_string_equal(chosen, "good.vec");
    assert_true(fixture_verdict_has(&trace, "rank", true, "rank 0 against 100") ||
                fixture_verdict_has(&trace, "rank", true, "rank 100 against 0"));
    clb_verdict_free(&trace);
    fixture_end(&f);
}

static void count_attention(void *ctx, const char *kind, const char *what, const char *component, const char *plugin_id,
                            const char *path)
{
    (void)plugin_id;
    (void)path;
    const char **const seen = ctx;
    if (!strcmp(kind, "vecops") && !strcmp(what, "attention"))
        *seen = *seen ? "two lines" : component;
}

/* What the attention that the table now has is: the mark that it leaves, the component that reports name. */
static void assert_attention(fixture *f, uint32_t takes, float mark, const char *name)
{
    const struct colibri_vecops *const v = clb_registry_vecops(f->reg);
    assert_int_equal(v->attention_takes, takes);
    float out[1] = {0};
    v->attention(&(struct colibri_attention_args){.struct_size = sizeof(struct colibri_attention_args), .out = out});
    assert_float_equal(out[0], mark, 0);
    const char *seen = NULL;
    clb_registry_uses(f->reg, count_attention, &seen);
    assert_string_equal(seen, name);
}

static void test_attention_takes(void **state)
{
    (void)state;
    const uint32_t q8 = COLIBRI_ATTN_TAKES_Q8_0, q4 = COLIBRI_ATTN_TAKES_Q4_0, recent = COLIBRI_ATTN_TAKES_RECENT;
    fixture f;
    fixture_begin(&f);
    fixture_install(&f, "attention", NULL);
    fixture_open(&f);
    assert_ptr_equal(clb_registry_attention_for(f.reg, 0), clb_registry_vecops(f.reg));
    assert_attention(&f, 0, 1.0f, "attend.floats");
    assert_true(test_contains(f.log_text, "vecops 3 skipped: attention_takes is 0x2, but it has no attention"));
    assert_false(test_contains(f.log_text, "does not take"));

    const struct colibri_vecops *const v = clb_registry_attention_for(f.reg, q8);
    assert_ptr_equal(v, clb_registry_vecops(f.reg)); /* whoever has the table has the new attention, too */
    assert_attention(&f, q8, 2.0f, "attend.q8");
    assert_true(test_contains(f.log_text, "the attention of attend.floats does not take q8_0: using attend.q8"));
    f.log_text[0] = '\0';
    clb_registry_attention_for(f.reg, q8);
    assert_false(test_contains(f.log_text, "does not take"));
    clb_registry_attention_for(f.reg, recent); /* and still q8_0 */
    assert_attention(&f, q8 | recent, 3.0f, "attend.recent");

    /* None has everything: the reference. */
    clb_registry_attention_for(f.reg, q4 | recent);
    assert_true(test_contains(f.log_text, "does not take q4_0: using the scalar reference"));
    assert_ptr_equal((const void *)(uintptr_t)v->attention, (const void *)(uintptr_t)clb_vecops_reference()->attention);
    assert_int_equal(v->attention_takes, q8 | q4 | recent);
    fixture_end(&f);
}

static void test_formats_of_plugins(void **state)
{
    (void)state;
    fixture f;
    clb_error err;
    fixture_begin(&f);
    fixture_install(&f, "bad_tables", NULL);
    fixture_open(&f);
    const struct colibri_format *const q = clb_registry_format(f.reg, 200, &err);
    assert_non_null(q);
    assert_string_equal(q->name, "Q_TEST");
    /* Its Q4_0 is broken: the linked-in one serves. */
    assert_string_equal(clb_registry_format(f.reg, COLIBRI_TYPE_Q4_0, &err)->name, "Q4_0");
    assert_null(clb_registry_matmul(f.reg, q, 1));
    /* A rejected plugin that would have offered it is named. */
    fixture_install(&f, "bad_tables", "future");
    const uint64_t future = UINT64_C(1) << 62;
    fixture_patch(&f, "future.so", AT(cpu), &future, sizeof future);
    fixture_patch(&f, "future.so", AT(summary), "Q9_X and others\0", 16);
    fixture_open(&f);
    assert_null(clb_registry_format_named(f.reg, "q9_x", &err));
    assert_int_equal(err.code, COLIBRI_E_UNSUPPORTED);
    assert_true(test_contains(err.msg, "test.bad-tables") && test_contains(err.msg, "bit 62"));
    fixture_end(&f);
}

static void test_linked_in_copy_fills_in(void **state)
{
    (void)state;
    fixture f;
    clb_error err;
    fixture_begin(&f);
    fixture_install(&f, "q4", NULL);
    fixture_open(&f);
    fixture_assert_state(&f, "colibri.format.q4", CLB_PLUGIN_SHADOWED, "/q4.so");
    /* The file's Q4_0 is broken: the linked-in plugin of the same id is asked after all ... */
    const struct colibri_format *const q4_0 = clb_registry_format(f.reg, COLIBRI_TYPE_Q4_0, &err);
    assert_non_null(q4_0);
    assert_non_null(q4_0->dot);
    fixture_assert_state(&f, "colibri.format.q4", CLB_PLUGIN_LOADED, NULL);
    assert_true(test_contains(f.log_text, "no plugin folder offers format Q4_0"));
    /* ... but where the file's table is sound, it comes first, in spite of its rank of -7. */
    const struct colibri_format *const q4_1 = clb_registry_format(f.reg, COLIBRI_TYPE_Q4_1, &err);
    assert_non_null(q4_1);
    assert_false(test_contains(f.log_text, "no plugin folder offers format Q4_1"));
    /* An older file, too, comes before the linked-in copy. */
    fixture_patch(&f, "q4.so", AT(version), "0.0.1", 6);
    fixture_open(&f);
    fixture_assert_state(&f, "colibri.format.q4", CLB_PLUGIN_SHADOWED, "/q4.so");
    fixture_end(&f);
}

static void test_named_policies(void **state)
{
    (void)state;
    fixture f;
    clb_error err;
    fixture_begin(&f);
    fixture_install(&f, "good", NULL);
    fixture_install(&f, "bad_tables", NULL);
    fixture_open(&f);
    const struct colibri_expert_policy *const p = clb_registry_expert_policy(f.reg, "test.good", &err); /* by id */
    assert_non_null(p);
    assert_string_equal(p->name, "good-policy");
    fixture_assert_state(&f, "/bad_tables.so", CLB_PLUGIN_AVAILABLE, NULL); /* not needed: not loaded */
    assert_ptr_equal(p, clb_registry_expert_policy(f.reg, "Good-Policy", &err));
    assert_non_null(clb_registry_expert_policy(f.reg, "lru", &err)); /* the id ends with it */
    fixture_assert_state(&f, "/bad_tables.so", CLB_PLUGIN_AVAILABLE, NULL);
    assert_non_null(clb_registry_expert_policy(f.reg, "sound-policy", &err));
    fixture_assert_state(&f, "/bad_tables.so", CLB_PLUGIN_LOADED, NULL);
    assert_null(clb_registry_expert_policy(f.reg, "sound", &err));
    assert_true(test_contains(err.msg, "good-policy") && test_contains(err.msg, "lru") &&
                test_contains(err.msg, "sound-policy"));
    assert_null(clb_registry_kv_strategy(f.reg, "good-policy", &err)); /* another kind */
    fixture_end(&f);
}

/* ---- reports ---------------------------------------------------------------------------------------------- */

static void count_use(void *ctx, const char *kind, const char *what, const char *component, const char *plugin_id,
                      const char *path)
{
    char line[512];
    snprintf(line, sizeof line, "%s %s %s %s %s\n", kind, what, component, plugin_id,
             strrchr(path, '/') ? strrchr(path, '/') : "-");
    strncat(ctx, line, 4000 - strlen(ctx) - 1);
}

static void test_uses_and_misbehaviour(void **state)
{
    (void)state;
    fixture f;
    clb_error err;
    char text[4000] = "";
    fixture_begin(&f);
    fixture_install(&f, "good", NULL);
    fixture_open(&f);
    fixture_kernel_for(&f, 1);
    fixture_kernel_for(&f, 1);
    fixture_kernel_for(&f, 64);
    assert_non_null(clb_registry_expert_policy(f.reg, "good-policy", &err));
    clb_registry_uses(f.reg, count_use, text);
    assert_string_equal(text, "format Q4_0 Q4_0 colibri.format.q4 -\n"
                              "kernel Q4_0 good.q4_0 test.good /good.so\n"
                              "kernel Q4_0 good.q4_0.batch test.good /good.so\n"
                              "expert-policy good-policy good-policy test.good /good.so\n");
    *f.log_text = '\0';
    for (int i = 0; i < 1000; i++)
        clb_registry_misbehaved(f.reg, "good-policy", "victim 77 of 4 candidates");
    assert_string_equal(strchr(f.log_text, '\n'), "\n"); /* one line */
    assert_true(test_contains(f.log_text, "good-policy misbehaved: victim 77 of 4 candidates"));
    fixture_assert_state(&f, "/good.so", CLB_PLUGIN_MISBEHAVED, "victim 77");
    clb_registry_misbehaved(f.reg, "nobody", "did something");
    fixture_end(&f);
}

static void test_explain(void **state)
{
    (void)state;
    fixture f;
    clb_error err;
    const char *chosen;
    clb_verdict v = {0};
    fixture_begin(&f);
    fixture_install(&f, "good", NULL);
    fixture_install(&f, "good", "copy");
    fixture_install(&f, "inexact", NULL);
    const uint64_t future = UINT64_C(1) << 62;
    fixture_install(&f, "lies", NULL);
    fixture_patch(&f, "lies.so", AT(cpu), &future, sizeof future);
    f.options.cpu = (struct colibri_cpu_bits){{0}};
    fixture_open(&f);
    assert_ok(clb_registry_explain(f.reg, "Q4_0", &v, &chosen, &err), &err);
    assert_string_equal(chosen, "good.q4_0");
    assert_true(fixture_verdict_has(&v, "filter", false, "test.lies"));
    assert_true(fixture_verdict_has(&v, "filter", false, "shadowed by"));
    assert_true(fixture_verdict_has(&v, "candidate", false, "not exact (up to 4 ULP) and allow-inexact is off"));
    assert_true(fixture_verdict_has(&v, "candidate", false, "needs sse3"));
    assert_true(fixture_verdict_has(&v, "candidate", false, "meant for at least 8 rows at a time, asked for 1"));
    assert_true(fixture_verdict_has(&v, "candidate", false, "layout 0"));
    assert_true(fixture_verdict_has(&v, "id", true, "the plugin id that sorts first: good.q4_0"));
    assert_true(fixture_verdict_has(&v, "min-x", true, "good.q4_0.batch"));
    assert_true(fixture_verdict_has(&v, "choice", true, "kernel: good.q4_0.batch"));
    clb_verdict_free(&v);
    assert_ok(clb_registry_explain(f.reg, "test.lies", &v, &chosen, &err), &err);
    assert_null(chosen);
    assert_true(fixture_verdict_has(&v, "cpu", false, "bit 62"));
    clb_verdict_free(&v);
    assert_ok(clb_registry_explain(f.reg, "test.good", &v, &chosen, &err), &err);
    assert_true(test_contains(chosen, "/copy.so")); /* sorts first */
    assert_true(fixture_verdict_has(&v, "state", false, "shadowed"));
    clb_verdict_free(&v);
    assert_ok(clb_registry_explain(f.reg, "lru", &v, &chosen, &err), &err);
    assert_string_equal(chosen, "lru");
    clb_verdict_free(&v);
    assert_fails(clb_registry_explain(f.reg, "q4_00", &v, &chosen, &err), &err, COLIBRI_E_NOT_FOUND,
                 "did you mean 'Q4_0'");
    clb_verdict_free(&v);
    fixture_end(&f);
}

static void test_hosts(void **state)
{
    (void)state;
    /* Two registries in one process use one plugin; the second host outlives the first. */
    fixture f, g;
    clb_error err;
    fixture_begin(&f);
    fixture_begin(&g);
    fixture_install(&f, "good", NULL);
    g.dirs[0] = f.dir.path;
    fixture_open(&f);
    fixture_open(&g);
    assert_non_null(clb_registry_expert_policy(f.reg, "good-policy", &err));
    const struct colibri_host *const host = clb_registry_host(f.reg);
    assert_int_equal(host->abi_major, COLIBRI_ABI_MAJOR);
    assert_null(host->query(host, "anything/1"));
    host->log(host, COLIBRI_LOG_HOST_MISBEHAVING, "test.good", "tab\there");
    assert_true(test_contains(f.log_text, "1 plugin test.good blames the host: tab here\n"));
    clb_registry_close(f.reg);
    f.reg = NULL;
    *f.log_text = '\0';
    host->log(host, COLIBRI_LOG_ERROR, "test.good", "after the registry was closed"); /* a plugin may keep it */
    assert_string_equal(f.log_text, "");
    assert_non_null(clb_registry_expert_policy(g.reg, "good-policy", &err));
    fixture_end(&g);
    fixture_end(&f);
}

int main(void)
{
    unsetenv("COLIBRI_PLUGIN_PATH");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_selection_order),
        cmocka_unit_test(test_vecops_merge),
        cmocka_unit_test(test_attention_takes),
        cmocka_unit_test(test_formats_of_plugins),
        cmocka_unit_test(test_linked_in_copy_fills_in),
        cmocka_unit_test(test_named_policies),
        cmocka_unit_test(test_uses_and_misbehaviour),
        cmocka_unit_test(test_explain),
        cmocka_unit_test(test_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
