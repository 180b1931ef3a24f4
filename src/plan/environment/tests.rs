use super::*;

fn pairs(list: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    list.iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

fn names(base: &InheritedEnv) -> Vec<&str> {
    base.variables
        .iter()
        .map(|(name, _)| name.to_str().unwrap())
        .collect()
}

fn forwards(list: &[&str]) -> Vec<EnvForward> {
    list.iter()
        .map(|text| EnvForward::parse(text.as_ref()).unwrap())
        .collect()
}

/// Names of `list` that ranks inherit without options.
fn inherited_names<'a>(list: &[&'a str]) -> Vec<&'a str> {
    let inherited: Vec<_> = list.iter().map(|name| (*name, "1")).collect();
    let base = base(&pairs(&inherited), &EnvInheritance::All, &[]);
    list.iter()
        .copied()
        .filter(|name| base.variables.iter().any(|(known, _)| known == name))
        .collect()
}

#[test]
fn variables_of_other_launchers_are_removed() {
    // Variables that ranks of each launcher have and the launcher's own environment lacks, as observed.
    let open_mpi_4 = "OMPI_APP_CTX_NUM_PROCS OMPI_COMMAND OMPI_COMM_WORLD_LOCAL_RANK \
        OMPI_COMM_WORLD_LOCAL_SIZE OMPI_COMM_WORLD_NODE_RANK OMPI_COMM_WORLD_RANK \
        OMPI_COMM_WORLD_SIZE OMPI_FILE_LOCATION OMPI_FIRST_RANKS OMPI_MCA_ess OMPI_MCA_ess_base_jobid \
        OMPI_MCA_ess_base_vpid OMPI_MCA_initial_wdir OMPI_MCA_mpi_oversubscribe \
        OMPI_MCA_orte_app_num OMPI_MCA_orte_bound_at_launch OMPI_MCA_orte_ess_node_rank \
        OMPI_MCA_orte_ess_num_procs OMPI_MCA_orte_hnp_uri OMPI_MCA_orte_jobfam_session_dir \
        OMPI_MCA_orte_launch OMPI_MCA_orte_local_daemon_uri OMPI_MCA_orte_num_nodes \
        OMPI_MCA_orte_precondition_transports OMPI_MCA_orte_tmpdir_base \
        OMPI_MCA_orte_top_session_dir OMPI_MCA_pmix OMPI_MCA_shmem_RUNTIME_QUERY_hint \
        OMPI_NUM_APP_CTX OMPI_UNIVERSE_SIZE PMIX_BFROP_BUFFER_TYPE PMIX_DSTORE_21_BASE_PATH \
        PMIX_DSTORE_ESH_BASE_PATH PMIX_GDS_MODULE PMIX_HOSTNAME PMIX_ID PMIX_NAMESPACE PMIX_RANK \
        PMIX_SECURITY_MODE PMIX_SERVER_TMPDIR PMIX_SERVER_URI2 PMIX_SERVER_URI41 \
        PMIX_SYSTEM_TMPDIR PMIX_VERSION";
    let prrte = "PMIX_PARAM_FILE_PASSED PMIX_SERVER_URI4 PRTE_LAUNCHED";
    let hydra = "HYDI_CONTROL_FD MPIR_CVAR_CH3_INTERFACE_HOSTNAME MPI_LOCALNRANKS MPI_LOCALRANKID \
        PMI_FD PMI_HOSTNAME PMI_ID PMI_PORT PMI_RANK PMI_SIZE PMI_SPAWNED";
    let intel = "HYDRA_BSTRAP_LOCALHOST HYDRA_IP_VERSION I_MPI_HYDRA_UUID I_MPI_INFO_NP \
        I_MPI_PIN_INFO I_MPI_PIN_MAPPING";
    let schedulers = "SLURM_PROCID SLURM_NODELIST SLURM_STEP_ID SLURM_JOBID SLURM_MPI_TYPE \
        PMI2_JOBID FLUX_JOB_ID FLUX_TASK_RANK JSM_JSRUN_PORT PALS_RANKID ALPS_APP_PE \
        MV2_COMM_WORLD_RANK";
    let wireup = "WIREUP_JOB_ID WIREUP_SIZE WIREUP_NPROCS WIREUP_RANK WIREUP_LOCAL_RANK \
        WIREUP_LOCAL_SIZE WIREUP_NODE WIREUP_NODE_RANK WIREUP_NNODES WIREUP_NODELIST WIREUP_HOST \
        WIREUP_MACHINE WIREUP_APPNUM WIREUP_UNIVERSE_SIZE";
    for launcher in [open_mpi_4, prrte, hydra, intel, schedulers, wireup] {
        let list: Vec<_> = launcher.split_whitespace().collect();
        assert_eq!(inherited_names(&list), [""; 0]);
    }
}

