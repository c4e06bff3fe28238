//! The step of the store, as `script/lease.lua` does it, in the same arithmetic.

use std::collections::{BTreeMap, VecDeque};

use super::super::{LeaseAnswer, LeaseCall, LeaseTerms, LeaseWindows};

/// Microseconds for which the number of the last call of a node outlives its lease.
const NUMBER_KEPT_US: f64 = 600_000_000.0;
/// A rate is leased to gateways that ask for so many units a term.
const RATE_UNITS: f64 = 8.0;

/// A fault that a test must notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreFlaw {
    /// A node is dropped before the refill for the time of its lease.
    ExpiryBeforeRefill,
    /// A node returns what the record does not hold.
    BackBeyondRecord,
    /// The depth of a rate that the node may still use does not count any more.
    DepthWithAnswer,
    /// A new rate counts instead of the old one, before the node has it.
    RateWithAnswer,
    /// A lease lasts beyond its window.
    LeaseBeyondWindow,
}

/// The state of one key.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct StoreModel {
    /// Free ticks.
    pub(super) free: f64,
    /// Ticks in hands: of leases, and of the depths of rates.
    pub(super) out: f64,
    pub(super) at: f64,
    /// The sum of the rates that count.
    pub(super) rates: f64,
    /// The sum of demands.
    pub(super) demands: f64,
    /// The end of the present window, and the units of those before that count, newest first.
    pub(super) window: f64,
    pub(super) counts: VecDeque<f64>,
    pub(super) nodes: BTreeMap<u64, NodeRecord>,
    pub(super) flaw: Option<StoreFlaw>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct NodeRecord {
    /// Leased ticks.
    held: f64,
    /// The rate and depth of the last answer, and those that count.
    rate: f64,
    depth: f64,
    rate_counted: f64,
    depth_counted: f64,
    /// The end of the record; when it has ended, the moment when its number is forgotten.
    ends: f64,
    has_ended: bool,
    number: u64,
    demand: f64,
}

// === impl StoreModel ===

impl StoreModel {
    pub(super) fn full(terms: &LeaseTerms, at: u64) -> StoreModel {
        let counts = vec![0.0; terms.windows.map_or(0, |windows| windows.earlier as usize)].into();
        StoreModel { free: terms.depth as f64, at: at as f64, counts, ..StoreModel::default() }
    }

    pub(super) fn answer_call(
        &mut self,
        terms: &LeaseTerms,
        now: u64,
        node: u64,
        call: &LeaseCall,
    ) -> LeaseAnswer {
        let now = now as f64;
        self.end_leases(terms, now);
        self.refill(terms, now);
        self.advance_window(terms, now);
        let mut own = self.nodes.get(&node).copied().unwrap_or_default();
        if call.number <= own.number {
            return self.answer_of(terms, &own, (0, 1));
        }
        self.take_back(&mut own, call);
        if call.owed != 0 && call.owed_since > own.number {
            self.charge_owed(terms, call.owed as f64);
        }
        if call.applied == own.number && own.ends > 0.0 && !own.has_ended {
            self.give_back(terms, call, now - own.ends + (terms.hold + terms.guard) as f64);
        }
        let (granted, lacking) = self.grant_pending(terms, call);
        self.demands += call.demand as f64 - own.demand;
        own.demand = call.demand as f64;
        self.lease_units(terms, &mut own, call);
        self.lease_rate(terms, &mut own);
        own.ends = now + (terms.hold + terms.guard) as f64;
        if terms.windows.is_some() && self.flaw != Some(StoreFlaw::LeaseBeyondWindow) {
            own.ends = own.ends.min(self.window);
        }
        (own.number, own.has_ended) = (call.number, false);
        self.nodes.insert(node, own);
        self.answer_of(terms, &own, (granted, lacking))
    }

    /// `lacking`: the units of the first request without a grant, or one.
    fn answer_of(&self, terms: &LeaseTerms, own: &NodeRecord, (granted, lacking): (u64, u32)) -> LeaseAnswer {
        let [held, rate, depth, left] = [own.held, own.rate, own.depth, self.free].map(|ticks| ticks as u64);
        let Some(LeaseWindows { width, .. }) = terms.windows else {
            let rest = terms.hold;
            let debt_wait = (f64::from(lacking) * terms.unit as f64 - self.free) / terms.rate as f64;
            let wait = if self.free < 0.0 { debt_wait as u64 } else { 0 };
            return LeaseAnswer {
                held,
                rate,
                depth,
                granted,
                left,
                rest,
                window: 0,
                wait,
                asks_home: false,
                is_home_asked: false,
            };
        };
        let rest = match self.flaw {
            Some(StoreFlaw::LeaseBeyondWindow) => terms.hold,
            _ => (self.window - self.at) as u64,
        };
        let (mut lacking, mut wait) = (f64::from(lacking) - self.free, rest);
        for count in self.counts.iter().rev() {
            lacking -= count;
            if lacking <= 0.0 {
                break;
            }
            wait += width;
        }
        LeaseAnswer {
            held,
            rate,
            depth,
            granted,
            left,
            rest,
            window: self.window as u64,
            wait,
            asks_home: false,
            is_home_asked: false,
        }
    }

