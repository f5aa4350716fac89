/* Packed files: which runs go into which file, their headers, and the files themselves. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "gguf/pack_internal.h"
#include "gguf/writer_internal.h"

/* A source beyond it is not a model; sizes computed from smaller ones cannot overflow. */
#define MOST_SOURCE ((uint64_t)1 << 52)

/* ---- headers ---------------------------------------------------------------------------------------- */

/* Arrays of one file, in the order of its tensors, runs and blocks. */
typedef struct arrays {
    uint8_t *layouts;
    uint32_t *runs;
    uint64_t *offsets; /* of tensors, in the data section */
    uint64_t *run_offsets, *run_bytes, *block_bytes;
    size_t n_parts;
} arrays;

static int add_tensor(clb_gguf_writer *w, const clb_pack_part *part, clb_error *err)
{
    clb_gguf_new_tensor t = {.name = part->name, .type = part->type, .n_dims = part->n_dims, .data = ""};
    memcpy(t.ne, part->ne, sizeof t.ne);
    t.n_bytes = part->row_bytes * part->ne[1] * part->ne[2] * part->ne[3];
    return clb_gguf_writer_add_tensor(w, &t, err);
}

static int fill_arrays(const clb_pack *pack, const clb_pack_file *f, arrays *a, clb_gguf_writer *w, clb_error *err)
{
    for (uint32_t i = 0; i < f->n; i++) {
        const clb_pack_run *run = &pack->runs[f->first + i];
        a->run_offsets[i] = run->offset;
        a->run_bytes[i] = run->bytes;
        a->block_bytes[i] = run->block;
        for (uint32_t p = 0; p < run->n; p++) {
            const clb_pack_part *part = &pack->parts[run->first + p];
            a->layouts[a->n_parts] =
                (uint8_t)((part->x16 ? CLB_PACKED_X16 : 0) | (run->experts ? CLB_PACKED_EXPERTS : 0));
            a->runs[a->n_parts] = i;
            a->offsets[a->n_parts++] = run->offset + part->at;
            CLB_TRY(add_tensor(w, part, err));
        }
    }
    return COLIBRI_OK;
}

static int set_split(const clb_pack *pack, uint32_t i, clb_gguf_writer *w, clb_error *err)
{
    CLB_TRY(clb_gguf_writer_set_u32(w, "split.no", i, err));
    CLB_TRY(clb_gguf_writer_set_u32(w, "split.count", pack->n_files, err));
    return clb_gguf_writer_set_u32(w, "split.tensors.count", pack->n_parts, err);
}

static int set_keys(const clb_pack *pack, uint32_t i, clb_gguf_writer *w, clb_error *err)
{
    CLB_TRY(clb_gguf_writer_set_u64(w, CLB_PACKED_KEY_HEADER, 0, err));
    if (i == 0)
        CLB_TRY(clb_gguf_writer_copy_keys(w, pack->source, err));
    CLB_TRY(clb_gguf_writer_set_u32(w, "general.alignment", CLB_PACKED_ALIGNMENT, err));
    if (pack->options.split)
        CLB_TRY(set_split(pack, i, w, err));
    CLB_TRY(clb_gguf_writer_set_u32(w, CLB_PACKED_KEY_VERSION, CLB_PACKED_VERSION, err));
    CLB_TRY(clb_gguf_writer_set_u32(w, CLB_PACKED_KEY_SOURCE, (uint32_t)clb_gguf_alignment(pack->source), err));
    CLB_TRY(clb_gguf_writer_set_str(w, CLB_PACKED_KEY_CHECKSUM, "xxh3-64", err));
    CLB_TRY(clb_gguf_writer_set_array(w, CLB_PACKED_KEY_TYPES, CLB_GGUF_U32, pack->types, pack->n_types, err));
    return clb_gguf_writer_set_array(w, CLB_PACKED_KEY_MARKS, CLB_GGUF_U64, pack->marks, pack->n_types, err);
}

