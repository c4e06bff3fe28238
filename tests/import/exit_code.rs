//! No lost line means the same statuses as a real nginx: files with every form of key, condition and number, and
//! random requests, whose rates are too slow for the time to matter.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use sluicegate_import::import_file;

use crate::random_site::Dice;
use crate::support::nginx::Nginx;
use crate::support::{Gateway, Scratch, ms};

const REQUESTS: usize = 160;

/// Inside of `http`, before a server that uses the zones; `@z` is the zone of requests.
struct Case {
    http: &'static str,
    /// Inside of the server's `location /`.
    inside: &'static str,
    /// Further locations.
    more: &'static str,
}

const fn by_key(http: &'static str) -> Case {
    with(http, "limit_req zone=z burst=2 nodelay;")
}

const fn with(http: &'static str, inside: &'static str) -> Case {
    Case { http, inside, more: "" }
}

const EXACT: &[Case] = &[
    by_key("limit_req_zone $binary_remote_addr @z;"),
    by_key("limit_req_zone $uri @z;"),
    by_key("limit_req_zone $host @z;"),
    by_key("limit_req_zone $request_method$uri @z;"),
    by_key("limit_req_zone $binary_remote_addr$http_x_tier @z;"),
    by_key("limit_req_zone $host$uri @z;"),
    by_key("limit_req_zone $http_x_tier @z;"),
    by_key("limit_req_zone a-$http_x_tier @z;"),
    // A name without a dash has one spelling.
    by_key("underscores_in_headers on; limit_req_zone $http_tier @z;"),
    by_key("map $http_x_tier $k { \"\" \"\"; default $http_x_tier; } limit_req_zone $k @z;"),
    by_key(
        "map $http_x_tier $k { \"\" $binary_remote_addr; default $http_x_tier; }
         limit_req_zone $k @z;",
    ),
    by_key("map $http_x_tier $k { default $binary_remote_addr; } limit_req_zone $k @z;"),
    by_key("map $http_x_tier $k { gold ''; } limit_req_zone $k @z;"),
    by_key("map $request_method $k { post $uri; put $uri; } limit_req_zone $k @z;"),
    by_key("map $request_method $k { volatile; GET $host; HEAD $host; } limit_req_zone $k @z;"),
    by_key("map $remote_addr $k { 127.2.0.1 ''; default $uri; } limit_req_zone $k @z;"),
    by_key(
        "geo $g { default on; 127.2.0.0/16 ''; 127.2.0.1 ON; 127.3.0.0/16 off; }
         map $g $k { on $binary_remote_addr; } map $k $kk { default $k; } limit_req_zone $kk @z;",
    ),
    by_key("geo $g { ranges; default ''; 127.2.0.0-127.3.0.0 x; } limit_req_zone $g @z;"),
    // Addresses are counted apart, so that those that are denied take nothing from others.
    with("limit_req_zone $binary_remote_addr @z;", "limit_req zone=z burst=200 nodelay; deny 127.2.0.1;"),
    // Places of one zone with numbers of their own.
    Case {
        http: "limit_req_zone $host @z;",
        inside: "limit_req zone=z burst=40 nodelay;",
        more: "location /b/ { limit_req zone=z burst=9 nodelay; proxy_pass @BACKEND@; }
               location /a/ { limit_req zone=z; proxy_pass @BACKEND@; }",
    },
];

