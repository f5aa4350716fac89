#!/usr/bin/env bash
# Foreign functions: the examples, compiled without Colibri's headers, as policies; a BLAS as a kernel; what is refused.
. "$(dirname "$0")/lib.sh"
c=$COLIBRI model=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
library=$BINARY_DIR/tests/plugins-bad/foreign.so
[ -f "$library" ] || skip "the test libraries are not built"
question="Remember this: the secret code of the silver fox is 7316. What is the secret code of the silver fox?"
ask() { "$c" run -m "$model" --temperature 0 -n 40 --expert-slots 24 --stats "$@" "$question"; }
run 0 ask --expert-policy lru
cp "$WORK/out" "$WORK/answer"
lru=$(grep -a '^experts' "$WORK/err" | sed 's/.*slots/slots/')

# ---- "the lowest last_use leaves" is lru, to the last hit; a policy never changes the text
cat >"$WORK/a.ini" <<INI
[foreign.oldest]
kind = expert-policy
library = $library
symbol = score_last_use
signature = double(double last_use) ; every number can be had as a double
[foreign.nan]
kind = expert-policy
library = $library
symbol = score_nan
signature = double()
INI
run 0 ask --config "$WORK/a.ini" --expert-policy oldest
cmp -s "$WORK/out" "$WORK/answer" || fail "a foreign policy changed the text"
[ "$(grep -a '^experts' "$WORK/err" | sed 's/.*slots/slots/')" = "$lru" ] || fail "not lru: $(grep -a '^experts' "$WORK/err")"
err "expert-policy  oldest             oldest                   $library"
# ... and with the promise that it never falls, which is true: few scores are asked for, the victims are the same
run 0 ask --config "$WORK/a.ini" --expert-policy oldest --set foreign.oldest.score-rises=yes
[ "$(grep -a '^experts' "$WORK/err" | sed 's/.*slots/slots/')" = "$lru" ] || fail "not lru with score-rises: $(grep -a '^experts' "$WORK/err")"
run 0 ask --config "$WORK/a.ini" --expert-policy nan
cmp -s "$WORK/out" "$WORK/answer" || fail "a bad policy changed the text"
err "nan misbehaved: score() returned NaN"
err "answers replaced by the host"
run 0 "$c" plugins list --config "$WORK/a.ini"
grep -qE '^expert-policy +foreign\.oldest +0 +0 +available$' "$WORK/out" || fail "list: $(grep foreign "$WORK/out")"
run 0 "$c" plugins info oldest --config "$WORK/a.ini"
out "path:    $library"
out "bound in $WORK/a.ini:2"
run 0 "$c" plugins why oldest --config "$WORK/a.ini"
out "chosen: oldest"
run 0 "$c" plugins paths --config "$WORK/a.ini"
run 0 "$c" config check "$WORK/a.ini"
out "2 foreign functions"
refuse 2 "did you mean 'score-rises'?" "$c" config --print-config --config "$WORK/a.ini" --set foreign.oldest.score-rise=no
run 0 "$c" config --print-config --config "$WORK/a.ini"
out "[foreign.oldest]"
sed 's/ ; .*//' "$WORK/out" >"$WORK/again.ini"
run 0 "$c" config check "$WORK/again.ini"
out "2 foreign functions"

# ---- refused: one line, before the model is read
section() { # section KEY VALUE: a.ini with another value
    sed "0,/^$1 = .*/s||$1 = $2|" "$WORK/a.ini" >"$WORK/b.ini"
}
bad() { # bad CODE TEXT KEY VALUE
    section "$3" "$4"
    refuse "$1" "$2" "$c" run --config "$WORK/b.ini" -m "$model" -n 1 --expert-policy oldest x
}
bad 2 "b.ini:5: foreign.oldest.signature: unknown type 'int'" signature 'int(double last_use)'
bad 2 "did you mean 'last_use'?" signature 'double(double lastuse)'
bad 2 "neither an absolute path nor the name of a system library" library './score.so'
bad 3 "it has no function skore" symbol skore
bad 3 "its seen is data, not a function" symbol seen
bad 3 "cannot open shared object file" library libcolibri-test-none.so.7
bad 3 "No such file" library /nonexistent/score.so
bad 3 "loading it changed the floating-point control state" library "$BINARY_DIR/tests/plugins-bad/foreign_flush.so"
cp "$library" "$WORK/open.so"
chmod 0666 "$WORK/open.so"
bad 3 "chmod go-w" library "$WORK/open.so"
refuse 2 "plugin colibri.expert-policy.lru" "$c" run -m "$model" -n 1 --set foreign.lru.library="$library" \
    --set foreign.lru.symbol=count --set "foreign.lru.signature=double()" --set foreign.lru.kind=expert-policy x
