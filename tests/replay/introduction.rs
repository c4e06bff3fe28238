//! Each command on the page about introducing a limit prints what the page shows.

use std::path::Path;
use std::process::Command;

use crate::support::{Scratch, program};

const PAGE: &str = include_str!("../../docs/introduce-a-limit.md");

/// A fenced block of the page: its language and its text.
fn blocks() -> Vec<(&'static str, &'static str)> {
    let fenced = PAGE.split("```").skip(1).step_by(2);
    fenced.map(|block| block.split_once('\n').expect("a language and a text")).collect()
}

fn run(folder: &Path, command: &str) -> String {
    let program = program();
    let programs = program.parent().expect("a folder");
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").expect("a path"));
    let finished = Command::new("sh").args(["-c", command]).current_dir(folder).env("PATH", path).output();
    let output = finished.expect("a shell");
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn every_command_prints_what_the_page_shows() {
    let folder = Scratch::new();
    folder.file("traffic.awk", include_str!("../../examples/introduce-a-limit/traffic.awk"));
    let mut commands = 0;
    for (language, text) in blocks() {
        if language == "yaml" {
            let name = text.lines().next().and_then(|line| line.strip_prefix("# ")).expect("a file name");
            folder.file(name, text);
            continue;
        }
        for part in text.split("$ ").skip(1) {
            let (command, shown) = part.split_once('\n').expect("a command");
            assert_eq!(run(folder.path(), command), shown, "$ {command}");
            commands += 1;
        }
    }
    assert!(commands >= 8, "only {commands} commands were found");
}
