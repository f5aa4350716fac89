/* What tells models apart that are kept on a drive. [any-thread] */
#ifndef CLB_GGUF_IDENTITY_H
#define CLB_GGUF_IDENTITY_H

#include "gguf/gguf.h"

#define CLB_GGUF_IDENTITY 16 /* bytes */
/* A hash over the model's files: lengths, headers (metadata, tensor table), and of the weights the checksums of a
 * packed file, or else samples of every tensor and the times of modification. Reads some megabytes. IO. */
int clb_gguf_identity(const clb_gguf *g, uint8_t out[CLB_GGUF_IDENTITY], clb_error *err);

#endif
