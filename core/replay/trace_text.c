/* CSV and JSONL in: lines become records, records become passes. */
#include "replay/trace_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "replay/scan.h"
#include "replay/trace_build.h"

struct record {
    uint64_t pass;
    uint32_t row, sequence, token, layer, phase;
    uint64_t label; /* in `labels` */
    uint64_t line;
};

struct records {
    struct record *r;
    uint64_t n, cap;
    uint32_t *ids;
    float *gates;
    uint64_t n_ids, cap_ids;
    clb_buf labels; /* NUL-separated; equal neighbours share one */
    uint64_t last_label;
    uint32_t top_k;
    bool has_gates, first;
    /* JSONL header */
    clb_trace_info info;
    uint64_t *bytes;
    uint32_t n_bytes;
};

static void records_free(struct records *s)
{
    free(s->r);
    free(s->ids);
    free(s->gates);
    free(s->bytes);
    clb_buf_free(&s->labels);
}

static int add_label(struct records *s, const char *label, uint64_t *at, clb_error *err)
{
    if (s->labels.n && !strcmp(s->labels.data + s->last_label, label)) {
        *at = s->last_label;
        return COLIBRI_OK;
    }
    *at = s->last_label = s->labels.n;
    return clb_buf_append(&s->labels, label, strlen(label) + 1, err);
}

static int room(struct records *s, uint32_t k, clb_error *err)
{
    if (s->n == s->cap) {
        const uint64_t cap = s->cap ? 2 * s->cap : 1024;
        struct record *const r = realloc(s->r, cap * sizeof *r);
        if (!r)
            return CLB_NOMEM(err, "the trace");
        s->r = r;
        s->cap = cap;
    }
    if (s->n_ids + k > s->cap_ids) {
        const uint64_t cap = (s->cap_ids ? 2 * s->cap_ids : 4096) + k;
        uint32_t *const ids = realloc(s->ids, cap * sizeof *ids);
        s->ids = ids ? ids : s->ids;
        float *const gates = realloc(s->gates, cap * sizeof *gates);
        s->gates = gates ? gates : s->gates;
        if (!ids || !gates)
            return CLB_NOMEM(err, "the trace");
        s->cap_ids = cap;
    }
    return COLIBRI_OK;
}

/* A line's values before they are stored. */
struct line {
    uint64_t number;
    char unit[CLB_TRACE_NAME_MAX];
    char phase[16];
    double pass, row, sequence, token, layer; /* NAN: absent */
    clb_numbers experts, gates;
};

static int whole(const struct line *l, const char *what, double v, double most, uint32_t absent, uint32_t *out,
                 clb_error *err)
{
    *out = absent;
    if (isnan(v))
        return absent == UINT32_MAX - 1
                   ? clb_fail(err, COLIBRI_E_FORMAT, "line %llu has no %s", (unsigned long long)l->number, what)
                   : COLIBRI_OK;
    if (!(v >= 0 && v <= most) || v != floor(v))
        return clb_fail(err, COLIBRI_E_FORMAT, "line %llu: %s %g is not a whole number from 0 to %.0f",
                        (unsigned long long)l->number, what, v, most);
    *out = (uint32_t)v;
    return COLIBRI_OK;
}

#define REQUIRED (UINT32_MAX - 1)

