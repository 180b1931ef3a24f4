/*
 * ulfm [-w] RANK[,RANK...]
 *
 * The ranks named kill themselves after a first reduction; with -w none does, and the program waits for the loss of
 * ranks by another hand: it reports "ulfm rank=R ready" first. The survivors revoke the communicator, shrink it, and
 * add up their old ranks in the new one. Prints for each of them
 *     ulfm rank=R size=N new_rank=M new_size=K sum=S
 *
 * The functions are looked up at run time, since most libraries lack them: exit code 77 then.
 */
#define _GNU_SOURCE
#include "common.h"
#include <dlfcn.h>
#include <mpi.h>
#include <signal.h>

static int (*comm_revoke)(MPI_Comm);
static int (*comm_shrink)(MPI_Comm, MPI_Comm *);

static int dies(const char *list, int rank)
{
    char *rest = NULL;

    for (const char *at = list; *at != '\0'; at = *rest == ',' ? rest + 1 : rest) {
        if (strtol(at, &rest, 10) == rank)
            return 1;
        if (rest == at)
            fail(2, "ulfm: ranks expected, not %s", at);
    }
    return 0;
}

/*
 * A rank that leaves a reduction may be ahead of others: one that died at once would make the first reduction of these fail. So
 * it dies when all others have said that they are through.
 */
static void die_in_turn(const char *list, int rank, int size, MPI_Comm all)
{
    for (int other = 0; other < size; other++) {
        if (other != rank && dies(list, other))
            MPI_Send(&rank, 1, MPI_INT, other, 0, all);
    }
    if (!dies(list, rank))
        return;
    for (int other = 0; other < size; other++) {
        int through;

        if (other != rank)
            MPI_Recv(&through, 1, MPI_INT, other, 0, all, MPI_STATUS_IGNORE);
    }
    raise(SIGKILL);
}

int main(int argc, char **argv)
{
    int rank, size, new_rank, new_size, sum = 0, code;
    const int waits = argc > 1 && strcmp(argv[1], "-w") == 0;
    MPI_Comm all, rest;

    alarm(LAST_RESORT_SECONDS);
    *(void **)&comm_revoke = dlsym(RTLD_DEFAULT, "MPIX_Comm_revoke");
    *(void **)&comm_shrink = dlsym(RTLD_DEFAULT, "MPIX_Comm_shrink");
    if (comm_revoke == NULL || comm_shrink == NULL)
        fail(77, "ulfm: this MPI cannot shrink communicators");
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_dup(MPI_COMM_WORLD, &all);
    MPI_Comm_set_errhandler(all, MPI_ERRORS_RETURN);
    MPI_Comm_rank(all, &rank);
    MPI_Comm_size(all, &size);
    if (MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, all) != MPI_SUCCESS)
        fail(1, "ulfm rank=%d: the first reduction failed", rank);
    if (waits)
        report("ulfm rank=%d ready", rank);
    else if (argc > 1)
        die_in_turn(argv[1], rank, size, all);
    do {
        if (waits)
            usleep(10000);
        code = MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, all);
    } while (code == MPI_SUCCESS);
    comm_revoke(all);
    code = comm_shrink(all, &rest);
    if (code != MPI_SUCCESS)
        fail(1, "ulfm rank=%d: no shrink: %d", rank, code);
    MPI_Comm_rank(rest, &new_rank);
    MPI_Comm_size(rest, &new_size);
    code = MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, rest);
    if (code != MPI_SUCCESS)
        fail(1, "ulfm rank=%d: the reduction of the survivors failed: %d", rank, code);
    report("ulfm rank=%d size=%d new_rank=%d new_size=%d sum=%d", rank, size, new_rank, new_size, sum);
    MPI_Comm_free(&rest);
    MPI_Finalize();
    return 0;
}
