/* Traces for other programs. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "replay/bytes.h"
#include "replay/trace.h"
#include "replay/trace_text.h"

#define FLUSH ((size_t)1 << 18)

static const char *const phases[] = {"prefill", "decode", "verify"};

struct out {
    const struct clb_trace_sink *sink;
    clb_buf buf;
};

static int flush(struct out *o, size_t most, clb_error *err)
{
    if (o->buf.n <= most)
        return COLIBRI_OK;
    const int rc = o->sink->write(o->sink->ctx, o->buf.data, o->buf.n, err);
    o->buf.n = 0;
    return rc;
}

/* ---- CSV, JSONL ----------------------------------------------------------------------------------------------------
 */

static int json_string(clb_buf *b, const char *s, clb_error *err)
{
    CLB_TRY(clb_buf_append(b, "\"", 1, err));
    for (; *s; s++) { /* no control characters inside: the trace was checked */
        if (*s == '"' || *s == '\\')
            CLB_TRY(clb_buf_append(b, "\\", 1, err));
        CLB_TRY(clb_buf_append(b, s, 1, err));
    }
    return clb_buf_append(b, "\"", 1, err);
}

static int csv_string(clb_buf *b, const char *s, clb_error *err)
{
    if (!strpbrk(s, ",\""))
        return clb_buf_append(b, s, strlen(s), err);
    CLB_TRY(clb_buf_append(b, "\"", 1, err));
    for (; *s; s++) {
        if (*s == '"')
            CLB_TRY(clb_buf_append(b, "\"", 1, err));
        CLB_TRY(clb_buf_append(b, s, 1, err));
    }
    return clb_buf_append(b, "\"", 1, err);
}

static int json_header(struct out *o, const clb_trace *t, clb_error *err)
{
    const clb_trace_info *const i = &t->info;
    CLB_TRY(clb_buf_printf(&o->buf, err, "{\"colibri_trace\":%u,\"model\":", CLB_TRACE_VERSION));
    CLB_TRY(json_string(&o->buf, i->model, err));
    CLB_TRY(clb_buf_printf(&o->buf, err, ",\"arch\":"));
    CLB_TRY(json_string(&o->buf, i->arch, err));
    CLB_TRY(clb_buf_printf(&o->buf, err, ",\"n_layers\":%u,\"n_experts\":%u,\"top_k\":%u,\"expert_bytes\":[",
                           i->n_layers, i->n_experts, i->top_k));
    for (uint32_t l = 0; l < i->n_layers; l++)
        CLB_TRY(clb_buf_printf(&o->buf, err, "%s%" PRIu64, l ? "," : "", i->expert_bytes[l]));
    return clb_buf_printf(&o->buf, err, "]}\n");
}

static int list_u32(clb_buf *b, const uint32_t *v, uint32_t n, char between, clb_error *err)
{
    for (uint32_t k = 0; k < n; k++) {
        if (k)
            CLB_TRY(clb_buf_append(b, &between, 1, err));
        CLB_TRY(clb_buf_printf(b, err, "%u", v[k]));
    }
    return COLIBRI_OK;
}

/* Nine digits name a float exactly. */
static int list_f32(clb_buf *b, const float *v, uint32_t n, char between, clb_error *err)
{
    for (uint32_t k = 0; k < n; k++) {
        if (k)
            CLB_TRY(clb_buf_append(b, &between, 1, err));
        CLB_TRY(clb_buf_printf(b, err, "%.9g", (double)v[k]));
    }
    return COLIBRI_OK;
}

static int text_line(struct out *o, const clb_trace *t, uint64_t pass, uint32_t layer, uint32_t row, bool json,
                     clb_error *err)
{
    const clb_trace_pass *const p = &t->passes[pass];
    const uint32_t k = t->info.top_k, token = t->tokens[p->first_row + row];
    const uint64_t at = clb_trace_at(t, pass, layer) + (uint64_t)row * k;
    clb_buf *const b = &o->buf;
    if (json)
        CLB_TRY(clb_buf_printf(b, err, "{\"unit\":"));
    CLB_TRY(json ? json_string(b, t->units[p->unit].label, err) : csv_string(b, t->units[p->unit].label, err));
    CLB_TRY(clb_buf_printf(b, err,
                           json ? ",\"pass\":%" PRIu64 ",\"phase\":\"%s\",\"row\":%u,\"sequence\":%u,\"token\":"
                                : ",%" PRIu64 ",%s,%u,%u,",
                           pass, phases[p->phase], row, t->sequences[p->first_row + row]));
    if (token != UINT32_MAX)
        CLB_TRY(clb_buf_printf(b, err, "%u", token));
    else if (json)
        CLB_TRY(clb_buf_printf(b, err, "null"));
    CLB_TRY(clb_buf_printf(b, err, json ? ",\"layer\":%u,\"experts\":[" : ",%u,", layer));
    CLB_TRY(list_u32(b, t->ids + at, k, json ? ',' : ' ', err));
    CLB_TRY(clb_buf_printf(b, err, json ? "]" : ","));
    if (t->gates) {
        if (json)
            CLB_TRY(clb_buf_printf(b, err, ",\"gates\":["));
        CLB_TRY(list_f32(b, t->gates + at, k, json ? ',' : ' ', err));
        if (json)
            CLB_TRY(clb_buf_printf(b, err, "]"));
    }
    return clb_buf_printf(b, err, json ? "}\n" : "\n");
}