    /// The ticks of the present window if nothing were used, or of a bucket.
    fn depth_now(&self, terms: &LeaseTerms) -> f64 {
        terms.depth as f64 - self.counts.iter().sum::<f64>()
    }

    fn advance_window(&mut self, terms: &LeaseTerms, now: f64) {
        let Some(LeaseWindows { width, is_aligned, .. }) = terms.windows else { return };
        let (width, is_unused) = (width as f64, self.free == self.depth_now(terms) && self.out == 0.0);
        if now < self.window && (is_aligned || !is_unused) {
            return;
        }
        let mut used = self.depth_now(terms) - self.free;
        let mut begun = self.window;
        while begun <= now && begun > now - (self.counts.len() as f64 + 1.0) * width {
            self.counts.push_front(std::mem::take(&mut used));
            self.counts.pop_back();
            begun += width;
        }
        if begun <= now {
            self.counts.iter_mut().for_each(|count| *count = 0.0);
        }
        self.free = self.depth_now(terms);
        self.window = now + width - if is_aligned { now % width } else { 0.0 };
    }

    /// Drops the nodes whose time has come, in the order of their ends.
    fn end_leases(&mut self, terms: &LeaseTerms, now: f64) {
        if self.flaw == Some(StoreFlaw::ExpiryBeforeRefill) {
            return self.end_at_once(now);
        }
        loop {
            let ended = self.nodes.iter().filter(|(_, own)| !own.has_ended && own.ends <= now);
            let first = ended.min_by(|(_, one), (_, other)| one.ends.total_cmp(&other.ends));
            let Some(node) = first.map(|(node, _)| *node) else { break };
            let ends = self.nodes[&node].ends;
            self.refill(terms, ends);
            self.drop_node(node);
        }
        self.nodes.retain(|_, own| !own.has_ended || own.ends > now);
    }

    fn end_at_once(&mut self, now: f64) {
        let ended = self.nodes.iter().filter(|(_, own)| !own.has_ended && own.ends <= now);
        let ended: Vec<u64> = ended.map(|(node, _)| *node).collect();
        ended.into_iter().for_each(|node| self.drop_node(node));
    }

    fn drop_node(&mut self, node: u64) {
        let own = self.nodes[&node];
        self.out -= own.held + own.depth_counted;
        self.rates -= own.rate_counted;
        self.demands -= own.demand;
        let kept = NodeRecord {
            number: own.number,
            has_ended: true,
            ends: own.ends + NUMBER_KEPT_US,
            ..NodeRecord::default()
        };
        self.nodes.insert(node, kept);
    }

    fn refill(&mut self, terms: &LeaseTerms, to: f64) {
        if to <= self.at {
            return;
        }
        let rate = (terms.rate as f64 - self.rates).max(0.0);
        let most = (self.depth_now(terms) - self.out).max(self.free);
        self.free = (self.free + rate * (to - self.at)).min(most);
        self.at = to;
    }

    /// What the node does not hold any more, as far as the record knows of it.
    fn take_back(&mut self, own: &mut NodeRecord, call: &LeaseCall) {
        let (held, keep) = (call.held as f64, call.keep as f64);
        let (kept, back) = match self.flaw {
            Some(StoreFlaw::BackBeyondRecord) => (keep.min(own.held), (held - keep).max(0.0)),
            _ => (keep.min(own.held), (held.min(own.held) - keep.min(own.held)).max(0.0)),
        };
        self.out -= own.held - kept;
        self.free += back;
        own.held = kept;
        if call.applied == own.number {
            self.count_rate(own, own.rate, own.depth);
        }
        if call.stopped {
            self.count_rate(own, 0.0, 0.0);
        }
    }

    fn count_rate(&mut self, own: &mut NodeRecord, rate: f64, depth: f64) {
        self.rates += rate - own.rate_counted;
        self.out += depth - own.depth_counted;
        (own.rate_counted, own.depth_counted) = (rate, depth);
    }

