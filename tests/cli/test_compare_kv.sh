#!/bin/bash
# colibri compare --strategies: reports over a known grid agree with each other and with arithmetic done elsewhere; damaged
# files; a grid that runs, stops and goes on.
. "$(dirname "$0")/lib.sh"
c=$COLIBRI
command -v python3 >/dev/null || skip "python3 is needed to make and look into results"
cd "$WORK" || exit 1

# ---- a grid whose results are known ----
python3 - >grid.jsonl <<'PY'
import json, math, random
random.seed(4)
evil = '<b>&"x'
settings = [("full", "")] + [(s, b) for s in ("sliding-window", "h2o", evil) for b in ("50%", "25%")]
items = [(f"d{d}-{i}", str(d), d, None) for d in (200, 1000) for i in range(10)]
needles = [(f"{l}-{d}", f"{l} tokens, {d}%", l, d) for l in (512, 1024) for d in (0, 50, 100)]
texts = [(f"t{i}", "prose", None, None) for i in range(8)]
tasks = [("recall", "recall.jsonl", items), ("passkey", "pass<key>", needles), ("text", "held.txt", texts)]
print(json.dumps({"schema": "colibri-compare-kv/1", "record": "header", "date": "2026-01-01",
    "decides": {"model": "m.gguf", "model_hash": "1", "arch": "x", "seed": 7, "chunk": 64, "see_question": False},
    "machine": {"cpu": "C", "threads": 1, "version": "0"},
    "strategies": [{"strategy": s, "budget": b, "positions": "", "code": ""} for s, b in settings],
    "tasks": [{"kind": k, "name": n, "path": n, "hash": "h", "items": [
        {"id": i, "group": g, "length": l, "depth": d} for i, g, l, d in its]} for k, n, its in tasks]}))
for k, n, its in tasks:
    for i, g, l, d in its:
        base = random.random()
        for s, b in settings:
            share = float(b[:-1]) / 100 if b else 1
            good = {"full": 1, "h2o": .9, "sliding-window": .5, evil: .1}[s]
            v = {"retained": 100 * share, "kv_bytes": 10 * share, "kv_bytes_peak": 12 * share,
                 "decode_tokens_per_second": 100 / share, "prompt_tokens_per_second": 400, "attention_ms": share}
            if k == "text":
                v.update(perplexity=math.exp(2 + base + (1 - good) * (1.5 - share) + .01 * random.random()), kl_mean=1 - good,
                         kl_p99=2, kl_median=.1, kl_max=3, same_top=100 * good)
            else:
                v.update(exact_match=100.0 * (random.random() < good), token_accuracy=100 * good)
            bad = {"bad_answers": 8} if s == evil and b == "25%" and k == "text" and i != "t7" else {}
            print(json.dumps({"record": "result", "strategy": s, "budget": b, "positions": "", "task": n, "item": i, "values": v} | bad))
print(json.dumps({"record": "raster", "strategy": "h2o", "budget": "25%", "positions": "", "task": "recall.jsonl", "item": "d1000-0",
    "positions_shown": 100, "rows": [{"seen": 50, "share": "zz09..." }, {"seen": 100, "share": "z0009zz"}]}))
PY
run 0 "$c" compare --from grid.jsonl && out "sliding-window" && out "would have shown" && out "minus full" && out "238 of 238 results"

run 0 "$c" compare --from grid.jsonl && out 'Warning: <b>&"x at 25% answered badly in 7 of 34 items'
[ "$(grep -c Warning "$WORK/out")" = 1 ] || fail "warnings: $(grep Warning "$WORK/out")"
run 0 "$c" compare --from grid.jsonl --markdown && out '| strategy | budget |' && out '\<b\>&"x' &&
    out 'Warning:** \<b\>&"x at 25% answered badly in 7 of 34 items'
run 0 "$c" compare --from grid.jsonl --json --html page.html
cp "$WORK/out" all.json
python3 - <<'PY' || fail "the JSON does not follow from the results"
import json, math
lines = [json.loads(l) for l in open("grid.jsonl")]
d = json.load(open("all.json"))
values = {}
for r in lines[1:]:
    if r["record"] == "result":
        values.setdefault((r["strategy"], r["budget"], r["task"]), {})[r["item"]] = r["values"]
