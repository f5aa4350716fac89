/* Walks over the tree of tokens.
 *
 * Within a string nearly every token is allowed, and what follows an allowed character is the same for most characters.
 * So a walk asks of each config over which groups of characters it goes on to one and the same config, and for how many
 * characters that holds: a subtree of such characters, and not longer, is allowed as a whole. */
#include <string.h>

#include "grammar/internal.h"

#define FAR       64u /* characters that are looked ahead */
#define FAR_BIT   16  /* of a config's answer: groups below, how far above */
#define NOT_KNOWN UINT32_MAX

/* The config after each byte of lo..hi is the same one, which *next then is. */
static int same_step(clb_machine *m, uint32_t config, unsigned lo, unsigned hi, uint32_t *next, bool *same,
                     clb_error *err)
{
    CLB_TRY(clb_machine_step(m, config, (uint8_t)lo, next, err));
    for (unsigned c = lo + 1; *same && c <= hi; c++) {
        uint32_t other;
        if (m->g->class_of[c] == m->g->class_of[c - 1])
            continue;
        CLB_TRY(clb_machine_step(m, config, (uint8_t)c, &other, err));
        *same = other == *next;
    }
    return COLIBRI_OK;
}

/* Every character beyond ASCII leads to `to`. */
static int wide_leads_to(clb_machine *m, uint32_t config, uint32_t to, bool *leads, clb_error *err)
{
    uint8_t lo, hi, last_lo = 0, last_hi = 0;
    unsigned last_left = 0;
    *leads = true;
    for (unsigned c = 0xC2; *leads && c <= 0xF4; c++) {
        uint32_t at;
        unsigned left = clb_wide_head((uint8_t)c, &lo, &hi);
        if (left == last_left && lo == last_lo && hi == last_hi && m->g->class_of[c] == m->g->class_of[c - 1])
            continue;
        last_left = left;
        last_lo = lo;
        last_hi = hi;
        CLB_TRY(clb_machine_step(m, config, (uint8_t)c, &at, err));
        for (; *leads && left; left--, lo = 0x80, hi = 0xBF)
            CLB_TRY(same_step(m, at, lo, hi, &at, leads, err));
        *leads = *leads && at == to;
    }
    return COLIBRI_OK;
}

/* The groups all of whose characters lead from config to `to`. */
static int uniform_groups(clb_machine *m, uint32_t config, uint32_t to, uint32_t *groups, clb_error *err)
{
    uint32_t other = 0;
    bool wide;
    for (unsigned c = 0; c < 0x80; c++) {
        const uint32_t group = 1u << clb_byte_group((uint8_t)c);
        uint32_t next;
        if (other & group)
            continue;
        CLB_TRY(clb_machine_step(m, config, (uint8_t)c, &next, err));
        if (next != to)
            other |= group;
    }
    *groups = ~other & ((1u << CLB_GROUP_WIDE) - 1);
    if (!*groups)
        return COLIBRI_OK;
    CLB_TRY(wide_leads_to(m, config, to, &wide, err));
    if (wide)
        *groups |= 1u << CLB_GROUP_WIDE;
    return COLIBRI_OK;
}

/* Groups of config, and where they lead; none if letters lead nowhere (others are not worth the question). */
static int look(clb_machine *m, uint32_t config, uint32_t *next, uint32_t *groups, clb_error *err)
{
    *groups = 0;
    if (m->configs.sets[config].flags & CLB_AT_OPEN)
        return COLIBRI_OK; /* every node counts */
    CLB_TRY(clb_machine_step(m, config, 'e', next, err));
    return *next == CLB_CONFIG_DEAD ? COLIBRI_OK : uniform_groups(m, config, *next, groups, err);
}

static int room_for(clb_walk *w, uint32_t config, clb_error *err)
{
    while (w->n_open <= config) {
        CLB_TRY(clb_grow(&w->open, w->n_open, &w->cap_open, sizeof *w->open, err));
        w->open[w->n_open++] = NOT_KNOWN;
    }
    return COLIBRI_OK;
}