/// Each of these has a line that is lost, because nginx decides otherwise.
const LOST: &[Case] = &[
    by_key("underscores_in_headers on; limit_req_zone $http_api_key @z;"),
    by_key("ignore_invalid_headers off; limit_req_zone $http_api_key @z;"),
    with(
        "limit_req_zone $http_api_key @z;",
        "limit_req zone=z burst=2 nodelay; } underscores_in_headers on; location = /x {",
    ),
    with("limit_req_zone $uri @z;", "limit_req zone=z burst=2 nodelay; } merge_slashes off; location = /x {"),
    by_key("map $http_x_tier $k { gold ''; default $binary_remote_addr; } limit_req_zone $k @z;"),
    by_key("map $http_x_tier $k { ~^g ''; default $http_x_tier; } limit_req_zone $k @z;"),
    by_key("map $http_x_tier $k { '' $uri; } limit_req_zone $k @z;"),
    by_key("map $request_method $k { GET ''; default $uri; } limit_req_zone $k @z;"),
    by_key("map $request_method $k { GET $uri; } limit_req_zone $k @z;"),
    by_key("map $request_method $k { ~^P $uri; } limit_req_zone $k @z;"),
    by_key(
        "map $request_method $a { POST $uri; } map $request_method $k { POST $a; PUT $a; }
         limit_req_zone $k @z;",
    ),
    by_key("map $host $k { hostnames; .test ''; default $uri; } limit_req_zone $k @z;"),
    by_key("limit_req_zone $cookie_sid @z;"),
    by_key("map $cookie_sid $k { '' ''; default $cookie_sid; } limit_req_zone $k @z;"),
    by_key("limit_req_zone $arg_x @z;"),
    by_key("limit_req_zone $http_host @z;"),
    by_key("limit_req_zone $http_cookie @z;"),
    by_key("limit_req_zone $uri$http_x_tier @z;"),
    by_key("limit_req_zone $http_x_tier$http_tier @z;"),
    by_key("limit_req_zone $request_uri @z;"),
    with("limit_req_zone $uri @z;", "limit_req zone=z burst=2 nodelay; deny 127.2.0.1;"),
    with(
        "limit_req_zone $uri @z;",
        "limit_req zone=z burst=2 nodelay; if ($request_method = OPTIONS) { return 204; }",
    ),
    with(
        "limit_req_zone $uri @z; limit_conn_zone $uri zone=c:1m;",
        "limit_req zone=z burst=2 nodelay; limit_conn c 1;",
    ),
    Case {
        http: "limit_req_zone $uri @z;",
        inside: "limit_req zone=z burst=2 nodelay;",
        more: "location /b/ { limit_req zone=z burst=2; proxy_pass @BACKEND@; }",
    },
    Case {
        http: "limit_req_zone $uri @z;",
        inside: "limit_req zone=z burst=2 nodelay;",
        more: "location /b/ { limit_req zone=z; limit_req_dry_run on; proxy_pass @BACKEND@; }",
    },
    with("limit_conn_zone $uri zone=c:1m; proxy_ignore_client_abort on;", "limit_conn c 1;"),
    with("set_real_ip_from 127.0.0.0/8; real_ip_header X-Forwarded-For;", ""),
    with("", "set $limit_rate 4k;"),
    with("", "proxy_limit_rate 4k;"),
];

impl Case {
    fn conf(&self, listen: &str, backend: SocketAddr) -> String {
        let Case { http, inside, more } = self;
        let text = format!(
            "{http}\nserver {{ listen {listen} default_server; server_name s.test;\n\
             location / {{ {inside} proxy_pass @BACKEND@; }}\n{more}\n}}"
        );
        text.replace("@z", "zone=z:1m rate=1r/m").replace("@BACKEND@", &format!("http://{backend}"))
    }
}

/// Answers 200, after the milliseconds that the path ends with.
pub fn start_backend() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut read = Vec::new();
                while !read.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
                    let mut piece = [0; 4096];
                    match stream.read(&mut piece) {
                        Ok(count @ 1..) => read.extend_from_slice(&piece[..count]),
                        _ => return,
                    }
                }
                let head = String::from_utf8_lossy(&read);
                let path = head.split(' ').nth(1).unwrap_or_default();
                let hold = path.rsplit('/').next().and_then(|text| text.parse().ok()).unwrap_or(0);
                thread::sleep(ms(hold));
                let _ =
                    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            });
        }
    });
    addr
}

pub fn ask(addr: SocketAddr, client: u8, head: &str) -> u16 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind(SocketAddr::from((Ipv4Addr::new(127, client, 0, 1), 0))).expect("a loopback address");
        socket.connect(addr).await.expect("the proxy accepts").into_std().expect("a socket")
    });
    stream.set_nonblocking(false).expect("a socket");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    stream.write_all(head.as_bytes()).expect("the proxy takes the request");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    crate::support::http::status_of(&answer).unwrap_or(0)
}

pub fn head(method: &str, target: &str, host: &str, fields: &str) -> String {
    format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{fields}Connection: close\r\n\r\n")
}

