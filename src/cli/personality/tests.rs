use super::*;
use wireup_core::shell_words::quoted;

/// Command lines as the documentation of MPIs, Slurm, programs and centres has them, each with what is executed
/// instead, or with the refusal.
const CORPUS: &str = include_str!("../../../tests/command-lines.txt");

/// As a shell splits it; double quotes only.
fn words(line: &str) -> Vec<OsString> {
    let mut words = vec![String::new()];
    let (mut quoted, mut begun) = (false, false);
    for c in line.chars() {
        match c {
            '"' => (quoted, begun) = (!quoted, true),
            ' ' if !quoted => {
                if begun {
                    words.push(String::new());
                }
                begun = false;
            }
            _ => {
                words.last_mut().unwrap().push(c);
                begun = true;
            }
        }
    }
    words.into_iter().map(OsString::from).collect()
}

/// A line as one of these launchers gets it, without variables.
fn line(text: &str) -> Result<(Personality, PersonalityLine), String> {
    line_with(text, &[])
}

/// The same with these variables.
fn line_with(
    text: &str,
    variables: &[(&str, &str)],
) -> Result<(Personality, PersonalityLine), String> {
    let mut words = words(text);
    let personality = Personality::from_name(&words.remove(0)).unwrap();
    let variable = |name: &str| {
        let mut set = variables.iter();
        set.find(|(known, _)| *known == name)
            .map(|(_, value)| value.into())
    };
    let line = personality.translated(words, variable);
    Ok((personality, line.map_err(|error| error.to_string())?))
}

/// The line of `wireup run`, if its plan is one, or the refusal.
fn outcome(text: &str) -> Result<String, String> {
    let (personality, line) = line(text)?;
    line.checked(personality.name())?;
    Ok(shown(&line))
}

fn shown(line: &PersonalityLine) -> String {
    let shown: Vec<String> = line.words.iter().map(|word| quoted(word)).collect();
    shown.join(" ")
}

#[test]
fn documented_command_lines_are_translated() {
    let (mut count, mut wrong) = (0, String::new());
    // Plans are checked where they can be made: tests/run/command_lines.rs.
    let own = |line: &&str| !line.starts_with('#') && !line.starts_with("    plan ");
    let mut lines = CORPUS.lines().filter(own);
    while let Some(line) = lines.next() {
        let expected = lines.next().unwrap();
        let found = match outcome(line) {
            Ok(ours) => format!("    wireup run {ours}"),
            Err(refusal) => format!("    refused: {refusal}"),
        };
        if found != expected {
            wrong.push_str(&format!("{line}\n{found}\n"));
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "translated otherwise:\n{wrong}");
    assert!(count >= 200, "{count}");
}

#[test]
fn names_of_links_are_personalities() {
    assert_eq!(
        Personality::from_name(OsStr::new("/x/mpirun")),
        Some(Personality::Mpirun)
    );
    assert_eq!(
        Personality::from_name(OsStr::new("srun")),
        Some(Personality::Srun)
    );
    assert_eq!(Personality::from_name(OsStr::new("wireup")), None);
}

#[test]
fn times_are_srun_s() {
    for (text, seconds) in [
        ("2", "120"),
        ("2:30", "150"),
        ("1:00:01", "3601"),
        ("1-0", "86400"),
        ("1-1:1:1", "90061"),
    ] {
        let expected = ["--timeout", seconds].map(OsString::from).to_vec();
        assert_eq!(option_values::time(text), Some(expected), "{text}");
    }
    for text in ["0", "UNLIMITED", "infinite"] {
        assert_eq!(option_values::time(text), Some(Vec::new()), "{text}");
    }
    assert_eq!(option_values::time("1:2:3:4"), None);
}

/// A line, variables, and what is made of them.
type Case<'c> = (&'c str, &'c [(&'c str, &'c str)], &'c str);

