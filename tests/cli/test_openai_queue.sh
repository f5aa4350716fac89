#!/usr/bin/env bash
# slow
# OpenAI's API where requests wait: a full queue, timeouts, silence; the server's own sampling settings.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"
export PYTHONPATH=$SOURCE_DIR/tests/cli PYTHONDONTWRITEBYTECODE=1

serve --threads 1 --max-memory 512M --ctx 4096 --parallel 1 --queue 1 --request-timeout 2 --keep-alive 1 --temperature 0 --predict 7 --alias me
python3 - "${URL##*:}" <<'PY' || fail "queue, timeouts and settings (above)"
import sys
import time
from openai_client import Client, concurrently
c = Client(int(sys.argv[1]))

# what is not given is as the server was started
o = c.complete("Once upon a time")
assert o["model"] == "me" and o["usage"]["completion_tokens"] == 7, o
assert o["choices"] == c.complete("Once upon a time", temperature=0, max_tokens=7)["choices"]
status, _, o = c.post("/v1/completions", dict(prompt="a", n=2))
assert status == 400 and o["error"]["param"] == "n" and "--parallel" in o["error"]["message"], o

# longer than there is time for: many texts, one after the other
slow = dict(prompt=["Count %d" % i for i in range(2000)], max_tokens=500, ignore_eos=True)

def stream():
    k, r = c.open_stream("/v1/completions", slow)
    return r.status, r.read().decode()

status, text = stream()
assert status == 200 and '"text":' in text and '"code":"request_timeout"' in text[-300:] and "[DONE]" not in text, text[-300:]
status, _, o = c.post("/v1/completions", slow)
assert (status, o["error"]["type"], o["error"]["code"]) == (408, "timeout", "request_timeout"), o

# one runs, one waits (and hears of it), the others are told to come again
busy = dict(prompt="Once", max_tokens=4000, ignore_eos=True)
got = concurrently([lambda: c.post("/v1/completions", busy) for _ in range(6)])
kinds = [(status, (o.get("error") or dict(code=None))["code"]) for status, _, o in got]
assert (429, "queue_full") in kinds and set(kinds) <= {(429, "queue_full"), (408, "request_timeout"), (200, None)}, got
assert all(h["Retry-After"] for status, h, o in got if status == 429)

def waits():
    time.sleep(0.1)
    k, r = c.open_stream("/v1/completions", dict(prompt="Once", max_tokens=1))
    return r.status, r.read().decode()

_, (status, text) = concurrently([stream, waits])
assert status in (200, 408, 429), (status, text) # the others of the stream wait, too

# all is as before
assert c.complete("Once upon a time")["usage"]["completion_tokens"] == 7
PY
kill "$PID"
ended 0

# ---- a queue that is left after a second
serve --threads 1 --max-memory 512M --ctx 32768 --parallel 1 --queue-timeout 1 --temperature 0
python3 - "${URL##*:}" <<'PY' || fail "a time limit in the queue (above)"
import sys
import time
from openai_client import Client, concurrently, wait_until
c = Client(int(sys.argv[1]), timeout=20)

def metric(name):
    return int(next(l.split()[1] for l in c.get("/metrics")[1].splitlines() if l.startswith(name + " ")))

k, r = c.open_stream("/v1/completions", dict(prompt="Once", max_tokens=32000, ignore_eos=True))
assert r.status == 200
read = r.read1(1000) # it runs, and goes on for longer than the others wait
began = time.monotonic()
message = dict(model="any", max_tokens=5, messages=[dict(role="user", content="Hi")])
(status, head, o), (other, _, p) = concurrently([lambda: c.post("/v1/completions", dict(prompt="Once", max_tokens=1)),
                                                 lambda: c.post("/v1/messages", message)])
assert (status, o["error"]["type"], o["error"]["code"]) == (503, "unavailable_error", "queue_timeout"), (status, o)
assert int(head["Retry-After"]) > 0 and "--queue-timeout" in o["error"]["message"], (head, o)
assert (other, p["error"]["type"]) == (503, "overloaded_error"), (other, p)
assert 0.9 < time.monotonic() - began < 10, time.monotonic() - began
assert metric("colibri_queue_timeouts_total") == 2 and metric("colibri_requests_waiting") == 0
r.close()
k.close()
wait_until(lambda: metric("colibri_requests_running") == 0)
assert c.complete("Once upon a time", max_tokens=3)["usage"]["completion_tokens"] == 3
PY
kill "$PID"
ended 0
finish
