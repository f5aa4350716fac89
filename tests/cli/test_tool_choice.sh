#!/usr/bin/env bash
# tool_choice auto beside response_format, in formats of calls with and without a mark: templates of one line each.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"
export PYTHONPATH=$SOURCE_DIR/tests/cli PYTHONDONTWRITEBYTECODE=1

checks() { # FAMILY SIGNS CALL_BEGIN: what the template is told by, and what its calls begin with
    printf '{# %s #}{%% for m in messages %%}{{ m.role }}: {{ m.content }}\n{%% endfor %%}{{ tools | tojson if tools }}assistant:%s' \
        "$2" "${4:-}" >"$WORK/$1.jinja"
    serve --threads 1 --max-memory 512M --ctx 1024 --parallel 1 --chat-template "$WORK/$1.jinja"
    python3 "$SOURCE_DIR/tests/cli/tool_choice_checks.py" "${URL##*:}" "$1" "$3" || fail "$1 (above)"
    kill "$PID"
    ended 0
}

checks llama3 '<|start_header_id|> parameters' '{"name'
checks qwen3-coder '<function= <parameter=' '<tool_call>'
checks gpt-oss '<|channel|> <|start|> <|message|>' '<|channel|>comm'
checks functionary-v3.2 '>>>all' 'set' '>>>'
checks command-r '<|START_OF_TURN_TOKEN|> Action:' 'Action'
finish
