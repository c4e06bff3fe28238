//! Hand-written nginx.conf files with what becomes of them, in `cases/*.conf`; and those of envoyproxy/ratelimit in
//! `ratelimit/*.yaml`.
//!
//! The first lines of a file say what is expected: `# yaml: TEXT` and `# no yaml: TEXT` of the written file (runs of
//! spaces and comments in it do not count), `# comment: TEXT` of it with its comments, `# exact: TEXT`,
//! `# differs: TEXT`, `# left out: TEXT` and `# not needed: TEXT` of a finding,
//! `# lost: N` (0 without it), `# fault: TEXT` for a file that is not understood. `# plus` and `# files` excuse a file
//! from the check by nginx itself: it is for NGINX Plus or another module, or names files that are not there.

use std::path::{Path, PathBuf};
use std::process::Command;

use sluicegate_config as config;
use sluicegate_import::{FindingKind, Imported, import_file};

use crate::support::Scratch;

fn case_files() -> Vec<PathBuf> {
    list_cases("cases", "conf")
}

/// The files of a folder beside this one, by their ending.
pub fn list_cases(folder: &str, ending: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/import").join(folder);
    let entries = std::fs::read_dir(folder).expect("the folder of cases");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == ending));
    files.sort();
    files
}

/// The text of YAML without comments and runs of spaces.
fn squeeze(yaml: &str) -> String {
    let lines = yaml.lines().map(|line| line.split("  #").next().unwrap_or_default());
    lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}

fn check_expectation(line: &str, imported: &Imported) -> Result<(), String> {
    let Some((word, text)) = line.trim_start_matches("# ").split_once(": ") else { return Ok(()) };
    let yaml = squeeze(&imported.yaml);
    let says = |kind: FindingKind| {
        imported.report.of_kind(kind).any(|finding| {
            format!("{}: {}: {}", finding.at.line, finding.directive, finding.says).contains(text)
        })
    };
    let holds = match word {
        "yaml" => yaml.contains(&squeeze(text)),
        "no yaml" => !yaml.contains(&squeeze(text)),
        "exact" => says(FindingKind::Exact),
        "differs" => says(FindingKind::Difference),
        "left out" => {
            [FindingKind::NotTranslated, FindingKind::Lost, FindingKind::Closed].into_iter().any(says)
        }
        "not needed" => says(FindingKind::NotNeeded),
        "comment" => imported.yaml.contains(text),
        "lost" => imported.report.count_lost().to_string() == text,
        _ => return Err(format!("unknown word in `{line}`")),
    };
    if holds { Ok(()) } else { Err(format!("not so: {line}")) }
}

fn check_case(file: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(file).expect("a case");
    let expected: Vec<&str> = text.lines().take_while(|line| line.starts_with("# ")).collect();
    let outcome = import_file(file);
    if let Some(fault) = expected.iter().find_map(|line| line.strip_prefix("# fault: ")) {
        return match outcome {
            Err(found) if found.to_string().contains(fault) => Ok(()),
            Err(found) => Err(format!("another fault: {found}")),
            Ok(_) => Err("no fault".to_owned()),
        };
    }
    let imported = outcome.map_err(|fault| fault.to_string())?;
    let describe = |why: String| format!("{why}\n{}\n{}", imported.yaml, imported.report.render_text());
    if !expected.contains(&"# files") {
        config::parse(&imported.yaml, "gateway.yaml").map_err(|report| describe(report.to_string()))?;
    }
    if !expected.iter().any(|line| line.starts_with("# lost: ")) && imported.report.count_lost() > 0 {
        return Err(describe("something was lost".to_owned()));
    }
    expected.iter().try_for_each(|line| check_expectation(line, &imported)).map_err(describe)
}

#[test]
fn every_case_becomes_what_it_says() {
    let files = case_files();
    assert!(files.len() >= 60, "{} cases", files.len());
    check_cases(&files);
}

pub fn check_cases(files: &[PathBuf]) {
    let failed: Vec<String> = files
        .iter()
        .filter_map(|file| Some(format!("{}: {}", file.display(), check_case(file).err()?)))
        .collect();
    assert!(failed.is_empty(), "{} of {} cases:\n{}", failed.len(), files.len(), failed.join("\n\n"));
}

/// Every line of a file has a finding, so that nothing is left out without a word.
#[test]
fn every_directive_has_a_finding() {
    for file in case_files() {
        let Ok(imported) = import_file(&file) else { continue };
        let text = std::fs::read_to_string(&file).expect("a case");
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            let counts = ["limit_", "deny", "allow", "auth_", "return", "internal", "if ", "client_max"];
            if counts.iter().any(|word| line.starts_with(word)) {
                let told = imported.report.findings.iter().any(|finding| finding.at.line == index + 1);
                assert!(told, "{}:{}: `{line}` has no finding", file.display(), index + 1);
            }
        }
    }
}

/// The cases are files that nginx takes, and those with a fault are files that it refuses, or that use what it lacks.
#[test]
fn nginx_accepts_the_cases() {
    for file in case_files() {
        let text = std::fs::read_to_string(&file).expect("a case");
        let excused = |word: &str| text.lines().any(|line| line == word);
        if excused("# plus") || excused("# files") {
            continue;
        }
        let scratch = Scratch::new();
        let inside = !text.contains("http {");
        let wrapped = if inside { format!("events {{}} http {{ {text}\n }}") } else { text.clone() };
        let conf = scratch.file("nginx.conf", &format!("pid pid; error_log stderr; {wrapped}"));
        std::fs::create_dir_all(scratch.path().join("logs")).expect("a folder");
        let mut nginx = Command::new("/usr/sbin/nginx");
        nginx.arg("-t").arg("-p").arg(scratch.path()).arg("-c").arg(conf).arg("-e").arg("stderr");
        let output = nginx.output().expect("nginx runs: install the package nginx");
        let fault = text.contains("# fault: ");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), !fault, "{}: {stderr}", file.display());
    }
}

/// Checks the example in a section of the manual: a file of this name, and what is written from it.
pub fn check_manual_example(section: &str, name: &str) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/import.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let section = page.split(section).nth(1).expect("the section");
    let blocks: Vec<&str> =
        section.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let imported = import_file(&Scratch::new().file(name, blocks[0])).unwrap();
    let values = |text: &str| serde_yaml::from_str::<serde_yaml::Value>(text).expect("YAML");
    assert_eq!(values(&imported.yaml), values(blocks[1]));
    assert_eq!(imported.report.count_lost(), 0);
}
