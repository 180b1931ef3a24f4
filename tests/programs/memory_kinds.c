/*
 * memory_kinds [KINDS]
 *
 * Prints the kinds of memory that MPI says it supports; with KINDS it also spawns itself with these in the info.
 *     memory_kinds rank=R child=0|1 kinds="mpi,system"
 */
#include "common.h"
#include <mpi.h>

int main(int argc, char **argv)
{
    char kinds[1024] = "";
    int rank, there = 0;
    MPI_Info info;
    MPI_Comm parent, children;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_get_info(MPI_COMM_WORLD, &info);
    MPI_Info_get(info, "mpi_memory_alloc_kinds", sizeof kinds - 1, kinds, &there);
    MPI_Info_free(&info);
    MPI_Comm_get_parent(&parent);
    report("memory_kinds rank=%d child=%d kinds=\"%s\"", rank, parent != MPI_COMM_NULL, there ? kinds : "");
    if (parent == MPI_COMM_NULL && argc > 1) {
        MPI_Info_create(&info);
        MPI_Info_set(info, "mpi_memory_alloc_kinds", argv[1]);
        if (MPI_Comm_spawn(argv[0], MPI_ARGV_NULL, 1, info, 0, MPI_COMM_WORLD, &children, MPI_ERRCODES_IGNORE) != MPI_SUCCESS)
            fail(1, "memory_kinds: cannot spawn");
        MPI_Info_free(&info);
        MPI_Comm_disconnect(&children);
    }
    if (parent != MPI_COMM_NULL)
        MPI_Comm_disconnect(&parent);
    MPI_Finalize();
    return 0;
}
