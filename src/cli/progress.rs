//! The progress of long work: one line on stderr, where that is a terminal.

use std::time::Duration;

use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::simulate::log::LogStream;

/// Shorter work is over before anybody could read the line.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// The line, which is erased when it is dropped.
pub(super) struct ProgressLine {
    bar: ProgressBar,
}

impl ProgressLine {
    /// The time begins here. It is real time, also where the clock of the runtime is a virtual one.
    pub(super) fn start() -> ProgressLine {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template("{wide_msg}");
        ProgressLine { bar: style.map_or(bar.clone(), |style| bar.with_style(style)) }
    }

    /// Shows the requests of a log that are done. Only its bytes are known in total, and not even those of stdin; lines
    /// to come may be longer or shorter.
    pub(super) fn show_log(&self, requests: u64, log: &LogStream) {
        match log.bytes.share().filter(|share| *share > 0.0) {
            Some(share) => {
                let whole = log.counts.lines as f64 / share;
                let thousands = HumanCount((whole / 1e3).round() as u64 * 1000);
                self.show(requests, Some(requests as f64 / whole), &format!("about {thousands}"));
            }
            None => self.show(requests, None, &format!("{} read", HumanBytes(log.bytes.read()))),
        }
    }

    /// Shows the requests that are done, of a known number.
    pub(super) fn show_part(&self, requests: u64, whole: u64) {
        self.show(requests, Some(requests as f64 / whole.max(1) as f64), &HumanCount(whole).to_string());
    }

    fn show(&self, requests: u64, share: Option<f64>, whole: &str) {
        let elapsed = self.bar.elapsed();
        if elapsed < SHOWN_AFTER {
            return;
        }
        if self.bar.is_hidden() {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_message(describe_progress(requests, share, whole, elapsed));
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// `whole` is the number of all requests as text; without a share, what has been read.
fn describe_progress(requests: u64, share: Option<f64>, whole: &str, elapsed: Duration) -> String {
    let (done, seconds) = (HumanCount(requests), elapsed.as_secs_f64());
    let rate = HumanCount((requests as f64 / seconds.max(f64::EPSILON)) as u64);
    let Some(share) = share else { return format!("{done} requests  {rate}/s  {whole}") };
    let left = (seconds * (1.0 - share) / share.max(f64::EPSILON)).ceil() as u64;
    let left = if left <= 120 { format!("{left} s") } else { format!("{} min", left / 60) };
    format!("{:.0} %  {done} of {whole} requests  {rate}/s  {left} left", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_done_rate_and_time_left() {
        let elapsed = Duration::from_secs(4);
        assert_eq!(
            describe_progress(1_240_000, Some(0.62), "about 2,000,000", elapsed),
            "62 %  1,240,000 of about 2,000,000 requests  310,000/s  3 s left"
        );
        assert_eq!(
            describe_progress(1_240_000, None, "412.00 MiB read", elapsed),
            "1,240,000 requests  310,000/s  412.00 MiB read"
        );
        assert!(describe_progress(1, Some(0.001), "9", elapsed).ends_with("  0/s  66 min left"));
        assert!(describe_progress(0, Some(0.0), "9", Duration::ZERO).starts_with("0 %  0 of 9 "));
    }
}
