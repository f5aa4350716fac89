/* colibri-kernelcheck [options] PLUGIN.so...: see help.c. */
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "help.h"

enum mode { CHECK, BENCH, LIST, SELF_TEST };

static uint64_t number(const char *text, uint64_t least, uint64_t most)
{
    char *end;
    errno = 0;
    const bool digit = *text >= '0' && *text <= '9'; /* strtoull takes signs and blanks too */
    const uint64_t v = digit ? strtoull(text, &end, 0) : 0;
    if (!digit || *end || errno || v < least || v > most) {
        fprintf(stderr, "colibri-kernelcheck: %s: must be a whole number from %llu to %llu\n", text,
                (unsigned long long)least, (unsigned long long)most);
        exit(2);
    }
    return v;
}

/* Counts what ran, so that a run without any component cannot pass. */
struct totals {
    uint32_t run, skipped;
};

static bool named(const struct report *rep, const char *name)
{
    return !rep->o->filter || strstr(name, rep->o->filter);
}

static bool usable(const struct colibri_cpu_bits *cpu, const uint64_t need[COLIBRI_CPU_WORDS], const char *name,
                   struct totals *totals)
{
    char missing[300];
    cpu_missing(cpu, need, missing, sizeof(missing));
    if (missing[0]) {
        fprintf(stderr, "skip %s: this CPU lacks %s\n", name, missing);
        totals->skipped++;
        return false;
    }
    return true;
}

static void do_matmul(enum mode mode, struct report *rep, const struct colibri_matmul *m, struct totals *totals)
{
    if (!named(rep, m->name))
        return;
    totals->run++;
    if (mode == LIST)
        printf("%s\n", m->name);
    else if (mode == BENCH)
        bench_matmul(m);
    else
        check_matmul(rep, m);
}

static void do_format(enum mode mode, struct report *rep, const struct colibri_format *f, struct totals *totals)
{
    char name[64];
    snprintf(name, sizeof(name), "format.%s", f->name);
    for (char *c = name; *c; c++) /* components have lower-case names */
        *c = (char)(*c >= 'A' && *c <= 'Z' ? *c - 'A' + 'a' : *c);
    const struct colibri_matmul m = {
        .struct_size = sizeof(m),
        .gguf_type = f->gguf_type,
        .layout = f->layout,
        .max_ulp = COLIBRI_EXACT,
        .min_x = 1,
        .name = name,
        .act = f->act,
        .run = f->matmul,
    };
    if (mode != BENCH)
        do_matmul(mode, rep, &m, totals);
}

static void do_plugin(enum mode mode, struct report *rep, const struct loaded *p, const struct colibri_cpu_bits *cpu,
                      struct totals *totals)
{
    if (mode == CHECK)
        check_plugin(rep, p);
    else if (mode == BENCH)
        bench_plugin(p->path, p->note.id);
    const struct colibri_matmul *m;
    for (uint32_t i = 0; (m = p->plugin->get(COLIBRI_IFACE_MATMUL, i)); i++)
        if (named(rep, m->name) && usable(cpu, m->cpu, m->name, totals))
            do_matmul(mode, rep, m, totals);
    const struct colibri_vecops *v;
    for (uint32_t i = 0; (v = p->plugin->get(COLIBRI_IFACE_VECOPS, i)); i++) {
        /* members have names of their own, which may hold the filter's text */
        if (!usable(cpu, v->cpu, v->name, totals))
            continue;
        const uint32_t before = rep->cases;
        const bool whole = named(rep, v->name);
        if (mode == LIST && whole)
            printf("%s\n", v->name);
        else if (mode == BENCH && whole)
            bench_vecops(v);
        else if (mode == CHECK)
            check_vecops_component(rep, v);
        totals->run += mode == CHECK ? rep->cases > before : whole;
    }
    const struct colibri_format *f;
    for (uint32_t i = 0; (f = p->plugin->get(COLIBRI_IFACE_FORMAT, i)); i++)
        do_format(mode, rep, f, totals);
}