assert d["schema"] == "colibri-compare-kv/1" and d["results"] == 7 * 34 and d["baseline"] == "full"
assert len(d["cells"]) == 7 * 3
assert d["replaced"] == [{"strategy": '<b>&"x', "budget": "25%", "positions": "", "bad_answers": 56, "items": 7, "of": 34}]
for c in d["cells"]:
    v = values[c["strategy"], c["budget"], c["task"]]
    full = values["full", "", c["task"]]
    m = c["metrics"][c["main_metric"]]
    log = c["main_metric"] == "perplexity"
    x = [i[c["main_metric"]] for i in v.values()]
    mean = math.exp(sum(map(math.log, x)) / len(x)) if log else sum(x) / len(x)
    assert abs(m["value"] - mean) < 1e-9 * (1 + mean), (m, mean)
    assert m["n"] == len(x) and m["low"] <= m["value"] <= m["high"]
    if c["strategy"] == "full":
        assert "against_baseline" not in m
        continue
    a = m["against_baseline"]
    y = [full[i][c["main_metric"]] for i in v]
    change = math.exp(sum(math.log(p / q) for p, q in zip(x, y)) / len(x)) if log else sum(p - q for p, q in zip(x, y)) / len(x)
    assert abs(a["change"] - change) < 1e-9 * (1 + abs(change)), (a, change)
    assert a["low"] - 1e-12 <= a["change"] <= a["high"] + 1e-12 and a["p"] <= a["p_holm"] <= 1 and a["n"] == len(x)
    kept = c["metrics"]["retained"]
    assert kept["value"] == float(c["budget"][:-1]) and kept["against_baseline"]["verdict"] == "tie"
    g = {x["group"]: x["result"] for x in c["groups"]}
    if c["task"] == "recall.jsonl":
        assert list(g) == ["200", "1000"] and all(r["n"] == 10 for r in g.values())
        assert abs(sum(r["value"] for r in g.values()) / 2 - mean) < 1e-9
by = {(c["strategy"], c["budget"], c["task"]): c["metrics"] for c in d["cells"]}
evil = '<b>&"x'
assert by[evil, "25%", "held.txt"]["perplexity"]["against_baseline"]["verdict"] == "loss"
assert by[evil, "25%", "recall.jsonl"]["exact_match"]["against_baseline"]["claim"]
assert by["h2o", "25%", "recall.jsonl"]["decode_tokens_per_second"]["against_baseline"]["verdict"] == "win"
# each pair of strategies once per task and budget
assert len(d["pairs"]) == 3 * 2 * 3 and {p["budget"] for p in d["pairs"]} == {"50%", "25%"}
PY
python3 - <<'PY' || fail "the page is not what it should be"
import re, xml.dom.minidom
text = open("page.html").read()
svg, tables = re.findall(r"<svg.*?</svg>", text, re.S), re.findall(r"<table.*?</table>", text, re.S)
for x in svg + tables:
    xml.dom.minidom.parseString(x)
assert len(svg) >= 25 and len(tables) >= 3 * 2 + 3 * 2, (len(svg), len(tables))
assert not re.search(r"https?:|<link|<img|url\(|@import|src=", text.replace('xmlns="http://www.w3.org/2000/svg"', ""))
body = text[text.index("<body>"):]
assert not re.search(r"\b(nan|inf)\b", body), re.search(r".{40}\b(nan|inf)\b", body)
assert "<b>&\"x" not in text and "&lt;b&gt;&amp;&quot;x" in text and "pass<key>" not in text
assert "answered badly in 7 of 34 items" in text
assert text.count("tokens read") == 1 and "Where the needle is found" in text and "by distance" in text
PY
# The tables at a glance say the same as the JSON.
run 0 "$c" compare --from grid.jsonl --markdown
python3 - "$WORK/out" <<'PY' || fail "tables by budget"
import json, sys
text = open(sys.argv[1]).read()
cells = {(c["strategy"], c["budget"], c["task"]): c["metrics"] for c in json.load(open("all.json"))["cells"]}
for task, metric, head in (("recall.jsonl", "exact_match", "exact match, %"), ("held.txt", "perplexity", "perplexity against the baseline")):
    part = text[text.index(task + ": " + head + " by budget"):]
    rows = [[x.strip() for x in l.split("|")[1:-1]] for l in part.split("\n\n")[1].split("\n")]
    assert rows[0] == ["strategy", "all", "50%", "25%"] and [r[0] for r in rows[2:5]] == ["full", "sliding-window", "h2o"], rows[:5]
    for r in rows[3:5]:
        for budget, cell in zip(rows[0][2:], r[2:]):
            m = cells[r[0], budget, task][metric]
            v = m["against_baseline"] if task == "held.txt" else m
            want = ("x%.4f (%.4f to %.4f)" if task == "held.txt" else "%.1f (%.1f to %.1f)") % (
                v["change" if task == "held.txt" else "value"], v["low"], v["high"])
            want += " ~" if m["against_baseline"]["verdict"] == "tie" else ""
            assert cell == want, (r[0], budget, cell, want)
