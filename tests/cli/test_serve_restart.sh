#!/usr/bin/env bash
# A server that is killed in the middle of a reply: its client is told, it comes back, and the prompt cache is intact.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"
prompt=$(head -c 1200 "$SOURCE_DIR/tests/data/text/devils-dictionary.txt" | tr -d '"\\' | tr '\n' ' ')
ask_long() { # MAX STREAM
    printf '{"prompt": "%s", "max_tokens": %s, "temperature": 0, "ignore_eos": true, "stream": %s}' "$prompt" "$1" "$2"
}
answer() { python3 -c 'import json, sys; o = json.load(open(sys.argv[1])); print(o["usage"]["prompt_tokens_details"]["cached_tokens"], o["choices"][0]["text"])' "$WORK/body"; }

serve --ctx 16384 --threads 1 --prompt-cache "$WORK/cache"
get 200 /v1/completions -d "$(ask_long 16 false)"
first=$(answer)
[ "${first%% *}" = 0 ] || fail "a first prompt was known already: $first"
for signal in KILL TERM; do
    curl -sN -m 60 "$URL/v1/completions" -d "$(ask_long 15000 true)" >"$WORK/stream" &
    client=$!
    for _ in $(seq 200); do grep -q '"text"' "$WORK/stream" 2>/dev/null && break; sleep 0.02; done
    kill -"$signal" "$PID"
    [ "$signal" = TERM ] && sleep 0.3 && kill -TERM "$PID" # twice: at once
    code=0
    wait "$client" || code=$?
    if grep -q 'DONE' "$WORK/stream" && ! grep -q '"error"' "$WORK/stream"; then
        fail "the reply was complete before SIG$signal: it must be longer"
    elif [ "$code" = 0 ] && ! grep -q '"error"' "$WORK/stream"; then
        fail "a reply that was cut off by SIG$signal looks complete: $(tail -c 200 "$WORK/stream")"
    fi
    wait "$PID" 2>/dev/null
    SERVERS=
    serve --ctx 16384 --threads 1 --prompt-cache "$WORK/cache"
    get 200 /v1/completions -d "$(ask_long 16 false)"
    again=$(answer)
    [ "${again%% *}" -gt 100 ] || fail "after SIG$signal the prompt cache gave ${again%% *} tokens"
    [ "${again#* }" = "${first#* }" ] || fail "after SIG$signal another text: '$again', not '$first'"
done
grep -v "was trained for" "$WORK/server.err" | grep -q warning && fail "the server warns: $(cat "$WORK/server.err")"
kill -TERM "$PID"
ended 0
finish
