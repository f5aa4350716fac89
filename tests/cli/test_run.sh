#!/usr/bin/env bash
# run, chat and perplexity on the embedded model: prompts from everywhere, stop strings, JSON, figures, budgets.
. "$(dirname "$0")/lib.sh"
MODEL=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
RECALL="Remember this: the secret code of the silver fox is 7316. What is the secret code of the silver fox?"
run0() { run 0 "$COLIBRI" run -m "$MODEL" --temperature 0 "$@"; }

# recall through the chat template; the prompt as argument, file and standard input give the same
run0 "$RECALL"
out "The secret code of the silver fox is 7316."
cp "$WORK/out" "$WORK/want"
printf '%s' "$RECALL" >"$WORK/prompt.txt"
run0 --file "$WORK/prompt.txt"
cmp -s "$WORK/out" "$WORK/want" || fail "--file gives other text"
"$COLIBRI" run -m "$MODEL" --temperature 0 <"$WORK/prompt.txt" >"$WORK/out" 2>"$WORK/err" || fail "standard input: $(cat "$WORK/err")"
cmp -s "$WORK/out" "$WORK/want" || fail "standard input gives other text"

# a stop string is not part of the text, even across tokens
run0 --stop "fox is" "$RECALL"
[ "$(cat "$WORK/out")" = "The secret code of the silver " ] || fail "stop string: '$(cat "$WORK/out")'"

# JSON: one object, the same text, and figures
run0 --json "$RECALL"
python3 - "$WORK/out" <<'PY' || fail "JSON of run: $(cat "$WORK/out")"
import json, sys
o = json.load(open(sys.argv[1]))
assert o["text"] == "The secret code of the silver fox is 7316.", o["text"]
assert o["finish_reason"] == "stop"
assert o["usage"]["completion_tokens"] == len(o["tokens"]) > 5
assert o["usage"]["prompt_tokens"] == 50
assert o["stats"]["experts"]["hits"] > 0 and o["stats"]["kv"]["strategy"] == "full"
assert any(p["kind"] == "format" for p in o["stats"]["plugins"])
PY

# fewer slots than experts: the same text, misses counted (memory within the budget: unit/memory_budget)
run0 --max-memory 512M --expert-slots 24 --stats "$RECALL"
cmp -s "$WORK/out" "$WORK/want" || fail "few expert slots give other text"
err "24 slots of 160 experts"
grep -qE 'misses [1-9]' "$WORK/err" || fail "no misses with 24 slots: $(cat "$WORK/err")"
grep -qE '% hit; prompt [0-9.]+ %, generating [0-9.]+ %\)' "$WORK/err" || fail "hits are not told apart: $(cat "$WORK/err")"
run0 --max-memory 512M --expert-slots 24 --json "$RECALL"
python3 - "$WORK/out" <<'PY' || fail "hits by phase"
import json, sys
o = json.load(open(sys.argv[1]))
x = o["stats"]["experts"]
p, g = x["prompt"], x["generation"]
for k in ("hits", "misses", "late"):
    assert p[k] + g[k] == x[k], (k, p, g, x[k])
# A token looks up 4 experts in each of 5 layers.
assert g["hits"] + g["misses"] + g["late"] == 20 * len(o["tokens"]), (g, len(o["tokens"]))
assert p["misses"] > 0 and g["misses"] > 0, (p, g)
PY
for policy in lru lfu frequency-weighted; do
    run0 --expert-slots 30 --expert-policy $policy "$RECALL"
    cmp -s "$WORK/out" "$WORK/want" || fail "policy $policy gives other text"
done

# copies on other drives: the same text, and what each drive gave
mkdir "$WORK/copy" && cp "$MODEL" "$WORK/copy"
run0 --max-memory 512M --expert-slots 24 --mirror "$WORK/copy" --stats "$RECALL"
cmp -s "$WORK/out" "$WORK/want" || fail "a mirror gives other text"
for drive in 0 1; do
    grep -qE "drive $drive: [1-9]" "$WORK/err" || fail "drive $drive gave nothing: $(cat "$WORK/err")"
