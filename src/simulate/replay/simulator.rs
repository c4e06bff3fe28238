//! Judges the requests of a log by one configuration: the function of production, counters of its own, a held clock.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use bytes::Bytes;
use http::header::{HOST, HeaderMap, HeaderValue};
use http::{Method, Uri, Version};
use http_body::SizeHint;
use smallvec::SmallVec;

use super::scope::{ACCOUNT_HEADER, ReplayScope, TIER_HEADER};
use super::tally::{DemandedLimit, ReplayTally};
use super::waits::{EndedWait, WaitRoom};
use crate::operate::explain;
use crate::simulate::log::LoggedRequest;
use crate::simulate::log::record::{LogRecord, TextField};
use sluicegate_admission::chain::{
    self, ChainVerdict, ChainedLimit, Decisions, LimitDemand, PendingStore, RateDecision,
};
use sluicegate_base::clock::{self, Now};
use sluicegate_http::request::client::Client;
use sluicegate_http::request::location;
use sluicegate_limit::{Limit, LimitOutcome, Units};
use sluicegate_model::{LimitId, ListenConfig, LocationId, Scheme};
use sluicegate_proxy::gateway::Gateway;
use sluicegate_proxy::judge::{self, Caller, ChargeFault, JudgeMode, RequestFacts, RequestHead};

/// A gateway that judges requests of the past and forwards nothing.
pub struct Simulator {
    /// The gateway that judges, with counters of its own.
    pub gateway: Gateway,
    /// The counts of the requests so far.
    pub tally: ReplayTally,
    /// The limits that are taken out, and why.
    pub not_judged: Vec<(LimitId, String)>,
    /// Sentences about other unjudged parts.
    pub notes: Vec<String>,
    scheme: Scheme,
    listener: Option<String>,
    /// The headers of the request, kept for their memory.
    headers: HeaderMap,
    last_host: Option<HeaderValue>,
    decisions: Decisions,
    asked: Vec<DemandedLimit>,
    room: WaitRoom,
    now: Now,
}

/// The verdict on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayedVerdict {
    /// `None`: it was rejected for another reason than a limit.
    pub outcome: Option<LimitOutcome>,
    /// The same, but as if the limits of dry runs acted.
    pub with_dry_runs: Option<LimitOutcome>,
    /// The limit that rejects it, or makes it wait, with the index of its key.
    pub by: Option<(LimitId, Option<u32>)>,
}

/// Charges the limits, and notes which ones are asked.
struct ReplayMode<'s> {
    asked: &'s mut Vec<DemandedLimit>,
    tally: &'s mut ReplayTally,
    /// The demands on limits with steps, by their indices in the chain.
    quotas: SmallVec<[(usize, Units); 1]>,
}

impl<'r> JudgeMode<'r> for ReplayMode<'_> {
    type Chain = chain::Charge;

    fn try_count_in_flight(&mut self, _: &Gateway) -> bool {
        true
    }

    #[inline]
    fn observe_demand(
        &mut self,
        _: &Gateway,
        _: &RequestFacts<'r>,
        caller: &Caller<'_>,
        (index, limit): (usize, &Limit),
        demand: &Result<LimitDemand, ChargeFault>,
    ) {
        let key = match demand {
            Ok(LimitDemand::Units(units) | LimitDemand::Shared(units, _)) => {
                self.tally.limits[limit.id.0].key_index(units.key.id, &caller.subject)
            }
            Ok(LimitDemand::MissingKey) => None,
            Ok(LimitDemand::Skip) | Err(_) => return,
        };
        let outcome = match demand {
            Ok(LimitDemand::MissingKey) => LimitOutcome::Reject,
            _ => LimitOutcome::Admit,
        };
        self.asked.push(DemandedLimit { limit: limit.id, key, outcome });
        if let (Ok(LimitDemand::Units(units)), false) = (demand, limit.config.steps.is_empty()) {
            self.quotas.push((index, *units));
        }
    }
}

/// Counts the steps that keys reach.
fn note_steps(limits: &[ChainedLimit], decisions: &[RateDecision], quotas: &[(usize, Units)]) {
    for (index, units) in quotas {
        let limit = &limits[*index];
        let own = |judged: &&RateDecision| usize::from(judged.limit_index) == *index && !judged.dry_run;
        for judged in decisions.iter().filter(own) {
            let is_refused = judged.decision.outcome == LimitOutcome::Reject;
            limit.note_steps(judged.rate.into(), units, Some("key"), is_refused);
        }
        for note in limit.step_notes.take() {
            let fired = limit.config.steps_in(note.fired);
            fired.for_each(|step| limit.step_notes.count_told(step.at));
        }
    }
}

