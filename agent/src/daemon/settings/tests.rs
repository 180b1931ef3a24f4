use super::*;

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
fn the_line_counts_more_than_the_file() {
    let (_directory, mut args) = file(
        "listen = '127.0.0.1:1'\nlog = 'debug'\nlog-format = 'json'\nheartbeat = 2.5\nname = 'a'",
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
fn a_wrong_file_is_named_with_what_is_wrong() {
    for (text, part) in [
        ("lisen = 1", "unknown field `lisen`"),
        ("listen = 'here'", "invalid socket address"),
        (
            "log-format = 'xml'",
            "log-format is text or json, not \"xml\"",
        ),
        ("heartbeat = -1.0", "heartbeat: "),
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
fn an_agent_that_listens_on_one_address_tells_others_that_one() {
    for address in ["10.0.0.1:7437", "[fd00::1]:7437", "127.0.0.1:1"] {
        assert_eq!(advertised(address.parse().unwrap()), address);
    }
    let anywhere: SocketAddr = advertised("0.0.0.0:5".parse().unwrap()).parse().unwrap();
    assert!(!anywhere.ip().is_unspecified() && anywhere.is_ipv4());
}
