/*
 * A PMI-1 client of a few lines for test programs: it speaks the wire itself, so that what they measure
 * and see is the server and no client library.
 */
#ifndef WIREUP_TEST_PMI_H
#define WIREUP_TEST_PMI_H

#include "common.h"

static FILE *replies;
static int fd, rank, size;
static char reply[4096], kvsname[256];

/* Ends the program with what this rank has seen. */
#define WRONG(format, ...)                                                                                   \
    fail(1, "%s rank=%d: " format, program_invocation_short_name, rank, __VA_ARGS__)

/* Sends a request and reads the one line that answers it, which must name `expected`. */
__attribute__((format(printf, 2, 3))) static inline void ask(const char *expected, const char *format, ...)
{
    char line[4096];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (write_all(fd, line, (size_t)length) != 0)
        WRONG("write: %s", strerror(errno));
    if (fgets(reply, sizeof reply, replies) == NULL)
        WRONG("%s", "the server closed the connection");
    reply[strcspn(reply, "\n")] = '\0';
    size_t name = strlen(expected);
    if (strncmp(reply, "cmd=", 4) != 0 || strncmp(reply + 4, expected, name) != 0 ||
        (reply[4 + name] != ' ' && reply[4 + name] != '\0'))
        WRONG("wanted %s, got: %s", expected, reply);
    const char *rc = strstr(reply, " rc=");
    if (rc != NULL && atoi(rc + 4) != 0)
        WRONG("refused: %s", reply);
}

/* The value of a field of the last reply, up to the next blank. */
static inline char *field(const char *name)
{
    char pattern[64];
    snprintf(pattern, sizeof pattern, " %s=", name);
    char *at = strstr(reply, pattern);
    if (at == NULL)
        WRONG("no %s in: %s", name, reply);
    at += strlen(pattern);
    at[strcspn(at, " ")] = '\0';
    return at;
}

/* Joins the job; afterwards rank, size and kvsname are set. The longest value may have `bytes`. */
static inline void join(size_t bytes)
{
    const char *descriptor = getenv("PMI_FD"), *size_text = getenv("PMI_SIZE");

    rank = rank_from_environment();
    if (descriptor == NULL || size_text == NULL || rank < 0)
        fail(1, "%s: PMI_FD, PMI_RANK or PMI_SIZE is not set", program_invocation_short_name);
    size = (int)number_argument(size_text);
    fd = (int)number_argument(descriptor);
    replies = fdopen(fd, "r");
    if (replies == NULL)
        WRONG("descriptor %d: %s", fd, strerror(errno));
    ask("response_to_init", "cmd=init pmi_version=1 pmi_subversion=1\n");
    ask("maxes", "cmd=get_maxes\n");
    if ((size_t)atoi(field("vallen_max")) < bytes)
        WRONG("values of %zu bytes are not allowed", bytes);
    ask("my_kvsname", "cmd=get_my_kvsname\n");
    snprintf(kvsname, sizeof kvsname, "%s", field("kvsname"));
}

#endif
