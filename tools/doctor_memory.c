/* Memory of the machine, and everything that bounds or slows what a process gets of it. */
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "doctor.h"

#define SECTION "memory"

static void machine(clb_doctor *d)
{
    unsigned long long total = 0, available = 0, swap = 0, swap_free = 0;
    char a[24], b[24];
    clb_doctor_key(d, "/proc/meminfo", "MemTotal:", &total);
    clb_doctor_key(d, "/proc/meminfo", "MemAvailable:", &available);
    clb_doctor_add(d, SECTION, "available", available < total / 4 ? CLB_DOCTOR_WARN : CLB_DOCTOR_OK,
                   available < total / 4 ? "Close what takes the memory: less of the model will be resident." : NULL,
                   "%s of %s are available", clb_human_bytes(available << 10, a), clb_human_bytes(total << 10, b));
    const clb_memory_limits limits = clb_doctor_memory_limits(d);
    for (enum clb_memory_limit l = CLB_LIMIT_CGROUP; l < CLB_LIMITS; l++)
        if (limits.room[l] != UINT64_MAX)
            clb_doctor_add(d, SECTION, "limit", limits.room[l] < available << 10 ? CLB_DOCTOR_WARN : CLB_DOCTOR_NOTE,
                           "Raise it (docker --memory, systemd MemoryMax, ulimit) if the model should have more.",
                           "%s leaves %s to this process", clb_memory_limit_text(l),
                           clb_human_bytes(limits.room[l], a));
    clb_doctor_key(d, "/proc/meminfo", "SwapTotal:", &swap);
    clb_doctor_key(d, "/proc/meminfo", "SwapFree:", &swap_free);
    if (!swap)
        clb_doctor_add(d, SECTION, "swap", CLB_DOCTOR_NOTE, NULL,
                       "no swap: a budget above what is free ends in the OOM killer");
    else
        clb_doctor_add(
            d, SECTION, "swap", swap - swap_free > swap / 4 ? CLB_DOCTOR_WARN : CLB_DOCTOR_OK,
            swap - swap_free > swap / 4 ? "Find out who swaps; weights that are swapped out are read twice." : NULL,
            "swap: %s, %s in use", clb_human_bytes(swap << 10, a), clb_human_bytes((swap - swap_free) << 10, b));
}

static void kernel_settings(clb_doctor *d)
{
    long long n;
    char text[256];
    if (clb_doctor_number(d, "/proc/sys/vm/swappiness", &n))
        clb_doctor_add(d, SECTION, "swappiness", n > 60 ? CLB_DOCTOR_WARN : CLB_DOCTOR_OK,
                       n > 60 ? "sysctl vm.swappiness=10: weights would be swapped out in favour of file cache." : NULL,
                       "vm.swappiness is %lld", n);
    if (clb_doctor_line(d, "/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text)) {
        const bool never = strstr(text, "[never]") != NULL;
        clb_doctor_add(
            d, SECTION, "huge-pages", never ? CLB_DOCTOR_WARN : CLB_DOCTOR_OK,
            never ? "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: weights in small pages take more "
                    "time to find (measured once: 17 % fewer tokens per second)."
                  : NULL,
            "transparent huge pages: %s", text);
    }
    if (clb_doctor_number(d, "/proc/sys/vm/overcommit_memory", &n) && n == 2)
        clb_doctor_add(
            d, SECTION, "overcommit", CLB_DOCTOR_NOTE, NULL,
            "vm.overcommit_memory is 2: address space counts as memory, and large reservations may be refused");
    if (clb_doctor_number(d, "/proc/sys/vm/zone_reclaim_mode", &n) && n)
        clb_doctor_add(d, SECTION, "zone-reclaim", CLB_DOCTOR_WARN, "sysctl vm.zone_reclaim_mode=0.",
                       "vm.zone_reclaim_mode is %lld: file cache of one node is thrown away while another has memory",
                       n);
}

static void locks(clb_doctor *d)
{
    uint64_t most;
    char a[24];
    const bool wanted = clb_config_bool(d->config, CLB_SET_memory_mlock);
    if (clb_doctor_limit(d, "Max locked memory", RLIMIT_MEMLOCK, &most) && most == UINT64_MAX)
        clb_doctor_add(d, SECTION, "mlock", CLB_DOCTOR_OK, NULL, "memory may be locked without limit (--mlock)");
    else if (most != UINT64_MAX)
        clb_doctor_add(d, SECTION, "mlock", wanted ? CLB_DOCTOR_WARN : CLB_DOCTOR_NOTE,
                       "For --mlock: 'ulimit -l unlimited', or LimitMEMLOCK=infinity in the systemd unit.",
                       "at most %s may be locked in memory (--mlock)", clb_human_bytes(most, a));
    if (clb_doctor_limit(d, "Max open files", RLIMIT_NOFILE, &most) && most < 1024)
        clb_doctor_add(d, SECTION, "files", CLB_DOCTOR_WARN, "ulimit -n 4096: a server needs one for each connection.",
                       "at most %llu files may be open", (unsigned long long)most);
}

void clb_doctor_memory(clb_doctor *d)
{
    machine(d);
    kernel_settings(d);
    locks(d);
}
