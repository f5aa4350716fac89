/* The frame of the executable: a command's own flags and values, progress on stderr, log lines. The sources of tools/
 * belong to no library, so they are compiled in here. */
#include "support.h"

#include "../../tools/args.c"
#include "../../tools/term.c"

/* Of tools/profile.c, which needs the installed tree; no test here names a profile. */
int clb_profile_path(const char *name, char out[PATH_MAX], clb_error *err)
{
    (void)out;
    return clb_fail(err, COLIBRI_E_NOT_FOUND, "no profile is called '%s'", name);
}

static const clb_flag own_flags[] = {
    {"output", 'o', "FILE", "where to", false},
    {"tag", 0, "TEXT", "may be repeated", true},
    {"stop", 'S', "TEXT", "may be repeated", true},
    {"json", 'j', NULL, "a switch", false},
    {0},
};
static const enum clb_setting own_settings[] = {CLB_SET_cpu_threads, CLB_SET_memory_mlock, CLB_SET_store_expert_policy,
                                                CLB_SET_COUNT};
static const clb_command command = {.name = "demo",
                                    .usage = "colibri demo [WORD...]",
                                    .flags = own_flags,
                                    .settings = own_settings,
                                    .max_positional = 2};
static const clb_command bare = {.name = "bare", .usage = "colibri bare", .max_positional = -1};

static int parse(clb_args *args, const clb_command *cmd, char *const *words, clb_error *err)
{
    int n = 0;
    while (words[n])
        n++;
    return clb_args_parse(args, cmd, n, (char **)words, err);
}

#define WORDS(...) ((char *[]){__VA_ARGS__, NULL})

static void flags_of_a_command(void **state)
{
    (void)state;
    clb_args args;
    clb_error err = {0};
    assert_ok(parse(&args, &command,
                    WORDS("one", "--tag", "a", "-jv", "--stop=x", "-o", "-", "--tag=b=c", "-S", "-y", "--tag=", "--",
                          "--two"),
                    &err),
              &err);
    const char *const *tags, *const *stops, *const *words;
    assert_int_equal(clb_args_values(&args, "tag", &tags), 3);
    assert_int_equal(clb_args_values(&args, "stop", &stops), 2);
    assert_int_equal(clb_args_values(&args, "json", &words), 0);
    assert_int_equal(clb_args_positional(&args, &words), 2);
    assert_string_equal(tags[0], "a");
    assert_string_equal(tags[1], "b=c");
    assert_string_equal(tags[2], "");
    assert_string_equal(stops[0], "x");
    assert_string_equal(stops[1], "-y");
    assert_string_equal(words[0], "one");
    assert_string_equal(words[1], "--two");
    assert_string_equal(clb_args_value(&args, "output"), "-");
    assert_string_equal(clb_args_value(&args, "tag"), "");
    assert_null(clb_args_value(&args, "json"));
    assert_true(clb_args_has(&args, "json"));
    assert_false(clb_args_has(&args, "quiet"));
    assert_int_equal(clb_args_level(&args), COLIBRI_LOG_INFO);
    clb_args_free(&args);
}

static void levels(void **state)
{
    (void)state;
    clb_args args;
    clb_error err = {0};
    static const struct {
        const char *flag;
        int level;
    } cases[] = {{"--", COLIBRI_LOG_WARN},     {"-v", COLIBRI_LOG_INFO},  {"-vv", COLIBRI_LOG_DEBUG},
                 {"-vvvv", COLIBRI_LOG_DEBUG}, {"-q", COLIBRI_LOG_ERROR}, {"-qq", COLIBRI_LOG_ERROR}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_ok(parse(&args, &bare, WORDS((char *)cases[i].flag), &err), &err);
        assert_int_equal(clb_args_level(&args), cases[i].level);
        clb_args_free(&args);
    }
}

