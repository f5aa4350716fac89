/* The same experts in every layout that GGUF files use (stacked, gate and up fused, one tensor per expert; Q, K and V fused), read
 * and mapped: the same bytes in every lease, the same logits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf/writer.h"
#include "support/rig.h"

#define N_IDS 24u

enum { LEGACY = 1, FUSED_GATE_UP = 2, FUSED_QKV = 4 };

struct rewriter {
    const clb_gguf *g;
    clb_gguf_writer *w;
    unsigned how;
    void *owned[1024];
    size_t n_owned;
};

static void *own(struct rewriter *r, size_t n)
{
    assert_true(r->n_owned < sizeof r->owned / sizeof *r->owned);
    void *p = malloc(n);
    assert_non_null(p);
    r->owned[r->n_owned++] = p;
    return p;
}

static void *bytes_of(struct rewriter *r, const clb_gguf_tensor *t)
{
    clb_error err;
    void *data = own(r, (size_t)t->n_bytes);
    assert_ok(clb_gguf_read(r->g, t, 0, data, (size_t)t->n_bytes, &err), &err);
    return data;
}

static void add(struct rewriter *r, const char *name, uint32_t type, uint64_t ne0, uint64_t ne1, uint64_t ne2, const void *data)
{
    clb_error err;
    const uint32_t n_dims = ne2 > 1 ? 3 : ne1 > 1 ? 2 : 1;
    const clb_gguf_new_tensor t = {.name = name, .type = type, .n_dims = n_dims, .ne = {ne0, ne1, ne2, 1}, .data = data};
    assert_ok(clb_gguf_writer_add_tensor(r->w, &t, &err), &err);
}

static const clb_gguf_tensor *sibling(const struct rewriter *r, uint32_t layer, const char *what)
{
    char name[96];
    snprintf(name, sizeof name, "blk.%u.%s", layer, what);
    const clb_gguf_tensor *t = clb_gguf_find_tensor(r->g, name);
    assert_non_null(t);
    return t;
}

/* One tensor per expert. */
static void split_experts(struct rewriter *r, const clb_gguf_tensor *t, uint32_t layer, const char *part)
{
    const uint8_t *data = bytes_of(r, t);
    const uint64_t stride = t->n_bytes / t->ne[2];
    for (uint64_t e = 0; e < t->ne[2]; e++) {
        char name[96];
        snprintf(name, sizeof name, "blk.%u.ffn_%s.%u.weight", layer, part, (unsigned)e);
        add(r, name, t->type, t->ne[0], t->ne[1], 1, data + e * stride);
    }
}

static void fuse_gate_up(struct rewriter *r, uint32_t layer)
{
    const clb_gguf_tensor *gate = sibling(r, layer, "ffn_gate_exps.weight"), *up = sibling(r, layer, "ffn_up_exps.weight");
    const uint64_t stride = gate->n_bytes / gate->ne[2];
    const uint8_t *g = bytes_of(r, gate), *u = bytes_of(r, up);
    uint8_t *both = own(r, (size_t)(2 * gate->n_bytes));
    for (uint64_t e = 0; e < gate->ne[2]; e++) {
        memcpy(both + 2 * e * stride, g + e * stride, (size_t)stride);
        memcpy(both + (2 * e + 1) * stride, u + e * stride, (size_t)stride);
    }
    char name[96];
    snprintf(name, sizeof name, "blk.%u.ffn_gate_up_exps.weight", layer);
    add(r, name, gate->type, gate->ne[0], 2 * gate->ne[1], gate->ne[2], both);
}

static void fuse_qkv(struct rewriter *r, uint32_t layer)
{
    static const char *const parts[] = {"attn_q.weight", "attn_k.weight", "attn_v.weight"};
    uint64_t n = 0, rows = 0;
    const clb_gguf_tensor *t[3];
    for (int i = 0; i < 3; i++) {
        t[i] = sibling(r, layer, parts[i]);
        n += t[i]->n_bytes;
        rows += t[i]->ne[1];
    }
    uint8_t *all = own(r, (size_t)n), *at = all;
    for (int i = 0; i < 3; i++) {
        memcpy(at, bytes_of(r, t[i]), (size_t)t[i]->n_bytes);
        at += t[i]->n_bytes;
    }
    char name[96];
    snprintf(name, sizeof name, "blk.%u.attn_qkv.weight", layer);
    add(r, name, t[0]->type, t[0]->ne[0], rows, 1, all);
}