static int add_line(struct records *s, const struct line *l, clb_error *err)
{
    const unsigned long long number = l->number;
    const uint32_t k = (uint32_t)l->experts.n;
    if (k == 0 || k > CLB_TRACE_EXPERTS_MAX)
        return clb_fail(err, COLIBRI_E_FORMAT, "line %llu names %u experts", number, k);
    if (s->first) {
        s->top_k = k;
        s->has_gates = l->gates.n != 0;
        s->first = false;
    }
    if (k != s->top_k || l->gates.n != (s->has_gates ? k : 0))
        return clb_fail(err, COLIBRI_E_FORMAT,
                        "line %llu has %u experts and %zu weights; the lines before have %u and %u", number, k,
                        l->gates.n, s->top_k, s->has_gates ? s->top_k : 0);
    struct record r = {.line = l->number};
    if (!(l->pass >= 0 && l->pass <= 9e15) || l->pass != floor(l->pass))
        return clb_fail(err, COLIBRI_E_FORMAT, "line %llu: the pass is not a whole number", number);
    r.pass = (uint64_t)l->pass;
    CLB_TRY(whole(l, "row", l->row, CLB_TRACE_ROWS_MAX - 1, 0, &r.row, err));
    CLB_TRY(whole(l, "sequence", l->sequence, UINT32_MAX, 0, &r.sequence, err));
    CLB_TRY(whole(l, "token", l->token, UINT32_MAX, UINT32_MAX, &r.token, err));
    CLB_TRY(whole(l, "layer", l->layer, CLB_TRACE_LAYERS_MAX - 1, REQUIRED, &r.layer, err));
    r.phase = !strcmp(l->phase, "prefill")                ? COLIBRI_PHASE_PREFILL
              : !strcmp(l->phase, "verify")               ? COLIBRI_PHASE_VERIFY
              : !strcmp(l->phase, "decode") || !*l->phase ? COLIBRI_PHASE_DECODE
                                                          : UINT32_MAX;
    if (r.phase == UINT32_MAX)
        return clb_fail(err, COLIBRI_E_FORMAT, "line %llu: the phase is prefill, decode or verify", number);
    CLB_TRY(room(s, k, err));
    CLB_TRY(add_label(s, l->unit, &r.label, err));
    for (uint32_t i = 0; i < k; i++) {
        CLB_TRY(whole(l, "expert", l->experts.v[i], CLB_TRACE_EXPERTS_MAX - 1, REQUIRED, &s->ids[s->n_ids + i], err));
        s->gates[s->n_ids + i] = s->has_gates ? (float)l->gates.v[i] : 0.0f;
    }
    s->n_ids += k;
    s->r[s->n++] = r;
    return COLIBRI_OK;
}

/* ---- CSV ---- */

static int csv_line(clb_scan *c, struct line *l, clb_error *err)
{
    l->pass = l->row = l->sequence = l->token = l->layer = NAN;
    *l->phase = '\0';
    CLB_TRY(clb_scan_csv_text(c, l->unit, sizeof l->unit, err));
    CLB_TRY(clb_scan_csv_number(c, &l->pass, err));
    CLB_TRY(clb_scan_csv_text(c, l->phase, sizeof l->phase, err));
    CLB_TRY(clb_scan_csv_number(c, &l->row, err));
    CLB_TRY(clb_scan_csv_number(c, &l->sequence, err));
    CLB_TRY(clb_scan_csv_number(c, &l->token, err));
    CLB_TRY(clb_scan_csv_number(c, &l->layer, err));
    CLB_TRY(clb_scan_csv_list(c, &l->experts, err));
    CLB_TRY(clb_scan_csv_list(c, &l->gates, err));
    return c->at == c->end ? COLIBRI_OK : clb_fail(err, COLIBRI_E_FORMAT, "there are more than nine fields");
}

/* ---- JSONL: Colibri's own, or {"layer_idx", "token_idx", "selected_ids", "gate_weights"} as other loggers write ----
 */

static int json_numbers_u64(const clb_numbers *in, struct records *s, clb_error *err)
{
    free(s->bytes);
    s->bytes = calloc(in->n ? in->n : 1, sizeof *s->bytes);
    if (!s->bytes)
        return CLB_NOMEM(err, "the trace");
    for (size_t i = 0; i < in->n; i++)
        s->bytes[i] = in->v[i] >= 0 && in->v[i] < 9e15 ? (uint64_t)in->v[i] : 0;
    s->n_bytes = (uint32_t)in->n;
    return COLIBRI_OK;
}

