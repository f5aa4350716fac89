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

# level LEVEL ID...: the JSON of the last run has these findings.
run_json() {
    run "$1" "$c" doctor --json "${@:2}"
    cp "$WORK/out" "$WORK/doctor.json"
}
level() {
    python3 -S - "$WORK/doctor.json" "$@" <<'PY' || fail "not all of '$*': $(head -c 2000 "$WORK/doctor.json")"
import json, sys
o = json.load(open(sys.argv[1]))
assert o["failures"] == sum(f["level"] == "failure" for f in o["findings"])
assert o["warnings"] == sum(f["level"] == "warning" for f in o["findings"])
for name in sys.argv[3:]:
    assert any(f["level"] == sys.argv[2] and f["id"] == name and f["text"] for f in o["findings"]), name
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
level warning available swap swappiness zone-reclaim huge-pages governor frequency network
level note throttling kind scheduler encryption
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
out "are those of this machine, not of the one below --sysroot"
grep -qE "hardware threads;|memory nodes|may be locked|leaves .* to this process" "$WORK/out" && fail "made up: $(cat "$WORK/out")"

# encryption below LVM, below RAID on a partition, and none
device=$(stat -c '%Hd:%Ld' "$MODEL")
lvm=$WORK/lvm
mkdir -p "$lvm/proc/self" "$lvm/sys/dev/block/$device/dm" "$lvm/sys/dev/block/$device/slaves/dm-0/dm"
echo "1 0 $device / / rw - ext4 /dev/mapper/vg-root rw" >"$lvm/proc/self/mountinfo"
echo LVM-abc >"$lvm/sys/dev/block/$device/dm/uuid"
echo CRYPT-LUKS2-x >"$lvm/sys/dev/block/$device/slaves/dm-0/dm/uuid"
run_json 0 --sysroot "$lvm" -m "$MODEL" --no-measure
level note encryption
echo LVM-def >"$lvm/sys/dev/block/$device/slaves/dm-0/dm/uuid"
run_json 0 --sysroot "$lvm" -m "$MODEL" --no-measure
grep -q '"encryption"' "$WORK/doctor.json" && fail "a drive that is not encrypted is said to be"
mkdir -p "$lvm/sys/md127/md127p1" "$lvm/sys/md127/slaves/dm-3/dm" "$lvm/sys/sda"
mkdir "$lvm/sys/dev/block/$device/slaves/dm-0/slaves"
ln -s "$lvm/sys/md127/md127p1" "$lvm/sys/dev/block/$device/slaves/dm-0/slaves/md127p1"
echo 1 >"$lvm/sys/md127/md127p1/partition"
echo CRYPT-PLAIN-y >"$lvm/sys/md127/slaves/dm-3/dm/uuid"
run_json 0 --sysroot "$lvm" -m "$MODEL" --no-measure
level note encryption
mkdir "$lvm/sys/dev/block/$device/slaves/dm-0/slaves/dm-9"
ln -s .. "$lvm/sys/dev/block/$device/slaves/dm-0/slaves/dm-9/slaves" # in a circle
rm "$lvm/sys/md127/slaves/dm-3/dm/uuid"
run_json 0 --sysroot "$lvm" -m "$MODEL" --no-measure
grep -q '"encryption"' "$WORK/doctor.json" && fail "a drive that is not encrypted is said to be"

# cores, nodes and limits of another machine: two sockets of 4 cores with two threads each, of which 12 may be used
two=$WORK/two
mkdir -p "$two/proc/self" "$two/sys/fs/cgroup/a" "$two/sys/devices/system/cpu" "$two/sys/devices/system/node"
echo 0-15 >"$two/sys/devices/system/cpu/online"
for i in $(seq 0 15); do
    mkdir -p "$two/sys/devices/system/cpu/cpu$i/topology"
    echo $((i % 8 / 4)) >"$two/sys/devices/system/cpu/cpu$i/topology/physical_package_id"
    echo $((i % 4)) >"$two/sys/devices/system/cpu/cpu$i/topology/core_id"
done
printf 'processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n' >"$two/proc/cpuinfo"
printf 'VmSize:\t  1048576 kB\nCpus_allowed_list:\t0-11\n' >"$two/proc/self/status"
echo 0-1 >"$two/sys/devices/system/node/has_memory"
for i in 0 1; do
    mkdir "$two/sys/devices/system/node/node$i"
    printf 'Node %s MemTotal: 67108864 kB\nNode %s MemFree: 33554432 kB\n' $i $i >"$two/sys/devices/system/node/node$i/meminfo"
    echo "$((4 * i))-$((4 * i + 3)),$((4 * i + 8))-$((4 * i + 11))" >"$two/sys/devices/system/node/node$i/cpulist"
done
printf 'MemTotal: 134217728 kB\nMemAvailable: 100663296 kB\n' >"$two/proc/meminfo"
echo '0::/a' >"$two/proc/self/cgroup"
echo '300000 100000' >"$two/sys/fs/cgroup/a/cpu.max"
echo $((8 << 30)) >"$two/sys/fs/cgroup/a/memory.max"
echo $((2 << 30)) >"$two/sys/fs/cgroup/a/memory.current"
limit() { printf '%-26s%-21s%-21s%s\n' "$@"; }
{
    limit Limit 'Soft Limit' 'Hard Limit' Units
    limit 'Max data size' unlimited unlimited bytes
    limit 'Max open files' 512 4096 files
    limit 'Max locked memory' 8388608 8388608 bytes
    limit 'Max address space' 4294967296 unlimited bytes
} >"$two/proc/self/limits"
run_json 0 --sysroot "$two"
level ok cores numa-node
level warning quota numa limit files
level note affinity mlock
run 0 "$c" doctor --sysroot "$two"
out "Some CPU @ 2 GHz: 8 cores, 12 hardware threads; 3 worker threads"
out "a cgroup grants 3.0 CPUs"
out "bound to 12 of the machine's hardware threads"
out "2 memory nodes, --numa off"
out "node 1: 8 hardware threads, 32.0 of 64.0 GiB free"
out "a cgroup's memory limit leaves 6.0 GiB to this process"
out "the limit of address space (ulimit -v) leaves 3.0 GiB to this process"
out "at most 8.0 MiB may be locked"
out "at most 512 files may be open"
# fast and slow cores
mkdir -p "$two/sys/devices/cpu_core" "$two/sys/devices/cpu_atom"
echo 0-3,8-11 >"$two/sys/devices/cpu_core/cpus"
echo 4-7,12-15 >"$two/sys/devices/cpu_atom/cpus"
run 0 "$c" doctor --sysroot "$two"
out "4 of 8 cores are fast ones"

# models that cannot run, and settings that slow them down
run_json 1 -m "$MODEL" --no-measure --max-memory 1M
level failure fit
head -c 500000 "$MODEL" >"$WORK/cut.gguf"
run_json 1 -m "$WORK/cut.gguf"
level failure files
run 1 "$c" doctor -m "$WORK/missing.gguf"
grep -q "cannot run the model like this: 1 failure$" "$WORK/err" || fail "$(cat "$WORK/err")"
out "Check the path"
grep -q "cut short" "$WORK/out" && fail "a file that is not there cannot be cut short"
run 1 "$c" doctor -m "$WORK/cut.gguf"
out "cut short"
run 1 "$c" doctor -m "$WORK"
out "Name a .gguf"
# nothing is read from the drive: one number, not a range from it to itself
run 0 "$c" doctor -m "$MODEL" --no-measure
grep -q "about [0-9.]* tokens per second when generating, about [0-9.]* when" "$WORK/out" || fail "a range: $(cat "$WORK/out")"
run_json 0 -m "$MODEL" --no-measure --mask all
level warning mask kernels
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
