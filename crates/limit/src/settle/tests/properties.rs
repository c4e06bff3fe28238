//! Random reservations, settled early and late, below and far above what was reserved, against the plain models.

use proptest::prelude::*;

use super::plain::{Kind, Model};
use super::*;

/// A step of a test, after a gap in ‰ of the period, and ns more.
#[derive(Debug, Clone, Copy)]
enum Step {
    Reserve {
        units: u64,
    },
    /// Settles one of the open reservations to so many units, in % of what it reserved, and more.
    Settle {
        which: usize,
        percent: u64,
        more: u64,
    },
    Peek {
        units: u64,
    },
    Clear,
    Reload {
        max: u64,
    },
    Restart,
}

fn any_step() -> impl Strategy<Value = Step> {
    let percent = prop_oneof![Just(0), Just(100), 0..100u64, 100..400u64];
    let more = prop_oneof![4 => Just(0), 1 => 0..40u64];
    prop_oneof![
        8 => prop_oneof![Just(1), 1..9u64].prop_map(|units| Step::Reserve { units }),
        6 => (any::<usize>(), percent, more).prop_map(|(which, percent, more)| Step::Settle { which, percent, more }),
        2 => (1..9u64).prop_map(|units| Step::Peek { units }),
        1 => Just(Step::Clear),
    ]
}

fn any_step_with_reloads() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => any_step(),
        1 => (1..12u64).prop_map(|max| Step::Reload { max }),
        1 => Just(Step::Restart),
    ]
}

fn any_steps(step: impl Strategy<Value = Step>) -> impl Strategy<Value = Vec<(u64, u64, Step)>> {
    let share = prop_oneof![4 => Just(0), 3 => 0..120u64, 1 => 0..2500u64, 1 => Just(1000), 1 => Just(100)];
    proptest::collection::vec((share, 0..3u64, step), 1..120)
}

fn any_kind() -> impl Strategy<Value = Kind> {
    let buckets = prop_oneof![Just(10), Just(60), 1..60u64];
    prop_oneof![
        Just(Kind::TokenBucket),
        Just(Kind::FixedWindow),
        buckets.prop_map(|buckets| Kind::SlidingWindow { buckets }),
        Just(Kind::SlidingLog),
    ]
}

/// The algorithm of a model; a bucket is as deep as its units in a period.
fn algorithm_of(kind: Kind, max: u64, period: u64) -> Algorithm {
    let rates = vec![rate(max, period)];
    match kind {
        Kind::TokenBucket => {
            let rate = rate(1, period / max);
            Algorithm::TokenBucket { rates: vec![TokenBucketRate { rate, burst: max }] }
        }
        Kind::FixedWindow => Algorithm::FixedWindow { rates, align: WindowAlign::First },
        Kind::SlidingWindow { buckets } => Algorithm::SlidingWindow { rates, buckets: buckets as u8 },
        Kind::SlidingLog => Algorithm::SlidingLog { rates },
    }
}

/// A limit beside its model.
struct Twin {
    limit: Limit,
    model: Model,
    charges: Vec<ChargeRecord>,
    kind: Kind,
    max: u64,
    period: u64,
}

impl Twin {
    fn new(kind: Kind, max: u64, period: u64) -> Twin {
        let limit = limit_of(algorithm_of(kind, max, period));
        Twin { limit, model: Model::new(kind, max, period), charges: vec![], kind, max, period }
    }

    /// The indices of open reservations.
    fn open(&self) -> Vec<usize> {
        (0..self.charges.len()).filter(|id| self.model.open[*id].is_some()).collect()
    }

