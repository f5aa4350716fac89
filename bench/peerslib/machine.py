"""What /proc says: the machine, the load on its cores, the memory of a process."""
import os
import platform
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")


def field(path, name, default=""):
    """Value of the first line 'name : value' of a file in /proc."""
    try:
        for line in Path(path).read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    except OSError:
        pass
    return default


def text(path, default="unknown"):
    try:
        return Path(path).read_text().strip()
    except OSError:
        return default


def describe(cores, threads):
    flags = set(field("/proc/cpuinfo", "flags").split() + field("/proc/cpuinfo", "Features").split())
    interesting = ("avx2", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_int8", "asimddp",
                   "i8mm", "sve")
    return {
        "cpu": field("/proc/cpuinfo", "model name", platform.machine()),
        "cpu_family_model": f"{field('/proc/cpuinfo', 'cpu family')}/{field('/proc/cpuinfo', 'model')}",
        "features": [name for name in interesting if name in flags],
        "cores": cores,
        "threads": threads,
        "kernel": platform.release(),
        "memory": field("/proc/meminfo", "MemTotal"),
        "huge_pages": text("/sys/kernel/mm/transparent_hugepage/enabled"),
        "governor": text(f"/sys/devices/system/cpu/cpu{cores[0]}/cpufreq/scaling_governor", "none"),
    }


def available():
    """Bytes of memory that can still be taken."""
    return int(field("/proc/meminfo", "MemAvailable", "0 kB").split()[0]) * 1024


def parse_status(status):
    """Bytes of resident memory from the text of /proc/PID/status."""
    names = {"VmHWM": "peak", "VmRSS": "rss", "RssAnon": "anonymous", "RssFile": "file"}
    found = {}
    for line in status.splitlines():
        key, _, value = line.partition(":")
        if key in names:
            found[names[key]] = int(value.split()[0]) * 1024
    return found


def memory_of(pid):
    found = parse_status(text(f"/proc/{pid}/status", ""))
    huge = field(f"/proc/{pid}/smaps_rollup", "AnonHugePages", "0 kB")
    found["huge"] = int(huge.split()[0]) * 1024
    return found


def parse_cpu_seconds(stat):
    """Processor seconds from the text of /proc/PID/stat; the name in it may hold blanks and parentheses."""
    rest = stat.rpartition(")")[2].split()
    return (int(rest[11]) + int(rest[12])) / TICK


def cpu_seconds(pid):
    return parse_cpu_seconds(text(f"/proc/{pid}/stat", ""))


def parse_busy(stat, cores):
    """Seconds these cores have been busy or stolen by the hypervisor, from the text of /proc/stat."""
    total = 0
    wanted = {f"cpu{core}" for core in cores}
    for line in stat.splitlines():
        name, *values = line.split()
        if name in wanted:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, values[:8])
            total += user + nice + system + irq + softirq + steal
    return total / TICK


def busy_seconds(cores):
    return parse_busy(text("/proc/stat", ""), cores)
