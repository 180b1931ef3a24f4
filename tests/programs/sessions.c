/*
 * sessions [THREADS [ROUNDS]]
 *
 * Threads of each rank make communicators at once, without MPI_COMM_WORLD: from a session's group
 * of all ranks, and from the ranks that are even or odd like their own, each under a name of its
 * own, and add something up in each. Prints
 *     sessions rank=R size=N threads=T communicators=C
 * An MPI before version 4 has no sessions: prints that and succeeds.
 */
#include "common.h"
#include <mpi.h>
#include <pthread.h>

#if MPI_VERSION < 4

int main(void)
{
    report("sessions none=\"MPI %d.%d\"", MPI_VERSION, MPI_SUBVERSION);
    return 0;
}

#else

enum { THREADS_MAX = 16 };

static MPI_Group everybody, alike;
static int rank, size, rounds = 5;

/* Makes a communicator of a group, uses it and frees it; NULL, or what was wrong. */
static const char *use(MPI_Group group, int thread, int round, int members, int expected)
{
    MPI_Comm comm;
    char name[64];
    int sum = 0, count = 0;

    snprintf(name, sizeof name, "org.example.%d.%d.%d", thread, round, group == alike);
    if (MPI_Comm_create_from_group(group, name, MPI_INFO_NULL, MPI_ERRORS_RETURN, &comm) != MPI_SUCCESS)
        return "MPI_Comm_create_from_group failed";
    MPI_Comm_size(comm, &count);
    if (count != members)
        return "a communicator has the wrong size";
    if (MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, comm) != MPI_SUCCESS || sum != expected)
        return "a sum is wrong";
    return MPI_Comm_free(&comm) == MPI_SUCCESS ? NULL : "MPI_Comm_free failed";
}

static void *communicate(void *argument)
{
    int thread = (int)(long)argument, members = 0, sum = 0;
    const char *problem = NULL;

    for (int member = rank % 2; member < size; member += 2, members++)
        sum += member;
    for (int round = 0; problem == NULL && round < rounds; round++) {
        problem = use(everybody, thread, round, size, size * (size - 1) / 2);
        if (problem == NULL)
            problem = use(alike, thread, round, members, sum);
    }
    return (void *)problem;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS_MAX];
    MPI_Session session;
    MPI_Info info;
    int members[4096], count = 0, many = argc > 1 ? (int)number_argument(argv[1]) : 4;

    rounds = argc > 2 ? (int)number_argument(argv[2]) : rounds;
    if (many > THREADS_MAX)
        fail(2, "sessions: at most %d threads", THREADS_MAX);
    MPI_Info_create(&info);
    MPI_Info_set(info, "thread_level", "MPI_THREAD_MULTIPLE");
    if (MPI_Session_init(info, MPI_ERRORS_RETURN, &session) != MPI_SUCCESS ||
        MPI_Group_from_session_pset(session, "mpi://WORLD", &everybody) != MPI_SUCCESS)
        fail(1, "sessions: no session, or no mpi://WORLD");
    MPI_Group_rank(everybody, &rank);
    MPI_Group_size(everybody, &size);
    for (int member = rank % 2; member < size && count < 4096; member += 2)
        members[count++] = member;
    MPI_Group_incl(everybody, count, members, &alike);

    for (long i = 0; i < many; i++)
        if (pthread_create(&threads[i], NULL, communicate, (void *)i) != 0)
            fail(1, "sessions rank=%d: cannot start a thread", rank);
    for (int i = 0; i < many; i++) {
        void *problem;
        pthread_join(threads[i], &problem);
        if (problem != NULL)
            fail(1, "sessions rank=%d thread %d: %s", rank, i, (const char *)problem);
    }
    report("sessions rank=%d size=%d threads=%d communicators=%d", rank, size, many, 2 * many * rounds);
    MPI_Group_free(&alike);
    MPI_Group_free(&everybody);
    MPI_Info_free(&info);
    MPI_Session_finalize(&session);
    return 0;
}

#endif
