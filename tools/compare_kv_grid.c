/* The grid: settings, tasks, items and records, whoever they come from. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare_kv.h"
#include "config/value.h"

#define MOST_SETTINGS 4096u
#define MOST_TASKS    256u
#define MOST_ITEMS    1000000u
#define MOST_POSITIONS (1u << 24)

const char *clb_kvc_kind_name(enum clb_kvc_kind kind)
{
    return kind == CLB_KVC_TEXT ? "text" : kind == CLB_KVC_RECALL ? "recall" : "passkey";
}

/* Room for one more, doubled at powers of two; the new one is zero. list: address of the pointer. */
static int grow(void *list, uint32_t n, size_t size, uint32_t most, const char *what, clb_error *err)
{
    void *p;
    memcpy(&p, list, sizeof p);
    if (n >= most)
        return clb_fail(err, COLIBRI_E_LIMIT, "more than %u %s", most, what);
    if ((n & (n - 1)) == 0) {
        p = realloc(p, (n ? (size_t)n * 2 : 1) * size);
        if (!p)
            return CLB_NOMEM(err, what);
        memcpy(list, &p, sizeof p);
    }
    memset((char *)p + n * size, 0, size);
    return COLIBRI_OK;
}

static int copy(char **out, const char *text, clb_error *err)
{
    *out = strdup(text);
    return *out ? COLIBRI_OK : CLB_NOMEM(err, "a name");
}

double clb_kvc_budget_share(const char *budget)
{
    clb_share share;
    if (!*budget)
        return 1;
    return !clb_parse_share(budget, &share, NULL) && share.part > 0 ? share.part : (double)NAN;
}

int clb_kvc_check_budget(const char *flag, const char *text, clb_error *err)
{
    clb_share share;
    if (clb_parse_share(text, &share, err))
        return clb_context(err, "--%s", flag);
    if ((share.n == 0 && !(share.part > 0)) || share.n > MOST_POSITIONS || strlen(text) >= CLB_KVC_BUDGET_TEXT)
        return clb_fail(err, COLIBRI_E_USAGE, "--%s %.40s: must be a share (25%%) or a number of positions, at most %u",
                        flag, text, MOST_POSITIONS);
    return COLIBRI_OK;
}

/* The whole, shares from large to small, then numbers of positions from large to small. */
static bool comes_before(const char *a, const char *b)
{
    const double x = clb_kvc_budget_share(a), y = clb_kvc_budget_share(b);
    if (isnan(x) != isnan(y))
        return isnan(y);
    return isnan(x) ? strtod(a, NULL) > strtod(b, NULL) : x > y;
}

static int size_index(clb_kvc *c, const char *budget, uint32_t *out, clb_error *err)
{
    uint32_t at = 0;
    for (; at < c->n_sizes && strcmp(c->sizes[at], budget) != 0; at++)
        ;
    *out = at;
    if (at < c->n_sizes)
        return COLIBRI_OK;
    char *text;
    CLB_TRY(grow(&c->sizes, c->n_sizes, sizeof *c->sizes, MOST_SETTINGS, "budgets", err));
    CLB_TRY(copy(&text, budget, err));
    for (at = c->n_sizes++; at && comes_before(budget, c->sizes[at - 1]); at--)
        c->sizes[at] = c->sizes[at - 1];
    c->sizes[at] = text;
    for (uint32_t s = 0; s < c->n_settings; s++)
        c->settings[s].size += c->settings[s].size >= at;
    *out = at;
    return COLIBRI_OK;
}

static int name_index(clb_kvc *c, const char *strategy, const char *positions, uint32_t *out, clb_error *err)
{
    char label[320];
    snprintf(label, sizeof label, *positions ? "%.255s (%.40s)" : "%.255s", strategy, positions);
    for (*out = 0; *out < c->n_names; ++*out)
        if (!strcmp(c->names[*out], label))
            return COLIBRI_OK;
    CLB_TRY(grow(&c->names, c->n_names, sizeof *c->names, MOST_SETTINGS, "strategies", err));
    CLB_TRY(copy(&c->names[c->n_names], label, err));
    c->n_names++;
    return COLIBRI_OK;
}

