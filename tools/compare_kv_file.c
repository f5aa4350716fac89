/* Grids as JSON lines: a header says what ran where and names settings, tasks and items; then one line per result.
 *
 * A run that continues a file adds a header of its own: what decides results must be the same, the machine may not be.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compare_kv.h"
#include "json_out.h"

#define MOST_FILE    ((size_t)1 << 30)
#define MOST_COLUMNS 4096u
#define MOST_ROWS    4096u
#define LEVELS       "0123456789abcdefghijklmnopqrstuvwxyz" /* of a raster's share: 0 .. 1 in steps of 1/35 */

/* ---- writing ---- */

static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *tasks_json(const clb_kvc *c)
{
    json_t *const tasks = json_array();
    for (uint32_t t = 0; t < c->n_tasks; t++) {
        const clb_kvc_task *const k = &c->tasks[t];
        json_t *const items = json_array();
        for (uint32_t i = 0; i < c->n_items; i++) {
            if (c->items[i].task != t)
                continue;
            const clb_kvc_group *const g = &k->groups[c->items[i].group];
            json_array_append_new(items, json_pack("{so, so, so, so}", "id", clb_json_text(c->ids[i]), "group",
                                                   clb_json_text(g->label), "length", number(g->length), "depth",
                                                   number(g->depth)));
        }
        json_array_append_new(tasks, json_pack("{ss, so, so, so, so}", "kind", clb_kvc_kind_name(k->kind), "name",
                                               clb_json_text(k->name), "path", clb_json_text(k->path), "hash",
                                               clb_json_text(k->hash), "items", items));
    }
    return tasks;
}

json_t *clb_kvc_header_json(const clb_kvc *c, const json_t *run)
{
    json_t *const settings = json_array();
    for (uint32_t s = 0; s < c->n_settings; s++) {
        const clb_kvc_setting *const k = &c->settings[s];
        json_array_append_new(settings, json_pack("{so, so, so, so}", "strategy", clb_json_text(k->strategy), "budget",
                                                  clb_json_text(k->budget), "positions", clb_json_text(k->positions),
                                                  "code", clb_json_text(k->code)));
    }
    json_t *const header = json_pack("{ss, ss}", "schema", CLB_KVC_SCHEMA, "record", "header");
    if (!header) {
        json_decref(settings);
        return NULL;
    }
    json_object_update(header, (json_t *)(uintptr_t)run); /* jansson reads it only */
    json_object_set_new(header, "strategies", settings);
    json_object_set_new(header, "tasks", tasks_json(c));
    return header;
}

static json_t *where_json(const clb_kvc *c, const char *record, uint32_t setting, uint32_t item)
{
    const clb_kvc_setting *const s = &c->settings[setting];
    return json_pack("{ss, so, so, so, so, so}", "record", record, "strategy", clb_json_text(s->strategy), "budget",
                     clb_json_text(s->budget), "positions", clb_json_text(s->positions), "task",
                     clb_json_text(c->tasks[c->items[item].task].name), "item", clb_json_text(c->ids[item]));
}

json_t *clb_kvc_record_json(const clb_kvc *c, const clb_kvc_record *record)
{
    json_t *const line = where_json(c, "result", record->setting, record->item), *const values = json_object();
    for (int m = 0; m < CLB_KVC_METRIC_COUNT; m++)
        if (isfinite(record->values[m]))
            json_object_set_new(values, clb_kvc_metric_get((enum clb_kvc_metric)m).json_name,
                                json_real(record->values[m]));
    if (record->bad_answers)
        json_object_set_new(line, "bad_answers", json_integer((json_int_t)record->bad_answers));
    if (json_object_set_new(line, "values", values)) {
        json_decref(line);
        return NULL;
    }
    return line;
}

json_t *clb_kvc_raster_json(const clb_kvc *c, const clb_kvc_raster *raster)
{
    json_t *const line = where_json(c, "raster", raster->setting, raster->item), *const rows = json_array();
    char text[MOST_COLUMNS + 1];
    for (uint32_t r = 0; r < raster->n_rows; r++) {
        uint32_t n = 0;
        for (; n < raster->n_columns && n < MOST_COLUMNS; n++) {
            const float v = raster->share[(size_t)r * raster->n_columns + n];
            text[n] = isnan(v) ? '.' : LEVELS[(int)lrintf(35 * fminf(fmaxf(v, 0), 1))];
        }
        text[n] = '\0';
        json_array_append_new(rows, json_pack("{sI, ss}", "seen", (json_int_t)raster->seen[r], "share", text));
    }
    json_object_set_new(line, "positions_shown", json_integer((json_int_t)raster->n_positions));
    if (json_object_set_new(line, "rows", rows)) {
        json_decref(line);
        return NULL;
    }
    return line;
}

/* ---- reading: everything in the file is untrusted ---- */

