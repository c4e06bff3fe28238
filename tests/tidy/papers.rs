//! House rules about text files: links that lead to files and headings, no paths of one machine, a changelog section.

use std::collections::BTreeSet;
use std::path::Path;

/// First folders of paths that exist on one machine only.
const MACHINE_FOLDERS: [&str; 5] = ["work", "root", "home", "farm", "Users"];

/// Links of a Markdown file to missing files, and to headings that a Markdown file does not have.
pub fn links(root: &Path, path: &str, text: &str) -> Vec<String> {
    let folder = root.join(path).parent().map(Path::to_path_buf).unwrap_or_default();
    let mut found = Vec::new();
    for (index, line) in prose(text) {
        for target in targets(line) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let page = folder.join(file);
            if file.contains(':') {
                continue;
            }
            if !file.is_empty() && !page.exists() {
                found.push(format!("{path}:{index}: link to {file}, which does not exist"));
            } else if !anchor.is_empty() && !has_anchor(&page, file, text, anchor) {
                found.push(format!("{path}:{index}: link to {target}, but no heading has this anchor"));
            }
        }
    }
    found
}

/// Whether the page has such a heading; `file` is empty for a link within `text`. Other files than Markdown have no
/// headings, so their anchors are not judged.
fn has_anchor(page: &Path, file: &str, text: &str, anchor: &str) -> bool {
    match file {
        "" => anchors(text).contains(anchor),
        _ if !file.ends_with(".md") => true,
        _ => std::fs::read_to_string(page).is_ok_and(|text| anchors(&text).contains(anchor)),
    }
}

/// The anchors that GitHub and mdBook give to the headings of a page.
pub fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let headings = prose(text).filter_map(|(_, line)| {
        let title = line.trim_start_matches('#');
        let level = line.len() - title.len();
        (1..=6).contains(&level).then(|| title.strip_prefix(' ')).flatten()
    });
    for heading in headings {
        let kept = |c: &char| c.is_alphanumeric() || "-_ ".contains(*c);
        let slug: String = heading.trim().chars().filter(kept).collect();
        let slug = slug.to_lowercase().replace(' ', "-");
        let numbered = (1..).map(|number| format!("{slug}-{number}"));
        // A repeated heading gets a number.
        let free = std::iter::once(slug.clone()).chain(numbered).find(|anchor| !found.contains(anchor));
        found.extend(free);
    }
    found
}

/// The lines outside fenced blocks, counted from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((index + 1, line))
    })
}

/// The targets of `[text](target)` outside code spans.
fn targets(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let outside = line.split('`').enumerate().filter(|(index, _)| index % 2 == 0);
    // A code span may be the text of a link, so the part behind it can begin with the closing bracket.
    for (_, part) in outside {
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