uint32_t clb_kvc_find_setting(const clb_kvc *c, const char *strategy, const char *budget, const char *positions)
{
    for (uint32_t s = 0; s < c->n_settings; s++)
        if (!strcmp(c->settings[s].strategy, strategy) && !strcmp(c->settings[s].budget, budget) &&
            !strcmp(c->settings[s].positions, positions))
            return s;
    return CLB_KVC_NONE;
}

int clb_kvc_add_setting(clb_kvc *c, const char *strategy, const char *budget, const char *positions, const char *code,
                        uint32_t *out, clb_error *err)
{
    *out = clb_kvc_find_setting(c, strategy, budget, positions);
    if (*out != CLB_KVC_NONE) {
        clb_kvc_setting *const s = &c->settings[*out];
        if (*s->code && *code && strcmp(s->code, code) != 0)
            return clb_fail(err, COLIBRI_E_USAGE,
                            "%.80s has changed: its records were made with %.120s, this is %.120s; use another file",
                            strategy, s->code, code);
        if (!*s->code && *code) {
            free(s->code);
            return copy(&s->code, code, err);
        }
        return COLIBRI_OK;
    }
    CLB_TRY(grow(&c->settings, c->n_settings, sizeof *c->settings, MOST_SETTINGS, "settings", err));
    clb_kvc_setting *const s = &c->settings[c->n_settings];
    int rc = copy(&s->strategy, strategy, err);
    if (!rc)
        rc = copy(&s->budget, budget, err);
    if (!rc)
        rc = copy(&s->positions, positions, err);
    if (!rc)
        rc = copy(&s->code, code, err);
    if (!rc)
        rc = name_index(c, strategy, positions, &s->name, err);
    if (!rc)
        rc = size_index(c, budget, &s->size, err);
    *out = c->n_settings++; /* what was copied is freed with the others */
    return rc;
}

uint32_t clb_kvc_find_task(const clb_kvc *c, const char *name)
{
    for (uint32_t t = 0; t < c->n_tasks; t++)
        if (!strcmp(c->tasks[t].name, name))
            return t;
    return CLB_KVC_NONE;
}

int clb_kvc_add_task(clb_kvc *c, enum clb_kvc_kind kind, const char *name, const char *path, const char *hash,
                     uint32_t *out, clb_error *err)
{
    *out = clb_kvc_find_task(c, name);
    if (*out != CLB_KVC_NONE) {
        const clb_kvc_task *const t = &c->tasks[*out];
        if (t->kind != kind || strcmp(t->hash, hash) != 0)
            return clb_fail(err, COLIBRI_E_USAGE, "task %.80s is another one than that of the same name (%s, %s)", name,
                            clb_kvc_kind_name(t->kind), t->path);
        return COLIBRI_OK;
    }
    CLB_TRY(grow(&c->tasks, c->n_tasks, sizeof *c->tasks, MOST_TASKS, "tasks", err));
    clb_kvc_task *const t = &c->tasks[c->n_tasks];
    t->kind = kind;
    int rc = copy(&t->name, name, err);
    if (!rc)
        rc = copy(&t->path, path, err);
    if (!rc)
        rc = copy(&t->hash, hash, err);
    *out = c->n_tasks++;
    return rc;
}

/* NAN is equal to NAN here. */
static bool same_number(double a, double b)
{
    return isnan(a) ? isnan(b) : fabs(a - b) <= 1e-9 * fabs(b);
}

static bool group_before(const clb_kvc_group *a, const clb_kvc_group *b)
{
    if (!same_number(a->length, b->length))
        return a->length < b->length;
    return a->depth < b->depth; /* without numbers: as they come */
}

