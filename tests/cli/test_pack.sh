#!/bin/bash
# colibri pack: packing, verifying, pieces, refusals, and what is left behind when it is stopped.
. "$(dirname "$0")/lib.sh"
c=$COLIBRI
tiny=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
cd "$WORK" || exit 1
mkdir d

# flip FILE OFFSET: changes one byte.
flip() {
    local old
    old=$(dd if="$1" bs=1 skip="$2" count=1 2>/dev/null | od -An -tu1)
    printf "%b" "\\x$(printf %x $((old ^ 64)))" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}

run 0 "$c" pack "$tiny" d/tiny.colibri
out 'packed into d/tiny.colibri (20.4 MiB in '
[ ! -s "$WORK/err" ] || fail "stderr: $(cat "$WORK/err")"
[ "$(ls -A d)" = tiny.colibri ] || fail "left behind: $(ls -A d)"
[ "$(head -c 4 d/tiny.colibri)" = CLBR ] || fail "the magic is not CLBR"
run 0 "$c" pack --verify d/tiny.colibri
out 'all checksums match (20.4 MiB in '
run 0 "$c" pack "$tiny" d/again.colibri --verify --threads 1
out 'all checksums match, and every unpacked byte is the source'
cmp d/tiny.colibri d/again.colibri || fail 'one thread writes other bytes'
rm d/again.colibri

# The same model, as everything sees it.
run 0 "$c" inspect d/tiny.colibri
out 'packing         packed x16: 37 of 63 tensors; 160 experts in blocks of their own; checksums (xxh3-64)'
out 'expert size     108.0 KiB to 124.5 KiB (differs by layer)'
grep -v '^file\|^size\|^packing' "$WORK/out" >packed.txt
run 0 "$c" inspect "$tiny"
grep -v '^file\|^size' "$WORK/out" >plain.txt
cmp packed.txt plain.txt || fail 'inspect sees another model'
run 0 "$c" inspect d/tiny.colibri --tensors
out 'layout name'
grep -q '^Q4_K .* x16 *blk.0.ffn_gate_exps.weight$' "$WORK/out" || fail "no x16 experts: $(grep exps "$WORK/out" | head -n 1)"
grep -q '^F32 .* rows *output_norm.weight$' "$WORK/out" || fail "no rows: $(grep output_norm "$WORK/out")"
run 0 "$c" inspect d/tiny.colibri --json
out '"packed": true'
out '"checksums": true'
for flag in '--store-mode read' '--store-mode mmap' '--expert-slots 12' '--set store.verify=always'; do
    # shellcheck disable=SC2086
    run 0 "$c" run -m d/tiny.colibri $flag --raw --temp 0 -n 24 'The bird' && cp "$WORK/out" packed.txt
    # shellcheck disable=SC2086
    run 0 "$c" run -m "$tiny" $flag --raw --temp 0 -n 24 'The bird' && cmp packed.txt "$WORK/out" ||
        fail "$flag: another text: $(cat packed.txt)"
done

# Pieces.
run 0 "$c" pack "$tiny" d/p.colibri --split 8M
out 'packed into d/p-00001-of-00003.colibri and 2 more files (20.4 MiB in '
[ "$(find d -name 'p-*' -size +8192k)" = '' ] || fail "pieces are larger than 8 MiB: $(ls -l d)"
run 0 "$c" pack --verify d/p-00001-of-00003.colibri
run 0 "$c" run -m d/p-00001-of-00003.colibri --raw --temp 0 -n 24 'The bird' && cmp packed.txt "$WORK/out" ||
    fail 'another text from pieces'
refuse 2 'open the first one: d/p-00001-of-00003.colibri' "$c" pack --verify d/p-00003-of-00003.colibri
refuse 2 'are too small' "$c" pack "$tiny" d/q.colibri --split 2M
refuse 2 'at least 1M' "$c" pack "$tiny" d/q.colibri --split 1K
refuse 2 '--split 3Q' "$c" pack "$tiny" d/q.colibri --split 3Q
refuse 2 'd/p-00002-of-00003.colibri exists already' sh -c "rm d/p-00001-of-00003.colibri; '$c' pack '$tiny' d/p.colibri --split 8M"
# Pieces of another number stay, and a warning says so. Those of the same number are replaced.
run 0 "$c" pack "$tiny" d/p.colibri --split 16M --force
err '2 files of another set (p-00002-of-00003.colibri and others) stay beside the new model'
[ "$(cd d && echo p-*)" = 'p-00001-of-00002.colibri p-00002-of-00002.colibri p-00002-of-00003.colibri p-00003-of-00003.colibri' ] ||
    fail "pieces: $(ls -A d)"
