/* The registry: search path, filter, shadows, loading, selection, misbehaviour. */
#include "support.h"

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

/* ---- folders, registries, log ------------------------------------------------------------------------------------ */

typedef struct fixture {
    test_dir dir;
    clb_registry_options options;
    const char *dirs[4];
    clb_registry *reg;
    char log_text[16384];
    clb_log log;
} fixture;

static void collect(void *ctx, int level, const char *line)
{
    fixture *const f = ctx;
    const size_t n = strlen(f->log_text);
    snprintf(f->log_text + n, sizeof f->log_text - n, "%d %s\n", level, line);
}

static void begin(fixture *f)
{
    memset(f, 0, sizeof *f);
    test_dir_create(&f->dir);
    f->log = (clb_log){.level = COLIBRI_LOG_DEBUG, .write = collect, .ctx = f};
    f->dirs[0] = f->dir.path;
    f->options = (clb_registry_options){.dirs = f->dirs, .n_dirs = 1, .log = &f->log};
    clb_cpu_detect(&f->options.cpu);
}

static void reopen(fixture *f)
{
    clb_error err;
    clb_registry_close(f->reg);
    f->reg = NULL;
    *f->log_text = '\0';
    assert_ok(clb_registry_open(&f->options, &f->reg, &err), &err);
}

static void end(fixture *f)
{
    clb_registry_close(f->reg);
    test_dir_remove(&f->dir);
}

/* Copies a test plugin into the folder, under another name or its own. */
static void install(const fixture *f, const char *plugin, const char *as)
{
    char from[PATH_MAX], to[PATH_MAX], name[128];
    snprintf(from, sizeof from, "%s/tests/plugins-bad/%s.so", COLIBRI_TEST_BINARY_DIR, plugin);
    snprintf(name, sizeof name, "%s.so", as ? as : plugin);
    size_t n;
    char *const data = test_read_file(from, &n);
    char *const slash = strrchr(name, '/');
    if (slash) {
        *slash = '\0';
        mkdir(test_dir_file(&f->dir, name, to), 0755);
        *slash = '/';
    }
    test_write_file(test_dir_file(&f->dir, name, to), data, n);
    assert_int_equal(chmod(to, 0644), 0);
    free(data);
}

/* Overwrites bytes of an installed plugin's note. */
static void patch(const fixture *f, const char *file, size_t offset, const void *bytes, size_t n)
{
    char path[PATH_MAX];
    size_t size;
    char *const data = test_read_file(test_dir_file(&f->dir, file, path), &size);
    char *const note = memmem(data, size, "\1\0\0\0Colibri", 12);
    assert_non_null(note);
    memcpy(note + 12 + offset, bytes, n);
    test_write_file(path, data, size);
    free(data);
}

/* The plugin whose file has this name, or (no slash) the id of a linked-in one. */
static clb_plugin_view view(const fixture *f, const char *file)
{
    clb_plugin_view p;
    for (size_t i = 0; i < clb_registry_n_plugins(f->reg); i++) {
        clb_registry_plugin(f->reg, i, &p);
        if (p.path && test_contains(p.path, file) && !strcmp(strstr(p.path, file), file))
            return p;
        if (!p.path && !strcmp(p.id, file))
            return p;
    }
    fail_msg("no plugin %s", file);
    return p;
}

static void assert_state(const fixture *f, const char *file, enum clb_plugin_state state, const char *reason)
{
    const clb_plugin_view p = view(f, file);
    if (p.state != state)
        fail_msg("%s is %s (%s), not %s", file, clb_plugin_state_name(p.state), p.reason ? p.reason : "",
                 clb_plugin_state_name(state));
    if (reason && (!p.reason || !test_contains(p.reason, reason)))
        fail_msg("%s: reason \"%s\" lacks \"%s\"", file, p.reason ? p.reason : "", reason);
}

static void load_all(fixture *f)
{
    for (size_t i = 0; i < clb_registry_n_plugins(f->reg); i++)
        clb_registry_load(f->reg, i);
}

