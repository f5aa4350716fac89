/* GGUF container reader (v2 and v3, little-endian, split files), and of packed files (.colibri, docs/packed.md): the
 * same structure with another magic, whose tensors lie as they are multiplied.
 *
 * Everything in the file is untrusted: each count, length, offset and size is checked against the bytes of the
 * file before use; a failure names the file, the place and the reason. Returned pointers live until
 * clb_gguf_close. The handle is immutable after opening: [any-thread].
 * Format: the GGUF specification published with ggml (docs/gguf.md there). */
#ifndef CLB_GGUF_GGUF_H
#define CLB_GGUF_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/str.h"

#define CLB_GGUF_MAX_DIMS 4

enum clb_gguf_vtype {
    CLB_GGUF_U8 = 0,
    CLB_GGUF_I8 = 1,
    CLB_GGUF_U16 = 2,
    CLB_GGUF_I16 = 3,
    CLB_GGUF_U32 = 4,
    CLB_GGUF_I32 = 5,
    CLB_GGUF_F32 = 6,
    CLB_GGUF_BOOL = 7,
    CLB_GGUF_STRING = 8,
    CLB_GGUF_ARRAY = 9,
    CLB_GGUF_U64 = 10,
    CLB_GGUF_I64 = 11,
    CLB_GGUF_F64 = 12
};

const char *clb_gguf_vtype_name(uint32_t type); /* "u32"; "unknown" above F64 */
/* Bytes of a scalar type; 0 for STRING, ARRAY and unknown. */
unsigned clb_gguf_vtype_size(uint32_t type);

typedef struct clb_gguf_value {
    enum clb_gguf_vtype type;
    union {
        uint64_t u;  /* U8..U64, BOOL (0 or 1) */
        int64_t i;   /* I8..I64 */
        double f;    /* F32, F64 */
        clb_str str; /* STRING: any bytes */
        struct {
            enum clb_gguf_vtype elem;
            uint64_t n;
            const void *items; /* scalars: packed little-endian elements, possibly unaligned (use clb_gguf_item);
                                  STRING: clb_str[n]; ARRAY: clb_gguf_value[n] */
        } arr;
    } as;
} clb_gguf_value;

typedef struct clb_gguf_tensor {
    clb_str name; /* also NUL-terminated */
    uint32_t type;
    uint32_t n_dims;
    uint64_t ne[CLB_GGUF_MAX_DIMS]; /* ne[0] = columns (contiguous); unused dims are 1 */
    uint64_t n_elems;
    uint64_t n_bytes; /* from the geometry; 0 if the type is unknown to the geometry callback */
    uint64_t offset;  /* in its file, absolute */
    uint64_t room;    /* bytes from offset to the end of that file */
    uint32_t shard;   /* index of the file */
    /* Packed files. In others: packed = false, expert_stride = block_* = 0, file_bytes = n_bytes. */
    bool packed;            /* its rows are in groups of 16 (COLIBRI_LAYOUT_X16), the last group filled with zeros */
    uint64_t file_bytes;    /* in the file: n_bytes, or that of whole groups; of one expert if expert_stride */
    uint64_t expert_stride; /* 0: contiguous; else expert e (of ne[2]) lies at offset + e * expert_stride */
    /* With expert_stride: expert e's block is block_bytes at block_offset + e * expert_stride, both multiples of 4096,
     * and holds that expert's part of every tensor of the same run. */
    uint64_t block_offset, block_bytes;
    uint32_t run; /* tensors of one shard with the same run share blocks */
} clb_gguf_tensor;

/* Block geometry of a tensor type, so that sizes can be checked: returns false if unknown. */
typedef bool (*clb_gguf_geometry)(void *ctx, uint32_t type, uint32_t *block_elems, uint32_t *block_bytes);
/* Geometry of every tensor type published with ggml, whether or not a format plugin for it exists. */
bool clb_gguf_known_geometry(void *ctx, uint32_t type, uint32_t *block_elems, uint32_t *block_bytes);
/* Name of a tensor type for messages: "Q4_K", or "type 77". The result lives in `buf` or is static. */
const char *clb_gguf_type_name(uint32_t type, char buf[16]);

typedef struct clb_gguf clb_gguf;

/* Opens path; if it is the first shard of a split model ("...-00001-of-00005.gguf" or .colibri), opens all of them and
 * presents their tensors as one list (any other shard is refused with the first one's name). geometry may be NULL: then
 * clb_gguf_known_geometry. Errors: NOT_FOUND, IO, FORMAT, UNSUPPORTED (big-endian, v1), NOMEM, LIMIT (internal.h),
 * USAGE (a later shard). *out is NULL then. */
int clb_gguf_open(const char *path, clb_gguf_geometry geometry, void *geometry_ctx, clb_gguf **out, clb_error *err);
/* The same from bytes in memory (borrowed until close); no split files. For tests and fuzzers. */
int clb_gguf_open_memory(const void *data, size_t size, const char *name, clb_gguf_geometry geometry,
                         void *geometry_ctx, clb_gguf **out, clb_error *err);
