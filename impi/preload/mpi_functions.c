/* Finds the launch's MPI among the libraries of the process. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "mpi_functions.h"

#if defined(WIREUP_STANDARD_ABI)
static const char *const names[] = {"libmpi_abi.so.1", "libmpi_abi.so.0"};
#elif defined(OMPI_MAJOR_VERSION)
static const char *const names[] = {"libmpi.so.40"};
#else
static const char *const names[] = {"libmpi.so.12", "libmpich.so.12"};
#endif

void *find_symbol(const char *name, bool is_variable)
{
    static void *library;
    /* A program may have its own copies of variables, which the library uses then. Functions are those behind this library, which
     * has the same names for Fortran. */
    void *symbol = dlsym(is_variable ? RTLD_DEFAULT : RTLD_NEXT, name);

    /* A module of Python may have loaded the library for itself alone. */
    for (size_t i = 0; symbol == NULL && library == NULL && i < sizeof(names) / sizeof(names[0]); i++) {
        library = dlopen(names[i], RTLD_LAZY | RTLD_NOLOAD);
    }
    if (symbol == NULL && library != NULL) {
        symbol = dlsym(library, name);
    }
    if (symbol == NULL) {
        fprintf(stderr, "wireup: impi: %s not found: the process has no %s with it; use an MPI of this binary interface\n",
                name, names[0]);
        _Exit(1);
    }
    return symbol;
}
