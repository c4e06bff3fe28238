//! What nginx refuses stays refused where it cannot be translated, and what is decided otherwise is a lost line.

use std::net::SocketAddr;

use sluicegate_import::{Imported, import_file};

use crate::door_cases::{DOORS, LOST, MODULES, WHOLE};
use crate::exit_code::{ask, head, start_backend};
use crate::support::nginx::Nginx;
use crate::support::{Client, Gateway, Scratch, Upstream, post};

fn write_conf(http: &str, server: &str, listen: &str, backend: SocketAddr) -> String {
    let text = format!("{http}\nserver {{ listen {listen};\n{server} }}");
    let text = text.replace("@P", "proxy_pass http://@B;").replace("@U", "proxy_pass http://$u;");
    text.replace("@L", listen).replace("@B", &backend.to_string())
}

fn import(http: &str, server: &str, backend: SocketAddr) -> Imported {
    let conf = write_conf(http, server, "127.0.0.1:0", backend);
    let scratch = Scratch::new();
    let imported = import_file(&scratch.file("nginx.conf", &format!("events {{}} http {{ {conf} }}")));
    imported.unwrap_or_else(|fault| panic!("{fault}\n{conf}"))
}

fn start_gateway(imported: &Imported) -> Gateway {
    Gateway::start(&format!("{}\nadmin: none\naccess_log: none\n", imported.yaml))
}

/// The file, and the report of its import.
fn describe(server: &str, imported: &Imported) -> String {
    format!("{server}\n{}{}", imported.yaml, imported.report.render_text())
}

fn list_faults(faults: impl Iterator<Item = String>) {
    let faults: Vec<String> = faults.collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n\n"));
}

/// Whether one of two requests of `127.1.0.1` comes through, both of them if the path is `/once`.
fn passes(addr: SocketAddr, path: &str, fields: &str) -> bool {
    let (method, path) = path.split_once(' ').unwrap_or(("GET", path));
    let passed = (0..2).filter(|_| ask(addr, 1, &head(method, path, "s.test", fields)) == 200).count();
    passed > usize::from(path == "/once")
}

#[test]
fn no_door_of_nginx_stands_open() {
    let backend = start_backend();
    list_faults(DOORS.iter().filter_map(|(http, server, path, fields)| {
        let nginx = Nginx::start(&write_conf(http, server, "@0@", backend), 1);
        assert!(!passes(nginx.addr(0), path, fields), "nginx forwards it: {server}");
        let imported = import(http, server, backend);
        let is_open = passes(start_gateway(&imported).addr(), path, fields);
        is_open.then(|| describe(server, &imported))
    }));
}

#[test]
fn directives_of_other_modules_close_their_place() {
    let backend = start_backend();
    list_faults(MODULES.iter().filter_map(|directive| {
        let server = format!("location / {{ {directive} @P }}");
        let imported = import("", &server, backend);
        let is_open = passes(start_gateway(&imported).addr(), "/", "");
        (is_open || imported.report.count_lost() == 0).then(|| describe(&server, &imported))
    }));
}

#[test]
fn what_is_decided_otherwise_is_lost() {
    let backend = start_backend();
    list_faults(LOST.iter().filter_map(|(http, server)| {
        drop(Nginx::start(&write_conf(http, server, "@0@", backend), 1));
        let imported = import(http, server, backend);
        (imported.report.count_lost() == 0).then(|| describe(server, &imported))
    }));
}

#[test]
fn what_is_translated_whole_decides_as_nginx_does() {
    let backend = start_backend();
    list_faults(WHOLE.iter().filter_map(|(http, server)| {
        let nginx = Nginx::start(&write_conf(http, server, "@0@", backend), 1);
        let imported = import(http, server, backend);
        let gateway = start_gateway(&imported);
        let differs = ["GET", "POST"].into_iter().any(|method| {
            ["/", "/a", "/a/b", "/h", "/i", "/x?y=1"].into_iter().any(|path| {
                [(1, ""), (2, ""), (2, "X: 1\r\n")].into_iter().any(|(client, fields)| {
                    let request = head(method, path, "s.test", fields);
                    ask(gateway.addr(), client, &request) != ask(nginx.addr(0), client, &request)
                })
            })
        });
        (differs || imported.report.count_lost() > 0).then(|| describe(server, &imported))
    }));
}

/// Sizes of bodies are those of each location, inherited or its own.
#[test]
fn bodies_are_refused_where_nginx_refuses_them() {
    let server = "client_max_body_size 2k; location / { @P } location /up { client_max_body_size 4k; @P }
                  location /in/ { client_max_body_size 1k; @P location /in/a { @P } }
                  location /any { client_max_body_size 0; @P } location ~ x$ { @P } location = /r { return 200 ok; }
                  location = /i { internal; @P }";
    let upstream = Upstream::ok();
    let nginx = Nginx::start(&write_conf("", server, "@0@", upstream.addr()), 1);
    let imported = import("", server, upstream.addr());
    assert_eq!(imported.report.count_lost(), 0, "{}", describe(server, &imported));
    let gateway = start_gateway(&imported);
    let mut refused = 0;
    for path in ["/", "/up", "/in/b", "/in/a", "/any", "/anx", "/r", "/i"] {
        for length in [0, 1024, 1025, 2048, 2049, 4096, 4097, 6000] {
            let request = post(path, &vec![b'x'; length]).host("s.test");
            let [theirs, ours] =
                [nginx.addr(0), gateway.addr()].map(|addr| Client::connect(addr).ask(&request).status);
            assert_eq!(ours, theirs, "{path} {length}\n{}", imported.yaml);
            refused += usize::from(theirs == 413);
        }
    }
    assert!(refused > 20, "{refused}");
}

/// A field whose value the gateway does not have is removed, so that no client can write it.
#[test]
fn fields_that_nginx_writes_are_none_of_the_client() {
    let backend = start_backend();
    for (value, removed) in [
        ("$ssl_client_verify", true),
        ("$remote_user", true),
        ("\"$proxy_add_x_forwarded_for\"", true),
        ("\"\"", true),
        ("$http_x_user", false),
        ("a", false),
    ] {
        let server =
            format!("location / {{ proxy_set_header X-User b; proxy_set_header X-User {value}; @P }}");
        let imported = import("", &server, backend);
        let removes = imported.yaml.contains("request_headers: { remove: X-User }");
        assert_eq!(removes, removed, "{}", describe(&server, &imported));
        drop(start_gateway(&imported));
    }
}
