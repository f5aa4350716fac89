#!/usr/bin/env bash
# slow
# What can go wrong while experts and layers come from a drive: reads that fail, a drive that is slow, damaged blocks, policies
# and profiles that lie, files that cannot be written to the end. One clear error, the right exit code, nothing half written.
SHIM=${BINARY_DIR:-}/tests/slow_read.so
. "$(dirname "$0")/lib.sh"
c=$COLIBRI
cd "$WORK" || exit 1
head -c 3000 "$SOURCE_DIR/tests/data/tiny-moe/prose.txt" >p.txt
cp "$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf" t.gguf
ask() { "$c" run --raw --temperature 0 -n 24 "$@" 'The bird'; }
run 0 ask -m t.gguf && cp "$WORK/out" want || finish

# ---- damaged blocks are found wherever they are used, whatever keeps them --------------------------------------------------
run 0 "$c" pack t.gguf t.colibri
offset() { "$c" inspect t.colibri --tensors | awk -v name="$1" '$NF == name { print $(NF - 2) }'; }
flip() { # FROM TO OFFSET STEP COUNT
    python3 - "$@" <<'PY'
import sys
at, step, count = map(int, sys.argv[3:])
data = bytearray(open(sys.argv[1], "rb").read())
for i in range(count):
    data[at + i * step] ^= 64
open(sys.argv[2], "wb").write(data)
PY
}
if command -v python3 >/dev/null; then
    first=$(offset blk.4.ffn_gate_exps.weight) end=$(offset blk.4.ffn_gate_inp.weight)
    flip t.colibri experts.colibri $((first + 1000)) $(((end - first) / 32)) 32
    flip t.colibri attention.colibri $(($(offset blk.4.attn_output.weight) + 100)) 1 1
    for verify in first always; do
        for flags in '' '--store-mode mmap' '--expert-slots 12' '--expert-slots 12 --io pread' '--resident-layers 1'; do
            for file in experts attention; do
                # shellcheck disable=SC2086
                refuse 5 'does not match its checksum' ask -m $file.colibri $flags --set store.verify=$verify
            done
        done
    done
    refuse 5 'tensor "blk.4.attn_output.weight"' ask -m attention.colibri --resident-layers 1 --direct on
    run 0 ask -m attention.colibri --resident-layers 1 --set store.verify=never
fi

# ---- a drive that fails or is slow ------------------------------------------------------------------------------------------
if [ -e "$SHIM" ] && ! ldd "$c" | grep -q 'lib[at]san'; then
    bad() { LD_PRELOAD=$SHIM SLOW_READ_PATH=t.gguf SLOW_READ_SKIP=300 "$@"; }
    for flags in '--expert-slots 12 --direct off' '--resident-layers 1 --expert-slots 20'; do
        for nth in 1 7 60 3+; do
            # shellcheck disable=SC2086
            SLOW_READ_FAIL=$nth refuse 4 'Input/output error' bad ask -m t.gguf --io pread $flags
            text=$(cat "$WORK/out")
            [ "${text}" = "$(head -c "${#text}" want)" ] || fail "$flags, read $nth: '$text' before the error"
        done
    done
    # stopping does not wait for what was asked for, only for what the drive has begun: here a layer takes half a minute
    for flags in '--expert-slots 12 --direct off' '--expert-slots 60 --direct off --predictor next-gate'; do
        # shellcheck disable=SC2086
        env LD_PRELOAD="$SHIM" SLOW_READ_PATH=t.gguf SLOW_READ_SKIP=300 SLOW_READ_RATE=100000 SLOW_READ_SHORT=4096 \
            "$c" run -m t.gguf --raw -n 24 --io pread $flags -f p.txt --batch 64 >/dev/null 2>"$WORK/err" &
        pid=$!
        sleep 3
        began=$(date +%s%N)
        kill -TERM "$pid"
        code=0
        wait "$pid" || code=$?
        took=$((($(date +%s%N) - began) / 1000000))
        [ "$code" = 130 ] || fail "$flags: SIGTERM ended with $code: $(cat "$WORK/err")"
        [ "$took" -lt 8000 ] || fail "$flags: SIGTERM took $took ms"
    done
    # a load is stopped, too; and timeout(1), which sends its signal twice, lets it end in order
    code=0
    LD_PRELOAD=$SHIM SLOW_READ_PATH=t.gguf SLOW_READ_RATE=500000 timeout -s TERM 2 "$c" run -m t.gguf --raw -n 1 --io pread x \
        >/dev/null 2>"$WORK/err" || code=$?
    [ "$code" = 124 ] || fail "a load under timeout ended with $code"
    err 'stopped on request'
else
    echo 'not tested: drives that fail (no slow_read.so, or sanitizers)'
fi

# ---- profiles ---------------------------------------------------------------------------------------------------------------
pin() { ask -m t.gguf --expert-slots 13 --expert-policy profile-pin; }
if run 0 pin && [ -s t.gguf.profile-pin.profile ]; then
    cp t.gguf.profile-pin.profile good
    for bytes in 0 7 40 60 $(($(stat -c %s good) - 1)); do
        head -c "$bytes" good >t.gguf.profile-pin.profile
        run 0 pin && err 'not used, and left alone'
        cmp -s "$WORK/out" want || fail "$bytes bytes of a profile: another text"
        [ "$(stat -c %s t.gguf.profile-pin.profile)" = "$bytes" ] || fail "a profile of $bytes bytes was replaced"
    done
fi

# ---- outputs that cannot be written to the end ------------------------------------------------------------------------------
run 0 "$c" trace -m t.gguf -f p.txt -o whole.clbt -n 8
(failures=0; ulimit -f 4 && refuse 4 'cannot write part.clbt: File too large' "$c" trace -m t.gguf -f p.txt -o part.clbt -n 8
    exit "$failures") || fail 'recording with a limit on file sizes'
(failures=0; ulimit -f 4 && refuse 4 'cannot write page.html' "$c" simulate whole.clbt --policy lru --slots 25% --html page.html
    exit "$failures") || fail 'a page with a limit on file sizes'
(failures=0; ulimit -f 4 && refuse 4 'cannot write' "$c" trace export whole.clbt --to csv -o part.csv
    exit "$failures") || fail 'exporting with a limit on file sizes'
[ ! -e page.html ] && [ ! -e part.csv ] || fail "half a file was left: $(ls page.html part.csv 2>/dev/null)"
finish
