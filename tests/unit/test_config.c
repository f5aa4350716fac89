/* Settings: layers and origins, every type, INI syntax, refusals, parameters. */
#include "support.h"

#include "config/ini.h"
#include "config/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static clb_config *fresh(void)
{
    clb_config *config = NULL;
    clb_error err = {0};
    assert_ok(clb_config_create(&config, &err), &err);
    return config;
}

static int load(clb_config *config, const char *text, clb_error *err)
{
    return clb_config_load_text(config, text, strlen(text), "test.ini", false, err);
}

/* `text` is refused with `status` and a message that contains `part`. */
static void refuse(const char *text, int status, const char *part)
{
    clb_config *config = fresh();
    clb_error err = {0};
    const int rc = load(config, text, &err);
    if (rc != status || !test_contains(err.msg, part))
        fail_msg("\"%s\": %s \"%s\", expected %s \"%s\"", text, clb_status_name(rc), err.msg, clb_status_name(status),
                 part);
    if (strchr(err.msg, '\n'))
        fail_msg("\"%s\": message of several lines", text);
    clb_config_destroy(config);
}

static void table_is_consistent(void **state)
{
    (void)state;
    for (int i = 0; i < CLB_SET_COUNT; i++) {
        const clb_setting_info a = clb_setting_get((enum clb_setting)i);
        assert_null(strchr(a.key, '_'));
        assert_true(!a.flag || !strncmp(a.env, "COLIBRI_", 8));
        assert_true(*a.help);
        assert_true(a.min <= a.max);
        for (int j = 0; j < i; j++) {
            const clb_setting_info b = clb_setting_get((enum clb_setting)j);
            if (!strcmp(a.section, b.section))
                assert_string_not_equal(a.key, b.key);
            if (!a.flag || !b.flag)
                continue;
            assert_string_not_equal(a.key, b.key);
            assert_true(!a.short_name || a.short_name != b.short_name);
            assert_true(!a.alias || !b.alias || strcmp(a.alias, b.alias));
            assert_true(!a.alias || strcmp(a.alias, b.key));
            assert_true(!b.alias || strcmp(b.alias, a.key));
        }
        if (a.flag) {
            assert_int_equal(clb_setting_by_flag(a.key), i);
            assert_int_equal(clb_setting_by_env(a.env), i);
            if (a.alias)
                assert_int_equal(clb_setting_by_flag(a.alias), i);
            if (a.short_name)
                assert_int_equal(clb_setting_by_short(a.short_name), i);
        }
        char full[100];
        enum clb_setting id = CLB_SET_COUNT;
        clb_error err = {0};
        snprintf(full, sizeof full, "%s.%s", a.section, a.key);
        assert_ok(clb_setting_find(full, &id, &err), &err);
        assert_int_equal(id, i);
    }
}

static void defaults_have_no_origin(void **state)
{
    (void)state;
    clb_config *config = fresh();
    assert_string_equal(clb_config_str(config, CLB_SET_model_model), "");
    assert_int_equal(clb_config_u64(config, CLB_SET_model_batch), 512);
    assert_true(clb_config_f64(config, CLB_SET_sampling_top_p) == 0.95);
    assert_false(clb_config_bool(config, CLB_SET_memory_mlock));
    assert_string_equal(clb_config_str(config, CLB_SET_store_mode), "auto");
    const char *const *items;
    assert_int_equal(clb_config_list(config, CLB_SET_plugins_prefer, &items), 0);
    assert_false(clb_config_is_set(config, CLB_SET_model_batch));
    assert_string_equal(clb_config_origin(config, CLB_SET_model_batch), "default");
    clb_config_destroy(config);
}

