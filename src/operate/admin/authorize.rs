//! Authorizes admin requests: by the token, and by the `Host` and `Origin` that browsers send.
//!
//! Another site can point its own name at this address (DNS rebinding). Its requests then carry that name in `Host`,
//! and in `Origin` when they change something.

use std::net::{IpAddr, Ipv6Addr};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use http::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Request};

use crate::config::{AdminConfig, Secret};

/// The callers that the configuration accepts.
#[derive(Debug, Clone)]
pub(super) struct CallerPolicy {
    token: Option<Secret>,
    hosts: Vec<String>,
}

/// Why a request is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallerRejection {
    Token,
    Host,
    Origin,
}

impl From<&AdminConfig> for CallerPolicy {
    fn from(config: &AdminConfig) -> CallerPolicy {
        CallerPolicy { token: config.token.clone(), hosts: config.hosts.clone() }
    }
}

impl CallerPolicy {
    /// Authorizes the request. `public` pages need no token and accept any host.
    pub fn check_request<B>(&self, request: &Request<B>, public: bool) -> Result<(), CallerRejection> {
        let headers = request.headers();
        if !public {
            match &self.token {
                Some(token) if has_token(headers, token) => {}
                Some(_) => return Err(CallerRejection::Token),
                None if self.accepts_hosts(request) => {}
                None => return Err(CallerRejection::Host),
            }
        }
        if has_own_origin(headers) { Ok(()) } else { Err(CallerRejection::Origin) }
    }

    /// Whether all hosts that the request names are accepted. A request without one does not come from a browser.
    fn accepts_hosts<B>(&self, request: &Request<B>) -> bool {
        let target = request.uri().authority().map(Authority::as_str);
        let mut fields = request.headers().get_all(HOST).iter();
        target.is_none_or(|host| self.accepts_host(host))
            && fields.all(|host| host.to_str().is_ok_and(|host| self.accepts_host(host)))
    }

    /// Whether `host`, with or without a port, is an address, `localhost`, or listed in `admin.hosts`.
    fn accepts_host(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => {
                let Some((inner, port)) = rest.split_once(']') else { return false };
                return inner.parse::<Ipv6Addr>().is_ok() && (port.is_empty() || is_port(port));
            }
            None => match host.split_once(':') {
                Some((name, _)) if is_port(&host[name.len()..]) => name,
                Some(_) => return false,
                None => host,
            },
        };
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        name == "localhost" || name.parse::<IpAddr>().is_ok() || self.hosts.contains(&name)
    }
}

fn is_port(text: &str) -> bool {
    text.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Whether the request has no `Origin`, or this listener's own; browsers send the origin of the calling page.
fn has_own_origin(headers: &HeaderMap) -> bool {
    let only = |name: HeaderName| {
        let mut lines = headers.get_all(name).iter();
        (lines.next(), lines.next().is_none())
    };
    match (only(ORIGIN), only(HOST)) {
        ((None, _), _) => true,
        ((Some(origin), true), (Some(host), true)) => {
            let origin = origin.as_bytes();
            let rest =
                origin.split_at_checked(7).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"http://"));
            rest.is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(host.as_bytes()))
        }
        _ => false,
    }
}

fn has_token(headers: &HeaderMap, Secret(token): &Secret) -> bool {
    let sent = headers.get(AUTHORIZATION).map_or(&b""[..], HeaderValue::as_bytes);
    match sent.split_at_checked(7) {
        Some((scheme, sent)) if scheme.eq_ignore_ascii_case(b"bearer ") => {
            verify_slices_are_equal(sent.trim_ascii(), token.as_bytes()).is_ok()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_fields(
        token: Option<&str>,
        fields: &[(&str, &str)],
        public: bool,
    ) -> Result<(), CallerRejection> {
        let token = token.map(|token| Secret(token.to_owned()));
        let callers = CallerPolicy { token, hosts: vec!["admin.test".to_owned()] };
        let mut request = Request::new(());
        for (name, value) in fields {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            request.headers_mut().append(name, HeaderValue::from_str(value).unwrap());
        }
        callers.check_request(&request, public)
    }

    #[test]
    fn hosts_are_addresses_localhost_and_configured_names() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:9901",
            "10.1.2.3:1",
            "[::1]",
            "[::1]:9901",
            "localhost",
            "LocalHost:80",
            "localhost.:80",
            "admin.test",
            "Admin.Test:9901",
            "admin.test.",
        ] {
            assert_eq!(check_fields(None, &[("host", host)], false), Ok(()), "{host}");
        }
        for host in [
            "evil.test",
            "evil.test:9901",
            "127.0.0.1.evil.test",
            "localhost.evil.test",
            "x.admin.test",
            "",
            "127.0.0.1:9901:1",
            "[::1]evil.test",
            "[evil.test]",
            "::1",
            "127.0.0.1@evil.test",
            "localhost:x",
        ] {
            let rejected = Err(CallerRejection::Host);
            assert_eq!(check_fields(None, &[("host", host)], false), rejected, "{host}");
            assert_eq!(
                check_fields(None, &[("host", "localhost"), ("host", host)], false),
                rejected,
                "{host}"
            );
            assert_eq!(check_fields(None, &[("host", host)], true), Ok(()), "{host}");
            let token = ("authorization", "Bearer t");
            assert_eq!(check_fields(Some("t"), &[("host", host), token], false), Ok(()), "{host}");
            assert_eq!(
                check_fields(Some("t"), &[("host", host)], false),
                Err(CallerRejection::Token),
                "{host}"
            );
            assert_eq!(
                check_fields(None, &[("host", host), token], false),
                rejected,
                "{host}: no token is configured"
            );
        }
        assert_eq!(check_fields(None, &[], false), Ok(()));
    }

    #[test]
    fn the_target_may_name_no_other_host() {
        let callers = CallerPolicy { token: None, hosts: Vec::new() };
        let of = |target: &str| Request::builder().uri(target).header(HOST, "localhost").body(()).unwrap();
        assert_eq!(callers.check_request(&of("http://evil.test/metrics"), false), Err(CallerRejection::Host));
        assert_eq!(callers.check_request(&of("http://127.0.0.1:1/metrics"), false), Ok(()));
    }

    #[test]
    fn only_the_own_origin_is_accepted() {
        let host = ("host", "localhost:9901");
        let with = |origin: &str, public| check_fields(None, &[host, ("origin", origin)], public);
        assert_eq!(with("http://localhost:9901", false), Ok(()));
        assert_eq!(with("HTTP://LocalHost:9901", false), Ok(()));
        for origin in
            ["http://evil.test", "null", "", "https://localhost:9901", "http://localhost", "http://"]
        {
            assert_eq!(with(origin, false), Err(CallerRejection::Origin), "{origin}");
            assert_eq!(with(origin, true), Err(CallerRejection::Origin), "{origin}");
            let fields = [host, ("origin", origin), ("authorization", "Bearer t")];
            assert_eq!(check_fields(Some("t"), &fields, false), Err(CallerRejection::Origin), "{origin}");
        }
        let twice = [host, ("origin", "http://localhost:9901"), ("origin", "http://evil.test")];
        assert_eq!(check_fields(None, &twice, false), Err(CallerRejection::Origin));
        assert_eq!(
            check_fields(None, &[("origin", "http://localhost")], false),
            Err(CallerRejection::Origin)
        );
    }
}