#[test]
fn command_line_overrides_variables_and_parameters() {
    let cases: &[Case] = &[
        (
            "mpiexec -n 2 a",
            &[("MPIEXEC_TIMEOUT", "1")],
            "--timeout 1 -n 2 a",
        ),
        (
            "mpirun -n 2 a",
            &[("OMPI_MCA_rmaps_base_oversubscribe", "1")],
            "--oversubscribe -n 2 a",
        ),
        (
            "mpirun -n 2 a",
            &[("OMPI_MCA_rmaps_base_oversubscribe", "0")],
            "-n 2 a",
        ),
        (
            "mpirun -n 2 a",
            &[("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")],
            "--oversubscribe -n 2 a",
        ),
        (
            "mpirun --mca hwloc_base_binding_policy core a",
            &[],
            "--bind-to core a",
        ),
        ("mpirun --prtemca prte_rankfile F a", &[], "--rankfile F a"),
        (
            "mpirun --mca orte_default_hostfile F a",
            &[],
            "--hostfile F a",
        ),
        (
            "mpirun --hostfile G a",
            &[("OMPI_MCA_orte_default_hostfile", "F")],
            "--hostfile G a",
        ),
        (
            "mpirun --mca plm_rsh_agent ssh a",
            &[],
            "-x OMPI_MCA_plm_rsh_agent=ssh a",
        ),
        (
            "mpiexec.hydra -n 2 a",
            &[("HYDRA_HOST_FILE", "F")],
            "--oversubscribe --hostfile F -n 2 a",
        ),
        (
            "mpiexec.hydra -n 2 a",
            &[("I_MPI_PERHOST", "1")],
            "--oversubscribe --ppn 1 -n 2 a",
        ),
        (
            "mpirun -n 1 a : -n 1 b",
            &[
                ("OMPI_MCA_iof_base_redirect_app_stderr_to_stdout", "1"),
                ("OMPI_MCA_orte_tag_output", "1"),
            ],
            "'--label=[%J,%r]<std%s>: ' --wrap 'sh -c '\\''exec \"$@\" 2>&1'\\'' sh' -n 1 a : \
             --wrap 'sh -c '\\''exec \"$@\" 2>&1'\\'' sh' -n 1 b",
        ),
        (
            "srun -n 1 a : -n 1 b",
            &[
                ("SLURM_EXPORT_ENV", "A"),
                ("SLURM_REMOTE_CWD", "/d"),
                ("SLURM_NTASKS", "3"),
            ],
            "--env A, --wdir /d -n 3 -n 1 a : --env A, --wdir /d -n 1 b",
        ),
        (
            "srun -n 1 a",
            &[("SLURM_EXPORT_ENV", "A=1"), ("SRUN_EXPORT_ENV", "ALL,B=2")],
            "-x B=2 -n 1 a",
        ),
        (
            "srun -n 1 a",
            &[("SLURM_SEND_LIBS", "yes")],
            "--stage -n 1 a",
        ),
        ("srun a", &[("SLURM_NTASKS", "3")], "-n 3 a"),
        ("srun -n 2 a", &[("SLURM_NTASKS", "3")], "-n 3 -n 2 a"),
        (
            "srun -n 2 a",
            &[("SLURM_NTASKS", "3"), ("SLURM_JOB_ID", "7")],
            "-n 2 a",
        ),
        (
            "srun -n 2 a",
            &[("SLURM_CPU_BIND", "cores")],
            "--bind-to core -n 2 a",
        ),
        (
            "srun -n 2 a",
            &[("SLURM_CPU_BIND", "cores"), ("SLURM_STEP_ID", "0")],
            "-n 2 a",
        ),
        (
            "srun -n 2 a",
            &[("SLURM_CPU_BIND", "cores"), ("WIREUP_RANK", "0")],
            "-n 2 a",
        ),
    ];
    for (text, variables, expected) in cases {
        let (_, line) = line_with(text, variables).unwrap();
        assert_eq!(shown(&line), *expected, "{text} {variables:?}");
    }
}

