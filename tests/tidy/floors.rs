//! Floors: the allowed imports between rooms, and the files that no module declares.

use std::collections::{BTreeMap, BTreeSet};

use crate::code::{Source, closing, skip_blanks, word_at};
use crate::rules::{Declared, declared, is_product};

/// Each entry is one floor, the ground first.
pub type Floors<'a> = &'a [&'a [&'a str]];

fn floor(floors: Floors, module: &str) -> Option<usize> {
    floors.iter().position(|rooms| rooms.contains(&module))
}

/// `src/limit/gcra.rs` → `["limit", "gcra"]`; nothing for the crate roots.
fn module(path: &str) -> Vec<&str> {
    let inner = path.trim_start_matches("src/").trim_end_matches(".rs");
    let inner = inner.strip_suffix("/mod").unwrap_or(inner);
    if inner == "lib" || inner == "main" { vec![] } else { inner.split('/').collect() }
}

/// Imports that do not lead down.
pub fn imports(path: &str, source: &Source, floors: Floors) -> Vec<String> {
    let own_path = module(path);
    let (own, prefix) = match (path, own_path.first()) {
        ("src/main.rs", _) => ("main", "sluicegate::"),
        (_, Some(name)) => (*name, "crate::"),
        (_, None) => return vec![],
    };
    let Some(own_floor) = floor(floors, own) else {
        return vec![format!("{path}:1: module {own} is new: give it a floor in tests/tidy.rs")];
    };
    let mut found = Vec::new();
    for (at, name) in named(source, prefix) {
        let line = source.line(at);
        match floor(floors, &name) {
            _ if name == own || name == "self" => {}
            None => found.push(format!("{path}:{line}: {prefix}{name}: give it a floor in tests/tidy.rs")),
            Some(theirs) if theirs >= own_floor => found.push(format!(
                "{path}:{line}: {own} (floor {own_floor}) imports {name} (floor {theirs}); only lower floors"
            )),
            Some(_) => {}
        }
    }
    found.extend(climbs(path, source, own_path.len()));
    found
}

/// The first name behind each `prefix`, also inside braces: `crate::{a::X, b}` names a and b.
fn named(source: &Source, prefix: &str) -> Vec<(usize, String)> {
    let code = &source.code;
    let mut found = Vec::new();
    for start in source.words(prefix) {
        let at = skip_blanks(code, start + prefix.len());
        if !code[at..].starts_with('{') {
            let (name, _) = word_at(code, at);
            found.push((start, if name.is_empty() { "*".to_owned() } else { name.to_owned() }));
            continue;
        }
        let end = closing(code, at);
        let mut item = at + 1;
        while item < end {
            let (name, mut next) = word_at(code, item);
            if !name.is_empty() {
                found.push((skip_blanks(code, item), name.to_owned()));
            }
            while next < end && code.as_bytes()[next] != b',' {
                next = if code.as_bytes()[next] == b'{' { closing(code, next) } else { next } + 1;
            }
            item = next + 1;
        }
    }
    found
}

/// `super::` that reaches the crate root would hide an import from [`named`].
fn climbs(path: &str, source: &Source, depth: usize) -> Vec<String> {
    let mut found = Vec::new();
    for start in source.words("super::") {
        if depth == 0 || source.code[..start].ends_with("super::") {
            continue;
        }
        let rest = source.code[start..].split("super::").skip(1);
        let steps = 1 + rest.take_while(|between| between.is_empty()).count();
        if steps >= depth + source.inline_modules(start).len() {
            let line = source.line(start);
            found.push(format!("{path}:{line}: super:: reaches the crate root: write crate::"));
        }
    }
    found
}

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
