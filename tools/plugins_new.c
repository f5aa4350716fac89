/* colibri plugins new: a folder with a complete plugin to start from.
 *
 * The templates are the examples of the source tree, installed as files (share/colibri/templates/KIND): what an author
 * starts from is what the tests build, a reader can look at it without running anything, and a distribution can patch
 * it. Embedded in the executable they would be a second copy. A template's own names are replaced by the new ones, in
 * contents and in file names. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/str.h"
#include "paths.h"
#include "plugin/note.h"
#include "plugins.h"

#define MAX_FILE_BYTES ((size_t)1 << 20)
#define MAX_NAME       32u
#define MAX_WORDS      8u

/* A kind of plugin, and the name that its template has. */
static const struct kind {
    const char *name, *template_name, *manual;
    uint32_t bit;
} kinds[] = {
    {"expert-policy", "second-wind", "docs/writing-an-expert-policy.md", COLIBRI_KIND_EXPERT_POLICY},
    {"predictor", "favourites", "docs/writing-an-expert-policy.md", COLIBRI_KIND_PREDICTOR},
    {"kv-strategy", "keep-every-other", "docs/writing-a-kv-strategy.md", COLIBRI_KIND_KV_STRATEGY},
    {"kernel", "q4_0", "docs/writing-a-kernel.md", COLIBRI_KIND_KERNEL},
};
#define N_KINDS (sizeof kinds / sizeof *kinds)

/* What stands in the template, and what is put in its place. Longer words come first where one contains another. */
typedef struct words {
    struct {
        char from[160], to[160];
    } word[MAX_WORDS];
    size_t n;
} words;

static void add_word(words *w, const char *from, const char *to)
{
    snprintf(w->word[w->n].from, sizeof w->word[0].from, "%s", from);
    snprintf(w->word[w->n++].to, sizeof w->word[0].to, "%s", to);
}

/* Every character but [a-z0-9] turned into '_'. */
static const char *identifier(const char *text, char out[96])
{
    size_t n = 0;
    for (; text[n] && n + 1 < 96; n++)
        out[n] = (text[n] >= 'a' && text[n] <= 'z') || (text[n] >= '0' && text[n] <= '9') ? text[n] : '_';
    out[n] = '\0';
    return out;
}

static void make_words(words *w, const struct kind *kind, const char *name, const char *id)
{
    char from[96], to[96], a[96], b[96];
    w->n = 0;
    if (kind->bit == COLIBRI_KIND_KERNEL) {
        add_word(w, "org_example_kernel_q4_0", identifier(id, a));
        add_word(w, "org.example.kernel-q4_0", id);
        add_word(w, "kernel-q4_0", name);
        snprintf(to, sizeof to, "\"%s-", name);
        add_word(w, "\"example-", to);
        snprintf(to, sizeof to, "Kernels of %s", name);
        add_word(w, "Example kernels", to);
        return;
    }
    snprintf(from, sizeof from, "org.example.%s.%s", kind->name, kind->template_name);
    add_word(w, identifier(from, a), identifier(id, b));
    add_word(w, from, id);
    add_word(w, kind->template_name, name);
    if (strcmp(identifier(kind->template_name, a), kind->template_name) != 0)
        add_word(w, a, identifier(name, b));
}

static int replace(const words *w, const char *text, size_t n, clb_buf *out, clb_error *err)
{
    for (size_t i = 0; i < n;) {
        size_t k = 0, length = 1;
        for (; k < w->n; k++) {
            length = strlen(w->word[k].from);
            if (length <= n - i && !memcmp(text + i, w->word[k].from, length))
                break;
        }
        const bool found = k < w->n;
        CLB_TRY(clb_buf_append(out, found ? w->word[k].to : text + i, found ? strlen(w->word[k].to) : 1, err));
        i += found ? length : 1;
    }
    return COLIBRI_OK;
}

/* ---- files -------------------------------------------------------------------------------------------------- */

static int write_file(const char *path, const char *data, size_t n, mode_t mode, clb_error *err)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0)
        return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot create %s", path);
    size_t done = 0;
    int number = 0;
    while (done < n && !number) {
        const ssize_t got = write(fd, data + done, n - done);
        if (got < 0 && errno != EINTR)
            number = errno;
        done += got > 0 ? (size_t)got : 0;
    }
    if (close(fd) && !number)
        number = errno;
    return number ? clb_fail_errno(err, COLIBRI_E_IO, number, "cannot write %s", path) : COLIBRI_OK;
}

static int copy_file(const words *w, const char *from, const char *name, const char *dir, clb_error *err)
{
    clb_buf text = {0}, made = {0}, target = {0};
    int rc = COLIBRI_OK;
    struct stat st = {0};
    const int fd = open(from, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st)) {
        rc = clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot open %s", from);
        goto done;
    }
    if (!S_ISREG(st.st_mode))
        goto done;
    CLB_GO(clb_buf_read(&text, fd, from, MAX_FILE_BYTES, err));
    CLB_GO(replace(w, text.data ? text.data : "", text.n, &made, err));
    CLB_GO(clb_buf_printf(&target, err, "%s/", dir));
    CLB_GO(replace(w, name, strlen(name), &target, err));
    rc = write_file(target.data, made.data ? made.data : "", made.n, st.st_mode & 0100 ? 0777 : 0666, err);
done:
    if (fd >= 0)
        close(fd);
    clb_buf_free(&text);
    clb_buf_free(&made);
    clb_buf_free(&target);
    return rc;
}

