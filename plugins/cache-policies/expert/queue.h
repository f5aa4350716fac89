/* Ordered sets of experts, smallest key first: the lists of the classic policies. Finding the first costs nothing,
 * adding and removing O(log n). An expert is in one queue at most, so all queues of a policy share one array of places.
 * Unlike a linked list it keeps the order of keys whatever the order of arrival: a long prompt goes layer by layer, not
 * row by row. */
#ifndef EXPERT_POLICY_QUEUE_H
#define EXPERT_POLICY_QUEUE_H

#include <assert.h>
#include <stdint.h>

struct place {
    uint64_t key;
    uint32_t at;    /* index in the queue's heap */
    uint32_t queue; /* number of the queue, 0: in none */
};

struct queue {
    struct place *places; /* [experts] */
    uint32_t *heap;       /* [experts] */
    uint32_t n;
    uint32_t number; /* from 1 */
};

static inline struct queue queue_open(uint32_t number, struct place *places, uint32_t *heap)
{
    return (struct queue){places, heap, 0, number};
}

/* Smaller key first, then the lower expert. */
static inline int queue_before(const struct queue *q, uint32_t a, uint32_t b)
{
    const uint64_t x = q->places[a].key, y = q->places[b].key;
    return x != y ? x < y : a < b;
}

static inline void queue_put(struct queue *q, uint32_t at, uint32_t expert)
{
    q->heap[at] = expert;
    q->places[expert].at = at;
}

static inline void queue_settle(struct queue *q, uint32_t at)
{
    const uint32_t expert = q->heap[at];
    while (at && queue_before(q, expert, q->heap[(at - 1) / 2])) {
        queue_put(q, at, q->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= q->n)
            break;
        if (child + 1 < q->n && queue_before(q, q->heap[child + 1], q->heap[child]))
            child++;
        if (!queue_before(q, q->heap[child], expert))
            break;
        queue_put(q, at, q->heap[child]);
        at = child;
    }
    queue_put(q, at, expert);
}

static inline void queue_add(struct queue *q, uint32_t expert, uint64_t key)
{
    assert(q->places[expert].queue == 0);
    q->places[expert] = (struct place){key, q->n, q->number};
    q->heap[q->n++] = expert;
    queue_settle(q, q->n - 1);
}

static inline void queue_remove(struct queue *q, uint32_t expert)
{
    assert(q->places[expert].queue == q->number);
    const uint32_t at = q->places[expert].at, last = q->heap[--q->n];
    q->places[expert].queue = 0;
    if (at == q->n)
        return;
    queue_put(q, at, last);
    queue_settle(q, at);
}

static inline void queue_rekey(struct queue *q, uint32_t expert, uint64_t key)
{
    assert(q->places[expert].queue == q->number);
    q->places[expert].key = key;
    queue_settle(q, q->places[expert].at);
}

/* Removes the first and returns it. The queue must not be empty. */
static inline uint32_t queue_take_first(struct queue *q)
{
    assert(q->n);
    const uint32_t expert = q->heap[0];
    queue_remove(q, expert);
    return expert;
}

/* The rows of the visit that is going on which asked for an expert that was not here: it comes in only after on_route.
 */
struct asked {
    uint64_t visit;       /* that the rest is about; counted by the policy from 1 */
    uint64_t first, last; /* times */
    uint32_t rows;
};

static inline void asked_for(struct asked *a, uint64_t visit, uint64_t time)
{
    if (a->visit != visit)
        *a = (struct asked){visit, time, time, 0};
    a->last = time;
    a->rows++;
}

#endif