static void every_type_is_read(void **state)
{
    (void)state;
    clb_config *config = fresh();
    clb_error err = {0};
    assert_ok(load(config,
                   "\xEF\xBB\xBF; comment\r\n"
                   "# comment\r\n"
                   "[model] ; the model\r\n"
                   "\tmodel = /models/a model.gguf ; trailing\r\n"
                   "   batch: 64\r\n"
                   "[memory]\n"
                   "max-memory = 1.5GiB\n"
                   "mlock = On\n"
                   "\n"
                   "[sampling]\n"
                   "  temperature=0\n"
                   "  presence-penalty = -1.25e-1\n"
                   "[store]\nmode = read\n"
                   "[plugins]\n"
                   "path = /opt/a:/opt/b\n"
                   "prefer = one , two,three.x\n"
                   "deny = \"x, y #z\"",
                   &err),
              &err);
    assert_string_equal(clb_config_str(config, CLB_SET_model_model), "/models/a model.gguf");
    assert_string_equal(clb_config_origin(config, CLB_SET_model_model), "test.ini:4");
    assert_int_equal(clb_config_u64(config, CLB_SET_model_batch), 64);
    assert_int_equal(clb_config_u64(config, CLB_SET_memory_max_memory), 3ull << 29);
    assert_true(clb_config_bool(config, CLB_SET_memory_mlock));
    assert_true(clb_config_f64(config, CLB_SET_sampling_temperature) == 0);
    assert_true(clb_config_f64(config, CLB_SET_sampling_presence_penalty) == -0.125);
    assert_string_equal(clb_config_str(config, CLB_SET_store_mode), "read");
    const char *const *items;
    assert_int_equal(clb_config_list(config, CLB_SET_plugins_path, &items), 2);
    assert_string_equal(items[1], "/opt/b");
    assert_int_equal(clb_config_list(config, CLB_SET_plugins_prefer, &items), 3);
    assert_string_equal(items[0], "one");
    assert_string_equal(items[1], "two");
    assert_string_equal(items[2], "three.x");
    assert_int_equal(clb_config_list(config, CLB_SET_plugins_deny, &items), 2);
    assert_string_equal(items[1], "y #z");
    assert_string_equal(clb_config_origin(config, CLB_SET_plugins_deny), "test.ini:18");
    clb_config_destroy(config);
}

static void sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},
                {"4096", 4096},
                {"8G", 8ull << 30},
                {"512M", 512ull << 20},
                {"1.5GiB", 3ull << 29},
                {"2k", 2048},
                {"2KB", 2000},
                {"1.25 MB", 1250000},
                {"3T", 3ull << 40},
                {"7b", 7},
                {"16383P", 16383ull << 50},
                {"18446744073709551615", UINT64_MAX},
                {"0.000000001G", 1}};
    static const char *const bad[] = {"",
                                      "G",
                                      "1.5",
                                      "1.G",
                                      ".5G",
                                      "-1",
                                      "+1",
                                      "1e9",
                                      "8 GX",
                                      "8GiBs",
                                      "16384P",
                                      "18446744073709551616",
                                      "1.0000000000G",
                                      "0x10",
                                      "8G 8G",
                                      "80%"};
    clb_error err;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        uint64_t v = 1;
        assert_ok(clb_parse_size(good[i].text, &v, &err), &err);
        assert_int_equal(v, good[i].bytes);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint64_t v = 1;
        if (clb_parse_size(bad[i], &v, &err) != COLIBRI_E_USAGE)
            fail_msg("size '%s' accepted", bad[i]);
    }
}

static void shares(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t n, of_1000, of_3;
        double part;
    } good[] = {{"7", 7, 7, 3, 0},           {"1000", 1000, 1000, 3, 0}, {"25%", 0, 250, 1, 0.25},
                {"12.5%", 0, 125, 1, 0.125}, {"100%", 0, 1000, 3, 1},    {"0.001%", 0, 1, 1, 0.00001},
                {"50.%", 0, 500, 2, 0.5},    {"99.96%", 0, 1000, 3, 0.9996}};
    clb_error err;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        clb_share v = {9, 9};
        assert_ok(clb_parse_share(good[i].text, &v, &err), &err);
        assert_int_equal(v.n, good[i].n);
        assert_true(v.part > good[i].part - 1e-12 && v.part < good[i].part + 1e-12);
        assert_int_equal(clb_share_of(v, 1000), good[i].of_1000);
        assert_int_equal(clb_share_of(v, 3), good[i].of_3);
    }
    clb_config *config = fresh();
    assert_int_equal(clb_config_share(config, CLB_SET_kv_kv_budget).n, 0);
    assert_ok(load(config, "[kv]\nkv-budget = 12.5%\n", &err), &err);
    assert_true(clb_config_share(config, CLB_SET_kv_kv_budget).part == 0.125);
    assert_string_equal(clb_config_text(config, CLB_SET_kv_kv_budget), "12.5%");
    assert_ok(clb_config_set(config, "kv-budget=300", "--set", &err), &err); /* nothing is left of the share */
    assert_int_equal(clb_config_share(config, CLB_SET_kv_kv_budget).n, 300);
    assert_true(clb_config_share(config, CLB_SET_kv_kv_budget).part == 0);
    clb_config_destroy(config);
}

