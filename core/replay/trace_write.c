/* Writes .clbt files: each record goes out whole, so that a crash leaves a readable beginning. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "colibri/numerics.h"
#include "replay/trace_build.h"
#include "replay/trace_format.h"

struct clb_trace_writer {
    clb_trace_info info;
    char *path;
    int fd;
    uint64_t written, n_units, n_passes, n_rows;
    uint8_t *buf; /* one record */
    size_t cap;
    uint32_t *seen;
    uint32_t mark;
    int failed; /* a write failed: the end of the file is not a record's end any more */
};

static int room(clb_trace_writer *w, uint64_t n, clb_error *err)
{
    if (n <= w->cap)
        return COLIBRI_OK;
    uint8_t *const p = realloc(w->buf, (size_t)n);
    if (!p)
        return CLB_NOMEM(err, "the trace");
    w->buf = p;
    w->cap = (size_t)n;
    return COLIBRI_OK;
}

static int write_out(clb_trace_writer *w, size_t n, clb_error *err)
{
    if (w->failed)
        return clb_fail(err, w->failed, "%s: an earlier write has failed", w->path);
    for (size_t done = 0; done < n;) {
        const ssize_t k = write(w->fd, w->buf + done, n - done);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0) {
            w->failed = COLIBRI_E_IO;
            return clb_fail_errno(err, COLIBRI_E_IO, k ? errno : ENOSPC, "cannot write %s", w->path);
        }
        done += (size_t)k;
    }
    w->written += n;
    return COLIBRI_OK;
}

static int write_header(clb_trace_writer *w, clb_error *err)
{
    const clb_trace_info *const i = &w->info;
    const uint32_t n_model = (uint32_t)strlen(i->model), n_arch = (uint32_t)strlen(i->arch);
    const size_t total = CLB_TRACE_HEAD_FIXED + (size_t)i->n_layers * 8 + n_model + n_arch;
    CLB_TRY(room(w, total, err));
    memcpy(w->buf, CLB_TRACE_MAGIC, 4);
    const uint32_t fields[] = {CLB_TRACE_VERSION,  (uint32_t)total, i->n_layers,  i->n_experts, i->top_k,
                               (uint32_t)i->gates, i->ahead_layers, i->ahead_top, n_model,      n_arch};
    uint8_t *p = w->buf + 4;
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
        p = clb_put32(p, fields[f]);
    for (uint32_t l = 0; l < i->n_layers; l++)
        p = clb_put64(p, i->expert_bytes ? i->expert_bytes[l] : 0);
    memcpy(p, i->model, n_model);
    memcpy(p + n_model, i->arch, n_arch);
    return write_out(w, total, err);
}

int clb_trace_create(const char *path, bool replace, const clb_trace_info *info, clb_trace_writer **out, clb_error *err)
{
    *out = NULL;
    CLB_TRY(clb_trace_check_info(info, COLIBRI_E_USAGE, err));
    clb_trace_writer *const w = calloc(1, sizeof *w);
    if (!w)
        return CLB_NOMEM(err, "the trace");
    w->info = *info;
    w->info.expert_bytes = NULL;
    w->fd = -1;
    w->path = strdup(path);
    w->seen = calloc(info->n_experts, sizeof *w->seen);
    int rc = w->path && w->seen ? COLIBRI_OK : CLB_NOMEM(err, "the trace");
    if (!rc) {
        w->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | (replace ? O_TRUNC : O_EXCL), 0666);
        if (w->fd < 0)
            rc = errno == EEXIST ? clb_fail(err, COLIBRI_E_USAGE, "%s exists; --force replaces it", path)
                                 : clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot create %s", path);
    }
    if (!rc) {
        w->info.expert_bytes = info->expert_bytes;
        rc = write_header(w, err);
        w->info.expert_bytes = NULL;
    }
    if (rc) {
        clb_trace_abandon(w);
        return rc;
    }
    *out = w;
    return COLIBRI_OK;
}

