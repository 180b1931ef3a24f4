/*
 * launches MODE SERVICE
 *
 * Two launches that know nothing of each other but a service name:
 *   publish   publishes it, waits until another rank has seen it, withdraws it and says so, ends when that
 *             was seen
 *   lookup    the other side: waits for it, cannot publish it again, waits until it is withdrawn, and
 *             until what the other side published is gone with it
 *   accept    opens a port, publishes it, accepts a connection; both sides add up their ranks
 *   connect   the other side
 *   leave     publishes it and ends
 *   left      looks for it once, which must find it
 *   stay      as accept, and then waits for a message that never comes
 * Each rank prints
 *     launches rank=R mode=MODE got=TEXT
 * where TEXT is the port that was looked up, or the sum over both sides of rank + 1.
 */
#include "common.h"
#include <mpi.h>
#include <time.h>

static int rank, size;
static const char *service;

static void must(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int length;
    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, text, &length);
    fail(1, "launches rank=%d: %s: %s", rank, what, text);
}

static void nap(void)
{
    struct timespec moment = {0, 2 * 1000 * 1000};
    nanosleep(&moment, NULL);
}

static const char *named(const char *end)
{
    static char name[256];
    snprintf(name, sizeof(name), "%s%s", service, end);
    return name;
}

static int find(const char *end, char *port)
{
    return MPI_Lookup_name(named(end), MPI_INFO_NULL, port) == MPI_SUCCESS;
}

static void await(const char *end, int there, char *port)
{
    for (int i = 0; find(end, port) != there; i++) {
        if (i > 20000)
            fail(1, "launches rank=%d: %s%s is still %s", rank, service, end, there ? "missing" : "there");
        nap();
    }
}

static void publish(const char *end, const char *port)
{
    must(MPI_Publish_name(named(end), MPI_INFO_NULL, port), "MPI_Publish_name");
}

static void publisher(char *got)
{
    publish("", "tag#0$port=of;rank:0$");
    await(".seen", 1, got);
    must(MPI_Unpublish_name(named(""), MPI_INFO_NULL, "tag#0$port=of;rank:0$"), "MPI_Unpublish_name");
    publish(".gone", "gone");
    await(".bye", 1, got);
}

static void looker(char *got)
{
    char port[MPI_MAX_PORT_NAME];
    await("", 1, got);
    if (MPI_Publish_name(named(""), MPI_INFO_NULL, "mine") == MPI_SUCCESS)
        fail(1, "launches: the name of the other launch could be published twice");
    publish(".seen", "seen");
    await(".gone", 1, port);
    if (find("", port))
        fail(1, "launches: the name is there after it was withdrawn");
    publish(".bye", "bye");
    await(".gone", 0, port);
}

/* Both sides, once they are connected. */
static void together(MPI_Comm other, int low, int waits, char *got)
{
    MPI_Comm all;
    int sum, one = rank + 1, merged;
    must(MPI_Intercomm_merge(other, !low, &all), "MPI_Intercomm_merge");
    MPI_Comm_rank(all, &merged);
    if (low != (merged < size && merged == rank))
        fail(1, "launches rank=%d: is %d of both sides", rank, merged);
    must(MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, all), "MPI_Allreduce");
    snprintf(got, MPI_MAX_PORT_NAME, "%d", sum);
    if (waits) {
        report("launches rank=%d mode=met", rank);
        MPI_Recv(&sum, 1, MPI_INT, 0, 77, other, MPI_STATUS_IGNORE);
    }
    must(MPI_Comm_free(&all), "MPI_Comm_free");
    must(MPI_Comm_disconnect(&other), "MPI_Comm_disconnect");
}

static void acceptor(int waits, char *got)
{
    char port[MPI_MAX_PORT_NAME] = "";
    MPI_Comm other;
    if (rank == 0) {
        must(MPI_Open_port(MPI_INFO_NULL, port), "MPI_Open_port");
        publish("", port);
    }
    must(MPI_Comm_accept(port, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &other), "MPI_Comm_accept");
    together(other, 1, waits, got);
    if (rank == 0) {
        must(MPI_Unpublish_name(named(""), MPI_INFO_NULL, port), "MPI_Unpublish_name");
        must(MPI_Close_port(port), "MPI_Close_port");
    }
}

static void connector(char *got)
{
    char port[MPI_MAX_PORT_NAME] = "";
    MPI_Comm other;
    if (rank == 0)
        await("", 1, port);
    must(MPI_Comm_connect(port, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &other), "MPI_Comm_connect");
    together(other, 0, 0, got);
}

static void leaver(void)
{
    publish("", "left-behind");
}

static void finder(char *got)
{
    must(MPI_Lookup_name(service, MPI_INFO_NULL, got), "MPI_Lookup_name");
}

int main(int argc, char **argv)
{
    char got[MPI_MAX_PORT_NAME] = "-";
    if (argc != 3)
        fail(2, "launches MODE SERVICE");
    const char *mode = argv[1];
    service = argv[2];
    must(MPI_Init(&argc, &argv), "MPI_Init");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    if (strcmp(mode, "accept") == 0 || strcmp(mode, "stay") == 0)
        acceptor(mode[0] == 's', got);
    else if (strcmp(mode, "connect") == 0)
        connector(got);
    else if (rank == 0 && strcmp(mode, "publish") == 0)
        publisher(got);
    else if (rank == 0 && strcmp(mode, "lookup") == 0)
        looker(got);
    else if (rank == 0 && strcmp(mode, "leave") == 0)
        leaver();
    else if (strcmp(mode, "left") == 0)
        finder(got);
    must(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
    report("launches rank=%d mode=%s got=%s", rank, mode, got);
    must(MPI_Finalize(), "MPI_Finalize");
    return 0;
}