static size_t n_components(const fixture *f, const char *file)
{
    size_t n = 0;
    for (size_t i = 0; i < clb_registry_n_components(f->reg); i++) {
        clb_component_view c;
        clb_plugin_view p;
        clb_registry_component(f->reg, i, &c);
        clb_registry_plugin(f->reg, c.plugin, &p);
        n += p.path && test_contains(p.path, file);
    }
    return n;
}

static bool has_component(const fixture *f, const char *name)
{
    for (size_t i = 0; i < clb_registry_n_components(f->reg); i++) {
        clb_component_view c;
        clb_registry_component(f->reg, i, &c);
        if (!strcmp(c.name, name))
            return true;
    }
    return false;
}

static const char *kernel_for(fixture *f, uint32_t n_x)
{
    clb_error err;
    const struct colibri_format *const format = clb_registry_format(f->reg, COLIBRI_TYPE_Q4_0, &err);
    if (!format)
        fail_msg("%s", err.msg);
    const struct colibri_matmul *const m = clb_registry_matmul(f->reg, format, n_x);
    return m ? m->name : "none";
}

static bool verdict_has(const clb_verdict *v, const char *rule, bool pass, const char *part)
{
    for (size_t i = 0; i < v->n; i++)
        if (!strcmp(v->checks[i].rule, rule) && v->checks[i].pass == pass && test_contains(v->checks[i].detail, part))
            return true;
    return false;
}

/* ---- nothing there ------------------------------------------------------------------------------------------------ */

static void test_empty_folder(void **state)
{
    (void)state;
    fixture f;
    clb_error err = {0};
    begin(&f);
    reopen(&f);
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
    end(&f);
}

static void test_every_builtin_is_sound(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    reopen(&f);
    load_all(&f);
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
    end(&f);
}

/* ---- search path ---------------------------------------------------------------------------------------------------- */

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
    begin(&f);
    install(&f, "good", "env/good");
    install(&f, "good-newer", "b");
    install(&f, "good", "a");
    install(&f, "good", "not-a-plugin.so.1"); /* ends in .so.1.so: still a .so */
    install(&f, "good", ".hidden");
    mkdir(test_dir_file(&f.dir, "folder.so", sub), 0755);
    test_write_text(test_dir_file(&f.dir, "text.so", sub), "not an object\n");
    test_write_text(test_dir_file(&f.dir, "README", sub), "not looked at\n");
    assert_int_equal(mkfifo(test_dir_file(&f.dir, "fifo.so", sub), 0644), 0);
    assert_int_equal(symlink("/nonexistent/x.so", test_dir_file(&f.dir, "dangling.so", sub)), 0);
    test_dir_file(&f.dir, "env", sub);
    assert_int_equal(symlink(sub, test_dir_file(&f.dir, "env-again", link_path)), 0);
    snprintf(env, sizeof env, ":relative/dir:%s:/nonexistent:%s", sub, link_path);
    assert_int_equal(setenv("COLIBRI_PLUGIN_PATH", env, 1), 0);

    reopen(&f); /* use_env is off */
    assert_int_equal(clb_registry_n_dirs(f.reg), 1);
    f.options.use_env = true;
    reopen(&f);
    assert_int_equal(clb_registry_n_dirs(f.reg), 6);
    assert_string_equal(dir_called(&f, "")->refused, "an empty component of the path");
    assert_string_equal(dir_called(&f, "relative/dir")->refused, "not an absolute path");
    assert_string_equal(dir_called(&f, "/nonexistent")->refused, "does not exist");
    assert_true(test_contains(dir_called(&f, link_path)->refused, "the same folder as"));
    assert_null(dir_called(&f, sub)->refused);
    assert_string_equal(dir_called(&f, sub)->origin, "COLIBRI_PLUGIN_PATH");
    assert_string_equal(dir_called(&f, f.dir.path)->origin, "config");

    /* Sorted by name inside a folder, folders in order; odd files are refused with a reason. */
    assert_state(&f, "/folder.so", CLB_PLUGIN_REJECTED, "not a regular file");
    assert_state(&f, "/fifo.so", CLB_PLUGIN_REJECTED, "not a regular file");
    assert_state(&f, "/dangling.so", CLB_PLUGIN_REJECTED, "cannot resolve");
    assert_state(&f, "/text.so", CLB_PLUGIN_REJECTED, "not an ELF file");
    size_t seen = 0;
    static const char *const order[] = {"a.so", "b.so", "dangling.so", "fifo.so", "folder.so", "not-a-plugin.so.1.so", "text.so", "good.so"};
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
    end(&f);
}

