/* The registry: search path, filter, two plugins of one id, loading. Selection: test_registry_select.c. */
#include "support/registry.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cpu/cpu.h"
#include "ops/ops.h"
#include "plugin/builtin.h"
#include "plugin/fpstate.h"
#include "plugin/introspect.h"
#include "plugin/note.h"

/* A function whose name a plugin has too: the executable is linked so that its symbols could capture the plugin's. */
__attribute__((visibility("default"))) int test_shared_name(void);
int test_shared_name(void)
{
    return 1;
}

#if defined(__aarch64__)
#define HOST_IS_ARM 1
#else
#define HOST_IS_ARM 0
#endif

/* ---- nothing there ---------------------------------------------------------------------------------------- */

static void test_empty_folder(void **state)
{
    (void)state;
    fixture f;
    clb_error err = {0};
    fixture_begin(&f);
    fixture_open(&f);
    /* Every linked-in format works, and says once that it is not the plugin folder's. */
    const struct colibri_format *const q4 = clb_registry_format(f.reg, COLIBRI_TYPE_Q4_0, &err);
    assert_non_null(q4);
    assert_string_equal(q4->name, "Q4_0");
    assert_ptr_equal(q4, clb_registry_format(f.reg, COLIBRI_TYPE_Q4_0, &err));
    assert_ptr_equal(q4, clb_registry_format_named(f.reg, "q4_0", &err));
    const char *const warning = "no plugin folder offers format Q4_0: using the built-in scalar version";
    const char *const first = strstr(f.log_text, warning);
    assert_non_null(first);
    assert_null(strstr(first + 1, warning));
    assert_null(clb_registry_matmul(f.reg, q4, 1));
    assert_non_null(clb_registry_expert_policy(f.reg, "lru", &err));
    assert_non_null(clb_registry_kv_strategy(f.reg, "full", &err));
    assert_null(clb_registry_format(f.reg, 12345, &err));
    assert_int_equal(err.code, COLIBRI_E_UNSUPPORTED);
    assert_true(test_contains(err.msg, "12345"));
    assert_null(clb_registry_expert_policy(f.reg, "lur", &err));
    assert_int_equal(err.code, COLIBRI_E_NOT_FOUND);
    assert_true(test_contains(err.msg, "did you mean 'lru'"));
    assert_null(clb_registry_predictor(f.reg, "none", &err));
    assert_true(test_contains(err.msg, "there are: none"));
    const struct colibri_vecops *const v = clb_registry_vecops(f.reg), *const ref = clb_vecops_reference();
    assert_ptr_equal((const void *)(uintptr_t)v->attention, (const void *)(uintptr_t)ref->attention);
    assert_ptr_equal((const void *)(uintptr_t)v->add, (const void *)(uintptr_t)ref->add);
    assert_ptr_equal(v, clb_registry_vecops(f.reg));
    fixture_end(&f);
}

static void test_every_builtin_is_sound(void **state)
{
    (void)state;
    fixture f;
    fixture_begin(&f);
    fixture_open(&f);
    fixture_load_all(&f);
    size_t n = 0;
    for (size_t i = 0; i < clb_registry_n_plugins(f.reg); i++) {
        clb_plugin_view p;
        clb_registry_plugin(f.reg, i, &p);
        assert_null(p.path);
        if (p.state != CLB_PLUGIN_LOADED || p.bad_components)
            fail_msg("%s: %s, %zu bad components", p.id, p.reason ? p.reason : "", p.bad_components);
        n++;
    }
    size_t listed = 0;
    while (clb_builtin_plugins[listed]) {
        clb_error err;
        const struct colibri_elf_note *const note = clb_builtin_plugins[listed++]->note;
        assert_ok(clb_note_check(&note->desc, note->descsz, &err), &err);
    }
    assert_int_equal(n, listed);
    fixture_end(&f);
}

/* ---- search path ------------------------------------------------------------------------------------------ */

static const clb_search_dir *dir_called(const fixture *f, const char *path)
{
    for (size_t i = 0; i < clb_registry_n_dirs(f->reg); i++)
        if (!strcmp(clb_registry_dir(f->reg, i)->path, path))
            return clb_registry_dir(f->reg, i);
    fail_msg("no folder %s", path);
    return NULL;
}

