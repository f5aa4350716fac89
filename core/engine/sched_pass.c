/* One pass: which lanes take part with how many rows, and what becomes of them.
 *
 * Every lane that generates has its row. Prompts share what is left: those with the least left first, so that short
 * ones do not wait for long ones, but whoever was passed over MOST_SKIPPED times comes first with half of the rows.
 * While anybody else is there, rows are limited to what `slice_ns` holds by the measured cost of a row. A prompt that
 * is through after this pass waits for all of its rows: much longer ones behind it sit out, or at most double them. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/sched_internal.h"
#include "kv/prefix.h"

#define MOST_SKIPPED  3u
#define FEWEST_ROWS   32u /* of prompts in a pass: fewer would cost more than they let others wait */
#define UNKNOWN_ROWS  64u /* before anything is measured */
#define UNBROKEN_ROWS 32u /* of a pass that may not be given up, if others may come */

bool clb_sched_cancelled(void *scheduler)
{
    clb_scheduler *s = scheduler;
    return atomic_load_explicit(&s->stop, memory_order_relaxed) ||
           (atomic_load_explicit(&s->may_break, memory_order_relaxed) &&
            atomic_load_explicit(&s->newcomers, memory_order_relaxed) > 0);
}

/* ---- who takes part ---- */

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
    if (rows < FEWEST_ROWS)
        rows = FEWEST_ROWS;
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

/* Another lane of this pass computes what `lane` would compute now: it can take that afterwards. */
static bool is_computed(const clb_scheduler *s, const clb_lane *lane)
{
    if (lane->apart || lane->lonely || !clb_sched_keeps_all(s))
        return false;
    const size_t from = lane->held.n, block = s->o.engine->kv_layout.page_tokens;
    for (uint32_t i = 0; i < s->n_in_pass; i++) {
        const clb_lane *other = s->in_pass[i];
        if (other->state != CLB_LANE_READS || other->apart || other->held.n < from ||
            other->lora_hash != lane->lora_hash)
            continue;
        const size_t n = other->goal.n < lane->goal.n ? other->goal.n : lane->goal.n;
        size_t common = 0;
        while (common < n && other->goal.ids[common] == lane->goal.ids[common])
            common++;
        if (common >= other->held.n && common >= from + block)
            return true;
    }
    return false;
}

