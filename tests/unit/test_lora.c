/* LoRA adapters: what they compute is compared with a model whose weights have the adapter merged in. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/scheduler.h"
#include "gguf/writer.h"
#include "model/lora.h"
#include "support/engine.h"

#define RANK  3u
#define ALPHA 6.0f
#define N_IDS 40u

static const char *const models[] = {"llama", "qwen3moe", "granitemoe_shared", "olmoe", "mixtral"};

/* ---- making adapters and merged models ---- */

static bool is_target(const clb_gguf_tensor *t)
{
    static const char *const parts[] = {"attn_q.w",        "attn_k.w",      "attn_v.w",        "attn_output.w",
                                        "ffn_gate.w",      "ffn_up.w",      "ffn_down.w",      "ffn_gate_inp.w",
                                        "ffn_gate_exps.w", "ffn_up_exps.w", "ffn_down_exps.w", "_shexp.w"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(t->name.p, parts[i]))
            return true;
    return false;
}

static float *random_floats(size_t n, uint64_t seed, double scale)
{
    test_rand rng = {seed};
    float *x = calloc(n, sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(((double)test_rand_below(&rng, 2000001) / 1e6 - 1.0) * scale);
    return x;
}

static void add_tensor(clb_gguf_writer *w, const char *name, uint64_t ne0, uint64_t ne1, uint64_t ne2,
                       const float *data)
{
    clb_error err;
    const clb_gguf_new_tensor t = {
        .name = name, .type = 0, .n_dims = ne2 > 1 ? 3 : 2, .ne = {ne0, ne1, ne2, 1}, .data = data};
    assert_ok(clb_gguf_writer_add_tensor(w, &t, &err), &err);
}

/* What every adapter of tests begins with. */
static clb_gguf_writer *adapter(const char *arch)
{
    clb_error err;
    clb_gguf_writer *w;
    assert_ok(clb_gguf_writer_create(&w, &err), &err);
    assert_ok(clb_gguf_writer_set_str(w, "general.type", "adapter", &err), &err);
    assert_ok(clb_gguf_writer_set_str(w, "adapter.type", "lora", &err), &err);
    assert_ok(clb_gguf_writer_set_str(w, "general.architecture", arch, &err), &err);
    assert_ok(clb_gguf_writer_set_f32(w, "adapter.lora.alpha", ALPHA, &err), &err);
    return w;
}

static void write_out(clb_gguf_writer *w, const char *path)
{
    clb_error err;
    assert_ok(clb_gguf_writer_write(w, path, CLB_GGUF_OVERWRITE, &err), &err);
    clb_gguf_writer_free(w);
}

/* An adapter for every weight that can have one, and the model with that adapter at strength `user` merged in. */
static void write_pair(const char *model, const char *adapter_path, const char *merged_path, float user, uint64_t seed)
{
    clb_error err;
    clb_gguf *g;
    assert_ok(clb_gguf_open(model, clb_gguf_known_geometry, NULL, &g, &err), &err);
    clb_str arch;
    char name[64], tensor[128];
    assert_ok(clb_gguf_get_str(g, "general.architecture", &arch, &err), &err);
    snprintf(name, sizeof name, "%.*s", (int)arch.n, arch.p);
    clb_gguf_writer *w = adapter(name), *merged;
    assert_ok(clb_gguf_writer_create(&merged, &err), &err);
    assert_ok(clb_gguf_writer_copy_keys(merged, g, &err), &err);
    float *all[2000];
    size_t n_all = 0;
    for (uint64_t i = 0; i < clb_gguf_n_tensors(g); i++) {
        const clb_gguf_tensor *t = clb_gguf_tensor_at(g, i);
        assert_int_equal(t->type, 0);
        float *values = malloc(t->n_bytes);
        assert_ok(clb_gguf_read(g, t, 0, values, t->n_bytes, &err), &err);
        all[n_all++] = values;
        if (is_target(t)) {
            const size_t n_in = t->ne[0], n_out = t->ne[1], n_experts = t->ne[2];
            float *a = random_floats(n_in * RANK * n_experts, seed + 2 * i, 0.1);
            float *b = random_floats(n_out * RANK * n_experts, seed + 2 * i + 1, 0.1);
            all[n_all++] = a;
            all[n_all++] = b;
            for (size_t e = 0; e < n_experts; e++)
                for (size_t o = 0; o < n_out; o++)
                    for (size_t c = 0; c < n_in; c++) {
                        double sum = 0.0;
                        for (size_t k = 0; k < RANK; k++)
                            sum += (double)b[(e * n_out + o) * RANK + k] * (double)a[(e * RANK + k) * n_in + c];
                        float *to = &values[(e * n_out + o) * n_in + c];
                        *to = (float)((double)*to + sum * (double)ALPHA / RANK * (double)user);
                    }
            snprintf(tensor, sizeof tensor, "%s.lora_a", t->name.p);
            add_tensor(w, tensor, n_in, RANK, n_experts, a);
            snprintf(tensor, sizeof tensor, "%s.lora_b", t->name.p);
            add_tensor(w, tensor, RANK, n_out, n_experts, b);
        }
        clb_gguf_new_tensor copy = {.name = t->name.p, .type = 0, .n_dims = t->n_dims, .data = values};
        memcpy(copy.ne, t->ne, sizeof copy.ne);
        assert_ok(clb_gguf_writer_add_tensor(merged, &copy, &err), &err);
    }
    write_out(w, adapter_path);
    write_out(merged, merged_path);
    for (size_t i = 0; i < n_all; i++)
        free(all[i]);
    clb_gguf_close(g);
}

/* ---- running ---- */

static const char *const settings[] = {"threads=2", "kv-type=f32", "batch=64", NULL};

static void open_engine(test_engine *e, const char *model, uint32_t n_sequences)
{
    clb_error err;
    const test_engine_hooks hooks = {.n_sequences = n_sequences};
    assert_ok(test_engine_open(e, model, settings, &hooks, &err), &err);
}

/* Last logits of ids under a set, in chunks. */
static float *logits_of(test_engine *e, const uint32_t *ids, uint32_t n, uint32_t chunk, const clb_lora_set *set)
{
    clb_error err;
    clb_kv_seq *kv;
    float *logits = calloc(e->engine->model->hp.n_vocab, sizeof *logits);
    assert_ok(clb_engine_new_sequence(e->engine, &kv, &err), &err);
    for (uint32_t at = 0; at < n; at += chunk) {
        const clb_span span = {
            .kv = kv, .tokens = ids + at, .n = n - at < chunk ? n - at : chunk, .n_logits = 1, .lora = set};
        assert_ok(clb_forward_run(e->engine->forward, &span, 1, logits, &err), &err);
    }
    clb_kv_seq_destroy(kv);
    return logits;
}

static void paths(char *adapter_path, char *merged_path, size_t n, const char *name)
{
    snprintf(adapter_path, n, "%s/lora-%s-%d.gguf", COLIBRI_TEST_BINARY_DIR, name, (int)getpid());
    snprintf(merged_path, n, "%s/merged-%s-%d.gguf", COLIBRI_TEST_BINARY_DIR, name, (int)getpid());
}

static void random_ids(test_engine *e, uint32_t *ids, uint64_t seed)
{
    test_rand rng = {seed};
    for (uint32_t i = 0; i < N_IDS; i++)
        ids[i] = test_rand_below(&rng, e->engine->model->hp.n_vocab);
}

static void check_like_merged(const char *name)
{
    char model[512], adapter_path[512], merged_path[512];
    snprintf(model, sizeof model, "%s/arch/%s.gguf", COLIBRI_TEST_DATA, name);
    paths(adapter_path, merged_path, sizeof adapter_path, name);
    write_pair(model, adapter_path, merged_path, 0.75f, 17);
    clb_error err;
    test_engine base, merged;
    clb_lora *lora;
    uint32_t ids[N_IDS];
    open_engine(&base, model, 1);
    random_ids(&base, ids, 3);
    const uint32_t n_vocab = base.engine->model->hp.n_vocab;
    assert_ok(clb_lora_open(base.engine->model, adapter_path, 0, &lora, &err), &err);
    assert_true(lora->n_parts >= base.engine->model->hp.n_layers * 7);
    assert_int_equal(lora->rank, RANK);
    const clb_lora_set set = {.n = 1, .use = {{lora, 0.75f}}}, none = {0}, zero = {.n = 1, .use = {{lora, 0.0f}}};
    float *plain = logits_of(&base, ids, N_IDS, 64, NULL);
    float *with = logits_of(&base, ids, N_IDS, 64, &set);
    float *pieces = logits_of(&base, ids, N_IDS, 7, &set);
    float *without = logits_of(&base, ids, N_IDS, 7, &none);
    float *nothing = logits_of(&base, ids, N_IDS, 64, &zero);
    clb_forward_set_lora(base.engine->forward, &set);
    float *by_default = logits_of(&base, ids, N_IDS, 5, NULL);
    float *overruled = logits_of(&base, ids, N_IDS, 64, &none);
    assert_memory_equal(with, pieces, n_vocab * sizeof(float));
    assert_memory_equal(with, by_default, n_vocab * sizeof(float));
    assert_memory_equal(plain, without, n_vocab * sizeof(float));
    assert_memory_equal(plain, nothing, n_vocab * sizeof(float));
    assert_memory_equal(plain, overruled, n_vocab * sizeof(float));
    open_engine(&merged, merged_path, 1);
    float *want = logits_of(&merged, ids, N_IDS, 64, NULL);
    const double diff = test_max_abs_diff(with, want, n_vocab), change = test_max_abs_diff(plain, want, n_vocab);
    print_message("%s: the adapter changes logits by up to %.3f, and differs from the merged model by %.2g\n", name,
                  change, diff);
    assert_true(change > 0.05);
    assert_true(diff < 1e-4 * (1.0 + change));
    float *const all[] = {plain, with, pieces, without, nothing, by_default, overruled, want};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    test_engine_close(&merged);
    test_engine_close(&base);
    clb_lora_close(lora);
    unlink(adapter_path);
    unlink(merged_path);
}

static void adapters_are_like_merged_weights(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        check_like_merged(models[i]);
}

static void sequences_use_their_own(void **state)
{
    (void)state;
    char a[512], b[512], merged[512];
    const char *model = TEST_DATA("arch/qwen3moe.gguf");
    paths(a, merged, sizeof a, "first");
    write_pair(model, a, merged, 1.0f, 17);
    paths(b, merged, sizeof b, "second");
    write_pair(model, b, merged, 1.0f, 5000);
    clb_error err;
    test_engine e;
    clb_lora *x, *y;
    open_engine(&e, model, 4);
    assert_ok(clb_lora_open(e.engine->model, a, 0, &x, &err), &err);
    assert_ok(clb_lora_open(e.engine->model, b, 0, &y, &err), &err);
    x->id = 2;
    y->id = 1;
    const clb_lora_set sets[] = {
        {0}, {.n = 1, .use = {{x, 1.0f}}}, {.n = 2, .use = {{y, 0.5f}, {x, -0.25f}}}, {.n = 1, .use = {{y, 2.0f}}}};
    uint32_t ids[4][N_IDS];
    float *lone[4];
    for (uint32_t i = 0; i < 4; i++) {
        random_ids(&e, ids[i], 40 + i);
        lone[i] = logits_of(&e, ids[i], 12 + i, 64, &sets[i]);
    }
    for (uint32_t i = 1; i < 4; i++)
        assert_true(test_max_abs_diff(lone[0], lone[i], 16) > 0.0);
    clb_kv_seq *kv[4];
    clb_span spans[4];
    const uint32_t n_vocab = e.engine->model->hp.n_vocab;
    float *logits = calloc(4 * (size_t)n_vocab, sizeof *logits);
    for (uint32_t i = 0; i < 4; i++) {
        assert_ok(clb_engine_new_sequence(e.engine, &kv[i], &err), &err);
        spans[i] = (clb_span){.kv = kv[i], .tokens = ids[i], .n = 12 + i, .n_logits = 1, .lora = &sets[i]};
    }
    assert_ok(clb_forward_run(e.engine->forward, spans, 4, logits, &err), &err);
    for (uint32_t i = 0; i < 4; i++) {
        assert_memory_equal(lone[i], logits + (size_t)i * n_vocab, n_vocab * sizeof(float));
        clb_kv_seq_destroy(kv[i]);
        free(lone[i]);
    }
    free(logits);
    test_engine_close(&e);
    clb_lora_close(x);
    clb_lora_close(y);
    unlink(a);
    unlink(b);
    unlink(merged);
    paths(a, merged, sizeof a, "first");
    unlink(merged);
}

/* ---- requests with adapters ---- */

struct said {
    char text[2048];
    size_t n;
    uint32_t reused;
    int status;
    char message[256];
};

static void listen_to(void *ctx, const clb_request_event *e)
{
    struct said *s = ctx;
    if (e->kind == CLB_EVENT_TEXT) {
        memcpy(s->text + s->n, e->text, e->n_text);
        s->n += e->n_text;
    } else if (e->kind == CLB_EVENT_DONE) {
        s->reused = e->n_reused;
        s->status = e->status;
        snprintf(s->message, sizeof s->message, "%s", e->message);
    }
}

/* Runs requests one after another, or all at once, on an engine with both adapters loaded and the first on. */
static void serve(const char *model, const char *lora, const uint32_t *ids, bool at_once, struct said *said)
{
    const char *const with[] = {"threads=2", "kv-type=f32", "batch=64", "kv-share=yes", lora, NULL};
    static const clb_lora_use none[] = {{1, 0.0f}}, first[] = {{1, 1.0f}}, both[] = {{1, 0.5f}, {2, 1.0f}},
                              unknown[] = {{7, 1.0f}};
    const test_engine_hooks hooks = {.n_sequences = 4};
    clb_error err;
    test_engine e;
    clb_scheduler *s;
    clb_request *r[7];
    assert_ok(test_engine_open(&e, model, with, &hooks, &err), &err);
    const clb_scheduler_options o = {.engine = e.engine, .n_sequences = 4, .queue = 16};
    assert_int_equal(e.engine->adapters.n, 2);
    assert_int_equal(e.engine->adapters.defaults.n, 1);
    for (uint32_t i = 0; i < 7; i++) {
        if (!i || !at_once)
            assert_ok(clb_scheduler_create(&o, &s, &err), &err);
        clb_request_options q = {.prompt = ids,
                                 .n_prompt = N_IDS,
                                 .n_choices = 1,
                                 .sampling = {.repeat_penalty = 1.0},
                                 .max_tokens = 12,
                                 .special = true,
                                 .ignore_eog = true,
                                 .n_logprobs = -1,
                                 .on_event = listen_to,
                                 .ctx = &said[i]};
        q.lora_given = i % 5 > 0;
        q.lora = i == 6 ? unknown : i % 5 == 1 ? none : i % 5 == 2 ? first : both;
        q.n_lora = i == 6 ? 1 : i % 5 == 4 ? 0 : i % 5 == 3 ? 2 : 1;
        q.lora_given = q.lora_given || i == 6;
        assert_ok(clb_scheduler_submit(s, &q, &r[i], &err), &err);
        if (i == 6 || !at_once) {
            clb_scheduler_drain(s);
            assert_ok(clb_scheduler_run(s, &err), &err);
            clb_scheduler_destroy(s);
        }
    }
    for (uint32_t i = 0; i < 7; i++)
        clb_request_release(r[i]);
    for (size_t i = 0; i < e.engine->adapters.n; i++)
        assert_int_equal(e.engine->adapters.items[i].users, 0);
    test_engine_close(&e);
}

static void requests_choose_adapters(void **state)
{
    (void)state;
    char a[512], b[512], merged[512], other[512], setting[1200];
    const char *model = TEST_DATA("arch/qwen3moe.gguf");
    paths(a, merged, sizeof a, "one");
    write_pair(model, a, merged, 1.0f, 17);
    paths(b, other, sizeof b, "two");
    write_pair(model, b, other, 1.0f, 5000);
    snprintf(setting, sizeof setting, "lora=%s,%s=0", a, b);
    struct said *const lone = calloc(14, sizeof *lone), *const together = lone + 7;
    test_engine e;
    uint32_t ids[N_IDS];
    open_engine(&e, model, 1);
    random_ids(&e, ids, 77);
    test_engine_close(&e);
    serve(model, setting, ids, false, lone);
    serve(model, setting, ids, true, together);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(lone[i].status, COLIBRI_OK);
        assert_int_equal(lone[i].n, together[i].n);
        assert_memory_equal(lone[i].text, together[i].text, lone[i].n);
    }
    assert_int_equal(lone[6].status, COLIBRI_E_NOT_FOUND);
    assert_non_null(strstr(lone[6].message, "there are 1, 2"));
    /* 0 and 5: the default, which is what 2 names; 1 and 4: none; 3: both */
    assert_memory_equal(lone[0].text, lone[2].text, lone[0].n);
    assert_memory_equal(lone[1].text, lone[4].text, lone[1].n);
    assert_true(lone[0].n != lone[1].n || memcmp(lone[0].text, lone[1].text, lone[0].n) != 0);
    assert_true(lone[0].n != lone[3].n || memcmp(lone[0].text, lone[3].text, lone[0].n) != 0);
    /* prefixes are shared by who uses the same adapters, and by nobody else */
    assert_int_equal(lone[0].reused, 0);
    assert_int_equal(lone[1].reused, 0);
    assert_int_equal(lone[2].reused, 32);
    assert_int_equal(lone[3].reused, 0);
    assert_int_equal(lone[4].reused, 32);
    assert_int_equal(lone[5].reused, 32);
    unlink(a);
    unlink(b);
    unlink(merged);
    unlink(other);
    free(lone);
}

