//! Every dependency obeys `deny.toml`: not banned, from the registry, under an allowed licence.
//!
//! Needs neither the network nor cargo-deny. Bans and sources are checked for every platform, licences for the crates
//! of this one, because the others may not be on the disk. `make audit` checks all of them.

mod check;

use std::process::Command;

use check::{Package, Rules, licence_problem, lock_problems, packages, rules};
use serde_json::Value;

const OURS: &str = env!("CARGO_PKG_NAME");

fn text(file: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn run_program(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("the output is UTF-8")
}

/// The target triple of this machine, as rustc names it.
fn target_triple() -> String {
    let version = run_program("rustc", &["-vV"]);
    version.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc names its host").to_owned()
}

#[track_caller]
fn assert_none(found: Vec<String>) {
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn no_locked_crate_is_banned_or_from_another_source() {
    let packages = packages(&text("Cargo.lock"));
    assert!(packages.len() > 50, "only {} packages were read", packages.len());
    assert_none(lock_problems(&packages, &rules(&text("deny.toml")), OURS));
}

#[test]
fn every_licence_is_allowed() {
    let target_triple = target_triple();
    let arguments =
        ["metadata", "--offline", "--locked", "--format-version", "1", "--filter-platform", &target_triple];
    let metadata: Value =
        serde_json::from_str(&run_program(env!("CARGO"), &arguments)).expect("cargo writes JSON");
    let packages = metadata["packages"].as_array().expect("a list of packages");
    assert!(packages.len() > 50, "only {} packages were read", packages.len());
    let rules = rules(&text("deny.toml"));
    let problem = |package: &Value| {
        let name = package["name"].as_str().expect("a package has a name");
        licence_problem(name, package["license"].as_str(), &rules)
    };
    assert_none(packages.iter().filter_map(problem).collect());
}

#[test]
fn the_rules_are_really_read() {
    let rules = rules(&text("deny.toml"));
    for licence in ["MIT", "Apache-2.0", "Zlib"] {
        assert!(rules.licences.contains(&licence.to_owned()), "{licence}");
    }
    for banned in ["openssl", "serde_yaml", "serde_yml", "rustls-pemfile", "atty"] {
        assert!(rules.banned.contains(&banned.to_owned()), "{banned}");
    }
}

// The checker itself, on made-up text.

const RULES: &str = r#"
[licenses]
allow = [
    "MIT",
    # "GPL-3.0",
    "Zlib",
]

[bans]
allow = [
    "Apache-2.0",
]
deny = [
    { crate = "bad", reason = "because of \"that\"" },
]
"#;

const LOCK: &str = r#"
version = 4

[[package]]
name = "ours"
version = "1.0.0"
dependencies = [
 "bad",
]

[[package]]
name = "good"
version = "1.0.0"
source = "registry+https://github.com/rust-lang/crates.io-index"

[[package]]
name = "bad"
version = "1.0.0"
source = "registry+https://github.com/rust-lang/crates.io-index"

[[package]]
name = "from-git"
version = "1.0.0"
source = "git+https://example.com/from-git#0123456"

[[package]]
name = "elsewhere"
version = "1.0.0"
source = "registry+https://example.com/index"

[[package]]
name = "beside"
version = "1.0.0"
"#;

#[test]
fn the_lists_are_read_from_their_own_section() {
    let Rules { licences, banned } = rules(RULES);
    assert_eq!(licences, ["MIT", "Zlib"]);
    assert_eq!(banned, ["bad"]);
}

#[test]
fn bans_and_foreign_sources_are_found() {
    let packages: Vec<Package> = packages(LOCK);
    assert_eq!(packages.len(), 6);
    let found = lock_problems(&packages, &rules(RULES), "ours");
    assert_eq!(
        found,
        [
            "bad: banned by deny.toml",
            "from-git: comes from git+https://example.com/from-git#0123456, not from the registry",
            "elsewhere: comes from registry+https://example.com/index, not from the registry",
            "beside: comes from a path, not from the registry",
        ]
    );
}

#[test]
fn licence_expressions_are_judged() {
    let rules = rules(RULES);
    let judge = |expression| licence_problem("x", expression, &rules);
    for fine in ["MIT", "GPL-3.0 OR MIT", "Apache-2.0/MIT", "(GPL-3.0 OR MIT) AND Zlib", "MIT AND Zlib"] {
        assert_eq!(judge(Some(fine)), None, "{fine}");
    }
    for not_listed in ["GPL-3.0", "MIT AND GPL-3.0", "(GPL-3.0 OR MIT) AND Apache-2.0", "MIT WITH exception"]
    {
        assert!(
            judge(Some(not_listed)).is_some_and(|text| text.contains("not in deny.toml")),
            "{not_listed}"
        );
    }
    for nonsense in ["MIT OR", "OR MIT", "(MIT", "MIT Zlib", "MIT)", "MIT WITH"] {
        assert!(judge(Some(nonsense)).is_some_and(|text| text.contains("cannot be read")), "{nonsense}");
    }
    for missing in [None, Some(""), Some(" ")] {
        assert_eq!(judge(missing).as_deref(), Some("x: no licence"));
    }
}
