/*
 * Holds the namespaces of a container: writes its process id and a line feed to standard output, and ends when its
 * standard input ends or the process does whose id is its argument.
 *
 * It runs in images of any C library, or of none, so it uses none.
 */

#if defined(__x86_64__)

enum { READ = 0, WRITE = 1, GETPID = 39, EXIT_GROUP = 231, PPOLL = 271, PIDFD_OPEN = 434 };

static long call(long number, long a, long b, long c, long d, long e)
{
    long result;
    register long fourth __asm__("r10") = d;
    register long fifth __asm__("r8") = e;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth)
                     : "rcx", "r11", "memory");
    return result;
}

__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall begin\n");

#elif defined(__aarch64__)

enum { READ = 63, WRITE = 64, GETPID = 172, EXIT_GROUP = 94, PPOLL = 73, PIDFD_OPEN = 434 };

static long call(long number, long a, long b, long c, long d, long e)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;

    __asm__ volatile("svc 0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4)
                     : "memory");
    return x0;
}

__asm__(".globl _start\n_start:\n\tmov x29, #0\n\tmov x0, sp\n\tbl begin\n");

#else
#error "the system calls of this architecture are not known"
#endif

struct poll_fd {
    int fd;
    short events;
    short revents;
};

enum { POLL_IN = 1 };

static long number(const char *text)
{
    long value = 0;

    while (*text >= '0' && *text <= '9')
        value = value * 10 + (*text++ - '0');
    return value;
}

static void tell(long pid)
{
    char line[24];
    int at = sizeof line;

    line[--at] = '\n';
    do {
        line[--at] = (char)('0' + pid % 10);
        pid /= 10;
    } while (pid > 0);
    call(WRITE, 1, (long)(line + at), (long)sizeof line - at, 0, 0);
}

/* `stack` is as the kernel leaves it: the number of arguments, then these. */
__attribute__((noreturn, used)) void begin(long *stack)
{
    const char *watched = stack[0] > 1 ? (const char *)stack[2] : "";
    /* Negative, and then not looked at, if there is no such process in this pid namespace. */
    struct poll_fd both[2] = {{0, POLL_IN, 0},
                              {(int)call(PIDFD_OPEN, number(watched), 0, 0, 0, 0), POLL_IN, 0}};
    char bytes[64];

    tell(call(GETPID, 0, 0, 0, 0, 0));
    for (;;) {
        call(PPOLL, (long)both, 2, 0, 0, 0);
        if (both[1].revents != 0)
            break;
        if (both[0].revents != 0 && call(READ, 0, (long)bytes, sizeof bytes, 0, 0) <= 0)
            break;
    }
    for (;;)
        call(EXIT_GROUP, 0, 0, 0, 0, 0);
}