#[test]
fn settings_of_users_stay() {
    let list = [
        "HOME",
        "OMPI_MCA_btl",
        "OMPI_MCA_pmix_base_async_modex",
        "OMPI_MCA_essential",
        "OMPI_ALLOW_RUN_AS_ROOT",
        "OMPI_CC",
        "OPAL_PREFIX",
        "PMIX_MCA_gds",
        "PMIX_PREFIX",
        "PRTE_MCA_ras_base_verbose",
        "PMI_DEBUG",
        "PMI2_DEBUG",
        "MPIR_CVAR_CH4_NETMOD",
        "MPIR_CVAR_CH3_INTERFACE_HOSTNAME",
        "UCX_TLS",
        "FI_PROVIDER",
        "I_MPI_FABRICS",
        "I_MPI_HYDRA_TOPOLIB",
        "I_MPI_PIN",
        "MPIEXEC_TIMEOUT",
        "PBS_O_WORKDIR",
        "LSB_JOBID",
        "SLURM_JOB_ID",
        "SLURM_ARRAY_TASK_ID",
        "SLURM_CONF",
        "SLURM_RESTART_COUNT",
        "SLURM_SUBMIT_DIR",
        "WIREUP_LIBPMIX",
        "PMIXER",
    ];
    assert_eq!(inherited_names(&list), list);
}

#[test]
fn requested_variables_are_kept_despite_removal() {
    let inherited = pairs(&[
        ("A", "1"),
        ("SLURM_JOBID", "7"),
        ("SLURM_PROCID", "0"),
        ("Z", "2"),
    ]);
    let all = base(&inherited, &EnvInheritance::All, &forwards(&["SLURM_*"]));
    assert_eq!(
        names(&all),
        ["A", "SLURM_JOBID", "SLURM_PROCID", "Z"],
        "in the old order"
    );
    let one = base(
        &inherited,
        &EnvInheritance::All,
        &forwards(&["SLURM_JOBID", "PMI_RANK=9"]),
    );
    assert_eq!(
        one.variables,
        pairs(&[
            ("A", "1"),
            ("SLURM_JOBID", "7"),
            ("Z", "2"),
            ("PMI_RANK", "9")
        ])
    );
}

#[test]
fn last_request_for_name_wins_and_new_names_come_last() {
    let inherited = pairs(&[("B", "old"), ("A", "1")]);
    let base = base(
        &inherited,
        &EnvInheritance::All,
        &forwards(&["B=x", "N=1", "B", "N=2", "E=", "Q=a=b"]),
    );
    let expected = pairs(&[
        ("B", "old"),
        ("A", "1"),
        ("N", "2"),
        ("E", ""),
        ("Q", "a=b"),
    ]);
    assert_eq!(base.variables, expected);
    assert!(base.unset.is_empty());
}

#[test]
fn unset_names_are_reported() {
    let base = base(
        &pairs(&[("A", "1")]),
        &EnvInheritance::All,
        &forwards(&["NO", "NONE_*", "A"]),
    );
    assert_eq!(base.unset, ["NO", "NONE_"]);
    assert_eq!(base.variables, pairs(&[("A", "1")]));
}