static const char *text_of(const json_t *o, const char *key)
{
    const char *const text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

static double number_of(const json_t *o, const char *key)
{
    const json_t *const v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

static int malformed(const char *what, clb_error *err)
{
    return clb_fail(err, COLIBRI_E_FORMAT, "%s", what);
}

static int read_kind(const char *text, enum clb_kvc_kind *out, clb_error *err)
{
    for (int k = 0; k < CLB_KVC_KINDS; k++)
        if (!strcmp(text, clb_kvc_kind_name((enum clb_kvc_kind)k))) {
            *out = (enum clb_kvc_kind)k;
            return COLIBRI_OK;
        }
    return clb_fail(err, COLIBRI_E_FORMAT, "unknown kind of task \"%.40s\"", text);
}

static int read_task(clb_kvc *c, const json_t *task, clb_error *err)
{
    enum clb_kvc_kind kind;
    uint32_t t, i;
    size_t at;
    json_t *item;
    CLB_TRY(read_kind(text_of(task, "kind"), &kind, err));
    if (!*text_of(task, "name"))
        return malformed("a task without a name", err);
    CLB_TRY(clb_kvc_add_task(c, kind, text_of(task, "name"), text_of(task, "path"), text_of(task, "hash"), &t, err));
    json_array_foreach(json_object_get(task, "items"), at, item)
    {
        if (!*text_of(item, "id"))
            return malformed("an item without an id", err);
        CLB_TRY(clb_kvc_add_item(c, t, text_of(item, "id"), text_of(item, "group"), number_of(item, "length"),
                                 number_of(item, "depth"), &i, err));
    }
    return COLIBRI_OK;
}

/* Of the header's "decides" object: model, numbers and types that results depend on. */
int clb_kvc_check_same_run(const json_t *a, const json_t *b, const char *path, clb_error *err)
{
    const json_t *const x = json_object_get(a, "decides"), *const y = json_object_get(b, "decides");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)x, key, value)
    {
        const json_t *const other = json_object_get(y, key);
        if (json_equal(value, other))
            continue;
        char *const one = json_dumps(value, JSON_ENCODE_ANY), *const two = json_dumps(other, JSON_ENCODE_ANY);
        const int rc =
            clb_fail(err, COLIBRI_E_USAGE, "%s: its %s is %.80s, not %.80s: results of both cannot stand in one table",
                     path, key, one ? one : "?", two ? two : "?");
        free(one);
        free(two);
        return rc;
    }
    if (json_object_size(x) != json_object_size(y))
        return clb_fail(err, COLIBRI_E_USAGE, "%s was made by another version that recorded other settings", path);
    return COLIBRI_OK;
}

static int read_header(clb_kvc *c, const json_t *line, clb_error *err)
{
    size_t at;
    json_t *v;
    if (strcmp(text_of(line, "schema"), CLB_KVC_SCHEMA) != 0)
        return clb_fail(err, COLIBRI_E_FORMAT, "schema \"%.60s\" is not %s", text_of(line, "schema"), CLB_KVC_SCHEMA);
    if (c->header) {
        CLB_TRY(clb_kvc_check_same_run(c->header, line, "an earlier part", err));
        c->other_machine |= !json_equal(json_object_get(c->header, "machine"), json_object_get(line, "machine"));
    }
    json_array_foreach(json_object_get(line, "strategies"), at, v)
    {
        uint32_t s;
        if (!*text_of(v, "strategy"))
            return malformed("a setting without a strategy", err);
        CLB_TRY(clb_kvc_add_setting(c, text_of(v, "strategy"), text_of(v, "budget"), text_of(v, "positions"),
                                    text_of(v, "code"), &s, err));
    }
    json_array_foreach(json_object_get(line, "tasks"), at, v)
    {
        CLB_TRY(read_task(c, v, err));
    }
    json_decref(c->header);
    c->header = json_incref((json_t *)(uintptr_t)line);
    c->n_headers++;
    return COLIBRI_OK;
}

static int find(const clb_kvc *c, const json_t *line, uint32_t *setting, uint32_t *item, clb_error *err)
{
    const uint32_t task = clb_kvc_find_task(c, text_of(line, "task"));
    *setting = clb_kvc_find_setting(c, text_of(line, "strategy"), text_of(line, "budget"), text_of(line, "positions"));
    *item = task == CLB_KVC_NONE ? CLB_KVC_NONE : clb_kvc_find_item(c, task, text_of(line, "item"));
    if (*setting == CLB_KVC_NONE)
        return clb_fail(err, COLIBRI_E_FORMAT, "no header names strategy %.60s at \"%.20s\"", text_of(line, "strategy"),
                        text_of(line, "budget"));
    if (*item == CLB_KVC_NONE)
        return clb_fail(err, COLIBRI_E_FORMAT, "no header names item %.60s of task %.60s", text_of(line, "item"),
                        text_of(line, "task"));
    return COLIBRI_OK;
}

