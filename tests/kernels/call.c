/* The trampoline, the crash handler, and the words for what they find. */
#include "call.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Offsets are known to the assembler text. */
struct call_state {
    void (*target)(void);
    uint64_t frame_sp; /* after the pushes of the trampoline */
    uint64_t call_sp;  /* at the call */
    uint64_t broken;
    uint64_t fp_control;
    uint32_t x87_control;
    uint32_t vector; /* 0: no AVX, 1: AVX, 2: AVX-512 */
};

_Static_assert(offsetof(struct call_state, frame_sp) == 8 && offsetof(struct call_state, call_sp) == 16 &&
                   offsetof(struct call_state, broken) == 24 && offsetof(struct call_state, fp_control) == 32 &&
                   offsetof(struct call_state, x87_control) == 40 && offsetof(struct call_state, vector) == 44,
               "the trampoline's offsets");

#define HIDDEN __attribute__((visibility("hidden")))
extern HIDDEN _Thread_local struct call_state kernelcheck_call __attribute__((tls_model("initial-exec")));
_Thread_local struct call_state kernelcheck_call;
HIDDEN void kernelcheck_trampoline(void);

/* The stack pointer at the call is a multiple of 16 and of nothing more: a kernel that relies on more has to align its
 * frame itself. 256 bytes above it belong to the caller and must keep their pattern; none of the functions called here
 * takes arguments on the stack. Upper halves of the vector registers are clean before the call. */
#if defined(__x86_64__)
/* clang-format off */
__asm__(
    ".text\n"
    ".macro kernelcheck_reg name, value, bit\n"
    "    movabs $\\value, %rax\n"
    "    cmp %rax, %\\name\n"
    "    je 1f\n"
    "    bts $\\bit, %r10\n"
    "1:\n"
    ".endm\n"
    ".globl kernelcheck_trampoline\n"
    ".hidden kernelcheck_trampoline\n"
    ".type kernelcheck_trampoline, @function\n"
    "kernelcheck_trampoline:\n"
    "    endbr64\n"
    "    mov kernelcheck_call@gottpoff(%rip), %r11\n"
    "    add %fs:0, %r11\n"
    "    push %rbx\n    push %rbp\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
    "    mov %rsp, 8(%r11)\n"
    "    stmxcsr 32(%r11)\n"
    "    fnstcw 40(%r11)\n"
    "    and $-64, %rsp\n"
    "    sub $304, %rsp\n"
    "    mov %rsp, 16(%r11)\n"
    "    movabs $0x5ca1ab1ed15ea5e0, %rbx\n"
    "    mov $256, %eax\n"
    "1:  mov %rbx, -8(%rsp,%rax)\n"
    "    sub $8, %eax\n"
    "    jnz 1b\n"
    "    cmpl $0, 44(%r11)\n"
    "    je 1f\n"
    "    vzeroupper\n"
    "1:  movabs $0x0123456789abcdef, %rbp\n"
    "    movabs $0x1f2e3d4c5b6a7988, %r12\n"
    "    movabs $0x2e3d4c5b6a79881f, %r13\n"
    "    movabs $0x3d4c5b6a79881f2e, %r14\n"
    "    movabs $0x4c5b6a79881f2e3d, %r15\n"
    "    call *0(%r11)\n"
    "    mov kernelcheck_call@gottpoff(%rip), %r11\n"
    "    add %fs:0, %r11\n"
    "    xor %r10d, %r10d\n"
    "    cmp %rsp, 16(%r11)\n"
    "    je 1f\n"
    "    bts $33, %r10\n"
    "    mov 16(%r11), %rsp\n"
    "1:\n"
    "    kernelcheck_reg rbx, 0x5ca1ab1ed15ea5e0, 0\n"
    "    kernelcheck_reg rbp, 0x0123456789abcdef, 1\n"
    "    kernelcheck_reg r12, 0x1f2e3d4c5b6a7988, 2\n"
    "    kernelcheck_reg r13, 0x2e3d4c5b6a79881f, 3\n"
    "    kernelcheck_reg r14, 0x3d4c5b6a79881f2e, 4\n"
    "    kernelcheck_reg r15, 0x4c5b6a79881f2e3d, 5\n"
    "    movabs $0x5ca1ab1ed15ea5e0, %rbx\n"
    "    mov $256, %eax\n"
    "1:  cmp %rbx, -8(%rsp,%rax)\n"
    "    je 2f\n"
    "    bts $32, %r10\n"
    "2:  sub $8, %eax\n"
    "    jnz 1b\n"
    "    pushf\n"
    "    pop %rax\n"
    "    bt $10, %eax\n"
    "    jnc 1f\n"
    "    bts $34, %r10\n"
    "    cld\n"
    "1:  fnstenv (%rsp)\n"
    "    cmpw $0xffff, 8(%rsp)\n"
    "    je 1f\n"
    "    bts $35, %r10\n"
    "1:  movzwl (%rsp), %eax\n"
    "    cmp %ax, 40(%r11)\n"
    "    je 1f\n"
    "    bts $36, %r10\n"
    "1:  fninit\n"
    "    fldcw 40(%r11)\n"
    "    stmxcsr (%rsp)\n"
    "    mov (%rsp), %eax\n"
    "    xor 32(%r11), %eax\n"
    "    test $0xffc0, %eax\n" /* without the sticky exception flags */
    "    jz 1f\n"
    "    bts $37, %r10\n"
    "1:  ldmxcsr 32(%r11)\n"
    "    mov 44(%r11), %eax\n"
    "    cmp $1, %eax\n"
    "    jb 3f\n"
    "    ja 2f\n"
    "    .irp n, 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
    "    vorps %ymm\\n, %ymm0, %ymm0\n"
    "    .endr\n"
    "    vextractf128 $1, %ymm0, %xmm0\n"
    "    jmp 1f\n"
    "2:  .irp n, 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
    "    vpord %zmm\\n, %zmm0, %zmm0\n"
    "    .endr\n"
    "    vextracti32x4 $1, %zmm0, %xmm1\n"
    "    vextracti32x4 $2, %zmm0, %xmm2\n"
    "    vextracti32x4 $3, %zmm0, %xmm3\n"
    "    vorps %xmm1, %xmm2, %xmm2\n"
    "    vorps %xmm2, %xmm3, %xmm0\n"
    "1:  vptest %xmm0, %xmm0\n"
    "    jz 1f\n"
    "    bts $38, %r10\n"
    "1:  vzeroupper\n"
    "3:  mov %r10, 24(%r11)\n"
    "    mov 8(%r11), %rsp\n"
    "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbp\n    pop %rbx\n"
    "    ret\n"
    ".size kernelcheck_trampoline, .-kernelcheck_trampoline\n");
