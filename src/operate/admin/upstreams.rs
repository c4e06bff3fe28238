//! `GET /upstreams`: the state of each server. `POST /upstreams/NAME/servers/SERVER/drain` and `…/undrain`: stops new
//! requests to a server, and resumes them.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use percent_encoding::percent_decode_str;
use serde::Serialize;

use super::AdminState;
use super::response::{reject_method, reject_non_json, text_response};
use crate::base::clock::Now;
use crate::upstream::{DrainOutcome, Upstream, UpstreamStatus};

/// The action that the path of an upstreams page names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum UpstreamsRequest {
    List,
    Drain { upstream: String, server: String, drain: bool },
}

#[derive(Serialize)]
struct UpstreamList {
    upstreams: Vec<UpstreamStatus>,
}

impl UpstreamsRequest {
    /// `None` for the path of another page. Names may be percent-encoded, since the name of an upstream may be a URL.
    /// In a server's name, which may be the path of a socket, slashes may also stand plain.
    pub fn parse_path(path: &str) -> Option<UpstreamsRequest> {
        let rest = path.strip_prefix("/upstreams")?;
        if rest.is_empty() {
            return Some(UpstreamsRequest::List);
        }
        let (upstream, rest) = rest.strip_prefix('/')?.split_once("/servers/")?;
        let (server, verb) = rest.rsplit_once('/')?;
        let drain = match verb {
            "drain" => true,
            "undrain" => false,
            _ => return None,
        };
        Some(UpstreamsRequest::Drain {
            upstream: percent_decode(upstream)?,
            server: percent_decode(server)?,
            drain,
        })
    }
}

pub(super) fn respond_upstreams<B>(
    state: &AdminState,
    target: &UpstreamsRequest,
    request: &Request<B>,
) -> Response<Full<Bytes>> {
    let upstreams = (state.upstreams)();
    match target {
        UpstreamsRequest::List if request.method() == Method::GET || request.method() == Method::HEAD => {
            let shown = upstreams.iter().filter(|upstream| !upstream.is_demo());
            json_response(&UpstreamList {
                upstreams: shown.map(|upstream| upstream.status_at(Now::read_clock())).collect(),
            })
        }
        UpstreamsRequest::List => reject_method("GET, HEAD", "this page accepts only GET and HEAD\n"),
        UpstreamsRequest::Drain { .. } if request.method() != Method::POST => {
            reject_method("POST", "use POST to drain a server\n")
        }
        UpstreamsRequest::Drain { upstream, server, drain } => {
            if let Some(rejection) = reject_non_json(request.headers()) {
                return rejection;
            }
            let force = request.uri().query() == Some("force=true");
            match upstreams.iter().find(|one| *one.name == **upstream) {
                Some(found) => drain_server(found, server, *drain, force),
                None => text_response(
                    StatusCode::NOT_FOUND,
                    format!("there is no upstream `{}`\n", escape_name(upstream)),
                ),
            }
        }
    }
}

fn drain_server(upstream: &Upstream, server: &str, drain: bool, force: bool) -> Response<Full<Bytes>> {
    match upstream.drain_servers(server, drain, force) {
        DrainOutcome::Done(servers) => json_response(&servers),
        DrainOutcome::NoSuchServer => {
            let text = format!("the upstream `{}` has no server `{}`\n", upstream.name, escape_name(server));
            text_response(StatusCode::NOT_FOUND, text)
        }
        DrainOutcome::LastServer => {
            let text = "no other server of this upstream is up: its requests would be answered 503; \
                        use ?force=true to drain it anyway\n";
            text_response(StatusCode::CONFLICT, text)
        }
    }
}

/// A name from the path with control characters escaped.
fn escape_name(name: &str) -> String {
    name.escape_debug().to_string()
}

fn json_response(value: &impl Serialize) -> Response<Full<Bytes>> {
    // Only maps with odd keys fail to serialize, and there are none.
    let text = serde_json::to_string_pretty(value).unwrap_or_default() + "\n";
    let mut response = text_response(StatusCode::OK, text);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Percent-decodes; `None` when the result is not UTF-8, or an escape is malformed.
fn percent_decode(text: &str) -> Option<String> {
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
            Some(UpstreamsRequest::Drain { upstream, server, drain })
        };
        assert_eq!(UpstreamsRequest::parse_path("/upstreams"), Some(UpstreamsRequest::List));
        assert_eq!(
            UpstreamsRequest::parse_path("/upstreams/app/servers/a:1/drain"),
            drain("app", "a:1", true)
        );
        assert_eq!(
            UpstreamsRequest::parse_path("/upstreams/app/servers/[::1]:1/undrain"),
            drain("app", "[::1]:1", false)
        );
        let socket = "/upstreams/app/servers/unix:/run/a.sock/drain";
        assert_eq!(UpstreamsRequest::parse_path(socket), drain("app", "unix:/run/a.sock", true));
        let encoded = "/upstreams/unix:/run/a.sock/servers/unix:%2Frun%2Fa.sock/undrain";
        assert_eq!(
            UpstreamsRequest::parse_path(encoded),
            drain("unix:/run/a.sock", "unix:/run/a.sock", false)
        );
        let encoded = "/upstreams/http%3A%2F%2F10.9.9.9%3A81/servers/10.9.9.9%3a81/drain";
        assert_eq!(UpstreamsRequest::parse_path(encoded), drain("http://10.9.9.9:81", "10.9.9.9:81", true));
        for path in ["/", "/upstreamsx", "/upstreams/", "/upstreams/app", "/upstreams/app/servers/a:1"] {
            assert_eq!(UpstreamsRequest::parse_path(path), None, "{path}");
        }
        for path in ["/upstreams/a%/servers/b/drain", "/upstreams/a%ff/servers/b/drain"] {
            assert_eq!(UpstreamsRequest::parse_path(path), None, "{path}");
        }
    }
}
