#include "simulate.h"
int clb_sim_write_html(const clb_sim *s, const char *path, clb_error *err)
{
    (void)s;
    return clb_fail(err, COLIBRI_E_INTERNAL, "%s", path);
}
