#!/usr/bin/env bash
# run --grammar and --json-schema: what comes out is what the file allows; what is wrong with a file is said before the model loads.
. "$(dirname "$0")/lib.sh"
MODEL=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
cd "$WORK" || exit 1

cat >person.json <<'JSON'
{"type": "object",
 "properties": {
   "name": {"type": "string", "minLength": 1, "maxLength": 12},
   "age": {"type": "integer", "minimum": 18, "maximum": 99},
   "mood": {"enum": ["calm", "keen"]},
   "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
 "required": ["name", "age", "mood"], "additionalProperties": false}
JSON
for seed in 1 2 3; do
    run 0 "$COLIBRI" run -m "$MODEL" --seed $seed -n 300 --temperature 1.5 --json-schema person.json --json "Describe somebody."
    python3 - "$WORK/out" <<'PY' || fail "schema, seed $seed: $(cat "$WORK/out")"
import json, sys
o = json.load(open(sys.argv[1]))
assert o["finish_reason"] == "stop", o["finish_reason"]
p = json.loads(o["text"])
while p is not None:
    assert list(p) in (["name", "age", "mood"], ["name", "age", "mood", "next"]), p
    assert 1 <= len(p["name"]) <= 12 and 18 <= p["age"] <= 99 and p["mood"] in ("calm", "keen"), p
    p = p.get("next")
PY
done

# the same seed gives the same text, and a text ends where the grammar does
printf 'root ::= "It is " ("hot" | "cold" | "mild") "."\n' >weather.gbnf
run 0 "$COLIBRI" run -m "$MODEL" --temperature 0 --grammar weather.gbnf "How is the weather?"
grep -qxE 'It is (hot|cold|mild)\.' "$WORK/out" || fail "grammar: '$(cat "$WORK/out")'"
cp "$WORK/out" "$WORK/want"
"$COLIBRI" run -m "$MODEL" --temperature 0 --ignore-eos --grammar - "How is the weather?" <weather.gbnf \
    >"$WORK/out" 2>"$WORK/err" || fail "from standard input: $(cat "$WORK/err")"
cmp -s "$WORK/out" "$WORK/want" || fail "from standard input: '$(cat "$WORK/out")'"

# -n cuts as always
run 0 "$COLIBRI" run -m "$MODEL" --temperature 0 -n 2 --json --grammar weather.gbnf "How is the weather?"
out '"finish_reason": "length"'

# without a model in sight
printf 'root ::= "a\n' >bad.gbnf
run 2 "$COLIBRI" run -m nowhere.gguf --grammar bad.gbnf x
err "bad.gbnf: grammar line 1, column 12: a literal or class is not closed"
printf 'root ::= root "a" | "b"\n' >left.gbnf
run 2 "$COLIBRI" run -m nowhere.gguf --grammar left.gbnf x
err 'rule "root" is left-recursive'
printf '{"type": "object",\n "properties": {"a/b": {"not": {}}}}' >not.json
run 6 "$COLIBRI" run -m nowhere.gguf --json-schema not.json x
err '#/properties/a~1b: "not" is not supported'
printf '{"type": "object",\n oops}' >broken.json
run 2 "$COLIBRI" run -m nowhere.gguf --json-schema broken.json x
err "broken.json, line 2"
printf '{"type": "integer", "minimum": 5, "maximum": 4}' >none.json
run 2 "$COLIBRI" run -m nowhere.gguf --json-schema none.json x
err "no text matches"
run 2 "$COLIBRI" run -m nowhere.gguf --grammar weather.gbnf --json-schema person.json x
err "do not go together"
printf 'root ::= <no-such-token> "a"\n' >token.gbnf
run 2 "$COLIBRI" run -m "$MODEL" --grammar token.gbnf x
err "<no-such-token>, which the model does not have"

finish