static void test_search_path(void **state)
{
    (void)state;
    fixture f;
    char sub[PATH_MAX], env[2 * PATH_MAX + 64], link_path[PATH_MAX];
    fixture_begin(&f);
    fixture_install(&f, "good", "env/good");
    fixture_install(&f, "good-newer", "b");
    fixture_install(&f, "good", "a");
    fixture_install(&f, "good", "not-a-plugin.so.1"); /* ends in .so.1.so: still a .so */
    fixture_install(&f, "good", ".hidden");
    mkdir(test_dir_file(&f.dir, "folder.so", sub), 0755);
    test_write_text(test_dir_file(&f.dir, "text.so", sub), "not an object\n");
    test_write_text(test_dir_file(&f.dir, "README", sub), "not looked at\n");
    assert_int_equal(mkfifo(test_dir_file(&f.dir, "fifo.so", sub), 0644), 0);
    assert_int_equal(symlink("/nonexistent/x.so", test_dir_file(&f.dir, "dangling.so", sub)), 0);
    test_dir_file(&f.dir, "env", sub);
    assert_int_equal(symlink(sub, test_dir_file(&f.dir, "env-again", link_path)), 0);
    snprintf(env, sizeof env, ":relative/dir:%s:/nonexistent:%s", sub, link_path);
    assert_int_equal(setenv("COLIBRI_PLUGIN_PATH", env, 1), 0);

    fixture_open(&f); /* use_env is off */
    assert_int_equal(clb_registry_n_dirs(f.reg), 1);
    f.options.use_env = true;
    fixture_open(&f);
    assert_int_equal(clb_registry_n_dirs(f.reg), 6);
    assert_string_equal(dir_called(&f, "")->refused, "an empty component of the path");
    assert_string_equal(dir_called(&f, "relative/dir")->refused, "not an absolute path");
    assert_string_equal(dir_called(&f, "/nonexistent")->refused, "does not exist");
    assert_true(test_contains(dir_called(&f, link_path)->refused, "the same folder as"));
    assert_null(dir_called(&f, sub)->refused);
    assert_string_equal(dir_called(&f, sub)->origin, "COLIBRI_PLUGIN_PATH");
    assert_string_equal(dir_called(&f, f.dir.path)->origin, "config");

    /* Sorted by name inside a folder, folders in order; odd files are refused with a reason. */
    fixture_assert_state(&f, "/folder.so", CLB_PLUGIN_REJECTED, "not a regular file");
    fixture_assert_state(&f, "/fifo.so", CLB_PLUGIN_REJECTED, "not a regular file");
    fixture_assert_state(&f, "/dangling.so", CLB_PLUGIN_REJECTED, "cannot resolve");
    fixture_assert_state(&f, "/text.so", CLB_PLUGIN_REJECTED, "not an ELF file");
    size_t seen = 0;
    static const char *const order[] = {
        "a.so", "b.so", "dangling.so", "fifo.so", "folder.so", "not-a-plugin.so.1.so", "text.so", "good.so"};
    for (size_t i = 0; i < clb_registry_n_plugins(f.reg); i++) {
        clb_plugin_view p;
        clb_registry_plugin(f.reg, i, &p);
        if (p.path)
            assert_string_equal(strrchr(p.path, '/') + 1, order[seen++]);
    }
    assert_int_equal(seen, sizeof order / sizeof *order);
    /* None of this has mapped anything. */
    assert_int_equal(clb_registry_n_components(f.reg), 0);
    unsetenv("COLIBRI_PLUGIN_PATH");
    fixture_end(&f);
}

static void test_relative_config_folder(void **state)
{
    (void)state;
    fixture f;
    clb_error err;
    fixture_begin(&f);
    f.dirs[0] = "plugins";
    assert_fails(clb_registry_open(&f.options, &f.reg, &err), &err, COLIBRI_E_USAGE,
                 "'plugins' is not an absolute path");
    f.dirs[0] = "";
    assert_fails(clb_registry_open(&f.options, &f.reg, &err), &err, COLIBRI_E_USAGE, "not an absolute path");
    fixture_end(&f);
}

