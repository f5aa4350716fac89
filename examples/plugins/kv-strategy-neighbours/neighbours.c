/* Example of a KV strategy that wraps another one outside of Colibri's tree: a position is worth as much as the best of its
 * neighbours, so that what surrounds an important token stays with it: `--kv-strategy neighbours:reach=2/h2o`.
 *
 * Source: none; made up as an example. docs/writing-a-kv-strategy.md explains it. */
#include <math.h>

#include <colibri/kv_wrap.h>

enum { REACH, N_PARAMS };

static const struct colibri_param params[] = {
    [REACH] = {"reach", 0, 64, 2, 1, "neighbours on each side that a position lends its worth to"},
};

struct neighbours {
    struct colibri_kv_wrap wrap; /* first: the callbacks of kv_wrap.h look for it there */
    uint32_t reach, most;
    float scores[]; /* [most]: the child's */
};

static void *create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    struct neighbours *s = calloc(1, sizeof *s + config->max_positions * sizeof s->scores[0]);
    if (!s) {
        snprintf(why, why_size, "out of memory");
        return NULL;
    }
    /* Makes the child, with the whole budget; refuses one that does not rank positions. */
    if (colibri_kv_wrap_open(&s->wrap, config, N_PARAMS, config->budget, 1, why, why_size)) {
        free(s);
        return NULL;
    }
    s->reach = (uint32_t)config->params[REACH];
    s->most = config->max_positions;
    return s;
}

static void destroy(void *self)
{
    struct neighbours *s = self;
    colibri_kv_wrap_close(&s->wrap);
    free(s);
}

/* Neighbours in the text: what lay between two kept positions may be gone already. */
static void score(void *self, const struct colibri_kv_view *view, float *out)
{
    struct neighbours *s = self;
    if (view->n > s->most) { /* the host promises otherwise; scores that are no numbers are an answer that it replaces */
        for (uint32_t i = 0; i < view->n; i++)
            out[i] = NAN;
        return;
    }
    colibri_kv_wrap_score(s, view, s->scores);
    for (uint32_t i = 0, first = 0; i < view->n; i++) {
        while (view->positions[i] - view->positions[first] > s->reach)
            first++;
        out[i] = s->scores[first];
        for (uint32_t k = first + 1; k < view->n && view->positions[k] <= view->positions[i] + s->reach; k++)
            if (!(s->scores[k] <= out[i])) /* a NaN is passed on: the host shall see it */
                out[i] = s->scores[k];
    }
}

/* No triggers, no positions, no needs of its own: the child's apply, and the host computes what the child needs. */
static const struct colibri_kv_strategy strategy = {
    .struct_size = sizeof strategy,
    .flags = COLIBRI_KV_FLAG_WRAPPER | COLIBRI_KV_FLAG_DETERMINISTIC,
    .n_params = N_PARAMS,
    .name = "neighbours",
    .summary = "wrapper: neighbours of what the wrapped strategy ranks high stay with it (lossy)",
    .source = "example",
    .params = params,
    .create = create,
    .destroy = destroy,
    .reset = colibri_kv_wrap_reset,
    .budget = colibri_kv_wrap_budget,
    .score = score,
    .on_append = colibri_kv_wrap_on_append,
    .on_evict = colibri_kv_wrap_on_evict,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && strcmp(iface, COLIBRI_IFACE_KV_STRATEGY) == 0 ? &strategy : NULL;
}

COLIBRI_PLUGIN_DEFINE(org_example_kv_strategy_neighbours, NULL, get, .id = "org.example.kv-strategy.neighbours",
                      .kinds = COLIBRI_KIND_KV_STRATEGY, .version = "1.0.0", .license = "MIT",
                      .summary = "KV strategy: neighbours of important tokens stay with them");
