/* Traces of other programs: TRC1, oracleGeneral; and what a file is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "replay/bytes.h"
#include "replay/trace_build.h"
#include "replay/trace_file.h"
#include "replay/trace_text.h"

static const char *const names[] = {"clbt", "csv", "jsonl", "oracleGeneral", "trc1"};
#define N_FORMATS (sizeof names / sizeof *names)

int clb_trace_format_of(const char *name)
{
    for (size_t i = 0; i < N_FORMATS; i++)
        if (!strcasecmp(name, names[i]))
            return (int)i;
    return -1;
}

const char *clb_trace_format_name(enum clb_trace_format format)
{
    return names[format];
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcasecmp(text + n - m, end);
}

int clb_trace_guess_format(const char *path, const void *data, size_t size)
{
    if (clb_trace_is(data, size))
        return CLB_TRACE_CLBT;
    if (size >= 4 && !memcmp(data, "TRC1", 4))
        return CLB_TRACE_TRC1;
    if (ends_with(path, ".oracleGeneral") || ends_with(path, ".oracleGeneral.bin"))
        return CLB_TRACE_ORACLE;
    if (ends_with(path, ".csv"))
        return CLB_TRACE_CSV;
    if (ends_with(path, ".jsonl") || ends_with(path, ".ndjson"))
        return CLB_TRACE_JSONL;
    return -1;
}

static void name_model(clb_trace_info *info, const clb_trace_import_options *o, const char *otherwise)
{
    const char *const text = o->label ? o->label : otherwise;
    const size_t n = strnlen(text, sizeof info->model - 1);
    for (size_t i = 0; i < n; i++)
        info->model[i] = (unsigned char)text[i] < 32 || text[i] == 127 ? '?' : text[i];
}

static void fill_bytes(clb_trace *t, uint64_t bytes)
{
    for (uint32_t l = 0; l < t->info.n_layers; l++)
        t->info.expert_bytes[l] = bytes;
}

/* ---- TRC1 ----------------------------------------------------------------------------------------------------------
 */

/* "TRC1", i32 n_tokens, n_layer, top_k, n_expert, window; i32 token[n]; u8 expert[n][layer][k]; f32
 * weight[n][layer][k]. Windows are contexts of their own: units here. Files of one topic have windows labelled alike.
 */
#define TRC1_HEAD 24u

struct trc1 {
    uint32_t n, n_layers, top_k, n_experts, window;
    const uint8_t *tokens, *experts, *weights;
};

static int trc1_header(const uint8_t *p, size_t size, struct trc1 *h, clb_error *err)
{
    if (size < TRC1_HEAD || memcmp(p, "TRC1", 4) != 0)
        return clb_fail(err, COLIBRI_E_FORMAT, "this is not a TRC1 trace");
    *h = (struct trc1){
        clb_get32(p + 4), clb_get32(p + 8), clb_get32(p + 12), clb_get32(p + 16), clb_get32(p + 20), 0, 0, 0};
    if (h->n == 0 || h->n > INT32_MAX || h->n_layers == 0 || h->n_layers > 4096 || h->top_k == 0 || h->n_experts == 0 ||
        h->n_experts > 256 || h->top_k > h->n_experts || h->window == 0 || h->window > INT32_MAX)
        return clb_fail(err, COLIBRI_E_FORMAT, "TRC1: a number in the header is out of range");
    const uint64_t choices = (uint64_t)h->n_layers * h->top_k; /* <= 2^20 */
    if (size != TRC1_HEAD + h->n * (4 + 5 * choices))
        return clb_fail(err, COLIBRI_E_FORMAT, "TRC1: %u tokens do not take %zu bytes", h->n, size);
    h->tokens = p + TRC1_HEAD;
    h->experts = h->tokens + (size_t)h->n * 4;
    h->weights = h->experts + (size_t)h->n * choices;
    return COLIBRI_OK;
}

struct pass_buffers {
    uint32_t *tokens, *ids;
    float *gates;
};

/* Tokens [first, first + n) as one pass. */
static int trc1_pass(clb_trace_builder *b, const struct trc1 *h, const struct pass_buffers *s, uint32_t first,
                     uint32_t n, uint32_t phase, clb_error *err)
{
    const size_t k = h->top_k;
    for (uint32_t r = 0; r < n; r++) {
        s->tokens[r] = clb_get32(h->tokens + 4 * (size_t)(first + r));
        for (uint32_t l = 0; l < h->n_layers; l++)
            for (size_t i = 0; i < k; i++) {
                const size_t from = ((size_t)(first + r) * h->n_layers + l) * k + i, to = ((size_t)l * n + r) * k + i;
                s->ids[to] = h->experts[from];
                s->gates[to] = clb_get_f32(h->weights + 4 * from);
            }
    }
    const clb_trace_put put = {
        .phase = phase, .n_rows = n, .n_sequences = 1, .tokens = s->tokens, .ids = s->ids, .gates = s->gates};
    return clb_trace_builder_pass(b, &put, err);
}