static void test_relative_config_folder(void **state)
{
    (void)state;
    fixture f;
    clb_error err;
    begin(&f);
    f.dirs[0] = "plugins";
    assert_fails(clb_registry_open(&f.options, &f.reg, &err), &err, COLIBRI_E_USAGE, "'plugins' is not an absolute path");
    f.dirs[0] = "";
    assert_fails(clb_registry_open(&f.options, &f.reg, &err), &err, COLIBRI_E_USAGE, "not an absolute path");
    end(&f);
}

static void test_permissions(void **state)
{
    (void)state;
    fixture f;
    char path[PATH_MAX], link_path[PATH_MAX];
    begin(&f);
    install(&f, "good", "good");
    test_dir_file(&f.dir, "good.so", path);
    static const struct {
        mode_t mode;
        const char *reason;
    } files[] = {{0666, "by everybody (mode 0666)"}, {0664, "by its group (mode 0664)"}, {0642, "by everybody"}, {0600, NULL}, {0444, NULL}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        assert_int_equal(chmod(path, files[i].mode), 0);
        reopen(&f);
        assert_state(&f, "/good.so", files[i].reason ? CLB_PLUGIN_REJECTED : CLB_PLUGIN_AVAILABLE, files[i].reason);
    }
    static const mode_t dirs[] = {0777, 01777, 0770, 0707};
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        assert_int_equal(chmod(f.dir.path, dirs[i]), 0);
        reopen(&f);
        assert_true(test_contains(dir_called(&f, f.dir.path)->refused, "writable"));
        assert_true(test_contains(f.log_text, "chmod go-w"));
        load_all(&f);
        assert_false(has_component(&f, "good.q4_0"));
    }
    assert_int_equal(chmod(f.dir.path, 0755), 0);

    /* A link out of a good folder into a bad one. */
    install(&f, "good", "open/target");
    assert_int_equal(chmod(test_dir_file(&f.dir, "open", path), 0777), 0);
    assert_int_equal(symlink("open/target.so", test_dir_file(&f.dir, "link.so", link_path)), 0);
    reopen(&f);
    assert_state(&f, "/open/target.so", CLB_PLUGIN_REJECTED, "symbolic link leads to");
    assert_int_equal(chmod(path, 0755), 0);
    reopen(&f);
    assert_state(&f, "/open/target.so", CLB_PLUGIN_SHADOWED, NULL); /* of good.so, found first */
    /* Two names of one file. */
    assert_int_equal(link(test_dir_file(&f.dir, "good.so", path), test_dir_file(&f.dir, "twice.so", link_path)), 0);
    reopen(&f);
    assert_state(&f, "/twice.so", CLB_PLUGIN_REJECTED, "the same file as");
    end(&f);
}

static void test_foreign_owner(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip(); /* only root can give files away */
    fixture f;
    char path[PATH_MAX];
    begin(&f);
    install(&f, "good", NULL);
    assert_int_equal(chown(test_dir_file(&f.dir, "good.so", path), 12345, (gid_t)-1), 0);
    reopen(&f);
    assert_state(&f, "/good.so", CLB_PLUGIN_REJECTED, "belongs to user 12345");
    assert_int_equal(chown(path, 0, (gid_t)-1), 0);
    assert_int_equal(chown(f.dir.path, 12345, (gid_t)-1), 0);
    reopen(&f);
    assert_true(test_contains(dir_called(&f, f.dir.path)->refused, "belongs to user 12345"));
    assert_int_equal(chown(f.dir.path, 0, (gid_t)-1), 0);
    end(&f);
}

