//! The known wrappers with all their options.
//!
//! Source: `--help` and manual pages of these programs, as of Debian 12 and of newer releases.

/// Way to find the command behind the options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tool {
    /// The command follows the options and the wrapper's own arguments.
    Plain,
    /// Assignments and options that change the environment precede the command.
    Env,
    /// `-E` changes the environment.
    Strace,
    /// A number in front of the command is a priority.
    Chrt,
    /// A subcommand precedes the options.
    Perf,
    /// The program is named, or follows `--args`.
    Gdb,
    /// The command follows `-e`.
    Xterm,
}

/// Command line of one wrapper.
#[derive(Debug)]
pub(super) struct Table {
    /// Names of the wrapper; the first is used in messages.
    pub(super) names: &'static [&'static str],
    /// Way to find its command.
    pub(super) tool: Tool,
    /// Number of its own arguments between options and command.
    pub(super) operands: usize,
    /// All options; for the notation see `wrapper_options::entries`.
    pub(super) options: &'static str,
    /// Whether long options start with one dash or two, and letters cannot be combined.
    pub(super) one_dash: bool,
    /// Whether unlisted long options are accepted, with their values in the same word.
    pub(super) any_long: bool,
    /// Whether a number with a dash is an option.
    pub(super) digits: bool,
}

const USUAL: Table = Table {
    names: &[],
    tool: Tool::Plain,
    operands: 0,
    options: "",
    one_dash: false,
    any_long: false,
    digits: false,
};

/// Returns the wrapper of that name.
pub(super) fn find(name: &str) -> Option<&'static Table> {
    TABLE.iter().find(|table| table.names.contains(&name))
}

