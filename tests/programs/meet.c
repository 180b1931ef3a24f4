/*
 * meet halves NAME [TIMES]           the lower half of the ranks accepts, the upper half connects
 * meet accept NAME [TIMES [FILE]]    all ranks accept; not before FILE is there
 * meet connect NAME [TIMES]          all ranks connect, once the name is published
 *
 * Jobs, or halves of one, that find each other by a published name, merge, add something up, and
 * disconnect; TIMES over the same port. Each rank says
 *     meet rank=R size=N side=accept|connect merged=M remote=K us=MICROSECONDS
 * with the number of all that merged, of those on the other side, and the median of the time from
 * the call that connects to the end of the sum. Before that, once it has merged for the first time,
 *     met rank=R
 */
#include "common.h"
#include <mpi.h>
#include <stdbool.h>
#include <time.h>

static int rank, size;

static void must(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "?";
    int length;
    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, text, &length);
    fail(1, "meet rank=%d: %s: %s", rank, what, text);
}

static long microseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000L + now.tv_nsec / 1000;
}

static int ascending(const void *a, const void *b)
{
    long left = *(const long *)a, right = *(const long *)b;
    return (left > right) - (left < right);
}

/* Both sides, once. Returns how many they are together. */
static int meet_once(bool accepts, const char *port, MPI_Comm local, int *remote)
{
    MPI_Comm inter, merged;
    int all, mine, sum = 0;

    if (accepts)
        must(MPI_Comm_accept(port, MPI_INFO_NULL, 0, local, &inter), "MPI_Comm_accept");
    else
        must(MPI_Comm_connect(port, MPI_INFO_NULL, 0, local, &inter), "MPI_Comm_connect");
    MPI_Comm_remote_size(inter, remote);
    must(MPI_Intercomm_merge(inter, !accepts, &merged), "MPI_Intercomm_merge");
    MPI_Comm_size(merged, &all);
    MPI_Comm_rank(merged, &mine);
    int summand = mine + 1;
    must(MPI_Allreduce(&summand, &sum, 1, MPI_INT, MPI_SUM, merged), "MPI_Allreduce");
    if (sum != all * (all + 1) / 2)
        fail(1, "meet rank=%d: the sum of %d is %d", rank, all, sum);
    must(MPI_Comm_free(&merged), "MPI_Comm_free");
    must(MPI_Comm_disconnect(&inter), "MPI_Comm_disconnect");
    return all;
}

int main(int argc, char **argv)
{
    char port[MPI_MAX_PORT_NAME] = "";
    MPI_Comm local = MPI_COMM_WORLD;
    int position, members, remote = 0, all = 0;

    if (argc < 3)
        fail(2, "usage: meet halves|accept|connect NAME [TIMES [FILE]]");
    const char *how = argv[1], *name = argv[2], *file = argc > 4 ? argv[4] : NULL;
    int times = argc > 3 ? (int)number_argument(argv[3]) : 1;
    must(MPI_Init(&argc, &argv), "MPI_Init");
    alarm(LAST_RESORT_SECONDS);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    bool accepts = strcmp(how, "halves") == 0 ? rank < size / 2 : strcmp(how, "accept") == 0;
    if (strcmp(how, "halves") == 0)
        must(MPI_Comm_split(MPI_COMM_WORLD, accepts, rank, &local), "MPI_Comm_split");
    MPI_Comm_rank(local, &position);
    MPI_Comm_size(local, &members);
    if (position == 0 && accepts) {
        while (file != NULL && access(file, F_OK) != 0)
            usleep(5000);
        must(MPI_Open_port(MPI_INFO_NULL, port), "MPI_Open_port");
        must(MPI_Publish_name(name, MPI_INFO_NULL, port), "MPI_Publish_name");
    } else if (position == 0) {
        while (MPI_Lookup_name(name, MPI_INFO_NULL, port) != MPI_SUCCESS)
            usleep(5000);
    }
    long *took = calloc((size_t)times, sizeof *took);
    for (int i = 0; took != NULL && i < times; i++) {
        long before = microseconds();
        all = meet_once(accepts, port, local, &remote);
        took[i] = microseconds() - before;
        if (all != members + remote)
            fail(1, "meet rank=%d: %d and %d are %d", rank, members, remote, all);
        if (i == 0)
            report("met rank=%d", rank);
    }
    if (position == 0 && accepts) {
        must(MPI_Unpublish_name(name, MPI_INFO_NULL, port), "MPI_Unpublish_name");
        must(MPI_Close_port(port), "MPI_Close_port");
    }
    if (local != MPI_COMM_WORLD)
        must(MPI_Comm_free(&local), "MPI_Comm_free");
    qsort(took, (size_t)times, sizeof *took, ascending);
    report("meet rank=%d size=%d side=%s merged=%d remote=%d us=%ld", rank, size,
           accepts ? "accept" : "connect", all, remote, took[times / 2]);
    free(took);
    must(MPI_Finalize(), "MPI_Finalize");
    return 0;
}
