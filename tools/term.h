/* stderr of the executable: log lines, progress, and the flag that SIGINT and SIGTERM set. */
#ifndef CLB_TOOLS_TERM_H
#define CLB_TOOLS_TERM_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/log.h"

/* One line at a time; progress appears when a job has run for two seconds: on a terminal as one line that is redrawn
 * and removed at the end, elsewhere as a line every ten seconds. [any-thread] */
typedef struct clb_term {
    FILE *out;
    char prefix[64]; /* "colibri run" */
    bool redraw;     /* a terminal that can erase a line */
    bool progress;
    unsigned width;
    uint64_t (*now)(void); /* nanoseconds */
    pthread_mutex_t lock;
    char job[80];
    uint64_t started, last; /* 0: not shown yet */
    bool on_screen;
} clb_term;

void clb_term_init(clb_term *term, FILE *out, const char *prefix, bool progress);
clb_log clb_term_log(clb_term *term, int level);
/* Removes an unfinished progress line. */
void clb_term_clear(clb_term *term);
/* "prefix: message" as exactly one line, whatever bytes the message has. */
void clb_term_error(clb_term *term, const char *message);

/* Writes a model's text to a terminal: control characters other than line ends, tabs and carriage returns, and bytes that are
 * not UTF-8, appear as \xNN, so that no text can move the cursor, set the title or answer for the user. False: failed. */
bool clb_term_text(FILE *f, const char *text, size_t n);

/* Columns of the terminal behind f, else $COLUMNS, else 80. */
unsigned clb_term_columns(FILE *f);

/* First SIGINT or SIGTERM: sets the flag; blocking calls return EINTR. Second: ends the process. SIGPIPE: ends it.
 * SIGBUS (a mapped file shrank): ends it with a message and the exit code of an I/O error. */
void clb_interrupt_install(void);
bool clb_interrupted(void);
/* Forgets a SIGINT that was dealt with, so that the next one is a first one again; false after SIGTERM. */
bool clb_interrupt_rearm(void);

#endif
