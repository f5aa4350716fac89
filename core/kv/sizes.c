#include "kv/sizes.h"

#include "colibri/numerics.h"
#include "kv/internal.h"

#define STATE_MOST   (UINT64_C(1) << 50) /* bytes: more than any machine has */
#define ROWS_ASSUMED 4096u /* of a pass, where nobody said */
/* Arrays of at most this many positions are made at once: what is not touched costs nothing, and nothing is copied. */
#define AT_ONCE (1u << 18)
/* From about here on malloc asks the system for whole pages. */
#define BLOCK_MAPPED (UINT64_C(128) << 10)

static uint64_t add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t mul(uint64_t a, uint64_t b)
{
    uint64_t r;
    return __builtin_mul_overflow(a, b, &r) ? UINT64_MAX : r;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* What n bytes take of the heap. */
static uint64_t block(uint64_t n)
{
    if (n == 0 || n >= UINT64_MAX - 8192)
        return n;
    return n < BLOCK_MAPPED ? larger(32, (n + 8 + 15) / 16 * 16) : (n + 16 + 4095) / 4096 * 4096;
}

/* Floats as clb_kv_queries_reserve aligns them. */
static uint64_t aligned(uint64_t n)
{
    return n < UINT64_MAX / 8 ? block(n * sizeof(float) + 127) + 32 : UINT64_MAX;
}

static uint32_t clamp(uint64_t n)
{
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

static uint64_t evicting_layers(const clb_kv_layout *l)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < l->n_layers; i++)
        n += !l->evictable || l->evictable[i];
    return n;
}

/* ---- what is asked ------------------------------------------------------------------------------------------ */

/* The chain's states. Strategies that do not say: a page of memory, and where they follow what is added and dropped
 * something for each position. */
static uint64_t states(const clb_kv_layout *l, const clb_kv_seq_options *o, const clb_kv_traits *t,
                       struct colibri_kv_config config, uint64_t longest)
{
    const struct colibri_kv_strategy *s = o->strategy;
    uint64_t sum = 0;
    for (const struct colibri_kv_child *c = o->child;; c = c->child) {
        config.child = c;
        if (CLB_KV_HAS(s, state_bytes))
            sum = add(sum, block(s->state_bytes(&config)));
        else
            sum = add(sum, 4096 + (t->stateful && !(s->flags & COLIBRI_KV_FLAG_WRAPPER)
                                       ? mul(mul(16, longest), (uint64_t)l->n_layers * l->n_kv_heads)
                                       : 0));
        if (!c)
            break;
        s = c->strategy;
        config.params = c->params;
    }
    return sum;
}

int clb_kv_demand_make(const clb_kv_layout *l, const clb_kv_seq_options *o, clb_kv_demand *out, clb_error *err)
{
    const struct colibri_kv_strategy *s = o->strategy;
    const clb_kv_traits traits = clb_kv_traits_of(s, o->child, o->positions);
    const uint32_t rows = o->max_rows ? o->max_rows : ROWS_ASSUMED, budget = o->budget ? o->budget : o->ctx;
    clb_kv_traits even = traits;
    even.own_budgets = false;
    const uint64_t most = clb_kv_most_positions(l, &even, o->ctx, budget, rows);
    *out = (clb_kv_demand){
        .traits = traits,
        .budget = budget,
        .max_rows = rows,
        .most = clamp(most),
        .head_budget = budget,
        .selects = s->select != NULL,
        .allots = CLB_KV_HAS(s, allot),
        .merges = CLB_KV_HAS(s, merge),
        .picks = CLB_KV_HAS(s, pick_pages),
    };
    if (traits.evicts && s->budget)
        CLB_TRY(clb_kv_probe_budgets(l, o, out->most, &out->head_budget, err));
    const uint64_t layers = evicting_layers(l);
    /* Of a budget for all, one head may have what the others leave; the host sees to the sum. */
    const uint64_t all = mul(mul(layers ? layers : 1, l->n_kv_heads), budget);
    const uint64_t one = less(mul(out->head_budget, out->allots ? l->n_kv_heads : 1), all);
    const bool bounded = clb_kv_most_positions(l, &even, o->ctx ^ 1u, budget, rows) == most; /* not by the context */
    out->longest = bounded ? clamp(add(one, larger(rows, l->page_tokens))) : out->most;
    clb_kv_probe p;
    CLB_TRY(clb_kv_probe_open(l, o, out->longest, &p, err));
    out->state_bytes = states(l, o, &traits, p.config, out->longest);
    clb_kv_probe_close(&p);
    if (out->state_bytes > STATE_MOST) /* else the plan would blame the model */
        return clb_fail(err, COLIBRI_E_PLUGIN, "KV strategy %s says that one instance takes %.0f GiB of memory", s->name,
                        (double)out->state_bytes / 0x1p30);
    return COLIBRI_OK;
}

