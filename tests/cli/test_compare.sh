#!/bin/bash
# colibri compare: sides, orders, cache states, equality, lossy settings, the gate, interruption, and what it refuses.
. "$(dirname "$0")/lib.sh"
c=$COLIBRI
model=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
json() {
    command -v python3 >/dev/null || return 0
    python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
assert eval(sys.argv[2]), {k: d[k] for k in d if k != "runs"}' "$WORK/out" "$1" 2>"$WORK/json.err" ||
        fail "JSON: $1: $(tail -c 900 "$WORK/json.err")"
}
printf '%s\n' '{"id": "one", "topic": "x", "prompt": "The king said unto the people of the land"}' \
    '{"id": "two", "topic": "y", "prompt": "int main(void)\n{", "raw": true}' '' '{"prompt": "Die Datei"}' >"$WORK/p.jsonl"
compare=("$c" compare -m "$model" --threads 2 -f "$WORK/p.jsonl" -n 12 --ignore-eos)

# Both engines open, cold: A B, B A, A B, and the other way round in the second round.
run 0 "${compare[@]}" --expert-slots 40 --a expert-policy=lru --b expert-policy=lfu,store.expert-slots=80 --json
json 'd["schema"] == "colibri-compare/1" and d["order"] == "together" and d["cache"] == "cold"'
json '"".join(r["side"] for r in d["runs"]) == "abbaab" + "baabba"'
json '[r["prompt"] for r in d["runs"][::2]] == ["one", "two", "3"] * 2'
json '[r["second"] for r in d["runs"]] == [False, True] * 6'
json '{x["setting"]: (x["a"], x["b"]) for x in d["differences"]} == {"store.expert-slots": ("40", "80"), "store.expert-policy": ("lru", "lfu")}'
json '(d["a"]["slots"], d["b"]["slots"], d["a"]["policy"], d["b"]["policy"]) == (40, 80, "lru", "lfu")'
json 'd["a"]["budget_bytes"] == d["b"]["budget_bytes"]'
json 'd["equality"]["demanded"] and d["equality"]["pairs"] == d["equality"]["equal_pairs"] == 6'
json 'all(len(r["tokens"]) == len(r["token_ns"]) == 12 for r in d["runs"])'
json 'len({(r["prompt"], tuple(r["tokens"]), r["last_logits_hash"]) for r in d["runs"]}) == 3'
json 'all(len({(r["in_prompt"]["hits"], r["in_generation"]["hits"]) for r in d["runs"] if (r["side"], r["prompt"]) == (s, p)}) == 1 for s in "ab" for p in ("one", "two", "3"))'
json '[r for r in d["results"] if r["metric"] == "hit_rate"][0]["verdict"] == "win"'
json 'len(d["warnings"]) == 1 and "fewer than 6 prompts" in d["warnings"][0]'
json '{r["metric"] for r in d["results"]} >= {"decode_tokens_per_second", "first_token_ms", "latency_p50_ms", "latency_p99_ms", "mib_read_per_token"}'

