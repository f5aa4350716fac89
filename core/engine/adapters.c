#include "engine/adapters.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/forward_lora.h"

static clb_adapter *find(clb_adapters *a, uint32_t id)
{
    for (size_t i = 0; i < a->n; i++)
        if (a->items[i].lora->id == id && clb_adapter_there(&a->items[i]))
            return &a->items[i];
    return NULL;
}

/* Of memory: the adapter, and what passes need while it is in use. */
static uint64_t cost(const clb_adapters *a, const clb_lora *lora)
{
    return lora->bytes + a->rank_bytes * lora->rank;
}

static int no_such(const clb_adapters *a, uint32_t id, clb_error *err)
{
    char list[256] = "none is loaded";
    size_t at = 0;
    for (size_t i = 0; i < a->n && at < sizeof list - 16; i++)
        if (clb_adapter_there(&a->items[i]))
            at += (size_t)snprintf(list + at, sizeof list - at, at ? ", %u" : "there are %u", a->items[i].lora->id);
    return clb_fail(err, COLIBRI_E_NOT_FOUND, "no LoRA adapter has the id %u: %s", id, list);
}

static int check_scale(float scale, clb_error *err)
{
    if (!isfinite(scale) || fabsf(scale) > 1000.0f)
        return clb_fail(err, COLIBRI_E_USAGE, "a LoRA scale of %g: it must be within -1000 and 1000", (double)scale);
    return COLIBRI_OK;
}

static void set_defaults(clb_adapters *a)
{
    a->defaults.n = 0;
    for (size_t i = 0; i < a->n && a->defaults.n < CLB_LORA_MOST; i++)
        if (a->items[i].scale != 0.0f && clb_adapter_there(&a->items[i])) {
            a->defaults.use[a->defaults.n].lora = a->items[i].lora;
            a->defaults.use[a->defaults.n++].scale = a->items[i].scale;
        }
}

/* For one more. */
static int check_room(const clb_adapters *a, float scale, clb_error *err)
{
    uint32_t on = 0;
    for (size_t i = 0; i < a->n; i++)
        on += a->items[i].scale != 0.0f && !a->items[i].leaving;
    if (scale != 0.0f && on >= CLB_LORA_MOST)
        return clb_fail(err, COLIBRI_E_LIMIT,
                        "%u LoRA adapters are on already: load this one with scale 0, or turn one off", on);
    return COLIBRI_OK;
}

static int check_memory(const clb_adapters *a, const clb_lora *lora, clb_error *err)
{
    if (!a->limited || cost(a, lora) <= clb_adapters_room(a))
        return COLIBRI_OK;
    return clb_fail(err, COLIBRI_E_NOMEM,
                    "%s and the work space for its rank of %u need %llu bytes, %llu of %llu are left (--lora-memory)",
                    lora->path, lora->rank, (unsigned long long)cost(a, lora), (unsigned long long)clb_adapters_room(a),
                    (unsigned long long)a->max_bytes);
}

int clb_adapters_expect(clb_adapters *a, const clb_model *model, clb_lora *lora, float scale, clb_error *err)
{
    CLB_TRY(check_scale(scale, err));
    CLB_TRY(check_room(a, scale, err));
    CLB_TRY(check_memory(a, lora, err));
    CLB_TRY(clb_lora_bind(lora, model, err));
    if (a->n == a->cap) {
        const size_t cap = a->cap ? 2 * a->cap : 8;
        clb_adapter *const grown = realloc(a->items, cap * sizeof *grown);
        if (!grown)
            return CLB_NOMEM(err, "an adapter");
        a->items = grown;
        a->cap = cap;
    }
    lora->id = a->next_id++;
    a->bytes += cost(a, lora);
    a->items[a->n++] = (clb_adapter){.lora = lora, .scale = scale, .coming = true};
    return COLIBRI_OK;
}

void clb_adapters_admit(clb_adapters *a, const clb_lora *lora)
{
    for (size_t i = 0; i < a->n; i++)
        if (a->items[i].lora == lora)
            a->items[i].coming = false;
    set_defaults(a);
}

static void take_out(clb_adapters *a, size_t i)
{
    a->bytes -= cost(a, a->items[i].lora);
    memmove(&a->items[i], &a->items[i + 1], (a->n - i - 1) * sizeof *a->items);
    a->n--;
}

void clb_adapters_forget(clb_adapters *a, const clb_lora *lora)
{
    for (size_t i = a->n; i-- > 0;)
        if (a->items[i].lora == lora)
            take_out(a, i);
}

int clb_adapters_load(clb_adapters *a, const clb_model *model, const char *path, float scale, uint32_t *id,
                      clb_error *err)
{
    clb_lora *lora;
    CLB_TRY(clb_lora_look(model, path, &lora, err));
    int rc = clb_adapters_expect(a, model, lora, scale, err);
    if (!rc && (rc = clb_lora_read(lora, NULL, NULL, err)) != COLIBRI_OK)
        clb_adapters_forget(a, lora);
    if (rc) {
        clb_lora_close(lora);
        return rc;
    }
    clb_adapters_admit(a, lora);
    *id = lora->id;
    return COLIBRI_OK;
}

/* One that nobody uses goes. */
static void drop(clb_adapters *a, size_t i)
{
    clb_lora *const lora = a->items[i].lora;
    take_out(a, i);
    clb_lora_close(lora);
}

int clb_adapters_unload(clb_adapters *a, uint32_t id, clb_error *err)
{
    clb_adapter *const x = find(a, id);
    if (!x)
        return no_such(a, id, err);
    x->leaving = true;
    if (!x->users)
        drop(a, (size_t)(x - a->items));
    set_defaults(a);
    return COLIBRI_OK;
}

