/* Writing packed files (packed.h): the tensors of an open GGUF model, in the layout that is multiplied, each expert's
 * parts together in one block.
 *
 * A plan says what the new files will consist of and how large they are; writing fills it in with all workers of a
 * pool, a few hundred KiB at a time each. The plan keeps pointers into the source, which must stay open. One plan
 * belongs to one thread at a time. */
#ifndef CLB_GGUF_PACK_H
#define CLB_GGUF_PACK_H

#include "base/log.h"
#include "base/pool.h"
#include "colibri/format.h"
#include "gguf/writer.h"

typedef struct clb_pack clb_pack;

typedef struct clb_pack_options {
    /* Format of a tensor type, NULL if there is none: such tensors are copied as they are. */
    const struct colibri_format *(*format)(void *ctx, uint32_t type);
    void *format_ctx;
    uint64_t split; /* no file larger than this; 0: one file */
    clb_pool *pool;
    const clb_log *log;
    bool (*cancelled)(void *ctx); /* polled by all workers; may be NULL */
    void *cancelled_ctx;
} clb_pack_options;

/* Errors: USAGE (the source is packed already; `split` is smaller than a file can be: the message says how large it
 * must be), UNSUPPORTED (a tensor of unknown size), FORMAT (experts that do not belong together). */
int clb_pack_create(const clb_gguf *source, const clb_pack_options *options, clb_pack **out, clb_error *err);
void clb_pack_free(clb_pack *pack); /* NULL is fine */

uint32_t clb_pack_n_files(const clb_pack *pack);
uint64_t clb_pack_size(const clb_pack *pack); /* of all files */
/* Path of file i (from 0) for a given output path: with several files, X.colibri becomes X-00001-of-0000N.colibri.
 * Owned by the caller. */
int clb_pack_path(const clb_pack *pack, const char *path, uint32_t i, char **out, clb_error *err);

/* Writes all files under temporary names and renames them when all are complete and synced, the first one last: a model
 * that can be opened is complete. After a failure (CANCELLED included) nothing is left behind, and what was to be
 * replaced is there as before. flags: CLB_GGUF_OVERWRITE. Errors: USAGE (a file exists, or is one of the source), IO (no space: before anything is written,
 * with both numbers). */
int clb_pack_write(clb_pack *pack, const char *path, unsigned flags, clb_error *err);

/* One finding of a verification: `what` is a line without its file ("blk.3.ffn_gate_exps.weight, expert 7: ..."). Calls
 * come from all workers, one at a time. */
typedef void (*clb_pack_report)(void *ctx, const char *file, const char *what);

/* Reads written files again, compares every checksum, and what is unpacked with the source, byte by byte. *n_bad blocks
 * differ. */
int clb_pack_compare(clb_pack *pack, const char *path, clb_pack_report report, void *ctx, uint64_t *n_bad,
                     clb_error *err);
/* Compares every checksum of an open packed model. Errors: USAGE (not packed, or without checksums), IO, CANCELLED. */
int clb_pack_verify(const clb_gguf *g, const clb_pack_options *options, clb_pack_report report, void *ctx,
                    uint64_t *n_bad, clb_error *err);

#endif