/* ---- filter --------------------------------------------------------------------------------------------------------- */

#define AT(field) offsetof(struct colibri_note_desc, field)

static void test_filter(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    const uint16_t major = COLIBRI_ABI_MAJOR + 1;
    const uint64_t sse3 = COLIBRI_CPU0(SSE3), future = UINT64_C(1) << 62, neon = COLIBRI_CPU1(NEON);
    install(&f, "good", "abi");
    patch(&f, "abi.so", AT(abi_major), &major, sizeof major);
    install(&f, "good", "future");
    patch(&f, "future.so", AT(cpu), &future, sizeof future);
    install(&f, "good", "needs");
#if defined(__x86_64__)
    patch(&f, "needs.so", AT(cpu), &sse3, sizeof sse3);
    patch(&f, "needs.so", AT(id), "test.food", 9);
    patch(&f, "needs.so", AT(symbol), "colibri_plugin_test_food", 24);
    (void)neon;
#else
    patch(&f, "needs.so", AT(cpu) + 8, &neon, sizeof neon);
    (void)sse3;
#endif
    reopen(&f);
    assert_state(&f, "/abi.so", CLB_PLUGIN_REJECTED, "built for plugin ABI 2.0, this Colibri has 1.0");
    assert_string_equal(view(&f, "/abi.so").id, "test.good");
    assert_true(verdict_has(view(&f, "/abi.so").verdict, "abi", false, "2.0"));
    assert_state(&f, "/future.so", CLB_PLUGIN_REJECTED, "does not know: bit 62");
    assert_state(&f, "/needs.so", CLB_PLUGIN_AVAILABLE, NULL);
    assert_true(verdict_has(view(&f, "/needs.so").verdict, "cpu", true, "all usable"));

    f.options.cpu = clb_cpu_mask(f.options.cpu, clb_cpu_known());
    reopen(&f);
    assert_state(&f, "/needs.so", CLB_PLUGIN_REJECTED, "needs ");
    load_all(&f);
    assert_false(has_component(&f, "good.q4_0"));
    end(&f);
}

static void test_deny(void **state)
{
    (void)state;
    fixture f;
    clb_error err;
    begin(&f);
    install(&f, "good", NULL);
    install(&f, "inexact", NULL);
    static const char *const one[] = {"test.good"}, *const rest[] = {"test.*"}, *const all[] = {"*"}, *const typo[] = {"test.goood"};
    f.options.n_deny = 1;
    f.options.deny = one;
    reopen(&f);
    assert_state(&f, "/good.so", CLB_PLUGIN_REJECTED, "denied by \"test.good\"");
    assert_state(&f, "/inexact.so", CLB_PLUGIN_AVAILABLE, NULL);
    assert_null(clb_registry_expert_policy(f.reg, "test.good", &err));
    assert_true(test_contains(err.msg, "denied by"));
    f.options.deny = rest;
    reopen(&f);
    assert_state(&f, "/inexact.so", CLB_PLUGIN_REJECTED, "denied by \"test.*\"");
    f.options.deny = all; /* files only: what is linked in is the last resort */
    reopen(&f);
    assert_string_equal(kernel_for(&f, 1), "none");
    f.options.deny = typo;
    reopen(&f);
    assert_state(&f, "/good.so", CLB_PLUGIN_AVAILABLE, NULL);
    assert_true(test_contains(f.log_text, "no plugin is called 'test.goood'; did you mean 'test.good'?"));
    end(&f);
}

/* ---- shadows ---------------------------------------------------------------------------------------------------------- */

