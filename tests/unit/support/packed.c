#include "support/packed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf/internal.h"
#include "gguf/writer_internal.h"
#include "plugin/builtin.h"

const struct colibri_format *test_packed_format(void *ctx, uint32_t type)
{
    (void)ctx;
    for (const struct colibri_plugin *const *p = clb_builtin_plugins; *p; p++)
        for (uint32_t i = 0; (*p)->get(COLIBRI_IFACE_FORMAT, i); i++) {
            const struct colibri_format *f = (*p)->get(COLIBRI_IFACE_FORMAT, i);
            if (f->gguf_type == type)
                return f;
        }
    return NULL;
}

void test_source_begin(test_source *s)
{
    clb_error err;
    *s = (test_source){.rng = {7}};
    assert_ok(clb_gguf_writer_create(&s->w, &err), &err);
    assert_ok(clb_gguf_writer_set_str(s->w, "general.architecture", "test", &err), &err);
    assert_ok(clb_gguf_writer_set_u32(s->w, "general.alignment", 64, &err), &err);
    assert_ok(clb_gguf_writer_set_u32(s->w, "test.expert_count", 5, &err), &err);
}

void test_source_add(test_source *s, const char *name, uint32_t type, uint64_t ne0, uint64_t ne1, uint64_t ne2)
{
    clb_error err;
    uint32_t elems, bytes;
    assert_true(clb_gguf_known_geometry(NULL, type, &elems, &bytes) && s->n < 512);
    clb_gguf_new_tensor t = {.name = name,
                             .type = type,
                             .n_dims = ne2   ? 3
                                       : ne1 ? 2
                                             : 1,
                             .ne = {ne0, ne1 ? ne1 : 1, ne2 ? ne2 : 1, 1}};
    const size_t n = (size_t)(ne0 / elems * bytes * t.ne[1] * t.ne[2]);
    void *data = malloc(n);
    assert_non_null(data);
    test_rand_bytes(&s->rng, data, n);
    s->data[s->n++] = data;
    t.data = data;
    assert_ok(clb_gguf_writer_add_tensor(s->w, &t, &err), &err);
}

void test_source_end(test_source *s)
{
    clb_gguf_writer_free(s->w);
    for (size_t i = 0; i < s->n; i++)
        free(s->data[i]);
    *s = (test_source){0};
}

clb_gguf *test_source_open(test_source *s, const char *path)
{
    clb_error err;
    clb_gguf *g;
    assert_ok(clb_gguf_writer_write(s->w, path, CLB_GGUF_OVERWRITE, &err), &err);
    test_source_end(s);
    assert_ok(clb_gguf_open(path, NULL, NULL, &g, &err), &err);
    return g;
}

void test_source_fill(test_source *s)
{
    static const uint32_t types[] = {0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 30, 39};
    static const uint32_t rows[] = {1, 2, 15, 16, 17, 31, 33, 49};
    enum { N_TYPES = sizeof types / sizeof *types };
    char name[64];
    for (size_t t = 0; t < N_TYPES; t++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            snprintf(name, sizeof name, "m.%u.%u", types[t], rows[r]);
            test_source_add(s, name, types[t], 256 * (1 + (t + r) % 3), rows[r], 0);
        }
    test_source_add(s, "blk.0.attn_qkv.weight", 2, 64, 48, 0);
    test_source_add(s, "blk.0.attn_norm.weight", 0, 77, 0, 0);
    test_source_add(s, "blk.0.odd_vector", 8, 96, 0, 0);
    test_source_add(s, "three.dims", 2, 32, 20, 3);
    test_source_add(s, "large", 2, 2048, 1003, 0); /* several blocks, the last group not full */
    test_source_add(s, "large.floats", 0, 1000, 333, 0);
    test_source_add(s, "wide", 8, 32768, 40, 0); /* a group larger than a block should be */
    /* stacked experts, of mixed formats; 24 rows are not whole groups */
    test_source_add(s, "blk.0.ffn_gate_exps.weight", 12, 256, 24, 5);
    test_source_add(s, "blk.0.ffn_gate_inp.weight", 0, 256, 5, 0);
    test_source_add(s, "blk.0.ffn_up_exps.weight", 2, 256, 24, 5);
    test_source_add(s, "blk.0.ffn_down_exps.weight", 8, 32, 250, 5);
    /* gate and up in one tensor; float experts */
    test_source_add(s, "blk.1.ffn_gate_up_exps.weight", 20, 64, 40, 4);
    test_source_add(s, "blk.1.ffn_down_exps.weight", 1, 20, 64, 4);
    /* one tensor per expert, in no order; larger than a block of a checksum */
    for (unsigned e = 0; e < 3; e++)
        for (unsigned p = 0; p < 3; p++) {
            static const char *const parts[] = {"ffn_down", "ffn_up", "ffn_gate"};
            snprintf(name, sizeof name, "blk.2.%s.%u.weight", parts[p], 2 - e);
            test_source_add(s, name, 2, p == 0 ? 1024 : 2048, p == 0 ? 2048 : 1024, 0);
        }
}