clb_kv_demand clb_kv_demand_any(const clb_kv_layout *l, uint32_t ctx, uint32_t max_rows)
{
    return (clb_kv_demand){
        .traits = {.needs = COLIBRI_KV_NEED_PROB_COLSUM | COLIBRI_KV_NEED_PROB_MAX | CLB_KV_NEEDS_QUERIES |
                            COLIBRI_KV_NEED_PAGE_MINMAX,
                   .window_w = 128,
                   .evicts = true,
                   .positions = COLIBRI_KV_POS_COMPACT},
        .budget = ctx,
        .max_rows = max_rows,
        .most = ctx,
        .head_budget = ctx,
        .longest = ctx,
        .state_bytes = 64 * (uint64_t)ctx + 4096 * (uint64_t)l->n_kv_heads,
        .allots = true,
        .merges = true,
        .picks = true,
    };
}

/* ---- how arrays grow ---------------------------------------------------------------------------------------- */

/* An even head has at most `most` positions. Where heads differ, all may change: room for a quarter more, and what has
 * become much too large is given back (clb_kv_room_shrinks), so that the sum follows the budget. */
uint32_t clb_kv_room_rows(const clb_kv_seq *seq, uint32_t cap, uint64_t wanted)
{
    const clb_kv_demand *d = &seq->demand;
    if (!d->traits.own_budgets && wanted <= d->most)
        return d->most <= AT_ONCE ? d->most : clamp(less(larger(cap + cap / UINT64_C(2), wanted), d->most));
    if (!d->traits.own_budgets)
        return clamp(wanted);
    const uint64_t n = wanted + wanted / 4 + seq->cache->layout.page_tokens;
    return clamp(wanted <= d->longest ? less(n, d->longest) : wanted);
}

bool clb_kv_room_shrinks(const clb_kv_seq *seq, uint32_t cap, uint64_t wanted)
{
    const uint64_t p = seq->cache->layout.page_tokens;
    return seq->demand.traits.own_budgets && cap > wanted + wanted / 2 + 2 * p;
}

/* ---- one sequence -------------------------------------------------------------------------------------------- */

static uint64_t pages_for(const clb_kv_layout *l, uint64_t n)
{
    return n / l->page_tokens + (n % l->page_tokens != 0);
}

static uint32_t served(const clb_kv_demand *d)
{
    return d->traits.evicts ? d->traits.needs : 0;
}

/* Arrays of all heads with `size` bytes per position: as many as there are of `heads`. */
static uint64_t rows_of_heads(const clb_kv_layout *l, const clb_kv_demand *d, uint64_t heads, uint64_t size)
{
    if (!d->traits.own_budgets)
        return mul(heads, block(mul(d->most, size)));
    /* Each head has room for at most half more than it wants and two pages. */
    const uint64_t wanted = (uint64_t)d->most + d->max_rows;
    const uint64_t each = less(wanted + wanted / 2 + UINT64_C(2) * l->page_tokens, d->longest);
    return mul(heads, add(mul(each, size), 32));
}

static uint64_t tables(const clb_kv_layout *l, const clb_kv_demand *d)
{
    const uint64_t heads = (uint64_t)l->n_layers * l->n_kv_heads;
    uint64_t sum = add(block(mul(heads, sizeof(clb_kv_head))), block(mul(heads, sizeof(uint32_t))));
    sum = add(sum, block(sizeof(clb_kv_seq)));
    /* A page's two pointers, as if they were per position. */
    clb_kv_demand pages = *d;
    pages.most = clamp(pages_for(l, d->most) + d->traits.own_budgets);
    pages.longest = clamp(pages_for(l, d->longest));
    pages.max_rows = clamp(pages_for(l, d->max_rows));
    sum = add(sum, 2 * rows_of_heads(l, &pages, heads, sizeof(void *)));
    if (clb_kv_has_recent(l) && d->traits.positions != COLIBRI_KV_POS_COMPACT) {
        const uint64_t n = less(d->longest, (uint64_t)l->recent + 64 + d->max_rows);
        sum = add(sum, mul(heads, 2 * block((pages_for(l, n) + 2) * sizeof(void *))));
    }
    return sum;
}

static uint64_t per_position(const clb_kv_layout *l, const clb_kv_demand *d)
{
    const uint64_t heads = evicting_layers(l) * l->n_kv_heads;
    const uint64_t arrays = 1 + (served(d) & COLIBRI_KV_NEED_PROB_COLSUM ? UINT64_C(2) : 0) +
                            (served(d) & COLIBRI_KV_NEED_PROB_MAX ? UINT64_C(2) : 0);
    return d->traits.evicts ? mul(arrays, rows_of_heads(l, d, heads, sizeof(float))) : 0;
}

