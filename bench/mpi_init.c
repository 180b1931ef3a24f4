/* The whole of an MPI program that does nothing: what is measured is its start and its end. */
#include <mpi.h>

int main(int argc, char **argv)
{
    if (MPI_Init(&argc, &argv) != MPI_SUCCESS)
        return 1;
    return MPI_Finalize() != MPI_SUCCESS;
}
