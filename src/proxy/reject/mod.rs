//! How the gateway says no: the only room that knows error statuses, bodies and the fields about limits.
//!
//! A [`Rejecter`] is prepared per location when the configuration is read: saying no is what a gateway does most
//! when it is under attack, so that an answer is a few copies.

mod dry_run;
mod limit_fields;
mod prepared;
mod rejection;
mod static_headers;
mod template;

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::ALLOW;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use crate::base::escape;
use crate::config::{Algorithm, Config, Degrade, OnReject, OnRejectPatch, describe};
use crate::limit::Decision;
use dry_run::DryRuns;
use limit_fields::Fields;
use prepared::{Matter, Style, Voice, When};
use template::{Part, Slot};

pub use rejection::{Fault, Refusal, Rejection, Why};
pub use template::Script;

/// What an answer may tell about the request; empty where unknown.
#[derive(Debug, Clone, Copy, Default)]
pub struct RejectContext<'a> {
    /// Of ASCII letters, digits and `-_.:+/=@`.
    pub request_id: &'a str,
    pub client_ip: Option<IpAddr>,
    pub account: &'a str,
    pub tier: &'a str,
    pub host: &'a str,
    /// The normalised path without the query.
    pub uri: &'a str,
    /// The target as sent.
    pub request_uri: &'a str,
    pub location: &'a str,
}

/// The rejecters of one configuration.
pub struct Rejecters {
    locations: Vec<Rejecter>,
    nowhere: Rejecter,
}

/// Says no for one location.
pub struct Rejecter {
    limits: Box<[LimitVoices]>,
    plain: Arc<Plain>,
    fields: Fields,
    dry_runs: DryRuns,
    tells_target: bool,
}

/// The answers where no limit is concerned.
struct Plain {
    /// By [`Fault::index`].
    faults: Box<[Voice]>,
    banned: Voice,
}

/// What a request gets that a limit refuses, if that is no rejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instead {
    /// [`Rejecter::answer`] gives the one that is written in the file.
    Answer,
    /// Place in [`Config::upstreams`].
    Upstream(usize),
}

const DEGRADED: HeaderName = HeaderName::from_static("sluicegate-degraded");

/// The answers of one rate of a limit.
struct LimitVoices {
    limit: usize,
    rate: usize,
    refused: Voice,
    too_costly: Voice,
    missing_key: Voice,
    queued_too_long: Voice,
    instead: Option<Instead>,
    /// The limit's name as `Sluicegate-Degraded` tells it.
    mark: HeaderValue,
}

// === impl Rejecters ===

impl Rejecters {
    pub fn new(config: &Config) -> Rejecters {
        // What no location serves is never degraded: it would be a 404 otherwise.
        let never = OnRejectPatch { degrade: Some(None), ..OnRejectPatch::default() };
        let nowhere = Rejecter::new(config, &[], &never, None);
        let location = |location: &crate::config::Location| {
            let patch = &location.on_reject;
            let plain = patch.status.is_none()
                && patch.body.is_none()
                && patch.headers.is_none()
                && patch.retry_jitter.is_none();
            let plain = plain.then(|| nowhere.plain.clone());
            Rejecter::new(config, &location.limits, patch, plain)
        };
        Rejecters { locations: config.locations.iter().map(location).collect(), nowhere }
    }

    /// The rejecter of a location, by its place in [`Config::locations`]; `None` = the request has none.
    #[inline]
    pub fn at(&self, location: Option<usize>) -> &Rejecter {
        location.and_then(|place| self.locations.get(place)).unwrap_or(&self.nowhere)
    }
}

// === impl Rejecter ===

impl Rejecter {
    fn new(config: &Config, own: &[usize], patch: &OnRejectPatch, plain: Option<Arc<Plain>>) -> Rejecter {
        let mut chain: Vec<usize> = Vec::new();
        for &limit in config.server.limits.iter().chain(own) {
            if !chain.contains(&limit) {
                chain.push(limit);
            }
        }
        let layered = |limit: usize| config.on_reject.over(&config.limits[limit].on_reject).over(patch);
        let limits = chain.iter().flat_map(|&limit| limit_voices(config, limit, &layered(limit))).collect();
        let style = |limit: usize| {
            let headers = layered(limit).ratelimit_headers;
            (headers.standard, headers.legacy)
        };
        let plain = plain.unwrap_or_else(|| Arc::new(Plain::new(&config.on_reject.over(patch))));
        Rejecter {
            limits,
            tells_target: plain.faults.iter().any(Voice::tells_target),
            plain,
            fields: Fields::new(config, &chain, style),
            dry_runs: DryRuns::new(config, &chain),
        }
    }

