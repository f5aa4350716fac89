#include "term.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/escape.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000u

unsigned clb_term_columns(FILE *f)
{
    struct winsize size;
    if (!ioctl(fileno(f), TIOCGWINSZ, &size) && size.ws_col)
        return size.ws_col;
    const char *columns = getenv("COLUMNS");
    const long n = columns ? strtol(columns, NULL, 10) : 0;
    return n > 0 && n < 1000 ? (unsigned)n : 80;
}

void clb_term_init(clb_term *term, FILE *out, const char *prefix, bool progress)
{
    const char *kind = getenv("TERM");
    *term = (clb_term){.out = out, .progress = progress, .now = clb_now_ns, .lock = PTHREAD_MUTEX_INITIALIZER};
    snprintf(term->prefix, sizeof term->prefix, "%s", prefix);
    term->redraw = isatty(fileno(out)) && kind && strcmp(kind, "dumb") != 0;
    term->width = clb_term_columns(out);
}

static void clear_locked(clb_term *term)
{
    if (term->on_screen)
        fputs("\r\033[K", term->out);
    term->on_screen = false;
}

bool clb_term_text(FILE *f, const char *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        char piece[CLB_ESCAPE_MAX];
        size_t n_piece;
        const size_t step = clb_escape_step(text + i, n - i, piece, &n_piece, NULL);
        const bool control = n_piece == 4 && piece[0] == '\\' && piece[1] == 'x';
        if (fwrite(control ? piece : text + i, 1, control ? n_piece : step, f) != (control ? n_piece : step))
            return false;
        i += step;
    }
    return true;
}

/* Text from files and plugins reaches the terminal: control characters do not. */
static void put_line(clb_term *term, const char *kind, const char *text)
{
    clear_locked(term);
    fprintf(term->out, "%s: %s", term->prefix, kind);
    for (size_t i = 0, left = strlen(text); left;) {
        char piece[CLB_ESCAPE_MAX];
        size_t n_piece;
        const size_t n = clb_escape_step(text + i, left, piece, &n_piece, NULL);
        if (*piece != '\\' || text[i] == '\\')
            fwrite(text + i, 1, n, term->out);
        else
            putc(text[i] == '\n' ? ' ' : '?', term->out);
        i += n;
        left -= n;
    }
    putc('\n', term->out);
    fflush(term->out);
}

static void write_line(void *ctx, int level, const char *line)
{
    static const char *const kinds[] = {"error: ", "warning: ", "", "debug: "};
    clb_term *term = ctx;
    pthread_mutex_lock(&term->lock);
    put_line(term, level >= 0 && level < 4 ? kinds[level] : "warning: host misuse: ", line);
    pthread_mutex_unlock(&term->lock);
}

static void show(clb_term *term, uint64_t elapsed, uint64_t done, uint64_t total)
{
    char text[160];
    const unsigned seconds = (unsigned)(elapsed / SECOND);
    if (!total) {
        snprintf(text, sizeof text, "%s: %llu, %u s", term->job, (unsigned long long)done, seconds);
    } else if (!done) {
        snprintf(text, sizeof text, "%s: 0 %%, %u s", term->job, seconds);
    } else {
        const double part = (double)done / (double)total, left = (double)elapsed / SECOND * (1.0 - part) / part;
        snprintf(text, sizeof text, "%s: %d %%, %u s, %.0f s left", term->job, (int)(100.0 * part), seconds, left);
    }
    if (term->redraw) {
        const int width = (int)(term->width > 1 ? term->width - 1 : 1);
        fprintf(term->out, "\r\033[K%.*s", width, text);
        term->on_screen = true;
        fflush(term->out);
    } else {
        put_line(term, "", text);
    }
}

static void progress(void *ctx, const char *job, uint64_t done, uint64_t total)
{
    clb_term *term = ctx;
    if (!term->progress)
        return;
    pthread_mutex_lock(&term->lock);
    const uint64_t now = term->now();
    if (strncmp(term->job, job, sizeof term->job - 1) != 0) {
        clear_locked(term);
        snprintf(term->job, sizeof term->job, "%s", job);
        term->started = now;
        term->last = 0;
    }
    if (total && done >= total) {
        clear_locked(term);
        term->job[0] = '\0'; /* the same job again starts anew */
    } else if (now - term->started >= 2ull * SECOND) {
        const uint64_t interval = term->redraw ? SECOND / 5 : 10ull * SECOND;
        if (!term->last || now - term->last >= interval) {
            term->last = now;
            show(term, now - term->started, done < total || !total ? done : total, total);
        }
    }
    pthread_mutex_unlock(&term->lock);
}

clb_log clb_term_log(clb_term *term, int level)
{
    return (clb_log){.level = level, .write = write_line, .progress = progress, .ctx = term};
}

void clb_term_clear(clb_term *term)
{
    pthread_mutex_lock(&term->lock);
    clear_locked(term);
    fflush(term->out);
    pthread_mutex_unlock(&term->lock);
}

void clb_term_error(clb_term *term, const char *message)
{
    pthread_mutex_lock(&term->lock);
    put_line(term, "", message);
    pthread_mutex_unlock(&term->lock);
}

static volatile sig_atomic_t interrupts;

/* The second signal ends the process at once, unless it comes right after the first: timeout(1) sends its signal twice,
 * and what the first one lets end in order would be left half done. */
#define ONE_REQUEST_NS 250000000

static void on_signal(int number)
{
    static struct timespec first;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!interrupts)
        first = now;
    else if (number == interrupts &&
             (now.tv_sec - first.tv_sec) * 1000000000LL + (now.tv_nsec - first.tv_nsec) < ONE_REQUEST_NS)
        return;
    if (interrupts) {
        signal(number, SIG_DFL);
        raise(number); /* delivered when this handler returns */
    }
    interrupts = number;
}

/* A mapped model file (--store-mode mmap) that shrinks, or whose disk fails, arrives as SIGBUS in whoever reads it.
 * Nothing can go on from here, but it is an input error, not a crash. */
static void on_bus_error(int number, siginfo_t *info, void *context)
{
    (void)context;
    static const char line[] =
        "colibri: a mapped file became shorter or cannot be read any more (with --store-mode read "
        "this is found without mapping)\n";
    static atomic_flag said = ATOMIC_FLAG_INIT; /* all workers may read the file */
    if (info->si_code != BUS_ADRERR) {          /* not that: let it be the crash that it is */
        signal(number, SIG_DFL);
        return;
    }
    while (atomic_flag_test_and_set(&said))
        pause();
    (void)!write(STDERR_FILENO, line, sizeof line - 1);
    _exit(clb_status_exit_code(COLIBRI_E_IO));
}

void clb_interrupt_install(void)
{
    struct sigaction bus = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigemptyset(&bus.sa_mask);
    sigaction(SIGBUS, &bus, NULL);
    /* Without SA_RESTART: a command that waits for input must notice. */
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    /* A job started with nohup or "&" in a script has SIGINT ignored, and keeps that. */
    static const int signals[] = {SIGINT, SIGTERM};
    for (size_t i = 0; i < 2; i++) {
        struct sigaction old;
        if (!sigaction(signals[i], NULL, &old) && old.sa_handler != SIG_IGN)
            sigaction(signals[i], &action, NULL);
    }
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes becomes an error that cleans up */
}

bool clb_interrupt_rearm(void)
{
    if (interrupts == SIGTERM)
        return false;
    interrupts = 0;
    return true;
}

bool clb_interrupted(void)
{
    return interrupts != 0;
}
