/*
 * pmi_raw RANK WHAT [ARGUMENT] [--then exit|wait|read] [--code CODE]
 *
 * Misbehaves on the PMI socket (the descriptor in PMI_FD). WHAT is
 *     send TEXT        TEXT as it is, with \n, \t, \0 and \\ understood
 *     garbage BYTES    that many pseudo-random bytes, the same for the same rank
 *     flood BYTES      that many times the letter x, and no newline
 *     endless BYTES    valid requests (get_maxes) until that many bytes, never reading an answer
 *     close            nothing; closes the socket
 * and then it exits with CODE (default 0), waits to be killed, or reads and prints answers:
 *     pmi_raw rank=R reply=TEXT
 * When the socket is gone before all was written that is said and is no error of ours:
 *     pmi_raw rank=R sent=N end=complete|EPIPE|ECONNRESET
 * Only RANK (or `all`) does it; the other ranks wait to be killed.
 */
#define _GNU_SOURCE
#include "common.h"
#include <signal.h>

static size_t sent;

/* Sends a piece; 0 when the other side is gone. */
static int send_piece(int fd, const char *data, size_t length)
{
    while (length > 0) {
        ssize_t n = write(fd, data, length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return 0;
        sent += (size_t)n;
        data += n;
        length -= (size_t)n;
    }
    return 1;
}

static size_t unescape(char *text)
{
    size_t to = 0;
    for (size_t from = 0; text[from] != '\0'; from++) {
        char c = text[from];
        if (c == '\\' && text[from + 1] != '\0') {
            c = text[++from];
            c = c == 'n' ? '\n' : c == 't' ? '\t' : c == '0' ? '\0' : c;
        }
        text[to++] = c;
    }
    return to;
}

static int send_many(int fd, const char *what, long bytes, int rank)
{
    static const char request[] = "cmd=get_maxes\n";
    char piece[65536];
    unsigned state = (unsigned)rank * 2654435761u + 1;

    memset(piece, 'x', sizeof piece);
    while (bytes > 0) {
        size_t part = bytes < (long)sizeof piece ? (size_t)bytes : sizeof piece;
        if (strcmp(what, "garbage") == 0)
            for (size_t i = 0; i < part; i++)
                piece[i] = (char)((state = state * 1103515245u + 12345u) >> 16);
        if (strcmp(what, "endless") == 0) {
            part -= part % (sizeof request - 1);
            if (part == 0)
                return 1;
            for (size_t i = 0; i < part; i++)
                piece[i] = request[i % (sizeof request - 1)];
        }
        if (!send_piece(fd, piece, part))
            return 0;
        bytes -= (long)part;
    }
    return 1;
}

int main(int argc, char **argv)
{
    const char *then = "exit";
    int rank = rank_from_environment(), code = 0, next, complete = 1;

    if (argc < 3)
        fail(2, "usage: pmi_raw RANK|all WHAT [ARGUMENT] [--then exit|wait|read] [--code CODE]");
    int chosen = strcmp(argv[1], "all") == 0 || rank == (int)number_argument(argv[1]);
    const char *what = argv[2];
    int closes = strcmp(what, "close") == 0;
    if (!closes && argc < 4)
        fail(2, "pmi_raw: %s needs an argument", what);
    for (next = closes ? 3 : 4; next + 1 < argc; next += 2) {
        if (strcmp(argv[next], "--then") == 0)
            then = argv[next + 1];
        else if (strcmp(argv[next], "--code") == 0)
            code = (int)number_argument(argv[next + 1]);
        else
            fail(2, "pmi_raw: unknown option %s", argv[next]);
    }
    const char *descriptor = getenv("PMI_FD");
    if (descriptor == NULL)
        fail(1, "pmi_raw: PMI_FD is not set");
    int fd = (int)number_argument(descriptor);
    if (!chosen)
        wait_for_the_end();

    signal(SIGPIPE, SIG_IGN);
    alarm(LAST_RESORT_SECONDS);
    if (closes) {
        close(fd);
    } else if (strcmp(what, "send") == 0) {
        complete = send_piece(fd, argv[3], unescape(argv[3]));
    } else if (strcmp(what, "garbage") == 0 || strcmp(what, "flood") == 0 ||
               strcmp(what, "endless") == 0) {
        complete = send_many(fd, what, number_argument(argv[3]), rank);
    } else {
        fail(2, "pmi_raw: unknown action %s", what);
    }
    report("pmi_raw rank=%d sent=%zu end=%s", rank, sent,
           complete ? "complete" : strerrorname_np(errno));
    if (strcmp(then, "wait") == 0)
        wait_for_the_end();
    if (strcmp(then, "read") == 0) {
        FILE *replies = fdopen(fd, "r");
        char line[4096];
        while (replies != NULL && fgets(line, sizeof line, replies) != NULL) {
            line[strcspn(line, "\n")] = '\0';
            report("pmi_raw rank=%d reply=%s", rank, line);
        }
    }
    return code;
}
