#!/usr/bin/env bash
# The prompt cache from run to run: the same text and tokens with it as without, whatever happened to the folder.
. "$(dirname "$0")/lib.sh"
c=$COLIBRI
MODEL=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
D=$WORK/cache
text=$(for i in $(seq 12); do echo -n "In the beginning God created the heaven and the earth, day $i. "; done)
ask() { "$c" run -m "$MODEL" --raw --temperature 0 --ignore-eos --threads 1 -n 8 --json "$@" "$text"; }
is() { # is EXPRESSION: of the last run; s: where its tokens came from, want: the tokens of a run without a cache
    python3 -c "import json, sys
o = json.load(open(sys.argv[1])); s = o['stats']['kv']['sharing']; want = json.load(open(sys.argv[2]))['tokens']
d = s['tokens_prompt_cache']
assert o['tokens'] == want, 'other tokens'
assert $1, s" "$WORK/out" "$WORK/plain.json" || fail "$1: $(head -c 300 "$WORK/err")"
}
warnings() { [ "$(grep -c 'prompt cache' "$WORK/err")" = "$1" ] || fail "not $1 warnings: $(cat "$WORK/err")"; }
blocks() { find "$D" -name '*.kv1' | sort; }

run 0 ask && cp "$WORK/out" "$WORK/plain.json"
run 0 ask --prompt-cache "$D" && is 'd == 0'
n=$(blocks | wc -l)
[ "$n" -ge 4 ] || fail "$n blocks for a long prompt"
[ "$(stat -c %a "$D")" = 700 ] || fail "others may enter the folder"
[ -z "$(find "$D" -type f -not -perm 600)" ] || fail "others may read the files"
run 0 ask --prompt-cache "$D" && is 'd >= 96' && warnings 0
all=$(python3 -c "import json; print(json.load(open('$WORK/out'))['stats']['kv']['sharing']['tokens_prompt_cache'])")

# ---- what decides the bytes is part of the key ------------------------------------------------------------------------------
run 0 ask --prompt-cache "$D" --kv-block-size 16 && is 'd == 0'
run 0 "$c" run -m "$MODEL" --raw --temperature 0 -n 2 --json --kv-type f32 --prompt-cache "$D" "$text"
grep -q '"tokens_prompt_cache": *0' "$WORK/out" || fail "blocks of f16 were read as f32"
cp "$MODEL" "$WORK/other.gguf"
python3 - "$WORK/other.gguf" <<'PY'
import os, sys
with open(sys.argv[1], "r+b") as f: # one weight in the middle of the last tensors
    f.seek(-4096, os.SEEK_END); b = f.read(1); f.seek(-4096, os.SEEK_END); f.write(bytes([b[0] ^ 1]))
PY
run 0 "$c" run -m "$WORK/other.gguf" --raw --temperature 0 -n 2 --json --prompt-cache "$D" "$text"
grep -q '"tokens_prompt_cache": *0' "$WORK/out" || fail "another model's blocks were used"
refuse 2 "kv-share" ask --prompt-cache "$D" --kv-share=no
(cd "$WORK" && refuse 2 'not expanded here' ask --prompt-cache='~/cache' && [ ! -e "$WORK/~" ]) || fail "a folder called ~"
run 0 ask --prompt-cache "$WORK/none" --kv-strategy h2o --kv-budget 64 && warnings 1 && err 'h2o wants to see every token computed'
run 0 ask --prompt-cache "$WORK/some" --kv-strategy sliding-window --kv-budget 300 && warnings 0
[ "$(find "$WORK/none" -type f | wc -l)" = 0 ] && [ "$(find "$WORK/some" -type f | wc -l)" != 0 ] || fail "who shares"

