/* Running the grid. */
#include "compare_kv_run.h"

int clb_kvc_run(clb_kvc *c, clb_args *args, clb_error *err)
{
    (void)c;
    (void)args;
    return clb_fail(err, COLIBRI_E_UNSUPPORTED, "evaluation is not there yet");
}