int clb_pack_header(const clb_pack *pack, uint32_t i, clb_buf *out, clb_error *err)
{
    _Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "arrays are written as they lie in memory");
    const clb_pack_file *f = &pack->files[i];
    size_t n_parts = 0;
    for (uint32_t r = 0; r < f->n; r++)
        n_parts += pack->runs[f->first + r].n;
    arrays a = {.layouts = calloc(n_parts + 1, 1),
                .runs = calloc(n_parts + 1, sizeof *a.runs),
                .offsets = calloc(n_parts + 1, sizeof *a.offsets),
                .run_offsets = calloc(3 * (size_t)f->n + 1, sizeof *a.run_offsets)};
    clb_gguf_writer *w = NULL;
    int rc = COLIBRI_OK;
    if (!a.layouts || !a.runs || !a.offsets || !a.run_offsets)
        CLB_GO(CLB_NOMEM(err, "the header of a packed file"));
    a.run_bytes = a.run_offsets + f->n;
    a.block_bytes = a.run_bytes + f->n;
    CLB_GO(clb_gguf_writer_create(&w, err));
    CLB_GO(set_keys(pack, i, w, err));
    CLB_GO(fill_arrays(pack, f, &a, w, err));
    const uint64_t first_block = f->n ? pack->runs[f->first].first_block : 0;
    uint64_t n_blocks = 0;
    for (uint32_t r = 0; r < f->n; r++)
        n_blocks += pack->runs[f->first + r].n_blocks;
    CLB_GO(clb_gguf_writer_set_array(w, CLB_PACKED_KEY_LAYOUTS, CLB_GGUF_U8, a.layouts, n_parts, err));
    CLB_GO(clb_gguf_writer_set_array(w, CLB_PACKED_KEY_RUNS, CLB_GGUF_U32, a.runs, n_parts, err));
    CLB_GO(clb_gguf_writer_set_array(w, CLB_PACKED_KEY_RUN_OFFSETS, CLB_GGUF_U64, a.run_offsets, f->n, err));
    CLB_GO(clb_gguf_writer_set_array(w, CLB_PACKED_KEY_RUN_BYTES, CLB_GGUF_U64, a.run_bytes, f->n, err));
    CLB_GO(clb_gguf_writer_set_array(w, CLB_PACKED_KEY_BLOCK_BYTES, CLB_GGUF_U64, a.block_bytes, f->n, err));
    CLB_GO(
        clb_gguf_writer_set_array(w, CLB_PACKED_KEY_CHECKSUMS, CLB_GGUF_U64, pack->sums + first_block, n_blocks, err));
    CLB_GO(clb_gguf_writer_header(w, CLB_PACKED_MAGIC, a.offsets, out, err));
    const uint64_t sum = clb_packed_header_sum((const unsigned char *)out->data, out->n);
    memcpy(out->data + CLB_PACKED_HEADER_AT, &sum, sizeof sum);
done:
    clb_gguf_writer_free(w);
    free(a.layouts);
    free(a.runs);
    free(a.offsets);
    free(a.run_offsets);
    return rc;
}

/* ---- layout ----------------------------------------------------------------------------------------- */

/* Bytes that a run adds to a header. */
static uint64_t record_bytes(const clb_pack *pack, const clb_pack_run *run)
{
    uint64_t n = 3 * 8 + 8 * run->n_blocks;
    for (uint32_t p = 0; p < run->n; p++) {
        const clb_pack_part *part = &pack->parts[run->first + p];
        n += 8 + strlen(part->name) + 4 + 8 * (uint64_t)part->n_dims + 4 + 8 + 1 + 4;
    }
    return n;
}

/* Of a file without tensors. */
static int bare_header(clb_pack *pack, uint32_t i, uint64_t *out, clb_error *err)
{
    clb_buf buf = {0};
    const int rc = clb_pack_header(pack, i, &buf, err);
    *out = buf.n;
    clb_buf_free(&buf);
    return rc;
}

static int add_file(clb_pack *pack, uint32_t first_run, clb_error *err)
{
    if (pack->n_files == CLB_GGUF_MAX_SHARDS)
        return clb_fail(err, COLIBRI_E_USAGE, "more than %u files: split into larger ones", CLB_GGUF_MAX_SHARDS);
    clb_pack_file *files = realloc(pack->files, (pack->n_files + 1) * sizeof *files);
    if (!files)
        return CLB_NOMEM(err, "the plan of packed files");
    pack->files = files;
    files[pack->n_files] = (clb_pack_file){.first = first_run};
    CLB_TRY(bare_header(pack, pack->n_files, &files[pack->n_files].header, err));
    pack->n_files++;
    return COLIBRI_OK;
}