static uint32_t small(double v)
{
    return v >= 0 && v <= CLB_TRACE_LAYERS_MAX ? (uint32_t)v : 0;
}

static int json_header_value(clb_scan *c, struct records *s, const char *key, clb_numbers *scratch, clb_error *err)
{
    double v = NAN;
    if (!strcmp(key, "model"))
        return clb_scan_json_text(c, s->info.model, sizeof s->info.model, err);
    if (!strcmp(key, "arch"))
        return clb_scan_json_text(c, s->info.arch, sizeof s->info.arch, err);
    if (!strcmp(key, "expert_bytes")) {
        CLB_TRY(clb_scan_json_list(c, scratch, err));
        return json_numbers_u64(scratch, s, err);
    }
    uint32_t *const out = !strcmp(key, "n_layers")    ? &s->info.n_layers
                          : !strcmp(key, "n_experts") ? &s->info.n_experts
                          : !strcmp(key, "top_k")     ? &s->info.top_k
                                                      : NULL;
    if (!out)
        return clb_scan_json_skip(c, err);
    CLB_TRY(clb_scan_json_number(c, &v, err));
    *out = small(v);
    return COLIBRI_OK;
}

static int json_line_value(clb_scan *c, struct line *l, const char *key, clb_error *err)
{
    static const struct {
        const char *key;
        size_t at;
    } numbers[] = {{"pass", offsetof(struct line, pass)},      {"token_idx", offsetof(struct line, pass)},
                   {"row", offsetof(struct line, row)},        {"sequence", offsetof(struct line, sequence)},
                   {"token", offsetof(struct line, token)},    {"layer", offsetof(struct line, layer)},
                   {"layer_idx", offsetof(struct line, layer)}};
    if (!strcmp(key, "unit"))
        return clb_scan_json_text(c, l->unit, sizeof l->unit, err);
    if (!strcmp(key, "phase"))
        return clb_scan_json_text(c, l->phase, sizeof l->phase, err);
    if (!strcmp(key, "experts") || !strcmp(key, "selected_ids"))
        return clb_scan_json_list(c, &l->experts, err);
    if (!strcmp(key, "gates") || !strcmp(key, "gate_weights"))
        return clb_scan_json_list(c, &l->gates, err);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(key, numbers[i].key))
            return clb_scan_json_number(c, (double *)(void *)((char *)l + numbers[i].at), err);
    return clb_scan_json_skip(c, err);
}

/* *header: the line was the header. */
static int json_line(clb_scan *c, struct records *s, struct line *l, bool *header, clb_error *err)
{
    char key[32];
    bool more, first = true;
    *header = false;
    l->pass = l->row = l->sequence = l->token = l->layer = NAN;
    l->experts.n = l->gates.n = 0;
    *l->phase = *l->unit = '\0';
    CLB_TRY(clb_scan_json_open(c, &more, err));
    while (more) {
        CLB_TRY(clb_scan_json_key(c, key, sizeof key, err));
        if (first && !strcmp(key, "colibri_trace")) {
            double version = NAN;
            *header = true;
            CLB_TRY(clb_scan_json_number(c, &version, err));
            if (!(version >= 1 && version <= CLB_TRACE_VERSION))
                return clb_fail(err, COLIBRI_E_UNSUPPORTED, "trace of version %g", version);
        } else if (*header) {
            CLB_TRY(json_header_value(c, s, key, &l->experts, err));
        } else {
            CLB_TRY(json_line_value(c, l, key, err));
        }
        first = false;
        CLB_TRY(clb_scan_json_next(c, &more, err));
    }
    return clb_scan_json_end(c, err);
}

/* ---- passes from records ---- */

struct assembly {
    uint32_t *tokens, *sequences, *ids;
    float *gates;
    uint8_t *have;
    uint64_t cap_rows;
};

static void assembly_free(struct assembly *a)
{
    free(a->tokens);
    free(a->sequences);
    free(a->ids);
    free(a->gates);
    free(a->have);
    *a = (struct assembly){0};
}