static void numbers(void **state)
{
    (void)state;
    clb_error err;
    uint64_t u = 0;
    double f = 0;
    bool b = false;
    assert_ok(clb_parse_u64("18446744073709551615", &u, &err), &err);
    assert_true(u == UINT64_MAX);
    static const char *const no_u64[] = {
        "", "-1", "+1", " 1", "1 ", "0x1", "1.0", "18446744073709551616", "99999999999999999999999"};
    for (size_t i = 0; i < sizeof no_u64 / sizeof *no_u64; i++)
        assert_int_equal(clb_parse_u64(no_u64[i], &u, &err), COLIBRI_E_USAGE);
    assert_ok(clb_parse_f64("-2.5e-3", &f, &err), &err);
    assert_true(f == -0.0025);
    static const char *const no_f64[] = {"", "nan", "inf", "0x1p3", "1,5", "1e999", "--1", "1.2.3", "e5", "1 2"};
    for (size_t i = 0; i < sizeof no_f64 / sizeof *no_f64; i++)
        assert_int_equal(clb_parse_f64(no_f64[i], &f, &err), COLIBRI_E_USAGE);
    static const char *const yes[] = {"yes", "TRUE", "on", "1"}, *const no[] = {"no", "False", "OFF", "0"};
    for (size_t i = 0; i < 4; i++) {
        assert_ok(clb_parse_bool(yes[i], &b, &err), &err);
        assert_true(b);
        assert_ok(clb_parse_bool(no[i], &b, &err), &err);
        assert_false(b);
    }
    assert_int_equal(clb_parse_bool("", &b, &err), COLIBRI_E_USAGE);
    assert_int_equal(clb_parse_bool("2", &b, &err), COLIBRI_E_USAGE);
}

static void mistakes_are_located_and_explained(void **state)
{
    (void)state;
    refuse("[cpu]\nthread = 4\n", COLIBRI_E_USAGE,
           "test.ini:2: unknown key 'thread' in [cpu]; did you mean 'threads'?");
    refuse("[memroy]\n", COLIBRI_E_USAGE, "test.ini:1: unknown section [memroy]; did you mean [memory]?");
    refuse("[expert-polcy.lfu]\n", COLIBRI_E_USAGE, "did you mean [expert-policy.NAME]?");
    refuse("[zzzzzzzzzz]\n", COLIBRI_E_USAGE, "test.ini:1: unknown section [zzzzzzzzzz]");
    refuse("[memory]\nthreads = 4\n", COLIBRI_E_USAGE, "it belongs to [cpu]");
    refuse("[cpu]\nTHREADS = 4\n", COLIBRI_E_USAGE, "did you mean 'threads'?");
    refuse("[cpu]\nthreads = 4x\n", COLIBRI_E_USAGE,
           "test.ini:2: cpu.threads: '4x' is not a whole number; allowed: 0 to 1024");
    refuse("[cpu]\nthreads =\n", COLIBRI_E_USAGE, "'' is not a whole number");
    refuse("[cpu]\nthreads = 1025\n", COLIBRI_E_USAGE, "1025 is out of range; allowed: 0 to 1024");
    refuse("[cpu]\nthreads = -1\n", COLIBRI_E_USAGE, "not a whole number");
    refuse("[sampling]\ntop-p = 1.5\n", COLIBRI_E_USAGE, "1.5 is out of range; allowed: 0 to 1");
    refuse("[sampling]\nseed = 18446744073709551616\n", COLIBRI_E_USAGE, "too large; allowed: 0 or more");
    refuse("[store]\nmode = map\n", COLIBRI_E_USAGE, "'map' is none of auto|mmap|read; did you mean 'mmap'?");
    refuse("[store]\nmode = auto|mmap\n", COLIBRI_E_USAGE, "is none of");
    refuse("[store]\nmode =\n", COLIBRI_E_USAGE, "is none of");
    refuse("[memory]\nmlock = maybe\n", COLIBRI_E_USAGE, "test.ini:2: memory.mlock: 'maybe' is not yes or no");
    refuse("[memory]\nmax-memory = 8 gigs\n", COLIBRI_E_USAGE, "is not a size");
    refuse("[kv]\nkv-budget = 0%\n", COLIBRI_E_USAGE,
           "kv.kv-budget: '0%' is out of range: a share is more than 0% and at most 100%");
    refuse("[kv]\nkv-budget = 100.1%\n", COLIBRI_E_USAGE, "'100.1%' is out of range");
    refuse("[kv]\nkv-budget = 16777217\n", COLIBRI_E_USAGE,
           "16777217 is out of range; allowed: 0 to 16777216, or a share up to 100%");
    static const char *const no_share[] = {"%",    "25 %",  "25%%",  "-5%",  "1e1%",    "0x10%", "1.2.3%", ".%",
                                           "nan%", "inf%",  "2.5",   "-3",   "x",       "",      "25%x",   "+5%",
                                           "25,5%", "18446744073709551616", "1000000000000000000000000000000000%"};
    for (size_t i = 0; i < sizeof no_share / sizeof *no_share; i++) {
        char ini[100];
        snprintf(ini, sizeof ini, "[kv]\nkv-budget = %s\n", no_share[i]);
        refuse(ini, COLIBRI_E_USAGE, "kv.kv-budget: '");
    }
    refuse("[plugins]\npath = /a::/b\n", COLIBRI_E_USAGE, "empty item");
    refuse("[plugins]\npath = /a:b\n", COLIBRI_E_USAGE, "'b' is not an absolute folder");
    refuse("[plugins]\nprefer = a,\n", COLIBRI_E_USAGE, "empty item");
    refuse("[cpu]\nthreads = 1\n[model]\n[cpu]\nthreads = 2\n", COLIBRI_E_USAGE,
           "test.ini:5: cpu.threads: given twice, first in line 2");
    refuse("[expert-policy.lfu]\ndecay = 1\ndecay = 1\n", COLIBRI_E_USAGE,
           "test.ini:3: expert-policy.lfu.decay: given twice, first in line 2");
    refuse("[expert-policy.lfu]\ndecay = abc\n", COLIBRI_E_USAGE, "'abc' is not a number");
    refuse("[store]\nexpert-policy =\n", COLIBRI_E_USAGE, "no name");
    refuse("[store]\nexpert-policy = lfu:decay\n", COLIBRI_E_USAGE, "'decay' is not key=value");
}

