/* The timing model: one processor, one drive. docs/simulate.md.
 *
 * A visit costs the layer's own time, then its experts: those that are there are multiplied while the missing ones are
 * read, each of which is multiplied as soon as it has arrived, in order of arrival. The drive serves demand in order,
 * one expert taking bytes / rate; the latency of the first byte is paid once per request and overlaps with other
 * requests. Read-ahead gets what demand leaves. */
#include "replay/replay_internal.h"

double clb_timing_read_ns(const struct replay *r, uint32_t layer)
{
    const double rate = r->o->rates.read_bytes_per_s;
    return rate > 0 ? (double)r->x->trace->info.expert_bytes[layer] * 1e9 / rate : 0;
}

void clb_timing_layer(struct replay *r, uint32_t n_rows)
{
    const clb_trace_rates *const t = &r->o->rates;
    const double took = r->now - r->layer_began;
    r->layer_took = r->layer_took > 0 ? 0.9 * r->layer_took + 0.1 * took : took;
    r->layer_began = r->now;
    r->now += n_rows == 1 ? t->decode_layer_ns : t->prefill_layer_ns * (double)n_rows;
}

void clb_timing_wave(struct replay *r, uint32_t layer, uint32_t n, uint32_t n_rows)
{
    const clb_trace_rates *const t = &r->o->rates;
    const uint64_t bytes = r->x->trace->info.expert_bytes[layer];
    const double per_row = n_rows == 1 ? t->decode_expert_ns : t->prefill_expert_ns;
    const double read = clb_timing_read_ns(r, layer);
    double busy = r->now; /* when the processor is free */
    uint32_t k = 0;
    for (uint32_t i = 0; i < n; i++) {
        r->needed_bytes += bytes;
        if (r->wave[i].result == COLIBRI_ACCESS_HIT)
            busy += per_row * (double)r->rows[r->wave[i].u];
    }
    if (r->drive_free < r->now)
        r->drive_free = r->now;
    for (k = 0; k < n; k++) {
        const struct member *const m = &r->wave[k];
        r->waits[m->u] = 0;
        if (m->result == COLIBRI_ACCESS_HIT)
            continue;
        r->missed_bytes += bytes;
        double arrival;
        if (m->result == COLIBRI_ACCESS_LATE) {
            arrival = clb_prefetch_arrival(r, m->slot);
            r->out->late_ns += arrival > r->now ? arrival - r->now : 0;
        } else {
            r->drive_free += read;
            arrival = r->drive_free + t->read_latency_ns;
        }
        if (arrival > r->now)
            r->waits[m->u] = (uint64_t)(arrival - r->now);
        if (arrival > busy) {
            r->stall += arrival - busy;
            busy = arrival;
        }
        busy += per_row * (double)r->rows[m->u];
    }
    r->now = busy;
}
