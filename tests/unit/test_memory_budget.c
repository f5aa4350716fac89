/* slow: resident memory of the executable stays under --max-memory, from the smallest accepted budget on. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support.h"
#include "support/synth.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

#define COLIBRI COLIBRI_TEST_BINARY_DIR "/bin/colibri"
#define MIB     (UINT64_C(1) << 20)

/* ---- running it ---- */

struct outcome {
    int code;
    uint64_t peak; /* bytes */
    char text[4096]; /* of standard error */
};

static void run_colibri(const char *const *args, struct outcome *out)
{
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const int null = open("/dev/null", O_RDWR);
        dup2(null, 0);
        dup2(null, 1);
        dup2(pipes[1], 2);
        close(pipes[0]);
        close(pipes[1]);
        setenv("HOME", "/nonexistent", 1);
        setenv("XDG_CONFIG_HOME", "/nonexistent", 1);
        execv(COLIBRI, (char *const *)(uintptr_t)args);
        _exit(127);
    }
    close(pipes[1]);
    size_t n = 0;
    for (;;) {
        char buf[512];
        const ssize_t got = read(pipes[0], buf, sizeof buf);
        if (got <= 0)
            break;
        const size_t keep = (size_t)got < sizeof out->text - 1 - n ? (size_t)got : sizeof out->text - 1 - n;
        memcpy(out->text + n, buf, keep);
        n += keep;
    }
    out->text[n] = '\0';
    close(pipes[0]);
    int status;
    struct rusage usage;
    assert_int_equal(wait4(pid, &status, 0, &usage), pid);
    out->code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    out->peak = (uint64_t)usage.ru_maxrss * 1024;
}

struct setup {
    const char *model, *prompt_file;
    const char *flags[16]; /* NULL ends */
};

/* budget in MiB; n tokens. */
static void run_with(const struct setup *s, uint64_t budget, const char *n, struct outcome *out)
{
    char size[32];
    snprintf(size, sizeof size, "%lluM", (unsigned long long)budget);
    const char *args[40] = {"colibri", "run",   "-m",          s->model,       "--raw", "-n",     n, "--ignore-eos",
                            "--temperature", "0", "--max-memory", size, "--file", s->prompt_file};
    size_t at = 0;
    while (args[at])
        at++;
    for (size_t i = 0; s->flags[i]; i++)
        args[at++] = s->flags[i];
    run_colibri(args, out);
}

static uint64_t suggested(const struct outcome *o)
{
    const char *at = strstr(o->text, "would fit: --max-memory ");
    unsigned long long mib = 0;
    if (!at || sscanf(at, "would fit: --max-memory %lluM", &mib) != 1)
        fail_msg("no advice in: %s (exit code %d)", o->text, o->code);
    return mib;
}

static void check_budgets(const struct setup *s, const char *n)
{
    struct outcome o;
    run_with(s, 1, n, &o);
    assert_int_equal(o.code, 7);
    const uint64_t least = suggested(&o);
    run_with(s, least - 2, n, &o); /* one less may fit: the process is not always the same few pages */
    assert_int_equal(o.code, 7);
    static const uint64_t more[] = {0, 5, 100};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        run_with(s, least + more[i], n, &o);
        if (o.code)
            fail_msg("a budget of %llu MiB: exit code %d: %s", (unsigned long long)(least + more[i]), o.code, o.text);
        print_message("budget %4llu MiB: peak %6.1f MiB\n", (unsigned long long)(least + more[i]), (double)o.peak / (double)MIB);
        if (o.peak > (least + more[i]) * MIB)
            fail_msg("a budget of %llu MiB, but a peak of %.1f MiB", (unsigned long long)(least + more[i]),
                     (double)o.peak / (double)MIB);
    }
}

static void write_prompt(const char *path, size_t n)
{
    char *text = malloc(n);
    test_rand rng = {9};
    assert_non_null(text);
    for (size_t i = 0; i < n; i++)
        text[i] = (char)(33 + test_rand_below(&rng, 94));
    test_write_file(path, text, n);
    free(text);
}

/* ---- the tests ---- */

