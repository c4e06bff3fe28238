//! `GET /upstreams`: how each server stands. `POST /upstreams/NAME/servers/SERVER/drain` and `…/undrain`: no new
//! requests for a server, and requests for it again.

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use percent_encoding::percent_decode_str;
use serde::Serialize;

use super::AdminState;
use super::pages::{page, refused_change};
use crate::base::clock::Now;
use crate::upstream::{Drained, ToldUpstream, Upstream};

/// What the path of a page about servers asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    All,
    Drain { upstream: String, server: String, drain: bool },
}

#[derive(Serialize)]
struct Told {
    upstreams: Vec<ToldUpstream>,
}

impl Asked {
    /// `None` for a path that is another page's. Names may be percent-encoded: an upstream may be called by a URL. A
    /// server may be called by the path of its socket, whose slashes may stand as they are.
    pub fn of(path: &str) -> Option<Asked> {
        let rest = path.strip_prefix("/upstreams")?;
        if rest.is_empty() {
            return Some(Asked::All);
        }
        let (upstream, rest) = rest.strip_prefix('/')?.split_once("/servers/")?;
        let (server, verb) = rest.rsplit_once('/')?;
        let drain = match verb {
            "drain" => true,
            "undrain" => false,
            _ => return None,
        };
        Some(Asked::Drain { upstream: decoded(upstream)?, server: decoded(server)?, drain })
    }
}

pub(super) fn answer<B>(state: &AdminState, asked: &Asked, request: &Request<B>) -> Response<Full<Bytes>> {
    let upstreams = (state.upstreams)();
    match asked {
        Asked::All if request.method() == Method::GET || request.method() == Method::HEAD => {
            let told = upstreams.iter().filter(|upstream| !upstream.is_demo());
            json(&Told { upstreams: told.map(|upstream| upstream.told(Now::read())).collect() })
        }
        Asked::All => refuse_method("GET, HEAD", "upstreams are only read here\n"),
        Asked::Drain { .. } if request.method() != Method::POST => {
            refuse_method("POST", "draining is asked for with POST\n")
        }
        Asked::Drain { upstream, server, drain } => {
            if let Some(refused) = refused_change(request.headers()) {
                return refused;
            }
            let force = request.uri().query() == Some("force=true");
            match upstreams.iter().find(|one| *one.name == **upstream) {
                Some(found) => drained(found, server, *drain, force),
                None => page(StatusCode::NOT_FOUND, format!("there is no upstream `{}`\n", shown(upstream))),
            }
        }
    }
}

fn drained(upstream: &Upstream, server: &str, drain: bool, force: bool) -> Response<Full<Bytes>> {
    match upstream.drain(server, drain, force) {
        Drained::Done(servers) => json(&servers),
        Drained::NoSuchServer => {
            let text = format!("the upstream `{}` has no server `{}`\n", upstream.name, shown(server));
            page(StatusCode::NOT_FOUND, text)
        }
        Drained::LastOne => {
            let text = "no other server of this upstream is up: its requests would be answered 503; \
                        ask with ?force=true if that is meant\n";
            page(StatusCode::CONFLICT, text)
        }
    }
}

/// A name from the path without what a terminal would act on.
fn shown(name: &str) -> String {
    name.escape_debug().to_string()
}

fn refuse_method(allow: &'static str, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = page(StatusCode::METHOD_NOT_ALLOWED, text);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    response
}

fn json(told: &impl Serialize) -> Response<Full<Bytes>> {
    // Only maps with odd keys fail to serialize, and there are none.
    let text = serde_json::to_string_pretty(told).unwrap_or_default() + "\n";
    let mut response = page(StatusCode::OK, text);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Percent-decoded; `None` when that gives no text.
fn decoded(text: &str) -> Option<String> {
    let two_digits = |behind: &str| {
        let digits = behind.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    if !text.split('%').skip(1).all(two_digits) {
        return None;
    }
    Some(percent_decode_str(text).decode_utf8().ok()?.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_servers() {
        let drain = |upstream: &str, server: &str, drain| {
            let (upstream, server) = (upstream.to_owned(), server.to_owned());
            Some(Asked::Drain { upstream, server, drain })
        };
        assert_eq!(Asked::of("/upstreams"), Some(Asked::All));
        assert_eq!(Asked::of("/upstreams/app/servers/a:1/drain"), drain("app", "a:1", true));
        assert_eq!(Asked::of("/upstreams/app/servers/[::1]:1/undrain"), drain("app", "[::1]:1", false));
        let socket = "/upstreams/app/servers/unix:/run/a.sock/drain";
        assert_eq!(Asked::of(socket), drain("app", "unix:/run/a.sock", true));
        let encoded = "/upstreams/unix:/run/a.sock/servers/unix:%2Frun%2Fa.sock/undrain";
        assert_eq!(Asked::of(encoded), drain("unix:/run/a.sock", "unix:/run/a.sock", false));
        let encoded = "/upstreams/http%3A%2F%2F10.9.9.9%3A81/servers/10.9.9.9%3a81/drain";
        assert_eq!(Asked::of(encoded), drain("http://10.9.9.9:81", "10.9.9.9:81", true));
        for path in ["/", "/upstreamsx", "/upstreams/", "/upstreams/app", "/upstreams/app/servers/a:1"] {
            assert_eq!(Asked::of(path), None, "{path}");
        }
        for path in ["/upstreams/a%/servers/b/drain", "/upstreams/a%ff/servers/b/drain"] {
            assert_eq!(Asked::of(path), None, "{path}");
        }
    }
}
