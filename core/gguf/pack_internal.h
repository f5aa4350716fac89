/* Inside packing: the plan. */
#ifndef CLB_GGUF_PACK_INTERNAL_H
#define CLB_GGUF_PACK_INTERNAL_H

#include "gguf/internal.h"
#include "gguf/pack.h"
#include "gguf/packed.h"

/* A tensor of the new files: one of the source, or what is put together of or cut out of its tensors. */
typedef struct clb_pack_part {
    char *name;
    uint32_t type, n_dims;
    uint64_t ne[CLB_GGUF_MAX_DIMS];
    const struct colibri_format *format; /* x16 only */
    bool x16;
    uint64_t row_bytes;
    uint64_t n_rows; /* of a matrix: of one expert */
    uint64_t bytes;  /* in the file: of one expert */
    uint64_t at;     /* in its block */
    /* Expert e is at src_offset + e * src_stride of source[0], or at src_offset of source[e] if per_expert. */
    const clb_gguf_tensor **source;
    bool per_expert;
    uint64_t src_offset, src_stride;
} clb_pack_part;

typedef struct clb_pack_run {
    uint32_t first, n; /* parts */
    bool experts;
    uint64_t block, n_blocks, bytes;
    uint64_t offset; /* in the data section */
    uint32_t file;
    uint64_t first_block; /* among the blocks of all files; checksums and tasks */
} clb_pack_run;

typedef struct clb_pack_file {
    uint32_t first, n; /* runs */
    uint64_t data;     /* where the data section begins */
    uint64_t size;
    uint64_t header;
} clb_pack_file;

struct clb_pack {
    const clb_gguf *source;
    clb_pack_options options;
    clb_pack_part *parts;
    uint32_t n_parts;
    clb_pack_run *runs;
    uint32_t n_runs;
    clb_pack_file *files;
    uint32_t n_files;
    uint64_t n_blocks;
    uint64_t *sums;
    uint32_t *types; /* with packed tensors */
    uint64_t *marks;
    uint32_t n_types;
};

/* Runs and parts, without places. */
int clb_pack_make_plan(clb_pack *pack, clb_error *err);
/* Files, offsets, sizes. */
int clb_pack_lay_out(clb_pack *pack, clb_error *err);
/* The header of file i with the checksums so far. */
int clb_pack_header(const clb_pack *pack, uint32_t i, clb_buf *out, clb_error *err);

/* All blocks through all workers, to fds[file], whole pages to direct[file] unless it is -1; their checksums into
 * pack->sums. */
int clb_pack_write_blocks(clb_pack *pack, const int *fds, const int *direct, clb_error *err);

#endif
