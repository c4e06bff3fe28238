//! gateway.yaml and the files that it includes, as one tree in which every value keeps its place.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::schema::field::ParseScalar;
use crate::schema::tables::root::root;
use crate::yaml::field_value::FieldValue;
use crate::yaml::foreign_text::{find_other_program, name_lookalike};
use crate::yaml::substitution::{Environment, substitute_all};
use crate::yaml::tree::{MapKey, Node, NodeContent, parse_document};
use sluicegate_base::file::{self, INCLUDE_BOUNDS};
use sluicegate_base::glob::{GlobBounds, has_wildcard};
use sluicegate_model::diagnostics::redact::redact_lines;
use sluicegate_model::{
    Position, Problem, ProblemReport, ProblemSink, SourceFile, ValueError, codes, did_you_mean,
};

/// Size limit of one file, in bytes.
pub const FILE_MAX: u64 = 1 << 20;
/// Size limit of all files of a set together, in bytes.
const ALL_MAX: usize = 64 << 20;
pub(crate) const TOO_LARGE: &str =
    "1 MiB is the most; long lists of networks and accounts belong into files of their own";

/// The sections that an included file may have, beside its owner.
const SECTIONS: [&str; 4] = ["upstreams", "limits", "ip_sets", LOCATIONS];
const LOCATIONS: &str = "locations";

/// The files that were read.
pub(crate) struct FileSet {
    name: String,
    /// The folder of the main file.
    folder: PathBuf,
    /// The main file, with the sections of the others.
    pub root: Node,
    pub sink: ProblemSink,
    /// The text of each file, by [`Problem::file`].
    texts: HashMap<String, String>,
    /// A hash and a name for each file.
    hashes: String,
    next_line: usize,
    bytes: usize,
}

/// A file to include: its path from the folder of the main file, without links, and the entry that names it.
struct FoundFile {
    path: PathBuf,
    real: Option<PathBuf>,
    entry: Position,
}

impl FileSet {
    /// Reads the main file from `text`, and all that it includes.
    ///
    /// # Errors
    /// The main file is no YAML. Other problems go to the sink.
    pub(crate) fn read_all(text: &str, name: &str) -> Result<FileSet, ProblemReport> {
        let hashes = file::short_hash(text.as_bytes());
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        if text.len() as u64 > FILE_MAX {
            let error = ValueError::new(codes::UNREADABLE, format!("the file `{name}` is larger than 1 MiB"));
            return Err(ProblemReport::for_file(name, error.with_help(TOO_LARGE)));
        }
        let texts = HashMap::from([(String::new(), text.to_owned())]);
        let root = parse_text(text).map_err(|(position, error)| {
            build_report(name.to_owned(), vec![error.at_position(position, "")], &texts)
        })?;
        let mut environment = process_environment(name);
        let mut set = FileSet {
            name: name.to_owned(),
            folder: environment.folder.clone(),
            root: Node { position: Position::START, content: NodeContent::Null },
            sink: ProblemSink::default(),
            texts: HashMap::new(),
            hashes,
            next_line: 1,
            bytes: 0,
        };
        set.root = set.read_tree(root, name, &environment, text);
        set.texts = texts;
        let found = set.find_files();
        found.iter().for_each(|found| set.read_file(found, &mut environment));
        set.drop_twice();
        Ok(set)
    }

    /// The report of these problems.
    pub(crate) fn report(self, problems: Vec<Problem>) -> ProblemReport {
        build_report(self.name, problems, &self.texts)
    }

    /// A hash that tells sets apart; for a single file that which `sha256sum` begins with.
    pub(crate) fn short_hash(&self) -> String {
        if self.texts.len() == 1 { self.hashes.clone() } else { file::short_hash(self.hashes.as_bytes()) }
    }

    /// The paths of the included files, as problems show them.
    pub(crate) fn included(&self) -> Vec<String> {
        self.texts.keys().filter(|name| !name.is_empty()).cloned().collect()
    }

