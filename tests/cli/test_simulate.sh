#!/usr/bin/env bash
# colibri simulate: the grid's outputs agree with each other, the page needs nothing from elsewhere, what is refused.
. "$(dirname "$0")/lib.sh"
MODEL=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
cd "$WORK" || exit 1
command -v python3 >/dev/null || skip "python3 is needed to look into the results"

for i in $(seq 80); do echo "for (int i = $i; i < n; i++) sum += values[i];"; done >code.txt
for i in $(seq 80); do echo "Once upon a time there was a king of $i lands."; done >prose.txt
for topic in code prose; do
    run 0 "$COLIBRI" trace -m "$MODEL" -f $topic.txt --teacher-forced --window 96 --prefill 32 --max-windows 3 --ahead 1 \
        -o $topic.clbt || exit 1
done

run 0 "$COLIBRI" simulate code.clbt prose.clbt --policy lru,lfu --slots 25%,80,10% --resamples 500 && out "belady" && out "gap %"
run 0 "$COLIBRI" simulate code.clbt prose.clbt --policy lru,lfu --slots 10%,25%,80 --resamples 500 --json --html page.html
cp "$WORK/out" cells.json
run 0 "$COLIBRI" simulate code.clbt prose.clbt --policy lru,lfu --slots 10%,25%,80 --resamples 500 --csv
cp "$WORK/out" cells.csv
run 0 "$COLIBRI" simulate code.clbt prose.clbt --policy lru,lfu --slots 10%,25%,80 --resamples 500 --jsonl --threads 1
cp "$WORK/out" cells.jsonl
python3 - <<'PY' || fail "the outputs do not agree"
import csv, json, sys
one = json.load(open("cells.json"))
lines = [json.loads(l) for l in open("cells.jsonl")]
cells = {(c["policy"], c["slots"]): c for c in one["cells"]}
assert lines[0]["kind"] == "colibri.simulate" and len(lines) - 1 == len(cells), len(lines)
for c in lines[1:]:  # one thread or two: the same
    d = cells[c["policy"], c["slots"]]
    for k in ("hits", "misses", "evictions", "hit_rate", "gap_closed", "lookups", "traces"):
        assert c[k] == d[k], (k, c[k], d[k])
rows = [r for r in csv.DictReader(open("cells.csv")) if r["trace"] == "all"]
for r in rows:
    c = cells[r["policy"], r["slots"]]
    assert int(r["hits"]) == c["hits"] and int(r["evictions"]) == c["evictions"]
    assert abs(float(r["hit_rate"]) - c["hits"] / c["lookups"]) < 1e-8
lookups = {c["lookups"] for c in cells.values()}
assert len(lookups) == 1, lookups
for slots in ("10%", "25%", "80"):
    best = max(cells[p, slots]["hits"] for p in ("belady", "belady-bypass"))
    for p in ("lru", "lfu"):
        c = cells[p, slots]
        assert c["hits"] < best and c["hits"] + c["misses"] == c["lookups"]
        assert sum(h for t in c["traces"] for h, _ in t["units"]) == c["hits"]
        assert sum(h for t in c["traces"] for h, _ in t["layers"]) == c["hits"]
        assert c["hit_rate"]["low"] <= c["hit_rate"]["value"] <= c["hit_rate"]["high"] and c["hit_rate"]["units"] == 6
        assert c["tokens_per_second"] > 0
        assert c["policy_ns"] > 0
    assert cells["lru", slots]["gap_closed"]["value"] == 0
assert cells["lru", "10%"]["hits"] < cells["lru", "25%"]["hits"] < cells["lru", "80"]["hits"]
PY

# The page: well-formed figures, nothing fetched, no value that is not a number.
python3 - <<'PY' || fail "the page is not what it should be"
import re, xml.dom.minidom
text = open("page.html").read()
figures = re.findall(r"<svg.*?</svg>", text, re.S)
assert len(figures) >= 8, len(figures)
for f in figures:
    xml.dom.minidom.parseString(f)
assert not re.search(r"https?:|<link|<img|src=|@import|url\(", text)
assert not re.search(r"\bnan\b|\binf\b", re.sub(r"<style>.*?</style>|<script>.*?</script>", "", text, flags=re.S))
for word in ("Miss-ratio curve", "Gap closed", "Hit rate over time", "Reuse distances", "by layer"):
    assert word in text, word
PY
refuse 2 "--force" "$COLIBRI" simulate code.clbt --html page.html --slots 25%
# A page that cannot be completed leaves the old one, and nothing else.
mkdir kept
cp page.html kept/page.html
(failures=0; ulimit -f 4 && refuse 4 "cannot write" "$COLIBRI" simulate code.clbt --html kept/page.html --slots 25% --force &&
    [ "$failures" = 0 ]) || fail "a limit on file sizes"
cmp page.html kept/page.html || fail "the old page is gone"
[ "$(ls -A kept)" = page.html ] || fail "left behind: $(ls -A kept)"
run 0 "$COLIBRI" simulate code.clbt --html kept/page.html --slots 25% --force
cmp -s page.html kept/page.html && fail "the page is still the old one"

