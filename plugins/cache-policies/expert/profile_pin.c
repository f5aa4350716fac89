/* profile-pin: the experts that were hottest so far are pinned; the rest of the slots is LRU. What is hot is learned
 * while running, and is kept from run to run in a profile beside the model.
 *
 * Source: placing experts by their popularity in a profile: Kamahori et al., "Fiddler", arXiv:2402.07033, 2024; hot
 * experts pinned by learned counts and changed with hysteresis: the engine colibri (github.com/JustVugg/colibri), 2026.
 *
 * Adapted: heat is the number of token rows that chose an expert, halved every `half-life` tokens so that a profile
 * follows its user; rows count however they were cut into passes. Every `repin` tokens the hottest are pinned, at most
 * `pinned` percent of the slots, and always leaving to LRU what one token needs in all layers of the pool, because less
 * than that would be evicted just before its turn comes. A pinned expert only loses its place to one whose heat is a
 * quarter and four uses higher. Until `warmup` tokens are known nothing is pinned. Pinning protects experts that are
 * here; it fetches none. Equal heat: the lower number.
 *
 * The profile, little-endian: "CBPP", u32 version 1, u32 n_layers, u32 n_experts, u32 top_k, u32 0, u64 tokens,
 * u32 heat[n_layers][n_experts], u64 FNV-1a of all bytes before. */
#include "common.h"

static const struct colibri_param params[] = {
    {"pinned", 0, 100, 50, 0, "percent of the slots for the hottest experts"},
    {"warmup", 1, 1000000, 128, 1, "tokens that must be known before anything is pinned"},
    {"repin", 1, 1000000, 64, 1, "tokens between two choices of what to pin"},
    {"half-life", 1, 1000000000, 1024, 1, "tokens after which all heat is halved"},
};

enum { VERSION = 1, HEAD = 32, SUM = 8 };

struct pin {
    struct grid grid;
    uint32_t top_k, n_slots;
    double percent;
    uint64_t warmup, repin, half_life;
    uint64_t now;
    uint64_t tokens; /* that heat stems from, halved with it */
    uint64_t until_halving, until_choice;
    uint64_t *time; /* [n_layers][n_experts], like the others: of the last use; 0: never */
    uint32_t *heat;
    uint32_t *order; /* scratch */
    uint8_t *pinned;
};

static void reset(void *self)
{
    struct pin *s = self;
    const size_t n = grid_size(&s->grid);
    s->grid.row = s->grid.rows = s->now = s->tokens = 0;
    s->until_halving = s->half_life;
    s->until_choice = 0;
    memset(s->time, 0, n * sizeof s->time[0]);
    memset(s->heat, 0, n * sizeof s->heat[0]);
    memset(s->pinned, 0, n);
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    struct pin *s = grid_block(config, sizeof *s, sizeof(uint64_t) + 2 * sizeof(uint32_t) + 1, why, why_size);
    if (!s)
        return NULL;
    s->grid.n_layers = config->n_layers;
    s->grid.n_experts = config->n_experts;
    const size_t n = grid_size(&s->grid);
    s->time = (uint64_t *)(s + 1);
    s->heat = (uint32_t *)(s->time + n);
    s->order = s->heat + n;
    s->pinned = (uint8_t *)(s->order + n);
    s->top_k = config->top_k;
    s->n_slots = config->n_slots;
    s->percent = param_value(config, params, 0);
    s->warmup = (uint64_t)param_value(config, params, 1);
    s->repin = (uint64_t)param_value(config, params, 2);
    s->half_life = (uint64_t)param_value(config, params, 3);
    reset(s);
    return s;
}

/* Heat as it counts when the pinned are chosen, in quarters: a pinned expert has a quarter and four uses more. */
static uint64_t weight(const struct pin *s, uint32_t n)
{
    const uint64_t heat = s->heat[n];
    return s->pinned[n] ? 5 * heat + 16 : 4 * heat;
}

static int hotter(const struct pin *s, uint32_t a, uint32_t b)
{
    const uint64_t x = weight(s, a), y = weight(s, b);
    return x != y ? x > y : a < b;
}

static void sift(struct pin *s, uint32_t at, uint32_t n)
{
    const uint32_t expert = s->order[at];
    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && hotter(s, s->order[child + 1], s->order[child]))
            child++;
        if (!hotter(s, s->order[child], expert))
            break;
        s->order[at] = s->order[child];
    }
    s->order[at] = expert;
}

/* The hottest of a heap, as many as there is room for: n + m log n steps. */
static void choose(struct pin *s)
{
    const uint32_t n = (uint32_t)grid_size(&s->grid), spare = grid_spare(&s->grid, s->top_k, s->n_slots);
    const uint32_t share = (uint32_t)(s->n_slots * s->percent / 100), most = share < spare ? share : spare;
    for (uint32_t i = 0; i < n; i++)
        s->order[i] = i;
    for (uint32_t i = n / 2; i-- > 0;)
        sift(s, i, n);
    /* The chosen ones go to the end of the array; marks change only after the heap, which is ordered by them, is done.
     */
    uint32_t left = n;
    while (left && n - left < most && s->heat[s->order[0]]) {
        const uint32_t hottest = s->order[0];
        s->order[0] = s->order[--left];
        sift(s, 0, left);
        s->order[left] = hottest;
    }
    memset(s->pinned, 0, n);
    for (uint32_t i = left; i < n; i++)
        s->pinned[s->order[i]] = 1;
}

static void halve(struct pin *s)
{
    for (size_t i = 0; i < grid_size(&s->grid); i++)
        s->heat[i] /= 2;
    s->tokens = (s->tokens + 1) / 2;
}