static int export_text(struct out *o, const clb_trace *t, bool json, clb_error *err)
{
    CLB_TRY(json ? json_header(o, t, err) : clb_buf_printf(&o->buf, err, CLB_TRACE_CSV_HEAD "\n"));
    for (uint64_t p = 0; p < t->n_passes; p++)
        for (uint32_t l = 0; l < t->info.n_layers; l++)
            for (uint32_t r = 0; r < t->passes[p].n_rows; r++) {
                CLB_TRY(text_line(o, t, p, l, r, json, err));
                CLB_TRY(flush(o, FLUSH, err));
            }
    return flush(o, 0, err);
}

/* ---- oracleGeneral -------------------------------------------------------------------------------------------------
 */

/* Requests in the order in which layers are visited, each layer's distinct experts once, ascending. next_access is the
 * number of the request that asks for the same expert again, -1: none. */
struct requests {
    uint32_t *time;
    uint64_t *id;
    int64_t *next;
    uint64_t n, cap;
};

static int add_request(struct requests *q, uint32_t time, uint64_t id, clb_error *err)
{
    if (q->n == q->cap) {
        const uint64_t cap = q->cap ? 2 * q->cap : 4096;
        uint32_t *const t = realloc(q->time, cap * sizeof *t);
        q->time = t ? t : q->time;
        uint64_t *const i = realloc(q->id, cap * sizeof *i);
        q->id = i ? i : q->id;
        int64_t *const x = realloc(q->next, cap * sizeof *x);
        q->next = x ? x : q->next;
        if (!t || !i || !x)
            return CLB_NOMEM(err, "the trace");
        q->cap = cap;
    }
    q->time[q->n] = time;
    q->id[q->n] = id;
    q->next[q->n++] = -1;
    return COLIBRI_OK;
}

static int collect_requests(const clb_trace *t, struct requests *q, clb_error *err)
{
    const clb_trace_info *const i = &t->info;
    uint8_t *const used = calloc(i->n_experts, 1);
    int rc = used ? COLIBRI_OK : CLB_NOMEM(err, "the trace");
    for (uint64_t p = 0; p < t->n_passes && !rc; p++)
        for (uint32_t l = 0; l < i->n_layers && !rc; l++) {
            const uint64_t at = clb_trace_at(t, p, l), n = (uint64_t)t->passes[p].n_rows * i->top_k;
            for (uint64_t k = 0; k < n; k++)
                used[t->ids[at + k]] = 1;
            for (uint32_t e = 0; e < i->n_experts && !rc; e++) {
                if (used[e])
                    rc = add_request(q, (uint32_t)p, (uint64_t)l * i->n_experts + e, err);
                used[e] = 0;
            }
        }
    free(used);
    return rc;
}

static int link_requests(const clb_trace *t, struct requests *q, clb_error *err)
{
    const size_t n = (size_t)t->info.n_layers * t->info.n_experts;
    int64_t *const next = malloc(n * sizeof *next);
    if (!next)
        return CLB_NOMEM(err, "the trace");
    for (size_t i = 0; i < n; i++)
        next[i] = -1;
    for (uint64_t i = q->n; i-- > 0;) {
        q->next[i] = next[q->id[i]];
        next[q->id[i]] = (int64_t)i;
    }
    free(next);
    return COLIBRI_OK;
}

static int export_oracle(struct out *o, const clb_trace *t, clb_error *err)
{
    struct requests q = {0};
    if (t->n_passes > UINT32_MAX)
        return clb_fail(err, COLIBRI_E_LIMIT, "oracleGeneral: too many passes");
    int rc = collect_requests(t, &q, err);
    if (!rc)
        rc = link_requests(t, &q, err);
    for (uint64_t i = 0; i < q.n && !rc; i++) {
        uint8_t record[24];
        const uint64_t bytes = t->info.expert_bytes[q.id[i] / t->info.n_experts];
        uint8_t *p = clb_put64(clb_put32(record, q.time[i]), q.id[i]);
        p = clb_put32(p, bytes == 0 ? 1 : bytes > UINT32_MAX ? UINT32_MAX : (uint32_t)bytes);
        clb_put64(p, (uint64_t)q.next[i]);
        rc = clb_buf_append(&o->buf, record, sizeof record, err);
        if (!rc)
            rc = flush(o, FLUSH, err);
    }
    free(q.time);
    free(q.id);
    free(q.next);
    return rc ? rc : flush(o, 0, err);
}

int clb_trace_export(const clb_trace *t, enum clb_trace_format format, const struct clb_trace_sink *sink,
                     clb_error *err)
{
    struct out o = {.sink = sink};
    int rc;
    if (format == CLB_TRACE_CSV || format == CLB_TRACE_JSONL)
        rc = export_text(&o, t, format == CLB_TRACE_JSONL, err);
    else if (format == CLB_TRACE_ORACLE)
        rc = export_oracle(&o, t, err);
    else
        rc = clb_fail(err, COLIBRI_E_USAGE, "a trace is exported as csv, jsonl or oracleGeneral");
    clb_buf_free(&o.buf);
    return rc;
}
