/* ada: a wrapper. The heads of a layer share their budget: the best positions of all heads together stay, so that heads
 * whose attention is spread out get more room than those that look at a few tokens: `--kv-strategy ada/snapkv`.
 *
 * Source: Feng et al., "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient LLM
 * Inference", arXiv:2407.11550; each head is safe to get `floor` = 0.2 of an even share. Pages belong to one head, so
 * what a head does not get is memory that another one has, not a mask. Scores must compare between heads, as those by
 * attention do (h2o, tova's relatives, snapkv, expected-attention); those by keys alone compare less. */
#include "colibri/kv_wrap.h"

enum { FLOOR, N_PARAMS };

static const struct colibri_param params[] = {
    [FLOOR] = {"floor", 0, 1, 0.2, 0, "share of an even split that each head gets in any case"},
};

struct ada {
    struct colibri_kv_wrap wrap;
    double floor;
    uint32_t n_heads;
    uint32_t *least, *above, *next; /* [n_heads] */
    uint32_t *count;                /* [n_heads][256] */
};

static void destroy(void *self)
{
    struct ada *s = self;
    colibri_kv_wrap_close(&s->wrap);
    free(s->least);
    free(s);
}

static void *create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    const size_t n = config->n_kv_heads;
    struct ada *s = calloc(1, sizeof *s);
    uint32_t *const scratch = malloc((3 + 256) * n * sizeof scratch[0]);
    if (!s || !scratch)
        snprintf(why, why_size, "out of memory");
    else if (!colibri_kv_wrap_open(&s->wrap, config, N_PARAMS, config->budget, 1, why, why_size)) {
        s->floor = colibri_kv_param(config, params, FLOOR);
        s->n_heads = config->n_kv_heads;
        s->least = scratch;
        s->above = scratch + n;
        s->next = scratch + 2 * n;
        s->count = scratch + 3 * n;
        return s;
    }
    free(scratch);
    free(s);
    return NULL;
}

/* What the heads would get together, if each had so many among the best. */
static uint64_t demand(const struct ada *s, uint32_t n_heads, const uint32_t *among)
{
    uint64_t sum = 0;
    for (uint32_t h = 0; h < n_heads; h++)
        sum += among[h] > s->least[h] ? among[h] : s->least[h];
    return sum;
}

/* Each head's floor in s->least; whether they fit. */
static int set_floors(struct ada *s, uint32_t n_heads, const struct colibri_kv_view *views, uint32_t total)
{
    uint64_t floors = 0;
    for (uint32_t h = 0; h < n_heads; h++) {
        uint32_t least = (uint32_t)(s->floor * total / n_heads);
        least = least > views[h].n_protected ? least : views[h].n_protected + 1;
        s->least[h] = least < views[h].n ? least : views[h].n;
        s->above[h] = 0;
        floors += s->least[h];
    }
    return floors <= total;
}

/* The key above which entries fit into `total`, 8 bits a pass; s->above has how many there are in each head. */
static uint32_t threshold(struct ada *s, uint32_t n_heads, const struct colibri_kv_view *views,
                          const float *const *scores, uint32_t total)
{
    uint32_t prefix = 0, mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        uint32_t digit = 256;
        memset(s->count, 0, (size_t)n_heads * 256 * sizeof s->count[0]);
        for (uint32_t h = 0; h < n_heads; h++)
            for (uint32_t i = 0; i < views[h].n; i++) {
                const uint32_t key = colibri_kv_rank_key(scores[h][i]);
                if ((key & mask) == prefix)
                    s->count[h * 256 + ((key >> shift) & 255u)]++;
            }
        memcpy(s->next, s->above, n_heads * sizeof s->next[0]);
        do {
            memcpy(s->above, s->next, n_heads * sizeof s->next[0]);
            digit--;
            for (uint32_t h = 0; h < n_heads; h++)
                s->next[h] += s->count[h * 256 + digit];
        } while (digit > 0 && demand(s, n_heads, s->next) <= total);
        prefix |= digit << shift;
        mask |= UINT32_C(255) << shift;
    }
    return prefix;
}

static int allot(void *self, uint32_t layer, uint32_t n_heads, const struct colibri_kv_view *views,
                 const float *const *scores, uint32_t total, uint32_t *n_keep)
{
    struct ada *s = self;
    uint64_t n = 0;
    uint32_t longest = 0;
    (void)layer;
    if (n_heads > s->n_heads)
        return COLIBRI_E_INTERNAL;
    for (uint32_t h = 0; h < n_heads; h++) {
        n += views[h].n;
        longest = views[h].n > longest ? views[h].n : longest;
        n_keep[h] = views[h].n;
    }
    if (n <= total)
        return COLIBRI_OK;
    if (!set_floors(s, n_heads, views, total)) {
        for (uint32_t h = 0; h < n_heads; h++) /* the protected alone fill it: evenly */
            n_keep[h] = total / n_heads;
        return COLIBRI_OK;
    }
    const uint32_t key = threshold(s, n_heads, views, scores, total);
    uint64_t left = total - demand(s, n_heads, s->above);
    for (uint32_t h = 0; h < n_heads; h++)
        n_keep[h] = s->above[h] > s->least[h] ? s->above[h] : s->least[h];
    /* those equal to the threshold, the later ones first, as far as there is room */
    for (uint32_t back = 0; left && back < longest; back++)
        for (uint32_t h = 0; left && h < n_heads; h++)
            if (back < views[h].n && colibri_kv_rank_key(scores[h][views[h].n - 1 - back]) == key &&
                ++s->above[h] > n_keep[h]) {
                n_keep[h]++;
                left--;
            }
    return COLIBRI_OK;
}

static void *fork_state(void *self)
{
    return colibri_kv_wrap_fork(self, create, destroy);
}

static uint64_t state_bytes(const struct colibri_kv_config *config)
{
    return sizeof(struct ada) + (3 + 256) * (uint64_t)config->n_kv_heads * sizeof(uint32_t) +
           colibri_kv_wrap_bytes(config, N_PARAMS);
}

static const struct colibri_kv_strategy strategy = {
    .struct_size = sizeof strategy,
    .flags = COLIBRI_KV_FLAG_WRAPPER | COLIBRI_KV_FLAG_PER_HEAD | COLIBRI_KV_FLAG_DETERMINISTIC,
    .positions = COLIBRI_KV_POS_ORIGINAL,
    .n_params = sizeof params / sizeof params[0],
    .name = "ada",
    .summary = "lets the heads of a layer share their budget (a wrapper: ada/NAME, lossy)",
    .source = "Ada-KV, arXiv:2407.11550",
    .params = params,
    .create = create,
    .destroy = destroy,
    .reset = colibri_kv_wrap_reset,
    .budget = colibri_kv_wrap_budget,
    .score = colibri_kv_wrap_score,
    .on_append = colibri_kv_wrap_on_append,
    .on_evict = colibri_kv_wrap_on_evict,
    .fork = fork_state,
    .allot = allot,
    .state_bytes = state_bytes,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_KV_STRATEGY) ? &strategy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_kv_strategy_ada, NULL, get, .id = "colibri.kv-strategy.ada",
                      .kinds = COLIBRI_KIND_KV_STRATEGY, .version = "1.0.0", .license = "MIT",
                      .summary = "KV strategy: wrapper: the heads of a layer share their budget");