static void test_two_copies(void **state)
{
    (void)state;
    fixture f;
    char sub[PATH_MAX];
    begin(&f);
    install(&f, "good", "first");
    install(&f, "good", "second");
    reopen(&f); /* equal: the earlier one */
    assert_state(&f, "/first.so", CLB_PLUGIN_AVAILABLE, NULL);
    assert_state(&f, "/second.so", CLB_PLUGIN_SHADOWED, "first.so");
    install(&f, "good-higher", "later/x");
    f.dirs[1] = test_dir_file(&f.dir, "later", sub);
    f.options.n_dirs = 2;
    reopen(&f); /* the higher rank */
    assert_state(&f, "/later/x.so", CLB_PLUGIN_AVAILABLE, NULL);
    assert_state(&f, "/first.so", CLB_PLUGIN_SHADOWED, "later/x.so");
    assert_state(&f, "/second.so", CLB_PLUGIN_SHADOWED, NULL);
    install(&f, "good-newer", "zz");
    reopen(&f); /* the newer version, whatever the rank: 1.10 > 1.2 */
    assert_state(&f, "/zz.so", CLB_PLUGIN_AVAILABLE, NULL);
    assert_state(&f, "/later/x.so", CLB_PLUGIN_SHADOWED, "zz.so");
    assert_true(verdict_has(view(&f, "/zz.so").verdict, "id", true, "version 1.2.3 < 1.10.0"));
    const uint64_t future = UINT64_C(1) << 62;
    patch(&f, "zz.so", AT(cpu), &future, sizeof future);
    reopen(&f); /* one that cannot run here shadows nobody */
    assert_state(&f, "/later/x.so", CLB_PLUGIN_AVAILABLE, NULL);
    end(&f);
}

static void test_failed_one_gives_its_place_back(void **state)
{
    (void)state;
    fixture f;
    clb_error err;
    begin(&f);
    install(&f, "good", "old");
    /* A newer "test.good" whose symbol is missing: the same note on an object that exports something else. */
    install(&f, "no_symbol", "new");
    patch(&f, "new.so", AT(id), "test.good\0\0\0\0\0", 14);
    patch(&f, "new.so", AT(symbol), "colibri_plugin_test_good\0\0\0\0\0", 29);
    patch(&f, "new.so", AT(version), "9.0", 4);
    reopen(&f);
    assert_state(&f, "/new.so", CLB_PLUGIN_AVAILABLE, NULL);
    assert_state(&f, "/old.so", CLB_PLUGIN_SHADOWED, "new.so");
    assert_null(clb_registry_expert_policy(f.reg, "good-policy", &err)); /* the newer edition does not declare one */
    assert_string_equal(kernel_for(&f, 1), "good.q4_0");
    assert_non_null(clb_registry_expert_policy(f.reg, "good-policy", &err));
    assert_state(&f, "/new.so", CLB_PLUGIN_REJECTED, "does not export");
    assert_state(&f, "/old.so", CLB_PLUGIN_LOADED, NULL);
    assert_true(verdict_has(view(&f, "/old.so").verdict, "id", true, "takes its place"));
    end(&f);
}

/* ---- loading ---------------------------------------------------------------------------------------------------------- */

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
    begin(&f);
    install(&f, "good", NULL);
    install(&f, "same_name", NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        install(&f, cases[i].plugin, NULL);
    reopen(&f);
    const clb_fpstate before = clb_fpstate_get();
    /* Rank 1000 or not: one failing plugin never keeps the others from working. */
    assert_string_equal(kernel_for(&f, 1), "good.q4_0");
    assert_true(clb_fpstate_same(before, clb_fpstate_get()));
    volatile float tiny = 1e-39f;
    assert_true(tiny * 1.0f > 0.0f); /* denormals still exist */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char file[64];
        snprintf(file, sizeof file, "/%s.so", cases[i].plugin);
        if (!strncmp(cases[i].plugin, "fp_", 3) && !fp_control_works())
            continue;
        assert_state(&f, file, CLB_PLUGIN_REJECTED, cases[i].reason);
        assert_int_equal(n_components(&f, file), 0);
        assert_true(test_contains(f.log_text, cases[i].reason));
    }
    /* Its own function, not the one of the same name in this executable. */
    assert_state(&f, "/same_name.so", CLB_PLUGIN_LOADED, NULL);
    assert_state(&f, "/good.so", CLB_PLUGIN_LOADED, NULL);
    assert_true(test_contains(f.log_text, "3 plugin test.good: hello world\n"));
    end(&f);
}