/* ---- files that do not fit ---- */

static void refuse(const clb_model *model, clb_gguf_writer *w, int status, const char *text)
{
    char path[512];
    clb_error err;
    clb_lora *lora = NULL;
    snprintf(path, sizeof path, "%s/lora-bad-%d.gguf", COLIBRI_TEST_BINARY_DIR, (int)getpid());
    write_out(w, path);
    assert_int_equal(clb_lora_open(model, path, text ? 0 : 100, &lora, &err), status);
    if (text && !strstr(err.msg, text))
        fail_msg("\"%s\" does not say \"%s\"", err.msg, text);
    assert_null(lora);
    unlink(path);
}

static clb_gguf_writer *bad_pair(const char *arch, const char *name, uint64_t n_in, uint64_t rank_a, uint64_t rank_b,
                                 uint64_t n_out, const float *data)
{
    char full[128];
    clb_gguf_writer *w = adapter(arch);
    snprintf(full, sizeof full, "%s.lora_a", name);
    add_tensor(w, full, n_in, rank_a, 1, data);
    snprintf(full, sizeof full, "%s.lora_b", name);
    add_tensor(w, full, rank_b, n_out, 1, data);
    return w;
}

static void files_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    test_engine e;
    clb_error err;
    open_engine(&e, TEST_DATA("arch/qwen3moe.gguf"), 1);
    const clb_model *m = e.engine->model;
    const uint64_t n = m->hp.n_embd, nq = (uint64_t)m->hp.n_heads * m->hp.k_dim;
    float *data = random_floats(100000, 1, 1.0);
    clb_lora *lora;
    assert_int_equal(clb_lora_open(m, TEST_DATA("arch/qwen3moe.gguf"), 0, &lora, &err), COLIBRI_E_FORMAT);
    assert_non_null(strstr(err.msg, "no LoRA adapter"));
    assert_int_equal(clb_lora_open(m, "/nonexistent/a.gguf", 0, &lora, &err), COLIBRI_E_NOT_FOUND);
    refuse(m, adapter("llama"), COLIBRI_E_FORMAT, "expected \"qwen3moe\"");
    refuse(m, bad_pair("qwen3moe", "blk.0.attn_q.weight", n + 1, 2, 2, nq, data), COLIBRI_E_FORMAT, "this model takes");
    refuse(m, bad_pair("qwen3moe", "blk.0.attn_q.weight", n, 2, 3, nq, data), COLIBRI_E_FORMAT, "this model takes");
    refuse(m, bad_pair("qwen3moe", "blk.0.attn_q.weight", n, 2, 2, nq + 1, data), COLIBRI_E_FORMAT, "this model takes");
    refuse(m, bad_pair("qwen3moe", "blk.99.attn_q.weight", n, 2, 2, nq, data), COLIBRI_E_FORMAT, "layers");
    refuse(m, bad_pair("qwen3moe", "output.weight", n, 2, 2, nq, data), COLIBRI_E_UNSUPPORTED, "output.weight.lora_a");
    refuse(m, bad_pair("qwen3moe", "blk.0.ffn_up.weight", n, 2, 2, nq, data), COLIBRI_E_FORMAT, "no such weight");
    refuse(m, bad_pair("qwen3moe", "blk.0.attn_q.weight", n, 2, 2, nq, data), COLIBRI_E_NOMEM, NULL);
    clb_gguf_writer *w = adapter("qwen3moe");
    add_tensor(w, "blk.0.attn_q.weight.lora_a", n, 2, 1, data);
    refuse(m, w, COLIBRI_E_FORMAT, "has no blk.0.attn_q.weight.lora_b");
    w = adapter("qwen3moe");
    add_tensor(w, "blk.0.attn_q.weight", n, 2, 1, data);
    refuse(m, w, COLIBRI_E_UNSUPPORTED, "neither");
    w = bad_pair("qwen3moe", "blk.0.attn_q.weight", n, 2, 2, nq, data);
    assert_ok(clb_gguf_writer_set_f32(w, "adapter.lora.alpha", NAN, &err), &err);
    refuse(m, w, COLIBRI_E_FORMAT, "alpha is no finite number");
    free(data);
    test_engine_close(&e);
}

