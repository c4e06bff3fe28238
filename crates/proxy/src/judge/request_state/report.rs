//! The records of a request at its end: its line of the access log and its span.

use http::uri::PathAndQuery;
use http::{HeaderValue, Version};

use crate::gateway::Gateway;
use crate::judge::request_state::{LogFields, RequestIdentity, RequestSpan, RequestState, Verdict};
use crate::reject::{CLIENT_GONE, Fault};
use sluicegate_base::clock::Now;
use sluicegate_http::request::account::Tier;
use sluicegate_http::request::client::UNIX_CLIENT;
use sluicegate_model::{Amount, LimitId, LogField, TierRules};
use sluicegate_observe::access_log::line::{AccessRecord, RecordedCharge};
use sluicegate_observe::metrics::AnswerOrigin;
use sluicegate_observe::traces::WorkerTracer;
use sluicegate_observe::traces::span::{self, SpanRecord};

impl RequestState {
    /// The name of its key by the limit that rejected it or made it wait; `None` also where names are not kept.
    fn limit_key(&self) -> Option<String> {
        self.worker.heavy_keys.name_key(
            &self.worker.gateway,
            self.judgement.limit?,
            self.judgement.kept_units.as_deref()?,
        )
    }

    /// The name of the caller's tier, or of the default one.
    pub fn tier_name(&self) -> &str {
        self.identity.tier.as_ref().map_or(TierRules::DEFAULT, Tier::as_str)
    }

    /// The name of its class in the limit that rejected it.
    pub fn class_name(&self) -> Option<&str> {
        self.judgement.class.and_then(|(limit, class)| self.class_in(limit, class))
    }

    fn class_in(&self, limit: LimitId, class: u8) -> Option<&str> {
        self.worker.gateway.limits[limit.0].config.class_name(class)
    }

    #[inline]
    pub(super) fn answer_origin(&self) -> AnswerOrigin {
        if let Some(responder) = self.outcome.responder {
            return responder;
        }
        match self.outcome.verdict {
            _ if self.outcome.status == CLIENT_GONE => AnswerOrigin::Other,
            Verdict::Ban => AnswerOrigin::Ban,
            // The reason is a stop that the upstream asked for.
            Verdict::Reject if self.outcome.error.is_some() => AnswerOrigin::NoServer,
            Verdict::Reject | Verdict::Degrade if self.judgement.wait_ns > 0 => AnswerOrigin::LimitQueue,
            Verdict::Reject | Verdict::Degrade | Verdict::MissingKey => AnswerOrigin::Limit,
            Verdict::Fault(fault) => self.fault_origin(fault),
            Verdict::Admit | Verdict::Wait | Verdict::Acme => AnswerOrigin::Other,
        }
    }

    fn fault_origin(&self, fault: Fault) -> AnswerOrigin {
        match fault {
            Fault::ServerQueueTimeout => AnswerOrigin::ServerQueue,
            Fault::LocationTimeout if self.outcome.tries > 0 => AnswerOrigin::NoServer,
            // Forwarding takes this time, also without a try.
            Fault::LocationTimeout if self.outcome.upstream_ns.is_some() => AnswerOrigin::ServerQueue,
            Fault::Unreachable
            | Fault::UpstreamBroke
            | Fault::BadResponse
            | Fault::NoServer
            | Fault::ServersDown
            | Fault::UpstreamTimeout => AnswerOrigin::NoServer,
            _ => AnswerOrigin::Fault,
        }
    }

