//! OpenAPI documents: what becomes of each construct, bounds, and broken documents.

use std::fmt::Write as _;

use sluicegate_config as config;
use sluicegate_import::{import_file, import_files};

use crate::cases::{check_cases, check_manual_example, list_cases};
use crate::support::{Dice, Scratch};

#[test]
fn every_case_becomes_what_it_says() {
    let files = list_cases("openapi", "yaml");
    assert!(files.len() >= 35, "{} cases", files.len());
    check_cases(&files);
}

/// The example of the manual: the document, and what is written from it.
#[test]
fn the_example_of_the_manual_is_what_is_written() {
    check_manual_example("## OpenAPI documents", "openapi.yaml");
}

/// JSON has no comments, and is often indented by tabs.
#[test]
fn a_json_document_is_read() {
    let files = list_cases("openapi", "json");
    let imported = import_file(&files[0]).unwrap_or_else(|fault| panic!("{fault}"));
    for part in ["path: \"= /api/a\"  # ", "server_relative.json:5", "limits: GET-a", "http://127.0.0.1:9000"]
    {
        assert!(imported.yaml.contains(part), "{part}: {}", imported.yaml);
    }
    assert_eq!(imported.report.count_lost(), 0);
    let fault = import_files(&[files[0].clone(), files[0].clone()]).unwrap_err().to_string();
    assert!(fault.contains("of several files, each must be one of envoyproxy/ratelimit"), "{fault}");
}

#[test]
fn sizes_are_bounded() {
    let scratch = Scratch::new();
    let import = |text: &str| import_file(&scratch.file("openapi.yaml", text));
    let fault = |text: &str| import(text).map(|_| ()).expect_err("a fault").to_string();
    let many = |count: usize, operation: &str| {
        let mut text = "openapi: 3.0.0\npaths:\n".to_owned();
        for index in 0..count {
            writeln!(text, "  /p{index}/{{id}}: {{ get: {{ {operation} }} }}").expect("a String");
        }
        text
    };
    let imported = import(&many(1500, "operationId: same, x-ratelimit: 9/m")).unwrap();
    assert_eq!((imported.report.count_lost(), imported.yaml.matches("rate:").count()), (0, 1500));
    let wide = fault(&many(9000, ""));
    assert!(wide.contains("more than the 1 MiB that the gateway reads"), "{wide}");
    let fields = fault(&many(10_001, ""));
    assert!(fields.contains("`paths` has more than 10000 fields"), "{fields}");
    let merged = fault(&many(10_001, "").replace("paths:", "paths:\n <<:"));
    assert!(merged.contains("openapi.yaml:3:2: `<<` needs a short mapping"), "{merged}");
    let large = "openapi: 3.0.0\n".to_owned() + &"#".repeat(8 << 20);
    assert!(fault(&large).contains("larger than 8 MiB"));
    let laughs = "openapi: 3.0.0\nx: &a [1,1,1,1,1,1,1,1]\ny: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nz: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n\
         u: &d [*c,*c,*c,*c,*c,*c,*c,*c]\nv: [*d,*d,*d,*d,*d,*d,*d,*d]\n";
    assert!(fault(laughs).contains("aliases make the file too large"), "{}", fault(laughs));
}

/// Random damage to documents: a fault with a place, or a file that the gateway's own check accepts.
#[test]
fn damaged_documents_never_panic() {
    const PIECES: [&str; 24] = [
        "{",
        "}",
        "[",
        "]",
        "{id}",
        "/",
        "//",
        "?",
        "%",
        "\"",
        "\n",
        "  ",
        "- ",
        ": ",
        "&a ",
        "*a",
        "<<: *a",
        "ü",
        "\u{0}",
        "x-ratelimit: 1/s",
        "get: {}",
        "m: 3",
        "$ref: x",
        "${HOME}",
    ];
    let scratch = Scratch::new();
    let cases: Vec<String> = list_cases("openapi", "yaml")
        .iter()
        .map(|file| std::fs::read_to_string(file).expect("a case"))
        .collect();
    let (mut understood, mut refused) = (0, 0);
    for seed in 0..2000 {
        let mut dice = Dice(seed);
        let mut text: Vec<char> = cases[dice.below(cases.len())].chars().collect();
        for _ in 0..=dice.below(4) {
            let at = dice.below(text.len() + 1);
            let end = (at + dice.below(12)).min(text.len());
            let piece = if dice.below(3) == 0 { "" } else { PIECES[dice.below(PIECES.len())] };
            text.splice(at..end, piece.chars());
        }
        let text: String = text.into_iter().collect();
        match import_file(&scratch.file("openapi.yaml", &text)) {
            Ok(imported) => {
                understood += 1;
                config::parse(&imported.yaml, "gateway.yaml")
                    .unwrap_or_else(|report| panic!("seed {seed}: {report}\n{text}\n{}", imported.yaml));
            }
            Err(fault) => {
                refused += 1;
                assert!(fault.at.line >= 1 && !fault.message.is_empty(), "seed {seed}: {fault}");
                assert!(fault.at.line <= text.lines().count() + 1, "seed {seed}: {fault}\n{text}");
            }
        }
    }
    assert!(understood > 300 && refused > 300, "{understood} understood, {refused} refused");
}
