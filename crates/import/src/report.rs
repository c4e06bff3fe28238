//! The report of an import: losses, differences, and the number of exact translations.

use std::collections::HashSet;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::ImportedLine;

/// The translation of one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FindingKind {
    /// Needs a check that the gateway cannot make, so that all get 403.
    Closed,
    /// Limits, denies or answers, or may do so.
    Lost,
    /// Translated, but not exactly: the gateway decides or answers otherwise in some case.
    Difference,
    /// Does nothing of this.
    NotTranslated,
    /// Works without a field of its own.
    NotNeeded,
    /// Translated exactly.
    Exact,
}

impl FindingKind {
    pub(crate) fn is_lost(self) -> bool {
        matches!(self, FindingKind::Closed | FindingKind::Lost)
    }
}

/// A line of the source and its translation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ImportFinding {
    /// The line of the source.
    pub at: ImportedLine,
    /// The kind of the translation.
    pub kind: FindingKind,
    /// The directive on one line, cut to 90 characters.
    pub directive: String,
    /// The translation, its difference, or the reason why it is left out.
    pub says: String,
}

/// Every finding once.
#[derive(Debug, Default)]
pub struct ImportReport {
    /// The findings, sorted by kind and then by line once the import is over.
    pub findings: Vec<ImportFinding>,
    seen: HashSet<ImportFinding>,
}

/// Longer texts of directives are cut.
const DIRECTIVE_CHARS_MAX: usize = 90;

impl ImportReport {
    pub(super) fn exact(&mut self, at: &ImportedLine, directive: &str, says: impl Into<String>) {
        self.add(FindingKind::Exact, at, directive, says.into());
    }

    pub(super) fn differs(&mut self, at: &ImportedLine, directive: &str, says: impl Into<String>) {
        self.add(FindingKind::Difference, at, directive, says.into());
    }

    pub(super) fn skips(&mut self, at: &ImportedLine, directive: &str, says: impl Into<String>) {
        self.add(FindingKind::NotTranslated, at, directive, says.into());
    }

    pub(super) fn loses(&mut self, at: &ImportedLine, directive: &str, says: impl Into<String>) {
        self.add(FindingKind::Lost, at, directive, says.into());
    }

    pub(super) fn add(&mut self, kind: FindingKind, at: &ImportedLine, directive: &str, says: String) {
        let mut directive: String = directive.split_whitespace().collect::<Vec<_>>().join(" ");
        if directive.chars().count() > DIRECTIVE_CHARS_MAX {
            directive = directive.chars().take(DIRECTIVE_CHARS_MAX).chain(['…']).collect();
        }
        let finding = ImportFinding { at: at.clone(), kind, directive, says: clean(&says) };
        if self.seen.insert(finding.clone()) {
            self.findings.push(finding);
        }
    }

    pub(super) fn sort_findings(&mut self) {
        self.findings.sort_by(|a, b| (a.kind, &a.at).cmp(&(b.kind, &b.at)));
    }

    /// Untranslated lines that limit, deny or answer.
    pub fn lost(&self) -> impl Iterator<Item = &ImportFinding> {
        self.findings.iter().filter(|finding| finding.kind.is_lost())
    }

    /// The number of untranslated lines that limit, deny or answer; 0 = nothing was lost.
    pub fn count_lost(&self) -> usize {
        self.lost().count()
    }

    /// The findings of one kind.
    pub fn of_kind(&self, kind: FindingKind) -> impl Iterator<Item = &ImportFinding> {
        self.findings.iter().filter(move |finding| finding.kind == kind)
    }

    /// The report for people.
    pub fn render_text(&self) -> String {
        let mut out = String::new();
        let parts = [
            ("LOST", &[FindingKind::Closed, FindingKind::Lost][..]),
            ("translated with a difference", &[FindingKind::Difference]),
            ("not translated", &[FindingKind::NotTranslated]),
        ];
        for (title, kinds) in parts {
            let findings: Vec<_> = kinds.iter().flat_map(|&kind| self.of_kind(kind)).collect();
            if !findings.is_empty() {
                // Writing into a String cannot fail.
                let _ = writeln!(out, "{title}: {}", findings.len());
            }
            for ImportFinding { at, directive, says, .. } in findings {
                let _ = match says.as_str() {
                    "" => writeln!(out, "  {at}: {directive}"),
                    says => writeln!(out, "  {at}: {directive}\n      {says}"),
                };
            }
        }
        let counts = [
            (FindingKind::NotNeeded, "not needed: the gateway does or decides this by itself"),
            (FindingKind::Exact, "translated exactly"),
        ];
        for (kind, what) in counts {
            let count = self.of_kind(kind).count();
            let _ = writeln!(out, "{count} {} {what}", if count == 1 { "directive" } else { "directives" });
        }
        let _ = match self.count_lost() {
            0 => writeln!(out, "nothing that limits, denies or answers was lost"),
            1 => writeln!(out, "1 line that limits, denies or answers, or may do so, was lost"),
            lost => writeln!(out, "{lost} lines that limit, deny or answer, or may do so, were lost"),
        };
        out
    }

    /// The report for programs.
    pub fn render_json(&self) -> String {
        let line = |finding: &ImportFinding| {
            let ImportFinding { at, kind, directive, says } = finding;
            let mut line = json!({ "file": at.file, "line": at.line, "directive": directive });
            if !says.is_empty() {
                line["says"] = json!(says);
            }
            // For an untranslated line: true if it limits, denies or answers.
            if kind.is_lost() || *kind == FindingKind::NotTranslated {
                line["limits"] = json!(kind.is_lost());
            }
            line
        };
        let lines = |kinds: &[FindingKind]| -> Vec<Value> {
            self.findings.iter().filter(|finding| kinds.contains(&finding.kind)).map(line).collect()
        };
        let body = json!({
            "exact": lines(&[FindingKind::Exact]),
            "different": lines(&[FindingKind::Difference]),
            "not_translated": lines(&[FindingKind::Closed, FindingKind::Lost, FindingKind::NotTranslated]),
            "not_needed": lines(&[FindingKind::NotNeeded]),
            "lost": self.count_lost(),
        });
        // Only maps with odd keys fail to serialize, and there are none.
        serde_json::to_string_pretty(&body).unwrap_or_default() + "\n"
    }
}

/// One line of text: a comment ends with its line.
pub(super) fn clean(text: &str) -> String {
    text.replace(|c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}'), "?")
}