static int assembly_room(struct assembly *a, const clb_trace_info *info, uint64_t rows, clb_error *err)
{
    if (rows <= a->cap_rows)
        return COLIBRI_OK;
    assembly_free(a);
    const size_t choices = (size_t)rows * info->n_layers * info->top_k;
    a->tokens = malloc(rows * sizeof *a->tokens);
    a->sequences = malloc(rows * sizeof *a->sequences);
    a->ids = malloc(choices * sizeof *a->ids);
    a->gates = malloc(choices * sizeof *a->gates);
    a->have = malloc((size_t)rows * info->n_layers);
    if (!a->tokens || !a->sequences || !a->ids || !a->gates || !a->have)
        return CLB_NOMEM(err, "the trace");
    a->cap_rows = rows;
    return COLIBRI_OK;
}

static uint32_t count_sequences(uint32_t *scratch, const uint32_t *sequences, uint32_t n)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = 0;
        while (j < count && scratch[j] != sequences[i])
            j++;
        if (j == count)
            scratch[count++] = sequences[i];
        if (count > 4096)
            return 4096 < n ? 4096 : n; /* nobody runs that many; do not spend a square on a hostile file */
    }
    return count;
}

/* Records [first, end) are one pass. */
static int assemble(clb_trace_builder *b, struct assembly *a, const struct records *s, uint64_t first, uint64_t end,
                    clb_error *err)
{
    const clb_trace_info *const info = &b->trace->info;
    const uint32_t k = info->top_k;
    const uint64_t n = end - first;
    const unsigned long long line = s->r[first].line;
    if (n % info->n_layers || n / info->n_layers > CLB_TRACE_ROWS_MAX)
        return clb_fail(err, COLIBRI_E_FORMAT,
                        "line %llu: the pass has %llu lines, not one per row and layer (%u layers)", line,
                        (unsigned long long)n, info->n_layers);
    const uint32_t rows = (uint32_t)(n / info->n_layers);
    CLB_TRY(assembly_room(a, info, rows, err));
    memset(a->have, 0, n);
    for (uint64_t i = first; i < end; i++) {
        const struct record *const r = &s->r[i];
        if (r->row >= rows || r->layer >= info->n_layers || a->have[(uint64_t)r->layer * rows + r->row])
            return clb_fail(err, COLIBRI_E_FORMAT,
                            "line %llu: row %u of layer %u is twice in its pass, or others are missing",
                            (unsigned long long)r->line, r->row, r->layer);
        const uint64_t at = (uint64_t)r->layer * rows + r->row;
        a->have[at] = 1;
        a->tokens[r->row] = r->token;
        a->sequences[r->row] = r->sequence;
        memcpy(a->ids + at * k, s->ids + i * k, k * sizeof *a->ids);
        memcpy(a->gates + at * k, s->gates + i * k, k * sizeof *a->gates);
    }
    uint32_t *const scratch = malloc(((size_t)rows + 1) * sizeof *scratch);
    if (!scratch)
        return CLB_NOMEM(err, "the trace");
    const clb_trace_put put = {.phase = s->r[first].phase,
                               .n_rows = rows,
                               .n_sequences = count_sequences(scratch, a->sequences, rows),
                               .tokens = a->tokens,
                               .sequences = a->sequences,
                               .ids = a->ids,
                               .gates = s->has_gates ? a->gates : NULL};
    free(scratch);
    if (clb_trace_builder_pass(b, &put, err))
        return clb_context(err, "line %llu", line);
    return COLIBRI_OK;
}