static int trc1_windows(clb_trace_builder *b, const struct trc1 *h, const struct pass_buffers *s, uint32_t prefill,
                        uint32_t chunk, const char *label, clb_error *err)
{
    for (uint32_t w = 0; w < h->n; w += h->window) {
        const uint32_t end = h->n - w < h->window ? h->n : w + h->window;
        char text[CLB_TRACE_NAME_MAX];
        const int n = snprintf(text, sizeof text, "%.200s window %u", label, w / h->window);
        CLB_TRY(clb_trace_builder_unit(b, text, (size_t)n, err));
        uint32_t at = w;
        const uint32_t prompt_end = end - w < prefill ? end : w + prefill;
        while (at < prompt_end) {
            const uint32_t rows = prompt_end - at < chunk ? prompt_end - at : chunk;
            CLB_TRY(trc1_pass(b, h, s, at, rows, COLIBRI_PHASE_PREFILL, err));
            at += rows;
        }
        for (; at < end; at++)
            CLB_TRY(trc1_pass(b, h, s, at, 1, COLIBRI_PHASE_DECODE, err));
        if (h->n - w <= h->window)
            break; /* w + window may be beyond 2^32 */
    }
    return COLIBRI_OK;
}

static int import_trc1(const uint8_t *p, size_t size, const clb_trace_import_options *o, clb_trace **out,
                       clb_error *err)
{
    struct trc1 h;
    CLB_TRY(trc1_header(p, size, &h, err));
    const uint32_t prefill = o->prefill ? o->prefill : 128;
    uint32_t chunk = o->prefill_chunk ? o->prefill_chunk : CLB_TRACE_ROWS_MAX;
    chunk = chunk > CLB_TRACE_ROWS_MAX ? CLB_TRACE_ROWS_MAX : chunk;
    uint32_t rows = chunk < prefill ? chunk : prefill;
    rows = rows < h.n ? rows : h.n;
    const size_t choices = (size_t)rows * h.n_layers * h.top_k;
    clb_trace_info info = {.n_layers = h.n_layers, .n_experts = h.n_experts, .top_k = h.top_k, .gates = CLB_GATES_F32};
    name_model(&info, o, "TRC1");
    clb_trace_builder b = {0};
    struct pass_buffers s = {malloc(rows * sizeof *s.tokens), malloc(choices * sizeof *s.ids),
                             malloc(choices * sizeof *s.gates)};
    int rc = s.tokens && s.ids && s.gates ? COLIBRI_OK : CLB_NOMEM(err, "the trace");
    if (!rc)
        rc = clb_trace_builder_open(&b, &info, COLIBRI_E_FORMAT, err);
    if (!rc)
        rc = trc1_windows(&b, &h, &s, prefill, chunk, info.model, err);
    if (!rc) {
        fill_bytes(b.trace, o->expert_bytes);
        *out = clb_trace_builder_done(&b);
    }
    clb_trace_builder_close(&b);
    free(s.tokens);
    free(s.ids);
    free(s.gates);
    return rc;
}

/* ---- oracleGeneral -------------------------------------------------------------------------------------------------
 */

#define ORACLE_RECORD 24u

/* What Colibri exported: the id is layer * n_experts + expert, the time counts passes, and each layer's union comes in
 * one piece. Which row asked for what is lost; rows are made up so that the union is right: top_k at a time, the last
 * row of a layer, and layers with a smaller union, being filled up with experts of the same union. */
struct oracle {
    const uint8_t *p;
    uint64_t n;
    uint32_t n_layers, n_experts, top_k;
    uint32_t *ids; /* [n_layers][n_experts]: unions of one pass */
    uint32_t *count;
    uint32_t *rows;
};

