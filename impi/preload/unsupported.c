/*
 * Functions that do not support communicators of several clients: they fail with a line. Those of one client are left to the
 * launch's MPI.
 */
#include "preload.h"

/* Defines MPI_name with these parameters; `comm` is the communicator that decides. */
#define REFUSE_ONE(name, parameters, comm, arguments)                                                                          \
    int MPI_##name parameters                                                                                                  \
    {                                                                                                                          \
        return find_impi_comm(comm) == NULL ? PMPI(name) arguments : refuse(comm, "MPI_" #name);                               \
    }

/* The same for a function that headers of MPI 3.1 lack and the launch's MPI may have. */
#define REFUSE_ONE_LATER(name, parameters, comm, arguments)                                                                    \
    __attribute__((visibility("default"))) int MPI_##name parameters;                                                          \
    int PMPI_##name parameters;                                                                                                \
    REFUSE_ONE(name, parameters, comm, arguments)

REFUSE_ONE(Dist_graph_create, (MPI_Comm comm_old, int n, const int sources[], const int degrees[], const int destinations[],
       const int *weights, MPI_Info info, int reorder, MPI_Comm *comm_dist_graph), comm_old, (comm_old, n, sources, degrees,
       destinations, weights, info, reorder, comm_dist_graph))
REFUSE_ONE(Dist_graph_create_adjacent, (MPI_Comm comm_old, int indegree, const int sources[], const int *sourceweights, int
       outdegree, const int destinations[], const int *destweights, MPI_Info info, int reorder, MPI_Comm *comm_dist_graph),
       comm_old, (comm_old, indegree, sources, sourceweights, outdegree, destinations, destweights, info, reorder,
       comm_dist_graph))
REFUSE_ONE(Comm_spawn, (const char *command, char *argv[], int maxprocs, MPI_Info info, int root, MPI_Comm comm, MPI_Comm
       *intercomm, int array_of_errcodes[]), comm, (command, argv, maxprocs, info, root, comm, intercomm, array_of_errcodes))
REFUSE_ONE(Comm_spawn_multiple, (int count, char *array_of_commands[], char **array_of_argv[], const int array_of_maxprocs[],
       const MPI_Info array_of_info[], int root, MPI_Comm comm, MPI_Comm *intercomm, int array_of_errcodes[]), comm, (count,
       array_of_commands, array_of_argv, array_of_maxprocs, array_of_info, root, comm, intercomm, array_of_errcodes))
REFUSE_ONE(Comm_accept, (const char *port_name, MPI_Info info, int root, MPI_Comm comm, MPI_Comm *newcomm), comm, (port_name,
       info, root, comm, newcomm))
REFUSE_ONE(Comm_connect, (const char *port_name, MPI_Info info, int root, MPI_Comm comm, MPI_Comm *newcomm), comm, (port_name,
       info, root, comm, newcomm))
REFUSE_ONE(Win_create_dynamic, (MPI_Info info, MPI_Comm comm, MPI_Win *win), comm, (info, comm, win))
REFUSE_ONE(File_open, (MPI_Comm comm, const char *filename, int amode, MPI_Info info, MPI_File *fh), comm, (comm, filename,
       amode, info, fh))
REFUSE_ONE_LATER(Barrier_init, (MPI_Comm comm, MPI_Info info, MPI_Request *request), comm, (comm, info, request))
REFUSE_ONE_LATER(Psend_init, (const void *buf, int partitions, MPI_Count count, MPI_Datatype datatype, int dest, int tag,
       MPI_Comm comm, MPI_Info info, MPI_Request *request), comm, (buf, partitions, count, datatype, dest, tag, comm, info,
       request))
REFUSE_ONE_LATER(Precv_init, (void *buf, int partitions, MPI_Count count, MPI_Datatype datatype, int dest, int tag, MPI_Comm
       comm, MPI_Info info, MPI_Request *request), comm, (buf, partitions, count, datatype, dest, tag, comm, info, request))

#define COUNT int
#define DISPLACEMENT int
#define REFUSE(name, parameters, comm, arguments) REFUSE_ONE(name, parameters, comm, arguments)
#define REFUSE_LATER(name, parameters, comm, arguments) REFUSE_ONE_LATER(name, parameters, comm, arguments)
#include "unsupported.inc"

#if MPI_VERSION >= 4
#undef COUNT
#undef DISPLACEMENT
#undef REFUSE
#undef REFUSE_LATER
#define COUNT MPI_Count
#define DISPLACEMENT MPI_Aint
#define REFUSE(name, parameters, comm, arguments) REFUSE_ONE(name##_c, parameters, comm, arguments)
#define REFUSE_LATER(name, parameters, comm, arguments) REFUSE_ONE(name##_c, parameters, comm, arguments)
#include "unsupported.inc"
#endif
