/* Reads .clbt files. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "colibri/numerics.h"
#include "replay/trace_build.h"
#include "replay/trace_file.h"
#include "replay/trace_format.h"

#define FILE_MAX ((size_t)16 << 30)

int clb_trace_read_file(const char *path, clb_buf *out, clb_error *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return clb_fail_errno(err, errno == ENOENT ? COLIBRI_E_NOT_FOUND : COLIBRI_E_IO, errno, "cannot open %s", path);
    const int rc = clb_buf_read(out, fd, path, FILE_MAX, err);
    close(fd);
    return rc;
}

bool clb_trace_is(const void *data, size_t size)
{
    return size >= 4 && !memcmp(data, CLB_TRACE_MAGIC, 4);
}

static int read_text(char *out, const uint8_t *p, uint32_t n, clb_error *err)
{
    if (memchr(p, 0, n))
        return clb_fail(err, COLIBRI_E_FORMAT, "trace: the model's name is not printable text");
    memcpy(out, p, n);
    out[n] = '\0';
    return COLIBRI_OK;
}

static int read_header(const uint8_t *p, size_t size, clb_trace_builder *b, size_t *header, clb_error *err)
{
    if (!clb_trace_is(p, size))
        return clb_fail(err, COLIBRI_E_FORMAT, "this is not a Colibri trace (it does not begin with CLBT)");
    if (size < CLB_TRACE_HEAD_FIXED)
        return clb_fail(err, COLIBRI_E_FORMAT, "the trace ends inside its header");
    const uint32_t version = clb_get32(p + 4), total = clb_get32(p + 8);
    if (version != CLB_TRACE_VERSION)
        return clb_fail(err, COLIBRI_E_UNSUPPORTED, "trace of version %u; this program reads version %u", version,
                        CLB_TRACE_VERSION);
    clb_trace_info info = {.n_layers = clb_get32(p + 12),
                           .n_experts = clb_get32(p + 16),
                           .top_k = clb_get32(p + 20),
                           .gates = (enum clb_trace_gates)clb_get32(p + 24),
                           .ahead_layers = clb_get32(p + 28),
                           .ahead_top = clb_get32(p + 32)};
    const uint32_t n_model = clb_get32(p + 36), n_arch = clb_get32(p + 40);
    if (n_model >= CLB_TRACE_NAME_MAX || n_arch >= CLB_TRACE_NAME_MAX || info.n_layers > CLB_TRACE_LAYERS_MAX)
        return clb_fail(err, COLIBRI_E_FORMAT, "trace: a length in the header is out of range");
    const size_t need = CLB_TRACE_HEAD_FIXED + (size_t)info.n_layers * 8 + n_model + n_arch;
    if (total != need)
        return clb_fail(err, COLIBRI_E_FORMAT, "trace: the header says %u bytes, its parts have %zu", total, need);
    if (size < need)
        return clb_fail(err, COLIBRI_E_FORMAT, "the trace ends inside its header");
    const uint8_t *const names = p + CLB_TRACE_HEAD_FIXED + (size_t)info.n_layers * 8;
    CLB_TRY(read_text(info.model, names, n_model, err));
    CLB_TRY(read_text(info.arch, names + n_model, n_arch, err));
    CLB_TRY(clb_trace_builder_open(b, &info, COLIBRI_E_FORMAT, err));
    for (uint32_t l = 0; l < info.n_layers; l++) {
        const uint64_t bytes = clb_get64(p + CLB_TRACE_HEAD_FIXED + (size_t)l * 8);
        if (bytes > CLB_TRACE_BYTES_MAX)
            return clb_fail(err, COLIBRI_E_FORMAT, "trace: experts of %llu bytes in layer %u",
                            (unsigned long long)bytes, l);
        b->trace->info.expert_bytes[l] = bytes;
    }
    *header = need;
    return COLIBRI_OK;
}

/* One pass's arrays, reused. */
struct scratch {
    uint32_t *tokens, *sequences, *ids;
    float *gates;
    clb_trace_guess *ahead;
    uint64_t rows; /* there is room for */
};

