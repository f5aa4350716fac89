/* colibri config: the settings themselves. */
#include "help.h"

#include <string.h>

#include "plugin/foreign.h"

static const clb_flag flags[] = {
    {"json", 'j', NULL, "print JSON (list, and --print-config)", false},
    {"beside-model", 0, NULL, "check: judge FILE as one that lies beside a model, which may set less", false},
    {0},
};

static const enum clb_setting all_settings[] = {
#define CLB_SETTING(section, key, ...) CLB_SET_##section##_##key,
#include "config/settings.def"
#undef CLB_SETTING
    CLB_SET_COUNT};

static void list(const clb_config *config)
{
    char section[sizeof((clb_setting_info *)0)->section] = "";
    for (int i = 0; i < CLB_SET_COUNT; i++) {
        const clb_setting_info s = clb_setting_get((enum clb_setting)i);
        char allowed[80];
        if (strcmp(section, s.section) != 0)
            printf("%s[%s]\n", *section ? "\n" : "", s.section);
        memcpy(section, s.section, sizeof section);
        clb_print_setting(stdout, config, &s);
        printf("    %s", s.help);
        clb_setting_allowed(&s, allowed, sizeof allowed);
        printf("\n    %s%s%s%s", clb_setting_type_name(s.type), *allowed && s.type != CLB_TYPE_BOOL ? ": " : "",
               s.type != CLB_TYPE_BOOL ? allowed : "", *s.fallback ? "; default " : "");
        printf("%s", s.fallback);
        if (s.flag)
            printf("; --%s, %s", s.key, s.env);
        if (s.alias)
            printf(", --%s", s.alias);
        if (s.short_name)
            printf(", -%c", s.short_name);
        putchar('\n');
    }
    clb_print_params(stdout, config, NULL);
}

/* Prose as INI comments. */
static void comment(const char *text)
{
    size_t column = 0;
    for (const char *p = text; *p;) {
        const size_t n = strcspn(p, " ");
        if (column && column + 1 + n > 118) {
            putchar('\n');
            column = 0;
        }
        column += (size_t)printf("%s%.*s", column ? " " : "; ", (int)n, p);
        p += n + (p[n] == ' ');
    }
    putchar('\n');
}

/* A file that says nothing yet: every setting with its default, commented out. */
static void template(void)
{
    char section[sizeof((clb_setting_info *)0)->section] = "";
    comment("Colibri's settings, each with its default, commented out (made by `colibri config template`). Copy what "
            "you need into "
            "/etc/colibri/colibri.ini, ~/.config/colibri/colibri.ini, colibri.ini beside a model, or any file for "
            "--config; later "
            "wins. `colibri config list` shows the values in force and where they come from, `colibri config check "
            "FILE` reads a "
            "file, and colibri.ini(5) describes the syntax.");
    for (int i = 0; i < CLB_SET_COUNT; i++) {
        const clb_setting_info s = clb_setting_get((enum clb_setting)i);
        char allowed[80], text[1024];
        if (strcmp(section, s.section) != 0)
            printf("\n[%s]\n", s.section);
        memcpy(section, s.section, sizeof section);
        clb_setting_allowed(&s, allowed, sizeof allowed);
        const bool shown = *allowed && s.type != CLB_TYPE_BOOL;
        snprintf(text, sizeof text, "%s%s%s%s", s.help, shown ? " (" : "", shown ? allowed : "", shown ? ")" : "");
        comment(text);
        printf(";%s =%s%s\n", s.key, *s.fallback ? " " : "", s.fallback);
    }
    putchar('\n');
    comment("Parameters of plugin components stand in sections of their own; `colibri plugins list` shows them.");
    for (size_t i = 0; clb_param_kinds[i]; i++)
        printf(";[%s.NAME]\n", clb_param_kinds[i]);
    putchar('\n');
    comment("Functions of other libraries as components: a section [foreign.NAME] with library, symbol, signature and kind "
            "(docs/foreign.md).");
}

static int get(const clb_config *config, const char *name, clb_error *err)
{
    enum clb_setting id = CLB_SET_COUNT;
    CLB_TRY(clb_setting_find(name, &id, err));
    puts(clb_config_text(config, id));
    return COLIBRI_OK;
}

