/* Hashes by which results are known to belong together. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "compare_kv_tasks.h"

#define WHOLE   ((uint64_t)256 << 20)
#define BLOCK   ((size_t)1 << 20)
#define SAMPLES 256u

void clb_kvc_hash(const void *data, size_t n, char out[40])
{
    snprintf(out, 40, "xxh3:%016" PRIx64, (uint64_t)XXH3_64bits(data, n));
}

static int add_block(XXH3_state_t *state, int fd, void *block, size_t want, off_t at, const char *path, clb_error *err)
{
    const ssize_t n = pread(fd, block, want, at);
    if (n < 0)
        return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot read %s", path);
    XXH3_64bits_update(state, block, (size_t)n);
    return COLIBRI_OK;
}

int clb_kvc_hash_file(const char *path, char out[40], clb_error *err)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st)) {
        const int rc = clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot open %s", path);
        if (fd >= 0)
            close(fd);
        return rc;
    }
    const uint64_t size = (uint64_t)st.st_size;
    const bool whole = size <= WHOLE;
    XXH3_state_t *const state = XXH3_createState();
    void *const block = malloc(BLOCK);
    int rc = state && block ? COLIBRI_OK : CLB_NOMEM(err, "a hash");
    if (!rc)
        XXH3_64bits_reset(state);
    if (!rc && !whole)
        XXH3_64bits_update(state, &size, sizeof size);
    for (uint64_t at = 0; !rc && whole && at < size; at += BLOCK)
        rc = add_block(state, fd, block, BLOCK, (off_t)at, path, err);
    for (uint32_t i = 0; !rc && !whole && i <= SAMPLES; i++)
        rc = add_block(state, fd, block, BLOCK / 4, (off_t)((size - BLOCK) / SAMPLES * i), path, err);
    if (!rc)
        snprintf(out, 40, "%s:%016" PRIx64, whole ? "xxh3" : "xxh3-samples", (uint64_t)XXH3_64bits_digest(state));
    XXH3_freeState(state);
    free(block);
    close(fd);
    return rc;
}
