/* Packed models run: logits are the same bytes as those of the GGUF file, for every architecture, read and mapped, with
 * and without checksums; damaged weights and foreign layouts are refused. */
#include "support/packed.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gguf/internal.h"
#include "support/engine.h"

static test_dir dir;
static char packed_path[PATH_MAX];

static int begin(void **state)
{
    (void)state;
    test_dir_create(&dir);
    test_dir_file(&dir, "model.colibri", packed_path);
    return 0;
}

static int end(void **state)
{
    (void)state;
    test_dir_remove(&dir);
    return 0;
}

static void pack(const char *path)
{
    clb_error err;
    clb_gguf *g;
    assert_ok(clb_gguf_open(path, NULL, NULL, &g, &err), &err);
    test_pack(g, packed_path, 2, 0);
    clb_gguf_close(g);
}

static float *run(const char *path, const char *const *settings, const struct test_ref_prompt *p)
{
    clb_error err;
    test_engine e;
    assert_ok(test_engine_open(&e, path, settings, NULL, &err), &err);
    float *logits = test_engine_logits(e.engine, p->ids, p->n, 0);
    test_engine_close(&e);
    return logits;
}

static const char *const modes[][4] = {
    {"threads=2", NULL},
    {"threads=1", "store.mode=mmap", NULL},
    {"threads=3", "store.verify=never", NULL},
    {"threads=2", "store.verify=always", "store.mode=mmap", NULL},
    {"threads=1", "mask=all", NULL},
};
enum { N_MODES = sizeof modes / sizeof *modes };

static void same_logits(const char *path, const char *ref_path, const char *const *settings)
{
    test_ref ref;
    test_ref_open(&ref, ref_path);
    pack(path);
    for (uint32_t p = 0; p < ref.n_prompts && p < 2; p++) {
        const struct test_ref_prompt *prompt = &ref.prompt[p];
        static const char *const plain[] = {"threads=2", NULL};
        float *want = run(path, plain, prompt);
        for (size_t m = 0; m < (settings ? 1 : N_MODES); m++) {
            float *got = run(packed_path, settings ? settings : modes[m], prompt);
            if (memcmp(want, got, (size_t)prompt->n * prompt->n_vocab * sizeof *got) != 0)
                fail_msg("%s, prompt %u, mode %zu: the packed model's logits are other bytes", path, p, m);
            free(got);
        }
        free(want);
    }
    test_ref_close(&ref);
}

/* The float model with its matrices in a quantized format, in turns those of `types`: then layouts matter. */
static void quantize(const char *path, bool one_type, const char *out)
{
    static const uint32_t types[] = {2, 8, 20, 6, 39}; /* Q4_0, Q8_0, IQ4_NL, Q5_0, MXFP4 */
    clb_error err;
    clb_gguf *g;
    clb_gguf_writer *w;
    uint32_t turn = 0;
    void *blocks[512];
    assert_ok(clb_gguf_open(path, NULL, NULL, &g, &err), &err);
    assert_ok(clb_gguf_writer_create(&w, &err), &err);
    assert_ok(clb_gguf_writer_copy_keys(w, g, &err), &err);
    const uint64_t n = clb_gguf_n_tensors(g);
    assert_in_range(n, 1, 512);
    for (uint64_t i = 0; i < n; i++) {
        const clb_gguf_tensor *t = clb_gguf_tensor_at(g, i);
        clb_gguf_new_tensor copy = {.name = t->name.p, .type = t->type, .n_dims = t->n_dims};
        memcpy(copy.ne, t->ne, sizeof copy.ne);
        float *values = malloc((size_t)t->n_bytes);
        assert_true(values && t->type == 0);
        assert_ok(clb_gguf_read(g, t, 0, values, (size_t)t->n_bytes, &err), &err);
        copy.data = blocks[i] = values;
        /* Experts of one matrix share a type: a layer's file may have one tensor for each. */
        if (t->n_dims >= 2 && t->ne[0] % 32 == 0 && !strstr(t->name.p, "ffn_gate_inp")) {
            const bool is_expert = strstr(t->name.p, "ffn_") != NULL;
            copy.type = types[is_expert || one_type ? 0 : turn++ % 5];
            const struct colibri_format *f = test_packed_format(NULL, copy.type);
            blocks[i] = malloc((size_t)(t->n_elems / f->block_elems * f->block_bytes));
            assert_non_null(blocks[i]);
            assert_int_equal(f->quantize(values, blocks[i], (size_t)t->n_elems, NULL), COLIBRI_OK);
            copy.data = blocks[i];
            free(values);
        }
        assert_ok(clb_gguf_writer_add_tensor(w, &copy, &err), &err);
    }
    assert_ok(clb_gguf_writer_write(w, out, CLB_GGUF_OVERWRITE, &err), &err);
    clb_gguf_writer_free(w);
    for (uint64_t i = 0; i < n; i++)
        free(blocks[i]);
    clb_gguf_close(g);
}

