/* Parameters of policies and strategies: declared by the plugin, set by INI or flag, checked by the host. */
#ifndef COLIBRI_PARAM_H
#define COLIBRI_PARAM_H

#include <stdint.h>

struct colibri_param {
    const char *name;    /* "window"; set as [expert-policy.NAME] or [kv-strategy.NAME] key, or NAME:key=value */
    double min, max;     /* inclusive; the host refuses values outside */
    double value;        /* the default */
    int integer;         /* nonzero: only whole numbers */
    const char *summary; /* one line, with the unit */
};

#endif
