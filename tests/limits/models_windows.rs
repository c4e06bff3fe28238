//! Plain reference models of the windows, written from the contract alone: lists of what was admitted and when.

use sluicegate::config::WindowAlign;

/// What was admitted, oldest first: (moment, cost). Time that goes back stands still.
#[derive(Default)]
pub struct Admitted {
    list: Vec<(u64, u64)>,
    newest: u64,
}

impl Admitted {
    pub fn present(&self, at: u64) -> u64 {
        at.max(self.newest)
    }

    pub fn add(&mut self, at: u64, cost: u64) -> u64 {
        self.newest = self.present(at);
        self.list.push((self.newest, cost));
        self.newest
    }

    /// Takes back what was admitted at `at`; the clock has been there all the same.
    pub fn remove(&mut self, at: u64, cost: u64) {
        let place = self.list.iter().position(|one| *one == (at, cost)).expect("it was admitted");
        self.list.remove(place);
    }

    /// Units in (at − span, at].
    pub fn within(&self, at: u64, span: u64) -> u64 {
        self.list.iter().filter(|(when, _)| *when <= at && when + span > at).map(|(_, cost)| cost).sum()
    }

    /// The first moment from `at` on at which `cost` more make at most `max` in the period before.
    pub fn fits_from(&self, at: u64, cost: u64, max: u64, period: u64) -> u64 {
        let moments = self.list.iter().map(|(when, _)| when + period).filter(|when| *when > at);
        let fits = |when: &u64| self.within(*when, period) + cost <= max;
        std::iter::once(at).chain(moments).filter(fits).min().expect("in the end everything has left")
    }

    /// Never more than `max` in any window of `period`.
    pub fn bound_holds(&self, max: u64, period: u64) -> bool {
        self.list.iter().all(|(when, _)| self.within(*when, period) <= max)
    }
}

/// Windows one after the other, each with its count.
pub struct FixedModel {
    max: u64,
    period: u64,
    align: WindowAlign,
    /// First moment and count of each window that anything was admitted in.
    pub windows: Vec<(u64, u64)>,
}

impl FixedModel {
    pub fn new(max: u64, period: u64, align: WindowAlign) -> FixedModel {
        FixedModel { max, period, align, windows: vec![] }
    }

    /// Whether `cost` is admitted, what remains, and when the window ends.
    pub fn take(&mut self, at: u64, cost: u64) -> (bool, u64, u64) {
        let at = at.max(self.windows.last().map_or(0, |(start, _)| *start));
        if self.windows.last().is_none_or(|(start, _)| start + self.period <= at) {
            let start = match self.align {
                WindowAlign::First => at,
                WindowAlign::Clock => at / self.period * self.period,
            };
            self.windows.push((start, 0));
        }
        let (start, used) = self.windows.last_mut().expect("there is one");
        let fits = *used + cost <= self.max;
        *used += if fits { cost } else { 0 };
        let answer = (fits, self.max - *used, *start + self.period);
        if *used == 0 {
            self.windows.pop();
        }
        answer
    }
}