/* What the lane needs no more to compute, at its start and after it has waited for somebody else. */
static int take_known(clb_lane *lane, clb_error *err)
{
    if (lane->apart || (lane->held.n && !lane->waited))
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

/* The first choice's prompt is scored, once. */
static bool is_scoring(const clb_lane *lane)
{
    return lane->state == CLB_LANE_READS && lane->request->o.score_prompt && lane->first_read && !lane->choice;
}

static void add(clb_scheduler *s, clb_lane *lane, const uint32_t *tokens, uint32_t n)
{
    const bool reads = lane->state == CLB_LANE_READS;
    const bool last = !reads || n == clb_lane_left(lane);
    s->spans[s->n_in_pass] = (clb_span){
        .kv = lane->kv,
        .tokens = tokens,
        .n = n,
        .n_logits = lane->request->o.embed ? 0
                    : is_scoring(lane)     ? n
                                           : last,
        .phase = reads ? COLIBRI_PHASE_PREFILL : COLIBRI_PHASE_DECODE,
        .prefill_done = reads && last,
        .lora = &lane->lora,
        .hidden = lane->request->o.embed,
    };
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
    const uint32_t fair = ready > FEWEST_ROWS ? ready : FEWEST_ROWS;
    if (clb_lane_left(lane) <= 2 * fair)
        return most;
    const uint32_t rows = lane->skipped && fair > unready ? fair - unready : 0;
    return rows < most ? rows : most;
}

/* Fills spans and in_pass; returns the rows of prompts. */
static uint32_t choose(clb_scheduler *s, uint32_t n_reading, uint32_t rows)
{
    clb_lane *const *const reading = s->reading;
    s->n_in_pass = 0;
    for (uint32_t i = 0; i < s->n_lanes; i++)
        if (s->lanes[i]->state == CLB_LANE_GENERATES)
            add(s, s->lanes[i], &s->lanes[i]->next, 1);
    const uint32_t n_generating = s->n_in_pass, batch = s->o.engine->batch;
    uint32_t room = rows < batch - n_generating ? rows : batch - n_generating, used = 0, ready = 0, unready = 0;
    /* Its logits need the buffer: it has a pass of its own, but no two in a row while others generate. */
    const bool score = n_reading && is_scoring(reading[0]) && !(n_generating && s->scored);
    if (score)
        s->n_in_pass = 0;
    s->scored = score;
    for (uint32_t i = 0; i < n_reading; i++) {
        clb_lane *const lane = reading[i];
        if (score ? i > 0 : is_scoring(lane)) {
            lane->skipped++;
            continue;
        }
        if (is_computed(s, lane)) {
            lane->waited = true;
            continue;
        }
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

/* ---- running it ---- */

static void take_logits(void *ctx, uint32_t first, uint32_t n, const float *logits)
{
    clb_scheduler *s = ctx;
    clb_lane *const lane = s->in_pass[0];
    if (!is_scoring(lane)) /* the buffer holds all rows */
        return;
    for (uint32_t i = 0; i < n && !lane->rc; i++)
        clb_lane_score(s, lane, first + i, logits + (size_t)i * s->n_vocab);
    lane->logits = logits + (size_t)(n - 1) * s->n_vocab;
}

static void take_hidden(void *ctx, uint32_t span, uint32_t i, const float *row)
{
    clb_scheduler *s = ctx;
    (void)i;
    double *const sum = s->in_pass[span]->sum;
    for (uint32_t k = 0; k < s->o.engine->model->hp.n_embd; k++)
        sum[k] += (double)row[k];
}

static int run_spans(clb_scheduler *s, clb_error *err)
{
    const clb_logits_sink sink = {
        .buffer = s->logits, .rows = s->o.n_sequences, .take = take_logits, .hidden = take_hidden, .ctx = s};
    clb_lane *const first = s->in_pass[0];
    const size_t n_infos = first->n_infos;
    const int rc = clb_forward_run_to(s->o.engine->forward, s->spans, s->n_in_pass, &sink, err);
    if (rc && is_scoring(first))
        first->n_infos = n_infos;
    return rc;
}

/* The rows are in the KV cache: the lanes know it. */
static void settle(clb_scheduler *s)
{
    uint32_t row = 0;
    for (uint32_t i = 0; i < s->n_in_pass; i++) {
        clb_lane *const lane = s->in_pass[i];
        const clb_span *span = &s->spans[i];
        const bool scored = is_scoring(lane);
        if (lane->state == CLB_LANE_OVER) /* its request has failed meanwhile */
            continue;
        if (span->n_logits && !scored)
            lane->logits = s->logits + (size_t)(row + span->n_logits - 1) * s->n_vocab;
        row += span->n_logits;
        int rc = lane->rc;
        for (uint32_t k = 0; k < span->n && !rc; k++)
            rc = clb_tokens_push(&lane->held, span->tokens[k], &lane->err);
        lane->rc = rc;
        if (rc)
            continue;
        if (!lane->apart)
            clb_kv_seq_give_prefix(lane->kv, lane->held.ids, (uint32_t)lane->held.n);
        if (lane->state == CLB_LANE_GENERATES) {
            lane->state = CLB_LANE_SAMPLES;
            continue;
        }
        if (lane->first_read && !lane->choice) {
            const clb_request_event e = {.kind = CLB_EVENT_PROMPT,
                                         .n_prompt = (uint32_t)lane->goal.n,
                                         .n_done = (uint32_t)lane->held.n,
                                         .n_reused = lane->n_reused};
            clb_request_event_out(lane->request, &e);
        }
        if (!clb_lane_left(lane))
            lane->rc = clb_lane_read(s, lane, &lane->err);
    }
}

struct sampling {
    clb_scheduler *s;
    clb_lane **lanes;
    uint32_t n;
};

static void sample_some(void *ctx, uint32_t worker, uint32_t n_workers)
{
    const struct sampling *j = ctx;
    for (uint32_t i = worker; i < j->n; i += n_workers)
        clb_lane_sample(j->s, j->lanes[i]);
}

/* Samples for every lane that has logits; then text goes out, lane by lane. Returns the tokens. */
static uint32_t sample_all(clb_scheduler *s)
{
    struct sampling j = {s, s->in_pass, 0}; /* the pass is over: its list is free */
    for (uint32_t i = 0; i < s->n_lanes; i++)
        if (s->lanes[i]->state == CLB_LANE_SAMPLES && !s->lanes[i]->rc)
            j.lanes[j.n++] = s->lanes[i];
    if (j.n == 1)
        clb_lane_sample(s, j.lanes[0]);
    else if (j.n)
        clb_pool_run(s->o.engine->pool, sample_some, &j);
    const uint32_t n = j.n;
    for (uint32_t i = 0; i < j.n; i++)
        if (!j.lanes[i]->rc)
            j.lanes[i]->rc = clb_lane_advance(s, j.lanes[i], &j.lanes[i]->err);
    return n;
}

/* Lanes whose own work failed end their requests. */
static void fail_lanes(clb_scheduler *s)
{
    for (uint32_t i = 0; i < s->n_lanes; i++) {
        clb_lane *const lane = s->lanes[i];
        if (lane->rc && lane->state != CLB_LANE_OVER)
            clb_request_fail(s, lane->request, lane->rc, lane->err.msg);
    }
}

/* A pass of several lanes failed: each on its own, so that only those fail that must. */
static void run_apart(clb_scheduler *s)
{
    const uint64_t t0 = clb_now_ns();
    uint32_t prompt_rows = 0, generated = 0;
    clb_span *const spans = s->spans;
    clb_lane **const in_pass = s->in_pass;
    const uint32_t n = s->n_in_pass;
    for (uint32_t i = 0; i < n; i++) {
        s->spans = spans + i;
        s->in_pass = in_pass + i;
        s->n_in_pass = 1;
        const clb_lane *lane = in_pass[i];
        const bool reads = lane->state == CLB_LANE_READS;
        if (lane->state == CLB_LANE_OVER) /* with another lane of its request */
            continue;
        /* Each one's logits are used before the next pass overwrites them. */
        clb_error err;
        const int rc = run_spans(s, &err);
        if (!rc)
            settle(s);
        else
            clb_request_fail(s, lane->request, rc, err.msg);
        prompt_rows += !rc && reads ? spans[i].n : 0;
        for (uint32_t k = 0; k < s->n_lanes; k++)
            if (!rc && s->lanes[k]->state == CLB_LANE_SAMPLES && !s->lanes[k]->rc) {
                clb_lane_sample(s, s->lanes[k]);
                generated += !s->lanes[k]->rc;
                if (!s->lanes[k]->rc)
                    s->lanes[k]->rc = clb_lane_advance(s, s->lanes[k], &s->lanes[k]->err);
            }
    }
    s->spans = spans;
    s->in_pass = in_pass;
    fail_lanes(s);
    clb_sched_count_pass(s, prompt_rows, generated, clb_now_ns() - t0);
}

static void learn(clb_scheduler *s, uint32_t prompt_rows, uint32_t generated, uint64_t ns)
{
    const double t = (double)ns;
    double *const value = prompt_rows ? &s->row_ns : &s->decode_ns;
    double now = t;
    if (prompt_rows) {
        const double others = generated ? s->decode_ns : 0.0;
        now = (t > others ? t - others : t) / prompt_rows;
    }
    *value = *value > 0.0 ? *value * 0.8 + now * 0.2 : now;
}

/* Lanes that read their prompts, in the order in which they get rows: s->reading. */
static uint32_t sort_reading(clb_scheduler *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_lanes; i++)
        if (s->lanes[i]->state == CLB_LANE_READS)
            s->lanes[i]->rc = take_known(s->lanes[i], &s->lanes[i]->err);
    fail_lanes(s);
    for (uint32_t i = 0; i < s->n_lanes; i++)
        if (s->lanes[i]->state == CLB_LANE_READS)
            s->reading[n++] = s->lanes[i];
    qsort(s->reading, n, sizeof *s->reading, by_left);
    return n;
}

/* A pass was given up: what lanes wait for is still to come. */
static void wait_again(clb_scheduler *s)
{
    for (uint32_t i = 0; i < s->n_lanes; i++)
        if (s->lanes[i]->state == CLB_LANE_READS)
            s->lanes[i]->waited = false;
}

static uint32_t rows_of_prompts(const clb_scheduler *s, uint32_t n_reading, bool may_break)
{
    const uint32_t batch = s->o.engine->batch;
    const bool alone = n_reading == s->n_lanes && n_reading < 2;
    if (!s->o.slice_ns || (alone && (may_break || !s->n_free)))
        return batch;
    const uint32_t slice = slice_rows(s);
    return may_break || slice < UNBROKEN_ROWS ? slice : UNBROKEN_ROWS;
}

/* What the pass has cost, and whether the next one may be given up: such losses are at most a third of what gets on. */
static void account(clb_scheduler *s, uint32_t prompt_rows, uint32_t n_generating, uint64_t ns)
{
    if (prompt_rows)
        s->credit_ns += (int64_t)(ns / 3);
    if (s->credit_ns > 0)
        s->credit_ns = 0;
    learn(s, prompt_rows, n_generating, ns);
}

int clb_sched_pass(clb_scheduler *s, bool *ran, clb_error *err)
{
    const uint32_t n_reading = sort_reading(s);
    uint32_t n_generating = 0;
    const bool may_break = s->credit_ns >= 0;
    const uint32_t prompt_rows = choose(s, n_reading, rows_of_prompts(s, n_reading, may_break));
    *ran = s->n_in_pass > 0;
    if (!*ran)
        return COLIBRI_OK;
    for (uint32_t i = 0; i < s->n_in_pass; i++)
        n_generating += s->in_pass[i]->state == CLB_LANE_GENERATES;
    const uint64_t t0 = clb_now_ns();
    atomic_store(&s->may_break, may_break && s->n_free && prompt_rows > FEWEST_ROWS && clb_sched_keeps_all(s));
    const int rc = run_spans(s, err);
    atomic_store(&s->may_break, false);
    const uint64_t ns = clb_now_ns() - t0;
    if (rc == COLIBRI_E_CANCELLED) { /* stopped, or given up for a newcomer */
        s->credit_ns -= (int64_t)ns;
        wait_again(s);
        return COLIBRI_OK;
    }
    if (rc && s->n_in_pass > 1) {
        run_apart(s);
        return COLIBRI_OK;
    }
    if (rc) {
        clb_request_fail(s, s->in_pass[0]->request, rc, err->msg);
        return COLIBRI_OK;
    }
    account(s, prompt_rows, n_generating, ns);
    settle(s);
    fail_lanes(s);
    const uint32_t generated = sample_all(s);
    fail_lanes(s);
    clb_sched_count_pass(s, prompt_rows, generated, ns);
    return COLIBRI_OK;
}
