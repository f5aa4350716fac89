/* What the CPU offers, which plugins that selects, and what holds it back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "doctor.h"
#include "plugin/introspect.h"

#define SECTION "cpu"
#define CPU_DIR "/sys/devices/system/cpu/"

static void cores(clb_doctor *d, const clb_topology *t)
{
    const uint32_t n = clb_topology_default_threads(t),
                   asked = (uint32_t)clb_config_u64(d->config, CLB_SET_cpu_threads);
    clb_doctor_add(d, SECTION, "cores", CLB_DOCTOR_OK, NULL, "%s: %u cores, %u hardware threads; %u worker threads",
                   t->model, t->cores, t->threads, asked ? asked : n);
    if (asked > t->cores)
        clb_doctor_add(d, SECTION, "threads", CLB_DOCTOR_WARN,
                       "Leave --threads at 0, or find the best with 'colibri bench --sweep threads=1..N'.",
                       "--threads %u on %u cores: two workers on one core wait for each other", asked, t->cores);
    if (t->quota > 0.0)
        clb_doctor_add(
            d, SECTION, "quota", t->quota < t->cores ? CLB_DOCTOR_WARN : CLB_DOCTOR_NOTE,
            "Give the container more CPU time (docker --cpus, systemd CPUQuota), if it should be faster.",
            "a cgroup grants %.1f CPUs' worth of time; threads beyond that are stopped in the middle of a step",
            t->quota);
    if (t->narrowed)
        clb_doctor_add(d, SECTION, "affinity", CLB_DOCTOR_NOTE,
                       "Start it without taskset if the whole machine is meant.",
                       "this process is bound to %u of the machine's hardware threads", t->threads);
    if (t->fast_cores && t->fast_cores < t->cores)
        clb_doctor_add(d, SECTION, "hybrid", CLB_DOCTOR_NOTE, NULL,
                       "%u of %u cores are fast ones and get a worker each; a slow core would hold all others up",
                       t->fast_cores, t->cores);
}

static void features(clb_doctor *d)
{
    struct colibri_cpu_bits bits;
    char text[CLB_CPU_TEXT_MAX];
    clb_cpu_detect(&bits);
    clb_doctor_add(d, SECTION, "features", CLB_DOCTOR_OK, NULL, "usable instructions: %s", clb_cpu_format(bits, text));
    const char *const *masked;
    const size_t n = clb_config_list(d->config, CLB_SET_cpu_mask, &masked);
    for (size_t k = 0; k < n; k++)
        clb_doctor_add(d, SECTION, "mask", CLB_DOCTOR_WARN, "Remove [cpu] mask.", "the settings hide from Colibri: %s",
                       masked[k]);
}

/* Kernel plugins: those that serve, those that this CPU cannot use, those that are refused for another reason. */
static void plugins(clb_doctor *d, const clb_registry *reg)
{
    char good[400] = "";
    uint32_t n_good = 0, n_cpu = 0;
    for (size_t i = 0; i < clb_registry_n_plugins(reg); i++) {
        clb_plugin_view v;
        clb_registry_plugin(reg, i, &v);
        const bool kernels = v.note && (v.note->kinds & COLIBRI_KIND_KERNEL);
        if (v.state == CLB_PLUGIN_REJECTED && kernels && v.reason && strstr(v.reason, "CPU")) {
            n_cpu++;
        } else if (v.state == CLB_PLUGIN_REJECTED) {
            clb_doctor_add(d, SECTION, "plugin", CLB_DOCTOR_WARN, "'colibri plugins check FILE' tells more.",
                           "plugin %s is refused: %s", v.path ? v.path : v.id,
                           v.reason ? v.reason : "for an unknown reason");
        } else if (kernels && v.path && (v.state == CLB_PLUGIN_AVAILABLE || v.state == CLB_PLUGIN_LOADED)) {
            const size_t at = strlen(good);
            snprintf(good + at, sizeof good - at, "%s%s", n_good++ ? ", " : "", v.id);
        }
    }
    if (n_good)
        clb_doctor_add(d, SECTION, "kernels", CLB_DOCTOR_OK, NULL,
                       "kernel plugins that this CPU can use: %s (%u others need other CPUs)", good, n_cpu);
    else
        clb_doctor_add(
            d, SECTION, "kernels", CLB_DOCTOR_WARN,
            "Install the kernel plugins of this architecture; 'colibri plugins paths' shows where they are looked for.",
            "no kernel plugin can be used here: everything runs on the scalar reference (measured against "
            "AVX-512 kernels: prompts take 16 to 28 times as long, generating 7 times)");
}