static int oracle_collect(struct oracle *o, uint64_t *at, clb_error *err)
{
    const uint32_t time = clb_get32(o->p + *at * ORACLE_RECORD);
    memset(o->count, 0, o->n_layers * sizeof *o->count);
    for (; *at < o->n && clb_get32(o->p + *at * ORACLE_RECORD) == time; ++*at) {
        const uint64_t id = clb_get64(o->p + *at * ORACLE_RECORD + 4), layer = id / o->n_experts;
        if (layer >= o->n_layers)
            return clb_fail(err, COLIBRI_E_FORMAT,
                            "oracleGeneral: request %llu is for object %llu; %u layers of %u experts "
                            "have fewer",
                            (unsigned long long)*at, (unsigned long long)id, o->n_layers, o->n_experts);
        uint32_t *const ids = o->ids + layer * o->n_experts;
        const uint32_t expert = (uint32_t)(id % o->n_experts);
        for (uint32_t i = 0; i < o->count[layer]; i++)
            if (ids[i] == expert)
                return clb_fail(err, COLIBRI_E_FORMAT, "oracleGeneral: request %llu repeats an expert of the same pass",
                                (unsigned long long)*at);
        ids[o->count[layer]++] = expert;
    }
    return COLIBRI_OK;
}

/* Layers whose experts have other sizes have slots of their own, so each takes the size of its own first request. */
static void oracle_bytes(clb_trace *t, const struct oracle *o, uint64_t given)
{
    fill_bytes(t, given);
    for (uint64_t i = o->n; !given && i-- > 0;)
        t->info.expert_bytes[clb_get64(o->p + i * ORACLE_RECORD + 4) / o->n_experts] =
            clb_get32(o->p + i * ORACLE_RECORD + 12);
}

static int oracle_pass(clb_trace_builder *b, struct oracle *o, clb_error *err)
{
    const uint32_t k = o->top_k;
    uint32_t n_rows = 1;
    for (uint32_t l = 0; l < o->n_layers; l++) {
        const uint32_t need = (o->count[l] + k - 1) / k;
        if (o->count[l] < k)
            return clb_fail(err, COLIBRI_E_FORMAT,
                            "oracleGeneral: a pass asks for %u experts of layer %u; --top-k says %u", o->count[l], l,
                            k);
        n_rows = need > n_rows ? need : n_rows;
    }
    uint32_t *const rows = malloc((size_t)n_rows * o->n_layers * k * sizeof *rows);
    if (!rows)
        return CLB_NOMEM(err, "the trace");
    for (uint32_t l = 0; l < o->n_layers; l++)
        for (uint32_t i = 0; i < n_rows * k; i++)
            rows[(size_t)l * n_rows * k + i] = o->ids[(size_t)l * o->n_experts + i % o->count[l]];
    const clb_trace_put put = {.phase = n_rows > 1 ? COLIBRI_PHASE_PREFILL : COLIBRI_PHASE_DECODE,
                               .n_rows = n_rows,
                               .n_sequences = 1,
                               .ids = rows};
    const int rc = clb_trace_builder_pass(b, &put, err);
    free(rows);
    return rc;
}

/* A trace of something else: every request is a pass of one row in a model of one layer, objects numbered as they come.
 */
struct object_map {
    uint64_t *keys;
    uint32_t *values;
    uint32_t cap, n;
};

static uint32_t map_object(struct object_map *m, uint64_t id)
{
    uint32_t at = (uint32_t)((id * UINT64_C(0x9e3779b97f4a7c15)) >> 40) % m->cap;
    while (m->values[at] && m->keys[at] != id)
        at = (at + 1) % m->cap;
    if (!m->values[at]) {
        if (m->n == CLB_TRACE_EXPERTS_MAX)
            return UINT32_MAX;
        m->keys[at] = id;
        m->values[at] = ++m->n;
    }
    return m->values[at] - 1;
}

static int import_objects(const uint8_t *p, uint64_t n, const clb_trace_import_options *o, clb_trace **out,
                          clb_error *err)
{
    struct object_map m = {.cap = 1u << 18};
    m.keys = calloc(m.cap, sizeof *m.keys);
    m.values = calloc(m.cap, sizeof *m.values);
    int rc = m.keys && m.values ? COLIBRI_OK : CLB_NOMEM(err, "the trace");
    for (uint64_t i = 0; i < n && !rc; i++)
        if (map_object(&m, clb_get64(p + i * ORACLE_RECORD + 4)) == UINT32_MAX)
            rc = clb_fail(err, COLIBRI_E_LIMIT, "oracleGeneral: more than %u different objects", CLB_TRACE_EXPERTS_MAX);
    clb_trace_info info = {.n_layers = 1, .n_experts = m.n, .top_k = 1};
    name_model(&info, o, "oracleGeneral");
    clb_trace_builder b = {0};
    if (!rc)
        rc = clb_trace_builder_open(&b, &info, COLIBRI_E_FORMAT, err);
    if (!rc)
        rc = clb_trace_builder_unit(&b, info.model, strlen(info.model), err);
    for (uint64_t i = 0; i < n && !rc; i++) {
        const uint32_t id = map_object(&m, clb_get64(p + i * ORACLE_RECORD + 4));
        const clb_trace_put put = {.phase = COLIBRI_PHASE_DECODE, .n_rows = 1, .n_sequences = 1, .ids = &id};
        rc = clb_trace_builder_pass(&b, &put, err);
    }
    if (!rc) {
        fill_bytes(b.trace, o->expert_bytes ? o->expert_bytes : clb_get32(p + 12));
        *out = clb_trace_builder_done(&b);
    }
    clb_trace_builder_close(&b);
    free(m.keys);
    free(m.values);
    return rc;
}

