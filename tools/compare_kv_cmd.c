/* colibri compare --strategies / --from: what is asked for, then the reports. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "compare_kv_run.h"

/* Everything named by --from in one table. */
static int read_all(clb_kvc *c, clb_args *args, clb_error *err)
{
    const char *const *files;
    const size_t n = clb_args_values(args, "from", &files);
    for (size_t i = 0; i < n; i++)
        CLB_TRY(clb_kvc_read_file(c, files[i], clb_args_log(args), NULL, err));
    return COLIBRI_OK;
}

static int check_flags(clb_args *args, clb_error *err)
{
    static const char *const of_runs[] = {"task", "budgets", "items", "see-question", "chunk", "jsonl", "continue"};
    if (clb_args_has(args, "from") && clb_args_has(args, "strategies"))
        return clb_fail(err, COLIBRI_E_USAGE, "--from runs nothing: --strategies does not go with it");
    for (size_t i = 0; clb_args_has(args, "from") && i < sizeof of_runs / sizeof *of_runs; i++)
        if (clb_args_has(args, of_runs[i]))
            return clb_fail(err, COLIBRI_E_USAGE, "--from runs nothing: --%s does not go with it", of_runs[i]);
    if (clb_args_has(args, "json") && clb_args_has(args, "markdown"))
        return clb_fail(err, COLIBRI_E_USAGE, "--json and --markdown exclude each other");
    if (clb_args_has(args, "continue") && !clb_args_has(args, "jsonl"))
        return clb_fail(err, COLIBRI_E_USAGE, "--continue needs the file to continue: --jsonl FILE");
    return COLIBRI_OK;
}

static int report(clb_kvc *c, clb_args *args, clb_error *err)
{
    if (c->n_records == 0) {
        if (!c->interrupted)
            return clb_fail(err, COLIBRI_E_USAGE, "there are no results to report");
        return COLIBRI_OK;
    }
    c->seed = (uint64_t)json_integer_value(json_object_get(json_object_get(c->header, "decides"), "seed"));
    CLB_TRY(clb_kvc_summarize(c, clb_args_value(args, "baseline"), err));
    int rc = COLIBRI_OK;
    if (clb_args_has(args, "json"))
        rc = clb_kvc_print_json(c, err);
    else if (clb_args_has(args, "markdown"))
        clb_kvc_print_markdown(c, stdout);
    else
        clb_kvc_print(c, stdout);
    const char *const html = clb_args_value(args, "html");
    return html && !rc ? clb_kvc_write_html(c, html, clb_args_has(args, "force"), err) : rc;
}

/* Before hours of work: whether the page can be written at its end. */
static int check_page(clb_args *args, clb_error *err)
{
    const char *const path = clb_args_value(args, "html");
    struct stat st;
    clb_new_file f;
    if (!path || (stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)))
        return COLIBRI_OK; /* opening a pipe would be seen at its other end */
    const int rc = clb_file_begin(&f, path, clb_args_has(args, "force"), err);
    clb_file_drop(&f);
    return rc;
}

int clb_compare_kv(clb_args *args, clb_error *err)
{
    CLB_TRY(check_flags(args, err));
    CLB_TRY(check_page(args, err));
    clb_kvc *const c = calloc(1, sizeof *c);
    if (!c)
        return CLB_NOMEM(err, "comparison");
    c->baseline = CLB_KVC_NONE;
    clb_error second = {0};
    int rc = clb_args_has(args, "from") ? read_all(c, args, err) : clb_kvc_run(c, args, err);
    if (!rc)
        rc = report(c, args, err);
    else if (c->n_run) /* what is complete is shown whatever ended the run */
        (void)report(c, args, &second);
    if (!rc && c->interrupted)
        rc = clb_fail(err, COLIBRI_E_CANCELLED, "stopped on request after %u results", c->n_records);
    clb_kvc_free(c);
    free(c);
    return rc;
}
