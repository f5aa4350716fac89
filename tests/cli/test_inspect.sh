#!/bin/bash
# colibri inspect: the summary, the tables, JSON, split models, hostile and broken files.
. "$(dirname "$0")/lib.sh"
c=$COLIBRI
data=$SOURCE_DIR/tests/data/gguf
tiny=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
esc=$(printf '\033')

# No control characters but newlines on stdout.
printable() {
    ! LC_ALL=C grep -q '[[:cntrl:]]' "$WORK/out" || fail "control characters on stdout"
}

# The summary, against numbers worked out by hand from the tensor list.
run 0 "$c" inspect "$tiny"
out 'architecture    qwen3moe'
out 'name            Tiny-MoE 35M'
out 'parameters      34.6 M (34,581,888)'
out 'per token       6.01 M parameters, 3.8 MiB of weights'
out 'context         2304 tokens'
out 'layers          5'
out 'heads           4 query, 2 key/value, 64 wide'
out 'experts         32, 4 used per token, in 5 layers'
out 'expert size     108.0 KiB to 124.5 KiB (differs by layer)'
out 'tokenizer       gpt2 / qwen2, 4,096 tokens, with a chat template'
out '  experts            17.9 MiB   89.5 %       15      31.5 M'
out '  Q4_K               15.7 MiB   78.4 %       32      29.2 M'
[ ! -s "$WORK/err" ] || fail "stderr: $(cat "$WORK/err")"
run 0 "$c" inspect -m "$tiny"
out 'architecture    qwen3moe'

# Every byte of the tensors is in exactly one role and one type.
run 0 "$c" inspect "$tiny" --json
out '"weight_bytes": 20973568'
out '"weight_bytes_per_token": 3954688'
out '"parameters_per_token": 6008192'
out '"min_bytes": 110592'
out '"max_bytes": 127488'
out '"context_length": 2304'
out '"chat_template": true'
for part in roles types; do
    sum=$(sed -n "/^  \"$part\"/,/^  []}]/p" "$WORK/out" | awk '/"bytes"/ { gsub(/[^0-9]/, ""); s += $0 } END { print s }')
    [ "$sum" = 20973568 ] || fail "the $part add up to $sum"
done
! grep -q '"metadata"\|"tensors": \[' "$WORK/out" || fail "--json alone prints more than the summary"

run 0 "$c" inspect "$tiny" --tensors
[ "$(wc -l <"$WORK/out")" = 64 ] || fail "--tensors prints $(wc -l <"$WORK/out") lines for 63 tensors"
out 'Q4_K     256 x 256 x 32                    1179648          1691328 blk.0.ffn_down_exps.weight'
run 0 "$c" inspect "$tiny" --metadata
[ "$(wc -l <"$WORK/out")" = 30 ] || fail "--metadata prints $(wc -l <"$WORK/out") lines for 30 keys"
out 'u32       qwen3moe.expert_count = 32'
out 'f32       qwen3moe.attention.layer_norm_rms_epsilon = 1e-06'
out 'bool      tokenizer.ggml.add_bos_token = false'
out ', ... (4096 in all)]'
run 0 "$c" inspect "$tiny" --metadata --full
out '"<|im_start|>", "<|im_end|>"]'
! grep -qF '... (' "$WORK/out" || fail "--full abbreviates"

# Every type of value, as Python's gguf package wrote it.
run 0 "$c" inspect "$data/all.gguf" --metadata
out 'u64       scalar.u64.1 = 18446744073709551615'
out 'i64       scalar.i64.0 = -9223372036854775808'
out 'i8[]      array.i8 = [-128, 127]'
out 'f32[]     array.f32 = [-0.5, 1e-05]'
out 'f64[]     array.f64 = [1e+300, -0.1]'
out 'bool[]    array.bool = [false, true]'
out 'string[]  array.string = ["", "Grüße 你好\n"]'
out 'array[]   array.nested_strings = [[["a", "bc"]], [[""], ["def"]]]'
run 0 "$c" inspect "$data/all.gguf" --json --metadata --tensors
out '"value": "18446744073709551615"'
out '"value": -9223372036854775808'
out '"value": "Gr\u00FC\u00DFe \u4F60\u597D\n"'
out '"element_type": "array"'
out '"name": "q8.weight"'

