#include "kv/future.h"

#include <stdlib.h>
#include <string.h>

#include "kv/internal.h"

/* Sums of all (layer, KV head)s after `position` tokens: [n_lanes][n_positions]; positions that come later are 0. */
typedef struct note {
    uint32_t position;
    float *sums;
} note;

struct clb_kv_future {
    uint32_t n_layers, n_kv_heads, n_positions;
    note *notes;
    uint32_t n_notes, cap_notes;
    bool finished;
};

int clb_kv_future_create(const clb_kv_layout *layout, uint32_t n_positions, clb_kv_future **out, clb_error *err)
{
    clb_kv_future *const f = calloc(1, sizeof *f);
    *out = f;
    if (!f)
        return CLB_NOMEM(err, "a text's attention");
    f->n_layers = layout->n_layers;
    f->n_kv_heads = layout->n_kv_heads;
    f->n_positions = n_positions;
    return COLIBRI_OK;
}

void clb_kv_future_destroy(clb_kv_future *f)
{
    if (!f)
        return;
    for (uint32_t i = 0; i < f->n_notes; i++)
        free(f->notes[i].sums);
    free(f->notes);
    free(f);
}

/* ---- the recorder ---- */

static const char instance[] = "recorder";

static void *recorder_create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    (void)config;
    (void)why;
    (void)why_size;
    return (void *)(uintptr_t)instance;
}

static void recorder_ignore(void *self)
{
    (void)self;
}

/* Asked only if the budget was too small after all; clb_kv_future_note then refuses. */
static void recorder_score(void *self, const struct colibri_kv_view *view, float *out)
{
    (void)self;
    for (uint32_t i = 0; i < view->n; i++)
        out[i] = (float)i;
}

const struct colibri_kv_strategy *clb_kv_future_recorder(void)
{
    static const struct colibri_kv_strategy recorder = {
        .struct_size = sizeof recorder,
        .flags = COLIBRI_KV_FLAG_PER_HEAD | COLIBRI_KV_FLAG_DETERMINISTIC,
        .needs = COLIBRI_KV_NEED_PROB_COLSUM,
        .triggers = COLIBRI_KV_AT_OVER_BUDGET,
        .positions = COLIBRI_KV_POS_ORIGINAL,
        .name = "attention-recorder",
        .summary = "keeps everything and sums attention",
        .source = "none",
        .create = recorder_create,
        .destroy = recorder_ignore,
        .reset = recorder_ignore,
        .score = recorder_score,
    };
    return &recorder;
}

/* ---- notes ---- */

int clb_kv_future_note(clb_kv_future *f, const clb_kv_seq *seq, clb_error *err)
{
    const size_t n_lanes = (size_t)f->n_layers * f->n_kv_heads;
    if (f->finished || seq->position > f->n_positions || seq->evicted)
        return clb_fail(err, COLIBRI_E_USAGE, "%u tokens do not fit a recording of %u, or some were dropped",
                        seq->position, f->n_positions);
    if (f->n_notes == f->cap_notes) {
        const uint32_t cap = f->cap_notes ? 2 * f->cap_notes : 16;
        note *const notes = realloc(f->notes, cap * sizeof *notes);
        if (!notes)
            return CLB_NOMEM(err, "a text's attention");
        f->notes = notes;
        f->cap_notes = cap;
    }
    float *const sums = calloc(n_lanes * f->n_positions + 1, sizeof *sums);
    if (!sums)
        return CLB_NOMEM(err, "a text's attention");
    for (size_t i = 0; i < n_lanes; i++) {
        const clb_kv_head *const h = &seq->heads[i];
        if (h->sum[h->cur])
            memcpy(sums + i * f->n_positions, h->sum[h->cur], h->n * sizeof *sums);
    }
    f->notes[f->n_notes++] = (note){.position = seq->position, .sums = sums};
    return COLIBRI_OK;
}

void clb_kv_future_finish(clb_kv_future *f)
{
    const size_t n = (size_t)f->n_layers * f->n_kv_heads * f->n_positions;
    if (f->finished || f->n_notes == 0)
        return;
    f->finished = true;
    const float *const all = f->notes[f->n_notes - 1].sums;
    for (uint32_t i = 0; i < f->n_notes; i++)
        for (size_t k = 0; k < n && i + 1 < f->n_notes; k++) {
            const float left = all[k] - f->notes[i].sums[k];
            f->notes[i].sums[k] = left > 0.0F ? left : 0.0F; /* sums are rounded */
        }
    memset(f->notes[f->n_notes - 1].sums, 0, n * sizeof(float));
}

const float *clb_kv_future_of(const clb_kv_future *f, uint32_t layer, uint32_t kv_head, uint64_t next_position)
{
    uint32_t at = f->n_notes;
    while (at && f->notes[at - 1].position > next_position)
        at--;
    if (!f->finished || !at || layer >= f->n_layers || kv_head >= f->n_kv_heads || next_position > f->n_positions)
        return NULL;
    return f->notes[at - 1].sums + ((size_t)layer * f->n_kv_heads + kv_head) * f->n_positions;
}
