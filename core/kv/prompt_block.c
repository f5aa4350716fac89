/* One block of a prompt cache in a file: writer and reader. The layout is in prompt_cache.h. */
#include "kv/prompt_cache.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define ALIGN 64u

typedef struct clb_prompt_block_head head;
_Static_assert(sizeof(head) == 128, "the head has no gaps");
#define SUMMED offsetof(head, checksum)

/* Where the pages begin; n_tokens is bounded by the block size setting, or, in a file, by its length. */
static uint64_t pages_at(uint32_t n_tokens)
{
    return (sizeof(head) + (uint64_t)n_tokens * sizeof(uint32_t) + ALIGN - 1) / ALIGN * ALIGN;
}

uint64_t clb_prompt_block_bytes(const clb_prompt_block *b)
{
    return pages_at(b->n_tokens) + b->n_pages * b->page_bytes;
}

static head head_of(const clb_prompt_block *b)
{
    head h = {
        .magic = CLB_PROMPT_BLOCK_MAGIC,
        .version = CLB_PROMPT_BLOCK_VERSION,
        .head_bytes = (uint32_t)pages_at(b->n_tokens),
        .depth = b->depth,
        .n_tokens = b->n_tokens,
        .n_pages = b->n_pages,
        .page_bytes = b->page_bytes,
        .file_bytes = clb_prompt_block_bytes(b),
    };
    memcpy(h.key, b->key, sizeof h.key);
    memcpy(h.parent, b->parent, sizeof h.parent);
    memcpy(h.hash, b->hash, sizeof h.hash);
    return h;
}

/* Head and tokens with their padding, the checksum still zero; NULL: no memory. */
static uint8_t *front_of(const clb_prompt_block *b)
{
    const head h = head_of(b);
    uint8_t *front = calloc(1, h.head_bytes);
    if (!front)
        return NULL;
    memcpy(front, &h, sizeof h);
    memcpy(front + sizeof h, b->tokens, b->n_tokens * sizeof *b->tokens);
    return front;
}

/* The checksum so far: everything before the pages. */
static void sum_front(XXH3_state_t *state, const uint8_t *front, size_t n)
{
    XXH3_128bits_reset(state);
    XXH3_128bits_update(state, front, SUMMED);
    XXH3_128bits_update(state, front + sizeof(head), n - sizeof(head));
}

static void sum_end(const XXH3_state_t *state, uint8_t out[CLB_PROMPT_HASH])
{
    XXH128_canonicalFromHash((XXH128_canonical_t *)(void *)out, XXH3_128bits_digest(state));
}

/* ---- writing ---- */

