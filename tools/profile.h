/* Profiles: settings files that come with colibri, or that the user keeps, named by --profile. */
#ifndef CLB_TOOLS_PROFILE_H
#define CLB_TOOLS_PROFILE_H

#include <limits.h>

#include "base/error.h"

/* The file of profile `name`: NAME.ini in the folder profiles beside the user's colibri.ini, else in the installation's
 * share/colibri/profiles. NOT_FOUND names the nearest and lists all; USAGE if `name` is a path. */
int clb_profile_path(const char *name, char out[PATH_MAX], clb_error *err);

#endif
