//! Nobody is told how Redis lets the gateway in, whatever the program says and wherever.

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
fn is_discreet(what: &str, text: &str) {
    for secret in ["hunter", "keeper", "ke%65per"] {
        assert!(!text.contains(secret), "{what} tells {secret}:\n{text}");
    }
}

#[test]
fn a_running_gateway_is_discreet() {
    for url in URLS {
        let gateway = Gateway::start(&file(url));
        for _ in 0..5 {
            is_discreet("an answer", &gateway.get("/").text());
        }
        assert!(gateway.stderr().contains("127.0.0.1:9"), "the servers are told:\n{}", gateway.stderr());
        is_discreet("stderr", &gateway.stderr());
        is_discreet("the access log", &format!("{:?}", gateway.wait_log(5)));
        is_discreet("the metrics", &gateway.metrics());
        is_discreet("/readyz", &gateway.admin_get("/readyz").text());
    }
}

#[test]
fn the_commands_are_discreet() {
    let commands: [&[&str]; 4] =
        [&["check"], &["check", "--json"], &["explain", "GET", "/"], &["explain", "GET", "/", "--json"]];
    for url in URLS {
        let dir = Scratch::new();
        let file = dir.file("gateway.yaml", &file(url)).display().to_string();
        for command in commands {
            let args: Vec<&str> = command.iter().copied().chain(["-c", &file]).collect();
            let told = Run::default().args(&args).finish(dir.path());
            assert_eq!(told.code, Some(0), "{told:?}");
            assert!(told.stdout.contains("counted in Redis for all gateways together"), "{}", told.stdout);
            is_discreet(command[0], &told.stdout);
            is_discreet(command[0], &told.stderr);
        }
    }
}