static void test_permissions(void **state)
{
    (void)state;
    fixture f;
    char path[PATH_MAX], link_path[PATH_MAX];
    fixture_begin(&f);
    fixture_install(&f, "good", "good");
    test_dir_file(&f.dir, "good.so", path);
    static const struct {
        mode_t mode;
        const char *reason;
    } files[] = {{0666, "by everybody (mode 0666)"},
                 {0664, "by its group (mode 0664)"},
                 {0642, "by everybody"},
                 {0600, NULL},
                 {0444, NULL}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        assert_int_equal(chmod(path, files[i].mode), 0);
        fixture_open(&f);
        fixture_assert_state(&f, "/good.so", files[i].reason ? CLB_PLUGIN_REJECTED : CLB_PLUGIN_AVAILABLE,
                             files[i].reason);
    }
    static const mode_t dirs[] = {0777, 01777, 0770, 0707};
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        assert_int_equal(chmod(f.dir.path, dirs[i]), 0);
        fixture_open(&f);
        assert_true(test_contains(dir_called(&f, f.dir.path)->refused, "writable"));
        assert_true(test_contains(f.log_text, "chmod go-w"));
        fixture_load_all(&f);
        assert_false(fixture_has_component(&f, "good.q4_0"));
    }
    assert_int_equal(chmod(f.dir.path, 0755), 0);

    /* A link out of a good folder into a bad one. */
    fixture_install(&f, "good", "open/target");
    assert_int_equal(chmod(test_dir_file(&f.dir, "open", path), 0777), 0);
    assert_int_equal(symlink("open/target.so", test_dir_file(&f.dir, "link.so", link_path)), 0);
    fixture_open(&f);
    fixture_assert_state(&f, "/open/target.so", CLB_PLUGIN_REJECTED, "symbolic link leads to");
    assert_int_equal(chmod(path, 0755), 0);
    fixture_open(&f);
    fixture_assert_state(&f, "/open/target.so", CLB_PLUGIN_SHADOWED, NULL); /* of good.so, found first */
    /* Two names of one file. */
    assert_int_equal(link(test_dir_file(&f.dir, "good.so", path), test_dir_file(&f.dir, "twice.so", link_path)), 0);
    fixture_open(&f);
    fixture_assert_state(&f, "/twice.so", CLB_PLUGIN_REJECTED, "the same file as");
    fixture_end(&f);
}

static void test_foreign_owner(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip(); /* only root can give files away */
    fixture f;
    char path[PATH_MAX];
    fixture_begin(&f);
    fixture_install(&f, "good", NULL);
    assert_int_equal(chown(test_dir_file(&f.dir, "good.so", path), 12345, (gid_t)-1), 0);
    fixture_open(&f);
    fixture_assert_state(&f, "/good.so", CLB_PLUGIN_REJECTED, "belongs to user 12345");
    assert_int_equal(chown(path, 0, (gid_t)-1), 0);
    assert_int_equal(chown(f.dir.path, 12345, (gid_t)-1), 0);
    fixture_open(&f);
    assert_true(test_contains(dir_called(&f, f.dir.path)->refused, "belongs to user 12345"));
    assert_int_equal(chown(f.dir.path, 0, (gid_t)-1), 0);
    fixture_end(&f);
}

/* ---- filter ----------------------------------------------------------------------------------------------- */

static void test_filter(void **state)
{
    (void)state;
    fixture f;
    fixture_begin(&f);
    const uint16_t major = COLIBRI_ABI_MAJOR + 1;
    const uint64_t sse3 = COLIBRI_CPU0(SSE3), future = UINT64_C(1) << 62, neon = COLIBRI_CPU1(NEON);
    fixture_install(&f, "good", "abi");
    fixture_patch(&f, "abi.so", AT(abi_major), &major, sizeof major);
    fixture_install(&f, "good", "future");
    fixture_patch(&f, "future.so", AT(cpu), &future, sizeof future);
    fixture_install(&f, "good", "needs");
#if defined(__x86_64__)
    fixture_patch(&f, "needs.so", AT(cpu), &sse3, sizeof sse3);
    fixture_patch(&f, "needs.so", AT(id), "test.food", 9);
    fixture_patch(&f, "needs.so", AT(symbol), "colibri_plugin_test_food", 24);
    (void)neon;
#else
    fixture_patch(&f, "needs.so", AT(cpu) + 8, &neon, sizeof neon);
    (void)sse3;
#endif
    fixture_open(&f);
    fixture_assert_state(&f, "/abi.so", CLB_PLUGIN_REJECTED, "built for plugin ABI 2.0, this Colibri has 1.0");
    assert_string_equal(fixture_view(&f, "/abi.so").id, "test.good");
    assert_true(fixture_verdict_has(fixture_view(&f, "/abi.so").verdict, "abi", false, "2.0"));
    fixture_assert_state(&f, "/future.so", CLB_PLUGIN_REJECTED, "does not know: bit 62");
    fixture_assert_state(&f, "/needs.so", CLB_PLUGIN_AVAILABLE, NULL);
    assert_true(fixture_verdict_has(fixture_view(&f, "/needs.so").verdict, "cpu", true, "all usable"));

    f.options.cpu = clb_cpu_mask(f.options.cpu, clb_cpu_known());
    fixture_open(&f);
    fixture_assert_state(&f, "/needs.so", CLB_PLUGIN_REJECTED, "needs ");
    fixture_load_all(&f);
    assert_false(fixture_has_component(&f, "good.q4_0"));
    fixture_end(&f);
}

