/* A plan in one line, and what should worry the user. */
#include <stdio.h>

#include "base/str.h"
#include "plan/plan.h"

void clb_plan_log(const clb_plan *p, const clb_log *log)
{
    char a[24], b[24], c[24], d[24], e[24], f[24], experts[120] = "", layers[120] = "", adapters[48] = "";
    if (p->n_experts)
        snprintf(experts, sizeof experts, ", %u of %u experts %s", p->n_slots, p->n_experts,
                 clb_human_bytes(p->slot_bytes, a));
    if (p->resident_layers < p->n_layers)
        snprintf(layers, sizeof layers, ", %u of %u layers stay and %u slots stream the others %s", p->resident_layers,
                 p->n_layers, p->n_stream_slots, clb_human_bytes(p->stream_bytes, b));
    if (p->lora_bytes)
        snprintf(adapters, sizeof adapters, ", LoRA adapters %s", clb_human_bytes(p->lora_bytes, (char[24]){0}));
    clb_logf(log, COLIBRI_LOG_INFO, "plan: %s of %s: weights %s%s%s, KV cache %s, buffers %s%s, process %s",
             clb_human_bytes(p->total_bytes, (char[24]){0}), clb_human_bytes(p->budget, c),
             clb_human_bytes(p->embedding_bytes + p->dense_bytes, d), experts, layers,
             clb_human_bytes(p->kv_bytes + p->kv_strategy_bytes, e),
             clb_human_bytes(p->buffer_bytes + p->staging_bytes, f), adapters,
             clb_human_bytes(p->base_bytes, (char[24]){0}));
    if (p->limited_by)
        clb_logf(log, COLIBRI_LOG_WARN, "the budget is %s instead of --max-memory: that is what %s leaves",
                 clb_human_bytes(p->budget, a), clb_memory_limit_text(p->limited_by));
    if (p->available && p->total_bytes > p->available)
        clb_logf(log, COLIBRI_LOG_WARN, "%s are planned, the machine has %s free: it will swap (--max-memory)",
                 clb_human_bytes(p->total_bytes, a), clb_human_bytes(p->available, b));
}
