#!/usr/bin/env bash
# colibri plan: the same plan as run makes, budgets to compare, rates that are remembered, JSON, refusals; profiles.
. "$(dirname "$0")/lib.sh"
MODEL=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
DENSE=$SOURCE_DIR/tests/data/arch/llama3.gguf
c=$COLIBRI
export XDG_CACHE_HOME=$WORK/cache
# The least that runs; a sanitizer's runtime belongs to the process.
least=$("$c" plan -m "$MODEL" --ctx 2048 --batch 64 -t 2 --no-measure --max-memory 1M 2>&1 | sed -n 's/.*would fit: --max-memory \([0-9]*\)M.*/\1/p')
[ -n "$least" ] || fail "no budget is advised"
two=$((least + 2))M four=$((least + 4))M six=$((least + 6))M
plan() { run 0 "$c" plan -m "$MODEL" --ctx 2048 --batch 64 -t 2 "$@"; }

# what is there, and that the parts add up
plan --max-memory "$four"
out "weights of the model"
out "expert slots"
out "predicted speed"
out "why: a token"
plan --max-memory "$four" --json
cp "$WORK/out" "$WORK/plan.json"
python3 - "$WORK/plan.json" "${four%M}" <<'PY' || fail "JSON of plan: $(cat "$WORK/out")"
import json, sys
o = json.load(open(sys.argv[1]))
p = o["plan"]
parts = ("process", "embedding", "dense", "stream", "expert_slot", "kv", "kv_strategy", "buffer", "read_buffer")
assert sum(p[f"{k}_bytes"] for k in parts) == p["total_bytes"] <= p["budget_bytes"] == int(sys.argv[2]) << 20
assert 0 < p["expert_slots"] < p["experts"] == 160 and not p["all_experts"]
d = o["prediction"]["decode"]
assert 0 < d["low"]["tokens_per_second"] <= d["high"]["tokens_per_second"]
assert 0 < d["low"]["hit_rate"] < d["high"]["hit_rate"] < 1
assert abs(d["low"]["drive_bytes"] - d["expert_uses"] * (1 - d["low"]["hit_rate"]) * d["bytes_per_use"]) < 1
assert d["low"]["milliseconds"] >= d["dense_milliseconds"] + d["kv_milliseconds"]
roles = {w["role"] for w in o["weights"]}
assert {"experts", "attention", "router", "norms and biases"} <= roles, roles
assert {w["type"] for w in o["weights"] if w["role"] == "experts"} == {"Q4_K", "Q6_K"}
assert o["rates"]["kernels"] and o["what_if"] == [] and o["hit_rates"] == "assumed"
PY

# rates are remembered, asked for again, or done without
[ -s "$WORK/cache/colibri/rates" ] || fail "no rates were remembered"
grep -q '^kernel ' "$WORK/cache/colibri/rates" || fail "no kernel in $(cat "$WORK/cache/colibri/rates")"
plan --max-memory "$four" --no-measure
out "(remembered)"
grep -q 'measured now' "$WORK/out" && fail "--no-measure measured: $(cat "$WORK/out")"
plan --max-memory "$four" --measure-again
out "(measured now)"
before=$(cat "$WORK/cache/colibri/rates")
plan --max-memory "$four" --no-measure --json
[ "$before" = "$(cat "$WORK/cache/colibri/rates")" ] || fail "--no-measure changed the file of rates"
echo nonsense >"$WORK/cache/colibri/rates"
plan --max-memory "$four" --no-measure
out "(assumed)"
XDG_CACHE_HOME=$WORK/other run 0 "$c" plan -m "$MODEL" --set kernels.cache-file=none --max-memory 1G
[ -e "$WORK/other" ] && fail "kernels.cache-file=none left files behind"
refuse 2 "exclude each other" "$c" plan -m "$MODEL" --no-measure --measure-again