static void syntax_errors(void **state)
{
    (void)state;
    refuse("threads = 4\n", COLIBRI_E_FORMAT, "test.ini:1: 'threads' stands before any [section]");
    refuse("[cpu\nthreads = 4\n", COLIBRI_E_FORMAT, "test.ini:1: section line without ']'");
    refuse("[]\n", COLIBRI_E_FORMAT, "section name of 0 bytes");
    refuse("[a b]\n", COLIBRI_E_FORMAT, "a section name has");
    refuse("[cpu] threads = 4\n", COLIBRI_E_FORMAT, "test.ini:1: text after [cpu]");
    refuse("[cpu]\nthreads\n", COLIBRI_E_FORMAT, "test.ini:2: neither [section] nor key = value");
    refuse("[cpu]\n\nthreads\n[nonsense]\n", COLIBRI_E_FORMAT, "test.ini:3: neither");
    refuse("[cpu]\n= 4\n", COLIBRI_E_FORMAT, "no key before '='");
    refuse("[cpu]\nmask = a # b\n", COLIBRI_E_FORMAT, "start the comment with ';'");
    refuse("[cpu]\nmask = \"a ; b\"\n", COLIBRI_E_FORMAT, "test.ini:2: mask: a quoted value");
    refuse("[cpu]\nmask = \"\n", COLIBRI_E_FORMAT, "a quoted value");
    refuse("[cpu]\nmask = \"a\"b\"\n", COLIBRI_E_FORMAT, "a quoted value");
    refuse("[expert-policy.]\n", COLIBRI_E_USAGE, "needs a name");
    refuse("[cpu]\nmask = \x1b[31m\n", COLIBRI_E_FORMAT, "test.ini:2: control character 0x1b");
    refuse("[cpu]\rmask = x\n", COLIBRI_E_FORMAT, "control character 0x0d");
    clb_config *config = fresh();
    clb_error err = {0};
    assert_fails(clb_config_load_text(config, "[cpu]\nmask = a\0b\n", 17, "test.ini", false, &err), &err,
                 COLIBRI_E_FORMAT, "test.ini:2: NUL byte");
    assert_ok(clb_config_load_text(config, "", 0, "empty.ini", false, &err), &err);
    assert_ok(load(config, "[cpu]", &err), &err);
    assert_ok(load(config, "[cpu]\nmask = \"\"\nthreads=2", &err), &err);
    assert_int_equal(clb_config_u64(config, CLB_SET_cpu_threads), 2);
    clb_config_destroy(config);
}

