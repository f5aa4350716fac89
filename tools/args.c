#include "args.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "profile.h"

const clb_flag clb_common_flags[] = {
    {"help", 'h', NULL, "show this help", false},
    {"profile", 0, "NAME", "start from a profile: saver, balanced, speed, or one of yours (colibri.ini(5))", false},
    {"config", 0, "FILE", "read settings from FILE too, after the default files (colibri.ini(5))", false},
    {"set", 0, "SECTION.KEY=VALUE", "set any setting that applies to the command", true},
    {"print-config", 0, NULL, "print every setting that applies, with its value and origin, and stop", false},
    {"verbose", 'v', NULL, "say more on stderr; twice: details for developers", true},
    {"quiet", 'q', NULL, "only errors on stderr, no warnings and no progress", false},
    {0},
};

bool clb_command_takes(const clb_command *command, enum clb_setting id)
{
    for (const enum clb_setting *s = command->settings; s && *s != CLB_SET_COUNT; s++) {
        if (*s == id)
            return true;
    }
    return false;
}

const clb_flag *clb_flag_find(const clb_flag *flags, const char *name)
{
    for (; flags && flags->name; flags++) {
        if (!strcmp(flags->name, name))
            return flags;
    }
    return NULL;
}

const clb_flag *clb_flag_find_short(const clb_flag *flags, char short_name)
{
    for (; flags && flags->name; flags++) {
        if (flags->short_name && flags->short_name == short_name)
            return flags;
    }
    return NULL;
}

static int unknown_flag(const clb_command *command, const char *name, clb_error *err)
{
    const char *names[2 * CLB_SET_COUNT + 128];
    char keys[CLB_SET_COUNT][sizeof((clb_setting_info *)0)->key];
    const size_t limit = sizeof names / sizeof *names;
    size_t n = 0;
    for (const clb_flag *f = clb_common_flags; f->name && n < limit; f++)
        names[n++] = f->name;
    for (const clb_flag *f = command->flags; f && f->name && n < limit; f++)
        names[n++] = f->name;
    for (int i = 0; i < CLB_SET_COUNT && n + 1 < limit; i++) {
        const clb_setting_info info = clb_setting_get((enum clb_setting)i);
        if (!info.flag || !clb_command_takes(command, info.id))
            continue;
        memcpy(keys[i], info.key, sizeof info.key);
        names[n++] = keys[i];
        if (info.alias)
            names[n++] = info.alias;
    }
    const long at = clb_nearest(name, names, n);
    if (at >= 0)
        return clb_fail(err, COLIBRI_E_USAGE, "unknown flag '--%.80s'; did you mean '--%s'?", name, names[at]);
    return clb_fail(err, COLIBRI_E_USAGE, "unknown flag '--%.80s' ('colibri %s --help' lists them)", name,
                    command->name);
}

static int add(clb_args *args, clb_given given, clb_error *err)
{
    if (given.flag && given.flag->value && !given.flag->repeat) {
        for (size_t i = 0; i < args->n_given; i++) {
            if (args->given[i].flag == given.flag)
                return clb_fail(err, COLIBRI_E_USAGE, "--%s: given twice", given.flag->name);
        }
    }
    args->given[args->n_given++] = given; /* never more than argv has characters; see clb_args_parse */
    return COLIBRI_OK;
}

/* What stands behind "=", or the next argument. */
static int take_value(const char *shown, const char *placeholder, const char *attached, int argc, char **argv, int *at,
                      const char **value, clb_error *err)
{
    if (attached) {
        *value = attached;
        return COLIBRI_OK;
    }
    if (*at + 1 >= argc)
        return clb_fail(err, COLIBRI_E_USAGE, "%s needs a value: %s %s", shown, shown, placeholder);
    const char *next = argv[*at + 1];
    if (!strncmp(next, "--", 2))
        return clb_fail(err, COLIBRI_E_USAGE,
                        "%s needs a value, and '%.80s' is a flag (write %s=%.80s if it is the value)", shown, next,
                        shown, next);
    *value = next;
    ++*at;
    return COLIBRI_OK;
}

static int add_setting(clb_args *args, enum clb_setting id, const char *shown, const char *attached, int argc,
                       char **argv, int *at, clb_error *err)
{
    const clb_setting_info info = clb_setting_get(id);
    if (!clb_command_takes(args->command, id))
        return clb_fail(err, COLIBRI_E_USAGE, "%s does not apply to '%s'", shown, args->command->name);
    clb_given given = {.setting = id, .value = attached ? attached : "yes"};
    if (info.type != CLB_TYPE_BOOL)
        CLB_TRY(take_value(shown, info.value_name, attached, argc, argv, at, &given.value, err));
    return add(args, given, err);
}

