//! The report of an nginx.conf as Debian installs it, with a service of its own in `sites-enabled`.

use sluicegate_import::{FindingKind, Imported, import_file};

use crate::support::Scratch;

const NGINX_CONF: &str = "
user www-data;
worker_processes auto;
pid /run/nginx.pid;
error_log /var/log/nginx/error.log;
include modules-enabled/*.conf;
events { worker_connections 768; }
http {
    sendfile on;
    tcp_nopush on;
    types_hash_max_size 2048;
    include mime.types;
    default_type application/octet-stream;
    ssl_protocols TLSv1.2 TLSv1.3;
    ssl_prefer_server_ciphers on;
    access_log /var/log/nginx/access.log;
    gzip on;
    gzip_comp_level 5;
    keepalive_requests 1000;
    include conf.d/*.conf;
    include sites-enabled/*;
}
";

/// Blocks of values, whose lines look like directives.
const VALUES: &str = "
charset_map koi8-r utf-8 { 80 E282AC; 95 E280A2; }
split_clients $remote_addr $variant { 0.5% .one; * \"\"; }
map $http_upgrade $connection_upgrade { default upgrade; '' close; }
map $http_user_agent $kind { include kinds.map; ~*bot bot; volatile; default human; }
limit_req_zone $binary_remote_addr zone=z:1m rate=1r/s;
geoip2 c.mmdb { $name default=x country names en; }
geo $country { default ZZ; 192.0.2.0/24 DE; }
";

fn import(site: &str) -> Imported {
    let scratch = Scratch::new();
    for folder in ["conf.d", "sites-enabled"] {
        std::fs::create_dir(scratch.path().join(folder)).expect("a folder");
    }
    let types =
        "types {\n    text/html html htm;\n    image/svg+xml svg svgz;\n    video/x-msvideo avi;\n}\n";
    scratch.file("mime.types", types);
    scratch.file("kinds.map", "~Mozilla browser;\n");
    scratch.file("conf.d/values.conf", VALUES);
    scratch.file("sites-enabled/default", site);
    import_file(&scratch.file("nginx.conf", NGINX_CONF)).expect("an import")
}

const PROXY: &str = "server {
    listen 80 default_server;
    listen [::]:80 default_server;
    http2 on;
    location / {
        proxy_set_header Connection $connection_upgrade;
        proxy_pass http://127.0.0.1:9000;
        limit_req zone=z;
    }
    error_page 500 502 503 504 /50x.html;
    location = /50x.html { internal; root /usr/share/nginx/html; }
}
";

#[test]
fn values_are_no_directives_and_nothing_is_lost() {
    let imported = import(PROXY);
    let report = &imported.report;
    assert_eq!(report.count_lost(), 0, "{}", report.render_text());
    let values = ["text/html", "video/", "80 ", "0.5%", "~Mozilla", "~*bot", "192.0.2.0/24", "upgrade"];
    for finding in &report.findings {
        let is_value = values.iter().any(|value| finding.directive.starts_with(value));
        assert!(!is_value, "a value has a finding: {finding:?}");
    }
    assert!(!imported.yaml.contains("LOST"), "{}", imported.yaml);
}

#[test]
fn what_works_by_itself_is_not_listed_as_missing() {
    let report = import(PROXY).report;
    let has = |kind, name: &str| report.of_kind(kind).any(|finding| finding.directive.starts_with(name));
    for name in ["events", "worker_processes", "http2 on", "keepalive_requests", "sendfile", "types_hash"] {
        assert!(has(FindingKind::NotNeeded, name), "{name}");
    }
    for name in ["types", "gzip on", "gzip_comp_level", "charset_map", "split_clients"] {
        assert!(has(FindingKind::NotTranslated, name), "{name}");
    }
}

#[test]
fn the_report_begins_with_what_was_lost_and_counts_what_is_exact() {
    let site = "server {
    listen 80;
    add_header X-A b;
    location / { proxy_pass http://127.0.0.1:9000; }
    location /a { set $limit_rate 4k; proxy_pass http://127.0.0.1:9000; }
    location /b { auth_basic closed; auth_basic_user_file users; proxy_pass http://127.0.0.1:9000; }
}
";
    let Imported { report, yaml } = import(site);
    let text = report.render_text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "LOST: 2", "{text}");
    assert!(lines[1].ends_with("default:6: auth_basic closed"), "what is closed comes first: {text}");
    assert!(lines[3].ends_with("default:5: set $limit_rate 4k"), "{text}");
    assert!(lines[5].starts_with("translated with a difference: "), "{text}");
    assert!(!text.contains("proxy_pass"), "exact lines are not listed: {text}");
    let exact = report.of_kind(FindingKind::Exact).count();
    assert!(text.contains(&format!("\n{exact} directives translated exactly\n")), "{text}");
    assert!(text.ends_with("\n2 lines that limit, deny or answer, or may do so, were lost\n"), "{text}");
    let lines: Vec<&str> = yaml.lines().collect();
    let place = lines.iter().position(|line| line.starts_with("  - path: /a ")).expect("the location");
    let note = lines[place - 1];
    assert!(note.starts_with("  # LOST: ") && note.contains("default:5 set $limit_rate 4k: "), "{yaml}");
}

#[test]
fn comments_of_lost_lines_stand_at_their_server() {
    let site = "server { listen 80; location / { proxy_pass http://127.0.0.1:1; } }
server {
    listen 81;
    guard_of_a_module on;
    location /x { proxy_pass http://127.0.0.1:2; }
}
other_guard on;
";
    let yaml = import(site).yaml;
    let place = |text: &str| yaml.find(text).unwrap_or_else(|| panic!("no {text} in\n{yaml}"));
    assert!(place("guard_of_a_module on") > place("default:1\n    listener: listener-1"), "{yaml}");
    assert!(place("guard_of_a_module on") < place("path: /x"), "{yaml}");
    assert!(place("other_guard") < place("\nlisten:"), "{yaml}");
}