    /// Whether answers to faults tell the target or the host of the request.
    #[inline]
    pub fn tells_target(&self) -> bool {
        self.tells_target
    }

    /// What a refused request gets instead of a rejection; `None` = the rejection. gRPC callers cannot read an
    /// answer that is written in the file.
    pub fn instead(&self, refusal: &Refusal, grpc: bool) -> Option<Instead> {
        let instead = self.voices(refusal)?.instead;
        instead.filter(|instead| !(grpc && *instead == Instead::Answer))
    }

    /// Marks an answer that came from the upstream instead of the rejection by a limit.
    pub fn mark_degraded(&self, limit: usize, headers: &mut HeaderMap) {
        if let Some(voices) = self.limits.iter().find(|voices| voices.limit == limit) {
            headers.insert(DEGRADED, voices.mark.clone());
        }
    }

    /// The whole answer, but for the fields about limits; see [`Rejecter::write_fields`].
    pub fn answer(&self, rejection: &Rejection, context: &RejectContext<'_>, grpc: bool) -> Response<Bytes> {
        let faults = &self.plain.faults;
        let (voice, retry_after_ns) = match rejection {
            Rejection::Limit(refusal) => match self.voices(refusal) {
                Some(voices) => (voices.voice(refusal.why), refusal.retry_after_ns),
                // A refusal by a limit that is not in this chain: a mistake of ours, told as such.
                None => (&faults[Fault::Internal.index()], None),
            },
            Rejection::Fault(fault) => (&faults[fault.index()], None),
            Rejection::Banned { left_ns } => (&self.plain.banned, Some(*left_ns)),
            Rejection::MethodNotAllowed { .. } => (&faults[Fault::BadMethod.index()], None),
        };
        let mut response = voice.answer(context, retry_after_ns, grpc);
        if let Rejection::MethodNotAllowed { allow } = rejection {
            response.headers_mut().insert(ALLOW, allow.clone());
        }
        if let Rejection::Limit(refusal) = rejection
            && self.instead(refusal, grpc) == Some(Instead::Answer)
        {
            self.mark_degraded(refusal.limit, response.headers_mut());
        }
        response
    }

    /// Writes what the limits said into the head of an answer, on admitted ones too. `decisions` are (place in
    /// [`Config::limits`], place of the rate, decision) in chain order; those that must not be told are left out.
    #[inline]
    pub fn write_fields(
        &self,
        decisions: impl IntoIterator<Item = (usize, usize, Decision)>,
        headers: &mut HeaderMap,
    ) {
        self.fields.write(decisions, headers);
    }

    /// Whether the chain has limits in a dry run.
    #[inline]
    pub fn has_dry_runs(&self) -> bool {
        !self.dry_runs.is_empty()
    }

    /// Writes what dry-run limits would have done into the head of an answer. `decisions` are (place in
    /// [`Config::limits`], decision), one per limit.
    #[inline]
    pub fn write_dry_runs(
        &self,
        decisions: impl IntoIterator<Item = (usize, Decision)>,
        headers: &mut HeaderMap,
    ) {
        self.dry_runs.write(decisions, headers);
    }

    /// The same for the access log, of those that would have acted.
    pub fn dry_run_note(&self, decisions: impl IntoIterator<Item = (usize, Decision)>) -> Option<String> {
        self.dry_runs.note(decisions)
    }

    fn voices(&self, refusal: &Refusal) -> Option<&LimitVoices> {
        let fits = |voices: &&LimitVoices| voices.limit == refusal.limit && voices.rate == refusal.rate;
        self.limits.iter().find(fits)
    }
}

// === impl LimitVoices ===

impl LimitVoices {
    fn voice(&self, why: Why) -> &Voice {
        match why {
            Why::Rate | Why::Queue | Why::Concurrency => &self.refused,
            Why::TooCostly => &self.too_costly,
            Why::MissingKey => &self.missing_key,
            Why::QueuedTooLong => &self.queued_too_long,
        }
    }
}

// === impl Plain ===

impl Plain {
    fn new(on_reject: &OnReject) -> Plain {
        let style = Style::new(on_reject);
        Plain { faults: fault_voices(on_reject, &style), banned: banned_voice(on_reject, &style) }
    }
}

fn banned_voice(on_reject: &OnReject, style: &Style<'_>) -> Voice {
    let detail = "banned for repeated rejections";
    let mut message = vec![Part::Text(sentence(detail))];
    message.extend(try_again());
    Voice::new(
        style,
        &Matter {
            status: on_reject.status.unwrap_or(StatusCode::TOO_MANY_REQUESTS),
            detail: detail.to_owned(),
            message,
            limit: None,
            when: When::Exact,
            grpc_status: "8",
        },
    )
}

