//! An nginx.conf is refused with a place, or becomes a gateway.yaml that the gateway reads; the same file always gives
//! the same result.

#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::{Corpus, fuzz_target};
use sluicegate_config as config;
use sluicegate_import::{ImportFault, Imported, import_file};
use sluicegate_model::codes;

/// The file that is imported; each process has its own.
static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("sluicegate-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the file");
    folder.join("nginx.conf")
});

fn import(text: &str) -> Result<Imported, ImportFault> {
    std::fs::write(&*FILE, text).expect("the file is written");
    import_file(&FILE)
}

fn check(text: &str) {
    let lines = 1 + text.matches('\n').count();
    let imported = match import(text) {
        Ok(imported) => imported,
        Err(fault) => {
            assert!((1..=lines).contains(&fault.at.line) && !fault.message.is_empty(), "{fault}");
            return;
        }
    };
    for finding in &imported.report.findings {
        assert!((1..=lines).contains(&finding.at.line), "{finding:?}");
    }
    // A certificate or a list may be missing here; everything else is as the gateway wants it.
    if let Err(found) = config::parse(&imported.yaml, "gateway.yaml") {
        let wrong = found.problems.iter().find(|problem| problem.code != codes::UNREADABLE);
        assert_eq!(wrong, None, "{}", imported.yaml);
    }
    // Neither a second reading nor a comment behind the last line makes a difference.
    for text in [text, &format!("{text}\n# the end\n")] {
        let again = import(text).expect("it was read before");
        assert_eq!(again.yaml, imported.yaml);
        assert_eq!(again.report.findings, imported.report.findings);
    }
}

fuzz_target!(|text: &str| -> Corpus {
    // Other files of the machine would make a difference.
    if text.contains("include") {
        return Corpus::Reject;
    }
    check(text);
    Corpus::Keep
});
