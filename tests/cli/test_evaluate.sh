#!/bin/bash
# colibri evaluate: agrees with colibri perplexity and with arithmetic done elsewhere; tables, lines, JSON; refusals; stopping.
. "$(dirname "$0")/lib.sh"
c=$COLIBRI
command -v python3 >/dev/null || skip "python3 is needed to make and look into results"
cd "$WORK" || exit 1
model=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
head -c 12000 "$SOURCE_DIR/tests/data/tiny-moe/prose.txt" >held.txt
head -2 "$SOURCE_DIR/examples/evaluate/recall.jsonl" >recall.jsonl
sed -n '26,27p;51p' "$SOURCE_DIR/examples/evaluate/recall.jsonl" >>recall.jsonl
echo "The king said unto the people of the land that the road was long." >filler.txt
cat >pass.json <<'JSON'
{"filler": "filler.txt", "needle": " The key is {key}. ", "question": "What is the key?", "answer_prefix": " The key is",
 "lengths": [96, 160], "depths": [0, 100], "repeats": 1, "seed": 2}
JSON
eval=("$c" evaluate -m "$model" --threads 1 --ctx 1024 --chunk 32 --raw --seed 3)

# ---- the model itself: the perplexity of the command that measures only that ----
run 0 "${eval[@]}" --task text=held.txt --text-tokens 256 --json && cp out alone.json
run 0 "$c" perplexity -m "$model" --threads 1 --ctx 256 -f held.txt --json && cp out perplexity.json
python3 - <<'PY' || fail "perplexities differ"
import json
a, p = json.load(open("alone.json")), json.load(open("perplexity.json"))
r = a["results"][0]
assert a["full_cache_only"] and a["schema"] == "colibri-evaluate/1" and not a["interrupted"]
assert r["pieces"] == p["chunks"] > 5 and r["scored_tokens"] == p["scored_tokens"]
assert abs(r["perplexity_full"]["value"] / p["perplexity"] - 1) < 1e-9, (r, p)
assert "kl" not in r and "perplexity_configured" not in r
PY

# ---- a strategy on all kinds of tasks; what is printed follows from the lines ----
tasks=(--task text=held.txt --task recall=recall.jsonl --task passkey=pass.json --text-tokens 256)
run 0 "${eval[@]}" "${tasks[@]}" --kv-strategy sliding-window --budget 25% --kv-block-size 16 --jsonl lines.jsonl --json &&
    cp out all.json
python3 - <<'PY' || fail "the summary does not follow from the lines"
import json, math
lines = [json.loads(l) for l in open("lines.jsonl")]
d = json.load(open("all.json"))
head, items = lines[0], lines[1:]
assert head["record"] == "header" and head["kv"]["strategy"] == "sliding-window" and head["kv"]["budget"] == "25%"
assert head["model_hash"].startswith("xxh3:") and "sliding-window=xxh3:" in head["kv"]["plugins"] and head["seed"] == 3
assert d["items"] == d["of"] == len(items) and {k: v for k, v in d["run"].items() if k != "date"} == {
    k: v for k, v in head.items() if k != "date"}
by = {r["task"]: r for r in d["results"]}
def mean(x): return sum(x) / len(x)
def se(x):
    m = mean(x)
    return math.sqrt(sum((v - m) ** 2 for v in x) / (len(x) * (len(x) - 1)))
def near(a, b): assert abs(a - b) <= 1e-9 * (1 + abs(b)), (a, b)

t, text = by["held.txt"], [i for i in items if i["task"] == "held.txt"]
full = [i["full"]["nll_sum"] / i["full"]["scored_tokens"] for i in text]
own = [i["configured"]["nll_sum"] / i["configured"]["scored_tokens"] for i in text]
near(t["perplexity_full"]["value"], math.exp(mean(full)))
near(t["perplexity_configured"]["value"], math.exp(mean(own)))
near(t["perplexity_configured"]["se"], math.exp(mean(own)) * se(own))
diff = [b - a for a, b in zip(full, own)]
near(t["perplexity_ratio"]["value"], math.exp(mean(diff)))
near(t["perplexity_ratio"]["se"], math.exp(mean(diff)) * se(diff))
kl = [i["configured"]["kl_mean"] for i in text]
near(t["kl"]["value"], mean(kl))
near(t["kl"]["se"], se(kl))
near(t["kl"]["max"], max(i["configured"]["kl_max"] for i in text))
near(t["same_top"]["value"], mean([i["configured"]["same_top"] for i in text]))
near(t["delta_p_rms"]["value"], math.sqrt(mean([i["configured"]["delta_p_rms"] ** 2 for i in text])))
assert t["kl"]["max"] >= t["kl"]["99.9%"] >= t["kl"]["99%"] >= t["kl"]["90%"] >= t["kl"]["median"] >= t["kl"]["10%"] >= 0
assert t["kl"]["value"] > 1e-4 and t["perplexity_ratio"]["low"] <= t["perplexity_ratio"]["value"] <= t["perplexity_ratio"]["high"]
assert "kl_mean" not in text[0]["full"]

