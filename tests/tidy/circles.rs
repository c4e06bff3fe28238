//! Circles between files and between rooms: a chain of imports must never lead back to its start.

use std::collections::{BTreeMap, BTreeSet};

use crate::code::{Source, closing, is_word, skip_blanks, word_at};
use crate::rules;

/// The files by the paths of their modules.
type Files<'a> = BTreeMap<Vec<String>, (&'a str, &'a Source)>;

/// A path of a `use`, one for each name in its braces; `*` stands for all names.
struct Import {
    path: Vec<String>,
    /// The name that the import gives it.
    name: String,
    public: bool,
}

/// The imports of each production file, by path. A module and the modules inside it count as one: a folder's `mod.rs`
/// may import from its files, and they from it.
fn file_imports<'a>(
    sources: &'a BTreeMap<String, Source>,
    test_only: &BTreeSet<String>,
) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let files: Files = sources
        .iter()
        .filter(|(path, _)| rules::is_product(path) && !test_only.contains(*path) && *path != "src/main.rs")
        .map(|(path, source)| (module_path(path), (path.as_str(), source)))
        .collect();
    files.iter().map(|(own, (path, source))| (*path, imported_files(&files, own, source))).collect()
}

/// The circles of production files, each with the imports that make it.
pub fn circles(sources: &BTreeMap<String, Source>, test_only: &BTreeSet<String>) -> Vec<String> {
    find_circles(&file_imports(sources, test_only), "files")
}

/// The circles of rooms, in the crates that have rooms.
pub fn room_circles(sources: &BTreeMap<String, Source>, test_only: &BTreeSet<String>) -> Vec<String> {
    let mut edges: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (path, imported) in file_imports(sources, test_only) {
        let Some(own) = room(path) else { continue };
        let others = imported.into_iter().filter_map(room).filter(|other| *other != own);
        edges.entry(own).or_default().extend(others);
    }
    find_circles(&edges, "rooms")
}

/// `src/process/reload.rs` → `src/process`; `None` for a file that is in no room.
fn room(path: &str) -> Option<&str> {
    let root =
        ["src/", "crates/proxy/src/", "crates/http/src/"].into_iter().find(|root| path.starts_with(root))?;
    let length = path[root.len()..].find('/')?;
    Some(&path[..root.len() + length])
}

fn find_circles(edges: &BTreeMap<&str, BTreeSet<&str>>, parts: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut reported: BTreeSet<&str> = BTreeSet::new();
    for &start in edges.keys() {
        let circle: BTreeSet<&str> =
            reachable(edges, start).into_iter().filter(|end| reachable(edges, end).contains(start)).collect();
        if circle.is_empty() || !reported.is_disjoint(&circle) {
            continue;
        }
        reported.extend(&circle);
        let arrows = circle.iter().flat_map(|from| {
            edges[from].intersection(&circle).map(move |to| format!("  {from} imports from {to}"))
        });
        found.push(format!(
            "{start}:1: a circle of {} {parts}:\n{}",
            circle.len(),
            arrows.collect::<Vec<_>>().join("\n")
        ));
    }
    found
}

/// The crate and the modules of a file: `crates/limit/src/table/mod.rs` → `["limit", "table"]`.
fn module_path(path: &str) -> Vec<String> {
    let (package, inner) = match path.strip_prefix("crates/").and_then(|path| path.split_once("/src/")) {
        Some(found) => found,
        None => ("sluicegate", path.trim_start_matches("src/")),
    };
    let inner = inner.trim_end_matches(".rs");
    let modules = inner.strip_suffix("/mod").unwrap_or(inner).split('/').filter(|name| *name != "lib");
    std::iter::once(package).chain(modules).map(str::to_owned).collect()
}

fn reachable<'a>(edges: &BTreeMap<&'a str, BTreeSet<&'a str>>, start: &str) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut next: Vec<&str> = edges[start].iter().copied().collect();
    while let Some(file) = next.pop() {
        if seen.insert(file) {
            next.extend(&edges[file]);
        }
    }
    seen
}

fn imported_files<'a>(files: &Files<'a>, own: &[String], source: &Source) -> BTreeSet<&'a str> {
    let mut paths: Vec<Vec<String>> = imports(source).into_iter().map(|import| import.path).collect();
    paths.extend(inline_paths(source));
    let absolute = paths.iter().filter_map(|path| absolute(own, path));
    let targets = absolute.filter_map(|path| defining_file(files, &path, 0));
    targets.filter(|target| !related(own, target)).map(|target| files[&target].0).collect()
}

