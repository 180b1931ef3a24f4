/*
 * Functions that do not support communicators of several clients: they fail with a line. Those of one client are left to the
 * launch's MPI.
 */
#include "preload.h"

/* Defines MPI_name with these parameters; `comm` is the communicator that decides. */
#define REFUSE(name, parameters, comm, arguments)                                                                              \
    int MPI_##name parameters                                                                                                  \
    {                                                                                                                          \
        return find_impi_comm(comm) == NULL ? PMPI(name) arguments : refuse(comm, "MPI_" #name);                                  \
    }

/* The same for a function that headers of MPI 3.1 lack and the launch's MPI may have. */
#define REFUSE_LATER(name, parameters, comm, arguments)                                                                        \
    __attribute__((visibility("default"))) int MPI_##name parameters;                                                          \
    int PMPI_##name parameters;                                                                                                \
    REFUSE(name, parameters, comm, arguments)

REFUSE(Ibarrier, (MPI_Comm comm, MPI_Request *request), comm, (comm, request))
REFUSE(Ibcast, (void *buffer, int count, MPI_Datatype datatype, int root, MPI_Comm comm, MPI_Request *request), comm, (buffer,
       count, datatype, root, comm, request))
REFUSE(Ireduce, (const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op, int root, MPI_Comm comm,
       MPI_Request *request), comm, (sendbuf, recvbuf, count, datatype, op, root, comm, request))
REFUSE(Iallreduce, (const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm, MPI_Request
       *request), comm, (sendbuf, recvbuf, count, datatype, op, comm, request))
REFUSE(Ireduce_scatter, (const void *sendbuf, void *recvbuf, const int recvcounts[], MPI_Datatype datatype, MPI_Op op, MPI_Comm
       comm, MPI_Request *request), comm, (sendbuf, recvbuf, recvcounts, datatype, op, comm, request))
REFUSE(Ireduce_scatter_block, (const void *sendbuf, void *recvbuf, int recvcount, MPI_Datatype datatype, MPI_Op op, MPI_Comm
       comm, MPI_Request *request), comm, (sendbuf, recvbuf, recvcount, datatype, op, comm, request))
REFUSE(Iscan, (const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm, MPI_Request
       *request), comm, (sendbuf, recvbuf, count, datatype, op, comm, request))
REFUSE(Iexscan, (const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm, MPI_Request
       *request), comm, (sendbuf, recvbuf, count, datatype, op, comm, request))
REFUSE(Igather, (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount, MPI_Datatype
       recvtype, int root, MPI_Comm comm, MPI_Request *request), comm, (sendbuf, sendcount, sendtype, recvbuf, recvcount,
       recvtype, root, comm, request))
REFUSE(Igatherv, (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, const int recvcounts[], const int
       displs[], MPI_Datatype recvtype, int root, MPI_Comm comm, MPI_Request *request), comm, (sendbuf, sendcount, sendtype,
       recvbuf, recvcounts, displs, recvtype, root, comm, request))
REFUSE(Iscatter, (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount, MPI_Datatype
       recvtype, int root, MPI_Comm comm, MPI_Request *request), comm, (sendbuf, sendcount, sendtype, recvbuf, recvcount,
       recvtype, root, comm, request))
REFUSE(Iscatterv, (const void *sendbuf, const int sendcounts[], const int displs[], MPI_Datatype sendtype, void *recvbuf, int
       recvcount, MPI_Datatype recvtype, int root, MPI_Comm comm, MPI_Request *request), comm, (sendbuf, sendcounts, displs,
       sendtype, recvbuf, recvcount, recvtype, root, comm, request))
REFUSE(Iallgather, (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount, MPI_Datatype
       recvtype, MPI_Comm comm, MPI_Request *request), comm, (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm,
       request))
REFUSE(Iallgatherv, (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, const int recvcounts[], const
       int displs[], MPI_Datatype recvtype, MPI_Comm comm, MPI_Request *request), comm, (sendbuf, sendcount, sendtype, recvbuf,
       recvcounts, displs, recvtype, comm, request))
REFUSE(Ialltoall, (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount, MPI_Datatype
       recvtype, MPI_Comm comm, MPI_Request *request), comm, (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm,
       request))
REFUSE(Ialltoallv, (const void *sendbuf, const int sendcounts[], const int sdispls[], MPI_Datatype sendtype, void *recvbuf,
       const int recvcounts[], const int rdispls[], MPI_Datatype recvtype, MPI_Comm comm, MPI_Request *request), comm,
       (sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype, comm, request))
REFUSE(Ialltoallw, (const void *sendbuf, const int sendcounts[], const int sdispls[], const MPI_Datatype sendtypes[], void
       *recvbuf, const int recvcounts[], const int rdispls[], const MPI_Datatype recvtypes[], MPI_Comm comm, MPI_Request
       *request), comm, (sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes, comm, request))
REFUSE(Alltoallw, (const void *sendbuf, const int sendcounts[], const int sdispls[], const MPI_Datatype sendtypes[], void
       *recvbuf, const int recvcounts[], const int rdispls[], const MPI_Datatype recvtypes[], MPI_Comm comm), comm, (sendbuf,
       sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes, comm))
REFUSE(Neighbor_allgather, (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
       MPI_Datatype recvtype, MPI_Comm comm), comm, (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm))
REFUSE(Ineighbor_allgather, (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
       MPI_Datatype recvtype, MPI_Comm comm, MPI_Request *request), comm, (sendbuf, sendcount, sendtype, recvbuf, recvcount,
       recvtype, comm, request))
REFUSE(Neighbor_allgatherv, (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, const int recvcounts[],
       const int displs[], MPI_Datatype recvtype, MPI_Comm comm), comm, (sendbuf, sendcount, sendtype, recvbuf, recvcounts,
       displs, recvtype, comm))
REFUSE(Ineighbor_allgatherv, (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, const int recvcounts[],
       const int displs[], MPI_Datatype recvtype, MPI_Comm comm, MPI_Request *request), comm, (sendbuf, sendcount, sendtype,
       recvbuf, recvcounts, displs, recvtype, comm, request))
REFUSE(Neighbor_alltoall, (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
       MPI_Datatype recvtype, MPI_Comm comm), comm, (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm))
REFUSE(Ineighbor_alltoall, (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
       MPI_Datatype recvtype, MPI_Comm comm, MPI_Request *request), comm, (sendbuf, sendcount, sendtype, recvbuf, recvcount,
       recvtype, comm, request))
REFUSE(Neighbor_alltoallv, (const void *sendbuf, const int sendcounts[], const int sdispls[], MPI_Datatype sendtype, void
       *recvbuf, const int recvcounts[], const int rdispls[], MPI_Datatype recvtype, MPI_Comm comm), comm, (sendbuf,
       sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype, comm))
REFUSE(Ineighbor_alltoallv, (const void *sendbuf, const int sendcounts[], const int sdispls[], MPI_Datatype sendtype, void
       *recvbuf, const int recvcounts[], const int rdispls[], MPI_Datatype recvtype, MPI_Comm comm, MPI_Request *request),
       comm, (sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype, comm, request))
REFUSE(Neighbor_alltoallw, (const void *sendbuf, const int sendcounts[], const MPI_Aint sdispls[], const MPI_Datatype
       sendtypes[], void *recvbuf, const int recvcounts[], const MPI_Aint rdispls[], const MPI_Datatype recvtypes[], MPI_Comm
       comm), comm, (sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes, comm))
REFUSE(Ineighbor_alltoallw, (const void *sendbuf, const int sendcounts[], const MPI_Aint sdispls[], const MPI_Datatype
       sendtypes[], void *recvbuf, const int recvcounts[], const MPI_Aint rdispls[], const MPI_Datatype recvtypes[], MPI_Comm
       comm, MPI_Request *request), comm, (sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes,
       comm, request))
REFUSE(Graph_create, (MPI_Comm comm_old, int nnodes, const int indx[], const int edges[], int reorder, MPI_Comm *comm_graph),
       comm_old, (comm_old, nnodes, indx, edges, reorder, comm_graph))
REFUSE(Graph_map, (MPI_Comm comm, int nnodes, const int indx[], const int edges[], int *newrank), comm, (comm, nnodes, indx,
       edges, newrank))
REFUSE(Dist_graph_create, (MPI_Comm comm_old, int n, const int sources[], const int degrees[], const int destinations[], const
       int *weights, MPI_Info info, int reorder, MPI_Comm *comm_dist_graph), comm_old, (comm_old, n, sources, degrees,
       destinations, weights, info, reorder, comm_dist_graph))
REFUSE(Dist_graph_create_adjacent, (MPI_Comm comm_old, int indegree, const int sources[], const int *sourceweights, int
       outdegree, const int destinations[], const int *destweights, MPI_Info info, int reorder, MPI_Comm *comm_dist_graph),
       comm_old, (comm_old, indegree, sources, sourceweights, outdegree, destinations, destweights, info, reorder,
       comm_dist_graph))
REFUSE(Comm_spawn, (const char *command, char *argv[], int maxprocs, MPI_Info info, int root, MPI_Comm comm, MPI_Comm
       *intercomm, int array_of_errcodes[]), comm, (command, argv, maxprocs, info, root, comm, intercomm, array_of_errcodes))
REFUSE(Comm_spawn_multiple, (int count, char *array_of_commands[], char **array_of_argv[], const int array_of_maxprocs[], const
       MPI_Info array_of_info[], int root, MPI_Comm comm, MPI_Comm *intercomm, int array_of_errcodes[]), comm, (count,
       array_of_commands, array_of_argv, array_of_maxprocs, array_of_info, root, comm, intercomm, array_of_errcodes))
REFUSE(Comm_accept, (const char *port_name, MPI_Info info, int root, MPI_Comm comm, MPI_Comm *newcomm), comm, (port_name, info,
       root, comm, newcomm))
REFUSE(Comm_connect, (const char *port_name, MPI_Info info, int root, MPI_Comm comm, MPI_Comm *newcomm), comm, (port_name,
       info, root, comm, newcomm))
REFUSE(Win_create, (void *base, MPI_Aint size, int disp_unit, MPI_Info info, MPI_Comm comm, MPI_Win *win), comm, (base, size,
       disp_unit, info, comm, win))
REFUSE(Win_allocate, (MPI_Aint size, int disp_unit, MPI_Info info, MPI_Comm comm, void *baseptr, MPI_Win *win), comm, (size,
       disp_unit, info, comm, baseptr, win))
REFUSE(Win_allocate_shared, (MPI_Aint size, int disp_unit, MPI_Info info, MPI_Comm comm, void *baseptr, MPI_Win *win), comm,
       (size, disp_unit, info, comm, baseptr, win))
REFUSE(Win_create_dynamic, (MPI_Info info, MPI_Comm comm, MPI_Win *win), comm, (info, comm, win))
REFUSE(File_open, (MPI_Comm comm, const char *filename, int amode, MPI_Info info, MPI_File *fh), comm, (comm, filename, amode,
       info, fh))

REFUSE_LATER(Barrier_init, (MPI_Comm comm, MPI_Info info, MPI_Request *request), comm, (comm, info, request))
REFUSE_LATER(Bcast_init, (void *buffer, int count, MPI_Datatype datatype, int root, MPI_Comm comm, MPI_Info info, MPI_Request
       *request), comm, (buffer, count, datatype, root, comm, info, request))
REFUSE_LATER(Reduce_init, (const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op, int root, MPI_Comm
       comm, MPI_Info info, MPI_Request *request), comm, (sendbuf, recvbuf, count, datatype, op, root, comm, info, request))
REFUSE_LATER(Allreduce_init, (const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm,
       MPI_Info info, MPI_Request *request), comm, (sendbuf, recvbuf, count, datatype, op, comm, info, request))
REFUSE_LATER(Reduce_scatter_init, (const void *sendbuf, void *recvbuf, const int recvcounts[], MPI_Datatype datatype, MPI_Op
       op, MPI_Comm comm, MPI_Info info, MPI_Request *request), comm, (sendbuf, recvbuf, recvcounts, datatype, op, comm, info,
       request))
REFUSE_LATER(Reduce_scatter_block_init, (const void *sendbuf, void *recvbuf, int recvcount, MPI_Datatype datatype, MPI_Op op,
       MPI_Comm comm, MPI_Info info, MPI_Request *request), comm, (sendbuf, recvbuf, recvcount, datatype, op, comm, info,
       request))
REFUSE_LATER(Scan_init, (const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm,
       MPI_Info info, MPI_Request *request), comm, (sendbuf, recvbuf, count, datatype, op, comm, info, request))
REFUSE_LATER(Exscan_init, (const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm,
       MPI_Info info, MPI_Request *request), comm, (sendbuf, recvbuf, count, datatype, op, comm, info, request))
REFUSE_LATER(Gather_init, (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
       MPI_Datatype recvtype, int root, MPI_Comm comm, MPI_Info info, MPI_Request *request), comm, (sendbuf, sendcount,
       sendtype, recvbuf, recvcount, recvtype, root, comm, info, request))
REFUSE_LATER(Gatherv_init, (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, const int recvcounts[],
       const int displs[], MPI_Datatype recvtype, int root, MPI_Comm comm, MPI_Info info, MPI_Request *request), comm,
       (sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, root, comm, info, request))
REFUSE_LATER(Scatter_init, (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
       MPI_Datatype recvtype, int root, MPI_Comm comm, MPI_Info info, MPI_Request *request), comm, (sendbuf, sendcount,
       sendtype, recvbuf, recvcount, recvtype, root, comm, info, request))
REFUSE_LATER(Scatterv_init, (const void *sendbuf, const int sendcounts[], const int displs[], MPI_Datatype sendtype, void
       *recvbuf, int recvcount, MPI_Datatype recvtype, int root, MPI_Comm comm, MPI_Info info, MPI_Request *request), comm,
       (sendbuf, sendcounts, displs, sendtype, recvbuf, recvcount, recvtype, root, comm, info, request))
REFUSE_LATER(Allgather_init, (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
       MPI_Datatype recvtype, MPI_Comm comm, MPI_Info info, MPI_Request *request), comm, (sendbuf, sendcount, sendtype,
       recvbuf, recvcount, recvtype, comm, info, request))
REFUSE_LATER(Allgatherv_init, (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, const int
       recvcounts[], const int displs[], MPI_Datatype recvtype, MPI_Comm comm, MPI_Info info, MPI_Request *request), comm,
       (sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm, info, request))
REFUSE_LATER(Alltoall_init, (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
       MPI_Datatype recvtype, MPI_Comm comm, MPI_Info info, MPI_Request *request), comm, (sendbuf, sendcount, sendtype,
       recvbuf, recvcount, recvtype, comm, info, request))
REFUSE_LATER(Alltoallv_init, (const void *sendbuf, const int sendcounts[], const int sdispls[], MPI_Datatype sendtype, void
       *recvbuf, const int recvcounts[], const int rdispls[], MPI_Datatype recvtype, MPI_Comm comm, MPI_Info info, MPI_Request
       *request), comm, (sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype, comm, info, request))
REFUSE_LATER(Alltoallw_init, (const void *sendbuf, const int sendcounts[], const int sdispls[], const MPI_Datatype sendtypes[],
       void *recvbuf, const int recvcounts[], const int rdispls[], const MPI_Datatype recvtypes[], MPI_Comm comm, MPI_Info
       info, MPI_Request *request), comm, (sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes,
       comm, info, request))
REFUSE_LATER(Neighbor_allgather_init, (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
       MPI_Datatype recvtype, MPI_Comm comm, MPI_Info info, MPI_Request *request), comm, (sendbuf, sendcount, sendtype,
       recvbuf, recvcount, recvtype, comm, info, request))
REFUSE_LATER(Neighbor_allgatherv_init, (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, const int
       recvcounts[], const int displs[], MPI_Datatype recvtype, MPI_Comm comm, MPI_Info info, MPI_Request *request), comm,
       (sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm, info, request))
REFUSE_LATER(Neighbor_alltoall_init, (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
       MPI_Datatype recvtype, MPI_Comm comm, MPI_Info info, MPI_Request *request), comm, (sendbuf, sendcount, sendtype,
       recvbuf, recvcount, recvtype, comm, info, request))
REFUSE_LATER(Neighbor_alltoallv_init, (const void *sendbuf, const int sendcounts[], const int sdispls[], MPI_Datatype sendtype,
       void *recvbuf, const int recvcounts[], const int rdispls[], MPI_Datatype recvtype, MPI_Comm comm, MPI_Info info,
       MPI_Request *request), comm, (sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype, comm,
       info, request))
REFUSE_LATER(Neighbor_alltoallw_init, (const void *sendbuf, const int sendcounts[], const MPI_Aint sdispls[], const
       MPI_Datatype sendtypes[], void *recvbuf, const int recvcounts[], const MPI_Aint rdispls[], const MPI_Datatype
       recvtypes[], MPI_Comm comm, MPI_Info info, MPI_Request *request), comm, (sendbuf, sendcounts, sdispls, sendtypes,
       recvbuf, recvcounts, rdispls, recvtypes, comm, info, request))
REFUSE_LATER(Isendrecv, (const void *sendbuf, int sendcount, MPI_Datatype sendtype, int dest, int sendtag, void *recvbuf, int
       recvcount, MPI_Datatype recvtype, int source, int recvtag, MPI_Comm comm, MPI_Request *request), comm, (sendbuf,
       sendcount, sendtype, dest, sendtag, recvbuf, recvcount, recvtype, source, recvtag, comm, request))
REFUSE_LATER(Isendrecv_replace, (void *buf, int count, MPI_Datatype datatype, int dest, int sendtag, int source, int recvtag,
       MPI_Comm comm, MPI_Request *request), comm, (buf, count, datatype, dest, sendtag, source, recvtag, comm, request))
REFUSE_LATER(Psend_init, (const void *buf, int partitions, MPI_Count count, MPI_Datatype datatype, int dest, int tag, MPI_Comm
       comm, MPI_Info info, MPI_Request *request), comm, (buf, partitions, count, datatype, dest, tag, comm, info, request))
REFUSE_LATER(Precv_init, (void *buf, int partitions, MPI_Count count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm,
       MPI_Info info, MPI_Request *request), comm, (buf, partitions, count, datatype, dest, tag, comm, info, request))

#if MPI_VERSION >= 4
REFUSE(Ibcast_c, (void *buffer, MPI_Count count, MPI_Datatype datatype, int root, MPI_Comm comm, MPI_Request *request), comm,
       (buffer, count, datatype, root, comm, request))
REFUSE(Ireduce_c, (const void *sendbuf, void *recvbuf, MPI_Count count, MPI_Datatype datatype, MPI_Op op, int root, MPI_Comm
       comm, MPI_Request *request), comm, (sendbuf, recvbuf, count, datatype, op, root, comm, request))
REFUSE(Iallreduce_c, (const void *sendbuf, void *recvbuf, MPI_Count count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm,
       MPI_Request *request), comm, (sendbuf, recvbuf, count, datatype, op, comm, request))
REFUSE(Ireduce_scatter_c, (const void *sendbuf, void *recvbuf, const MPI_Count recvcounts[], MPI_Datatype datatype, MPI_Op op,
       MPI_Comm comm, MPI_Request *request), comm, (sendbuf, recvbuf, recvcounts, datatype, op, comm, request))
REFUSE(Ireduce_scatter_block_c, (const void *sendbuf, void *recvbuf, MPI_Count recvcount, MPI_Datatype datatype, MPI_Op op,
       MPI_Comm comm, MPI_Request *request), comm, (sendbuf, recvbuf, recvcount, datatype, op, comm, request))
REFUSE(Iscan_c, (const void *sendbuf, void *recvbuf, MPI_Count count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm,
       MPI_Request *request), comm, (sendbuf, recvbuf, count, datatype, op, comm, request))
REFUSE(Iexscan_c, (const void *sendbuf, void *recvbuf, MPI_Count count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm,
       MPI_Request *request), comm, (sendbuf, recvbuf, count, datatype, op, comm, request))
REFUSE(Igather_c, (const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf, MPI_Count recvcount,
       MPI_Datatype recvtype, int root, MPI_Comm comm, MPI_Request *request), comm, (sendbuf, sendcount, sendtype, recvbuf,
       recvcount, recvtype, root, comm, request))
REFUSE(Igatherv_c, (const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf, const MPI_Count
       recvcounts[], const MPI_Aint displs[], MPI_Datatype recvtype, int root, MPI_Comm comm, MPI_Request *request), comm,
       (sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, root, comm, request))
REFUSE(Iscatter_c, (const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf, MPI_Count recvcount,
       MPI_Datatype recvtype, int root, MPI_Comm comm, MPI_Request *request), comm, (sendbuf, sendcount, sendtype, recvbuf,
       recvcount, recvtype, root, comm, request))
REFUSE(Iscatterv_c, (const void *sendbuf, const MPI_Count sendcounts[], const MPI_Aint displs[], MPI_Datatype sendtype, void
       *recvbuf, MPI_Count recvcount, MPI_Datatype recvtype, int root, MPI_Comm comm, MPI_Request *request), comm, (sendbuf,
       sendcounts, displs, sendtype, recvbuf, recvcount, recvtype, root, comm, request))
REFUSE(Iallgather_c, (const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf, MPI_Count recvcount,
       MPI_Datatype recvtype, MPI_Comm comm, MPI_Request *request), comm, (sendbuf, sendcount, sendtype, recvbuf, recvcount,
       recvtype, comm, request))
REFUSE(Iallgatherv_c, (const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf, const MPI_Count
       recvcounts[], const MPI_Aint displs[], MPI_Datatype recvtype, MPI_Comm comm, MPI_Request *request), comm, (sendbuf,
       sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm, request))
REFUSE(Ialltoall_c, (const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf, MPI_Count recvcount,
       MPI_Datatype recvtype, MPI_Comm comm, MPI_Request *request), comm, (sendbuf, sendcount, sendtype, recvbuf, recvcount,
       recvtype, comm, request))
REFUSE(Ialltoallv_c, (const void *sendbuf, const MPI_Count sendcounts[], const MPI_Aint sdispls[], MPI_Datatype sendtype, void
       *recvbuf, const MPI_Count recvcounts[], const MPI_Aint rdispls[], MPI_Datatype recvtype, MPI_Comm comm, MPI_Request
       *request), comm, (sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype, comm, request))
REFUSE(Ialltoallw_c, (const void *sendbuf, const MPI_Count sendcounts[], const MPI_Aint sdispls[], const MPI_Datatype
       sendtypes[], void *recvbuf, const MPI_Count recvcounts[], const MPI_Aint rdispls[], const MPI_Datatype recvtypes[],
       MPI_Comm comm, MPI_Request *request), comm, (sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls,
       recvtypes, comm, request))
REFUSE(Alltoallw_c, (const void *sendbuf, const MPI_Count sendcounts[], const MPI_Aint sdispls[], const MPI_Datatype
       sendtypes[], void *recvbuf, const MPI_Count recvcounts[], const MPI_Aint rdispls[], const MPI_Datatype recvtypes[],
       MPI_Comm comm), comm, (sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes, comm))
REFUSE(Neighbor_allgather_c, (const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf, MPI_Count
       recvcount, MPI_Datatype recvtype, MPI_Comm comm), comm, (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype,
       comm))
REFUSE(Ineighbor_allgather_c, (const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf, MPI_Count
       recvcount, MPI_Datatype recvtype, MPI_Comm comm, MPI_Request *request), comm, (sendbuf, sendcount, sendtype, recvbuf,
       recvcount, recvtype, comm, request))
REFUSE(Neighbor_allgatherv_c, (const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf, const MPI_Count
       recvcounts[], const MPI_Aint displs[], MPI_Datatype recvtype, MPI_Comm comm), comm, (sendbuf, sendcount, sendtype,
       recvbuf, recvcounts, displs, recvtype, comm))
REFUSE(Ineighbor_allgatherv_c, (const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf, const MPI_Count
       recvcounts[], const MPI_Aint displs[], MPI_Datatype recvtype, MPI_Comm comm, MPI_Request *request), comm, (sendbuf,
       sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm, request))
REFUSE(Neighbor_alltoall_c, (const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf, MPI_Count
       recvcount, MPI_Datatype recvtype, MPI_Comm comm), comm, (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype,
       comm))
REFUSE(Ineighbor_alltoall_c, (const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf, MPI_Count
       recvcount, MPI_Datatype recvtype, MPI_Comm comm, MPI_Request *request), comm, (sendbuf, sendcount, sendtype, recvbuf,
       recvcount, recvtype, comm, request))
REFUSE(Neighbor_alltoallv_c, (const void *sendbuf, const MPI_Count sendcounts[], const MPI_Aint sdispls[], MPI_Datatype
       sendtype, void *recvbuf, const MPI_Count recvcounts[], const MPI_Aint rdispls[], MPI_Datatype recvtype, MPI_Comm comm),
       comm, (sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype, comm))
REFUSE(Ineighbor_alltoallv_c, (const void *sendbuf, const MPI_Count sendcounts[], const MPI_Aint sdispls[], MPI_Datatype
       sendtype, void *recvbuf, const MPI_Count recvcounts[], const MPI_Aint rdispls[], MPI_Datatype recvtype, MPI_Comm comm,
       MPI_Request *request), comm, (sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype, comm,
       request))
REFUSE(Neighbor_alltoallw_c, (const void *sendbuf, const MPI_Count sendcounts[], const MPI_Aint sdispls[], const MPI_Datatype
       sendtypes[], void *recvbuf, const MPI_Count recvcounts[], const MPI_Aint rdispls[], const MPI_Datatype recvtypes[],
       MPI_Comm comm), comm, (sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes, comm))
REFUSE(Ineighbor_alltoallw_c, (const void *sendbuf, const MPI_Count sendcounts[], const MPI_Aint sdispls[], const MPI_Datatype
       sendtypes[], void *recvbuf, const MPI_Count recvcounts[], const MPI_Aint rdispls[], const MPI_Datatype recvtypes[],
       MPI_Comm comm, MPI_Request *request), comm, (sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls,
       recvtypes, comm, request))
REFUSE(Bcast_init_c, (void *buffer, MPI_Count count, MPI_Datatype datatype, int root, MPI_Comm comm, MPI_Info info, MPI_Request
       *request), comm, (buffer, count, datatype, root, comm, info, request))
REFUSE(Reduce_init_c, (const void *sendbuf, void *recvbuf, MPI_Count count, MPI_Datatype datatype, MPI_Op op, int root,
       MPI_Comm comm, MPI_Info info, MPI_Request *request), comm, (sendbuf, recvbuf, count, datatype, op, root, comm, info,
       request))
REFUSE(Allreduce_init_c, (const void *sendbuf, void *recvbuf, MPI_Count count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm,
       MPI_Info info, MPI_Request *request), comm, (sendbuf, recvbuf, count, datatype, op, comm, info, request))
REFUSE(Reduce_scatter_init_c, (const void *sendbuf, void *recvbuf, const MPI_Count recvcounts[], MPI_Datatype datatype, MPI_Op
       op, MPI_Comm comm, MPI_Info info, MPI_Request *request), comm, (sendbuf, recvbuf, recvcounts, datatype, op, comm, info,
       request))
REFUSE(Reduce_scatter_block_init_c, (const void *sendbuf, void *recvbuf, MPI_Count recvcount, MPI_Datatype datatype, MPI_Op op,
       MPI_Comm comm, MPI_Info info, MPI_Request *request), comm, (sendbuf, recvbuf, recvcount, datatype, op, comm, info,
       request))
REFUSE(Scan_init_c, (const void *sendbuf, void *recvbuf, MPI_Count count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm,
       MPI_Info info, MPI_Request *request), comm, (sendbuf, recvbuf, count, datatype, op, comm, info, request))
REFUSE(Exscan_init_c, (const void *sendbuf, void *recvbuf, MPI_Count count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm,
       MPI_Info info, MPI_Request *request), comm, (sendbuf, recvbuf, count, datatype, op, comm, info, request))
REFUSE(Gather_init_c, (const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf, MPI_Count recvcount,
       MPI_Datatype recvtype, int root, MPI_Comm comm, MPI_Info info, MPI_Request *request), comm, (sendbuf, sendcount,
       sendtype, recvbuf, recvcount, recvtype, root, comm, info, request))
REFUSE(Gatherv_init_c, (const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf, const MPI_Count
       recvcounts[], const MPI_Aint displs[], MPI_Datatype recvtype, int root, MPI_Comm comm, MPI_Info info, MPI_Request
       *request), comm, (sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, root, comm, info, request))
REFUSE(Scatter_init_c, (const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf, MPI_Count recvcount,
       MPI_Datatype recvtype, int root, MPI_Comm comm, MPI_Info info, MPI_Request *request), comm, (sendbuf, sendcount,
       sendtype, recvbuf, recvcount, recvtype, root, comm, info, request))
REFUSE(Scatterv_init_c, (const void *sendbuf, const MPI_Count sendcounts[], const MPI_Aint displs[], MPI_Datatype sendtype,
       void *recvbuf, MPI_Count recvcount, MPI_Datatype recvtype, int root, MPI_Comm comm, MPI_Info info, MPI_Request
       *request), comm, (sendbuf, sendcounts, displs, sendtype, recvbuf, recvcount, recvtype, root, comm, info, request))
REFUSE(Allgather_init_c, (const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf, MPI_Count recvcount,
       MPI_Datatype recvtype, MPI_Comm comm, MPI_Info info, MPI_Request *request), comm, (sendbuf, sendcount, sendtype,
       recvbuf, recvcount, recvtype, comm, info, request))
REFUSE(Allgatherv_init_c, (const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf, const MPI_Count
       recvcounts[], const MPI_Aint displs[], MPI_Datatype recvtype, MPI_Comm comm, MPI_Info info, MPI_Request *request), comm,
       (sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm, info, request))
REFUSE(Alltoall_init_c, (const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf, MPI_Count recvcount,
       MPI_Datatype recvtype, MPI_Comm comm, MPI_Info info, MPI_Request *request), comm, (sendbuf, sendcount, sendtype,
       recvbuf, recvcount, recvtype, comm, info, request))
REFUSE(Alltoallv_init_c, (const void *sendbuf, const MPI_Count sendcounts[], const MPI_Aint sdispls[], MPI_Datatype sendtype,
       void *recvbuf, const MPI_Count recvcounts[], const MPI_Aint rdispls[], MPI_Datatype recvtype, MPI_Comm comm, MPI_Info
       info, MPI_Request *request), comm, (sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype,
       comm, info, request))
REFUSE(Alltoallw_init_c, (const void *sendbuf, const MPI_Count sendcounts[], const MPI_Aint sdispls[], const MPI_Datatype
       sendtypes[], void *recvbuf, const MPI_Count recvcounts[], const MPI_Aint rdispls[], const MPI_Datatype recvtypes[],
       MPI_Comm comm, MPI_Info info, MPI_Request *request), comm, (sendbuf, sendcounts, sdispls, sendtypes, recvbuf,
       recvcounts, rdispls, recvtypes, comm, info, request))
REFUSE(Neighbor_allgather_init_c, (const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf, MPI_Count
       recvcount, MPI_Datatype recvtype, MPI_Comm comm, MPI_Info info, MPI_Request *request), comm, (sendbuf, sendcount,
       sendtype, recvbuf, recvcount, recvtype, comm, info, request))
REFUSE(Neighbor_allgatherv_init_c, (const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf, const
       MPI_Count recvcounts[], const MPI_Aint displs[], MPI_Datatype recvtype, MPI_Comm comm, MPI_Info info, MPI_Request
       *request), comm, (sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm, info, request))
REFUSE(Neighbor_alltoall_init_c, (const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf, MPI_Count
       recvcount, MPI_Datatype recvtype, MPI_Comm comm, MPI_Info info, MPI_Request *request), comm, (sendbuf, sendcount,
       sendtype, recvbuf, recvcount, recvtype, comm, info, request))
REFUSE(Neighbor_alltoallv_init_c, (const void *sendbuf, const MPI_Count sendcounts[], const MPI_Aint sdispls[], MPI_Datatype
       sendtype, void *recvbuf, const MPI_Count recvcounts[], const MPI_Aint rdispls[], MPI_Datatype recvtype, MPI_Comm comm,
       MPI_Info info, MPI_Request *request), comm, (sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls,
       recvtype, comm, info, request))
REFUSE(Neighbor_alltoallw_init_c, (const void *sendbuf, const MPI_Count sendcounts[], const MPI_Aint sdispls[], const
       MPI_Datatype sendtypes[], void *recvbuf, const MPI_Count recvcounts[], const MPI_Aint rdispls[], const MPI_Datatype
       recvtypes[], MPI_Comm comm, MPI_Info info, MPI_Request *request), comm, (sendbuf, sendcounts, sdispls, sendtypes,
       recvbuf, recvcounts, rdispls, recvtypes, comm, info, request))
REFUSE(Isendrecv_c, (const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, int dest, int sendtag, void *recvbuf,
       MPI_Count recvcount, MPI_Datatype recvtype, int source, int recvtag, MPI_Comm comm, MPI_Request *request), comm,
       (sendbuf, sendcount, sendtype, dest, sendtag, recvbuf, recvcount, recvtype, source, recvtag, comm, request))
REFUSE(Isendrecv_replace_c, (void *buf, MPI_Count count, MPI_Datatype datatype, int dest, int sendtag, int source, int recvtag,
       MPI_Comm comm, MPI_Request *request), comm, (buf, count, datatype, dest, sendtag, source, recvtag, comm, request))
REFUSE(Win_create_c, (void *base, MPI_Aint size, MPI_Aint disp_unit, MPI_Info info, MPI_Comm comm, MPI_Win *win), comm, (base,
       size, disp_unit, info, comm, win))
REFUSE(Win_allocate_c, (MPI_Aint size, MPI_Aint disp_unit, MPI_Info info, MPI_Comm comm, void *baseptr, MPI_Win *win), comm,
       (size, disp_unit, info, comm, baseptr, win))
REFUSE(Win_allocate_shared_c, (MPI_Aint size, MPI_Aint disp_unit, MPI_Info info, MPI_Comm comm, void *baseptr, MPI_Win *win),
       comm, (size, disp_unit, info, comm, baseptr, win))
#endif