static void test_deny(void **state)
{
    (void)state;
    fixture f;
    clb_error err;
    fixture_begin(&f);
    fixture_install(&f, "good", NULL);
    fixture_install(&f, "inexact", NULL);
    static const char *const one[] = {"test.good"}, *const rest[] = {"test.*"}, *const all[] = {"*"},
                             *const typo[] = {"test.goood"};
    f.options.n_deny = 1;
    f.options.deny = one;
    fixture_open(&f);
    fixture_assert_state(&f, "/good.so", CLB_PLUGIN_REJECTED, "denied by \"test.good\"");
    fixture_assert_state(&f, "/inexact.so", CLB_PLUGIN_AVAILABLE, NULL);
    assert_null(clb_registry_expert_policy(f.reg, "test.good", &err));
    assert_true(test_contains(err.msg, "denied by"));
    f.options.deny = rest;
    fixture_open(&f);
    fixture_assert_state(&f, "/inexact.so", CLB_PLUGIN_REJECTED, "denied by \"test.*\"");
    f.options.deny = all; /* files only: what is linked in is the last resort */
    fixture_open(&f);
    assert_string_equal(fixture_kernel_for(&f, 1), "none");
    f.options.deny = typo;
    fixture_open(&f);
    fixture_assert_state(&f, "/good.so", CLB_PLUGIN_AVAILABLE, NULL);
    assert_true(test_contains(f.log_text, "no plugin is called 'test.goood'; did you mean 'test.good'?"));
    fixture_end(&f);
}

/* ---- shadows ---------------------------------------------------------------------------------------------- */

static void test_two_copies(void **state)
{
    (void)state;
    fixture f;
    char sub[PATH_MAX];
    fixture_begin(&f);
    fixture_install(&f, "good", "first");
    fixture_install(&f, "good", "second");
    fixture_open(&f); /* equal: the earlier one */
    fixture_assert_state(&f, "/first.so", CLB_PLUGIN_AVAILABLE, NULL);
    fixture_assert_state(&f, "/second.so", CLB_PLUGIN_SHADOWED, "first.so");
    fixture_install(&f, "good-higher", "later/x");
    f.dirs[1] = test_dir_file(&f.dir, "later", sub);
    f.options.n_dirs = 2;
    fixture_open(&f); /* the higher rank */
    fixture_assert_state(&f, "/later/x.so", CLB_PLUGIN_AVAILABLE, NULL);
    fixture_assert_state(&f, "/first.so", CLB_PLUGIN_SHADOWED, "later/x.so");
    fixture_assert_state(&f, "/second.so", CLB_PLUGIN_SHADOWED, NULL);
    fixture_install(&f, "good-newer", "zz");
    fixture_open(&f); /* the newer version, whatever the rank: 1.10 > 1.2 */
    fixture_assert_state(&f, "/zz.so", CLB_PLUGIN_AVAILABLE, NULL);
    fixture_assert_state(&f, "/later/x.so", CLB_PLUGIN_SHADOWED, "zz.so");
    assert_true(fixture_verdict_has(fixture_view(&f, "/zz.so").verdict, "id", true, "version 1.2.3 < 1.10.0"));
    const uint64_t future = UINT64_C(1) << 62;
    fixture_patch(&f, "zz.so", AT(cpu), &future, sizeof future);
    fixture_open(&f); /* one that cannot run here shadows nobody */
    fixture_assert_state(&f, "/later/x.so", CLB_PLUGIN_AVAILABLE, NULL);
    fixture_end(&f);
}

