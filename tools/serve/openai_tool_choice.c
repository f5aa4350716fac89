/* tool_choice: which tools may be called. In chat an object of its own says more, {"type": "function", "function":
 * {"name"}}; in responses the same stands beside the type, {"type": "function", "name"}. */
#include "serve/openai_prompt.h"

static int no_such_tool(clb_refusal *r, const char *name)
{
    return clb_refuse(r, "invalid_value", "tool_choice", "Invalid 'tool_choice': there is no tool '%.64s' in 'tools'.",
                      name);
}

static int read_named_tool(const json_t *function, const char *field, clb_prompt_request *p, clb_refusal *r)
{
    CLB_TRY(clb_field_string(function, field, &p->tool_name, r));
    if (!p->tool_name)
        return clb_refuse_missing(r, field);
    p->choice = CLB_TOOLS_NAMED;
    return clb_tools_find(p->tools, p->tool_name) ? COLIBRI_OK : no_such_tool(r, p->tool_name);
}

/* Where the two have what they have alike. */
typedef struct names {
    const char *mode, *list, *part; /* allowed_tools: fields, and what a refusal without them is about */
    const char *incomplete;
    const char *tool; /* an object in each item of the list; NULL: the item itself */
} names;

/* The model sees those of the tools that are listed. */
static int read_allowed_tools(const json_t *from, const names *n, clb_prompt_request *p, json_t **allowed,
                              clb_refusal *r)
{
    static const char *const modes[] = {"auto", "required", NULL};
    json_t *list, *item;
    size_t mode = 2, i;
    CLB_TRY(clb_field_choice(from, n->mode, modes, &mode, r));
    CLB_TRY(clb_field_array(from, n->list, &list, r));
    if (mode == 2 || !json_array_size(list))
        return clb_refuse(r, "missing_required_parameter", n->part, "%s", n->incomplete);
    *allowed = json_array();
    json_array_foreach(list, i, item)
    {
        const json_t *const named = n->tool ? json_object_get(item, n->tool) : item;
        const char *name = json_string_value(json_object_get(named, "name"));
        json_t *const tool = name ? clb_tools_find(p->tools, name) : NULL;
        if (!tool)
            return no_such_tool(r, name ? name : "");
        if (!*allowed || json_array_append(*allowed, tool))
            return clb_refuse_nomem(r);
    }
    p->tools = *allowed;
    p->choice = mode ? CLB_TOOLS_REQUIRED : CLB_TOOLS_AUTO;
    return COLIBRI_OK;
}

/* A word, or an object, which *object is then: else NULL. */
static int read_word(const json_t *body, clb_prompt_request *p, const json_t **object, clb_refusal *r)
{
    static const char *const words[] = {"auto", "none", "required", NULL};
    static const enum clb_tool_choice choices[] = {CLB_TOOLS_AUTO, CLB_TOOLS_NONE, CLB_TOOLS_REQUIRED};
    const json_t *choice = json_object_get(body, "tool_choice");
    size_t which = 0;
    *object = NULL;
    if (!choice || json_is_null(choice))
        return COLIBRI_OK;
    if (!json_is_string(choice) && !json_is_object(choice))
        return clb_refuse_type(r, "tool_choice", "a string or an object", choice);
    if (json_is_string(choice))
        CLB_TRY(clb_field_choice(body, "tool_choice", words, &which, r));
    if (!p->tools && (json_is_object(choice) || choices[which] == CLB_TOOLS_REQUIRED))
        return clb_refuse(r, "invalid_value", "tool_choice",
                          "'tool_choice' is only allowed when 'tools' are specified.");
    if (json_is_object(choice))
        *object = choice;
    else
        p->choice = choices[which];
    return COLIBRI_OK;
}

static int read_type(const json_t *choice, bool *allowed_tools, clb_refusal *r)
{
    static const char *const types[] = {"function", "allowed_tools", NULL};
    size_t type = 2;
    CLB_TRY(clb_field_choice(choice, "tool_choice.type", types, &type, r));
    *allowed_tools = type == 1;
    return type == 2 ? clb_refuse_missing(r, "tool_choice.type") : COLIBRI_OK;
}

int clb_openai_chat_tool_choice(const json_t *body, clb_prompt_request *p, json_t **allowed, clb_refusal *r)
{
    static const clb_field fields[] = {
        {"type", CLB_FIELD_USED, NULL},
        {"function", CLB_FIELD_USED, NULL},
        {"allowed_tools", CLB_FIELD_USED, NULL},
        {NULL, CLB_FIELD_USED, NULL},
    };
    static const names n = {.mode = "tool_choice.allowed_tools.mode",
                            .list = "tool_choice.allowed_tools.tools",
                            .part = "tool_choice.allowed_tools",
                            .incomplete = "'tool_choice.allowed_tools' needs a 'mode' and 'tools'.",
                            .tool = "function"};
    const json_t *choice;
    json_t *more;
    bool list;
    CLB_TRY(read_word(body, p, &choice, r));
    if (!choice)
        return COLIBRI_OK;
    CLB_TRY(clb_fields_check(choice, "tool_choice", (const clb_field *const[]){fields}, 1, r));
    CLB_TRY(read_type(choice, &list, r));
    CLB_TRY(clb_field_object(choice, list ? "tool_choice.allowed_tools" : "tool_choice.function", &more, r));
    if (!list)
        return read_named_tool(more, "tool_choice.function.name", p, r);
    return more ? read_allowed_tools(more, &n, p, allowed, r) : clb_refuse_missing(r, n.part);
}

int clb_openai_responses_tool_choice(const json_t *body, clb_prompt_request *p, json_t **allowed, clb_refusal *r)
{
    static const names n = {.mode = "tool_choice.mode",
                            .list = "tool_choice.tools",
                            .part = "tool_choice",
                            .incomplete = "A 'tool_choice' of type 'allowed_tools' needs a 'mode' and 'tools'."};
    const json_t *choice;
    bool list;
    CLB_TRY(read_word(body, p, &choice, r));
    if (!choice)
        return COLIBRI_OK;
    CLB_TRY(read_type(choice, &list, r));
    return list ? read_allowed_tools(choice, &n, p, allowed, r) : read_named_tool(choice, "tool_choice.name", p, r);
}
