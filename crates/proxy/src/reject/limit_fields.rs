//! The fields `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers), and `X-RateLimit-*`.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use super::header_edits::intern_value;
use super::prepared_response::{number_value, rate_text};
use super::quote_name;
use sluicegate_base::calendar::{Anchor, Calendar, CalendarUnit, CalendarWindow};
use sluicegate_base::clock::Now;
use sluicegate_limit::{Decision, LimitOutcome};
use sluicegate_model::{
    Algorithm, ChargeConfig, ChargedUnits, Config, Cost, LimitConfig, LimitId, Rate, RateLimitDraft,
    RateLimitHeaders,
};

/// The fields of one chain, prepared as far as they do not depend on a request.
pub(crate) struct RateLimitFields {
    /// The items in chain order, those of slots last, as decisions come.
    items: Box<[PolicyItem]>,
    /// The policies of all items that apply to every tier.
    full_policy: Option<HeaderValue>,
    /// No policy depends on the time.
    pub is_fixed: bool,
    drafts: bool,
    legacy: bool,
}

struct PolicyItem {
    limit: LimitId,
    rate: usize,
    /// Applies to callers of one tier only.
    is_tier_only: bool,
    /// `"per-ip";r=`
    head: Box<[u8]>,
    /// `"per-ip";q=20;w=2`; without `w` if there are windows of a calendar.
    policy: HeaderValue,
    windows: Option<CalendarPolicy>,
    /// Values by remaining units and seconds, each rendered at its first use; most responses use them.
    values: Box<[OnceLock<Box<ValueRow>>]>,
    /// What clients are told, like the remaining units: bytes, where KiB are counted.
    quota: u64,
    told_per_unit: u64,
    /// The time from one unit to as many as each request costs.
    further_ns: u64,
    is_slots: bool,
    draft: Option<RateLimitDraft>,
    legacy: bool,
}

/// The policy of windows of a calendar, which differ in their length.
struct CalendarPolicy {
    calendar: (CalendarUnit, Arc<Calendar>),
    /// The window that was told last, that of accounts with this date, and its policy.
    told: ArcSwapOption<(Option<Anchor>, CalendarWindow, HeaderValue)>,
}

/// Values for one number of remaining units, by seconds; the first has none.
type ValueRow = [OnceLock<HeaderValue>; SECONDS_PREPARED];

/// Values kept per rate.
const REMAINING_PREPARED: usize = 32;
const SECONDS_PREPARED: usize = 9;

/// The greatest integer of a structured field (RFC 9651, section 3.3.1).
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// More items would only make every response longer.
const ITEMS_MAX: usize = 4;

const POLICY_HEADER: HeaderName = HeaderName::from_static("ratelimit-policy");
const LIMIT_HEADER: HeaderName = HeaderName::from_static("ratelimit");
const LEGACY_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const LEGACY_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const LEGACY_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

impl RateLimitFields {
    /// `chain` lists the limits in the order they are judged; `style` returns the fields that each writes.
    pub(super) fn new(
        config: &Config,
        chain: &[LimitId],
        style: impl Fn(LimitId) -> RateLimitHeaders,
    ) -> RateLimitFields {
        let mut items: Vec<PolicyItem> =
            chain.iter().flat_map(|&limit| build_items(config, limit, style(limit))).collect();
        items.sort_by_key(|item| item.is_slots);
        let mut written = items.iter().filter(|item| item.applies_to_all_tiers()).take(ITEMS_MAX).peekable();
        let is_fixed = items.iter().all(|item| item.windows.is_none());
        RateLimitFields {
            full_policy: (is_fixed && written.peek().is_some())
                .then(|| intern_value(&join_policies(written.map(|item| &item.policy)))),
            is_fixed,
            drafts: items.iter().any(|item| item.draft.is_some()),
            legacy: items.iter().any(|item| item.legacy),
            items: items.into_boxed_slice(),
        }
    }

    /// Writes the fields into the head of any response, also of admitted requests. `decisions` are (limit, index of the
    /// rate, decision) in chain order; limits without these fields are left out.
    #[inline]
    pub(crate) fn write_fields(
        &self,
        decisions: impl IntoIterator<Item = (LimitId, usize, Decision)>,
        headers: &mut HeaderMap,
    ) {
        if !self.drafts && !self.legacy {
            return;
        }
        let mut decisions = decisions.into_iter();
        match (decisions.next(), decisions.next()) {
            (None, _) => {}
            (Some(only), None) if !self.legacy => self.write_single(only, headers),
            (first, second) => self.write_all(first.into_iter().chain(second).chain(decisions), headers),
        }
    }

