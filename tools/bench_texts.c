/* The texts of bench/prompts, or a user's own. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "bench.h"
#include "paths.h"

#define MOST_FILES 64u

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_text(const char *name)
{
    const size_t n = strlen(name);
    return n > 4 && strcmp(name + n - 4, ".txt") == 0;
}

static int list_folder(const char *dir, char **files, size_t *n, clb_error *err)
{
    DIR *const d = opendir(dir);
    if (!d)
        return clb_fail(err, COLIBRI_E_NOT_FOUND, "cannot open the folder %s", dir);
    int rc = COLIBRI_OK;
    for (struct dirent *e; !rc && (e = readdir(d)) != NULL;) {
        if (!is_text(e->d_name))
            continue;
        if (*n == MOST_FILES)
            rc = clb_fail(err, COLIBRI_E_LIMIT, "more than %u texts in %s", MOST_FILES, dir);
        else if (asprintf(&files[*n], "%s/%s", dir, e->d_name) < 0)
            rc = CLB_NOMEM(err, "texts");
        else
            (*n)++;
    }
    closedir(d);
    if (!rc && !*n)
        rc = clb_fail(err, COLIBRI_E_NOT_FOUND, "no *.txt in %s", dir);
    qsort(files, *n, sizeof *files, by_name);
    return rc;
}

void clb_bench_files_free(char **files, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(files[i]);
    free(files);
}

int clb_bench_texts_find(const char *path, char ***out, size_t *n, clb_error *err)
{
    char base[PATH_MAX], dir[PATH_MAX + 32];
    struct stat st;
    *n = 0;
    *out = NULL;
    char **const files = calloc(MOST_FILES, sizeof *files);
    if (!files)
        return CLB_NOMEM(err, "texts");
    int rc = COLIBRI_OK;
    if (!path && clb_paths_data_dir(base)) {
        snprintf(dir, sizeof dir, "%s/bench/prompts", base);
        path = dir;
    }
    if (!path)
        rc = clb_fail(err, COLIBRI_E_NOT_FOUND, "this installation has no texts: name a file or folder (--text)");
    else if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        rc = list_folder(path, files, n, err);
    else if ((files[0] = strdup(path)) == NULL)
        rc = CLB_NOMEM(err, "texts");
    else
        *n = 1;
    if (rc)
        clb_bench_files_free(files, *n);
    else
        *out = files;
    return rc;
}

static void name_of(const char *path, char *out, size_t n)
{
    const char *const slash = strrchr(path, '/');
    snprintf(out, n, "%s", slash ? slash + 1 : path);
    if (is_text(out))
        out[strlen(out) - 4] = '\0';
    for (char *p = out; *p; p++)
        if (*p == '|' || *p == ',' || *p < ' ')
            *p = '_';
}

static int read_one(const clb_engine *e, const clb_chat_format *chat, const char *path, clb_bench_text *out,
                    clb_error *err)
{
    clb_buf text = {0};
    int rc = clb_read_input(path, &text, err);
    name_of(path, out->name, sizeof out->name);
    if (!rc && memchr(text.data ? text.data : "", 0, text.n))
        rc = clb_fail(err, COLIBRI_E_FORMAT, "%s is no text", path);
    const clb_message m = {"user", text.data ? text.data : ""};
    if (!rc && chat)
        rc = clb_chat_tokenize(chat, e->vocab, &m, 1, 1, &out->ids, err);
    else if (!rc)
        rc = clb_tokenize(e->vocab, m.content, text.n, CLB_TOKENIZE_BOS, &out->ids, err);
    clb_buf_free(&text);
    if (!rc && !out->ids.n)
        rc = clb_fail(err, COLIBRI_E_USAGE, "%s is empty", path);
    return rc;
}

int clb_bench_texts_read(clb_args *args, const clb_engine *engine, char **files, size_t n, clb_bench_texts *out,
                         clb_error *err)
{
    const clb_chat_format *chat;
    CLB_TRY(clb_open_chat(args, engine, &chat, err));
    int rc = COLIBRI_OK;
    out->at = calloc(n, sizeof *out->at);
    if (!out->at)
        rc = CLB_NOMEM(err, "texts");
    for (size_t i = 0; i < n && !rc; i++) {
        out->n = i + 1;
        rc = read_one(engine, chat, files[i], &out->at[i], err);
    }
    clb_chat_free(chat);
    return rc;
}

void clb_bench_texts_free(clb_bench_texts *texts)
{
    for (size_t i = 0; i < texts->n; i++)
        clb_tokens_free(&texts->at[i].ids);
    free(texts->at);
    *texts = (clb_bench_texts){0};
}
