#!/usr/bin/env bash
# OpenAI's API on the embedded model: every field, whole and as a stream, against colibri run.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/openai_serve.sh"
command -v python3 >/dev/null || skip "python3 is not there"
MODEL=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
export PYTHONPATH=$SOURCE_DIR/tests/cli PYTHONDONTWRITEBYTECODE=1

serve -m "$MODEL" --max-memory 512M --ctx 1024 --parallel 4
python3 "$SOURCE_DIR/tests/cli/openai_checks.py" "$port" "$COLIBRI" "$MODEL" || fail "checks of the API (above)"
end
finish
