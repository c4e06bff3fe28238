//! Random requests, and what became of them.

use std::net::SocketAddr;

use crate::support::{Ask, Client, Dice, Reply, Upstream, ms};

const HOSTS: [&str; 9] =
    ["a.test", "a.test", "b.test", "A.test", "b.test:8080", "v.w.test", "u.v.w.test", "w.test", "other.test"];
const TARGETS: [&str; 22] = [
    "/",
    "/x",
    "/x",
    "/x/",
    "/x/y",
    "/x/y/",
    "/xy",
    "/X",
    "/X/y",
    "/z",
    "/z/12",
    "/z/a",
    "/p/q/s",
    "/p/q",
    "/x?q=1",
    "/x//y",
    "/x/./y",
    "/x/q/../y",
    "/%78/y",
    "/x/a%20b",
    "/q",
    "/x/y?a=/x/z&b=%41",
];
const VALUES: [&str; 7] = ["always", "never", "other", "beta", "Always", "v7", "7v"];

#[derive(Clone, Debug)]
pub struct Request {
    pub method: &'static str,
    pub host: &'static str,
    pub target: &'static str,
    pub header: Option<&'static str>,
    pub cookie: Option<&'static str>,
    pub body: usize,
}

/// The status, and what a service saw.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub status: u16,
    /// Of a redirect.
    pub location: Option<String>,
    pub service: Option<String>,
    /// Decoded and normalised: proxies forward other spellings of one path.
    pub target: Option<String>,
    pub host: Option<String>,
}

pub fn roll_requests(count: usize, dice: &mut Dice) -> Vec<Request> {
    let mut roll = || Request {
        method: dice.pick(&["GET", "GET", "HEAD", "POST", "PUT", "DELETE"]),
        host: dice.pick(&HOSTS),
        target: dice.pick(&TARGETS),
        header: dice.one_in(2).then(|| dice.pick(&VALUES)),
        cookie: dice.one_in(2).then(|| dice.pick(&VALUES)),
        body: if dice.one_in(3) { dice.pick(&[0, 1024, 1025, 2048, 2049]) } else { 0 },
    };
    (0..count).map(|_| roll()).collect()
}

/// A service that tells what it sees.
pub fn start_service(name: &'static str) -> Upstream {
    Upstream::new(move |seen| {
        let host = seen.headers.get("host").unwrap_or_default();
        let fields = [("X-Service", name), ("X-Target", seen.target.as_str()), ("X-Host", host.as_str())];
        match seen.method.as_str() {
            "HEAD" => Reply::raw("HTTP/1.1 200 OK\r\n".to_owned() + &write_fields(&fields) + "\r\n"),
            _ => Reply::with(200, &fields, ""),
        }
    })
}

fn write_fields(fields: &[(&str, &str)]) -> String {
    fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect()
}

pub fn ask(addr: SocketAddr, request: &Request) -> Answer {
    let mut ask = Ask::new(request.method, request.target).host(request.host).header("Connection", "close");
    if let Some(value) = request.header {
        ask = ask.header("X-Env", value);
    }
    if let Some(value) = request.cookie {
        ask = ask.header("Cookie", format!("a=b; c={value}"));
    }
    if matches!(request.method, "POST" | "PUT") {
        ask = ask.body(&vec![b'x'; request.body]);
    }
    let mut client = Client::connect(addr);
    // A refusal may come before the body is sent.
    let _ = client.try_send(ask.bytes());
    let response = match request.method {
        "HEAD" => client.head_response(),
        _ => client.response_within(ms(10_000)).expect("a response"),
    };
    let of = |name: &str| response.headers.all(name).into_iter().next();
    Answer {
        status: response.status,
        location: of("location").map(|location| match location.split_once("://") {
            Some((_, rest)) => rest.find('/').map_or("/", |slash| &rest[slash..]).to_owned(),
            None => location,
        }),
        service: of("x-service"),
        target: of("x-target").map(|target| normalise(&target)),
        host: of("x-host"),
    }
}

/// Decoded, without dots and double slashes.
pub fn normalise(target: &str) -> String {
    let (path, query) = target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
    let decoded = percent_encoding::percent_decode_str(path).decode_utf8_lossy().into_owned();
    let mut parts: Vec<&str> = Vec::new();
    for part in decoded.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let end = if decoded.ends_with('/') && !parts.is_empty() { "/" } else { "" };
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("/{}{end}{query}", parts.join("/"))
}