    /// Makes `tree` a file of the set, whose lines follow those of the files before it, and replaces its variables.
    fn read_tree(&mut self, mut tree: Node, name: &str, environment: &Environment<'_>, text: &str) -> Node {
        let source = self.sink.add_source(SourceFile {
            first_line: self.next_line,
            name: name.to_owned(),
            folder: environment.folder.clone(),
            locations_before: self.root.find_value(LOCATIONS).map_or(0, |list| list.items().len()),
            owner: OnceCell::new(),
        });
        tree.shift_lines(self.next_line - 1);
        // A position may be that of the end of the file.
        self.next_line += text.split('\n').count() + 1;
        substitute_all(&mut tree, environment, &self.sink);
        let whole = open_whole(&tree, &self.sink);
        if let Some(owner) = find_field(&whole, root::OWNER.name)
            && let Some(Some(owner)) = owner.parse_with(|text| root::OWNER.value.parse_text(text))
        {
            source.owner.get_or_init(|| owner.into());
        }
        tree
    }

    /// The files of all entries in the order of their paths, each once.
    fn find_files(&self) -> Vec<FoundFile> {
        let whole = open_whole(&self.root, &self.sink);
        let entries = find_field(&whole, root::INCLUDE.name);
        let (mut found, mut bounds) = (Vec::new(), INCLUDE_BOUNDS);
        for item in entries.iter().flat_map(FieldValue::one_or_more) {
            let Some(pattern) = item.parse_with(|text| root::INCLUDE.value.0.parse_text(text)) else {
                continue;
            };
            match self.find_entry(&pattern, item.node.position, &mut bounds) {
                Ok(files) => found.extend(files),
                Err(why) => item.refuse(codes::UNREADABLE, why, "include the files by their own paths"),
            }
        }
        found.sort_by(|a, b| a.path.as_os_str().as_bytes().cmp(b.path.as_os_str().as_bytes()));
        let mut known: HashSet<PathBuf> = Path::new(&self.name).canonicalize().into_iter().collect();
        found.retain(|file| file.real.as_ref().is_none_or(|real| known.insert(real.clone())));
        if let (Some(entries), true) = (entries, found.len() > INCLUDE_BOUNDS.matches_max) {
            let message = format!("these are more than {} files", INCLUDE_BOUNDS.matches_max);
            entries.refuse_name(codes::UNREADABLE, message, "write fewer and larger files");
            found.clear();
        }
        found
    }

    /// The files of one entry. A link may lead to any place within the folder before the first wildcard.
    fn find_entry(
        &self,
        pattern: &Path,
        entry: Position,
        bounds: &mut GlobBounds,
    ) -> Result<Vec<FoundFile>, String> {
        let pattern: PathBuf = pattern.components().filter(|part| part.as_os_str() != ".").collect();
        let is_plain = |path: &&Path| !path.to_str().is_some_and(has_wildcard);
        let within = pattern.ancestors().skip(1).find(is_plain).unwrap_or(Path::new(""));
        let mut files = file::find_included(&self.folder, &pattern, bounds)?;
        if files.is_empty() && is_plain(&pattern.as_path()) {
            files.push(pattern.clone());
        }
        let resolve = |path: &Path| Path::new(".").join(&self.folder).join(path).canonicalize().ok();
        let base = resolve(within);
        let resolve = |path: PathBuf| match (resolve(&path), &base) {
            (Some(real), Some(base)) if !real.starts_with(base) => {
                Err(format!("the link `{}` leads out of the folder of this entry", path.display()))
            }
            (real, _) => Ok(FoundFile { path, real, entry }),
        };
        files.into_iter().map(resolve).collect()
    }

