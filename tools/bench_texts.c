/* The texts of bench/prompts, or a user's own. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "bench.h"
#include "paths.h"
#include "text/utf8.h"

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

/* The *.txt of a folder, by name. */
static int list_folder(const char *dir, char **files, size_t *n, clb_error *err)
{
    DIR *const d = opendir(dir);
    if (!d)
        return clb_fail_errno(err, COLIBRI_E_NOT_FOUND, errno, "cannot open the folder %s", dir);
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
        rc = clb_fail(err, COLIBRI_E_NOT_FOUND, "the folder %s has no *.txt", dir);
    qsort(files, *n, sizeof *files, by_name);
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

/* What cannot be asked, or would measure something else than its name says. */
static int check_text(const clb_buf *text, const char *path, clb_error *err)
{
    size_t blanks = 0;
    while (blanks < text->n && strchr(" \t\r\n", text->data[blanks]) && text->data[blanks])
        blanks++;
    if (blanks == text->n)
        return clb_fail(err, COLIBRI_E_USAGE, text->n ? "%s has nothing but blanks" : "%s is empty", path);
    for (size_t i = 0, length; i < text->n; i += length) {
        length = text->data[i] ? clb_utf8_decode(text->data + i, text->n - i, NULL) : 0;
        if (!length)
            return clb_fail(err, COLIBRI_E_FORMAT, "%s is no text: byte %zu is %s", path, i,
                            text->data[i] ? "not UTF-8" : "NUL");
    }
    return COLIBRI_OK;
}

static int add_file(clb_bench_texts *t, const char *path, clb_error *err)
{
    clb_bench_text *const grown = realloc(t->at, (t->n + 1) * sizeof *grown);
    if (!grown)
        return CLB_NOMEM(err, "texts");
    t->at = grown;
    clb_bench_text *const text = &t->at[t->n++];
    *text = (clb_bench_text){.text = {0}};
    name_of(path, text->name, sizeof text->name);
    CLB_TRY(clb_read_input(path, &text->text, err));
    return check_text(&text->text, path, err);
}

int clb_bench_texts_add(clb_bench_texts *t, const char *path, clb_error *err)
{
    char base[PATH_MAX], dir[PATH_MAX + 32];
    char *files[MOST_FILES];
    struct stat st;
    size_t n = 0;
    if (path && !*path)
        return clb_fail(err, COLIBRI_E_USAGE, "--text: the name of a file or folder is empty");
    if (!path && clb_paths_data_dir(base)) {
        snprintf(dir, sizeof dir, "%s/bench/prompts", base);
        path = dir;
    }
    if (!path)
        return clb_fail(err, COLIBRI_E_NOT_FOUND, "this installation has no texts: name a file or folder (--text)");
    if (strcmp(path, "-") == 0 || stat(path, &st) || !S_ISDIR(st.st_mode))
        return add_file(t, path, err);
    int rc = list_folder(path, files, &n, err);
    for (size_t i = 0; i < n; i++) {
        if (!rc)
            rc = add_file(t, files[i], err);
        free(files[i]);
    }
    return rc;
}

int clb_bench_texts_tokenize(clb_bench_texts *t, clb_args *args, const clb_engine *engine, uint32_t n_gen,
                             clb_error *err)
{
    const clb_chat_format *chat;
    CLB_TRY(clb_open_chat(args, engine, &chat, err));
    int rc = COLIBRI_OK;
    for (size_t i = 0; i < t->n && !rc; i++) {
        clb_bench_text *const text = &t->at[i];
        const clb_message m = {"user", text->text.data};
        rc = chat ? clb_chat_tokenize(chat, engine->vocab, &m, 1, 1, &text->ids, err)
                  : clb_tokenize(engine->vocab, text->text.data, text->text.n, CLB_TOKENIZE_BOS, &text->ids, err);
        if (!rc && text->ids.n + n_gen > engine->ctx)
            rc =
                clb_fail(err, COLIBRI_E_LIMIT, "%s: %zu tokens and %u of the answer, the context holds %u: raise --ctx",
                         text->name, text->ids.n, n_gen, engine->ctx);
        clb_buf_free(&text->text);
    }
    clb_chat_free(chat);
    return rc;
}

void clb_bench_texts_free(clb_bench_texts *texts)
{
    for (size_t i = 0; i < texts->n; i++) {
        clb_buf_free(&texts->at[i].text);
        clb_tokens_free(&texts->at[i].ids);
    }
    free(texts->at);
    *texts = (clb_bench_texts){0};
}
