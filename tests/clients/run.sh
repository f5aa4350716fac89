#!/usr/bin/env bash
# The official clients against the server, by hand: tests/clients/run.sh COLIBRI MODEL [--exact]
# Needs the network for the clients (PyPI, npm); keeps them in $CLIENTS (a folder of its own if unset). --exact for the
# embedded tiny model. With FRAMEWORKS=1 also what is built on them (LangChain, LiteLLM, the AI SDK, ...: a gigabyte).
set -eu
colibri=$1 model=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
clients=${CLIENTS:-$(mktemp -d)}
mkdir -p "$clients"
if [ ! -x "$clients/venv/bin/python" ]; then
    python3 -m venv "$clients/venv"
    "$clients/venv/bin/pip" install --quiet openai anthropic
fi
if [ ! -d "$clients/node_modules/openai" ]; then
    (cd "$clients" && npm install --silent --no-save openai >/dev/null)
fi
if [ -n "${FRAMEWORKS:-}" ]; then
    "$clients/venv/bin/pip" install --quiet langchain-openai langchain-anthropic litellm instructor pydantic-ai \
        llama-index-llms-openai-like openai-agents
    (cd "$clients" && npm install --silent --no-save openai ai @ai-sdk/openai @ai-sdk/openai-compatible zod >/dev/null)
fi
cp "$here"/*.mjs "$clients" # modules are looked for beside the script

"$colibri" serve -m "$model" --port 0 --parallel 4 >"$clients/serve.log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null; wait $server 2>/dev/null || true' EXIT
for _ in $(seq 600); do
    grep -q '^server ready' "$clients/serve.log" && break
    kill -0 $server 2>/dev/null || { cat "$clients/serve.log"; exit 1; }
    sleep 0.1
done
url=$(sed -n 's/^server ready: \(http[^ ]*\).*/\1/p' "$clients/serve.log")
failed=0
for script in "$here"/*_python.py; do
    echo "== $(basename "$script")"
    "$clients/venv/bin/python" "$script" "$url/v1" "$@" || failed=1
done
for script in "$clients"/*_js.mjs; do
    echo "== $(basename "$script")"
    node "$script" "$url/v1" "$@" || failed=1
done
if [ -n "${FRAMEWORKS:-}" ]; then
    echo "== frameworks.py"
    "$clients/venv/bin/python" "$here/frameworks.py" "$url/v1" || failed=1
    echo "== ai_sdk.mjs"
    node "$clients/ai_sdk.mjs" "$url/v1" || failed=1
fi
exit $failed
