#include "doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *clb_doctor_level_name(enum clb_doctor_level level)
{
    static const char *const names[] = {"ok", "note", "warning", "failure"};
    return names[level];
}

void clb_doctor_add(clb_doctor *d, const char *section, const char *id, enum clb_doctor_level level, const char *advice,
                    const char *fmt, ...)
{
    if (d->n == CLB_DOCTOR_MOST)
        return;
    clb_finding *const f = &d->finding[d->n++];
    *f = (clb_finding){.section = section, .id = id, .level = level};
    snprintf(f->advice, sizeof f->advice, "%s", advice ? advice : "");
    va_list args;
    va_start(args, fmt);
    vsnprintf(f->text, sizeof f->text, fmt, args);
    va_end(args);
}

static FILE *open_below(const clb_doctor *d, const char *path)
{
    char full[1024];
    const int n = snprintf(full, sizeof full, "%s%s", d->root, path);
    return n > 0 && (size_t)n < sizeof full ? fopen(full, "re") : NULL;
}

bool clb_doctor_line(const clb_doctor *d, const char *path, char *out, size_t n)
{
    FILE *const f = open_below(d, path);
    if (!f)
        return false;
    const bool ok = fgets(out, (int)n, f) != NULL;
    fclose(f);
    if (ok)
        out[strcspn(out, "\n")] = '\0';
    return ok;
}

bool clb_doctor_number(const clb_doctor *d, const char *path, long long *out)
{
    char line[64], rest;
    return clb_doctor_line(d, path, line, sizeof line) && sscanf(line, "%lld %c", out, &rest) == 1;
}

bool clb_doctor_key(const clb_doctor *d, const char *path, const char *key, unsigned long long *out)
{
    FILE *const f = open_below(d, path);
    char line[256];
    const size_t n = strlen(key);
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f))
        found = strncmp(line, key, n) == 0 && sscanf(line + n, " %llu", out) == 1;
    if (f)
        fclose(f);
    return found;
}