    pub(super) fn write_log_line(&self, fields: &LogFields, ended: Now) {
        let gateway = &self.worker.gateway;
        let has = |field| gateway.config.access_log.fields.contains(&field);
        let was_sent = self.outcome.tries > 0;
        let key = self.limit_key();
        self.worker.log.write_record(&AccessRecord {
            unix_us: self.worker.wall_clock.unix_ns(self.started) / 1_000,
            id: self.identity.request_id.as_str(),
            ip: fields.ip,
            method: fields.line.method.as_str(),
            protocol: fields.protocol,
            host: fields.line.host.as_ref().map(HeaderValue::to_str).and_then(Result::ok).unwrap_or_default(),
            path: fields.line.target.as_ref().map_or("", PathAndQuery::path),
            status: self.outcome.status.as_u16(),
            bytes: self.response.bytes_sent,
            received: self.response.bytes_received,
            duration_ns: ended.ns_since(self.started),
            wait_ns: self.judgement.wait_ns,
            upstream: self.outcome.server.map(|server| &*gateway.servers[server].name),
            error: self.outcome.error,
            location: gateway.location_name(self.route).map(|name| &**name),
            owner: gateway.location_owner(self.route),
            account: self.identity.account(),
            tier: self.identity.tier.as_ref().map(Tier::as_str),
            verdict: self.outcome.verdict.as_str(),
            limit: self.judgement.limit.map(|limit| &*gateway.limits[limit.0].name),
            class: self
                .judgement
                .class
                .or(fields.class)
                .and_then(|(limit, class)| self.class_in(limit, class)),
            key: key.as_deref(),
            retry_after_ns: self.judgement.retry_after_ns,
            charge: self.response.settlement.as_ref().map(|settled| RecordedCharge {
                reserved: amount_of(gateway, settled.limit, settled.reserved),
                charged: amount_of(gateway, settled.limit, settled.charged),
                source: settled.source.as_str(),
            }),
            dry_run: fields.dry_run.as_deref(),
            step: fields.step.as_deref(),
            user_agent: fields.user_agent.as_ref().map(HeaderValue::as_bytes),
            referer: fields.referer.as_ref().map(HeaderValue::as_bytes),
            tries: (was_sent && has(LogField::Tries)).then_some(self.outcome.tries),
            upstream_ns: self.outcome.upstream_ns.filter(|_| was_sent && has(LogField::UpstreamMs)),
            scheme: has(LogField::Scheme).then(|| self.identity.scheme.as_str()),
            proto: has(LogField::Proto).then(|| version_name(fields.line.version)),
            headers: &fields.headers,
        });
    }

    /// Queues the span of a sampled request for the collector.
    pub(super) fn queue_span(&self, traced: &RequestSpan, ended: Now) {
        if let Some(tracer) = &self.worker.tracer {
            tracer.queue_span(|| self.build_span(tracer, traced, ended));
        }
    }

    fn build_span(&self, tracer: &WorkerTracer, traced: &RequestSpan, ended: Now) -> SpanRecord {
        let gateway = &self.worker.gateway;
        let (method, unusual_method) = span::name_method(&traced.line.method);
        let host = traced.line.host.as_ref().and_then(|host| host.to_str().ok());
        SpanRecord {
            context: traced.context,
            end_unix_ns: self.worker.wall_clock.unix_ns(ended),
            duration_ns: ended.ns_since(self.started),
            method,
            unusual_method,
            path: span::cut_text(traced.line.target.as_ref().map_or("", PathAndQuery::path), span::PATH_MAX),
            host: host.map(|host| span::cut_text(host, span::HOST_MAX)),
            scheme: self.identity.scheme.as_str(),
            version: match traced.line.version {
                Version::HTTP_10 => "1.0",
                Version::HTTP_2 => "2",
                _ => "1.1",
            },
            client: (self.identity.client.ip != UNIX_CLIENT).then_some(self.identity.client.ip),
            request_id: span::cut_text(self.identity.request_id.as_str(), span::TEXT_MAX),
            location: gateway.location_name(self.route).cloned(),
            status: self.outcome.status.as_u16(),
            verdict: self.outcome.verdict.as_str(),
            fault: match self.outcome.verdict {
                Verdict::Fault(fault) => Some(fault.cause()),
                _ => None,
            },
            limit: self.judgement.limit.map(|limit| gateway.limits[limit.0].name.clone()),
            key_hash: self.limit_key().map(|name| tracer.hash_key(&name)),
            wait_ns: self.judgement.wait_ns,
            retry_after_ns: self.judgement.retry_after_ns,
            server: self.outcome.server.map(|server| gateway.servers[server].name.clone()),
            upstream_ns: self.outcome.upstream_ns,
        }
    }
}

fn version_name(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        _ => "HTTP/1.1",
    }
}

/// Units of a limit; a lease may have been settled whose limit is gone.
fn amount_of(gateway: &Gateway, limit: LimitId, units: u64) -> Amount {
    let limit = gateway.limits.get(limit.0);
    limit.map_or(Amount { units, currency: None }, |limit| limit.config.amount(units))
}

// === impl RequestIdentity ===

impl RequestIdentity {
    /// The caller's account; `None` = unknown.
    #[inline]
    pub fn account(&self) -> Option<&str> {
        self.account.as_deref().or_else(|| self.key.as_ref().map(|caller| &*caller.account))
    }
}
