/* The prompt cache: blocks of KV pages in files, kept from run to run.
 *
 * A file holds one block of one prefix: its tokens, and one page of every (layer, KV head). Its name is the block's
 * hash and the version (32 hexadecimal digits, ".kv1"); the hash covers the key (model, types, version: whatever
 * decides the bytes), all tokens before and its own; so whoever computes the block writes the same file, and processes
 * need not talk to each other. A file appears whole or not at all. When the folder grows beyond its limit, the files
 * that were unused for longest are removed, of one prefix the last blocks first.
 *
 * The files are untrusted: nothing is used unless lengths, key, hashes, tokens and the checksum of every byte are
 * right. One that is not is passed over, with one warning per run, and removed if it is certainly a damaged block of
 * ours. Whatever happens to the folder, the run goes on without it.
 *
 * The tokens of prompts are in it in plain: folder and files are for their owner alone.
 *
 * A window of a block (windows.c) is such a file, too, with the block as the one before it.
 *
 * Layout, little-endian: struct clb_prompt_block_head (128 bytes), tokens [n_tokens] u32, zeros up to a multiple of 64,
 * then n_pages pages of page_bytes. docs/kv.md describes it. [engine-thread] */
#ifndef CLB_KV_PROMPT_CACHE_H
#define CLB_KV_PROMPT_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/log.h"

#define CLB_PROMPT_BLOCK_MAGIC   "CLBKVBLK"
#define CLB_PROMPT_BLOCK_VERSION 1u
#define CLB_PROMPT_BLOCK_SUFFIX  ".kv1" /* counts with the version */
#define CLB_PROMPT_HASH          16

struct clb_prompt_block_head {
    char magic[8];
    uint32_t version, head_bytes; /* head_bytes: where the pages begin */
    uint8_t key[CLB_PROMPT_HASH], parent[CLB_PROMPT_HASH], hash[CLB_PROMPT_HASH];
    uint32_t depth, n_tokens, n_pages, zero;
    uint64_t page_bytes, file_bytes;
    uint8_t zeros[16];
    uint8_t checksum[CLB_PROMPT_HASH]; /* XXH3-128 of the whole file without this field, which ends the head */
};

/* What a block must be. */
typedef struct clb_prompt_block {
    uint8_t key[CLB_PROMPT_HASH], parent[CLB_PROMPT_HASH], hash[CLB_PROMPT_HASH];
    uint32_t depth; /* blocks before it */
    uint32_t n_tokens, n_pages;
    const uint32_t *tokens;
    uint64_t page_bytes;
    uint64_t split; /* bytes of a page's first part, if it is in two in memory; else 0 */
} clb_prompt_block;

/* pages, everywhere: [n_pages] addresses; of pages in two parts [2 * n_pages], those of the second parts behind the
 * others. */

/* Of its file. */
uint64_t clb_prompt_block_bytes(const clb_prompt_block *block);
/* Reads a block from an open file into its pages. FORMAT: a block of ours that is damaged (or empty, or zeros: a power
 * cut); UNSUPPORTED: no block, or one of another version, model or prompt; IO; NOMEM. The pages then hold anything. */
int clb_prompt_block_read(int fd, const clb_prompt_block *block, void *const *pages, clb_error *err);
/* Writes one into an empty file. LIMIT: the drive is full; IO, NOMEM. */
#define CLB_PROMPT_WRITE_CODE(e) ((e) == ENOSPC || (e) == EDQUOT ? COLIBRI_E_LIMIT : COLIBRI_E_IO)
int clb_prompt_block_write(int fd, const clb_prompt_block *block, const void *const *pages, clb_error *err);

typedef struct clb_prompt_cache clb_prompt_cache;

typedef struct clb_prompt_cache_stats {
    uint64_t read, written, removed, refused; /* blocks; removed: for room */
    uint64_t bytes;                           /* in the folder, as far as this process knows */
} clb_prompt_cache_stats;

/* Makes the folder if there is none. If it cannot be used, or if others may write to it: a warning, and a cache that
 * has and keeps nothing. NOMEM. */
int clb_prompt_cache_open(const char *dir, uint64_t max_bytes, const clb_log *log, clb_prompt_cache **out,
                          clb_error *err);
void clb_prompt_cache_close(clb_prompt_cache *cache);
/* False: it is not there, or cannot be used. */
bool clb_prompt_cache_load(clb_prompt_cache *cache, const clb_prompt_block *block, void *const *pages);
/* Writes it if it is not there. */
void clb_prompt_cache_store(clb_prompt_cache *cache, const clb_prompt_block *block, const void *const *pages);
/* It was used (from memory), so it shall stay. */
void clb_prompt_cache_touch(clb_prompt_cache *cache, const clb_prompt_block *block);
clb_prompt_cache_stats clb_prompt_cache_get_stats(const clb_prompt_cache *cache);

#endif
