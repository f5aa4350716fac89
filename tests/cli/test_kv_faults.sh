#!/usr/bin/env bash
# slow
# KV strategies that answer badly: each answer is caught, reported once, replaced, and the text goes on.
. "$(dirname "$0")/lib.sh"
c=$COLIBRI
bad=$BINARY_DIR/tests/plugins-bad
for name in kv_faults kv_tables; do
    [ -e "$bad/$name.so" ] || { echo "the plugin $name is not built"; exit 77; }
    mkdir -p "$WORK/$name" && install -m 755 "$bad/$name.so" "$WORK/$name/$name.so"
done
MODEL=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
N=150
ask() { # STRATEGY FLAG...
    COLIBRI_PLUGIN_PATH=$WORK/kv_faults "$c" run -m "$MODEL" --raw --temperature 0 -n $N --ignore-eos --kv-budget 48 --batch 16 \
        --kv-block-size 16 --kv-protect 6 --threads 2 --json --kv-strategy "$@" "In the beginning God created the heaven and the earth."
}

# caught STRATEGY TEXT: exit 0, all tokens, one line that says what was wrong, in JSON how often; the budget holds all the same.
caught() {
    run 0 ask "$1" || return
    [ "$(grep -c misbehaved "$WORK/err")" = 1 ] || fail "$1: $(grep -c misbehaved "$WORK/err") reports: $(cat "$WORK/err")"
    grep -q "plugin test.kv-faults .*${1%%:*} misbehaved: .*$2" "$WORK/err" || fail "$1 said '$(cat "$WORK/err")', not '$2'"
    figures 1 || fail "$1: $(tail -c 700 "$WORK/out")"
}
# figures BAD: whether answers were replaced; all tokens were made, and at most budget + a page are kept (all by a strategy that
# picks pages).
figures() {
    python3 - "$WORK/out" "$1" $N <<'PY'
import json, sys
o = json.load(open(sys.argv[1]))
kv = o["stats"]["kv"]
assert len(o["tokens"]) == int(sys.argv[3]), len(o["tokens"])
assert (kv["bad_answers"] > 0) == (sys.argv[2] == "1"), kv
assert kv["lossy"] is True, kv
assert kv["retained_max"] <= 64 or kv["evicted"] == 0 and kv["chain"] == "bad-pages", kv
assert kv["evicted"] > 0 or kv["chain"] == "bad-pages", kv
PY
}

caught bad-select:fault=0 'an error'
caught bad-select:fault=1 'no position'
caught bad-select:fault=2 'more positions than allowed'
caught bad-select:fault=3 'protected'
caught bad-select:fault=4 'newest'
caught bad-select:fault=5 'beyond the last'
caught bad-select:fault=6 'neither 0 nor 1'
caught bad-select:fault=7 'two seconds'
caught bad-select:fault=8 'an error' # it looked for what it had not asked for
caught bad-score:fault=0 'not a number'
caught bad-score:fault=1 'not a number'
caught bad-score:fault=2 'beyond the last'
caught bad-budget:fault=1 'two seconds'
for fault in 0 1 2 3; do
    caught bad-allot:fault=$fault allot
    caught bad-merge:fault=$fault merge
done
# A strategy that is broken for good is not asked for ever: what replaces it is the same whatever it would have said.
run 0 ask bad-select:fault=0 && cp "$WORK/out" "$WORK/first.json"
python3 - "$WORK/first.json" <<'PY' || fail "a broken strategy was asked again and again"
import json, sys
kv = json.load(open(sys.argv[1]))["stats"]["kv"]
assert kv["bad_answers"] == 8, kv
PY
# Rows that are not there read as zeros; good answers stay unremarked.
run 0 ask bad-reader:fault=9 && figures 0 || fail "bad-reader: $(cat "$WORK/err")"
grep -q misbehaved "$WORK/err" && fail "bad-reader is reported: $(cat "$WORK/err")"

# Budgets that are others at each call: whatever comes is kept to.
run 0 ask bad-budget:fault=0 && figures 0 || fail "bad-budget: $(cat "$WORK/err")"

# picking pages
for fault in '0 error' '1 page' '2 more' '3 neither'; do
    caught "bad-pages:fault=${fault% *}" "${fault#* }"
done

# instances that cannot be made
refuse 2 'KV strategy bad-create: xxxx' ask bad-create
refuse 2 'KV strategy bad-silence: refused without a reason' ask bad-silence

# a parameter that the plugin does not have, or not so
refuse 2 "has no parameter 'fualt'; did you mean 'fault'" ask bad-select:fualt=1
refuse 2 'out of range' ask bad-select:fault=99

# tables: each mistake is named when plugins are checked, the good one of the same plugin still serves
run 0 env COLIBRI_PLUGIN_PATH="$WORK/kv_tables" "$c" run -m "$MODEL" --raw -n 4 --kv-strategy t-good --kv-budget 48 x
for text in 'it evicts but has no trigger' 'select and score are both NULL' 'triggers 0x8, some of which do not exist' \
    'flags 0x10, some of which do not exist' 'window_w is 0' \
    'needs keys or values, which is about single heads' 'needs score, and no select' 'has allot, which is about single heads' \
    'pick_pages drops nothing, so it must declare KEEPS_ALL' 'no gaps to compact' 'PAGE_MINMAX is for' 'a wrapper cannot declare'; do
    err "$text"
done
finish
