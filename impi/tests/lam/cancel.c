/* What LAM/MPI does while messages are taken back; impi/tests/lam/cancel.rs has the half of the other client. In C of
   1989. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static void check(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static void receive(char *data, int length, int from, int tag)
{
    int count;
    MPI_Status status;

    MPI_Recv(data, length, MPI_BYTE, from, tag, MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_BYTE, &count);
    check(count == length && (length == 0 || data[length - 1] == tag), "a message");
}

/* Cancels; whether that had an effect. */
static int cancelled(MPI_Request *request)
{
    int flag;
    MPI_Status status;

    MPI_Cancel(request);
    MPI_Wait(request, &status);
    MPI_Test_cancelled(&status, &flag);
    return flag;
}

int main(int argc, char **argv)
{
    int rank, size, other, flag;
    char *data = malloc(200000);
    MPI_Request request, second;
    MPI_Status status;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    other = size / 2;
    if (rank == 0) {
        /* The other has asked for three back, and got an answer, before it sends the second of these. */
        receive(data, 0, other, 14);
        receive(data, 0, other, 4);
        receive(data, 10, other, 1);
        receive(data, 10, other, 2);
        receive(data, 200000, other, 3);

        /* What has gone stays gone. */
        data[9] = 5;
        MPI_Isend(data, 10, MPI_BYTE, other, 5, MPI_COMM_WORLD, &request);
        check(!cancelled(&request), "a send that was taken back");
        MPI_Irecv(data, 10, MPI_BYTE, other, 6, MPI_COMM_WORLD, &request);
        check(cancelled(&request), "a receive that was not taken back");

        /* Synchronous sends: the daemon passes the acknowledgment on with the tag as it was on the wire, so a send ends if
           its tag reads the same in both byte orders, or when another has its tag turned around. */
        MPI_Ssend(data, 10, MPI_BYTE, other, 0, MPI_COMM_WORLD);
        MPI_Issend(data, 10, MPI_BYTE, other, 13, MPI_COMM_WORLD, &request);
        receive(data, 0, other, 7);
        MPI_Test(&request, &flag, &status);
        check(!flag, "a synchronous send that ends");
        MPI_Issend(data, 10, MPI_BYTE, other, 13 << 24, MPI_COMM_WORLD, &second);
        receive(data, 0, other, 8);
        MPI_Wait(&second, &status);
        MPI_Wait(&request, &status);

        /* Nobody takes this one. */
        MPI_Send(data, 10, MPI_BYTE, other, 9, MPI_COMM_WORLD);
    }
    MPI_Finalize();
    printf("%d of %d is done\n", rank, size);
    return 0;
}