mkdir "$WORK/models"
cp "$model" "$WORK/models/m.gguf"
cp "$WORK/a.ini" "$WORK/models/colibri.ini"
refuse 2 "not allowed in a file beside a model" "$c" run -m "$WORK/models/m.gguf" -n 1 x

# ---- a KV strategy: libm's fabs(position) keeps the newest, as sliding-window without sinks does; scores of what the host computes
cat >"$WORK/kv.c" <<'C'
#include <unistd.h>
double small_keys(float key_norm) { return -(double)key_norm; }
double no_number(void) { return 0.0 / 0.0; }
double dawdles(void) { return usleep(300000), 0; }
static unsigned resets, sequences;
void fresh(unsigned instance) { resets++, sequences = instance + 1; }
double mixed(unsigned instance, unsigned layer, unsigned kv_head, unsigned position, unsigned rank, unsigned long long age,
             unsigned n_kept, unsigned n_keep, unsigned n_prompt, unsigned n_system, unsigned long long next_position,
             float prob_sum, float prob_max, float prob_last, unsigned n_last, float key_norm, float value_norm, unsigned budget,
             unsigned n_layers, unsigned n_kv_heads)
{ /* whatever is not so makes a number that is none */
    int good = instance < sequences && resets && layer < n_layers && kv_head < n_kv_heads && rank < n_kept &&
               position + age == next_position && rank <= position && n_keep <= n_kept && n_keep == budget && budget == 64 &&
               n_prompt <= next_position && n_system == 0 && prob_sum >= 0 && prob_max >= 0 && prob_max <= 64 &&
               prob_last >= 0 && n_last >= 1 && n_last <= 8 && key_norm > 0 && value_norm > 0;
    return good ? (double)prob_last : 0.0 / 0.0;
}
C
if cc -O2 -shared -fPIC -o "$WORK/kv.so" "$WORK/kv.c" 2>"$WORK/cc"; then
    chmod go-w "$WORK/kv.so"
    section_kv() { # section_kv NAME LIBRARY SYMBOL SIGNATURE
        printf '[foreign.%s]\nkind = kv-strategy\nlibrary = %s\nsymbol = %s\nsignature = %s\n' "$@"
    }
    {
        section_kv newest libm.so.6 fabs 'double(f64 position)'
        section_kv lately libm.so.6 fabsf 'float(f32 prob_last)'
        echo 'window = 1'
        section_kv small-keys "$WORK/kv.so" small_keys 'double(f32 key_norm)'
        section_kv no-number "$WORK/kv.so" no_number 'double()'
        section_kv dawdles "$WORK/kv.so" dawdles 'double()'
        section_kv mixed "$WORK/kv.so" mixed 'double(u32 instance, u32 layer, u32 kv_head, u32 position, u32 rank, u64 age, u32 n_kept, u32 n_keep, u32 n_prompt, u32 n_system, u64 next_position, f32 prob_sum, f32 prob_max, f32 prob_last, u32 n_last, f32 key_norm, f32 value_norm, u32 budget, u32 n_layers, u32 n_kv_heads)'
        printf 'window = 8\nreset = fresh\nreset-signature = void(u32 instance)\n'
    } >"$WORK/kv.ini"
    head -c 2500 "$SOURCE_DIR/tests/data/tiny-moe/prose.txt" >"$WORK/prose.txt"
    perplexity() { # with 64 of 320 positions
        run 0 "$c" perplexity -m "$model" -c 320 --batch 16 -f "$WORK/prose.txt" --json --config "$WORK/kv.ini" --kv-budget 64 \
            --kv-strategy "$1" && grep -m1 '"perplexity"' "$WORK/out"
    }
    same() { # same FOREIGN STRATEGY
        local a b
        a=$(perplexity "$1") b=$(perplexity "$2")
        [ -n "$a" ] && [ "$a" = "$b" ] || fail "$1: $a; $2: $b"
    }
    same newest sliding-window:sinks=0
    same small-keys l2-norm
    [ "$(perplexity newest)" != "$(perplexity lately)" ] || fail "newest and lately keep the same"
    perplexity mixed >/dev/null
    grep -q misbehaved "$WORK/err" && fail "mixed did not get what it asked for: $(cat "$WORK/err")"
    kv() { "$c" run -m "$model" --raw --temperature 0 -n 120 --ignore-eos --config "$WORK/kv.ini" --kv-budget 48 --stats --kv-strategy "$@" "The bird"; }
    run 0 kv no-number
    err "no-number misbehaved: score left or wrote a value that is not a number"
    err "answers replaced by the host"
    run 0 timeout 60 "$c" run -m "$model" --raw -n 120 --ignore-eos --config "$WORK/kv.ini" --kv-budget 48 --kv-strategy dawdles "The bird" # 24 s for each answer
    err "dawdles misbehaved: a call took more than two seconds"
    run 0 kv ada/small-keys # a foreign function may be wrapped
    err "strategy ada/small-keys"
    run 0 "$c" plugins info mixed --config "$WORK/kv.ini"
    out "path:    $WORK/kv.so"
    refuse 2 "foreign.newest.on-use: it does not go with kind = kv-strategy" kv newest --set foreign.newest.on-use=fabs
    refuse 2 "it is about prob_last" kv newest --set foreign.newest.window=8
    refuse 2 "did you mean 'position'?" kv newest --set "foreign.newest.signature=double(f64 postion)"
    refuse 2 "there is no argument 'expert' here" kv newest --set "foreign.newest.signature=double(f64 expert)"
    refuse 2 "offers a KV strategy of this name" kv newest --set foreign.h2o.library=libm.so.6 --set foreign.h2o.symbol=fabs \
        --set "foreign.h2o.signature=double(f64 position)" --set foreign.h2o.kind=kv-strategy
