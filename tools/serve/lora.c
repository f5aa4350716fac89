/* Adapters at run time: GET, POST and DELETE /lora-adapters. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "engine/adapters.h"

/* What is asked of the engine's thread. */
struct job {
    const char *path; /* to load; NULL: not that */
    uint32_t id;
    float scale;
    bool unload;
    json_t *scales; /* [{"id","scale"}] to set; borrowed */
    json_t *out;
};

/* Names and paths are bytes; a reply is UTF-8. */
static json_t *text(const char *bytes)
{
    json_t *const whole = json_string(bytes);
    if (whole)
        return whole;
    char *const copy = strdup(bytes);
    for (char *p = copy; p && *p; p++)
        if ((unsigned char)*p >= 0x80)
            *p = '?';
    json_t *const out = copy ? json_string(copy) : NULL;
    free(copy);
    return out;
}

static json_t *adapter_json(const clb_adapter *a)
{
    return json_pack("{s:I, s:o, s:o, s:f, s:i, s:I, s:I}", "id", (json_int_t)a->lora->id, "name", text(a->lora->name),
                     "path", text(a->lora->path), "scale", (double)a->scale, "rank", (int)a->lora->rank, "bytes",
                     (json_int_t)a->lora->bytes, "users", (json_int_t)a->users);
}

static uint32_t id_of(const json_t *item)
{
    const json_int_t id = json_integer_value(json_object_get(item, "id"));
    return id < 0 || id > UINT32_MAX ? UINT32_MAX : (uint32_t)id;
}

/* All of them, or none because one does not exist. */
static int set_scales(clb_adapters *a, json_t *list, clb_error *err)
{
    size_t i;
    json_t *item;
    json_array_foreach(list, i, item) if (!clb_adapters_has(a, id_of(item))) return clb_adapters_set_scale(
        a, id_of(item), 0.0f, err);
    json_array_foreach(list, i, item)
        CLB_TRY(clb_adapters_set_scale(a, id_of(item), (float)json_number_value(json_object_get(item, "scale")), err));
    return COLIBRI_OK;
}

/* Between two passes. */
static int work(void *ctx, clb_engine *engine, clb_error *err)
{
    struct job *j = ctx;
    clb_adapters *a = &engine->adapters;
    if (j->path)
        CLB_TRY(clb_adapters_load(a, engine->model, j->path, j->scale, &j->id, err));
    if (j->unload)
        CLB_TRY(clb_adapters_unload(a, j->id, err));
    if (j->scales)
        CLB_TRY(set_scales(a, j->scales, err));
    j->out = json_array();
    for (size_t i = 0; i < a->n; i++)
        if (!a->items[i].leaving)
            json_array_append_new(j->out, adapter_json(&a->items[i]));
    return COLIBRI_OK;
}

static void run(clb_app *app, clb_exchange *x, struct job *j, int http_status)
{
    clb_error err;
    const int rc = clb_scheduler_call(app->scheduler, work, j, &err);
    if (rc == COLIBRI_E_NOT_FOUND)
        clb_reply_error(x, 404, "not_found_error", j->path ? "path" : "id", NULL, "%s", err.msg);
    else if (rc == COLIBRI_E_USAGE || rc == COLIBRI_E_FORMAT || rc == COLIBRI_E_UNSUPPORTED || rc == COLIBRI_E_LIMIT)
        clb_reply_error(x, 400, "invalid_request_error", j->path ? "path" : NULL, NULL, "%s", err.msg);
    else if (rc == COLIBRI_E_NOMEM)
        clb_reply_error(x, 507, "insufficient_memory", NULL, NULL, "%s", err.msg);
    else if (rc)
        clb_reply_status(x, rc, err.msg);
    else if (j->path)
        clb_reply_json(x, http_status, json_pack("{s:I, s:o}", "id", (json_int_t)j->id, "adapters", j->out));
    else
        clb_reply_json(x, http_status, j->out);
}

