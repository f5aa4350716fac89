/* arc: adaptive replacement. T1 holds what was used once since it came, T2 what was used more often, each ordered by
 * the last use; B1 and B2 remember what left them. Being asked for something in B1 says that T1 is too small, in B2
 * that T2 is, and moves the target size p of T1. T1 gives up its oldest while it is above p, else T2.
 *
 * Source: Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003; used for experts by Fate,
 * arXiv:2502.12224, 2025.
 *
 * Adapted: a use is one token row at its own time, and all four are ordered by those times, B1 and B2 by the last use
 * before leaving. Of the k experts that are missing at once, all that B1 and B2 remember move p before the first of
 * their victims is chosen; the paper's special case for |T1| = p, which depends on which one a slot is for, is left
 * out. An expert that several rows of a prompt ask for goes to T2 as if they had come one by one. The first use of what
 * was fetched ahead is the one it was fetched for. B1 is cut so that T1 and B1 hold at most n_slots, B2 so that all
 * four hold at most twice that. */
#include "common.h"
#include "queue.h"

enum { T1 = 1, T2 = 2, B1 = 3, B2 = 4 };

struct arc {
    struct grid grid;
    uint32_t n_slots;
    double target; /* p */
    uint64_t visit, now;
    struct queue queue[5]; /* [0]: none */
    struct asked *asked;   /* [n_layers][n_experts], like the others */
    struct place *places;
    uint64_t *back; /* the visit in which it was asked for while B1 or B2 remembered it */
    uint8_t *ahead; /* fetched ahead and not used yet */
};

static void reset(void *self)
{
    struct arc *s = self;
    s->grid.row = s->grid.rows = s->visit = s->now = 0;
    s->target = 0;
    for (int q = 0; q < 5; q++)
        s->queue[q].n = 0;
    memset(s->asked, 0, grid_size(&s->grid) * sizeof s->asked[0]);
    memset(s->places, 0, grid_size(&s->grid) * sizeof s->places[0]);
    memset(s->back, 0, grid_size(&s->grid) * sizeof s->back[0]);
    memset(s->ahead, 0, grid_size(&s->grid));
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    const size_t each = sizeof(struct asked) + sizeof(struct place) + sizeof(uint64_t) + 4 * sizeof(uint32_t) + 1;
    struct arc *s = grid_block(config, sizeof *s, each, why, why_size);
    if (!s)
        return NULL;
    s->grid.n_layers = config->n_layers;
    s->grid.n_experts = config->n_experts;
    s->n_slots = config->n_slots;
    const size_t n = grid_size(&s->grid);
    s->asked = (struct asked *)(s + 1);
    s->places = (struct place *)(s->asked + n);
    s->back = (uint64_t *)(s->places + n);
    uint32_t *heaps = (uint32_t *)(s->back + n);
    for (uint32_t q = T1; q <= B2; q++)
        s->queue[q] = queue_open(q, s->places, heaps + (q - 1) * n);
    s->ahead = (uint8_t *)(heaps + 4 * n);
    return s;
}

static void forget(struct arc *s)
{
    const struct queue *q = s->queue;
    while (q[B1].n && (uint64_t)q[T1].n + q[B1].n > s->n_slots)
        queue_take_first(&s->queue[B1]);
    while (q[B2].n && (uint64_t)q[T1].n + q[T2].n + q[B1].n + q[B2].n > 2 * (uint64_t)s->n_slots)
        queue_take_first(&s->queue[B2]);
}

static void rebudget(void *self, uint32_t n_slots, const uint32_t *layer_slots)
{
    struct arc *s = self;
    (void)layer_slots;
    s->n_slots = n_slots;
    s->target = fmin(s->target, n_slots);
    forget(s);
}

static void on_step(void *self, const struct colibri_step *step)
{
    struct arc *s = self;
    grid_step(&s->grid, step);
}

/* Asked for something in B1 (sign 1) or B2 (-1): as many steps as the other one is longer. */
static void move_target(struct arc *s, uint32_t from, uint32_t other, int sign)
{
    const double step = fmax(1, (double)s->queue[other].n / s->queue[from].n);
    s->target = fmin(fmax(s->target + sign * step, 0), s->n_slots);
}

