//! Random words and blocks: the importer never panics, and never loses a limit without a word.

use sluicegate_import::import_file;

use crate::support::{Dice, Scratch};

const FILES: u64 = 400;

const WORDS: [&str; 40] = [
    "server",
    "location",
    "/",
    "/a",
    "= /b",
    "~ x$",
    "limit_req zone=one",
    "limit_req zone=one burst=5 nodelay",
    "limit_conn addr 3",
    "deny all",
    "allow 10.0.0.0/8",
    "return 403",
    "return 204",
    "proxy_pass http://127.0.0.1:9",
    "listen 80",
    "listen [::]:81",
    "server_name a.b",
    "map $uri $x",
    "geo $g",
    "default 1",
    "10.0.0.0/8 0",
    "\"",
    "'",
    "\\",
    "${",
    "$",
    "#",
    "include",
    "upstream u",
    "server 127.0.0.1:1",
    "if ($g)",
    "limit_rate 1k",
    "rewrite ^ /x last",
    "error_page 503 @x",
    "location @x",
    "internal",
    "auth_basic x",
    "limit_req",
    "limit_conn_zone $g zone=addr:1m",
    "satisfy any",
];

/// Random words: a fault with a place, or a file that the gateway's own check accepts.
#[test]
fn random_words_never_panic() {
    let scratch = Scratch::new();
    for seed in 0..FILES {
        let mut dice = Dice(seed);
        let mut text = String::from("limit_req_zone $binary_remote_addr zone=one:1m rate=1r/s;\nserver {\n");
        for _ in 0..dice.below(30) {
            text += WORDS[dice.below(WORDS.len())];
            text += [" ", ";\n", " {\n", "}\n", ";\n", ";\n"][dice.below(6)];
        }
        text += "}\n";
        let file = scratch.file("nginx.conf", &text);
        if let Err(fault) = import_file(&file) {
            assert!(fault.at.line >= 1, "seed {seed}: {fault}");
        }
        let yaml = scratch.file("ingress.yaml", &text);
        let _ = import_file(&yaml);
    }
}

/// Statements that limit or deny, at random levels: each one has a finding at its line, or the file is not understood.
#[test]
fn no_limit_is_lost_without_a_word() {
    const GUARDS: [&str; 10] = [
        "limit_req zone=one;",
        "limit_req zone=key burst=3;",
        "limit_conn addr 2;",
        "deny 10.0.0.1;",
        "limit_rate 5k;",
        "auth_basic x;",
        "if ($http_a) { return 403; }",
        "internal;",
        "limit_except GET { deny all; }",
        "some_module_guard on;",
    ];
    const BLOCKS: [&str; 7] = [
        "location /a/ {",
        "location = /b {",
        "location ~ \\.c$ {",
        "location ^~ /d/ {",
        "location @e {",
        "if ($http_x) {",
        "location / {",
    ];
    let scratch = Scratch::new();
    let mut understood = 0;
    for seed in 0..FILES {
        let mut dice = Dice(seed ^ 0x5eed);
        let mut lines = vec![
            "limit_req_zone $binary_remote_addr zone=one:1m rate=1r/s;".to_owned(),
            "limit_req_zone $request_uri zone=key:1m rate=1r/s;".to_owned(),
            "limit_conn_zone $binary_remote_addr zone=addr:1m;".to_owned(),
            "server {".to_owned(),
        ];
        let (mut depth, mut guards) = (1, Vec::new());
        for _ in 0..4 + dice.below(10) {
            match dice.below(4) {
                0 if depth < 4 => {
                    lines.push(BLOCKS[dice.below(BLOCKS.len())].to_owned());
                    depth += 1;
                }
                1 if depth > 1 => {
                    lines.push("}".to_owned());
                    depth -= 1;
                }
                2 => lines.push("proxy_pass http://127.0.0.1:9;".to_owned()),
                _ => {
                    lines.push(GUARDS[dice.below(GUARDS.len())].to_owned());
                    guards.push(lines.len());
                }
            }
        }
        lines.extend((0..depth).map(|_| "}".to_owned()));
        let text = lines.join("\n");
        let Ok(imported) = import_file(&scratch.file("nginx.conf", &text)) else { continue };
        understood += 1;
        for line in guards {
            let told = imported.report.findings.iter().any(|finding| finding.at.line == line);
            assert!(told, "seed {seed}, line {line} has no finding:\n{text}");
        }
    }
    assert!(understood > FILES / 4, "only {understood} files were understood");
}