static uint64_t padded(uint64_t n)
{
    return clb_packed_round(n, CLB_PACKED_ALIGNMENT);
}

static int assign_runs(clb_pack *pack, clb_error *err)
{
    char a[24], b[24];
    const uint64_t most = pack->options.split ? pack->options.split : UINT64_MAX;
    uint64_t data = 0;
    CLB_TRY(add_file(pack, 0, err));
    for (uint32_t r = 0; r < pack->n_runs; r++) {
        clb_pack_run *run = &pack->runs[r];
        clb_pack_file *f = &pack->files[pack->n_files - 1];
        const uint64_t record = record_bytes(pack, run), bytes = padded(run->bytes);
        if (padded(f->header + record) + data + bytes > most) {
            if (f->n == 0 && pack->n_files > 1)
                return clb_fail(err, COLIBRI_E_USAGE,
                                "files of %s are too small: %s alone takes %s, which stays together",
                                clb_human_bytes(most, a), pack->parts[run->first].name,
                                clb_human_bytes(padded(f->header + record) + bytes, b));
            CLB_TRY(add_file(pack, r, err));
            data = 0;
            r--; /* again, into the new file */
            continue;
        }
        run->file = pack->n_files - 1;
        run->offset = data;
        f->header += record;
        f->n++;
        data += bytes;
    }
    return COLIBRI_OK;
}

int clb_pack_lay_out(clb_pack *pack, clb_error *err)
{
    for (uint32_t r = 0; r < pack->n_runs; r++) {
        pack->runs[r].first_block = pack->n_blocks;
        pack->n_blocks += pack->runs[r].n_blocks;
    }
    pack->sums = calloc((size_t)pack->n_blocks + 1, sizeof *pack->sums);
    if (!pack->sums)
        return CLB_NOMEM(err, "the checksums of a packed model");
    CLB_TRY(assign_runs(pack, err));
    if (pack->n_files == 1)
        pack->options.split = 0;
    for (uint32_t i = 0; i < pack->n_files; i++) {
        clb_pack_file *f = &pack->files[i];
        const clb_pack_run *last = f->n ? &pack->runs[f->first + f->n - 1] : NULL;
        CLB_TRY(bare_header(pack, i, &f->header, err)); /* exactly, now that the number of files is known */
        f->data = padded(f->header);
        f->size = last ? f->data + last->offset + padded(last->bytes) : f->header;
        if (f->header > CLB_GGUF_MAX_HEADER)
            return clb_fail(err, COLIBRI_E_LIMIT, "the header would exceed %llu MiB",
                            (unsigned long long)(CLB_GGUF_MAX_HEADER >> 20));
    }
    return COLIBRI_OK;
}

int clb_pack_create(const clb_gguf *source, const clb_pack_options *options, clb_pack **out, clb_error *err)
{
    char path[304];
    *out = NULL;
    uint64_t size = 0;
    for (uint32_t i = 0; i < clb_gguf_n_shards(source); i++)
        size += clb_gguf_shard_size(source, i);
    if (clb_gguf_is_packed(source))
        return clb_fail(err, COLIBRI_E_USAGE, "%s is packed already (colibri pack --verify checks it)",
                        clb_gguf_short_path(clb_gguf_shard_path(source, 0), path));
    if (size > MOST_SOURCE)
        return clb_fail(err, COLIBRI_E_LIMIT, "%s: larger than 4 PiB",
                        clb_gguf_short_path(clb_gguf_shard_path(source, 0), path));
    clb_pack *pack = calloc(1, sizeof *pack);
    if (!pack)
        return CLB_NOMEM(err, "the plan of a packed model");
    pack->source = source;
    pack->options = *options;
    int rc = clb_pack_make_plan(pack, err);
    if (!rc)
        rc = clb_pack_lay_out(pack, err);
    if (rc) {
        clb_context(err, "%s", clb_gguf_short_path(clb_gguf_shard_path(source, 0), path));
        clb_pack_free(pack);
        return rc;
    }
    *out = pack;
    return COLIBRI_OK;
}