/* inih's default cuts lines at 200 bytes and section names at 49. */
static void long_lines_survive(void **state)
{
    (void)state;
    static const size_t lengths[] = {150, 180, 195, 196, 197, 198, 199, 200, 201, 399, 400, 401, 4096, 65000};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        for (int last = 0; last < 2; last++) {
            const size_t n = lengths[i];
            char *value = malloc(n + 1), *text = NULL;
            assert_non_null(value);
            for (size_t k = 0; k < n; k++)
                value[k] = (char)('a' + k % 26);
            value[0] = '/';
            value[n] = '\0';
            const int len = asprintf(&text, "[model]\nmodel = %s%s", value, last ? "" : "\n[cpu]\nthreads = 3\n");
            assert_true(len > 0);
            clb_config *config = fresh();
            clb_error err = {0};
            assert_ok(load(config, text, &err), &err);
            assert_string_equal(clb_config_str(config, CLB_SET_model_model), value);
            assert_int_equal(clb_config_u64(config, CLB_SET_cpu_threads), last ? 0 : 3);
            clb_config_destroy(config);
            free(text);
            free(value);
        }
    }
    char *text = calloc(1, 70000);
    assert_non_null(text);
    strcpy(text, "[model]\nmodel = ");
    memset(text + strlen(text), 'x', 66000);
    refuse(text, COLIBRI_E_LIMIT, "test.ini:2: line of 66008 bytes");
    free(text);

    char name[200] = {0};
    memset(name, 'p', 150);
    clb_config *config = fresh();
    clb_error err = {0};
    char ini[400];
    snprintf(ini, sizeof ini, "[expert-policy.%s]\nwindow = 7\n", name);
    assert_ok(load(config, ini, &err), &err);
    const struct colibri_param param = {.name = "window", .min = 0, .max = 10, .value = 1, .integer = 1};
    double out = 0;
    assert_ok(clb_config_params(config, "expert-policy", name, &param, 1, &out, &err), &err);
    assert_true(out == 7);
    name[149] = '\0';
    assert_ok(clb_config_params(config, "expert-policy", name, &param, 1, &out, &err), &err);
    assert_true(out == 1);
    clb_config_destroy(config);
}

static void parameters(void **state)
{
    (void)state;
    const struct colibri_param params[] = {
        {.name = "decay", .min = 0, .max = 1, .value = 0.5},
        {.name = "window", .min = 1, .max = 1000, .value = 64, .integer = 1},
    };
    clb_config *config = fresh();
    clb_error err = {0};
    double out[2];
    assert_ok(clb_config_params(config, "expert-policy", "lfu", params, 2, out, &err), &err);
    assert_true(out[0] == 0.5 && out[1] == 64);
    assert_ok(load(config,
                   "[expert-policy.lfu]\ndecay = 0.25\n[expert-policy.arc]\nwindow = 2\n[kv-strategy.lfu]\ndecay = 1\n",
                   &err),
              &err);
    assert_ok(clb_config_params(config, "expert-policy", "lfu", params, 2, out, &err), &err);
    assert_true(out[0] == 0.25 && out[1] == 64);
    assert_ok(clb_config_set(config, "expert-policy.lfu.window=100", "--set", &err), &err);
    assert_ok(clb_config_set(config, "expert-policy.com.lab.s3fifo.window=9", "--set", &err), &err);
    assert_ok(clb_config_params(config, "expert-policy", "lfu", params, 2, out, &err), &err);
    assert_true(out[0] == 0.25 && out[1] == 100);
    assert_ok(clb_config_params(config, "expert-policy", "com.lab.s3fifo", params, 2, out, &err), &err);
    assert_true(out[1] == 9);
    assert_fails(clb_config_set(config, "expert-policy.lfu.window=7", "--set", &err), &err, COLIBRI_E_USAGE,
                 "--set expert-policy.lfu.window: given twice");

    assert_ok(clb_config_set(config, "expert-policy.mru.windw=7", "--set", &err), &err);
    assert_fails(clb_config_params(config, "expert-policy", "mru", params, 2, out, &err), &err, COLIBRI_E_USAGE,
                 "--set: expert-policy 'mru' has no parameter 'windw'; did you mean 'window'?");
    assert_fails(clb_config_params(config, "expert-policy", "mru", NULL, 0, out, &err), &err, COLIBRI_E_USAGE,
                 "takes no parameters");
    assert_ok(load(config,
                   "[expert-policy.a]\nwindow = 0\n[expert-policy.b]\nwindow = 1.5\n[expert-policy.c]\nzzzzzzzz = 1",
                   &err),
              &err);
    assert_fails(clb_config_params(config, "expert-policy", "a", params, 2, out, &err), &err, COLIBRI_E_USAGE,
                 "test.ini:2: expert-policy.a.window: 0 is out of range; allowed: 1 to 1000");
    assert_fails(clb_config_params(config, "expert-policy", "b", params, 2, out, &err), &err, COLIBRI_E_USAGE,
                 "test.ini:4: expert-policy.b.window: 1.5 is not a whole number");
    assert_fails(clb_config_params(config, "expert-policy", "c", params, 2, out, &err), &err, COLIBRI_E_USAGE,
                 "it has: decay, window");

    /* NAME:key=value */
    assert_ok(
        clb_config_set_value(config, CLB_SET_store_expert_policy, "gdsf:decay=0.75,window=3", "--expert-policy", &err),
        &err);
    assert_string_equal(clb_config_str(config, CLB_SET_store_expert_policy), "gdsf");
    assert_ok(clb_config_params(config, "expert-policy", "gdsf", params, 2, out, &err), &err);
    assert_true(out[0] == 0.75 && out[1] == 3);
    assert_fails(clb_config_set_value(config, CLB_SET_kv_kv_strategy, "w:window=1,window=2", "--kv-strategy", &err),
                 &err, COLIBRI_E_USAGE, "--kv-strategy: w:window: given twice");
    const size_t n = clb_config_param_count(config);
    const char *kind, *name, *key, *value, *origin;
    assert_true(n > 2);
    clb_config_param_at(config, 0, &kind, &name, &key, &value, &origin);
    assert_string_equal(kind, "expert-policy");
    assert_string_equal(name, "lfu");
    assert_string_equal(key, "decay");
    assert_string_equal(value, "0.25");
    assert_string_equal(origin, "test.ini:2");
    clb_config_destroy(config);
}

