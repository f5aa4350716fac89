/* slow: resident memory of the executable stays under --max-memory, from the smallest accepted budget on. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gguf/writer.h"
#include "support.h"

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
    const char *flags[12]; /* NULL ends */
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

/* ---- a model whose buffers matter ---- */

struct shape {
    uint32_t n_layers, n_embd, n_ff, n_experts, top_k, n_heads, n_kv_heads, head_dim, ctx;
};

#define Q8_0       8u
#define Q8_0_BLOCK 34u

/* Q8_0 blocks of scale 2^-9 and bytes from a fixed sequence; floats 1 for norms. */
static int produce_q8(void *ctx, uint64_t offset, void *buf, size_t size, clb_error *err)
{
    (void)err;
    const uint64_t salt = *(const uint64_t *)ctx;
    uint8_t *p = buf;
    for (size_t i = 0; i < size; i++) {
        const uint64_t at = offset + i, in_block = at % Q8_0_BLOCK;
        const uint64_t mixed = (at + salt) * UINT64_C(0x9e3779b97f4a7c15);
        p[i] = in_block == 0 ? 0x00 : in_block == 1 ? 0x18 : (uint8_t)(mixed >> 56);
    }
    return COLIBRI_OK;
}

static int produce_ones(void *ctx, uint64_t offset, void *buf, size_t size, clb_error *err)
{
    (void)ctx;
    (void)err;
    static const uint8_t one[4] = {0, 0, 0x80, 0x3f};
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)buf)[i] = one[(offset + i) % 4];
    return COLIBRI_OK;
}

static void add(clb_gguf_writer *w, const char *name, bool matrix, uint64_t ne0, uint64_t ne1, uint64_t ne2, uint64_t *salt)
{
    clb_error err;
    const clb_gguf_new_tensor t = {.name = name,
                                   .type = matrix ? Q8_0 : 0,
                                   .n_dims = ne2 ? 3 : ne1 ? 2 : 1,
                                   .ne = {ne0, ne1, ne2},
                                   .produce = matrix ? produce_q8 : produce_ones,
                                   .ctx = salt};
    assert_ok(clb_gguf_writer_add_tensor(w, &t, &err), &err);
}

static void add_layer(clb_gguf_writer *w, uint32_t il, const struct shape *s, uint64_t *salt)
{
    const uint64_t nq = (uint64_t)s->n_heads * s->head_dim, nk = (uint64_t)s->n_kv_heads * s->head_dim;
    const struct {
        const char *name;
        bool matrix;
        uint64_t ne[3];
    } tensors[] = {
        {"attn_norm", false, {s->n_embd}},         {"ffn_norm", false, {s->n_embd}},
        {"attn_q_norm", false, {s->head_dim}},     {"attn_k_norm", false, {s->head_dim}},
        {"attn_q", true, {s->n_embd, nq}},         {"attn_k", true, {s->n_embd, nk}},
        {"attn_v", true, {s->n_embd, nk}},         {"attn_output", true, {nq, s->n_embd}},
        {"ffn_gate_inp", true, {s->n_embd, s->n_experts}},
        {"ffn_gate_exps", true, {s->n_embd, s->n_ff, s->n_experts}},
        {"ffn_up_exps", true, {s->n_embd, s->n_ff, s->n_experts}},
        {"ffn_down_exps", true, {s->n_ff, s->n_embd, s->n_experts}},
    };
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.%s.weight", il, tensors[i].name);
        add(w, name, tensors[i].matrix, tensors[i].ne[0], tensors[i].ne[1], tensors[i].ne[2], salt);
    }
}

static void write_moe(const char *path, const struct shape *s)
{
    clb_error err;
    clb_gguf *base;
    clb_gguf_writer *w;
    static uint64_t salt = 12345;
    assert_ok(clb_gguf_open(TEST_DATA("arch/qwen3moe.gguf"), NULL, NULL, &base, &err), &err);
    assert_ok(clb_gguf_writer_create(&w, &err), &err);
    assert_ok(clb_gguf_writer_copy_keys(w, base, &err), &err);
    const struct {
        const char *key;
        uint32_t value;
    } keys[] = {
        {"block_count", s->n_layers},          {"embedding_length", s->n_embd},
        {"feed_forward_length", s->n_ff},      {"expert_feed_forward_length", s->n_ff},
        {"expert_count", s->n_experts},        {"expert_used_count", s->top_k},
        {"attention.head_count", s->n_heads},  {"attention.head_count_kv", s->n_kv_heads},
        {"attention.key_length", s->head_dim}, {"attention.value_length", s->head_dim},
        {"rope.dimension_count", s->head_dim}, {"context_length", s->ctx},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char key[96];
        snprintf(key, sizeof key, "qwen3moe.%s", keys[i].key);
        assert_ok(clb_gguf_writer_set_u32(w, key, keys[i].value, &err), &err);
    }
    add(w, "token_embd.weight", true, s->n_embd, 128, 0, &salt);
    add(w, "output.weight", true, s->n_embd, 128, 0, &salt);
    add(w, "output_norm.weight", false, s->n_embd, 0, 0, &salt);
    for (uint32_t il = 0; il < s->n_layers; il++)
        add_layer(w, il, s, &salt);
    assert_ok(clb_gguf_writer_write(w, path, 0, &err), &err);
    clb_gguf_writer_free(w);
    clb_gguf_close(base);
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
    };
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++)
        check_budgets(&setups[i], "40");
    test_dir_remove(&dir);
}

static void synthetic(void **state)
{
    (void)state;
    static const struct shape shape = {2, 512, 768, 64, 8, 8, 2, 64, 8192};
    test_dir dir;
    char prompt[PATH_MAX], model[PATH_MAX];
    test_dir_create(&dir);
    test_dir_file(&dir, "prompt.txt", prompt);
    test_dir_file(&dir, "model.gguf", model);
    write_moe(model, &shape);
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

int main(void)
{
    if (SANITIZED)
        test_skip("sanitizers use memory of their own");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_moe),
        cmocka_unit_test(synthetic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
