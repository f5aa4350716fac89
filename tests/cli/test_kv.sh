#!/usr/bin/env bash
# KV strategies from the command line: chains of them, positions, protected starts, what happens when the context is full.
. "$(dirname "$0")/lib.sh"
c=$COLIBRI
MODEL=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
prompt="In the beginning God created the heaven and the earth."
ask() { "$c" run -m "$MODEL" --raw --temperature 0 --ignore-eos --threads 2 "$@" "$prompt"; }
kv() { # kv EXPRESSION: of the last run's JSON, o is all of it, kv the figures of the cache
    python3 -c "import json, sys
o = json.load(open(sys.argv[1])); kv = o['stats']['kv']
assert $1, (o['finish_reason'], len(o['tokens']), kv)" "$WORK/out" || fail "$1"
}

# ---- chains ---------------------------------------------------------------------------------------------------------------
run 0 ask -n 150 --kv-budget 48 --json --kv-strategy ada:floor=0.5/snapkv:window=16
kv 'kv["strategy"] == "ada:floor=0.5/snapkv:window=16" and kv["chain"] == "ada/snapkv" and kv["lossy"] and kv["evicted"] > 0'
kv 'kv["positions"] == "original" and kv["budget"] == 48'
cp "$WORK/out" "$WORK/flag.json"
# the same from a file
cat >"$WORK/kv.ini" <<'INI'
[kv]
kv-strategy = ada/snapkv
kv-budget = 48
[kv-strategy.ada]
floor = 0.5
[kv-strategy.snapkv]
window = 16
INI
run 0 ask -n 150 --json --config "$WORK/kv.ini"
python3 - "$WORK/flag.json" "$WORK/out" <<'PY' || fail "a chain from a file gives other figures than from a flag"
import json, sys
a, b = (json.load(open(f)) for f in sys.argv[1:])
assert a["tokens"] == b["tokens"] and a["stats"]["kv"] == b["stats"]["kv"], (a["stats"]["kv"], b["stats"]["kv"])
PY
run 0 ask -n 100 --kv-budget 48 --kv-strategy pyramid/block/chunk/h2o --stats # four are allowed
err "retention pyramid/block/chunk/h2o, positions original, keeps 48"
refuse 2 "'ada' wraps another strategy: name it behind a '/'" ask --kv-strategy ada
refuse 2 "'h2o' wraps nothing, so nothing can stand behind it" ask --kv-strategy h2o/tova
refuse 2 "'ada' is in the chain twice" ask --kv-strategy ada/ada/h2o
refuse 2 "'h2o' would be strategy number 5" ask --kv-strategy ada/pyramid/block/chunk/h2o
refuse 2 "lacks a name beside a '/'" ask --kv-strategy ada//h2o
refuse 2 "lacks a name beside a '/'" ask --kv-strategy /h2o
refuse 3 "did you mean 'snapkv'?" ask --kv-strategy ada/snapvk
refuse 2 "did you mean 'window'?" ask --kv-strategy ada/snapkv:windo=8
refuse 2 "'x' is not key=value" ask --kv-strategy ada/snapkv:x
refuse 2 "cannot wrap sliding-window" ask --kv-strategy ada/sliding-window --kv-budget 48

# ---- what goes together ---------------------------------------------------------------------------------------------------
refuse 2 "--kv-budget does not apply" ask --kv-budget 48
refuse 2 "--kv-positions does not apply" ask --kv-positions compact
refuse 2 "--context-shift does not apply" ask --kv-strategy h2o --context-shift
refuse 2 "leave nothing of the KV budget" ask --kv-strategy h2o --kv-budget 48 --kv-protect 48
run 0 ask -n 20 --kv-strategy quest --kv-budget 48 --json # a budget of attention
kv 'kv["evicted"] == 0 and kv["lossy"] and kv["budget"] == 48'
run 0 ask -n 120 --kv-strategy sliding-window --kv-budget 48 --kv-positions compact --kv-protect 7 --json
kv 'kv["positions"] == "compact" and kv["protected"] == 7'

# a share of the context is so many positions, from a flag, a file and the environment
run 0 ask -n 150 -c 384 --kv-budget 48 --kv-strategy h2o --json
cp "$WORK/out" "$WORK/number.json"
printf '[kv]\nkv-budget = 12.5%%\nkv-strategy = h2o\n' >"$WORK/share.ini"
for how in "--kv-budget 12.5% --kv-strategy h2o" "--config $WORK/share.ini" "--set kv.kv-budget=12.5% --kv-strategy h2o"; do
    run 0 ask -n 150 -c 384 $how --json
    kv 'kv["budget"] == 48'
    python3 - "$WORK/number.json" "$WORK/out" <<'PY' || fail "$how gives other figures than 48 positions of 384"
