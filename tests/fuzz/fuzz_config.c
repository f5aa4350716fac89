/* INI text, --set assignments, plugin parameters and foreign functions from hostile bytes. The first byte chooses:
 * trusted or beside a model. Seeds: tests/fuzz/corpus/config and examples/ini. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "config/settings.h"
#include "plugin/foreign.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const clb_config *config, bool untrusted)
{
    static const struct colibri_param params[] = {{.name = "decay", .min = 0, .max = 1, .value = 0.5},
                                                  {.name = "window", .min = 1, .max = 64, .value = 8, .integer = 1}};
    for (int i = 0; i < CLB_SET_COUNT; i++) {
        const clb_setting_info s = clb_setting_get((enum clb_setting)i);
        const char *const *items = NULL;
        if (!clb_config_text(config, s.id) || !*clb_config_origin(config, s.id))
            abort();
        if (s.type == CLB_TYPE_INT && (s.min != 0 || s.max != 0) &&
            ((double)clb_config_u64(config, s.id) < s.min || (double)clb_config_u64(config, s.id) > s.max))
            abort();
        if (s.type == CLB_TYPE_REAL && s.max != 0 &&
            !(clb_config_f64(config, s.id) >= s.min && clb_config_f64(config, s.id) <= s.max))
            abort();
        if (s.type == CLB_TYPE_PATHS) {
            for (size_t k = clb_config_list(config, s.id, &items); k-- > 0;) {
                if (items[k][0] != '/')
                    abort();
            }
        }
        /* The promise about a file beside a model. */
        if (untrusted && clb_config_is_set(config, s.id) &&
            (!strcmp(s.section, "plugins") || !strcmp(s.section, "kernels") || s.type == CLB_TYPE_PATH))
            abort();
    }
    if (untrusted && clb_config_foreign_count(config))
        abort();
    clb_foreign_list foreign;
    clb_error err = {0};
    if (!clb_foreign_from_config(config, &foreign, &err)) {
        for (size_t i = 0; i < foreign.n; i++) {
            const clb_foreign_spec *const s = &foreign.at[i];
            clb_foreign *f = NULL;
            /* What settings accept, a registry accepts; no relative path among it. */
            if ((s->library[0] != '/' && strchr(s->library, '/')) || clb_foreign_create(s, NULL, &f, &err))
                abort();
            clb_foreign_retire(f);
        }
        clb_foreign_list_free(&foreign);
    } else if (!*err.msg || strchr(err.msg, '\n')) {
        abort();
    }
    for (size_t i = 0; i < clb_config_param_count(config); i++) {
        const char *kind, *name, *key, *value, *origin;
        double out[2];
        clb_config_param_at(config, i, &kind, &name, &key, &value, &origin);
        if (!clb_config_params(config, kind, name, params, 2, out, NULL) &&
            !(out[0] >= 0 && out[0] <= 1 && out[1] >= 1 && out[1] <= 64))
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    clb_config *config = NULL;
    clb_error err = {0};
    if (clb_config_create(&config, &err))
        abort();
    const bool untrusted = data[0] & 1;
    const int rc = clb_config_load_text(config, (const char *)data + 1, size - 1, "fuzz.ini", untrusted, &err);
    if (rc && (!*err.msg || strchr(err.msg, '\n') || strncmp(err.msg, "fuzz.ini:", 9) != 0))
        abort();
    check(config, untrusted);
    char *assignment = strndup((const char *)data + 1, size - 1);
    if (assignment && !untrusted) {
        if (clb_config_set(config, assignment, "--set", &err) && !*err.msg)
            abort();
        check(config, false);
    }
    free(assignment);
    clb_config_destroy(config);
    return 0;
}
