//! gRPC's own library on both sides of the gateway.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use crate::support::*;

const SAID: [&str; 8] = [
    "say hello x-cost=3 x-seen=ann",
    "large True",
    "count True",
    "total 500000",
    "talk True",
    "refuse NOT_FOUND no such thing: 100 % ä",
    "never DEADLINE_EXCEEDED True",
    "limited OK RESOURCE_EXHAUSTED",
];

/// Calls of all four kinds, large messages, errors, deadlines and rejections, by prior knowledge and over TLS.
#[test]
fn grpc_is_served() {
    let mut program = Command::new("/usr/bin/python3")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/edge/grpc_real.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Debian's python3 is installed");
    let mut lines = BufReader::new(program.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let mut input = program.stdin.take().expect("piped");
    let port = lines.next().expect("python3-grpcio is installed for this test");
    let authority = Authority::new();
    authority.issue("gateway", &["localhost"]);
    let ca = authority.path("ca.pem").display().to_string();
    for (listen, believed) in [
        ("127.0.0.1:0".to_owned(), ""),
        (format!("{{ address: \"127.0.0.1:0\", tls: {{ {} }} }}", authority.entry("gateway")), &*ca),
    ] {
        let gateway = Gateway::start(&format!(
            "listen: [{listen}]\nupstreams: {{ app: {{ servers: [127.0.0.1:{port}], protocol: http2 }} }}\nlocations:\n  \
               - {{ path: /test.Echo/Limited, upstream: app, limits: {{ rate: 1/h, key: global }} }}\n  \
               - {{ path: /, upstream: app }}\n"
        ));
        writeln!(input, "{} {believed}", gateway.addr()).expect("it listens");
        let said: Vec<String> = lines.by_ref().take_while(|line| line != "end").collect();
        assert_eq!(said, SAID, "{believed}");
        eventually("no call", || gateway.metric("sluicegate_requests_in_flight", &[]) == 0.0);
    }
    drop(input);
    assert!(program.wait().expect("it ends").success());
}