static int build(struct records *s, const clb_trace_import_options *o, clb_trace **out, clb_error *err)
{
    if (s->n == 0)
        return clb_fail(err, COLIBRI_E_FORMAT, "the trace has no rows");
    clb_trace_info info = s->info;
    uint32_t layers = 0, experts = 0;
    for (uint64_t i = 0; i < s->n; i++)
        layers = s->r[i].layer >= layers ? s->r[i].layer + 1 : layers;
    for (uint64_t i = 0; i < s->n_ids; i++)
        experts = s->ids[i] >= experts ? s->ids[i] + 1 : experts;
    info.n_layers = o->n_layers ? o->n_layers : info.n_layers ? info.n_layers : layers;
    info.n_experts = o->n_experts ? o->n_experts : info.n_experts ? info.n_experts : experts;
    info.top_k = s->top_k;
    info.gates = s->has_gates ? CLB_GATES_F32 : CLB_GATES_NONE;
    if (o->label || !*info.model) {
        const char *const text = o->label ? o->label : "imported";
        memset(info.model, 0, sizeof info.model);
        memcpy(info.model, text, strnlen(text, sizeof info.model - 1));
    }
    if (s->n / info.n_layers == 0)
        return clb_fail(err, COLIBRI_E_FORMAT, "the trace has fewer lines than layers");
    clb_trace_builder b = {0};
    struct assembly a = {0};
    int rc = clb_trace_builder_open(&b, &info, COLIBRI_E_FORMAT, err);
    for (uint32_t l = 0; !rc && l < info.n_layers; l++)
        b.trace->info.expert_bytes[l] = o->expert_bytes ? o->expert_bytes : l < s->n_bytes ? s->bytes[l] : 0;
    uint64_t label = UINT64_MAX;
    for (uint64_t i = 0, end; i < s->n && !rc; i = end) {
        for (end = i + 1; end < s->n && s->r[end].pass == s->r[i].pass && s->r[end].label == s->r[i].label; end++)
            ;
        if (s->r[i].label != label) {
            label = s->r[i].label;
            const char *const text = s->labels.data + label;
            rc = clb_trace_builder_unit(&b, text, strlen(text), err);
        }
        if (!rc)
            rc = assemble(&b, &a, s, i, end, err);
    }
    if (!rc)
        *out = clb_trace_builder_done(&b);
    clb_trace_builder_close(&b);
    assembly_free(&a);
    return rc;
}

static int read_lines(const char *data, size_t size, bool jsonl, struct records *s, struct line *l, clb_error *err)
{
    const char *const end = data + size;
    for (const char *at = data; at < end;) {
        const char *const nl = memchr(at, '\n', (size_t)(end - at));
        const char *stop = nl ? nl : end;
        const char *const next = nl ? nl + 1 : end;
        l->number++;
        if (stop > at && stop[-1] == '\r')
            stop--;
        clb_scan c = {at, stop};
        at = next;
        if (c.at == c.end)
            continue;
        const size_t n_head = sizeof CLB_TRACE_CSV_HEAD - 1;
        if (!jsonl && l->number == 1) {
            if ((size_t)(c.end - c.at) != n_head || memcmp(c.at, CLB_TRACE_CSV_HEAD, n_head) != 0)
                return clb_fail(err, COLIBRI_E_FORMAT, "line 1: the columns must be " CLB_TRACE_CSV_HEAD);
            continue;
        }
        bool header = false;
        if (jsonl ? json_line(&c, s, l, &header, err) : csv_line(&c, l, err))
            return clb_context(err, "line %llu", (unsigned long long)l->number);
        if (header && s->n)
            return clb_fail(err, COLIBRI_E_FORMAT, "line %llu: a second header", (unsigned long long)l->number);
        if (!header)
            CLB_TRY(add_line(s, l, err));
    }
    return COLIBRI_OK;
}

int clb_trace_import_text(const char *data, size_t size, bool jsonl, const clb_trace_import_options *options,
                          clb_trace **out, clb_error *err)
{
    struct records s = {.first = true};
    struct line l = {0};
    int rc = read_lines(data, size, jsonl, &s, &l, err);
    if (!rc)
        rc = build(&s, options, out, err);
    clb_numbers_free(&l.experts);
    clb_numbers_free(&l.gates);
    records_free(&s);
    return rc;
}