#[test]
fn options_without_effect_are_noted_with_reason() {
    let cases: &[Case] = &[
        (
            "srun -p debug a",
            &[],
            "-p has no effect: it belongs to the allocation",
        ),
        ("srun --mem=4G a", &[], "--mem=4G has no effect: it belongs"),
        (
            "srun --prefer=x a",
            &[],
            "--prefer=x has no effect: it belongs",
        ),
        (
            "srun --msg-timeout=5 a",
            &[],
            "--msg-timeout=5 has no effect: no daemon",
        ),
        (
            "srun --signal=USR1@60 a",
            &[],
            "--signal=USR1@60 has no effect: ranks get SIGTERM",
        ),
        (
            "mpiexec.hydra -iface eth0 a",
            &[],
            "-iface has no effect: wireup starts processes itself",
        ),
        (
            "mpirun --mca plm_rsh_agent ssh a",
            &[],
            "--mca plm_rsh_agent has no effect",
        ),
        (
            "mpirun a",
            &[("OMPI_MCA_orte_launch_agent", "x")],
            "OMPI_MCA_orte_launch_agent=x has no effect",
        ),
        (
            "mpirun a",
            &[("OMPI_MCA_rmaps_base_mapping_policy", "seq")],
            "write --map-by",
        ),
        (
            "mpiexec a",
            &[("HYDRA_LAUNCHER", "ssh")],
            "HYDRA_LAUNCHER=ssh has no effect",
        ),
        (
            "srun a",
            &[("SLURM_PARTITION", "p")],
            "SLURM_PARTITION=p has no effect",
        ),
        (
            "srun --gres=gpu:1,license:1 a",
            &[],
            "--gres=gpu:1,license:1: license:1 has no effect",
        ),
        (
            "srun a",
            &[("SLURM_GRES", "foo")],
            "SLURM_GRES=foo: foo has no effect",
        ),
        (
            "mpirun --output dir=d a",
            &[],
            "--output: output goes to the files alone",
        ),
        (
            "srun a",
            &[("SRUN_CONTAINER", "c")],
            "SRUN_CONTAINER=c has no effect: write --image",
        ),
        (
            "srun a",
            &[("SLURM_RESV_PORTS", "")],
            "SLURM_RESV_PORTS= has no effect",
        ),
    ];
    for (text, variables, expected) in cases {
        let (_, line) = line_with(text, variables).unwrap();
        let notes = line.notes.join("\n");
        assert!(notes.contains(expected), "{text} {variables:?}: {notes}");
    }
}

#[test]
fn refusals_name_written_option() {
    for (text, expected) in [
        ("mpirun -npernode x a", "-npernode x: give a whole number"),
        (
            "mpirun -pmi-prot a",
            "unknown option -pmi-prot; did you mean: --pmi-port; mpirun --help lists",
        ),
        (
            "srun --frobnicate a",
            "unknown option --frobnicate; srun --help lists",
        ),
        (
            "srun --tres-bind=x a",
            "unknown option --tres-bind=x; srun --help lists",
        ),
        (
            "srun --K0 a",
            "unknown option --K0; did you mean: -K0; srun --help lists",
        ),
        ("mpiexec.hydra --map-by-x a", "unknown option --map-by-x"),
        (
            "srun -n 2",
            "no program is given; write: srun [OPTIONS] PROGRAM",
        ),
        ("srun", "no program is given; write: srun [OPTIONS] PROGRAM"),
        (
            "mpirun -n 1 a : -npernode 1 b",
            "-npernode: it holds for the whole job",
        ),
        (
            "mpirun -n 1 a : -machinefile h b",
            "-machinefile: the programs of a job share the hosts",
        ),
        ("srun -o out.%q a", "-o out.%q: in names of files write"),
        ("srun -o 2 a", "-o 2: write a name with %t"),
        ("srun --error=2 -c 1 a", "--error=2: write a name with %t"),
        ("srun -N x a", "-N x: write -N K with one number"),
        ("srun --uid=5 a", "--uid=5: start the launch as that user"),
        ("srun --gid 5 a", "--gid: start the launch as that user"),
        ("srun --x11=all a", "--x11=all: set DISPLAY for the ranks"),
        (
            "srun --accel-bind=g a",
            "--accel-bind=g: write --gpus-per-task N",
        ),
        ("mpirun -np ./a", "-np ./a: give a number"),
        (
            "mpirun --map-by core:PE=x a",
            "--map-by core:PE=x: give a whole number",
        ),
    ] {
        let refusal = outcome(text).expect_err(text);
        assert!(refusal.starts_with(expected), "{text}: {refusal}");
    }
    for (text, refusal, expected) in [
        (
            "mpirun --mca prte_rankfile nofile a",
            "--rankfile nofile: No such file",
            "--mca prte_rankfile nofile: No such file",
        ),
        (
            "mpirun --host n01 n02 a",
            "program \"n02\" not found; did you mean: --hosts n01,n02",
            "program \"n02\" not found; did you mean: --host n01,n02",
        ),
        ("srun -N2 a", "--nodes 2 is more", "-N2 is more"),
        (
            "srun --gpus-per-task=1 a",
            "--gpus-per-rank: 1 GPU is needed; use fewer ranks, or --oversubscribe",
            "--gpus-per-task=1: 1 GPU is needed; use fewer ranks, or -O",
        ),
        (
            "srun -c 2 a",
            "left by --cpus-per-rank; use",
            "left by -c 2; use",
        ),
        (
            "srun A=1 a",
            "to set a variable of the ranks: wireup run -x A=1 a",
            "to set a variable of the ranks: srun --export=ALL,A=1 a",
        ),
        (
            "mpirun a",
            "write: wireup run -n 2 python3 a.py; use --oversubscribe",
            "write: mpirun -n 2 python3 a.py; use --oversubscribe",
        ),
        ("srun a", "use --oversubscribe, or -n 2", "use -O, or -n 2"),
    ] {
        let (personality, line) = line(text).unwrap();
        let names = line.names(personality.name()).into_string().unwrap();
        assert_eq!(reworded_for(&names, refusal.to_owned()), expected, "{text}");
    }
    assert_eq!(reworded_for("", "wireup run a".to_owned()), "wireup run a");
}