impl Simulator {
    /// # Errors
    /// As [`Gateway::build`].
    pub fn new(scope: ReplayScope) -> io::Result<Simulator> {
        let ReplayScope { config, not_judged, notes } = scope;
        let gateway = explain::build_offline(config)?;
        let first = gateway.config.listen.first();
        Ok(Simulator {
            tally: ReplayTally::new(&gateway.config),
            not_judged,
            notes,
            scheme: first.map_or(Scheme::Http, ListenConfig::scheme),
            listener: first.and_then(|listener| listener.name.clone()),
            headers: HeaderMap::new(),
            last_host: None,
            decisions: Decisions::new(),
            asked: Vec::new(),
            room: WaitRoom::default(),
            now: Now(0),
            gateway,
        })
    }

    /// True if the limit called `name` is left out, because the log lacks its facts.
    pub fn is_unjudged(&self, name: &[u8]) -> bool {
        let limits = &self.gateway.limits;
        self.not_judged.iter().any(|(limit, _)| limits[limit.0].name.as_bytes() == name)
    }

    /// Judges a request that arrived `arrival_ns` after 1970; the times must not go back.
    pub fn judge_request(&mut self, request: &LoggedRequest<'_>, arrival_ns: u64) -> ReplayedVerdict {
        let now = self.now.max(Now(arrival_ns));
        self.now = now;
        self.pass_time(now);
        clock::hold_clock(Some(now));
        self.asked.clear();
        self.decisions.clear();
        self.tally.requests += 1;
        self.tally.timeline.part_mut(now.0).requests += 1;
        let verdict = match self.read_head(request) {
            Some((method, uri)) => self.judge_head(request.record, &method, uri),
            None => ReplayedVerdict { outcome: None, with_dry_runs: None, by: None },
        };
        self.count_verdict(&verdict);
        verdict
    }

    /// Lets those that still wait go, each at its time.
    pub fn finish(&mut self) {
        self.pass_time(Now(u64::MAX - 1));
    }

    fn pass_time(&mut self, until: Now) {
        if !self.room.is_empty() {
            let Simulator { room, tally, .. } = self;
            room.pass_time(until, &mut |ended| note_ended(tally, &ended));
        }
    }

    /// The method and the target; the headers are collected. `None`: no server would take such a request.
    fn read_head(&mut self, request: &LoggedRequest<'_>) -> Option<(Method, Uri)> {
        let LoggedRequest { record, names, .. } = request;
        let method = record.text(TextField::Method).map_or(Ok(Method::GET), Method::from_bytes).ok()?;
        let target = record.text(TextField::Target)?;
        let uri = match record.text(TextField::Query) {
            Some(query) if !target.contains(&b'?') => {
                Uri::from_maybe_shared(Bytes::from([target, b"?", query].concat()))
            }
            _ => Uri::try_from(target),
        };
        self.headers.clear();
        for (index, value) in record.headers() {
            if let (Some(name), Ok(value)) = (names.get(index), HeaderValue::from_bytes(value))
                && *name != HOST
            {
                self.headers.append(name, value);
            }
        }
        for (field, name) in [(TextField::Account, ACCOUNT_HEADER), (TextField::Tier, TIER_HEADER)] {
            if let Some(Ok(value)) = record.text(field).map(HeaderValue::from_bytes) {
                self.headers.insert(name, value);
            }
        }
        let host = record.text(TextField::Host).unwrap_or(b"localhost");
        if self.last_host.as_ref().is_none_or(|last| last.as_bytes() != host) {
            self.last_host = HeaderValue::from_bytes(host).ok();
        }
        if let Some(host) = &self.last_host {
            self.headers.insert(HOST, host.clone());
        }
        Some((method, uri.ok()?))
    }

