/* colibri pack: a GGUF model in the layout that is multiplied, and the check of packed files. */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/pool.h"
#include "command.h"
#include "config/value.h"
#include "cpu/topology.h"
#include "base/escape.h"
#include "gguf/pack.h"
#include "paths.h"
#include "plugin/open.h"

static const clb_flag flags[] = {
    {"force", 'f', NULL, "replace files that exist", false},
    {"split", 0, "SIZE", "write several files of at most SIZE (4G, 500M) each", false},
    {"verify", 0, NULL, "with one FILE: compare every checksum; after packing: compare with the source, too", false},
    {0},
};

static const enum clb_setting settings[] = {CLB_SET_cpu_threads,    CLB_SET_cpu_mask,     CLB_SET_plugins_path,
                                            CLB_SET_plugins_prefer, CLB_SET_plugins_deny, CLB_SET_COUNT};

#define LEAST_SPLIT ((uint64_t)1 << 20)

typedef struct work {
    clb_registry *registry;
    clb_pool *pool;
    clb_gguf *g;
    clb_pack_options options;
} work;

static const struct colibri_format *format_of(void *registry, uint32_t type)
{
    return clb_registry_format(registry, type, NULL);
}

static bool geometry_of(void *registry, uint32_t type, uint32_t *block_elems, uint32_t *block_bytes)
{
    const struct colibri_format *format = clb_registry_format(registry, type, NULL);
    if (!format)
        return clb_gguf_known_geometry(NULL, type, block_elems, block_bytes);
    *block_elems = format->block_elems;
    *block_bytes = format->block_bytes;
    return true;
}

static bool interrupted(void *args)
{
    return clb_args_interrupted(args);
}

static int open_work(clb_args *args, const char *path, work *w, clb_error *err)
{
    char dir[PATH_MAX];
    const clb_config *config = clb_args_config(args);
    const uint64_t threads = clb_config_u64(config, CLB_SET_cpu_threads);
    CLB_TRY(clb_registry_from_config(config, clb_paths_plugin_dir(dir) ? dir : NULL, clb_args_log(args), &w->registry,
                                     err));
    CLB_TRY(clb_gguf_open(path, geometry_of, w->registry, &w->g, err));
    CLB_TRY(clb_pool_create(threads ? (uint32_t)threads : clb_cpu_default_threads(), &w->pool, err));
    clb_pool_never_spin(w->pool); /* they wait for drives */
    w->options = (clb_pack_options){.format = format_of,
                                    .format_ctx = w->registry,
                                    .pool = w->pool,
                                    .log = clb_args_log(args),
                                    .cancelled = interrupted,
                                    .cancelled_ctx = args};
    return COLIBRI_OK;
}

static void close_work(work *w)
{
    clb_pool_destroy(w->pool);
    clb_gguf_close(w->g);
    clb_registry_close(w->registry);
}

static const char *speed(uint64_t bytes, uint64_t ns, char out[48])
{
    char human[24];
    const double s = (double)ns / 1e9;
    snprintf(out, 48, "%s in %.1f s, %.2f GB/s", clb_human_bytes(bytes, human), s,
             s > 0 ? (double)bytes / 1e9 / s : 0.0);
    return out;
}

static void print_bad(void *ctx, const char *file, const char *what)
{
    (void)ctx;
    char shown[600];
    printf("%s: ", clb_escape((clb_str){file, strlen(file)}, shown, sizeof shown));
    printf("%s\n", clb_escape((clb_str){what, strlen(what)}, shown, sizeof shown));
}

static int judge(uint64_t n_bad, const char *path, clb_error *err)
{
    if (!n_bad)
        return COLIBRI_OK;
    return clb_fail(err, COLIBRI_E_FORMAT, "%.300s: %llu block%s damaged: pack the model again, or copy the file again",
                    path, (unsigned long long)n_bad, n_bad == 1 ? " is" : "s are");
}

static int verify_file(clb_args *args, const char *path, clb_error *err)
{
    work w = {0};
    uint64_t n_bad = 0, bytes = 0;
    char text[48];
    int rc = COLIBRI_OK;
    CLB_GO(open_work(args, path, &w, err));
    const uint64_t t0 = clb_now_ns();
    CLB_GO(clb_pack_verify(w.g, &w.options, print_bad, NULL, &n_bad, err));
    CLB_GO(judge(n_bad, path, err));
    for (uint32_t i = 0; i < clb_gguf_n_shards(w.g); i++)
        bytes += clb_gguf_shard_size(w.g, i);
    printf("all checksums match (%s)\n", speed(bytes, clb_now_ns() - t0, text));
done:
    close_work(&w);
    return rc;
}

static int parse_split(const clb_args *args, uint64_t *out, clb_error *err)
{
    const char *text = clb_args_value(args, "split");
    *out = 0;
    if (!text)
        return COLIBRI_OK;
    if (clb_parse_size(text, out, err))
        return clb_context(err, "--split %.40s", text);
    if (*out < LEAST_SPLIT)
        return clb_fail(err, COLIBRI_E_USAGE, "--split %.40s: at least 1M is expected", text);
    return COLIBRI_OK;
}

/* "-00002-of-00005.colibri" after the stem: 5; 0: something else. */
static unsigned pieces_of(const char *name, const char *stem, size_t n_stem)
{
    unsigned no, count;
    int end = 0;
    if (strncmp(name, stem, n_stem) != 0 || sscanf(name + n_stem, "-%5u-of-%5u.colibri%n", &no, &count, &end) != 2 ||
        !end || name[n_stem + (size_t)end])
        return 0;
    return count;
}

