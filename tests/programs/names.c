/*
 * names
 *
 * Rank 0 publishes a name, all others look it up; a second publication, names that were not published, and
 * the name after it was withdrawn must fail with the errors that MPI has for them:
 *     names rank=R size=N twice=CLASS unknown=CLASS withdrawn=CLASS unpublish=CLASS
 * where CLASS is "ok", "name" (MPI_ERR_NAME), "service" (MPI_ERR_SERVICE), "other", or "-" for what
 * that rank did not try.
 */
#include "common.h"
#include <mpi.h>

static int rank;

static const char *class_of(int code)
{
    int class = code;
    if (code == MPI_SUCCESS)
        return "ok";
    MPI_Error_class(code, &class);
    return class == MPI_ERR_NAME ? "name" : class == MPI_ERR_SERVICE ? "service" : "other";
}

static void must(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int length;
    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, text, &length);
    fail(1, "names rank=%d: %s: %s", rank, what, text);
}

static const char *look_up(const char *service)
{
    char port[MPI_MAX_PORT_NAME];
    return class_of(MPI_Lookup_name(service, MPI_INFO_NULL, port));
}

int main(int argc, char **argv)
{
    /* With a blank, as PMI-1 sends it raw. */
    static const char service[] = "a service = of wireup";
    /* Not one of MPI_Open_port, which not every MPI can on every network. Without a blank: clients of
     * PMI-1 cannot read one in a port. */
    static const char sent[] = "tag#0$port=of;rank:0$";
    char port[MPI_MAX_PORT_NAME] = "";
    const char *twice = "-", *unpublish = "-";
    int size;

    must(MPI_Init(&argc, &argv), "MPI_Init");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);

    if (rank == 0) {
        must(MPI_Publish_name(service, MPI_INFO_NULL, sent), "MPI_Publish_name");
        twice = class_of(MPI_Publish_name(service, MPI_INFO_NULL, "another port"));
    }
    must(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
    must(MPI_Lookup_name(service, MPI_INFO_NULL, port), "MPI_Lookup_name");
    if (strcmp(port, sent) != 0)
        fail(1, "names rank=%d: looked up \"%s\", published was \"%s\"", rank, port, sent);
    const char *unknown = look_up("nobody published this");
    must(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
    if (rank == 0) {
        must(MPI_Unpublish_name(service, MPI_INFO_NULL, sent), "MPI_Unpublish_name");
        unpublish = class_of(MPI_Unpublish_name(service, MPI_INFO_NULL, sent));
    }
    must(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
    const char *withdrawn = look_up(service);
    report("names rank=%d size=%d twice=%s unknown=%s withdrawn=%s unpublish=%s", rank,
           size, twice, unknown, withdrawn, unpublish);
    must(MPI_Finalize(), "MPI_Finalize");
    return 0;
}