static void scratch_free(struct scratch *s)
{
    free(s->tokens);
    free(s->sequences);
    free(s->ids);
    free(s->gates);
    free(s->ahead);
    *s = (struct scratch){0};
}

static int scratch_room(struct scratch *s, const clb_trace_info *info, uint32_t rows, clb_error *err)
{
    if (rows <= s->rows)
        return COLIBRI_OK;
    scratch_free(s);
    const size_t choices = (size_t)rows * info->n_layers * info->top_k;
    const size_t guesses = (size_t)rows * info->n_layers * info->ahead_layers * info->ahead_top;
    s->tokens = malloc(rows * sizeof *s->tokens);
    s->sequences = malloc(rows * sizeof *s->sequences);
    s->ids = malloc(choices * sizeof *s->ids);
    s->gates = malloc(choices * sizeof *s->gates);
    s->ahead = malloc((guesses + 1) * sizeof *s->ahead);
    if (!s->tokens || !s->sequences || !s->ids || !s->gates || !s->ahead)
        return CLB_NOMEM(err, "the trace");
    s->rows = rows;
    return COLIBRI_OK;
}

static int read_pass(clb_trace_builder *b, struct scratch *s, const uint8_t *p, uint32_t size, clb_error *err)
{
    const clb_trace_info *const info = &b->trace->info;
    const unsigned long long number = (unsigned long long)b->trace->n_passes;
    if (size < CLB_TRACE_PASS_FIXED)
        return clb_fail(err, COLIBRI_E_FORMAT, "pass %llu: its record has %u bytes", number, size);
    clb_trace_put put = {.phase = clb_get32(p),
                         .n_rows = clb_get32(p + 4),
                         .n_sequences = clb_get32(p + 8),
                         .start_ns = clb_get64(p + 16),
                         .took_ns = clb_get64(p + 24)};
    if (clb_get32(p + 12))
        return clb_fail(err, COLIBRI_E_FORMAT, "pass %llu: a reserved field is not 0", number);
    if (put.n_rows > CLB_TRACE_ROWS_MAX || size - CLB_TRACE_PASS_FIXED != put.n_rows * clb_trace_row_bytes(info))
        return clb_fail(err, COLIBRI_E_FORMAT, "pass %llu: %u rows do not take %u bytes", number, put.n_rows, size);
    CLB_TRY(scratch_room(s, info, put.n_rows, err));
    const uint8_t *at = p + CLB_TRACE_PASS_FIXED;
    for (uint32_t r = 0; r < put.n_rows; r++, at += 8) {
        s->tokens[r] = clb_get32(at);
        s->sequences[r] = clb_get32(at + 4);
    }
    const uint64_t choices = (uint64_t)put.n_rows * info->n_layers * info->top_k;
    const uint64_t guesses = (uint64_t)put.n_rows * info->n_layers * info->ahead_layers * info->ahead_top;
    const bool wide = clb_trace_id_bytes(info) == 2;
    for (uint64_t i = 0; i < choices; i++)
        s->ids[i] = wide ? clb_get16(at + 2 * i) : at[i];
    at += choices << wide;
    for (uint64_t i = 0; i < choices && info->gates; i++)
        s->gates[i] = info->gates == CLB_GATES_F32 ? clb_get_f32(at + 4 * i) : colibri_f16_f32(clb_get16(at + 2 * i));
    at += choices * clb_trace_gate_bytes(info);
    for (uint64_t i = 0; i < guesses; i++) {
        const uint16_t id = clb_get16(at + 4 * i);
        s->ahead[i] = id == UINT16_MAX ? (clb_trace_guess){UINT32_MAX, -INFINITY}
                                       : (clb_trace_guess){id, colibri_f16_f32(clb_get16(at + 4 * i + 2))};
    }
    put.tokens = s->tokens;
    put.sequences = s->sequences;
    put.ids = s->ids;
    put.gates = info->gates ? s->gates : NULL;
    put.ahead = guesses ? s->ahead : NULL;
    return clb_trace_builder_pass(b, &put, err);
}

