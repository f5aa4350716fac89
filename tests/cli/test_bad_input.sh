#!/usr/bin/env bash
# Every kind of wrong input: one clear line, the documented exit code, nothing else.
. "$(dirname "$0")/lib.sh"
MODEL=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
ARCH=$SOURCE_DIR/tests/data/arch

ask() { "$COLIBRI" run --raw --temperature 0 -n 4 "$@"; }

# ---- files -------------------------------------------------------------------------------------------------
refuse 3 "nowhere.gguf" ask -m "$WORK/nowhere.gguf" hello
echo "this is a text file, not a model" >"$WORK/text.gguf"
refuse 5 "text.gguf" ask -m "$WORK/text.gguf" hello
: >"$WORK/empty.gguf"
refuse 5 "empty" ask -m "$WORK/empty.gguf" hello
refuse 5 "is a directory" ask -m "$WORK" hello

# truncated at twenty places, in the header and in the data
size=$(stat -c %s "$ARCH/qwen3moe.gguf")
for i in $(seq 20); do
    n=$(((size - 1) * i * i / 400))
    head -c "$n" "$ARCH/qwen3moe.gguf" >"$WORK/cut.gguf"
    refuse 5 "cut.gguf" ask -m "$WORK/cut.gguf" hello
done

# changed through the project's own tool for broken files
edit() { python3 "$SOURCE_DIR/tests/tools/edit_gguf.py" "$ARCH/qwen3moe.gguf" "$WORK/edited.gguf" "$@"; }
if command -v python3 >/dev/null; then
    edit tensor-count 9223372036854775807
    refuse 5 "edited.gguf" ask -m "$WORK/edited.gguf" hello
    edit key-count 4611686018427387904
    refuse 5 "edited.gguf" ask -m "$WORK/edited.gguf" hello
    edit architecture qwen3mop
    refuse 6 'architecture "qwen3mop" is not known' ask -m "$WORK/edited.gguf" hello
    edit tensor-type blk.0.attn_q.weight 77
    refuse 6 "blk.0.attn_q.weight" ask -m "$WORK/edited.gguf" hello
    edit tensor-name blk.1.attn_k.weight blk.1.attn_z.weight
    refuse 5 "lacks the tensor blk.1.attn_k.weight" ask -m "$WORK/edited.gguf" hello
    edit tensor-offset blk.1.attn_k.weight 1099511627776
    refuse 5 "blk.1.attn_k.weight" ask -m "$WORK/edited.gguf" hello
    edit tensor-swap-dims blk.0.ffn_down_exps.weight
    refuse 5 "blk.0.ffn_down_exps.weight" ask -m "$WORK/edited.gguf" hello
    edit u32 qwen3moe.attention.head_count 0
    refuse 5 "head_count" ask -m "$WORK/edited.gguf" hello
    edit u32 qwen3moe.expert_used_count 4000
    refuse 5 "expert_used_count" ask -m "$WORK/edited.gguf" hello
    edit u32 qwen3moe.block_count 4294967295
    refuse 5 "block_count" ask -m "$WORK/edited.gguf" hello
    edit key-name qwen3moe.feed_forward_length qwen3moe.expert_shared_count
    refuse 5 "lacks the tensor blk.0.ffn_gate_shexp.weight" ask -m "$WORK/edited.gguf" hello
    edit pre notapretok
    refuse 6 "notapretok" ask -m "$WORK/edited.gguf" hello
else
    echo "python3 is not here: edited files are not tried"
fi

