#!/usr/bin/env bash
# Files and surroundings that want to break the engine: hostile keys, closed streams, too little memory, signals.
. "$(dirname "$0")/lib.sh"
MODEL=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
SEEDS=$SOURCE_DIR/tests/fuzz/corpus/model

ask() { "$COLIBRI" run --raw --temperature 0 -n 4 "$@"; }

# ---- files -------------------------------------------------------------------------------------------------
mkfifo "$WORK/fifo.gguf"
refuse 5 "is a pipe" ask -m "$WORK/fifo.gguf" hello
refuse 5 "is a device" ask -m /dev/zero hello
ln -s one "$WORK/two"
ln -s two "$WORK/one"
refuse 4 "cannot open" ask -m "$WORK/one" hello
truncate -s 1T "$WORK/sparse.gguf" 2>/dev/null && refuse 5 "byte 0" ask -m "$WORK/sparse.gguf" hello
# a file that claims a huge header, and is long enough for it, is not read for ever
printf 'GGUF\3\0\0\0\377\377\377\377\377\0\0\0\0\0\0\0\0\0\0\0' >"$WORK/claim.gguf"
truncate -s 1T "$WORK/claim.gguf" 2>/dev/null && refuse 5 "claim.gguf" timeout 60 "$COLIBRI" run --raw -m "$WORK/claim.gguf" hello

if command -v python3 >/dev/null; then
    edit() { python3 "$SOURCE_DIR/tests/tools/edit_gguf.py" "$1" "$WORK/edited.gguf" "${@:2}"; }
    edit "$SEEDS/qwen3moe" u32 qwen3moe.block_count 4096
    refuse 5 "block_count is 4096, but the file has only" ask -m "$WORK/edited.gguf" hello
    edit "$SEEDS/granitemoe" u32 granitemoe.expert_shared_feed_forward_length 4294967295
    refuse 5 "shared experts of granitemoe are 4294967295 wide" ask -m "$WORK/edited.gguf" hello
fi

# every architecture's small model gives the same text whatever the threads and slots
for seed in "$SEEDS"/*; do
    run 0 ask -m "$seed" -t 1 abc || continue
    want=$(cat "$WORK/out")
    run 0 ask -m "$seed" -t 3 --batch 1 abc
    [ "$(cat "$WORK/out")" = "$want" ] || fail "$(basename "$seed"): other text with 3 threads and rows one by one"
    case $seed in *moe* | *mixtral*)
        run 0 ask -m "$seed" -t 2 --expert-slots 1 abc
        [ "$(cat "$WORK/out")" = "$want" ] || fail "$(basename "$seed"): other text with one expert slot" ;;
    esac
done

# a model that shrinks while it is used is an error, not a crash
cp "$MODEL" "$WORK/shrinks.gguf"
"$COLIBRI" run --raw --temperature 0 -n 4000 --ctx 8192 --ignore-eos --expert-slots 2 -m "$WORK/shrinks.gguf" hello \
    >/dev/null 2>"$WORK/err" &
pid=$!
sleep 1
truncate -s 4096 "$WORK/shrinks.gguf"
code=0
wait "$pid" || code=$?
[ "$code" = 4 ] || fail "a model that shrinks ended with $code: $(cat "$WORK/err")"

# the same with the file mapped: float weights are then used in place
cp "$SOURCE_DIR/tests/data/arch/qwen3moe.gguf" "$WORK/shrinks.gguf"
"$COLIBRI" run --raw --temperature 0 -n 0 --ctx 200000 --ignore-eos --store-mode mmap -m "$WORK/shrinks.gguf" hello \
    >/dev/null 2>"$WORK/err" &
pid=$!
sleep 1
truncate -s 4096 "$WORK/shrinks.gguf"
code=0
wait "$pid" || code=$?
[ "$code" = 4 ] || fail "a mapped model that shrinks ended with $code: $(cat "$WORK/err")"

# ---- streams -----------------------------------------------------------------------------------------------
# With stdout closed no file may take its number: what is printed would go into that file.
mkfifo "$WORK/prompt"
"$COLIBRI" run --raw -m "$MODEL" -n 3 --temperature 0 --ignore-eos -f "$WORK/prompt" >&- 2>"$WORK/err" &
pid=$!
if [ -d "/proc/$pid/fd" ]; then
    for _ in $(seq 100); do
        target=$(readlink "/proc/$pid/fd/1" || true)
        [ -n "$target" ] && [ "${target#/dev/null}" != "$target" ] && break
        sleep 0.05
    done
    [ "$target" = /dev/null ] || fail "a closed stdout became '$target'"
fi
echo hello >"$WORK/prompt"
code=0
wait "$pid" || code=$?
[ "$code" = 4 ] || fail "printing to a closed stdout ended with $code"
grep -qF "standard output" "$WORK/err" || fail "printing to a closed stdout said: $(cat "$WORK/err")"

# ---- memory ------------------------------------------------------------------------------------------------
# Whatever the limit of address space: the text, or one line and exit code 7 (plugins that found no room are warnings before it).
if bash -c '(ulimit -v 4000000 && "$1" --version) || exit 1' x "$COLIBRI" >/dev/null 2>&1; then
    for kib in 16000 24000 32000 40000 48000 56000 64000 80000 120000; do
        code=0
        (ulimit -v "$kib" && ask -m "$MODEL" -t 2 hello) >"$WORK/out" 2>"$WORK/err" </dev/null || code=$?
        case $code in
        0) ;;
        7) [ "$(grep -vc '^colibri run: warning: plugin ' "$WORK/err")" = 1 ] || fail "with $kib KiB it said: $(cat "$WORK/err")" ;;
        127) ;; # the dynamic linker itself had no room
        *) fail "with $kib KiB of address space it ended with $code: $(head -c 300 "$WORK/err")" ;;
        esac
    done
fi

# ---- signals -----------------------------------------------------------------------------------------------
for delay in 0 0.01 0.03 0.06 0.1 0.2 0.4 0.8; do
    "$COLIBRI" run --raw -m "$MODEL" -n 4000 --ctx 8192 --ignore-eos hello >/dev/null 2>"$WORK/err" &
    pid=$!
    sleep "$delay"
    kill -TERM "$pid"
    code=0
    wait "$pid" || code=$?
    # 130 once its handler is there, 143 before
    [ "$code" = 130 ] || [ "$code" = 143 ] || fail "SIGTERM after $delay s: exit code $code: $(cat "$WORK/err")"
done
finish