    fn charge_owed(&mut self, terms: &LeaseTerms, owed: f64) {
        self.free = (self.free - owed).max(-(terms.depth as f64));
    }

    /// Less what the bucket has regained since the charge; `since_last` is the time since the last call.
    fn give_back(&mut self, terms: &LeaseTerms, call: &LeaseCall, since_last: f64) {
        let regained = terms.rate as f64 * (call.refund_age as f64 + since_last);
        let most = (self.depth_now(terms) - self.out).max(self.free);
        self.free = (self.free + (call.refund as f64 - regained).max(0.0)).min(most);
    }

    fn grant_pending(&mut self, terms: &LeaseTerms, call: &LeaseCall) -> (u64, u32) {
        let mut granted = 0;
        for run in &call.pending {
            let ticks = f64::from(run.cost) * terms.unit as f64;
            let count = (self.free / ticks).floor().max(0.0).min(run.count.into());
            self.free -= count * ticks;
            granted += count as u64;
            if count < run.count.into() {
                return (granted, run.cost);
            }
        }
        (granted, 1)
    }

    fn lease_units(&mut self, terms: &LeaseTerms, own: &mut NodeRecord, call: &LeaseCall) {
        let (unit, most) = (terms.unit as f64, terms.leased_max as f64);
        if self.demands <= 0.0 {
            return;
        }
        let mut want = call.want as f64;
        let (rest, term) = (self.window - self.at, terms.term as f64);
        if terms.windows.is_some() && rest < term {
            want = (want * rest / term).floor();
        }
        let mut units = (want - own.held).min(self.free).min(most - self.out);
        if terms.windows.is_some() {
            units = units.min(self.free * own.demand / self.demands / 2.0);
        }
        units = units.min((most * own.demand / self.demands).floor() - own.held);
        let units = (units / unit).floor().max(0.0) * unit;
        self.free -= units;
        self.out += units;
        own.held += units;
    }

    /// Until the node has the rate, the larger of the old and the new one counts.
    fn lease_rate(&mut self, terms: &LeaseTerms, own: &mut NodeRecord) {
        (own.rate, own.depth) = self.offer_rate(terms, own).unwrap_or_default();
        let (rate, depth) = (own.rate.max(own.rate_counted), own.depth.max(own.depth_counted));
        match self.flaw {
            Some(StoreFlaw::RateWithAnswer) => self.count_rate(own, own.rate, depth),
            Some(StoreFlaw::DepthWithAnswer) => self.count_rate(own, rate, own.depth),
            _ => self.count_rate(own, rate, depth),
        }
    }

    fn offer_rate(&self, terms: &LeaseTerms, own: &NodeRecord) -> Option<(f64, f64)> {
        let (unit, term) = (terms.unit as f64, terms.term as f64);
        if self.free < 0.0 || self.free >= unit || own.demand <= 0.0 {
            return None;
        }
        let share = (terms.rate as f64 * own.demand / self.demands).floor();
        let rate = share.min(terms.rate as f64 - (self.rates - own.rate_counted));
        let depth = unit
            .max((rate * term / 2.0).floor())
            .min(terms.leased_max as f64 - self.out + own.depth_counted)
            .min(self.depth_now(terms) - self.free - self.out + own.depth_counted);
        let depth = (depth / unit).floor() * unit;
        (share * term >= RATE_UNITS * unit && rate > 0.0 && depth >= unit).then_some((rate, depth))
    }

    /// True if this call, or a later one of the node, was answered before.
    pub(super) fn knows_call(&self, node: u64, number: u64) -> bool {
        self.nodes.get(&node).is_some_and(|own| number <= own.number)
    }

    /// All of the state, exactly.
    pub(super) fn digest(&self) -> Vec<u64> {
        let mut digest = vec![self.free, self.out, self.at, self.rates, self.demands, self.window];
        digest.extend(&self.counts);
        for (node, own) in &self.nodes {
            let NodeRecord { held, rate, depth, rate_counted, depth_counted, ends, demand, .. } = *own;
            digest.extend([held, rate, depth, rate_counted, depth_counted, ends, demand]);
            digest.extend([*node, own.number, own.has_ended.into()].map(|number| number as f64));
        }
        digest.into_iter().map(f64::to_bits).collect()
    }

    /// Ticks that count, whoever has them.
    pub(super) fn counted(&self) -> f64 {
        self.free + self.out + self.counts.iter().sum::<f64>()
    }
}
