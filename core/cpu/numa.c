#include "cpu/numa.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/str.h"
#include "cpu/internal.h"

#define MOST_NODES 64u

/* The memory policy that the thread had before, as the kernel tells it: hwloc's own words for it are fewer, so that the
 * default would come back as something else. */
struct saved {
    int mode;
    unsigned long nodes[1024 / (8 * sizeof(unsigned long))];
};
#define SAVED_NODES (8 * sizeof((struct saved *)0)->nodes)

/* MemFree and the file pages that nobody used lately, of one node. */
static uint64_t node_free(uint32_t id)
{
    char path[64], line[160];
    snprintf(path, sizeof path, "/sys/devices/system/node/node%u/meminfo", id);
    FILE *f = fopen(path, "re");
    uint64_t sum = 0;
    while (f && fgets(line, sizeof line, f)) {
        char key[40];
        unsigned long long kib;
        if (sscanf(line, "Node %*u %39[^:]: %llu", key, &kib) == 2 &&
            (!strcmp(key, "MemFree") || !strcmp(key, "Inactive(file)")))
            sum += kib * 1024;
    }
    if (f)
        fclose(f);
    return sum;
}

static uint32_t read_nodes(hwloc_topology_t topology, clb_numa_node *out, uint32_t most)
{
    uint32_t n = 0;
    for (hwloc_obj_t o = NULL; (o = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, o)) != NULL;) {
        if (!o->attr->numanode.local_memory)
            continue;
        if (n < most)
            out[n] = (clb_numa_node){.id = o->os_index,
                                     .threads = (uint32_t)hwloc_bitmap_weight(o->cpuset),
                                     .free_bytes = node_free(o->os_index),
                                     .total_bytes = o->attr->numanode.local_memory};
        n++;
    }
    return n;
}

uint32_t clb_numa_nodes(clb_numa_node *out, uint32_t most)
{
    hwloc_topology_t topology;
    uint32_t n = 0;
    if (clb_topology_open(&topology)) {
        n = read_nodes(topology, out, most);
        hwloc_topology_destroy(topology);
    }
    if (n == 0 && most) {
        *out = (clb_numa_node){.threads = 1};
        n = 1;
    }
    return n ? n : 1;
}

uint32_t clb_numa_choose(const clb_numa_node *nodes, uint32_t n)
{
    uint64_t most = 0;
    uint32_t best = n;
    for (uint32_t i = 0; i < n; i++)
        if (nodes[i].threads && nodes[i].free_bytes > most)
            most = nodes[i].free_bytes;
    for (uint32_t i = 0; i < n; i++)
        if (nodes[i].threads && nodes[i].free_bytes >= most - most / 16 &&
            (best == n || nodes[i].threads > nodes[best].threads))
            best = i;
    return best;
}

static int bind_node(clb_numa *numa, hwloc_topology_t topology, const clb_numa_node *node, clb_error *err)
{
    hwloc_obj_t o = NULL;
    while ((o = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, o)) != NULL && o->os_index != node->id)
        ;
    if (!o)
        return clb_fail(err, COLIBRI_E_UNSUPPORTED, "--numa bind: node %u is gone", node->id);
    /* Not strict: a model larger than the node runs over into the others instead of being killed. */
    if (hwloc_set_membind(topology, o->nodeset, HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET))
        return clb_fail_errno(err, COLIBRI_E_UNSUPPORTED, errno, "--numa bind: the system refuses memory of node %u",
                              node->id);
    if (hwloc_set_cpubind(topology, o->cpuset, HWLOC_CPUBIND_THREAD))
        return clb_fail_errno(err, COLIBRI_E_UNSUPPORTED, errno, "--numa bind: the system refuses the cores of node %u",
                              node->id);
    numa->node = node->id;
    return COLIBRI_OK;
}

static int bind(clb_numa *numa, hwloc_topology_t topology, enum clb_numa_mode mode, const clb_numa_node *nodes,
                uint32_t n, const clb_log *log, clb_error *err)
{
    if (mode == CLB_NUMA_INTERLEAVE) {
        if (hwloc_set_membind(topology, hwloc_topology_get_topology_nodeset(topology), HWLOC_MEMBIND_INTERLEAVE,
                              HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET))
            return clb_fail_errno(err, COLIBRI_E_UNSUPPORTED, errno,
                                  "--numa interleave: the system refuses to spread memory over its %u nodes", n);
        clb_logf(log, COLIBRI_LOG_INFO, "memory is spread over %u nodes", n);
        return COLIBRI_OK;
    }
    const uint32_t at = clb_numa_choose(nodes, n);
    if (at == n)
        return clb_fail(err, COLIBRI_E_UNSUPPORTED, "--numa bind: no memory node has cores that this process may use");
    CLB_TRY(bind_node(numa, topology, &nodes[at], err));
    char human[24];
    clb_logf(log, COLIBRI_LOG_INFO, "bound to memory node %u of %u: %u hardware threads, %s free", nodes[at].id, n,
             nodes[at].threads, clb_human_bytes(nodes[at].free_bytes, human));
    return COLIBRI_OK;
}

int clb_numa_set(clb_numa *numa, enum clb_numa_mode mode, const clb_log *log, clb_error *err)
{
    *numa = (clb_numa){.mode = CLB_NUMA_OFF};
    if (mode == CLB_NUMA_OFF)
        return COLIBRI_OK;
    const char *name = mode == CLB_NUMA_BIND ? "bind" : "interleave";
    hwloc_topology_t topology;
    if (!clb_topology_open(&topology))
        return clb_fail(err, COLIBRI_E_UNSUPPORTED, "--numa %s: the system does not tell its memory nodes", name);
    clb_numa_node nodes[MOST_NODES];
    uint32_t n = read_nodes(topology, nodes, MOST_NODES);
    n = n < MOST_NODES ? n : MOST_NODES;
    if (n < 2) {
        clb_logf(log, COLIBRI_LOG_INFO, "--numa %s changes nothing: the process may use one memory node", name);
        hwloc_topology_destroy(topology);
        return COLIBRI_OK;
    }
    struct saved *saved = calloc(1, sizeof *saved);
    int rc = saved ? COLIBRI_OK : CLB_NOMEM(err, "binding to memory nodes");
    if (!rc && (sched_getaffinity(0, sizeof numa->cpus, &numa->cpus) ||
                syscall(SYS_get_mempolicy, &saved->mode, saved->nodes, SAVED_NODES, NULL, 0UL)))
        rc = clb_fail_errno(err, COLIBRI_E_UNSUPPORTED, errno,
                            "--numa %s: the system does not tell what the thread is "
                            "bound to",
                            name);
    if (rc) {
        free(saved);
    } else {
        numa->mode = mode;
        numa->memory = saved;
        rc = bind(numa, topology, mode, nodes, n, log, err);
        if (rc)
            clb_numa_release(numa);
    }
    hwloc_topology_destroy(topology);
    return rc;
}

void clb_numa_release(clb_numa *numa)
{
    struct saved *s = numa->memory;
    if (!s)
        return;
    if (numa->mode == CLB_NUMA_BIND)
        sched_setaffinity(0, sizeof numa->cpus, &numa->cpus);
    const bool default_policy = s->mode == 0; /* which takes no nodes */
    (void)syscall(SYS_set_mempolicy, s->mode, default_policy ? NULL : s->nodes, default_policy ? 0UL : SAVED_NODES);
    free(s);
    *numa = (clb_numa){.mode = CLB_NUMA_OFF};
}
