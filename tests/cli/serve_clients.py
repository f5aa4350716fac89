"""Clients of test_serve_clients.sh and test_serve_crowd.sh: python3 serve_clients.py URL WHAT [PID [twice]]."""
import concurrent.futures, json, random, socket, struct, sys, time, urllib.request
url, what = sys.argv[1], sys.argv[2]
port = int(url.rsplit(":", 1)[1])
def get(path):
    with urllib.request.urlopen(url + path, timeout=300) as r:
        return r.read().decode()
def metric(name):
    return next(float(l.rsplit(" ", 1)[1]) for l in get("/metrics").splitlines() if l.rsplit(" ", 1)[0] == name)
def until(name, value):
    for _ in range(400):
        if metric(name) == value:
            return
        time.sleep(0.02)
    raise AssertionError((name, metric(name), value))
def ask(body, path="/v1/completions"):
    data = json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url + path, data), timeout=300) as r:
        return json.loads(r.read())
def dial(body=None, path="/v1/completions", small=False):
    s = socket.socket()
    if small:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.settimeout(300)
    s.connect(("127.0.0.1", port))
    if body is not None:
        data = json.dumps(body).encode()
        s.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(data), data))
    return s
def read_until(s, part):
    got = b""
    while part not in got:
        piece = s.recv(65536)
        assert piece, got
        got += piece
    return got
LONG = {"prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True, "stream": True}
FIXED = {"prompt": "The secret code of", "max_tokens": 12, "temperature": 0, "seed": 7}

if what == "vanish":
    # two run, the third waits: it leaves while it waits, the others while they stream
    want = ask(FIXED)["choices"][0]["text"]
    a, b = dial(LONG), dial(LONG)
    read_until(a, b"data: "), read_until(b, b"data: ")
    c = dial(LONG)
    until("colibri_requests_waiting", 1)
    c.close()
    until("colibri_requests_waiting", 0)
    assert metric("colibri_requests_running") == 2
    a.close()
    until("colibri_requests_running", 1)
    read_until(b, b"data: ")                       # goes on
    assert ask(FIXED)["choices"][0]["text"] == want  # and so do others
    b.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    b.close()
    until("colibri_requests_running", 0)
    # one that leaves while its prompt is read
    d = dial({"prompt": "word " * 2200, "max_tokens": 5})
    d.close()
    until("colibri_http_pending", 1)               # this very request
    assert metric("colibri_http_disconnects_total") >= 4
    assert ask(FIXED)["choices"][0]["text"] == want
elif what == "slow":
    # logprobs make long events: a client that reads nothing is given up, and nobody else waits for it
    want = ask(FIXED)["choices"][0]["text"]
    s = dial(dict(LONG, max_tokens=2200, logprobs=20, n=2), small=True)
    for _ in range(3):
        assert ask(FIXED)["choices"][0]["text"] == want
    until("colibri_http_slow_readers_total", 1)
    until("colibri_requests_running", 0)
    s.close()
elif what == "crowd":
    def one(i):
        if i % 4 == 3:
            s = dial(LONG)
            read_until(s, b"\r\n\r\n") if i % 8 == 3 else None
            s.close()
            return True
        try:
            return ask(FIXED)["choices"][0]["text"] == want
        except urllib.error.HTTPError as e:
            return e.code == 429 and "Retry-After" in e.headers and json.loads(e.read())["error"]["message"] != ""
    want = ask(FIXED)["choices"][0]["text"]
    with concurrent.futures.ThreadPoolExecutor(200) as pool:
        assert all(pool.map(one, range(200)))
    until("colibri_http_pending", 1)
    until("colibri_requests_running", 0)
    assert metric("colibri_requests_waiting") == 0
elif what == "garbage":
    rng = random.Random(5)
    data = json.dumps(FIXED).encode()
    good = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data)
    for i in range(300):
        raw = bytearray(good)
        for _ in range(rng.choice([1, 2, 30])):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        if i % 3 == 0:
            raw = bytearray(rng.randbytes(rng.randrange(1, 3000)))
        s = dial()
        try:
            s.sendall(raw[: rng.randrange(1, len(raw) + 1)])
            if i % 2:
                s.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        s.close()
    assert json.loads(get("/health"))["status"] == "ok"
    until("colibri_http_pending", 1)
elif what == "drain":
    # in the middle of a stream the server is told to end: the stream comes to its end, new requests are refused
    s = dial(dict(LONG, max_tokens=300))
    got = read_until(s, b"data: ")
    import os, signal
    os.kill(int(sys.argv[3]), signal.SIGTERM)
    for _ in range(200):
        try:
            get("/health")
            time.sleep(0.01)
        except urllib.error.HTTPError as e:
            assert e.code == 503
            break
        except OSError:
            break
    try:
        ask(FIXED)
        raise AssertionError("served while draining")
    except urllib.error.HTTPError as e:
        assert e.code == 503 and json.loads(e.read())["error"]["code"] == "shutting_down"
    except OSError:
        pass
    while b"[DONE]" not in got:
        piece = s.recv(65536)
        assert piece, got[-300:]
        got += piece
    assert b'"finish_reason":"length"' in got and b'"error"' not in got
elif what == "cut":
    # the same, but it may not take so long: the client is told
    s = dial(dict(LONG, max_tokens=2290))
    got = read_until(s, b"data: ")
    import os, signal
    os.kill(int(sys.argv[3]), signal.SIGTERM)
    if len(sys.argv) > 4:
        time.sleep(0.3)
        os.kill(int(sys.argv[3]), signal.SIGTERM)
    while True:
        piece = s.recv(65536)
        if not piece:
            break
        got += piece
    assert b'"error":{' in got and b"shutting down" in got and b"[DONE]" not in got, got[-300:]