r, recall = by["recall.jsonl"], [i for i in items if i["task"] == "recall.jsonl"]
exact = [i["full"]["exact_match"] for i in recall]
m = r["metrics"]["exact_match"]
near(m["full"]["value"], mean(exact))
z, n, p = 1.959963984540054, len(exact), mean(exact) / 100
middle, half = (p + z * z / 2 / n) / (1 + z * z / n), z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / 4 / n / n)
near(m["full"]["low"], 100 * (middle - half))
near(m["full"]["high"], min(100, 100 * (middle + half)))
near(m["difference"]["value"], mean([i["configured"]["exact_match"] - i["full"]["exact_match"] for i in recall]))
def wilson(p, n):
    z = 1.959963984540054
    middle, half = (p + z * z / 2 / n) / (1 + z * z / n), z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / 4 / n / n)
    return max(0, middle - half), min(1, middle + half)
def newcombe(a, b, c, d):  # both right, the first, the second, neither: method 10 of his paper of 1998
    n = a + b + c + d
    p, q = (a + b) / n, (a + c) / n
    (pl, pu), (ql, qu), cross = wilson(p, n), wilson(q, n), a * d - b * c
    cross = max(cross - n / 2, 0) if cross > 0 else cross
    phi = cross / (n * n * math.sqrt(p * (1 - p) * q * (1 - q))) if 0 < p < 1 and 0 < q < 1 else 0
    return (p - q - math.sqrt((p - pl) ** 2 - 2 * phi * (p - pl) * (qu - q) + (qu - q) ** 2),
            p - q + math.sqrt((pu - p) ** 2 - 2 * phi * (pu - p) * (q - ql) + (q - ql) ** 2))
for g in [r] + r["groups"]:
    m = g["metrics"].get("exact_match", {"full": {"n": 0}})
    of = [i for i in recall if g is r or (i["group"] == g["group"] and g["kind"] in (None, i.get("kind")))]
    both = [(i["configured"]["exact_match"] > 0, i["full"]["exact_match"] > 0) for i in of]
    assert len(both) == m["full"]["n"]
    if len(both) > 1:
        low, high = newcombe(*(both.count(x) for x in ((True, True), (True, False), (False, True), (False, False))))
        assert abs(m["difference"]["low"] - 100 * low) < 1e-5 and abs(m["difference"]["high"] - 100 * high) < 1e-5, (m, low, high)
        assert m["difference"]["high"] - m["difference"]["low"] > 10  # never nothing, whatever agrees
assert {g["group"] for g in r["groups"]} == {"200", "500", "1000"}
assert {g["kind"] for g in r["groups"]} == {None, "password", "secret code"}
kept = [i["configured"]["retained"] for i in items]
assert max(kept) < 55 and all(i["full"]["retained"] == 100 for i in items)
assert all(i["configured"]["kv_bytes"] < i["full"]["kv_bytes"] for i in items)
needles = [i for i in items if i["task"] == "pass.json"]
assert len(needles) == 4 and all("generated" in i["full"] and len(i["key"]) == 5 for i in needles)
PY
run 0 "${eval[@]}" "${tasks[@]}" --kv-strategy sliding-window --kv-budget 40 --items 2
out "configured: sliding-window at 40" && out "KL divergence, mean" && out "right tokens" && out "found of all 2" &&
    out "  99.9 %"
# Everything kept is no distance away; the future is known here.
run 0 "${eval[@]}" --task text=held.txt --text-tokens 256 --items 2 --kv-strategy h2o --budget 100% --json
python3 -c 'import json, sys
r = json.load(open(sys.argv[1]))["results"][0]
assert r["kl"]["max"] < 1e-12 and r["same_top"]["value"] == 100, r' "$WORK/out" || fail "a budget of all"
run 0 "${eval[@]}" --task text=held.txt --text-tokens 256 --items 2 --kv-strategy oracle --budget 25%

# ---- modes: the full cache says the same; what acts on generated tokens shows only where there are some ----
run 0 "${eval[@]}" --task text=held.txt --task text:decode=held.txt --task recall:ask-later=recall.jsonl --text-tokens 256 --items 2 \
    --kv-strategy quest --budget 25% --json
python3 - out <<'PY' || fail "modes"
import json, sys
t = {r["task"]: r for r in json.load(open(sys.argv[1]))["results"]}
a, b = t["held.txt"], t["held.txt (decode)"]
assert a["perplexity_full"] == b["perplexity_full"] and a["kl"]["max"] < 1e-12 < 1e-6 < b["kl"]["max"]
assert "decode_tokens_per_second" in b["metrics"] and "recall.jsonl (ask-later)" in t
PY