#[test]
fn any_bytes_pass_and_first_of_equal_names_counts() {
    let odd = OsString::from_vec(vec![0xff, b'N']);
    let inherited = vec![
        (odd.clone(), OsString::from_vec(vec![0xfe])),
        ("A".into(), "first".into()),
        ("A".into(), "second".into()),
    ];
    let base = base(&inherited, &EnvInheritance::All, &[]);
    assert_eq!(base.variables, inherited[..2]);
    let set = EnvForward::parse(OsStr::from_bytes(b"\xffN=\xfd")).unwrap();
    assert_eq!(set, EnvForward::Set(odd, OsString::from_vec(vec![0xfd])));
}

#[test]
fn request_without_name_is_refused() {
    for text in ["", "=x", "*"] {
        let error = EnvForward::parse(text.as_ref()).unwrap_err();
        assert_eq!(error, ForwardError::NoName(text.into()));
    }
    assert!(matches!(
        EnvForward::parse("A\0=1".as_ref()),
        Err(ForwardError::Nul(_))
    ));
}

#[test]
fn selection_excludes_all_but_selected_variables() {
    let inherited = pairs(&[
        ("A", "1"),
        ("SLURM_JOB_ID", "7"),
        ("LC_ALL", "C"),
        ("LC_X", "2"),
    ]);
    let none = base(&inherited, &EnvInheritance::None, &forwards(&["A", "N=2"]));
    assert_eq!(none.variables, pairs(&[("A", "1"), ("N", "2")]));
    let list = ["LC_*", "SLURM_JOB_ID", "B", "C*"].map(OsString::from);
    let only = base(
        &inherited,
        &EnvInheritance::Only(list.to_vec()),
        &forwards(&["N=2"]),
    );
    assert_eq!(names(&only), ["SLURM_JOB_ID", "LC_ALL", "LC_X", "N"]);
    assert_eq!(only.not_there, ["B", "C*"]);
}

mod properties {
    use super::*;
    use proptest::prelude::*;

    /// Names of every kind: a user's, launcher state, settings with its prefixes, and prefixes of other names.
    fn name() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec![
            "A",
            "AB",
            "ABC",
            "PATH",
            "PMI_RANK",
            "PMI_DEBUG",
            "PMIX_RANK",
            "PMIX_MCA_ptl",
            "PMIX_NAMESPACE",
            "SLURM_JOB_ID",
            "SLURMX",
            "OMPI_MCA_ess",
            "OMPI_MCA_btl",
            "WIREUP_RANK",
            "WIREUP_LIBPMIX",
            HYDRA_HOST,
            HYDRA_MARK,
        ])
    }

    fn forward() -> impl Strategy<Value = EnvForward> {
        prop_oneof![
            name().prop_map(|name| EnvForward::Inherit(name.into())),
            (name(), 1..5_usize).prop_map(|(name, cut)| {
                EnvForward::InheritAll(name[..cut.min(name.len())].into())
            }),
            (name(), "[xyz=]{0,2}")
                .prop_map(|(name, value)| EnvForward::Set(name.into(), value.into())),
        ]
    }

    /// Value of one variable in a rank, computed independently of other variables.
    fn expected(
        name: &OsStr,
        inherited: &[(OsString, OsString)],
        forwards: &[EnvForward],
    ) -> Option<OsString> {
        let first = inherited.iter().find(|(known, _)| known == name);
        let first = first.map(|(_, value)| value.clone());
        let under_hydra = inherited.iter().any(|(known, _)| known == HYDRA_MARK);
        let removed = is_launcher_state(name) || under_hydra && name == HYDRA_HOST;
        let mut value = first.clone().filter(|_| !removed);
        for forward in forwards {
            match forward {
                EnvForward::Set(set, to) if set == name => value = Some(to.clone()),
                EnvForward::Inherit(variable) if variable == name => {
                    value = first.clone().or(value)
                }
                EnvForward::InheritAll(start) if starts_with(name, start.as_bytes()) => {
                    value = first.clone().or(value);
                }
                _ => {}
            }
        }
        value
    }

    proptest! {
        #[test]
        fn last_option_for_name_sets_its_value(
            inherited in prop::collection::vec((name(), "[abc]{0,2}"), 0..16),
            forwards in prop::collection::vec(forward(), 0..8),
        ) {
            let inherited: Vec<(OsString, OsString)> = inherited
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect();
            let base = base(&inherited, &EnvInheritance::All, &forwards);
            // Each name occurs once: of two variables with one name, programs read the first or the last.
            let mut set_names = HashSet::new();
            for (name, value) in &base.variables {
                prop_assert!(set_names.insert(name), "{name:?} twice");
                prop_assert_eq!(Some(value.clone()), expected(name, &inherited, &forwards));
            }
            let set = forwards.iter().filter_map(|forward| match forward {
                EnvForward::Set(name, _) => Some(name),
                _ => None,
            });
            for name in inherited.iter().map(|(name, _)| name).chain(set) {
                let is_expected = expected(name, &inherited, &forwards).is_some();
                prop_assert_eq!(set_names.contains(name), is_expected, "{:?}", name);
            }
            // Exactly the missing variables are reported.
            let missing = forwards.iter().filter(|forward| match forward {
                EnvForward::Inherit(variable) => !inherited.iter().any(|(name, _)| name == variable),
                EnvForward::InheritAll(start) => {
                    !inherited.iter().any(|(name, _)| starts_with(name, start.as_bytes()))
                }
                EnvForward::Set(..) => false,
            });
            prop_assert_eq!(base.unset.len(), missing.count());
        }

        #[test]
        fn request_parse_keeps_name_and_value(name in "[^=*\\x00]{1,8}", value in "[^\\x00]{0,8}") {
            let parse = |text: String| EnvForward::parse(OsStr::new(&text)).unwrap();
            prop_assert_eq!(parse(name.clone()), EnvForward::Inherit(name.clone().into()));
            prop_assert_eq!(parse(format!("{name}*")), EnvForward::InheritAll(name.clone().into()));
            let set = EnvForward::Set(name.clone().into(), value.clone().into());
            prop_assert_eq!(parse(format!("{name}={value}")), set);
        }
    }
}

