/* block: a wrapper. What is over the budget is decided a block at a time, oldest first, as if the prompt had been read
 * in such blocks: the wrapped strategy chooses among what is kept and the next block, over and over: `block/keydiff`.
 *
 * Source: the block-wise prompt processing of KeyDiff, arXiv:2504.15364 (B = 128). There each block is also computed
 * with what was kept before it, which is what `batch` = 128 does here; this wrapper changes the choice alone. */
#include "colibri/kv_wrap.h"

enum { SIZE, N_PARAMS };

static const struct colibri_param params[] = {
    [SIZE] = {"size", 1, 65536, 128, 1, "positions of a block"},
};

struct block {
    struct colibri_kv_wrap wrap;
    uint32_t size, most;
    uint32_t *index, *positions;      /* [most]: what is looked at */
    float *sum, *max, *last, *future; /* [most]: theirs */
    float *scratch;                   /* [most] */
    uint8_t *keep;                    /* [most] */
};

/* What view->opaque of the part points to. */
struct part {
    const struct colibri_kv_view *whole;
    const uint32_t *index;
};

static void destroy(void *self)
{
    struct block *s = self;
    colibri_kv_wrap_close(&s->wrap);
    free(s->index);
    free(s);
}

static void *create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    const size_t most = config->max_positions;
    struct block *s = calloc(1, sizeof *s);
    uint32_t *const memory = malloc(most * (2 * sizeof(uint32_t) + 5 * sizeof(float) + 1) + 1);
    if (!s || !memory)
        snprintf(why, why_size, "out of memory");
    else if (!colibri_kv_wrap_open(&s->wrap, config, N_PARAMS, config->budget, 0, why, why_size)) {
        s->size = (uint32_t)colibri_kv_param(config, params, SIZE);
        s->most = config->max_positions;
        s->index = memory;
        s->positions = memory + most;
        s->sum = (float *)(memory + 2 * most);
        s->max = s->sum + most;
        s->last = s->max + most;
        s->future = s->last + most;
        s->scratch = s->future + most;
        s->keep = (uint8_t *)(s->scratch + most);
        return s;
    }
    free(memory);
    free(s);
    return NULL;
}

static void read_k(const struct colibri_kv_view *view, uint32_t i, float *out)
{
    const struct part *p = view->opaque;
    p->whole->read_k(p->whole, p->index[i], out);
}

static void read_v(const struct colibri_kv_view *view, uint32_t i, float *out)
{
    const struct part *p = view->opaque;
    p->whole->read_v(p->whole, p->index[i], out);
}

static void read_k_pre(const struct colibri_kv_view *view, uint32_t i, float *out)
{
    const struct part *p = view->opaque;
    p->whole->read_k_pre(p->whole, p->index[i], out);
}

static const float *gather(const float *from, const uint32_t *index, uint32_t n, float *to)
{
    for (uint32_t i = 0; from && i < n; i++)
        to[i] = from[index[i]];
    return from ? to : NULL;
}

/* The child's choice among the first n of s->index. */
static int choose(struct block *s, const struct colibri_kv_view *whole, uint32_t n)
{
    const struct part part = {whole, s->index};
    struct colibri_kv_view view = *whole;
    for (uint32_t i = 0; i < n; i++)
        s->positions[i] = whole->positions[s->index[i]];
    view.n = n;
    view.positions = s->positions;
    view.prob_sum = gather(whole->prob_sum, s->index, n, s->sum);
    view.prob_max = gather(whole->prob_max, s->index, n, s->max);
    view.prob_last = gather(whole->prob_last, s->index, n, s->last);
    view.prob_future = gather(whole->prob_future, s->index, n, s->future);
    view.read_k = whole->read_k ? read_k : NULL;
    view.read_v = whole->read_v ? read_v : NULL;
    view.read_k_pre = whole->read_k_pre ? read_k_pre : NULL;
    view.opaque = &part;
    memset(s->keep, 0, n);
    return colibri_kv_wrap_select(s, &view, s->scratch, s->keep);
}

static int select_positions(void *self, const struct colibri_kv_view *view, uint8_t *keep)
{
    struct block *s = self;
    const uint32_t first = view->n_keep < view->n ? view->n_keep : view->n;
    uint32_t n = 0;
    if (view->n > s->most)
        return COLIBRI_E_INTERNAL;
    for (; n < first; n++)
        s->index[n] = n;
    for (uint32_t next = first; next < view->n;) {
        for (uint32_t i = 0; i < s->size && next < view->n; i++)
            s->index[n++] = next++;
        const int rc = choose(s, view, n);
        if (rc != COLIBRI_OK)
            return rc;
        uint32_t kept = 0;
        for (uint32_t i = 0; i < n; i++)
            if (s->keep[i])
                s->index[kept++] = s->index[i];
        n = kept;
    }
    for (uint32_t i = 0; i < n; i++)
        keep[s->index[i]] = 1;
    return COLIBRI_OK;
}

static void *fork_state(void *self)
{
    return colibri_kv_wrap_fork(self, create, destroy);
}

static uint64_t state_bytes(const struct colibri_kv_config *config)
{
    return sizeof(struct block) + config->max_positions * (2 * sizeof(uint32_t) + 5 * sizeof(float) + 1) +
           colibri_kv_wrap_bytes(config, N_PARAMS);
}

static const struct colibri_kv_strategy strategy = {
    .struct_size = sizeof strategy,
    .flags = COLIBRI_KV_FLAG_WRAPPER | COLIBRI_KV_FLAG_DETERMINISTIC,
    .positions = COLIBRI_KV_POS_ORIGINAL,
    .n_params = sizeof params / sizeof params[0],
    .name = "block",
    .summary = "lets a strategy decide a block of tokens at a time (a wrapper: block/NAME, lossy)",
    .source = "KeyDiff, arXiv:2504.15364",
    .params = params,
    .create = create,
    .destroy = destroy,
    .reset = colibri_kv_wrap_reset,
    .budget = colibri_kv_wrap_budget,
    .select = select_positions,
    .on_append = colibri_kv_wrap_on_append,
    .on_evict = colibri_kv_wrap_on_evict,
    .fork = fork_state,
    .state_bytes = state_bytes,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_KV_STRATEGY) ? &strategy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_kv_strategy_block, NULL, get, .id = "colibri.kv-strategy.block",
                      .kinds = COLIBRI_KIND_KV_STRATEGY, .version = "1.0.0", .license = "MIT",
                      .summary = "KV strategy: wrapper: decides a block of tokens at a time");
