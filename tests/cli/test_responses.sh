#!/usr/bin/env bash
# OpenAI's Responses API on the embedded model: texts, items, events, tools, schemas, refusals.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"
export PYTHONPATH=$SOURCE_DIR/tests/cli PYTHONDONTWRITEBYTECODE=1

serve --threads 1 --max-memory 512M --ctx 1024 --parallel 2
python3 "$SOURCE_DIR/tests/cli/responses_checks.py" "${URL##*:}" || fail "checks of the API (above)"
kill "$PID"
ended 0
finish