/* The model at `path` with its experts in one tensor each, as old files have them, or with gate and up, and query, key
 * and value, in one tensor. */
enum form { SINGLE, FUSED };

static void add(clb_gguf_writer *w, const char *name, uint32_t type, uint64_t ne0, uint64_t ne1, uint64_t ne2,
                const void *data)
{
    clb_error err;
    const clb_gguf_new_tensor t = {
        .name = name, .type = type, .n_dims = ne2 ? 3 : 2, .ne = {ne0, ne1, ne2 ? ne2 : 1, 1}, .data = data};
    assert_ok(clb_gguf_writer_add_tensor(w, &t, &err), &err);
}

static uint8_t *bytes_of(const clb_gguf *g, const clb_gguf_tensor *t)
{
    clb_error err;
    uint8_t *bytes = malloc((size_t)t->n_bytes);
    assert_non_null(bytes);
    assert_ok(clb_gguf_read(g, t, 0, bytes, (size_t)t->n_bytes, &err), &err);
    return bytes;
}

/* Puts n tensors "blk.N.<part>" together, expert by expert. Returns the bytes. */
static uint8_t *fuse(clb_gguf_writer *w, const clb_gguf *g, unsigned layer, const char *const *parts, const char *as)
{
    char name[100];
    const clb_gguf_tensor *t[3] = {0};
    uint8_t *bytes[3] = {0};
    uint64_t rows = 0, total = 0;
    size_t n = 0;
    for (; n < 3 && parts[n]; n++) {
        snprintf(name, sizeof name, "blk.%u.%s", layer, parts[n]);
        t[n] = clb_gguf_find_tensor(g, name);
        assert_true(t[n] && t[n]->type == t[0]->type);
        bytes[n] = bytes_of(g, t[n]);
        rows += t[n]->ne[1];
        total += t[n]->n_bytes;
    }
    uint8_t *all = malloc((size_t)total), *to = all;
    assert_non_null(all);
    for (uint64_t e = 0; e < t[0]->ne[2]; e++)
        for (size_t i = 0; i < n; i++) {
            const size_t part = (size_t)(t[i]->n_bytes / t[i]->ne[2]);
            memcpy(to, bytes[i] + e * part, part);
            to += part;
        }
    for (size_t i = 0; i < n; i++)
        free(bytes[i]);
    snprintf(name, sizeof name, "blk.%u.%s", layer, as);
    add(w, name, t[0]->type, t[0]->ne[0], rows, t[0]->n_dims == 3 ? t[0]->ne[2] : 0, all);
    return all;
}

