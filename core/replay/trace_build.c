#include "replay/trace_build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "replay/trace_format.h"

static bool printable(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < 32 || s[i] == 127)
            return false;
    return true;
}

int clb_trace_check_info(const clb_trace_info *info, int status, clb_error *err)
{
    if (info->n_layers == 0 || info->n_layers > CLB_TRACE_LAYERS_MAX)
        return clb_fail(err, status, "trace: %u MoE layers (1 to %u are possible)", info->n_layers,
                        CLB_TRACE_LAYERS_MAX);
    if (info->n_experts == 0 || info->n_experts > CLB_TRACE_EXPERTS_MAX)
        return clb_fail(err, status, "trace: %u experts (1 to %u are possible)", info->n_experts,
                        CLB_TRACE_EXPERTS_MAX);
    if (info->top_k == 0 || info->top_k > info->n_experts)
        return clb_fail(err, status, "trace: %u of %u experts per token", info->top_k, info->n_experts);
    if ((unsigned)info->gates > CLB_GATES_F32)
        return clb_fail(err, status, "trace: unknown type %u of router weights", (unsigned)info->gates);
    if (info->ahead_layers > CLB_TRACE_AHEAD_MAX || info->ahead_top > info->n_experts ||
        (info->ahead_layers == 0) != (info->ahead_top == 0))
        return clb_fail(err, status, "trace: %u guesses for %u layers ahead", info->ahead_top, info->ahead_layers);
    for (uint32_t l = 0; info->expert_bytes && l < info->n_layers; l++)
        if (info->expert_bytes[l] > CLB_TRACE_BYTES_MAX)
            return clb_fail(err, status, "trace: experts of %llu bytes in layer %u",
                            (unsigned long long)info->expert_bytes[l], l);
    if (!memchr(info->model, 0, sizeof info->model) || !memchr(info->arch, 0, sizeof info->arch) ||
        !printable(info->model, strlen(info->model)) || !printable(info->arch, strlen(info->arch)))
        return clb_fail(err, status, "trace: the model's name is not printable text");
    return COLIBRI_OK;
}

static int check_row(const clb_trace_info *info, const uint32_t *ids, uint32_t *seen, uint32_t *mark, int status,
                     clb_error *err)
{
    if (++*mark == 0) {
        memset(seen, 0, info->n_experts * sizeof *seen);
        *mark = 1;
    }
    for (uint32_t k = 0; k < info->top_k; k++) {
        if (ids[k] >= info->n_experts)
            return clb_fail(err, status, "expert %u of %u", ids[k], info->n_experts);
        if (seen[ids[k]] == *mark)
            return clb_fail(err, status, "expert %u is named twice", ids[k]);
        seen[ids[k]] = *mark;
    }
    return COLIBRI_OK;
}

int clb_trace_check_pass(const clb_trace_info *info, const clb_trace_put *p, uint32_t *seen, uint32_t *mark, int status,
                         clb_error *err)
{
    if (p->phase > COLIBRI_PHASE_VERIFY)
        return clb_fail(err, status, "unknown phase %u", p->phase);
    if (p->n_rows == 0 || p->n_rows > CLB_TRACE_ROWS_MAX)
        return clb_fail(err, status, "%u rows (1 to %u are possible)", p->n_rows, CLB_TRACE_ROWS_MAX);
    if (p->n_sequences == 0 || p->n_sequences > p->n_rows)
        return clb_fail(err, status, "%u sequences in %u rows", p->n_sequences, p->n_rows);
    const uint64_t rows = (uint64_t)p->n_rows * info->n_layers;
    for (uint64_t r = 0; r < rows; r++)
        if (check_row(info, p->ids + r * info->top_k, seen, mark, status, err))
            return clb_context(err, "layer %u, row %u", (uint32_t)(r / p->n_rows), (uint32_t)(r % p->n_rows));
    for (uint64_t i = 0; p->gates && i < rows * info->top_k; i++)
        if (!isfinite(p->gates[i]))
            return clb_fail(err, status, "a router weight is not a number");
    const uint64_t n_ahead = rows * info->ahead_layers * info->ahead_top;
    for (uint64_t i = 0; p->ahead && i < n_ahead; i++)
        if (p->ahead[i].expert != UINT32_MAX && (p->ahead[i].expert >= info->n_experts || !isfinite(p->ahead[i].logit)))
            return clb_fail(err, status, "a guess is not an expert with a finite logit");
    return COLIBRI_OK;
}

