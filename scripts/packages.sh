# Debian packages, by what they are for. Sourced by demo.sh, test.sh and .ci/run.
# shellcheck shell=sh disable=SC2034

# Build and run: compiler, CMake, and the libraries of the README's list.
PACKAGES_BUILD="gcc libc6-dev cmake ninja-build pkg-config libcpu-features-dev libinih-dev libhwloc-dev libpcre2-dev
 libutf8proc-dev libjansson-dev libmicrohttpd-dev libedit-dev liburing-dev libffi-dev libxxhash-dev"
# The test suite.
PACKAGES_TEST="libcmocka-dev python3 groff-base curl"
# What continuous integration adds: Clang for the fuzzers, an AArch64 compiler and emulator for the NEON kernels, Lua and a BLAS
# for foreign functions.
PACKAGES_CI="clang libclang-rt-14-dev gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user liblua5.4-dev libblas3"

# need PACKAGE...: installs those that are missing, with sudo where we are not root.
need() {
    missing=""
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
    done
    [ -z "$missing" ] && return 0
    command -v apt-get >/dev/null 2>&1 || {
        echo "These Debian packages are needed (other systems: the same libraries by their own names):$missing" >&2
        return 1
    }
    if [ "$(id -u)" = 0 ]; then sudo=""; else sudo=sudo; fi
    echo "Installing$missing"
    $sudo apt-get update -qq
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
}