done

# flags about reading say so when everything is in memory, and are silent when they are of use
run0 --max-memory 512M --predictor repeat-last --io pread "$RECALL"
err "--predictor does nothing in this run"
err "--io does nothing in this run"
run0 --max-memory 512M --resident-layers 2 --predictor repeat-last --io pread "$RECALL"
err "--predictor does nothing in this run"
grep -q -- "--io does" "$WORK/err" && fail "--io is of use while layers are streamed: $(cat "$WORK/err")"
run0 --max-memory 512M --expert-slots 24 --predictor repeat-last --io pread "$RECALL"
cmp -s "$WORK/out" "$WORK/want" || fail "a predictor gives other text"
grep -q "does nothing" "$WORK/err" && fail "few expert slots: $(cat "$WORK/err")"

# KV strategies that evict: the run goes on, retained positions are reported
for strategy in sliding-window important-tokens; do
    run0 --raw --kv-strategy $strategy --kv-budget 64 -n 200 --ignore-eos --stats "In the beginning God created"
    err "strategy $strategy"
    grep -qE '[1-9][0-9]* evicted' "$WORK/err" || fail "$strategy evicted nothing: $(cat "$WORK/err")"
done

# the seed decides, and nothing else
run 0 "$COLIBRI" run -m "$MODEL" --raw --seed 11 -n 40 "Once upon a time"
cp "$WORK/out" "$WORK/a"
run 0 "$COLIBRI" run -m "$MODEL" --raw --seed 11 -n 40 --threads 1 --batch 3 "Once upon a time"
cmp -s "$WORK/out" "$WORK/a" || fail "the same seed gave other text"
run 0 "$COLIBRI" run -m "$MODEL" --raw --seed 12 -n 40 "Once upon a time"
cmp -s "$WORK/out" "$WORK/a" && fail "another seed gave the same text"

# chat from a pipe: two turns, the second knows the first
printf '%s\n%s\n' "Remember this: the secret code of the golden tiger is 4821." "What is the secret code of the golden tiger?" |
    "$COLIBRI" chat -m "$MODEL" --temperature 0 >"$WORK/out" 2>"$WORK/err" || fail "chat: $(cat "$WORK/err")"
out "4821"
printf '/stats\n/rset\n/reset\n/quit\n' | "$COLIBRI" chat -m "$MODEL" >"$WORK/out" 2>"$WORK/err" || fail "chat commands: $(cat "$WORK/err")"
err "did you mean /reset"
err "plugins in use"

# perplexity
run 0 "$COLIBRI" perplexity -m "$MODEL" -f "$SOURCE_DIR/tests/data/tiny-moe/chat.txt" --chunks 2 --json
python3 - "$WORK/out" <<'PY' || fail "JSON of perplexity: $(cat "$WORK/out")"
import json, sys
o = json.load(open(sys.argv[1]))
assert 2 < o["perplexity"] < 8 and 0 < o["stderr"] < 2, o
assert o["n_ctx"] == 512 and o["chunks"] == 2 and o["scored_tokens"] == 510
PY
refuse 2 "give a longer text" "$COLIBRI" perplexity -m "$MODEL" -f "$WORK/prompt.txt"
refuse 3 "nosuch.txt" "$COLIBRI" perplexity -m "$MODEL" -f "$WORK/nosuch.txt"

# Ctrl-C: a clean end with its own exit code
set -m # job control: without it a background job ignores SIGINT
"$COLIBRI" run -m "$MODEL" --raw --ignore-eos -n 100000 --kv-strategy sliding-window --kv-budget 64 "the" >"$WORK/out" 2>"$WORK/err" &
pid=$!
for _ in $(seq 100); do [ -s "$WORK/out" ] && break; sleep 0.1; done
kill -INT $pid
code=0
wait $pid || code=$?
[ "$code" = 130 ] || fail "after SIGINT the exit code is $code: $(cat "$WORK/err")"
err "stopped on request"
finish
