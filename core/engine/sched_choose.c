/* Who takes part in a pass, with how many rows.
 *
 * Every lane that generates has its row. Prompts share what is left: those with the least left first, so that short
 * ones do not wait for long ones, but whoever was passed over MOST_SKIPPED times comes first with half of the rows.
 * Passes that cannot be interrupted are limited to what `slice_ns` holds by the measured cost of a row while anybody
 * else is there; those that can leave the generating lanes to the interruptions (sched_aside.c). A prompt that is
 * through after this pass waits for all of its rows: much longer ones behind it sit out, or at most double them. */
#include <stdlib.h>

#include "engine/sched_internal.h"
#include "kv/prefix.h"

#define MOST_SKIPPED  3u
#define UNKNOWN_ROWS  64u /* before anything is measured */
#define UNBROKEN_ROWS 32u /* of a pass that may not be given up, if others may come */

static uint32_t slice_rows(const clb_scheduler *s)
{
    const uint32_t batch = s->o.engine->batch;
    if (!s->o.slice_ns)
        return batch;
    double rows = UNKNOWN_ROWS;
    if (s->row_ns > 0.0) {
        const double left = (double)s->o.slice_ns - s->decode_ns;
        rows = (left > s->decode_ns ? left : s->decode_ns) / s->row_ns;
    }
    if (rows < CLB_SCHED_FEWEST_ROWS)
        rows = CLB_SCHED_FEWEST_ROWS;
    return rows < batch ? (uint32_t)rows : batch;
}

static int by_left(const void *a, const void *b)
{
    const clb_lane *x = *(clb_lane *const *)a, *y = *(clb_lane *const *)b;
    const bool starved_x = x->skipped > MOST_SKIPPED, starved_y = y->skipped > MOST_SKIPPED;
    if (starved_x != starved_y)
        return starved_x ? -1 : 1;
    const uint32_t left_x = clb_lane_left(x), left_y = clb_lane_left(y);
    if (left_x != left_y)
        return left_x < left_y ? -1 : 1;
    if (x->request->id != y->request->id)
        return x->request->id < y->request->id ? -1 : 1;
    return x->choice < y->choice ? -1 : 1;
}

/* Tokens that the prompts of two lanes begin with, if one can take them from the other. */
static size_t common_start(const clb_lane *other, const clb_lane *lane)
{
    if (other->state != CLB_LANE_READS || other->apart || other->lora_hash != lane->lora_hash)
        return 0;
    const size_t n = other->goal.n < lane->goal.n ? other->goal.n : lane->goal.n;
    size_t common = 0;
    while (common < n && other->goal.ids[common] == lane->goal.ids[common])
        common++;
    return common;
}

/* Another lane of this pass computes what `lane` would compute now: it can take that afterwards. The end of an
 * interrupted pass is worth waiting for only if it brings most of the prompt. */
static bool is_computed(const clb_scheduler *s, clb_lane *lane)
{
    if (lane->apart || lane->lonely || !clb_sched_keeps_all(s))
        return false;
    const size_t from = lane->held.n, block = s->o.engine->kv_layout.page_tokens, half = clb_lane_left(lane) / 2;
    for (uint32_t i = 0; i < s->n_in_pass; i++) {
        const size_t common = common_start(s->in_pass[i], lane);
        if (s->in_pass[i]->held.n >= from && common >= s->in_pass[i]->held.n && common >= from + block) {
            *(s->aside ? &lane->waited : &lane->waits) = true; /* interruptions must leave it alone */
            return true;
        }
    }
    for (uint32_t i = 0; s->aside && i < s->n_lanes; i++) {
        const size_t then = s->lanes[i]->in_flight, common = then ? common_start(s->lanes[i], lane) : 0;
        if ((common < then ? common : then) > from + (half > block ? half : block - 1)) {
            lane->waits = true;
            return true;
        }
    }
    return false;
}

/* What the lane needs no more to compute, at its start and after it has waited for somebody else. */
static int take_known(const clb_scheduler *s, clb_lane *lane, clb_error *err)
{
    if (lane->waits && !s->aside) {
        lane->waits = false;
        lane->waited = true;
    }
    if (lane->apart || lane->waits || (lane->held.n && !lane->waited))
        return COLIBRI_OK;
    clb_kv_taken taken;
    const size_t before = lane->held.n;
    CLB_TRY(clb_kv_seq_take_prefix(lane->kv, lane->goal.ids, (uint32_t)lane->goal.n - 1, &taken, err));
    const size_t now = clb_kv_seq_position(lane->kv);
    for (size_t i = before; i < now; i++)
        CLB_TRY(clb_tokens_push(&lane->held, lane->goal.ids[i], err));
    lane->held.n = now; /* a begun block may have given way */
    if (lane->waited && now <= before)
        lane->lonely = true;
    if (lane->first_read)
        lane->n_reused += (uint32_t)(now > before ? now - before : 0);
    lane->waited = false;
    return COLIBRI_OK;
}

