//! Floods of invented keys: a full table is shared by network, whatever the key is made of.

use crate::support::*;

const STRANGERS: usize = 20;

fn from(network: &str, name: &str, value: &str) -> Ask {
    get("/").header("X-Forwarded-For", network).header(name, value)
}

/// One network invents keys until the table and whatever newcomers share is used up; keys of other networks come in, a
/// key that was there keeps its budget from wherever it comes, and the flood got no more than its own counter.
#[test]
fn a_flood_of_invented_keys_shares_a_counter_with_itself_alone() {
    let cases = [
        ("account: { from: header:x-account }\n", "account", "X-Account", ""),
        ("", "cookie:sid", "Cookie", "sid="),
        ("", "[header:x-api-key, location]", "X-Api-Key", ""),
    ];
    for (head, key, name, start) in cases {
        let value = |turn: usize| format!("{start}{turn}");
        let gateway = Gateway::start(&format!(
            "{head}server: {{ trusted_proxies: 127.0.0.1 }}\nstate: {{ max_keys: 8 }}\n\
             locations:\n  - {{ path: /, respond: {{}}, limits: {{ key: {key}, rate: 2/1h }} }}\n"
        ));
        let mut client = gateway.client();
        client.ask(&from("192.0.2.1", name, &value(1_000_000))).expect(200);
        let flood = (0..4_000).map(|turn| client.ask(&from("203.0.113.7", name, &value(turn))).status);
        assert_eq!(flood.filter(|status| *status == 200).count(), 7 + 2, "{key}");
        let strangers = (0..STRANGERS).filter(|stranger| {
            let network = format!("10.{stranger}.0.1");
            client.ask(&from(&network, name, &value(2_000_000 + stranger))).status == 200
        });
        // There are 1,024 such counters, so that one or two networks may have that of the flood.
        let strangers = strangers.count();
        assert!(strangers >= STRANGERS - 2, "{key}: {strangers} of {STRANGERS} networks come in");
        let honest = ["198.51.100.1", "203.0.113.7"].map(|network| {
            let ask = from(network, name, &value(1_000_000));
            client.ask(&ask).status
        });
        assert_eq!(honest, [200, 429], "{key}: one budget from all networks");
    }
}
