/* A qemu-user plugin that counts executed instructions: close(-1000 - n) in the program prints "@n COUNT" with the
 * instructions since the last such call (tests/neon-count.sh). Declares the few functions that it needs, because
 * distributions do not ship qemu-plugin.h. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#define EXPORT   __attribute__((visibility("default")))
#define NR_CLOSE 57 /* AArch64 */

struct qemu_plugin_tb;
typedef uint64_t plugin_id;

void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id id, void (*fn)(plugin_id id, struct qemu_plugin_tb *tb));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *tb, int op, void *ptr, uint64_t imm);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
void qemu_plugin_register_vcpu_syscall_cb(plugin_id id, void (*fn)(plugin_id id, unsigned vcpu, int64_t number,
                                                                   uint64_t a1, uint64_t a2, uint64_t a3, uint64_t a4,
                                                                   uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8));
EXPORT int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv);
extern EXPORT int qemu_plugin_version;

int qemu_plugin_version = 1;
static uint64_t count, last;

static void on_translate(plugin_id id, struct qemu_plugin_tb *tb)
{
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_inline(tb, 0 /* add */, &count, qemu_plugin_tb_n_insns(tb));
}

static void on_syscall(plugin_id id, unsigned vcpu, int64_t number, uint64_t a1, uint64_t a2, uint64_t a3, uint64_t a4,
                       uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8)
{
    (void)id, (void)vcpu, (void)a2, (void)a3, (void)a4, (void)a5, (void)a6, (void)a7, (void)a8;
    const int32_t fd = (int32_t)a1;
    if (number != NR_CLOSE || fd > -1000)
        return;
    char line[64];
    const int n = snprintf(line, sizeof line, "@%d %" PRIu64 "\n", -fd - 1000, count - last);
    if (write(2, line, (size_t)n) == n)
        last = count;
}

int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
    (void)info, (void)argc, (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
    qemu_plugin_register_vcpu_syscall_cb(id, on_syscall);
    return 0;
}
