//! House rules about text files: links that lead to files, no paths of one machine, a changelog section.

use std::path::Path;

/// First folders of paths that exist on one machine only.
const MACHINE_FOLDERS: [&str; 5] = ["work", "root", "home", "farm", "Users"];

/// Links of a Markdown file to missing files.
pub fn links(root: &Path, path: &str, text: &str) -> Vec<String> {
    let folder = root.join(path).parent().map(Path::to_path_buf).unwrap_or_default();
    let mut found = Vec::new();
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            for target in targets(line) {
                let file = target.split('#').next().unwrap_or("");
                if !file.is_empty() && !file.contains(':') && !folder.join(file).exists() {
                    found.push(format!("{path}:{}: link to {file}, which does not exist", index + 1));
                }
            }
        }
    }
    found
}

/// The targets of `[text](target)` outside code spans.
fn targets(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let prose = line.split('`').enumerate().filter(|(index, _)| index % 2 == 0);
    // A code span may be the text of a link, so the part behind it can begin with the closing bracket.
    for (_, part) in prose {
        for (at, open) in part.match_indices("](") {
            let rest = &part[at + open.len()..];
            found.push(&rest[..rest.find([')', ' ']).unwrap_or(rest.len())]);
        }
    }
    found
}

/// Absolute paths of one machine.
pub fn machine_paths(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for folder in MACHINE_FOLDERS {
            let needle = format!("/{folder}/");
            let inside = |c: char| c.is_alphanumeric() || "_-.~}/".contains(c);
            if line.match_indices(&needle).any(|(at, _)| !line[..at].ends_with(inside)) {
                found.push(format!("{path}:{}: {needle} is a path of one machine", index + 1));
            }
        }
    }
    found
}

pub fn changelog(path: &str, text: &str) -> Vec<String> {
    let kept = text.lines().any(|line| line.starts_with("## [Unreleased]"));
    if kept { vec![] } else { vec![format!("{path}:1: no `## [Unreleased]` section")] }
}