/* Two places for A x (gate and up) of every pair of a row and an expert are in the plan, and in what later adapters may
 * take. */
static void work_space_is_in_the_budget(void **state)
{
    (void)state;
    char path[512], merged[512], on[600];
    const char *model = TEST_DATA("arch/qwen3moe.gguf");
    paths(path, merged, sizeof path, "budget");
    write_pair(model, path, merged, 1.0f, 17);
    snprintf(on, sizeof on, "lora=%s", path);
    const char *const with[] = {"threads=1", "batch=64", on, NULL};
    const char *const tight[] = {"threads=1", "batch=64", "lora-memory=100K", NULL};
    clb_error err;
    test_engine e;
    uint32_t id;
    assert_ok(test_engine_open(&e, model, with, NULL, &err), &err);
    const clb_lora *lora = e.engine->adapters.items[0].lora;
    const uint64_t own = lora->bytes, work = 2ull * 64 * e.engine->model->hp.top_k * RANK * sizeof(float);
    assert_int_equal(e.engine->plan_input.lora_bytes, own + work);
    assert_int_equal(e.engine->plan.lora_bytes, own + work);
    assert_int_equal(e.engine->adapters.bytes, own + work);
    assert_ok(clb_adapters_unload(&e.engine->adapters, lora->id, &err), &err);
    assert_int_equal(e.engine->adapters.bytes, 0);
    assert_ok(clb_adapters_load(&e.engine->adapters, e.engine->model, path, 1.0f, &id, &err), &err);
    assert_int_equal(clb_adapters_load(&e.engine->adapters, e.engine->model, path, 1.0f, &id, &err), COLIBRI_E_NOMEM);
    test_engine_close(&e);
    assert_ok(test_engine_open(&e, model, tight, NULL, &err), &err);
    e.engine->adapters.max_bytes = own + work - 1;
    assert_int_equal(clb_adapters_load(&e.engine->adapters, e.engine->model, path, 1.0f, &id, &err), COLIBRI_E_NOMEM);
    assert_non_null(strstr(err.msg, "work space for its rank of 3"));
    assert_int_equal(e.engine->adapters.n, 0);
    e.engine->adapters.max_bytes++;
    assert_ok(clb_adapters_load(&e.engine->adapters, e.engine->model, path, 1.0f, &id, &err), &err);
    test_engine_close(&e);
    unlink(path);
    unlink(merged);
}

