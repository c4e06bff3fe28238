//! Paths that are changed before they are forwarded: upstreams see the targets that nginx sends.

use sluicegate_import::import_file;

use crate::exit_code::{ask, head};
use crate::support::nginx::Nginx;
use crate::support::{Gateway, Scratch, Upstream};

/// Locations that change paths; `@B` is the upstream.
const CHANGES: &[&str] = &[
    "location / { rewrite ^/old/(.*)$ /new/$1 break; proxy_pass http://@B; }",
    "location / { rewrite ^ /n break; proxy_pass http://@B; }",
    "location / { rewrite /a /b$1 break; proxy_pass http://@B; }",
    "location / { rewrite ^/(a)(x)?(.*)$ /$3/$2$1$12 break; proxy_pass http://@B; }",
    "location / { rewrite (?i)^/OLD/([^/]+) /$1 break; proxy_pass http://@B; }",
    "location / { rewrite ^/(a.b)$ /one/$1 break; proxy_pass http://@B; }",
    "location /s { rewrite ^/s/(.*)$ /$1 break; proxy_pass http://@B; }",
    "location /old/ { rewrite ^/old/(.*)$ /$1 break; proxy_pass http://@B; }",
    "location ~ ^/[ao] { rewrite ^/a(.*) /b$1 break; proxy_pass http://@B; }",
    "location /old/ { proxy_pass http://@B/new/; }",
    "location /old/ { proxy_pass http://@B/new; }",
    "location /old { proxy_pass http://@B/new; }",
    "location /a { proxy_pass http://@B/x.y/; }",
    "location = /a { proxy_pass http://@B/b; }",
    "location / { proxy_pass http://@B/v1/; }",
    "location / { proxy_pass http://@B/v1; }",
    "location /a%20b { proxy_pass http://@B/c; }",
    "location /old/ { proxy_pass http://@B/n/; location /old/a { proxy_pass http://@B/a; } }",
];

const TARGETS: &[&str] = &[
    "/",
    "/a",
    "/a?b=/old/&c=%41",
    "/A",
    "/ax",
    "/axy",
    "/a/b",
    "/aab",
    "/a%0Ab",
    "/a%C3%A9b",
    "/a%20b",
    "/a%2520b",
    "/old",
    "/old/",
    "/old/x",
    "/OLD/x/y",
    "/old/a",
    "/old/ab?x",
    "/old/%C3%A9%3Fx%23?y%3f",
    "/old/a%2Fb",
    "/old/a%25b%00",
    "/old/x/../y",
    "//old//x",
    "/old/.x..",
    "/s/t",
    "/sx",
];

#[test]
fn upstreams_see_the_paths_of_nginx() {
    let upstream = Upstream::ok();
    let mut changed = 0;
    for location in CHANGES {
        let conf = |listen: &str| {
            let location = location.replace("@B", &upstream.addr().to_string());
            format!("server {{ listen {listen}; server_name s.test; {location} }}")
        };
        let scratch = Scratch::new();
        let file = format!("events {{}} http {{ {} }}", conf("127.0.0.1:0"));
        let imported = import_file(&scratch.file("nginx.conf", &file)).expect("an import");
        assert_eq!(imported.report.count_lost(), 0, "{location}\n{}", imported.report.render_text());
        let gateway = Gateway::start(&format!("{}\nadmin: none\naccess_log: none\n", imported.yaml));
        let nginx = Nginx::start(&conf("@0@"), 1);
        for target in TARGETS {
            let [theirs, ours] = [nginx.addr(0), gateway.addr()].map(|addr| {
                let count = upstream.count();
                let status = ask(addr, 1, &head("GET", target, "s.test", ""));
                (status, upstream.targets().into_iter().skip(count).collect::<Vec<_>>())
            });
            // The gateway makes one of two slashes, encodes otherwise than nginx, and sends no path as it came.
            let decode = |targets: &[String]| {
                let whole = targets.concat().replace("//", "/").replace("x/../", "");
                let (path, query) = whole.split_once('?').unwrap_or((&whole, "-"));
                (percent_encoding::percent_decode_str(path).collect::<Vec<u8>>(), query.to_owned())
            };
            let seen = [&theirs, &ours].map(|(status, targets)| (*status, decode(targets)));
            assert_eq!(seen[1], seen[0], "{location} {target}\n{}", imported.yaml);
            changed += usize::from(theirs.0 == 200 && theirs.1 != [*target]);
        }
    }
    assert!(changed > 100, "{changed}");
}
