/* Inside the GGUF reader: one open file ("shard"), its bytes, and the handle that joins the shards. */
#ifndef CLB_GGUF_INTERNAL_H
#define CLB_GGUF_INTERNAL_H

#include "gguf/gguf.h"
#include "gguf/index.h"

/* Bounds that no real model comes near; beyond them a file is refused with LIMIT, so that memory and time stay bounded
 * however hostile the file is. */
#define CLB_GGUF_MAX_HEADER        ((uint64_t)128 << 20) /* bytes of metadata and tensor records, all shards */
#define CLB_GGUF_MAX_KEYS          65536u
#define CLB_GGUF_MAX_TENSORS       (1u << 20) /* all shards */
#define CLB_GGUF_MAX_SHARDS        4096u
#define CLB_GGUF_MAX_KEY_LEN       65535u /* the specification's bound */
#define CLB_GGUF_MAX_NAME_LEN      255u   /* the specification says 64, some writers exceed it */
#define CLB_GGUF_MAX_DEPTH         8u     /* arrays inside arrays */
#define CLB_GGUF_MAX_ALIGNMENT     ((uint64_t)1 << 24)
#define CLB_GGUF_DEFAULT_ALIGNMENT 32u

/* The bytes of a file, as far as they have been read, or bytes in memory. */
typedef struct clb_gguf_source {
    char *path;
    int fd;                        /* -1: memory */
    uint64_t size;                 /* when it was opened */
    const unsigned char *borrowed; /* memory: all bytes */
    unsigned char *block;          /* file: bytes [0, have), grows by clb_gguf_source_need */
    size_t have, cap;
} clb_gguf_source;

/* Opens a regular file; *src must be zero-initialised and is released by clb_gguf_source_close in any case. */
int clb_gguf_source_open(clb_gguf_source *src, const char *path, clb_error *err);
int clb_gguf_source_borrow(clb_gguf_source *src, const void *data, size_t size, const char *name, clb_error *err);
void clb_gguf_source_close(clb_gguf_source *src);
/* Makes bytes [0, end) present; end <= src->size. The block may move. */
int clb_gguf_source_need(clb_gguf_source *src, size_t end, clb_error *err);
/* Replaces what was read by a private, writable copy of exactly [0, end), which has been needed before. */
int clb_gguf_source_seal(clb_gguf_source *src, size_t end, clb_error *err);
/* pread of exactly size bytes; memory sources copy. */
int clb_gguf_source_read(const clb_gguf_source *src, uint64_t offset, void *buf, size_t size, clb_error *err);

typedef struct clb_gguf_entry {
    clb_str key; /* first: clb_gguf_index */
    clb_gguf_value value;
} clb_gguf_entry;

/* Packed files: consecutive blocks, each with a checksum. A plain tensor is a run of its own; the experts of a layer
 * are one, with a block for each of them. */
typedef struct clb_packed_run {
    uint64_t offset, bytes; /* absolute */
    uint64_t block;         /* bytes of a block; the last one of a plain tensor may be shorter */
    uint64_t first_sum;     /* index of the first block's checksum */
} clb_packed_run;

typedef struct clb_gguf_shard {
    clb_gguf_source src;
    bool packed;
    clb_packed_run *runs; /* packed */
    uint32_t n_runs;
    const unsigned char *sums; /* u64 each, little-endian, inside the header; NULL: none */
    uint32_t version;
    uint64_t alignment;
    uint64_t n_keys, n_tensors;
    uint64_t data; /* where the data section begins */
    void *arena;   /* entries, nested values, string views */
    clb_gguf_entry *entries;
    clb_gguf_index keys;
} clb_gguf_shard;

struct clb_gguf {
    clb_gguf_geometry geometry;
    void *geometry_ctx;
    clb_gguf_shard *shards;
    uint32_t n_shards;
    clb_gguf_tensor *tensors;
    uint64_t n_tensors;
    clb_gguf_index names;
    uint64_t header_bytes; /* of all shards parsed so far */
};

/* Parses the header of g->shards[i], whose source is open, and appends its tensors to g->tensors. */
int clb_gguf_shard_load(clb_gguf *g, uint32_t i, clb_error *err);
const clb_gguf_value *clb_gguf_shard_find(const clb_gguf_shard *shard, const char *key);
/* An integer value that fits u64; what: "file: key". */
int clb_gguf_value_u64(const clb_gguf_value *v, const char *file, const char *key, uint64_t *out, clb_error *err);

/* Checks and completes tensors[0..n) of one shard, whose offsets still count from its data section: geometry, bounds,
 * overlaps. */
int clb_gguf_place_tensors(const clb_gguf *g, const clb_gguf_shard *shard, clb_gguf_tensor *tensors, size_t n,
                           clb_error *err);

/* The same for a packed file, from its keys. */
int clb_packed_place_tensors(const clb_gguf *g, clb_gguf_shard *shard, clb_gguf_tensor *tensors, size_t n,
                             clb_error *err);
/* The header's checksum, once all of its bytes [0, size) are there and before any of them is changed. */
int clb_packed_check_header(const clb_gguf_shard *shard, const unsigned char *header, size_t size, clb_error *err);
/* Size of a tensor from its dimensions and the geometry of its type; 0 if that is unknown. */
int clb_gguf_size_tensor(const clb_gguf *g, const clb_gguf_shard *shard, clb_gguf_tensor *t, clb_error *err);
int clb_gguf_bad_tensor(const clb_gguf_shard *shard, const clb_gguf_tensor *t, const char *detail, clb_error *err);

bool clb_gguf_vtype_known(uint32_t type);

/* A path for messages: its end, if it is long, so that the reason stays visible. */
const char *clb_gguf_short_path(const char *path, char buf[304]);

static inline uint32_t clb_le32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t clb_le64(const unsigned char *p)
{
    return clb_le32(p) | (uint64_t)clb_le32(p + 4) << 32;
}

#endif