static void assignments(void **state)
{
    (void)state;
    clb_config *config = fresh();
    clb_error err = {0};
    assert_ok(clb_config_set(config, "cpu.threads=4", "api", &err), &err);
    assert_ok(clb_config_set(config, "threads=5", "api", &err), &err);
    assert_int_equal(clb_config_u64(config, CLB_SET_cpu_threads), 5);
    assert_string_equal(clb_config_origin(config, CLB_SET_cpu_threads), "api");
    assert_ok(clb_config_set(config, "path=/a=b", "--set", &err), &err);
    assert_string_equal(clb_config_text(config, CLB_SET_plugins_path), "/a=b");
    assert_fails(clb_config_set(config, "threads", "--set", &err), &err, COLIBRI_E_USAGE,
                 "--set 'threads': write section.key=value");
    assert_fails(clb_config_set(config, "=4", "--set", &err), &err, COLIBRI_E_USAGE, "write section.key=value");
    assert_fails(clb_config_set(config, "cpu.thread=4", "--set", &err), &err, COLIBRI_E_USAGE,
                 "did you mean 'cpu.threads'?");
    assert_fails(clb_config_set(config, "memory.threads=4", "--set", &err), &err, COLIBRI_E_USAGE,
                 "did you mean 'cpu.threads'?");
    assert_fails(clb_config_set(config, "max_memory=4", "--set", &err), &err, COLIBRI_E_USAGE,
                 "did you mean 'memory.max-memory'?");
    assert_fails(clb_config_set(config, "expert-policy.lfu=4", "--set", &err), &err, COLIBRI_E_USAGE,
                 "unknown setting");
    assert_fails(clb_config_set(config, "model=a\nb", "--set", &err), &err, COLIBRI_E_USAGE, "control character 0x0a");
    assert_ok(clb_config_set_value(config, CLB_SET_cpu_threads, "6", "--threads", &err), &err);
    assert_fails(clb_config_set(config, "cpu.threads=6", "--set", &err), &err, COLIBRI_E_USAGE,
                 "--set cpu.threads: already given by --threads");
    /* A failed assignment leaves the old value. */
    assert_int_not_equal(clb_config_set(config, "cpu.threads=x", "api", &err), COLIBRI_OK);
    assert_int_equal(clb_config_u64(config, CLB_SET_cpu_threads), 6);
    clb_config_destroy(config);
}

