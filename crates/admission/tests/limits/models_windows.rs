//! Plain reference models of the windows, written from the contract alone: lists of admitted units and their times.

use sluicegate_model::WindowAlign;

/// Admitted units, oldest first: (moment, cost). Time that goes back counts as standing still.
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

    /// Refunds units admitted at `at`; the clock keeps having reached that moment.
    pub fn remove(&mut self, at: u64, cost: u64) {
        let index = self.list.iter().position(|one| *one == (at, cost)).expect("it was admitted");
        self.list.remove(index);
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

    /// Whether no window of `period` has more than `max`.
    pub fn bound_holds(&self, max: u64, period: u64) -> bool {
        self.list.iter().all(|(when, _)| self.within(*when, period) <= max)
    }
}

/// Successive windows, each with its count.
pub struct FixedModel {
    max: u64,
    period: u64,
    align: WindowAlign,
    /// First moment and count of each window with admitted units.
    pub windows: Vec<(u64, u64)>,
}

impl FixedModel {
    pub fn new(max: u64, period: u64, align: WindowAlign) -> FixedModel {
        FixedModel { max, period, align, windows: vec![] }
    }

    /// Takes `cost` if it fits; returns whether, the remaining units, and the end of the window.
    pub fn take(&mut self, at: u64, cost: u64) -> (bool, u64, u64) {
        let at = at.max(self.windows.last().map_or(0, |(start, _)| *start));
        if self.windows.last().is_none_or(|(start, _)| start + self.period <= at) {
            let start = match self.align {
                WindowAlign::First | WindowAlign::Calendar => at,
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
