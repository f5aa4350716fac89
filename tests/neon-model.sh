#!/usr/bin/env bash
# The whole engine on AArch64, under qemu-user: logits of the models in this tree must have the bytes that the native
# build computes, with the scalar reference, with NEON without i8mm, and with i8mm.
#
#   tests/neon-model.sh [NATIVE_BUILD [BUILD]]      default: build/release build/neon-model
#
# The AArch64 libraries come from Debian packages, unpacked below BUILD: nothing is installed, and no root is needed.
# COLIBRI_AARCH64_SYSROOT names a folder that has them already. What cannot be had here is said, and the exit status is 77.
set -euo pipefail
cd "$(dirname "$0")/.."
native=${1:-build/release}
build=${2:-build/neon-model}
packages="libcpu-features-dev libinih-dev libinih1 libhwloc-dev libhwloc15 libpcre2-dev libpcre2-8-0 libutf8proc-dev
 libutf8proc2 liburing-dev liburing2 libffi-dev libffi8 libxxhash-dev libxxhash0 libjansson-dev libjansson4 libedit-dev
 libedit2 libcmocka-dev libcmocka0 libtinfo6 libbsd0 libmd0 libudev1 libmicrohttpd-dev libmicrohttpd12 libgnutls28-dev
 libgnutls30 nettle-dev libnettle8 libhogweed6 libtasn1-6-dev libtasn1-6 libidn2-dev libidn2-0 libunistring2 libp11-kit-dev
 libp11-kit0 libgmp10"
triple=aarch64-linux-gnu

skip() {
    echo "neon-model: skipped: $*"
    exit 77
}

for tool in qemu-aarch64 $triple-gcc cmake ninja; do
    command -v "$tool" >/dev/null || skip "$tool is not here"
done
[ -x "$native/tests/dump_logits" ] || skip "$native/tests/dump_logits is not built"
mkdir -p "$build"
build=$(cd "$build" && pwd)
native=$(cd "$native" && pwd)

# An apt of its own: this machine's sources, AArch64 only, no installed packages.
sysroot=${COLIBRI_AARCH64_SYSROOT:-$build/sysroot}
if [ "$sysroot" = "$build/sysroot" ] && [ "$(cat "$sysroot.packages" 2>/dev/null)" != "$packages" ]; then
    rm -rf "$sysroot" # made for an older list
fi
if [ ! -d "$sysroot/usr/lib/$triple" ]; then
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || skip "the libraries for AArch64 need apt-get"
    rm -rf "$build/apt" "$build/sysroot" "$build/sysroot.part"
    mkdir -p "$build/apt/lists/partial" "$build/apt/cache/archives/partial" "$build/apt/debs"
    : >"$build/apt/status"
    cat >"$build/apt/apt.conf" <<EOF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "$(id -un)";
