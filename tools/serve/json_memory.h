/* Whether JSON is wrong or memory is out: jansson often tells neither.
 *
 * Its allocations go through ours, which remember, for each thread, that one has failed. Who reads JSON or builds a
 * reply of many parts asks at the end, instead of after each part. [any-thread] */
#ifndef CLB_SERVE_JSON_MEMORY_H
#define CLB_SERVE_JSON_MEMORY_H

#include <stdbool.h>

void clb_json_memory_watch(void); /* of the whole process, before other threads are there; without it nothing is told */
void clb_json_memory_forget(void); /* what this thread begins now is something else */
bool clb_json_memory_out(void);    /* an allocation of this thread has failed since then */

#endif