# ---- settings ----------------------------------------------------------------------------------------------
printf '[memory]\nmax-memry = 4G\n' >"$WORK/bad.ini"
refuse 2 "max-memory" ask -m "$MODEL" --config "$WORK/bad.ini" hello
refuse 2 "temperature" "$COLIBRI" run -m "$MODEL" --temprature 0 hello
refuse 2 "no model given" "$COLIBRI" run hello
refuse 2 "yes or no" "$COLIBRI" run -m "$MODEL" --set run.raw=maybe hello
refuse 2 "the prompt is empty" "$COLIBRI" run -m "$MODEL"
printf 'before\0after' >"$WORK/nul.txt"
refuse 2 "NUL byte" "$COLIBRI" run -m "$MODEL" -f "$WORK/nul.txt"
refuse 3 "lru" ask -m "$MODEL" --expert-policy lrv hello
refuse 3 "sliding-window" ask -m "$MODEL" --kv-strategy sliding-windw hello
refuse 2 "does not apply" ask -m "$MODEL" --kv-budget 64 hello
refuse 2 "has no experts" ask -m "$ARCH/llama.gguf" --expert-slots 4 hello
refuse 2 "has no experts" ask -m "$ARCH/llama.gguf" --expert-policy lfu hello
printf '[store]\nexpert-policy = lfu\n' >"$WORK/policy.ini"
run 0 ask -m "$ARCH/llama.gguf" --config "$WORK/policy.ini" hello
refuse 2 "out of range" ask -m "$MODEL" --expert-slots 4294967296 hello
refuse 2 "out of range" "$COLIBRI" run -m "$MODEL" -n 4294967297 hello
refuse 2 "--system does not apply" ask -m "$MODEL" --system x hello

# ---- limits ------------------------------------------------------------------------------------------------
words=$(printf 'word %.0s' $(seq 400))
refuse 8 "the context holds 128" ask -m "$MODEL" --ctx 128 "$words"
refuse 7 "would fit: --max-memory" ask -m "$MODEL" --max-memory 16M hello
fit=$(sed -n 's/.*would fit: --max-memory \([0-9]*M\).*/\1/p' "$WORK/err")
[ -n "$fit" ] || fail "the refusal names no budget that fits"
run 0 ask -m "$MODEL" --max-memory "${fit:-1G}" hello

# ---- plugins -----------------------------------------------------------------------------------------------
mkdir -p "$WORK/none" "$WORK/open"
run 0 env COLIBRI_PLUGIN_PATH="$WORK/none" "$COLIBRI" run -m "$MODEL" --raw --temperature 0 -n 4 hello
best=$(cat "$WORK/out")
# an installation without any plugin file runs on the built-in reference, and says so
mkdir -p "$WORK/bare/bin" "$WORK/bare/$(realpath --relative-to="$BINARY_DIR" "$(dirname "$(find "$BINARY_DIR" -name 'format-q4_k.so' | head -n 1)")")"
cp "$COLIBRI" "$WORK/bare/bin/colibri"
run 0 "$WORK/bare/bin/colibri" run -m "$MODEL" --raw --temperature 0 -n 4 --stats hello
grep -Eq "^  expert-policy +adaptive +adaptive +built-in$" "$WORK/err" || fail "a run without plugins does not say that built-in ones served: $(cat "$WORK/err")"
[ "$(head -n 1 "$WORK/out")" = "$best" ] || fail "the built-in reference gave other text: $(cat "$WORK/out") instead of $best"
# a world-writable folder is refused, with a reason, and the run goes on
cp "$(find "$BINARY_DIR" -name 'expert-policy-lru.so' | head -n 1)" "$WORK/open/"
chmod 777 "$WORK/open"
run 0 env COLIBRI_PLUGIN_PATH="$WORK/open" "$COLIBRI" plugins list
grep -q "$WORK/open" "$WORK/out" "$WORK/err" || fail "the world-writable folder is not named"

# ---- output ------------------------------------------------------------------------------------------------
if [ -w /dev/full ]; then
    code=0
    "$COLIBRI" run -m "$MODEL" --raw --temperature 0 -n 8 hello >/dev/full 2>"$WORK/err" || code=$?
    [ "$code" = 4 ] || fail "writing to a full disk ended with $code"
    [ "$(wc -l <"$WORK/err")" = 1 ] || fail "writing to a full disk said: $(cat "$WORK/err")"
fi
finish
