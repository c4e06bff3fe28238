//! The configuration file: the values of valid files, and every problem of invalid ones.

mod access;
mod accounts;
mod adaptive;
mod charges;
mod files;
mod includes;
mod limits;
mod listen;
mod mistakes;
mod notify;
mod origins;
mod redis;
mod shadows;
mod values;
mod views;

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use sluicegate_config as config;
use sluicegate_model::{self as model, Problem};

fn yaml_files(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect(folder);
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect(folder).path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    files
}

/// Each of at least `least` files of a folder begins with lines of `mark` that list the problems that `found`
/// reports.
fn each_header_matches_its_report(
    folder: &str,
    least: usize,
    mark: &str,
    found: impl Fn(&Path) -> Vec<Problem>,
) {
    let files = yaml_files(folder);
    assert!(files.len() >= least, "only {} files", files.len());
    for path in files {
        let text = std::fs::read_to_string(&path).expect("readable");
        let expected: Vec<&str> = text.lines().map_while(|line| line.strip_prefix(mark)).collect();
        assert!(!expected.is_empty(), "{} expects nothing", path.display());
        let signature = |problem: &Problem| {
            format!("{} {}:{} {}", problem.code, problem.line, problem.column, problem.message)
        };
        let found: Vec<String> = found(&path).iter().map(signature).collect();
        let same = found.len() == expected.len()
            && found.iter().zip(&expected).all(|(found, start)| found.starts_with(start));
        assert!(same, "{}\nexpected {expected:#?}\nfound {found:#?}", path.display());
    }
}

#[test]
fn every_invalid_file_has_exactly_its_problems() {
    each_header_matches_its_report("tests/config/invalid", 45, "# error: ", |path| {
        config::load(path).expect_err(&path.display().to_string()).problems
    });
}

#[test]
fn every_warned_file_has_exactly_its_warnings() {
    each_header_matches_its_report("tests/config/warned", 5, "# warning: ", |path| {
        let warnings = config::load(path).unwrap_or_else(|report| panic!("{report}")).warnings;
        assert!(warnings.iter().all(|warning| warning.suggestion.is_some()), "{}", path.display());
        warnings
    });
}

#[test]
fn every_valid_file_is_valid() {
    let files = yaml_files("tests/config/valid");
    assert!(!files.is_empty());
    for path in files {
        config::load(&path).unwrap_or_else(|report| panic!("{report}"));
    }
}

#[test]
fn the_default_file_is_valid() {
    let loaded = config::load(Path::new("../../gateway.yaml")).unwrap_or_else(|report| panic!("{report}"));
    assert_eq!(loaded.warnings, []);
    assert_eq!(loaded.config.locations.len(), 5);
}

#[test]
fn an_unused_definition_is_a_warning() {
    let text = "upstreams: { app: [a:1] }\nlimits: { x: 1/s }\nip_sets: { y: 10.0.0.1 }\n\
                locations: [{ path: /, upstream: demo }]\n";
    let warnings = config::parse(text, "gateway.yaml").expect("valid").warnings;
    let lines: Vec<usize> = warnings.iter().map(|warning| warning.line).collect();
    assert_eq!(lines, [1, 2, 3]);
    assert!(warnings.iter().all(|warning| warning.code == model::codes::UNUSED));
}

#[test]
fn an_unreadable_file_is_a_report() {
    let missing = config::load(Path::new("tests/config/nowhere.yaml")).expect_err("missing");
    assert_eq!(missing.problems[0].code, model::codes::UNREADABLE);
    assert!(missing.to_string().contains("does not exist"), "{missing}");
    let folder = config::load(Path::new("tests/config")).expect_err("a folder");
    assert_eq!(folder.problems[0].code, model::codes::UNREADABLE);
    let large = config::parse(&"#".repeat((1 << 20) + 1), "gateway.yaml").expect_err("too large");
    assert!(large.to_string().contains("larger than 1 MiB"), "{large}");
}

