//! What a request leaves when it ends: its line of the access log.

use http::uri::PathAndQuery;
use http::{HeaderValue, Version};

use crate::base::clock::Now;
use crate::config::LogField;
use crate::observe::access_log::line::AccessRecord;
use crate::proxy::request_state::{LogFields, RequestState};
use crate::request::account::Tier;

impl RequestState {
    /// The name of its key by the limit that rejected it or made it wait; `None` also where names are not kept.
    fn limit_key(&self) -> Option<String> {
        self.worker.heavy_keys.name_key(&self.worker.gateway, self.limit?, self.kept_units.as_deref()?)
    }

    pub(super) fn write_log_line(&self, fields: &LogFields, ended: Now) {
        let gateway = &self.worker.gateway;
        let has = |field| gateway.config.access_log.fields.contains(&field);
        let was_sent = self.tries > 0;
        let key = self.limit_key();
        self.worker.log.write_record(&AccessRecord {
            unix_ms: self.worker.wall_clock.unix_ms(self.started),
            id: self.request_id.as_str(),
            ip: fields.ip,
            method: fields.method.as_str(),
            host: fields.host.as_ref().map(HeaderValue::to_str).and_then(Result::ok).unwrap_or_default(),
            path: fields.target.as_ref().map_or("", PathAndQuery::path),
            status: self.status.as_u16(),
            bytes: self.bytes_sent,
            received: self.bytes_received,
            duration_ns: ended.ns_since(self.started),
            wait_ns: self.wait_ns,
            upstream: self.server.map(|server| &*gateway.servers[server].name),
            error: self.error,
            location: self.route.map(|route| &*gateway.routes[route.0].name),
            account: self.account.as_deref(),
            tier: self.tier.as_ref().map(Tier::as_str),
            verdict: self.verdict.as_str(),
            limit: self.limit.map(|limit| &*gateway.limits[limit.0].name),
            key: key.as_deref(),
            retry_after_ns: self.retry_after_ns,
            dry_run: fields.dry_run.as_deref(),
            user_agent: fields.user_agent.as_ref().map(HeaderValue::as_bytes),
            referer: fields.referer.as_ref().map(HeaderValue::as_bytes),
            tries: (was_sent && has(LogField::Tries)).then_some(self.tries),
            upstream_ns: self.upstream_ns.filter(|_| was_sent && has(LogField::UpstreamMs)),
            scheme: has(LogField::Scheme).then(|| self.scheme.as_str()),
            proto: has(LogField::Proto).then(|| version_name(fields.version)),
            headers: &fields.headers,
        });
    }
}

fn version_name(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        _ => "HTTP/1.1",
    }
}