# One engine at a time: the same tokens, in blocks; and a warm cache hits more.
cp "$WORK/out" "$WORK/together"
run 0 "${compare[@]}" --expert-slots 40 --a expert-policy=lru --b expert-policy=lfu,store.expert-slots=80 --in-turn --json
json '"".join(r["side"] for r in d["runs"]) == "aaabbb" + "bbbaaa" and d["order"] == "in-turn"'
json 'd["equality"]["equal_pairs"] == 6'
json '(lambda o: sorted((r["side"], r["prompt"], r["round"], r["in_generation"]["hits"], r["last_logits_hash"]) for r in d["runs"]) == sorted((r["side"], r["prompt"], r["round"], r["in_generation"]["hits"], r["last_logits_hash"]) for r in o["runs"]))(json.load(open("'"$WORK/together"'")))'
run 0 "${compare[@]}" --expert-slots 120 --b '' --warm --json
json 'd["cache"] == "warm" and d["differences"] == []'
hits='sum(r["in_prompt"]["hits"] for r in d["runs"])'
cp "$WORK/out" "$WORK/warm"
json 'len({r["last_logits_hash"] for r in d["runs"]}) == 3'
run 0 "${compare[@]}" --expert-slots 120 --b '' --reset-cache --json
json "(lambda cold, d: $hits > 1.5 * cold)($hits, json.load(open('$WORK/warm')))"
# A budget that does not hold both decides by itself; --together overrules it.
run 0 "${compare[@]}" --ctx 128 --batch 16 --expert-slots 60 --b '' --rounds 1 --json
budget=$(python3 -c 'import json, sys
print((json.load(open(sys.argv[1]))["a"]["planned_bytes"] >> 20) + 7)' "$WORK/out" 2>/dev/null)
if [ -n "$budget" ]; then
    small=(--max-memory "${budget}M" --ctx 128 --batch 16 --rounds 1 --json)
    run 0 "${compare[@]}" "${small[@]}" --b expert-policy=lfu
    json 'd["order"] == "in-turn" and d["equality"]["equal_pairs"] == 3'
    json '["--rounds 2 helps" in w for w in d["warnings"]] == [False, True]'
    run 0 "${compare[@]}" "${small[@]}" --b expert-policy=lfu --together
    # Each has the whole budget; two policies keep state of different sizes, so one may have a slot more. (How many slots that
    # are depends on the size of the process, which sanitizers change from run to run.)
    json 'd["order"] == "together" and abs(d["a"]["slots"] - d["b"]["slots"]) <= 1'
fi

# The report for people; threads and kernels are settings like others.
run 0 "${compare[@]}" --a threads=1 --b cpu-mask=all --rounds 1
for text in 'cpu.threads' 'cpu.mask' 'equal bit by bit in 3 of 3 pairs' 'generation, tok/s' 'would have shown' '95 % interval'; do
    out "$text"
done
grep -v 'warning: no plugin' "$WORK/err" && fail "something on stderr"
head -c 300 "$SOURCE_DIR/README.md" >"$WORK/readme.txt"
run 0 "${compare[@]}" --b 'kv-strategy=sliding-window,kv-budget=32,kv-block-size=16' -f "$WORK/readme.txt" --rounds 1
out '4 prompts, 1 round,'
out 'With fewer than 6 prompts intervals are too narrow'
out 'lossy (B: KV strategy sliding-window evicts)'
out 'nats; same best token'
run 0 "${compare[@]}" --b kv-type=f32 --rounds 1 --json
json 'not d["equality"]["demanded"] and d["equality"]["logits"]["steps"] == 39 and 0 < d["equality"]["logits"]["kl_mean"] < 0.1'
json 'd["equality"]["logits"]["same_top"] > 0.8 and len({tuple(r["tokens"]) for r in d["runs"]}) == 3'
run 0 "${compare[@]}" --a kv-type=f32 --b kv-type=f32,expert-slots=30 --rounds 1 --json
json 'd["equality"]["demanded"] and d["equality"]["equal_pairs"] == 3'

# Commas inside of values.
run 0 "${compare[@]}" --a cpu-mask=avx512f,avxvnni,threads=1,expert-policy=lru --b expert-policy=frequency-weighted:half-life=64,threads=1 --rounds 1 --json
json '{x["setting"]: (x["a"], x["b"]) for x in d["differences"]} == {"cpu.mask": ("avx512f,avxvnni", ""), "store.expert-policy": ("lru", "frequency-weighted"), "expert-policy.frequency-weighted.half-life": ("default", "64")}'
json 'd["a"]["threads"] == d["b"]["threads"] == 1'

# Other weights are found, by position, with exit code 1 and the report all the same.
cp "$model" "$WORK/other.gguf"
for at in $(seq 100 200 20000); do
    printf '\x11\x11' | dd of="$WORK/other.gguf" bs=1 seek=$(($(stat -c %s "$model") - at * 1000)) conv=notrunc status=none
done
run 1 "${compare[@]}" --b "model=$WORK/other.gguf" --rounds 1
err 'A and B must give equal logits, and do not: prompt'
out 'A AND B DIFFER'

# The gate, with a difference that no noise hides: kernels against the scalar reference, where there are kernels.
if "$c" plugins list 2>/dev/null | grep -q 'kernels-'; then
    # Three prompts do not pass, however large the difference is.
    run 1 "${compare[@]}" --a cpu-mask=all --b threads=2 --gate --rounds 2
    err '--gate: 3 prompts are too few to judge by: give at least 6'
    out 'NOT passed: too few prompts'
    for id in four five six; do
        printf '{"id": "%s", "prompt": "The number %s is written here"}\n' $id $id
    done >"$WORK/more.jsonl"
    compare+=(-f "$WORK/more.jsonl")
    run 1 "${compare[@]}" --a threads=2 --b cpu-mask=all --gate
    err '--gate: B does not pass'
    out 'NOT passed'
    # A machine with other work may still fail the gate by its latencies: then it must say so.
    code=0
    "${compare[@]}" --a cpu-mask=all --b threads=2 --gate --json >"$WORK/out" 2>"$WORK/err" || code=$?
    json 'd["gate"]["gain"] > 1.03 and d["gate"]["gain_b_first"] > 1.03'
    json "d['gate']['passed'] == ($code == 0) and d['gate']['prompts'] == 6 and d['warnings'] == []"
fi

# Stopped: what is complete is printed.
code=0
timeout --foreground --preserve-status -s TERM 4 "${compare[@]}" --b threads=1 --rounds 1000 --json >"$WORK/out" 2>"$WORK/err" || code=$?
[ "$code" = 130 ] || fail "SIGTERM gave $code: $(cat "$WORK/err")"
json 'd["interrupted"] and d["equality"]["pairs"] > 0 and len(d["results"]) > 0'
err 'stopped on request after'

refuse 2 'nothing to compare' "${compare[@]}"
refuse 2 "did you mean 'store.expert-policy'?" "${compare[@]}" --b expert-polcy=lru
refuse 2 'write key=value' "${compare[@]}" --b lru
refuse 2 "cpu.threads: '1,lru' is not a whole number" "${compare[@]}" --b threads=1,lru
refuse 2 "did you mean 'cpu.threads'?" "${compare[@]}" --b expert-policy=lru,thread=1
refuse 2 'both sides need the same prompts and sampling' "${compare[@]}" --a seed=3
refuse 2 "does not apply to 'compare'" "${compare[@]}" --b predict=3
refuse 2 "has no parameter 'foo'" "${compare[@]}" --b expert-policy=frequency-weighted:half-life=64,foo=3
refuse 2 'exclude each other' "${compare[@]}" --b threads=1 --warm --reset-cache
refuse 2 'exclude each other' "${compare[@]}" --b threads=1 --together --in-turn
refuse 2 'between 1 and' "${compare[@]}" --b threads=1 --rounds 0
refuse 3 'cannot open' "${compare[@]}" --b model="$WORK/none.gguf"
refuse 8 'the context of 20 is too small' "${compare[@]}" --b ctx-size=20
refuse 3 'cannot open' "$c" compare -m "$model" --b threads=1 -f "$WORK/none"
echo '{"prompt": 3}' >"$WORK/bad.jsonl"
refuse 5 'bad.jsonl:1: "prompt" must be a string' "$c" compare -m "$model" --b threads=1 -f "$WORK/bad.jsonl"
echo '{"prompt": "x", "topik": "y"}' >"$WORK/bad.jsonl"
refuse 5 'unknown key "topik"' "$c" compare -m "$model" --b threads=1 -f "$WORK/bad.jsonl"
: >"$WORK/empty"
refuse 2 'the prompt is empty' "$c" compare -m "$model" --b threads=1 -f "$WORK/empty"
finish
