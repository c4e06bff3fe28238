//! Scenario tests: traffic on a virtual clock against a configuration, with the expected decisions of the gateway.
//!
//! A file is [`read`] into its [`model`] by the tables of [`fields`]. The requests of its steps ([`traffic`]) pass the
//! pipeline of production in process ([`run`]) on a paused clock ([`virtual_clock`]). Their ends are counted
//! ([`tally`]) and compared with the expectations of the steps ([`compare`]). A [`report`] names the differences.

mod account;
mod compare;
mod fields;
mod model;
mod read;
mod read_answer;
mod read_expect;
mod report;
mod run;
mod tally;
mod traffic;
mod virtual_clock;

pub use compare::Mismatch;
pub use model::{Scenario, ScenarioFile};
pub use read::load_file;
pub use report::{FileReport, ScenarioReport, TestReport, render_junit};
pub use run::ScenarioRunner;
