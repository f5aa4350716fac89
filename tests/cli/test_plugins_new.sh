#!/usr/bin/env bash
# colibri plugins new: every kind, built with the compiler alone, checked and used as it is; names and folders that are refused.
# (With CMake against an installed Colibri: tests/install/run.sh.)
. "$(dirname "$0")/lib.sh"
c=$COLIBRI model=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
traces=$SOURCE_DIR/examples/traces
cd "$WORK" || exit 1

# ---- every kind
build() { # build FOLDER PLUGIN
    mkdir -p "$1/build"
    # shellcheck disable=SC2046
    cc -std=c11 -O2 -Wall -Wextra -Werror -fPIC -shared -fvisibility=hidden -I"$SOURCE_DIR/sdk/include" \
        $(case $(uname -m) in x86_64) [ -f "$1/simd.c" ] && echo -mavx2 -mfma -mf16c ;; esac) "$1"/*.c -o "$1/build/$2.so" \
        -Wl,--version-script="$SOURCE_DIR/cmake/colibri-plugin.map" -Wl,-z,nodelete -Wl,-z,now -lm 2>"$WORK/cc.err" ||
        fail "$1 does not compile: $(head -c 600 "$WORK/cc.err")"
}
new() { # new KIND NAME FILES...: the folder has these files and .gitignore, and nothing of the template's own name
    local kind=$1 name=$2 own
    shift 2
    run 0 "$c" plugins new "$kind" "$name"
    out "$name: $kind $name, plugin "
    [ "$(cd "$name" && find . -mindepth 1 | sort | tr '\n' ' ')" = "$(printf './%s\n' "$@" .gitignore | sort | tr '\n' ' ')" ] ||
        fail "$name has $(ls -A "$name")"
    for own in second-wind second_wind favourites keep-every-other keep_every_other kernel-q4_0 kernel_q4_0 'example-'; do
        ! grep -rqF -- "$own" "$name" || fail "$name still says $own: $(grep -rnF -- "$own" "$name" | head -n 1)"
    done
}
new expert-policy my-policy CMakeLists.txt README.md my_policy.c test.sh
new predictor soothsayer CMakeLists.txt README.md soothsayer.c test.sh
new kv-strategy half.2 CMakeLists.txt README.md half_2.c test.sh
new kernel my-kernels CMakeLists.txt entry.c kernels.h plain.c simd.c
if command -v cc >/dev/null; then
    build my-policy expert-policy-my-policy
    build soothsayer predictor-soothsayer
    build half.2 kv-strategy-half.2
    for so in my-policy/build/*.so soothsayer/build/*.so half.2/build/*.so; do
        code=0
        "$c" plugins check "$so" >"$WORK/out" 2>"$WORK/err" || code=$?
        [ "$code" = 0 ] || fail "$so: $(grep BAD "$WORK/out")"
    done
    COLIBRI_PLUGIN_PATH=$WORK/my-policy/build run 0 "$c" plugins info my-policy
    out "id:      org.example.expert-policy.my-policy"
    out "expert-policy my-policy"
    COLIBRI_PLUGIN_PATH=$WORK/my-policy/build run 0 "$c" run -m "$model" --raw --temperature 0 -n 8 --expert-slots 20 \
        --expert-policy my-policy:most=2 --stats "once upon"
    err "policy my-policy: 20 slots"
    COLIBRI_PLUGIN_PATH=$WORK/half.2/build run 0 "$c" run -m "$model" --raw --temperature 0 -n 60 --kv-strategy half.2 \
        --kv-budget 32 --stats "once upon"
    err "strategy half.2"
    if [ -f "$traces/tiny-moe.clbt" ]; then
        run 0 sh my-policy/test.sh "$c" "$traces" "$WORK/my-policy/build/expert-policy-my-policy.so"
        out "my-policy"
        run 0 sh soothsayer/test.sh "$c" "$traces" "$WORK/soothsayer/build/predictor-soothsayer.so"
        out "soothsayer"
    fi
    # The test that comes along can fail: with a plugin that does not pass its check.
    printf 'int x;\n' | cc -shared -fPIC -xc - -o my-policy/build/none.so
    run 9 sh my-policy/test.sh "$c" "$traces" "$WORK/my-policy/build/none.so"
else
    echo "no compiler: nothing was built"
fi

# ---- folder and id
run 0 "$c" plugins new expert-policy p2 --dir "$WORK/else where" --id com.acme.p2
grep -q 'COLIBRI_PLUGIN_DEFINE(com_acme_p2, NULL, get,' "$WORK/else where/p2.c" || fail "identifier: $(grep DEFINE "$WORK/else where/p2.c")"
grep -q '\.id = "com.acme.p2"' "$WORK/else where/p2.c" || fail "id"
[ ! -e p2 ] || fail "it made p2 as well"

# ---- refused, and nothing made
refuse 2 "my-policy exists already" "$c" plugins new expert-policy my-policy
ln -s /nonexistent dangling
refuse 2 "dangling exists already" "$c" plugins new predictor dangling
refuse 2 "'new' needs KIND and NAME" "$c" plugins new
refuse 2 "'new' needs KIND and NAME" "$c" plugins new expert-policy
refuse 2 "did you mean 'predictor'?" "$c" plugins new preditor x
refuse 2 "expert-policy, predictor, kv-strategy, kernel" "$c" plugins new cache x
refuse 2 "there is a plugin of this name already: colibri.expert-policy.lru" "$c" plugins new expert-policy lru
refuse 2 "there is a plugin of this name already: colibri.kv-strategy.full" "$c" plugins new kv-strategy full
refuse 2 "--id 'Big'" "$c" plugins new predictor x --id Big
refuse 2 "--dir goes with 'new'" "$c" plugins list --dir x
refuse 2 "no JSON output" "$c" plugins new predictor x --json
for name in '' ../x a/b Big .x -- _x "a b" "$(printf 'x%.0s' $(seq 33))"; do
    run 2 "$c" plugins new expert-policy "$name" || echo "name '$name'"
    ls -d x ../x a Big .x 2>/dev/null && fail "made something for '$name'"
done
refuse 4 "cannot make" "$c" plugins new predictor x --dir nowhere/x
if [ "$(id -u)" != 0 ]; then
    mkdir -m 0555 closed
    refuse 4 "cannot make" "$c" plugins new predictor x --dir closed/x
fi
# An executable outside of its tree does not know where the templates are; one without them says so and leaves nothing.
mkdir -p elsewhere tree/bin
cp "$c" elsewhere/colibri
cp "$c" tree/bin/colibri
refuse 3 "not in its installation" elsewhere/colibri plugins new predictor y --quiet
refuse 3 "/tree/share/colibri/templates/predictor is not there" tree/bin/colibri plugins new predictor y --quiet
[ ! -e y ] || fail "y was left behind"
# A full drive: nothing half-written.
mkdir -p tree/share/colibri/templates/predictor
head -c 2000000 /dev/zero >tree/share/colibri/templates/predictor/z.c
printf 'int a;\n' >tree/share/colibri/templates/predictor/a.c
refuse 8 "z.c" tree/bin/colibri plugins new predictor y --quiet
[ ! -e y ] || fail "half of y was left behind"
finish