static void layers_and_origins(void **state)
{
    (void)state;
    test_dir dir;
    test_dir_create(&dir);
    char sys[PATH_MAX], user[PATH_MAX], beside[PATH_MAX], model[PATH_MAX], extra[PATH_MAX], absent[PATH_MAX],
        want[PATH_MAX + 8];
    test_dir_file(&dir, "sys.ini", sys);
    test_dir_file(&dir, "user.ini", user);
    test_dir_file(&dir, "colibri.ini", beside);
    test_dir_file(&dir, "m.gguf", model);
    test_dir_file(&dir, "extra.ini", extra);
    test_dir_file(&dir, "absent.ini", absent);
    test_write_text(
        sys, "[model]\nctx = 1\nbatch = 1\n[cpu]\nthreads = 1\n[sampling]\ntop-k = 1\nseed = 1\n[run]\npredict = 1\n");
    test_write_text(user,
                    "[model]\nbatch = 2\n[cpu]\nthreads = 2\n[sampling]\ntop-k = 2\nseed = 2\n[run]\npredict = 2\n");
    test_write_text(beside, "[cpu]\nthreads = 3\n[sampling]\ntop-k = 3\nseed = 3\n[run]\npredict = 3\n");
    test_write_text(extra, "[sampling]\ntop-k = 4\nseed = 4\n[run]\npredict = 4\n");
    clb_config *config = fresh();
    clb_error err = {0};
    assert_ok(clb_config_load_from(config, sys, user, model, &err), &err);
    assert_ok(clb_config_load_from(config, absent, absent, "/nonexistent/m.gguf", &err), &err);
    assert_ok(clb_config_load_file(config, extra, &err), &err);
    assert_fails(clb_config_load_file(config, absent, &err), &err, COLIBRI_E_NOT_FOUND, "absent.ini");
    assert_int_equal(setenv("COLIBRI_SEED", "5", 1), 0);
    assert_int_equal(setenv("COLIBRI_PREDICT", "5", 1), 0);
    assert_ok(clb_config_load_env(config, &err), &err);
    assert_int_equal(unsetenv("COLIBRI_SEED") | unsetenv("COLIBRI_PREDICT"), 0);
    assert_ok(clb_config_set_value(config, CLB_SET_run_predict, "6", "--predict", &err), &err);
    static const struct {
        enum clb_setting id;
        uint64_t value;
    } expected[] = {{CLB_SET_model_ctx, 1},      {CLB_SET_model_batch, 2},   {CLB_SET_cpu_threads, 3},
                    {CLB_SET_sampling_top_k, 4}, {CLB_SET_sampling_seed, 5}, {CLB_SET_run_predict, 6}};
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(clb_config_u64(config, expected[i].id), expected[i].value);
        assert_true(clb_config_is_set(config, expected[i].id));
    }
    snprintf(want, sizeof want, "%s:2", sys);
    assert_string_equal(clb_config_origin(config, CLB_SET_model_ctx), want);
    snprintf(want, sizeof want, "%s:2", beside);
    assert_string_equal(clb_config_origin(config, CLB_SET_cpu_threads), want);
    assert_string_equal(clb_config_origin(config, CLB_SET_sampling_seed), "COLIBRI_SEED");
    assert_string_equal(clb_config_origin(config, CLB_SET_run_predict), "--predict");
    clb_config_destroy(config);
    test_dir_remove(&dir);
}

static void files_that_are_not_believed(void **state)
{
    (void)state;
    test_dir dir;
    test_dir_create(&dir);
    char path[PATH_MAX], model[PATH_MAX];
    test_dir_file(&dir, "colibri.ini", path);
    test_dir_file(&dir, "m.gguf", model);
    clb_config *config = fresh();
    clb_error err = {0};

    /* A downloaded folder must not load code, relax checks, name files or reach settings nobody has thought about. */
    static const char *const forbidden[] = {"[plugins]\npath = /tmp/x\n", "[plugins]\nprefer = a\n",
                                            "[plugins]\ndeny = a\n", "[kernels]\nallow-inexact = yes\n",
                                            "[model]\nmodel = /etc/passwd\n"};
    for (size_t i = 0; i < sizeof forbidden / sizeof *forbidden; i++) {
        test_write_text(path, forbidden[i]);
        assert_fails(clb_config_load_from(config, NULL, NULL, model, &err), &err, COLIBRI_E_USAGE,
                     "not allowed in a file beside a model");
        assert_true(test_contains(err.msg, "colibri.ini:2: "));
        assert_ok(clb_config_load_file(config, path, &err), &err);
        assert_ok(clb_config_load_from(config, NULL, path, NULL, &err), &err);
    }
    assert_string_equal(clb_config_str(config, CLB_SET_model_model), "/etc/passwd");

    test_write_text(path, "[cpu]\nthreads = 1\n");
    assert_int_equal(chmod(path, 0646), 0);
    assert_fails(clb_config_load_file(config, path, &err), &err, COLIBRI_E_USAGE, "written by every user");
    assert_fails(clb_config_load_from(config, path, NULL, NULL, &err), &err, COLIBRI_E_USAGE, "written by every user");
    assert_fails(clb_config_load_from(config, NULL, path, NULL, &err), &err, COLIBRI_E_USAGE, "written by every user");
    assert_fails(clb_config_load_from(config, NULL, NULL, model, &err), &err, COLIBRI_E_USAGE, "written by every user");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_fails(clb_config_load_from(config, NULL, NULL, model, &err), &err, COLIBRI_E_USAGE, "not a regular file");
    assert_fails(clb_config_load_file(config, dir.path, &err), &err, COLIBRI_E_USAGE, "not a regular file");
    assert_fails(clb_config_load_file(config, "/dev/zero", &err), &err, COLIBRI_E_LIMIT, "/dev/zero is larger than");
    clb_config_destroy(config);
    test_dir_remove(&dir);
}

