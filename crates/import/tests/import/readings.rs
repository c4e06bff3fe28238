//! Directives with an effect that is not the obvious one: addresses of clients, names of servers, upstreams,
//! TLS, expressions.

use sluicegate_import::{Imported, import_file};

use crate::support::Scratch;

fn import(http: &str) -> Imported {
    let scratch = Scratch::new();
    let file = scratch.file("nginx.conf", &format!("events {{}} http {{ {http}\n }}"));
    import_file(&file).unwrap_or_else(|fault| panic!("{fault}\n{http}"))
}

/// Lines that are lost, and no others.
fn lost(imported: &Imported) -> Vec<String> {
    imported.report.lost().map(|finding| format!("{}: {}", finding.directive, finding.says)).collect()
}

const GO: &str = "proxy_pass http://127.0.0.1:9000;";

struct Reading {
    http: &'static str,
    /// Of the written file without its runs of spaces.
    has: &'static [&'static str],
    lacks: &'static [&'static str],
    /// A part of each lost line; equal ones are one.
    lost: &'static [&'static str],
}

const fn reading(
    http: &'static str,
    has: &'static [&'static str],
    lacks: &'static [&'static str],
    lost: &'static [&'static str],
) -> Reading {
    Reading { http, has, lacks, lost }
}

/// `@` is a location that forwards.
const READINGS: &[Reading] = &[
    // The client's address.
    reading(
        "set_real_ip_from 10.0.0.1; server { listen 80 proxy_protocol; @ }",
        &["proxy_protocol: required"],
        &[],
        &["PROXY header"],
    ),
    reading(
        "set_real_ip_from 10.0.0.1; real_ip_header proxy_protocol; server { listen 80 proxy_protocol; listen 81; @ }",
        &[],
        &[],
        &["PROXY header"],
    ),
    reading(
        "set_real_ip_from 10.0.0.1; real_ip_header proxy_protocol; server { listen 80; @ }",
        &[],
        &[],
        &["PROXY header"],
    ),
    reading(
        "set_real_ip_from 10.0.0.1; real_ip_header proxy_protocol; server { listen 80 proxy_protocol; @ }",
        &["trusted_proxies"],
        &[],
        &[],
    ),
    reading(
        "set_real_ip_from 10.0.0.1; real_ip_header CF-Connecting-IP; server { listen 80; @ }",
        &["client_ip"],
        &[],
        &["right-most"],
    ),
    reading(
        "set_real_ip_from 10.0.0.1; real_ip_header X-Forwarded-For; real_ip_recursive on; server { listen 80; @ }",
        &["trusted_proxies"],
        &[],
        &[],
    ),
    // Both servers in one line.
    reading(
        "server { listen 80; set_real_ip_from 10.0.0.1; @ } server { listen 80; server_name b; set_real_ip_from 10.0.0.2; @ }",
        &[],
        &["trusted_proxies"],
        &["trust different proxies", "trust different proxies"],
    ),
    // Names of servers.
    reading(
        "limit_req_zone $server_name zone=z:1m rate=1r/s; server { listen 80; location / { limit_req zone=z; proxy_pass http://127.0.0.1:9000; } }",
        &[],
        &[],
        &["empty key"],
    ),
    reading(
        "server { listen 80; server_name a; @ } server { listen 80; server_name münchen.test b; @ }",
        &["host: b"],
        &[],
        &["no hosts by münchen.test"],
    ),
    reading("server { listen 80; server_name $hostname; @ }", &["path: /"], &[], &[]),
    // Hosts without a name may be those of a server that refuses.
    reading(
        "server { listen 80; server_name a; @ } server { listen 80; server_name ~^b; deny all; @ }",
        &["host: a"],
        &["respond"],
        &["no hosts by ~^b"],
    ),
    reading(
        "server { listen 80; server_name a; @ } server { listen 80; listen 81; server_name A B; @ }",
        &["host: b"],
        &["host: [a"],
        &["at some addresses `A`"],
    ),
    reading(
        "server { listen 80; server_name '~^a${HOME}|.*'; return 302 https://$server_name/; }",
        &["to: \"https://~^a$${HOME}|.*/\""],
        &[],
        &[],
    ),
    reading("server { listen [::]:80 ipv6only=off; @ }", &[], &[], &["IPv6"]),
    // Upstreams.
    reading(
        "upstream Backend { server 10.9.9.9; } server { listen 80; location / { proxy_pass http://backend; } }",
        &["\"http://10.9.9.9\""],
        &["http://backend"],
        &[],
    ),
    reading(
        "upstream b { server 10.0.0.1 max_conns=1; } server { listen 80; location / { proxy_pass http://b; } location /b { proxy_read_timeout 5s; proxy_pass http://b; } }",
        &["max_connections: 1"],
        &[],
        &["counts connections apart"],
    ),
    reading(
        "upstream b { server 10.0.0.1 max_conns=1; server 10.0.0.2; } server { listen 80; location / { proxy_pass http://b; } }",
        &[],
        &[],
        &["smallest number"],
    ),
    reading(
        "upstream b { server 10.0.0.1 backup; server 10.0.0.2 down; } server { listen 80; location / { proxy_pass http://b; } }",
        &["- \"http://10.0.0.1\""],
        &["backup"],
        &[],
    ),
    reading(
        "upstream b { server 10.0.0.1 weight=70000; server 10.0.0.2; } server { listen 80; location / { proxy_pass http://b; } }",
        &["weight: 65535"],
        &[],
        &[],
    ),
    // Networks of which the last value holds.
    reading(
        "geo $g { default 1; 0.0.0.0/0 0; ::/0 0; } server { listen 80; if ($g) { return 403; } @ }",
        &[],
        &["deny"],
        &[],
    ),
    reading(
        "geo $g { 0.0.0.0/0 0; ::/0 0; default 1; } server { listen 80; if ($g) { return 403; } @ }",
        &["deny: [\"0.0.0.0/0\", \"::/0\"]"],
        &[],
        &[],
    ),
    reading(
        "geo $g { ranges; 10.0.0.0-10.0.0.255 0; default 1; } server { listen 80; if ($g) { return 403; } @ }",
        &["128.0.0.0/1"],
        &["\"0.0.0.0/0\""],
        &[],
    ),
    // Locations that are written twice.
    reading(
        "server { listen 80; @ location ~ x { return 403; } location ~ x { proxy_pass http://127.0.0.1:9000; } }",
        &["path: \"~ x\" respond: { status: 403 }"],
        &[],
        &[],
    ),
    reading(
        "server { listen 80; location / { location / { deny all; proxy_pass http://127.0.0.1:9000; } } }",
        &["access: { deny"],
        &[],
        &[],
    ),
    reading("server { listen 80; @ location ~ \"\" { return 403; } }", &["path: \"~ ^\""], &[], &[]),
    // One socket for all addresses.
    reading(
        "server { listen 80; @ } server { listen 127.0.0.1:80; return 403; }",
        &["address: \"127.0.0.1:80\"", "respond: { status: 403 }"],
        &["0.0.0.0", "upstream: "],
        &["listened on twice"],
    ),
    // TLS.
    reading(
        "ssl_certificate c; ssl_certificate_key k; ssl_client_certificate a; server { listen 443; server_name a; ssl_verify_client on; @ } server { listen 443 ssl; server_name b; @ }",
        &["host: b upstream:", "respond: { status: 403 }"],
        &["client_ca", "host: a upstream:"],
        &["certificates, or none"],
    ),
    reading(
        "ssl_certificate c; ssl_certificate_key k; server { listen 443; server_name a; ssl_client_certificate a; ssl_verify_client on; @ } server { listen 443 ssl; server_name b; ssl_client_certificate b; ssl_verify_client on; @ }",
        &["respond: { status: 403 }"],
        &["client_ca", " upstream:"],
        &["certificates, or none"],
    ),
    reading(
        "ssl_certificate c; ssl_certificate_key k; server { listen 443 ssl; server_name a; ssl_protocols TLSv1.3; @ } server { listen 443 ssl; server_name b; @ }",
        &["tls: [{ cert"],
        &["min_version"],
        &[],
    ),
];

