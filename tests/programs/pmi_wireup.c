/*
 * pmi_wireup [-q|-w] [GETS [BYTES]]
 *
 * The least a PMI-1 program does to meet its peers: init, one put of BYTES (default 200), a barrier,
 * GETS gets (default 32) of the ranks after it, finalize. Every value is checked. Prints, unless -q,
 *     pmi_wireup rank=R size=N gets=G kvsname=K
 * and with -w waits before finalize until it is killed.
 * Speaks the wire itself, so that a benchmark measures the server and no client library.
 */
#include "common.h"

static FILE *replies;
static int fd, rank;
static char reply[4096];

/* Sends a request and reads the one line that answers it, which must name `expected`. */
static void ask(const char *expected, const char *format, ...)
{
    char line[4096];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (write_all(fd, line, (size_t)length) != 0)
        fail(1, "pmi_wireup rank=%d: write: %s", rank, strerror(errno));
    if (fgets(reply, sizeof reply, replies) == NULL)
        fail(1, "pmi_wireup rank=%d: the server closed the connection", rank);
    reply[strcspn(reply, "\n")] = '\0';
    size_t name = strlen(expected);
    if (strncmp(reply, "cmd=", 4) != 0 || strncmp(reply + 4, expected, name) != 0 ||
        (reply[4 + name] != ' ' && reply[4 + name] != '\0'))
        fail(1, "pmi_wireup rank=%d: wanted %s, got: %s", rank, expected, reply);
    const char *rc = strstr(reply, " rc=");
    if (rc != NULL && atoi(rc + 4) != 0)
        fail(1, "pmi_wireup rank=%d: refused: %s", rank, reply);
}

/* The value of a field of the last reply, up to the next blank. */
static char *field(const char *name)
{
    char pattern[64];
    snprintf(pattern, sizeof pattern, " %s=", name);
    char *at = strstr(reply, pattern);
    if (at == NULL)
        fail(1, "pmi_wireup rank=%d: no %s in: %s", rank, name, reply);
    at += strlen(pattern);
    at[strcspn(at, " ")] = '\0';
    return at;
}

int main(int argc, char **argv)
{
    char kvsname[256], value[1024], expected[1024];
    int quiet = argc > 1 && strcmp(argv[1], "-q") == 0;
    int waits = argc > 1 && strcmp(argv[1], "-w") == 0, at = 1 + (quiet || waits);
    int gets = argc > at ? (int)number_argument(argv[at]) : 32;
    size_t bytes = argc > at + 1 ? (size_t)number_argument(argv[at + 1]) : 200;
    const char *descriptor = getenv("PMI_FD"), *size_text = getenv("PMI_SIZE");

    rank = rank_from_environment();
    if (descriptor == NULL || size_text == NULL || rank < 0)
        fail(1, "pmi_wireup: PMI_FD, PMI_RANK or PMI_SIZE is not set");
    if (bytes < 16 || bytes >= sizeof value)
        fail(2, "pmi_wireup: value length out of range");
    int size = (int)number_argument(size_text);
    fd = (int)number_argument(descriptor);
    replies = fdopen(fd, "r");
    if (replies == NULL)
        fail(1, "pmi_wireup: descriptor %d: %s", fd, strerror(errno));

    ask("response_to_init", "cmd=init pmi_version=1 pmi_subversion=1\n");
    ask("maxes", "cmd=get_maxes\n");
    if ((size_t)atoi(field("vallen_max")) < bytes)
        fail(1, "pmi_wireup rank=%d: values of %zu bytes are not allowed", rank, bytes);
    ask("my_kvsname", "cmd=get_my_kvsname\n");
    snprintf(kvsname, sizeof kvsname, "%s", field("kvsname"));
    fill_card(rank, value, bytes);
    ask("put_result", "cmd=put kvsname=%s key=card-%d value=%s\n", kvsname, rank, value);
    ask("barrier_out", "cmd=barrier_in\n");
    for (int i = 1; i <= gets; i++) {
        int peer = (rank + i) % size;
        ask("get_result", "cmd=get kvsname=%s key=card-%d\n", kvsname, peer);
        fill_card(peer, expected, bytes);
        if (strcmp(field("value"), expected) != 0)
            fail(1, "pmi_wireup rank=%d: wrong value for rank %d", rank, peer);
    }
    if (!quiet)
        report("pmi_wireup rank=%d size=%d gets=%d kvsname=%s", rank, size, gets, kvsname);
    if (waits)
        wait_for_the_end();
    ask("finalize_ack", "cmd=finalize\n");
    return 0;
}
