//! A file with a fault, made as small as the fault allows.

use std::time::{Duration, Instant};

use crate::site::Case;
use crate::traffic::Step;
use crate::trial::Trial;

/// Longer than this is not worth the wait.
const TIME: Duration = Duration::from_secs(60);

/// The smallest file and the fewest requests found that still show a fault of this kind.
pub fn shrink(case: &Case, trial: &Trial) -> (Case, Trial) {
    let Some(fault) = trial.faults.first() else { return (case.clone(), case.run(1).expect("a file")) };
    let deadline = Instant::now() + TIME;
    let (exit, kind) = (trial.exit, fault.kind());
    let attempt = |case: &Case| {
        let found = case.run(1)?;
        let is_same = found.exit == exit && found.faults.iter().any(|fault| fault.kind() == kind);
        is_same.then_some(found)
    };
    let mut best = Case { steps: trial.steps.clone(), ..case.clone() };
    best.steps.truncate(fault.number + 1);
    let Some(mut found) = attempt(&best) else { return (case.clone(), case.run(1).expect("a file")) };
    loop {
        let before = (best.steps.len(), best.conf.show().len());
        shrink_steps(&mut best, &mut found, &attempt, deadline);
        shrink_conf(&mut best, &mut found, &attempt, deadline);
        if before == (best.steps.len(), best.conf.show().len()) || Instant::now() > deadline {
            return (best, found);
        }
    }
}

fn shrink_steps(
    best: &mut Case,
    found: &mut Trial,
    attempt: &impl Fn(&Case) -> Option<Trial>,
    deadline: Instant,
) {
    let mut size = best.steps.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < best.steps.len() && Instant::now() < deadline {
            let mut case = best.clone();
            case.steps.drain(at..(at + size).min(best.steps.len()));
            match attempt(&case) {
                Some(trial) => (*best, *found) = (case, trial),
                None => at += size,
            }
        }
        size /= 2;
    }
    for at in 0..best.steps.len() {
        let Step::Ask(request) = &best.steps[at] else { continue };
        for field in (0..request.headers.len()).rev() {
            let mut case = best.clone();
            if let Step::Ask(request) = &mut case.steps[at] {
                request.headers.remove(field);
            }
            if Instant::now() < deadline
                && let Some(trial) = attempt(&case)
            {
                (*best, *found) = (case, trial);
            }
        }
    }
}

fn shrink_conf(
    best: &mut Case,
    found: &mut Trial,
    attempt: &impl Fn(&Case) -> Option<Trial>,
    deadline: Instant,
) {
    let mut place = 0;
    while let Some(conf) = best.conf.without_place(place).filter(|_| Instant::now() < deadline) {
        let case = Case { conf, ..best.clone() };
        match attempt(&case) {
            Some(trial) => (*best, *found) = (case, trial),
            None => place += 1,
        }
    }
}