fn check(Reading { http, has, lacks, lost: expected }: &Reading) -> Result<(), String> {
    let http = http.replace('@', &format!("location / {{ {GO} }}"));
    let scratch = Scratch::new();
    let file = scratch.file("nginx.conf", &format!("events {{}} http {{ {http}\n }}"));
    let imported = import_file(&file).map_err(|fault| format!("{fault}\n{http}"))?;
    let lines = imported.yaml.lines().filter(|line| !line.trim_start().starts_with('#'));
    let lines = lines.map(|line| line.split("  # ").next().unwrap_or_default());
    let yaml = lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ");
    let lost = lost(&imported);
    let are_lost =
        lost.len() == expected.len() && lost.iter().zip(*expected).all(|(l, part)| l.contains(part));
    let holds = has.iter().all(|text| yaml.contains(text)) && !lacks.iter().any(|text| yaml.contains(text));
    let shown = || format!("{http}\n{}\n{}", imported.yaml, imported.report.render_text());
    (holds && are_lost).then_some(()).ok_or_else(shown)
}

#[test]
fn every_reading_is_that_of_nginx_or_lost() {
    let failed: Vec<String> = READINGS.iter().filter_map(|reading| check(reading).err()).collect();
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), READINGS.len(), failed.join("\n"));
}

/// Servers before nginx 1.25.1 may say `ssl on`.
#[test]
fn ssl_on_makes_the_ports_of_a_server_those_of_tls() {
    let imported =
        import("ssl_certificate c; ssl_certificate_key k; server { listen 443; ssl on; return 204; }");
    assert!(imported.yaml.contains("tls: {"), "{}", imported.yaml);
}

/// nginx sorts the whole paths of a pattern, so that `-` comes before `/`.
#[test]
fn included_files_come_in_the_order_of_their_bytes() {
    let scratch = Scratch::new();
    for (folder, body) in [("a", "return 401;"), ("a-b", "return 402;")] {
        std::fs::create_dir_all(scratch.path().join(folder)).expect("a folder");
        let server = format!("server {{ listen 127.0.0.1:8080; location / {{ {body} }} }}");
        scratch.file(&format!("{folder}/x.conf"), &server);
    }
    let file = scratch.file("nginx.conf", "events {} http { include */x.conf; }");
    let imported = import_file(&file).expect("an import");
    assert!(
        imported.yaml.contains("status: 402") && !imported.yaml.contains("status: 401"),
        "{}",
        imported.yaml
    );
}

#[test]
fn expressions_that_pcre_reads_otherwise_are_lost() {
    for pattern in [
        "/a++b",
        "/a*+b",
        "/a{2}+b",
        r"/\<a",
        r"/a\v",
        "[a&&b]",
        "[a[b]",
        "[a-z--b]",
        r"/a\b{start}",
        "(?m)^/a$",
        "(?x) /a",
        "(?R)?",
        "(?U)a+",
    ] {
        let imported = import(&format!("server {{ listen 80; location ~ \"{pattern}\" {{ return 403; }} }}"));
        assert!(!lost(&imported).is_empty(), "{pattern}: {}", imported.yaml);
    }
}