#[test]
fn letters_of_srun_can_be_combined() {
    let taken = |text: &str| outcome(text).unwrap();
    assert_eq!(taken("srun -ln4 a"), "'--label=%R: ' -n 4 a");
    assert_eq!(
        taken("srun -pdebug -Aproject -n2 -t10 a"),
        "-n 2 --timeout 600 a"
    );
    assert_eq!(taken("srun -wnode01 -n2 a"), "--hosts node01 -n 2 a");
}

#[test]
fn variables_of_every_program_reach_every_program() {
    let taken = outcome("mpiexec -genv A 1 -n 1 a : -n 1 b").unwrap();
    assert_eq!(taken, "-x A=1 -n 1 a : -x A=1 -n 1 b");
    let both = |line: &str, everywhere: &str| {
        let expected = format!("{everywhere} -n 1 a : {everywhere} -n 1 b");
        let lines = [
            format!("mpiexec {line} -n 1 a : -n 1 b"),
            format!("mpiexec -n 1 a : {line} -n 1 b"),
        ];
        for line in lines {
            assert_eq!(outcome(&line).unwrap(), expected, "{line}");
        }
    };
    both("-genvlist A", "--env A,");
    both("-genvnone", "--env none");
    both("-gwdir /d", "--wdir /d");
    both("--gmca btl tcp", "-x OMPI_MCA_btl=tcp");
    both("--mca btl tcp", "-x OMPI_MCA_btl=tcp");
    both("--pmixmca a 1", "-x PMIX_MCA_a=1");
}

#[test]
fn variables_of_app_reach_its_program_only() {
    let taken = outcome("mpiexec -n 1 -env A 1 -wdir /d a : -n 1 -envnone b").unwrap();
    assert_eq!(taken, "-n 1 -x A=1 --wdir /d a : -n 1 --env none b");
}

#[test]
fn program_is_found_in_directory_of_every_program() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("wireup-test-program"), "#!/bin/sh\n").unwrap();
    let path = dir.path().to_str().unwrap();
    let found = |line: &str, program: &str| {
        let taken = outcome(&line.replace("DIR", path)).unwrap();
        assert!(taken.ends_with(program), "{taken}");
    };
    found(
        "mpirun -gwdir DIR wireup-test-program",
        " ./wireup-test-program",
    );
    found(
        "mpirun -n 1 a : -gwdir DIR -n 1 wireup-test-program",
        " ./wireup-test-program",
    );
    found(
        "mpirun -gwdir / -wdir DIR wireup-test-program",
        " ./wireup-test-program",
    );
    found(
        "mpirun -gwdir DIR -wdir / wireup-test-program",
        " wireup-test-program",
    );
}