# ---- types: against a full F16 cache, in the same process ----
run 0 "${eval[@]}" --task text=held.txt --text-tokens 256 --kv-type q8_0 --kv-recent 0 --json && cp out q8.json
run 0 "${eval[@]}" --task text=held.txt --text-tokens 256 --kv-type q4_0 --kv-recent 0 --json && cp out q4.json
python3 - <<'PY' || fail "quantized types"
import json
a, q8, q4 = (json.load(open(f))["results"][0] for f in ("alone.json", "q8.json", "q4.json"))
assert a["perplexity_full"] == q8["perplexity_full"] == q4["perplexity_full"]  # the same bits
assert 0 < q8["kl"]["value"] < q4["kl"]["value"] < 0.1, (q8["kl"], q4["kl"])
assert q4["metrics"]["kv_bytes"]["configured"]["value"] < q8["metrics"]["kv_bytes"]["configured"]["value"] < \
    q8["metrics"]["kv_bytes"]["full"]["value"]
PY

# ---- what is refused ----
text=(--task text=held.txt --text-tokens 256)
refuse 2 "nothing to evaluate on" "${eval[@]}"
refuse 2 "must be text=FILE, recall=FILE or passkey=FILE" "${eval[@]}" --task words=held.txt
refuse 2 "how much may the KV strategy h2o keep" "${eval[@]}" "${text[@]}" --kv-strategy h2o
refuse 2 "keeps everything" "${eval[@]}" "${text[@]}" --budget 25%
refuse 2 "exclude each other" "${eval[@]}" "${text[@]}" --kv-strategy h2o --kv-budget 40 --budget 25%
for bad in 0 101% -3 2.5 x 25%% ""; do
    refuse 2 "--budget" "${eval[@]}" "${text[@]}" --kv-strategy h2o --budget "$bad"
done
refuse 2 "--text-tokens 1:" "${eval[@]}" --task text=held.txt --text-tokens 1
refuse 2 "recall.jsonl is given twice" "${eval[@]}" --task recall=recall.jsonl --task recall=recall.jsonl
{ head -1 recall.jsonl; head -1 recall.jsonl; } >twice.jsonl
refuse 5 "twice.jsonl: the id 200-001 is there twice" "${eval[@]}" --task recall=twice.jsonl
sed 's/100\]/"100"]/' pass.json >bad.json
refuse 5 "depths per cent" "${eval[@]}" --task passkey=bad.json
sed 's/"repeats": 1/"repeats": "2"/' pass.json >bad.json
refuse 5 "are whole numbers" "${eval[@]}" --task passkey=bad.json
sed 's/"seed": 2/"seed": 0.5/' pass.json >bad.json
refuse 5 "are whole numbers" "${eval[@]}" --task passkey=bad.json
{ echo '{"text": "too short", "id": "s"}'; python3 -c 'import json; print(json.dumps({"text": open("held.txt").read()}))'; } >texts.jsonl
run 0 "${eval[@]}" --task text=texts.jsonl --text-tokens 256 --items 1 && err "texts.jsonl: 1 texts have less than 256 tokens"
refuse 2 "--text-tokens 3" "${eval[@]}" --task text=held.txt --text-tokens 3
refuse 2 "--text-tokens 2000" "${eval[@]}" --task text=held.txt --text-tokens 2000
refuse 2 "--chunk 600" "$c" evaluate -m "$model" "${text[@]}" --chunk 600
refuse 2 "lines.jsonl exists: --force replaces it" "${eval[@]}" "${text[@]}" --jsonl lines.jsonl
refuse 3 "cannot open none" "${eval[@]}" --task text=none
echo '{"prompt": "x"}' >bad.jsonl
refuse 5 'bad.jsonl, line 1: needs "prompt" and "answer"' "${eval[@]}" --task recall=bad.jsonl
run 0 "${eval[@]}" "${text[@]}" --items 1 --jsonl lines.jsonl --force && [ "$(wc -l <lines.jsonl)" = 2 ] || fail "--force"

# ---- stopping: what is complete is printed ----
for i in 1 2 3 4 5 6; do cat "$SOURCE_DIR/tests/data/tiny-moe/prose.txt"; done >long.txt
"${eval[@]}" --task text=long.txt --text-tokens 512 --jsonl stop.jsonl >stop.txt 2>stop.err &
pid=$!
for _ in $(seq 300); do
    [ "$(cat stop.jsonl 2>/dev/null | wc -l)" -ge 4 ] && break
    sleep 0.1
done
kill -TERM $pid # the shell lets its children ignore SIGINT
code=0
wait $pid || code=$?
[ "$code" = 130 ] || fail "stopped with $code: $(cat stop.err)"
grep -q "stopped on request after" stop.err && grep -q "^stopped after [0-9]* of" stop.txt && grep -q "perplexity" stop.txt ||
    fail "a stopped run: $(cat stop.txt stop.err)"
python3 -c 'import json, sys
n = sum(json.loads(l)["record"] == "item" for l in open("stop.jsonl"))
assert "stopped after %d of" % n in open("stop.txt").read()' || fail "lines of a stopped run"
finish
