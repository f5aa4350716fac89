"""Streams go on while an adapter is read: lora_streams.py URL FILE SECONDS. The file takes about SECONDS to read
(tests/tools/slow_read.c); meanwhile the list does not show it, a second one that no longer fits is refused at once, and tokens come
all the time. Prints the longest gap between two tokens; ends with 1 after saying what was wrong."""
import json
import sys
import threading
import time
import urllib.error
import urllib.request

URL, FILE, SECONDS = sys.argv[1], sys.argv[2], float(sys.argv[3])
stamps, stop = [], threading.Event()


def send(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(URL + path, data), timeout=300) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode()


def stream():
    body = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True}
    while not stop.is_set():
        with urllib.request.urlopen(URL + "/v1/completions", json.dumps(body).encode(), timeout=300) as reply:
            for line in reply:
                if line.startswith(b"data: {"):
                    stamps.append(time.monotonic())
                if stop.is_set():
                    return


answers = {}
threading.Thread(target=stream).start()
while len(stamps) < 20:
    time.sleep(0.01)
begun = time.monotonic()
loader = threading.Thread(target=lambda: answers.update(load=send("/lora-adapters", {"path": FILE, "scale": 0})))
loader.start()
time.sleep(SECONDS / 4)
answers["list"] = send("/lora-adapters")
answers["second"] = send("/lora-adapters", {"path": FILE, "scale": 0})
early = time.monotonic()
loader.join()
ended = time.monotonic()
stop.set()
meanwhile = [begun] + [t for t in stamps if begun < t < ended] + [ended]
gap = max(b - a for a, b in zip(meanwhile, meanwhile[1:]))
print(f"read in {ended - begun:.2f} s; meanwhile {len(meanwhile) - 2} tokens, longest gap {1000 * gap:.0f} ms")
wrong = []
if ended - begun < SECONDS / 2 or early >= ended:
    wrong.append(f"the file was read in {ended - begun:.2f} s: too fast for this test")
if gap > (ended - begun) / 2:
    wrong.append("the stream stood still while the adapter was read")
if answers["load"][0] != 201:
    wrong.append(f"loading was answered by {answers['load']}")
if answers["list"] != (200, "[]"):
    wrong.append(f"the list while it was read: {answers['list']}")
if answers["second"][0] != 507 or "--lora-memory" not in answers["second"][1]:
    wrong.append(f"one that does not fit beside it: {answers['second']}")
for what in wrong:
    print("FAIL:", what)
sys.exit(1 if wrong else 0)
