#include "engine/kv_share_settings.h"

#include <string.h>

#include "kv/prefix.h"

uint64_t clb_kv_share_memory(const clb_config *config)
{
    return clb_config_bool(config, CLB_SET_kv_kv_share) ? clb_config_u64(config, CLB_SET_kv_kv_share_memory) : 0;
}

struct salt {
    clb_buf bytes;
    int rc;
    clb_error *err;
};

static void add(struct salt *s, const void *data, size_t n)
{
    if (!s->rc)
        s->rc = clb_buf_append(&s->bytes, data, n, s->err);
}

/* Kernels and formats differ in how they round. Who decides what is evicted or read ahead does not matter: nothing is shared
 * after an eviction. */
static void add_use(void *ctx, const char *kind, const char *what, const char *component, const char *plugin_id,
                    const char *path)
{
    const char *const words[] = {kind, what, component, plugin_id};
    (void)path;
    if (strcmp(kind, "expert-policy") == 0 || strcmp(kind, "kv-strategy") == 0 || strcmp(kind, "predictor") == 0)
        return;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        add(ctx, words[i], strlen(words[i]) + 1);
}

int clb_kv_share_open(clb_engine *e, const clb_config *config, const void *model, size_t n_model, clb_error *err)
{
    struct salt s = {.err = err};
    const clb_kv_layout *l = &e->kv_layout;
    if (!clb_config_bool(config, CLB_SET_kv_kv_share))
        return COLIBRI_OK;
    add(&s, model, n_model);
    add(&s, &l->attention_scale, sizeof l->attention_scale);
    if (l->inv_freq) /* rotation may be stretched by a setting or the context length */
        add(&s, l->inv_freq, l->n_rot / 2 * sizeof *l->inv_freq);
    const uint64_t lora = clb_lora_set_hash(&e->adapters.defaults, 0);
    if (lora)
        add(&s, &lora, sizeof lora);
    clb_registry_uses(e->registry, add_use, &s);
    if (!s.rc)
        s.rc = clb_kv_share(e->kv, s.bytes.data, s.bytes.n, err);
    clb_buf_free(&s.bytes);
    return s.rc;
}