static int group_index(clb_kvc *c, uint32_t task, const char *label, double length, double depth, uint32_t *out,
                       clb_error *err)
{
    clb_kvc_task *const t = &c->tasks[task];
    for (*out = 0; *out < t->n_groups; ++*out)
        if (!strcmp(t->groups[*out].label, label))
            return COLIBRI_OK;
    CLB_TRY(grow(&t->groups, t->n_groups, sizeof *t->groups, MOST_ITEMS, "groups of items", err));
    clb_kvc_group g = {.length = length, .depth = depth};
    CLB_TRY(copy(&g.label, label, err));
    uint32_t at = t->n_groups++;
    for (; at && group_before(&g, &t->groups[at - 1]); at--)
        t->groups[at] = t->groups[at - 1];
    t->groups[at] = g;
    for (uint32_t i = 0; i < c->n_items; i++)
        if (c->items[i].task == task)
            c->items[i].group += c->items[i].group >= at;
    *out = at;
    return COLIBRI_OK;
}

/* Records name items in the order in which they were added, again and again: the search begins behind the last find. */
uint32_t clb_kvc_find_item(const clb_kvc *c, uint32_t task, const char *id)
{
    const uint32_t first = c->n_records ? c->records[c->n_records - 1].item : 0;
    for (uint32_t k = 0; k < c->n_items; k++) {
        const uint32_t i = (first + k) % c->n_items;
        if (c->items[i].task == task && !strcmp(c->ids[i], id))
            return i;
    }
    return CLB_KVC_NONE;
}

int clb_kvc_add_item(clb_kvc *c, uint32_t task, const char *id, const char *group, double length, double depth,
                     uint32_t *out, clb_error *err)
{
    uint32_t g;
    *out = clb_kvc_find_item(c, task, id);
    if (*out != CLB_KVC_NONE) {
        if (strcmp(c->tasks[task].groups[c->items[*out].group].label, group) != 0)
            return clb_fail(err, COLIBRI_E_USAGE, "task %.80s: item %.80s is there twice, with other values",
                            c->tasks[task].name, id);
        return COLIBRI_OK;
    }
    CLB_TRY(group_index(c, task, group, length, depth, &g, err));
    /* One counter for two lists. */
    CLB_TRY(grow(&c->items, c->n_items, sizeof *c->items, MOST_ITEMS, "items", err));
    CLB_TRY(grow(&c->ids, c->n_items, sizeof *c->ids, MOST_ITEMS, "items", err));
    CLB_TRY(copy(&c->ids[c->n_items], id, err));
    c->items[c->n_items] = (clb_kvc_item){.task = task, .group = g};
    c->tasks[task].n_items++;
    *out = c->n_items++;
    return COLIBRI_OK;
}

/* ---- records ---- */

bool clb_kvc_has(const clb_kvc *c, uint32_t setting, uint32_t item)
{
    if (setting >= c->filled_settings || item >= c->filled_items)
        return false;
    const size_t bit = (size_t)setting * c->filled_items + item;
    return c->filled[bit / 64] >> (bit % 64) & 1;
}

static int make_room(clb_kvc *c, uint32_t setting, uint32_t item, clb_error *err)
{
    if (setting < c->filled_settings && item < c->filled_items)
        return COLIBRI_OK;
    const size_t n_settings = (size_t)c->n_settings + 64, n_items = (size_t)c->n_items + 1024;
    uint64_t *const bits = calloc(n_settings * n_items / 64 + 1, sizeof *bits);
    if (!bits)
        return CLB_NOMEM(err, "the grid");
    for (uint32_t r = 0; r < c->n_records; r++) {
        const size_t bit = (size_t)c->records[r].setting * n_items + c->records[r].item;
        bits[bit / 64] |= UINT64_C(1) << (bit % 64);
    }
    free(c->filled);
    c->filled = bits;
    c->filled_settings = (uint32_t)n_settings;
    c->filled_items = (uint32_t)n_items;
    return COLIBRI_OK;
}

