/* s3-fifo: three queues, all first in, first out. Newcomers go through a small queue, a tenth of the cache; who was
 * used twice there moves on to the main queue, the others leave and are remembered for a while as ghosts; a ghost that
 * comes back goes to the main queue at once. In the main queue each use, up to three, buys another round.
 *
 * Source: Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023.
 *
 * Made for web caches, where most objects are asked for once. Experts come back: a control here. A use is a hit in one
 * pass, however many rows it had; coming in is none. What the host does not offer keeps its place and its count. */
#include "common.h"
#include "list.h"

enum { MOST_USES = 3, USES_TO_MOVE = 2 };
enum queue_number { SMALL = 0, MAIN = 1 };

struct s3 {
    struct grid grid;
    uint32_t small_slots, main_slots;
    uint32_t length[2];
    uint64_t ghosts; /* that were ever remembered */
    struct use {
        uint64_t ghost; /* its number among the ghosts; 0: none */
        uint8_t uses, queue;
    } * use;             /* [n_layers * n_experts] */
    struct node nodes[]; /* experts, then the heads of SMALL and MAIN: after a head the newest, before it the oldest */
};

static uint32_t size_of(const struct s3 *s)
{
    return (uint32_t)grid_size(&s->grid);
}

static uint32_t head_of(const struct s3 *s, uint32_t queue)
{
    return size_of(s) + queue;
}

static void reset(void *self)
{
    struct s3 *s = self;
    list_clear(s->nodes, size_of(s), 2);
    memset(s->use, 0, size_of(s) * sizeof s->use[0]);
    s->length[SMALL] = s->length[MAIN] = 0;
    s->ghosts = 0;
}

static void set_slots(struct s3 *s, uint32_t n_slots)
{
    s->small_slots = n_slots / 10 ? n_slots / 10 : 1;
    s->main_slots = n_slots > s->small_slots ? n_slots - s->small_slots : 1;
}

static void destroy(void *self)
{
    struct s3 *s = self;
    free(s->use);
    free(s);
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    struct s3 *s = grid_block(config, sizeof *s + 2 * sizeof s->nodes[0], sizeof s->nodes[0], why, why_size);
    if (!s)
        return NULL;
    s->grid = (struct grid){config->n_layers, config->n_experts, 0, 0};
    set_slots(s, config->n_slots);
    s->use = malloc(size_of(s) * sizeof s->use[0]);
    if (!s->use) {
        free(s);
        snprintf(why, why_size, "no memory");
        return NULL;
    }
    reset(s);
    return s;
}

static void on_access(void *self, const struct colibri_access *access, uint32_t n)
{
    struct s3 *s = self;
    for (uint32_t i = 0; i < n; i++)
        if (access[i].result != COLIBRI_ACCESS_MISS && grid_has(&s->grid, access[i].layer, access[i].expert)) {
            struct use *u = &s->use[grid_number(&s->grid, access[i].layer, access[i].expert)];
            if (u->uses < MOST_USES)
                u->uses++;
        }
}

static void join(struct s3 *s, uint32_t queue, uint32_t number)
{
    list_insert(s->nodes, head_of(s, queue), number);
    s->use[number].queue = (uint8_t)queue;
    s->length[queue]++;
}

static void leave(struct s3 *s, uint32_t number)
{
    list_remove(s->nodes, number);
    s->length[s->use[number].queue]--;
}

/* As many ghosts as the main queue has slots; a number that came back and left again counts anew. */
static int is_ghost(const struct s3 *s, uint32_t number)
{
    return s->use[number].ghost && s->ghosts - s->use[number].ghost < s->main_slots;
}

static void on_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    struct s3 *s = self;
    (void)cause;
    if (!grid_has(&s->grid, layer, expert))
        return;
    const uint32_t number = (uint32_t)grid_number(&s->grid, layer, expert);
    if (list_has(s->nodes, number))
        return;
    join(s, is_ghost(s, number) ? MAIN : SMALL, number);
    s->use[number].ghost = 0;
    s->use[number].uses = 0;
}

