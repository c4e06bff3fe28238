//! Authorizes admin requests: by their token, and by the `Host` and `Origin` that browsers send.
//!
//! Another site can point its own name at this address (DNS rebinding). Its requests then carry that name in `Host`,
//! and in `Origin` when they change something.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::HeaderMap;
use http::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use http::request::Parts;
use http::uri::Authority;

use super::endpoint::AdminCaller;
use sluicegate_base::secrets;
use sluicegate_model::{AdminConfig, AdminRights, AdminToken};

/// The callers that the configuration accepts.
#[derive(Debug, Clone)]
pub(super) struct CallerPolicy(pub AdminConfig);

/// The name of callers without a token.
const NAMELESS: &str = "loopback";

/// Why a request is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallerRejection {
    Token,
    Host,
    Origin,
}

impl CallerPolicy {
    /// Authorizes the request from `address`. `public` endpoints need no token and accept any host.
    pub(super) fn check_request(
        &self,
        head: &Parts,
        address: SocketAddr,
        public: bool,
    ) -> Result<AdminCaller, CallerRejection> {
        let headers = &head.headers;
        let caller = |name: &str, rights, sees_accounts| AdminCaller {
            name: name.into(),
            address,
            rights,
            sees_accounts,
        };
        let caller = match self.find_token(headers) {
            Some(found) => {
                let all = found.allow == AdminRights::All;
                caller(&found.name, found.allow, all || found.names)
            }
            None if public => caller(NAMELESS, AdminRights::Read, false),
            None if self.needs_token() => return Err(CallerRejection::Token),
            None if self.accepts_hosts(head) => caller(NAMELESS, AdminRights::All, false),
            None => return Err(CallerRejection::Host),
        };
        if has_own_origin(headers) { Ok(caller) } else { Err(CallerRejection::Origin) }
    }

    /// The token that the request carries. The time that it takes tells nothing about the tokens.
    fn find_token(&self, headers: &HeaderMap) -> Option<&AdminToken> {
        let sent = secrets::bearer_token(headers.get(AUTHORIZATION)?.as_bytes())?;
        let all = self.0.tokens.iter().map(|token| token.token.0.as_bytes());
        secrets::find_secret(sent, all).map(|position| &self.0.tokens[position])
    }

    pub(super) fn needs_token(&self) -> bool {
        !self.0.tokens.is_empty()
    }

    /// True if all hosts that the request names are accepted. A request without one does not come from a browser.
    fn accepts_hosts(&self, head: &Parts) -> bool {
        let target = head.uri.authority().map(Authority::as_str);
        let mut fields = head.headers.get_all(HOST).iter();
        target.is_none_or(|host| self.accepts_host(host))
            && fields.all(|host| host.to_str().is_ok_and(|host| self.accepts_host(host)))
    }

    /// True if `host`, with or without a port, is an address, `localhost`, or listed in `admin.hosts`.
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
        name == "localhost" || name.parse::<IpAddr>().is_ok() || self.0.hosts.contains(&name)
    }
}

fn is_port(text: &str) -> bool {
    text.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// True if the request has no `Origin`, or this listener's own; browsers send the origin of the calling page.
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

/// True if a browser says that the page of another origin asks; only browsers send the field.
pub(super) fn is_from_other_site(headers: &HeaderMap) -> bool {
    let sites = headers.get_all("sec-fetch-site").iter();
    sites.into_iter().any(|site| site != "same-origin" && site != "none")
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Request};

    use super::*;
    use sluicegate_model::Secret;

    fn policy(tokens: &[(&str, &str, AdminRights)]) -> CallerPolicy {
        let token = |(name, token, allow): &(&str, &str, AdminRights)| AdminToken {
            name: (*name).to_owned(),
            token: Secret((*token).to_owned()),
            allow: *allow,
            names: false,
        };
        CallerPolicy(AdminConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 9901)),
            tokens: tokens.iter().map(token).collect(),
            hosts: vec!["admin.test".to_owned()],
        })
    }

    fn check_fields(
        token: Option<&str>,
        fields: &[(&str, &str)],
        public: bool,
    ) -> Result<(), CallerRejection> {
        let token = token.map(|token| ("admin", token, AdminRights::All));
        find_caller(&policy(token.as_slice()), fields, public).map(|_| ())
    }

    fn find_caller(
        policy: &CallerPolicy,
        fields: &[(&str, &str)],
        public: bool,
    ) -> Result<AdminCaller, CallerRejection> {
        let mut request = Request::new(());
        for (name, value) in fields {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            request.headers_mut().append(name, HeaderValue::from_str(value).unwrap());
        }
        policy.check_request(&request.into_parts().0, SocketAddr::from(([127, 0, 0, 1], 1)), public)
    }

    #[test]
    fn a_token_names_the_caller_and_its_rights() {
        let policy = policy(&[("ops", "one", AdminRights::All), ("eye", "two", AdminRights::Read)]);
        let caller = |fields: &[(&str, &str)], public| {
            find_caller(&policy, fields, public)
                .map(|caller| (caller.name.to_string(), caller.rights == AdminRights::All))
        };
        let with = |token: &'static str| [("host", "x.test"), ("authorization", token)];
        assert_eq!(caller(&with("Bearer one"), false), Ok(("ops".to_owned(), true)));
        assert_eq!(caller(&with("bearer two"), false), Ok(("eye".to_owned(), false)));
        for wrong in ["Bearer on", "Bearer onetwo", "Bearer ", "Bearer", "Basic one"] {
            assert_eq!(caller(&with(wrong), false), Err(CallerRejection::Token), "{wrong}");
            assert_eq!(caller(&with(wrong), true), Ok(("loopback".to_owned(), false)), "{wrong}");
        }
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
        let check = |target: &str| {
            let request = Request::builder().uri(target).header(HOST, "localhost").body(()).unwrap();
            policy(&[]).check_request(&request.into_parts().0, SocketAddr::from(([127, 0, 0, 1], 1)), false)
        };
        assert_eq!(check("http://evil.test/metrics").unwrap_err(), CallerRejection::Host);
        assert!(check("http://127.0.0.1:1/metrics").is_ok());
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
