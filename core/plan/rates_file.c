/* Measured rates, remembered in a small text file:
 *
 *   colibri rates 1
 *   <key> TAB <seconds since 1970> TAB <number> x 4
 *
 * Nothing but predictions comes from it. It is believed whole or not at all. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"
#include "plan/rates.h"

#define MAGIC       "colibri rates 1\n"
#define MAX_BYTES   ((size_t)256 << 10)
#define MAX_RECORDS 256u /* the oldest go first */

void clb_rate_records_free(clb_rate_records *records)
{
    free(records->at);
    *records = (clb_rate_records){0};
}

const clb_rate_record *clb_rate_records_find(const clb_rate_records *records, const char *key, uint64_t now,
                                             uint64_t seconds)
{
    for (size_t i = 0; i < records->n; i++) {
        const clb_rate_record *r = &records->at[i];
        if (!strcmp(r->key, key))
            return r->when <= now && now - r->when <= seconds ? r : NULL;
    }
    return NULL;
}

int clb_rate_records_put(clb_rate_records *records, const clb_rate_record *record, clb_error *err)
{
    size_t oldest = 0;
    for (size_t i = 0; i < records->n; i++) {
        if (!strcmp(records->at[i].key, record->key)) {
            records->at[i] = *record;
            return COLIBRI_OK;
        }
        oldest = records->at[i].when < records->at[oldest].when ? i : oldest;
    }
    if (records->n == MAX_RECORDS) {
        records->at[oldest] = *record;
        return COLIBRI_OK;
    }
    if (records->n == records->cap) {
        const size_t cap = records->cap ? 2 * records->cap : 16;
        clb_rate_record *grown = realloc(records->at, cap * sizeof *grown);
        if (!grown)
            return CLB_NOMEM(err, "measured rates");
        records->at = grown;
        records->cap = cap;
    }
    records->at[records->n++] = *record;
    return COLIBRI_OK;
}

static bool printable(const char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < ' ' || (unsigned char)*s > '~')
            return false;
    return true;
}

static bool parse_line(const char *line, clb_rate_record *r)
{
    const char *tab = strchr(line, '\t');
    const size_t n = tab ? (size_t)(tab - line) : sizeof r->key;
    if (n == 0 || n >= sizeof r->key)
        return false;
    memcpy(r->key, line, n);
    r->key[n] = '\0';
    char *end;
    errno = 0;
    r->when = strtoull(tab + 1, &end, 10);
    for (unsigned i = 0; i < CLB_RATE_VALUES; i++) {
        if (*end != '\t')
            return false;
        r->value[i] = strtod(end + 1, &end);
        if (!isfinite(r->value[i]) || r->value[i] < 0 || r->value[i] > 1e18)
            return false;
    }
    return *end == '\0' && errno == 0 && printable(r->key);
}

static int parse(char *text, const char *path, clb_rate_records *out, clb_error *err)
{
    if (strncmp(text, MAGIC, strlen(MAGIC)) != 0)
        return clb_fail(err, COLIBRI_E_FORMAT, "%s does not hold rates", path);
    unsigned line = 2;
    for (char *p = text + strlen(MAGIC), *end; *p; p = end + 1, line++) {
        clb_rate_record r;
        end = strchr(p, '\n');
        if (!end || out->n >= MAX_RECORDS)
            return clb_fail(err, COLIBRI_E_FORMAT, "%s:%u: cut short or too long", path, line);
        *end = '\0';
        if (!parse_line(p, &r))
            return clb_fail(err, COLIBRI_E_FORMAT, "%s:%u: not a rate", path, line);
        CLB_TRY(clb_rate_records_put(out, &r, err));
    }
    return COLIBRI_OK;
}

int clb_rate_records_load(const char *path, clb_rate_records *records, clb_error *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return clb_fail_errno(err, errno == ENOENT || errno == ENOTDIR ? COLIBRI_E_NOT_FOUND : COLIBRI_E_IO, errno,
                              "cannot open %s", path);
    struct stat st;
    clb_buf text = {0};
    clb_rate_records found = {0};
    int rc = COLIBRI_OK;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode))
        CLB_GO(clb_fail(err, COLIBRI_E_FORMAT, "%s is not a regular file", path));
    CLB_GO(clb_buf_read(&text, fd, path, MAX_BYTES, err));
    if (!text.data || strlen(text.data) != text.n)
        CLB_GO(clb_fail(err, COLIBRI_E_FORMAT, "%s does not hold rates", path));
    CLB_GO(parse(text.data, path, &found, err));
    for (size_t i = 0; i < found.n; i++)
        CLB_GO(clb_rate_records_put(records, &found.at[i], err));
done:
    clb_rate_records_free(&found);
    clb_buf_free(&text);
    close(fd);
    return rc;
}

static int print(const clb_rate_records *records, clb_buf *out, clb_error *err)
{
    CLB_TRY(clb_buf_printf(out, err, "%s", MAGIC));
    for (size_t i = 0; i < records->n; i++) {
        const clb_rate_record *r = &records->at[i];
        CLB_TRY(clb_buf_printf(out, err, "%s\t%llu", r->key, (unsigned long long)r->when));
        for (unsigned v = 0; v < CLB_RATE_VALUES; v++)
            CLB_TRY(clb_buf_printf(out, err, "\t%.6g", r->value[v]));
        CLB_TRY(clb_buf_printf(out, err, "\n"));
    }
    return COLIBRI_OK;
}

int clb_rate_records_save(const char *path, const clb_rate_records *records, clb_error *err)
{
    clb_buf text = {0};
    int rc = print(records, &text, err);
    clb_file_make_folders(path);
    if (!rc)
        rc = clb_file_replace(path, text.data, text.n, false, err); /* lost in a power cut: measured again */
    clb_buf_free(&text);
    return rc;
}

bool clb_rates_default_path(char *out, size_t n)
{
    /* As for settings: a relative XDG path is to be taken as unset; a privileged process gets neither variable. */
    const char *const xdg = secure_getenv("XDG_CACHE_HOME"), *const home = secure_getenv("HOME");
    int len = -1;
    if (xdg && *xdg == '/')
        len = snprintf(out, n, "%s/colibri/rates", xdg);
    else if (home && *home == '/')
        len = snprintf(out, n, "%s/.cache/colibri/rates", home);
    return len > 0 && (size_t)len < n;
}
