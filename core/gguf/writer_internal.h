/* Between the writer's two halves: contents (writer.c) and destinations (writer_file.c). */
#ifndef CLB_GGUF_WRITER_INTERNAL_H
#define CLB_GGUF_WRITER_INTERNAL_H

#include "gguf/writer.h"

typedef struct clb_gguf_sink {
    int (*put)(void *ctx, const void *data, size_t n, clb_error *err);
    void *ctx;
} clb_gguf_sink;

/* Hands the whole file to the sink, in order. */
int clb_gguf_writer_emit(clb_gguf_writer *w, const clb_gguf_sink *sink, clb_error *err);

#endif