# run plans the same, and --stats has both sides
run 0 "$c" run -m "$MODEL" --ctx 2048 --batch 64 -t 2 --max-memory "$four" --temperature 0 -n 4 --json --raw hello
python3 - "$WORK/out" "$WORK/plan.json" <<'PY' || fail "run and plan differ"
import json, sys
run, plan = (json.load(open(f)) for f in sys.argv[1:3])
assert abs(run["stats"]["experts"]["slots"] - plan["plan"]["expert_slots"]) <= 8, "slots" # the process is a few pages larger or smaller
assert run["stats"]["plan"]["peak_rss_bytes"] > 0 and run["stats"]["plan"]["planned_bytes"] <= run["stats"]["plan"]["budget_bytes"]
PY
plan --max-memory "$four"
run 0 "$c" run -m "$MODEL" --ctx 2048 --batch 64 -t 2 --max-memory "$four" --temperature 0 -n 4 --stats --raw hello
err "planned "
# like with like: the prediction is of generation, and so are the hits beside it
generated=$(sed -n 's/.*generating \([0-9.]*\) %).*/\1/p' "$WORK/err")
were=$(sed -n 's/^predicted .*; hits generating .*, were \([0-9]*\) %$/\1/p' "$WORK/err")
[ -n "$generated" ] && [ "$(printf %.0f "$generated")" = "$were" ] || fail "hits '$generated', beside the prediction '$were': $(cat "$WORK/err")"

# budgets to compare: more memory is never predicted slower, what does not fit says why
plan --what-if "1M,$two,$six,1G"
out "does not fit: the model needs at least"
out "100.0 %"
plan --what-if "1M,$two,$four,$six,1G" --json
python3 - "$WORK/out" <<'PY' || fail "JSON of --what-if: $(cat "$WORK/out")"
import json, sys
rows = json.load(open(sys.argv[1]))["what_if"]
assert [r["fits"] for r in rows] == [False, True, True, True, True]
assert "would fit: --max-memory" in rows[0]["reason"]
for a, b in zip(rows[1:], rows[2:]):
    assert a["plan"]["expert_slots"] <= b["plan"]["expert_slots"]
    for phase in ("decode", "prefill"):
        assert a["prediction"][phase]["high"]["tokens_per_second"] <= b["prediction"][phase]["high"]["tokens_per_second"] * 1.001
assert rows[-1]["plan"]["all_experts"]
PY
for bad in "" 8G, ,8G 8G,x 8X 0 "8G 9G"; do
    run 2 "$c" plan -m "$MODEL" --what-if "$bad" --no-measure
    err "--what-if"
done

# hit rates of a trace: one number instead of a range
plan --max-memory "$four" --trace "$SOURCE_DIR/examples/traces/tiny-moe.clbt" --json
python3 - "$WORK/out" <<'PY' || fail "JSON with --trace: $(cat "$WORK/out")"
import json, sys
o = json.load(open(sys.argv[1]))
d = o["prediction"]["decode"]
assert o["hit_rates"].endswith("tiny-moe.clbt") and 0 < d["low"]["hit_rate"] == d["high"]["hit_rate"] < 1
PY
run 2 "$c" plan -m "$SOURCE_DIR/tests/data/arch/olmoe.gguf" --trace "$SOURCE_DIR/examples/traces/tiny-moe.clbt"
err "recorded from a model with"

# a packed model used in place in the file: nothing is copied, neither in the plan nor when it runs
run 0 "$c" pack "$MODEL" "$WORK/packed.colibri"
run 0 "$c" plan -m "$WORK/packed.colibri" --no-measure --store-mode mmap --max-memory 1G --json
cp "$WORK/out" "$WORK/mapped.json"
run 0 "$c" run -m "$WORK/packed.colibri" --store-mode mmap --max-memory 1G --temperature 0 -n 2 --json --raw hello
python3 - "$WORK/mapped.json" "$WORK/out" <<'PY' || fail "a packed model in mmap mode: $(cat "$WORK/mapped.json")"
import json, sys
p, run = (json.load(open(f)) for f in sys.argv[1:3])
weights = {w["role"]: 0 for w in p["weights"]}
for w in p["weights"]:
    weights[w["role"]] += w["bytes"]
