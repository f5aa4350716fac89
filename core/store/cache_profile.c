/* What a policy says about an expert, and what it learned, kept for the next run. */
#include <string.h>

#include "store/cache_internal.h"

void clb_cache_explain(clb_cache *c, uint32_t layer, uint32_t expert, char *out, size_t size)
{
    const struct clb_cache_pool *p = &c->pools[c->pool_of[layer]];
    if (size)
        out[0] = '\0';
    if (p->self && c->options.policy->explain)
        c->options.policy->explain(p->self, c->local_of[layer], expert, out, size);
}

size_t clb_cache_save(clb_cache *c, void *buf, size_t size)
{
    const struct colibri_expert_policy *policy = c->options.policy;
    if (!policy->save || !policy->load)
        return 0;
    size_t total = sizeof(uint32_t);
    uint8_t *to = buf;
    if (size >= total)
        memcpy(to, &c->n_pools, sizeof c->n_pools);
    for (uint32_t i = 0; i < c->n_pools; i++) {
        void *self = c->pools[i].self;
        const uint64_t need = self ? policy->save(self, NULL, 0) : 0;
        if (need > CLB_MOST_PROFILE || total + need > CLB_MOST_PROFILE)
            return 0; /* also what a policy returns that counts wrongly */
        const size_t at = total + sizeof need;
        total = at + (size_t)need;
        if (size < total)
            continue;
        memcpy(to + at - sizeof need, &need, sizeof need);
        if (need && policy->save(self, to + at, (size_t)need) != need)
            return 0;
    }
    return total;
}

int clb_cache_load(clb_cache *c, const void *buf, size_t size, clb_error *err)
{
    const struct colibri_expert_policy *policy = c->options.policy;
    const uint8_t *from = buf;
    uint32_t n = 0;
    size_t at = sizeof n;
    if (!policy->load)
        return clb_fail(err, COLIBRI_E_UNSUPPORTED, "expert policy %s keeps no profile", policy->name);
    if (size >= at)
        memcpy(&n, from, sizeof n);
    if (n != c->n_pools)
        return clb_fail(err, COLIBRI_E_FORMAT, "the profile is for %u pools of expert slots, here there are %u", n,
                        c->n_pools);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t part;
        if (size - at < sizeof part)
            return clb_fail(err, COLIBRI_E_FORMAT, "the profile ends early");
        memcpy(&part, from + at, sizeof part);
        at += sizeof part;
        if (part > size - at)
            return clb_fail(err, COLIBRI_E_FORMAT, "the profile ends early");
        struct clb_cache_pool *p = &c->pools[i];
        const bool loaded = !part || (p->self && policy->load(p->self, from + at, (size_t)part) == COLIBRI_OK);
        if (part && p->self)
            clb_order_refresh(p);
        if (!loaded)
            return clb_fail(err, COLIBRI_E_FORMAT, "expert policy %s does not accept the profile", policy->name);
        at += (size_t)part;
    }
    return at == size ? COLIBRI_OK : clb_fail(err, COLIBRI_E_FORMAT, "%zu bytes too many in the profile", size - at);
}
