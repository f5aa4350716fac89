/* The file of measured times. Text, one thing to a line, fields split by tabs:
 *
 *   colibri kernel times 1
 *   shape <CPU model> <bits> <bits> <type> <layout> <activations> <rows> <columns> <n_x> <threads> <when>
 *   time <component> <plugin> <version> <build> <picoseconds>        for each candidate of the shape above
 *   end <FNV-1a of everything before this line>
 *
 * It is small and read once, so it is parsed whole and believed whole or not at all. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"
#include "plugin/measure.h"
#include "plugin/note.h"
#include "plugin/search.h"

#define MAGIC       "colibri kernel times 1\n"
#define MAX_BYTES   ((size_t)1 << 20)
#define MAX_RECORDS 512u
#define MAX_PS      UINT64_C(1000000000000000000)

/* ---- records ---------------------------------------------------------------------------------------------- */

bool clb_measure_key_equal(const clb_measure_key *a, const clb_measure_key *b)
{
    return !strcmp(a->cpu, b->cpu) && !memcmp(&a->bits, &b->bits, sizeof a->bits) && a->type == b->type &&
           a->layout == b->layout && !strcmp(a->act, b->act) && a->n_rows == b->n_rows && a->n_cols == b->n_cols &&
           a->n_x == b->n_x && a->n_threads == b->n_threads;
}

const clb_measure_record *clb_measure_find(const clb_measure_records *records, const clb_measure_key *key)
{
    for (size_t i = 0; i < records->n; i++)
        if (clb_measure_key_equal(&records->at[i].key, key))
            return &records->at[i];
    return NULL;
}

int clb_measure_put(clb_measure_records *records, const clb_measure_record *record, clb_error *err)
{
    for (size_t i = 0; i < records->n; i++)
        if (clb_measure_key_equal(&records->at[i].key, &record->key)) {
            records->at[i] = *record;
            return COLIBRI_OK;
        }
    if (records->n == records->cap) {
        const size_t cap = records->cap ? 2 * records->cap : 16;
        clb_measure_record *const grown = realloc(records->at, cap * sizeof *grown);
        if (!grown)
            return CLB_NOMEM(err, "measured times");
        records->at = grown;
        records->cap = cap;
    }
    records->at[records->n++] = *record;
    return COLIBRI_OK;
}

/* ---- reading ---------------------------------------------------------------------------------------------- */

static uint64_t fnv(const char *p, size_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)p[i]) * UINT64_C(0x100000001b3);
    return h;
}

/* Takes the next field of the line at *p, which ends at a tab or, if it is the last one, at the line's end. */
static bool field(char **p, bool last, const char **out)
{
    *out = *p;
    char *const end = strchr(*p, '\t');
    if (last || !end)
        return last && !end;
    *end = '\0';
    *p = end + 1;
    return true;
}

static bool text_field(char **p, bool (*valid)(const char *), char *out, size_t size)
{
    const char *text;
    if (!field(p, false, &text) || !*text || strlen(text) >= size || !valid(text))
        return false;
    memcpy(out, text, strlen(text) + 1);
    return true;
}

/* Digits only: no sign, no blanks. */
static bool number_field(char **p, bool last, int base, uint64_t min, uint64_t max, uint64_t *out)
{
    const char *text;
    if (!field(p, last, &text) || !*text ||
        strspn(text, base == 16 ? "0123456789abcdef" : "0123456789") != strlen(text))
        return false;
    errno = 0;
    *out = strtoull(text, NULL, base);
    return !errno && *out >= min && *out <= max;
}

static bool u32_field(char **p, uint32_t min, uint32_t *out)
{
    uint64_t v;
    if (!number_field(p, false, 10, min, UINT32_MAX, &v))
        return false;
    *out = (uint32_t)v;
    return true;
}

static bool build_valid(const char *text)
{
    return strspn(text, "0123456789abcdef-") == strlen(text);
}

