//! Which files the modules of a crate reach, and which of them only tests compile.

use std::collections::{BTreeMap, BTreeSet};

use crate::code::Source;
use crate::rules::{Declared, declared, is_product};

/// Files that no module declares, and the set of files that only tests compile.
pub fn reach(files: &BTreeMap<String, Source>) -> (Vec<String>, BTreeSet<String>) {
    let mut seen = BTreeSet::new();
    let mut test_only = BTreeSet::new();
    let is_root = |path: &&String| {
        matches!(path.as_str(), "src/lib.rs" | "src/main.rs")
            || is_product(path) && path.ends_with("/src/lib.rs")
    };
    let mut next: Vec<String> = files.keys().filter(is_root).cloned().collect();
    while let Some(path) = next.pop() {
        let Some(source) = files.get(&path) else { continue };
        if !seen.insert(path.clone()) {
            continue;
        }
        for child in declared(source) {
            for file in candidates(&path, &child) {
                if child.test_only || test_only.contains(&path) {
                    test_only.insert(file.clone());
                }
                next.push(file);
            }
        }
    }
    let orphans = files.keys().filter(|path| is_product(path) && !seen.contains(*path));
    (orphans.map(|path| format!("{path}:1: no `mod` declares this file")).collect(), test_only)
}

/// The possible files of a module that `path` declares.
fn candidates(path: &str, child: &Declared) -> Vec<String> {
    if let (Some(file), Some((folder, _))) = (&child.file, path.rsplit_once('/')) {
        return vec![format!("{folder}/{file}")];
    }
    let folder = children_folder(path, &child.inline);
    vec![format!("{folder}/{}.rs", child.name), format!("{folder}/{}/mod.rs", child.name)]
}

/// The folder of the modules that `path` declares.
fn children_folder(path: &str, inline: &[String]) -> String {
    let stem = path.trim_end_matches(".rs");
    let own = ["/lib", "/main", "/mod"].iter().find_map(|root| stem.strip_suffix(root)).unwrap_or(stem);
    let mut folder = own.to_owned();
    for name in inline {
        folder.push('/');
        folder.push_str(name);
    }
    folder
}
