# Shared by test_serve_*.sh, after lib.sh: servers in the background, and requests.
MODEL=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
SERVERS=
command -v curl >/dev/null || skip "curl is not here"
command -v python3 >/dev/null || skip "python3 is not here"
stop_servers() {
    for pid in $SERVERS; do kill -KILL "$pid" 2>/dev/null; done
    wait 2>/dev/null
}
trap '[ "$BASHPID" = "$$" ] && { stop_servers; rm -rf "$WORK"; }' EXIT

# serve FLAGS...: a server on a free port. Sets PID, URL; its output is in $WORK/server.out and .err.
serve() {
    serve_as --port 0 "$@"
}
serve_as() {
    : >"$WORK/server.out" # not the line of the one before
    "$COLIBRI" serve -m "$MODEL" "$@" >"$WORK/server.out" 2>"$WORK/server.err" </dev/null &
    PID=$!
    SERVERS="$SERVERS $PID"
    for _ in $(seq 600); do
        grep -q '^server ready' "$WORK/server.out" && break
        kill -0 "$PID" 2>/dev/null || break
        sleep 0.05
    done
    URL=$(sed -n 's/^server ready: \(http[^ ]*\) .*/\1/p' "$WORK/server.out")
    [ -n "$URL" ] && return
    fail "no server with '$*': $(cat "$WORK/server.err")"
    finish
}

# ended CODE: the server has ended, or does within ten seconds, with this exit code.
ended() {
    local want=$1 code=0
    for _ in $(seq 200); do
        kill -0 "$PID" 2>/dev/null || break
        sleep 0.05
    done
    if kill -0 "$PID" 2>/dev/null; then
        fail "the server did not end: $(tail -n 3 "$WORK/server.err")"
        kill -KILL "$PID"
    fi
    wait "$PID" 2>/dev/null || code=$?
    SERVERS=${SERVERS% $PID} # the number may be another's now
    [ "$code" = "$want" ] || fail "the server ended with $code instead of $want: $(tail -n 5 "$WORK/server.err")"
}

# get STATUS PATH CURL-FLAGS...: one request; the body in $WORK/body, the headers in $WORK/head.
get() {
    local want=$1 path=$2 code
    shift 2
    code=$(curl -s -m 20 -o "$WORK/body" -D "$WORK/head" -w '%{http_code}' "$@" "$URL$path") || code="$code (curl: $?)"
    [ "$code" = "$want" ] || fail "$path $*: $code instead of $want: $(head -c 300 "$WORK/body" 2>/dev/null)"
}
body() {
    grep -qF -- "$1" "$WORK/body" || fail "the reply lacks '$1': $(head -c 400 "$WORK/body")"
}
head_has() {
    grep -qiF -- "$1" "$WORK/head" || fail "the reply's head lacks '$1': $(cat "$WORK/head")"
}
log_has() {
    for _ in $(seq 100); do
        grep -qF -- "$1" "$WORK/server.err" && return
        sleep 0.05
    done
    fail "the log lacks '$1': $(tail -n 5 "$WORK/server.err")"
}
# metric NAME: its value
metric() {
    curl -s -m 20 "$URL/metrics" | awk -v n="$1" '$1 == n { print $2 }'
}
# until_metric NAME VALUE: it has this value, or will soon.
until_metric() {
    for _ in $(seq 200); do
        [ "$(metric "$1")" = "$2" ] && return
        sleep 0.05
    done
    fail "$1 is $(metric "$1"), not $2"
}
# clients WHAT...: the clients of serve_clients.py
clients() {
    timeout 900 python3 "$SOURCE_DIR/tests/cli/serve_clients.py" "$URL" "$@" || fail "clients, $1"
}
