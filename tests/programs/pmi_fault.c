/*
 * pmi_fault RANK COMMAND COUNT FAULT PROGRAM [ARGUMENT]...
 *
 * Runs PROGRAM between itself and the PMI-1 server, and ends as that ends. Lines pass both ways as
 * they are, but for the COUNTth request COMMAND of RANK:
 *     close    the connection is closed instead of an answer, and the server does not get to know it
 *     wrong    the answer is one to another command
 *     noise    the answer is a line without `=`
 *     refuse   the answer has rc=1 where it had rc=0
 * Says so on standard error: pmi_fault rank=R answer=LINE. Other ranks just become PROGRAM.
 */
#define _GNU_SOURCE
#include "common.h"
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { SERVER, CLIENT, LONGEST = 65536 };

/* One side, and what it sent that is not a whole line yet. */
static struct side {
    int fd;
    char text[LONGEST + 1];
    size_t have;
} sides[2];

static int rank;
static const char *command, *fault;
static long left;
/* Whether the next answer is the one to change. */
static int due;

__attribute__((noreturn)) static void end_as(pid_t child)
{
    int status;

    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            fail(1, "pmi_fault rank=%d: waitpid: %s", rank, strerror(errno));
    if (WIFSIGNALED(status)) {
        signal(WTERMSIG(status), SIG_DFL);
        raise(WTERMSIG(status));
    }
    _exit(WEXITSTATUS(status));
}

/* Passes a line with its newline on; 0 when the connection is to be closed. */
static int pass(int from, char *line)
{
    char request[80], changed[LONGEST + 1];
    const char *out = line, *rc;

    if (from == CLIENT) {
        snprintf(request, sizeof request, "cmd=%s", command);
        size_t length = strlen(request);
        if (strncmp(line, request, length) == 0 && strchr(" \n", line[length]) && --left == 0)
            due = 1;
        if (due && strcmp(fault, "close") == 0) {
            fprintf(stderr, "pmi_fault rank=%d answer=-\n", rank);
            return 0;
        }
    } else if (due) {
        due = 0;
        out = changed;
        if (strcmp(fault, "wrong") == 0)
            strcpy(changed, "cmd=nonsense rc=0\n");
        else if (strcmp(fault, "noise") == 0)
            strcpy(changed, "hello there\n");
        else if ((rc = strstr(line, " rc=0")) != NULL)
            sprintf(changed, "%.*s rc=1%s", (int)(rc - line), line, rc + 5);
        else
            fail(2, "pmi_fault rank=%d: %s is refused already: %s", rank, command, line);
        fprintf(stderr, "pmi_fault rank=%d answer=%s", rank, changed);
    }
    /* A side that is gone is seen when it is read from. */
    send(sides[!from].fd, out, strlen(out), MSG_NOSIGNAL);
    return 1;
}

/* Passes on what a side has sent; 0 when it is gone or to be closed. */
static int relay(int from)
{
    struct side *side = &sides[from];
    ssize_t got = read(side->fd, side->text + side->have, LONGEST - side->have);
    char *line = side->text, *newline;

    if (got <= 0)
        return got < 0 && errno == EINTR;
    side->have += (size_t)got;
    side->text[side->have] = '\0';
    while ((newline = strchr(line, '\n')) != NULL) {
        char next = newline[1];
        newline[1] = '\0';
        if (!pass(from, line))
            return 0;
        newline[1] = next;
        line = newline + 1;
    }
    side->have -= (size_t)(line - side->text);
    memmove(side->text, line, side->have);
    return 1;
}

int main(int argc, char **argv)
{
    int pair[2];
    struct rlimit no_core = {0, 0};

    if (argc < 6)
        fail(2, "usage: pmi_fault RANK COMMAND COUNT FAULT PROGRAM [ARGUMENT]...");
    rank = rank_from_environment();
    command = argv[2], left = number_argument(argv[3]), fault = argv[4];
    setrlimit(RLIMIT_CORE, &no_core);
    const char *server = getenv("PMI_FD");
    pid_t child = 0;
    if (rank == number_argument(argv[1])) {
        if (server == NULL || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0 ||
            (child = fork()) < 0)
            fail(1, "pmi_fault rank=%d: no PMI_FD, socketpair or process", rank);
        if (child == 0 && dup2(pair[1], atoi(server)) < 0)
            fail(1, "pmi_fault rank=%d: dup2: %s", rank, strerror(errno));
    }
    if (child == 0) {
        execvp(argv[5], argv + 5);
        fail(2, "pmi_fault: %s: %s", argv[5], strerror(errno));
    }
    close(pair[1]);
    sides[SERVER].fd = atoi(server);
    sides[CLIENT].fd = pair[0];
    struct pollfd ready[2] = {{sides[SERVER].fd, POLLIN, 0}, {sides[CLIENT].fd, POLLIN, 0}};
    for (int open = 1; open;) {
        poll(ready, 2, -1);
        for (int from = SERVER; from <= CLIENT && open; from++)
            if (ready[from].revents != 0)
                open = relay(from);
    }
    close(pair[0]);
    end_as(child);
}
