/* Adapters at run time: GET, POST and DELETE /lora-adapters. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/adapters.h"
#include "serve/app.h"

/* What is asked of the engine's thread. */
struct job {
    clb_lora *expected; /* to be loaded: keep room for it */
    clb_lora *read;     /* it is loaded */
    clb_lora *lost;     /* it could not be */
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

static int set_scales(clb_adapters *a, const json_t *wanted, clb_error *err)
{
    const size_t n = json_array_size(wanted);
    clb_lora_use *const uses = calloc(n + 1, sizeof *uses);
    if (!uses)
        return CLB_NOMEM(err, "strengths of adapters");
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(wanted, i);
        uses[i] = (clb_lora_use){id_of(item), (float)json_number_value(json_object_get(item, "scale"))};
    }
    const int rc = clb_adapters_set_scales(a, uses, n, err);
    free(uses);
    return rc;
}

/* Those that are there, and `coming`. NULL if memory is out. */
static json_t *list(const clb_adapters *a, const clb_lora *coming)
{
    json_t *const out = json_array();
    for (size_t i = 0; out && i < a->n; i++)
        if ((clb_adapter_there(&a->items[i]) || a->items[i].lora == coming) &&
            json_array_append_new(out, adapter_json(&a->items[i]))) {
            json_decref(out);
            return NULL;
        }
    return out;
}

/* Brings a list up to date after a change. Needs no memory, so that what was done is never told as a failure. */
static void update(json_t *out, const clb_adapters *a)
{
    size_t i = 0;
    json_t *item;
    while ((item = json_array_get(out, i)) != NULL) {
        size_t k = 0;
        while (k < a->n && (a->items[k].lora->id != id_of(item) || !clb_adapter_there(&a->items[k])))
            k++;
        if (k < a->n) {
            json_real_set(json_object_get(item, "scale"), (double)a->items[k].scale);
            i++;
        } else {
            json_array_remove(out, i);
        }
    }
}

/* Between two passes. All of it is done, or nothing. */
static int work(void *ctx, clb_engine *engine, clb_error *err)
{
    struct job *j = ctx;
    clb_adapters *a = &engine->adapters;
    int rc = COLIBRI_OK;
    if (j->expected)
        return clb_adapters_expect(a, engine->model, j->expected, j->scale, err);
    if (j->lost) {
        clb_adapters_forget(a, j->lost);
        return COLIBRI_OK;
    }
    j->out = list(a, j->read);
    if (!j->out)
        return CLB_NOMEM(err, "a list of adapters");
    if (j->read)
        clb_adapters_admit(a, j->read);
    if (j->unload)
        rc = clb_adapters_unload(a, j->id, err);
    else if (j->scales)
        rc = set_scales(a, j->scales, err);
    update(j->out, a);
    if (rc) {
        json_decref(j->out);
        j->out = NULL;
    }
    return rc;
}

static void refuse(clb_exchange *x, int rc, bool loading, const clb_error *err)
{
    const char *const param = loading ? "path" : NULL;
    if (rc == COLIBRI_E_NOT_FOUND)
        clb_reply_error(x, 404, "not_found_error", loading ? "path" : "id", NULL, "%s", err->msg);
    else if (rc == COLIBRI_E_USAGE || rc == COLIBRI_E_FORMAT || rc == COLIBRI_E_UNSUPPORTED || rc == COLIBRI_E_LIMIT)
        clb_reply_error(x, 400, "invalid_request_error", param, NULL, "%s", err->msg);
    else if (rc == COLIBRI_E_NOMEM)
        clb_reply_error(x, 507, "insufficient_memory", NULL, NULL, "%s", err->msg);
    else
        clb_reply_status(x, rc, err->msg);
}

static void run(clb_app *app, clb_exchange *x, struct job *j)
{
    clb_error err;
    const int rc = clb_scheduler_call(app->scheduler, work, j, &err);
    if (rc)
        refuse(x, rc, false, &err);
    else
        clb_reply_json(x, 200, j->out);
}

/* The server is to end. */
static bool stopped(void *ctx)
{
    const clb_app *app = ctx;
    return __atomic_load_n(&app->draining, __ATOMIC_ACQUIRE);
}

/* Only what takes no time is done on the engine's thread: streams go on while the file is read here. */
static int load(clb_app *app, const char *path, float scale, json_t **out, clb_error *err)
{
    clb_lora *lora;
    CLB_TRY(clb_lora_look(app->engine->model, path, &lora, err));
    struct job expect = {.expected = lora, .scale = scale}, admit = {.read = lora}, forget = {.lost = lora};
    int rc = clb_scheduler_call(app->scheduler, work, &expect, err);
    if (rc) {
        clb_lora_close(lora);
        return rc;
    }
    const uint32_t id = lora->id; /* it may be unloaded at once */
    clb_error why;
    rc = clb_lora_read(lora, stopped, app, err);
    if (!rc && (rc = clb_scheduler_call(app->scheduler, work, &admit, err)) == COLIBRI_OK)
        lora = NULL; /* is the engine's */
    if (lora) {
        clb_scheduler_call(app->scheduler, work, &forget, &why); /* or the engine has ended */
        clb_lora_close(lora);
    }
    if (!rc)
        *out = json_pack("{s:I, s:o}", "id", (json_int_t)id, "adapters", admit.out);
    return rc;
}

void clb_serve_lora_list(void *ctx, clb_exchange *x)
{
    struct job j = {.unload = false};
    run(ctx, x, &j);
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
    errno = 0;
    char *const base = realpath(app->lora_dir, NULL);
    bool no_memory = !base && errno == ENOMEM;
    const int n =
        snprintf(joined, sizeof joined, path[0] == '/' ? "%s%s" : "%s/%s", path[0] == '/' ? "" : app->lora_dir, path);
    errno = 0;
    char *real = n > 0 && (size_t)n < sizeof joined ? realpath(joined, NULL) : NULL;
    no_memory = no_memory || (!real && errno == ENOMEM);
    const size_t n_base = base ? strlen(base) : 0;
    if (real && (!base || strncmp(real, base, n_base) != 0 || (real[n_base] != '/' && n_base > 1))) {
        free(real);
        real = NULL; /* whether it exists is not the client's business */
    }
    if (!real && no_memory)
        clb_reply_status(x, COLIBRI_E_NOMEM, "out of memory: the path");
    else if (!real)
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
    struct job j = {.unload = false};
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
        run(app, x, &j);
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
    char *const real = resolve(app, x, json_string_value(path));
    clb_error err;
    json_t *reply = NULL;
    const int rc = real ? load(app, real, scale ? (float)json_number_value(scale) : 1.0f, &reply, &err) : COLIBRI_OK;
    if (rc)
        refuse(x, rc, true, &err);
    else if (real)
        clb_reply_json(x, 201, reply);
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
    run(ctx, x, &j);
}