PY
refuse 2 "page.html" "$c" compare --from grid.jsonl --html page.html
run 0 "$c" compare --from grid.jsonl --html page.html --force
# Another baseline; the order in which results came does not matter, nor does reading the same file twice.
run 0 "$c" compare --from grid.jsonl --baseline h2o --json
python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
c = {(c["strategy"], c["budget"], c["task"]): c["metrics"] for c in d["cells"]}
x = c["sliding-window", "25%", "recall.jsonl"]["exact_match"]
assert x["against_baseline"]["change"] == x["value"] - c["h2o", "25%", "recall.jsonl"]["exact_match"]["value"]
assert "against_baseline" not in c["h2o", "25%", "recall.jsonl"]["exact_match"]' "$WORK/out" || fail "another baseline"
{ head -1 grid.jsonl; tail -n +2 grid.jsonl | tac; } >reversed.jsonl
run 0 "$c" compare --from reversed.jsonl --from grid.jsonl --json
python3 -c 'import json, sys
a, b = (json.load(open(f)) for f in sys.argv[1:])
assert a["cells"] == b["cells"] and a["pairs"] == b["pairs"] and b["parts"] == 2' all.json "$WORK/out" ||
    fail "the order of results decides what they say"

# ---- files that are damaged, of something else, or of another run ----
head -c -30 grid.jsonl >torn.jsonl
run 0 "$c" compare --from torn.jsonl && err "is not complete and left out"
refuse 2 "h2p is not among the strategies; did you mean h2o?" "$c" compare --from grid.jsonl --baseline h2p
refuse 2 "--budgets does not go with it" "$c" compare --from grid.jsonl --budgets 50%
refuse 2 "--rounds belongs to comparisons of two settings" "$c" compare --from grid.jsonl --rounds 2
refuse 2 "--budgets belongs to comparisons of KV strategies" "$c" compare -m x --b y --budgets 50%
bad() { # bad TEXT < file: what is wrong is named
    cat >bad.jsonl
    refuse 5 "$1" "$c" compare --from bad.jsonl
}
head -1 grid.jsonl | sed 's/compare-kv.1/compare-kv\/9/' | bad 'schema "colibri-compare-kv/9"'
tail -1 grid.jsonl | bad "the first line is no header"
bad "is empty" </dev/null
{ head -1 grid.jsonl; echo '{"record": "result", "strategy": "h2o"'; } | bad "line 2"
{ head -1 grid.jsonl; echo '{"record": "result", "strategy": "h3o", "budget": "25%", "task": "held.txt", "item": "t0"}'; } |
    bad 'no header names strategy h3o at "25%"'
{ head -1 grid.jsonl; echo '{"record": "result", "strategy": "h2o", "positions": "", "budget": "25%", "task": "held.txt", "item": "t9"}'; } |
    bad "no header names item t9"
{ head -1 grid.jsonl; tail -1 grid.jsonl | sed 's/zz09/zz0/'; } | bad "do not fit together"
{ head -1 grid.jsonl; tail -1 grid.jsonl | sed 's/zz09/zz0!/'; } | bad "unknown levels"
{ head -1 grid.jsonl; echo '[1]'; } | bad 'unknown record ""'
head -1 grid.jsonl | sed 's/"model_hash": "1"/"model_hash": "2"/' >other.jsonl
refuse 2 'its model_hash is "1", not "2"' "$c" compare --from grid.jsonl --from other.jsonl
head -1 grid.jsonl | sed 's/"cpu": "C"/"cpu": "D"/' >other.jsonl
run 0 "$c" compare --from grid.jsonl --from other.jsonl && out "do not compare their speeds"
head -1 grid.jsonl >none.jsonl
refuse 2 "there are no results to report" "$c" compare --from none.jsonl

