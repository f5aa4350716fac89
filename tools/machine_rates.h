/* Rates of this machine for an opened engine, as the settings say where they are remembered and how the drive is read.
 */
#ifndef CLB_TOOLS_MACHINE_RATES_H
#define CLB_TOOLS_MACHINE_RATES_H

#include "engine/engine.h"
#include "plan/rates.h"

/* measure: what is not remembered; again: also what is. */
void clb_machine_rates(const clb_config *config, const clb_engine *engine, const char *cpu_model, bool measure,
                       bool again, clb_rates *out);

#endif