uint64_t clb_kvc_bad_answers(const clb_kvc *c, uint32_t setting, uint32_t *items, uint32_t *of)
{
    uint64_t n = 0;
    *items = *of = 0;
    for (uint32_t r = 0; r < c->n_records; r++)
        if (c->records[r].setting == setting) {
            n += c->records[r].bad_answers;
            *items += c->records[r].bad_answers > 0;
            ++*of;
        }
    return n;
}

bool clb_kvc_bad_text(const clb_kvc *c, uint32_t setting, char *out, size_t size)
{
    const clb_kvc_setting *const s = &c->settings[setting];
    uint32_t items, of;
    if (!clb_kvc_bad_answers(c, setting, &items, &of))
        return false;
    snprintf(out, size,
             "%.160s at %.20s answered badly in %u of %u items, where the first and the newest positions stayed instead: its "
             "figures are not the strategy's.",
             c->names[s->name], *s->budget ? s->budget : "all", items, of);
    return true;
}

int clb_kvc_add_record(clb_kvc *c, const clb_kvc_record *record, clb_error *err)
{
    if (clb_kvc_has(c, record->setting, record->item))
        return COLIBRI_OK; /* two runs did the same: the first one stays */
    CLB_TRY(make_room(c, record->setting, record->item, err));
    CLB_TRY(grow(&c->records, c->n_records, sizeof *c->records, UINT32_MAX, "records", err));
    c->records[c->n_records++] = *record;
    const size_t bit = (size_t)record->setting * c->filled_items + record->item;
    c->filled[bit / 64] |= UINT64_C(1) << (bit % 64);
    return COLIBRI_OK;
}

int clb_kvc_add_raster(clb_kvc *c, const clb_kvc_raster *raster, clb_error *err)
{
    for (uint32_t r = 0; r < c->n_rasters; r++)
        if (c->rasters[r].setting == raster->setting && c->rasters[r].item == raster->item) {
            free(raster->seen);
            free(raster->share);
            return COLIBRI_OK;
        }
    CLB_TRY(grow(&c->rasters, c->n_rasters, sizeof *c->rasters, MOST_ITEMS, "rasters", err));
    c->rasters[c->n_rasters++] = *raster;
    return COLIBRI_OK;
}

uint32_t clb_kvc_cell(const clb_kvc *c, uint32_t name, uint32_t size)
{
    for (uint32_t s = 0; s < c->n_settings; s++)
        if (c->settings[s].name == name && c->settings[s].size == size)
            return s;
    return CLB_KVC_NONE;
}

void clb_kvc_free(clb_kvc *c)
{
    for (uint32_t s = 0; s < c->n_settings; s++) {
        free(c->settings[s].strategy);
        free(c->settings[s].budget);
        free(c->settings[s].positions);
        free(c->settings[s].code);
    }
    for (uint32_t t = 0; t < c->n_tasks; t++) {
        for (uint32_t g = 0; g < c->tasks[t].n_groups; g++)
            free(c->tasks[t].groups[g].label);
        free(c->tasks[t].groups);
        free(c->tasks[t].name);
        free(c->tasks[t].path);
        free(c->tasks[t].hash);
    }
    for (uint32_t i = 0; i < c->n_items; i++)
        free(c->ids[i]);
    for (uint32_t i = 0; i < c->n_names; i++)
        free(c->names[i]);
    for (uint32_t i = 0; i < c->n_sizes; i++)
        free(c->sizes[i]);
    for (uint32_t r = 0; r < c->n_rasters; r++) {
        free(c->rasters[r].seen);
        free(c->rasters[r].share);
    }
    free(c->settings);
    free(c->tasks);
    free(c->items);
    free(c->ids);
    free(c->names);
    free(c->sizes);
    free(c->records);
    free(c->rasters);
    free(c->filled);
    free(c->values);
    free(c->means);
    free(c->group_means);
    free(c->against);
    free(c->pairs);
    json_decref(c->header);
    *c = (clb_kvc){0};
}