static int parse_long(clb_args *args, int argc, char **argv, int *at, clb_error *err)
{
    const char *text = argv[*at] + 2, *equals = strchr(text, '=');
    char name[64];
    if (snprintf(name, sizeof name, "%.*s", (int)(equals ? equals - text : (long)strlen(text)), text) >=
        (int)sizeof name)
        return unknown_flag(args->command, name, err);
    char shown[sizeof name + 2];
    snprintf(shown, sizeof shown, "--%s", name);
    const char *attached = equals ? equals + 1 : NULL;

    const clb_flag *flag = clb_flag_find(args->command->flags, name);
    if (!flag)
        flag = clb_flag_find(clb_common_flags, name);
    if (flag) {
        clb_given given = {.flag = flag, .setting = CLB_SET_COUNT};
        if (flag->value)
            CLB_TRY(take_value(shown, flag->value, attached, argc, argv, at, &given.value, err));
        else if (attached)
            return clb_fail(err, COLIBRI_E_USAGE, "%s takes no value", shown);
        return add(args, given, err);
    }
    enum clb_setting id = clb_setting_by_flag(name);
    if (id != CLB_SET_COUNT)
        return add_setting(args, id, shown, attached, argc, argv, at, err);
    if (!strncmp(name, "no-", 3)) {
        id = clb_setting_by_flag(name + 3);
        if (id != CLB_SET_COUNT && clb_setting_get(id).type == CLB_TYPE_BOOL) {
            if (attached)
                return clb_fail(err, COLIBRI_E_USAGE, "%s takes no value", shown);
            if (!clb_command_takes(args->command, id))
                return clb_fail(err, COLIBRI_E_USAGE, "%s does not apply to '%s'", shown, args->command->name);
            return add(args, (clb_given){.setting = id, .value = "no", .negated = true}, err);
        }
    }
    return unknown_flag(args->command, name, err);
}

/* "-v", "-vq", "-m FILE". A short flag with a value stands alone: "-mFILE" could be three switches. */
static int parse_short(clb_args *args, int argc, char **argv, int *at, clb_error *err)
{
    const char *text = argv[*at] + 1;
    for (const char *p = text; *p; p++) {
        char shown[3] = {'-', *p, '\0'};
        const clb_flag *flag = clb_flag_find_short(args->command->flags, *p);
        if (!flag)
            flag = clb_flag_find_short(clb_common_flags, *p);
        const enum clb_setting id = flag ? CLB_SET_COUNT : clb_setting_by_short(*p);
        if (!flag && id == CLB_SET_COUNT)
            return clb_fail(err, COLIBRI_E_USAGE, "unknown flag '%s' in '%.80s' ('colibri %s --help' lists them)",
                            shown, argv[*at], args->command->name);
        const bool takes_value = flag ? flag->value != NULL : clb_setting_get(id).type != CLB_TYPE_BOOL;
        if (takes_value && text[1])
            return clb_fail(err, COLIBRI_E_USAGE, "'%.80s': %s takes a value, so it stands alone: %s VALUE", argv[*at],
                            shown, shown);
        if (flag) {
            clb_given given = {.flag = flag, .setting = CLB_SET_COUNT};
            if (flag->value)
                CLB_TRY(take_value(shown, flag->value, NULL, argc, argv, at, &given.value, err));
            CLB_TRY(add(args, given, err));
        } else {
            CLB_TRY(add_setting(args, id, shown, NULL, argc, argv, at, err));
        }
        if (takes_value)
            break; /* *at moved on */
    }
    return COLIBRI_OK;
}

static bool has_common(const clb_args *args, const char *name)
{
    const clb_flag *flag = clb_flag_find(clb_common_flags, name);
    for (size_t i = 0; i < args->n_given; i++) {
        if (args->given[i].flag == flag)
            return true;
    }
    return false;
}