void clb_pack_free(clb_pack *pack)
{
    if (!pack)
        return;
    for (uint32_t i = 0; i < pack->n_parts; i++) {
        free(pack->parts[i].name);
        free(pack->parts[i].source);
    }
    free(pack->parts);
    free(pack->runs);
    free(pack->files);
    free(pack->sums);
    free(pack->types);
    free(pack->marks);
    free(pack);
}

uint32_t clb_pack_n_files(const clb_pack *pack)
{
    return pack->n_files;
}

uint64_t clb_pack_size(const clb_pack *pack)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < pack->n_files; i++)
        sum += pack->files[i].size;
    return sum;
}

/* ---- files ------------------------------------------------------------------------------------------ */

int clb_pack_path(const clb_pack *pack, const char *path, uint32_t i, char **out, clb_error *err)
{
    static const char extension[] = ".colibri";
    const size_t n = strlen(path), n_ext = sizeof extension - 1;
    const size_t stem = n > n_ext && strcmp(path + n - n_ext, extension) == 0 ? n - n_ext : n;
    int done;
    if (pack->n_files == 1)
        done = asprintf(out, "%s", path);
    else
        done = asprintf(out, "%.*s-%05u-of-%05u%s", (int)stem, path, i + 1, pack->n_files, extension);
    if (done >= 0)
        return COLIBRI_OK;
    *out = NULL;
    return CLB_NOMEM(err, "a path");
}

static int check_space(const clb_pack *pack, int fd, const char *path, clb_error *err)
{
    char shown[304], need[24], have[24];
    struct statvfs fs;
    if (fstatvfs(fd, &fs))
        return COLIBRI_OK; /* then writing finds out */
    const uint64_t blocks = geteuid() == 0 ? fs.f_bfree : fs.f_bavail, free_bytes = blocks * fs.f_frsize;
    if (clb_pack_size(pack) <= free_bytes)
        return COLIBRI_OK;
    return clb_fail(err, COLIBRI_E_IO, "%s needs %s, but its file system has %s free", clb_gguf_short_path(path, shown),
                    clb_human_bytes(clb_pack_size(pack), need), clb_human_bytes(free_bytes, have));
}

