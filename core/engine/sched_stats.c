/* Figures of the scheduler for other threads: copied after each pass. */
#include <string.h>

#include "base/clock.h"
#include "engine/sched_internal.h"
#include "kv/prefix.h"

#define WINDOW_NS UINT64_C(2000000000) /* rates are those of the last window */
#define SLOW_NS   UINT64_C(250000000)  /* between looks at every page and expert; more often only when nothing runs */

void clb_sched_count_pass(clb_scheduler *s, uint32_t prompt_rows, uint32_t generated, uint64_t ns)
{
    pthread_mutex_lock(&s->lock);
    s->stats.passes++;
    s->stats.rows += prompt_rows + generated;
    s->stats.prompt_tokens += prompt_rows;
    s->stats.generated_tokens += generated;
    s->stats.busy_ns += ns;
    pthread_mutex_unlock(&s->lock);
    s->window_prompt += prompt_rows;
    s->window_generated += generated;
}

static void close_window(clb_scheduler *s, uint64_t now)
{
    const double seconds = (double)(now - s->window_ns) / 1e9;
    s->stats.prompt_per_second = (double)s->window_prompt / seconds;
    s->stats.decode_per_second = (double)s->window_generated / seconds;
    s->window_ns = now;
    s->window_prompt = s->window_generated = 0;
}

static void copy_slots(clb_scheduler *s, uint64_t now)
{
    uint32_t n = 0;
    s->stats.running = s->stats.reading = 0;
    for (uint32_t i = 0; i < s->n_lanes; i++) {
        const clb_lane *lane = s->lanes[i];
        const bool reads = lane->state == CLB_LANE_READS || lane->state == CLB_LANE_WAITS;
        s->stats.reading += reads;
        s->stats.running += !reads;
        s->slots[n++] = (clb_slot_info){.id = lane->request->id,
                                        .reading = reads,
                                        .n_prompt = (uint32_t)lane->request->o.n_prompt,
                                        .n_done = reads ? (uint32_t)lane->held.n : (uint32_t)lane->request->o.n_prompt,
                                        .n_generated = lane->n_generated,
                                        .age_ns = now - lane->request->submitted_ns};
    }
    s->n_slots = n;
}

void clb_sched_publish(clb_scheduler *s)
{
    const clb_engine *e = s->o.engine;
    const uint64_t now = clb_now_ns();
    const bool slow = !s->n_lanes || now - s->slow_ns >= SLOW_NS;
    clb_store_stats store;
    clb_kv_share_stats share = {0};
    clb_store_get_stats(e->model->store, &store);
    if (slow)
        clb_kv_cache_share_stats(e->kv, &share);
    pthread_mutex_lock(&s->lock);
    if (now - s->window_ns >= WINDOW_NS)
        close_window(s, now);
    s->stats.waiting = s->n_queued;
    s->stats.up_ns = now - s->began_ns;
    s->stats.kv_used_bytes = clb_kv_cache_used_bytes(e->kv);
    s->stats.kv_bytes = e->plan.kv_bytes;
    s->stats.expert_hits = store.hits;
    s->stats.expert_misses = store.misses + store.late;
    s->stats.expert_bytes_read = store.expert_bytes_read;
    s->stats.resident_bytes = store.resident_bytes + store.slot_bytes;
    copy_slots(s, now);
    if (slow) {
        s->slow_ns = now;
        s->stats.prompt_reused = share.tokens_reused + share.tokens_loaded;
        s->stats.kv_shared_bytes = share.bytes_shared;
        if (e->model->n_moe_layers)
            clb_store_residency(e->model->store, s->residency);
    }
    pthread_mutex_unlock(&s->lock);
}

void clb_scheduler_get_stats(clb_scheduler *s, clb_scheduler_stats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    out->waiting = s->n_queued;
    pthread_mutex_unlock(&s->lock);
}

size_t clb_scheduler_slots(clb_scheduler *s, clb_slot_info *out, size_t cap)
{
    pthread_mutex_lock(&s->lock);
    const size_t n = s->n_slots;
    memcpy(out, s->slots, (n < cap ? n : cap) * sizeof *out);
    pthread_mutex_unlock(&s->lock);
    return n;
}

int clb_scheduler_residency(clb_scheduler *s, uint8_t *out, size_t cap, uint32_t *n_layers, uint32_t *n_experts,
                            clb_error *err)
{
    *n_layers = s->o.engine->model->n_moe_layers;
    *n_experts = *n_layers ? s->o.engine->model->hp.n_experts : 0;
    const size_t n = (size_t)*n_layers * *n_experts;
    if (n > cap)
        return clb_fail(err, COLIBRI_E_LIMIT, "%zu experts, room for %zu", n, cap);
    pthread_mutex_lock(&s->lock);
    memcpy(out, s->residency, n);
    pthread_mutex_unlock(&s->lock);
    return COLIBRI_OK;
}
