/* Machines with several memory nodes ([cpu] numa): workers and weights on one node, or weights spread over all.
 *
 * Both work through what new threads inherit and where memory goes that a thread touches first: the calling thread is
 * bound, then starts the workers and lets them load the weights. No area is bound by itself, so that the number of
 * mappings stays what it was, and huge pages stay whole. */
#ifndef CLB_CPU_NUMA_H
#define CLB_CPU_NUMA_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/log.h"

enum clb_numa_mode { CLB_NUMA_OFF = 0, CLB_NUMA_BIND = 1, CLB_NUMA_INTERLEAVE = 2 };

typedef struct clb_numa_node {
    uint32_t id;          /* the system's number */
    uint32_t threads;     /* hardware threads beside it that this process may use */
    uint64_t free_bytes;  /* unused, or file cache that can be dropped; 0: unknown */
    uint64_t total_bytes; /* 0: unknown */
} clb_numa_node;

/* Nodes with memory that this process may use, in ascending order; at most `most` are written. Returns how many there
 * are; 1 with *out zero but for `threads` if the system does not tell. */
uint32_t clb_numa_nodes(clb_numa_node *out, uint32_t most);

/* The node to bind to: one with usable hardware threads, of these the one with most free memory; if others have as much
 * to within a sixteenth, the one with most threads, then the lowest number. Index into nodes[n], n if no node has
 * threads. */
uint32_t clb_numa_choose(const clb_numa_node *nodes, uint32_t n);

typedef struct clb_numa {
    enum clb_numa_mode mode; /* OFF: the calling thread is not bound */
    uint32_t node;           /* BIND: the node's number */
    cpu_set_t cpus;          /* of the calling thread, before */
    void *memory;            /* its memory policy, before */
} clb_numa;

/* Binds the calling thread; the threads that it starts from now on inherit that. On a machine with one node it does
 * nothing but say so (INFO). UNSUPPORTED, with the reason, if the system refuses. */
int clb_numa_set(clb_numa *numa, enum clb_numa_mode mode, const clb_log *log, clb_error *err);
/* The calling thread as it was. Same thread; more than once is fine. */
void clb_numa_release(clb_numa *numa);

#endif
