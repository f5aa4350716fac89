#!/usr/bin/env bash
# slow: no memory, at 150 different places of a run and of a server's life: each ends by itself and says why, or goes on and only
# the request at hand fails. (All places: alloc_faults.py with --count 0.)
. "$(dirname "$0")/lib.sh"
command -v python3 >/dev/null || skip "python3 is not here"
FAULT=$BINARY_DIR/tests/alloc_fault.so
[ -e "$FAULT" ] || skip "alloc_fault.so is not built"
MODEL=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
ldd "$COLIBRI" | grep -q libtsan && skip "ThreadSanitizer does not go with LD_PRELOAD"
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0:allocator_may_return_null=1"
mkdir "$WORK/adapters"
python3 "$SOURCE_DIR/tests/cli/make_lora.py" "$WORK/adapters/a.gguf" qwen3moe 256 256
faults() { python3 "$SOURCE_DIR/tests/cli/alloc_faults.py" "$@" --adapter "$WORK/adapters/a.gguf" || fail "$1"; }
faults run "$COLIBRI" "$FAULT" "$MODEL" --count 150
faults run "$COLIBRI" "$FAULT" "$MODEL" --count 40 --extra=--lora --extra="$WORK/adapters/a.gguf" --extra=--kv-type --extra=q8_0
faults serve "$COLIBRI" "$FAULT" "$MODEL" --count 150

# they are seen: a program that gives no heed dies of them
for shell in 'exec python3 -c "import json; json.dumps(list(range(10000)))"'; do
    code=0
    LD_PRELOAD=$FAULT ALLOC_FAULT=5+ bash -c "$shell" >/dev/null 2>&1 || code=$?
    [ "$code" != 0 ] || fail "nothing failed in '$shell'"
done
finish
