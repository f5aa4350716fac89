#!/usr/bin/env bash
# Types of the KV cache from the command line: what is planned, what results say of them, when logits must be equal, refusals.
. "$(dirname "$0")/lib.sh"
MODEL=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
TEXT=$SOURCE_DIR/tests/data/text/devils-dictionary.txt
c=$COLIBRI
export XDG_CACHE_HOME=$WORK/cache
head -c 3000 "$TEXT" >"$WORK/text"

# the plan: fewer bytes, and the window beside them
plan() { run 0 "$c" plan -m "$MODEL" --ctx 2048 --batch 64 -t 2 --no-measure "$@"; }
plan --json
cp "$WORK/out" "$WORK/f16"
plan --json --kv-type-k q8_0 --kv-type-v q4_0 --kv-recent 32
cp "$WORK/out" "$WORK/small"
plan --json --kv-type q4_0 --kv-recent 0
python3 - "$WORK/f16" "$WORK/small" "$WORK/out" <<'PY' || fail "JSON of plan"
import json, sys
f16, small, least = (json.load(open(n)) for n in sys.argv[1:])
rows = 5 * 2  # layers, KV heads; 64 elements each
def pages(o): return o["plan"]["kv_bytes"] - o["kv"]["recent_bytes"]
assert pages(f16) == 2048 * rows * 256 and f16["kv"]["recent_bytes"] == 0 and f16["kv"]["recent"] == 0
assert pages(small) == 2048 * rows * (68 + 36) and small["kv"]["bytes_per_position"] == rows * (68 + 36)
# 32 + 31 positions and the 64 rows of a pass, in pages of 32, one more because the window may begin inside one
assert small["kv"]["recent_bytes"] == 5 * 32 * rows * 256, small["kv"]
assert (small["kv"]["type_k"], small["kv"]["type_v"]) == ("q8_0", "q4_0")
assert (small["kv"]["turn_k"], small["kv"]["turn_v"]) == (False, True)
assert pages(least) == least["plan"]["kv_bytes"] == 2048 * rows * 72
PY
plan --kv-type q8_0
out "KV cache, 2048 tokens, q8_0 "
out "its last 64 tokens, and chunks of 64, in f16"

# results say what they were computed with, and whether it is lossy
perplexity() { run 0 "$c" perplexity -m "$MODEL" -f "$WORK/text" --ctx 256 -t 2 "$@"; }
perplexity
grep -q lossy "$WORK/out" && fail "f16 is called lossy: $(cat "$WORK/out")"
perplexity --kv-type q4_0 --kv-recent 0
out "lossy: KV cache in q4_0 turned"
perplexity --kv-type-v q8_0 --json
python3 - "$WORK/out" <<'PY' || fail "JSON of perplexity: $(cat "$WORK/out")"
import json, sys
o = json.load(open(sys.argv[1]))
assert o["kv_lossy"] is True and o["kv_types"] == "k f16, v q8_0, last 64 f16" and 1 < o["perplexity"] < 1000
PY
run 0 "$c" run -m "$MODEL" --raw -n 4 -t 2 --kv-type q8_0 --json "The cat"
python3 - "$WORK/out" <<'PY' || fail "JSON of run: $(cat "$WORK/out")"
import json, sys
def find(o, key):
    if isinstance(o, dict):
        return o[key] if key in o else next((f for v in o.values() if (f := find(v, key)) is not None), None)
kv = find(json.load(open(sys.argv[1])), "kv")
assert kv["types"] == "q8_0, last 64 f16" and kv["lossy"] is True, kv
PY
run 0 "$c" run -m "$MODEL" --raw -n 4 -t 2 --stats --kv-type q8_0 --kv-recent 0 "The cat"
err "kv        q8_0, strategy full"

# compare: equal types must give equal logits, whatever the chunks; other types are measured
printf '%s\n' '{"prompt": "The king said unto the people of the land"}' '{"prompt": "Die Datei"}' >"$WORK/p.jsonl"
compare() { run 0 "$c" compare -m "$MODEL" -t 2 -f "$WORK/p.jsonl" -n 12 --rounds 1 --ignore-eos --json "$@"; }
json() {
    python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
assert eval(sys.argv[2]), d["equality"]' "$WORK/out" "$1" || fail "JSON of compare: $1"
}
compare --kv-type q4_0 --kv-recent 16 --b batch=3,kv-block-size=16
json 'd["equality"]["demanded"] and d["equality"]["pairs"] == d["equality"]["equal_pairs"] == 2'
compare --b kv-type-v=q4_0,kv-recent=0
json 'not d["equality"]["demanded"] and "KV cache" in d["equality"]["lossy"]'

# refusals name the setting
refuse 2 "--kv-recent 20: must be a multiple of 16" "$c" run -m "$MODEL" --kv-type q8_0 --kv-recent 20 -n 1 x
refuse 2 "--kv-block-size 40: must be a multiple of 16" "$c" run -m "$MODEL" --kv-block-size 40 -n 1 x
finish
