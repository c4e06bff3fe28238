//! The command line, as far as no process is needed.

use super::args::ProxyArgs;
use super::*;
use sluicegate_config as config;
use sluicegate_model as model;

fn proxy(to: &str, limit: &[&str], listen: &str) -> ProxyArgs {
    ProxyArgs {
        to: to.to_owned(),
        limit: limit.iter().map(|limit| (*limit).to_owned()).collect(),
        listen: listen.to_owned(),
        admin: "none".to_owned(),
    }
}

fn code(args: &[&str]) -> ExitCode {
    run(["sluicegate"].iter().chain(args).map(OsString::from))
}

#[test]
fn the_arguments_are_consistent() {
    build_command().debug_assert();
}

#[test]
fn every_command_has_help_of_its_own() {
    for verb in build_command().get_subcommands() {
        let help = super::command_help::find_help(verb.get_name());
        assert!(
            help.examples.iter().any(|(words, _)| words.contains(verb.get_name())),
            "{}",
            verb.get_name()
        );
    }
}

#[test]
fn a_proxy_line_stands_for_a_valid_file() {
    let line = proxy("127.0.0.1:9000", &["10/s", "300/60s"], "127.0.0.1:0");
    let loaded =
        config::parse(&super::serve::proxy_yaml(&line), "x").unwrap_or_else(|report| panic!("{report}"));
    assert_eq!(loaded.config.limits.len(), 2);
    assert_eq!(loaded.config.locations.len(), 1);
    assert!(loaded.config.admin.is_none());
    assert_eq!(
        loaded.config.listen,
        [model::ListenConfig::with_address(model::ListenAddress::Address("127.0.0.1:0".parse().unwrap()))]
    );
    let port = proxy("http://127.0.0.1:9000", &["1/s"], "8081");
    let loaded =
        config::parse(&super::serve::proxy_yaml(&port), "x").unwrap_or_else(|report| panic!("{report}"));
    assert_eq!(loaded.config.listen, [model::ListenConfig::with_address(model::ListenAddress::Port(8081))]);
    let socket = proxy("unix:/run/app.sock", &["1/s"], "8081");
    let loaded =
        config::parse(&super::serve::proxy_yaml(&socket), "x").unwrap_or_else(|report| panic!("{report}"));
    assert_eq!(loaded.config.upstreams[0].name, "unix:/run/app.sock");
}

#[test]
fn arguments_of_proxy_cannot_become_yaml() {
    for hostile in ["x\", admin: \"0.0.0.0:1", "${HOME}", "a: b\n- c", "# x", "\\"] {
        let line = proxy("http://127.0.0.1:9000", &[hostile], "8080");
        let report = config::parse(&super::serve::proxy_yaml(&line), "x").expect_err(hostile);
        assert!(report.problems.iter().all(|problem| problem.field.contains("rate")), "{report}");
    }
}

#[test]
fn wrong_arguments_are_exit_2() {
    for args in [
        &["replay"][..],
        &["replay", "x", "--json", "--csv"],
        &["replay", "x", "--format", "apache"],
        &["recommend"],
        &["recommend", "x", "--key", "colour"],
        &["recommend", "x", "--spare", "all"],
        &["-c", "x", "recommend", "y"],
        &["explain", "GET"],
        &["explain", "GET", "x"],
        &["explain", "GET", "/", "--limits", "sms"],
        &["explain", "GET", "/", "--key", "account=acme"],
        &["chekc"],
        &["proxy"],
        &["check", "--what"],
        &["reset", "per-ip"],
        &["revoke", "per-ip"],
        &["grant", "per-ip", "ip=192.0.2.7", "--rate", "1/s"],
        &["grant", "per-ip", "ip=192.0.2.7", "--for", "1h"],
        &["keys", "per-ip", "--by", "weight"],
    ] {
        assert_eq!(code(args), ExitCode::from(2), "{args:?}");
    }
    assert_eq!(code(&["proxy", "--to", "http://a", "--limit", "fast"]), ExitCode::from(2));
    assert_eq!(code(&["-c", "x", "proxy", "--to", "http://a", "--limit", "1/s"]), ExitCode::from(2));
}

