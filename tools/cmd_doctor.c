/* colibri doctor: does this machine fit this model, and what holds it back? */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doctor.h"
#include "json_out.h"
#include "model_run.h"
#include "paths.h"
#include "plugin/open.h"
#include "term.h"

static const clb_flag flags[] = {
    {"deep", 0, NULL, "also compare all checksums of a packed model", false},
    {"no-measure", 0, NULL, "measure nothing: remembered rates, or assumed ones", false},
    {"sysroot", 0, "DIR", "read /proc and /sys below DIR (files taken from another machine)", false},
    {"json", 'j', NULL, "print one JSON object", false},
    {0},
};

static const enum clb_setting settings[] = {CLB_ENGINE_SETTINGS, CLB_SET_COUNT};

/* What to do depends on what is wrong: a file that is not there was not cut short. */
static const char *advice_on(int rc)
{
    switch (rc) {
    case COLIBRI_E_NOT_FOUND:
        return "Check the path; it is relative to the current folder unless it begins with '/'.";
    case COLIBRI_E_IO:
        return "Check that this user may read the file ('ls -lL'), and what the kernel says of the drive ('dmesg').";
    case COLIBRI_E_UNSUPPORTED:
        return "'colibri inspect' shows architecture and formats, README.md lists what can be run.";
    default:
        return "Name a .gguf or .colibri file, and fetch it again if it was cut short; 'colibri inspect' shows its "
               "header.";
    }
}

static int look_at_model(clb_args *args, clb_doctor *d, clb_error *err)
{
    char dir[PATH_MAX];
    const char *const path = clb_config_str(d->config, CLB_SET_model_model);
    clb_engine *engine = NULL;
    const clb_engine_options options = {
        .config = d->config,
        .builtin_plugin_dir = clb_paths_plugin_dir(dir) ? dir : NULL,
        .log = clb_args_log(args),
        .n_sequences = 1,
        .pin_caller = true,
        .plan_only = true,
    };
    int rc = clb_engine_open(&options, &engine, err);
    if (rc == COLIBRI_E_USAGE || rc == COLIBRI_E_NOMEM || rc == COLIBRI_E_CANCELLED)
        return rc;
    if (access(path, F_OK) == 0)
        clb_doctor_drive(d, path);
    if (rc) {
        clb_doctor_add(d, "model", "files", CLB_DOCTOR_FAIL, advice_on(rc), "%s", err->msg);
        return COLIBRI_OK;
    }
    rc = clb_doctor_model(d, engine, err);
    clb_engine_close(engine);
    return rc;
}

static int look_at_all(clb_args *args, clb_doctor *d, clb_error *err)
{
    char dir[PATH_MAX];
    clb_registry *registry;
    CLB_TRY(clb_registry_from_config(d->config, clb_paths_plugin_dir(dir) ? dir : NULL, clb_args_log(args), &registry,
                                     err));
    clb_doctor_cpu(d, registry);
    clb_registry_close(registry);
    clb_doctor_memory(d);
    return *clb_config_str(d->config, CLB_SET_model_model) ? look_at_model(args, d, err) : COLIBRI_OK;
}

static enum clb_doctor_level worst(const clb_doctor *d)
{
    enum clb_doctor_level level = CLB_DOCTOR_OK;
    for (uint32_t i = 0; i < d->n; i++)
        level = d->finding[i].level > level ? d->finding[i].level : level;
    return level;
}

static uint32_t count(const clb_doctor *d, enum clb_doctor_level level)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->n; i++)
        n += d->finding[i].level == level;
    return n;
}

