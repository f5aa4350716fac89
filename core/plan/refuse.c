/* What a plan that does not fit says: the parts, and what would fit. */
#include <stdio.h>

#include "plan/internal.h"

/* An advice leaves some room before the next step of what the process counts for: otherwise a few pages more or less
 * would refuse in the next run what was advised in this one. */
#define ADVICE_NOISE (UINT64_C(512) << 10)
#define CTX_STEP     256u
#define LEAST_BATCH  16u

static unsigned long long mib_up(uint64_t bytes)
{
    return (unsigned long long)((bytes >> 20) + (bytes % (1u << 20) ? 1 : 0));
}

/* `n` parts in MiB that add up to the sum in MiB: each rounded down, and those that lost most get one back. */
static unsigned long long shares(const uint64_t *bytes, unsigned long long *mib, size_t n, uint64_t sum)
{
    const unsigned long long whole = mib_up(sum);
    unsigned long long given = 0;
    bool raised[8] = {false};
    for (size_t i = 0; i < n; i++)
        given += mib[i] = bytes[i] >> 20;
    while (given < whole) {
        size_t most = n;
        for (size_t i = 0; i < n; i++)
            if (!raised[i] && (most == n || bytes[i] % (1u << 20) > bytes[most] % (1u << 20)))
                most = i;
        if (most == n)
            break;
        raised[most] = true;
        mib[most]++;
        given++;
    }
    return whole;
}

/* The largest context, in steps, with which `need` comes down to the budget; 0: none. */
static uint64_t smaller_ctx(const clb_plan_input *in, const clb_plan *p, uint64_t need)
{
    if (!(in->kv_follows_ctx > 0) || !in->ctx)
        return 0;
    const uint64_t over = need - p->budget, now = clb_sat_add(p->kv_bytes, p->kv_strategy_bytes);
    const double part = in->kv_follows_ctx, follows = part * in->ctx;
    const double extra = in->kv_positions > follows ? in->kv_positions - follows : 0;
    uint64_t low = 0, high = (in->ctx - 1) / CTX_STEP; /* fits at low, not known above it */
    while (low < high) {
        const uint64_t mid = (low + high + 1) / 2;
        const uint64_t n = (uint64_t)(part * (double)(mid * CTX_STEP) + extra + 1 - 1e-6);
        if (clb_sat_add(clb_sat_add(clb_plan_kv_bytes(in, n), clb_plan_kv_strategy_bytes(in, n)), over) <= now)
            low = mid;
        else
            high = mid - 1;
    }
    return low * CTX_STEP;
}

/* The largest half, quarter, ... of the rows per pass that helps; 0: none. */
static uint32_t smaller_batch(const clb_plan_input *in, const clb_plan *p, uint64_t need)
{
    const uint64_t over = need - p->budget;
    const uint64_t now = clb_sat_add(clb_sat_add(p->kv_bytes, p->kv_strategy_bytes), p->buffer_bytes);
    clb_plan_input less = *in;
    for (uint32_t rows = in->max_rows / 2; rows >= LEAST_BATCH; rows /= 2) {
        less.max_rows = rows; /* a recent window has copies of all rows of a pass */
        const uint64_t kv = clb_sat_add(clb_plan_kv_bytes(&less, less.kv_positions),
                                        clb_plan_kv_strategy_bytes(&less, less.kv_positions));
        if (clb_sat_add(clb_sat_add(kv, clb_plan_buffer_bytes(&less, rows)), over) <= now)
            return rows;
    }
    return 0;
}

static void advise(const clb_plan_input *in, const clb_plan *p, uint64_t safe_need, const clb_plan *all, char *out,
                   size_t size)
{
    const bool streamed = p->resident_layers < p->n_layers;
    size_t n = (size_t)snprintf(out, size, "would fit: --max-memory %lluM", mib_up(safe_need));
    if (streamed && !in->resident_layers && n < size) {
        const uint64_t whole = clb_sat_add(clb_sat_add(all->base_bytes, all->embedding_bytes),
                                           clb_sat_add(clb_sat_add(all->dense_bytes, all->kv_bytes),
                                                       clb_sat_add(clb_sat_add(all->buffer_bytes, all->staging_bytes),
                                                                   clb_sat_add(all->kv_strategy_bytes, all->lora_bytes))));
        const uint64_t with_slots = clb_sat_add(whole, clb_sat_add(p->slot_bytes, safe_need - p->total_bytes));
        if (mib_up(with_slots) > mib_up(safe_need))
            n += (size_t)snprintf(out + n, size - n,
                                  " with the layers read from the drive for each token, %lluM with them in memory",
                                  mib_up(with_slots));
    }
    if (safe_need <= p->budget)
        return; /* the noise alone */
    const uint64_t ctx = smaller_ctx(in, p, safe_need);
    const uint32_t rows = smaller_batch(in, p, safe_need);
    if (ctx && n < size)
        n += (size_t)snprintf(out + n, size - n, ", or --ctx %llu", (unsigned long long)ctx);
    if (rows && n < size)
        n += (size_t)snprintf(out + n, size - n, ", or --batch %u", rows);
    if ((in->expert_slots || in->resident_layers) && n < size)
        snprintf(out + n, size - n, ", or fewer %s",
                 !in->resident_layers ? "--expert-slots"
                 : in->expert_slots   ? "--expert-slots or --resident-layers"
                                      : "--resident-layers");
}

int clb_plan_refuse(const clb_plan_input *in, const clb_plan *least, const clb_plan *all, uint64_t resident,
                    clb_error *err)
{
    const clb_plan *p = least;
    if (p->total_bytes == UINT64_MAX)
        return clb_fail(err, COLIBRI_E_NOMEM, "the model's sizes add up to more memory than any machine has");
    const uint64_t parts[] = {p->embedding_bytes + p->dense_bytes + p->stream_bytes, p->slot_bytes,
                              p->kv_bytes + p->kv_strategy_bytes,
                              p->buffer_bytes + p->staging_bytes, p->base_bytes, p->lora_bytes};
    unsigned long long mib[6];
    const unsigned long long need = shares(parts, mib, 6, p->total_bytes);
    const uint64_t safe_need =
        clb_sat_add(p->total_bytes - p->base_bytes, clb_plan_base(clb_sat_add(resident, ADVICE_NOISE)));
    char advice[400], budget[24], from[80] = "", adapters[48] = "";
    advise(in, p, safe_need, all, advice, sizeof advice);
    if (p->budget_is_default)
        snprintf(from, sizeof from, " (%u %% of what is free)", p->share);
    else if (p->limited_by)
        snprintf(from, sizeof from, " (by %s)", clb_memory_limit_text(p->limited_by));
    if (p->lora_bytes)
        snprintf(adapters, sizeof adapters, ", LoRA adapters %llu", mib[5]);
    return clb_fail(
        err, COLIBRI_E_NOMEM,
        "the model needs at least %llu MiB (weights %llu, experts %llu, KV cache %llu, buffers %llu, process "
        "%llu%s), the budget is %s%s; %s",
        need, mib[0], mib[1], mib[2], mib[3], mib[4], adapters, clb_human_bytes(p->budget, budget), from, advice);
}
