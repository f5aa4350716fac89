#ifndef KERNELCHECK_HELP_H
#define KERNELCHECK_HELP_H

#include <stdbool.h>

void help_short(void); /* to standard error */
int help_print(void);  /* these return 1 if standard output failed */
int help_man(void);

#endif
