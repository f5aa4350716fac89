#include "gguf/identity.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define CHUNK       ((size_t)64 << 10)
#define SAMPLE      ((size_t)4096)
#define SAMPLES_ALL UINT64_C(8192) /* about, over all tensors: each may be a seek */
#define SAMPLES_ONE UINT64_C(16)   /* of one tensor at most */

static int add_bytes(XXH3_state_t *state, int fd, uint64_t n, void *chunk, const char *path, clb_error *err)
{
    for (uint64_t at = 0; at < n;) {
        const ssize_t done = pread(fd, chunk, n - at < CHUNK ? (size_t)(n - at) : CHUNK, (off_t)at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return clb_fail_errno(err, COLIBRI_E_IO, done ? errno : EIO, "cannot read %s", path);
        XXH3_128bits_update(state, chunk, (size_t)done);
        at += (uint64_t)done;
    }
    return COLIBRI_OK;
}

/* Length and header of a file; without checksums its time of modification, too: a sample does not see everything. */
static int add_file(XXH3_state_t *state, const clb_gguf *g, uint32_t shard, void *chunk, clb_error *err)
{
    const uint64_t size = clb_gguf_shard_size(g, shard);
    const int fd = clb_gguf_shard_fd(g, shard);
    uint64_t header = size;
    struct stat st;
    XXH3_128bits_update(state, &size, sizeof size);
    for (uint64_t i = 0; i < clb_gguf_n_tensors(g); i++) {
        const clb_gguf_tensor *t = clb_gguf_tensor_at(g, i);
        if (t->shard == shard && t->offset < header)
            header = t->offset;
    }
    if (fd < 0)
        return COLIBRI_OK; /* memory */
    if (!clb_gguf_has_checksums(g)) {
        if (fstat(fd, &st))
            return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot read %s", clb_gguf_shard_path(g, shard));
        XXH3_128bits_update(state, &st.st_mtim.tv_sec, sizeof st.st_mtim.tv_sec);
        XXH3_128bits_update(state, &st.st_mtim.tv_nsec, sizeof st.st_mtim.tv_nsec);
    }
    return add_bytes(state, fd, header, chunk, clb_gguf_shard_path(g, shard), err);
}

static int add_tensor(XXH3_state_t *state, const clb_gguf *g, const clb_gguf_tensor *t, uint64_t most, void *chunk,
                      clb_error *err)
{
    const uint64_t all =
        t->expert_stride ? t->file_bytes : t->n_bytes; /* of a packed one without checksums: expert 0 */
    const uint64_t n = all <= most * SAMPLE ? (all + SAMPLE - 1) / SAMPLE : most;
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t at = n == most && n > 1 && all > n * SAMPLE
                                ? (all - SAMPLE) / (n - 1) * i + (all - SAMPLE) % (n - 1) * i / (n - 1)
                                : i * SAMPLE;
        const size_t size = all - at < SAMPLE ? (size_t)(all - at) : SAMPLE;
        CLB_TRY(clb_gguf_read(g, t, at, chunk, size, err));
        XXH3_128bits_update(state, chunk, size);
    }
    return COLIBRI_OK;
}

int clb_gguf_identity(const clb_gguf *g, uint8_t out[CLB_GGUF_IDENTITY], clb_error *err)
{
    XXH3_state_t state;
    const uint64_t n_tensors = clb_gguf_n_tensors(g);
    const uint64_t each = n_tensors && SAMPLES_ALL / n_tensors ? SAMPLES_ALL / n_tensors : 1;
    const uint64_t most = each < SAMPLES_ONE ? each : SAMPLES_ONE;
    void *chunk = malloc(CHUNK);
    if (!chunk)
        return CLB_NOMEM(err, "a hash of the model");
    XXH3_128bits_reset(&state);
    int rc = COLIBRI_OK;
    for (uint32_t i = 0; !rc && i < clb_gguf_n_shards(g); i++)
        rc = add_file(&state, g, i, chunk, err);
    for (uint64_t i = 0; !rc && i < n_tensors && !clb_gguf_has_checksums(g); i++)
        rc = add_tensor(&state, g, clb_gguf_tensor_at(g, i), most, chunk, err);
    free(chunk);
    XXH128_canonicalFromHash((XXH128_canonical_t *)(void *)out, XXH3_128bits_digest(&state));
    return rc;
}
