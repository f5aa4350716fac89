/* Calls of plugin functions through a trampoline that checks what the calling convention promises.
 *
 * The trampoline leaves the argument registers alone, so it stands for a function of any type. It fills every register
 * that a function must preserve, and the stack above the call, with patterns, and looks at them afterwards. A crash
 * inside the call is caught: the call then counts as returned, and as broken. */
#ifndef KERNELCHECK_CALL_H
#define KERNELCHECK_CALL_H

#include <setjmp.h>

#include "check.h"

/* What a call left behind; bits of call_verdict.broken. The order is known to the assembler text in call.c. */
enum {
    BROKEN_REG0 = 0, /* callee-saved registers in the order of call_register_name() */
    BROKEN_STACK = 32,
    BROKEN_SP,
    BROKEN_DIRECTION,
    BROKEN_X87_TAGS,
    BROKEN_X87_CONTROL,
    BROKEN_FP_CONTROL,
    BROKEN_UPPER,
    BROKEN_CRASH
};

struct call_verdict {
    uint64_t broken;
    char crash[200]; /* if BROKEN_CRASH */
};

/* The next CALL of this thread goes to fn. Returns the trampoline. */
void (*call_arm(void (*fn)(void)))(void);
sigjmp_buf *call_env(void);
/* Ends a call: what it broke, with the control registers set back to what they were. */
void call_finish(struct call_verdict *out);

/* Calls fn(...) and fills *verdict. */
#define CHECKED_CALL(verdict, fn, ...)                                                                                 \
    do {                                                                                                               \
        __typeof__(&*(fn)) const through_ = (__typeof__(&*(fn)))call_arm((void (*)(void))(fn));                        \
        if (sigsetjmp(*call_env(), 1) == 0)                                                                            \
            through_(__VA_ARGS__);                                                                                     \
        call_finish(verdict);                                                                                          \
    } while (0)

/* Turns a verdict into failures of the current case. */
void call_report(struct report *r, const struct call_verdict *v, const char *when);

#endif
