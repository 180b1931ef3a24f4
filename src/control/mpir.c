/* The symbols of MPIR (see mpir.rs), compiled with debug information: debuggers take their types from it, also in
 * release builds, which have none for Rust. */

typedef struct {
    /* Name or address of the process's host. */
    char *host_name;
    /* Path of the executable. */
    char *executable_name;
    /* Process id on that host. */
    int pid;
} MPIR_PROCDESC;

/* Processes of the launch, in rank order. */
MPIR_PROCDESC *MPIR_proctable;
/* Number of entries in the table. */
int MPIR_proctable_size;
/* Nonzero if a debugger controls the process; the debugger sets it. */
int MPIR_being_debugged;
/* Reason of the last call of MPIR_Breakpoint. */
int MPIR_debug_state;
int MPIR_i_am_starter;
int MPIR_partial_attach_ok;
int MPIR_acquired_pre_main;

void MPIR_Breakpoint(void);

/* Debuggers stop the launcher here. */
void MPIR_Breakpoint(void)
{
    __asm__ volatile("" : : : "memory");
}