    /// Adds the sections of one file; its problems go to the sink.
    fn read_file(&mut self, found: &FoundFile, environment: &mut Environment<'_>) {
        let path = self.folder.join(&found.path);
        // The path that was checked: a link may lead elsewhere meanwhile.
        let read = match &found.real {
            Some(real) => file::read_capped(real, FILE_MAX),
            None => file::read_capped(&path, FILE_MAX).and_then(|_| Err("was not there before".to_owned())),
        };
        self.bytes += read.as_ref().map_or(0, Vec::len);
        let bytes = match read {
            Ok(bytes) if self.bytes <= ALL_MAX => bytes,
            read => {
                let whole = "is too much: all files together are larger than 64 MiB";
                let reason = read.err().unwrap_or_else(|| whole.to_owned());
                let message = format!("the file `{}` {reason}", found.path.display());
                let help = match reason.contains("larger") {
                    true => TOO_LARGE.to_owned(),
                    false => file::explain_path(&self.folder, &found.path),
                };
                let error = ValueError::new(codes::UNREADABLE, message).with_help(help);
                return self.sink.add_problem(found.entry, "include", error);
            }
        };
        self.hashes += &format!("\n{} {}", file::short_hash(&bytes), found.path.display());
        let name = path.display().to_string();
        environment.folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
        let lossy = String::from_utf8_lossy(&bytes);
        let text = lossy.strip_prefix('\u{feff}').unwrap_or(&lossy);
        let lines_before = self.next_line - 1;
        let parsed = match std::str::from_utf8(&bytes) {
            Ok(_) => parse_text(text),
            Err(error) => Err(describe_bad_utf8(&bytes, error.valid_up_to())),
        };
        let broken = Node { position: Position::START, content: NodeContent::Invalid };
        let (tree, fault) = parsed.map_or_else(|fault| (broken, Some(fault)), |tree| (tree, None));
        let tree = self.read_tree(tree, &name, environment, text);
        if let Some((position, error)) = fault {
            let position = Position { line: position.line + lines_before, ..position };
            self.sink.add_problem(position, "", error);
        }
        self.merge_tree(tree);
        self.texts.insert(name, text.to_owned());
    }

    fn merge_tree(&mut self, tree: Node) {
        if matches!(tree.content, NodeContent::Text(_) | NodeContent::List(_)) {
            let help = "it is made of sections such as upstreams:, limits: and locations:";
            open_whole(&tree, &self.sink).refuse_name(codes::SHAPE, "the file is not a mapping", help);
        }
        let NodeContent::Map(entries) = tree.content else { return };
        for (key, node) in entries {
            match SECTIONS.into_iter().find(|name| *name == key.name) {
                Some(section) => self.merge_section(section, key, node),
                None if key.name == root::OWNER.name => {}
                None => {
                    let message = format!("an included file has no `{}`", key.name);
                    let near = did_you_mean(&key.name, SECTIONS.into_iter().chain([root::OWNER.name]));
                    let error = ValueError::new(codes::UNKNOWN_FIELD, message).with_optional_help(near);
                    let sections = SECTIONS.join(", ");
                    let help = format!("write it in {}; here belong {sections} and owner", self.name);
                    self.sink.add_problem(key.position, &key.name, error.with_default_help(&help));
                }
            }
        }
    }

    /// Adds the content of one section to that of the main file.
    fn merge_section(&mut self, section: &'static str, key: MapKey, node: Node) {
        let value =
            FieldValue { node: &node, path: section.into(), named_at: key.position, sink: &self.sink };
        match (&node.content, section == LOCATIONS) {
            (NodeContent::Map(_), false) | (NodeContent::List(_), true) => {}
            (NodeContent::Null | NodeContent::Invalid, _) => return,
            (_, true) => return value.report_shape("a list, one `- path: …` for each location"),
            (_, false) => return value.report_shape("a mapping"),
        }
        let NodeContent::Map(all) = &mut self.root.content else { return };
        let Some((_, known)) = all.iter_mut().find(|(known, _)| known.name == section) else {
            return all.push((key, node));
        };
        match (&mut known.content, node.content) {
            (NodeContent::List(known), NodeContent::List(items)) => known.extend(items),
            (NodeContent::Map(known), NodeContent::Map(entries)) => known.extend(entries),
            (content @ NodeContent::Null, read) => *content = read,
            _ => {}
        }
    }