p = p["plan"]
assert p["expert_slots"] == p["expert_slot_bytes"] == 0 and p["all_experts"]
assert p["mapped_bytes"] >= weights["experts"] + weights["attention"]
assert run["stats"]["experts"]["slots"] == 0, run["stats"]["experts"]
PY

# refusals are those of run
run 7 "$c" plan -m "$MODEL" --max-memory 1M --no-measure
err "would fit: --max-memory"
refuse 2 "the model has no experts" "$c" plan -m "$DENSE" --expert-slots 4
refuse 2 "the model has no experts" "$c" plan -m "$DENSE" --trace "$WORK/none"
refuse 3 "--trace" "$c" plan -m "$MODEL" --trace "$WORK/none"
refuse 2 "layers" "$c" plan -m "$DENSE" --resident-layers 1000
refuse 2 "does not apply" "$c" plan -m "$DENSE" --resident-layers 1 --store-mode mmap
run 0 "$c" plan -m "$DENSE" --no-measure --resident-layers 1
out "slots for streamed layers"
out "read for every token"

# the process's own limits are kept
if grep -q __asan_ "$c" || grep -q __tsan_ "$c"; then
    echo "skipped: ulimit -v (a sanitizer reserves more)"
else
    (ulimit -v 2000000 && "$c" plan -m "$MODEL" --no-measure --max-memory 64G -t 1 >"$WORK/out" 2>"$WORK/err" </dev/null) ||
        fail "with ulimit -v: $(cat "$WORK/err")"
    out "the limit of address space (ulimit -v)"
fi

# profiles: named, explained, overruled
for p in saver balanced speed; do
    run 0 "$c" run -m "$MODEL" --profile $p --print-config
    grep -qE "^memory-share = [0-9]+ ; .*/profiles/$p.ini:[0-9]+$" "$WORK/out" || fail "$p: $(grep memory-share "$WORK/out")"
    run 0 "$c" config check "$SOURCE_DIR/examples/ini/profiles/$p.ini"
    run 0 "$c" run -m "$MODEL" --profile $p --temperature 0 -n 4 --raw hello
    cp "$WORK/out" "$WORK/text.$p"
    cmp -s "$WORK/text.$p" "$WORK/text.saver" || fail "$p: other text"
done
run 0 "$c" run -m "$MODEL" --profile saver --batch 32 --print-config
grep -q '^batch = 32 ; --batch$' "$WORK/out" || fail "a flag does not overrule a profile: $(grep batch "$WORK/out")"
printf '[model]\nbatch = 48\n' >"$WORK/my.ini"
run 0 "$c" run -m "$MODEL" --profile saver --config "$WORK/my.ini" --print-config
grep -q "^batch = 48 ; $WORK/my.ini:2$" "$WORK/out" || fail "--config does not overrule a profile: $(grep batch "$WORK/out")"
mkdir -p "$XDG_CONFIG_HOME/colibri/profiles"
printf '[model]\nbatch = 16\n' >"$XDG_CONFIG_HOME/colibri/profiles/mine.ini"
printf '[model]\nbatch = 24\n' >"$XDG_CONFIG_HOME/colibri/profiles/saver.ini"
run 0 "$c" run -m "$MODEL" --profile mine --print-config
grep -q '^batch = 16 ; ' "$WORK/out" || fail "a profile of the user: $(grep batch "$WORK/out")"
run 0 "$c" run -m "$MODEL" --profile saver --print-config
grep -q '^batch = 24 ; ' "$WORK/out" || fail "the user's profile does not come first: $(grep batch "$WORK/out")"
refuse 3 "did you mean 'speed'? (there are balanced, mine, saver, speed)" "$c" plan -m "$MODEL" --profile sped
refuse 2 "not a path" "$c" plan -m "$MODEL" --profile ./saver.ini
refuse 2 "given twice" "$c" plan -m "$MODEL" --profile saver --profile speed
finish
