#!/usr/bin/env bash
# colibri doctor: findings of this machine, of machines made of files, of models that fit, do not fit or are damaged.
. "$(dirname "$0")/lib.sh"
MODEL=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
c=$COLIBRI
export XDG_CACHE_HOME=$WORK/cache

# the machine alone, and a model on it
run 0 "$c" doctor
out "usable instructions: "
out "0 failures"
run 0 "$c" doctor -m "$MODEL" --no-measure
out "160 of 160 experts fit memory"
out "its formats are served: "
out "tokens per second when generating"

# level LEVEL ID: the JSON of the last run has this finding.
run_json() {
    run "$1" "$c" doctor --json "${@:2}"
    cp "$WORK/out" "$WORK/doctor.json"
}
level() {
    python3 - "$WORK/doctor.json" "$1" "$2" <<'PY' || fail "no finding $2 of level $1: $(head -c 2000 "$WORK/doctor.json")"
import json, sys
o = json.load(open(sys.argv[1]))
assert o["failures"] == sum(f["level"] == "failure" for f in o["findings"])
assert o["warnings"] == sum(f["level"] == "warning" for f in o["findings"])
assert any(f["level"] == sys.argv[2] and f["id"] == sys.argv[3] and f["text"] for f in o["findings"])
assert all(f["advice"] for f in o["findings"] if f["level"] in ("warning", "failure") and f["id"] != "path")
PY
}

# a machine with everything wrong: files below --sysroot
bad=$WORK/bad
mkdir -p "$bad/proc/self" "$bad/proc/sys/vm" "$bad/sys/kernel/mm/transparent_hugepage" \
    "$bad/sys/devices/system/cpu/cpu0/cpufreq" "$bad/sys/devices/system/cpu/cpu0/thermal_throttle"
printf 'MemTotal: 16000000 kB\nMemAvailable: 900000 kB\nSwapTotal: 4000000 kB\nSwapFree: 100 kB\n' >"$bad/proc/meminfo"
echo 100 >"$bad/proc/sys/vm/swappiness"
echo 1 >"$bad/proc/sys/vm/zone_reclaim_mode"
echo 'always madvise [never]' >"$bad/sys/kernel/mm/transparent_hugepage/enabled"
echo powersave >"$bad/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
echo acpi-cpufreq >"$bad/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver"
echo 4000000 >"$bad/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"
echo 2000000 >"$bad/sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq"
echo 12 >"$bad/sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count"
device=$(stat -c '%Hd:%Ld' "$MODEL")
drive() { # FSTYPE
    echo "1 0 $device / / rw - $1 source rw" >"$bad/proc/self/mountinfo"
}
drive nfs4
mkdir -p "$bad/sys/dev/block/$device/queue" "$bad/sys/dev/block/$device/dm"
echo 1 >"$bad/sys/dev/block/$device/queue/rotational"
echo 'none [bfq]' >"$bad/sys/dev/block/$device/queue/scheduler"
echo CRYPT-LUKS2-x >"$bad/sys/dev/block/$device/dm/uuid"
run_json 0 --sysroot "$bad" -m "$MODEL" --no-measure
for id in available swap swappiness zone-reclaim huge-pages governor frequency network; do level warning "$id"; done
for id in throttling kind scheduler encryption; do level note "$id"; done
drive tmpfs
run_json 0 --sysroot "$bad" -m "$MODEL" --no-measure
level warning memory-file-system
drive overlay
run_json 0 --sysroot "$bad" -m "$MODEL" --no-measure
level note overlay
# a driver of its own states: powersave is what it should be
echo intel_pstate >"$bad/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver"
run_json 0 --sysroot "$bad"
level ok governor
echo amd-pstate >"$bad/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver"
run_json 0 --sysroot "$bad"
level warning governor
# a mount point with a blank in its name; a device that is mounted elsewhere, too; one that hides another
odd="$WORK/a b"
mkdir "$odd"
cp "$MODEL" "$odd/model.gguf"
device=$(stat -c '%Hd:%Ld' "$odd")
{
    echo "1 0 $device / / rw - ext4 root rw"
    echo "2 0 0:999 / $WORK/a\\040b rw - nfs4 hidden rw"
    echo "3 0 $device / $WORK/a\\040b rw - tmpfs odd rw"
    echo "4 0 $device / /some/very/long/place/where/the/same/device/is/mounted rw - overlay elsewhere rw"
} >"$bad/proc/self/mountinfo"
run_json 0 --sysroot "$bad" -m "$odd/model.gguf" --no-measure
level warning memory-file-system
# nothing can be read: no finding is made up
run 0 "$c" doctor --sysroot "$WORK/nowhere" -m "$MODEL" --no-measure

# models that cannot run, and settings that slow them down
run_json 1 -m "$MODEL" --no-measure --max-memory 1M
level failure fit
head -c 500000 "$MODEL" >"$WORK/cut.gguf"
run_json 1 -m "$WORK/cut.gguf"
level failure files
run 1 "$c" doctor -m "$WORK/missing.gguf"
err "cannot run the model like this"
run_json 0 -m "$MODEL" --no-measure --mask all
level warning mask
level warning kernels
run_json 0 -m "$MODEL" --no-measure --threads 64
level warning threads

# checksums of a packed model, and damage
run 0 "$c" pack "$MODEL" "$WORK/packed.colibri"
run_json 0 -m "$WORK/packed.colibri" --no-measure --deep
level ok checksums
size=$(stat -c %s "$WORK/packed.colibri")
printf '\xff\xff\xff\xff' | dd of="$WORK/packed.colibri" bs=1 seek=$((size - 200000)) conv=notrunc 2>/dev/null
run_json 1 -m "$WORK/packed.colibri" --no-measure --deep
level failure checksums

refuse 2 "unknown" "$c" doctor --no-such-flag
finish
