/* sieve: experts stand in the order in which they came; a hand goes from the oldest to the newest. Who was used since
 * it last came by stays where it is, who was not leaves. Unlike clock, newcomers stand in front and the hand goes on
 * where it was, so that what is new and unused is sifted out early.
 *
 * Source: Zhang et al., "SIEVE is simpler than LRU: an efficient turn-key eviction algorithm for web caches",
 * NSDI 2024.
 *
 * A visit is a hit in one pass, however many rows it had; coming in is none. The host offers only what may leave; the
 * hand passes the others by as they are. */
#include "common.h"
#include "list.h"

struct sieve {
    struct grid grid;
    uint32_t hand;       /* node to be looked at next; the head: begin at the oldest */
    uint8_t *visited;    /* [n_layers * n_experts] */
    struct node nodes[]; /* experts, then the head: after it the newest, before it the oldest */
};

static uint32_t size_of(const struct sieve *s)
{
    return (uint32_t)grid_size(&s->grid);
}

static void reset(void *self)
{
    struct sieve *s = self;
    list_clear(s->nodes, size_of(s), 1);
    memset(s->visited, 0, size_of(s));
    s->hand = size_of(s);
}

static void destroy(void *self)
{
    struct sieve *s = self;
    free(s->visited);
    free(s);
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    struct sieve *s = grid_block(config, sizeof *s + sizeof s->nodes[0], sizeof s->nodes[0], why, why_size);
    if (!s)
        return NULL;
    s->grid = (struct grid){config->n_layers, config->n_experts, 0, 0};
    s->visited = malloc(size_of(s));
    if (!s->visited) {
        free(s);
        snprintf(why, why_size, "no memory");
        return NULL;
    }
    reset(s);
    return s;
}

static void on_access(void *self, const struct colibri_access *access, uint32_t n)
{
    struct sieve *s = self;
    for (uint32_t i = 0; i < n; i++)
        if (access[i].result != COLIBRI_ACCESS_MISS && grid_has(&s->grid, access[i].layer, access[i].expert))
            s->visited[grid_number(&s->grid, access[i].layer, access[i].expert)] = 1;
}

static void on_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    struct sieve *s = self;
    (void)cause;
    if (!grid_has(&s->grid, layer, expert))
        return;
    const uint32_t number = (uint32_t)grid_number(&s->grid, layer, expert);
    if (list_has(s->nodes, number))
        return;
    list_insert(s->nodes, size_of(s), number);
    s->visited[number] = 0;
}

static void on_evict(void *self, uint32_t layer, uint32_t expert, uint32_t uses, int prefetched_unused)
{
    struct sieve *s = self;
    (void)uses;
    (void)prefetched_unused;
    if (!grid_has(&s->grid, layer, expert))
        return;
    const uint32_t number = (uint32_t)grid_number(&s->grid, layer, expert);
    if (!list_has(s->nodes, number))
        return;
    if (s->hand == number)
        s->hand = s->nodes[number].before;
    list_remove(s->nodes, number);
}

static int pick_victims(void *self, const struct colibri_expert_ref *candidates, uint32_t n_candidates, uint32_t n,
                        uint32_t *out_index)
{
    struct sieve *s = self;
    uint32_t found = 0;
    list_mark(s->nodes, s->grid.n_experts, candidates, n_candidates);
    /* After one round every candidate has lost its bit, so two rounds find n of them. */
    for (uint64_t i = 0; found < n && i < 2 * ((uint64_t)size_of(s) + 1); i++) {
        struct node *node = &s->nodes[s->hand];
        if (node->candidate && s->visited[s->hand]) {
            s->visited[s->hand] = 0;
        } else if (node->candidate) {
            out_index[found++] = node->candidate - 1;
            node->candidate = 0;
        }
        s->hand = node->before;
    }
    list_unmark(s->nodes, s->grid.n_experts, candidates, n_candidates);
    return found == n ? COLIBRI_OK : COLIBRI_E_LIMIT;
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC,
    .name = "sieve",
    .summary = "a hand sifts out what was not used, from the oldest to the newest",
    .source = "SIEVE: Zhang et al., NSDI 2024",
    .create = create,
    .destroy = destroy,
    .reset = reset,
    .on_access = on_access,
    .on_insert = on_insert,
    .on_evict = on_evict,
    .pick_victims = pick_victims,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_EXPERT_POLICY) ? &policy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_expert_policy_sieve, NULL, get, .id = "colibri.expert-policy.sieve",
                      .kinds = COLIBRI_KIND_EXPERT_POLICY, .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: a hand sifts out what was not used");
