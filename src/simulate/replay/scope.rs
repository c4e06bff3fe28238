//! The parts of a configuration that a log can judge. Limits with facts that the log lacks are taken out, each
//! with the reason, because a guess would be worth nothing.

use http::HeaderName;

use crate::simulate::log::KnownFields;
use sluicegate_model::{
    AccessLogConfig, Algorithm, Config, Cost, KeyPart, LimitConfig, LimitId, TierRules, ValueSource,
};

/// Carries the account of a line to where accounts are read.
pub const ACCOUNT_HEADER: HeaderName = HeaderName::from_static("sluicegate-replay-account");
/// [`ACCOUNT_HEADER`] for the tier.
pub const TIER_HEADER: HeaderName = HeaderName::from_static("sluicegate-replay-tier");

/// A configuration, prepared for the requests of a log.
pub struct ReplayScope {
    /// The configuration without its unjudged parts.
    pub config: Config,
    /// The limits that are taken out, and why.
    pub not_judged: Vec<(LimitId, String)>,
    /// Sentences about other unjudged parts.
    pub notes: Vec<String>,
}

impl ReplayScope {
    /// Prepares `config` for requests with these fields. `may_be_sampled`: the log is one of a gateway.
    pub fn new(mut config: Config, fields: &KnownFields, may_be_sampled: bool) -> ReplayScope {
        let known = KnownFacts::new(&config, fields);
        let limits = config.limits.iter().enumerate();
        let not_judged: Vec<_> = limits
            .filter_map(|(index, limit)| Some((LimitId(index), known.reason_against(limit)?)))
            .collect();
        let notes = list_notes(&config, &known, may_be_sampled);
        let is_judged = |id: &LimitId| not_judged.iter().all(|(limit, _)| limit != id);
        config.server.limits.retain(is_judged);
        for location in &mut config.locations {
            location.limits.retain(is_judged);
            location.bandwidth = None;
            if let Some(auth) = &mut location.auth {
                auth.limits.retain(is_judged);
                auth.cache = None;
            }
        }
        for limit in &mut config.limits {
            limit.shared = None;
            limit.charge = None;
        }
        for upstream in &mut config.upstreams {
            upstream.obey = None;
        }
        (config.bans, config.tracing.otlp, config.state.redis, config.state.snapshot) =
            (None, None, None, None);
        config.state.store = sluicegate_model::StoreConfig::Local;
        config.account.jwt = None;
        if fields.account {
            config.account.from = Some(ValueSource::Header(ACCOUNT_HEADER));
        } else if !known.account {
            config.account.from = None;
        }
        if fields.tier {
            let from = Some(ValueSource::Header(TIER_HEADER));
            let default = config.account.tier.default;
            config.account.tier = TierRules { from, default, ..TierRules::default() };
        }
        ReplayScope { config, not_judged, notes }
    }
}

/// The facts about requests that a log tells, in the words of a configuration.
struct KnownFacts<'f> {
    fields: &'f KnownFields,
    account: bool,
    tier: bool,
}