else
    echo "no C compiler: the foreign KV strategies are not tested"
fi

# ---- the same from the command line, and a library that remembers: this model has experts of two sizes, so two pools, and
# it must be able to tell them apart
remembers=(--set foreign.m.library="$library" --set foreign.m.symbol=score_age --set "foreign.m.signature=double(u64 age)"
    --set foreign.m.kind=expert-policy --set foreign.m.on-use=on_use_of --expert-policy m)
refuse 9 "'u32 instance' must be among the arguments" "$c" run -m "$model" -n 1 "${remembers[@]}" --expert-slots 24 \
    --set "foreign.m.on-use-signature=void()" x
run 0 ask "${remembers[@]}" --set "foreign.m.on-use-signature=void(u32 instance, f64 router_rank)"
cmp -s "$WORK/out" "$WORK/answer" || fail "a policy that remembers changed the text"
[ "$(grep -a '^experts' "$WORK/err" | sed 's/.*slots/slots/')" = "$lru" ] || fail "age is not lru: $(grep -a '^experts' "$WORK/err")"

# ---- in a simulation as in the engine: lru's hits
run 0 "$c" simulate --config "$WORK/a.ini" "$SOURCE_DIR/examples/traces/tiny-moe.clbt" --policy oldest,lru --slots 20% --csv
python3 - "$WORK/out" <<'PY' || fail "simulate: oldest is not lru: $(cat "$WORK/out")"
import csv, sys
rows = {r["policy"]: r["hits"] for r in csv.DictReader(open(sys.argv[1]))}
assert rows["oldest"] == rows["lru"] and int(rows["lru"]) > 0, rows
PY

