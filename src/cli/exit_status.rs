//! The exit-status table of `wireup run`, as shown by `--help`.

/// Text for the end of the help.
pub const TABLE: &str = "\
Exit status:
  0        every rank ended normally
  code     of the first rank that failed, or as --exit-policy says; or given to MPI_Abort
  128+N    the first failing rank was killed by signal N, or signal N ended wireup
  1        a rank left between MPI_Init and MPI_Finalize, broke its protocol, or a fence failed
  75       --on-failure requeue: a rank, host or server was lost; to be run again
  122      a host was lost: its agent, its part of the launch, its network or the machine
  123      --strict-pmi: a program that loads an MPI did not use PMI
  124      --timeout expired
  125      wireup itself failed or was called wrongly
  126      a program cannot be executed
  127      a program was not found
  130      interrupted (Ctrl-C)";
