/* Between the writer's two halves: contents (writer.c) and destinations (writer_file.c). */
#ifndef CLB_GGUF_WRITER_INTERNAL_H
#define CLB_GGUF_WRITER_INTERNAL_H

#include <sys/types.h>

#include "gguf/writer.h"

typedef struct clb_gguf_sink {
    int (*put)(void *ctx, const void *data, size_t n, clb_error *err);
    void *ctx;
} clb_gguf_sink;

/* Hands the whole file to the sink, in order. */
int clb_gguf_writer_emit(clb_gguf_writer *w, const clb_gguf_sink *sink, clb_error *err);

/* The header alone, under another magic and with other offsets (from the data section; NULL: consecutive ones, after
 * clb_gguf_writer_emit). */
int clb_gguf_writer_header(const clb_gguf_writer *w, const char *magic, const uint64_t *offsets, clb_buf *out,
                           clb_error *err);

/* A file that comes into being beside its path. Zero-initialise with fd = -1; drop in any case. */
typedef struct clb_gguf_target {
    char *path; /* links resolved */
    char *temp;
    int fd;      /* of the temporary file, until it is finished */
    bool exists; /* path, when it was opened */
    bool published;
    mode_t mode; /* of the existing file */
    char *old;   /* where that file waits meanwhile; NULL: it does not */
} clb_gguf_target;

/* Refuses what must not be replaced and opens the temporary file for writing and reading. */
int clb_gguf_target_open(clb_gguf_target *t, const char *path, unsigned flags, clb_error *err);
/* Syncs and closes it. */
int clb_gguf_target_finish(clb_gguf_target *t, clb_error *err);
/* Moves it to its path. */
int clb_gguf_target_publish(clb_gguf_target *t, clb_error *err);
/* For files that belong together: set_aside gives an old file another name beside it ("PATH.old-...", PATH.tmp-...'s
 * number), after which publishing replaces nothing. put_back undoes both of them, as far as they went; IO: the old file
 * keeps the other name, which the message has. let_go removes the old file. */
int clb_gguf_target_set_aside(clb_gguf_target *t, clb_error *err);
int clb_gguf_target_put_back(clb_gguf_target *t, clb_error *err);
void clb_gguf_target_let_go(clb_gguf_target *t);
/* Removes the temporary file, if there is one still. */
void clb_gguf_target_drop(clb_gguf_target *t);

#endif
