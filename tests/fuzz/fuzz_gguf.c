/* libFuzzer: any bytes as a GGUF file. What opens must be consistent, and all of it must be readable.
 * Seeds: tests/fuzz/corpus/gguf. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "gguf/escape.h"
#include "gguf/gguf.h"

#define REQUIRE(cond)                                                                                                  \
    do {                                                                                                               \
        if (!(cond))                                                                                                   \
            abort();                                                                                                   \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    clb_gguf *g;
    clb_error err;
    const int rc = clb_gguf_open_memory(data, size, "fuzz", NULL, NULL, &g, &err);
    if (rc) {
        REQUIRE(rc == COLIBRI_E_FORMAT || rc == COLIBRI_E_UNSUPPORTED || rc == COLIBRI_E_LIMIT);
        REQUIRE(!g && strncmp(err.msg, "fuzz: ", 6) == 0 && !strchr(err.msg, '\n'));
        return 0;
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
        const size_t n = (size_t)(t->n_bytes ? t->n_bytes : t->room);
        char *bytes = malloc(n);
        REQUIRE(bytes && clb_gguf_read(g, t, 0, bytes, n, &err) == COLIBRI_OK);
        REQUIRE(memcmp(bytes, data + t->offset, n) == 0);
        free(bytes);
    }
    clb_gguf_close(g);
    return 0;
}
