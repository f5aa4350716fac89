#include "support/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cpu/cpu.h"

static void collect(void *ctx, int level, const char *line)
{
    fixture *const f = ctx;
    const size_t n = strlen(f->log_text);
    snprintf(f->log_text + n, sizeof f->log_text - n, "%d %s\n", level, line);
}

void fixture_begin(fixture *f)
{
    memset(f, 0, sizeof *f);
    test_dir_create(&f->dir);
    f->log = (clb_log){.level = COLIBRI_LOG_DEBUG, .write = collect, .ctx = f};
    f->dirs[0] = f->dir.path;
    f->options = (clb_registry_options){.dirs = f->dirs, .n_dirs = 1, .log = &f->log};
    clb_cpu_detect(&f->options.cpu);
}

void fixture_open(fixture *f)
{
    clb_error err;
    clb_registry_close(f->reg);
    f->reg = NULL;
    *f->log_text = '\0';
    assert_ok(clb_registry_open(&f->options, &f->reg, &err), &err);
}

void fixture_end(fixture *f)
{
    clb_registry_close(f->reg);
    test_dir_remove(&f->dir);
}

/* Copies a test plugin into the folder, under another name or its own. */
void fixture_install(const fixture *f, const char *plugin, const char *as)
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
    remove(test_dir_file(&f->dir, name, to)); /* it may be mapped: a new file, not new bytes under running code */
    test_write_file(to, data, n);
    assert_int_equal(chmod(to, 0644), 0);
    free(data);
}

/* Overwrites bytes of an installed plugin's note. */
void fixture_patch(const fixture *f, const char *file, size_t offset, const void *bytes, size_t n)
{
    char path[PATH_MAX];
    size_t size;
    char *const data = test_read_file(test_dir_file(&f->dir, file, path), &size);
    char *const note = memmem(data, size, "\1\0\0\0Colibri", 12);
    assert_non_null(note);
    memcpy(note + 12 + offset, bytes, n);
    remove(path); /* as above */
    test_write_file(path, data, size);
    assert_int_equal(chmod(path, 0644), 0);
    free(data);
}

/* The plugin whose file has this name, or (no slash) the id of a linked-in one. */
clb_plugin_view fixture_view(const fixture *f, const char *file)
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

void fixture_assert_state(const fixture *f, const char *file, enum clb_plugin_state state, const char *reason)
{
    const clb_plugin_view p = fixture_view(f, file);
    if (p.state != state)
        fail_msg("%s is %s (%s), not %s", file, clb_plugin_state_name(p.state), p.reason ? p.reason : "",
                 clb_plugin_state_name(state));
    if (reason && (!p.reason || !test_contains(p.reason, reason)))
        fail_msg("%s: reason \"%s\" lacks \"%s\"", file, p.reason ? p.reason : "", reason);
}

void fixture_load_all(fixture *f)
{
    for (size_t i = 0; i < clb_registry_n_plugins(f->reg); i++)
        clb_registry_load(f->reg, i);
}

size_t fixture_n_components(const fixture *f, const char *file)
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

bool fixture_has_component(const fixture *f, const char *name)
{
    for (size_t i = 0; i < clb_registry_n_components(f->reg); i++) {
        clb_component_view c;
        clb_registry_component(f->reg, i, &c);
        if (!strcmp(c.name, name))
            return true;
    }
    return false;
}

const char *fixture_kernel_for(fixture *f, uint32_t n_x)
{
    clb_error err;
    const struct colibri_format *const format = clb_registry_format(f->reg, COLIBRI_TYPE_Q4_0, &err);
    if (!format)
        fail_msg("%s", err.msg);
    const struct colibri_matmul *const m = clb_registry_matmul(f->reg, format, n_x);
    return m ? m->name : "none";
}

bool fixture_verdict_has(const clb_verdict *v, const char *rule, bool pass, const char *part)
{
    for (size_t i = 0; i < v->n; i++)
        if (!strcmp(v->checks[i].rule, rule) && v->checks[i].pass == pass && test_contains(v->checks[i].detail, part))
            return true;
    return false;
}