static void use(struct arc *s, uint32_t n, uint64_t time)
{
    const uint32_t in = s->places[n].queue;
    if (in == T1 && s->ahead[n]) {
        s->ahead[n] = 0;
        queue_rekey(&s->queue[T1], n, time);
    } else if (in == T1) {
        queue_remove(&s->queue[T1], n);
        queue_add(&s->queue[T2], n, time);
    } else if (in == T2) {
        queue_rekey(&s->queue[T2], n, time);
    } else {
        if (in) {
            move_target(s, in, in == B1 ? B2 : B1, in == B1 ? 1 : -1);
            queue_remove(&s->queue[in], n);
            s->back[n] = s->visit;
        }
        asked_for(&s->asked[n], s->visit, time);
    }
}

static void on_route(void *self, const struct colibri_route *route)
{
    struct arc *s = self;
    s->visit++;
    for (uint32_t r = 0; r < route->n_rows; r++) {
        s->now = grid_time(&s->grid, route->layer, r);
        for (uint32_t k = 0; k < route->top_k; k++) {
            const uint32_t expert = route->ids[(size_t)r * route->top_k + k];
            if (grid_has(&s->grid, route->layer, expert))
                use(s, (uint32_t)grid_number(&s->grid, route->layer, expert), s->now);
        }
    }
}

static void on_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    struct arc *s = self;
    if (!grid_has(&s->grid, layer, expert))
        return;
    const uint32_t n = (uint32_t)grid_number(&s->grid, layer, expert), in = s->places[n].queue;
    const struct asked *a = &s->asked[n];
    if (in == B1 || in == B2)
        queue_remove(&s->queue[in], n);
    else if (in)
        return;
    const int now = cause == COLIBRI_CAUSE_DEMAND && a->visit == s->visit;
    s->ahead[n] = cause != COLIBRI_CAUSE_DEMAND;
    queue_add(&s->queue[now && (a->rows > 1 || s->back[n] == s->visit) ? T2 : T1], n, now ? a->last : s->now);
    forget(s);
}

static void on_evict(void *self, uint32_t layer, uint32_t expert, uint32_t uses, int prefetched_unused)
{
    struct arc *s = self;
    (void)uses;
    if (!grid_has(&s->grid, layer, expert))
        return;
    const uint32_t n = (uint32_t)grid_number(&s->grid, layer, expert);
    const struct place was = s->places[n];
    if (was.queue != T1 && was.queue != T2)
        return;
    queue_remove(&s->queue[was.queue], n);
    if (!prefetched_unused) /* a wrong guess says nothing about either */
        queue_add(&s->queue[was.queue == T1 ? B1 : B2], n, was.key);
    forget(s);
}

static double score(void *self, uint32_t layer, uint32_t expert)
{
    const struct arc *s = self;
    const struct place *p = &s->places[grid_number(&s->grid, layer, expert)];
    const uint32_t gives = s->queue[T1].n > s->target ? T1 : T2;
    return (double)p->key + (p->queue == gives ? 0 : 0x1p50);
}

static void explain(void *self, uint32_t layer, uint32_t expert, char *out, size_t size)
{
    static const char *const name[] = {"not here", "used once (T1)", "used again (T2)", "remembered (B1)",
                                       "remembered (B2)"};
    const struct arc *s = self;
    snprintf(out, size, "arc: %s; %u used once, of which %.1f are wanted",
             name[s->places[grid_number(&s->grid, layer, expert)].queue], s->queue[T1].n, s->target);
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC,
    .name = "arc",
    .summary = "balances recency and frequency by what each let go too early",
    .source = "Megiddo and Modha, FAST 2003",
    .create = create,
    .destroy = free,
    .reset = reset,
    .on_step = on_step,
    .on_route = on_route,
    .on_insert = on_insert,
    .on_evict = on_evict,
    .score = score,
    .rebudget = rebudget,
    .explain = explain,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_EXPERT_POLICY) ? &policy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_expert_policy_arc, NULL, get, .id = "colibri.expert-policy.arc",
                      .kinds = COLIBRI_KIND_EXPERT_POLICY, .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: balances recency and frequency by what each let go too early");