/// Whether one module is the other, or inside it.
fn related(one: &[String], other: &[String]) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

/// Removes `crate::` and `super::`; `None` for other crates and relative names.
fn absolute(own: &[String], path: &[String]) -> Option<Vec<String>> {
    match path.first()?.as_str() {
        "crate" => Some([&own[..1], &path[1..]].concat()),
        "super" => {
            let steps = path.iter().take_while(|name| *name == "super").count();
            let base = own.len().checked_sub(steps)?;
            Some([&own[..base], &path[steps..]].concat())
        }
        _ => None,
    }
}

/// The module that defines the last name of a path, through re-exports.
fn defining_file(files: &Files<'_>, path: &[String], depth: usize) -> Option<Vec<String>> {
    let module =
        (0..=path.len()).rev().map(|length| &path[..length]).find(|module| files.contains_key(*module))?;
    let Some(item) = path.get(module.len()) else { return Some(module.to_vec()) };
    let source = files[module].1;
    if depth > 8 || item == "*" || defines(source, item) {
        return Some(module.to_vec());
    }
    let exported = imports(source).into_iter().filter(|import| import.public);
    for import in exported.filter(|import| import.name == *item || import.name == "*") {
        let mut target = match absolute(module, &import.path) {
            Some(target) => target,
            None => [module, &import.path].concat(),
        };
        if import.name == "*" {
            target.pop();
            target.push(item.clone());
        }
        match defining_file(files, &target, depth + 1) {
            Some(found) if import.name != "*" || defines(files[&found].1, item) => return Some(found),
            _ => {}
        }
    }
    Some(module.to_vec())
}

fn defines(source: &Source, item: &str) -> bool {
    let kinds = ["struct", "enum", "union", "trait", "type", "fn", "const", "static", "macro_rules!"];
    source.words(item).into_iter().any(|at| {
        let before = source.code[..at].trim_end();
        before.len() < at && kinds.iter().any(|kind| before.ends_with(kind))
    })
}

/// Every `use` outside tests, with its braces opened.
fn imports(source: &Source) -> Vec<Import> {
    let code = &source.code;
    let mut found = Vec::new();
    for start in source.words("use") {
        let line = code[..start].rfind('\n').map_or(0, |at| at + 1);
        let before = code[line..start].trim();
        if source.in_tests(start) || !(before.is_empty() || before.starts_with("pub")) {
            continue;
        }
        let end = code[start..].find(';').map_or(code.len(), |length| start + length);
        open_braces(&code[start + "use".len()..end], &[], !before.is_empty(), &mut found);
    }
    found
}

fn open_braces(tree: &str, prefix: &[String], public: bool, found: &mut Vec<Import>) {
    let mut path = prefix.to_vec();
    let mut at = skip_blanks(tree, 0);
    loop {
        if tree[at..].starts_with('{') {
            let end = closing(tree, at);
            for item in split_items(&tree[at + 1..end]) {
                open_braces(item, &path, public, found);
            }
            return;
        }
        let (word, end) = if tree[at..].starts_with('*') { ("*", at + 1) } else { word_at(tree, at) };
        if word.is_empty() {
            return;
        }
        if word != "self" || path.is_empty() {
            path.push(word.to_owned());
        }
        at = skip_blanks(tree, end);
        if !tree[at..].starts_with("::") {
            break;
        }
        at = skip_blanks(tree, at + 2);
    }
    let renamed = tree[at..].strip_prefix("as ").map(|rest| word_at(rest, 0).0.to_owned());
    let Some(last) = path.last() else { return };
    found.push(Import { name: renamed.unwrap_or_else(|| last.clone()), path, public });
}

fn split_items(list: &str) -> Vec<&str> {
    let (mut items, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                items.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    items.push(&list[start..]);
    items
}

/// Paths in expressions and types, such as `crate::base::clock::now()`.
fn inline_paths(source: &Source) -> Vec<Vec<String>> {
    let code = &source.code;
    let starts = ["crate::", "super::"].iter().flat_map(|prefix| source.words(prefix));
    starts
        .filter(|&start| !source.in_tests(start) && !code[..start].ends_with("::"))
        .map(|start| {
            let length = code[start..].find(|c| !is_word(c) && c != ':').unwrap_or(code.len() - start);
            code[start..start + length]
                .split("::")
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect()
        })
        .collect()
}
