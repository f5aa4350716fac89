/* The table of vector operations that the engine uses: the scalar reference, each member replaced by the best plugin's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "ops/ops.h"
#include "plugin/registry_private.h"

const char *clb_attention_takes_text(uint32_t takes, char out[64])
{
    static const char *const name[] = {"q8_0", "q4_0", "recent positions in f16"};
    size_t n = 0;
    out[0] = '\0';
    for (unsigned i = 0; i < sizeof name / sizeof *name; i++)
        if (takes & 1u << i)
            n += (size_t)snprintf(out + n, 64 - n, "%s%s", n ? ", " : "", name[i]);
    return out;
}

static const clb_vecop_member *attention_member(void)
{
    for (size_t i = 0; i < clb_n_vecop_members; i++)
        if (clb_vecop_members[i].offset == offsetof(struct colibri_vecops, attention))
            return &clb_vecop_members[i];
    return NULL;
}

/* c's operation m, or the reference's if c is NULL, comes into the table. */
static void put(clb_registry *reg, const clb_vecop_member *m, const clb_component *c)
{
    const struct colibri_vecops *const from = c ? c->table : clb_vecops_reference();
    const void *const code = clb_vecop_code(from, m);
    memcpy((char *)reg->vecops + m->offset, &code, sizeof code);
    if (m == attention_member())
        reg->vecops->attention_takes = from->attention_takes;
    if (c && c->max_ulp > reg->vecops->max_ulp)
        reg->vecops->max_ulp = c->max_ulp;
    clb_note_use(reg, "vecops", m->name, c);
}

const struct colibri_vecops *clb_registry_vecops(clb_registry *reg)
{
    if (reg->vecops)
        return reg->vecops;
    const struct colibri_vecops *const reference = clb_vecops_reference();
    reg->vecops = malloc(sizeof *reg->vecops);
    if (!reg->vecops)
        return reference;
    *reg->vecops = *reference;
    reg->vecops->name = "merged";
    clb_registry_load_kinds(reg, COLIBRI_KIND_KERNEL);
    clb_check_prefer(reg);
    for (size_t i = 0; i < clb_n_vecop_members; i++) {
        const clb_vecop_member *const m = &clb_vecop_members[i];
        put(reg, m, clb_select(reg, &(clb_want){.iface = CLB_IFACE_VECOPS, .member = m}, NULL));
    }
    return reg->vecops;
}

const struct colibri_vecops *clb_registry_attention_for(clb_registry *reg, uint32_t takes)
{
    const struct colibri_vecops *const table = clb_registry_vecops(reg);
    if (table != reg->vecops)
        return table; /* out of memory: the reference takes everything */
    reg->attention_takes |= takes;
    const uint32_t missing = reg->attention_takes & ~table->attention_takes;
    if (!missing)
        return table;
    const clb_vecop_member *const m = attention_member();
    const clb_want best = {.iface = CLB_IFACE_VECOPS, .member = m};
    const clb_want able = {.iface = CLB_IFACE_VECOPS, .member = m, .attention_takes = reg->attention_takes};
    const clb_component *const lacks = clb_select(reg, &best, NULL), *const c = clb_select(reg, &able, NULL);
    char names[64];
    clb_logf(reg->log, COLIBRI_LOG_WARN, "the attention of %s does not take %s: using %s", lacks ? lacks->name : "?",
             clb_attention_takes_text(missing, names), c ? c->name : "the scalar reference, which is slow");
    put(reg, m, c);
    return table;
}