    /// Writes a single decision, the most frequent case.
    #[inline]
    fn write_single(&self, (limit, rate, decision): (LimitId, usize, Decision), headers: &mut HeaderMap) {
        let item = self.items.iter().find(|item| item.limit == limit && item.rate == rate);
        if let Some(item) = item.filter(|item| item.draft.is_some()) {
            headers.insert(POLICY_HEADER, item.policy_now(decision.anchor));
            headers.insert(LIMIT_HEADER, item.limit_value(&decision));
        }
    }

    fn write_all(
        &self,
        decisions: impl Iterator<Item = (LimitId, usize, Decision)>,
        headers: &mut HeaderMap,
    ) {
        let mut line = FieldBuffer::<FIELD_MAX>::new();
        let mut written: SmallVec<[(usize, Option<Anchor>); ITEMS_MAX]> = SmallVec::new();
        let mut tightest: Option<(bool, u64, Option<u64>, u64)> = None;
        let mut next = 0;
        for (limit, rate, decision) in decisions {
            let matches = |item: &PolicyItem| item.limit == limit && item.rate == rate;
            // Decisions come in chain order, so the next item nearly always matches.
            let ahead = self.items.iter().skip(next).position(matches).map(|index| index + next);
            let Some(index) = ahead.or_else(|| self.items.iter().position(matches)) else { continue };
            next = index + 1;
            let item = &self.items[index];
            if item.draft.is_some() && written.len() < ITEMS_MAX {
                line.append_bytes(if written.is_empty() { b"" } else { b", " });
                item.append_counts(&mut line, decision.remaining, item.told_seconds(&decision));
                written.push((index, decision.anchor));
            }
            // A limit that rejects comes first, however many units it has left for cheaper requests.
            let rejects = decision.outcome == LimitOutcome::Reject;
            let tightness = |(rejects, remaining, seconds, _)| (rejects, Reverse(remaining), seconds);
            let seconds = item.window_seconds(&decision);
            let candidate = (rejects, item.told_units(decision.remaining), seconds, item.quota);
            if item.legacy && tightest.is_none_or(|known| tightness(candidate) > tightness(known)) {
                tightest = Some(candidate);
            }
        }
        if let (false, Ok(line)) = (written.is_empty(), HeaderValue::from_bytes(line.as_bytes())) {
            headers.insert(POLICY_HEADER, self.policy_value(&written));
            headers.insert(LIMIT_HEADER, line);
        }
        if let Some((_, remaining, seconds, quota)) = tightest {
            headers.insert(LEGACY_LIMIT, number_value(quota));
            headers.insert(LEGACY_REMAINING, number_value(remaining));
            if let Some(seconds) = seconds {
                headers.insert(LEGACY_RESET, number_value(seconds));
            }
        }
    }

    #[inline]
    fn policy_value(&self, written: &[(usize, Option<Anchor>)]) -> HeaderValue {
        if let [(only, anchor)] = written {
            return self.items[*only].policy_now(*anchor);
        }
        let all = (0..self.items.len()).filter(|&index| self.items[index].applies_to_all_tiers());
        match &self.full_policy {
            Some(full) if all.take(ITEMS_MAX).eq(written.iter().map(|(index, _)| *index)) => full.clone(),
            _ => {
                let policy =
                    |(index, anchor): &(usize, Option<Anchor>)| self.items[*index].policy_now(*anchor);
                let policies: Vec<HeaderValue> = written.iter().map(policy).collect();
                join_policies(policies.iter())
            }
        }
    }
}

/// Whole seconds, rounded up; a window is never shorter than one.
#[inline]
pub(super) fn whole_seconds(ns: u64) -> u64 {
    ns.div_ceil(1_000_000_000).max(1)
}

impl CalendarPolicy {
    /// The policy with the length of the present window of an account.
    fn policy_now(&self, policy: &HeaderValue, anchor: Option<Anchor>) -> HeaderValue {
        let at = Now::read_clock().to_unix_ns() / 1_000_000_000;
        let told = self.told.load();
        let is_told = |(of, told, _): &&(Option<Anchor>, CalendarWindow, HeaderValue)| {
            *of == anchor && told.begins <= at && at < told.ends
        };
        if let Some((.., known)) = told.as_deref().filter(is_told) {
            return known.clone();
        }
        let (unit, calendar) = &self.calendar;
        let window = calendar.window_at(*unit, at, anchor);
        let text = [policy.as_bytes(), format!(";w={}", window.ends - window.begins).as_bytes()].concat();
        // Cannot fail: both parts are visible ASCII.
        let value = HeaderValue::from_bytes(&text).unwrap_or_else(|_| policy.clone());
        self.told.store(Some(Arc::new((anchor, window, value.clone()))));
        value
    }
}

