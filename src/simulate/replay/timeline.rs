//! Requests over time, and waits by length: both of bounded size, whatever the log holds.

use serde::Serialize;

use sluicegate_base::time_text::SECOND;

/// Parts of the time that a plot shows.
const PARTS_MAX: usize = 240;

/// The requests that arrived in one part of the time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TimePart {
    /// All requests, whatever their verdict.
    pub requests: u64,
    /// Admitted requests that waited in a queue before.
    pub waited: u64,
    /// Requests that a limit rejected, at once or after a wait.
    pub rejected: u64,
}

/// The time of the log in at most [`PARTS_MAX`] parts of equal length. When there are more, two become one.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RequestTimeline {
    /// The start of the first part, in seconds since 1970.
    pub start_s: u64,
    /// The length of a part, in seconds.
    pub part_s: u64,
    /// The parts without gaps, up to the last arrival.
    pub parts: Vec<TimePart>,
}

/// The number of waits of each length.
#[derive(Debug, Clone, Default)]
pub struct WaitLengths {
    counts: [u64; WaitLengths::BOUNDS_MS.len() + 1],
    /// The longest wait, in nanoseconds.
    pub longest_ns: u64,
}

/// Waits up to a length.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct WaitClass {
    /// `None` = any longer one.
    pub up_to_ms: Option<u64>,
    /// Requests that waited up to this length and longer than the class before.
    pub requests: u64,
}

impl RequestTimeline {
    /// The end of the last part, in seconds since 1970.
    pub fn end_s(&self) -> u64 {
        self.start_s + self.part_s * self.parts.len() as u64
    }

    /// The part of a moment that is not before the first one.
    pub fn part_mut(&mut self, arrival_ns: u64) -> &mut TimePart {
        let second = arrival_ns / SECOND;
        if self.parts.is_empty() {
            (self.start_s, self.part_s) = (second, 1);
        }
        let since_start = second.saturating_sub(self.start_s);
        while since_start / self.part_s >= PARTS_MAX as u64 {
            self.part_s *= 2;
            let merge = |pair: &[TimePart]| pair.iter().copied().fold(TimePart::default(), TimePart::add);
            self.parts = self.parts.chunks(2).map(merge).collect();
        }
        let index = (since_start / self.part_s) as usize;
        if self.parts.len() <= index {
            self.parts.resize(index + 1, TimePart::default());
        }
        &mut self.parts[index]
    }
}

impl TimePart {
    fn add(self, other: TimePart) -> TimePart {
        TimePart {
            requests: self.requests + other.requests,
            waited: self.waited + other.waited,
            rejected: self.rejected + other.rejected,
        }
    }
}

impl WaitLengths {
    /// The upper bounds, in milliseconds; a last class has none.
    pub const BOUNDS_MS: [u64; 11] = [5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000];

    /// Counts a wait by its length.
    pub fn count(&mut self, wait_ns: u64) {
        let class = WaitLengths::BOUNDS_MS.iter().position(|bound| wait_ns <= bound * 1_000_000);
        self.counts[class.unwrap_or(WaitLengths::BOUNDS_MS.len())] += 1;
        self.longest_ns = self.longest_ns.max(wait_ns);
    }

    /// The waits of each class with its upper bound in milliseconds.
    pub fn classes(&self) -> Vec<WaitClass> {
        let bounds = WaitLengths::BOUNDS_MS.into_iter().map(Some).chain([None]);
        bounds.zip(self.counts).map(|(up_to_ms, requests)| WaitClass { up_to_ms, requests }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_parts_become_one_when_there_are_too_many() {
        let mut timeline = RequestTimeline::default();
        for second in 0..1_000 {
            timeline.part_mut((7 + second) * SECOND).requests += 1;
        }
        assert_eq!((timeline.start_s, timeline.part_s), (7, 8));
        assert!(timeline.parts.len() <= PARTS_MAX);
        assert_eq!(timeline.parts.iter().map(|part| part.requests).sum::<u64>(), 1_000);
        assert_eq!(timeline.parts[0].requests, 8);
        timeline.part_mut(u64::MAX).rejected += 1;
        assert!(timeline.parts.len() <= PARTS_MAX);
    }

    #[test]
    fn waits_belong_to_the_class_of_their_bound() {
        let mut waits = WaitLengths::default();
        for ms in [0, 5, 6, 10_000, 10_001] {
            waits.count(ms * 1_000_000);
        }
        let classes = waits.classes().into_iter().map(|class| (class.up_to_ms, class.requests));
        let classes: Vec<_> = classes.filter(|(_, count)| *count > 0).collect();
        assert_eq!(classes, [(Some(5), 2), (Some(10), 1), (Some(10_000), 1), (None, 1)]);
        assert_eq!(waits.longest_ns, 10_001_000_000);
    }
}
