/* kernelcheck [options] PLUGIN.so...: see the usage text. */
#include "check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const char usage[] =
    "usage: kernelcheck [options] PLUGIN.so...\n"
    "Compares the kernels and format references of plugins with scalar references, byte for byte.\n"
    "  --filter TEXT   only components whose name contains TEXT\n"
    "  --seed N        seed of all random cases (default: from the clock; it is printed)\n"
    "  --cases N       cases per component (default 40)\n"
    "  --case N        only this case\n"
    "  --work N        about this many multiplications per case (default 1000000)\n"
    "  --bench         measure instead of checking\n"
    "  --list          list components instead of checking\n"
    "  --self-test     check that wrong kernels are caught\n"
    "  --verbose       print every case\n"
    "exit status: 0 all equal, 1 a difference or a broken plugin, 2 wrong usage, 77 nothing could run on this CPU\n";

enum mode { CHECK, BENCH, LIST, SELF_TEST };

static uint64_t number(const char *text)
{
    char *end;
    errno = 0;
    const uint64_t v = text ? strtoull(text, &end, 0) : 0;
    if (!text || *text == '\0' || *end || errno) {
        fprintf(stderr, "kernelcheck: not a number: %s\n", text ? text : "(nothing)");
        exit(2);
    }
    return v;
}

/* Counts what ran, so that a run without any component cannot pass. */
struct totals {
    uint32_t run, skipped;
};

static bool usable(const struct colibri_cpu_bits *cpu, const uint64_t need[COLIBRI_CPU_WORDS], const char *name,
                   struct totals *totals)
{
    char missing[300];
    cpu_missing(cpu, need, missing, sizeof(missing));
    if (missing[0]) {
        printf("skip %s: this CPU lacks %s\n", name, missing);
        totals->skipped++;
        return false;
    }
    return true;
}

static void do_matmul(enum mode mode, struct report *rep, const struct colibri_matmul *m, struct totals *totals)
{
    if (rep->o->filter && !strstr(m->name, rep->o->filter))
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
    const struct colibri_matmul *m;
    for (uint32_t i = 0; (m = p->plugin->get(COLIBRI_IFACE_MATMUL, i)); i++)
        if (usable(cpu, m->cpu, m->name, totals))
            do_matmul(mode, rep, m, totals);
    const struct colibri_vecops *v;
    for (uint32_t i = 0; (v = p->plugin->get(COLIBRI_IFACE_VECOPS, i)); i++) {
        /* members have names of their own, which may hold the filter's text */
        if (!usable(cpu, v->cpu, v->name, totals))
            continue;
        const uint32_t before = rep->cases;
        if (mode == LIST)
            printf("%s\n", v->name);
        else if (mode == BENCH && (!rep->o->filter || strstr(v->name, rep->o->filter)))
            bench_vecops(v);
        else if (mode == CHECK)
            check_vecops(rep, v);
        totals->run += mode != CHECK || rep->cases > before;
    }
    const struct colibri_format *f;
    for (uint32_t i = 0; (f = p->plugin->get(COLIBRI_IFACE_FORMAT, i)); i++)
        do_format(mode, rep, f, totals);
}

int main(int argc, char **argv)
{
    struct options o = {.seed = (uint64_t)time(NULL), .cases = 40, .only_case = -1, .work = 1000000};
    enum mode mode = CHECK;
    const char *paths[MAX_PLUGINS];
    size_t n_paths = 0;
    for (int i = 1; i < argc; i++) {
        const char *const arg = argv[i];
        const char *const value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(arg, "--filter") == 0 && value)
            o.filter = argv[++i];
        else if (strcmp(arg, "--seed") == 0 && value)
            o.seed = number(argv[++i]);
        else if (strcmp(arg, "--cases") == 0 && value)
            o.cases = (uint32_t)number(argv[++i]);
        else if (strcmp(arg, "--case") == 0 && value)
            o.only_case = (int64_t)number(argv[++i]);
        else if (strcmp(arg, "--work") == 0 && value)
            o.work = number(argv[++i]);
        else if (strcmp(arg, "--bench") == 0)
            mode = BENCH;
        else if (strcmp(arg, "--list") == 0)
            mode = LIST;
        else if (strcmp(arg, "--self-test") == 0)
            mode = SELF_TEST;
        else if (strcmp(arg, "--verbose") == 0)
            o.verbose = true;
        else if (strcmp(arg, "--help") == 0)
            return fputs(usage, stdout) < 0;
        else if (arg[0] == '-' || n_paths == MAX_PLUGINS)
            return fprintf(stderr, "kernelcheck: cannot use '%s'\n%s", arg, usage), 2;
        else
            paths[n_paths++] = arg;
    }
    if (o.only_case >= 0 && o.cases <= o.only_case)
        o.cases = (uint32_t)o.only_case + 1;
    if (mode != LIST)
        printf("seed %llu\n", (unsigned long long)o.seed);
    if (mode == SELF_TEST) {
        const int missed = self_test(&o);
        printf("%d mistakes missed\n", missed);
        return missed != 0;
    }
    if (!n_paths)
        return fputs(usage, stderr), 2;

    crash_handler_install();
    const struct colibri_cpu_bits cpu = cpu_bits();
    struct report rep = {.o = &o};
    struct totals totals = {0};
    int broken = 0;
    if (mode == BENCH)
        bench_read();
    for (size_t i = 0; i < n_paths; i++) {
        struct loaded p;
        const int status = plugin_load(paths[i], &cpu, &p);
        totals.skipped += status == 77;
        broken += status == 1;
        if (status == 0)
            do_plugin(mode, &rep, &p, &cpu, &totals);
    }
    if (mode == CHECK)
        printf("%u components, %u cases, %u failures, %u skipped\n", totals.run, rep.cases, rep.failures,
               totals.skipped);
    if (broken || rep.failures)
        return 1;
    if (!totals.run) {
        fprintf(stderr, "kernelcheck: %s\n", totals.skipped ? "nothing could run on this CPU" : "no component matched");
        return totals.skipped ? 77 : 1;
    }
    return 0;
}