int clb_adapters_set_scales(clb_adapters *a, const clb_lora_use *uses, size_t n, clb_error *err)
{
    uint32_t on = 0;
    for (size_t i = 0; i < a->n; i++)
        a->items[i].next_scale = a->items[i].scale;
    for (size_t i = 0; i < n; i++) {
        clb_adapter *const x = find(a, uses[i].id);
        if (!x)
            return no_such(a, uses[i].id, err);
        CLB_TRY(check_scale(uses[i].scale, err));
        x->next_scale = uses[i].scale;
    }
    for (size_t i = 0; i < a->n; i++)
        on += a->items[i].next_scale != 0.0f && !a->items[i].leaving;
    if (on > CLB_LORA_MOST)
        return clb_fail(err, COLIBRI_E_LIMIT, "%u LoRA adapters would be on, at most %u can be: turn some off", on,
                        CLB_LORA_MOST);
    for (size_t i = 0; i < a->n; i++)
        a->items[i].scale = a->items[i].next_scale;
    set_defaults(a);
    return COLIBRI_OK;
}

static void count(clb_adapters *a, const clb_lora_set *set, int by)
{
    for (uint32_t u = 0; u < set->n; u++)
        for (size_t i = 0; i < a->n; i++)
            if (a->items[i].lora == set->use[u].lora)
                a->items[i].users += (uint32_t)by;
}

int clb_adapters_take(clb_adapters *a, bool given, const clb_lora_use *uses, size_t n, clb_lora_set *out,
                      clb_error *err)
{
    *out = (clb_lora_set){0};
    if (!given)
        *out = a->defaults;
    for (size_t i = 0; given && i < n; i++) {
        clb_adapter *const x = find(a, uses[i].id);
        if (!x)
            return no_such(a, uses[i].id, err);
        CLB_TRY(check_scale(uses[i].scale, err));
        if (uses[i].scale == 0.0f)
            continue;
        if (out->n == CLB_LORA_MOST)
            return clb_fail(err, COLIBRI_E_LIMIT, "more than %u LoRA adapters in one request", CLB_LORA_MOST);
        out->use[out->n].lora = x->lora;
        out->use[out->n++].scale = uses[i].scale;
    }
    count(a, out, 1);
    return COLIBRI_OK;
}

void clb_adapters_release(clb_adapters *a, const clb_lora_set *set)
{
    count(a, set, -1);
    for (size_t i = a->n; i-- > 0;)
        if (a->items[i].leaving && !a->items[i].users)
            drop(a, i);
}

/* FNV-1a, 64 bits. */
static uint64_t mix(uint64_t h, const void *data, size_t n)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return h;
}

uint64_t clb_lora_set_hash(const clb_lora_set *set, uint64_t seed)
{
    uint64_t sum = 0; /* the order of a set does not matter to what it computes */
    for (uint32_t i = 0; i < set->n; i++) {
        uint64_t h =
            mix(UINT64_C(0xcbf29ce484222325) ^ seed, set->use[i].lora->identity, sizeof set->use[i].lora->identity);
        sum += mix(h, &set->use[i].scale, sizeof set->use[i].scale);
    }
    return set->n && !sum ? 1 : sum;
}

/* ---- settings ---- */

/* "FILE=SCALE"; a '=' that no number follows belongs to the name. */
static int look_at_setting(clb_adapters *a, const clb_model *model, const char *text, clb_error *err)
{
    const char *const equals = strrchr(text, '=');
    char *end = NULL;
    float scale = 1.0f;
    size_t n = strlen(text);
    if (equals && equals[1]) {
        const float value = strtof(equals + 1, &end);
        if (!*end) {
            scale = value;
            n = (size_t)(equals - text);
        }
    }
    char *const path = strndup(text, n);
    clb_lora *lora = NULL;
    int rc = path ? clb_lora_look(model, path, &lora, err) : CLB_NOMEM(err, "an adapter");
    if (!rc)
        rc = clb_adapters_expect(a, model, lora, scale, err);
    free(path);
    if (rc)
        clb_lora_close(lora);
    else
        clb_adapters_admit(a, lora);
    return rc;
}

int clb_adapters_open(clb_adapters *a, const clb_model *model, uint32_t max_rows, const clb_config *config,
                      clb_error *err)
{
    const char *const *files;
    const size_t n = clb_config_list(config, CLB_SET_model_lora, &files);
    *a = (clb_adapters){.next_id = 1, .rank_bytes = clb_forward_lora_bytes(&model->hp, max_rows)};
    for (size_t i = 0; i < n; i++)
        CLB_TRY(look_at_setting(a, model, files[i], err));
    const uint64_t later = clb_config_u64(config, CLB_SET_memory_lora_memory);
    a->max_bytes = a->bytes > later ? a->bytes : later;
    a->limited = true;
    return COLIBRI_OK;
}

uint64_t clb_adapters_room(const clb_adapters *a)
{
    return a->max_bytes > a->bytes ? a->max_bytes - a->bytes : 0;
}

int clb_adapters_read(clb_adapters *a, bool (*cancelled)(void *ctx), void *ctx, clb_error *err)
{
    for (size_t i = 0; i < a->n; i++)
        if (a->items[i].lora->file)
            CLB_TRY(clb_lora_read(a->items[i].lora, cancelled, ctx, err));
    return COLIBRI_OK;
}

void clb_adapters_close(clb_adapters *a)
{
    for (size_t i = 0; i < a->n; i++)
        if (!a->items[i].coming)
            clb_lora_close(a->items[i].lora);
    free(a->items);
    *a = (clb_adapters){0};
}