/* clang-format on */
static const char *const registers[] = {"rbx", "rbp", "r12", "r13", "r14", "r15"};

#elif defined(__aarch64__)
/* x19..x28 hold a pattern plus 0..9, d8..d15 the same plus 10..17, x29 plus 18. */
/* clang-format off */
__asm__(
    ".text\n"
    ".globl kernelcheck_trampoline\n"
    ".hidden kernelcheck_trampoline\n"
    ".type kernelcheck_trampoline, %function\n"
    "kernelcheck_trampoline:\n"
    "    stp x29, x30, [sp, #-160]!\n"
    "    stp x19, x20, [sp, #16]\n    stp x21, x22, [sp, #32]\n    stp x23, x24, [sp, #48]\n"
    "    stp x25, x26, [sp, #64]\n    stp x27, x28, [sp, #80]\n"
    "    stp d8, d9, [sp, #96]\n      stp d10, d11, [sp, #112]\n"
    "    stp d12, d13, [sp, #128]\n   stp d14, d15, [sp, #144]\n"
    "    mrs x16, tpidr_el0\n"
    "    adrp x17, :gottprel:kernelcheck_call\n"
    "    ldr x17, [x17, #:gottprel_lo12:kernelcheck_call]\n"
    "    add x16, x16, x17\n"
    "    mov x17, sp\n"
    "    str x17, [x16, #8]\n"
    "    mrs x17, fpcr\n"
    "    str x17, [x16, #32]\n"
    "    sub sp, sp, #256\n"
    "    mov x17, sp\n"
    "    str x17, [x16, #16]\n"
    "    ldr x19, =0x5ca1ab1ed15ea500\n"
    "    mov x9, #256\n"
    "1:  sub x9, x9, #8\n"
    "    str x19, [x17, x9]\n"
    "    cbnz x9, 1b\n"
    "    .irp n, 0,1,2,3,4,5,6,7\n"
    "    add x9, x19, #(10 + \\n)\n"
    "    .if \\n == 0\n    fmov d8, x9\n    .elseif \\n == 1\n    fmov d9, x9\n"
    "    .elseif \\n == 2\n    fmov d10, x9\n    .elseif \\n == 3\n    fmov d11, x9\n"
    "    .elseif \\n == 4\n    fmov d12, x9\n    .elseif \\n == 5\n    fmov d13, x9\n"
    "    .elseif \\n == 6\n    fmov d14, x9\n    .else\n    fmov d15, x9\n    .endif\n"
    "    .endr\n"
    "    add x20, x19, #1\n    add x21, x19, #2\n    add x22, x19, #3\n    add x23, x19, #4\n"
    "    add x24, x19, #5\n    add x25, x19, #6\n    add x26, x19, #7\n    add x27, x19, #8\n"
    "    add x28, x19, #9\n    add x29, x19, #18\n"
    "    ldr x17, [x16]\n"
    "    blr x17\n"
    "    mrs x16, tpidr_el0\n"
    "    adrp x17, :gottprel:kernelcheck_call\n"
    "    ldr x17, [x17, #:gottprel_lo12:kernelcheck_call]\n"
    "    add x16, x16, x17\n"
    "    mov x10, #0\n"
    "    mov x11, #1\n"
    "    ldr x12, =0x5ca1ab1ed15ea500\n"
    "    .macro kernelcheck_reg from, add, bit\n"
    "    add x13, x12, #\\add\n"
    "    cmp \\from, x13\n"
    "    lsl x14, x11, #\\bit\n"
    "    csel x14, xzr, x14, eq\n"
    "    orr x10, x10, x14\n"
    "    .endm\n"
    "    kernelcheck_reg x19, 0, 0\n    kernelcheck_reg x20, 1, 1\n    kernelcheck_reg x21, 2, 2\n"
    "    kernelcheck_reg x22, 3, 3\n    kernelcheck_reg x23, 4, 4\n    kernelcheck_reg x24, 5, 5\n"
    "    kernelcheck_reg x25, 6, 6\n    kernelcheck_reg x26, 7, 7\n    kernelcheck_reg x27, 8, 8\n"
    "    kernelcheck_reg x28, 9, 9\n    kernelcheck_reg x29, 18, 18\n"
    "    fmov x9, d8\n    kernelcheck_reg x9, 10, 10\n    fmov x9, d9\n    kernelcheck_reg x9, 11, 11\n"
    "    fmov x9, d10\n   kernelcheck_reg x9, 12, 12\n    fmov x9, d11\n   kernelcheck_reg x9, 13, 13\n"
    "    fmov x9, d12\n   kernelcheck_reg x9, 14, 14\n    fmov x9, d13\n   kernelcheck_reg x9, 15, 15\n"
    "    fmov x9, d14\n   kernelcheck_reg x9, 16, 16\n    fmov x9, d15\n   kernelcheck_reg x9, 17, 17\n"
    "    ldr x17, [x16, #16]\n"
    "    mov x9, sp\n"
    "    cmp x9, x17\n"
    "    lsl x14, x11, #33\n"
    "    csel x14, xzr, x14, eq\n"
    "    orr x10, x10, x14\n"
    "    mov sp, x17\n"
    "    mov x9, #256\n"
    "1:  sub x9, x9, #8\n"
    "    ldr x13, [x17, x9]\n"
    "    cmp x13, x12\n"
    "    lsl x14, x11, #32\n"
    "    csel x14, xzr, x14, eq\n"
    "    orr x10, x10, x14\n"
    "    cbnz x9, 1b\n"
    "    ldr x13, [x16, #32]\n"
    "    mrs x9, fpcr\n"
    "    cmp x9, x13\n"
    "    lsl x14, x11, #37\n"
    "    csel x14, xzr, x14, eq\n"
    "    orr x10, x10, x14\n"
    "    msr fpcr, x13\n"
    "    str x10, [x16, #24]\n"
    "    ldr x17, [x16, #8]\n"
    "    mov sp, x17\n"
    "    ldp x19, x20, [sp, #16]\n    ldp x21, x22, [sp, #32]\n    ldp x23, x24, [sp, #48]\n"
    "    ldp x25, x26, [sp, #64]\n    ldp x27, x28, [sp, #80]\n"
    "    ldp d8, d9, [sp, #96]\n      ldp d10, d11, [sp, #112]\n"
    "    ldp d12, d13, [sp, #128]\n   ldp d14, d15, [sp, #144]\n"
    "    ldp x29, x30, [sp], #160\n"
    "    ret\n"
    "    .ltorg\n"
    ".size kernelcheck_trampoline, .-kernelcheck_trampoline\n");
