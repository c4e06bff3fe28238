//! The Markdown pages: their YAML blocks are valid files or equal examples, and the front page shows real output.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{root, text, yaml_files};

const README_LINES_MAX: usize = 150;

/// A block that begins with this line is a whole file.
const WHOLE_FILE: &str = "# gateway.yaml\n";

/// Fewer would mean that they are not found any more.
const WHOLE_FILES_MIN: usize = 8;

/// The everyday tasks, which some page shows as a whole file.
const TASKS: [&str; 6] =
    ["per_ip_limit", "two_windows", "per_account", "sms_smoothing_queue", "concurrency_cap", "dry_run"];

/// A fenced block of a page.
struct Block {
    line: usize,
    language: String,
    body: String,
    /// The example that the line above names; that line is nothing but the link.
    example: Option<String>,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let (mut above, mut open) = (None, false);
    for (index, line) in page.lines().enumerate() {
        if let (false, Some(language)) = (open, line.strip_prefix("```")) {
            open = true;
            let (language, example) = (language.to_owned(), above.take());
            found.push(Block { line: index + 1, language, body: String::new(), example });
        } else if line == "```" {
            open = false;
        } else if let (true, Some(block)) = (open, found.last_mut()) {
            block.body.push_str(line);
            block.body.push('\n');
        } else if !line.is_empty() {
            above = linked_example(line);
        }
    }
    found
}