static bool parse_shape(char *p, clb_measure_record *r)
{
    *r = (clb_measure_record){.n = 0};
    clb_measure_key *const k = &r->key;
    bool ok = text_field(&p, clb_text_printable, k->cpu, sizeof k->cpu);
    for (size_t i = 0; ok && i < COLIBRI_CPU_WORDS; i++)
        ok = number_field(&p, false, 16, 0, UINT64_MAX, &k->bits.w[i]);
    return ok && u32_field(&p, 0, &k->type) && u32_field(&p, 0, &k->layout) &&
           text_field(&p, clb_component_name_valid, k->act, sizeof k->act) && u32_field(&p, 1, &k->n_rows) &&
           u32_field(&p, 1, &k->n_cols) && u32_field(&p, 1, &k->n_x) && u32_field(&p, 1, &k->n_threads) &&
           number_field(&p, true, 10, 0, UINT64_MAX, &r->when);
}

static bool parse_time(char *p, clb_measure_record *r)
{
    if (r->n == CLB_MEASURE_RIVALS)
        return false;
    clb_measure_time *const t = &r->time[r->n++];
    return text_field(&p, clb_component_name_valid, t->component, sizeof t->component) &&
           text_field(&p, clb_plugin_id_valid, t->plugin, sizeof t->plugin) &&
           text_field(&p, clb_text_printable, t->version, sizeof t->version) &&
           text_field(&p, build_valid, t->build, sizeof t->build) && number_field(&p, true, 10, 1, MAX_PS, &t->ps);
}

/* What is wrong with the text, NULL if nothing is. Changes the text. */
static const char *parse(char *text, size_t n, clb_measure_records *out)
{
    const size_t magic = sizeof MAGIC - 1;
    if (n < magic || memcmp(text, MAGIC, magic) != 0)
        return "it does not start like one";
    if (n == magic || memchr(text, '\0', n) || text[n - 1] != '\n')
        return "it is damaged or cut short";
    text[n - 1] = '\0';
    char *const last = strrchr(text, '\n') + 1;
    char *sum = last + 4;
    uint64_t want;
    if (strncmp(last, "end\t", 4) != 0 || !number_field(&sum, true, 16, 0, UINT64_MAX, &want) ||
        want != fnv(text, (size_t)(last - text)))
        return "it is damaged or cut short";
    *last = '\0';
    clb_measure_record r = {.n = 0};
    bool open = false;
    for (char *line = text + magic, *next; *line; line = next) {
        next = strchr(line, '\n');
        *next++ = '\0';
        if (!strncmp(line, "time\t", 5)) {
            if (!open || !parse_time(line + 5, &r))
                return "a line of it makes no sense";
            continue;
        }
        if (open && (!r.n || clb_measure_put(out, &r, NULL)))
            return "a line of it makes no sense";
        open = !strncmp(line, "shape\t", 6) && parse_shape(line + 6, &r);
        if (!open || out->n == MAX_RECORDS)
            return "a line of it makes no sense";
    }
    if (open && (!r.n || clb_measure_put(out, &r, NULL)))
        return "a line of it makes no sense";
    return NULL;
}

