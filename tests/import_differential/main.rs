//! `import` beside a real nginx: random files of many constructs, the same requests to both, the same decisions.
//!
//! Where the import exits with 0, no decision may differ: served by the same location, limited, denied, not found or
//! kept waiting. Where it exits with 1, what nginx refuses by address or password stays refused. Rates are so slow that
//! nothing refills during a run, so that decisions do not depend on the machine's speed; a file with faults is tried
//! again with more patience, and then made as small as can be and shown.
//!
//! `IMPORT_SEED` sets the first seed and `IMPORT_FILES` the number of files (`make compare-import`).

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

use sluicegate_testkit as support;

mod backend;
mod conf;
mod features;
mod levels;
mod replay;
mod shrink;
mod site;
mod traffic;
mod trial;
mod variables;

use std::fmt::Write as _;
use std::sync::Mutex;

use replay::Decision;
use site::Case;
use trial::Trial;

const FILES: u64 = 24;
/// Files that run at once.
const TOGETHER: usize = 3;
const ROUNDS: u32 = 3;
/// Faulty files of each exit code that are made small; the others are named only.
const SHRUNK: usize = 12;

fn number_of(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// What all files gave.
#[derive(Default)]
struct Totals {
    /// Files by exit code; the last number counts those that nginx does not take.
    exits: [usize; 5],
    /// Requests to files with exit code 0, and of them those that were refused or waited.
    requests: usize,
    refused: usize,
    doors: usize,
    excused: usize,
    faults: usize,
    open_doors: usize,
    faulty: Vec<(Case, Trial)>,
}

impl Totals {
    fn add(&mut self, case: Case, trial: Trial) {
        if trial.exit == 3 {
            eprintln!("seed {}: {}\n{}", case.seed, trial.written, case.conf.show());
        }
        self.exits[trial.exit as usize] += 1;
        self.doors += trial.doors;
        self.excused += trial.excused;
        if trial.exit == 0 {
            self.requests += trial.decisions.len();
            let is_passed = |decision: &&Decision| matches!(decision, Decision::Served(_));
            self.refused += trial.decisions.iter().filter(|decision| !is_passed(decision)).count();
        }
        self.open_doors += trial.faults.iter().filter(|fault| fault.is_open_door).count();
        self.faults += trial.faults.iter().filter(|fault| !fault.is_open_door).count();
        if !trial.faults.is_empty() {
            eprintln!("seed {}, exit {}: {} faults", case.seed, trial.exit, trial.faults.len());
            self.faulty.push((case, trial));
        }
    }

    fn tell(&self) -> String {
        let [whole, partial, _, unread, invalid] = self.exits;
        format!(
            "{whole} files exit 0, {partial} exit 1, {unread} exit 3, {invalid} are none for nginx; \
             {} decisions with exit 0, {} of them no pass, {} differ, {} differ as documented; \
             {} refusals by doors, {} open",
            self.requests, self.refused, self.faults, self.excused, self.doors, self.open_doors
        )
    }
}

/// Runs one file until it has no faults, or the rounds are over. `None`: nginx does not take it.
fn settle(case: &Case) -> Option<Trial> {
    let mut trial = case.run(0)?;
    for round in 1..ROUNDS {
        if trial.faults.is_empty() {
            break;
        }
        trial = case.run(round)?;
    }
    Some(trial)
}

fn describe(case: &Case, trial: &Trial) -> String {
    let mut text = format!("=== seed {}, exit {}\n{}", case.seed, trial.exit, case.conf.show());
    for (number, step) in trial.steps.iter().enumerate() {
        let _ = writeln!(text, "{number}: {step:?}");
    }
    for fault in &trial.faults {
        let door = if fault.is_open_door { ", an open door" } else { "" };
        let _ = writeln!(
            text,
            "request {}: nginx {:?}, gateway {:?}{door}",
            fault.number, fault.nginx, fault.gateway
        );
    }
    for lost in &trial.lost {
        let _ = writeln!(text, "lost: {lost}");
    }
    text + "--- gateway.yaml\n" + &trial.written
}

/// Runs the work on all items, some at once.
fn for_each<T: Send>(items: Vec<T>, work: impl Fn(T) + Sync) {
    let left = Mutex::new(items.into_iter());
    std::thread::scope(|scope| {
        for _ in 0..TOGETHER {
            scope.spawn(|| {
                loop {
                    let item = left.lock().unwrap().next();
                    let Some(item) = item else { return };
                    work(item);
                }
            });
        }
    });
}

#[test]
fn an_imported_file_never_decides_otherwise_without_a_word() {
    support::raise_descriptors();
    let (first, files) = (number_of("IMPORT_SEED", 1000), number_of("IMPORT_FILES", FILES));
    let totals = Mutex::new(Totals::default());
    for_each((first..first + files).collect(), |seed| {
        let case = Case::roll(seed);
        let trial = settle(&case);
        let mut totals = totals.lock().unwrap();
        match trial {
            None => {
                eprintln!("seed {seed}: nginx does not take it\n{}", case.conf.show());
                totals.exits[4] += 1;
            }
            Some(trial) => totals.add(case, trial),
        }
    });
    let mut totals = totals.into_inner().unwrap();
    eprintln!("{}", totals.tell());
    let faulty: Vec<u64> = totals.faulty.iter().map(|(case, _)| case.seed).collect();
    for exit in [0, 1] {
        let mut shown: Vec<(Case, Trial)> =
            totals.faulty.extract_if(.., |(_, trial)| trial.exit == exit).collect();
        shown.truncate(SHRUNK);
        for_each(shown, |(case, trial)| {
            let (small, found) = shrink::shrink(&case, &trial);
            eprintln!("{}", describe(&small, &found));
        });
    }
    assert!(faulty.is_empty(), "{}; the seeds: {faulty:?}", totals.tell());
    let [whole, ..] = totals.exits;
    // Few files may be a poor draw.
    let least = if files < 100 { files / 4 } else { files / 3 };
    assert!(whole as u64 >= least, "{whole} of {files} files are imported whole: they are too wild");
    assert!(totals.refused * 5 > totals.requests, "too few refusals: {}", totals.tell());
}
