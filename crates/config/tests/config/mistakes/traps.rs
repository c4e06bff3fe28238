//! Valid files whose settings mean something else than they seem to, each with its only warning.

use super::{Mistake, check_only, read};

#[rustfmt::skip]
const TRAPS: &[Mistake] = &[
    ("locations:\n  - { path: /, upstream: demo, request_headers: { set: { X-Client: $remote_addr } } }\n", 2, 68,
        "`$remote_addr` is text", "write \"${client_ip}\""),
    ("locations:\n  - { path: /, redirect: { to: \"https://$host$request_uri\" } }\n", 2, 32,
        "`$host` is text", "write \"https://${host}${request_uri}\""),
    ("locations:\n  - { path: /old/, redirect: { to: \"${request_uri}\" } }\n", 2, 36,
        "leads to the path of the request on the same host", "https://www.example.com${request_uri}"),
    ("locations:\n  - { path: /, redirect: { to: \"https://{host}/\" } }\n", 2, 32,
        "`{host}` is text", "write ${host}"),
    ("locations:\n  - { path: /, upstream: demo, request_headers: { set: { X-A: $geoip_country } } }\n", 2, 63,
        "`$geoip_country` is text", "the variables here are ${client_ip}, ${request_id}"),
    ("locations:\n  - { path: /, upstream: demo, request_headers: { set: { X-A: \"%[src]\" } } }\n", 2, 63,
        "`%[src]` is text", "the variables here are"),
    ("locations:\n  - { path: /, upstream: demo, request_headers: { set: { X-A: \"%[src]\" } } }\n", 2, 63,
        "`%[src]` is text", "write ${client_ip}; the variables"),
    ("account: { from: jwt:sub, jwt: { jwks: ../../tests/keys/rsa.pub.pem }, tier: { members: { gold: alice } } }\n\
      limits: { a: { rate: 10/s, key: account, tiers: { gold: { rate: 20/s } } } }\n\
      locations: [{ path: /, upstream: demo, limits: a }]\n", 2, 0,
        "no caller can be in the tier `gold`", "write members: { alice: gold }"),
    ("locations:\n  - { path: /, respond: { body: \"hello $remote_addr\" } }\n", 2, 33,
        "`$remote_addr` is text", "write ${client_ip}"),
    ("bans: { after: 5/1m, strikes: [reject, 2xx] }\n", 1, 0,
        "ordinary clients are banned", "[reject, 401, 403, 404]"),
    ("bans: { strikes: [404] }\n", 1, 0, "no effect without `after`", "write e.g. after: 20/1m"),
    ("on_reject: { headers: { X-A: $host } }\n", 1, 30, "`$host` is text", "no variables here"),
    ("admin: { listen: 127.0.0.1:9901, token: $ADMIN_TOKEN }\n", 1, 41,
        "this secret is written like a variable", "in braces"),
    ("access_log: { headers: [user-agent, authorization] }\n", 1, 37,
        "would hold `authorization` in clear", "remove it"),
    ("access_log: { headers: Cookie }\n", 1, 24, "would hold `cookie` in clear", "remove it"),
    ("server: { trusted_proxies: 10.0.0.0 }\n", 1, 28, "`10.0.0.0` is one address", "write 10.0.0.0/8 for the network"),
    ("locations: [{ path: \"/api/{id}\", upstream: demo }]\n", 1, 21,
        "`{id}` is text", "write /api/, which matches every path below it"),
    ("locations: [{ path: \"/api/:id/x\", upstream: demo }]\n", 1, 21, "`:id` is text", "~ ^/api/[^/]+/x$"),
    ("locations: [{ path: \"/a, /b\", upstream: demo }]\n", 1, 21,
        "one path with a space", "write a location for each path"),
    ("locations: [{ path: /, host: _, upstream: demo }]\n", 1, 30, "`_` is a name like any other", "write host: any"),
    ("locations: [{ path: /, methods: [ANY], upstream: demo }]\n", 1, 24,
        "`ANY` is a name like any other", "write methods: any"),
    ("locations: [{ path: /api/, upstream: \"http://127.0.0.1:1/\" }]\n", 1, 38,
        "the slash at the end does not remove /api", "write strip: /api"),
    ("listen: [80, { address: \":443\", tls: { cert: ../../tests/keys/tls/a.pem, key: ../../tests/keys/tls/a.key.pem } }]\n\
      locations: [{ path: /, redirect: { to: \"https://${host}${request_uri}\" } }]\n", 2, 0,
        "redirects to itself over https", "write scheme: http"),
    ("listen: [80, { address: \":443\", tls: { cert: ../../tests/keys/tls/a.pem, key: ../../tests/keys/tls/a.key.pem } }]\n\
      locations:\n  - { path: /, scheme: http, redirect: { to: \"https://${host}${request_uri}\" } }\n\
      \x20 - { path: /, upstream: demo }\n  - { path: /api/, upstream: demo }\n", 5, 13,
        "/api/ is also served without TLS, because it is longer than /", "write scheme: https"),
    ("locations:\n  - { path: \"^~ /api/\", upstream: demo }\n  - { path: \"~ ^/api/v2/\", upstream: demo }\n", 3, 13,
        "this location is never reached: locations[0], `^~ /api/`", "^~ keeps regular expressions from being tried"),
    ("limits: { a: { rate: 10/s } }\nserver: { limits: [a] }\n\
      locations: [{ path: /, upstream: demo, limits: none }]\n", 3, 0,
        "`none` does not lift server.limits", "name `a` in the other locations"),
    ("locations: [{ path: \"/api$\", upstream: demo }]\n", 1, 21,
        "`$` is a character like any other in this path", "write = /api"),
    ("on_reject: { body: { template: busy.html } }\n", 1, 32,
        "`busy.html` is the text itself, not the name of a file", "write \"${file:busy.html}\""),
    ("locations: [{ path: /, respond: { body: busy.html } }]\n", 1, 41,
        "`busy.html` is the text itself, not the name of a file", "write \"${file:busy.html}\""),
    ("locations:\n  - { path: /, redirect: { to: \"https://a.test{http.request.uri}\" } }\n", 2, 32,
        "`{http.request.uri}` is text", "write ${request_uri}"),
    ("account: { from: jwt:sub, jwt: { jwks: ../../tests/keys/rsa.pub.pem }, tier: { members: { alice: gold } } }\n\
      limits: { a: { rate: 10/s, key: account, tiers: { glod: { rate: 20/s } } } }\n\
      locations: [{ path: /, upstream: demo, limits: a }]\n", 2, 0,
        "no caller can be in the tier `glod`", "did you mean `gold`?"),
    ("limits: { a: { rate: 10/s } }\n", 1, 11,
        "the limit `a` is defined and never used", "write limits: a in a location"),
];