Dir::State "$build/apt";
Dir::State::status "$build/apt/status";
Dir::Cache "$build/apt/cache";
EOF
    export APT_CONFIG=$build/apt/apt.conf
    apt-get update -qq >"$build/apt/log" 2>&1 || skip "apt-get update failed: $(tail -n 1 "$build/apt/log")"
    # shellcheck disable=SC2086
    (cd "$build/apt/debs" && apt-get download -qq $packages >>../log 2>&1) ||
        skip "the libraries for AArch64 cannot be downloaded: $(tail -n 1 "$build/apt/log")"
    for deb in "$build"/apt/debs/*.deb; do
        dpkg-deb -x "$deb" "$build/sysroot.part"
    done
    mv "$build/sysroot.part" "$build/sysroot"
    printf '%s\n' "$packages" >"$build/sysroot.packages"
    unset APT_CONFIG
fi

lib=$sysroot/usr/lib/$triple
export PKG_CONFIG_LIBDIR=$lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$sysroot
cmake -G Ninja -S . -B "$build/cmake" -DCMAKE_BUILD_TYPE=Release -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/$triple.cmake" \
    -DCMAKE_FIND_ROOT_PATH="$sysroot;/usr/$triple" -DCpuFeatures_DIR="$lib/cmake/CpuFeatures" \
    -DCMAKE_C_FLAGS="-idirafter $sysroot/usr/include -idirafter $sysroot/usr/include/$triple" \
    -DCMAKE_EXE_LINKER_FLAGS="-L$lib -Wl,-rpath-link,$lib:$sysroot/lib/$triple" -DCOLIBRI_WERROR=ON >/dev/null
# shellcheck disable=SC2046
nice ninja -C "$build/cmake" dump_logits colibri \
    $(ninja -C "$build/cmake" -t targets all | sed -n 's,^\(lib/colibri/plugins/[^:]*\.so\): .*,\1,p') \
    >"$build/ninja.log" || { tail -n 40 "$build/ninja.log"; exit 1; }

# emulate CPU COMMAND...
emulate() {
    QEMU_CPU=$1 qemu-aarch64 -L "/usr/$triple" -E "LD_LIBRARY_PATH=$lib:$sysroot/lib/$triple" "${@:2}" 2>"$build/stderr" ||
        { cat "$build/stderr" >&2; return 1; }
}

# What the runs below are meant to use must be what they use.
expect_kernel() {
    local cpu=$1 name=$2 out
    out=$(emulate "$cpu" "$build/cmake/bin/colibri" plugins why Q4_K)
    grep -q "choice  *kernel: $name\$" <<<"$out" ||
        { printf 'neon-model: on %s, %s is not chosen:\n%s\n' "$cpu" "$name" "$out"; exit 1; }
}
expect_kernel cortex-a76 neon.q4_k
expect_kernel max neon-i8mm.q4_k

# n token ids that every model here has
ids() {
    python3 -c 'import struct, sys
n = int(sys.argv[1])
sys.stdout.buffer.write(struct.pack("<%dI" % n, *((i * 37 + 11) % 100 for i in range(n))))' "$1"
}

failures=0 compared=0
# compare MODEL WHAT NAME CPU SETTING...
compare() {
    emulate "$4" "$build/cmake/tests/dump_logits" "$1" "$build/ids" "$build/got" "${@:5}" >/dev/null
    compared=$((compared + 1))
    cmp -s "$build/want" "$build/got" && return
    echo "neon-model: $(basename "$1"), $2, $3: logits differ from the native ones"
    failures=$((failures + 1))
}

# check MODEL TOKENS SETTING...
check() {
    local model=$1 n=$2 what="$2 tokens${3:+, ${*:3}}"
    shift 2
    ids "$n" >"$build/ids"
    "$native/tests/dump_logits" "$model" "$build/ids" "$build/want" ctx=64 "$@" 2>"$build/stderr" ||
        { cat "$build/stderr"; exit 1; }
    compare "$model" "$what" "scalar" max ctx=64 cpu.mask=all "$@"
    compare "$model" "$what" "NEON without i8mm" cortex-a76 ctx=64 "$@"
    compare "$model" "$what" "NEON with i8mm" max ctx=64 "$@"
    compare "$model" "$what" "NEON with i8mm, 3 threads" max ctx=64 threads=3 "$@"
}
for model in tests/data/arch/*.gguf; do
    check "$model" 40
done
# One row uses the kernels of decode; 3 and 40 rows use small and large tiles, and several rows per expert.
for model in examples/tiny-moe/*.gguf; do
    for n in 1 3 40; do
        check "$model" "$n"
    done
done
# Quantized keys and values, of which the last stay F16: 40 rows at once, and row by row, as decode reads them.
for model in examples/tiny-moe/*.gguf tests/data/arch/qwen3moe.gguf; do
    for type in q8_0 q4_0; do
        for batch in 512 1; do
            check "$model" 40 kv-type="$type" kv-recent=16 batch="$batch"
        done
    done
done
echo "neon-model: $compared runs compared, $failures differ"
[ "$failures" = 0 ]
