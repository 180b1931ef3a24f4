/* Functions of the launch's MPI, which is found when the first one is called: scripts load it late, and not for all. */
#ifndef WIREUP_IMPI_MPI_FUNCTIONS_H
#define WIREUP_IMPI_MPI_FUNCTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* The functions of the header are those that the library exports. */
#pragma GCC visibility push(default)
#ifdef WIREUP_STANDARD_ABI
#include <mpi_abi.h>
#else
#include <mpi.h>
#endif
#pragma GCC visibility pop

/* Returns a symbol of the launch's MPI, or ends the process with a message. */
void *find_symbol(const char *name, bool is_variable);

/* The function PMPI_name. */
#define PMPI(name)                                                                                                             \
    (__extension__({                                                                                                           \
        static __typeof__(&PMPI_##name) mpi_function;                                                                          \
        if (__builtin_expect(mpi_function == NULL, 0)) {                                                                                            \
            void *mpi_symbol = find_symbol("PMPI_" #name, false);                                                                     \
            memcpy(&mpi_function, &mpi_symbol, sizeof(mpi_symbol));                                                            \
        }                                                                                                                      \
        mpi_function;                                                                                                          \
    }))

#ifdef OMPI_PREDEFINED_GLOBAL
/* Handles of Open MPI are addresses of its variables. */
#undef OMPI_PREDEFINED_GLOBAL
#define OMPI_PREDEFINED_GLOBAL(type, global)                                                                                   \
    (__extension__({                                                                                                           \
        static void *mpi_variable;                                                                                             \
        if (mpi_variable == NULL) {                                                                                            \
            mpi_variable = find_symbol(#global, true);                                                                         \
        }                                                                                                                      \
        (type) mpi_variable;                                                                                                         \
    }))
#endif

#endif