static void test_nothing_is_mapped_by_looking(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    install(&f, "constructor", NULL);
    unsetenv("COLIBRI_TEST_CONSTRUCTOR_RAN");
    reopen(&f);
    assert_state(&f, "/constructor.so", CLB_PLUGIN_AVAILABLE, NULL);
    assert_null(getenv("COLIBRI_TEST_CONSTRUCTOR_RAN"));
    assert_string_equal(kernel_for(&f, 1), "test.q4_0");
    assert_non_null(getenv("COLIBRI_TEST_CONSTRUCTOR_RAN"));
    end(&f);
}

static void test_replaced_after_it_was_judged(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    install(&f, "good", "x");
    reopen(&f);
    install(&f, "good-higher", "x");
    assert_string_equal(kernel_for(&f, 1), "none");
    assert_state(&f, "/x.so", CLB_PLUGIN_REJECTED, "has changed since");
    reopen(&f);
    char path[PATH_MAX];
    assert_int_equal(unlink(test_dir_file(&f.dir, "x.so", path)), 0);
    assert_string_equal(kernel_for(&f, 1), "none");
    assert_state(&f, "/x.so", CLB_PLUGIN_REJECTED, "No such file");
    end(&f);
}

static void test_bad_tables_are_skipped(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    install(&f, "bad_tables", NULL);
    install(&f, "endless", NULL);
    install(&f, "empty", NULL);
    reopen(&f);
    load_all(&f);
    static const char *const sound[] = {"sound", "sound-vec", "Q_TEST", "sound-policy"};
    for (size_t i = 0; i < 4; i++)
        if (!has_component(&f, sound[i]))
            fail_msg("%s is missing", sound[i]);
    assert_int_equal(n_components(&f, "/bad_tables.so"), 4);
    const clb_plugin_view p = view(&f, "/bad_tables.so");
    assert_int_equal(p.state, CLB_PLUGIN_LOADED);
    assert_int_equal(p.bad_components, 12 + 5 + 2 + 5);
    assert_true(verdict_has(p.verdict, "component", false, "matmul 6 skipped: run is NULL"));
    assert_true(verdict_has(p.verdict, "component", false, "matmul 8 skipped: run points to no code"));
    assert_true(verdict_has(p.verdict, "component", false, "format 1 skipped: GGUF type 2 (Q4_0) has blocks of 32 elements in 18"));
    assert_true(verdict_has(p.verdict, "component", false, "expert-policy 2 skipped: parameter decay"));
    assert_int_equal(n_components(&f, "/endless.so"), 1);
    assert_true(verdict_has(view(&f, "/endless.so").verdict, "component", false, "too many bad ones"));
    assert_true(verdict_has(view(&f, "/empty.so").verdict, "component", false, "no usable component"));
    end(&f);
}

/* ---- selection -------------------------------------------------------------------------------------------------------- */

static void test_selection_order(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    install(&f, "good", NULL);
    install(&f, "inexact", NULL);
    /* inexact.q4_0 (900, 4 ULP) and sse3.q4_0 (800), then good.q4_0 and twin.q4_0 (100 each); layouts and activations that
     * do not fit have rank 990. */
#if defined(__x86_64__)
    reopen(&f);
    assert_string_equal(kernel_for(&f, 1), "sse3.q4_0");
    const struct colibri_cpu_bits all = clb_cpu_known();
    f.options.cpu = clb_cpu_mask(f.options.cpu, all);
#endif
    reopen(&f);
    assert_string_equal(kernel_for(&f, 1), "good.q4_0"); /* same rank: "test.good" < "test.inexact" */
    assert_string_equal(kernel_for(&f, 7), "good.q4_0");
    assert_string_equal(kernel_for(&f, 8), "good.q4_0.batch"); /* same rank, larger min_x */
    assert_string_equal(kernel_for(&f, 4096), "good.q4_0.batch");
    f.options.allow_inexact = true;
    reopen(&f);
    assert_string_equal(kernel_for(&f, 1), "inexact.q4_0");

    static const char *const component[] = {"twin.q4_0"}, *const plugin[] = {"nobody.here", "test.good"};
    static const char *const both[] = {"good.q4_0.batch", "twin.*"};
    f.options.prefer = component;
    f.options.n_prefer = 1;
    reopen(&f);
    assert_string_equal(kernel_for(&f, 1), "twin.q4_0");
    f.options.prefer = plugin;
    f.options.n_prefer = 2;
    reopen(&f);
    assert_string_equal(kernel_for(&f, 1), "good.q4_0");
    assert_true(test_contains(f.log_text, "is called 'nobody.here'"));
    f.options.prefer = both;
    reopen(&f);
    assert_string_equal(kernel_for(&f, 1), "twin.q4_0"); /* the batch kernel does not fit one row */
    assert_string_equal(kernel_for(&f, 9), "good.q4_0.batch");
    end(&f);
}