int clb_args_parse(clb_args *args, const clb_command *command, int argc, char **argv, clb_error *err)
{
    *args = (clb_args){.command = command};
    /* One argument holds at most as many flags as it has letters. */
    size_t most = 1;
    for (int i = 0; i < argc; i++)
        most += strlen(argv[i]);
    args->given = calloc(most, sizeof *args->given);
    args->positional = calloc((size_t)argc + 1, sizeof *args->positional);
    args->values = calloc((size_t)argc + 1, sizeof *args->values);
    if (!args->given || !args->positional || !args->values)
        return CLB_NOMEM(err, "the command line");
    bool flags = true;
    for (int i = 0; i < argc; i++) {
        const char *a = argv[i];
        if (flags && !strcmp(a, "--")) {
            flags = false;
        } else if (flags && a[0] == '-' && a[1] == '-') {
            CLB_TRY(parse_long(args, argc, argv, &i, err));
        } else if (flags && a[0] == '-' && a[1]) {
            CLB_TRY(parse_short(args, argc, argv, &i, err));
        } else {
            if (command->max_positional >= 0 && args->n_positional == (size_t)command->max_positional)
                return clb_fail(err, COLIBRI_E_USAGE, "unexpected argument '%.80s' (usage: %.*s)", a,
                                (int)strcspn(command->usage, "\n"), command->usage);
            args->positional[args->n_positional++] = a;
        }
        if (has_common(args, "help")) {
            args->help = true;
            return COLIBRI_OK;
        }
    }
    args->print_config = has_common(args, "print-config");
    if (has_common(args, "quiet") && has_common(args, "verbose"))
        return clb_fail(err, COLIBRI_E_USAGE, "--quiet and --verbose exclude each other");
    return COLIBRI_OK;
}

int clb_args_level(const clb_args *args)
{
    int level = COLIBRI_LOG_WARN;
    for (size_t i = 0; i < args->n_given; i++) {
        if (args->given[i].flag == clb_flag_find(clb_common_flags, "verbose") && level < COLIBRI_LOG_DEBUG)
            level++;
        if (args->given[i].flag == clb_flag_find(clb_common_flags, "quiet"))
            level = COLIBRI_LOG_ERROR;
    }
    return level;
}

/* A setting given by --set must apply, as one given by its flag. Parameters apply where a component is chosen. */
static int check_set(const clb_command *command, const char *assignment, const char *origin, clb_error *err)
{
    char name[256];
    const char *component;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(assignment, "="), assignment);
    if (clb_param_section(name, &component)) {
        for (size_t i = 0; clb_param_kinds[i]; i++) {
            const enum clb_setting id = clb_param_selector(clb_param_kinds[i]);
            if (id != CLB_SET_COUNT && clb_command_takes(command, id))
                return COLIBRI_OK;
        }
    } else {
        enum clb_setting id = CLB_SET_COUNT;
        if (clb_setting_find(name, &id, NULL) || clb_command_takes(command, id))
            return COLIBRI_OK; /* clb_config_set explains what is unknown */
    }
    return clb_fail(err, COLIBRI_E_USAGE, "%s %.120s does not apply to '%s'", origin, name, command->name);
}

static const char *common_value(const clb_args *args, const char *name)
{
    const clb_flag *flag = clb_flag_find(clb_common_flags, name);
    for (size_t i = args->n_given; i-- > 0;) {
        if (args->given[i].flag == flag)
            return args->given[i].value;
    }
    return NULL;
}

/* The file beside the model is skipped where the user names that same file: then it is the user's. */
static bool is_same_file(const char *a, const char *b)
{
    struct stat sa, sb;
    return a && b && !stat(a, &sa) && !stat(b, &sb) && sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
}

/* Assignments that stand above the command line: flags and --set for the same settings are left out. */
struct above {
    const char *const *assignments;
    size_t n;
    const char *origin;
};

static void name_of(const char *assignment, char name[256], enum clb_setting *id)
{
    snprintf(name, 256, "%.*s", (int)strcspn(assignment, "="), assignment);
    *id = CLB_SET_COUNT;
    (void)clb_setting_find(name, id, NULL); /* parameters and what is unknown: no setting */
}

static bool is_above(const struct above *above, const char *set, enum clb_setting setting)
{
    char name[256], other[256];
    enum clb_setting id = setting, other_id;
    if (set)
        name_of(set, name, &id);
    for (size_t i = 0; i < above->n; i++) {
        name_of(above->assignments[i], other, &other_id);
        if (other_id == id && (id != CLB_SET_COUNT || !strcmp(name, other)))
            return true;
    }
    return false;
}

