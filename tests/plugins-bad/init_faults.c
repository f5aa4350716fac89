/* Faults of init, one per build: TEST_CRASH, TEST_HANG, TEST_EXIT, TEST_THREAD, TEST_HANDLER, TEST_ONCE. */
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "common_get.h"

#if defined(TEST_THREAD)
static void *sleeper(void *unused)
{
    for (;;)
        pause();
    return unused;
}
#elif defined(TEST_HANDLER)
static void handler(int number)
{
    (void)number;
}
#endif

static int init(const struct colibri_host *host, char *why, size_t why_size)
{
    (void)host;
    (void)why;
    (void)why_size;
#if defined(TEST_CRASH)
    raise(SIGSEGV);
#elif defined(TEST_HANG)
    for (;;)
        pause();
#elif defined(TEST_EXIT)
    _exit(0);
#elif defined(TEST_THREAD)
    pthread_t t;
    return pthread_create(&t, NULL, sleeper, NULL) ? COLIBRI_E_NOMEM : COLIBRI_OK;
#elif defined(TEST_HANDLER)
    signal(SIGFPE, handler);
#elif defined(TEST_ONCE)
    static int called;
    return called++ ? COLIBRI_E_INTERNAL : COLIBRI_OK;
#endif
    return COLIBRI_OK;
}

#if defined(TEST_CRASH)
TEST_PLUGIN(test_crash, init, test_get, "test.crash", "its init crashes");
#elif defined(TEST_HANG)
TEST_PLUGIN(test_hang, init, test_get, "test.hang", "its init never returns");
#elif defined(TEST_EXIT)
TEST_PLUGIN(test_exit, init, test_get, "test.exit", "its init ends the process");
#elif defined(TEST_THREAD)
TEST_PLUGIN(test_thread, init, test_get, "test.thread", "its init starts a thread");
#elif defined(TEST_HANDLER)
TEST_PLUGIN(test_handler, init, test_get, "test.handler", "its init changes a signal handler");
#elif defined(TEST_ONCE)
TEST_PLUGIN(test_once, init, test_get, "test.once", "its init works once");
#endif