# ---- quantized types, whose last positions are f16 ------------------------------------------------------------------------
cp "$WORK/plain.json" "$WORK/f16.json"
run 0 ask --kv-type q8_0 && cp "$WORK/out" "$WORK/plain.json"
run 0 ask --kv-type q8_0 --prompt-cache "$D/q8" && is 'd == 0 and s["windows"] == s["blocks"] > 0 and s["bytes_windows"] > 0'
run 0 ask --kv-type q8_0 --prompt-cache "$D/q8" && is "d == $all" && warnings 0
run 0 ask --kv-type q8_0 --kv-recent 32 --prompt-cache "$D/q8" && grep -q '"tokens_prompt_cache": *0' "$WORK/out" ||
    fail "another window's blocks were used"
cp "$WORK/f16.json" "$WORK/plain.json"

# ---- damage ---------------------------------------------------------------------------------------------------------------
rm -rf "$D"
run 0 ask --prompt-cache "$D"
for f in $(blocks); do # one byte in each
    python3 -c "
import sys
with open(sys.argv[1], 'r+b') as f:
    f.seek(3000); b = f.read(1); f.seek(3000); f.write(bytes([b[0] ^ 16]))" "$f"
done
run 0 ask --prompt-cache "$D" && is 'd == 0' && warnings 1
run 0 ask --prompt-cache "$D" && is "d == $all" && warnings 0
for f in $(blocks); do truncate -s 2000 "$f"; done
run 0 ask --prompt-cache "$D" && is 'd == 0' && warnings 1
run 0 ask --prompt-cache "$D" && is "d == $all"
for f in $(blocks); do echo "something else" >"$f"; done
run 0 ask --prompt-cache "$D" && is 'd == 0' && warnings 1
[ "$(blocks | wc -l)" -ge 1 ] && grep -q "something else" "$(blocks | head -n 1)" || fail "a file of somebody else is gone"

# ---- limits, full and unusable folders ------------------------------------------------------------------------------------
rm -rf "$D"
run 0 ask --prompt-cache "$D"
one=$(stat -c %s "$(blocks | head -n 1)")
limit=$((3 * (one + 4096)))
run 0 ask --prompt-cache "$D" --prompt-cache-size $limit && is 'd > 0'
[ "$(blocks | xargs cat | wc -c)" -le $limit ] || fail "the folder is larger than its limit"
rm -rf "$D"
(ulimit -f 16 && ask --prompt-cache "$D" >"$WORK/small" 2>"$WORK/err") || fail "a full drive ended the run"
warnings 1
[ "$(find "$D" -type f | wc -l)" = 0 ] || fail "rests of files after a full drive"
run 0 ask --prompt-cache /proc/nothing && is 'd == 0' && warnings 1
mkdir -m 777 "$WORK/open" && run 0 ask --prompt-cache "$WORK/open" && is 'd == 0' && warnings 1
if [ "$(id -u)" != 0 ]; then # root writes anyway
    run 0 ask --prompt-cache "$D" && chmod 500 "$D"
    run 0 ask --prompt-cache "$D" && is "d == $all" && warnings 0
    chmod 700 "$D" && blocks | tail -n +2 | xargs rm && chmod 500 "$D"
    run 0 ask --prompt-cache "$D" && is 'd <= 32' && warnings 1
    chmod 700 "$D"
fi

# ---- several at once, and killed ones -------------------------------------------------------------------------------------
rm -rf "$D"
for i in 1 2 3; do ask --prompt-cache "$D" --prompt-cache-size $((5 * (one + 4096))) >"$WORK/c$i" 2>"$WORK/e$i" & done
wait
for i in 1 2 3; do
    cp "$WORK/c$i" "$WORK/out" && cp "$WORK/e$i" "$WORK/err" && is 'd >= 0' && warnings 0
done
rm -rf "$D"
for t in 0.02 0.05 0.08 0.12 0.2; do timeout -s KILL $t "$c" run -m "$MODEL" --raw -n 60 --prompt-cache "$D" "$text" >/dev/null 2>&1 & wait $!; done 2>/dev/null
run 0 ask --prompt-cache "$D" && is 'd >= 0' && warnings 0
[ -z "$(find "$D" -name '*.tmp-*')" ] || fail "rests of killed runs stay"
run 0 ask --prompt-cache "$D" && is "d == $all"
finish