static int print_json(const clb_doctor *d, clb_error *err)
{
    json_t *const list = json_array();
    for (uint32_t i = 0; i < d->n; i++) {
        const clb_finding *f = &d->finding[i];
        json_t *const o = json_pack("{s:s, s:s, s:s, s:o}", "section", f->section, "id", f->id, "level",
                                    clb_doctor_level_name(f->level), "text", clb_json_text(f->text));
        json_object_set_new(o, "advice", *f->advice ? clb_json_text(f->advice) : json_null());
        json_array_append_new(list, o);
    }
    return clb_json_print(json_pack("{s:s, s:i, s:i, s:o}", "worst", clb_doctor_level_name(worst(d)), "failures",
                                    (int)count(d, CLB_DOCTOR_FAIL), "warnings", (int)count(d, CLB_DOCTOR_WARN),
                                    "findings", list),
                          err);
}

static void print_section(const clb_doctor *d, const char *section, const char *title)
{
    static const char *const marks[] = {"ok   ", "note ", "WARN ", "FAIL "};
    bool any = false;
    for (uint32_t i = 0; i < d->n; i++) {
        const clb_finding *f = &d->finding[i];
        if (strcmp(f->section, section) != 0)
            continue;
        if (!any)
            printf("%s\n", title);
        any = true;
        printf("  %s", marks[f->level]);
        clb_term_text(stdout, f->text, strlen(f->text));
        printf("\n");
        if (*f->advice && f->level != CLB_DOCTOR_OK)
            printf("       -> %s\n", f->advice);
    }
}

static void print_text(const clb_doctor *d, bool model)
{
    print_section(d, "cpu", "CPU");
    print_section(d, "memory", "Memory");
    print_section(d, "drive", "Drive");
    print_section(d, "model", "Model");
    print_section(d, "plan", "Plan");
    printf("\n%u failures, %u warnings, %u notes", count(d, CLB_DOCTOR_FAIL), count(d, CLB_DOCTOR_WARN),
           count(d, CLB_DOCTOR_NOTE));
    printf(model ? "\n" : "; with -m MODEL also the model, its drive and its plan\n");
}

static int run(clb_args *args, clb_error *err)
{
    clb_doctor *const d = calloc(1, sizeof *d);
    if (!d)
        return CLB_NOMEM(err, "findings");
    const char *const root = clb_args_value(args, "sysroot");
    d->root = root ? root : "";
    d->config = clb_args_config(args);
    d->log = clb_args_log(args);
    d->measure = !clb_args_has(args, "no-measure");
    d->deep = clb_args_has(args, "deep");
    int rc = look_at_all(args, d, err);
    if (!rc && clb_args_has(args, "json"))
        rc = print_json(d, err);
    else if (!rc)
        print_text(d, *clb_config_str(d->config, CLB_SET_model_model));
    if (!rc && worst(d) == CLB_DOCTOR_FAIL)
        rc = clb_fail(err, COLIBRI_E_CHECK, "this machine cannot run the model like this: %u failure%s",
                      count(d, CLB_DOCTOR_FAIL), count(d, CLB_DOCTOR_FAIL) == 1 ? "" : "s");
    free(d);
    return rc;
}

const struct clb_command clb_command_doctor = {
    .name = "doctor",
    .summary = "tell whether a model fits this machine, and what slows it",
    .usage = "colibri doctor [-m MODEL] [--max-memory SIZE] [flags]",
    .description = "Looks at the CPU and the kernel plugins that it gets, cores, quotas, frequency and NUMA; at "
                   "memory, limits, swap and huge "
                   "pages; with a model also at the drive below it (kind, encryption, network, measured throughput), "
                   "at its files, and at the "
                   "plan for the given budget. Each finding says what to do about it.\n"
                   "\n"
                   "The exit code is 0 if nothing failed (warnings included), 1 if the model cannot run like this.",
    .examples = "colibri doctor   # the machine\n"
                "colibri doctor -m model.gguf --max-memory 12G   # the model on it\n"
                "colibri doctor -m model.colibri --deep   # with all checksums\n"
                "colibri doctor --json | jq -r '.findings[] | select(.level != \"ok\") | .advice'   # what to do\n",
    .flags = flags,
    .settings = settings,
    .max_positional = 0,
    .run = run,
};
