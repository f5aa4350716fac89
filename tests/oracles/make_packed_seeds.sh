#!/bin/bash
# Writes the packed seeds of tests/fuzz/fuzz_gguf.c and fuzz_model.c, from the plain ones: packed by colibri, the header's
# checksum taken out, which would end every mutation's reading.
# Run: COLIBRI=path/to/colibri make_packed_seeds.sh path/to/tests/fuzz/corpus
set -eu
: "${COLIBRI:?path of the executable}"
corpus=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
value_at=66 # 24 bytes of counts, the key's length, its 30 characters, the value's type
seed() { # FROM TO
    "$COLIBRI" pack "$1" "$work/packed" --force >/dev/null
    dd if=/dev/zero of="$work/packed" bs=1 seek=$value_at count=8 conv=notrunc 2>/dev/null
    cp "$work/packed" "$2"
}
for model in llama mixtral-single olmoe qwen3moe; do
    seed "$corpus/model/$model" "$corpus/model/$model-packed"
done
seed "$corpus/model/qwen2" "$corpus/gguf/packed-dense"
seed "$corpus/model/granitemoe" "$corpus/gguf/packed-experts"