static void wrong_command_lines(void **state)
{
    (void)state;
    static const struct {
        const clb_command *command;
        const char *words[4], *part;
    } bad[] = {
        {&command, {"--outptu", "x"}, "unknown flag '--outptu'; did you mean '--output'?"},
        {&command, {"--ouput=x"}, "did you mean '--output'?"},
        {&command, {"--output", "a", "--output=b"}, "--output: given twice"},
        {&command, {"-o", "a", "--output=b"}, "--output: given twice"},
        {&command, {"--output"}, "--output needs a value: --output FILE"},
        {&command, {"-o"}, "-o needs a value: -o FILE"},
        {&command, {"--output", "--json"}, "--output needs a value, and '--json' is a flag"},
        {&command, {"-jo", "x"}, "-o takes a value, so it stands alone"},
        {&command, {"-ox"}, "-o takes a value, so it stands alone"},
        {&command, {"-jz"}, "unknown flag '-z' in '-jz'"},
        {&command, {"--json=1"}, "--json takes no value"},
        {&command, {"--kv-strategy", "full"}, "--kv-strategy does not apply to 'demo'"},
        {&command, {"--temp=1"}, "--temp does not apply to 'demo'"},
        {&command, {"-m", "x"}, "-m does not apply to 'demo'"},
        {&command, {"--no-raw"}, "--no-raw does not apply to 'demo'"},
        {&command, {"--no-threads"}, "unknown flag '--no-threads'"},
        {&command, {"a", "b", "c"}, "unexpected argument 'c' (usage: colibri demo [WORD...])"},
        {&bare, {"--threads", "2"}, "--threads does not apply to 'bare'"},
        {&bare, {"--hepl"}, "did you mean '--help'?"},
        {&bare, {"-vq"}, "exclude each other"},
        {&bare,
         {"--xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"},
         "unknown flag"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        clb_args args;
        clb_error err = {0};
        assert_fails(parse(&args, bad[i].command, (char *const *)bad[i].words, &err), &err, COLIBRI_E_USAGE,
                     bad[i].part);
        clb_args_free(&args);
    }
    /* Any number of words, and help stops the reading. */
    clb_args args;
    clb_error err = {0};
    assert_ok(parse(&args, &bare, WORDS("a", "-", "c", "d"), &err), &err);
    const char *const *words;
    assert_int_equal(clb_args_positional(&args, &words), 4);
    clb_args_free(&args);
    assert_ok(parse(&args, &bare, WORDS("-h", "--nonsense"), &err), &err);
    assert_true(args.help);
    clb_args_free(&args);
}

static void settings_that_do_not_apply(void **state)
{
    (void)state;
    static const struct {
        const char *assignment, *part;
    } bad[] = {{"sampling.seed=1", "--set sampling.seed does not apply to 'demo'"},
               {"seed=1", "--set seed does not apply to 'demo'"},
               {"cpu.treads=1", "did you mean 'cpu.threads'?"}};
    clb_args args;
    clb_error err = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_ok(parse(&args, &command, WORDS("--set", (char *)bad[i].assignment), &err), &err);
        assert_fails(clb_args_load(&args, &err), &err, COLIBRI_E_USAGE, bad[i].part);
        clb_args_free(&args);
    }
    assert_ok(parse(&args, &bare, WORDS("--set", "expert-policy.lfu.decay=1"), &err), &err);
    assert_fails(clb_args_load(&args, &err), &err, COLIBRI_E_USAGE, "does not apply to 'bare'");
    clb_args_free(&args);
    /* Files and variables are shared by all commands: what does not apply there is no mistake. */
    assert_int_equal(setenv("COLIBRI_SEED", "7", 1), 0);
    assert_ok(parse(&args, &command, WORDS("--set=expert-policy.lfu.decay=1", "--set", "threads=3"), &err), &err);
    assert_ok(clb_args_load(&args, &err), &err);
    assert_int_equal(clb_config_u64(clb_args_config(&args), CLB_SET_cpu_threads), 3);
    assert_int_equal(clb_config_u64(clb_args_config(&args), CLB_SET_sampling_seed), 7);
    clb_args_free(&args);
    assert_int_equal(unsetenv("COLIBRI_SEED"), 0);
}

static uint64_t clock_now;
static uint64_t fake_clock(void)
{
    return clock_now;
}

static char *out_text;
static size_t out_size;

static clb_term start(bool redraw)
{
    clb_term term;
    FILE *f = open_memstream(&out_text, &out_size);
    assert_non_null(f);
    clb_term_init(&term, f, "colibri demo", true);
    term.redraw = redraw;
    term.width = 40;
    term.now = fake_clock;
    clock_now = 5 * (uint64_t)SECOND;
    return term;
}

static const char *written(clb_term *term)
{
    fflush(term->out);
    return out_text;
}

static void stop(clb_term *term)
{
    fclose(term->out);
    free(out_text);
    out_text = NULL;
}

