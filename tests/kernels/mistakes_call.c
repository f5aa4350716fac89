/* Kernels that compute the right thing and break the calling convention on the way out. Each is a few lines of
 * assembler behind a call of a right kernel, so that no compiler repairs the damage. */
#include "mistakes.h"

#define HIDDEN __attribute__((visibility("hidden")))
HIDDEN void kernelcheck_right(const struct colibri_matmul_args *a);

void kernelcheck_right(const struct colibri_matmul_args *a)
{
    fmt_matmul(fmt_find(COLIBRI_TYPE_Q4_0), a);
}

#define Q4_0                        COLIBRI_TYPE_Q4_0
#define ROW(id, name, say, cpu)     {name, say, Q4_0, 0, kernelcheck_bad_##id, cpu, NULL, 0},
#define DECLARE(id, name, say, cpu) HIDDEN void kernelcheck_bad_##id(const struct colibri_matmul_args *a);
/* clang-format off */
#if defined(__x86_64__)

#define BAD(id, text)                                                                                                  \
    __asm__(".text\n.globl kernelcheck_bad_" #id "\n.hidden kernelcheck_bad_" #id "\n"                                 \
            ".type kernelcheck_bad_" #id ", @function\nkernelcheck_bad_" #id ":\n    endbr64\n"                        \
            "    sub $8, %rsp\n    call kernelcheck_right\n    add $8, %rsp\n    " text "\n    ret\n"                  \
            ".size kernelcheck_bad_" #id ", .-kernelcheck_bad_" #id "\n")

BAD(rbx, "inc %rbx");
BAD(rbp, "xor %ebp, %ebp");
BAD(r12, "not %r12");
BAD(r13, "add $64, %r13");
BAD(r14, "mov %rsp, %r14");
BAD(r15, "dec %r15");
BAD(std, "std");
BAD(mmx, "pxor %mm0, %mm0");
BAD(x87, "fninit\n push $0x027f\n fldcw (%rsp)\n pop %rax"); /* 53-bit precision */
BAD(rounding, "push $0x7f80\n ldmxcsr (%rsp)\n pop %rax");   /* towards zero */
BAD(ftz, "push $0x9f80\n ldmxcsr (%rsp)\n pop %rax");
BAD(masks, "push $0x1d80\n ldmxcsr (%rsp)\n pop %rax");      /* a division by zero would trap */
BAD(ymm, "vcmpps $15, %ymm7, %ymm7, %ymm7");                 /* all ones */
BAD(zmm, "movl $-1, %eax\n vpbroadcastd %eax, %zmm15\n vpxord %ymm1, %ymm1, %ymm1\n"
         " vinserti64x4 $0, %ymm1, %zmm15, %zmm15");         /* only the upper 256 bits */
BAD(stack, "movl $0, 40(%rsp)");
BAD(sp, "pop %rax\n sub $16, %rsp\n push %rax");
#define LIST(X)                                                                                                        \
    X(rbx, "loses-rbx", "register rbx", 0)                                                                             \
    X(rbp, "loses-rbp", "register rbp", 0)                                                                             \
    X(r12, "loses-r12", "register r12", 0)                                                                             \
    X(r13, "loses-r13", "register r13", 0)                                                                             \
    X(r14, "loses-r14", "register r14", 0)                                                                             \
    X(r15, "loses-r15", "register r15", 0)                                                                             \
    X(std, "direction-flag", "direction flag", 0)                                                                      \
    X(mmx, "no-emms", "emms", 0)                                                                                       \
    X(x87, "x87-precision", "x87 control", 0)                                                                          \
    X(rounding, "rounds-to-zero", "floating-point control", 0)                                                         \
    X(ftz, "flushes-to-zero", "floating-point control", 0)                                                             \
    X(masks, "unmasks-exceptions", "floating-point control", 0)                                                        \
    X(ymm, "no-vzeroupper-ymm", "vzeroupper", COLIBRI_CPU0(AVX))                                                       \
    X(zmm, "no-vzeroupper-zmm", "vzeroupper", COLIBRI_CPU0(AVX512F) | COLIBRI_CPU0(AVX512VL))                          \
    X(stack, "callers-stack", "caller's stack", 0)                                                                     \
    X(sp, "stack-pointer", "another stack pointer", 0)

#elif defined(__aarch64__)

#define BAD(id, text)                                                                                                  \
    __asm__(".text\n.globl kernelcheck_bad_" #id "\n.hidden kernelcheck_bad_" #id "\n"                                 \
            ".type kernelcheck_bad_" #id ", %function\nkernelcheck_bad_" #id ":\n"                                     \
            "    stp x29, x30, [sp, #-16]!\n    bl kernelcheck_right\n    ldp x29, x30, [sp], #16\n    " text          \
            "\n    ret\n.size kernelcheck_bad_" #id ", .-kernelcheck_bad_" #id "\n")

BAD(x19, "add x19, x19, #1");
BAD(x20, "mov x20, #0");
BAD(x21, "mvn x21, x21");
BAD(x22, "mov x22, sp");
BAD(x23, "sub x23, x23, #1");
BAD(x24, "mov x24, x23");
BAD(x25, "mov w25, w25"); /* the upper half */
BAD(x26, "mov x26, #0");
BAD(x27, "mov x27, #0");
BAD(x28, "mov x28, #0");
BAD(x29, "mov x29, sp");
BAD(d8, "fmov d8, xzr");
BAD(d9, "fmov d9, d10");
BAD(d10, "movi v10.4s, #0");
BAD(d11, "fmov d11, xzr");
BAD(d12, "fmov d12, xzr");
BAD(d13, "fmov d13, xzr");
BAD(d14, "fmov d14, xzr");
BAD(d15, "fmov s15, s15"); /* clears the upper half of d15 */
BAD(rounding, "mrs x9, fpcr\n orr x9, x9, #0xc00000\n msr fpcr, x9");
BAD(ftz, "mrs x9, fpcr\n orr x9, x9, #0x1000000\n msr fpcr, x9");
BAD(stack, "str wzr, [sp, #40]");
BAD(sp, "sub sp, sp, #16");
#define REG(X, id) X(id, "loses-" #id, "register " #id " ", 0)
#define LIST(X)                                                                                                        \
    REG(X, x19) REG(X, x20) REG(X, x21) REG(X, x22) REG(X, x23) REG(X, x24) REG(X, x25) REG(X, x26) REG(X, x27)        \
    REG(X, x28) REG(X, x29) REG(X, d8) REG(X, d9) REG(X, d10) REG(X, d11) REG(X, d12) REG(X, d13) REG(X, d14)          \
    REG(X, d15)                                                                                                        \
    X(rounding, "rounds-to-zero", "floating-point control", 0)                                                         \
    X(ftz, "flushes-to-zero", "floating-point control", 0)                                                             \
    X(stack, "callers-stack", "caller's stack", 0)                                                                     \
    X(sp, "stack-pointer", "another stack pointer", 0)

#else
#define LIST(X)
#endif
/* clang-format on */
LIST(DECLARE)
const struct mistake mistakes_call[] = {LIST(ROW){0}};
