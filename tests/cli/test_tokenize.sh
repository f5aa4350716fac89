#!/usr/bin/env bash
# colibri tokenize: ids, tables, JSON, decoding, input from files and pipes, refusals.
. "$(dirname "$0")/lib.sh"
MODEL=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
[ -f "$MODEL" ] || skip "no $MODEL"
tokenize() {
    local code=$1
    shift
    run "$code" "$COLIBRI" tokenize -m "$MODEL" "$@"
}
same() { # same WANT: stdout is exactly this and a line end
    [ "$(cat "$WORK/out"; echo x)" = "$1"$'\n'x ] || fail "stdout is '$(cat "$WORK/out")', not '$1'"
}

tokenize 0 "Hello world"
same $'      72  "H"\n     304  "el"\n     361  "lo"\n    2885  " world"\n4 tokens'
tokenize 0 --ids "Hello world"
same "72 304 361 2885"
tokenize 0 --count "Hello world"
same 4
tokenize 0 --count ""
same 0

# special tokens: text unless asked for
tokenize 0 --ids --special "<|im_start|>user"$'\n'"hi<|im_end|>"
same "4094 2371 10 104 105 4095"
tokenize 0 --count "<|im_end|>"
same 7
tokenize 0 --special "<|im_end|>"
out '    4095  <|im_end|>'
tokenize 0 --ids --chat "hi"
same "4094 2371 10 104 105 4095 10 4094 474 344 535 10"
tokenize 0 --count --chat "<|im_end|>"
same 17 # the mark in the message stays text

# JSON
tokenize 0 --json "Größe"
"${PYTHON:-python3}" - "$WORK/out" <<'EOF' || fail "JSON of tokenize"
import json, sys
d = json.load(open(sys.argv[1]))
assert d["count"] == len(d["tokens"])
whole = b"".join(bytes(t["bytes"]) if "bytes" in t else t["piece"].encode() for t in d["tokens"])
assert whole == "Größe".encode(), whole
EOF
tokenize 0 --json --special "<|im_end|>"
out '"control": true'

# control characters never reach the output raw
tokenize 0 $'a\tb\x1b[31m'
out '\t'
out '\x1b'
LC_ALL=C grep -q $'\x1b' "$WORK/out" && fail "an escape character in the table"

# the way back
tokenize 0 --decode 72 304 361 2885
[ "$(cat "$WORK/out")" = "Hello world" ] || fail "decode gives '$(cat "$WORK/out")'"
tokenize 0 --decode "[72, 304,361]  2885"
[ "$(cat "$WORK/out")" = "Hello world" ] || fail "decode of a list gives '$(cat "$WORK/out")'"
tokenize 0 --decode 4094 72
[ "$(cat "$WORK/out")" = "H" ] || fail "decode shows control tokens"
tokenize 0 --decode --special 4094 72
[ "$(cat "$WORK/out")" = "<|im_start|>H" ] || fail "decode --special hides control tokens"
tokenize 0 --decode --json 72 304
out '"text": "Hel"'

# any bytes survive the round trip through files and pipes
head -c 5000 "$MODEL" >"$WORK/bytes"
tokenize 0 --ids --file "$WORK/bytes"
cp "$WORK/out" "$WORK/ids"
tokenize 0 --decode -f "$WORK/ids"
cmp -s "$WORK/out" "$WORK/bytes" || fail "bytes changed on the way through ids"
printf 'Hello world' | "$COLIBRI" tokenize -m "$MODEL" --ids >"$WORK/out" || fail "standard input"
same "72 304 361 2885"
printf '72 304' | "$COLIBRI" tokenize -m "$MODEL" --decode -f - >"$WORK/out" || fail "ids on standard input"
[ "$(cat "$WORK/out")" = "Hel" ] || fail "decode from standard input"

refuse 2 "not a list of token ids: 'x'" "$COLIBRI" tokenize -m "$MODEL" --decode 1 x
refuse 2 "not a list of token ids: '-1'" "$COLIBRI" tokenize -m "$MODEL" --decode -- -1
refuse 2 "token 4096 is outside the vocabulary of 4096" "$COLIBRI" tokenize -m "$MODEL" --decode 4096
refuse 2 "token 99999999999 is outside" "$COLIBRI" tokenize -m "$MODEL" --decode 99999999999
refuse 2 "--decode and --ids do not go together" "$COLIBRI" tokenize -m "$MODEL" --decode --ids 1
refuse 2 "--ids and --json do not go together" "$COLIBRI" tokenize -m "$MODEL" --ids --json a
refuse 2 "put the text in quotes" "$COLIBRI" tokenize -m "$MODEL" two words
refuse 2 "given twice" "$COLIBRI" tokenize -m "$MODEL" -f "$WORK/bytes" text
refuse 2 "which vocabulary?" "$COLIBRI" tokenize text
refuse 3 "cannot open" "$COLIBRI" tokenize -m "$MODEL" -f "$WORK/none"
refuse 3 "none.gguf" "$COLIBRI" tokenize -m "$WORK/none.gguf" text
finish
