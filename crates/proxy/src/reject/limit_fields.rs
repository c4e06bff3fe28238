//! The fields `RateLimit-Policy` and `RateLimit`, and the legacy `X-RateLimit-*`.

use std::cmp::Reverse;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use super::prepared_response::{intern_value, number_value, rate_text};
use super::quote_name;
use sluicegate_limit::{Decision, LimitOutcome};
use sluicegate_model::{Config, LimitId, Rate};

/// The fields of one chain, prepared as far as they do not depend on a request.
pub(crate) struct RateLimitFields {
    /// The items in chain order.
    items: Box<[PolicyItem]>,
    /// The policies of all items that apply to every tier.
    full_policy: Option<HeaderValue>,
    standard: bool,
    legacy: bool,
}

struct PolicyItem {
    limit: LimitId,
    rate: usize,
    /// Applies to callers of one tier only.
    is_tier_only: bool,
    /// `"per-ip";r=`
    head: Box<[u8]>,
    /// `"per-ip";q=20;w=2`
    policy: HeaderValue,
    /// Values by remaining units while one more fits; most responses use them.
    remaining_values: Box<[HeaderValue]>,
    /// Values with nothing remaining, by the seconds until one more fits, from 1.
    exhausted_values: Box<[HeaderValue]>,
    quota: u64,
    standard: bool,
    legacy: bool,
}

/// Values prepared per rate.
const REMAINING_PREPARED: u64 = 32;
const EXHAUSTED_PREPARED: u64 = 8;

/// More items would only make every response longer.
const ITEMS_MAX: usize = 4;

const POLICY_HEADER: HeaderName = HeaderName::from_static("ratelimit-policy");
const LIMIT_HEADER: HeaderName = HeaderName::from_static("ratelimit");
const LEGACY_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const LEGACY_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const LEGACY_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

