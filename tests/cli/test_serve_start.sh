#!/bin/bash
# colibri serve, its operations: what is refused at the start, keys, hosts, limits, reload, the end.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"

# ---- refused at once, in one line
refuse 2 "no model given" "$COLIBRI" serve
refuse 2 "listening on 0.0.0.0 would let everybody" "$COLIBRI" serve -m "$MODEL" --host 0.0.0.0
refuse 2 "listening on somewhere.example would let" "$COLIBRI" serve -m "$MODEL" --host somewhere.example
refuse 2 "--port: 70000" "$COLIBRI" serve -m "$MODEL" --port 70000
refuse 2 "did you mean '--parallel'" "$COLIBRI" serve -m "$MODEL" --paralel 2
refuse 2 "unexpected argument" "$COLIBRI" serve -m "$MODEL" words
refuse 2 "at most --batch (4)" "$COLIBRI" serve -m "$MODEL" --port 0 --parallel 8 --batch 4
refuse 3 "none.gguf" "$COLIBRI" serve -m "$WORK/none.gguf" --port 0
refuse 4 "is no address of this machine" "$COLIBRI" serve -m "$MODEL" --host 192.0.2.1 --api-key k
refuse 3 "cannot open $WORK/none" "$COLIBRI" serve -m "$MODEL" --api-key-file "$WORK/none"
refuse 3 "cannot open $WORK/none" "$COLIBRI" serve -m "$MODEL" --port 0 --lora-dir "$WORK/none"
refuse 2 "$MODEL is not a folder" "$COLIBRI" serve -m "$MODEL" --port 0 --lora-dir "$MODEL"
printf 'one\n' >"$WORK/keys"
chmod 644 "$WORK/keys"
refuse 2 "chmod 600" "$COLIBRI" serve -m "$MODEL" --api-key-file "$WORK/keys"
chmod 600 "$WORK/keys"
printf '# nothing\n\n' >"$WORK/empty"
chmod 600 "$WORK/empty"
refuse 2 "there is no key in it" "$COLIBRI" serve -m "$MODEL" --api-key-file "$WORK/empty"
refuse 2 "printable ASCII" "$COLIBRI" serve -m "$MODEL" --api-key "two words"
# a file beside a model opens nothing to the network
mkdir "$WORK/model"
cp "$MODEL" "$WORK/model/m.gguf"
printf '[serve]\nhost = 0.0.0.0\n' >"$WORK/model/colibri.ini"
refuse 2 "not allowed in a file beside a model" "$COLIBRI" serve -m "$WORK/model/m.gguf"
# keys are not printed
run 0 "$COLIBRI" serve -m "$MODEL" --api-key secret-1 --print-config
grep -q secret-1 "$WORK/out" && fail "--print-config shows a key"
out "api-key = (not shown)"

# ---- keys, from the flag and from the file
printf '# of the editor\n  two  \nthree\r\n' >"$WORK/keys"
serve --api-key one --api-key-file "$WORK/keys" --log-requests --alias my-model --allowed-hosts models.example
grep -q "^server ready: http://127.0.0.1:[0-9]* (loaded in .* s, my-model, 4 requests at once, context 2304)$" "$WORK/server.out" ||
    fail "ready line: $(cat "$WORK/server.out")"