    /// Reports each name that another file has given, and drops what it names.
    fn drop_twice(&mut self) {
        let NodeContent::Map(sections) = &mut self.root.content else { return };
        let sink = &self.sink;
        let file = |position| sink.source_at(position).map(|source| source.first_line);
        for (section, node) in sections.iter_mut().filter(|(key, _)| SECTIONS.contains(&&*key.name)) {
            let NodeContent::Map(entries) = &mut node.content else { continue };
            let mut places: HashMap<String, Position> = HashMap::new();
            entries.retain(|(key, _)| {
                let first = *places.entry(key.name.clone()).or_insert(key.position);
                // Two keys of one file are reported already.
                let is_kept = file(first) == file(key.position);
                if !is_kept {
                    let (section, line) = (&section.name, sink.show_line(first, key.position));
                    let message =
                        format!("`{}` is defined twice in {section}, first in line {line}", key.name);
                    let error = ValueError::new(codes::DUPLICATE_KEY, message);
                    let help = "give one of them another name";
                    sink.add_problem(key.position, &format!("{section}.{}", key.name), error.with_help(help));
                }
                is_kept
            });
        }
    }
}

fn open_whole<'a>(root: &'a Node, sink: &'a ProblemSink) -> FieldValue<'a> {
    FieldValue { node: root, path: String::new(), named_at: root.position, sink }
}

fn find_field<'a>(whole: &FieldValue<'a>, name: &str) -> Option<FieldValue<'a>> {
    let (key, node) = whole.node.entries().iter().find(|(key, _)| key.name == name)?;
    Some(whole.field(key, node))
}

fn parse_text(text: &str) -> Result<Node, (Position, ValueError)> {
    find_other_program(text).map_or_else(|| parse_document(text), Err)
}

fn build_report(file: String, mut problems: Vec<Problem>, texts: &HashMap<String, String>) -> ProblemReport {
    let mut lines: HashMap<String, Vec<String>> = HashMap::new();
    for problem in &mut problems {
        let text = texts.get(&problem.file).map_or("", String::as_str);
        let lines = lines.entry(problem.file.clone()).or_insert_with(|| redact_lines(text));
        name_lookalike(problem, lines);
    }
    ProblemReport { file, problems, lines }
}

/// The variables of this process, and the folder of the file.
pub(crate) fn process_environment(file_name: &str) -> Environment<'static> {
    Environment {
        variable: &|name| std::env::var(name).ok(),
        variable_names: std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect(),
        folder: Path::new(file_name).parent().map(Path::to_path_buf).unwrap_or_default(),
    }
}

pub(crate) fn describe_bad_utf8(bytes: &[u8], valid_up_to: usize) -> (Position, ValueError) {
    let before = String::from_utf8_lossy(&bytes[..valid_up_to]);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    let message = format!("the file is not UTF-8 text: byte {valid_up_to} cannot be read");
    let encoding = match bytes {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "it is UTF-16: save it as UTF-8",
        _ => "save it as UTF-8",
    };
    (Position { line, column, width: 1 }, ValueError::new(codes::NOT_UTF8, message).with_help(encoding))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_leads_elsewhere_meanwhile_is_not_followed() {
        let folder = std::env::temp_dir().join(format!("sluicegate-swapped-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("checked.yaml"), "limits: { checked: 1/s }").unwrap();
        std::fs::write(folder.join("swapped.yaml"), "limits: { swapped: 1/s }").unwrap();
        std::os::unix::fs::symlink("swapped.yaml", folder.join("link.yaml")).unwrap();
        let main = folder.join("gateway.yaml").display().to_string();
        for (real, expected) in [(Some(folder.join("checked.yaml")), Some("checked")), (None, None)] {
            let mut set =
                FileSet::read_all("locations: []", &main).unwrap_or_else(|report| panic!("{report}"));
            let found = FoundFile { path: "link.yaml".into(), real, entry: Position::START };
            set.read_file(&found, &mut process_environment(&main));
            let limits = set.root.find_value("limits").map(|limits| limits.entries()[0].0.name.clone());
            assert_eq!(limits.as_deref(), expected);
        }
        let _ = std::fs::remove_dir_all(&folder);
    }
}
