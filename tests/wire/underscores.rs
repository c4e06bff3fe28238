//! Request fields with underscores in their names, which many servers read as dashes.

use crate::support::h2_raw::{self, *};
use crate::support::*;

/// CGI and WSGI servers read `_` as `-`: another spelling of a protected name never arrives there.
#[test]
fn other_spellings_of_protected_names_do_not_arrive() {
    for policy in ["drop", "pass"] {
        let upstream = Upstream::ok();
        let gateway = Gateway::start(&format!(
            "server: {{ trusted_proxies: 127.0.0.2, underscore_headers: {policy} }}\n\
             account: {{ from: header:X-Account-Id }}\n\
             limits: {{ a: {{ key: account, rate: 100/s }} }}\n\
             locations:\n  - {{ path: /, upstream: \"{}\", limits: a, request_headers: {{ set: {{ X-Token: t }} }} }}\n",
            upstream.url()
        ));
        let foreign = [
            "X_Account_Id",
            "X_Real_IP",
            "X_Forwarded_For",
            "X-Forwarded_Proto",
            "Content_Length",
            "X_Token",
        ];
        let ask =
            foreign.iter().fold(get("/").header("X-Account-Id", "a"), |ask, name| ask.header(name, "forged"));
        let ask = ask.header("My_Own", 1).header("My-Own", 2);
        // A trusted proxy may have forwarded a client's field.
        for from in ["127.0.0.1", "127.0.0.2"] {
            Client::connect_from(from, gateway.addr()).ask(&ask).expect(200);
        }
        let fields: Vec<_> = foreign.iter().map(|name| (name.to_lowercase(), "forged")).collect();
        let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let mut stream = H2::open(gateway.addr());
        stream.ask(
            1,
            &h2_raw::request("GET", "/", &[&fields[..], &[("my_own", "1"), ("my-own", "2")]].concat()),
        );
        assert!(matches!(stream.outcome(1), Outcome::Answered(200, _)));
        let passes = policy == "pass";
        for seen in upstream.requests() {
            for name in foreign {
                assert!(!seen.headers.has(name), "{policy}: {name} in {:?}", seen.headers);
            }
            assert_eq!(seen.headers.all("x-token"), ["t"]);
            assert_eq!((seen.headers.has("my_own"), seen.headers.has("my-own")), (passes, true), "{policy}");
        }
        assert_eq!(upstream.count(), 3);
    }
}

/// If the file itself writes a name with an underscore, that spelling is the protected one.
#[test]
fn names_that_the_file_writes_with_underscores_arrive() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "account: {{ from: header:X_Account_Id }}\n\
         limits: {{ a: {{ key: account, rate: 1/h }} }}\n\
         locations:\n  - {{ path: /, upstream: \"{}\", limits: a, request_headers: {{ set: {{ App_Mode: live }} }} }}\n",
        upstream.url()
    ));
    let ask = |account: &str| {
        gateway.ask(
            &get("/")
                .header("X_Account_Id", account)
                .header("X-Account-Id", "other")
                .header("App-Mode", "test"),
        )
    };
    assert_eq!([ask("a").status, ask("a").status, ask("b").status], [200, 429, 200]);
    let seen = &upstream.requests()[0];
    assert_eq!(seen.headers.all("x_account_id"), ["a"]);
    assert_eq!(seen.headers.all("app_mode"), ["live"]);
    assert!(!seen.headers.has("x-account-id") && !seen.headers.has("app-mode"), "{:?}", seen.headers);
}