    fn run(&mut self, at: u64, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Reserve { units } => {
                let units = units.min(self.max);
                let expected = self.model.decide(START + at, units);
                prop_assert_eq!(peek(&self.limit, at, units), expected, "peek at {}", at);
                match reserve(&self.limit, at, units) {
                    Ok(charge) => {
                        prop_assert_eq!(expected.outcome, LimitOutcome::Admit, "at {}", at);
                        self.model.reserve(START + at, units);
                        self.charges.push(charge);
                    }
                    Err(decision) => prop_assert_eq!(decision, expected, "at {}", at),
                }
            }
            Step::Settle { which, percent, more } => {
                let open = self.open();
                if open.is_empty() {
                    return Ok(());
                }
                let id = open[which % open.len()];
                let reserved = self.model.open[id].map_or(0, |one| one.units);
                let actual = reserved * percent / 100 + more;
                let forgiven = settle(&self.limit, at, (reserved, actual), &self.charges[id]);
                prop_assert_eq!(forgiven, self.model.settle(START + at, id, actual), "at {}", at);
            }
            // The model of a bucket does not know when converted units were charged.
            Step::Clear if self.kind == Kind::TokenBucket && self.model.has_earlier_epochs() => {}
            Step::Clear => {
                self.limit.clear_key(0, &key(1), Now(START + at));
                self.model.clear(START + at);
            }
            Step::Reload { max } => {
                // The time of a unit stays; windows keep their period.
                let period =
                    if self.kind == Kind::TokenBucket { self.period / self.max * max } else { self.period };
                let config = config_of(algorithm_of(self.kind, max, period));
                self.limit = Limit::continue_from(Some(&self.limit), LimitId(0), &config, 1000);
                self.limit.apply_numbers(&|| Now(START + at));
                self.model.change(START + at, max);
                (self.max, self.period) = (max, period);
            }
            Step::Restart => self.restart(at),
            Step::Peek { .. } => {}
        }
        let units = if let Step::Peek { units } = step { units.min(self.max) } else { 1 };
        prop_assert_eq!(
            peek(&self.limit, at, units),
            self.model.decide(START + at, units),
            "after {:?} at {}",
            step,
            at
        );
        Ok(())
    }

    /// Takes the counters to another limit by a snapshot; nothing is in flight after that.
    fn restart(&mut self, at: u64) {
        use sluicegate_base::clock::ClockShift;
        let now = Now(START + at);
        for id in self.open() {
            let reserved = self.model.open[id].map_or(0, |one| one.units);
            settle(&self.limit, at, (reserved, reserved), &self.charges[id]);
            self.model.settle(now.0, id, reserved);
        }
        let other = limit_of(algorithm_of(self.kind, self.max, self.period));
        for (from, to) in self.limit.rate_tables().iter().zip(other.rate_tables()) {
            for block in 0..from.table.block_count() {
                let mut bytes = Vec::new();
                from.table.encode_block(block, now, &mut bytes);
                assert_eq!(to.table.restore_block(&bytes, ClockShift::new(now, 0, now), now), Some(0));
            }
        }
        self.limit = other;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    #[test]
    fn settled_charges_are_those_of_the_plain_model(
        kind in any_kind(),
        max in 1..12u64,
        unit_ns in prop_oneof![Just(1), 2..50u64, Just(SECOND), Just(7 * SECOND / 3)],
        steps in any_steps(any_step()),
    ) {
        let mut twin = Twin::new(kind, max, unit_ns * max * 10);
        let mut at = 0;
        for (share, nudge, step) in steps {
            at += share * twin.period / 1000 + nudge;
            twin.run(at, step)?;
        }
    }

    #[test]
    fn reloads_and_restarts_keep_the_debt(
        kind in any_kind(),
        max in 1..12u64,
        unit_ns in prop_oneof![Just(1), 2..50u64, Just(SECOND)],
        steps in any_steps(any_step_with_reloads()),
    ) {
        let mut twin = Twin::new(kind, max, unit_ns * max * 10);
        let mut at = 0;
        for (share, nudge, step) in steps {
            at += share * twin.period / 1000 + nudge;
            twin.run(at, step)?;
        }
    }
}