impl PolicyItem {
    /// The policy at present, for an account with this date.
    #[inline]
    fn policy_now(&self, anchor: Option<Anchor>) -> HeaderValue {
        match &self.windows {
            None => self.policy.clone(),
            Some(windows) => windows.policy_now(&self.policy, anchor),
        }
    }

    /// True if the item is written for callers of every tier.
    fn applies_to_all_tiers(&self) -> bool {
        self.draft.is_some() && !self.is_tier_only
    }

    /// The remaining units as clients are told them.
    #[inline]
    fn told_units(&self, units: u64) -> u64 {
        units.saturating_mul(self.told_per_unit).min(INTEGER_MAX)
    }

    /// The effective window in seconds; slots have none.
    #[inline]
    fn window_seconds(&self, decision: &Decision) -> Option<u64> {
        let ns = decision.window_ns().filter(|_| !self.is_slots)?;
        let is_exhausted = decision.remaining == 0 && decision.outcome != LimitOutcome::Reject;
        // A single unit is no use where each request costs more.
        let further_ns = if is_exhausted { self.further_ns } else { 0 };
        Some(whole_seconds(ns.saturating_add(further_ns).min(decision.full_ns.max(ns))))
    }

    /// The seconds in the form of the item.
    #[inline]
    fn told_seconds(&self, decision: &Decision) -> Option<u64> {
        match self.draft {
            Some(RateLimitDraft::Draft10) if decision.outcome != LimitOutcome::Reject => {
                Some(decision.reset_ns.div_ceil(1_000_000_000))
            }
            _ => self.window_seconds(decision),
        }
    }

    #[inline]
    fn limit_value(&self, decision: &Decision) -> HeaderValue {
        let (remaining, seconds) = (decision.remaining, self.told_seconds(decision));
        let index = seconds.map_or(Some(0), |seconds| usize::try_from(seconds.saturating_add(1)).ok());
        let row = usize::try_from(remaining).ok().and_then(|index| self.values.get(index));
        let kept = row.zip(index.filter(|index| *index < SECONDS_PREPARED));
        match kept.and_then(|(row, index)| row.get_or_init(Default::default).get(index)) {
            Some(kept) => kept.get_or_init(|| intern_value(&self.render_value(remaining, seconds))).clone(),
            None => self.render_value(remaining, seconds),
        }
    }

    fn render_value(&self, remaining: u64, seconds: Option<u64>) -> HeaderValue {
        let mut line = FieldBuffer::<ITEM_MAX>::new();
        self.append_counts(&mut line, remaining, seconds);
        // A quoted name and digits are always a valid header value.
        HeaderValue::from_bytes(line.as_bytes()).unwrap_or(HeaderValue::from_static(""))
    }

    #[inline]
    fn append_counts<const N: usize>(&self, line: &mut FieldBuffer<N>, remaining: u64, seconds: Option<u64>) {
        line.append_bytes(&self.head);
        line.append_bytes(itoa::Buffer::new().format(self.told_units(remaining)).as_bytes());
        if let Some(seconds) = seconds {
            line.append_bytes(b";t=");
            line.append_bytes(itoa::Buffer::new().format(seconds.min(INTEGER_MAX)).as_bytes());
        }
    }
}

/// A buffer on the stack for a field value; four of the longest items fit. A SmallVec would cost each request more.
struct FieldBuffer<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

const FIELD_MAX: usize = 768;
/// Bytes of a quoted name with `;r=`; [`ITEM_MAX`] adds the longest numbers.
const HEAD_MAX: usize = 112;
const ITEM_MAX: usize = HEAD_MAX + 48;

impl<const N: usize> FieldBuffer<N> {
    #[inline]
    fn new() -> FieldBuffer<N> {
        FieldBuffer { bytes: [0; N], length: 0 }
    }