    fn judge_head(&mut self, record: &LogRecord, method: &Method, mut uri: Uri) -> ReplayedVerdict {
        let authority = if uri.scheme().is_some() { location::take_authority(&mut uri) } else { None };
        let Simulator { gateway, headers, decisions, asked, tally, .. } = self;
        let ip = record.ip.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)).to_canonical();
        let head = RequestHead {
            method,
            uri: &uri,
            version: Version::HTTP_11,
            headers,
            authority: authority.as_ref(),
            client: Client { ip, trusted_peer: false },
            scheme: match record.text(TextField::Scheme) {
                Some(b"https") => Scheme::Https,
                Some(b"http") => Scheme::Http,
                _ => self.scheme,
            },
            listener: self.listener.as_deref(),
            received: self.now,
            is_websocket_connect: false,
        };
        let mut facts = RequestFacts::new(head, SizeHint::with_exact(0), None);
        let mut verdict: Option<ChainVerdict<PendingStore<chain::Charge>>> = None;
        let mut mode = ReplayMode { asked, tally, quotas: SmallVec::new() };
        let judged = judge::judge(gateway, &mut facts, &mut mode, decisions, &mut verdict);
        let quotas = mode.quotas;
        let route = facts.route();
        let is_served = facts.is_preflight() || route.is_some();
        let limits = gateway.chain_for(route).chain.limits();
        note_steps(limits, decisions, &quotas);
        for decision in chain::strictest_by_limit(decisions) {
            let limit = limits[usize::from(decision.limit_index)].id;
            if let Some(one) = asked.iter_mut().find(|one| one.limit == limit) {
                one.outcome = one.outcome.max(decision.decision.outcome);
            }
        }
        let hold_ns = record.duration_ns.unwrap_or(0).saturating_sub(record.waited_ns);
        let faulty = judged.is_err() || !is_served;
        let (outcome, by) = self.settle_verdict(verdict, route, hold_ns);
        let outcome = (!faulty || outcome == LimitOutcome::Reject && judged.is_ok()).then_some(outcome);
        let strictest = self.asked.iter().map(|one| one.outcome).max();
        let by =
            by.map(|limit| (limit, self.asked.iter().find(|one| one.limit == limit).and_then(|one| one.key)));
        ReplayedVerdict {
            outcome,
            with_dry_runs: outcome.map(|own| strictest.map_or(own, |all| all.max(own))),
            by,
        }
    }

    /// The outcome of the chain, and the limit that decides it. An admitted request holds its slots from now on.
    fn settle_verdict(
        &mut self,
        verdict: Option<ChainVerdict<PendingStore<chain::Charge>>>,
        route: Option<LocationId>,
        hold_ns: u64,
    ) -> (LimitOutcome, Option<LimitId>) {
        let Simulator { gateway, room, asked, tally, now, .. } = self;
        match verdict {
            // No limit is counted in a store.
            None | Some(ChainVerdict::AskStore(_)) => (LimitOutcome::Admit, None),
            Some(ChainVerdict::Admit(mut permit)) => {
                permit.keep_charges();
                let mut holds_slots = false;
                let limits = gateway.chain_for(route).chain.limits();
                for slots in permit.slot_decisions() {
                    holds_slots = true;
                    let limit = limits[usize::from(slots.limit_index)].id;
                    for one in asked.iter_mut().filter(|one| one.limit == limit) {
                        one.outcome = one.outcome.max(slots.decision.outcome);
                    }
                }
                if holds_slots {
                    room.add_holding(permit, *now, hold_ns);
                }
                (LimitOutcome::Admit, None)
            }
            Some(ChainVerdict::Reject(rejection)) => {
                let limit = rejection.limit.as_ref().map(|limit| limit.id);
                set_outcome(asked, limit, LimitOutcome::Reject);
                room.look_at_woken(*now, &mut |ended| note_ended(tally, &ended));
                (LimitOutcome::Reject, limit)
            }
            Some(ChainVerdict::Wait(queued)) => {
                let limit = queued.limit().id;
                let mut outcome = LimitOutcome::Wait;
                set_outcome(asked, Some(limit), outcome);
                let timeout = route.and_then(|route| gateway.config.locations[route.0].timeout);
                let mut note_own = |ended: EndedWait| match ended.rejected_by {
                    None => tally.waits.count(ended.waited_ns),
                    Some(_) => outcome = LimitOutcome::Reject,
                };
                room.add_waiting(queued, *now, timeout, hold_ns, asked, &mut note_own);
                set_outcome(asked, Some(limit), outcome);
                room.look_at_woken(*now, &mut |ended| note_ended(tally, &ended));
                (outcome, Some(limit))
            }
        }
    }

    fn count_verdict(&mut self, verdict: &ReplayedVerdict) {
        let Simulator { tally, asked, now, .. } = self;
        tally.count_asked(asked, !matches!(verdict.outcome, Some(LimitOutcome::Admit | LimitOutcome::Wait)));
        let part = tally.timeline.part_mut(now.0);
        match verdict.outcome {
            None => tally.faults += 1,
            Some(LimitOutcome::Admit) => tally.admitted += 1,
            Some(LimitOutcome::Wait) => {
                part.waited += 1;
                (tally.admitted, tally.waited) = (tally.admitted + 1, tally.waited + 1);
            }
            Some(LimitOutcome::Reject) => {
                part.rejected += 1;
                tally.rejected += 1;
            }
        }
    }
}

fn set_outcome(asked: &mut [DemandedLimit], limit: Option<LimitId>, outcome: LimitOutcome) {
    for one in asked.iter_mut().filter(|one| Some(one.limit) == limit) {
        one.outcome = outcome;
    }
}

fn note_ended(tally: &mut ReplayTally, ended: &EndedWait) {
    match ended.rejected_by {
        None => tally.waits.count(ended.waited_ns),
        Some(limit) => tally.count_late_rejection(&ended.asked, limit, ended.arrival.0),
    }
}