# ---- products
blas=(--set foreign.blas.kind=matmul-f32 --set foreign.blas.library="$library" --set foreign.blas.symbol=cblas_sgemm
    --set foreign.blas.signature=cblas_sgemm --set foreign.blas.min-x=1)
run 0 ask "${blas[@]}"
cmp -s "$WORK/out" "$WORK/answer" || fail "a lossy kernel without permission changed the text"
grep -q ' blas ' "$WORK/err" && fail "a lossy kernel serves without permission"
run 0 ask "${blas[@]}" --allow-inexact
err "kernel         F32                blas                     $library"
out "7316"
run 0 "$c" plugins why f32 "${blas[@]}"
out "not exact (no bound) and allow-inexact is off"
run 0 "$c" plugins why f32 "${blas[@]}" --allow-inexact
out "chosen: blas"
refuse 9 "[foreign.blas]: $library: it has no function dgemm" "$c" run -m "$model" -n 1 "${blas[@]/symbol=cblas_sgemm/symbol=dgemm}" \
    --allow-inexact x
for so in libopenblas.so.0 libblas.so.3 libmkl_rt.so; do
    for symbol in cblas_sgemm sgemm_; do
        real=(--set foreign.blas.kind=matmul-f32 --set foreign.blas.library=$so --set foreign.blas.symbol=$symbol
            --set foreign.blas.signature=$symbol --set foreign.blas.min-x=1)
        "$c" run -m "$model" --raw -n 1 "${real[@]}" --allow-inexact x >/dev/null 2>&1 || { echo "no $symbol in $so"; continue; }
        OPENBLAS_NUM_THREADS=1 run 0 ask "${real[@]}" --allow-inexact
        err " blas "
        out "7316"
    done
done

# ---- the examples, as their comments say
if command -v cc >/dev/null; then
    cp "$SOURCE_DIR"/examples/foreign/* "$WORK/"
    cd "$WORK" || exit 1
    run 0 cc -Wall -Wextra -Werror -O2 -shared -fPIC score.c -o score.so
    sed "s|DIR|$WORK|" colibri.ini >my.ini
    run 0 ask --config my.ini --expert-policy aged-frequency
    cmp -s out answer || fail "score.c changed the text"
    err "policy aged-frequency"
    if pkg-config --exists lua5.4 2>/dev/null; then
        # shellcheck disable=SC2046
        run 0 cc -Wall -Wextra -Werror -O2 -shared -fPIC lua_policy.c $(pkg-config --cflags --libs lua5.4) -o lua_policy.so
        LUA_POLICY=$WORK/policy.lua run 0 ask --config my.ini --expert-policy lua
        cmp -s out answer || fail "policy.lua changed the text"
        err "policy lua"
        grep -q 'misbehaved' err && fail "policy.lua: $(grep misbehaved err)"
        grep -q 'lua_policy:' err && fail "policy.lua: $(grep lua_policy: err)"
        # A script that fails has no opinion; the run goes on.
        printf 'function score() error("no idea") end\n' >broken.lua
        LUA_POLICY=$WORK/broken.lua run 0 ask --config my.ini --expert-policy lua
        cmp -s out answer || fail "a broken script changed the text"
        err "no idea"
        err "lua misbehaved: score() returned NaN"
        # A pool for each layer, or cells of a simulation on several threads: an interpreter for each.
        LUA_POLICY=$WORK/policy.lua run 0 ask --config my.ini --expert-policy lua --expert-pool layer
        cmp -s out answer || fail "policy.lua changed the text with a pool for each layer"
        grep -q 'lua_policy:' err && fail "policy.lua: $(grep lua_policy: err)"
        LUA_POLICY=$WORK/policy.lua run 0 "$c" simulate --config my.ini "$SOURCE_DIR/examples/traces/tiny-moe.clbt" \
            --policy lua,aged-frequency,lru --slots 25%,50%
        out "lua"
    else
        echo "no Lua: its example was not tried"
    fi
else
    echo "no compiler: the examples were not tried"
fi
finish
