#include "support/synth.h"

#include <stdio.h>
#include <string.h>

#include "gguf/writer.h"
#include "support.h"

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

static void add(clb_gguf_writer *w, const char *name, bool matrix, uint64_t ne0, uint64_t ne1, uint64_t ne2,
                uint64_t *salt)
{
    clb_error err;
    const clb_gguf_new_tensor t = {.name = name,
                                   .type = matrix ? Q8_0 : 0,
                                   .n_dims = ne2   ? 3
                                             : ne1 ? 2
                                                   : 1,
                                   .ne = {ne0, ne1, ne2},
                                   .produce = matrix ? produce_q8 : produce_ones,
                                   .ctx = salt};
    assert_ok(clb_gguf_writer_add_tensor(w, &t, &err), &err);
}

static void add_layer(clb_gguf_writer *w, uint32_t il, const test_shape *s, uint64_t *salt)
{
    const uint64_t nq = (uint64_t)s->n_heads * s->head_dim, nk = (uint64_t)s->n_kv_heads * s->head_dim;
    const uint64_t n_experts = s->n_experts;
    const struct {
        const char *name;
        bool matrix;
        uint64_t ne[3];
    } tensors[] = {
        {"attn_norm", false, {s->n_embd}},
        {"ffn_norm", false, {s->n_embd}},
        {"attn_q_norm", false, {s->head_dim}},
        {"attn_k_norm", false, {s->head_dim}},
        {"attn_q", true, {s->n_embd, nq}},
        {"attn_k", true, {s->n_embd, nk}},
        {"attn_v", true, {s->n_embd, nk}},
        {"attn_output", true, {nq, s->n_embd}},
        {n_experts ? "ffn_gate_exps" : "ffn_gate", true, {s->n_embd, s->n_ff, n_experts}},
        {n_experts ? "ffn_up_exps" : "ffn_up", true, {s->n_embd, s->n_ff, n_experts}},
        {n_experts ? "ffn_down_exps" : "ffn_down", true, {s->n_ff, s->n_embd, n_experts}},
        {"ffn_gate_inp", true, {s->n_embd, n_experts}},
    };
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors - (n_experts ? 0 : 1); i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.%s.weight", il, tensors[i].name);
        add(w, name, tensors[i].matrix, tensors[i].ne[0], tensors[i].ne[1], tensors[i].ne[2], salt);
    }
}

void test_write_model(const char *path, const test_shape *s)
{
    clb_error err;
    clb_gguf *base;
    clb_gguf_writer *w;
    static uint64_t salt = 12345;
    assert_ok(clb_gguf_open(s->n_experts ? TEST_DATA("arch/qwen3moe.gguf") : TEST_DATA("arch/qwen3.gguf"), NULL, NULL,
                            &base, &err),
              &err);
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
        if (!s->n_experts && strncmp(keys[i].key, "expert_", 7) == 0)
            continue;
        snprintf(key, sizeof key, "%s.%s", s->n_experts ? "qwen3moe" : "qwen3", keys[i].key);
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
