/* Packed files: checksums, and the check that a format still packs as it did when the file was written. */
#include "gguf/packed.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/escape.h"
#include "gguf/internal.h"

#define MARK_BLOCKS 3u /* blocks per row of the marked group: a layout that mixes blocks of a row shows */

uint64_t clb_packed_sum(const void *bytes, size_t size)
{
    return XXH3_64bits(bytes, size);
}

uint64_t clb_packed_header_sum(const unsigned char *header, size_t size)
{
    static const unsigned char zeros[8];
    assert(size >= CLB_PACKED_HEADER_AT + 8);
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    XXH3_64bits_update(&state, header, CLB_PACKED_HEADER_AT);
    XXH3_64bits_update(&state, zeros, sizeof zeros);
    XXH3_64bits_update(&state, header + CLB_PACKED_HEADER_AT + 8, size - CLB_PACKED_HEADER_AT - 8);
    return XXH3_64bits_digest(&state);
}

int clb_packed_check_header(const clb_gguf_shard *shard, const unsigned char *header, size_t size, clb_error *err)
{
    static const char key[] = CLB_PACKED_KEY_HEADER;
    char path[304];
    if (size < CLB_PACKED_HEADER_AT + 8 || clb_le64(header + 24) != sizeof key - 1 ||
        memcmp(header + 32, key, sizeof key - 1) != 0 || clb_le32(header + 32 + sizeof key - 1) != CLB_GGUF_U64)
        return clb_fail(err, COLIBRI_E_FORMAT, "%s: byte 24: the first key of a packed file must be the u64 %s",
                        clb_gguf_short_path(shard->src.path, path), key);
    const uint64_t want = clb_le64(header + CLB_PACKED_HEADER_AT);
    if (want && want != clb_packed_header_sum(header, size))
        return clb_fail(
            err, COLIBRI_E_FORMAT,
            "%s: its first %zu bytes (the header) do not match their checksum: the file is damaged, copy or "
            "pack it again",
            clb_gguf_short_path(shard->src.path, path), size);
    return COLIBRI_OK;
}

bool clb_gguf_is_packed(const clb_gguf *g)
{
    return g->shards[0].packed;
}

bool clb_gguf_has_checksums(const clb_gguf *g)
{
    for (uint32_t i = 0; i < g->n_shards; i++)
        if (!g->shards[i].sums)
            return false;
    return true;
}

uint64_t clb_gguf_verify_unit(const clb_gguf *g, const clb_gguf_tensor *t)
{
    const clb_gguf_shard *shard = &g->shards[t->shard];
    return shard->packed && shard->sums ? shard->runs[t->run].block : 0;
}

int clb_gguf_read_block(const clb_gguf *g, const clb_gguf_tensor *t, uint64_t expert, void *buf, clb_error *err)
{
    assert(t->expert_stride && expert < t->ne[2]);
    return clb_gguf_source_read(&g->shards[t->shard].src, t->block_offset + expert * t->expert_stride, buf,
                                (size_t)t->block_bytes, err);
}

static int mismatch(const clb_gguf_shard *shard, const clb_gguf_tensor *t, uint64_t block, uint64_t offset,
                    clb_error *err)
{
    char path[304], name[100], which[40] = "";
    if (t->expert_stride)
        snprintf(which, sizeof which, ", expert %llu", (unsigned long long)block);
    return clb_fail(
        err, COLIBRI_E_FORMAT,
        "%s: tensor \"%s\"%s: the block at byte %llu does not match its checksum: the file is damaged, copy "
        "or pack it again (colibri pack --verify lists every bad block)",
        clb_gguf_short_path(shard->src.path, path), clb_escape(t->name, name, sizeof name), which,
        (unsigned long long)offset);
}

static int wrong_size(const clb_gguf_tensor *t, uint64_t size, clb_error *err)
{
    char name[100];
    return clb_fail(err, COLIBRI_E_INTERNAL, "verifying %llu bytes of tensor \"%s\", which are not whole blocks",
                    (unsigned long long)size, clb_escape(t->name, name, sizeof name));
}

static int verify(const clb_gguf_shard *shard, const clb_gguf_tensor *t, uint64_t block, const void *bytes,
                  uint64_t size, clb_error *err)
{
    const clb_packed_run *run = &shard->runs[t->run];
    if (clb_packed_sum(bytes, (size_t)size) == clb_le64(shard->sums + 8 * (run->first_sum + block)))
        return COLIBRI_OK;
    return mismatch(shard, t, block, run->offset + block * run->block, err);
}

