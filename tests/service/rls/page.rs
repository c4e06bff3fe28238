//! docs/service-envoy.md: its file serves a client of grpcio, and its snippet answers.

use std::process::Command;

use super::client::*;
use crate::*;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn start_example() -> Gateway {
    let file = std::fs::read_to_string(format!("{ROOT}/examples/envoy_rate_limit.yaml")).expect("an example");
    Gateway::start(&file.replace("127.0.0.1:9902", "127.0.0.1:0"))
}

#[test]
fn a_client_of_grpcio_is_answered() {
    let gateway = start_example();
    let mut command = Command::new("/usr/bin/python3");
    command.arg(format!("{ROOT}/tests/service/rls/client.py")).arg(service(&gateway).to_string());
    let output = command.output().expect("python3 with grpcio");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = lines.lines().collect();
    let expected = ["1", "1 [999]", "1 [0, 0]", "2 [0]", "INVALID_ARGUMENT True", "UNIMPLEMENTED True"];
    assert_eq!(lines, expected);
}

/// The descriptors that the actions of the page make find their rules.
#[test]
fn the_descriptors_of_the_page_find_their_limits() {
    let gateway = start_example();
    let mut envoy = Envoy::connect(&gateway);
    let mut name_of = |entries: &[(&str, &str)]| {
        let answer = envoy.ask("shop", &[entries]).ok();
        answer.statuses[0].limit.clone().map(|(name, ..)| name)
    };
    let address = ("remote_address", "192.0.2.1");
    assert_eq!(name_of(&[address, ("path", "/cart?id=1")]).as_deref(), Some("per-ip"));
    assert_eq!(name_of(&[address, ("path", "/login")]).as_deref(), Some("logins"));
    assert_eq!(name_of(&[("account", "acme")]).as_deref(), Some("per-account"));
    assert_eq!(name_of(&[("account", "internal-7")]), None);
}