static uint64_t queries(const clb_kv_layout *l, const clb_kv_demand *d, uint64_t n)
{
    const uint64_t group = l->n_heads / l->n_kv_heads, w = d->traits.window_w;
    const uint64_t row = (d->traits.per_head ? group : l->n_heads) * (uint64_t)l->k_dim;
    const uint64_t segments = n / COLIBRI_ATTN_SEGMENT + (n % COLIBRI_ATTN_SEGMENT != 0);
    uint64_t sum = l->n_rot ? aligned(l->n_rot) : 0;
    if (served(d) & CLB_KV_NEEDS_QUERIES)
        sum = add(sum, mul(evicting_layers(l) * l->n_kv_heads, block(mul(w * group, l->k_dim * sizeof(float)))));
    if (served(d) & (COLIBRI_KV_NEED_Q_LAST_W | COLIBRI_KV_NEED_Q_STATS))
        sum = add(sum, aligned(mul(w, row)));
    if (served(d) & COLIBRI_KV_NEED_Q_STATS)
        sum = add(sum, add(aligned(row), aligned(mul(row, l->k_dim))));
    if (served(d) & COLIBRI_KV_NEED_FUTURE)
        sum = add(sum, aligned(n));
    if (!(served(d) & COLIBRI_KV_NEED_PROB_LAST_W))
        return sum;
    const uint64_t floats[] = {n,
                               mul(n, l->k_dim),
                               mul(group, segments * COLIBRI_ATTN_SEGMENT),
                               2 * group,
                               group,
                               group * COLIBRI_ATTN_SEGMENT,
                               mul(segments * group, colibri_attn_part_floats(1)),
                               group * l->k_dim};
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        sum = add(sum, aligned(floats[i]));
    return sum;
}

/* Of a selection, for the longest head. */
static uint64_t scratch(const clb_kv_layout *l, const clb_kv_demand *d)
{
    const uint64_t n = d->longest, four = mul(n, 4), guarded = add(four, 4);
    if (!d->traits.evicts)
        return 0;
    uint64_t sum = add(block(n + 1), block(four));
    if (!d->selects)
        sum = add(sum, block(mul(guarded, d->allots ? l->n_kv_heads : 1)));
    if (d->merges)
        sum = add(sum, add(2 * block(guarded), block(mul(four, l->v_dim))));
    if (!d->traits.per_head && (served(d) & COLIBRI_KV_NEED_PROB_COLSUM))
        sum = add(sum, block(four));
    if (!d->traits.per_head && (served(d) & COLIBRI_KV_NEED_PROB_MAX))
        sum = add(sum, block(four));
    if (d->allots)
        sum = add(sum, mul(l->n_kv_heads, sizeof(struct colibri_kv_view) + 64));
    return add(sum, queries(l, d, n));
}

static uint64_t page_bounds(const clb_kv_layout *l, const clb_kv_demand *d)
{
    const uint64_t heads = (uint64_t)l->n_layers * l->n_kv_heads, pages = pages_for(l, d->most);
    if (!d->picks)
        return 0;
    const uint64_t head = add(2 * block(mul(pages, sizeof(void *))), block(pages + 1));
    return add(mul(heads, add(head, 2 * block(mul(pages, l->k_dim * sizeof(float))))), block(l->k_dim * sizeof(float)));
}

uint64_t clb_kv_strategy_bytes(const clb_kv_layout *l, const clb_kv_demand *d)
{
    if (!d->most)
        return 0;
    const uint64_t parts[] = {tables(l, d), per_position(l, d), scratch(l, d), page_bounds(l, d), d->state_bytes};
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        sum = add(sum, parts[i]);
    return sum;
}

static uint64_t pool_lists(const clb_kv_page_shape *shape, uint64_t max_bytes)
{
    uint64_t sum = 0, list[CLB_KV_POOL_LISTS];
    clb_kv_pool_lists(shape, max_bytes, list);
    for (size_t i = 0; i < CLB_KV_POOL_LISTS; i++)
        sum = add(sum, block(list[i]));
    return sum;
}

uint64_t clb_kv_common_bytes(const clb_kv_layout *l, const clb_kv_demand *d, uint64_t pool_bytes, uint64_t recent_bytes,
                             bool shares)
{
    if (!d->most)
        return 0;
    const clb_kv_page_shape shape = clb_kv_shape(l), copy = clb_kv_recent_shape(l);
    uint64_t sum = add(pool_lists(&shape, pool_bytes), recent_bytes ? pool_lists(&copy, recent_bytes) : 0);
    if (d->traits.positions == COLIBRI_KV_POS_COMPACT)
        sum = add(sum, block(mul(d->longest, l->n_rot * sizeof(float))));
    return shares ? add(sum, clb_kv_index_bytes(l, pool_bytes / clb_kv_page_bytes(l))) : sum;
}
