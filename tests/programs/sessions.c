/*
 * sessions [THREADS [ROUNDS [SET]]]
 *
 * Threads of each rank make communicators at once, without MPI_COMM_WORLD: from a session's group
 * of all ranks, and from the ranks that are even or odd like their own, each under a name of its
 * own, and add something up in each. Prints
 *     sessions rank=R size=N threads=T communicators=C sets="NAME ..." set=S
 * with the process sets that MPI lists; and what came of making a group of SET: the members' number,
 * or "refused".
 * sessions watch
 *
 * Prints `sessions sets="NAME ..."` at once, and again when its standard input has ended.
 *
 * An MPI before version 4 has none: prints that and succeeds.
 */
#include "common.h"
#include <mpi.h>
#include <pthread.h>

/* Open MPI 5 has sessions and calls itself an MPI 3.1. */
#if MPI_VERSION < 4 && !(defined(OMPI_MAJOR_VERSION) && OMPI_MAJOR_VERSION >= 5)

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

/* The names of all process sets, with blanks between. */
static void list_sets(MPI_Session session, char *text, size_t room)
{
    int count = 0;
    size_t used = 0;
    text[0] = '\0';
    if (MPI_Session_get_num_psets(session, MPI_INFO_NULL, &count) != MPI_SUCCESS)
        fail(1, "sessions: the sets cannot be counted");
    for (int i = 0; i < count; i++) {
        char name[MPI_MAX_PSET_NAME_LEN];
        int length = sizeof name;
        if (MPI_Session_get_nth_pset(session, MPI_INFO_NULL, i, &length, name) != MPI_SUCCESS)
            fail(1, "sessions: set %d of %d has no name", i, count);
        if (used < room)
            used += (size_t)snprintf(text + used, room - used, "%s%s", i == 0 ? "" : " ", name);
    }
}

/* The number of members of a set, or "refused". */
static void try_set(MPI_Session session, const char *name, char *text, size_t room)
{
    MPI_Group group = MPI_GROUP_NULL;
    int members = 0;
    snprintf(text, room, "refused");
    if (MPI_Group_from_session_pset(session, name, &group) == MPI_SUCCESS && group != MPI_GROUP_NULL) {
        MPI_Group_size(group, &members);
        snprintf(text, room, "%d", members);
        MPI_Group_free(&group);
    }
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

static int watch(void)
{
    char sets[1024], ignored[64];
    MPI_Session session;
    if (MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &session) != MPI_SUCCESS)
        fail(1, "sessions: no session");
    list_sets(session, sets, sizeof sets);
    report("sessions sets=\"%s\"", sets);
    while (read(STDIN_FILENO, ignored, sizeof ignored) > 0)
        ;
    list_sets(session, sets, sizeof sets);
    report("sessions sets=\"%s\"", sets);
    MPI_Session_finalize(&session);
    return 0;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS_MAX];
    MPI_Session session;
    MPI_Info info;
    char sets[1024], set[32] = "-";
    int members[4096], count = 0, many = 4;

    if (argc > 1 && strcmp(argv[1], "watch") == 0)
        return watch();
    many = argc > 1 ? (int)number_argument(argv[1]) : many;
    rounds = argc > 2 ? (int)number_argument(argv[2]) : rounds;
    if (many > THREADS_MAX)
        fail(2, "sessions: at most %d threads", THREADS_MAX);
    MPI_Info_create(&info);
    MPI_Info_set(info, "thread_level", "MPI_THREAD_MULTIPLE");
    if (MPI_Session_init(info, MPI_ERRORS_RETURN, &session) != MPI_SUCCESS ||
        MPI_Group_from_session_pset(session, "mpi://WORLD", &everybody) != MPI_SUCCESS)
        fail(1, "sessions: no session, or no mpi://WORLD");
    list_sets(session, sets, sizeof sets);
    if (argc > 3)
        try_set(session, argv[3], set, sizeof set);
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
    report("sessions rank=%d size=%d threads=%d communicators=%d sets=\"%s\" set=%s", rank, size, many,
           2 * many * rounds, sets, set);
    MPI_Group_free(&alike);
    MPI_Group_free(&everybody);
    MPI_Info_free(&info);
    MPI_Session_finalize(&session);
    return 0;
}

#endif