static void assert_scales(const test_engine *e, const float *want)
{
    const clb_adapters *a = &e->engine->adapters;
    uint32_t on = 0;
    for (size_t i = 0; i < a->n; i++) {
        if (a->items[i].scale != want[i])
            fail_msg("adapter %zu has the scale %g, not %g", i, (double)a->items[i].scale, (double)want[i]);
        on += want[i] != 0.0f;
    }
    assert_int_equal(a->defaults.n, on);
}

/* Several strengths are set together or not at all, and what counts is how many are on in the end. */
static void strengths_are_set_together(void **state)
{
    (void)state;
    enum { N = CLB_LORA_MOST + 2 };
    char path[512], merged[512];
    const char *model = TEST_DATA("arch/qwen3moe.gguf");
    paths(path, merged, sizeof path, "together");
    write_pair(model, path, merged, 1.0f, 17);
    clb_error err;
    test_engine e;
    uint32_t id[N];
    float scale[N] = {0};
    clb_lora_use uses[N];
    open_engine(&e, model, 1);
    clb_adapters *const a = &e.engine->adapters;
    a->max_bytes = 1u << 30;
    for (size_t i = 0; i < N; i++)
        assert_ok(clb_adapters_load(a, e.engine->model, path, 0, &id[i], &err), &err);
    for (size_t i = 0; i < N; i++)
        uses[i] = (clb_lora_use){id[i], 1.0f};
    assert_fails(clb_adapters_set_scales(a, uses, CLB_LORA_MOST + 1, &err), &err, COLIBRI_E_LIMIT, "9 LoRA adapters");
    assert_scales(&e, scale);
    uses[1].scale = 2000.0f;
    assert_fails(clb_adapters_set_scales(a, uses, 2, &err), &err, COLIBRI_E_USAGE, "2000");
    assert_scales(&e, scale);
    uses[1] = (clb_lora_use){12345, 1.0f};
    assert_fails(clb_adapters_set_scales(a, uses, 2, &err), &err, COLIBRI_E_NOT_FOUND, "12345");
    assert_scales(&e, scale);
    uses[1] = (clb_lora_use){id[1], 0.5f};
    assert_ok(clb_adapters_set_scales(a, uses, CLB_LORA_MOST, &err), &err);
    for (size_t i = 0; i < CLB_LORA_MOST; i++)
        scale[i] = i == 1 ? 0.5f : 1.0f;
    assert_scales(&e, scale);
    /* one on before the other is off: never more than may be on in the end */
    uses[0] = (clb_lora_use){id[N - 1], 2.0f};
    uses[1] = (clb_lora_use){id[0], 0.0f};
    assert_fails(clb_adapters_set_scales(a, uses, 1, &err), &err, COLIBRI_E_LIMIT, "turn some off");
    assert_scales(&e, scale);
    assert_ok(clb_adapters_set_scales(a, uses, 2, &err), &err);
    scale[N - 1] = 2.0f;
    scale[0] = 0.0f;
    assert_scales(&e, scale);
    /* named twice */
    uses[0] = (clb_lora_use){id[2], 3.0f};
    uses[1] = (clb_lora_use){id[2], 4.0f};
    assert_ok(clb_adapters_set_scales(a, uses, 2, &err), &err);
    scale[2] = 4.0f;
    assert_scales(&e, scale);
    assert_ok(clb_adapters_set_scales(a, uses, 0, &err), &err);
    assert_scales(&e, scale);
    test_engine_close(&e);
    unlink(path);
    unlink(merged);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adapters_are_like_merged_weights),
        cmocka_unit_test(sequences_use_their_own),
        cmocka_unit_test(requests_choose_adapters),
        cmocka_unit_test(files_that_do_not_fit_are_refused),
        cmocka_unit_test(work_space_is_in_the_budget),
        cmocka_unit_test(strengths_are_set_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