# ---- a grid that runs ----
model=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
python3 - <<'PY'
import json
with open("recall.jsonl", "w") as f:
    for i in range(4):
        facts = "".join(f"Remember this: the password of the {c} house is {w}.\n" for c, w in (("red", "pepper"), ("old", "butter")))
        filler = "The king said unto the people. " * (5 + 8 * (i % 2))
        f.write(json.dumps({"id": f"r{i}", "distance": 100 * (1 + i % 2), "answer": " pepper",
                            "prompt": facts + filler + "\nRemember this: the password of the red house is"}) + "\n")
open("filler.txt", "w").write("The king said unto the people of the land that the road was long. " * 20)
json.dump({"filler": "filler.txt", "needle": " The key is {key}. ", "question": "What is the key?", "answer_prefix": " The key is",
           "lengths": [96, 160], "depths": [0, 100], "repeats": 1, "seed": 2}, open("pass.json", "w"))
open("held.txt", "w").write("".join(f"The king said unto the people of the {i} lands that the road was long.\n" for i in range(40)))
PY
grid=("$c" compare -m "$model" --threads 1 --ctx 256 --chunk 32 --kv-block-size 16 --seed 5 --raw)
tasks=(--task recall=recall.jsonl --task text=held.txt --task passkey=pass.json)
run 0 "${grid[@]}" --strategies sliding-window,oracle "${tasks[@]}" --budgets 50%,40 --jsonl run.jsonl --json --html run.html
cp "$WORK/out" run.json
python3 - <<'PY' || fail "a small grid"
import json
d = json.load(open("run.json"))
c = {(x["strategy"], x["budget"], x["task"]): {k: v["value"] for k, v in x["metrics"].items()} for x in d["cells"]}
assert {k[:2] for k in c} == {("full", "")} | {(s, b) for s in ("sliding-window", "oracle") for b in ("50%", "40")}, c.keys()
for t in ("recall.jsonl", "held.txt", "pass.json"):
    full, half, some = c["full", "", t], c["sliding-window", "50%", t], c["sliding-window", "40", t]
    assert full["retained"] == 100 and 45 < half["retained"] < 70, (t, half["retained"])
    assert some["kv_bytes"] < full["kv_bytes"] and half["kv_bytes_peak"] <= full["kv_bytes_peak"]
full, some = c["full", "", "held.txt"], c["sliding-window", "40", "held.txt"]
assert full["kl_mean"] == full["kl_max"] == 0 and full["same_top"] == 100
assert some["kl_mean"] > 0 and some["kl_p99"] >= some["kl_median"]
assert "exact_match" not in full and "perplexity" not in c["full", "", "recall.jsonl"]
assert d["run"]["decides"]["model_hash"].startswith("xxh3:") and "sliding-window=xxh3:" in json.dumps(d["run"]["strategies"])
PY
python3 - <<'PY' || fail "the lines of a small grid"
import json
lines = [json.loads(l) for l in open("run.jsonl")]
assert [l["record"] for l in lines].count("header") == 1 and lines[0]["record"] == "header"
r = [l for l in lines if l["record"] == "result"]
n = sum(len(t["items"]) for t in lines[0]["tasks"])
assert len(r) == 5 * n and len({(l["strategy"], l["budget"], l["task"], l["item"]) for l in r}) == len(r)
x = [l for l in lines if l["record"] == "raster"]
assert {(l["strategy"], l["budget"]) for l in x} == {("sliding-window", "50%"), ("oracle", "50%")}
for l in x:  # what is not yet read is no position
    assert l["rows"][0]["share"].endswith("....") and l["rows"][0]["share"].startswith("z")