fn roll_request(dice: &mut Dice) -> (u8, String) {
    let mut pick = |from: &[&'static str]| from[dice.below(from.len() as u64) as usize];
    let method = pick(&["GET", "GET", "GET", "HEAD", "POST", "PUT", "OPTIONS", "BREW"]);
    let target = pick(&[
        "/", "/a", "/A", "//a", "/./a", "/c/../a", "/%61", "/a%2Fb", "/a/b", "/a?x=1", "/a?X=1", "/b/",
        "/b/c", "/b/c?x=2", "/a%20b", "/c//d/",
    ]);
    let host = pick(&["s.test", "S.TEST", "s.test:80", "s.test.", "other.test"]);
    let fields = pick(&[
        "",
        "",
        "X-Tier: gold\r\n",
        "x-tier: Gold\r\n",
        "X-Tier: silver\r\n",
        "X-Tier:\r\n",
        "X-Tier:  gold \r\n",
        "x_tier: gold\r\n",
        "Tier: gold\r\n",
        "Cookie: sid=1; SID=2\r\n",
    ]);
    let client = pick(&["1", "2", "3"]).parse().expect("a number");
    (client, head(method, target, host, fields))
}

fn import(case: &Case, backend: SocketAddr) -> (String, String, usize) {
    let conf = case.conf("127.0.0.1:0", backend);
    let scratch = Scratch::new();
    let imported = import_file(&scratch.file("nginx.conf", &format!("events {{}} http {{ {conf} }}")));
    let imported = imported.unwrap_or_else(|fault| panic!("{fault}\n{conf}"));
    let report = format!("{conf}\n{}\n{}", imported.yaml, imported.report.render_text());
    (imported.yaml, report, imported.report.count_lost())
}

fn start_both(case: &Case, backend: SocketAddr) -> (Nginx, Gateway, String) {
    let (yaml, report, lost) = import(case, backend);
    assert_eq!(lost, 0, "{report}");
    let gateway = Gateway::start(&format!("{yaml}\nadmin: none\naccess_log: none\n"));
    (Nginx::start(&case.conf("@0@", backend), 1), gateway, report)
}

#[test]
fn files_without_a_lost_line_decide_as_nginx_does() {
    let backend = start_backend();
    let mut statuses = BTreeMap::new();
    for (number, case) in EXACT.iter().enumerate() {
        let (nginx, gateway, report) = start_both(case, backend);
        let mut dice = Dice(number as u64);
        for _ in 0..REQUESTS {
            let (client, request) = roll_request(&mut dice);
            let theirs = ask(nginx.addr(0), client, &request);
            assert_eq!(ask(gateway.addr(), client, &request), theirs, "client {client}: {request}{report}");
            *statuses.entry(theirs).or_insert(0) += 1;
        }
    }
    assert!(statuses[&200] > 300 && statuses[&503] > 300, "{statuses:?}");
}

#[test]
fn decisions_that_cannot_be_written_are_lost_lines() {
    let backend = start_backend();
    let silent: Vec<String> = LOST
        .iter()
        .filter_map(|case| {
            // The file is one that nginx takes.
            drop(Nginx::start(&case.conf("@0@", backend), 1));
            let (_, report, lost) = import(case, backend);
            (lost == 0).then_some(report)
        })
        .collect();
    assert!(silent.is_empty(), "{} of {}:\n{}", silent.len(), LOST.len(), silent.join("\n"));
}

/// Requests that stay at the backend count at every place, each of which compares them with its own number.
#[test]
fn places_of_a_zone_of_connections_have_numbers_of_their_own() {
    let case = Case {
        http: "limit_conn_zone $binary_remote_addr zone=c:1m;",
        inside: "limit_conn c 4;",
        more: "location /two/ { limit_conn c 2; proxy_pass @BACKEND@; }
               location /one/ { limit_conn c 1; limit_conn_status 429; proxy_pass @BACKEND@; }",
    };
    let backend = start_backend();
    let (nginx, gateway, report) = start_both(&case, backend);
    let hold = |addr: SocketAddr, path: &'static str| {
        let held = thread::spawn(move || ask(addr, 1, &head("GET", path, "s.test", "")));
        thread::sleep(ms(150));
        held
    };
    let run = |addr: SocketAddr| {
        let mut held = Vec::new();
        let mut statuses = Vec::new();
        for path in ["/one/1500", "/1500", "/1500", "/two/1500", "/1500"] {
            let probes =
                ["/one/0", "/two/0", "/0"].map(|path| ask(addr, 1, &head("GET", path, "s.test", "")));
            statuses.extend(probes);
            held.push(hold(addr, path));
        }
        statuses.push(ask(addr, 2, &head("GET", "/one/0", "s.test", "")));
        statuses.extend(held.into_iter().map(|held| held.join().expect("an answer")));
        statuses
    };
    let (ours, theirs) = thread::scope(|scope| {
        let theirs = scope.spawn(|| run(nginx.addr(0)));
        (run(gateway.addr()), theirs.join().expect("nginx answers"))
    });
    assert_eq!(ours, theirs, "{report}");
    assert!(theirs.contains(&200) && theirs.contains(&503) && theirs.contains(&429), "{theirs:?}");
}
