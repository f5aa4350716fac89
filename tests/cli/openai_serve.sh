# Shared by the scripts that start a server, after lib.sh: serve FLAG... and end. The port is in $port.
pid=

serve() {
    "$COLIBRI" serve --port 0 --threads 1 "$@" >"$WORK/serve.out" 2>"$WORK/serve.err" </dev/null &
    pid=$!
    for _ in $(seq 400); do
        grep -q '^server ready' "$WORK/serve.out" && break
        kill -0 $pid 2>/dev/null || break
        sleep 0.05
    done
    port=$(sed -n 's/^server ready: http:\/\/127\.0\.0\.1:\([0-9]*\).*/\1/p' "$WORK/serve.out")
    [ -n "$port" ] || { fail "no server: $(cat "$WORK/serve.err")"; finish; }
}

end() {
    local code=0
    kill $pid
    wait $pid || code=$?
    pid=
    [ $code = 0 ] || fail "the server ended with $code: $(tail -3 "$WORK/serve.err")"
}
trap '[ "$BASHPID" != "$$" ] || { [ -z "$pid" ] || kill $pid; rm -rf "$WORK"; }' EXIT