void clb_serve_lora_list(void *ctx, clb_exchange *x)
{
    struct job j = {.path = NULL};
    run(ctx, x, &j, 200);
}

/* The file inside the operator's folder that the client means; a path that leads out of it, links included, is refused.
 */
static char *resolve(const clb_app *app, clb_exchange *x, const char *path)
{
    char joined[PATH_MAX];
    if (!app->lora_dir) {
        clb_reply_error(x, 403, "permission_error", "path", NULL,
                        "adapters may not be loaded: the server was started without --lora-dir");
        return NULL;
    }
    char *const base = realpath(app->lora_dir, NULL);
    const int n =
        snprintf(joined, sizeof joined, path[0] == '/' ? "%s%s" : "%s/%s", path[0] == '/' ? "" : app->lora_dir, path);
    char *real = n > 0 && (size_t)n < sizeof joined ? realpath(joined, NULL) : NULL;
    const size_t n_base = base ? strlen(base) : 0;
    if (real && (!base || strncmp(real, base, n_base) != 0 || (real[n_base] != '/' && n_base > 1))) {
        free(real);
        real = NULL; /* whether it exists is not the client's business */
    }
    if (!real)
        clb_reply_error(x, 404, "not_found_error", "path", NULL,
                        "there is no such file in the folder of adapters (--lora-dir)");
    free(base);
    return real;
}

/* {"path", "scale"} loads; [{"id", "scale"}, ...] sets strengths, as llama.cpp has it. */
void clb_serve_lora_load(void *ctx, clb_exchange *x)
{
    clb_app *app = ctx;
    json_error_t why;
    const clb_str body = clb_exchange_body(x);
    json_t *const o = json_loadb(body.p ? body.p : "", body.n, JSON_REJECT_DUPLICATES, &why);
    struct job j = {.scale = 1.0f};
    const char *key;
    json_t *value;
    size_t i;
    if (json_is_array(o)) {
        json_array_foreach(o, i, value)
        {
            if (json_is_integer(json_object_get(value, "id")) && json_is_number(json_object_get(value, "scale")) &&
                json_object_size(value) == 2)
                continue;
            clb_reply_error(x, 400, "invalid_request_error", NULL, NULL, "expected objects {\"id\": N, \"scale\": X}");
            json_decref(o);
            return;
        }
        j.scales = o;
        run(app, x, &j, 200);
        json_decref(o);
        return;
    }
    const char *bad = json_is_object(o) ? NULL : "body";
    json_object_foreach(o, key, value) if (strcmp(key, "path") != 0 && strcmp(key, "scale") != 0) bad = key;
    const json_t *path = json_object_get(o, "path"), *scale = json_object_get(o, "scale");
    if (bad || !json_is_string(path) || strlen(json_string_value(path)) != json_string_length(path) ||
        (scale && !json_is_number(scale))) {
        clb_reply_error(x, 400, "invalid_request_error",
                        bad                    ? bad
                        : json_is_string(path) ? "scale"
                                               : "path",
                        NULL, "expected {\"path\": FILE, \"scale\": X} or [{\"id\": N, \"scale\": X}, ...]");
        json_decref(o);
        return;
    }
    if (scale)
        j.scale = (float)json_number_value(scale);
    char *const real = resolve(app, x, json_string_value(path));
    j.path = real;
    if (real)
        run(app, x, &j, 201);
    free(real);
    json_decref(o);
}

/* DELETE /lora-adapters/ID */
void clb_serve_lora_unload(void *ctx, clb_exchange *x)
{
    const char *const text = strrchr(clb_exchange_path(x), '/') + 1;
    char *end;
    const unsigned long id = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || id > UINT32_MAX) {
        clb_reply_error(x, 400, "invalid_request_error", "id", NULL, "\"%.40s\" is no adapter's id", text);
        return;
    }
    struct job j = {.unload = true, .id = (uint32_t)id};
    run(ctx, x, &j, 200);
}
