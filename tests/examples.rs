//! `gateway.yaml`, every example and every YAML block of the README are valid, the same, and short.

#[path = "examples/images.rs"]
mod images;

use std::path::{Path, PathBuf};

const README_LINES_MAX: usize = 400;
const GATEWAY_YAML_LINES_MAX: usize = 59;

/// The everyday tasks, in the README's order.
const TASKS: [&str; 6] =
    ["per_ip_limit", "two_windows", "per_account", "sms_smoothing_queue", "concurrency_cap", "dry_run"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(file: &str) -> String {
    let path = root().join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The YAML files of a folder, sorted.
fn yaml_files(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let paths = entries.map(|entry| entry.expect("a readable folder").path());
    let mut found: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "yaml")).collect();
    found.sort();
    found
}

/// A fenced YAML block of a page.
struct Block {
    line: usize,
    body: String,
    /// The `examples/….yaml` named last before it.
    example: Option<String>,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let (mut example, mut open) = (None, false);
    for (index, line) in page.lines().enumerate() {
        if line == "```yaml" {
            open = true;
            found.push(Block { line: index + 1, body: String::new(), example: example.take() });
        } else if line == "```" {
            open = false;
        } else if let (true, Some(block)) = (open, found.last_mut()) {
            block.body.push_str(line);
            block.body.push('\n');
        } else if let Some(start) = line.find("(examples/") {
            example = line[start + 1..].split(')').next().map(str::to_owned);
        }
    }
    found
}

/// An example without its header comment.
fn core(example: &str) -> &str {
    let mut rest = example;
    while let Some((line, behind)) = rest.split_once('\n') {
        if !line.is_empty() && !line.starts_with('#') {
            break;
        }
        rest = behind;
    }
    rest
}

#[test]
fn every_file_is_valid_without_a_warning() {
    let mut files = yaml_files("examples");
    assert!(files.len() >= TASKS.len(), "only {} examples were found", files.len());
    let compose = yaml_files("examples/compose");
    assert!(!compose.is_empty(), "no compose examples were found");
    files.extend(compose);
    files.push(root().join("gateway.yaml"));
    for file in files {
        match sluicegate::config::load(&file) {
            Ok(loaded) => assert_eq!(loaded.warnings, [], "{}", file.display()),
            Err(report) => panic!("{}:\n{report}", file.display()),
        }
    }
}

#[test]
fn every_example_names_its_problem() {
    for file in yaml_files("examples") {
        let text = std::fs::read_to_string(&file).expect("an example is text");
        assert!(text.starts_with("# Solves: "), "{}", file.display());
    }
}

#[test]
fn every_block_of_the_readme_is_an_example() {
    let blocks = blocks(&text("README.md"));
    for block in &blocks {
        let line = block.line;
        let file =
            block.example.as_ref().unwrap_or_else(|| panic!("README.md:{line}: name the example above"));
        assert_eq!(block.body, core(&text(file)), "README.md:{line} differs from {file}");
    }
    let named: Vec<&str> = blocks.iter().filter_map(|block| block.example.as_deref()).collect();
    assert_eq!(named, TASKS.map(|task| format!("examples/{task}.yaml")));
}

#[test]
fn every_example_is_named_in_the_readme() {
    let readme = text("README.md");
    for file in yaml_files("examples") {
        let name = file.file_name().and_then(|name| name.to_str()).expect("a plain file name");
        assert!(readme.contains(&format!("(examples/{name})")), "README.md does not link to {name}");
    }
}

#[test]
fn the_first_pages_stay_short() {
    for (file, lines_max) in [("gateway.yaml", GATEWAY_YAML_LINES_MAX), ("README.md", README_LINES_MAX)] {
        let lines = text(file).lines().count();
        assert!(lines <= lines_max, "{file} has {lines} lines; {lines_max} are allowed");
    }
}

#[test]
fn blocks_are_read_with_the_example_above_them() {
    let page = "[a](examples/a.yaml)\n```yaml\nx: 1\n```\n```sh\nls\n```\n```yaml\ny: 2\n```\n";
    let blocks = blocks(page);
    assert_eq!(blocks.len(), 2);
    assert_eq!((blocks[0].body.as_str(), blocks[0].example.as_deref()), ("x: 1\n", Some("examples/a.yaml")));
    assert_eq!((blocks[1].body.as_str(), blocks[1].example.as_deref(), blocks[1].line), ("y: 2\n", None, 8));
    assert_eq!(core("# Solves: x\n# more\n\nlisten: 1\n# kept\n"), "listen: 1\n# kept\n");
}
