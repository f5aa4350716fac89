#include "engine/kv_strategy_settings.h"

#include <stdlib.h>
#include <string.h>

#define KIND "kv-strategy"

/* The chain while it is read: strategies outermost first. */
typedef struct reading {
    clb_registry *registry;
    const clb_config *config;
    const char *origin;
    const struct colibri_kv_strategy *strategy[CLB_KV_CHAIN_MOST];
    double *params[CLB_KV_CHAIN_MOST];
    uint32_t n;
} reading;

static bool wraps(const struct colibri_kv_strategy *s)
{
    return s->flags & COLIBRI_KV_FLAG_WRAPPER;
}

static int add_link(reading *r, const char *name, clb_error *err)
{
    if (r->n == CLB_KV_CHAIN_MOST)
        return clb_fail(err, COLIBRI_E_USAGE, "'%.60s' would be strategy number %u of the chain: at most %u wrap each other",
                        name, r->n + 1, CLB_KV_CHAIN_MOST);
    if (r->n && !wraps(r->strategy[r->n - 1]))
        return clb_fail(err, COLIBRI_E_USAGE, "'%.60s' wraps nothing, so nothing can stand behind it (here: '%.60s')",
                        r->strategy[r->n - 1]->name, name);
    const struct colibri_kv_strategy *const s = clb_registry_kv_strategy(r->registry, name, err);
    if (!s)
        return err->code;
    for (uint32_t i = 0; i < r->n; i++)
        if (r->strategy[i] == s)
            return clb_fail(err, COLIBRI_E_USAGE, "'%.60s' is in the chain twice: its parameters could not be told apart",
                            s->name);
    CLB_TRY(clb_config_params_new(r->config, KIND, s->name, s->params, s->n_params, &r->params[r->n], err));
    r->strategy[r->n++] = s;
    return COLIBRI_OK;
}

static int on_spec(void *ctx, const char *name, const char *key, const char *value, clb_error *err)
{
    reading *r = ctx;
    if (!key)
        return add_link(r, name, err);
    const struct colibri_kv_strategy *const s = r->strategy[r->n - 1];
    return clb_config_param_apply(KIND, s->name, key, value, r->origin, s->params, s->n_params, r->params[r->n - 1], err);
}

static int describe(const reading *r, clb_kv_choice *out, clb_error *err)
{
    clb_buf name = {0}, text = {0};
    int rc = COLIBRI_OK;
    for (uint32_t i = 0; i < r->n && !rc; i++) {
        const struct colibri_kv_strategy *const s = r->strategy[i];
        rc = clb_buf_printf(&name, err, "%s%s", i ? "/" : "", s->name);
        if (!rc)
            rc = clb_buf_printf(&text, err, "%s%s", i ? "/" : "", s->name);
        const char *separator = ":";
        for (uint32_t k = 0; k < s->n_params && !rc; k++) {
            if (r->params[i][k] == s->params[k].value)
                continue;
            rc = clb_buf_printf(&text, err, "%s%s=%.15g", separator, s->params[k].name, r->params[i][k]);
            separator = ",";
        }
    }
    out->name = name.data;
    out->text = text.data;
    return rc;
}

/* The chain as the host wants it: children of children in one block. */
static int link_children(reading *r, clb_kv_choice *out, clb_error *err)
{
    out->strategy = r->strategy[0];
    if (r->n > 1) {
        out->child = calloc(r->n - 1, sizeof *out->child);
        if (!out->child)
            return CLB_NOMEM(err, "a chain of KV strategies");
    }
    out->params = r->params[0];
    r->params[0] = NULL;
    for (uint32_t i = 1; i < r->n; i++) {
        out->child[i - 1] = (struct colibri_kv_child){.struct_size = sizeof *out->child,
                                                      .strategy = r->strategy[i],
                                                      .params = r->params[i],
                                                      .child = i + 1 < r->n ? &out->child[i] : NULL};
        r->params[i] = NULL;
    }
    return COLIBRI_OK;
}

static enum clb_kv_renumber renumber(const clb_config *config)
{
    const char *const text = clb_config_str(config, CLB_SET_kv_kv_positions);
    return !strcmp(text, "original") ? CLB_KV_ORIGINAL : !strcmp(text, "compact") ? CLB_KV_COMPACT : CLB_KV_AS_DECLARED;
}