static void rearrange(const char *path, enum form form, const char *out)
{
    static const char *const qkv[] = {"attn_q.weight", "attn_k.weight", "attn_v.weight"};
    static const char *const gate_up[] = {"ffn_gate_exps.weight", "ffn_up_exps.weight", NULL};
    clb_error err;
    clb_gguf *g;
    clb_gguf_writer *w;
    uint8_t *kept[512];
    size_t n_kept = 0;
    assert_ok(clb_gguf_open(path, NULL, NULL, &g, &err), &err);
    assert_ok(clb_gguf_writer_create(&w, &err), &err);
    assert_ok(clb_gguf_writer_copy_keys(w, g, &err), &err);
    for (uint64_t i = 0; i < clb_gguf_n_tensors(g); i++) {
        const clb_gguf_tensor *t = clb_gguf_tensor_at(g, i);
        unsigned layer;
        char what[64] = "";
        sscanf(t->name.p, "blk.%u.%63s", &layer, what);
        assert_in_range(n_kept, 0, 510);
        if (form == FUSED && (strcmp(what, qkv[1]) == 0 || strcmp(what, qkv[2]) == 0 || strcmp(what, gate_up[1]) == 0))
            continue;
        if (form == FUSED && strcmp(what, qkv[0]) == 0) {
            kept[n_kept++] = fuse(w, g, layer, qkv, "attn_qkv.weight");
            continue;
        }
        if (form == FUSED && strcmp(what, gate_up[0]) == 0) {
            kept[n_kept++] = fuse(w, g, layer, gate_up, "ffn_gate_up_exps.weight");
            continue;
        }
        uint8_t *bytes = kept[n_kept++] = bytes_of(g, t);
        const char *exps = strstr(what, "_exps.weight");
        if (form == FUSED || !exps) {
            clb_gguf_new_tensor copy = {.name = t->name.p, .type = t->type, .n_dims = t->n_dims, .data = bytes};
            memcpy(copy.ne, t->ne, sizeof copy.ne);
            assert_ok(clb_gguf_writer_add_tensor(w, &copy, &err), &err);
            continue;
        }
        for (uint64_t e = t->ne[2]; e-- > 0;) {
            char name[100];
            snprintf(name, sizeof name, "blk.%u.%.*s.%u.weight", layer, (int)(exps - what), what, (unsigned)e);
            add(w, name, t->type, t->ne[0], t->ne[1], 0, bytes + e * (t->n_bytes / t->ne[2]));
        }
    }
    assert_ok(clb_gguf_writer_write(w, out, CLB_GGUF_OVERWRITE, &err), &err);
    clb_gguf_writer_free(w);
    while (n_kept)
        free(kept[--n_kept]);
    clb_gguf_close(g);
}