/* Makes room for `need` elements of `size` bytes. */
static int grow(void **p, uint64_t *cap, uint64_t need, uint64_t size, clb_error *err)
{
    if (need <= *cap)
        return COLIBRI_OK;
    const uint64_t most = SIZE_MAX / 2 / (size ? size : 1);
    uint64_t n = *cap ? *cap : size > 4096 ? need : 64;
    while (n < need && n <= most / 2)
        n *= 2;
    if (n < need)
        n = need;
    void *const q = n <= most ? realloc(*p, (size_t)(n * size)) : NULL;
    if (!q)
        return CLB_NOMEM(err, "the trace");
    *p = q;
    *cap = n;
    return COLIBRI_OK;
}

int clb_trace_builder_open(clb_trace_builder *b, const clb_trace_info *info, int status, clb_error *err)
{
    *b = (clb_trace_builder){.status = status};
    CLB_TRY(clb_trace_check_info(info, status, err));
    b->trace = calloc(1, sizeof *b->trace);
    b->seen = calloc(info->n_experts, sizeof *b->seen);
    uint64_t *const bytes = calloc(info->n_layers, sizeof *bytes);
    if (!b->trace || !b->seen || !bytes) {
        free(bytes);
        clb_trace_builder_close(b);
        return CLB_NOMEM(err, "the trace");
    }
    if (info->expert_bytes)
        memcpy(bytes, info->expert_bytes, info->n_layers * sizeof *bytes);
    b->trace->info = *info;
    b->trace->info.expert_bytes = bytes;
    return COLIBRI_OK;
}

int clb_trace_builder_unit(clb_trace_builder *b, const char *label, size_t n, clb_error *err)
{
    clb_trace *const t = b->trace;
    if (n >= CLB_TRACE_NAME_MAX || !printable(label, n))
        return clb_fail(err, b->status, "unit %llu: its label is not printable text of at most %u bytes",
                        (unsigned long long)t->n_units, CLB_TRACE_NAME_MAX - 1);
    if (t->n_units == UINT32_MAX)
        return clb_fail(err, b->status, "too many units");
    void *p = t->units;
    CLB_TRY(grow(&p, &b->cap_units, t->n_units + 1, sizeof *t->units, err));
    t->units = p;
    uint64_t cap = b->cap_labels;
    p = t->labels;
    CLB_TRY(grow(&p, &cap, b->n_labels + n + 1, 1, err));
    t->labels = p;
    b->cap_labels = (size_t)cap;
    memcpy(t->labels + b->n_labels, label, n);
    t->labels[b->n_labels + n] = '\0';
    /* Labels move while they grow: offsets until the end. */
    t->units[t->n_units++] = (clb_trace_unit){
        .label = (const char *)(uintptr_t)b->n_labels, .first_pass = t->n_passes, .first_row = t->n_rows};
    b->n_labels += n + 1;
    return COLIBRI_OK;
}

static int grow_rows(clb_trace_builder *b, uint64_t need, clb_error *err)
{
    clb_trace *const t = b->trace;
    const uint64_t choices = (uint64_t)t->info.n_layers * t->info.top_k;
    const uint64_t guesses = (uint64_t)t->info.n_layers * t->info.ahead_layers * t->info.ahead_top;
    struct {
        void **p;
        uint64_t size;
    } columns[] = {{(void **)(void *)&t->tokens, sizeof *t->tokens},
                   {(void **)(void *)&t->sequences, sizeof *t->sequences},
                   {(void **)(void *)&t->ids, choices * sizeof *t->ids},
                   {(void **)(void *)&t->gates, t->info.gates ? choices * sizeof *t->gates : 0},
                   {(void **)(void *)&t->ahead, guesses * sizeof *t->ahead}};
    uint64_t cap = b->cap_rows;
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        cap = b->cap_rows;
        void *q = *columns[i].p;
        if (columns[i].size)
            CLB_TRY(grow(&q, &cap, need, columns[i].size, err));
        *columns[i].p = q;
    }
    b->cap_rows = need > b->cap_rows && cap == b->cap_rows ? need : cap;
    return COLIBRI_OK;
}