static void on_evict(void *self, uint32_t layer, uint32_t expert, uint32_t uses, int prefetched_unused)
{
    struct s3 *s = self;
    (void)uses;
    (void)prefetched_unused;
    if (!grid_has(&s->grid, layer, expert))
        return;
    const uint32_t number = (uint32_t)grid_number(&s->grid, layer, expert);
    if (!list_has(s->nodes, number))
        return;
    if (s->use[number].queue == SMALL)
        s->use[number].ghost = ++s->ghosts;
    leave(s, number);
}

static uint32_t take(struct s3 *s, uint32_t number)
{
    const uint32_t index = s->nodes[number].candidate - 1;
    s->nodes[number].candidate = 0;
    return index;
}

/* The oldest candidate that was not used often enough to move on; on the way the others do. LIST_NONE: none is left. */
static uint32_t from_small(struct s3 *s)
{
    const uint32_t head = head_of(s, SMALL);
    for (uint32_t at = s->nodes[head].before; at != head;) {
        const uint32_t newer = s->nodes[at].before;
        if (s->nodes[at].candidate) {
            if (s->use[at].uses < USES_TO_MOVE)
                return take(s, at);
            leave(s, at);
            join(s, MAIN, at);
            s->use[at].uses = 0;
        }
        at = newer;
    }
    return LIST_NONE;
}

/* The oldest candidate without uses left; on the way the others pay one and go round. A candidate goes round at most
 * MOST_USES times, so a bounded number of looks is enough. */
static uint32_t from_main(struct s3 *s)
{
    const uint32_t head = head_of(s, MAIN);
    for (uint32_t round = 0; round <= MOST_USES; round++) {
        const uint32_t newest = s->nodes[head].after; /* who goes round now stands in front of it */
        for (uint32_t at = s->nodes[head].before; at != head;) {
            const uint32_t newer = s->nodes[at].before;
            if (s->nodes[at].candidate) {
                if (s->use[at].uses == 0)
                    return take(s, at);
                s->use[at].uses--;
                leave(s, at);
                join(s, MAIN, at);
            }
            if (at == newest)
                break;
            at = newer;
        }
    }
    return LIST_NONE;
}

static int pick_victims(void *self, const struct colibri_expert_ref *candidates, uint32_t n_candidates, uint32_t n,
                        uint32_t *out_index)
{
    struct s3 *s = self;
    uint32_t found = 0;
    list_mark(s->nodes, s->grid.n_experts, candidates, n_candidates);
    for (; found < n; found++) {
        /* The picked ones still stand in their queues. */
        const int small_first = s->length[SMALL] >= s->small_slots || s->length[MAIN] == 0;
        uint32_t index = small_first ? from_small(s) : from_main(s);
        if (index == LIST_NONE)
            index = small_first ? from_main(s) : from_small(s);
        if (index == LIST_NONE) /* all of the small queue moved on just now */
            index = from_main(s);
        if (index == LIST_NONE)
            break;
        out_index[found] = index;
    }
    list_unmark(s->nodes, s->grid.n_experts, candidates, n_candidates);
    return found == n ? COLIBRI_OK : COLIBRI_E_LIMIT;
}

static void rebudget(void *self, uint32_t n_slots, const uint32_t *layer_slots)
{
    (void)layer_slots;
    set_slots(self, n_slots);
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC,
    .name = "s3-fifo",
    .summary = "a small queue for newcomers, a main one for what is used again, ghosts",
    .source = "S3-FIFO: Yang et al., SOSP 2023",
    .create = create,
    .destroy = destroy,
    .reset = reset,
    .on_access = on_access,
    .on_insert = on_insert,
    .on_evict = on_evict,
    .pick_victims = pick_victims,
    .rebudget = rebudget,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_EXPERT_POLICY) ? &policy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_expert_policy_s3_fifo, NULL, get, .id = "colibri.expert-policy.s3-fifo",
                      .kinds = COLIBRI_KIND_EXPERT_POLICY, .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: a small queue for newcomers, a main one, ghosts");
