/* JSON -> values of chat templates. */
#include "serve/json_values.h"

#include <string.h>

/* Deeper than this, rendering refuses it: no need to build it. */
#define DEPTH (CLB_JDATA_DEPTH + 2)

static clb_jvalue *convert(clb_jdata *d, const json_t *j, unsigned depth)
{
    const char *key;
    json_t *item;
    size_t i;
    clb_jvalue *v;
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        v = clb_jdata_dict(d);
        if (depth < DEPTH)
            json_object_foreach((json_t *)j, key, item)
                clb_jdata_set(d, v, (clb_str){key, strlen(key)}, convert(d, item, depth + 1));
        return v;
    case JSON_ARRAY:
        v = clb_jdata_list(d);
        if (depth < DEPTH)
            json_array_foreach(j, i, item) clb_jdata_push(d, v, convert(d, item, depth + 1));
        return v;
    case JSON_STRING:
        return clb_jdata_str(d, (clb_str){json_string_value(j), json_string_length(j)});
    case JSON_INTEGER:
        return clb_jdata_int(d, json_integer_value(j));
    case JSON_REAL:
        return clb_jdata_float(d, json_real_value(j));
    case JSON_TRUE:
    case JSON_FALSE:
        return clb_jdata_bool(d, json_is_true(j));
    default:
        return clb_jdata_null(d);
    }
}

clb_jvalue *clb_json_values(clb_jdata *d, const json_t *j)
{
    return j ? convert(d, j, 0) : NULL;
}

static bool is_word(const char *s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    return n > 0 && n <= 32 && s[n] == '\0';
}

clb_jvalue *clb_json_messages(clb_jdata *d, const json_t *messages)
{
    clb_jvalue *list = clb_jdata_list(d);
    const json_t *m;
    size_t i;
    json_array_foreach(messages, i, m)
    {
        clb_jvalue *message = convert(d, m, 1);
        const json_t *role = json_object_get(m, "role");
        if (json_is_string(role) && is_word(json_string_value(role)) &&
            strlen(json_string_value(role)) == json_string_length(role))
            clb_jdata_set(d, message, (clb_str){"role", 4}, clb_jdata_clean(d, json_string_value(role)));
        clb_jdata_push(d, list, message);
    }
    return list;
}