/* clang-format on */
static const char *const registers[] = {"x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28",
                                        "d8",  "d9",  "d10", "d11", "d12", "d13", "d14", "d15", "x29"};

#else /* no trampoline written for this architecture: calls go straight through, only crashes are seen */
static const char *const registers[] = {"none"};
#endif

static _Thread_local struct {
    sigjmp_buf env;
    volatile sig_atomic_t armed;
    char crash[200];
} guard;

void (*call_arm(void (*fn)(void)))(void)
{
    kernelcheck_call.target = fn;
    kernelcheck_call.broken = 0;
    kernelcheck_call.fp_control = fp_control();
    guard.armed = 1;
    guard.crash[0] = '\0';
#if defined(__x86_64__)
    static const uint64_t avx = COLIBRI_CPU0(AVX), avx512 = COLIBRI_CPU0(AVX512F);
    const struct colibri_cpu_bits cpu = cpu_bits();
    kernelcheck_call.vector = cpu.w[0] & avx512 ? 2 : cpu.w[0] & avx ? 1 : 0;
#endif
#if defined(__x86_64__) || defined(__aarch64__)
    return kernelcheck_trampoline;
#else
    return fn;
#endif
}

sigjmp_buf *call_env(void)
{
    return &guard.env;
}

void call_finish(struct call_verdict *out)
{
    guard.armed = 0;
    out->broken = kernelcheck_call.broken;
    memcpy(out->crash, guard.crash, sizeof(out->crash));
    if (guard.crash[0]) {
        out->broken |= UINT64_C(1) << BROKEN_CRASH;
        fp_control_set(kernelcheck_call.fp_control); /* the trampoline did not get to it */
    }
}

