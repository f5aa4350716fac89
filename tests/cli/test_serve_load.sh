#!/usr/bin/env bash
# slow
# A short version of tests/load/load.py: 24 clients, some of which behave badly, against a server with 4 places. The long one, with
# sanitizers, is described in docs/verification.md.
. "$(dirname "$0")/lib.sh"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || skip "no Python 3.11"
MODEL=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
load() { python3 "$SOURCE_DIR/tests/load/load.py" --log "$WORK/serve.log" "$@" "$COLIBRI" "$MODEL" -- --threads 2; }

run 0 load --minutes 0.33 --requests 150 --each 2 --clients 24 --idle-timeout 5 --patience 60 --warm-up 5 || tail -c 3000 "$WORK/out"
out '"failures": 0'
grep -c '"same ' "$WORK/out" | grep -qx 1[0-9] || fail "not every kind of request was answered: $(grep '"same ' "$WORK/out")"
# the test finds replies that are not those of a lone run
run 1 load --minutes 0.02 --requests 20 --each 1 --clients 4 --spoil --reload 0
out 'differs from its lone run'
finish
