/*
 * parent RUNS AT_ONCE PROGRAM [ARGUMENT]...
 *
 * Starts the program RUNS times, AT_ONCE of them at a time, as a daemon would that lives for months: it
 * collects exactly the children it started, and adopts whatever they leave. Says
 *     parent runs=N failed=F strays=S descriptors=D
 * with the runs that did not exit with 0, the processes that came to it, living or dead, and by how
 * much its own number of open descriptors changed.
 */
#define _GNU_SOURCE
#include "common.h"
#include <dirent.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { MOST = 64 };

static int descriptors(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    if (dir == NULL)
        fail(1, "parent: /proc/self/fd: %s", strerror(errno));
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

static pid_t start(char **command)
{
    pid_t child = fork();
    if (child < 0)
        fail(1, "parent: fork: %s", strerror(errno));
    if (child == 0) {
        execv(command[0], command);
        fail(127, "parent: %s: %s", command[0], strerror(errno));
    }
    return child;
}

int main(int argc, char **argv)
{
    pid_t running[MOST];
    long failed = 0, strays = 0;

    if (argc < 4)
        fail(2, "usage: parent RUNS AT_ONCE PROGRAM [ARGUMENT]...");
    long runs = number_argument(argv[1]), at_once = number_argument(argv[2]);
    if (at_once < 1 || at_once > MOST)
        fail(2, "parent: from 1 to %d at once", MOST);
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0)
        fail(1, "parent: cannot adopt orphans: %s", strerror(errno));
    int before = descriptors();
    for (long done = 0; done < runs;) {
        int count = 0;
        while (count < at_once && done < runs) {
            running[count++] = start(argv + 3);
            done++;
        }
        for (int i = 0; i < count; i++) {
            int status;
            /* In the order of their start: the others wait as zombies until it is their turn. */
            if (waitpid(running[i], &status, 0) != running[i])
                fail(1, "parent: waitpid: %s", strerror(errno));
            failed += status != 0;
        }
        /* All processes that are left now were started by others. */
        siginfo_t info;
        while (memset(&info, 0, sizeof info),
               waitid(P_ALL, 0, &info, WEXITED | WNOHANG | __WALL) == 0) {
            strays++;
            if (info.si_pid == 0)
                break; /* It lives on. */
        }
    }
    report("parent runs=%ld failed=%ld strays=%ld descriptors=%d", runs, failed, strays,
           descriptors() - before);
    return failed > 0 || strays > 0;
}