static int finish(reading *r, clb_kv_choice *out, clb_error *err)
{
    const struct colibri_kv_strategy *const last = r->strategy[r->n - 1];
    if (wraps(last))
        return clb_fail(err, COLIBRI_E_USAGE, "'%.60s' wraps another strategy: name it behind a '/', as in %.60s/snapkv",
                        last->name, last->name);
    CLB_TRY(describe(r, out, err));
    CLB_TRY(link_children(r, out, err));
    out->positions = renumber(r->config);
    out->n_protected = (uint32_t)clb_config_u64(r->config, CLB_SET_kv_kv_protect);
    out->budget = clb_config_share(r->config, CLB_SET_kv_kv_budget);
    out->traits = clb_kv_traits_of(out->strategy, out->child, out->positions);
    out->picks_pages = !out->traits.evicts && COLIBRI_HAS(out->strategy, pick_pages) && out->strategy->pick_pages;
    return COLIBRI_OK;
}

static int check_use(const clb_config *config, bool configured, const clb_kv_choice *c, clb_error *err)
{
    if (!configured)
        return COLIBRI_OK;
    if (c->traits.evicts && clb_config_bool(config, CLB_SET_kv_context_shift))
        return clb_fail(err, COLIBRI_E_USAGE,
                        "--context-shift does not apply: the KV strategy \"%s\" evicts, so a text may be longer than the "
                        "context anyway",
                        c->name);
    if (c->traits.evicts)
        return COLIBRI_OK;
    if (clb_kv_choice_bounded(c) && !c->picks_pages)
        return clb_fail(err, COLIBRI_E_USAGE,
                        "--kv-budget does not apply: the KV strategy \"%s\" keeps every position (choose another with "
                        "--kv-strategy)",
                        c->name);
    if (c->traits.positions == COLIBRI_KV_POS_COMPACT && clb_config_is_set(config, CLB_SET_kv_kv_positions))
        return clb_fail(err, COLIBRI_E_USAGE,
                        "--kv-positions does not apply: the KV strategy \"%s\" keeps every position, so there are no gaps",
                        c->name);
    return COLIBRI_OK;
}

int clb_kv_choice_parse(clb_registry *registry, const clb_config *config, const char *spec, clb_kv_choice *out,
                        clb_error *err)
{
    clb_error local;
    err = err ? err : &local;
    *out = (clb_kv_choice){0};
    const char *const text = spec ? spec : clb_config_str(config, CLB_SET_kv_kv_strategy);
    const char *const origin = spec ? "KV strategy" : clb_config_origin(config, CLB_SET_kv_kv_strategy);
    reading r = {.registry = registry, .config = config, .origin = origin};
    int rc = clb_config_spec_each(KIND, text, on_spec, &r, err);
    if (!rc)
        rc = finish(&r, out, err);
    if (rc && !spec && !clb_config_is_set(config, CLB_SET_kv_kv_strategy))
        clb_context(err, "--kv-strategy %.120s (default)", text);
    else if (rc)
        clb_context(err, "%s %.120s", origin, text);
    else
        rc = check_use(config, !spec, out, err);
    for (uint32_t i = 0; i < CLB_KV_CHAIN_MOST; i++)
        free(r.params[i]);
    if (rc)
        clb_kv_choice_free(out);
    return rc;
}

void clb_kv_choice_free(clb_kv_choice *c)
{
    for (const struct colibri_kv_child *child = c->child; child; child = child->child)
        free((double *)(uintptr_t)child->params);
    free(c->child);
    free(c->params);
    free(c->name);
    free(c->text);
    *c = (clb_kv_choice){0};
}

bool clb_kv_choice_bounded(const clb_kv_choice *c)
{
    return c->budget.n || c->budget.part > 0;
}

uint32_t clb_kv_choice_budget(const clb_kv_choice *c, uint32_t ctx)
{
    return clb_kv_choice_bounded(c) ? (uint32_t)clb_share_of(c->budget, ctx) : ctx;
}

bool clb_kv_choice_lossy(const clb_kv_choice *c)
{
    return c->traits.evicts || c->picks_pages;
}

const char *clb_kv_choice_positions(const clb_kv_choice *c)
{
    return c->traits.positions == COLIBRI_KV_POS_COMPACT ? "compact" : "original";
}