int clb_trace_unit_begin(clb_trace_writer *w, const char *label, clb_error *err)
{
    const size_t n = strnlen(label, CLB_TRACE_NAME_MAX - 1);
    CLB_TRY(room(w, CLB_TRACE_RECORD + n, err));
    uint8_t *const p = clb_put32(clb_put32(w->buf, CLB_TAG_UNIT), (uint32_t)n);
    for (size_t i = 0; i < n; i++) /* a reader takes printable text only */
        p[i] = (uint8_t)((unsigned char)label[i] < 32 || label[i] == 127 ? '?' : label[i]);
    CLB_TRY(write_out(w, CLB_TRACE_RECORD + n, err));
    w->n_units++;
    return COLIBRI_OK;
}

static uint8_t *put_choices(const clb_trace_info *info, const clb_trace_put *pass, uint8_t *p)
{
    const uint64_t n = (uint64_t)pass->n_rows * info->n_layers * info->top_k;
    if (clb_trace_id_bytes(info) == 1)
        for (uint64_t i = 0; i < n; i++)
            *p++ = (uint8_t)pass->ids[i];
    else
        for (uint64_t i = 0; i < n; i++)
            p = clb_put16(p, (uint16_t)pass->ids[i]);
    if (info->gates == CLB_GATES_F32)
        for (uint64_t i = 0; i < n; i++)
            p = clb_put_f32(p, pass->gates[i]);
    else if (info->gates == CLB_GATES_F16)
        for (uint64_t i = 0; i < n; i++)
            p = clb_put16(p, colibri_f32_f16(pass->gates[i]));
    return p;
}

int clb_trace_pass_put(clb_trace_writer *w, const clb_trace_put *pass, clb_error *err)
{
    const clb_trace_info *const info = &w->info;
    if ((info->gates && !pass->gates) || (info->ahead_layers && !pass->ahead))
        return clb_fail(err, COLIBRI_E_USAGE, "trace: the pass lacks what the header promises");
    CLB_TRY(clb_trace_check_pass(info, pass, w->seen, &w->mark, COLIBRI_E_USAGE, err));
    const uint64_t size = CLB_TRACE_PASS_FIXED + pass->n_rows * clb_trace_row_bytes(info);
    if (size > UINT32_MAX)
        return clb_fail(err, COLIBRI_E_LIMIT, "trace: a pass of %u rows does not fit into a record", pass->n_rows);
    CLB_TRY(room(w, CLB_TRACE_RECORD + size, err));
    uint8_t *p = clb_put32(clb_put32(w->buf, CLB_TAG_PASS), (uint32_t)size);
    const uint32_t fields[] = {pass->phase, pass->n_rows, pass->n_sequences, 0};
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
        p = clb_put32(p, fields[f]);
    p = clb_put64(clb_put64(p, pass->start_ns), pass->took_ns);
    for (uint32_t r = 0; r < pass->n_rows; r++) {
        p = clb_put32(p, pass->tokens ? pass->tokens[r] : UINT32_MAX);
        p = clb_put32(p, pass->sequences ? pass->sequences[r] : 0);
    }
    p = put_choices(info, pass, p);
    const uint64_t guesses = (uint64_t)pass->n_rows * info->n_layers * info->ahead_layers * info->ahead_top;
    for (uint64_t i = 0; i < guesses; i++) {
        const clb_trace_guess g = pass->ahead[i];
        const float v = g.logit > 65504.0f ? 65504.0f : g.logit < -65504.0f ? -65504.0f : g.logit;
        p = clb_put16(p, g.expert == UINT32_MAX ? UINT16_MAX : (uint16_t)g.expert);
        p = clb_put16(p, g.expert == UINT32_MAX ? 0 : colibri_f32_f16(v));
    }
    CLB_TRY(write_out(w, (size_t)(CLB_TRACE_RECORD + size), err));
    w->n_passes++;
    w->n_rows += pass->n_rows;
    return COLIBRI_OK;
}

