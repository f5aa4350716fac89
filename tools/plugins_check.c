/* colibri plugins check: static checks of the file, then loading it in a child process that may crash, hang or lie. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"
#include "cpu/cpu.h"
#include "plugin/note.h"
#include "plugin/search.h"
#include "plugins.h"
#include "plugins_elf.h"
#include "plugins_probe.h"

#define MAX_FILE (512u << 20)

typedef struct subject {
    const char *given;
    clb_search_file file;
    clb_note note;
    uint8_t *data;
    size_t size;
    struct colibri_cpu_bits cpu;
    clb_verdict verdict;
} subject;

static int read_all(int fd, subject *s, clb_error *err)
{
    if (s->file.size <= 0 || s->file.size > (off_t)MAX_FILE)
        return clb_fail(err, COLIBRI_E_FORMAT, "%lld bytes: not a plugin", (long long)s->file.size);
    s->size = (size_t)s->file.size;
    s->data = malloc(s->size);
    if (!s->data)
        return CLB_NOMEM(err, s->given);
    for (size_t done = 0; done < s->size;) {
        const ssize_t n = pread(fd, s->data + done, s->size - done, (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot read it")
                         : clb_fail(err, COLIBRI_E_IO, "it became shorter while it was read");
        done += (size_t)n;
    }
    return COLIBRI_OK;
}

static bool all_passed(const clb_verdict *v)
{
    for (size_t i = 0; i < v->n; i++)
        if (!v->checks[i].pass)
            return false;
    return true;
}

/* File, note, ELF. true: loading it makes sense. */
static int check_static(subject *s, bool *loadable, clb_error *err)
{
    *loadable = false;
    clb_error e = {0};
    int fd = -1;
    const int opened = clb_search_open_file(s->given, &s->file, &fd, &e);
    if (opened == COLIBRI_E_NOT_FOUND || opened == COLIBRI_E_NOMEM)
        return clb_fail(err, opened, "%s: %s", s->given, opened == COLIBRI_E_NOT_FOUND ? "no such file" : e.msg);
    clb_verdict_add(&s->verdict, "file", !opened, "%s",
                    opened ? e.msg : "a regular file that only its owner may change");
    if (opened)
        return COLIBRI_OK;
    int rc = read_all(fd, s, &e);
    close(fd);
    if (rc == COLIBRI_E_NOMEM)
        return clb_fail(err, rc, "%s", e.msg);
    if (!rc)
        rc = clb_note_read(&(clb_note_source){.data = s->data, .size = s->size}, &s->note, &e);
    char kinds[96], cpu[CLB_CPU_TEXT_MAX];
    if (rc) {
        clb_verdict_add(&s->verdict, "note", false, "%s", e.msg);
        return COLIBRI_OK;
    }
    const struct colibri_note_desc *const d = &s->note.raw.desc;
    clb_verdict_add(&s->verdict, "note", true, "%s %s, %s, ABI %u.%u", d->id, d->version,
                    clb_kinds_format(d->kinds, kinds), d->abi_major, d->abi_minor);
    rc = clb_elf_check(s->data, s->size, d->symbol, &s->verdict, &e);
    if (rc) {
        clb_verdict_add(&s->verdict, "elf", false, "%s", e.msg);
        return COLIBRI_OK;
    }
    struct colibri_cpu_bits need;
    memcpy(need.w, d->cpu, sizeof need.w);
    const struct colibri_cpu_bits missing = clb_cpu_minus(need, s->cpu);
    const struct colibri_cpu_bits unknown = clb_cpu_minus(need, clb_cpu_known());
    if (!clb_cpu_empty(unknown))
        clb_verdict_add(&s->verdict, "cpu", false, "it needs CPU features that do not exist: %s",
                        clb_cpu_format(unknown, cpu));
    else if (!clb_cpu_empty(missing))
        clb_verdict_add(&s->verdict, "cpu", true, "not loaded: this CPU or its mask lacks %s",
                        clb_cpu_format(missing, cpu));
    else
        *loadable = true;
    return COLIBRI_OK;
}

/* ---- the child -------------------------------------------------------------------------------------------- */

typedef struct child {
    pid_t pid;
    int fd; /* lines "S stage", "+ rule detail", "- rule detail", "D" */
} child;

static int start_child(const subject *s, child *c, clb_error *err)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot make a pipe");
    fflush(NULL); /* the child must not print our buffers again */
    c->pid = fork();
    if (c->pid < 0) {
        const int number = errno;
        close(ends[0]);
        close(ends[1]);
        return clb_fail_errno(err, COLIBRI_E_IO, number, "cannot start a process");
    }
    if (c->pid == 0) {
        setpgid(0, 0); /* what the plugin starts ends with it */
        close(ends[0]);
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        clb_plugins_probe(s->file.path, &s->note.raw, s->cpu, ends[1]);
        _exit(0);
    }
    setpgid(c->pid, c->pid);
    close(ends[1]);
    c->fd = ends[0];
    return COLIBRI_OK;
}

