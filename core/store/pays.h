/* Does reading ahead pay? Measured while it goes on: stretches of passes with it and without it take turns, and the
 * medians of their times are compared. What wins stays for a while, the longer the more often it has won; then both are
 * tried again. Only speed depends on it.
 *
 * Passes of about as many rows are comparable: each size has one of these. A pause between two passes (somebody thinks)
 * counts for neither. [engine-thread] */
#ifndef CLB_STORE_PAYS_H
#define CLB_STORE_PAYS_H

#include <stdbool.h>
#include <stdint.h>

#define CLB_PAYS_PASSES 12u /* of a stretch */

typedef struct clb_pays {
    bool on;          /* read ahead in this pass */
    bool holding;     /* the winner has its time; else both are tried */
    uint32_t n, left; /* passes timed; passes left of the winner's time */
    uint32_t wins;    /* of the present winner in a row */
    uint32_t stretch; /* of a trial: on, off, off, on */
    uint64_t began;   /* of the pass that is going on; 0: none */
    uint64_t ns[CLB_PAYS_PASSES];
    uint64_t median[4]; /* of the trial's stretches */
    double ratio;       /* time with / without, of the last trial; 0: none yet */
    uint64_t passes_on, passes_off;
} clb_pays;

void clb_pays_init(clb_pays *p);
/* A pass begins. Times in ns. */
void clb_pays_begin(clb_pays *p, uint64_t now);
/* The pass that began last is over. */
void clb_pays_end(clb_pays *p, uint64_t now);

#endif
