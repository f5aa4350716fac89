/* Tools of a request, as far as they must be what they should be. */
#include <stdio.h>
#include <string.h>

#include "serve/tools.h"

#define TOOLS_MOST 256

static bool good_name(const json_t *name)
{
    const char *s = json_string_value(name);
    const size_t n = json_string_length(name);
    return s && n >= 1 && n <= 64 &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") == n;
}

static int refuse(char param[64], size_t i, const char *field, clb_error *err, const char *what)
{
    if (param)
        snprintf(param, 64, "tools[%zu]%s", i, field);
    return clb_fail(err, COLIBRI_E_USAGE, "%s", what);
}

int clb_tools_check(const json_t *tools, char param[64], clb_error *err)
{
    const json_t *tool;
    size_t i;
    if (param)
        strcpy(param, "tools");
    if (!json_is_array(tools))
        return clb_fail(err, COLIBRI_E_USAGE, "tools must be a list");
    if (json_array_size(tools) > TOOLS_MOST)
        return clb_fail(err, COLIBRI_E_LIMIT, "%zu tools; at most %d", json_array_size(tools), TOOLS_MOST);
    json_array_foreach(tools, i, tool)
    {
        const char *type = json_string_value(json_object_get(tool, "type"));
        const json_t *f = json_object_get(tool, "function"), *name = json_object_get(f, "name");
        const json_t *parameters = json_object_get(f, "parameters"), *strict = json_object_get(f, "strict");
        const json_t *description = json_object_get(f, "description");
        if (!type || strcmp(type, "function") != 0)
            return refuse(param, i, ".type", err, "the type of a tool must be \"function\"");
        if (!json_is_object(f))
            return refuse(param, i, ".function", err, "a tool has a function: an object with a name");
        if (!good_name(name))
            return refuse(param, i, ".function.name", err,
                          "the name of a function must be 1 to 64 letters, digits, underscores, dots or hyphens");
        if (description && !json_is_string(description) && !json_is_null(description))
            return refuse(param, i, ".function.description", err, "the description of a function must be a string");
        if (parameters && !json_is_object(parameters) && !json_is_null(parameters))
            return refuse(param, i, ".function.parameters", err,
                          "the parameters of a function must be a JSON schema: an object");
        if (strict && !json_is_boolean(strict) && !json_is_null(strict))
            return refuse(param, i, ".function.strict", err, "strict must be true or false");
        for (size_t k = 0; k < i; k++)
            if (json_equal(name, json_object_get(json_object_get(json_array_get(tools, k), "function"), "name")))
                return refuse(param, i, ".function.name", err, "two functions have the same name");
    }
    if (param)
        param[0] = '\0';
    return COLIBRI_OK;
}

json_t *clb_tools_find(const json_t *tools, const char *name)
{
    json_t *tool;
    size_t i;
    json_array_foreach((json_t *)tools, i, tool)
    {
        const char *other = json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
        if (other && strcmp(name, other) == 0)
            return tool;
    }
    return NULL;
}