static void experts_in_other_forms(void **state)
{
    (void)state;
    char from[PATH_MAX], path[PATH_MAX];
    test_dir_file(&dir, "quantized.gguf", from);
    test_dir_file(&dir, "form.gguf", path);
    for (int form = SINGLE; form <= FUSED; form++)
        for (int quantized = 0; quantized < 2; quantized++) {
            if (quantized)
                quantize(TEST_DATA("arch/mixtral.gguf"), form == FUSED, from);
            rearrange(quantized ? from : TEST_DATA("arch/mixtral.gguf"), (enum form)form, path);
            same_logits(path, TEST_DATA("arch/mixtral.ref"), NULL);
        }
    rearrange(TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf"), SINGLE, path);
    same_logits(path, TEST_DATA("tiny-moe/prompts.ref"), modes[1]);
}

static void architectures(void **state)
{
    (void)state;
    char quantized[PATH_MAX];
    test_dir_file(&dir, "quantized.gguf", quantized);
    static const char *const names[] = {"llama",   "llama3",     "mixtral",           "qwen2", "qwen3", "qwen3moe",
                                        "granite", "granitemoe", "granitemoe_shared", "olmoe"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[PATH_MAX], ref[PATH_MAX];
        snprintf(path, sizeof path, "%s/arch/%s.gguf", COLIBRI_TEST_DATA, names[i]);
        snprintf(ref, sizeof ref, "%s/arch/%s.ref", COLIBRI_TEST_DATA, names[i]);
        same_logits(path, ref, NULL);
        quantize(path, false, quantized);
        same_logits(quantized, ref, NULL);
    }
}

/* Quantized: Q4_K, Q6_K, F32; experts in slots, all of them and few. */
static void quantized_experts(void **state)
{
    (void)state;
    static const char *const few[] = {"threads=2", "expert-slots=9", NULL};
    same_logits(TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf"), TEST_DATA("tiny-moe/prompts.ref"), NULL);
    same_logits(TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf"), TEST_DATA("tiny-moe/prompts.ref"), few);
}

static void flip(uint64_t at)
{
    unsigned char b = 0;
    const int fd = open(packed_path, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &b, 1, (off_t)at) == 1);
    b ^= 0x40;
    assert_int_equal(pwrite(fd, &b, 1, (off_t)at), 1);
    close(fd);
}

static int open_model(const char *const *settings, clb_error *err)
{
    test_engine e;
    const int rc = test_engine_open(&e, packed_path, settings, NULL, err);
    test_engine_close(&e);
    return rc;
}

/* One flipped bit in any weight that is read while loading, of every kind: matrix, floats, mapped or not. */
static void damaged_weights_are_refused(void **state)
{
    (void)state;
    static const char *const tensors[] = {"token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight",
                                          "blk.3.ffn_gate_inp.weight"};
    static const char *const never[] = {"threads=2", "store.verify=never", NULL};
    clb_error err;
    clb_gguf *g;
    pack(TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf"));
    assert_ok(clb_gguf_open(packed_path, NULL, NULL, &g, &err), &err);
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        const clb_gguf_tensor *t = clb_gguf_find_tensor(g, tensors[i]);
        assert_non_null(t);
        const uint64_t at = t->offset + t->file_bytes - 1;
        flip(at);
        for (size_t m = 0; m < 2; m++) {
            assert_fails(open_model(modes[m], &err), &err, COLIBRI_E_FORMAT, "does not match its checksum");
            assert_true(test_contains(err.msg, tensors[i]) && test_contains(err.msg, "model.colibri"));
        }
        assert_ok(open_model(never, &err), &err);
        flip(at);
        assert_ok(open_model(modes[0], &err), &err);
    }
    clb_gguf_close(g);
}

static void replace(const char *key, enum clb_gguf_vtype elem, uint64_t n, const void *items)
{
    const test_key k = {key, {.type = CLB_GGUF_ARRAY, .as.arr = {elem, n, items}}};
    size_t size;
    char *bytes = test_packed_rebuild(packed_path, &k, 1, NULL, &size);
    test_write_file(packed_path, bytes, size);
    free(bytes);
}

static void foreign_layouts_are_refused(void **state)
{
    (void)state;
    clb_error err;
    pack(TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf"));
    static const uint64_t marks[2] = {1, 2};
    replace(CLB_PACKED_KEY_MARKS, CLB_GGUF_U64, 2, marks);
    assert_fails(open_model(modes[0], &err), &err, COLIBRI_E_UNSUPPORTED, "packed in another layout");
    static const uint32_t types[2] = {2, 3};
    replace(CLB_PACKED_KEY_TYPES, CLB_GGUF_U32, 2, types);
    assert_fails(open_model(modes[0], &err), &err, COLIBRI_E_FORMAT, "of a packed tensor");
}

/* Layouts that are possible, but not for what the model does with the tensor. */
static void layouts_that_do_not_fit(void **state)
{
    (void)state;
    clb_error err;
    clb_gguf *g;
    pack(TEST_DATA("arch/llama.gguf")); /* all F32 */
    assert_ok(clb_gguf_open(packed_path, NULL, NULL, &g, &err), &err);
    const uint64_t n = clb_gguf_n_tensors(g);
    uint8_t *layouts = calloc(n, 1);
    assert_non_null(layouts);
    const clb_gguf_tensor *t = clb_gguf_find_tensor(g, "blk.0.attn_q.weight");
    assert_true(t && t->ne[1] % 16 == 0 && t->file_bytes <= 65536);
    layouts[t - clb_gguf_tensor_at(g, 0)] = CLB_PACKED_X16;
    clb_gguf_close(g);
    replace(CLB_PACKED_KEY_LAYOUTS, CLB_GGUF_U8, n, layouts);
    assert_fails(open_model(modes[0], &err), &err, COLIBRI_E_FORMAT, "groups of 16 rows, which F32 does not have");
    free(layouts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(architectures),
        cmocka_unit_test(experts_in_other_forms),
        cmocka_unit_test(quantized_experts),
        cmocka_unit_test(damaged_weights_are_refused),
        cmocka_unit_test(foreign_layouts_are_refused),
        cmocka_unit_test(layouts_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
