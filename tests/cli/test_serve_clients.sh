#!/bin/bash
# colibri serve with clients that vanish or speak no HTTP, and the end with requests that still run.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"

serve --parallel 2 --queue 8
clients vanish
clients garbage
kill -TERM "$PID"
ended 0

serve
clients drain "$PID"
ended 0
# a machine that does not get through 2290 tokens in no time at all
serve --drain-timeout 0
clients cut "$PID"
ended 0
serve --kv-budget 64 --kv-strategy sliding-window --ctx 100000
clients cut "$PID" twice
ended 130

# places are few: whoever comes too much is told so
serve --max-connections 4
python3 - "$URL" <<'PY' || fail "connections"
import socket, sys, time
port = int(sys.argv[1].rsplit(":", 1)[1])
held = []
for _ in range(4):
    s = socket.create_connection(("127.0.0.1", port))
    s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b" 200 " in s.recv(4096)
    held.append(s)
s = socket.create_connection(("127.0.0.1", port))
s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
got = s.recv(4096)
assert b" 503 " in got and b"too many connections" in got, got
held.pop().close()
for _ in range(100):
    s = socket.create_connection(("127.0.0.1", port))
    s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    got = s.recv(4096)
    if b" 200 " in got:
        break
    time.sleep(0.02)
assert b" 200 " in got, got
PY
kill -TERM "$PID"
ended 0
finish