static int read_result(clb_kvc *c, const json_t *line, clb_error *err)
{
    clb_kvc_record r;
    CLB_TRY(find(c, line, &r.setting, &r.item, err));
    const json_t *const values = json_object_get(line, "values");
    const double bad = number_of(line, "bad_answers");
    r.bad_answers = bad >= 1 && bad < 1e15 ? (uint64_t)bad : 0;
    for (int m = 0; m < CLB_KVC_METRIC_COUNT; m++)
        r.values[m] = number_of(values, clb_kvc_metric_get((enum clb_kvc_metric)m).json_name);
    return clb_kvc_add_record(c, &r, err);
}

static int read_rows(const json_t *rows, clb_kvc_raster *r, clb_error *err)
{
    size_t at;
    json_t *row;
    json_array_foreach(rows, at, row)
    {
        const char *const share = text_of(row, "share");
        const double seen = number_of(row, "seen");
        if (strlen(share) != r->n_columns || !(seen >= 0 && seen <= UINT32_MAX))
            return malformed("rows of a raster that do not fit together", err);
        r->seen[at] = (uint32_t)seen;
        for (uint32_t k = 0; k < r->n_columns; k++) {
            const char *const level = strchr(LEVELS, share[k]);
            if (!level && share[k] != '.')
                return malformed("a raster with unknown levels", err);
            r->share[at * r->n_columns + k] = level ? (float)(level - LEVELS) / 35 : NAN;
        }
    }
    return COLIBRI_OK;
}

static int read_raster(clb_kvc *c, const json_t *line, clb_error *err)
{
    clb_kvc_raster r = {0};
    CLB_TRY(find(c, line, &r.setting, &r.item, err));
    const json_t *const rows = json_object_get(line, "rows");
    const size_t n_rows = json_array_size(rows), n_columns = strlen(text_of(json_array_get(rows, 0), "share"));
    const double positions = number_of(line, "positions_shown");
    if (n_rows == 0 || n_rows > MOST_ROWS || n_columns == 0 || n_columns > MOST_COLUMNS ||
        !(positions >= 1 && positions <= UINT32_MAX))
        return malformed("a raster without or with too many rows", err);
    r.n_rows = (uint32_t)n_rows;
    r.n_columns = (uint32_t)n_columns;
    r.n_positions = (uint32_t)positions;
    r.seen = calloc(n_rows, sizeof *r.seen);
    r.share = calloc(n_rows * n_columns, sizeof *r.share);
    const int rc = r.seen && r.share ? read_rows(rows, &r, err) : CLB_NOMEM(err, "a raster");
    if (!rc)
        return clb_kvc_add_raster(c, &r, err);
    free(r.seen);
    free(r.share);
    return rc;
}

int clb_kvc_read_line(clb_kvc *c, const json_t *line, clb_error *err)
{
    const char *const record = text_of(line, "record");
    if (!strcmp(record, "header"))
        return read_header(c, line, err);
    if (!c->header)
        return malformed("the first line is no header of colibri compare", err);
    if (!strcmp(record, "result"))
        return read_result(c, line, err);
    if (!strcmp(record, "raster"))
        return read_raster(c, line, err);
    return clb_fail(err, COLIBRI_E_FORMAT, "unknown record \"%.40s\"", record);
}

static int read_lines(clb_kvc *c, const clb_buf *text, const char *path, const clb_log *log, uint64_t *complete,
                      clb_error *err)
{
    size_t at = 0;
    for (unsigned line = 1; at < text->n; line++) {
        const char *const end = memchr(text->data + at, '\n', text->n - at);
        if (!end) {
            clb_logf(log, COLIBRI_LOG_WARN, "%s: line %u is not complete and left out: its writer was stopped", path,
                     line);
            break;
        }
        const size_t n = (size_t)(end - text->data) - at;
        json_error_t why;
        json_t *const json = json_loadb(text->data + at, n, JSON_REJECT_DUPLICATES, &why);
        if (!json)
            return clb_fail(err, COLIBRI_E_FORMAT, "%s, line %u: %s", path, line, why.text);
        const int rc = clb_kvc_read_line(c, json, err);
        json_decref(json);
        if (rc)
            return clb_context(err, "%s, line %u", path, line);
        at += n + 1;
    }
    if (complete)
        *complete = at;
    /* A run that was stopped before its first line was out has nothing to go on from. */
    return c->header || complete ? COLIBRI_OK : clb_fail(err, COLIBRI_E_FORMAT, "%s is empty", path);
}

int clb_kvc_read_file(clb_kvc *c, const char *path, const clb_log *log, uint64_t *complete, clb_error *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return clb_fail(err, COLIBRI_E_IO, "cannot open %s: %s", path, strerror(errno));
    clb_buf text = {0};
    int rc = clb_buf_read(&text, fd, path, MOST_FILE, err);
    close(fd);
    if (!rc)
        rc = read_lines(c, &text, path, log, complete, err);
    clb_buf_free(&text);
    return rc;
}