void call_report(struct report *r, const struct call_verdict *v, const char *when)
{
    static const char *const words[] = {
        [BROKEN_STACK] = "wrote to the caller's stack",
        [BROKEN_SP] = "returned with another stack pointer",
        [BROKEN_DIRECTION] = "left the direction flag set",
        [BROKEN_X87_TAGS] = "left x87/MMX registers in use (emms is missing)",
        [BROKEN_X87_CONTROL] = "changed the x87 control word",
        [BROKEN_FP_CONTROL] = "changed the floating-point control register (rounding, flush to zero or masks)",
        [BROKEN_UPPER] = "left upper halves of vector registers dirty (vzeroupper is missing): slows down the host",
    };
    if (v->broken >> BROKEN_CRASH & 1)
        case_fail(r, "crash%s: %s", when, v->crash);
    for (uint32_t i = 0; i < sizeof(registers) / sizeof(registers[0]); i++)
        if (v->broken >> (BROKEN_REG0 + i) & 1)
            case_fail(r, "register %s was not preserved%s", registers[i], when);
    for (uint32_t i = BROKEN_STACK; i < BROKEN_CRASH; i++)
        if (v->broken >> i & 1)
            case_fail(r, "the call %s%s", words[i], when);
}

/* ---- crashes ---------------------------------------------------------------------------------------------------- */

static void on_crash(int sig, siginfo_t *info, void *context)
{
    (void)context;
    if (guard.armed) {
        /* a synchronous signal inside the kernel, which holds no locks of ours */
        guard.armed = 0;
        guarded_describe(sig, info->si_addr, guard.crash, sizeof(guard.crash));
        siglongjmp(guard.env, 1);
    }
    case_crashed(); /* SA_RESETHAND is not set: restore the default, so that returning ends the process */
    signal(sig, SIG_DFL);
}

void crash_handler_install(void)
{
    static _Alignas(64) char stack[64 << 10]; /* a kernel may have lost the stack pointer */
    const stack_t alt = {.ss_sp = stack, .ss_size = sizeof(stack)};
    sigaltstack(&alt, NULL);
    struct sigaction sa = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP};
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        sigaction(signals[i], &sa, NULL);
}