# A policy's parameters, behind its name; pools; an empty cache for each prompt.
run 0 "$COLIBRI" simulate code.clbt --policy frequency-weighted:half-life=4,lru --slots 25% --expert-pool layer --reset-cache &&
    out "frequency-weighted:half-life=4" && out "slots of each layer"
run 0 "$COLIBRI" simulate code.clbt --policy lru --predictor all --slots 25% --read-rate 1G && out "rec %" && out "repeat-last"
run 0 "$COLIBRI" simulate code.clbt --policy all --slots 25% --resamples 100 && out "lfu"

# What is assumed is marked as such.
run 0 "$COLIBRI" simulate code.clbt --policy lru --slots 25% && out "100 us (assumed: see --read-latency)"
grep -q 'GB/s (assumed' "$WORK/out" && fail "the drive was measured"
run 0 "$COLIBRI" simulate code.clbt --policy lru --slots 25% --read-latency 80 && out "after 80 us; per token"
run 0 "$COLIBRI" simulate code.clbt --policy lru --slots 25% --json
python3 -c 'import json, sys
r = json.load(open(sys.argv[1]))["rates"]
assert r["assumed_latency"] is True and r["assumed_drive"] is False, r' "$WORK/out" || fail "assumptions in JSON"

# Rates that the planner remembers: as recorded, far slower, far faster, and another CPU's.
export XDG_CACHE_HOME=$WORK/cache
run 0 "$COLIBRI" plan -m "$MODEL" --threads 1
run 0 "$COLIBRI" trace info code.clbt --json
cp "$WORK/out" info.json
cp cache/colibri/rates rates.measured
# remember FACTOR: every kernel of this CPU has the trace's rate times FACTOR.
remember() {
    python3 - info.json rates.measured cache/colibri/rates "$1" <<'PY' || fail "no kernels among the rates"
import json, sys
info = json.load(open(sys.argv[1]))
layers = [l["expert_bytes"] for l in info["layers"]]
rate = sum(layers) / len(layers) / info["rates"]["decode_expert_ns"] * 1e9 * float(sys.argv[4])
lines = open(sys.argv[2]).read().splitlines()
n = 0
for i, l in enumerate(lines):
    if l.startswith("kernel ") and " reference " not in l:
        f = l.split("\t")
        f[2] = "%.6g" % rate
        lines[i] = "\t".join(f)
        n += 1
open(sys.argv[3], "w").write("\n".join(lines) + "\n")
sys.exit(n == 0)
PY
}
if grep -v ' reference ' rates.measured | grep -q '^kernel '; then
    remember 1
    run 0 "$COLIBRI" simulate code.clbt --policy lru --slots 25%
    grep -q "when it was recorded" "$WORK/err" && fail "a needless warning: $(cat "$WORK/err")"
    remember 0.05
    run 0 "$COLIBRI" simulate code.clbt prose.clbt --policy lru --slots 25% && err "code: an expert took"
    run 0 "$COLIBRI" simulate code.clbt --policy lru --slots 25% --expert-time 30
    grep -q "when it was recorded" "$WORK/err" && fail "a warning about a time that is not used"
    sed -i 's/^kernel /kernel Another CPU /' cache/colibri/rates
    run 0 "$COLIBRI" simulate code.clbt --policy lru --slots 25%
    grep -q "when it was recorded" "$WORK/err" && fail "another CPU's rates count"
    # A recording of a busy machine: the second of the six rates, in the record before the last one.
    python3 - code.clbt slow.clbt <<'PY'
import struct, sys
d = bytearray(open(sys.argv[1], "rb").read())
at = len(d) - 32 - 48
assert struct.unpack_from("<I", d, at - 4) == (48,), "no rates where they were expected"
old, = struct.unpack_from("<d", d, at + 8)
assert old > 0
struct.pack_into("<d", d, at + 8, old * 100 + 1e6)
open(sys.argv[2], "wb").write(d)
PY
    remember 1
    run 0 "$COLIBRI" simulate slow.clbt --policy lru --slots 25% && err "slow: an expert took"
else
    echo "not tested: remembered rates (this build has no kernels for this CPU)"
fi

refuse 2 "no trace" "$COLIBRI" simulate
refuse 3 "no/such" "$COLIBRI" simulate no/such.clbt
refuse 3 "did you mean 'lru'" "$COLIBRI" simulate code.clbt --policy lruu
refuse 2 "takes no parameters" "$COLIBRI" simulate code.clbt --policy lfu:nonsense=1
refuse 2 "--slots 0" "$COLIBRI" simulate code.clbt --slots 0
refuse 2 "more than all" "$COLIBRI" simulate code.clbt --slots 120%
refuse 2 "has 160 experts" "$COLIBRI" simulate code.clbt --slots 161
refuse 2 "at least 5" "$COLIBRI" simulate code.clbt --slots 4 --expert-pool layer
refuse 2 "exclude each other" "$COLIBRI" simulate code.clbt --json --csv
refuse 5 "not a Colibri trace" "$COLIBRI" simulate code.txt --format clbt
finish