    /// Appends `piece`, or nothing if it does not fit whole.
    #[inline]
    fn append_bytes(&mut self, piece: &[u8]) {
        if let Some(space) = self.bytes.get_mut(self.length..self.length + piece.len()) {
            space.copy_from_slice(piece);
            self.length += piece.len();
        }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

fn join_policies<'a>(policies: impl Iterator<Item = &'a HeaderValue>) -> HeaderValue {
    let policies: Vec<&[u8]> = policies.map(HeaderValue::as_bytes).collect();
    // Cannot fail: the parts are header values, and a comma and a space are allowed in one.
    HeaderValue::from_bytes(&policies.join(&b", "[..])).expect("header values joined by commas are one")
}

/// The items of one limit, one per rate of every tier; that of slots has no rate.
fn build_items(config: &Config, id: LimitId, style: RateLimitHeaders) -> Vec<PolicyItem> {
    let limit = &config.limits[id];
    if limit.dry_run || style == RateLimitHeaders::default() {
        return Vec::new();
    }
    let quotas = limit.algorithm_variants().enumerate().flat_map(|(variant, numbers)| {
        let quotas: Vec<(Option<Rate>, u64)> = match numbers {
            Algorithm::Concurrency { max, .. } => vec![(None, (*max).into())],
            _ => numbers.rate_quotas().into_iter().map(|(rate, quota)| (Some(rate), quota)).collect(),
        };
        let several = quotas.len() > 1;
        quotas.into_iter().map(move |(rate, quota)| (variant, several, rate, quota))
    });
    let item = |(rate_index, (variant, several, rate, quota)): (usize, (usize, bool, Option<Rate>, u64))| {
        let with_rate = |rate| format!("{};{}", limit.name, rate_text(limit, &rate));
        let name = rate.filter(|_| several).map_or(limit.name.clone(), with_rate);
        let mut head = quote_name(&name);
        // An inline limit is named after its path, which may be too long for a field.
        let draft = style.draft.filter(|_| head.len() <= HEAD_MAX - 3);
        let draft = draft.filter(|draft| rate.is_some() || *draft == RateLimitDraft::Draft11);
        let told_per_unit = if limit.counts_kib() { 1024 } else { 1 };
        let told_quota = quota.saturating_mul(told_per_unit).min(INTEGER_MAX);
        let mut policy = head.clone();
        policy.extend_from_slice(format!(";q={told_quota}").as_bytes());
        if draft == Some(RateLimitDraft::Draft11) {
            policy.extend_from_slice(unit_parameter(limit).as_bytes());
        }
        let calendar = rate.and_then(|rate| rate.calendar).zip(limit.calendar.clone());
        if let Some(rate) = rate.as_ref().filter(|_| calendar.is_none()) {
            policy.extend_from_slice(format!(";w={}", whole_seconds(rate.span_ns(quota))).as_bytes());
        }
        head.extend_from_slice(b";r=");
        // Cannot fail: `escape_structured_string` writes printable ASCII only, and the rest is digits.
        let policy = HeaderValue::from_bytes(&policy).expect("a structured field is visible ASCII");
        let granted = limit.variant_grant(variant).is_some();
        PolicyItem {
            limit: id,
            rate: rate_index,
            is_tier_only: variant > 0,
            // Interned texts stay for ever, and operators may grant any number of numbers.
            policy: if granted { policy } else { intern_value(&policy) },
            values: (0..if granted { 0 } else { REMAINING_PREPARED }).map(|_| OnceLock::new()).collect(),
            windows: calendar.map(|calendar| CalendarPolicy { calendar, told: ArcSwapOption::empty() }),
            head: head.into(),
            quota: told_quota,
            told_per_unit,
            further_ns: rate.map_or(0, |rate| further_ns(limit, &rate)),
            is_slots: rate.is_none(),
            draft,
            legacy: style.legacy && rate.is_some(),
        }
    };
    quotas.enumerate().map(item).collect()
}

/// The unit of a quota, unless it is requests. Only three units are registered; others have a parameter of our own.
fn unit_parameter(limit: &LimitConfig) -> Cow<'static, str> {
    if let Some(currency) = limit.currency() {
        return format!(";sluicegate-unit=\"millionths of {currency}\"").into();
    }
    if matches!(limit.algorithm, Algorithm::Concurrency { .. }) {
        return ";qu=\"concurrent-requests\"".into();
    }
    let (units, _) = ChargeConfig::counted_units(limit.charge.as_ref());
    let parameter = match units {
        [ChargedUnits::Bytes] => ";qu=\"content-bytes\"",
        [ChargedUnits::Llm(_)] => ";sluicegate-unit=\"tokens\"",
        [ChargedUnits::Request] if limit.cost == Cost::Units(1) => "",
        _ => ";sluicegate-unit=\"units\"",
    };
    parameter.into()
}

/// The time from one unit to as many as each request costs, where one time holds for all units; else no bound.
fn further_ns(limit: &LimitConfig, rate: &Rate) -> u64 {
    let is_even = matches!(limit.algorithm, Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. });
    match limit.cost {
        Cost::Units(cost @ 2..) if is_even && limit.warm_up.is_none() => rate.span_ns(cost - 1),
        Cost::Units(2..) => u64::MAX,
        _ => 0,
    }
}
