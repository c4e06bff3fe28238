//! One request stays one request: the boundaries that a strict parser finds in the bytes of a client are those that
//! the gateway answers, logs and forwards.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

#[allow(dead_code, unused_imports, reason = "shared by several test binaries")]
#[path = "../support/mod.rs"]
mod support;

mod parser;
mod sequences;

use support::*;

fn start(upstream: &Upstream, authority: &Authority) -> Gateway {
    let (url, tls) = (upstream.url(), authority.entry("a"));
    Gateway::start(&format!(
        "listen:\n  - 127.0.0.1:0\n  - {{ address: 127.0.0.1:0, tls: {{ {tls} }} }}\n  \
           - {{ address: 127.0.0.1:0, proxy_protocol: required }}\n\
         service: {{ listen: 127.0.0.1:0 }}\n\
         server: {{ trusted_proxies: [127.0.0.1], workers: 2 }}\n\
         limits:\n  \
           none-left: {{ key: global, rate: 1/1d, burst: 1 }}\n  \
           sold-out: {{ key: global, rate: 1/1d, burst: 1, on_reject: {{ degrade: {{ body: sold out }} }} }}\n  \
           by-model: {{ key: json:/model, rate: 1000/s, missing_key: skip }}\n  \
           counted: {{ key: global, rate: 1000000/s }}\n\
         locations:\n  \
           - {{ path: /respond/, respond: {{ body: at once }} }}\n  \
           - {{ path: /redirect/, redirect: {{ to: /respond/ }} }}\n  \
           - {{ path: /limited/, limits: none-left, upstream: \"{url}\" }}\n  \
           - {{ path: /get/, methods: GET, upstream: \"{url}\" }}\n  \
           - {{ path: /degraded/, limits: sold-out, upstream: \"{url}\" }}\n  \
           - {{ path: /peeked/, limits: by-model, upstream: \"{url}\" }}\n  \
           - {{ path: /demo/, upstream: demo }}\n  \
           - {{ path: /early/, upstream: \"{url}\" }}\n  \
           - {{ path: /large/, upstream: \"{url}\" }}\n  \
           - {{ path: /slow/, upstream: \"{url}\" }}\n  \
           - {{ path: /echo/, upstream: \"{url}\" }}\n",
    ))
}

/// Most answers come before the body, and those of `/large/` in pieces that the gateway writes without a copy.
fn upstream() -> Upstream {
    Upstream::new(|seen| {
        let text = match seen.target.split('/').nth(1) {
            Some("large") => format!("{}{}", seen.target, "x".repeat(20_000)),
            _ => seen.target.clone(),
        };
        let text = if seen.method == "HEAD" { "" } else { &text };
        match seen.target.split('/').nth(1) {
            Some("early" | "large") => Reply::text(text).early(),
            Some("slow") => Reply::text(text).early().after(ms(30)),
            _ => Reply::text(text),
        }
    })
}
