/*
 * Fortran programs of Open MPI. Fortran libraries convert arguments and call PMPI functions, which the library has as second names of
 * its functions (see build.rs). This file has what those of Open MPI do otherwise.
 */
#include "preload.h"

#ifdef OMPI_MAJOR_VERSION
#include <stdlib.h>

static bool is_own_handle(intptr_t handle)
{
    lock();
    const bool is_own = handle_object(handle) != NULL;
    unlock();
    return is_own;
}

MPI_Fint MPI_Message_c2f(MPI_Message message)
{
    return is_own_handle((intptr_t)message) ? (MPI_Fint)(intptr_t)message : PMPI(Message_c2f)(message);
}

MPI_Message MPI_Message_f2c(MPI_Fint number)
{
    return is_own_handle(number) ? (MPI_Message)(intptr_t)number : PMPI(Message_f2c)(number);
}

/* ---- MPI_Alltoallw: the Fortran library converts as many types as this client has members ---- */

/* Arguments of the Fortran functions up to the communicator. */
struct alltoallw {
    char *out;
    const MPI_Fint *out_counts;
    const MPI_Fint *out_displacements;
    const MPI_Fint *out_types;
    char *in;
    const MPI_Fint *in_counts;
    const MPI_Fint *in_displacements;
    const MPI_Fint *in_types;
};

static char *to_address(char *fortran)
{
    if (fortran == find_symbol("mpi_fortran_in_place_", true)) {
        return MPI_IN_PLACE;
    }
    return fortran == find_symbol("mpi_fortran_bottom_", true) ? MPI_BOTTOM : fortran;
}

/* Returns types, which the caller frees. */
static MPI_Datatype *to_types(int count, const MPI_Fint *numbers)
{
    MPI_Datatype *types = allocate(sizeof(MPI_Datatype) * (size_t)count);

    for (int i = 0; i < count; i++) {
        types[i] = PMPI(Type_f2c)(numbers[i]);
    }
    return types;
}

/* Waits if `request` is NULL. */
static int alltoallw(const struct alltoallw *arguments, MPI_Comm comm, MPI_Request *request)
{
    char *out = to_address(arguments->out);
    char *in = to_address(arguments->in);
    const int count = find_impi_comm(comm)->size;
    MPI_Datatype *in_types = to_types(count, arguments->in_types);
    MPI_Datatype *out_types = out == MPI_IN_PLACE ? NULL : to_types(count, arguments->out_types);
    const int error = request == NULL ? MPI_Alltoallw(out, arguments->out_counts, arguments->out_displacements, out_types, in,
                                                      arguments->in_counts, arguments->in_displacements, in_types, comm)
                                      : MPI_Ialltoallw(out, arguments->out_counts, arguments->out_displacements, out_types, in,
                                                       arguments->in_counts, arguments->in_displacements, in_types, comm,
                                                       request);

    free(in_types);
    free(out_types);
    return error;
}

#define EXPORTED __attribute__((visibility("default")))
#define PARAMETERS                                                                                                             \
    char *out, MPI_Fint *out_counts, MPI_Fint *out_displacements, MPI_Fint *out_types, char *in, MPI_Fint *in_counts,          \
        MPI_Fint *in_displacements, MPI_Fint *in_types, MPI_Fint *comm

/* The first name is that in mpif.h and the module mpi, the second one that which the module mpi_f08 calls. */
EXPORTED void ompi_alltoallw_f(PARAMETERS, MPI_Fint *error);
EXPORTED void ompi_ialltoallw_f(PARAMETERS, MPI_Fint *request, MPI_Fint *error);
EXPORTED void mpi_alltoallw_(PARAMETERS, MPI_Fint *error) __attribute__((alias("ompi_alltoallw_f")));
EXPORTED void mpi_ialltoallw_(PARAMETERS, MPI_Fint *request, MPI_Fint *error) __attribute__((alias("ompi_ialltoallw_f")));

void ompi_alltoallw_f(PARAMETERS, MPI_Fint *error)
{
    const struct alltoallw arguments = {out, out_counts, out_displacements, out_types, in, in_counts, in_displacements, in_types};
    const MPI_Comm c_comm = PMPI(Comm_f2c)(*comm);
    __typeof__(&ompi_alltoallw_f) local;

    if (find_impi_comm(c_comm) != NULL) {
        *error = alltoallw(&arguments, c_comm, NULL);
        return;
    }
    void *symbol = find_symbol("ompi_alltoallw_f", false);
    memcpy(&local, &symbol, sizeof(symbol));
    local(out, out_counts, out_displacements, out_types, in, in_counts, in_displacements, in_types, comm, error);
}

void ompi_ialltoallw_f(PARAMETERS, MPI_Fint *request, MPI_Fint *error)
{
    const struct alltoallw arguments = {out, out_counts, out_displacements, out_types, in, in_counts, in_displacements, in_types};
    const MPI_Comm c_comm = PMPI(Comm_f2c)(*comm);
    __typeof__(&ompi_ialltoallw_f) local;

    if (find_impi_comm(c_comm) != NULL) {
        MPI_Request c_request = MPI_REQUEST_NULL;
        *error = alltoallw(&arguments, c_comm, &c_request);
        *request = PMPI(Request_c2f)(c_request);
        return;
    }
    void *symbol = find_symbol("ompi_ialltoallw_f", false);
    memcpy(&local, &symbol, sizeof(symbol));
    local(out, out_counts, out_displacements, out_types, in, in_counts, in_displacements, in_types, comm, request, error);
}
#endif
