#!/bin/sh
# Checks the plugin as a packager would, then replays a recorded trace with it and without a predictor.
#   test.sh COLIBRI TRACE_DIR PLUGIN.so
set -eu
colibri=$1 traces=$2 plugin=$3
unset COLIBRI_PLUGIN_PATH
"$colibri" plugins check "$plugin"
trace=$traces/tiny-moe.clbt
[ -f "$trace" ] || { echo "$trace is not there: not simulated"; exit 77; }
COLIBRI_PLUGIN_PATH=$(dirname "$plugin")
export COLIBRI_PLUGIN_PATH
"$colibri" simulate "$trace" --policy lru --predictor none,next-gate,favourites --slots 25%,50%