static void test_vecops_merge(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    install(&f, "good", NULL);       /* add, rank 100 */
    install(&f, "bad_tables", NULL); /* add, rank 0 */
    reopen(&f);
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
    assert_true(verdict_has(&trace, "rank", true, "rank 0 against 100") || verdict_has(&trace, "rank", true, "rank 100 against 0"));
    clb_verdict_free(&trace);
    end(&f);
}

static void test_formats_of_plugins(void **state)
{
    (void)state;
    fixture f;
    clb_error err;
    begin(&f);
    install(&f, "bad_tables", NULL);
    reopen(&f);
    const struct colibri_format *const q = clb_registry_format(f.reg, 200, &err);
    assert_non_null(q);
    assert_string_equal(q->name, "Q_TEST");
    /* Its Q4_0 is broken: the linked-in one serves. */
    assert_string_equal(clb_registry_format(f.reg, COLIBRI_TYPE_Q4_0, &err)->name, "Q4_0");
    assert_null(clb_registry_matmul(f.reg, q, 1));
    /* A rejected plugin that would have offered it is named. */
    install(&f, "bad_tables", "future");
    const uint64_t future = UINT64_C(1) << 62;
    patch(&f, "future.so", AT(cpu), &future, sizeof future);
    patch(&f, "future.so", AT(summary), "Q9_X and others\0", 16);
    reopen(&f);
    assert_null(clb_registry_format_named(f.reg, "q9_x", &err));
    assert_int_equal(err.code, COLIBRI_E_UNSUPPORTED);
    assert_true(test_contains(err.msg, "test.bad-tables") && test_contains(err.msg, "bit 62"));
    end(&f);
}

static void test_named_policies(void **state)
{
    (void)state;
    fixture f;
    clb_error err;
    begin(&f);
    install(&f, "good", NULL);
    install(&f, "bad_tables", NULL);
    reopen(&f);
    const struct colibri_expert_policy *const p = clb_registry_expert_policy(f.reg, "test.good", &err); /* by id */
    assert_non_null(p);
    assert_string_equal(p->name, "good-policy");
    assert_state(&f, "/bad_tables.so", CLB_PLUGIN_AVAILABLE, NULL); /* not needed: not loaded */
    assert_ptr_equal(p, clb_registry_expert_policy(f.reg, "Good-Policy", &err));
    assert_non_null(clb_registry_expert_policy(f.reg, "lru", &err)); /* the id ends with it */
    assert_state(&f, "/bad_tables.so", CLB_PLUGIN_AVAILABLE, NULL);
    assert_non_null(clb_registry_expert_policy(f.reg, "sound-policy", &err));
    assert_state(&f, "/bad_tables.so", CLB_PLUGIN_LOADED, NULL);
    assert_null(clb_registry_expert_policy(f.reg, "sound", &err));
    assert_true(test_contains(err.msg, "good-policy") && test_contains(err.msg, "lru") && test_contains(err.msg, "sound-policy"));
    assert_null(clb_registry_kv_strategy(f.reg, "good-policy", &err)); /* another kind */
    end(&f);
}

/* ---- reports ----------------------------------------------------------------------------------------------------------- */