int clb_gguf_verify_piece(const clb_gguf *g, const clb_gguf_tensor *t, uint64_t offset, const void *bytes,
                          uint64_t size, clb_error *err)
{
    const clb_gguf_shard *shard = &g->shards[t->shard];
    const uint64_t unit = clb_gguf_verify_unit(g, t);
    if (!unit)
        return COLIBRI_OK;
    if (t->expert_stride || offset % unit || offset > t->file_bytes || size > t->file_bytes - offset ||
        (size % unit && offset + size != t->file_bytes))
        return wrong_size(t, size, err);
    for (uint64_t at = 0; at < size; at += unit)
        CLB_TRY(
            verify(shard, t, (offset + at) / unit, (const char *)bytes + at, size - at < unit ? size - at : unit, err));
    return COLIBRI_OK;
}

int clb_gguf_verify_block(const clb_gguf *g, const clb_gguf_tensor *t, uint64_t expert, const void *bytes,
                          uint64_t size, clb_error *err)
{
    const clb_gguf_shard *shard = &g->shards[t->shard];
    if (!clb_gguf_verify_unit(g, t))
        return COLIBRI_OK;
    if (size != (t->expert_stride ? t->block_bytes : t->file_bytes) || (t->expert_stride && expert >= t->ne[2]))
        return wrong_size(t, size, err);
    return t->expert_stride ? verify(shard, t, expert, bytes, size, err)
                            : clb_gguf_verify_piece(g, t, 0, bytes, size, err);
}

/* ---- layouts ---------------------------------------------------------------------------------------- */

int clb_packed_mark(const struct colibri_format *format, uint64_t *out, clb_error *err)
{
    uint32_t n_cols = format->block_elems;
    while (n_cols % format->act_block_elems)
        n_cols += format->block_elems;
    n_cols *= MARK_BLOCKS;
    const size_t row_bytes = (size_t)n_cols / format->block_elems * format->block_bytes;
    const size_t size = row_bytes * COLIBRI_GROUP_ROWS;
    unsigned char *rows = calloc(2, size);
    if (!rows)
        return CLB_NOMEM(err, "the mark of a packed layout");
    uint32_t x = 1;
    for (size_t i = 0; i < size; i++) {
        x = x * 1664525u + 1013904223u;
        rows[i] = (unsigned char)(x >> 24);
    }
    format->pack(rows, row_bytes, COLIBRI_GROUP_ROWS, n_cols, rows + size);
    *out = clb_packed_sum(rows + size, size);
    free(rows);
    return COLIBRI_OK;
}

static int check_shard_layout(const clb_gguf_shard *shard, const struct colibri_format *format, uint64_t mark,
                              bool *found, clb_error *err)
{
    char path[304];
    const clb_gguf_value *types = clb_gguf_shard_find(shard, CLB_PACKED_KEY_TYPES);
    const clb_gguf_value *marks = clb_gguf_shard_find(shard, CLB_PACKED_KEY_MARKS);
    for (uint64_t i = 0; types && marks && i < types->as.arr.n; i++) {
        if (clb_le32((const unsigned char *)types->as.arr.items + 4 * i) != format->gguf_type)
            continue;
        *found = true;
        if (clb_le64((const unsigned char *)marks->as.arr.items + 8 * i) == mark)
            continue;
        return clb_fail(err, COLIBRI_E_UNSUPPORTED,
                        "%s: its %s weights are packed in another layout than this %s format has: pack the GGUF file "
                        "again",
                        clb_gguf_short_path(shard->src.path, path), format->name, format->name);
    }
    return COLIBRI_OK;
}

int clb_gguf_check_layout(const clb_gguf *g, const struct colibri_format *format, clb_error *err)
{
    if (!clb_gguf_is_packed(g) || format->layout != COLIBRI_LAYOUT_X16)
        return COLIBRI_OK;
    uint64_t mark;
    bool found = false;
    CLB_TRY(clb_packed_mark(format, &mark, err));
    for (uint32_t i = 0; i < g->n_shards; i++)
        CLB_TRY(check_shard_layout(&g->shards[i], format, mark, &found, err));
    if (found)
        return COLIBRI_OK;
    char path[304];
    return clb_fail(err, COLIBRI_E_FORMAT, "%s: key \"%s\" lacks the type %s of a packed tensor",
                    clb_gguf_short_path(g->shards[0].src.path, path), CLB_PACKED_KEY_TYPES, format->name);
}
