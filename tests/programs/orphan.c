/*
 * orphan [--hold-output] [--stay]
 *
 * Leaves a process behind that was not asked for: a grandchild in a session of its own, whose parent
 * is gone, and which ignores SIGHUP and SIGTERM. Prints
 *     orphan rank=R pid=P grandchild=G
 * and ends with 0, or with --stay waits to be killed. The grandchild closes its output unless told
 * to hold it.
 */
#define _GNU_SOURCE
#include "common.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

int main(int argc, char **argv)
{
    int hold = 0, stay = 0, channel[2], rank = rank_from_environment();
    pid_t grandchild;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--hold-output") == 0)
            hold = 1;
        else if (strcmp(argv[i], "--stay") == 0)
            stay = 1;
        else
            fail(2, "usage: orphan [--hold-output] [--stay]");
    }
    if (pipe2(channel, O_CLOEXEC) != 0)
        fail(1, "orphan: pipe: %s", strerror(errno));
    pid_t child = fork();
    if (child < 0)
        fail(1, "orphan: fork: %s", strerror(errno));
    if (child == 0) {
        setsid();
        signal(SIGHUP, SIG_IGN);
        signal(SIGTERM, SIG_IGN);
        grandchild = fork();
        if (grandchild != 0)
            _exit(grandchild < 0);
        setsid();
        grandchild = getpid();
        if (!hold) {
            int null = open("/dev/null", O_RDWR);
            for (int fd = 0; fd <= 2; fd++)
                dup2(null, fd);
        }
        /* Told only now, so that who reads the line may rely on the session and the output. */
        if (write_all(channel[1], &grandchild, sizeof grandchild) != 0)
            _exit(1);
        close(channel[0]);
        close(channel[1]);
        wait_for_the_end();
    }
    close(channel[1]);
    if (read(channel[0], &grandchild, sizeof grandchild) != (ssize_t)sizeof grandchild)
        fail(1, "orphan: the grandchild did not start");
    int status;
    waitpid(child, &status, 0);
    report("orphan rank=%d pid=%d grandchild=%d", rank, (int)getpid(), (int)grandchild);
    if (stay)
        wait_for_the_end();
    return 0;
}