/* They look like a model's files, and are of an older one. */
static void warn_of_others(const clb_args *args, const char *out, uint32_t n_files)
{
    static const char extension[] = ".colibri";
    char *const dir = strdup(out), *const slash = dir ? strrchr(dir, '/') : NULL;
    const char *const name = slash ? out + (slash - dir) + 1 : out;
    const size_t n = strlen(name), n_ext = sizeof extension - 1;
    const size_t n_stem = n > n_ext && !strcmp(name + n - n_ext, extension) ? n - n_ext : n;
    char first[256] = "", shown[600];
    unsigned found = 0;
    if (slash)
        slash[slash == dir] = '\0';
    DIR *const d = dir ? opendir(slash ? dir : ".") : NULL;
    for (const struct dirent *e; d && (e = readdir(d));) {
        const unsigned count = pieces_of(e->d_name, name, n_stem);
        if (!count || (n_files > 1 && count == n_files))
            continue;
        if (!found++ || strcmp(e->d_name, first) < 0)
            snprintf(first, sizeof first, "%s", e->d_name);
    }
    if (found)
        clb_logf(clb_args_log(args), COLIBRI_LOG_WARN,
                 "%s%s%u file%s of another set (%s%s) stay%s beside the new model and belong%s to none of it: remove "
                 "what is not needed",
                 slash ? dir : "", slash ? ": " : "", found, found == 1 ? "" : "s",
                 clb_escape((clb_str){first, strlen(first)}, shown, sizeof shown), found == 1 ? "" : " and others",
                 found == 1 ? "s" : "", found == 1 ? "s" : "");
    if (d)
        closedir(d);
    free(dir);
}

static int pack_file(clb_args *args, const char *in, const char *out, clb_error *err)
{
    work w = {0};
    clb_pack *pack = NULL;
    uint64_t n_bad = 0;
    char text[48], *first = NULL;
    int rc = COLIBRI_OK;
    CLB_GO(open_work(args, in, &w, err));
    CLB_GO(parse_split(args, &w.options.split, err));
    CLB_GO(clb_pack_create(w.g, &w.options, &pack, err));
    uint64_t t0 = clb_now_ns();
    CLB_GO(clb_pack_write(pack, out, clb_args_has(args, "force") ? CLB_GGUF_OVERWRITE : 0, err));
    CLB_GO(clb_pack_path(pack, out, 0, &first, err));
    const uint32_t n = clb_pack_n_files(pack);
    printf("packed into %s", first);
    if (n > 1)
        printf(" and %u more file%s", n - 1, n == 2 ? "" : "s");
    printf(" (%s)\n", speed(clb_pack_size(pack), clb_now_ns() - t0, text));
    warn_of_others(args, out, n);
    if (!clb_args_has(args, "verify"))
        goto done;
    t0 = clb_now_ns();
    CLB_GO(clb_pack_compare(pack, out, print_bad, NULL, &n_bad, err));
    CLB_GO(judge(n_bad, first, err));
    printf("all checksums match, and every unpacked byte is the source's (%s)\n",
           speed(clb_pack_size(pack), clb_now_ns() - t0, text));
done:
    free(first);
    clb_pack_free(pack);
    close_work(&w);
    return rc;
}

static int run(clb_args *args, clb_error *err)
{
    const char *const *words;
    const size_t n = clb_args_positional(args, &words);
    if (n == 2)
        return pack_file(args, words[0], words[1], err);
    if (n == 0)
        return clb_fail(err, COLIBRI_E_USAGE, "which file? Write colibri pack IN.gguf OUT.colibri");
    if (!clb_args_has(args, "verify"))
        return clb_fail(err, COLIBRI_E_USAGE,
                        "where to? Write colibri pack IN.gguf OUT.colibri, or colibri pack --verify FILE.colibri");
    if (clb_args_has(args, "force") || clb_args_has(args, "split"))
        return clb_fail(err, COLIBRI_E_USAGE, "--force and --split go with packing, not with verifying");
    return verify_file(args, words[0], err);
}

const clb_command clb_command_pack = {
    .name = "pack",
    .summary = "write models as they are multiplied, and check them",
    .usage = "colibri pack IN.gguf OUT.colibri [--split SIZE] [--force] [--verify]\n"
             "colibri pack --verify FILE.colibri",
    .description =
        "A packed file holds the same weights as the GGUF file, bit for bit, but in groups of 16 rows as the kernels "
        "take "
        "them, with the three matrices of each expert in one block that begins at a multiple of 4096: an expert is one "
        "read, without conversion, past the page cache if wanted. Tokens and logits stay the same. Every block has a "
        "checksum.\n"
        "\n"
        "Given the first file of a split model, all of it is packed. With --split, OUT.colibri becomes "
        "OUT-00001-of-0000N.colibri and so on; a layer's experts stay in one file.\n"
        "\n"
        "Nothing is at OUT until everything is complete and on the drive. If packing fails or is interrupted, nothing "
        "is "
        "left behind.\n"
        "\n"
        "--verify alone reads a packed file from the drive and names every block that does not match its checksum; "
        "after "
        "packing it also unpacks every block and compares it with the source.",
    .examples = "colibri pack olmoe.gguf olmoe.colibri --verify   # pack, then compare with the source\n"
                "colibri pack --verify olmoe.colibri   # later: is the copy still intact?\n"
                "colibri pack big-00001-of-00009.gguf big.colibri --split 40G   # for drives with small files\n"
                "colibri run -m olmoe.colibri --max-memory 2G \"Hello\"   # run it\n",
    .flags = flags,
    .settings = settings,
    .max_positional = 2,
    .run = run,
};
