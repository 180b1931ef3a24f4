/*
 * exitcode RANK HOW CODE: that rank (or `all`) ends with that code, or by that signal:
 *     finalized         after MPI_Finalize; the other ranks end with 0
 *     finalized-_exit   the same, by _exit(2), which calls no exit handlers
 *     finalized-quick   the same, by quick_exit(3), which calls those of at_quick_exit alone
 *     finalized-exec    the same, by executing a shell
 *     before-init       without MPI_Init, which the others call
 *     without-finalize  after MPI_Init and a barrier; the others wait to be killed
 *     signal            the same, by raising signal CODE
 *     exit-in-finalize  while the others are already in MPI_Finalize
 * Prints, once it knows its rank:
 *     exitcode rank=R how=HOW
 */
#include "common.h"
#include <mpi.h>
#include <signal.h>
#include <sys/resource.h>

int main(int argc, char **argv)
{
    int rank;

    if (argc != 4)
        fail(2, "usage: exitcode RANK|all HOW CODE");
    int everybody = strcmp(argv[1], "all") == 0;
    int who = everybody ? -1 : (int)number_argument(argv[1]);
    const char *how = argv[2];
    int code = (int)number_argument(argv[3]);
    int by_signal = strcmp(how, "signal") == 0;
    if (!by_signal && strncmp(how, "finalized", 9) != 0 && strcmp(how, "before-init") != 0 &&
        strcmp(how, "without-finalize") != 0 && strcmp(how, "exit-in-finalize") != 0)
        fail(2, "exitcode: unknown way to end: %s", how);
    alarm(LAST_RESORT_SECONDS);

    if (strcmp(how, "before-init") == 0 && (everybody || rank_from_environment() == who)) {
        report("exitcode rank=%d how=%s", rank_from_environment(), how);
        _exit(code);
    }
    if (MPI_Init(&argc, &argv) != MPI_SUCCESS)
        fail(1, "exitcode: MPI_Init failed");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    report("exitcode rank=%d how=%s", rank, how);
    int chosen = everybody || rank == who;
    if (strncmp(how, "finalized", 9) == 0) {
        char last_words[32];
        MPI_Finalize();
        snprintf(last_words, sizeof last_words, "exit %d", chosen ? code : 0);
        if (strcmp(how, "finalized-_exit") == 0)
            _exit(chosen ? code : 0);
        if (strcmp(how, "finalized-quick") == 0)
            quick_exit(chosen ? code : 0);
        if (strcmp(how, "finalized-exec") == 0)
            execl("/bin/sh", "sh", "-c", last_words, (char *)NULL);
        return chosen ? code : 0;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (chosen && by_signal) {
        /* A core file is of no use to anybody here. */
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        signal(code, SIG_DFL);
        raise(code);
        fail(1, "exitcode rank=%d: signal %d did not end the process", rank, code);
    }
    if (chosen)
        _exit(code);
    if (strcmp(how, "exit-in-finalize") == 0) {
        MPI_Finalize();
        return 0;
    }
    wait_for_the_end();
}
