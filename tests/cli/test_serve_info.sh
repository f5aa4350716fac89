#!/bin/bash
# colibri serve: what it says about itself, tokens and text, and the service manager.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"

# ---- systemd waits for a line on a socket of its own
python3 - "$WORK/notify" >"$WORK/notified" <<'PY' &
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1])
s.settimeout(60)
try:
    while True:
        text = s.recv(4096).decode()
        print(text.replace("\n", "|"), flush=True)
        if text.startswith("STOPPING"):
            break
except OSError as e:
    print("error:", e, flush=True)
PY
for _ in $(seq 100); do [ -S "$WORK/notify" ] && break; sleep 0.05; done
export NOTIFY_SOCKET=$WORK/notify
serve --parallel 2
unset NOTIFY_SOCKET

get 200 /health
body '{"status":"ok"}'
get 200 /slots
body '"state":"idle"'
get 200 /residency
get 200 /v1/models
get 200 /
head_has "Content-Security-Policy"
get 200 /lora-adapters

# ---- tokens and text
cat >"$WORK/check.py" <<'PY'
import json, sys, time, urllib.request, urllib.error
url = sys.argv[1]
def post(path, body, status=200):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, data)) as r:
            got, text = r.status, r.read()
    except urllib.error.HTTPError as e:
        got, text = e.code, e.read()
    assert got == status, (path, body, got, text)
    return json.loads(text)
for text in ["Hello world", "", "naïve – 中文 🙂", "a\nb\t<|im_end|>"]:
    for special in (False, True):
        ids = post("/tokenize", {"content": text, "parse_special": special})["tokens"]
        assert all(isinstance(i, int) for i in ids)
        assert post("/detokenize", {"tokens": ids})["content"] == text, (text, ids)
        pieces = post("/tokenize", {"content": text, "parse_special": special, "with_pieces": True})["tokens"]
        assert [p["id"] for p in pieces] == ids
        whole = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
        assert whole.decode() == text, (pieces, text)
assert len(post("/tokenize", {"content": "<|im_end|>"})["tokens"]) == 1
assert len(post("/tokenize", {"content": "<|im_end|>", "parse_special": False})["tokens"]) > 1
for path, bad, param in [
    ("/tokenize", {}, "content"), ("/tokenize", {"content": 5}, "content"),
    ("/tokenize", {"content": "x", "with_pieces": 1}, "with_pieces"), ("/tokenize", {"content": "x", "wrong": 1}, "wrong"),
    ("/detokenize", {}, "tokens"), ("/detokenize", {"tokens": ["a"]}, "tokens"),
    ("/detokenize", {"tokens": [-1]}, "tokens"), ("/detokenize", {"tokens": [4096]}, "tokens"),
    ("/tokenize", b"[1]", None), ("/tokenize", b"", None), ("/tokenize", b"{\"content\":\"\xff\"}", None),
    ("/tokenize", b"[" * 500 + b"]" * 500, None), ("/tokenize", b'{"content":"a","content":"b"}', None),
]:
    e = post(path, bad, 400)["error"]
    assert e["param"] == param and e["type"] == "invalid_request_error" and e["message"], (bad, e)

# the server's own figures, and that they move
def get(path):
    with urllib.request.urlopen(url + path) as r:
        return r.read().decode()
def metrics():
    values, types = {}, {}
    for line in get("/metrics").splitlines():
        if line.startswith("# TYPE"):
            name, kind = line.split()[2:]
            assert name not in types, name
            types[name] = kind
        elif not line.startswith("#"):
            key, value = line.rsplit(" ", 1)
            assert key not in values, key
            values[key] = float(value)
            name = key.split("{")[0]
            base = name.rsplit("_", 1)[0]
            assert name in types or types.get(base) == "histogram", line
    return values
before = metrics()
assert before["colibri_ready"] == 1 and before["colibri_parallel"] == 2
reply = post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 5})
def moved():
    return metrics().get("colibri_tokens_generated_total") - before["colibri_tokens_generated_total"]