static void test_failed_one_gives_its_place_back(void **state)
{
    (void)state;
    fixture f;
    clb_error err;
    fixture_begin(&f);
    fixture_install(&f, "good", "old");
    /* A newer "test.good" whose symbol is missing: the same note on an object that exports something else. */
    fixture_install(&f, "no_symbol", "new");
    fixture_patch(&f, "new.so", AT(id), "test.good\0\0\0\0\0", 14);
    fixture_patch(&f, "new.so", AT(symbol), "colibri_plugin_test_good\0\0\0\0\0", 29);
    fixture_patch(&f, "new.so", AT(version), "9.0", 4);
    fixture_open(&f);
    fixture_assert_state(&f, "/new.so", CLB_PLUGIN_AVAILABLE, NULL);
    fixture_assert_state(&f, "/old.so", CLB_PLUGIN_SHADOWED, "new.so");
    assert_null(clb_registry_expert_policy(f.reg, "good-policy", &err)); /* the newer edition does not declare one */
    assert_string_equal(fixture_kernel_for(&f, 1), "good.q4_0");
    assert_non_null(clb_registry_expert_policy(f.reg, "good-policy", &err));
    fixture_assert_state(&f, "/new.so", CLB_PLUGIN_REJECTED, "does not export");
    fixture_assert_state(&f, "/old.so", CLB_PLUGIN_LOADED, NULL);
    assert_true(fixture_verdict_has(fixture_view(&f, "/old.so").verdict, "id", true, "takes its place"));
    fixture_end(&f);
}

/* ---- loading ---------------------------------------------------------------------------------------------- */

/* Valgrind ignores writes to the control register. */
static bool fp_control_works(void)
{
    const clb_fpstate before = clb_fpstate_get();
    clb_fpstate s = before;
    s.control ^= UINT64_C(1) << (HOST_IS_ARM ? 24 : 15); /* flush to zero */
    clb_fpstate_set(s);
    const bool works = clb_fpstate_same(clb_fpstate_get(), s);
    clb_fpstate_set(before);
    return works;
}

static void test_bad_plugins_are_rejected(void **state)
{
    (void)state;
    static const struct {
        const char *plugin, *reason;
    } cases[] = {{"lies", "one of them lies"},
                 {"wild_descriptor", "points to no note"},
                 {"no_symbol", "does not export colibri_plugin_test_no_symbol"},
                 {"init_fails", "its init failed: the licence server does not answer (UNSUPPORTED)"},
                 {"fp_init", "its init changed the floating-point control state"},
                 {"fp_load", "loading it changed the floating-point control state"},
                 {"fp_get", "its get changed the floating-point control state"},
                 {"undefined", "nobody_has_this_function"}};
    fixture f;
    fixture_begin(&f);
    fixture_install(&f, "good", NULL);
    fixture_install(&f, "same_name", NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        fixture_install(&f, cases[i].plugin, NULL);
    fixture_open(&f);
    const clb_fpstate before = clb_fpstate_get();
    /* Rank 1000 or not: one failing plugin never keeps the others from working. */
    assert_string_equal(fixture_kernel_for(&f, 1), "good.q4_0");
    assert_true(clb_fpstate_same(before, clb_fpstate_get()));
    volatile float tiny = 1e-39f;
    assert_true(tiny * 1.0f > 0.0f); /* denormals still exist */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char file[64];
        snprintf(file, sizeof file, "/%s.so", cases[i].plugin);
        if (!strncmp(cases[i].plugin, "fp_", 3) && !fp_control_works())
            continue;
        fixture_assert_state(&f, file, CLB_PLUGIN_REJECTED, cases[i].reason);
        assert_int_equal(fixture_n_components(&f, file), 0);
        assert_true(test_contains(f.log_text, cases[i].reason));
    }
    /* Its own function, not the one of the same name in this executable. */
    fixture_assert_state(&f, "/same_name.so", CLB_PLUGIN_LOADED, NULL);
    fixture_assert_state(&f, "/good.so", CLB_PLUGIN_LOADED, NULL);
    assert_true(test_contains(f.log_text, "3 plugin test.good: hello world\n"));
    fixture_end(&f);
}