# Hostile strings, unknown types, per-layer values, one tensor per expert.
run 0 "$c" inspect "$data/odd.gguf"
out 'name            \x1b]0;title\x07\x1b[2J evil \xff'
out 'heads           4-8 (differs by layer)'
out 'experts         2, 1 used per token, 1 shared, in 2 layers'
out 'expert size     2.0 KiB to 4.0 KiB (differs by layer)'
out '  shared experts      4.0 KiB'
out '  type 77                64 B'
out '1 tensor is of a type unknown to this version'
printable
run 0 "$c" inspect "$data/odd.gguf" --metadata --tensors
out 'string    odd.café = "é\xc3"'
out 'f64       odd.nan = nan'
out 'f64       odd.third = 0.3333333333333333'
out 'ä"... (300 bytes)'
out 'i32[]     odd.many = [0, 1, 2, 3, 4, 5, 6, 7, ... (100 in all)]'
out 'mystery\x1b[31m'
printable
run 0 "$c" inspect "$data/odd.gguf" --metadata --full
out '97, 98, 99]'
! grep -qF '(300 bytes)' "$WORK/out" || fail "--full cuts strings"
run 0 "$c" inspect "$data/odd.gguf" --json --metadata --tensors
out '"hex": "1b5d303b7469746c65071b5b324a206576696c20ff"'
out '"value": "nan"'
out '"value": 0.33333333333333331'
out '"abbreviated": true'
out '"bytes": null'
printable
if command -v python3 >/dev/null; then
    python3 -c 'import json, sys; json.load(sys.stdin)' <"$WORK/out" || fail "not JSON"
fi

# Split models: from the first file only.
run 0 "$c" inspect "$data/split-00001-of-00003.gguf"
out ' in 3 files'
run 0 "$c" inspect "$data/split-00001-of-00003.gguf" --tensors
out '   2 blk.3.weight'
refuse 2 'open the first one: ' "$c" inspect "$data/split-00003-of-00003.gguf"
cp "$data/split-00001-of-00003.gguf" "$data/split-00003-of-00003.gguf" "$WORK"
refuse 3 'file 2 of 3 of the split model is missing' "$c" inspect "$WORK/split-00001-of-00003.gguf"

# Broken and missing files; wrong use.
head -c 1000 "$tiny" >"$WORK/cut.gguf"
refuse 5 'incomplete download?' "$c" inspect "$WORK/cut.gguf"
head -c 20000000 "$tiny" >"$WORK/cut.gguf"
refuse 5 'but the file ends at byte 20000000 (incomplete download?)' "$c" inspect "$WORK/cut.gguf"
: >"$WORK/empty.gguf"
refuse 5 'is empty' "$c" inspect "$WORK/empty.gguf"
refuse 5 'is a directory' "$c" inspect "$WORK"
refuse 3 'No such file' "$c" inspect "$WORK/none.gguf"
cp "$data/all.gguf" "$WORK/${esc}[2Jx.gguf"
run 0 "$c" inspect "$WORK/${esc}[2Jx.gguf"
out '/\x1b[2Jx.gguf'
printable
refuse 3 '[2Jnone.gguf' "$c" inspect "$WORK/${esc}[2Jnone.gguf"
refuse 2 'which file' "$c" inspect
refuse 2 "unexpected argument" "$c" inspect "$tiny" "$tiny"
refuse 2 'two files' "$c" inspect "$tiny" -m "$data/all.gguf"
refuse 2 '--full goes with --metadata' "$c" inspect "$tiny" --full
refuse 2 "did you mean '--tensors'" "$c" inspect "$tiny" --tensor
for flags in '' --metadata --tensors --json; do
    code=0
    # shellcheck disable=SC2086
    "$c" inspect "$tiny" $flags >/dev/full 2>"$WORK/err" || code=$?
    [ "$code" = 4 ] || fail "a full disk ended 'inspect $flags' with $code"
done
finish
