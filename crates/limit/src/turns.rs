//! Turns: requests that a rate rejects are told to come back one after the other, instead of all at once.
//!
//! A key has one moment, the last that was promised. The next rejected request gets the moment at which the rate has
//! let its units pass behind those, but not before they would fit. Nothing is held: who comes early is judged as ever.
//!
//! A moment is at most `at_most` ahead of the clock. So it is never further beyond the moment at which the requests
//! would fit than the rate takes for what was refused within that time, because all earlier moments have passed. Once
//! the last one has passed, the row is empty, and the next request is told the exact time.
//!
//! A caller that a limit in front counts apart holds one turn at a time: until then it is told the same again. A
//! rejection charges no limit, so that one alone would not keep those from taking turns who never wait.

use std::sync::{Arc, OnceLock};

use super::Limit;
use crate::table::{CounterKey, Table, TableEntry};
use sluicegate_base::clock::Now;

/// A rejected request that asks for a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnRequest {
    /// The key that rejects it.
    pub key: CounterKey,
    /// Its units.
    pub cost: u64,
    /// The id of its key at a limit in front, which counts callers apart.
    pub caller: Option<u128>,
}

/// The moment that was promised last to a key, or to a caller; in nanoseconds of the clock.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PromisedTurn(u64);

/// The promises of a limit; made by the first that needs them.
pub(crate) type TurnTable = Arc<OnceLock<Table<PromisedTurn>>>;

// === impl Limit ===

impl Limit {
    /// The time until the turn of a request that `rate` rejects and that would fit in `fits_ns`; `None` = its turn
    /// would be later than in `at_most_ns`. A look hands out nothing.
    pub fn hand_out_turn(
        &self,
        rate: usize,
        request: &TurnRequest,
        (fits_ns, at_most_ns): (u64, u64),
        now: Now,
        hands_out: bool,
    ) -> Option<u64> {
        let span_ns = self.rates.get(rate)?.span_ns(request.cost);
        self.promises().update_entry(&self.row_of(rate, request), now, |turn, (), (), overflow| {
            let due = next_turn(turn.0, now.0, now.0.saturating_add(fits_ns), span_ns);
            let due_ns = Some(due - now.0).filter(|ns| *ns <= at_most_ns && !overflow)?;
            if hands_out {
                turn.0 = due;
            }
            Some(due_ns)
        })
    }

    /// The time until the turn that the caller of a request holds.
    pub fn held_turn(&self, rate: usize, request: &TurnRequest, now: Now) -> Option<u64> {
        let key = self.caller_key(rate, request)?;
        self.turns.get()?.peek_entry(&key, |turn, (), ()| turn.0.checked_sub(now.0)).filter(|ns| *ns > 0)
    }

    /// Notes that the caller of a request holds this turn.
    pub fn hold_turn(&self, rate: usize, request: &TurnRequest, turn_ns: u64, now: Now) {
        if let Some(key) = self.caller_key(rate, request) {
            self.promises().update_entry(&key, now, |turn, (), (), overflow| {
                if !overflow {
                    turn.0 = now.0.saturating_add(turn_ns);
                }
            });
        }
    }

    fn promises(&self) -> &Table<PromisedTurn> {
        self.turns.get_or_init(|| Table::with_params((), self.max_keys, self.name.clone()))
    }

    /// The rates that judge a request have one row, and a view that of its limit.
    fn row_of(&self, rate: usize, request: &TurnRequest) -> CounterKey {
        let first = self.spans.iter().find(|span| span.contains(&rate)).map_or(0, |span| span.start);
        let row = self.config.counter_rate(first) as u128;
        CounterKey { id: request.key.id.wrapping_add(row << 64), ..request.key }
    }

    /// Ids are hashes: no caller meets another one, or a row.
    fn caller_key(&self, rate: usize, request: &TurnRequest) -> Option<CounterKey> {
        let row = self.row_of(rate, request);
        request.caller.map(|caller| CounterKey { id: row.id.rotate_left(64) ^ caller, ..row })
    }
}

/// The moment behind the one promised last, which is over once it has passed.
fn next_turn(promised: u64, now: u64, fits_at: u64, span_ns: u64) -> u64 {
    match promised > now {
        true => promised.saturating_add(span_ns).max(fits_at),
        false => fits_at,
    }
}

// === impl PromisedTurn ===

impl TableEntry for PromisedTurn {
    type Extra = ();

    fn is_idle(&self, now: Now) -> bool {
        self.0 <= now.0
    }

    /// No promise is an overflow counter.
    fn inherit_overflow(&self) -> Option<PromisedTurn> {
        Some(PromisedTurn::default())
    }
}