/* True if the tensor was replaced by something else. */
static bool rewrite(struct rewriter *r, const clb_gguf_tensor *t)
{
    unsigned layer;
    char what[64];
    if (sscanf(t->name.p, "blk.%u.%63s", &layer, what) != 2)
        return false;
    if (r->how & FUSED_QKV) {
        if (strcmp(what, "attn_q.weight") == 0)
            fuse_qkv(r, layer);
        if (strncmp(what, "attn_", 5) == 0 && strchr("qkv", what[5]) && strcmp(what + 6, ".weight") == 0)
            return true;
    }
    char part[8] = "";
    if (!strstr(what, "_exps.weight") || sscanf(what, "ffn_%7[a-z]", part) != 1)
        return false;
    const bool down = strcmp(part, "down") == 0;
    if ((r->how & FUSED_GATE_UP) && !down) {
        if (strcmp(part, "gate") == 0)
            fuse_gate_up(r, layer);
        return true;
    }
    if (!(r->how & LEGACY))
        return false;
    split_experts(r, t, layer, part);
    return true;
}

static void write_variant(const char *from, unsigned how, const char *to)
{
    clb_error err;
    clb_gguf *g;
    struct rewriter r = {.how = how};
    assert_ok(clb_gguf_open(from, NULL, NULL, &g, &err), &err);
    r.g = g;
    assert_ok(clb_gguf_writer_create(&r.w, &err), &err);
    assert_ok(clb_gguf_writer_copy_keys(r.w, g, &err), &err);
    uint32_t replaced = 0;
    for (uint64_t i = 0; i < clb_gguf_n_tensors(g); i++) {
        const clb_gguf_tensor *t = clb_gguf_tensor_at(g, i);
        if (rewrite(&r, t))
            replaced++;
        else
            add(&r, t->name.p, t->type, t->ne[0], t->ne[1], t->ne[2], bytes_of(&r, t));
    }
    assert_true(replaced > 0 || how == 0);
    assert_ok(clb_gguf_writer_write(r.w, to, 0, &err), &err);
    clb_gguf_writer_free(r.w);
    for (size_t i = 0; i < r.n_owned; i++)
        free(r.owned[i]);
    clb_gguf_close(g);
}

/* Every expert's matrices as the stacked file holds them. */
static void check_leases(test_rig *rig, const clb_gguf *stacked, bool mapped)
{
    static const char *const names[] = {"ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"};
    clb_error err;
    clb_store *store = rig->model->store;
    const uint32_t one = 1;
    const float gate = 1.0f;
    for (uint32_t layer = 0; layer < rig->model->n_moe_layers; layer++)
        for (uint32_t e = 0; e < rig->model->hp.n_experts; e++) {
            const struct colibri_route route = {.struct_size = sizeof route,
                                                .layer = layer,
                                                .n_rows = 1,
                                                .top_k = 1,
                                                .ids = &e,
                                                .gates = &gate,
                                                .n_union = 1,
                                                .union_ids = &e,
                                                .union_rows = &one};
            clb_lease lease;
            uint32_t got;
            clb_store_step(store, COLIBRI_PHASE_DECODE, 1, 1);
            clb_store_route(store, &route);
            assert_ok(clb_store_acquire(store, layer, &e, &one, &gate, 1, &lease, &got, &err), &err);
            assert_int_equal(got, 1);
            for (int p = 0; p < CLB_PARTS; p++) {
                char name[96];
                snprintf(name, sizeof name, "blk.%u.%s", layer, names[p]); /* no dense lead in these models */
                const clb_gguf_tensor *t = clb_gguf_find_tensor(stacked, name);
                assert_non_null(t);
                const size_t n = (size_t)(t->n_bytes / t->ne[2]);
                char *want = malloc(n);
                assert_non_null(want);
                assert_ok(clb_gguf_read(stacked, t, e * n, want, n, &err), &err);
                assert_memory_equal(lease.part[p], want, n);
                assert_int_equal((uintptr_t)lease.part[p] % (mapped ? 16 : 64), 0);
                free(want);
            }
            clb_store_release(store, layer, &lease, 1);
        }
}

static void check_model(const char *path, const clb_gguf *stacked, const uint32_t *ids, const float *baseline, bool can_map)
{
    static const struct {
        uint32_t slots, chunk;
        enum clb_store_mode mode;
    } runs[] = {{0, 0, CLB_STORE_READ}, {3, 0, CLB_STORE_READ}, {1, 1, CLB_STORE_READ}, {0, 5, CLB_STORE_MMAP}, {2, 5, CLB_STORE_MMAP}};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        clb_error err;
        test_rig rig;
        clb_store_stats s;
        const test_rig_options o = {.slots = runs[i].slots, .mode = runs[i].mode};
        const bool mapped = can_map && runs[i].mode == CLB_STORE_MMAP;
        assert_ok(test_rig_open(&rig, path, &o, &err), &err);
        clb_store_get_stats(rig.model->store, &s);
        assert_int_equal(s.n_slots == 0, mapped);
        check_leases(&rig, stacked, mapped);
        float *logits = test_rig_logits(&rig, ids, N_IDS, runs[i].chunk);
        if (memcmp(logits, baseline, N_IDS * rig.model->hp.n_vocab * sizeof(float)) != 0)
            fail_msg("%s: run %zu: not the logits of the stacked file", path, i);
        free(logits);
        clb_store_get_stats(rig.model->store, &s);
        if (mapped || runs[i].slots == 0)
            assert_int_equal(s.misses + s.expert_bytes_read, 0);
        else
            assert_true(s.misses > 0);
        test_rig_close(&rig);
    }
}

