//! `sluicegate test`: scenario files through the real binary, and beside a running gateway.

#![allow(clippy::disallowed_types, reason = "the running gateway is timed by the real clock")]

use sluicegate_testkit as support;

mod examples;
mod failures;
mod limits;
mod live;
mod mistakes;
mod responses;

use support::{Finished, Run, Scratch};

/// A configuration with the limits given, all on `/`; the upstream is scripted.
fn config(limits: &str) -> String {
    let names: Vec<&str> =
        limits.lines().filter_map(|line| line.split_once(':').map(|(name, _)| name.trim())).collect();
    let limits: String = limits.lines().map(|line| format!("  {}\n", line.trim())).collect();
    format!("limits:\n{limits}locations: [{{ path: /, upstream: demo, limits: [{}] }}]\n", names.join(", "))
}

/// Runs a scenario with these `steps` against the configuration.
fn run_steps(config: &str, steps: &[&str]) -> Finished {
    run_file(config, &scenario(steps), &[])
}

/// A file with one scenario.
fn scenario(steps: &[&str]) -> String {
    let steps: String = steps.iter().map(|step| format!("      - {{ {step} }}\n")).collect();
    format!("scenarios:\n  - name: it holds\n    steps:\n{steps}")
}

fn run_file(config: &str, file: &str, args: &[&str]) -> Finished {
    let scratch = Scratch::new();
    scratch.file("gateway.yaml", config);
    scratch.file("limits_test.yaml", file);
    run_in(&scratch, args)
}

fn run_in(scratch: &Scratch, args: &[&str]) -> Finished {
    let args: Vec<&str> = ["test"].into_iter().chain(args.iter().copied()).collect();
    Run::default().args(&args).finish(scratch.path())
}

/// All steps are as they expect.
#[track_caller]
fn assert_passes(config: &str, steps: &[&str]) {
    let run = run_steps(config, steps);
    assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
    assert!(run.stdout.ends_with("1 passed, 0 failed\n"), "{}", run.stdout);
}

/// The scenario fails, and says this.
#[track_caller]
fn assert_fails(config: &str, steps: &[&str], says: &str) {
    let run = run_steps(config, steps);
    assert_eq!(run.code, Some(1), "{}{}", run.stdout, run.stderr);
    assert!(run.stdout.contains(says), "{says} is not in\n{}", run.stdout);
}