static void add(clb_scheduler *s, clb_lane *lane, const uint32_t *tokens, uint32_t n)
{
    const bool reads = lane->state == CLB_LANE_READS;
    const bool last = !reads || n == clb_lane_left(lane);
    s->spans[s->n_in_pass] = (clb_span){
        .kv = lane->kv,
        .tokens = tokens,
        .n = n,
        .n_logits = lane->request->o.embed  ? 0
                    : clb_lane_scores(lane) ? n
                                            : last,
        .phase = reads ? COLIBRI_PHASE_PREFILL : COLIBRI_PHASE_DECODE,
        .prefill_done = reads && last,
        .lora = &lane->lora,
        .hidden = lane->request->o.embed,
    };
    lane->waits = false;
    s->in_pass[s->n_in_pass++] = lane;
}

/* Rows of the lane's next piece, `room` rows being free. Where a strategy evicts, pieces end where those of a lone run
 * would. */
static uint32_t piece(const clb_scheduler *s, const clb_lane *lane, uint32_t room)
{
    const uint32_t left = clb_lane_left(lane), batch = s->o.engine->batch;
    if (clb_sched_keeps_all(s))
        return left < room ? left : room;
    const uint32_t whole = batch - clb_kv_seq_position(lane->kv) % batch;
    return left < whole ? left : whole;
}

/* Rows for a prompt behind others that are through after this pass, with `ready` rows, and more that are not, with
 * `unready`: none once, so that the first text of a newcomer comes as if it were alone, then as many as the former
 * have. One that is not much longer may be through as well. */
static uint32_t fair_rows(const clb_lane *lane, uint32_t ready, uint32_t unready, uint32_t most)
{
    const uint32_t fair = ready > CLB_SCHED_FEWEST_ROWS ? ready : CLB_SCHED_FEWEST_ROWS;
    if (clb_lane_left(lane) <= 2 * fair)
        return most;
    const uint32_t rows = lane->skipped && fair > unready ? fair - unready : 0;
    return rows < most ? rows : most;
}

uint32_t clb_sched_choose(clb_scheduler *s, uint32_t n_reading, uint32_t rows, bool text)
{
    clb_lane *const *const reading = s->reading;
    s->n_in_pass = 0;
    for (uint32_t i = 0; text && i < s->n_lanes; i++)
        if (s->lanes[i]->state == CLB_LANE_GENERATES && !s->lanes[i]->in_flight)
            add(s, s->lanes[i], &s->lanes[i]->next, 1);
    const uint32_t n_generating = s->n_in_pass, most_rows = s->aside ? s->o.engine->aside_rows : s->o.engine->batch;
    uint32_t room = rows < most_rows - n_generating ? rows : most_rows - n_generating, used = 0, ready = 0, unready = 0;
    /* Its logits need the buffer: it has a pass of its own, but no two in a row while others generate. */
    const bool score = n_reading && clb_lane_scores(reading[0]) && !(n_generating && s->scored);
    if (score)
        s->n_in_pass = 0;
    s->scored = score;
    for (uint32_t i = 0; i < n_reading; i++) {
        clb_lane *const lane = reading[i];
        if (score ? i > 0 : clb_lane_scores(lane)) {
            lane->skipped++;
            continue;
        }
        if (is_computed(s, lane))
            continue;
        uint32_t most = lane->skipped > MOST_SKIPPED && n_reading > 1 ? (rows + 1) / 2 : room;
        if (ready && s->o.slice_ns)
            most = fair_rows(lane, ready, unready, most);
        const uint32_t n = piece(s, lane, most < room ? most : room);
        if (!n || (n > room && used)) { /* a piece of a strategy's own length comes alone */
            lane->skipped++;
            continue;
        }
        *(n == clb_lane_left(lane) ? &ready : &unready) += n;
        add(s, lane, lane->goal.ids + lane->held.n, n);
        lane->skipped = 0;
        used += n;
        room -= n < room ? n : room;
    }
    return used;
}

uint32_t clb_sched_sort_reading(clb_scheduler *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_lanes; i++)
        if (s->lanes[i]->state == CLB_LANE_READS && !s->lanes[i]->in_flight)
            s->lanes[i]->rc = take_known(s, s->lanes[i], &s->lanes[i]->err);
    clb_sched_fail_lanes(s);
    for (uint32_t i = 0; i < s->n_lanes; i++)
        if (s->lanes[i]->state == CLB_LANE_READS && !s->lanes[i]->in_flight)
            s->reading[n++] = s->lanes[i];
    qsort(s->reading, n, sizeof *s->reading, by_left);
    return n;
}

uint32_t clb_sched_prompt_rows(const clb_scheduler *s, uint32_t n_reading, bool may_break)
{
    const uint32_t batch = s->o.engine->batch;
    const bool alone = n_reading == s->n_lanes && n_reading < 2;
    if (!s->o.slice_ns || (alone && (may_break || !s->n_free)))
        return batch;
    const uint32_t slice = slice_rows(s);
    return may_break || slice < UNBROKEN_ROWS ? slice : UNBROKEN_ROWS;
}