port=${URL##*:}
refuse 4 "port $port on 127.0.0.1 is in use" "$COLIBRI" serve -m "$MODEL" --port "$port"
for key in one two three; do
    get 200 /props -H "Authorization: Bearer $key"
done
get 200 /props -H "X-Api-Key: one"
get 401 /props
head_has "WWW-Authenticate: Bearer"
body '"code":"invalid_api_key"'
get 401 /props -H "Authorization: Bearer on"
get 401 /metrics
get 401 /v1/chat/completions -d '{}'
get 200 /health
get 200 /v1/models
body '"id":"my-model"'
get 200 /v1/models/my-model -H "X-Api-Key: one"
get 404 /v1/models/other -H "X-Api-Key: one"
body model_not_found
get 200 /props -H "X-Api-Key: one"
body '"serve.alias":"my-model"'
grep -qE 'api-key"|"one|secret' "$WORK/body" && fail "/props shows keys: $(cat "$WORK/body")"
get 200 /health -H "Host: models.example:99"
get 403 /health -H "Host: evil.example"
body "--allowed-hosts"
get 404 /nowhere -H "X-Api-Key: one"
get 405 /v1/chat/completions -H "X-Api-Key: one"
head_has "Allow: POST, OPTIONS"
get 400 /v1/chat/completions -H "X-Api-Key: one" -d '{"messages":'
body invalid_json
get 413 /v1/chat/completions -H "X-Api-Key: one" -H "Content-Length: 99999999" -d '{}'
get 403 /v1/chat/completions -H "X-Api-Key: one" -H "Origin: https://evil.example" -d '{}'
log_has '"path":"/nowhere","status":404'
grep -qE '\b(one|two|three)\b' "$WORK/server.err" && fail "the log shows keys"

# ---- reload: what is taken over, and what is not
printf 'fresh\n' >"$WORK/keys"
kill -HUP "$PID"
log_has "keys read again"
get 401 /props -H "X-Api-Key: two"
get 200 /props -H "X-Api-Key: fresh"
get 200 /props -H "X-Api-Key: one" # of the command line
printf '' >"$WORK/keys"
kill -HUP "$PID"
log_has "settings stay as they were: $WORK/keys: there is no key in it"
get 200 /props -H "X-Api-Key: fresh"
kill -TERM "$PID"
ended 0

printf '[serve]\nport = 0\nmax-body = 1M\n[sampling]\ntemperature = 0.5\n' >"$WORK/serve.ini"
serve_as --config "$WORK/serve.ini"
get 200 /props
body '"temperature":0.5'
malformed() { # libmicrohttpd says so to those who listen
    curl -s -m 5 -o "$WORK/body" -H "Content-Length: x" "$URL/tokenize" -d '{}'
}
malformed
printf '[serve]\nport = 0\nlog-level = debug\nqueue = 3\nslice = 50\nmax-body = 2K\nparallel = 2\ncors-origins = https://chat.example\n[sampling]\ntemperature = 0.25\n[model]\nctx = 512\n' >"$WORK/serve.ini"
kill -HUP "$PID"
log_has "changed: sampling.temperature, serve.queue, serve.cors-origins, serve.max-body, serve.slice, serve.log-level"
log_has "only a restart takes over: model.ctx, serve.parallel"
get 200 /props
body '"temperature":0.25'
body '"total_slots":4'
get 413 /tokenize -d "{\"content\":\"$(printf 'x%.0s' $(seq 3000))\"}"
get 200 /health -H "Origin: https://chat.example"
head_has "Access-Control-Allow-Origin: https://chat.example"
grep -q "debug: http" "$WORK/server.err" && fail "debug lines at the level of warnings: $(cat "$WORK/server.err")"
malformed
log_has "debug: http: "
sed -i 's/debug/error/' "$WORK/serve.ini"
kill -HUP "$PID"
sleep 0.5
malformed
[ "$(grep -c "debug: http: Failed to parse" "$WORK/server.err")" = 1 ] || fail "debug lines at the level of errors: $(cat "$WORK/server.err")"
printf '[serve]\nmax-boddy = 1\n' >"$WORK/serve.ini"
kill -HUP "$PID"
log_has "settings stay as they were"
get 200 /props
body '"temperature":0.25'
kill -INT "$PID" # ignored by a job in the background of a script
sleep 0.1
kill -TERM "$PID"
ended 0

# ---- the examples for colleagues, with nothing but a model
for ini in "$SOURCE_DIR"/examples/ini/serve/*.ini; do
    serve --config "$ini" --batch 512
    grep -vE "the model was trained for 2304|measuring kernels" "$WORK/server.err" | grep -q . && fail "$ini: $(cat "$WORK/server.err")"
    get 200 /v1/completions -d '{"prompt":"Once","max_tokens":2}'
    kill -TERM "$PID"
    ended 0
done
finish
