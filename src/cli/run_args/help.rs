//! Texts of the help page of `wireup run`.

pub(super) const EXAMPLES: &str = "\
Examples:
  wireup run -n 4 ./app input.dat
  wireup run -n 1 ./master : -n 3 -x DEBUG=1 ./worker
  wireup run --hosts n1:2,n2:2 ./app           two ranks on each of two hosts
  wireup run --virtual-nodes 2 -n 4 ./app      two nodes with two ranks each, on this machine
  wireup run -l --output 'out/%r.txt' ./app    one file per rank
  wireup run --no-label ./app                  without the labels that a defaults file asks for";

pub(super) const SURROUNDINGS: &str = "\
Environment:
  WIREUP_LIBPMIX      libpmix for programs that do not bring a suitable one of their own
  WIREUP_LIBHWLOC     hwloc's library for --bind-to, where the loader finds none
  WIREUP_LOG          filter of the log, without --log
  WIREUP_MEET         name scope that this launch shares with others of yours, without --names
  WIREUP_NAMES        store of the names that launches look up for each other, without --names
  WIREUP_ETCD_SETTINGS, WIREUP_LDAP_SETTINGS, WIREUP_FABRIC_SETTINGS
                      files in place of etcd.toml, ldap.toml and fabric.toml
  WIREUP_SITE_CONFIG  the site's defaults file, in place of /etc/wireup.toml; empty: none
  XDG_CONFIG_HOME     where the user's defaults file is, in place of ~/.config
  TMPDIR              place of the job's directory, instead of /tmp
  WIREUP_LAUNCH_ID    a scheduler's name for the launch, passed to the ranks
  WIREUP_ALLOC_ID     the same for its allocation
  XDG_RUNTIME_DIR     where the socket of your own agent is looked for

Environment of the ranks:
  WIREUP_JOB_ID         name of the job
  WIREUP_LAUNCH_ID      a scheduler's name for the launch, or that of the job
  WIREUP_ALLOC_ID       a scheduler's name for its allocation, if it has one
  WIREUP_RANK           the rank's number; WIREUP_SIZE: how many there are
  WIREUP_LOCAL_RANK     its number among those of its node; WIREUP_LOCAL_SIZE: how many these are
  WIREUP_NODE           the node's number; WIREUP_NNODES: how many there are
  WIREUP_HOST           the node's name; WIREUP_NODELIST: all names
  WIREUP_MACHINE        with virtual nodes: the name of the machine that they are on
  WIREUP_APPNUM         number of the program
  WIREUP_UNIVERSE_SIZE  slots of the launch

Files:
  ~/.config/wireup.toml  the user's defaults; wireup config --help tells how to write it
  /etc/wireup.toml       the site's defaults";

pub(super) const USAGE: &str =
    "wireup run [OPTIONS] PROGRAM [ARG]... [: [OPTIONS] PROGRAM [ARG]...]...";

pub(super) const ABOUT: &str = "\
Run a program, or several, as the ranks of one job

Programs are separated by a word of its own, `:`; each has its own number of ranks, variables and
directory. All other options stand in front of the first program and hold for the whole job.
`-np N` means `-n N`. Every option NAME has a --no-NAME, which takes back what a defaults file or an
earlier word has set.";
