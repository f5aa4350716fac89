#include "spec_list.h"

#include <stdbool.h>
#include <stddef.h>

int clb_each_spec(const char *list, clb_spec_fn add, void *ctx, clb_error *err)
{
    char item[256];
    size_t n = 0;
    bool params = false;
    for (const char *p = list;; p++) {
        bool ends = *p == '\0';
        if (*p == ',') {
            size_t k = 1;
            while (p[k] && p[k] != ',' && p[k] != '=' && p[k] != ':' && p[k] != '/')
                k++;
            ends = !(params && p[k] == '=');
        }
        if (ends) {
            item[n] = '\0';
            if (n)
                CLB_TRY(add(ctx, item, err));
            else if (*list)
                return clb_fail(err, COLIBRI_E_USAGE, "\"%.60s\": an item of the list is empty", list);
            n = 0;
            params = false;
            if (!*p)
                return COLIBRI_OK;
            continue;
        }
        params |= *p == ':';
        if (n + 1 == sizeof item)
            return clb_fail(err, COLIBRI_E_USAGE, "\"%.60s\": an item of the list is too long", list);
        item[n++] = *p;
    }
}