fn fault_voices(on_reject: &OnReject, style: &Style<'_>) -> Box<[Voice]> {
    let voice = |fault: &Fault| {
        let when = match fault.status() {
            StatusCode::SERVICE_UNAVAILABLE => When::Soon,
            _ => When::Never,
        };
        let status = on_reject.status.filter(|_| fault.is_overload()).unwrap_or(fault.status());
        let detail = fault.detail().to_owned();
        let mut message = vec![Part::Text(sentence(fault.detail()))];
        if when == When::Soon {
            message.extend(try_again());
        }
        Voice::new(
            style,
            &Matter { status, detail, message, limit: None, when, grpc_status: fault.grpc_status() },
        )
    };
    Fault::ALL.iter().map(voice).collect()
}

/// The answers of a limit, one set per rate.
fn limit_voices(config: &Config, index: usize, on_reject: &OnReject) -> Vec<LimitVoices> {
    let limit = &config.limits[index];
    let rates: Vec<String> = limit.variants().flat_map(rate_texts).collect();
    let concurrency = matches!(limit.algorithm, Algorithm::Concurrency { .. });
    let (auto, grpc_auto) = match concurrency {
        true => (StatusCode::SERVICE_UNAVAILABLE, "14"),
        false => (StatusCode::TOO_MANY_REQUESTS, "8"),
    };
    let refused_status = on_reject.status.unwrap_or(auto);
    let style = Style::new(on_reject);
    let instead = on_reject.degrade.as_ref().map(|degrade| match degrade {
        Degrade::Upstream(index) => Instead::Upstream(*index),
        Degrade::Canned(_) => Instead::Answer,
    });
    // Cannot fail: a structured string is visible ASCII.
    let mark = HeaderValue::from_bytes(&quoted(&limit.name)).expect("a structured string is visible ASCII");
    let mark = static_headers::value(&mark);
    let voices = |(place, rate): (usize, &String)| {
        let detail = describe::detail(limit, place);
        let say = |status, grpc_status, when, detail: String, message: &str| {
            let mut message = vec![Part::Text(message.to_owned())];
            if when != When::Never {
                message.extend(try_again());
            }
            let limit = Some((limit.name.clone(), rate.clone()));
            Voice::new(&style, &Matter { status, detail, message, limit, when, grpc_status })
        };
        let when = if concurrency { When::Soon } else { When::Exact };
        let many = if concurrency { "Too many requests in flight" } else { "Too many requests" };
        LimitVoices {
            limit: index,
            rate: place,
            refused: say(refused_status, grpc_auto, when, detail.clone(), many),
            too_costly: say(
                StatusCode::PAYLOAD_TOO_LARGE,
                "8",
                When::Never,
                format!("{detail}; this request costs more than the limit can ever let pass"),
                "The request costs more than the limit can ever let pass",
            ),
            missing_key: say(
                on_reject.status.unwrap_or(StatusCode::TOO_MANY_REQUESTS),
                "8",
                When::Never,
                format!("{detail}; the request lacks the key that is counted"),
                "The request lacks the key that is counted",
            ),
            queued_too_long: say(
                StatusCode::SERVICE_UNAVAILABLE,
                "14",
                When::Soon,
                format!("{detail}; the request waited in its queue as long as its location allows"),
                "The request waited too long",
            ),
            instead,
            mark: mark.clone(),
        }
    };
    rates.iter().enumerate().map(voices).collect()
}

fn rate_texts(numbers: &Algorithm) -> Vec<String> {
    match numbers {
        Algorithm::Concurrency { min: None, max } => vec![format!("{max} in flight")],
        Algorithm::Concurrency { min: Some(min), max } => vec![format!("{min} to {max} in flight")],
        _ => numbers.quotas().iter().map(|(rate, _)| rate_text(rate)).collect(),
    }
}

fn rate_text(rate: &crate::config::Rate) -> String {
    prepared::rate_text(rate.units, rate.period.as_nanos())
}

/// ", try again in 1 s"
fn try_again() -> [Part; 3] {
    [Part::Text(", try again in ".to_owned()), Part::Slot(Slot::RetryAfter), Part::Text(" s".to_owned())]
}

/// A name as the string of a structured field.
fn quoted(name: &str) -> Vec<u8> {
    let mut out = vec![b'"'];
    escape::structured_string(&mut out, name);
    out.push(b'"');
    out
}

fn sentence(detail: &str) -> String {
    let mut letters = detail.chars();
    letters.next().map(|first| first.to_ascii_uppercase().to_string() + letters.as_str()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