static int import_oracle(const uint8_t *p, size_t size, const clb_trace_import_options *o, clb_trace **out,
                         clb_error *err)
{
    if (size == 0 || size % ORACLE_RECORD)
        return clb_fail(err, COLIBRI_E_FORMAT,
                        "oracleGeneral: %zu bytes are not a whole number of %u-byte records (a "
                        "compressed file must be unpacked first)",
                        size, ORACLE_RECORD);
    const uint64_t n = size / ORACLE_RECORD;
    if (!o->n_experts && !o->n_layers && !o->top_k)
        return import_objects(p, n, o, out, err);
    if (!o->n_experts || !o->n_layers || !o->top_k)
        return clb_fail(err, COLIBRI_E_USAGE,
                        "oracleGeneral: give --layers, --experts and --top-k together, or none of "
                        "them for a trace of single objects");
    clb_trace_info info = {.n_layers = o->n_layers, .n_experts = o->n_experts, .top_k = o->top_k};
    name_model(&info, o, "oracleGeneral");
    struct oracle s = {.p = p, .n = n, .n_layers = o->n_layers, .n_experts = o->n_experts, .top_k = o->top_k};
    clb_trace_builder b = {0};
    int rc = clb_trace_builder_open(&b, &info, COLIBRI_E_USAGE, err);
    b.status = COLIBRI_E_FORMAT;
    if (!rc) {
        s.ids = malloc((size_t)s.n_layers * s.n_experts * sizeof *s.ids);
        s.count = calloc(s.n_layers, sizeof *s.count);
        rc = s.ids && s.count ? COLIBRI_OK : CLB_NOMEM(err, "the trace");
    }
    if (!rc)
        rc = clb_trace_builder_unit(&b, info.model, strlen(info.model), err);
    for (uint64_t at = 0; at < n && !rc;) {
        rc = oracle_collect(&s, &at, err);
        if (!rc)
            rc = oracle_pass(&b, &s, err);
    }
    if (!rc) {
        oracle_bytes(b.trace, &s, o->expert_bytes);
        *out = clb_trace_builder_done(&b);
    }
    clb_trace_builder_close(&b);
    free(s.ids);
    free(s.count);
    return rc;
}

/* ---- all -----------------------------------------------------------------------------------------------------------
 */

int clb_trace_import(const void *data, size_t size, enum clb_trace_format format,
                     const clb_trace_import_options *options, clb_trace **out, clb_error *err)
{
    const clb_trace_import_options none = {0}, *const o = options ? options : &none;
    *out = NULL;
    switch (format) {
    case CLB_TRACE_CLBT:
        return clb_trace_parse(data, size, out, err);
    case CLB_TRACE_TRC1:
        return import_trc1(data, size, o, out, err);
    case CLB_TRACE_ORACLE:
        return import_oracle(data, size, o, out, err);
    case CLB_TRACE_CSV:
    case CLB_TRACE_JSONL:
        return clb_trace_import_text(data, size, format == CLB_TRACE_JSONL, o, out, err);
    }
    return clb_fail(err, COLIBRI_E_USAGE, "unknown trace format");
}

int clb_trace_import_file(const char *path, int format, const clb_trace_import_options *options, clb_trace **out,
                          clb_error *err)
{
    clb_buf data = {0};
    *out = NULL;
    int rc = clb_trace_read_file(path, &data, err);
    if (!rc && format < 0)
        format = clb_trace_guess_format(path, data.data, data.n);
    if (!rc && format < 0)
        rc = clb_fail(err, COLIBRI_E_FORMAT, "%s: cannot tell what kind of trace this is; say it with --format", path);
    else if (!rc && clb_trace_import(data.data, data.n, (enum clb_trace_format)format, options, out, err))
        rc = clb_context(err, "%s", path);
    clb_buf_free(&data);
    return rc;
}