#[test]
fn labels_have_format_of_launcher() {
    let label = |line: &str| {
        let (_, line) = line_with(line, &[]).unwrap();
        let mut words = line.words.iter().filter_map(|word| word.to_str());
        words.find_map(|word| word.strip_prefix("--label=").map(str::to_owned))
    };
    for (line, expected) in [
        ("mpirun --tag-output a", "[%J,%r]<std%s>: "),
        ("mpirun --timestamp-output a", "[%c]<std%s>: "),
        (
            "mpirun --timestamp-output --tag-output a",
            "[%c][%J,%r]<std%s>: ",
        ),
        ("mpirun --output tag,timestamp a", "[%c][%J,%r]<std%s>: "),
        ("mpirun --output tag-detailed a", "[%J,%r][%h:%p]<std%s>: "),
        ("mpirun --output tag-fullname a", "[%j,%r]<std%s>: "),
        ("mpirun --output rank a", "[%r]<std%s>: "),
        (
            "mpirun --output-directory d --output rank a",
            "[%r]<std%s>: ",
        ),
        ("srun -l a", "%R: "),
        ("mpiexec.hydra -prepend-pattern %r:%g:%p:%h:%t% a", ""),
        (
            "mpiexec.hydra -prepend-pattern %r:%g:%p:%h:%t%% a",
            "%r:%g:%n:%h:%t%%",
        ),
    ] {
        if expected.is_empty() {
            assert!(outcome(line).is_err(), "{line}");
        } else {
            assert_eq!(label(line).as_deref(), Some(expected), "{line}");
        }
    }
    assert_eq!(label("mpiexec.hydra -l a"), None);
}

#[test]
fn wraps_of_users_and_redirections_both_hold() {
    assert_eq!(
        outcome("srun -n 1 -e e.%t --wrap \"nice -n 1\" --wrap-ranks 0 a : -n 1 b").unwrap(),
        "--wrap 'sh -c '\\''if { [ %r -ge 0 ] && [ %r -le 0 ]; }; then exec nice -n 1 \"$@\" 2>e.%r; fi; exec \"$@\" \
         2>e.%r'\\'' sh' -n 1 a : --wrap 'sh -c '\\''exec \"$@\" 2>e.%r'\\'' sh' -n 1 b"
    );
    assert_eq!(
        outcome("mpirun --merge-stderr-to-stdout --wrap=nice a").unwrap(),
        "--wrap 'sh -c '\\''exec \"$@\" 2>&1'\\'' sh nice' a"
    );
}

#[test]
fn wrap_of_user_is_checked_despite_redirection() {
    let (_, plain) = line("srun -n 1 --wrap nice true").unwrap();
    assert_eq!(plain.unredirected, None);
    let (_, none) = line("srun -n 1 -e e.%t true").unwrap();
    assert_eq!(none.unredirected, None);
    let (_, both) = line("mpirun --merge-stderr-to-stdout -n 1 --wrap nice true").unwrap();
    assert_eq!(both.unredirected, Some(words("-n 1 --wrap nice true")));
    for (options, code, expected) in [
        (
            "--wrap no-such-command",
            127,
            "--wrap: program \"no-such-command\" not found",
        ),
        ("--wrap \"\"", 125, "--wrap is empty"),
        (
            "--wrap nice --wrap-ranks 9",
            125,
            "--wrap-ranks 9: rank 9 does not run this program, whose only rank is 0",
        ),
        ("--wrap \"nice 'a\"", 125, "a quote is not closed"),
        ("--wrap \"date +%Y\"", 125, "unknown pattern %Y"),
    ] {
        let text = format!("srun --no-config -e e.%t {options} -n 1 true");
        let (_, line) = line(&text).unwrap();
        let failure = line.check_wraps().unwrap_err();
        assert!(failure.to_string().contains(expected), "{text}: {failure}");
        assert_eq!(failure.code(), code, "{text}");
    }
    let (_, line) = line("srun --no-config -e e.%t --wrap nice -n 1 true").unwrap();
    assert!(line.check_wraps().is_ok());
}

#[test]
fn option_s_of_mpirun_is_open_mpi_unless_ranks_follow() {
    assert_eq!(outcome("mpirun -s a").unwrap(), "--stage=program a");
    assert_eq!(outcome("mpirun -s all a").unwrap(), "--stdin all a");
    assert_eq!(outcome("mpirun -s 1 -n 2 a").unwrap(), "--stdin 1 -n 2 a");
    let (_, line) = line("mpirun -s \"\" a").unwrap();
    assert_eq!(line.words, ["--stage=program", "", "a"]);
}

