#!/usr/bin/env bash
# Adapters that take time to read or do not fit: streams go on meanwhile, the server can be stopped, nothing is read in vain.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/serve.sh"
make() { python3 "$SOURCE_DIR/tests/cli/make_lora.py" "$@"; }
[ -e "$BINARY_DIR/tests/slow_read.so" ] || skip "slow_read.so is not built"
ldd "$COLIBRI" | grep -q 'lib[at]san' && skip "sanitizers do not go with LD_PRELOAD"
mkdir "$WORK/adapters"

# a file that takes two seconds: streams go on, and the server can be stopped meanwhile
make "$WORK/adapters/long.gguf" qwen3moe 256 256 4 512
LD_PRELOAD=$BINARY_DIR/tests/slow_read.so SLOW_READ_PATH=long.gguf SLOW_READ_RATE=1000000 serve --lora-dir "$WORK/adapters" --lora-memory 16M
python3 "$SOURCE_DIR/tests/cli/lora_streams.py" "$URL" long.gguf 2 || fail "streams while an adapter is read"
get 200 /lora-adapters/1 -X DELETE
curl -s -m 20 -o "$WORK/body" "$URL/lora-adapters" -d '{"path": "long.gguf"}' &
sleep 0.5
kill -TERM "$PID"
ended 0
wait $! # of curl
grep -q 'shutting_down\|"id":2' "$WORK/body" || fail "loading while the server ends: $(head -c 300 "$WORK/body")"

# the plan has them, and refuses what does not fit before it is read: 256 MiB are more than 1000 reads
make "$WORK/adapters/huge.gguf" qwen3moe 256 256 5 65536
LD_PRELOAD=$BINARY_DIR/tests/slow_read.so SLOW_READ_PATH=huge.gguf SLOW_READ_LOG=$WORK/reads \
    run 7 "$COLIBRI" run -m "$MODEL" --lora "$WORK/adapters/huge.gguf" --max-memory 64M -n 1 x
err "LoRA adapters"
[ "$(cat "$WORK/reads")" -lt 200 ] || fail "$(cat "$WORK/reads") reads of an adapter that does not fit"
run 0 "$COLIBRI" plan -m "$MODEL" --lora "$WORK/adapters/long.gguf"
out "LoRA adapters, 1 given"
finish