#[test]
fn bytes_that_are_no_text_are_reported_with_their_position() {
    let path = std::env::temp_dir().join(format!("sluicegate-config-{}.yaml", std::process::id()));
    std::fs::write(&path, b"listen: 8080\nlog: { level: \xff }\n").expect("written");
    let report = config::load(&path).expect_err("not UTF-8");
    std::fs::remove_file(&path).expect("removed");
    let problem = &report.problems[0];
    assert_eq!((problem.code, problem.line, problem.column), (model::codes::NOT_UTF8, 2, 15));
}

#[test]
fn a_byte_order_mark_and_windows_line_ends_are_read() {
    let text = "\u{feff}listen: 8081\r\nlocations:\r\n  - path: /\r\n    upstream: demo\r\n";
    let config = config::parse(text, "gateway.yaml").unwrap_or_else(|report| panic!("{report}")).config;
    assert_eq!(config.listen, [model::ListenConfig::with_address(model::ListenAddress::Port(8081))]);
}

#[test]
fn no_report_shows_a_secret() {
    let secret = "hunter2";
    for text in [
        format!("admin: {{ listen: 0.0.0.0:1, token: \"{secret} x\" }}\n"),
        format!("admin:\n  tokn: {secret}\n"),
        format!("admin: {{ listen: 0.0.0.0:1, token: [{secret}] }}\n"),
        format!("admin: {{ token: {secret}, listen: 5, zebra: 1 }}\n"),
        format!("admin: {{ token: \"{secret}\n"),
        format!("account: {{ jwt: {{ secret: \"{secret}\", algorithms: RS256, leeway: 1 }} }}\n"),
        format!("account: {{ jwt: {{ secret: [{secret}] }} }}\n"),
        format!("account:\n  jwt:\n    secrt: {secret}\n"),
        format!("state: {{ redis: {{ url: \"redis://:{secret}/@host\" }} }}\n"),
    ] {
        let report = config::parse(&text, "gateway.yaml").expect_err(&text);
        let shown =
            format!("{}{report:?}{}", report.render(true), serde_json::to_string(&report).expect("JSON"));
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[test]
fn a_report_serialises_for_machines() {
    let report = config::parse("lissten: 1\nlocations: []\n", "gateway.yaml").expect_err("unknown field");
    let json = serde_json::to_value(&report).expect("JSON");
    assert_eq!(
        json,
        serde_json::json!({ "file": "gateway.yaml", "problems": [{
            "code": "E006", "field": "lissten", "line": 1, "column": 1,
            "message": "unknown field `lissten`", "suggestion": "did you mean `listen`?",
        }] })
    );
}

fn valid_texts() -> Vec<String> {
    let files = yaml_files("tests/config/valid");
    files.iter().map(|path| std::fs::read_to_string(path).expect("readable")).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_text_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let text = String::from_utf8_lossy(&bytes);
        if let Err(report) = config::parse(&text, "gateway.yaml") {
            prop_assert!(!report.problems.is_empty());
            report.render(true);
        }
    }

    #[test]
    fn a_mutated_file_never_panics(
        which in any::<prop::sample::Index>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 0..12usize, "[\\[\\]{}:,\\-#&*!|>'\"%$/\\\\ \\n\\tä0a]{0,3}"), 1..6),
    ) {
        let texts = valid_texts();
        let mut chars: Vec<char> = which.get(&texts).chars().collect();
        for (at, removed, inserted) in changes {
            let start = at.index(chars.len() + 1);
            let end = (start + removed).min(chars.len());
            chars.splice(start..end, inserted.chars());
        }
        let text: String = chars.into_iter().collect();
        if let Err(report) = config::parse(&text, "gateway.yaml") {
            prop_assert!(!report.problems.is_empty());
            report.render(false);
        }
    }
}

/// `sluicegate schema --format markdown > docs/gateway-yaml.md` and `sluicegate schema > gateway.schema.json` write them.
#[test]
fn the_reference_and_the_schema_are_what_the_program_writes() {
    let read = |path| std::fs::read_to_string(path).expect("the file exists");
    assert_eq!(read("../../docs/gateway-yaml.md"), sluicegate_config::markdown_reference());
    assert_eq!(read("../../gateway.schema.json"), sluicegate_config::json_schema_text());
}
