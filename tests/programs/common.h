/*
 * What the test programs share. A program says what it saw in one line per rank,
 *     NAME rank=R key=value ... [key="text to the end of the quotes"]
 * and its exit code says whether that was right: 0 good, 1 wrong result, 2 bad usage.
 */
#ifndef WIREUP_TEST_COMMON_H
#define WIREUP_TEST_COMMON_H

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The most a test program waits to be ended: a safety net, never a measurement. */
enum { LAST_RESORT_SECONDS = 300 };

/* Writes every byte, or returns -1 with errno. */
static inline int write_all(int fd, const void *data, size_t length)
{
    const char *next = data;
    while (length > 0) {
        ssize_t n = write(fd, next, length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        next += n;
        length -= (size_t)n;
    }
    return 0;
}

static inline void vreport_to(int fd, const char *format, va_list args)
{
    char line[4096];
    int length = vsnprintf(line, sizeof line - 1, format, args);
    if (length < 0)
        return;
    if ((size_t)length > sizeof line - 2)
        length = (int)(sizeof line - 2);
    line[length++] = '\n';
    /* One write, so that lines of ranks that share a descriptor do not mix. */
    if (write_all(fd, line, (size_t)length) != 0)
        _exit(1);
}

/* Prints one line on stdout. */
__attribute__((format(printf, 1, 2))) static inline void report(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vreport_to(STDOUT_FILENO, format, args);
    va_end(args);
}

/* Prints one line on stderr and ends the process: a wrong result is code 1. */
__attribute__((format(printf, 2, 3), noreturn)) static inline void fail(int code, const char *format,
                                                                        ...)
{
    va_list args;
    va_start(args, format);
    vreport_to(STDERR_FILENO, format, args);
    va_end(args);
    _exit(code);
}

/* The rank a launcher gave this process, without any MPI; -1 when none did. */
static inline int rank_from_environment(void)
{
    const char *text = getenv("PMI_RANK");
    if (text == NULL)
        text = getenv("PMIX_RANK");
    return text == NULL ? -1 : atoi(text);
}

/* Waits to be killed, without using the processor. */
__attribute__((noreturn)) static inline void wait_for_the_end(void)
{
    alarm(LAST_RESORT_SECONDS);
    for (;;)
        pause();
}

/* Parses a whole decimal argument, or ends the program with the usage code. */
static inline long number_argument(const char *text)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0')
        fail(2, "not a number: %s", text);
    return value;
}

/*
 * What a rank puts for its peers to read: as many bytes as wanted, at least 16, none alike in two
 * ranks. `card` has room for one more.
 */
static inline void fill_card(int owner, char *card, size_t bytes)
{
    int head = snprintf(card, bytes + 1, "%d:", owner);
    for (size_t i = (size_t)head; i < bytes; i++)
        card[i] = (char)('A' + (i + (size_t)owner) % 26);
    card[bytes] = '\0';
}

#endif
