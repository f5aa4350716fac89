/* A long pass is interrupted for others, and goes on where it was.
 *
 * Between the steps of a pass (clb_forward_pause_by) the scheduler looks whether somebody has come, or whether text of
 * lanes outside of the pass is due again. Then these have a small pass of their own, in the engine's second set of
 * buffers (clb_engine.aside), with everything that belongs to a pass: newcomers start, text goes out, requests end.
 * Lanes of the interrupted pass are left alone (clb_lane.in_flight). However many come, the interrupted pass has at
 * least half of the time. So prompts are read in whole batches whoever generates, and text waits for a step of a layer,
 * not for a pass.
 *
 * Only with all weights in memory: then no pass needs what another one would push out. Otherwise a long pass is given
 * up for newcomers and computed again (clb_scheduler.may_break). */
#include "base/clock.h"
#include "engine/sched_internal.h"

bool clb_sched_pauses(const clb_scheduler *s)
{
    return s->o.engine->aside && s->o.slice_ns && clb_sched_keeps_all(s);
}

bool clb_sched_text_waits(const clb_scheduler *s)
{
    for (uint32_t i = 0; i < s->n_lanes; i++)
        if (s->lanes[i]->state == CLB_LANE_GENERATES && !s->lanes[i]->in_flight)
            return true;
    return false;
}

/* How long text waits meanwhile: so that it takes about a fifth of the time, but no longer than was promised. */
static uint64_t text_interval_ns(const clb_scheduler *s)
{
    const double shares = s->decode_ns > 0.0 ? 4.0 * s->decode_ns : 0.25 * (double)s->o.slice_ns;
    return shares < (double)s->o.slice_ns ? (uint64_t)shares : s->o.slice_ns;
}

/* Somebody outside of the pass has a prompt to read, and does not wait for what the pass computes. */
static bool prompt_waits(const clb_scheduler *s)
{
    for (uint32_t i = 0; i < s->n_lanes; i++)
        if (s->lanes[i]->state == CLB_LANE_READS && !s->lanes[i]->in_flight && !s->lanes[i]->waits)
            return true;
    return false;
}

static void serve_others(clb_scheduler *s)
{
    clb_span *const spans = s->spans;
    clb_lane **const in_pass = s->in_pass;
    const uint32_t n_in_pass = s->n_in_pass;
    const bool scored = s->scored;
    s->spans = s->aside_spans;
    s->in_pass = s->aside_in_pass;
    s->n_in_pass = 0;
    s->scored = s->aside_scored;
    s->aside = true;
    clb_store_set_aside(s->o.engine->model->store, true);

    clb_error err;
    clb_sched_look_around(s, false);
    const uint32_t n_reading = clb_sched_sort_reading(s);
    const uint32_t rows = clb_sched_text_waits(s) ? clb_sched_prompt_rows(s, n_reading, true) : s->o.engine->aside_rows;
    const uint32_t prompt_rows = clb_sched_choose(s, n_reading, rows, true);
    if (s->n_in_pass) {
        pthread_mutex_lock(&s->lock);
        s->stats.interruptions++;
        pthread_mutex_unlock(&s->lock);
        clb_sched_run_chosen(s, prompt_rows, &err);
    }
    clb_sched_publish(s);

    clb_store_set_aside(s->o.engine->model->store, false);
    s->aside = false;
    s->spans = spans;
    s->in_pass = in_pass;
    s->n_in_pass = n_in_pass;
    s->aside_scored = s->scored;
    s->scored = scored;
}

void clb_sched_pause(void *scheduler)
{
    clb_scheduler *const s = scheduler;
    if (!s->may_pause || s->aside)
        return;
    const uint64_t now = clb_now_ns(), spent = s->aside_ns - s->aside_began_ns;
    const bool newcomers = atomic_load_explicit(&s->newcomers, memory_order_relaxed) > 0;
    const bool due = now - s->text_ns >= text_interval_ns(s) && clb_sched_text_waits(s);
    if (!newcomers && !due && !prompt_waits(s))
        return;
    if (spent > now - s->pass_began_ns - spent + s->o.slice_ns)
        return;
    serve_others(s);
    s->aside_ns += clb_now_ns() - now;
}
