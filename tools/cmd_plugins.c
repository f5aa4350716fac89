/* colibri plugins: what is there, what is used, and why. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "command.h"
#include "paths.h"
#include "plugin/open.h"
#include "plugins.h"

static const clb_flag flags[] = {
    {"json", 'j', NULL, "print JSON", false},
    {"all", 'a', NULL, "list: also the linked-in copies of what the folders offer", false},
    {"dir", 0, "DIR", "new: the folder to make (default: NAME, here)", false},
    {"id", 0, "ID", "new: the plugin's id (default: org.example.KIND.NAME)", false},
    {"timeout", 0, "SECONDS", "check: time that loading may take (default 10)", false},
    {0},
};

static const enum clb_setting settings[] = {
    CLB_SET_cpu_mask,       CLB_SET_cpu_threads,        CLB_SET_plugins_path,
    CLB_SET_plugins_prefer, CLB_SET_plugins_deny,       CLB_SET_kernels_allow_inexact,
    CLB_SET_kernels_select, CLB_SET_kernels_cache_file, CLB_SET_COUNT};

static int parse_timeout(const clb_args *args, unsigned *out, clb_error *err)
{
    *out = 10;
    const char *const text = clb_args_value(args, "timeout");
    if (!text)
        return COLIBRI_OK;
    char *end;
    errno = 0;
    const long v = strtol(text, &end, 10);
    if (errno || *end || end == text || v < 1 || v > 3600)
        return clb_fail(err, COLIBRI_E_USAGE, "--timeout \"%.40s\": a number of seconds from 1 to 3600 is expected",
                        text);
    *out = (unsigned)v;
    return COLIBRI_OK;
}

/* words[0] is the action. */
static int with_registry(const clb_args *args, const char *const *words, bool json, clb_error *err)
{
    const char *const action = words[0];
    char dir[PATH_MAX];
    clb_registry *reg = NULL;
    const bool found = clb_paths_plugin_dir(dir);
    CLB_TRY(clb_registry_from_config(clb_args_config(args), found ? dir : NULL, clb_args_log(args), &reg, err));
    int rc;
    if (!strcmp(action, "list"))
        rc = clb_plugins_list(reg, clb_args_has(args, "all"), json, err);
    else if (!strcmp(action, "info"))
        rc = clb_plugins_info(reg, words[1], json, err);
    else if (!strcmp(action, "why"))
        rc = clb_plugins_why(reg, words[1], json, err);
    else if (!strcmp(action, "new"))
        rc = clb_plugins_new(reg, words[1], words[2], clb_args_value(args, "dir"), clb_args_value(args, "id"), err);
    else
        rc = clb_plugins_paths(reg, json, err);
    clb_registry_close(reg);
    return rc;
}

/* All of them, whatever the first ones were like; the last failure is the command's. */
static int check_files(const char *const *files, size_t n, struct colibri_cpu_bits cpu, unsigned timeout, bool json,
                       clb_error *err)
{
    int rc = COLIBRI_OK;
    size_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        if (n > 1 && !json) {
            fputs(i ? "\n" : "", stdout);
            clb_put(files[i], 0);
            puts(":");
        }
        const int one = clb_plugins_check(files[i], cpu, timeout, json, err);
        if (one && one != COLIBRI_E_PLUGIN)
            return one;
        bad += one != COLIBRI_OK;
        rc = one ? one : rc;
    }
    return bad && n > 1 ? clb_fail(err, rc, "%zu of %zu files failed", bad, n) : rc;
}

