#include "model/arch.h"

#include <stdio.h>
#include <string.h>

int clb_arch_find(clb_str name, const clb_arch **out, clb_error *err)
{
    char list[512] = "";
    for (size_t i = 0; clb_archs[i]; i++) {
        if (strlen(clb_archs[i]->name) == name.n && memcmp(clb_archs[i]->name, name.p, name.n) == 0) {
            *out = clb_archs[i];
            return COLIBRI_OK;
        }
        const size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", clb_archs[i]->name);
    }
    *out = NULL;
    return clb_fail(err, COLIBRI_E_UNSUPPORTED, "architecture \"%.*s\" is not known; this build runs: %s",
                    (int)(name.n < 64 ? name.n : 64), name.p, list);
}
