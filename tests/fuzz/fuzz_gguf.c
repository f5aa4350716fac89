/* libFuzzer: any bytes as a GGUF or packed file. What opens must be consistent, and all of it must be readable.
 * Seeds: tests/fuzz/corpus/gguf. */
#include <string.h>

#include "fuzz.h"
#include "base/escape.h"
#include "gguf/gguf.h"
#include "gguf/packed.h"

static void touch(clb_str s)
{
    char out[64];
    clb_escape(s, out, sizeof out);
    REQUIRE(strlen(out) < sizeof out && clb_is_utf8((clb_str){out, strlen(out)}));
}

static void walk_value(const clb_gguf_value *v)
{
    clb_error err;
    REQUIRE(v->type <= CLB_GGUF_F64 && (v->type != CLB_GGUF_BOOL || v->as.u <= 1));
    if (v->type == CLB_GGUF_STRING)
        touch(v->as.str);
    if (v->type != CLB_GGUF_ARRAY)
        return;
    for (uint64_t i = 0; i < v->as.arr.n; i++) {
        int64_t n = 0;
        double f;
        clb_str s;
        if (v->as.arr.elem == CLB_GGUF_ARRAY) {
            walk_value((const clb_gguf_value *)v->as.arr.items + i);
        } else if (v->as.arr.elem == CLB_GGUF_STRING) {
            REQUIRE(clb_gguf_item_str(v, i, &s, &err) == COLIBRI_OK);
            touch(s);
        } else if (v->as.arr.elem == CLB_GGUF_F32 || v->as.arr.elem == CLB_GGUF_F64) {
            REQUIRE(clb_gguf_item_f64(v, i, &f, &err) == COLIBRI_OK);
        } else {
            REQUIRE(clb_gguf_item_i64(v, i, &n, &err) == COLIBRI_OK || v->as.arr.elem == CLB_GGUF_U64);
            REQUIRE(v->as.arr.elem != CLB_GGUF_BOOL || n == 0 || n == 1);
        }
    }
}

/* One part of a tensor: all of it, or one expert's. */
static void read_part(const clb_gguf *g, const clb_gguf_tensor *t, uint64_t e, const uint8_t *data, size_t size)
{
    clb_error err;
    const uint64_t at = t->offset + e * t->expert_stride;
    const size_t n = (size_t)(t->n_bytes ? t->file_bytes : t->room);
    REQUIRE(at < size && n <= size - at);
    char *bytes = malloc(n);
    REQUIRE(bytes && clb_gguf_read(g, t, e * t->expert_stride, bytes, n, &err) == COLIBRI_OK);
    REQUIRE(memcmp(bytes, data + at, n) == 0);
    if (!t->expert_stride) {
        const int rc = clb_gguf_verify_block(g, t, 0, bytes, n, &err);
        REQUIRE(rc == COLIBRI_OK || (rc == COLIBRI_E_FORMAT && clb_gguf_is_packed(g)));
        free(bytes);
        return;
    }
    free(bytes);
    const uint64_t block = t->block_offset + e * t->expert_stride;
    REQUIRE(clb_gguf_is_packed(g) && t->block_bytes <= t->expert_stride && block <= at);
    REQUIRE(at - block <= t->block_bytes && n <= t->block_bytes - (at - block));
    bytes = malloc((size_t)t->block_bytes);
    REQUIRE(bytes && clb_gguf_read_block(g, t, e, bytes, &err) == COLIBRI_OK);
    REQUIRE(memcmp(bytes, data + block, (size_t)t->block_bytes) == 0);
    const int rc = clb_gguf_verify_block(g, t, e, bytes, t->block_bytes, &err);
    REQUIRE(rc == COLIBRI_OK || rc == COLIBRI_E_FORMAT);
    free(bytes);
}

static void open_all(const uint8_t *data, size_t size)
{
    clb_gguf *g;
    clb_error err;
    const int rc = clb_gguf_open_memory(data, size, "fuzz", NULL, NULL, &g, &err);
    if (rc) {
        REQUIRE(rc == COLIBRI_E_FORMAT || rc == COLIBRI_E_UNSUPPORTED || rc == COLIBRI_E_LIMIT);
        REQUIRE(!g && strncmp(err.msg, "fuzz: ", 6) == 0 && !strchr(err.msg, '\n'));
        return;
    }
    for (uint64_t i = 0; i < clb_gguf_n_keys(g); i++) {
        const clb_str key = clb_gguf_key(g, i);
        REQUIRE(key.n && strlen(key.p) == key.n && clb_gguf_find(g, key.p) == clb_gguf_value_at(g, i));
        walk_value(clb_gguf_value_at(g, i));
    }
    for (uint64_t i = 0; i < clb_gguf_n_tensors(g); i++) {
        const clb_gguf_tensor *t = clb_gguf_tensor_at(g, i);
        REQUIRE(t->name.n && strlen(t->name.p) == t->name.n && clb_gguf_find_tensor(g, t->name.p) == t);
        REQUIRE(t->offset < size && t->room == size - t->offset && t->n_bytes <= t->room && t->n_elems > 0);
        for (uint64_t e = 0; e < (t->expert_stride ? t->ne[2] : 1); e++)
            read_part(g, t, e, data, size);
    }
    clb_gguf_close(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    open_all(data, size);
    /* A header checksum that does not match ends the reading of a packed file; whoever makes one up makes it match. */
    if (size < CLB_PACKED_HEADER_AT + 8 || memcmp(data, CLB_PACKED_MAGIC, 4) != 0)
        return 0;
    uint8_t *copy = malloc(size);
    REQUIRE(copy);
    memcpy(copy, data, size);
    memset(copy + CLB_PACKED_HEADER_AT, 0, 8);
    open_all(copy, size);
    free(copy);
    return 0;
}
