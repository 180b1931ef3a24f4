//! PMIx key strings. The C tests compare every one with the PMIx headers.

macro_rules! keys {
    ($($(#[$doc:meta])* $name:ident = $key:literal;)+) => {
        $($(#[$doc])* pub const $name: &str = $key;)+

        /// Every key of this module under its C name without `PMIX_`.
        pub const ALL: &[(&str, &str)] = &[$((stringify!($name), $key)),+];
    };
}

keys! {
    /// u32: processes of the job.
    JOB_SIZE = "pmix.job.size";
    /// u32: slots of the allocation; MPI's universe size.
    UNIV_SIZE = "pmix.univ.size";
    /// u32: most processes the job may have.
    MAX_PROCS = "pmix.max.size";
    /// String: the job's name for tools.
    JOBID = "pmix.jobid";
    /// u32: number of application contexts.
    JOB_NUM_APPS = "pmix.job.napps";
    /// u32: nodes that host processes of the job.
    NUM_NODES = "pmix.num.nodes";
    /// Rank: first global rank of the job.
    NPROC_OFFSET = "pmix.offset";
    /// Regex: names of the nodes.
    NODE_MAP = "pmix.nmap";
    /// Regex: the ranks on each node.
    PROC_MAP = "pmix.pmap";
    /// String: ranks of the job on a node, comma separated.
    LOCAL_PEERS = "pmix.lpeers";
    /// Array of procs: the processes of all jobs on a node.
    LOCAL_PROCS = "pmix.lprocs";
    /// u32: processes of the job on a node.
    LOCAL_SIZE = "pmix.local.size";
    /// u32: processes of all jobs on a node.
    NODE_SIZE = "pmix.node.size";
    /// Rank: lowest rank on a node.
    LOCALLDR = "pmix.lldr";
    /// String: a node's name.
    HOSTNAME = "pmix.hname";
    /// u32: a node's number.
    NODEID = "pmix.nodeid";
    /// Rank of a process.
    RANK = "pmix.rank";
    /// u16: position among the job's processes on the node.
    LOCAL_RANK = "pmix.lrank";
    /// u16: position among all jobs' processes on the node.
    NODE_RANK = "pmix.nrank";
    /// u32: application context of a process.
    APPNUM = "pmix.appnum";
    /// Rank: position within the application context.
    APP_RANK = "pmix.apprank";
    /// Rank: position over all jobs of the session.
    GLOBAL_RANK = "pmix.grank";
    /// String: the CPUs that a process is bound to, as hwloc lists them.
    CPUSET = "pmix.cpuset";
    /// String: in which parts of its node a process is bound, which libpmix compares.
    LOCALITY_STRING = "pmix.locstr";
    /// Array of device distances: from the process to the devices of its node.
    DEVICE_DISTANCES = "pmix.dev.dist";
    /// u32: restarts of the process.
    REINCARNATION = "pmix.reinc";
    /// String: session directory on top.
    TMPDIR = "pmix.tmpdir";
    /// String: the job's directory below it.
    NSDIR = "pmix.nsdir";
    /// String: a process's directory below that.
    PROCDIR = "pmix.pdir";
    /// Bool: the host removes the directories.
    TDIR_RMCLEAN = "pmix.tdir.rmclean";
    /// u32: user id of the job.
    USERID = "pmix.euid";
    /// u32: group id of the job.
    GRPID = "pmix.egid";
    /// String: argument vector of an application context, blank separated.
    APP_ARGV = "pmix.app.argv";
    /// String: working directory of an application.
    WDIR = "pmix.wdir";
    /// u32: processes of an application context.
    APP_SIZE = "pmix.app.size";
    /// Rank: lowest rank of an application context.
    APPLDR = "pmix.aldr";
    /// Infos: data of one node.
    NODE_INFO_ARRAY = "pmix.node.arr";
    /// Infos: one application context.
    APP_INFO_ARRAY = "pmix.app.arr";
    /// Infos: data of one process.
    PROC_INFO_ARRAY = "pmix.pdata";
    /// Infos: directives for a launcher that a tool has started.
    LAUNCH_DIRECTIVES = "pmix.lnch.dirs";
    /// String: the server's own nspace.
    SERVER_NSPACE = "pmix.srv.nspace";
    /// Rank: the server's own rank.
    SERVER_RANK = "pmix.srv.rank";
    /// String: where the server puts its files.
    SERVER_TMPDIR = "pmix.srvr.tmpdir";
    /// String: where a system server puts its files.
    SYSTEM_TMPDIR = "pmix.sys.tmpdir";
    /// Bool: whether the server accepts tools.
    SERVER_TOOL_SUPPORT = "pmix.srvr.tool";
    /// Bool: be the node's system server.
    SERVER_SYSTEM_SUPPORT = "pmix.srvr.sys";
    /// Bool: be the session's server.
    SERVER_SESSION_SUPPORT = "pmix.srvr.sess";
    /// Bool: give the ranks the server's knowledge of the node's topology.
    SERVER_SHARE_TOPOLOGY = "pmix.srvr.share";
    /// Bool: let the library print forwarded output.
    IOF_LOCAL_OUTPUT = "pmix.iof.local";
    /// Bool: end the forwarding of output.
    IOF_STOP = "pmix.iof.stop";
    /// u32: bytes of a stream that the server keeps.
    IOF_CACHE_SIZE = "pmix.iof.csize";
    /// Bool: of more than that it drops the oldest.
    IOF_DROP_OLDEST = "pmix.iof.old";
    /// Bool: of more than that it drops the newest.
    IOF_DROP_NEWEST = "pmix.iof.new";
    /// Bool: make rendezvous files readable for others; known since 5.0.
    SERVER_ALLOW_FOREIGN_TOOLS = "pmix.srvr.ftools";
    /// Bool: a fence exchanges data.
    COLLECT_DATA = "pmix.collect";
    /// Status of the local part of a collective.
    LOCAL_COLLECTIVE_STATUS = "pmix.loc.col.st";
    /// String: the key that a direct modex waits for.
    REQUIRED_KEY = "pmix.req.key";
    /// Int or u32: seconds, 0 for no limit.
    TIMEOUT = "pmix.timeout";
    /// Data range of a published value, or of the publishers in a lookup.
    RANGE = "pmix.range";
    /// Persistence of a published value.
    PERSISTENCE = "pmix.persist";
    /// Int: a lookup waits until this number of its keys is published, 0 for all.
    WAIT = "pmix.wait";
    /// Infos: access permissions of a published value.
    ACCESS_PERMISSIONS = "pmix.aperms";
    /// Array of u32: users who may see it.
    ACCESS_USERIDS = "pmix.auids";
    /// Array of u32: groups who may see it.
    ACCESS_GRPIDS = "pmix.agids";
    /// String: text for stderr.
    LOG_STDERR = "pmix.log.stderr";
    /// String: text for stdout.
    LOG_STDOUT = "pmix.log.stdout";
    /// Bytes: text for the user.
    LOG_MSG = "pmix.log.msg";
    /// String: text for the system's log, the global one if there is one.
    LOG_SYSLOG = "pmix.log.syslog";
    /// String: text for the log of the client's host.
    LOG_LOCAL_SYSLOG = "pmix.log.lsys";
    /// String: text for the log of the whole system.
    LOG_GLOBAL_SYSLOG = "pmix.log.gsys";
    /// Int: severity in the system's log, and maybe facility.
    LOG_SYSLOG_PRI = "pmix.log.syspri";
    /// Proc: the source of a log text.
    LOG_SOURCE = "pmix.log.source";
    /// Time of a text.
    LOG_TIMESTAMP = "pmix.log.tstmp";
    /// Bool: the time is shown.
    LOG_TIMESTAMP_OUTPUT = "pmix.log.tsout";
    /// Bool: the channel's name is shown.
    LOG_TAG_OUTPUT = "pmix.log.tag";
    /// Bool: the text is shown as XML.
    LOG_XML_OUTPUT = "pmix.log.xml";
    /// Bool: the texts also go to the job's record.
    LOG_JOB_RECORD = "pmix.log.jrec";
    /// Bool: log equal texts of several processes once.
    LOG_AGG = "pmix.log.agg";
    /// Bool: log with the first channel that works.
    LOG_ONCE = "pmix.log.once";
    /// Size: number of process sets.
    QUERY_NUM_PSETS = "pmix.qry.psetnum";
    /// String: names of the process sets, comma separated.
    QUERY_PSET_NAMES = "pmix.qry.psets";
    /// Array of procs: the members of the set that the qualifier `PSET_NAME` names.
    QUERY_PSET_MEMBERSHIP = "pmix.qry.pmems";
    /// String: a process set's name.
    PSET_NAME = "pmix.pset.nm";
    /// Proc: the owner of the infos that follow.
    PROCID = "pmix.procid";
    /// String: a group's name.
    GROUP_ID = "pmix.grp.id";
    /// Bool: assign a context id to the group.
    GROUP_ASSIGN_CONTEXT_ID = "pmix.grp.actxid";
    /// Size: the assigned context id.
    GROUP_CONTEXT_ID = "pmix.grp.ctxid";
    /// Array of procs: the members.
    GROUP_MEMBERSHIP = "pmix.grp.mbrs";
    /// Bytes: data of one server about its members, for the others.
    GROUP_ENDPT_DATA = "pmix.grp.endpt";
    /// Infos of a member for the others.
    GROUP_INFO = "pmix.grp.info";
    /// Size: a member's own number for the group's communicator; by Open MPI 5 and later.
    GROUP_LOCAL_CID = "pmix.grp.lclid";
    /// Array of procs: members who do not take part in making the group.
    GROUP_ADD_MEMBERS = "pmix.grp.add";
    /// Size: number of leaders in the construction of a group with unknown members; since 6.0.
    GROUP_BOOTSTRAP = "pmix.grp.btstrp";
    /// (bool) members may end before they take part.
    GROUP_OPTIONAL = "pmix.grp.opt";
    /// (bool) members that end are not waited for.
    GROUP_FT_COLLECTIVE = "pmix.grp.ftcoll";
    /// (bool) members are notified of the death of others.
    GROUP_NOTIFY_TERMINATION = "pmix.grp.notterm";
    /// (bool) only processes of the caller's node take part.
    GROUP_LOCAL_ONLY = "pmix.grp.lcl";
    /// String: the nspaces that run, comma separated.
    QUERY_NAMESPACES = "pmix.qry.ns";
    /// Bool: kill the processes.
    JOB_CTRL_KILL = "pmix.jctrl.kill";
    /// Bool: end the processes politely.
    JOB_CTRL_TERMINATE = "pmix.jctrl.term";
    /// Int: signal the processes.
    JOB_CTRL_SIGNAL = "pmix.jctrl.sig";
    /// Bool: stop the processes.
    JOB_CTRL_PAUSE = "pmix.jctrl.pause";
    /// Bool: continue stopped processes.
    JOB_CTRL_RESUME = "pmix.jctrl.resume";
    /// String: a file to be removed at the client's end.
    REGISTER_CLEANUP = "pmix.reg.cleanup";
    /// String: a directory to be removed then.
    REGISTER_CLEANUP_DIR = "pmix.reg.cleanupdir";
    /// Bool: with its subdirectories.
    CLEANUP_RECURSIVE = "pmix.clnup.recurse";
    /// Bool: only empty directories.
    CLEANUP_EMPTY = "pmix.clnup.empty";
    /// String: files that must be kept.
    CLEANUP_IGNORE = "pmix.clnup.ignore";
    /// Bool: the directory itself stays.
    CLEANUP_LEAVE_TOPDIR = "pmix.clnup.lvtop";
    /// String: name of a request.
    JOB_CTRL_ID = "pmix.jctrl.id";
    /// String: name of a request about a session.
    SESSION_CTRL_ID = "pmix.ssnctrl.id";
    /// Bool: stop all jobs of a session.
    SESSION_PAUSE = "pmix.ssn.pause";
    /// Bool: continue all jobs of a session.
    SESSION_RESUME = "pmix.ssn.resume";
    /// Bool: end them politely.
    SESSION_TERMINATE = "pmix.ssn.terminate";
    /// Int: signal all their processes.
    SESSION_SIGNAL = "pmix.ssn.sig";
    /// Bool: more nodes or more time for a session.
    SESSION_EXTEND = "pmix.ssn.xtend";
    /// String: kinds of credentials, comma separated, the preferred one first; or a credential's.
    CRED_TYPE = "pmix.sec.ctype";
    /// Rank: it waits in `PMIx_Init` for a debugger; all do with the wildcard.
    DEBUG_STOP_IN_INIT = "pmix.dbg.init";
    /// Rank or array of procs: ranks that wait for a debugger at a place of the program's own.
    DEBUG_STOP_IN_APP = "pmix.dbg.notify";
    /// Proc: whom a debugger's daemon debugs.
    DEBUG_TARGET = "pmix.dbg.tgt";
    /// String: the same up to PMIx 3, a whole job.
    DEBUG_JOB = "pmix.dbg.job";
    /// String: where processes wait for a debugger.
    BREAKPOINT = "pmix.brkpnt";
    /// String: the client's name for its request for an allocation.
    ALLOC_REQ_ID = "pmix.alloc.reqid";
    /// String: the host's name for an allocation.
    ALLOC_ID = "pmix.alloc.id";
    /// u64: nodes of an allocation.
    ALLOC_NUM_NODES = "pmix.alloc.nnodes";
    /// String: certain nodes, in the notation of host lists here.
    ALLOC_NODE_LIST = "pmix.alloc.nlist";
    /// u64: slots of an allocation.
    ALLOC_NUM_CPUS = "pmix.alloc.ncpus";
    /// String: slots of each node, comma separated.
    ALLOC_NUM_CPU_LIST = "pmix.alloc.ncpulist";
    /// u32, with libpmix 5 String: duration of an allocation in seconds.
    ALLOC_TIME = "pmix.alloc.time";
    /// Proc that an event is about.
    EVENT_AFFECTED_PROC = "pmix.evproc";
    /// Bool: not for default handlers.
    EVENT_NON_DEFAULT = "pmix.evnondef";
    /// Procs that shall get an event.
    EVENT_CUSTOM_RANGE = "pmix.evrange";
    /// Status with which a job ended.
    JOB_TERM_STATUS = "pmix.job.term.status";
    /// Bool: the process was spawned.
    SPAWNED = "pmix.spawned";
    /// Proc that spawned the process.
    PARENT_ID = "pmix.parent";
    /// Int: exit code of a process.
    EXIT_CODE = "pmix.exit.code";
    /// String: a job's name.
    NSPACE = "pmix.nspace";
    /// String: the command that a job runs.
    CMD_LINE = "pmix.cmd.line";
    /// Infos: data of one job.
    JOB_INFO_ARRAY = "pmix.job.arr";
    /// String: supported query keys, comma separated.
    QUERY_SUPPORTED_KEYS = "pmix.qry.keys";
    /// Infos: the jobs that run, a `JOB_INFO_ARRAY` each.
    QUERY_NAMESPACE_INFO = "pmix.qry.nsinfo";
    /// Status of a job.
    QUERY_JOB_STATUS = "pmix.qry.jst";
    /// Array of process infos: the processes of a job.
    QUERY_PROC_TABLE = "pmix.qry.ptable";
    /// Array of process infos: those on this node.
    QUERY_LOCAL_PROC_TABLE = "pmix.qry.lptable";
    /// String: attributes of spawns that are honoured, comma separated.
    QUERY_SPAWN_SUPPORT = "pmix.qry.spawn";
    /// String: attributes for debuggers that are honoured, comma separated.
    QUERY_DEBUG_SUPPORT = "pmix.qry.debug";
    /// Array of procs: processes of a job, or of all, on a node. A client's `PMIx_Resolve_peers` queries it.
    QUERY_RESOLVE_PEERS = "pmix.qry.peers";
    /// String: nodes of a job, or of all, comma separated. A client's `PMIx_Resolve_nodes` queries it.
    QUERY_RESOLVE_NODE = "pmix.qry.node";
    /// String: where a node's PMIx server accepts connections.
    SERVER_URI = "pmix.srvr.uri";
    /// Infos: memory of servers and clients.
    QUERY_MEMORY_USAGE = "pmix.qry.mem";
    /// Bool: cached values must not be used.
    QUERY_REFRESH_CACHE = "pmix.qry.rfsh";
    /// Bool: of this node only.
    QUERY_LOCAL_ONLY = "pmix.qry.local";
    /// Bool: average values are requested too.
    QUERY_REPORT_AVG = "pmix.qry.avg";
    /// Bool: with the smallest and largest values.
    QUERY_REPORT_MINMAX = "pmix.qry.minmax";
    /// Bool: query the qualifiers of the keys instead of their values.
    QUERY_SUPPORTED_QUALIFIERS = "pmix.qry.quals";
    /// Float: megabytes that the PMIx server uses.
    DAEMON_MEMORY = "pmix.dmn.mem";
    /// Float: megabytes that clients use on average.
    CLIENT_AVG_MEMORY = "pmix.cl.mem.avg";
    MIN_VALUE = "pmix.descr.minval";
    MAX_VALUE = "pmix.descr.maxval";
    /// Array of procs that an event is about.
    EVENT_AFFECTED_PROCS = "pmix.evaffected";
}