static void layouts_are_equal(void **state)
{
    const char *path = *state;
    static const unsigned hows[] = {0, LEGACY, FUSED_GATE_UP, FUSED_QKV, FUSED_GATE_UP | LEGACY | FUSED_QKV};
    clb_error err;
    test_rig rig;
    test_dir dir;
    clb_gguf *stacked;
    uint32_t ids[N_IDS];
    const test_rig_options o = {0};
    test_dir_create(&dir);
    assert_ok(test_rig_open(&rig, path, &o, &err), &err);
    test_rig_ids(&rig, ids, N_IDS, 13);
    float *baseline = test_rig_logits(&rig, ids, N_IDS, 0);
    test_rig_close(&rig);
    assert_ok(clb_gguf_open(path, NULL, NULL, &stacked, &err), &err);
    for (size_t i = 0; i < sizeof hows / sizeof *hows; i++) {
        char name[32], variant[PATH_MAX];
        snprintf(name, sizeof name, "variant-%u.gguf", hows[i]);
        test_dir_file(&dir, name, variant);
        write_variant(path, hows[i], variant);
        check_model(variant, stacked, ids, baseline, !(hows[i] & LEGACY));
    }
    clb_gguf_close(stacked);
    free(baseline);
    test_dir_remove(&dir);
}

/* A part of an expert that is missing, or of another type or shape, is named. */
static void bad_experts_are_named(void **state)
{
    (void)state;
    const char *path = TEST_DATA("arch/qwen3moe.gguf");
    static const char *const parts[] = {"q3", "shape", "type"};
    for (int fault = 0; fault < 3; fault++) {
        clb_error err;
        test_dir dir;
        clb_gguf *g, *bad;
        char file[PATH_MAX];
        struct rewriter r = {.how = LEGACY};
        test_dir_create(&dir);
        test_dir_file(&dir, parts[fault], file);
        assert_ok(clb_gguf_open(path, NULL, NULL, &g, &err), &err);
        r.g = g;
        assert_ok(clb_gguf_writer_create(&r.w, &err), &err);
        assert_ok(clb_gguf_writer_copy_keys(r.w, g, &err), &err);
        for (uint64_t i = 0; i < clb_gguf_n_tensors(g); i++) {
            const clb_gguf_tensor *t = clb_gguf_tensor_at(g, i);
            if (strcmp(t->name.p, "blk.1.ffn_up_exps.weight") == 0) {
                const uint8_t *data = bytes_of(&r, t);
                for (uint64_t e = 0; e < t->ne[2]; e++) {
                    char name[96];
                    snprintf(name, sizeof name, "blk.1.ffn_up.%u.weight", (unsigned)e);
                    if (e != 3)
                        add(&r, name, t->type, t->ne[0], t->ne[1], 1, data);
                    else if (fault == 1)
                        add(&r, name, t->type, t->ne[0], t->ne[1] - 1, 1, data);
                    else if (fault == 2)
                        add(&r, name, 1 /* F16 */, t->ne[0], t->ne[1], 1, data);
                }
            } else if (!rewrite(&r, t)) {
                add(&r, t->name.p, t->type, t->ne[0], t->ne[1], t->ne[2], bytes_of(&r, t));
            }
        }
        assert_ok(clb_gguf_writer_write(r.w, file, 0, &err), &err);
        clb_gguf_writer_free(r.w);
        for (size_t i = 0; i < r.n_owned; i++)
            free(r.owned[i]);
        clb_gguf_close(g);
        assert_ok(clb_gguf_open(file, NULL, NULL, &bad, &err), &err);
        test_rig rig; /* for its registry */
        const test_rig_options o = {0};
        assert_ok(test_rig_open(&rig, path, &o, &err), &err);
        clb_model *model;
        const int want = fault == 2 ? COLIBRI_E_UNSUPPORTED : COLIBRI_E_FORMAT;
        assert_fails(clb_model_bind(bad, rig.registry, NULL, &model, &err), &err, want, "blk.1.ffn_up");
        if (fault)
            assert_true(test_contains(err.msg, "blk.1.ffn_up.3.weight"));
        assert_null(model);
        test_rig_close(&rig);
        clb_gguf_close(bad);
        test_dir_remove(&dir);
    }
}

#define LAYOUT(name) {"layouts of " name, layouts_are_equal, NULL, NULL, (void *)(uintptr_t)(TEST_DATA("arch/" name ".gguf"))}

int main(void)
{
    const struct CMUnitTest tests[] = {
        LAYOUT("qwen3moe"),
        LAYOUT("mixtral"),
        LAYOUT("granitemoe"),
        cmocka_unit_test(bad_experts_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