#[test]
fn machine_specific_variables_are_dropped_unless_requested() {
    let names = ["PATH", "TMPDIR", "SSH_TTY", "DISPLAY", "HOSTNAME"];
    let left = |selected: &EnvInheritance, forwards: &[EnvForward]| {
        let mut variables: Vec<(OsString, OsString)> =
            names.iter().map(|name| (name.into(), "v".into())).collect();
        leave(&mut variables, selected, forwards, is_local);
        let names = variables
            .into_iter()
            .map(|(name, _)| name.into_string().unwrap());
        names.collect::<Vec<_>>()
    };
    let ask = |text: &str| EnvForward::parse(OsStr::new(text)).unwrap();
    assert_eq!(left(&EnvInheritance::All, &[]), ["PATH"]);
    let forwards = [ask("SSH_*"), ask("DISPLAY"), ask("TMPDIR=/x")];
    let all = ["PATH", "TMPDIR", "SSH_TTY", "DISPLAY"];
    assert_eq!(left(&EnvInheritance::All, &forwards), all);
    let only = EnvInheritance::Only(vec!["HOST*".into(), "PATH".into()]);
    assert_eq!(left(&only, &[]), ["PATH", "HOSTNAME"]);
}

#[test]
fn fabric_grants_are_hidden() {
    for name in ["FI_CXI_DEFAULT_VNI", "SLINGSHOT_VNIS"] {
        assert!(is_hidden(OsStr::new(name)), "{name}");
    }
    assert!(!is_hidden(OsStr::new("FI_PROVIDER")));
    for (word, value) in [
        ("FI_CXI_A=v", Some(9)),
        ("-xMY_TOKEN=v", Some(11)),
        ("--env=A=1,B_SECRET=v", Some(19)),
        ("TOKENS=v", None),
        ("MY_TOKEN", None),
        ("--token=v", None),
    ] {
        assert_eq!(secret_value(OsStr::new(word)), value, "{word}");
    }
    let error = EnvForward::parse(OsStr::new("FI_CXI_KEY=secret\0")).unwrap_err();
    assert!(!error.to_string().contains("secret"), "{error}");
}