/* Follows the chain of configs until one is known, loops, or is far enough, and answers for all of them on the way
 * back. */
static int find_open(clb_machine *m, clb_walk *w, uint32_t config, clb_error *err)
{
    uint32_t chain[FAR + 1], groups[FAR + 1], n = 0, at = config;
    uint32_t far = 0, all = 0; /* of the config after the chain */
    for (;;) {
        uint32_t next = CLB_CONFIG_DEAD;
        CLB_TRY(room_for(w, at, err));
        if (w->open[at] != NOT_KNOWN) {
            far = w->open[at] >> FAR_BIT;
            all = w->open[at] & ((1u << FAR_BIT) - 1);
            break;
        }
        CLB_TRY(look(m, at, &next, &groups[n], err));
        chain[n++] = at;
        if (next == at) {
            far = FAR;
            all = groups[n - 1];
            break;
        }
        if (!groups[n - 1] || n == FAR)
            break;
        at = next;
    }
    /* The last of a chain that was cut off is not known further than itself: it is asked again when it is its turn. */
    for (uint32_t i = n; i-- > 0;) {
        const bool further = far && (groups[i] & all);
        all = further ? groups[i] & all : groups[i];
        far = !groups[i] ? 0 : !further ? 1 : far < FAR ? far + 1 : FAR;
        if (n < FAR || i == 0)
            w->open[chain[i]] = far << FAR_BIT | all;
    }
    return COLIBRI_OK;
}

static int open_groups(clb_machine *m, clb_walk *w, uint32_t config, uint32_t *out, clb_error *err)
{
    CLB_TRY(room_for(w, config, err));
    if (w->open[config] == NOT_KNOWN)
        CLB_TRY(find_open(m, w, config, err));
    *out = w->open[config];
    return COLIBRI_OK;
}

static bool open_to(uint32_t open, const clb_tree_node *node)
{
    return (node->groups & ~open & ((1u << FAR_BIT) - 1)) == 0 && node->height <= open >> FAR_BIT;
}

static void allow(const clb_token_tree *t, uint32_t begin, uint32_t end, uint64_t *bits)
{
    for (uint32_t k = begin; k < end; k++)
        clb_bit_set(bits, t->ids[k]);
}

int clb_tree_walk(clb_machine *m, const clb_token_tree *t, uint32_t node, uint32_t config, clb_walk *w, clb_error *err)
{
    const clb_tree_node *nodes = t->nodes;
    const uint32_t end = nodes[node].skip;
    clb_walk_place *const stack = w->stack, *const top = &stack[nodes[node].depth];
    top->config = config;
    CLB_TRY(open_groups(m, w, config, &top->open, err));
    for (uint32_t i = node + 1; i < end;) {
        const clb_tree_node *at = &nodes[i];
        const clb_walk_place *above = &stack[at->depth - 1];
        clb_walk_place *here = &stack[at->depth];
        uint32_t next;
        if (open_to(above->open, at)) {
            allow(t, at->token, nodes[at->skip].token, w->bits);
            i = at->skip;
            continue;
        }
        CLB_TRY(clb_machine_step(m, above->config, at->byte, &next, err));
        if (next == CLB_CONFIG_DEAD) {
            i = at->skip;
            continue;
        }
        allow(t, at->token, nodes[i + 1].token, w->bits);
        if (at->skip > ++i) {
            here->config = next;
            here->open = above->open;
            if (next != above->config)
                CLB_TRY(open_groups(m, w, next, &here->open, err));
            if (w->pops && (m->configs.sets[next].flags & CLB_AT_OPEN)) {
                if (w->n_pops == w->most_pops) {
                    w->n_pops++;
                    return COLIBRI_OK;
                }
                w->pops[w->n_pops++] = i - 1;
            }
        }
    }
    return COLIBRI_OK;
}