static int check(const char *path, bool beside_model, clb_error *err)
{
    clb_config *config = NULL;
    int n = 0;
    CLB_TRY(clb_config_create(&config, err));
    int rc =
        beside_model ? clb_config_load_untrusted(config, path, err) : clb_config_load_file(config, path, err);
    for (int i = 0; i < CLB_SET_COUNT; i++)
        n += clb_config_is_set(config, (enum clb_setting)i);
    const size_t n_params = clb_config_param_count(config);
    clb_foreign_list foreign = {0};
    if (!rc)
        rc = clb_foreign_from_config(config, &foreign, err);
    const size_t n_foreign = foreign.n;
    clb_foreign_list_free(&foreign);
    clb_config_destroy(config);
    if (rc)
        return rc;
    printf("%s: ok, %d setting%s", path, n, n == 1 ? "" : "s");
    if (n_params)
        printf(", %zu plugin parameter%s (checked when the plugin is used)", n_params, n_params == 1 ? "" : "s");
    if (n_foreign)
        printf(", %zu foreign function%s (loaded when used)", n_foreign, n_foreign == 1 ? "" : "s");
    putchar('\n');
    return COLIBRI_OK;
}

static int run(clb_args *args, clb_error *err)
{
    const char *const *words;
    const size_t n = clb_args_positional(args, &words);
    const char *action = n ? words[0] : "list";
    static const char *const actions[] = {"list", "get", "check", "template"};
    const bool takes_word = !strcmp(action, "get") || !strcmp(action, "check");
    if (takes_word && n != 2)
        return clb_fail(err, COLIBRI_E_USAGE, "'%s' needs one %s", action, *action == 'g' ? "KEY" : "FILE");
    if (clb_args_has(args, "beside-model") && strcmp(action, "check") != 0)
        return clb_fail(err, COLIBRI_E_USAGE, "--beside-model goes with 'check'");
    if (clb_args_has(args, "json") && strcmp(action, "list") != 0)
        return clb_fail(err, COLIBRI_E_USAGE, "--json goes with 'list'");
    if (!strcmp(action, "get"))
        return get(clb_args_config(args), words[1], err);
    if (!strcmp(action, "check"))
        return check(words[1], clb_args_has(args, "beside-model"), err);
    if (n > 1 && (!strcmp(action, "list") || !strcmp(action, "template")))
        return clb_fail(err, COLIBRI_E_USAGE, "unexpected argument '%.80s'", words[1]);
    if (!strcmp(action, "template")) {
        template();
        return COLIBRI_OK;
    }
    if (!strcmp(action, "list")) {
        if (clb_args_has(args, "json"))
            return clb_print_config_json(stdout, clb_args_config(args), NULL, err);
        list(clb_args_config(args));
        return COLIBRI_OK;
    }
    const long at = clb_nearest(action, actions, sizeof actions / sizeof *actions);
    if (at >= 0)
        return clb_fail(err, COLIBRI_E_USAGE, "unknown action '%.80s'; did you mean '%s'?", action, actions[at]);
    return clb_fail(err, COLIBRI_E_USAGE, "unknown action '%.80s' (list, get KEY, check FILE, template)", action);
}

const clb_command clb_command_config = {
    .name = "config",
    .summary = "show settings and check INI files",
    .usage =
        "colibri config [list] [flags]\ncolibri config get KEY [flags]\ncolibri config check FILE [--beside-model]\n"
        "colibri config template",
    .description =
        "Settings come from, later wins: the defaults, the system's colibri.ini, the user's, the one beside the model, "
        "--config FILE, "
        "COLIBRI_* variables, then flags and --set. colibri.ini(5) describes the files.\n"
        "\n"
        "'list' shows every setting with its value, where the value comes from, and what it means. 'get' prints one "
        "value. "
        "'check' reads an INI file as --config would and reports the first mistake; parameters in sections like "
        "[expert-policy.NAME] are checked in full only when the plugin is used. 'template' prints a file with every "
        "setting "
        "commented out.",
    .examples = "colibri config list --threads 4   # every setting, as 'colibri ... --threads 4' sees it\n"
                "colibri config get memory.max-memory   # one value, for scripts\n"
                "colibri config check ~/.config/colibri/colibri.ini   # is this file right?\n",
    .flags = flags,
    .settings = all_settings,
    .max_positional = 2,
    .run = run,
};