static TABLE: &[Table] = &[
    Table {
        names: &["env"],
        tool: Tool::Env,
        options: "-i,--ignore-environment -0,--null -u=,--unset= -C=,--chdir= -S=,--split-string= \
                  -a=,--argv0= -v,--debug --block-signal? --default-signal? --ignore-signal? \
                  --list-signal-handling !--help !--version",
        ..USUAL
    },
    Table {
        names: &["numactl"],
        options: "-a,--all -b,--balancing -i=,--interleave= -w=,--weighted-interleave= \
                  -p=,--preferred= -P=,--preferred-many= -m=,--membind= -C=,--physcpubind= \
                  -N=,--cpunodebind= -c=,--cpubind= -l,--localalloc --cpu-compress -L=,--length= \
                  -o=,--offset= -M=,--shmmode= -t,--strict -I=,--shmid= -S=,--shm= -f=,--file= \
                  -u,--huge -T,--touch -V,--verify -d,--dump -D,--dump-nodes !-s,--show \
                  !-H,--hardware !-h,--help !-v,--version",
        ..USUAL
    },
    Table {
        names: &["taskset"],
        operands: 1,
        options: "-a,--all-tasks -c,--cpu-list !-p,--pid !-h,--help !-V,--version",
        ..USUAL
    },
    Table {
        names: &["nice"],
        options: "-n=,--adjustment= !--help !--version",
        digits: true,
        ..USUAL
    },
    Table {
        names: &["ionice"],
        options: "-c=,--class= -n=,--classdata= -t,--ignore !-p=,--pid= !-P=,--pgid= !-u=,--uid= \
                  !-h,--help !-V,--version",
        ..USUAL
    },
    Table {
        names: &["chrt"],
        tool: Tool::Chrt,
        options: "-b,--batch -d,--deadline -e,--ext -f,--fifo -i,--idle -o,--other -r,--rr \
                  -R,--reset-on-fork -T=,--sched-runtime= -P=,--sched-period= \
                  -D=,--sched-deadline= -a,--all-tasks -v,--verbose !-m,--max !-p,--pid \
                  !-h,--help !-V,--version",
        ..USUAL
    },
    Table {
        names: &["nohup"],
        options: "!--help !--version",
        ..USUAL
    },
    Table {
        names: &["setsid"],
        options: "-c,--ctty -f,--fork -w,--wait !-h,--help !-V,--version",
        ..USUAL
    },
    Table {
        names: &["timeout"],
        operands: 1,
        options: "-f,--foreground -p,--preserve-status -k=,--kill-after= -s=,--signal= \
                  -v,--verbose !--help !--version",
        ..USUAL
    },
    Table {
        names: &["stdbuf"],
        options: "-i=,--input= -o=,--output= -e=,--error= !--help !--version",
        ..USUAL
    },
    Table {
        names: &["time", "gtime"],
        options: "-a,--append -f=,--format= -o=,--output= -p,--portability -q,--quiet \
                  -v,--verbose !-h,--help !-V,--version",
        ..USUAL
    },
    Table {
        names: &["valgrind", "valgrind.bin"],
        options: "-q,--quiet -v,--verbose -d -s !-h,--help !--help-debug !--help-dyn-options \
                  !--version",
        any_long: true,
        ..USUAL
    },
    Table {
        names: &["strace"],
        tool: Tool::Strace,
        options: "-E=,--env= -A,--output-append-mode -a=,--columns= -b=,--detach-on= \
                  -C,--summary -c,--summary-only -D --daemonize? -d,--debug -e= --trace= \
                  --abbrev= --verbose= --raw= --signal= --status= --read= --write= --fault= \
                  --inject= --kvm= --decode-fds? -f,--follow-forks --output-separately -F \
                  -I=,--interruptible= -i,--instruction-pointer -k,--stack-trace? --stack-traces? \
                  -n,--syscall-number -N,--arg-names -O=,--summary-syscall-overhead= -o=,--output= \
                  -P=,--trace-path= -q --quiet? --silent? -r --relative-timestamps? \
                  -S=,--summary-sort-by= -s=,--string-limit= -T --syscall-times? -t \
                  --absolute-timestamps? --timestamps? -U=,--summary-columns= -u=,--user= \
                  -v,--no-abbrev -w,--summary-wall-clock -X=,--const-print-style= -x \
                  --strings-in-hex? -Y -y --decode-pids? -z,--successful-only -Z,--failed-only \
                  --seccomp-bpf --secontext? --syscall-limit= --tips? --argv0= --always-show-pid \
                  !-p=,--attach= !-h,--help !-V,--version",
        ..USUAL
    },
    Table {
        names: &["ltrace"],
        options: "-A= -a=,--align= -b,--no-signals -C,--demangle -c -D=,--debug= -e= -F=,--config= \
                  -f -i -L -l=,--library= -n=,--indent= -o=,--output= -r -S -s= -T -t -u= -w=,--where= -x= \
                  !-p= !-h,--help !-V,--version",
        ..USUAL
    },
    Table {
        names: &["perf"],
        tool: Tool::Perf,
        ..USUAL
    },
    Table {
        names: &["gdb", "gdb-multiarch", "cuda-gdb"],
        tool: Tool::Gdb,
        options: ".--args --ex=,--eval-command= --x=,--command= --iex=,--init-eval-command= \
                  --ix=,--init-command= --eix=,--early-init-command= \
                  --eiex=,--early-init-eval-command= --cd= --exec=,-e= --se= --s=,--symbols= \
                  --c=,--core= !--p=,--pid= --d=,--directory= --D=,--data-directory= -w --write \
                  --r,--readnow --readnever --nh --nx,-n --nw --f,--fullname \
                  --i=,--interpreter= --t=,--tty= --tui --q,--quiet,--silent --batch \
                  --batch-silent --return-child-result --b= --l= --statistics --dbx \
                  !--configuration !--h,--help !--v,--version",
        one_dash: true,
        ..USUAL
    },
    Table {
        names: &["xterm", "uxterm", "lxterm"],
        tool: Tool::Xterm,
        options: ".-e -T=,-title= -n= -name= -class= -xrm= -display= -geometry= -bg= -fg= -bd= \
                  -bw= -cr= -ms= -fn=,-font= -fb= -fa= -fd= -fs= -fi= -fw= -fwb= -sl= -lf= -tn= \
                  -ti= -tm= -cn +cn -hold +hold -iconic -ls +ls -sb +sb -rv +rv -bc +bc -cm +cm \
                  -dc +dc -j +j -l +l -mb +mb -s +s -si +si -sk +sk -u8 +u8 -ut +ut -vb +vb \
                  -wc +wc -aw +aw -ah +ah -rw +rw -maximized -fullscreen -leftbar -rightbar -w= \
                  -b= !-version !-help !-h !-v",
        one_dash: true,
        ..USUAL
    },
];

