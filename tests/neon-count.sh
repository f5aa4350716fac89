#!/usr/bin/env bash
# Instructions that the NEON kernels execute per 1000 multiply-adds, counted under qemu-user: what can be said of their
# speed where there is no such CPU. First the matrix products, then attention over 512 positions by type of keys and
# values and head dimension.
#
#   tests/neon-count.sh [NEON_BUILD [NUMBER ...]]      default: build/neon, 1 2 4 8 16 64 256 activation rows and queries
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/neon}
shift || true
[ $# -gt 0 ] || set -- 1 2 4 8 16 64 256
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc -O2 -shared -fPIC -o "$work/insn.so" tests/tools/insn_plugin.c

# count PROGRAM HEADING NUMBER...
count() {
    aarch64-linux-gnu-gcc -O2 -D_GNU_SOURCE -Isdk/include -o "$work/count" "tests/tools/$1.c" -lm
    qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu -plugin "$work/insn.so" \
        "$work/count" "$build"/lib*/colibri/plugins/kernels-neon.so "${@:3}" 2>&1 |
        awk -v heading="$2" -v columns="${*:3}" '
            /^@1 / { count = $2; next }
            /^@/ { next }
            NF != 3 { print; bad = 1; next }
            !($1 in seen) { seen[$1] = 1; order[++n] = $1 }
            { value[$1, $2] = 1000 * count / $3 }
            END {
                k = split(columns, rows, " ")
                printf "%-18s", heading
                for (i = 1; i <= k; i++) printf "%7d", rows[i]
                print ""
                for (c = 1; c <= n; c++) {
                    printf "%-18s", order[c]
                    for (i = 1; i <= k; i++) printf "%7.0f", value[order[c], rows[i]]
                    print ""
                }
                exit bad || n == 0
            }'
}
count count_matmul "activation rows" "$@"
count count_attention "queries" "$@"