static int load_layers(const clb_args *args, const char *model, const struct above *above, clb_config **out,
                       clb_error *err)
{
    const char *file = common_value(args, "config"), *profile = common_value(args, "profile");
    const clb_flag *set = clb_flag_find(clb_common_flags, "set");
    char beside[4096];
    clb_config *config = NULL;
    int rc = COLIBRI_OK;
    CLB_TRY(clb_config_create(&config, err));
    clb_config_default_path(2, model, beside, sizeof beside);
    CLB_GO(clb_config_load_defaults(config, is_same_file(beside, file) ? NULL : model, err));
    if (profile) {
        char path[PATH_MAX];
        CLB_GO(clb_profile_path(profile, path, err));
        CLB_GO(clb_config_load_file(config, path, err));
    }
    if (file) {
        rc = clb_config_load_file(config, file, err);
        if (rc == COLIBRI_E_NOT_FOUND)
            clb_context(err, "--config");
        if (rc)
            goto done;
    }
    CLB_GO(clb_config_load_env(config, err));
    for (size_t i = 0; i < args->n_given; i++) {
        const clb_given *g = &args->given[i];
        if ((g->flag == set || !g->flag) && is_above(above, g->flag ? g->value : NULL, g->setting))
            continue;
        if (g->flag == set) {
            CLB_GO(check_set(args->command, g->value, "--set", err));
            CLB_GO(clb_config_set(config, g->value, "--set", err));
        } else if (!g->flag) {
            const clb_setting_info info = clb_setting_get(g->setting);
            char origin[64];
            snprintf(origin, sizeof origin, "--%s%s", g->negated ? "no-" : "", info.key);
            CLB_GO(clb_config_set_value(config, g->setting, g->value, origin, err));
        }
    }
    for (size_t i = 0; i < above->n; i++) {
        CLB_GO(check_set(args->command, above->assignments[i], above->origin, err));
        CLB_GO(clb_config_set(config, above->assignments[i], above->origin, err));
    }
    *out = config;
    return COLIBRI_OK;
done:
    clb_config_destroy(config);
    return rc;
}

static int load(const clb_args *args, const struct above *above, clb_config **out, clb_error *err)
{
    /* Which folder the model is in is known only after all layers; its file goes between them, so they are read again.
     */
    clb_config *first = NULL;
    CLB_TRY(load_layers(args, NULL, above, &first, err));
    const char *model = clb_config_str(first, CLB_SET_model_model);
    if (!*model || !clb_command_takes(args->command, CLB_SET_model_model)) {
        *out = first;
        return COLIBRI_OK;
    }
    const int rc = load_layers(args, model, above, out, err);
    clb_config_destroy(first);
    return rc;
}

int clb_args_load(clb_args *args, clb_error *err)
{
    return load(args, &(struct above){0}, &args->config, err);
}

int clb_args_config_with(const clb_args *args, const char *const *assignments, size_t n, const char *origin,
                         clb_config **out, clb_error *err)
{
    *out = NULL;
    return load(args, &(struct above){assignments, n, origin}, out, err);
}

void clb_args_free(clb_args *args)
{
    clb_config_destroy(args->config);
    free(args->given);
    free(args->positional);
    free(args->values);
    *args = (clb_args){0};
}

const clb_config *clb_args_config(const clb_args *args)
{
    return args->config;
}

const clb_log *clb_args_log(const clb_args *args)
{
    return &args->log;
}

bool clb_args_has(const clb_args *args, const char *flag)
{
    for (size_t i = 0; i < args->n_given; i++) {
        if (args->given[i].flag && !strcmp(args->given[i].flag->name, flag))
            return true;
    }
    return false;
}

const char *clb_args_value(const clb_args *args, const char *flag)
{
    for (size_t i = args->n_given; i-- > 0;) {
        if (args->given[i].flag && !strcmp(args->given[i].flag->name, flag))
            return args->given[i].value;
    }
    return NULL;
}

/* Each flag has its own range of args->values, so an earlier answer stays valid. */
size_t clb_args_values(const clb_args *args, const char *flag, const char *const **out)
{
    size_t n = 0, before = 0;
    for (const clb_flag *f = args->command->flags; f && f->name && strcmp(f->name, flag) != 0; f++) {
        for (size_t i = 0; i < args->n_given; i++)
            before += args->given[i].flag == f && args->given[i].value;
    }
    *out = args->values + before;
    for (size_t i = 0; i < args->n_given; i++) {
        if (args->given[i].flag && !strcmp(args->given[i].flag->name, flag) && args->given[i].value)
            args->values[before + n++] = args->given[i].value;
    }
    return n;
}

size_t clb_args_positional(const clb_args *args, const char *const **out)
{
    *out = args->positional;
    return args->n_positional;
}

bool clb_args_interrupted(const clb_args *args)
{
    (void)args;
    return clb_interrupted();
}

bool clb_args_rearm(clb_args *args)
{
    (void)args;
    return clb_interrupt_rearm();
}