static int visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static int copy_template(const words *w, const char *template_dir, const char *dir, clb_error *err)
{
    struct dirent **entries = NULL;
    const int n = scandir(template_dir, &entries, visible, alphasort);
    if (n <= 0) {
        free(entries);
        return clb_fail(err, COLIBRI_E_NOT_FOUND, "the template %s is not there: it comes with Colibri's headers",
                        template_dir);
    }
    int rc = COLIBRI_OK;
    char path[PATH_MAX];
    for (int i = 0; i < n; i++) {
        if (!rc && snprintf(path, sizeof path, "%s/%s", template_dir, entries[i]->d_name) < (int)sizeof path)
            rc = copy_file(w, path, entries[i]->d_name, dir, err);
        free(entries[i]);
    }
    free(entries);
    static const char ignore[] = "build*/\n";
    if (!rc && snprintf(path, sizeof path, "%s/.gitignore", dir) < (int)sizeof path)
        rc = write_file(path, ignore, sizeof ignore - 1, 0666, err);
    return rc;
}

/* What a failed attempt has left: files of the new folder, then the folder. */
static void remove_folder(const char *dir)
{
    DIR *const d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    rmdir(dir);
}

/* ---- the command -------------------------------------------------------------------------------------------- */

static int find_kind(const char *word, const struct kind **out, clb_error *err)
{
    const char *names[N_KINDS];
    for (size_t i = 0; i < N_KINDS; i++) {
        names[i] = kinds[i].name;
        if (!strcmp(names[i], word)) {
            *out = &kinds[i];
            return COLIBRI_OK;
        }
    }
    const long near = clb_nearest(word, names, N_KINDS);
    return clb_fail(err, COLIBRI_E_USAGE, "unknown kind '%.80s'%s%s%s", word,
                    near >= 0 ? "; did you mean '" : " (expert-policy, predictor, kv-strategy, kernel)",
                    near >= 0 ? names[near] : "", near >= 0 ? "'?" : "");
}

static int check_name(const char *name, clb_error *err)
{
    const size_t n = strlen(name);
    if (!n || n > MAX_NAME || name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789._-")] || name[0] == '.' ||
        name[0] == '-' || name[0] == '_')
        return clb_fail(
            err, COLIBRI_E_USAGE,
            "'%.80s' cannot be a plugin's name: 1 to %u characters of a-z, 0-9, '.', '_' and '-', the first a "
            "letter or digit",
            name, MAX_NAME);
    return COLIBRI_OK;
}

/* A second component of a name would hide one of the two. */
static int check_free(const clb_registry *reg, const struct kind *kind, const char *name, const char *id,
                      clb_error *err)
{
    const size_t n_name = strlen(name);
    for (size_t i = 0; i < clb_registry_n_plugins(reg); i++) {
        clb_plugin_view p;
        clb_registry_plugin(reg, i, &p);
        if (!p.id || !p.note || !(p.note->kinds & kind->bit))
            continue;
        const size_t n = strlen(p.id);
        const bool same_name = kind->bit != COLIBRI_KIND_KERNEL && n > n_name && p.id[n - n_name - 1] == '.' &&
                               !strcmp(p.id + n - n_name, name);
        if (same_name || !strcmp(p.id, id))
            return clb_fail(err, COLIBRI_E_USAGE, "there is a plugin of this name already: %s (%s)", p.id,
                            p.path ? p.path : "linked in");
    }
    return COLIBRI_OK;
}

int clb_plugins_new(const clb_registry *reg, const char *kind_word, const char *name, const char *dir, const char *id,
                    clb_error *err)
{
    const struct kind *kind = NULL;
    char template_dir[PATH_MAX], default_id[COLIBRI_ID_MAX + 64], data_dir[PATH_MAX];
    words w;
    struct stat st;
    CLB_TRY(find_kind(kind_word, &kind, err));
    CLB_TRY(check_name(name, err));
    snprintf(default_id, sizeof default_id, "org.example.%s%s%s", kind->bit == COLIBRI_KIND_KERNEL ? "" : kind->name,
             kind->bit == COLIBRI_KIND_KERNEL ? "" : ".", name);
    id = id ? id : default_id;
    if (!clb_plugin_id_valid(id))
        return clb_fail(err, COLIBRI_E_USAGE, "--id '%.80s': an id is 1 to %d characters of a-z, 0-9, '.', '_' and '-'",
                        id, COLIBRI_ID_MAX - 1);
    CLB_TRY(check_free(reg, kind, name, id, err));
    dir = dir ? dir : name;
    if (!lstat(dir, &st))
        return clb_fail(err, COLIBRI_E_USAGE, "%s exists already", dir);
    if (!clb_paths_data_dir(data_dir) || snprintf(template_dir, sizeof template_dir, "%s/templates/%s", data_dir,
                                                  kind->name) >= (int)sizeof template_dir)
        return clb_fail(err, COLIBRI_E_NOT_FOUND,
                        "cannot tell where Colibri's templates are: the executable is not in its installation");
    if (mkdir(dir, 0777))
        return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot make %s", dir);
    make_words(&w, kind, name, id);
    const int rc = copy_template(&w, template_dir, dir, err);
    if (rc) {
        remove_folder(dir);
        return rc;
    }
    printf("%s: %s %s, plugin %s\n\n    cd %s\n    cmake -G Ninja -S . -B build && cmake --build build\n"
           "    ctest --test-dir build --output-on-failure\n\nThen: %s\n",
           dir, kind->name, name, id, dir, kind->manual);
    return COLIBRI_OK;
}