void clb_gguf_close(clb_gguf *g); /* NULL is fine */

uint32_t clb_gguf_version(const clb_gguf *g);
uint64_t clb_gguf_alignment(const clb_gguf *g);
uint32_t clb_gguf_n_shards(const clb_gguf *g);
const char *clb_gguf_shard_path(const clb_gguf *g, uint32_t shard);
uint64_t clb_gguf_shard_size(const clb_gguf *g, uint32_t shard);
int clb_gguf_shard_fd(const clb_gguf *g, uint32_t shard); /* open for reading; -1 for memory */

uint64_t clb_gguf_n_keys(const clb_gguf *g);
clb_str clb_gguf_key(const clb_gguf *g, uint64_t i); /* also NUL-terminated */
const clb_gguf_value *clb_gguf_value_at(const clb_gguf *g, uint64_t i);
const clb_gguf_value *clb_gguf_find(const clb_gguf *g, const char *key); /* O(1); NULL if absent */

uint64_t clb_gguf_n_tensors(const clb_gguf *g);
const clb_gguf_tensor *clb_gguf_tensor_at(const clb_gguf *g, uint64_t i);
const clb_gguf_tensor *clb_gguf_find_tensor(const clb_gguf *g, const char *name); /* O(1); NULL if absent */

/* Reads `size` bytes at `offset` inside the tensor into buf (pread; retries short reads; EOF is an IO error that
 * names the file; asking for bytes outside the tensor is INTERNAL). With expert_stride, offset is e * expert_stride
 * plus a place in expert e's part, which the bytes must not leave. [any-thread] */
int clb_gguf_read(const clb_gguf *g, const clb_gguf_tensor *t, uint64_t offset, void *buf, size_t size, clb_error *err);
/* Of a tensor with expert_stride: the whole block of an expert, block_bytes. [any-thread] */
int clb_gguf_read_block(const clb_gguf *g, const clb_gguf_tensor *t, uint64_t expert, void *buf, clb_error *err);

/* ---- packed files ----------------------------------------------------------------------------------- */

bool clb_gguf_is_packed(const clb_gguf *g);
bool clb_gguf_has_checksums(const clb_gguf *g); /* every file of the model has them */
/* Compares bytes that were read with the file's checksums: the whole block of an expert (size == block_bytes), or, of a
 * tensor without expert_stride, all of it (size == file_bytes; expert is ignored). OK if there are no checksums. FORMAT
 * names file, tensor and expert; INTERNAL if size is another one. [any-thread] */
int clb_gguf_verify_block(const clb_gguf *g, const clb_gguf_tensor *t, uint64_t expert, const void *bytes,
                          uint64_t size, clb_error *err);
/* The same for a piece of a tensor without expert_stride: offset is a multiple of clb_gguf_verify_unit, and so is size
 * unless the piece ends with the tensor. */
int clb_gguf_verify_piece(const clb_gguf *g, const clb_gguf_tensor *t, uint64_t offset, const void *bytes,
                          uint64_t size, clb_error *err);
/* Bytes that one checksum covers; 0: the tensor has none. */
uint64_t clb_gguf_verify_unit(const clb_gguf *g, const clb_gguf_tensor *t);
/* For the format of a packed tensor: OK if it packs rows as the file's writer did, else UNSUPPORTED: the tensor would
 * be read as garbage. FORMAT if the file does not say. */
struct colibri_format;
int clb_gguf_check_layout(const clb_gguf *g, const struct colibri_format *format, clb_error *err);

/* Typed getters. Absent key: COLIBRI_E_NOT_FOUND without touching *out; wrong type or value out of range: FORMAT.
 * Integers convert between widths and signs when the value fits. The `_or` forms take absence as the default and
 * still fail on a wrong type. */
int clb_gguf_get_u32(const clb_gguf *g, const char *key, uint32_t *out, clb_error *err);
int clb_gguf_get_u64(const clb_gguf *g, const char *key, uint64_t *out, clb_error *err);
int clb_gguf_get_f32(const clb_gguf *g, const char *key, float *out, clb_error *err);
int clb_gguf_get_bool(const clb_gguf *g, const char *key, bool *out, clb_error *err);
int clb_gguf_get_str(const clb_gguf *g, const char *key, clb_str *out, clb_error *err);
int clb_gguf_get_u32_or(const clb_gguf *g, const char *key, uint32_t def, uint32_t *out, clb_error *err);
int clb_gguf_get_f32_or(const clb_gguf *g, const char *key, float def, float *out, clb_error *err);
int clb_gguf_get_bool_or(const clb_gguf *g, const char *key, bool def, bool *out, clb_error *err);

/* Element i of an array of integers / floats / strings / bools, with the same conversions. */
int clb_gguf_item_i64(const clb_gguf_value *array, uint64_t i, int64_t *out, clb_error *err);
int clb_gguf_item_f64(const clb_gguf_value *array, uint64_t i, double *out, clb_error *err);
int clb_gguf_item_str(const clb_gguf_value *array, uint64_t i, clb_str *out, clb_error *err);

#endif
