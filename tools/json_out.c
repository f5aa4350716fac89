#include "json_out.h"

#include <stdbool.h>
#include <string.h>
#include <utf8proc.h>

#include "base/str.h"

json_t *clb_json_bytes(const char *text, size_t n)
{
    clb_buf clean = {0};
    size_t at = 0;
    bool ok = true;
    while (at < n && ok) {
        utf8proc_int32_t cp;
        const utf8proc_ssize_t len =
            utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(n - at), &cp);
        if (len > 0)
            ok = clb_buf_append(&clean, text + at, (size_t)len, NULL) == COLIBRI_OK;
        else
            ok = clb_buf_append(&clean, "\xef\xbf\xbd", 3, NULL) == COLIBRI_OK;
        at += len > 0 ? (size_t)len : 1;
    }
    json_t *out = ok ? json_stringn(clean.data ? clean.data : "", clean.n) : NULL;
    clb_buf_free(&clean);
    return out;
}

json_t *clb_json_text(const char *text)
{
    return clb_json_bytes(text, strlen(text));
}

int clb_json_print(json_t *json, clb_error *err)
{
    if (!json)
        return CLB_NOMEM(err, "JSON output");
    const int rc = json_dumpf(json, stdout, JSON_INDENT(2)); /* a failed write shows when stdout is closed */
    json_decref(json);
    putchar('\n');
    return rc && !ferror(stdout) ? CLB_NOMEM(err, "JSON output") : COLIBRI_OK;
}