static int write_all(int fd, const void *data, size_t n, clb_error *err)
{
    for (const uint8_t *from = data; n;) {
        const ssize_t done = write(fd, from, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return clb_fail_errno(err, CLB_PROMPT_WRITE_CODE(errno), errno, "cannot write");
        from += done;
        n -= (size_t)done;
    }
    return COLIBRI_OK;
}

/* Each page in one piece or two, in the order of the file. */
static uint32_t n_pieces(const clb_prompt_block *b)
{
    return b->split ? 2 * b->n_pages : b->n_pages;
}

static size_t piece(const clb_prompt_block *b, uint32_t i, uint32_t *page)
{
    if (!b->split) {
        *page = i;
        return (size_t)b->page_bytes;
    }
    *page = i / 2 + (i % 2 ? b->n_pages : 0);
    return (size_t)(i % 2 ? b->page_bytes - b->split : b->split);
}

int clb_prompt_block_write(int fd, const clb_prompt_block *b, const void *const *pages, clb_error *err)
{
    XXH3_state_t state;
    uint32_t at;
    uint8_t *front = front_of(b);
    if (!front)
        return CLB_NOMEM(err, "a block of the prompt cache");
    const size_t n = (size_t)pages_at(b->n_tokens);
    sum_front(&state, front, n);
    for (uint32_t i = 0; i < n_pieces(b); i++) {
        const size_t size = piece(b, i, &at);
        XXH3_128bits_update(&state, pages[at], size);
    }
    sum_end(&state, front + SUMMED);
    int rc = write_all(fd, front, n, err);
    for (uint32_t i = 0; !rc && i < n_pieces(b); i++) {
        const size_t size = piece(b, i, &at);
        rc = write_all(fd, pages[at], size, err);
    }
    free(front);
    return rc;
}

/* ---- reading ---- */

/* IO; FORMAT if the file has become shorter meanwhile. */
static int read_at(int fd, void *out, size_t n, uint64_t at, clb_error *err)
{
    for (uint8_t *to = out; n;) {
        const ssize_t done = pread(fd, to, n, (off_t)at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot read");
        if (done == 0)
            return clb_fail(err, COLIBRI_E_FORMAT, "it ends early");
        to += done;
        at += (uint64_t)done;
        n -= (size_t)done;
    }
    return COLIBRI_OK;
}

static bool all_zero(const void *data, size_t n)
{
    const uint8_t *bytes = data;
    while (n && bytes[n - 1] == 0)
        n--;
    return n == 0;
}

/* OK: the file has the length that it says, and it is the wanted one's. */
static int check_head(const head *h, uint64_t size, const clb_prompt_block *b, clb_error *err)
{
    /* The wanted block for certain, whatever is damaged. */
    const bool wanted = memcmp(h->key, b->key, sizeof h->key) == 0 && memcmp(h->hash, b->hash, sizeof h->hash) == 0;
    if (memcmp(h->magic, CLB_PROMPT_BLOCK_MAGIC, sizeof h->magic) != 0) {
        if (all_zero(h, sizeof *h)) /* what a power cut leaves of a file that was just written */
            return clb_fail(err, COLIBRI_E_FORMAT, "it begins with zeros");
        return clb_fail(err, wanted ? COLIBRI_E_FORMAT : COLIBRI_E_UNSUPPORTED, "it is no block of a prompt cache");
    }
    if (h->version != CLB_PROMPT_BLOCK_VERSION)
        return clb_fail(err, wanted ? COLIBRI_E_FORMAT : COLIBRI_E_UNSUPPORTED, "it has version %u, not %u", h->version,
                        CLB_PROMPT_BLOCK_VERSION);
    if (size != h->file_bytes)
        return clb_fail(err, COLIBRI_E_FORMAT, "it has %llu bytes, and should have %llu", (unsigned long long)size,
                        (unsigned long long)h->file_bytes);
    if (size != clb_prompt_block_bytes(b))
        return clb_fail(err, COLIBRI_E_UNSUPPORTED, "it has other pages");
    return COLIBRI_OK;
}

/* Head, tokens and pages are read once, straight to where they belong, whatever they are: only the checksum can tell a
 * damaged block from another one. */
static int read_block(int fd, const clb_prompt_block *b, void *const *pages, uint8_t *front, uint8_t *got,
                      clb_error *err)
{
    XXH3_state_t state;
    uint8_t sum[CLB_PROMPT_HASH];
    const size_t n = (size_t)pages_at(b->n_tokens);
    CLB_TRY(read_at(fd, got, n, 0, err));
    sum_front(&state, got, n);
    uint64_t from = n;
    for (uint32_t i = 0, at; i < n_pieces(b); i++) {
        const size_t size = piece(b, i, &at);
        CLB_TRY(read_at(fd, pages[at], size, from, err));
        XXH3_128bits_update(&state, pages[at], size);
        from += size;
    }
    sum_end(&state, sum);
    if (memcmp(sum, got + SUMMED, sizeof sum) != 0)
        return clb_fail(err, COLIBRI_E_FORMAT, "its checksum is wrong");
    memcpy(front + SUMMED, sum, sizeof sum);
    return memcmp(front, got, n) == 0 ? COLIBRI_OK
                                      : clb_fail(err, COLIBRI_E_UNSUPPORTED, "it is of another model or prompt");
}

int clb_prompt_block_read(int fd, const clb_prompt_block *b, void *const *pages, clb_error *err)
{
    struct stat st;
    head h;
    if (fstat(fd, &st))
        return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot read");
    if (!S_ISREG(st.st_mode))
        return clb_fail(err, COLIBRI_E_UNSUPPORTED, "it is no file");
    const uint64_t size = (uint64_t)st.st_size;
    CLB_TRY(read_at(fd, &h, size < sizeof h ? (size_t)size : sizeof h, 0, err));
    if (size < sizeof h) { /* the beginning of one, or never was one */
        const size_t n = size < sizeof h.magic ? (size_t)size : sizeof h.magic;
        const bool begun = memcmp(h.magic, CLB_PROMPT_BLOCK_MAGIC, n) == 0;
        return clb_fail(err, begun ? COLIBRI_E_FORMAT : COLIBRI_E_UNSUPPORTED, "it is too short");
    }
    CLB_TRY(check_head(&h, size, b, err));
    uint8_t *front = front_of(b), *got = malloc((size_t)pages_at(b->n_tokens));
    const int rc =
        front && got ? read_block(fd, b, pages, front, got, err) : CLB_NOMEM(err, "a block of the prompt cache");
    free(front);
    free(got);
    return rc;
}