#[test]
fn help_and_version_are_exit_0() {
    for args in
        [&["--help"][..], &["--version"], &["version"], &["help"], &["check", "--help"], &["help", "run"]]
    {
        assert_eq!(code(args), ExitCode::SUCCESS, "{args:?}");
    }
}

#[test]
fn init_writes_a_file_that_check_accepts_and_keeps_existing_files() {
    let folder = std::env::temp_dir().join(format!("sluicegate-init-{}", std::process::id()));
    let file = folder.join("new/place.yaml");
    let name = file.display().to_string();
    assert_eq!(code(&["init", "-c", &name]), ExitCode::SUCCESS);
    assert_eq!(code(&["check", "--strict", "--json", "-c", &name]), ExitCode::SUCCESS);
    std::fs::write(&file, "listen: nowhere\n").unwrap();
    assert_eq!(code(&["init", "-c", &name]), ExitCode::from(1));
    assert_eq!(code(&["check", "-c", &name]), ExitCode::from(3));
    assert_eq!(code(&["-c", &name]), ExitCode::from(3));
    assert_eq!(code(&["init", "--force", "-c", &name]), ExitCode::SUCCESS);
    assert_eq!(code(&["check", "-c", &name]), ExitCode::SUCCESS);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_name_that_does_not_resolve_is_no_error_for_strict() {
    let file = std::env::temp_dir().join(format!("sluicegate-names-{}.yaml", std::process::id()));
    let name = file.display().to_string();
    let text =
        |path: &str| format!("locations: [{{ path: {path}, upstream: \"http://nowhere.invalid\" }}]\n");
    std::fs::write(&file, text("/")).unwrap();
    assert_eq!(code(&["check", "--strict", "-c", &name]), ExitCode::SUCCESS);
    std::fs::write(&file, text("/*")).unwrap();
    assert_eq!(code(&["check", "--strict", "-c", &name]), ExitCode::from(3));
    assert_eq!(code(&["check", "-c", &name]), ExitCode::SUCCESS);
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn check_describes_every_limit_and_every_location() {
    let text = "server: { limits: [all], headers: { set: { X-A: a } } }\nupstreams: { app: [a:1, b:1] }\n\
                limits:\n  per-ip: { rate: 10/s, burst: 20 }\n  \
                all: { key: global, rate: 1000/s }\nlocations:\n  \
                - { path: /api/, host: a.test, methods: [GET], upstream: app, limits: [per-ip, 5/s],\n      \
                    request_headers: { set: { X-B: b } }, response_headers: { remove: Server } }\n  \
                - { path: /demo, upstream: demo }\n  \
                - { path: /x, redirect: { to: / }, limits: per-ip, on_reject: { status: 403 } }\n";
    let config = config::parse(text, "x").unwrap_or_else(|report| panic!("{report}")).config;
    let refused = "is rejected with 429 and told when to return";
    let expected = format!(
        "\nlisten\n  port 8080: plain HTTP\n\n\
         upstreams\n  \
         app: a:1, b:1; balanced to the less busy of two; no health checks; 1 retry (connect, refused)\n  \
         demo: built in, echoes each request\n\n\
         limits\n  \
         per-ip: 10 requests per second per client IP, 20 at once; the 21st {refused}\n  \
         all: 1000 requests per second for all clients together, 1000 at once; the 1001st {refused}\n  \
         a.test GET /api/#2: 5 requests per second per client IP, 5 at once; the 6th {refused}\n\n\
         every request: all\n\n\
         every response: set x-a\n\n\
         locations\n  \
         /api/ (a.test, GET) -> app: per-ip, a.test GET /api/#2\n    \
         request headers: set x-b\n    \
         response headers: remove server\n  \
         /demo -> demo\n  \
         /x -> redirects to / with 308: per-ip\n    \
         per-ip: 10 requests per second per client IP, 20 at once; \
         the 21st is rejected with 403 and told when to return\n"
    );
    assert_eq!(super::check::render_overview(&config), expected);
}

#[test]
fn check_advises_and_does_not_warn() {
    let text = "state: { store: redis, redis: { url: redis://h } }\n\
                locations: [{ path: /, upstream: demo, limits: 1/s }]\n";
    let loaded = config::parse(text, "x").unwrap_or_else(|report| panic!("{report}"));
    let text = super::check::render_overview(&loaded.config);
    assert!(text.contains("\nadvice: another service on this Redis with the same prefix"), "{text}");
    assert!(loaded.warnings.is_empty(), "--strict accepts it");
}

#[test]
fn check_describes_bans_and_access() {
    let text = "ip_sets: { office: 192.0.2.0/24, bad: 198.51.100.0/24 }\naccess: { deny: bad, bypass: office }\n\
                bans: { after: 5/1m }\nlocations:\n  - { path: /, upstream: demo, limits: 1/s }\n  \
                - { path: /all, upstream: demo, access: { deny: [], bypass: [] } }\n  \
                - { path: /back, upstream: demo, access: { allow: office } }\n";
    let config = config::parse(text, "x").unwrap_or_else(|report| panic!("{report}")).config;
    let text = super::check::render_overview(&config);
    let expected = "\n\
        bans: 5 rejections per 60 seconds ban a client IP for 10 minutes, \
        each time twice as long, at most 1 day\n\n\
        access: 403 for bad; no limits and no bans for office\n\n\
        locations\n  \
        / -> demo: /#1\n  \
        /all -> demo\n    \
        access: any\n  \
        /back -> demo\n    \
        access: 403 for bad and for all but office; no limits and no bans for office\n";
    assert!(text.ends_with(expected), "{text}");
}

#[test]
fn slow_reading_is_noted() {
    let text = "locations: [{ path: /, upstream: demo }, { path: ~ x, upstream: demo }]";
    let loaded = sluicegate_config::parse(text, "x").unwrap();
    let note = loaded.note_slow_reading(std::time::Duration::from_millis(1250));
    assert_eq!(note.as_deref(), Some("reading took 1.2 s; regular expressions: 1"));
    assert_eq!(loaded.note_slow_reading(std::time::Duration::from_millis(999)), None);
}

#[test]
fn explain_ends_as_the_contract_says() {
    let folder = std::env::temp_dir().join(format!("sluicegate-explain-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let log = folder.join("access.log");
    let text = format!(
        "admin: none\naccess_log: {{ output: \"{}\" }}\nlocations: [{{ path: /, upstream: demo }}]\n",
        log.display()
    );
    let (good, bad) = (file("good.yaml", &text), file("bad.yaml", "listen: nowhere\n"));
    let explain = |file: &str, more: &[&str]| {
        let args = ["explain", "GET", "/x", "-c", file];
        code(&args.iter().chain(more).copied().collect::<Vec<_>>())
    };
    assert_eq!(explain(&good, &["-H", "X-A: b", "--ip", "::1"]), ExitCode::SUCCESS);
    assert_eq!(explain(&good, &["--json"]), ExitCode::SUCCESS);
    assert!(!log.exists(), "explaining opens no access log");
    assert_eq!(explain(&good, &["--ip", "nobody"]), ExitCode::from(2));
    assert_eq!(explain(&good, &["-H", "nothing"]), ExitCode::from(2));
    assert_eq!(explain(&bad, &[]), ExitCode::from(3));
    assert_eq!(explain(&good, &["--live"]), ExitCode::from(5), "no admin listener");
    std::fs::remove_dir_all(&folder).unwrap();
}