static int run(clb_args *args, clb_error *err)
{
    static const struct {
        const char *name, *operand;
        size_t n; /* operands */
    } actions[] = {{"list", NULL, 0},  {"info", "ID", 1},    {"why", "NAME", 1},         {"cpu", NULL, 0},
                   {"paths", NULL, 0}, {"check", "FILE", 1}, {"new", "KIND and NAME", 2}};
    enum { N_ACTIONS = sizeof actions / sizeof *actions };
    const char *const *words;
    const size_t n = clb_args_positional(args, &words);
    const char *const action = n ? words[0] : "list";
    size_t at = 0;
    while (at < N_ACTIONS && strcmp(actions[at].name, action) != 0)
        at++;
    if (at == N_ACTIONS) {
        const char *names[N_ACTIONS];
        for (size_t i = 0; i < N_ACTIONS; i++)
            names[i] = actions[i].name;
        const long near = clb_nearest(action, names, N_ACTIONS);
        return clb_fail(err, COLIBRI_E_USAGE, "unknown action '%.80s'%s%s%s", action,
                        near >= 0 ? "; did you mean '"
                                  : " (list, info ID, why NAME, cpu, paths, check FILE..., new KIND NAME)",
                        near >= 0 ? names[near] : "", near >= 0 ? "'?" : "");
    }
    const size_t operands = actions[at].n;
    const bool check = !strcmp(action, "check");
    if (operands && (check ? n < 2 : n != 1 + operands))
        return clb_fail(err, COLIBRI_E_USAGE, "'%s' needs %s%s", action,
                        check           ? "at least one "
                        : operands == 1 ? "one "
                                        : "",
                        actions[at].operand);
    if (!operands && n > 1)
        return clb_fail(err, COLIBRI_E_USAGE, "unexpected argument '%.80s'", words[1]);
    if (clb_args_has(args, "all") && strcmp(action, "list") != 0)
        return clb_fail(err, COLIBRI_E_USAGE, "--all goes with 'list'");
    if (clb_args_has(args, "timeout") && strcmp(action, "check") != 0)
        return clb_fail(err, COLIBRI_E_USAGE, "--timeout goes with 'check'");
    for (const char *const *flag = (const char *const[]){"dir", "id", NULL}; *flag; flag++)
        if (clb_args_has(args, *flag) && strcmp(action, "new") != 0)
            return clb_fail(err, COLIBRI_E_USAGE, "--%s goes with 'new'", *flag);
    const bool json = clb_args_has(args, "json");
    if (json && !strcmp(action, "new"))
        return clb_fail(err, COLIBRI_E_USAGE, "'new' has no JSON output");
    if (strcmp(action, "cpu") != 0 && strcmp(action, "check") != 0)
        return with_registry(args, n ? words : &action, json, err);
    struct colibri_cpu_bits cpu;
    unsigned timeout;
    CLB_TRY(clb_cpu_from_config(clb_args_config(args), &cpu, err));
    CLB_TRY(parse_timeout(args, &timeout, err));
    if (!check)
        return clb_plugins_cpu(cpu, json, err);
    return check_files(words + 1, n - 1, cpu, timeout, json, err);
}

const clb_command clb_command_plugins = {
    .name = "plugins",
    .summary = "show plugins, why they are used or not, and check them",
    .usage = "colibri plugins [list] [--all]\ncolibri plugins info ID\ncolibri plugins why NAME\ncolibri plugins cpu | "
             "paths\n"
             "colibri plugins check FILE... [--timeout SECONDS]\n"
             "colibri plugins new KIND NAME [--dir DIR] [--id ID]",
    .description =
        "'list' reads the notes of the plugin files and loads none of them. A rejected plugin says why. "
        "'info' loads one "
        "plugin and shows what it offers. 'why' replays filter, rank and selection with every comparison, "
        "for a plugin's id, "
        "a quantization format, a vector operation or a component; with kernels.select=measure also the times "
        "that decide between kernels (for --threads). 'cpu' shows the CPU features that "
        "plugins may use, 'paths' "
        "the folders that are searched.\n"
        "\n"
        "'check' examines each file as a packager or author would: its note, its exports, constructors, "
        "indirect functions and "
        "libraries, then loads it in a separate process and looks for crashes, hangs and tables with "
        "mistakes. It ends with "
        "status 9 if anything is wrong.\n"
        "\n"
        "'new' makes a folder with a complete plugin to start from: source, CMakeLists.txt, a test, a README. "
        "KIND is expert-policy, predictor, kv-strategy or kernel. It builds against the installed headers, and "
        "works as it is.",
    .examples = "colibri plugins   # what is installed, and what was rejected\n"
                "colibri plugins why q4_k   # which kernel multiplies Q4_K here, and which ones lost\n"
                "colibri plugins list --cpu-mask avx512f   # what a CPU without AVX-512 would use\n"
                "colibri plugins check build/*.so   # before shipping them\n"
                "colibri plugins new expert-policy my-policy   # start one of your own\n",
    .flags = flags,
    .settings = settings,
    .max_positional = -1,
    .run = run,
};