for _ in range(100):  # as of the last pass, whose end comes after the reply's
    if moved() >= 5:
        break
    time.sleep(0.02)
after = metrics()
assert reply["usage"]["completion_tokens"] == 5
for name, more in [("colibri_requests_total{outcome=\"finished\"}", 1), ("colibri_tokens_generated_total", 5),
                   ("colibri_request_seconds_count", 1), ("colibri_time_to_first_token_seconds_count", 1),
                   ("colibri_prompt_tokens_computed_total", reply["usage"]["prompt_tokens"]), ("colibri_generated_tokens_sum", 5),
                   ("colibri_queue_seconds_count", 1)]:
    assert after[name] - before.get(name, 0) == more, (name, before.get(name), after[name])
route = 'colibri_http_requests_total{method="POST",path="/v1/completions",code="2xx"}'
assert after[route] == before.get(route, 0) + 1
assert after['colibri_http_requests_total{method="POST",path="/tokenize",code="4xx"}'] == 9
buckets = [v for k, v in after.items() if k.startswith("colibri_request_seconds_bucket")]
assert buckets == sorted(buckets) and buckets[-1] == 1

slots = json.loads(get("/slots"))
assert len(slots) == 2 and not any(s["is_processing"] for s in slots)
r = json.loads(get("/residency"))
assert r["layers"] == len(r["map"]) == 5 and all(len(row) == r["experts"] == 32 for row in r["map"])
assert sum(row.count("1") for row in r["map"]) == r["resident"] > 0
p = json.loads(get("/props"))
assert p["chat_format"] == "chatml" and "<|im_start|>" in p["chat_template"] and p["total_slots"] == 2
assert p["default_generation_settings"]["n_ctx"] == p["n_ctx"] == 2304
m = json.loads(get("/v1/models"))
assert m["object"] == "list" and m["data"][0]["meta"]["n_vocab"] == 4096 and m["data"][0]["object"] == "model"
PY
python3 "$WORK/check.py" "$URL" || fail "see above"
kill -HUP "$PID"
log_has "changed: nothing"
kill -TERM "$PID"
ended 0
wait "$(jobs -p | head -n 1)" 2>/dev/null
for line in '^READY=1$' '^RELOADING=1|MONOTONIC_USEC=[0-9]*$' '^STOPPING=1$'; do
    grep -q "$line" "$WORK/notified" || fail "systemd was not told '$line': $(cat "$WORK/notified")"
done

# ---- while a model is being loaded, there is somebody to ask; a signal gives it up
shim=$BINARY_DIR/tests/slow_read.so
if [ -e "$shim" ] && LD_PRELOAD=$shim "$COLIBRI" --version >/dev/null 2>&1; then
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    LD_PRELOAD=$shim SLOW_READ_PATH=tiny-moe SLOW_READ_RATE=4000000 "$COLIBRI" serve -m "$MODEL" --port "$port" --api-key k \
        --set store.io=pread --threads 1 >"$WORK/server.out" 2>"$WORK/server.err" </dev/null &
    PID=$!
    SERVERS="$SERVERS $PID"
    URL=http://127.0.0.1:$port
    for _ in $(seq 100); do curl -s -o "$WORK/body" "$URL/health" && break; sleep 0.05; done
    get 503 /health
    body '{"error":{"message":"Loading model","type":"unavailable_error","param":null,"code":503}}'
    get 200 /v1/models
    body '"id":"tiny-moe-q4_k_m.gguf"'
    get 401 /v1/chat/completions -d '{}'
    get 503 /v1/chat/completions -d '{}' -H "X-Api-Key: k"
    body "Loading model"
    head_has "Retry-After"
    get 200 /metrics -H "X-Api-Key: k"
    body "colibri_ready 0"
    get 404 /nowhere
    kill -TERM "$PID"
    ended 130
    [ -s "$WORK/server.out" ] && fail "ready after all: $(cat "$WORK/server.out")"
fi
finish