static int write_tail(clb_trace_writer *w, const clb_trace_rates *rates, clb_error *err)
{
    CLB_TRY(room(w, 128, err));
    if (rates) {
        const double v[] = {rates->decode_layer_ns,   rates->decode_expert_ns, rates->prefill_layer_ns,
                            rates->prefill_expert_ns, rates->read_bytes_per_s, rates->read_latency_ns};
        uint8_t *p = clb_put32(clb_put32(w->buf, CLB_TAG_RATES), sizeof v);
        for (size_t i = 0; i < sizeof v / sizeof *v; i++)
            p = clb_put_f64(p, v[i]);
        CLB_TRY(write_out(w, (size_t)(p - w->buf), err));
    }
    uint8_t *const p = clb_put32(clb_put32(w->buf, CLB_TAG_END), 24);
    clb_put64(clb_put64(clb_put64(p, w->n_units), w->n_passes), w->n_rows);
    CLB_TRY(write_out(w, CLB_TRACE_RECORD + 24, err));
    if (fsync(w->fd) && errno != EINVAL && errno != EROFS) /* a pipe or a device cannot */
        return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot write %s", w->path);
    return COLIBRI_OK;
}

int clb_trace_finish(clb_trace_writer *w, const clb_trace_rates *rates, clb_error *err)
{
    /* Passes before the first unit belong to one without a name, which the reader makes. */
    if (w->n_units == 0 && w->n_passes)
        w->n_units = 1;
    int rc = write_tail(w, rates, err);
    if (!rc && close(w->fd))
        rc = clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot write %s", w->path);
    else if (rc)
        close(w->fd);
    w->fd = -1;
    clb_trace_abandon(w);
    return rc;
}

void clb_trace_abandon(clb_trace_writer *w)
{
    if (!w)
        return;
    if (w->fd >= 0)
        close(w->fd);
    free(w->path);
    free(w->buf);
    free(w->seen);
    free(w);
}

uint64_t clb_trace_written(const clb_trace_writer *w)
{
    return w->written;
}

static int save_all(const clb_trace *t, clb_trace_writer *w, clb_error *err)
{
    for (uint64_t u = 0; u < t->n_units; u++) {
        CLB_TRY(clb_trace_unit_begin(w, t->units[u].label, err));
        for (uint64_t n = 0; n < t->units[u].n_passes; n++) {
            const uint64_t i = t->units[u].first_pass + n;
            const clb_trace_pass *const p = &t->passes[i];
            const uint64_t at = clb_trace_at(t, i, 0);
            const clb_trace_put put = {.phase = p->phase,
                                       .n_rows = p->n_rows,
                                       .n_sequences = p->n_sequences,
                                       .tokens = t->tokens + p->first_row,
                                       .sequences = t->sequences + p->first_row,
                                       .start_ns = p->start_ns,
                                       .took_ns = p->took_ns,
                                       .ids = t->ids + at,
                                       .gates = t->gates ? t->gates + at : NULL,
                                       .ahead = t->ahead ? t->ahead + clb_trace_ahead_at(t, i, 0) : NULL};
            CLB_TRY(clb_trace_pass_put(w, &put, err));
        }
    }
    return COLIBRI_OK;
}

int clb_trace_save(const clb_trace *t, const char *path, bool replace, clb_error *err)
{
    clb_new_file f;
    clb_trace_writer *w = NULL;
    int rc = clb_file_begin(&f, path, replace, err);
    if (!rc)
        rc = clb_trace_create(f.temp ? f.temp : path, true, &t->info, &w, err);
    if (!rc) {
        rc = save_all(t, w, err);
        if (rc)
            clb_trace_abandon(w);
        else
            rc = clb_trace_finish(w, &t->rates, err);
    }
    if (!rc)
        rc = clb_file_finish(&f, err);
    clb_file_drop(&f);
    return rc;
}