impl RateLimitFields {
    /// `chain` lists the limits in the order they are judged; `style` returns for each whether it writes the (standard,
    /// legacy) fields.
    pub(super) fn new(
        config: &Config,
        chain: &[LimitId],
        style: impl Fn(LimitId) -> (bool, bool),
    ) -> RateLimitFields {
        let mut items = Vec::new();
        for &limit in chain {
            let (standard, legacy) = style(limit);
            if standard || legacy {
                items.extend(build_items(config, limit, standard, legacy));
            }
        }
        let mut written = items.iter().filter(|item| item.applies_to_all_tiers()).take(ITEMS_MAX).peekable();
        RateLimitFields {
            full_policy: written
                .peek()
                .is_some()
                .then(|| intern_value(&join_policies(written.map(|item| &item.policy)))),
            standard: items.iter().any(|item| item.standard),
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
        if !self.standard && !self.legacy {
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
        if let Some(item) = item.filter(|item| item.standard) {
            headers.insert(POLICY_HEADER, item.policy.clone());
            headers.insert(LIMIT_HEADER, item.limit_value(decision.remaining, reset_seconds(&decision)));
        }
    }

    fn write_all(
        &self,
        decisions: impl Iterator<Item = (LimitId, usize, Decision)>,
        headers: &mut HeaderMap,
    ) {
        let mut line: FieldBuffer<FIELD_MAX> = FieldBuffer::default();
        let mut written: SmallVec<[usize; ITEMS_MAX]> = SmallVec::new();
        let mut tightest: Option<(bool, u64, u64, u64)> = None;
        let mut next = 0;
        for (limit, rate, decision) in decisions {
            let matches = |item: &PolicyItem| item.limit == limit && item.rate == rate;
            // Decisions come in chain order, so the next item nearly always matches.
            let ahead = self.items.iter().skip(next).position(matches).map(|index| index + next);
            let Some(index) = ahead.or_else(|| self.items.iter().position(matches)) else { continue };
            next = index + 1;
            let item = &self.items[index];
            let reset = reset_seconds(&decision);
            if item.standard && written.len() < ITEMS_MAX {
                line.append_bytes(if written.is_empty() { b"" } else { b", " });
                append_counts(&mut line, &item.head, decision.remaining, reset);
                written.push(index);
            }
            // A limit that rejects comes first, however many units it has left for cheaper requests.
            let rejects = decision.outcome == LimitOutcome::Reject;
            let tightness = |(rejects, remaining, reset, _)| (rejects, Reverse(remaining), reset);
            let candidate = (rejects, decision.remaining, reset, item.quota);
            if item.legacy && tightest.is_none_or(|known| tightness(candidate) > tightness(known)) {
                tightest = Some(candidate);
            }
        }
        if let (false, Ok(line)) = (written.is_empty(), HeaderValue::from_bytes(line.as_bytes())) {
            headers.insert(POLICY_HEADER, self.policy_value(&written));
            headers.insert(LIMIT_HEADER, line);
        }
        if let Some((_, remaining, reset, quota)) = tightest {
            headers.insert(LEGACY_LIMIT, number_value(quota));
            headers.insert(LEGACY_REMAINING, number_value(remaining));
            headers.insert(LEGACY_RESET, number_value(reset));
        }
    }

    #[inline]
    fn policy_value(&self, written: &[usize]) -> HeaderValue {
        if let [only] = written {
            return self.items[*only].policy.clone();
        }
        let all = self
            .items
            .iter()
            .enumerate()
            .filter(|(_, item)| item.applies_to_all_tiers())
            .map(|(index, _)| index);
        match &self.full_policy {
            Some(full) if all.take(ITEMS_MAX).eq(written.iter().copied()) => full.clone(),
            _ => join_policies(written.iter().map(|index| &self.items[*index].policy)),
        }
    }
}

/// Whole seconds until one more unit fits, or until the rejected request passes, rounded up.
#[inline]
pub(super) fn reset_seconds(decision: &Decision) -> u64 {
    decision.shown_reset_ns().div_ceil(1_000_000_000)
}

impl PolicyItem {
    /// True if the item is written for callers of every tier.
    fn applies_to_all_tiers(&self) -> bool {
        self.standard && !self.is_tier_only
    }

    #[inline]
    fn limit_value(&self, remaining: u64, reset: u64) -> HeaderValue {
        let ready = match (remaining, reset) {
            (0, 1..) => usize::try_from(reset - 1).ok().and_then(|index| self.exhausted_values.get(index)),
            (_, 0) => usize::try_from(remaining).ok().and_then(|index| self.remaining_values.get(index)),
            _ => None,
        };
        ready.cloned().unwrap_or_else(|| render_item(&self.head, remaining, reset))
    }
}

fn render_item(head: &[u8], remaining: u64, reset: u64) -> HeaderValue {
    let mut line: FieldBuffer<ITEM_MAX> = FieldBuffer::default();
    append_counts(&mut line, head, remaining, reset);
    // A quoted name and digits are always a valid header value.
    HeaderValue::from_bytes(line.as_bytes()).unwrap_or(HeaderValue::from_static(""))
}

#[inline]
fn append_counts<const N: usize>(line: &mut FieldBuffer<N>, head: &[u8], remaining: u64, reset: u64) {
    line.append_bytes(head);
    line.append_bytes(itoa::Buffer::new().format(remaining).as_bytes());
    line.append_bytes(b";t=");
    line.append_bytes(itoa::Buffer::new().format(reset).as_bytes());
}

/// A buffer on the stack for a field value; four of the longest items fit.
struct FieldBuffer<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

const FIELD_MAX: usize = 768;
/// Bytes of a quoted name with `;r=`; [`ITEM_MAX`] adds the longest numbers.
const HEAD_MAX: usize = 112;
const ITEM_MAX: usize = HEAD_MAX + 48;

impl<const N: usize> Default for FieldBuffer<N> {
    fn default() -> FieldBuffer<N> {
        FieldBuffer { bytes: [0; N], length: 0 }
    }
}

impl<const N: usize> FieldBuffer<N> {
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

/// The items of one limit, one per rate of every tier; none for limits that are not a quota in time.
fn build_items(config: &Config, id: LimitId, standard: bool, legacy: bool) -> Vec<PolicyItem> {
    let limit = &config.limits[id];
    if limit.dry_run {
        return Vec::new();
    }
    let quotas = limit.algorithm_variants().enumerate().flat_map(|(variant, numbers)| {
        let quotas = numbers.rate_quotas();
        let several = quotas.len() > 1;
        quotas.into_iter().map(move |(rate, quota)| (variant, several, rate, quota))
    });
    let item = |(rate_index, (variant, several, rate, quota)): (usize, (usize, bool, Rate, u64))| {
        let mut name = limit.name.clone();
        if several {
            name = format!("{name};{}", rate_text(limit, &rate));
        }
        let mut head = quote_name(&name);
        let mut policy = head.clone();
        policy.extend_from_slice(format!(";q={quota};w={}", quota_window(&rate, quota).as_secs()).as_bytes());
        head.extend_from_slice(b";r=");
        // Cannot fail: `escape_structured_string` writes printable ASCII only, and the rest is digits.
        let policy = HeaderValue::from_bytes(&policy).expect("a structured field is visible ASCII");
        let granted = limit.variant_grant(variant).is_some();
        // Interned texts stay for ever, and operators may grant any number of numbers.
        let policy = if granted { policy } else { intern_value(&policy) };
        let (remaining_max, exhausted_max) =
            if granted { (0, 0) } else { (REMAINING_PREPARED, EXHAUSTED_PREPARED) };
        // An inline limit is named after its path, which may be too long for a field.
        let standard = standard && head.len() <= HEAD_MAX;
        let prepared = |remaining, reset| intern_value(&render_item(&head, remaining, reset));
        PolicyItem {
            limit: id,
            rate: rate_index,
            is_tier_only: variant > 0,
            policy,
            remaining_values: (0..remaining_max).map(|remaining| prepared(remaining, 0)).collect(),
            exhausted_values: (1..=exhausted_max).map(|reset| prepared(0, reset)).collect(),
            head: head.into(),
            quota,
            standard,
            legacy,
        }
    };
    quotas.enumerate().map(item).collect()
}

/// Whole seconds, rounded up, in which the rate lets `quota` units pass.
fn quota_window(rate: &Rate, quota: u64) -> Duration {
    let ns = u128::from(quota).saturating_mul(rate.period.as_nanos()).div_ceil(u128::from(rate.units.get()));
    Duration::from_secs(u64::try_from(ns.div_ceil(1_000_000_000)).unwrap_or(u64::MAX))
}