static void count_use(void *ctx, const char *kind, const char *what, const char *component, const char *plugin_id, const char *path)
{
    char line[512];
    snprintf(line, sizeof line, "%s %s %s %s %s\n", kind, what, component, plugin_id, strrchr(path, '/') ? strrchr(path, '/') : "-");
    strncat(ctx, line, 4000 - strlen(ctx) - 1);
}

static void test_uses_and_misbehaviour(void **state)
{
    (void)state;
    fixture f;
    clb_error err;
    char text[4000] = "";
    begin(&f);
    install(&f, "good", NULL);
    reopen(&f);
    kernel_for(&f, 1);
    kernel_for(&f, 1);
    kernel_for(&f, 64);
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
    assert_state(&f, "/good.so", CLB_PLUGIN_MISBEHAVED, "victim 77");
    clb_registry_misbehaved(f.reg, "nobody", "did something");
    end(&f);
}

static void test_explain(void **state)
{
    (void)state;
    fixture f;
    clb_error err;
    const char *chosen;
    clb_verdict v = {0};
    begin(&f);
    install(&f, "good", NULL);
    install(&f, "good", "copy");
    install(&f, "inexact", NULL);
    const uint64_t future = UINT64_C(1) << 62;
    install(&f, "lies", NULL);
    patch(&f, "lies.so", AT(cpu), &future, sizeof future);
    f.options.cpu = (struct colibri_cpu_bits){{0}};
    reopen(&f);
    assert_ok(clb_registry_explain(f.reg, "Q4_0", &v, &chosen, &err), &err);
    assert_string_equal(chosen, "good.q4_0");
    assert_true(verdict_has(&v, "filter", false, "test.lies"));
    assert_true(verdict_has(&v, "filter", false, "shadowed by"));
    assert_true(verdict_has(&v, "candidate", false, "not exact (up to 4 ULP) and allow-inexact is off"));
    assert_true(verdict_has(&v, "candidate", false, "needs sse3"));
    assert_true(verdict_has(&v, "candidate", false, "meant for at least 8 rows at a time, asked for 1"));
    assert_true(verdict_has(&v, "candidate", false, "layout 0"));
    assert_true(verdict_has(&v, "id", true, "the plugin id that sorts first: good.q4_0"));
    assert_true(verdict_has(&v, "min-x", true, "good.q4_0.batch"));
    assert_true(verdict_has(&v, "choice", true, "kernel: good.q4_0.batch"));
    clb_verdict_free(&v);
    assert_ok(clb_registry_explain(f.reg, "test.lies", &v, &chosen, &err), &err);
    assert_null(chosen);
    assert_true(verdict_has(&v, "cpu", false, "bit 62"));
    clb_verdict_free(&v);
    assert_ok(clb_registry_explain(f.reg, "test.good", &v, &chosen, &err), &err);
    assert_true(test_contains(chosen, "/copy.so")); /* sorts first */
    assert_true(verdict_has(&v, "state", false, "shadowed"));
    clb_verdict_free(&v);
    assert_ok(clb_registry_explain(f.reg, "lru", &v, &chosen, &err), &err);
    assert_string_equal(chosen, "lru");
    clb_verdict_free(&v);
    assert_fails(clb_registry_explain(f.reg, "q4_00", &v, &chosen, &err), &err, COLIBRI_E_NOT_FOUND, "did you mean 'Q4_0'");
    clb_verdict_free(&v);
    end(&f);
}

static void test_hosts(void **state)
{
    (void)state;
    /* Two registries in one process use one plugin; the second host outlives the first. */
    fixture f, g;
    clb_error err;
    begin(&f);
    begin(&g);
    install(&f, "good", NULL);
    g.dirs[0] = f.dir.path;
    reopen(&f);
    reopen(&g);
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
    end(&g);
    end(&f);
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
        cmocka_unit_test(test_selection_order),
        cmocka_unit_test(test_vecops_merge),
        cmocka_unit_test(test_formats_of_plugins),
        cmocka_unit_test(test_named_policies),
        cmocka_unit_test(test_uses_and_misbehaviour),
        cmocka_unit_test(test_explain),
        cmocka_unit_test(test_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