#[test]
fn multi_word_values_of_srun_are_accepted() {
    for (line, expected) in [
        ("srun -n 1 --export=NONE,A a", "-n 1 --env A, a"),
        ("srun -n 1 --export=NONE a", "-n 1 --env none a"),
        ("srun -n 1 --export=NONE,A=1 a", "-n 1 --env none -x A=1 a"),
        ("srun -n 1 --mem-bind=q,local a", "-n 1 --mem-bind local a"),
        ("srun -n 1 --mem-bind=v,none a", "-n 1 --mem-bind none a"),
        ("srun -n 1 -t UNLIMITED a", "-n 1 a"),
        ("srun -n 1 --send-libs a", "-n 1 --stage a"),
        ("srun -n 1 --send-libs=yes a", "-n 1 --stage a"),
        ("srun -n 1 --send-libs=no a", "-n 1 a"),
        ("srun -n 1 -K0 a", "-n 1 --no-kill-on-bad-exit a"),
    ] {
        assert_eq!(outcome(line).unwrap(), expected, "{line}");
    }
}

#[test]
fn hydra_runs_more_ranks_than_cores() {
    assert_eq!(
        outcome("mpiexec.hydra -n 99 a").unwrap(),
        "--oversubscribe -n 99 a"
    );
    assert_eq!(outcome("mpirun -n 99 a").unwrap(), "-n 99 a");
}

#[test]
fn gpus_of_host_are_visible_unless_assigned() {
    let set = |name: &str| (name == "CUDA_VISIBLE_DEVICES").then(|| "4,5,6".to_owned());
    let words = option_values::visible(2, set);
    assert_eq!(words[1], "CUDA_VISIBLE_DEVICES=4,5");
    assert_eq!(words[3], "ROCR_VISIBLE_DEVICES=0,1");
    let count = |text: &str| option_values::resources(text).unwrap().len();
    assert_eq!(
        ["gpu:2", "gpu:a100:2(S:0)", "gpu", "nvme:1", "none"].map(count),
        [6, 6, 6, 0, 0]
    );
    assert_eq!(
        outcome("srun -n 2 --gres=gpu:2 --gpus-per-task=1 a").unwrap(),
        "-n 2 --gpus-per-rank 1 a"
    );
}

#[test]
fn help_names_launcher_whose_command_line_is_taken() {
    for (name, title) in [
        ("srun", "srun of Slurm\n"),
        // Scripts look for the name of an MPI in it.
        ("mpirun", "mpirun of Open MPI\n"),
        ("mpiexec.hydra", "mpiexec.hydra of MPICH and Intel MPI"),
    ] {
        let (personality, line) = line(&format!("{name} -n 2 --help map-by")).unwrap();
        let text = personality.page(line.page.unwrap(), 100);
        let first = format!(
            "wireup {} as {name}: takes the command line of {title}",
            env!("CARGO_PKG_VERSION")
        );
        assert!(text.starts_with(&first), "{text}");
        assert!(!text.contains('{'), "{text}");
        let (_, line) = self::line(&format!("{name} --version")).unwrap();
        let version = personality.page(line.page.unwrap(), 40);
        assert!(version.starts_with(&first), "{version}");
    }
}

#[test]
fn tables_name_options_once_and_settings_exist() {
    for (_, personality, _) in NAMES {
        let dialect = personality.dialect();
        for table in dialect.options {
            let mut names = std::collections::BTreeSet::new();
            for name in table.iter().flat_map(|habit| habit.names) {
                assert!(names.insert(name), "{name} is there twice");
            }
        }
        for setting in dialect.settings.iter().copied().flatten() {
            let known = dialect.options.iter().any(|table| {
                table
                    .iter()
                    .any(|habit| habit.names.contains(&setting.option))
            });
            assert!(known, "{} {}", setting.name, setting.option);
        }
    }
}

