#!/usr/bin/env bash
# OpenAI's API on the embedded model: every field, whole and as a stream, against colibri run.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"
export PYTHONPATH=$SOURCE_DIR/tests/cli PYTHONDONTWRITEBYTECODE=1

serve --threads 1 --max-memory 512M --ctx 1024 --parallel 4
python3 "$SOURCE_DIR/tests/cli/openai_checks.py" "${URL##*:}" "$COLIBRI" "$MODEL" || fail "checks of the API (above)"
kill "$PID"
ended 0
finish
