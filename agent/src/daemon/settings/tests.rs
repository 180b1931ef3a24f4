use std::process::Command;

use super::*;
use wireup_test_support::skip;

fn file(text: &str) -> (tempfile::TempDir, AgentArgs) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.toml");
    std::fs::write(&path, text).unwrap();
    let args = AgentArgs {
        config: Some(path),
        ..AgentArgs::default()
    };
    (directory, args)
}

#[test]
fn option_overrides_settings_file() {
    let (_directory, mut args) = file(
        "listen = '127.0.0.1:1'\nlog = 'debug'\nlog-format = 'json'\nheartbeat = '2500ms'\nname = 'a'",
    );
    args.name = Some("b".into());
    let args = with_file(args).unwrap();
    assert_eq!(args.listen, Some("127.0.0.1:1".parse().unwrap()));
    assert_eq!(args.name.as_deref(), Some("b"));
    assert_eq!(args.heartbeat, Some(Duration::from_millis(2500)));
    assert_eq!(
        LogSettings::new(&args),
        LogSettings {
            filter: "debug".into(),
            format: LogFormat::Json
        }
    );
}

#[test]
fn invalid_settings_file_is_named_with_error() {
    for (text, part) in [
        (
            "lisen = 1",
            "line 1: lisen is unknown; write one of these: listen, ",
        ),
        ("listen = 'here'", "line 1: write ADDRESS:PORT, such as"),
        (
            "listen = 3",
            "line 1: integer 3 is not valid here; write ADDRESS:PORT in quotes",
        ),
        (
            "log-format = 'xml'",
            "invalid log-format \"xml\": use text or json",
        ),
        ("heartbeat = -1.0", "line 1: give a number of seconds"),
    ] {
        let (directory, args) = file(text);
        let error = with_file(args).unwrap_err().to_string();
        let path = directory.path().join("agent.toml").display().to_string();
        assert!(error.starts_with(&path) && error.contains(part), "{error}");
    }
    let args = AgentArgs {
        config: Some("/nowhere/agent.toml".into()),
        ..AgentArgs::default()
    };
    let error = with_file(args).unwrap_err().to_string();
    assert!(
        error.starts_with("/nowhere/agent.toml: No such file"),
        "{error}"
    );
}

#[test]
fn agent_listening_on_one_address_advertises_it() {
    for address in ["10.0.0.1:7437", "[fd00::1]:7437", "127.0.0.1:1"] {
        assert_eq!(advertised(address.parse().unwrap()), address);
    }
    let anywhere: SocketAddr = advertised("0.0.0.0:5".parse().unwrap()).parse().unwrap();
    assert!(!anywhere.ip().is_unspecified() && anywhere.is_ipv4());
}

#[test]
fn routable_address_is_advertised_despite_earlier_bridge() {
    const NETWORK: &str = "WIREUP_TEST_NETWORK";
    if std::env::var_os(NETWORK).is_some() {
        for anywhere in ["0.0.0.0:5", "[::]:5"] {
            assert_eq!(advertised(anywhere.parse().unwrap()), "10.7.0.1:5");
        }
        return;
    }
    if !geteuid().is_root() {
        return skip("a network of its own needs root");
    }
    let script = "ip link add docker0 type bridge && ip addr add 172.17.0.1/16 dev docker0 &&
        ip link set docker0 up && ip link add eth0 type veth peer name eth1 &&
        ip addr add 10.7.0.1/24 dev eth0 && ip link set eth0 up &&
        ip route add default via 10.7.0.254 || exit 77
        exec \"$0\" --exact \
            daemon::settings::tests::routable_address_is_advertised_despite_earlier_bridge";
    let own = std::env::current_exe().unwrap();
    let output = Command::new("unshare")
        .args(["-n", "sh", "-c", script])
        .arg(own)
        .env(NETWORK, "")
        .output();
    match output {
        Ok(output) if output.status.success() => {
            assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
        }
        Ok(output) if output.status.code() == Some(101) => panic!("{output:?}"),
        other => skip(&format!("no network of its own: {other:?}")),
    }
}

#[test]
fn host_finds_its_own_directory_among_others() {
    let top = tempfile::tempdir().unwrap();
    let tls = top.path().to_owned();
    let of = |host: &str| host_directory(tls.clone(), host);
    assert_eq!(of("n1.example.org"), tls);
    for name in ["n1", "n2.example.org"] {
        std::fs::create_dir(tls.join(name)).unwrap();
        std::fs::write(tls.join(name).join(CERTIFICATE), "").unwrap();
    }
    assert_eq!(of("n1"), tls.join("n1"));
    assert_eq!(of("n1.example.org"), tls.join("n1"));
    assert_eq!(of("n2.example.org"), tls.join("n2.example.org"));
    assert_eq!((of("n3"), of("")), (tls.clone(), tls.clone()));
}

#[test]
fn certificate_matches_host_in_any_domain() {
    let names = ["n1.example.org", "10.0.0.2"].map(str::to_owned);
    for host in ["n1", "N1", "n1.cluster", "10.0.0.2", ""] {
        assert!(certified(&names, host), "{host}");
    }
    for host in ["n2", "example.org", "10.0.0.3", "10"] {
        assert!(!certified(&names, host), "{host}");
    }
}

/// The settings of the packaged file are comments.
#[test]
fn packaged_configuration_has_every_setting() {
    let text = include_str!("../../../../packaging/agent.toml");
    let settings: String = text
        .lines()
        .filter_map(|line| line.strip_prefix('#'))
        .filter(|line| !line.starts_with(' ') && !line.is_empty())
        .flat_map(|line| [line, "\n"])
        .collect();
    let config: AgentConfigFile = toml::from_str(&settings).unwrap();
    let AgentConfigFile {
        listen: Some(_),
        advertise: Some(_),
        name: Some(_),
        socket: Some(_),
        tls: Some(_),
        heartbeat: Some(_),
        fence_timeout: Some(_),
        user: Some(_),
        root_launches: false,
        names: Some(_),
        register: Some(_),
        on_stop: Some(_),
        metrics: Some(_),
        log: Some(_),
        log_format: Some(_),
    } = config
    else {
        panic!("a setting is missing: {config:?}");
    };
    assert!(settings.contains("root-launches = "), "{settings}");
    let (_directory, args) = file(&settings);
    with_file(args).unwrap();
}
