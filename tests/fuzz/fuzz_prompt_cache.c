/* Bytes as a file of the prompt cache: what is accepted must be the block that was asked for, and must be written as it
 * was read. Seeds: tests/fuzz/corpus/prompt_cache. With an odd length the checksum is made right first, so that the
 * checks behind it are reached. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kv/prompt_cache.h"

enum { TOKENS = 16, PAGES = 2, PAGE = 64 };

static void put(int fd, const void *data, size_t n)
{
    if (n && write(fd, data, n) != (ssize_t)n)
        abort();
}

/* The sum of a file of any length >= 128. */
static void mend(uint8_t *data, size_t n)
{
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, data, 112);
    XXH3_128bits_update(&state, data + 128, n - 128);
    XXH128_canonicalFromHash((XXH128_canonical_t *)(void *)(data + 112), XXH3_128bits_digest(&state));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint32_t tokens[TOKENS];
    uint8_t pages[PAGES][PAGE] = {{0}};
    void *const at[PAGES] = {pages[0], pages[1]};
    clb_prompt_block block = {.depth = 1, .n_tokens = TOKENS, .n_pages = PAGES, .tokens = tokens, .page_bytes = PAGE};
    clb_error err = {0};
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = i;
    memset(block.key, 'k', sizeof block.key);
    memset(block.parent, 'p', sizeof block.parent);
    memset(block.hash, 'h', sizeof block.hash);
    if (size > 1 << 16)
        return 0;
    const bool mended = size % 2 && size > 128;
    const size_t n = mended ? size - 1 : size;
    uint8_t *copy = malloc(n + 1);
    const int fd = memfd_create("block", MFD_CLOEXEC), again = memfd_create("again", MFD_CLOEXEC);
    if (!copy || fd < 0 || again < 0)
        abort();
    memcpy(copy, data, n);
    if (mended)
        mend(copy, n);
    put(fd, copy, n);
    const int rc = clb_prompt_block_read(fd, &block, at, &err);
    if (rc && (!*err.msg || strchr(err.msg, '\n') || (rc != COLIBRI_E_FORMAT && rc != COLIBRI_E_UNSUPPORTED)))
        abort();
    if (!rc) {
        uint8_t back[512];
        if (clb_prompt_block_write(again, &block, (const void *const *)at, &err) ||
            pread(again, back, sizeof back, 0) != (ssize_t)n || memcmp(back, copy, n) != 0)
            abort();
    }
    close(fd);
    close(again);
    free(copy);
    return 0;
}
