/* Three attentions, which take different things: none but the best is chosen as long as nothing is asked of it. */
#include "common.h"

static void attend_floats(const struct colibri_attention_args *args)
{
    args->out[0] = 1.0f;
}

static void attend_q8(const struct colibri_attention_args *args)
{
    args->out[0] = 2.0f;
}

static void attend_recent(const struct colibri_attention_args *args)
{
    args->out[0] = 3.0f;
}

static const struct colibri_vecops vecops[] = {
    {.struct_size = sizeof(struct colibri_vecops), .rank = 900, .name = "attend.floats", .attention = attend_floats},
    {.struct_size = sizeof(struct colibri_vecops),
     .rank = 800,
     .attention_takes = COLIBRI_ATTN_TAKES_Q8_0,
     .name = "attend.q8",
     .attention = attend_q8},
    {.struct_size = sizeof(struct colibri_vecops),
     .rank = 700,
     .attention_takes = COLIBRI_ATTN_TAKES_Q8_0 | COLIBRI_ATTN_TAKES_RECENT,
     .name = "attend.recent",
     .attention = attend_recent},
    /* refused: takes what it does not offer */
    {.struct_size = sizeof(struct colibri_vecops),
     .rank = 950,
     .attention_takes = COLIBRI_ATTN_TAKES_Q4_0,
     .name = "attend.none",
     .add = test_add},
};

static const void *get(const char *iface, uint32_t index)
{
    return strcmp(iface, COLIBRI_IFACE_VECOPS) == 0 && index < sizeof vecops / sizeof *vecops ? &vecops[index] : NULL;
}

COLIBRI_PLUGIN_DEFINE(test_attention, NULL, get, .id = "test.attention", .kinds = COLIBRI_KIND_KERNEL, .rank = 100,
                      .version = "1.0.0", .summary = "attentions that take different things", .license = "MIT");
