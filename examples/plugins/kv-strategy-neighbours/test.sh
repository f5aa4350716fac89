#!/bin/sh
# Checks the plugin as a packager would; if MODEL names a model, generates with it.
#   test.sh COLIBRI PLUGIN.so
set -eu
colibri=$1 plugin=$2
unset COLIBRI_PLUGIN_PATH
"$colibri" plugins check "$plugin"
[ -n "${MODEL:-}" ] || { echo "MODEL is not set: nothing generated"; exit 0; }
COLIBRI_PLUGIN_PATH=$(dirname "$plugin")
export COLIBRI_PLUGIN_PATH
"$colibri" run -m "$MODEL" --kv-strategy neighbours/h2o --kv-budget 32 --temperature 0 -n 64 --stats "One, two, three"