rm d/p-*-of-00003.colibri
printf old >d/p-00001-of-00002.colibri
run 0 "$c" pack "$tiny" d/p.colibri --split 16M --force
[ ! -s "$WORK/err" ] || fail "a needless warning: $(cat "$WORK/err")"
run 0 "$c" pack --verify d/p-00001-of-00002.colibri
[ "$(ls -A d)" = "$(printf '%s\n' p-00001-of-00002.colibri p-00002-of-00002.colibri tiny.colibri)" ] || fail "left behind: $(ls -A d)"
rm d/p-*
# A split source becomes one file.
if [ -e "$SOURCE_DIR/tests/data/gguf/split-00001-of-00003.gguf" ]; then
    run 0 "$c" pack "$SOURCE_DIR/tests/data/gguf/split-00001-of-00003.gguf" d/joined.colibri --verify
    rm -f d/joined.colibri
fi

# Refusals.
refuse 2 'd/tiny.colibri exists already' "$c" pack "$tiny" d/tiny.colibri
refuse 2 'd/tiny.colibri is packed already' "$c" pack d/tiny.colibri d/x.colibri
refuse 2 'is not a packed file' "$c" pack --verify "$tiny"
refuse 2 'where to?' "$c" pack "$tiny"
refuse 2 'which file?' "$c" pack
refuse 2 'go with packing' "$c" pack --verify --force d/tiny.colibri
refuse 3 'cannot open nowhere.gguf' "$c" pack nowhere.gguf d/x.colibri
refuse 3 'cannot create a file beside nowhere/x.colibri' "$c" pack "$tiny" nowhere/x.colibri
cp "$tiny" own.gguf
refuse 2 'own.gguf is the model to be packed' "$c" pack own.gguf own.gguf --force
cmp "$tiny" own.gguf || fail 'the source was changed'
run 0 "$c" pack "$tiny" d/tiny.colibri --force

# Damage: every bad block is named, and the model is refused.
at=$("$c" inspect d/tiny.colibri --tensors | awk '$NF == "blk.0.attn_q.weight" { print $(NF - 2) }')
cp d/tiny.colibri bad.colibri
flip bad.colibri "$((at + 1000))"
size=$(stat -c %s bad.colibri)
flip bad.colibri "$((size - 70000))"
run 5 "$c" pack --verify bad.colibri
out "bad.colibri: blk.0.attn_q.weight, block at byte $at: does not match its checksum"
[ "$(wc -l <"$WORK/out")" = 2 ] || fail "two blocks are bad, but: $(cat "$WORK/out")"
err 'bad.colibri: 2 blocks are damaged'
refuse 5 'tensor "blk.0.attn_q.weight": the block at byte' "$c" run -m bad.colibri --raw -n 1 x
head -c "$((size / 2))" d/tiny.colibri >cut.colibri
for command in 'pack --verify' 'inspect' 'run -n 1 --raw x -m'; do
    # shellcheck disable=SC2086
    refuse 5 'the file ends at byte' "$c" $command cut.colibri
done
cp d/tiny.colibri bad.colibri
flip bad.colibri 2000
run 5 "$c" inspect bad.colibri

# No room: a limit on file sizes, and a file system that is too small.
(failures=0; ulimit -f 4096 && refuse 4 'cannot write' "$c" pack "$tiny" d/x.colibri && exit "$failures") || fail 'a limit on file sizes'
[ "$(ls -A d)" = tiny.colibri ] || fail "left behind: $(ls -A d)"
mkdir small
if mount -t tmpfs -o size=8m none small 2>/dev/null; then
    refuse 4 'needs 20.4 MiB, but its file system has 8.0 MiB free' "$c" pack "$tiny" small/x.colibri
    [ -z "$(ls -A small)" ] || fail "left behind: $(ls -A small)"
    umount small
else
    echo 'not tested: a full file system (mounting one needs more rights)'
fi

# Interrupted: nothing is left, neither half a file nor a temporary one. The source is large enough to be caught at it.
python3 - "$tiny" big.gguf 2>/dev/null <<'PY' || echo 'not tested: interruption (no python3)'
import struct, sys
out = open(sys.argv[2], "wb")
rows, cols, n = 4096, 4096, 24
text = lambda s: struct.pack("<Q", len(s)) + s
head = b"GGUF" + struct.pack("<IQQ", 3, n, 1) + text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama")
size = rows * cols // 32 * 34
for i in range(n):
    head += text(b"t%d" % i) + struct.pack("<IQQIQ", 2, cols, rows, 8, i * size)
out.write(head + b"\0" * (-len(head) % 32))
out.truncate(out.tell() + n * size)
PY
if [ -s big.gguf ]; then
    for signal in TERM INT; do
        for delay in 0.02 0.1 0.3; do
            "$c" pack big.gguf d/big.colibri >"$WORK/out" 2>"$WORK/err" &
            pid=$!
            sleep "$delay"
            kill -s "$signal" "$pid" 2>/dev/null
            wait "$pid"
            code=$?
            if [ "$code" = 0 ]; then
                rm d/big.colibri # it was faster
            else
                [ "$code" = 130 ] || grep -q 'interrupted' "$WORK/err" || [ "$code" = $((128 + 15)) ] ||
                    fail "$signal after $delay s: code $code, $(cat "$WORK/err")"
            fi
            [ "$(ls -A d)" = tiny.colibri ] || fail "$signal after $delay s leaves $(ls -A d)"
        done
    done
fi
finish
