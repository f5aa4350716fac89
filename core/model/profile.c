#include "model/profile.h"

const char *clb_phase_name(enum clb_phase phase)
{
    static const char *const names[] = {
#define CLB_PHASE_TEXT(name, text) text,
        CLB_PHASES(CLB_PHASE_TEXT)
#undef CLB_PHASE_TEXT
    };
    return names[phase];
}