last = [l for l in x if l["strategy"] == "sliding-window"][0]["rows"][-1]["share"].rstrip(".")
assert last.endswith("z") and "0" in last, last
PY
# The same report from the file; nothing left to do; what was lost is done again, with the same results.
run 0 "$c" compare --from run.jsonl --json && cmp -s "$WORK/out" run.json || fail "the report from the file differs"
again=("${grid[@]}" --strategies sliding-window,oracle "${tasks[@]}" --budgets 50%,40 --json)
results() { grep -c '"record":"result"' "$1"; }
before=$(results run.jsonl)
run 0 "${again[@]}" --jsonl run.jsonl --continue
[ "$(results run.jsonl)" = "$before" ] || fail "what was there was run again"
{ head -1 run.jsonl; grep '"record":"result"' run.jsonl | awk 'NR % 3 == 0'; printf '{"record":"resu'; } >part.jsonl
run 0 "${again[@]}" --jsonl part.jsonl --continue && err "is not complete and left out"
python3 - <<'PY' || fail "a grid taken up again says something else"
import json
quality = ("exact_match", "token_accuracy", "perplexity", "kl_mean", "kl_max", "same_top", "retained", "kv_bytes", "kv_bytes_peak")
def load(f):
    return {(l["strategy"], l["budget"], l["task"], l["item"]): {k: v for k, v in l["values"].items() if k in quality}
            for l in map(json.loads, open(f)) if l["record"] == "result"}
assert load("run.jsonl") == load("part.jsonl")
PY
one=("${grid[@]}" --strategies random --task recall=recall.jsonl --budgets 40)
run 0 "${one[@]}" --jsonl part.jsonl --continue && out random && out oracle
refuse 2 "exists: --continue adds" "${one[@]}" --jsonl part.jsonl
refuse 2 "its chunk is 32, not 16" "${one[@]/32/16}" --jsonl part.jsonl --continue
cp recall.jsonl same.jsonl
echo '{"prompt": "other", "answer": " x"}' >>recall.jsonl
refuse 2 "task recall.jsonl is another one" "${one[@]}" --jsonl part.jsonl --continue
refuse 2 "nothing to try the strategies on" "${grid[@]}" --strategies random
refuse 2 "must be text=FILE, recall=FILE or passkey=FILE" "${grid[@]}" --strategies random --task needle=recall.jsonl
refuse 2 "--budgets: '0%' is out of range: a share is more than 0%" "${grid[@]}" --strategies random --task text=held.txt --budgets 0%
refuse 2 "behind @ stands original or compact" "${grid[@]}" --strategies random@new --task text=held.txt
refuse 2 "needs room for the full cache" "${grid[@]}" --kv-strategy random --kv-budget 64 --strategies h2o --task text=held.txt
refuse 5 "line 1" "${grid[@]}" --strategies random --task recall=pass.json

# ---- modes: items of their own, which the full cache answers alike; a strategy that chooses at the end does not ----
python3 - <<'PY'
import json
with open("asked.jsonl", "w") as f:
    for l in map(json.loads, open("same.jsonl")):
        l["question"] = "Remember this: the password of the red house is"  # the last of them
        f.write(json.dumps(l) + "\n")
PY
modes=(--task recall=asked.jsonl --task recall:ask-later=asked.jsonl --task recall:ask-later+at-once=asked.jsonl
    --task passkey=pass.json --task passkey:at-once=pass.json --task passkey:ask-later=pass.json --task text=held.txt --task text:decode=held.txt)
run 0 "${grid[@]}" --strategies snapkv,quest --budgets 50%,25% "${modes[@]}" --jsonl modes.jsonl --json
python3 - "$WORK/out" <<'PY' || fail "modes of tasks"
import json, sys
d = json.load(open(sys.argv[1]))
values = {}
for l in map(json.loads, open("modes.jsonl")):
    if l["record"] == "result":
        values.setdefault((l["strategy"], l["budget"], l["task"]), {})[l["item"]] = l["values"]
tasks = {t for _, _, t in values}
assert tasks == {"asked.jsonl", "asked.jsonl (ask-later)", "asked.jsonl (ask-later, at-once)", "pass.json", "pass.json (at-once)",
                 "pass.json (ask-later)", "held.txt", "held.txt (decode)"}, tasks