clb_pack_options test_pack_options(uint32_t n_threads)
{
    clb_error err;
    clb_pack_options o = {.format = test_packed_format};
    assert_ok(clb_pool_create(n_threads, &o.pool, &err), &err);
    return o;
}

void test_pack_close(clb_pack_options *o)
{
    clb_pool_destroy(o->pool);
    o->pool = NULL;
}

void test_pack(const clb_gguf *g, const char *path, uint32_t n_threads, uint64_t split)
{
    clb_error err;
    clb_pack *pack;
    clb_pack_options o = test_pack_options(n_threads);
    o.split = split;
    assert_ok(clb_pack_create(g, &o, &pack, &err), &err);
    assert_ok(clb_pack_write(pack, path, CLB_GGUF_OVERWRITE, &err), &err);
    clb_pack_free(pack);
    test_pack_close(&o);
}

/* Offset of tensor i in its data section. */
static uint64_t record_offset(const clb_gguf *g, uint64_t i)
{
    return clb_gguf_tensor_at(g, i)->offset - g->shards[0].data;
}

char *test_packed_rebuild(const char *path, const test_key *keys, size_t n, const uint64_t *offsets, size_t *size)
{
    clb_error err;
    clb_gguf *g;
    clb_gguf_writer *w;
    assert_ok(clb_gguf_open(path, NULL, NULL, &g, &err), &err);
    assert_ok(clb_gguf_writer_create(&w, &err), &err);
    for (uint64_t i = 0; i < clb_gguf_n_keys(g); i++)
        assert_ok(clb_gguf_writer_set(w, clb_gguf_key(g, i).p, clb_gguf_value_at(g, i), &err), &err);
    assert_ok(clb_gguf_writer_set_u64(w, CLB_PACKED_KEY_HEADER, 0, &err), &err);
    for (size_t i = 0; i < n; i++) {
        if (keys[i].value.type == CLB_GGUF_STRING && !keys[i].value.as.str.p)
            clb_gguf_writer_remove(w, keys[i].key);
        else
            assert_ok(clb_gguf_writer_set(w, keys[i].key, &keys[i].value, &err), &err);
    }
    const size_t n_tensors = (size_t)clb_gguf_n_tensors(g);
    uint64_t *places = calloc(n_tensors, sizeof *places);
    assert_non_null(places);
    for (size_t i = 0; i < n_tensors; i++) {
        const clb_gguf_tensor *t = clb_gguf_tensor_at(g, i);
        clb_gguf_new_tensor copy = {.name = t->name.p, .type = t->type, .n_dims = t->n_dims, .data = ""};
        memcpy(copy.ne, t->ne, sizeof copy.ne);
        assert_ok(clb_gguf_writer_add_tensor(w, &copy, &err), &err);
        places[i] = offsets ? offsets[i] : record_offset(g, i);
    }
    clb_buf header = {0};
    size_t n_old;
    char *old = test_read_file(path, &n_old);
    assert_ok(clb_gguf_writer_header(w, CLB_PACKED_MAGIC, places, &header, &err), &err);
    const size_t data = (size_t)clb_packed_round(header.n, CLB_PACKED_ALIGNMENT), from = (size_t)g->shards[0].data;
    *size = data + n_old - from;
    char *bytes = calloc(1, *size);
    assert_non_null(bytes);
    memcpy(bytes, header.data, header.n);
    memcpy(bytes + data, old + from, n_old - from);
    free(old);
    free(places);
    clb_buf_free(&header);
    clb_gguf_writer_free(w);
    clb_gguf_close(g);
    return bytes;
}
