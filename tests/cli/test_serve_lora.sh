#!/usr/bin/env bash
# LoRA adapters over HTTP: loaded, listed, used by requests, set, unloaded while in use; what is refused.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"
make() { python3 "$SOURCE_DIR/tests/cli/make_lora.py" "$@"; }
mkdir "$WORK/adapters" "$WORK/elsewhere"
make "$WORK/adapters/a.gguf" qwen3moe 256 256 1
make "$WORK/adapters/b.gguf" qwen3moe 256 256 2
make "$WORK/adapters/llama.gguf" llama 256 256
make "$WORK/elsewhere/c.gguf" qwen3moe 256 256 3
ln -s "$WORK/elsewhere/c.gguf" "$WORK/adapters/link.gguf"
head -c 400 "$WORK/adapters/a.gguf" >"$WORK/adapters/cut.gguf"
ask_with() { # what goes behind the prompt; the text in $WORK/body
    get 200 /v1/completions -d '{"prompt": "Once upon a time there was", "max_tokens": 24, "temperature": 0, "ignore_eos": true'"$1"'}'
    python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["choices"][0]["text"])' "$WORK/body"
}

serve --lora-dir "$WORK/adapters" --lora-memory 4M
get 200 /lora-adapters
[ "$(cat "$WORK/body")" = "[]" ] || fail "adapters without any: $(cat "$WORK/body")"
plain=$(ask_with '')
get 201 /lora-adapters -d '{"path": "a.gguf", "scale": 0}'
body '"id":1'
get 201 /lora-adapters -d '{"path": "b.gguf", "scale": 0}'
get 200 /lora-adapters
body '"rank":2'
body "caf"
[ "$(ask_with '')" = "$plain" ] || fail "adapters of strength 0 change the text"
first=$(ask_with ', "lora": [{"id": 1, "scale": 1}]')
[ "$first" != "$plain" ] || fail "an adapter changes nothing"
[ "$(ask_with ', "lora": []')" = "$plain" ] || fail "no adapters, and another text"
run 0 "$COLIBRI" run --raw -m "$MODEL" --lora "$WORK/adapters/a.gguf" --temperature 0 -n 24 --ignore-eos "Once upon a time there was"
[ "$(cat "$WORK/out")" = "$first" ] || fail "run says '$(cat "$WORK/out")', serve '$first'"
get 200 /lora-adapters -d '[{"id": 1, "scale": 1}]'
[ "$(ask_with '')" = "$first" ] || fail "an adapter that is on by default is not used"
get 404 /lora-adapters -d '[{"id": 1, "scale": 0}, {"id": 9, "scale": 1}]'
body 'there are 1, 2'
get 400 /lora-adapters -d '[{"id": 1, "scale": 0}, {"id": 2, "scale": 2000}]'
body 'within -1000 and 1000'
get 404 /lora-adapters -d '[{"id": 1, "scale": 0}, {"id": -1, "scale": 0}]'
[ "$(ask_with '')" = "$first" ] || fail "half of a refused list was applied"
get 200 /lora-adapters -d '[{"id": 2, "scale": 0.5}, {"id": 1, "scale": 1}, {"id": 2, "scale": 0}]'
python3 -c 'import json, sys; assert [(a["id"], a["scale"]) for a in json.load(open(sys.argv[1]))] == [(1, 1), (2, 0)]' "$WORK/body" ||
    fail "the list that answers a change: $(cat "$WORK/body")"

# unloaded while a request uses it
curl -sN "$URL/v1/completions" -d '{"prompt": "x", "max_tokens": 2000, "temperature": 0, "ignore_eos": true, "stream": true, "lora": [{"id": 1, "scale": 1}]}' >"$WORK/long" &
long=$!
for _ in $(seq 100); do grep -q text "$WORK/long" 2>/dev/null && break; sleep 0.05; done
get 200 /lora-adapters/1 -X DELETE
grep -q '"id":1' "$WORK/body" && fail "what was unloaded is listed: $(cat "$WORK/body")"
get 404 /lora-adapters/1 -X DELETE
wait "$long"
grep -q 'DONE' "$WORK/long" || fail "a request ended when its adapter was unloaded: $(tail -c 300 "$WORK/long")"
[ "$(ask_with '')" = "$plain" ] || fail "an adapter that is gone is still used"
get 400 /v1/completions -d '{"prompt": "x", "max_tokens": 2, "lora": [{"id": 1, "scale": 1}]}'
body 'no LoRA adapter has the id 1'

# refused
for path in ../elsewhere/c.gguf link.gguf "$WORK/elsewhere/c.gguf" none.gguf a.gguf/x ''; do
    get 404 /lora-adapters -d "{\"path\": \"$path\"}"
done
get 400 /lora-adapters -d '{"path": "llama.gguf"}'
body 'expected \"qwen3moe\"'
get 400 /lora-adapters -d '{"path": "cut.gguf"}'
get 400 /lora-adapters -d '{"path": 3}'
get 400 /lora-adapters -d '{"path": "a.gguf", "scale": "x"}'
get 400 /lora-adapters -d '{"path": "a.gguf", "scael": 1}'
get 400 /lora-adapters -d '[{"id": 2}]'
get 400 /lora-adapters -d 'nonsense'
get 400 /lora-adapters/x -X DELETE
kill -TERM "$PID"
ended 0
serve
get 403 /lora-adapters -d '{"path": "a.gguf"}'
kill -TERM "$PID"
ended 0
serve --lora-dir "$WORK/adapters" --lora-memory 1K
get 507 /lora-adapters -d '{"path": "a.gguf"}'
body 'lora-memory'
kill -TERM "$PID"
ended 0
finish
