#include "serve/chat_shape.h"

#include <string.h>

#include "serve/tools.h"

const char *clb_shape_text(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s ? s : "";
}

bool clb_shape_is(const json_t *object, const char *type)
{
    return strcmp(clb_shape_text(object, "type"), type) == 0;
}

/* Of a list that is complete, or not. */
static int keep_or_drop(json_t **list, int rc)
{
    if (rc) {
        json_decref(*list);
        *list = NULL;
    }
    return rc;
}

int clb_shape_messages(const json_t *body, int (*read)(const json_t *body, json_t *list, clb_refusal *r), json_t **out,
                       clb_refusal *r)
{
    *out = json_array();
    return *out ? keep_or_drop(out, read(body, *out, r)) : clb_refuse_nomem(r);
}

int clb_shape_call(json_t *message, const char *id, const char *name, json_t *arguments, clb_refusal *r)
{
    json_t *calls = json_object_get(message, "tool_calls");
    json_t *const call = json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", id, "type", "function", "function", "name", name,
                                   "arguments", arguments);
    if (!calls) {
        calls = json_array();
        if (json_object_set_new(message, "tool_calls", calls)) {
            json_decref(call);
            return clb_refuse_nomem(r);
        }
    }
    return call && json_array_append_new(calls, call) == 0 ? COLIBRI_OK : clb_refuse_nomem(r);
}

int clb_shape_tools(const json_t *body, int (*read)(const json_t *tool, size_t i, json_t *list, clb_refusal *r),
                    int (*refuse)(clb_refusal *r, const char *param, const char *message), json_t **out, clb_refusal *r)
{
    json_t *tools, *tool;
    size_t i;
    int rc = COLIBRI_OK;
    *out = NULL;
    CLB_TRY(clb_field_array(body, "tools", &tools, r));
    if (!json_array_size(tools))
        return COLIBRI_OK;
    *out = json_array();
    if (!*out)
        return clb_refuse_nomem(r);
    json_array_foreach(tools, i, tool)
    {
        rc = read(tool, i, *out, r);
        if (rc)
            break;
    }
    if (!rc) {
        clb_error err = {0};
        char param[64] = "";
        rc = clb_tools_check(*out, param, &err);
        if (rc)
            rc = refuse(r, param, err.msg);
    }
    return keep_or_drop(out, rc);
}