static void tiny_moe(void **state)
{
    (void)state;
    test_dir dir;
    char prompt[PATH_MAX];
    test_dir_create(&dir);
    test_dir_file(&dir, "prompt.txt", prompt);
    const char *model = TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf");
    char *text = test_read_file(TEST_DATA("tiny-moe/prose.txt"), NULL);
    test_write_file(prompt, text, 3000);
    free(text);
    const struct setup setups[] = {
        {model, prompt, {"--threads", "2", NULL}},
        {model, prompt, {"--threads", "2", "--batch", "32", "--ctx", "2048", NULL}},
        {model, prompt, {"--threads", "1", "--kv-type", "f32", "--store-mode", "mmap", NULL}},
        {model, prompt, {"--threads", "2", "--batch", "64", "--kv-strategy", "sliding-window", "--kv-budget", "256", NULL}},
        {model, prompt, {"--threads", "2", "--batch", "64", "--kv-strategy", "important-tokens", "--kv-budget", "256", NULL}},
        {model, prompt, {"--threads", "2", "--batch", "64", "--kv-strategy", "ada/snapkv", "--kv-budget", "25%", NULL}},
        {model, prompt, {"--threads", "2", "--batch", "64", "--kv-strategy", "h2o", "--kv-budget", "25%", "--kv-type", "q8_0", NULL}},
    };
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++)
        check_budgets(&setups[i], "40");
    test_dir_remove(&dir);
}

static void synthetic(void **state)
{
    (void)state;
    static const test_shape shape = {2, 512, 768, 64, 8, 8, 2, 64, 8192};
    test_dir dir;
    char prompt[PATH_MAX], model[PATH_MAX];
    test_dir_create(&dir);
    test_dir_file(&dir, "prompt.txt", prompt);
    test_dir_file(&dir, "model.gguf", model);
    test_write_model(model, &shape);
    write_prompt(prompt, 2500);
    const struct setup setups[] = {
        {model, prompt, {"--threads", "2", "--ctx", "4096", NULL}},
        {model, prompt, {"--threads", "2", "--ctx", "4096", "--batch", "1500", NULL}},
        {model, prompt, {"--threads", "2", "--ctx", "8192", "--batch", "16", "--kv-block-size", "256", NULL}},
        {model, prompt, {"--threads", "8", "--ctx", "3000", "--batch", "128", NULL}},
    };
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++)
        check_budgets(&setups[i], "8");
    test_dir_remove(&dir);
}

/* Layers that are read again in every pass: the least budget holds two of eight. */
static void streamed(void **state)
{
    (void)state;
    static const test_shape shape = {8, 1024, 3072, 0, 0, 16, 4, 64, 4096};
    test_dir dir;
    char prompt[PATH_MAX], model[PATH_MAX];
    test_dir_create(&dir);
    test_dir_file(&dir, "prompt.txt", prompt);
    test_dir_file(&dir, "model.gguf", model);
    test_write_model(model, &shape);
    write_prompt(prompt, 700);
    const struct setup setups[] = {
        {model, prompt, {"--threads", "2", "--ctx", "1024", "--batch", "64", NULL}},
        {model, prompt, {"--threads", "2", "--ctx", "1024", "--batch", "64", "--prefetch-depth", "4", NULL}},
        {model, prompt, {"--threads", "1", "--ctx", "1024", "--batch", "64", "--direct", "off", "--io", "pread", NULL}},
    };
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++)
        check_budgets(&setups[i], "8");
    test_dir_remove(&dir);
}

/* The strategy's own part is larger than all slack: the last 128 queries of 512 heads, 32 MiB, and the bounds of 32768
 * pages, 32 MiB. */
static void strategies(void **state)
{
    (void)state;
    static const test_shape shape = {16, 256, 256, 0, 0, 32, 32, 128, 2048};
    test_dir dir;
    char prompt[PATH_MAX], model[PATH_MAX];
    test_dir_create(&dir);
    test_dir_file(&dir, "prompt.txt", prompt);
    test_dir_file(&dir, "model.gguf", model);
    test_write_model(model, &shape);
    write_prompt(prompt, 1000);
    const struct setup setups[] = {
        {model, prompt, {"--threads", "2", "--ctx", "1024", "--batch", "256", "--kv-strategy", "expected-attention:covariance=0", "--kv-budget", "25%", NULL}},
        {model, prompt, {"--threads", "2", "--ctx", "1024", "--batch", "256", "--kv-strategy", "quest", "--kv-budget", "25%", "--kv-block-size", "16", NULL}},
    };
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++)
        check_budgets(&setups[i], "8");
    test_dir_remove(&dir);
}

int main(void)
{
    if (SANITIZED)
        test_skip("sanitizers use memory of their own");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_moe),
        cmocka_unit_test(synthetic),
        cmocka_unit_test(streamed),
        cmocka_unit_test(strategies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