import json, sys
a, b = (json.load(open(f)) for f in sys.argv[1:])
assert a["tokens"] == b["tokens"] and a["stats"]["kv"] == b["stats"]["kv"], (a["stats"]["kv"], b["stats"]["kv"])
PY
done
run 0 env COLIBRI_KV_BUDGET=12.5% "$c" run -m "$MODEL" --raw --temperature 0 -n 4 -c 384 --kv-strategy h2o --stats "$prompt"
err "keeps 48 of 384 per layer and head"
run 0 "$c" config list --set kv.kv-budget=25%
out "kv-budget = 25% ; --set"
refuse 2 "--kv-budget: '0%' is out of range: a share is more than 0% and at most 100%" ask --kv-strategy h2o --kv-budget 0%
refuse 2 "--kv-budget: '101%' is out of range" ask --kv-strategy h2o --kv-budget 101%
refuse 2 "--kv-budget: '25 %' is neither a whole number nor a share, as 25%" ask --kv-strategy h2o --kv-budget "25 %"
refuse 2 "--kv-budget: '2.5' is neither" ask --kv-strategy h2o --kv-budget 2.5
refuse 2 "--kv-budget does not apply" ask --kv-budget 25%
refuse 2 "exceed the budget of 1;" ask -c 384 --kv-strategy streaming --kv-budget 0.1%

# ---- the context is full --------------------------------------------------------------------------------------------------
refuse 8 "tokens, the context holds 8: raise --ctx or choose a --kv-strategy that evicts" ask -c 8
run 0 ask -c 64 -n 200 --json
kv 'o["finish_reason"] == "context" and len(o["tokens"]) + o["usage"]["prompt_tokens"] == 65 and not kv["lossy"]'
run 0 ask -c 64 -n 200 && err "the context of 64 tokens is full"
run 0 ask -c 64 -n 200 --context-shift --kv-protect 6 --json
kv 'o["finish_reason"] == "length" and len(o["tokens"]) == 200 and kv["lossy"] and kv["protected"] == 6'
kv 'kv["context_shifts"] >= 4 and kv["tokens_dropped"] == kv["context_shifts"] * 29 and kv["seen"] <= 64'
[ "$(grep -c 'dropped 29 tokens after the first 6' "$WORK/err")" = 1 ] || fail "not one warning: $(cat "$WORK/err")"
run 0 ask -c 64 -n 200 --context-shift --stats
err "context   shifted"

# Four contexts under a strategy: constant memory.
for n in 64 1000; do
    run 0 ask -c 256 --kv-strategy h2o --kv-budget 64 -n $n --json
    cp "$WORK/out" "$WORK/$n.json"
done
python3 - "$WORK/64.json" "$WORK/1000.json" <<'PY' || fail "memory grows with the text"
import json, sys
a, b = (json.load(open(f)) for f in sys.argv[1:])
assert len(b["tokens"]) == 1000 and b["finish_reason"] == "length"
ka, kb = a["stats"]["kv"], b["stats"]["kv"]
assert kb["bytes"] <= ka["bytes"] * 1.35 and kb["retained_max"] <= 64 + 32, (ka, kb)
rss = [o["stats"]["plan"]["peak_rss_bytes"] for o in (a, b)]
assert rss[1] < rss[0] + (2 << 20), rss
PY

# ---- conversations --------------------------------------------------------------------------------------------------------
for i in 1 2 3 4 5 6; do echo "Tell me story number $i about the sea and the land"; done >"$WORK/turns"
"$c" chat -m "$MODEL" -c 160 -n 40 --context-shift --system "You are kind." <"$WORK/turns" >"$WORK/out" 2>"$WORK/err" || fail "chat: $(cat "$WORK/err")"
err "forgot"
"$c" chat -m "$MODEL" -c 160 -n 40 --system "You are kind." <"$WORK/turns" >"$WORK/out" 2>"$WORK/err" && fail "a conversation outgrew its context unnoticed"
"$c" chat -m "$MODEL" -n 40 --kv-strategy important-tokens --kv-budget 64 --system "You are kind." <"$WORK/turns" >"$WORK/out" 2>"$WORK/err" ||
    fail "chat with a strategy: $(cat "$WORK/err")"
run 0 "$c" run -m "$MODEL" --temperature 0 -n 60 --ignore-eos --kv-strategy streaming --kv-budget 48 --system "You are kind." --json "Hello there, who are you and what do you do all day long?"
kv '4 <= kv["protected"] <= 20'
refuse 8 "the system prompt has" "$c" run -m "$MODEL" --kv-strategy streaming --kv-budget 48 --system "$(seq 1 60)" hello
finish