static int read_rates(clb_trace *t, const uint8_t *p, uint32_t size, clb_error *err)
{
    double v[6];
    if (size != sizeof v)
        return clb_fail(err, COLIBRI_E_FORMAT, "the record of rates has %u bytes", size);
    for (size_t i = 0; i < 6; i++) {
        v[i] = clb_get_f64(p + 8 * i);
        if (!(v[i] >= 0 && v[i] <= 1e18))
            return clb_fail(err, COLIBRI_E_FORMAT, "rate %zu is out of range", i);
    }
    t->rates = (clb_trace_rates){v[0], v[1], v[2], v[3], v[4], v[5]};
    return COLIBRI_OK;
}

static int read_end(const clb_trace *t, const uint8_t *p, uint32_t size, clb_error *err)
{
    if (size != 24)
        return clb_fail(err, COLIBRI_E_FORMAT, "the end record has %u bytes", size);
    if (clb_get64(p) != t->n_units || clb_get64(p + 8) != t->n_passes || clb_get64(p + 16) != t->n_rows)
        return clb_fail(err, COLIBRI_E_FORMAT, "the end record counts %llu passes, there are %llu",
                        (unsigned long long)clb_get64(p + 8), (unsigned long long)t->n_passes);
    return COLIBRI_OK;
}

static int read_records(clb_trace_builder *b, struct scratch *s, const uint8_t *p, size_t size, clb_error *err)
{
    size_t at = 0;
    b->trace->ends_early = true;
    while (size - at >= CLB_TRACE_RECORD) {
        const uint32_t tag = clb_get32(p + at), n = clb_get32(p + at + 4);
        if (tag != CLB_TAG_UNIT && tag != CLB_TAG_PASS && tag != CLB_TAG_RATES && tag != CLB_TAG_END)
            return clb_fail(err, COLIBRI_E_FORMAT, "unknown record at byte %zu behind the header", at);
        at += CLB_TRACE_RECORD;
        if (n > size - at)
            return COLIBRI_OK;
        if (tag == CLB_TAG_UNIT)
            CLB_TRY(clb_trace_builder_unit(b, (const char *)p + at, n, err));
        else if (tag == CLB_TAG_PASS)
            CLB_TRY(read_pass(b, s, p + at, n, err));
        else if (tag == CLB_TAG_RATES)
            CLB_TRY(read_rates(b->trace, p + at, n, err));
        else
            CLB_TRY(read_end(b->trace, p + at, n, err));
        at += n;
        if (tag == CLB_TAG_END) {
            b->trace->ends_early = false;
            return at == size ? COLIBRI_OK
                              : clb_fail(err, COLIBRI_E_FORMAT, "%zu bytes too many after the end record", size - at);
        }
    }
    return COLIBRI_OK;
}

int clb_trace_parse(const void *data, size_t size, clb_trace **out, clb_error *err)
{
    clb_trace_builder b = {0};
    struct scratch s = {0};
    size_t header = 0;
    *out = NULL;
    int rc = read_header(data, size, &b, &header, err);
    if (!rc)
        rc = read_records(&b, &s, (const uint8_t *)data + header, size - header, err);
    if (!rc)
        *out = clb_trace_builder_done(&b);
    scratch_free(&s);
    clb_trace_builder_close(&b);
    return rc;
}

int clb_trace_open(const char *path, clb_trace **out, clb_error *err)
{
    clb_buf data = {0};
    *out = NULL;
    int rc = clb_trace_read_file(path, &data, err);
    if (!rc && clb_trace_parse(data.data, data.n, out, err))
        rc = clb_context(err, "%s", path);
    clb_buf_free(&data);
    return rc;
}
