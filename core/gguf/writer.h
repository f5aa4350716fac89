/* GGUF writer (version 3, little-endian): collect keys and tensors, then write the file at once.
 *
 * One writer belongs to one thread at a time. It refuses what the reader refuses (USAGE), so that everything it writes
 * can be read back. Keys keep the order in which they were first set, tensors that in which they were added. */
#ifndef CLB_GGUF_WRITER_H
#define CLB_GGUF_WRITER_H

#include "base/str.h"
#include "gguf/gguf.h"

typedef struct clb_gguf_writer clb_gguf_writer;

int clb_gguf_writer_create(clb_gguf_writer **out, clb_error *err);
void clb_gguf_writer_free(clb_gguf_writer *w); /* NULL is fine */

/* Sets a key to a copy of value; a key that is set already is replaced. Values have the layout in which the reader
 * returns them. "general.alignment" (U32, a power of two from 8) also changes the alignment of this file. */
int clb_gguf_writer_set(clb_gguf_writer *w, const char *key, const clb_gguf_value *value, clb_error *err);
int clb_gguf_writer_set_u32(clb_gguf_writer *w, const char *key, uint32_t v, clb_error *err);
int clb_gguf_writer_set_u64(clb_gguf_writer *w, const char *key, uint64_t v, clb_error *err);
int clb_gguf_writer_set_i32(clb_gguf_writer *w, const char *key, int32_t v, clb_error *err);
int clb_gguf_writer_set_f32(clb_gguf_writer *w, const char *key, float v, clb_error *err);
int clb_gguf_writer_set_bool(clb_gguf_writer *w, const char *key, bool v, clb_error *err);
int clb_gguf_writer_set_str(clb_gguf_writer *w, const char *key, const char *v, clb_error *err);
/* items: packed little-endian scalars, clb_str[n] or clb_gguf_value[n], as in clb_gguf_value. */
int clb_gguf_writer_set_array(clb_gguf_writer *w, const char *key, enum clb_gguf_vtype elem, const void *items,
                              uint64_t n, clb_error *err);
/* All keys of an open model, except split.* and colibri.packed.*: those describe files, not the model. */
int clb_gguf_writer_copy_keys(clb_gguf_writer *w, const clb_gguf *g, clb_error *err);
/* An absent key is fine. */
void clb_gguf_writer_remove(clb_gguf_writer *w, const char *key);

/* Delivers bytes [offset, offset + size) of a tensor. Called in ascending order without gaps, at most 1 MiB at a time;
 * an error (CANCELLED included) ends the writing and removes what was written. */
typedef int (*clb_gguf_produce)(void *ctx, uint64_t offset, void *buf, size_t size, clb_error *err);

typedef struct clb_gguf_new_tensor {
    const char *name; /* copied */
    uint32_t type;
    uint32_t n_dims;
    uint64_t ne[CLB_GGUF_MAX_DIMS];
    uint64_t n_bytes; /* 0: from clb_gguf_known_geometry; needed for types that it does not know */
    const void *data; /* borrowed until the file is written; NULL: produce */
    clb_gguf_produce produce;
    void *ctx;
} clb_gguf_new_tensor;

int clb_gguf_writer_add_tensor(clb_gguf_writer *w, const clb_gguf_new_tensor *tensor, clb_error *err);
/* Size of the file if it were written now. */
int clb_gguf_writer_size(clb_gguf_writer *w, uint64_t *out, clb_error *err);

#define CLB_GGUF_OVERWRITE 0x1u /* replace an existing file */

/* Writes to a temporary file beside path, syncs it and renames it: readers see the old file or the complete new one.
 * After a failure nothing is left behind. A path that exists is refused without CLB_GGUF_OVERWRITE, one that is not a
 * regular file always (USAGE). A symbolic link is followed, permissions of a replaced file are kept. May be called
 * again. */
int clb_gguf_writer_write(clb_gguf_writer *w, const char *path, unsigned flags, clb_error *err);
/* To an open descriptor, from its current position, without seeking: pipes work. name is for messages. */
int clb_gguf_writer_write_fd(clb_gguf_writer *w, int fd, const char *name, clb_error *err);
/* Appends the file's bytes to out. */
int clb_gguf_writer_write_buf(clb_gguf_writer *w, clb_buf *out, clb_error *err);

#endif