#[test]
fn unread_launcher_variables_are_noted() {
    let names = [
        "OMPI_MCA_plm_rsh_agent",
        "OMPI_MCA_btl",
        "HYDRA_ENV",
        "OMPI_MCA_orte_rankfile",
        "PRTE_MCA_prte_rankfile",
        "PRTE_MCA_hwloc_use_topo_file",
        "I_MPI_JOB_ABORT_SIGNAL",
        "I_MPI_FAULT_NODE_CONTINUE",
        "I_MPI_PRINT_PROT",
        "I_MPI_DEBUG",
        "I_MPI_JOB_TIMEOUT",
        "MPIEXEC_PORT_RANGE",
        "MPIEXEC_TIMEOUT",
        "SLURM_UMASK",
        "HOME",
    ];
    let idle = |personality: Personality| {
        let idle = personality
            .dialect()
            .idle_variables(names.map(OsString::from));
        let names = idle.iter().filter_map(|line| line.split(' ').next());
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    let of_hydra = [
        "HYDRA_ENV",
        "I_MPI_JOB_ABORT_SIGNAL",
        "I_MPI_FAULT_NODE_CONTINUE",
        "I_MPI_PRINT_PROT",
        "MPIEXEC_PORT_RANGE",
    ];
    let of_openmpi = ["OMPI_MCA_plm_rsh_agent", "PRTE_MCA_hwloc_use_topo_file"];
    assert_eq!(idle(Personality::Hydra), of_hydra);
    assert_eq!(
        idle(Personality::Mpirun),
        [
            &of_openmpi[..1],
            &of_hydra[..1],
            &of_openmpi[1..],
            &of_hydra[1..]
        ]
        .concat()
    );
    assert_eq!(idle(Personality::Srun), ["SLURM_UMASK"]);
}

#[test]
fn launcher_parameter_files_are_noted() {
    let home = tempfile::tempdir().unwrap();
    let notes = || openmpi::idle_files(&Personality::Mpirun.dialect(), home.path());
    assert!(notes().is_empty());
    let file = home.path().join(".openmpi/mca-params.conf");
    std::fs::create_dir(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "# plm = rsh\nbtl = self,tcp\n").unwrap();
    assert!(notes().is_empty());
    let text = "btl = self\nrmaps_base_oversubscribe = 1\nplm_rsh_agent=ssh\n";
    std::fs::write(&file, text).unwrap();
    assert_eq!(
        notes(),
        [format!(
            "{} sets parameters of a launcher that does not run here (rmaps_base_oversubscribe, plm_rsh_agent); \
             write --mca NAME VALUE",
            file.display()
        )]
    );
}

/// The names of variables that srun's manual says it reads, if the manual is installed.
fn variables_of_srun_manual() -> Option<Vec<String>> {
    let path = "/usr/share/man/man1/srun.1.gz";
    let unpacked = Command::new("gzip").args(["-dc", path]).output().ok()?;
    let text = String::from_utf8_lossy(&unpacked.stdout).into_owned();
    let (_, text) = text.split_once(".SH \"INPUT ENVIRONMENT VARIABLES\"")?;
    let (text, _) = text.split_once("\n.SH ")?;
    let lines = text.lines().collect::<Vec<_>>();
    let terms = lines.windows(2).filter(|pair| pair[0].starts_with(".TP"));
    let names = terms.filter_map(|pair| pair[1].strip_prefix("\\fB")?.split("\\fR").next());
    Some(names.map(str::to_owned).collect())
}

#[test]
fn variables_of_srun_manual_are_read_or_noted() {
    let Some(names) = variables_of_srun_manual() else {
        eprintln!("not checked: the variables of srun: needs slurm-client");
        return;
    };
    assert!(names.len() > 80, "{names:?}");
    let plain = line("srun a").unwrap().1;
    let dialect = Personality::Srun.dialect();
    let is_silent = |name: &&String| {
        let has_effect = match line_with("srun a", &[(name.as_str(), "2")]) {
            Ok((_, line)) => (&line.words, &line.notes) != (&plain.words, &plain.notes),
            // A name of a file that is refused.
            Err(_) => true,
        };
        !has_effect && dialect.idle_variables([name.into()]).is_empty()
    };
    let silent: Vec<&String> = names.iter().filter(is_silent).collect();
    // The allocation is read from it.
    assert_eq!(silent, ["SLURM_JOB_ID"]);
}
