//! The program shows the credentials of Redis nowhere.

use crate::support::*;

/// No Redis listens there. One URL alone, with Sentinels, and as nodes of a Cluster.
const URLS: [&str; 3] = [
    "redis://ke%65per:hunter2@127.0.0.1:9/1",
    "redis+sentinel://keeper:hunter%32@127.0.0.1:9,127.0.0.1:9/main",
    "[\"redis://keeper:hunter2@127.0.0.1:9\", \"redis://keeper:hunter2@127.0.0.1:9\"]",
];

fn file(url: &str) -> String {
    format!(
        "log: {{ level: trace }}\nbans: {{ after: 3/h }}\nstate:\n  store: redis\n  redis:\n    url: {url}\n\
         locations: [{{ path: /, respond: {{ body: ok }}, limits: {{ rate: 2/h }} }}]\n"
    )
}

#[track_caller]
fn assert_shows_no_secret(what: &str, text: &str) {
    for secret in ["hunter", "keeper", "ke%65per"] {
        assert!(!text.contains(secret), "{what} shows {secret}:\n{text}");
    }
}

#[test]
fn a_running_gateway_shows_no_secret() {
    for url in URLS {
        let gateway = Gateway::start(&file(url));
        for _ in 0..5 {
            assert_shows_no_secret("an answer", &gateway.get("/").text());
        }
        gateway.wait_stderr("127.0.0.1:9");
        assert_shows_no_secret("stderr", &gateway.stderr());
        assert_shows_no_secret("the access log", &format!("{:?}", gateway.wait_log(5)));
        assert_shows_no_secret("the metrics", &gateway.metrics());
        assert_shows_no_secret("/readyz", &gateway.admin_get("/readyz").text());
    }
}

#[test]
fn the_commands_show_no_secret() {
    let commands: [&[&str]; 4] =
        [&["check"], &["check", "--json"], &["explain", "GET", "/"], &["explain", "GET", "/", "--json"]];
    for url in URLS {
        let dir = Scratch::new();
        let file = dir.file("gateway.yaml", &file(url)).display().to_string();
        for command in commands {
            let args: Vec<&str> = command.iter().copied().chain(["-c", &file]).collect();
            let finished = Run::default().args(&args).finish(dir.path());
            assert_eq!(finished.code, Some(0), "{finished:?}");
            assert!(
                finished.stdout.contains("counted in Redis for all gateways together"),
                "{}",
                finished.stdout
            );
            assert_shows_no_secret(command[0], &finished.stdout);
            assert_shows_no_secret(command[0], &finished.stderr);
        }
    }
}