static void default_paths(void **state)
{
    (void)state;
    char out[PATH_MAX];
    assert_int_equal(setenv("HOME", "/home/h", 1), 0);
    assert_int_equal(unsetenv("XDG_CONFIG_HOME"), 0);
    assert_string_equal(clb_config_default_path(1, NULL, out, sizeof out), "/home/h/.config/colibri/colibri.ini");
    assert_int_equal(setenv("XDG_CONFIG_HOME", "relative", 1), 0);
    assert_string_equal(clb_config_default_path(1, NULL, out, sizeof out), "/home/h/.config/colibri/colibri.ini");
    assert_int_equal(setenv("XDG_CONFIG_HOME", "/x", 1), 0);
    assert_string_equal(clb_config_default_path(1, NULL, out, sizeof out), "/x/colibri/colibri.ini");
    assert_int_equal(unsetenv("HOME") | unsetenv("XDG_CONFIG_HOME"), 0);
    assert_string_equal(clb_config_default_path(1, NULL, out, sizeof out), "");
    assert_string_equal(clb_config_default_path(2, "m.gguf", out, sizeof out), "colibri.ini");
    assert_string_equal(clb_config_default_path(2, "/a/b/m.gguf", out, sizeof out), "/a/b/colibri.ini");
    assert_string_equal(clb_config_default_path(2, "/m.gguf", out, sizeof out), "/colibri.ini");
    assert_string_equal(clb_config_default_path(2, "", out, sizeof out), "");
}

static void environment(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value, *part;
    } bad[] = {{"COLIBRI_THREAD", "4", "unknown environment variable COLIBRI_THREAD; did you mean COLIBRI_THREADS?"},
               {"COLIBRI_THREADS", "many", "COLIBRI_THREADS: 'many' is not a whole number; allowed: 0 to 1024"},
               {"COLIBRI_PLUGINS_PATH", "/x", "did you mean COLIBRI_PLUGIN_PATH?"},
               {"COLIBRI_PATH", "/x", "unknown environment variable COLIBRI_PATH"}, /* an INI-only setting */
               {"COLIBRI_", "", "unknown environment variable COLIBRI_"},
               {"COLIBRI_XXXXXXXXXXXXXXXXXXXXXXXX", "1", "(unset it)"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        clb_config *config = fresh();
        clb_error err = {0};
        assert_int_equal(setenv(bad[i].name, bad[i].value, 1), 0);
        assert_fails(clb_config_load_env(config, &err), &err, COLIBRI_E_USAGE, bad[i].part);
        assert_int_equal(unsetenv(bad[i].name), 0);
        clb_config_destroy(config);
    }
    clb_config *config = fresh();
    clb_error err = {0};
    assert_int_equal(setenv("COLIBRI_TEST_ANY", "1", 1) |
                         setenv("COLIBRI_PLUGIN_PATH", "/p", 1) | setenv("COLIBRI_MAX_MEMORY", "2G", 1) |
                         setenv("COLIBRI", "x", 1),
                     0);
    assert_ok(clb_config_load_env(config, &err), &err);
    assert_int_equal(clb_config_u64(config, CLB_SET_memory_max_memory), 2ull << 30);
    unsetenv("COLIBRI_TEST_ANY");
    unsetenv("COLIBRI_PLUGIN_PATH");
    unsetenv("COLIBRI_MAX_MEMORY");
    clb_config_destroy(config);
}

int main(void)
{
    /* The caller's variables must not decide a test. */
    for (int i = 0; i < CLB_SET_COUNT; i++) {
        const clb_setting_info info = clb_setting_get((enum clb_setting)i);
        if (info.flag)
            unsetenv(info.env);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_consistent),
        cmocka_unit_test(defaults_have_no_origin),
        cmocka_unit_test(every_type_is_read),
        cmocka_unit_test(sizes),
        cmocka_unit_test(numbers),
        cmocka_unit_test(shares),
        cmocka_unit_test(mistakes_are_located_and_explained),
        cmocka_unit_test(syntax_errors),
        cmocka_unit_test(long_lines_survive),
        cmocka_unit_test(parameters),
        cmocka_unit_test(assignments),
        cmocka_unit_test(layers_and_origins),
        cmocka_unit_test(files_that_are_not_believed),
        cmocka_unit_test(default_paths),
        cmocka_unit_test(environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