static void test_nothing_is_mapped_by_looking(void **state)
{
    (void)state;
    fixture f;
    fixture_begin(&f);
    fixture_install(&f, "constructor", NULL);
    unsetenv("COLIBRI_TEST_CONSTRUCTOR_RAN");
    fixture_open(&f);
    fixture_assert_state(&f, "/constructor.so", CLB_PLUGIN_AVAILABLE, NULL);
    assert_null(getenv("COLIBRI_TEST_CONSTRUCTOR_RAN"));
    assert_string_equal(fixture_kernel_for(&f, 1), "test.q4_0");
    assert_non_null(getenv("COLIBRI_TEST_CONSTRUCTOR_RAN"));
    fixture_end(&f);
}

static void test_replaced_after_it_was_judged(void **state)
{
    (void)state;
    fixture f;
    fixture_begin(&f);
    fixture_install(&f, "good", "x");
    fixture_open(&f);
    fixture_install(&f, "good-higher", "x");
    assert_string_equal(fixture_kernel_for(&f, 1), "none");
    fixture_assert_state(&f, "/x.so", CLB_PLUGIN_REJECTED, "has changed since");
    fixture_open(&f);
    char path[PATH_MAX];
    assert_int_equal(unlink(test_dir_file(&f.dir, "x.so", path)), 0);
    assert_string_equal(fixture_kernel_for(&f, 1), "none");
    fixture_assert_state(&f, "/x.so", CLB_PLUGIN_REJECTED, "No such file");
    fixture_end(&f);
}

static void test_bad_tables_are_skipped(void **state)
{
    (void)state;
    fixture f;
    fixture_begin(&f);
    fixture_install(&f, "bad_tables", NULL);
    fixture_install(&f, "endless", NULL);
    fixture_install(&f, "empty", NULL);
    fixture_open(&f);
    fixture_load_all(&f);
    static const char *const sound[] = {"sound", "sound-vec", "Q_TEST", "sound-policy"};
    for (size_t i = 0; i < 4; i++)
        if (!fixture_has_component(&f, sound[i]))
            fail_msg("%s is missing", sound[i]);
    assert_int_equal(fixture_n_components(&f, "/bad_tables.so"), 4);
    const clb_plugin_view p = fixture_view(&f, "/bad_tables.so");
    assert_int_equal(p.state, CLB_PLUGIN_LOADED);
    assert_int_equal(p.bad_components, 12 + 5 + 2 + 5);
    assert_true(fixture_verdict_has(p.verdict, "component", false, "matmul 6 skipped: run is NULL"));
    assert_true(fixture_verdict_has(p.verdict, "component", false, "matmul 8 skipped: run points to no code"));
    assert_true(fixture_verdict_has(p.verdict, "component", false,
                                    "format 1 skipped: GGUF type 2 (Q4_0) has blocks of 32 elements in 18"));
    assert_true(fixture_verdict_has(p.verdict, "component", false, "expert-policy 2 skipped: parameter decay"));
    assert_int_equal(fixture_n_components(&f, "/endless.so"), 1);
    assert_true(fixture_verdict_has(fixture_view(&f, "/endless.so").verdict, "component", false, "too many bad ones"));
    assert_true(fixture_verdict_has(fixture_view(&f, "/empty.so").verdict, "component", false, "no usable component"));
    fixture_end(&f);
}

int main(void)
{
    unsetenv("COLIBRI_PLUGIN_PATH");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty_folder),
        cmocka_unit_test(test_every_builtin_is_sound),
        cmocka_unit_test(test_search_path),
        cmocka_unit_test(test_relative_config_folder),
        cmocka_unit_test(test_permissions),
        cmocka_unit_test(test_foreign_owner),
        cmocka_unit_test(test_filter),
        cmocka_unit_test(test_deny),
        cmocka_unit_test(test_two_copies),
        cmocka_unit_test(test_failed_one_gives_its_place_back),
        cmocka_unit_test(test_bad_plugins_are_rejected),
        cmocka_unit_test(test_nothing_is_mapped_by_looking),
        cmocka_unit_test(test_replaced_after_it_was_judged),
        cmocka_unit_test(test_bad_tables_are_skipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
