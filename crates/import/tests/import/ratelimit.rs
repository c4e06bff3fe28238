//! Files of envoyproxy/ratelimit: what becomes of each construct, bounds, and broken files.

use std::fmt::Write as _;

use sluicegate_config as config;
use sluicegate_import::{import_file, import_files};

use crate::cases::{check_cases, check_manual_example, list_cases};
use crate::support::{Dice, Scratch};

#[test]
fn every_case_becomes_what_it_says() {
    let files = list_cases("ratelimit", "yaml");
    assert!(files.len() >= 40, "{} cases", files.len());
    check_cases(&files);
}

/// The example of the manual: the file, and what is written from it.
#[test]
fn the_example_of_the_manual_is_what_is_written() {
    check_manual_example("## Files of envoyproxy/ratelimit", "ratelimit.yaml");
}

fn domain(name: &str) -> String {
    format!(
        "domain: {name}\ndescriptors: [{{ key: a, rate_limit: {{ unit: second, requests_per_unit: 1 }} }}]\n"
    )
}

/// The domains of a written file.
fn domains_of(yaml: &str) -> Vec<String> {
    let yaml: serde_yaml::Value = serde_yaml::from_str(yaml).expect("YAML");
    let domains = yaml["service"]["domains"].as_mapping().expect("domains");
    domains.keys().map(|name| name.as_str().expect("a name").to_owned()).collect()
}

#[test]
fn each_file_of_several_has_its_domain() {
    let scratch = Scratch::new();
    let [one, two] = ["one", "two"].map(|name| scratch.file(&format!("{name}.yml"), &domain(name)));
    let imported = import_files(&[two.clone(), one.clone()]).unwrap();
    assert_eq!(domains_of(&imported.yaml), ["two", "one"]);
    let loaded = config::parse(&imported.yaml, "gateway.yaml").unwrap_or_else(|report| panic!("{report}"));
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    // A folder is read in the order of the names, without hidden files and files of other kinds.
    scratch.file(".hidden.yaml", "?");
    scratch.file("README.md", "?");
    let imported = import_file(scratch.path()).unwrap();
    assert_eq!(domains_of(&imported.yaml), ["one", "two"]);
    assert_eq!(imported.report.findings.len(), 4, "{}", imported.report.render_text());
    let again = scratch.file("three.json", r#"{ "domain": "one", "descriptors": [] }"#);
    let fault = import_files(&[one.clone(), two.clone(), again]).unwrap_err().to_string();
    assert!(
        fault.contains("three.json:1: the domain `one` is in ") && fault.ends_with("one.yml:1, too"),
        "{fault}"
    );
    let ingress = scratch.file("ingress.yaml", "kind: Ingress\n");
    let fault = import_files(&[one, ingress]).unwrap_err().to_string();
    assert!(
        fault.contains("ingress.yaml:1: of several files, each must be one of envoyproxy/ratelimit"),
        "{fault}"
    );
}

#[test]
fn sizes_are_bounded() {
    let scratch = Scratch::new();
    let import = |text: &str| import_file(&scratch.file("ratelimit.yaml", text));
    let fault = |text: &str| import(text).map(|_| ()).expect_err("a fault").to_string();
    let many = |count: usize, rest: &str| {
        let mut text = "domain: d\ndescriptors:\n".to_owned();
        for index in 0..count {
            writeln!(text, "  - {{ key: user, value: \"{index}\"{rest} }}").expect("a String");
        }
        text
    };
    let limit = ", rate_limit: { unit: minute, requests_per_unit: 9 }";
    let imported = import(&many(3000, limit)).unwrap();
    assert_eq!(imported.report.count_lost(), 0);
    assert_eq!(imported.yaml.matches("exact: true").count(), 3000);
    let too_many = fault(&many(10_001, ""));
    assert!(too_many.contains("ratelimit.yaml:10003:7: there are more than 10000 descriptors"), "{too_many}");
    // The same path is below each value and below none, so that each value needs a rule without a limit.
    let crossed = many(9000, limit)
        + "  - key: user\n    descriptors: [{ key: a, rate_limit: { unlimited: true } }]\n"
        + "  - { key: a, rate_limit: { unlimited: true } }\n";
    let crossed = fault(&crossed);
    assert!(crossed.contains("more than the 10000 rules"), "{crossed}");
    let wide = fault(&many(9000, limit));
    assert!(wide.contains("more than the 1 MiB that the gateway reads"), "{wide}");
    let deep = |depth: usize| {
        let mut text = "domain: d\n".to_owned();
        for level in 0..depth {
            write!(text, "{0}descriptors:\n{0}- key: k{level}\n", "  ".repeat(level)).expect("a String");
        }
        text + &"  ".repeat(depth) + "rate_limit: { unit: second, requests_per_unit: 1 }\n"
    };
    import(&deep(60)).unwrap_or_else(|fault| panic!("{fault}"));
    let too_deep = fault(&deep(61));
    assert!(too_deep.contains("descriptors are nested more than 60 deep"), "{too_deep}");
    assert!(fault(&deep(500)).contains("nested too deeply"), "{}", fault(&deep(500)));
    let large = "domain: d\n".to_owned() + &"#".repeat(8 << 20);
    assert!(fault(&large).contains("larger than 8 MiB"));
    let laughs = "domain: d\nx: &a [1,1,1,1,1,1,1,1]\ny: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nz: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n\
         u: &d [*c,*c,*c,*c,*c,*c,*c,*c]\nv: [*d,*d,*d,*d,*d,*d,*d,*d]\n";
    assert!(fault(laughs).contains("aliases make the file too large"), "{}", fault(laughs));
}

/// Random damage to files: a fault with a place, or a file that the gateway's own check accepts.
#[test]
fn damaged_files_never_panic() {
    const PIECES: [&str; 24] = [
        "key: a",
        "value: x*",
        "value: ",
        "*",
        "rate_limit:",
        "unit: day",
        "requests_per_unit: 0",
        "unlimited: true",
        "descriptors:",
        "- ",
        "  ",
        "\n",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "&a ",
        "*a",
        "<<: *a",
        "share_threshold: true",
        "replaces: [{ name: x }]",
        "ü",
        "\u{0}",
    ];
    let scratch = Scratch::new();
    let cases: Vec<String> = list_cases("ratelimit", "yaml")
        .iter()
        .map(|file| std::fs::read_to_string(file).expect("a case"))
        .collect();
    let (mut understood, mut refused) = (0, 0);
    for seed in 0..3000 {
        let mut dice = Dice(seed);
        let mut text: Vec<char> = cases[dice.below(cases.len())].chars().collect();
        for _ in 0..=dice.below(4) {
            let at = dice.below(text.len() + 1);
            let end = (at + dice.below(12)).min(text.len());
            let piece = match dice.below(3) {
                0 => "",
                _ => PIECES[dice.below(PIECES.len())],
            };
            text.splice(at..end, piece.chars());
        }
        let text: String = text.into_iter().collect();
        match import_file(&scratch.file("ratelimit.yaml", &text)) {
            Ok(imported) => {
                understood += 1;
                config::parse(&imported.yaml, "gateway.yaml")
                    .unwrap_or_else(|report| panic!("seed {seed}: {report}\n{text}\n{}", imported.yaml));
            }
            Err(fault) => {
                refused += 1;
                assert!(fault.at.line >= 1 && !fault.message.is_empty(), "seed {seed}: {fault}");
                assert!(fault.at.line <= text.lines().count() + 1, "seed {seed}: {fault}");
            }
        }
    }
    assert!(understood > 300 && refused > 300, "{understood} understood, {refused} refused");
}