/// Options of `perf` itself.
pub(super) static PERF: Table = Table {
    names: &["perf"],
    options: "-p,--paginate -P,--no-pager --debug= --debugfs-dir= --buildid-dir= --exec-path? \
              !-h,--help !-v,--version !--list-cmds !--list-opts",
    ..USUAL
};

/// Options of `perf record`. Those of a letter whose value is optional take it in the same word.
pub(super) static PERF_RECORD: Table = Table {
    names: &["perf record"],
    options: "-a,--all-cpus -b,--branch-any -B,--no-buildid -c=,--count= -C=,--cpu= -d,--data \
              -D=,--delay= -e=,--event= -F=,--freq= -g -G=,--cgroup= -I?,--intr-regs? \
              -i,--no-inherit -j=,--branch-filter= -k=,--clockid= -m=,--mmap-pages= \
              -N,--no-buildid-cache -n,--no-samples -o=,--output= -P,--period !-p=,--pid= -q,--quiet \
              -R,--raw-samples -r=,--realtime= -S?,--snapshot? -s,--stat !-t=,--tid= -T,--timestamp \
              !-u=,--uid= -v,--verbose -W,--weight -z?,--compression-level? --affinity= --aio? \
              --all-cgroups --all-kernel --all-user --aux-sample? --buildid-all --buildid-mmap \
              --call-graph= --clang-opt= --clang-path= --code-page-size --control= --data-page-size \
              --debuginfod? --dry-run --exclude-perf --filter= --group --kcore --kernel-callchains \
              --max-size= --mmap-flush= --namespaces --no-bpf-event --no-buffering --no-inherit \
              --num-thread-synthesize= --off-cpu --overwrite --per-thread --phys-data \
              --proc-map-timeout= --running-time --sample-cpu --sample-identifier --setup-filter= \
              --strict-freq --switch-events --switch-max-files= --switch-output? \
              --switch-output-event= --synth= --tail-synthesize --threads? --timestamp-boundary \
              --timestamp-filename --transaction --user-callchains --user-regs? --vmlinux= !-h,--help",
    ..USUAL
};

/// Options of `perf stat`.
pub(super) static PERF_STAT: Table = Table {
    names: &["perf stat"],
    options: "-a,--all-cpus -A,--no-aggr -B,--big-num -C=,--cpu= -D=,--delay= -d,--detailed \
              -e=,--event= -G=,--cgroup= -g,--group -I=,--interval-print= -i,--no-inherit \
              -j,--json-output -M=,--metrics= -n,--null -o=,--output= !-p=,--pid= -r=,--repeat= \
              -S,--sync !-t=,--tid= -T,--transaction -v,--verbose -x=,--field-separator= \
              --all-kernel --all-user --append --control= --cputype= --filter= --for-each-cgroup= \
              --hybrid-merge --interval-clear --interval-count= --iostat? --log-fd= \
              --metric-no-group --metric-no-merge --metric-only --metric-no-threshold \
              --no-csv-summary --no-big-num --no-merge --no-scale --per-cache? --per-cluster \
              --per-core --per-die --per-node --per-socket --per-thread --percore-show-thread \
              --post= --pre= --quiet --scale --smi-cost --summary --table --td-level= --timeout= \
              --topdown !-h,--help",
    ..USUAL
};