impl<'f> KnownFacts<'f> {
    fn new(config: &Config, fields: &'f KnownFields) -> KnownFacts<'f> {
        let mut known = KnownFacts { fields, account: false, tier: false };
        let is_known =
            |source: &Option<ValueSource>| source.as_ref().is_some_and(|own| known.has_source(own));
        let account = fields.account || is_known(&config.account.from);
        let rules = &config.account.tier;
        let by_account = !rules.members.is_empty() || rules.file.is_some();
        let tier = fields.tier
            || (!by_account || account && !fields.accounts_are_hashes)
                && (rules.from.is_none() || is_known(&rules.from));
        (known.account, known.tier) = (account, tier);
        known
    }

    fn has_source(&self, source: &ValueSource) -> bool {
        match source {
            ValueSource::Header(name) => self.fields.headers.contains(name),
            ValueSource::Cookie(_) => self.fields.headers.contains(&http::header::COOKIE),
            ValueSource::Query(_) => self.fields.query,
            ValueSource::Jwt(_) | ValueSource::Json(_) | ValueSource::Auth(_) => false,
        }
    }

    fn has_part(&self, part: &KeyPart) -> bool {
        match part {
            KeyPart::Ip => self.fields.ip,
            KeyPart::Account => self.account,
            KeyPart::Tier => self.tier,
            KeyPart::Host => self.fields.host,
            KeyPart::Method => self.fields.method,
            KeyPart::Uri | KeyPart::Location | KeyPart::Global => true,
            KeyPart::Priority => false,
            KeyPart::Source(source) => self.has_source(source),
            KeyPart::Mcp(_) | KeyPart::BodyHash => false,
        }
    }

    /// Why the log cannot judge a limit.
    fn reason_against(&self, limit: &LimitConfig) -> Option<String> {
        let classes = limit.shares.as_ref().map(|shares| &shares.by);
        if let Some(KeyPart::Source(ValueSource::Header(name))) = classes {
            return Some(format!("its classes are named by the header {name} of trusted proxies"));
        }
        if let Some(part) = limit.parts().find(|part| !self.has_part(part)) {
            let (kind, name) = part.words();
            return Some(format!("the log has no {kind}{name}"));
        }
        let by_header = match &limit.cost {
            Cost::Header { name, .. } => format!("its cost is the header {name} of trusted proxies"),
            _ => String::new(),
        };
        let is_concurrency = |own: &Algorithm| matches!(own, Algorithm::Concurrency { .. });
        let is_adaptive = |own: &Algorithm| matches!(own, Algorithm::Concurrency { min: Some(_), .. });
        let reasons = [
            (limit.charge.is_some(), "it is settled by responses, which the log does not hold"),
            (!by_header.is_empty(), &by_header),
            (!matches!(limit.cost, Cost::Units(_)), "its cost is in the body of requests"),
            (!limit.tiers.is_empty() && !self.tier, "the log has no tiers"),
            (!limit.methods.is_empty() && !self.fields.method, "the log has no methods"),
            (!limit.bypass.is_empty() && !self.fields.ip, "the log has no ip, which its bypass needs"),
            (limit.algorithm_variants().any(is_adaptive), "its slots follow the latency of the upstream"),
            (
                limit.algorithm_variants().any(is_concurrency) && !self.fields.duration,
                "the log has no durations, so nobody knows who was in flight",
            ),
        ];
        reasons.into_iter().find(|(holds, _)| *holds).map(|(_, reason)| reason.to_owned())
    }
}

/// The unjudged parts beside limits, where the configuration has them.
fn list_notes(config: &Config, known: &KnownFacts<'_>, may_be_sampled: bool) -> Vec<String> {
    let fields = known.fields;
    let mut notes = Vec::new();
    let mut note = |is_present: bool, text: &str| {
        if is_present {
            notes.push(text.to_owned());
        }
    };
    note(config.bans.is_some(), "bans are not judged: a banned client counts as any other");
    let paced = config.locations.iter().any(|location| location.bandwidth.is_some());
    note(paced, "bandwidth is not judged: responses take as long as in the log");
    note(config.upstreams.iter().any(|own| own.obey.is_some()), "stops by upstreams (obey) are not judged");
    note(config.server.max_in_flight.is_some(), "server.max_in_flight is not judged");
    let shared = config.limits.iter().any(|limit| limit.shared.is_some());
    note(shared, "shared limits count here as if one gateway served all requests");
    let by_host = config.locations.iter().any(|location| !location.hosts.is_empty());
    note(by_host && !fields.host, "the log has no hosts: locations with a host serve none of its requests");
    let by_scheme = config.locations.iter().any(|location| location.scheme.is_some());
    note(
        by_scheme && !fields.scheme,
        "the log has no schemes: every request counts as one to the first listener",
    );
    let by_listener = config.locations.iter().any(|location| !location.listeners.is_empty());
    note(by_listener, "the log has no listeners: every request counts as one to the first listener");
    let conditions = || config.locations.iter().flat_map(|location| &location.when);
    let by_unknown = conditions().any(|condition| !known.has_source(&condition.source));
    note(by_unknown, "the log lacks values that locations test with `when`: they count as absent");
    let has_cors = config.locations.iter().any(|own| own.cors.is_some());
    note(has_cors, "preflights of cors count as ordinary requests");
    let AccessLogConfig { sample, .. } = config.access_log;
    if may_be_sampled && sample < 100.0 {
        notes.push(format!(
            "access_log.sample is {sample}%: if the log was written with it, requests are missing, and limits \
             would reject far more than is told here"
        ));
    }
    notes
}