/// The example of a line such as `[examples/a.yaml](../examples/a.yaml)`.
fn linked_example(line: &str) -> Option<String> {
    let (name, target) = line.strip_prefix('[')?.strip_suffix(')')?.split_once("](")?;
    let is_example = name.starts_with("examples/") && target.trim_start_matches("../") == name;
    is_example.then(|| name.to_owned())
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

/// The README and all pages below docs/, by their path from the root.
fn pages() -> Vec<(String, String)> {
    let mut pages = vec!["README.md".to_owned()];
    let mut folders = vec!["docs".to_owned()];
    while let Some(folder) = folders.pop() {
        let entries =
            std::fs::read_dir(root().join(&folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
        for entry in entries.map(|entry| entry.expect("a readable folder")) {
            let path = format!("{folder}/{}", entry.file_name().to_str().expect("a plain file name"));
            match entry.path().is_dir() {
                true => folders.push(path),
                false if path.ends_with(".md") => pages.push(path),
                false => {}
            }
        }
    }
    pages.sort();
    let read = |page: String| (page.clone(), text(&page));
    pages.into_iter().map(read).collect()
}

fn yaml_blocks() -> Vec<(String, Block)> {
    let of_page = |(page, text): (String, String)| {
        let yaml = blocks(&text).into_iter().filter(|block| block.language == "yaml");
        yaml.map(|block| (page.clone(), block)).collect::<Vec<_>>()
    };
    pages().into_iter().flat_map(of_page).collect()
}

/// The files that whole files of the pages name, in a folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let folder = std::env::temp_dir().join(format!("sluicegate-pages-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        for (key, name) in [
            ("tls/a.pem", "example.pem"),
            ("tls/a.key.pem", "example.key"),
            ("rsa.pub.pem", "jwks.json"),
            ("tls/a.pem", "ca.pem"),
        ] {
            std::fs::copy(root().join("tests/keys").join(key), folder.join(name)).expect("a copy");
        }
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn judge_whole_file(path: &Path, place: &str) {
    match sluicegate_config::load(path) {
        Ok(loaded) => assert_eq!(loaded.warnings, [], "{place}"),
        Err(report) => panic!("{place}:\n{report}"),
    }
}

#[test]
fn every_whole_file_on_a_page_is_valid_without_a_warning() {
    let folder = Folder::new();
    let path = folder.0.join("gateway.yaml");
    let blocks = yaml_blocks();
    let whole: Vec<_> = blocks.iter().filter(|(_, block)| block.body.starts_with(WHOLE_FILE)).collect();
    assert!(whole.len() >= WHOLE_FILES_MIN, "only {} whole files were found", whole.len());
    for (page, block) in whole {
        std::fs::write(&path, &block.body).expect("a file");
        judge_whole_file(&path, &format!("{page}:{}", block.line));
    }
}

#[test]
fn every_quoted_example_is_the_example() {
    let mut quoted = Vec::new();
    for (page, block) in yaml_blocks() {
        let line = block.line;
        let Some(file) = &block.example else {
            assert_ne!(page, "README.md", "line {line}: name the example above");
            continue;
        };
        assert_eq!(block.body, core(&text(file)), "{page}:{line} differs from {file}");
        quoted.push(file.clone());
    }
    for task in TASKS {
        assert!(quoted.contains(&format!("examples/{task}.yaml")), "no page quotes {task}");
    }
}

#[test]
fn every_example_is_named_on_a_page() {
    let is_entry =
        |page: &str| page == "README.md" || page == "docs/README.md" || page.starts_with("docs/tasks");
    let entries: String =
        pages().into_iter().filter(|(page, _)| is_entry(page)).map(|(_, text)| text).collect();
    for file in yaml_files("examples") {
        let name = file.file_name().and_then(|name| name.to_str()).expect("a plain file name");
        let is_named = entries.contains(&format!("(examples/{name})"))
            || entries.contains(&format!("../examples/{name})"));
        assert!(is_named, "neither the README nor docs/tasks link to {name}");
    }
}

#[test]
fn the_front_page_is_short() {
    let lines = text("README.md").lines().count();
    assert!(lines <= README_LINES_MAX, "README.md has {lines} lines; {README_LINES_MAX} are allowed");
}

/// The file that the first block of the front page writes.
fn first_file() -> String {
    let page = text("README.md");
    let (_, rest) = page.split_once("cat > gateway.yaml <<'END'\n").expect("a file is written");
    let (file, _) = rest.split_once("\nEND\n").expect("its end");
    format!("{file}\n")
}

/// It listens on loopback alone, because nobody who tries a program opens a port to others with it.
#[test]
fn the_front_page_writes_the_first_example() {
    let example = text("examples/per_ip_limit.yaml");
    assert_eq!(first_file(), format!("listen: 127.0.0.1:8080\n\n{}", core(&example)));
}

/// The block with a command holds what the program prints now about the file of the first block.
#[test]
fn the_front_page_shows_what_explain_prints() {
    let blocks = blocks(&text("README.md"));
    let shown = blocks.iter().find_map(|block| block.body.strip_prefix("$ sluicegate explain "));
    let (args, shown) = shown.and_then(|shown| shown.split_once('\n')).expect("an explanation");
    let folder = sluicegate_testkit::Scratch::new();
    folder.file("gateway.yaml", &first_file());
    let mut command = Command::new(sluicegate_testkit::program());
    command.current_dir(folder.path()).arg("explain").args(args.split(' '));
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), shown, "README.md, explain {args}");
}

#[test]
fn blocks_are_read_with_the_example_above_them() {
    let page =
        "[examples/a.yaml](../examples/a.yaml)\n\n```yaml\nx: 1\n```\n```sh\nls\n```\n```yaml\ny: 2\n```\n";
    let blocks = blocks(page);
    assert_eq!(blocks.len(), 3);
    assert_eq!((blocks[0].body.as_str(), blocks[0].example.as_deref()), ("x: 1\n", Some("examples/a.yaml")));
    assert_eq!((blocks[1].language.as_str(), blocks[1].example.as_deref()), ("sh", None));
    assert_eq!((blocks[2].body.as_str(), blocks[2].example.as_deref(), blocks[2].line), ("y: 2\n", None, 9));
    assert_eq!(linked_example("see [examples/a.yaml](examples/a.yaml)"), None);
    assert_eq!(linked_example("[examples/a.yaml](../examples/b.yaml)"), None);
    assert_eq!(core("# Solves: x\n# more\n\nlisten: 1\n# kept\n"), "listen: 1\n# kept\n");
}