/* Reads everything the child says until it closes the pipe; false: the deadline passed. */
static bool read_child(int fd, uint64_t deadline, clb_buf *out)
{
    for (;;) {
        const uint64_t now = clb_now_ns();
        if (now >= deadline)
            return false;
        struct pollfd p = {.fd = fd, .events = POLLIN};
        const uint64_t ms = (deadline - now) / 1000000u + 1;
        const int ready = poll(&p, 1, ms > 1000 ? 1000 : (int)ms);
        if (ready < 0 && errno != EINTR)
            return true;
        if (ready <= 0)
            continue;
        char buf[4096];
        const ssize_t n = read(fd, buf, sizeof buf);
        if (n == 0 || (n < 0 && errno != EINTR))
            return true;
        /* A plugin could write into the pipe for ever. */
        if (n > 0 && (out->n > (4u << 20) || clb_buf_append(out, buf, (size_t)n, NULL)))
            return true;
    }
}

/* The child's lines into the verdict. true: it reached its end. *stage: the last one begun. */
static bool take_lines(char *text, clb_verdict *v, const char **stage)
{
    bool done = false;
    for (char *line = text; line && *line;) {
        char *const end = strchr(line, '\n');
        if (!end)
            break;
        *end = '\0';
        char *const detail = line[0] && line[1] ? strchr(line + 2, ' ') : NULL;
        if (line[0] == 'D')
            done = true;
        else if (line[0] == 'S' && line[1])
            *stage = line + 2;
        else if ((line[0] == '+' || line[0] == '-') && detail)
            clb_verdict_add(v, "load", line[0] == '+', "%s", line + 2);
        line = end + 1;
    }
    return done;
}

static int check_load(subject *s, unsigned timeout_seconds, clb_error *err)
{
    child c = {0};
    CLB_TRY(start_child(s, &c, err));
    clb_buf said = {0};
    const bool in_time = read_child(c.fd, clb_now_ns() + timeout_seconds * UINT64_C(1000000000), &said);
    /* A closed pipe does not mean that the process ends: it gets a second, then its whole group is killed. WNOWAIT
     * keeps the process number ours until then. */
    siginfo_t ended = {0};
    for (int i = 0; in_time && i < 100 && !ended.si_pid; i++) {
        if (waitid(P_PID, (id_t)c.pid, &ended, WEXITED | WNOHANG | WNOWAIT))
            break;
        if (!ended.si_pid)
            usleep(10000);
    }
    kill(-c.pid, SIGKILL);
    kill(c.pid, SIGKILL);
    int status = 0;
    while (waitpid(c.pid, &status, 0) < 0 && errno == EINTR)
        ;
    close(c.fd);

    const char *stage = "start";
    const bool done = said.data && take_lines(said.data, &s->verdict, &stage);
    if (!in_time)
        clb_verdict_add(&s->verdict, "load", false, "it hung in %s: stopped after %u seconds", stage, timeout_seconds);
    else if (WIFSIGNALED(status) && !done)
        clb_verdict_add(&s->verdict, "load", false, "it crashed in %s: %s", stage, strsignal(WTERMSIG(status)));
    else if (!done)
        clb_verdict_add(&s->verdict, "load", false, "it ended the process in %s", stage);
    clb_buf_free(&said);
    return COLIBRI_OK;
}

/* ---- report ----------------------------------------------------------------------------------------------- */

static int report(const subject *s, bool ok, bool json, clb_error *err)
{
    if (json)
        return clb_json_print(json_pack("{s:o, s:b, s:o}", "file", clb_json_text(s->given), "ok", ok, "checks",
                                        clb_json_verdict(&s->verdict)),
                              err);
    for (size_t i = 0; i < s->verdict.n; i++) {
        printf("%-4s  %-16s  ", s->verdict.checks[i].pass ? "ok" : "BAD", s->verdict.checks[i].rule);
        clb_put(s->verdict.checks[i].detail, 0);
        putchar('\n');
    }
    return COLIBRI_OK;
}

int clb_plugins_check(const char *path, struct colibri_cpu_bits cpu, unsigned timeout_seconds, bool json,
                      clb_error *err)
{
    subject s = {.given = path, .cpu = cpu};
    bool loadable = false;
    int rc = check_static(&s, &loadable, err);
    if (!rc && loadable)
        rc = check_load(&s, timeout_seconds, err);
    const bool ok = all_passed(&s.verdict);
    if (!rc)
        rc = report(&s, ok, json, err);
    size_t bad = 0;
    for (size_t i = 0; i < s.verdict.n; i++)
        bad += !s.verdict.checks[i].pass;
    if (!rc && !ok)
        rc = clb_fail(err, COLIBRI_E_PLUGIN, "%s: %zu of %zu checks failed", path, bad, s.verdict.n);
    clb_verdict_free(&s.verdict);
    clb_search_file_free(&s.file);
    free(s.data);
    return rc;
}