#[test]
fn every_trap_has_one_warning_that_says_what_to_write() {
    let mut wrong = String::new();
    for trap in TRAPS {
        match read(trap.0) {
            Ok(loaded) if check_only(&loaded.warnings, trap) => {}
            Ok(loaded) => wrong += &format!("--- expected {trap:?}\n{:#?}\n", loaded.warnings),
            Err(report) => wrong += &format!("--- expected {trap:?}\n{report}\n"),
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn prices_and_ends_of_expressions_are_no_variables() {
    for text in [
        "locations: [{ path: /, respond: { body: \"$5, US$ 7, 10$\" } }]\n",
        "locations: [{ path: /, upstream: demo, response_headers: { set: { X-Price: \"$5\" } } }]\n",
        "locations: [{ path: \"~ ^/(a$|B$B)\", upstream: demo }]\n",
        "locations: [{ path: /, redirect: { to: \"https://${host}/a\" } }]\n",
        "access_log: { headers: [user-agent, referer] }\n",
        "locations: [{ path: /, redirect: { to: \"https://${host}${request_uri}\" } }]\n",
        "locations: [{ path: \"^~ /api/\", upstream: demo }, { path: \"~ ^/ap\", upstream: demo }]\n",
        "locations: [{ path: \"^~ /api/\", upstream: demo }, { path: /api/v2/, upstream: demo }, \
         { path: \"~ ^/api/v2/x\", upstream: demo }]\n",
        "locations: [{ path: /, respond: { body: \"see busy.html\" } }]\n",
        "locations: [{ path: /, scheme: http, redirect: { to: \"https://${host}/\" } }, \
         { path: /.well-known/acme-challenge/, upstream: demo }, { path: /api/, scheme: https, upstream: demo }, \
         { path: /, upstream: demo }]\nserver: { trusted_proxies: 10.0.0.0/8 }\n",
    ] {
        let loaded = read(text).unwrap_or_else(|report| panic!("{report}"));
        assert_eq!(loaded.warnings, [], "{text}");
    }
}

#[test]
fn another_client_cannot_use_up_counters_by_its_own_address() {
    let message = |key: &str| {
        let text = format!(
            "limits: {{ a: {{ rate: 10/s, key: {key} }} }}\nlocations: [{{ path: /, upstream: demo, limits: a }}]\n"
        );
        let warnings = read(&text).unwrap_or_else(|report| panic!("{report}")).warnings;
        warnings.into_iter().map(|warning| warning.message).collect::<String>()
    };
    assert!(message("[ip, \"header:X-User\"]").ends_with("a new value gets fresh counters"));
    assert!(message("header:X-User").ends_with("another client's value uses up its counters"));
}
