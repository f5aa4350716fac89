/* libFuzzer: the input is a count and as many key records, put behind a valid head. Metadata that the reader accepts
 * must survive the writer: written and read again, it has the same keys and the same values.
 * Seeds: tests/fuzz/corpus/gguf_metadata. */
#include <string.h>

#include "fuzz.h"
#include "gguf/writer.h"

static bool same_str(clb_str a, clb_str b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

static bool same(const clb_gguf_value *a, const clb_gguf_value *b)
{
    if (a->type != b->type)
        return false;
    if (a->type == CLB_GGUF_STRING)
        return same_str(a->as.str, b->as.str);
    if (a->type == CLB_GGUF_F32 || a->type == CLB_GGUF_F64)
        return memcmp(&a->as.f, &b->as.f, sizeof a->as.f) == 0 || a->as.f != a->as.f;
    if (a->type != CLB_GGUF_ARRAY)
        return a->as.u == b->as.u;
    if (a->as.arr.elem != b->as.arr.elem || a->as.arr.n != b->as.arr.n)
        return false;
    const size_t n = (size_t)a->as.arr.n;
    const unsigned elem_size = clb_gguf_vtype_size(a->as.arr.elem);
    if (elem_size)
        return n == 0 || memcmp(a->as.arr.items, b->as.arr.items, n * elem_size) == 0;
    for (size_t i = 0; i < n; i++) {
        if (a->as.arr.elem == CLB_GGUF_STRING
                ? !same_str(((const clb_str *)a->as.arr.items)[i], ((const clb_str *)b->as.arr.items)[i])
                : !same((const clb_gguf_value *)a->as.arr.items + i, (const clb_gguf_value *)b->as.arr.items + i))
            return false;
    }
    return true;
}

static void round_trip(const clb_gguf *g)
{
    clb_gguf_writer *w;
    clb_gguf *back;
    clb_error err;
    clb_buf out = {0};
    REQUIRE(clb_gguf_writer_create(&w, &err) == COLIBRI_OK);
    REQUIRE(clb_gguf_writer_copy_keys(w, g, &err) == COLIBRI_OK);
    REQUIRE(clb_gguf_writer_write_buf(w, &out, &err) == COLIBRI_OK);
    REQUIRE(clb_gguf_open_memory(out.data, out.n, "back", NULL, NULL, &back, &err) == COLIBRI_OK);
    uint64_t expected = 0;
    for (uint64_t i = 0; i < clb_gguf_n_keys(g); i++) {
        const char *key = clb_gguf_key(g, i).p;
        if (strncmp(key, "split.", 6) == 0 || strncmp(key, "colibri.packed.", 15) == 0)
            continue; /* of the file, not of the model */
        REQUIRE(strcmp(clb_gguf_key(back, expected).p, key) == 0);
        REQUIRE(same(clb_gguf_value_at(g, i), clb_gguf_value_at(back, expected)));
        expected++;
    }
    REQUIRE(clb_gguf_n_keys(back) == expected && clb_gguf_alignment(back) == clb_gguf_alignment(g));
    clb_gguf_close(back);
    clb_buf_free(&out);
    clb_gguf_writer_free(w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    const uint8_t head[24] = {'G', 'G', 'U', 'F', 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, data[0]};
    clb_gguf *g;
    clb_error err;
    char *file = malloc(sizeof head + size - 1);
    REQUIRE(file);
    memcpy(file, head, sizeof head);
    memcpy(file + sizeof head, data + 1, size - 1);
    const int rc = clb_gguf_open_memory(file, sizeof head + size - 1, "fuzz", NULL, NULL, &g, &err);
    if (rc == COLIBRI_OK)
        round_trip(g);
    else
        REQUIRE(rc == COLIBRI_E_FORMAT || rc == COLIBRI_E_UNSUPPORTED || rc == COLIBRI_E_LIMIT);
    clb_gguf_close(g);
    free(file);
    return 0;
}
