/* The files of a prompt cache's folder: which there are, and which of them make room. [engine-thread] */
#ifndef CLB_KV_PROMPT_FOLDER_H
#define CLB_KV_PROMPT_FOLDER_H

#include "kv/prompt_cache.h"

/* "<hash>.kv1" */
#define CLB_PROMPT_NAME (2 * CLB_PROMPT_HASH + sizeof CLB_PROMPT_BLOCK_SUFFIX)
void clb_prompt_name(const uint8_t hash[CLB_PROMPT_HASH], char out[CLB_PROMPT_NAME]);
/* While it is written: the name with this and a number behind. Its writer holds a lock (flock) on it. */
#define CLB_PROMPT_TEMP ".tmp-"

/* What a file of n bytes takes on the drive. */
static inline uint64_t clb_prompt_folder_room(uint64_t n)
{
    return (n + 4095) / 4096 * 4096;
}

/* Adds up the blocks in the folder; with `stale`, also removes what writers that were killed have left. If it is more
 * than `most`, removes those that were unused for longest until it is at most `keep`; a block is used whenever one is
 * that follows it in a prefix. *bytes: what remains; *removed: how many left. IO: the folder cannot be read; NOMEM. */
int clb_prompt_folder_scan(int dir, bool stale, uint64_t most, uint64_t keep, uint64_t *bytes, uint64_t *removed,
                           clb_error *err);

#endif