static void progress_without_a_terminal(void **state)
{
    (void)state;
    clb_term term = start(false);
    const clb_log log = clb_term_log(&term, COLIBRI_LOG_WARN);
    for (uint64_t second = 0; second < 25; second++) {
        clock_now = (5 + second) * SECOND;
        clb_progress(&log, "reading weights", second, 25);
    }
    clb_progress(&log, "reading weights", 25, 25);
    assert_string_equal(written(&term), "colibri demo: reading weights: 8 %, 2 s, 23 s left\n"
                                        "colibri demo: reading weights: 48 %, 12 s, 13 s left\n"
                                        "colibri demo: reading weights: 88 %, 22 s, 3 s left\n");
    stop(&term);

    /* A short job says nothing; the same job later starts its own two seconds. */
    term = start(false);
    const clb_log again = clb_term_log(&term, COLIBRI_LOG_WARN);
    for (int run = 0; run < 3; run++) {
        clb_progress(&again, "job", 0, 10);
        clock_now += SECOND;
        clb_progress(&again, "job", 5, 10);
        clb_progress(&again, "job", 10, 10);
        clock_now += SECOND;
    }
    clb_progress(&again, "other", 0, 0);
    clock_now += 3ull * SECOND;
    clb_progress(&again, "other", 77, 0);
    assert_string_equal(written(&term), "colibri demo: other: 77, 3 s\n");
    stop(&term);

    term = start(false);
    term.progress = false; /* --quiet */
    const clb_log quiet = clb_term_log(&term, COLIBRI_LOG_ERROR);
    clb_progress(&quiet, "job", 0, 10);
    clock_now += 30ull * SECOND;
    clb_progress(&quiet, "job", 5, 10);
    clb_logf(&quiet, COLIBRI_LOG_WARN, "a warning");
    assert_string_equal(written(&term), "");
    stop(&term);
}

static void progress_on_a_terminal(void **state)
{
    (void)state;
    clb_term term = start(true);
    const clb_log log = clb_term_log(&term, COLIBRI_LOG_WARN);
    clb_progress(&log, "reading", 0, 100);
    clock_now += 2ull * SECOND;
    clb_progress(&log, "reading", 50, 100);
    clock_now += SECOND / 10; /* too soon to draw again */
    clb_progress(&log, "reading", 55, 100);
    clb_logf(&log, COLIBRI_LOG_WARN, "careful");
    clock_now += SECOND / 5;
    clb_progress(&log, "reading", 60, 100);
    clb_progress(&log, "reading", 100, 100);
    assert_string_equal(written(&term), "\r\033[Kreading: 50 %, 2 s, 2 s left"
                                        "\r\033[Kcolibri demo: warning: careful\n"
                                        "\r\033[Kreading: 60 %, 2 s, 2 s left"
                                        "\r\033[K");
    stop(&term);

    term = start(true);
    term.width = 10;
    const clb_log narrow = clb_term_log(&term, COLIBRI_LOG_WARN);
    clb_progress(&narrow, "a long name of a job", 0, 100);
    clock_now += 2ull * SECOND;
    clb_progress(&narrow, "a long name of a job", 50, 100);
    clb_term_error(&term, "failed\nhere: \033[31m");
    assert_string_equal(written(&term), "\r\033[Ka long na\r\033[Kcolibri demo: failed here: ?[31m\n");
    stop(&term);
}

/* What is not ours must not drive the terminal: escape, and the one-character forms U+0080 to U+009F, raw or in UTF-8. */
static void messages_on_a_terminal(void **state)
{
    (void)state;
    clb_term term = start(true);
    clb_term_error(&term, "a\033]0;t\007b \xC2\x9B""2J \x9B""2J \xC3\xA9\\ \xE2\x80\xAE.");
    assert_string_equal(written(&term), "colibri demo: a?]0;t?b ?2J ?2J \xC3\xA9\\ ?.\n");
    stop(&term);
}

static void model_text_on_a_terminal(void **state)
{
    (void)state;
    static const char text[] = "a\tb\\\r\nc\033[2J\xC2\x9B""1m\0\x9B \xD7\x90\xE2\x80\x8F\xF0\x9F\x98\x80";
    clb_term term = start(true);
    assert_true(clb_term_text(term.out, text, sizeof text - 1));
    assert_string_equal(written(&term), "a\tb\\\r\nc\\x1b[2J\\x9b""1m\\x00\\x9b \xD7\x90\xE2\x80\x8F\xF0\x9F\x98\x80");
    stop(&term);
}

int main(void)
{
    setenv("XDG_CONFIG_HOME", "/nonexistent", 1);
    for (int i = 0; i < CLB_SET_COUNT; i++) {
        const clb_setting_info info = clb_setting_get((enum clb_setting)i);
        if (info.flag)
            unsetenv(info.env);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flags_of_a_command),          cmocka_unit_test(levels),
        cmocka_unit_test(wrong_command_lines),         cmocka_unit_test(settings_that_do_not_apply),
        cmocka_unit_test(progress_without_a_terminal), cmocka_unit_test(progress_on_a_terminal),
        cmocka_unit_test(messages_on_a_terminal),      cmocka_unit_test(model_text_on_a_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
