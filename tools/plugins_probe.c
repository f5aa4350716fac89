#include "plugins_probe.h"

#include <dirent.h>
#include <locale.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "plugin/components.h"
#include "plugin/fpstate.h"
#include "plugin/host.h"
#include "plugin/loader.h"
#include "plugin/note.h"

typedef struct probe {
    int fd;
    const struct colibri_elf_note *note;
    const struct colibri_plugin *plugin;
} probe;

static void say(const probe *p, char kind, const char *fmt, ...) CLB_PRINTF(3, 4);
static void say(const probe *p, char kind, const char *fmt, ...)
{
    char line[1200];
    line[0] = kind;
    line[1] = ' ';
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(line + 2, sizeof line - 3, fmt, args);
    va_end(args);
    size_t len = 2 + (n < 0 ? 0 : (size_t)n > sizeof line - 4 ? sizeof line - 4 : (size_t)n);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)line[i] < ' ')
            line[i] = ' ';
    line[len++] = '\n';
    for (size_t done = 0; done < len;) {
        const ssize_t w = write(p->fd, line + done, len - done);
        if (w < 0)
            _exit(3); /* the parent has gone */
        done += (size_t)w;
    }
}

static void judge(const probe *p, bool ok, const char *good, const char *bad)
{
    say(p, ok ? '+' : '-', "%s", ok ? good : bad);
}

static void on_stage(void *ctx, const char *stage)
{
    say(ctx, 'S', "%s", stage);
}

/* ---- the process around the plugin ------------------------------------------------------------------------ */

typedef struct surroundings {
    size_t threads;
    void (*handler[65])(int);
    char locale[256];
    clb_fpstate fp;
} surroundings;

static size_t count_threads(void)
{
    size_t n = 0;
    DIR *const d = opendir("/proc/self/task");
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

static void look_around(surroundings *s)
{
    s->threads = count_threads();
    for (int i = 1; i <= 64; i++) {
        struct sigaction a = {.sa_handler = SIG_DFL};
        s->handler[i] = sigaction(i, NULL, &a) ? SIG_DFL : a.sa_handler;
    }
    const char *const locale = setlocale(LC_ALL, NULL);
    snprintf(s->locale, sizeof s->locale, "%s", locale ? locale : "");
    s->fp = clb_fpstate_get();
}

static void compare(const probe *p, const surroundings *before)
{
    surroundings now;
    look_around(&now);
    judge(p, now.threads == before->threads, "it starts no threads", "it has started threads");
    int changed = 0;
    for (int i = 1; i <= 64 && !changed; i++)
        changed = now.handler[i] != before->handler[i] ? i : 0;
    judge(p, !changed, "signal handlers are unchanged", "it has changed a signal handler");
    judge(p, !strcmp(now.locale, before->locale), "the locale is unchanged", "it has changed the locale");
    judge(p, clb_fpstate_same(now.fp, before->fp), "the floating-point control state is unchanged",
          "its get has changed the floating-point control state");
}

/* ---- the entry -------------------------------------------------------------------------------------------- */

static bool check_unknown(const probe *p)
{
    static const char *const names[] = {"",
                                        "no.such.interface/1",
                                        COLIBRI_IFACE_FORMAT "garbage",
                                        COLIBRI_IFACE_MATMUL "0",
                                        COLIBRI_IFACE_VECOPS " ",
                                        COLIBRI_IFACE_EXPERT_POLICY "/",
                                        COLIBRI_IFACE_PREDICTOR "x",
                                        COLIBRI_IFACE_KV_STRATEGY "x"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (p->plugin->get(names[i], 0)) {
            say(p, '-', "get(\"%s\", 0) is not NULL: interface names must be compared whole", names[i]);
            return false;
        }
    say(p, '+', "get answers unknown interfaces with NULL");
    return true;
}

/* Components of one interface: number of sound ones. */
static size_t check_iface(const probe *p, enum clb_iface iface)
{
    const clb_iface_info *const info = clb_iface_get(iface);
    const bool declared = p->note->desc.kinds & info->kind;
    size_t sound = 0, bad = 0;
    const void *first = p->plugin->get(info->id, 0);
    if (first && !declared) {
        say(p, '-', "it offers a %s, but its note does not declare the kind: it will never be asked for", info->name);
        return 0;
    }
    for (uint32_t i = 0; first; i++) {
        const void *const table = p->plugin->get(info->id, i);
        if (!table)
            break;
        if (i == CLB_MAX_COMPONENTS || bad == CLB_MAX_BAD_COMPONENTS) {
            say(p, '-', "its list of %ss %s", info->name,
                bad ? "has too many mistakes: the rest is not looked at" : "has no end");
            return sound;
        }
        clb_error e = {0};
        if (clb_component_check(iface, table, &e)) {
            bad++;
            say(p, '-', "%s %u: %s", info->name, i, e.msg);
            continue;
        }
        const char *const name = clb_component_name(iface, table);
        bool taken = false;
        for (uint32_t k = 0; k < i && !taken; k++) {
            const void *const other = p->plugin->get(info->id, k);
            taken =
                other && !clb_component_check(iface, other, NULL) && !strcmp(clb_component_name(iface, other), name);
        }
        if (taken)
            bad++, say(p, '-', "%s %u: a second one called %s", info->name, i, name);
        else if (p->plugin->get(info->id, i) != table)
            say(p, '-', "%s %s: get returns another table each time", info->name, name);
        else
            sound++, say(p, '+', "%s %s", info->name, name);
    }
    if (p->plugin->get(info->id, UINT32_MAX))
        say(p, '-', "get(\"%s\", 4294967295) is not NULL", info->id);
    return sound;
}

void clb_plugins_probe(const char *path, const struct colibri_elf_note *note, struct colibri_cpu_bits cpu, int fd)
{
    probe p = {.fd = fd, .note = note};
    clb_host *host = NULL, *second = NULL;
    clb_error err = {0};
    surroundings before;
    look_around(&before);
    if (clb_host_create(cpu, NULL, &host, &err) || clb_host_create(cpu, NULL, &second, &err)) {
        say(&p, '-', "%s", err.msg);
        goto done;
    }
    if (clb_loader_open(path, note, host, on_stage, &p, &p.plugin, &err)) {
        say(&p, '-', "%s", err.msg);
        goto done;
    }
    say(&p, '+', "mapped, descriptor equals the note, init succeeded");
    on_stage(&p, "get");
    if (check_unknown(&p))
        for (uint32_t bit = 1; bit <= COLIBRI_KIND_ALL; bit <<= 1) {
            size_t sound = 0;
            for (int i = 0; i < CLB_IFACE_COUNT; i++)
                if (clb_iface_get((enum clb_iface)i)->kind == bit)
                    sound += check_iface(&p, (enum clb_iface)i);
            if (note->desc.kinds & bit && !sound)
                say(&p, '-', "its note declares the kind %s, but it offers no usable one", clb_kind_name(bit));
        }
    on_stage(&p, "the second init");
    if (clb_loader_enter(p.plugin, note, second, NULL, NULL, &err))
        say(&p, '-', "a second host: %s", err.msg);
    else
        say(&p, '+', "a second host can use it too");
    compare(&p, &before);
done:
    say(&p, 'D', "done");
}