/* The formats that lie beside this program's Colibri, in the build tree as in the installed one. */
static void load_references(const struct colibri_cpu_bits *cpu)
{
    char pattern[PATH_MAX + 64];
    const ssize_t n = readlink("/proc/self/exe", pattern, PATH_MAX);
    if (n <= 0)
        return;
    pattern[n] = '\0';
    char *const slash = strrchr(pattern, '/');
    if (!slash)
        return;
    snprintf(slash, sizeof(pattern) - (size_t)(slash - pattern), "/../%s/format-*.so", COLIBRI_PLUGIN_REL);
    glob_t found;
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++) {
            struct loaded p;
            if (plugin_load(found.gl_pathv[i], cpu, &p) == 0)
                bench_reference(p.plugin);
        }
    globfree(&found);
}

int main(int argc, char **argv)
{
    struct options o = {.seed = (uint64_t)time(NULL), .cases = 40, .only_case = -1, .work = 1000000};
    enum mode mode = CHECK;
    const char *paths[MAX_PLUGINS];
    size_t n_paths = 0;
    bool json = false;
    for (int i = 1; i < argc; i++) {
        const char *const arg = argv[i];
        const char *const value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(arg, "--filter") == 0 && value)
            o.filter = argv[++i];
        else if (strcmp(arg, "--seed") == 0 && value)
            o.seed = number(argv[++i], 0, UINT64_MAX);
        else if (strcmp(arg, "--cases") == 0 && value)
            o.cases = (uint32_t)number(argv[++i], 1, 100000000);
        else if (strcmp(arg, "--case") == 0 && value)
            o.only_case = (int64_t)number(argv[++i], 0, 100000000);
        else if (strcmp(arg, "--work") == 0 && value)
            o.work = number(argv[++i], 1, UINT64_C(1) << 40);
        else if (strcmp(arg, "--bench") == 0)
            mode = BENCH;
        else if (strcmp(arg, "--list") == 0)
            mode = LIST;
        else if (strcmp(arg, "--self-test") == 0)
            mode = SELF_TEST;
        else if (strcmp(arg, "--verbose") == 0)
            o.verbose = true;
        else if (strcmp(arg, "--json") == 0)
            json = true;
        else if (strcmp(arg, "--help") == 0)
            return help_print();
        else if (strcmp(arg, "--man") == 0) /* for the build */
            return help_man();
        else if (strcmp(arg, "--version") == 0)
            return printf("colibri-kernelcheck %s, plugin interface %u.%u\n", COLIBRI_VERSION, COLIBRI_ABI_MAJOR,
                          COLIBRI_ABI_MINOR) < 0;
        else if (arg[0] == '-' || n_paths == MAX_PLUGINS)
            return fprintf(stderr, "colibri-kernelcheck: cannot use '%s'\n", arg), help_short(), 2;
        else
            paths[n_paths++] = arg;
    }
    if (o.only_case >= 0 && o.cases <= o.only_case)
        o.cases = (uint32_t)o.only_case + 1;
    if (json && mode != BENCH)
        return fprintf(stderr, "colibri-kernelcheck: --json goes with --bench\n"), help_short(), 2;
    if (mode == CHECK || mode == SELF_TEST)
        printf("seed %llu\n", (unsigned long long)o.seed);
    if (mode == SELF_TEST) {
        const int missed = self_test(&o);
        printf("%d mistakes missed\n", missed);
        return missed != 0;
    }
    if (!n_paths)
        return help_short(), 2;

    crash_handler_install();
    const struct colibri_cpu_bits cpu = cpu_bits();
    struct report rep = {.o = &o};
    struct totals totals = {0};
    int broken = 0;
    if (mode == BENCH) {
        load_references(&cpu);
        bench_begin(json, &cpu);
    }
    for (size_t i = 0; i < n_paths; i++) {
        struct loaded p;
        const int status = plugin_load(paths[i], &cpu, &p);
        totals.skipped += status == 77;
        broken += status == 1;
        if (status == 0)
            do_plugin(mode, &rep, &p, &cpu, &totals);
    }
    if (mode == BENCH)
        bench_end();
    if (mode == CHECK)
        printf("%u components, %u cases, %u failures, %u skipped\n", totals.run, rep.cases, rep.failures,
               totals.skipped);
    if (broken || rep.failures)
        return 1;
    if (!totals.run) {
        fprintf(stderr, "colibri-kernelcheck: %s\n",
                totals.skipped ? "nothing could run on this CPU" : "no component matched");
        return totals.skipped ? 77 : 1;
    }
    return 0;
}
