//! The configuration file: what is read from valid ones, and every problem of invalid ones.

use sluicegate::config;

#[test]
fn the_default_file_is_valid() {
    let loaded = config::load("gateway.yaml".as_ref()).unwrap_or_else(|report| panic!("{report}"));
    assert_eq!(loaded.warnings, []);
    assert_eq!(loaded.config.locations.len(), 5);
}