static void governor(clb_doctor *d)
{
    char name[64];
    long long most, least, now;
    if (clb_doctor_line(d, CPU_DIR "cpu0/cpufreq/scaling_governor", name, sizeof name)) {
        const bool slow = strcmp(name, "powersave") == 0 || strcmp(name, "conservative") == 0;
        char driver[64] = "";
        clb_doctor_line(d, CPU_DIR "cpu0/cpufreq/scaling_driver", driver, sizeof driver);
        /* With hardware-controlled states "powersave" is the normal, dynamic choice; amd-pstate without epp obeys. */
        const bool dynamic = strcmp(driver, "intel_pstate") == 0 || strcmp(driver, "amd-pstate-epp") == 0;
        clb_doctor_add(d, SECTION, "governor", slow && !dynamic ? CLB_DOCTOR_WARN : CLB_DOCTOR_OK,
                       slow && !dynamic ? "Set it to schedutil or performance: 'cpupower frequency-set -g performance'."
                                        : NULL,
                       "frequency governor: %s%s%s", name, *driver ? ", driver " : "", driver);
    }
    if (clb_doctor_number(d, CPU_DIR "cpu0/cpufreq/cpuinfo_max_freq", &most) &&
        clb_doctor_number(d, CPU_DIR "cpu0/cpufreq/scaling_max_freq", &now) && now < most * 9 / 10)
        clb_doctor_add(d, SECTION, "frequency", CLB_DOCTOR_WARN, "Raise scaling_max_freq, or change the power profile.",
                       "the clock is limited to %.1f of %.1f GHz", (double)now / 1e6, (double)most / 1e6);
    if (clb_doctor_number(d, CPU_DIR "cpu0/thermal_throttle/package_throttle_count", &least) && least > 0)
        clb_doctor_add(d, SECTION, "throttling", CLB_DOCTOR_NOTE,
                       "If it goes on while a model runs ('colibri bench --sustained 5'), cooling limits the speed.",
                       "the CPU has throttled %lld times since the machine started", least);
}

static void nodes(clb_doctor *d)
{
    clb_numa_node node[16];
    const uint32_t n = clb_doctor_nodes(d, node, 16);
    if (n < 2)
        return;
    const char *const mode = clb_config_str(d->config, CLB_SET_cpu_numa);
    clb_doctor_add(d, SECTION, "numa", strcmp(mode, "off") == 0 ? CLB_DOCTOR_WARN : CLB_DOCTOR_OK,
                   "Compare 'colibri bench --numa bind' and '--numa interleave': a model that fits one node is usually "
                   "fastest bound.",
                   "%u memory nodes, --numa %s", n, mode);
    for (uint32_t i = 0; i < n && i < 16; i++)
        clb_doctor_add(d, SECTION, "numa-node", CLB_DOCTOR_OK, NULL,
                       "node %u: %u hardware threads, %.1f of %.1f GiB free", node[i].id, node[i].threads,
                       (double)node[i].free_bytes / 0x1p30, (double)node[i].total_bytes / 0x1p30);
}

void clb_doctor_cpu(clb_doctor *d, const clb_registry *registry)
{
    clb_topology t;
    if (clb_doctor_topology(d, &t))
        cores(d, &t);
    if (*d->root)
        clb_doctor_add(d, SECTION, "elsewhere", CLB_DOCTOR_NOTE, NULL,
                       "instructions and kernel plugins (and with a model its files, its plan and all rates) are those "
                       "of this machine, not of the one below --sysroot");
    features(d);
    plugins(d, registry);
    governor(d);
    nodes(d);
}
