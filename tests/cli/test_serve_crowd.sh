#!/bin/bash
# slow
# colibri serve with two hundred clients at once, and with one that does not read what it asked for.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"

serve --parallel 2 --queue 8 --max-connections 300
clients crowd
clients slow
kill -TERM "$PID"
ended 0
finish