int clb_trace_builder_pass(clb_trace_builder *b, const clb_trace_put *pass, clb_error *err)
{
    clb_trace *const t = b->trace;
    const clb_trace_info *const info = &t->info;
    if (clb_trace_check_pass(info, pass, b->seen, &b->row_mark, b->status, err))
        return clb_context(err, "pass %llu", (unsigned long long)t->n_passes);
    if (t->n_units == 0)
        CLB_TRY(clb_trace_builder_unit(b, "", 0, err));
    void *p = t->passes;
    CLB_TRY(grow(&p, &b->cap_passes, t->n_passes + 1, sizeof *t->passes, err));
    t->passes = p;
    if (t->n_rows + pass->n_rows > b->cap_rows) {
        const uint64_t want = t->n_rows + pass->n_rows > 2 * b->cap_rows ? t->n_rows + pass->n_rows : 2 * b->cap_rows;
        CLB_TRY(grow_rows(b, want, err));
    }
    const uint64_t choices = (uint64_t)info->n_layers * info->top_k * pass->n_rows;
    const uint64_t guesses = (uint64_t)info->n_layers * info->ahead_layers * info->ahead_top * pass->n_rows;
    const uint64_t at = t->n_rows * info->n_layers * info->top_k;
    for (uint32_t r = 0; r < pass->n_rows; r++) {
        t->tokens[t->n_rows + r] = pass->tokens ? pass->tokens[r] : UINT32_MAX;
        t->sequences[t->n_rows + r] = pass->sequences ? pass->sequences[r] : 0;
    }
    memcpy(t->ids + at, pass->ids, choices * sizeof *t->ids);
    if (info->gates)
        memcpy(t->gates + at, pass->gates, choices * sizeof *t->gates);
    if (guesses)
        memcpy(t->ahead + t->n_rows * info->n_layers * info->ahead_layers * info->ahead_top, pass->ahead,
               guesses * sizeof *t->ahead);
    clb_trace_unit *const unit = &t->units[t->n_units - 1];
    unit->n_passes++;
    unit->n_rows += pass->n_rows;
    t->passes[t->n_passes++] = (clb_trace_pass){.phase = pass->phase,
                                                .n_rows = pass->n_rows,
                                                .n_sequences = pass->n_sequences,
                                                .unit = (uint32_t)(t->n_units - 1),
                                                .first_row = t->n_rows,
                                                .start_ns = pass->start_ns,
                                                .took_ns = pass->took_ns};
    t->n_rows += pass->n_rows;
    return COLIBRI_OK;
}

clb_trace *clb_trace_builder_done(clb_trace_builder *b)
{
    clb_trace *const t = b->trace;
    for (uint64_t u = 0; u < t->n_units; u++)
        t->units[u].label = t->labels + (uintptr_t)t->units[u].label;
    b->trace = NULL;
    clb_trace_builder_close(b);
    return t;
}

void clb_trace_builder_close(clb_trace_builder *b)
{
    clb_trace_close(b->trace);
    free(b->seen);
    *b = (clb_trace_builder){0};
}

void clb_trace_close(clb_trace *t)
{
    if (!t)
        return;
    free(t->info.expert_bytes);
    free(t->units);
    free(t->passes);
    free(t->tokens);
    free(t->sequences);
    free(t->ids);
    free(t->gates);
    free(t->ahead);
    free(t->labels);
    free(t);
}