/* The source must survive, even with CLB_GGUF_OVERWRITE. */
static int refuse_source(const clb_pack *pack, const char *path, clb_error *err)
{
    char shown[304];
    struct stat a, b;
    if (stat(path, &a))
        return COLIBRI_OK;
    for (uint32_t i = 0; i < clb_gguf_n_shards(pack->source); i++) {
        const int fd = clb_gguf_shard_fd(pack->source, i);
        if (fd >= 0 && fstat(fd, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
            return clb_fail(err, COLIBRI_E_USAGE,
                            "%s is the model to be packed: choose another name for the packed file",
                            clb_gguf_short_path(path, shown));
    }
    return COLIBRI_OK;
}

static int open_targets(const clb_pack *pack, const char *path, unsigned flags, clb_gguf_target *targets, int *fds,
                        int *direct, clb_error *err)
{
    for (uint32_t i = 0; i < pack->n_files; i++) {
        char *name;
        CLB_TRY(clb_pack_path(pack, path, i, &name, err));
        int rc = refuse_source(pack, name, err);
        if (!rc)
            rc = clb_gguf_target_open(&targets[i], name, flags, err);
        free(name);
        CLB_TRY(rc);
        fds[i] = targets[i].fd;
        direct[i] = open(targets[i].temp, O_WRONLY | O_DIRECT | O_CLOEXEC); /* not every file system can */
    }
    return COLIBRI_OK;
}

static int no_room(const clb_gguf_target *t, int why, clb_error *err)
{
    char shown[304];
    return clb_fail_errno(err, COLIBRI_E_IO, why, "cannot write %s", clb_gguf_short_path(t->path, shown));
}

/* All space is asked for at once: a disk that is too full, or a limit on file sizes, shows before the work is done. */
static int allocate(const clb_pack *pack, const clb_gguf_target *targets, clb_error *err)
{
    CLB_TRY(check_space(pack, targets[0].fd, targets[0].path, err));
    for (uint32_t i = 0; i < pack->n_files; i++) {
        int rc;
        do
            rc = fallocate(targets[i].fd, 0, 0, (off_t)pack->files[i].size);
        while (rc && errno == EINTR);
        if (rc && errno != EOPNOTSUPP && errno != ENOSYS)
            return no_room(&targets[i], errno, err);
        if (rc && ftruncate(targets[i].fd, (off_t)pack->files[i].size))
            return no_room(&targets[i], errno, err);
    }
    return COLIBRI_OK;
}

static int write_headers(const clb_pack *pack, const clb_gguf_target *targets, clb_error *err)
{
    for (uint32_t i = 0; i < pack->n_files; i++) {
        clb_buf header = {0};
        int rc = clb_pack_header(pack, i, &header, err);
        assert(rc || header.n == pack->files[i].header);
        for (size_t at = 0; !rc && at < header.n;) {
            const ssize_t n = pwrite(targets[i].fd, header.data + at, header.n - at, (off_t)at);
            if (n < 0 && errno == EINTR)
                continue;
            if (n <= 0)
                rc = no_room(&targets[i], n < 0 ? errno : ENOSPC, err);
            at += n > 0 ? (size_t)n : 0;
        }
        clb_buf_free(&header);
        CLB_TRY(rc);
    }
    return COLIBRI_OK;
}

/* What was published is removed again: it belongs to nothing. The first file comes back last. */
static int put_all_back(const clb_pack *pack, clb_gguf_target *targets, clb_error *err)
{
    int rc = COLIBRI_OK;
    for (uint32_t i = pack->n_files; i-- > 0;)
        if (clb_gguf_target_put_back(&targets[i], err))
            rc = COLIBRI_E_IO;
    return rc;
}

/* The first file last. Several old ones are set aside, beginning with the first: whatever ends the process in the
 * middle, no first file of one model stands beside others of another. */
static int publish_all(const clb_pack *pack, clb_gguf_target *targets, clb_error *err)
{
    int rc = COLIBRI_OK;
    for (uint32_t i = 0; !rc && pack->n_files > 1 && i < pack->n_files; i++)
        rc = clb_gguf_target_set_aside(&targets[i], err);
    for (uint32_t i = pack->n_files; !rc && i-- > 0;)
        rc = clb_gguf_target_publish(&targets[i], err);
    if (rc) {
        clb_error more;
        if (put_all_back(pack, targets, &more))
            clb_context(err, "%s", more.msg);
        return rc;
    }
    for (uint32_t i = 0; i < pack->n_files; i++)
        clb_gguf_target_let_go(&targets[i]);
    return COLIBRI_OK;
}

int clb_pack_write(clb_pack *pack, const char *path, unsigned flags, clb_error *err)
{
    clb_gguf_target *targets = calloc(pack->n_files, sizeof *targets);
    int *fds = calloc(pack->n_files, sizeof *fds), *direct = calloc(pack->n_files, sizeof *direct);
    int rc = COLIBRI_OK;
    for (uint32_t i = 0; targets && direct && i < pack->n_files; i++)
        targets[i].fd = direct[i] = -1;
    if (!targets || !fds || !direct)
        CLB_GO(CLB_NOMEM(err, "the files of a packed model"));
    CLB_GO(open_targets(pack, path, flags, targets, fds, direct, err));
    CLB_GO(allocate(pack, targets, err));
    CLB_GO(clb_pack_write_blocks(pack, fds, direct, err));
    CLB_GO(write_headers(pack, targets, err));
    for (uint32_t i = 0; i < pack->n_files; i++)
        CLB_GO(clb_gguf_target_finish(&targets[i], err));
    CLB_GO(publish_all(pack, targets, err));
done:
    for (uint32_t i = 0; targets && direct && i < pack->n_files; i++) {
        if (direct[i] >= 0)
            close(direct[i]);
        clb_gguf_target_drop(&targets[i]);
    }
    free(targets);
    free(fds);
    free(direct);
    return rc;
}