int clb_measure_load(const char *path, clb_measure_records *records, bool *foreign, clb_error *err)
{
    bool dummy;
    foreign = foreign ? foreign : &dummy;
    *foreign = true;
    /* Without O_NONBLOCK a FIFO would stop the start for ever. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        *foreign = errno != ENOENT;
        return clb_fail_errno(err, errno == ENOENT || errno == ENOTDIR ? COLIBRI_E_NOT_FOUND : COLIBRI_E_IO, errno,
                              "cannot open %s", path);
    }
    int rc = COLIBRI_OK;
    struct stat st;
    char why[192];
    clb_buf text = {0};
    clb_measure_records found = {0};
    if (fstat(fd, &st))
        CLB_GO(clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot examine %s", path));
    if (!S_ISREG(st.st_mode))
        CLB_GO(clb_fail(err, COLIBRI_E_FORMAT, "%s is not a regular file", path));
    if (st.st_size > (off_t)MAX_BYTES)
        CLB_GO(clb_fail(err, COLIBRI_E_FORMAT, "%s is larger than %zu bytes", path, MAX_BYTES));
    CLB_GO(clb_buf_read(&text, fd, path, MAX_BYTES, err));
    *foreign = text.n && (text.n < sizeof MAGIC - 1 || memcmp(text.data, MAGIC, sizeof MAGIC - 1) != 0);
    const char *distrust = clb_search_distrust(&st, "file", why);
    if (distrust)
        CLB_GO(clb_fail(err, COLIBRI_E_USAGE, "%s: %s", path, distrust));
    const char *const wrong = text.n ? parse(text.data, text.n, &found) : "it is empty";
    if (wrong)
        CLB_GO(clb_fail(err, COLIBRI_E_FORMAT, "%s is not a file of kernel times: %s", path, wrong));
    for (size_t i = 0; i < found.n; i++)
        CLB_GO(clb_measure_put(records, &found.at[i], err));
done:
    free(found.at);
    clb_buf_free(&text);
    close(fd);
    return rc;
}

/* ---- writing ---------------------------------------------------------------------------------------------- */

static int render(const clb_measure_records *records, size_t first, clb_buf *out, clb_error *err)
{
    out->n = 0;
    CLB_TRY(clb_buf_append(out, MAGIC, sizeof MAGIC - 1, err));
    for (size_t i = first; i < records->n; i++) {
        const clb_measure_record *const r = &records->at[i];
        const clb_measure_key *const k = &r->key;
        CLB_TRY(clb_buf_printf(out, err, "shape\t%s", k->cpu));
        for (size_t w = 0; w < COLIBRI_CPU_WORDS; w++)
            CLB_TRY(clb_buf_printf(out, err, "\t%llx", (unsigned long long)k->bits.w[w]));
        CLB_TRY(clb_buf_printf(out, err, "\t%u\t%u\t%s\t%u\t%u\t%u\t%u\t%llu\n", k->type, k->layout, k->act, k->n_rows,
                               k->n_cols, k->n_x, k->n_threads, (unsigned long long)r->when));
        for (uint32_t t = 0; t < r->n; t++)
            CLB_TRY(clb_buf_printf(out, err, "time\t%s\t%s\t%s\t%s\t%llu\n", r->time[t].component, r->time[t].plugin,
                                   r->time[t].version, r->time[t].build, (unsigned long long)r->time[t].ps));
    }
    return clb_buf_printf(out, err, "end\t%llx\n", (unsigned long long)fnv(out->data, out->n));
}

int clb_measure_save(const char *path, const clb_measure_records *records, bool replace, clb_error *err)
{
    clb_measure_records all = {0};
    clb_buf text = {0};
    clb_error ignored;
    bool foreign = false;
    struct stat st;
    int rc = clb_measure_load(path, &all, &foreign, &ignored);
    if (rc && foreign && !replace)
        CLB_GO(clb_fail(err, COLIBRI_E_USAGE, "%s is something else: it is left alone", path));
    if (!stat(path, &st) && !S_ISREG(st.st_mode)) /* /dev/null must stay what it is */
        CLB_GO(clb_fail(err, COLIBRI_E_USAGE, "%s is not a regular file", path));
    for (size_t i = 0; i < records->n; i++)
        if (records->at[i].n)
            CLB_GO(clb_measure_put(&all, &records->at[i], err));
    size_t first = all.n > MAX_RECORDS ? all.n - MAX_RECORDS : 0; /* the newest stand last */
    CLB_GO(render(&all, first, &text, err));
    while (text.n > MAX_BYTES) {
        first += (all.n - first + 1) / 2;
        CLB_GO(render(&all, first, &text, err));
    }
    clb_file_make_folders(path);
    rc = clb_file_replace(path, text.data, text.n, false, err);
done:
    free(all.at);
    clb_buf_free(&text);
    return rc;
}

bool clb_measure_default_path(char *out, size_t n)
{
    /* As for settings: a relative XDG path is to be taken as unset; a privileged process gets neither variable. */
    const char *const xdg = secure_getenv("XDG_CACHE_HOME"), *const home = secure_getenv("HOME");
    int len = -1;
    if (xdg && *xdg == '/')
        len = snprintf(out, n, "%s/colibri/kernels", xdg);
    else if (home && *home == '/')
        len = snprintf(out, n, "%s/.cache/colibri/kernels", home);
    return len > 0 && (size_t)len < n;
}