same = ("exact_match", "token_accuracy", "retained", "kv_bytes", "perplexity")
for t in tasks:  # the same bits in whatever pieces
    a, b = values["full", "", t], values["full", "", t.split(" (")[0]]
    assert a.keys() == b.keys() and len(a) >= 2, (t, len(a))
    for i in a:
        assert all(a[i].get(k) == b[i].get(k) for k in same), (t, a[i], b[i])
# Reading a text as a prompt picks no pages; fed by tokens it has a speed, too.
mean = {(c["strategy"], c["budget"], c["task"]): {k: v["value"] for k, v in c["metrics"].items()} for c in d["cells"]}
assert mean["quest", "25%", "held.txt"]["kl_max"] < 1e-12 < 1e-6 < mean["quest", "25%", "held.txt (decode)"]["kl_max"]
assert "decode_tokens_per_second" in mean["full", "", "held.txt (decode)"] and "decode_tokens_per_second" not in mean["full", "", "held.txt"]
# What is chosen without the question is more than the budget by the question, and so is what is kept at the end.
assert mean["snapkv", "25%", "asked.jsonl (ask-later)"]["retained"] != mean["snapkv", "25%", "asked.jsonl"]["retained"]
PY
# One pass for all budgets gives what each gives alone.
run 0 "${grid[@]}" --strategies snapkv --budgets 25% --task recall:ask-later+at-once=asked.jsonl --jsonl alone.jsonl
python3 - <<'PY' || fail "budgets that share a pass"
import json
quality = ("exact_match", "token_accuracy", "retained", "kv_bytes", "kv_bytes_peak")
def load(f):
    return {(l["budget"], l["item"]): [l["values"][k] for k in quality] for l in map(json.loads, open(f))
            if l["record"] == "result" and l["strategy"] == "snapkv" and l["task"].endswith("(ask-later, at-once)")}
a, b = load("alone.jsonl"), load("modes.jsonl")
assert len(a) == 4 and a.items() <= b.items(), (a, b)
PY
try=("${grid[@]}" --strategies random)
refuse 2 'no mode: ask-later, at-once (recall, passkey), decode (text)' "${try[@]}" --task recall:later=asked.jsonl
refuse 2 'no mode' "${try[@]}" --task recall:=asked.jsonl
refuse 2 'no mode' "${try[@]}" --task recall:ask-later+=asked.jsonl
refuse 2 "decode is for texts" "${try[@]}" --task recall:decode=asked.jsonl
refuse 2 "ask-later is for recall and passkey" "${try[@]}" --task text:ask-later=held.txt
refuse 5 'ask-later needs "question"' "${try[@]}" --task recall:ask-later=same.jsonl
echo '{"prompt": "a b c", "answer": " d", "question": "b d"}' >bad.jsonl
refuse 5 'bad.jsonl, line 1: "question" is not in the prompt' "${try[@]}" --task recall:ask-later=bad.jsonl
echo '{"prompt": "what?", "answer": " d", "question": "what?"}' >bad.jsonl
refuse 5 'there is nothing before the question' "${try[@]}" --task recall:ask-later=bad.jsonl
refuse 2 "at-once: item r0 has" "${try[@]}" --batch 64 --task recall:at-once=asked.jsonl

# Stopped on the way: what is complete is there and reported.
for k in $(seq 200); do sed "s/\"id\": \"r/\"id\": \"$k-/" same.jsonl; done >long.jsonl
"${grid[@]}" --strategies sliding-window,h2o --task recall=long.jsonl --jsonl stop.jsonl >stop.out 2>stop.err &
pid=$!
for _ in $(seq 200); do [ -f stop.jsonl ] && [ "$(wc -l <stop.jsonl)" -gt 12 ] && break; sleep 0.05; done
kill -TERM $pid # the shell lets its children ignore SIGINT
wait $pid
[ $? = 130 ] || fail "a stopped grid did not end with 130: $(tail -3 stop.err)"
grep -q "Stopped on request" stop.out && grep -q "sliding-window" stop.out || fail "a stopped grid reports nothing"
[ "$(tail -c 1 stop.jsonl | od -An -tx1 | tr -d ' ')" = 0a ] || fail "a stopped grid left half a line"

finish