/* What the rows of the last pass taught. */
static void on_step(void *self, const struct colibri_step *step)
{
    struct pin *s = self;
    const uint64_t rows = s->grid.rows;
    grid_step(&s->grid, step);
    s->tokens += rows;
    uint64_t due = rows;
    for (; due >= s->until_halving; s->until_halving = s->half_life) {
        due -= s->until_halving;
        halve(s);
    }
    s->until_halving -= due;
    if (s->tokens < s->warmup)
        return;
    if (rows < s->until_choice) {
        s->until_choice -= rows;
        return;
    }
    s->until_choice = s->repin;
    choose(s);
}

static void on_route(void *self, const struct colibri_route *route)
{
    struct pin *s = self;
    for (uint32_t r = 0; r < route->n_rows; r++) {
        s->now = grid_time(&s->grid, route->layer, r);
        for (uint32_t k = 0; k < route->top_k; k++) {
            const uint32_t expert = route->ids[(size_t)r * route->top_k + k];
            if (!grid_has(&s->grid, route->layer, expert))
                continue;
            const size_t n = grid_number(&s->grid, route->layer, expert);
            s->time[n] = s->now;
            s->heat[n] += s->heat[n] < UINT32_MAX;
        }
    }
}

/* What was fetched ahead counts as used now. */
static void on_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    struct pin *s = self;
    if (cause != COLIBRI_CAUSE_DEMAND && grid_has(&s->grid, layer, expert))
        s->time[grid_number(&s->grid, layer, expert)] = s->now;
}

static double score(void *self, uint32_t layer, uint32_t expert)
{
    const struct pin *s = self;
    const size_t n = grid_number(&s->grid, layer, expert);
    return (double)s->time[n] + (s->pinned[n] ? 0x1p50 : 0);
}

static void rebudget(void *self, uint32_t n_slots, const uint32_t *layer_slots)
{
    struct pin *s = self;
    (void)layer_slots;
    s->n_slots = n_slots;
    s->until_choice = 0;
}

static void put32(uint8_t *to, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(v >> 8 * i);
}

static void put64(uint8_t *to, uint64_t v)
{
    put32(to, (uint32_t)v);
    put32(to + 4, (uint32_t)(v >> 32));
}

static uint32_t get32(const uint8_t *from)
{
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

static uint64_t get64(const uint8_t *from)
{
    return get32(from) | (uint64_t)get32(from + 4) << 32;
}

static uint64_t checksum(const uint8_t *bytes, size_t n)
{
    uint64_t sum = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++)
        sum = (sum ^ bytes[i]) * UINT64_C(0x100000001b3);
    return sum;
}

static void put_head(const struct pin *s, uint8_t *to)
{
    memcpy(to, "CBPP", 4);
    put32(to + 4, VERSION);
    put32(to + 8, s->grid.n_layers);
    put32(to + 12, s->grid.n_experts);
    put32(to + 16, s->top_k);
    put32(to + 20, 0);
}

static size_t save(void *self, void *buf, size_t size)
{
    const struct pin *s = self;
    const size_t n = grid_size(&s->grid), need = HEAD + 4 * n + SUM;
    if (!buf || size < need)
        return need;
    uint8_t *to = buf;
    put_head(s, to);
    put64(to + 24, s->tokens + s->grid.rows); /* the last pass is in the heat too */
    for (size_t i = 0; i < n; i++)
        put32(to + HEAD + 4 * i, s->heat[i]);
    put64(to + need - SUM, checksum(to, need - SUM));
    return need;
}

/* Nothing changes unless every byte is plausible: of this shape, undamaged, and no expert chosen more often than there
 * were tokens. */
static int load(void *self, const void *buf, size_t size)
{
    struct pin *s = self;
    const size_t n = grid_size(&s->grid), need = HEAD + 4 * n + SUM;
    const uint8_t *from = buf;
    uint8_t head[HEAD];
    put_head(s, head);
    if (!from || size != need || memcmp(from, head, 24) || get64(from + need - SUM) != checksum(from, need - SUM))
        return COLIBRI_E_FORMAT;
    const uint64_t tokens = get64(from + 24);
    if (tokens > UINT64_MAX / 4)
        return COLIBRI_E_FORMAT;
    for (size_t i = 0; i < n; i++)
        if (get32(from + HEAD + 4 * i) > tokens)
            return COLIBRI_E_FORMAT;
    for (size_t i = 0; i < n; i++)
        s->heat[i] = get32(from + HEAD + 4 * i);
    s->tokens = tokens;
    memset(s->pinned, 0, n);
    s->until_choice = 0;
    if (s->tokens >= s->warmup)
        choose(s);
    return COLIBRI_OK;
}

static void explain(void *self, uint32_t layer, uint32_t expert, char *out, size_t size)
{
    const struct pin *s = self;
    const size_t n = grid_number(&s->grid, layer, expert);
    snprintf(out, size, "profile-pin: %s, heat %u of %llu tokens", s->pinned[n] ? "pinned" : "not pinned", s->heat[n],
             (unsigned long long)(s->tokens + s->grid.rows));
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC,
    .name = "profile-pin",
    .summary = "the hottest experts stay, of the others the oldest leaves first",
    .source = "static placement by popularity: Fiddler, arXiv:2402.07033, 2024",
    .params = params,
    .n_params = sizeof params / sizeof params[0],
    .create = create,
    .destroy = free,
    .reset = reset,
    .on_step = on_step,
    .on_route = on_route,
    .on_insert = on_insert,
    .score = score,
    .rebudget = rebudget,
    .save = save,
    .load = load,
    .explain = explain,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_EXPERT_POLICY) ? &policy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_expert_policy_profile_pin, NULL, get, .id = "colibri.expert-policy.profile-pin",
                      .kinds = COLIBRI_KIND_EXPERT_POLICY, .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: the hottest experts stay, of the others the oldest leaves first");
