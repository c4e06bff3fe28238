//! Texts that are no YAML of this gateway: files of other programs, and characters that only look like those of YAML.

use sluicegate_model::{Position, Problem, ValueError, codes};

/// The problem of a file that is the configuration of nginx or Caddy, told by its first line.
pub fn find_other_program(text: &str) -> Option<(Position, ValueError)> {
    let lines = text.lines().enumerate();
    let (index, line) = lines
        .map(|(index, line)| (index, line.trim()))
        .find(|(_, line)| !(line.is_empty() || line.starts_with('#')))?;
    let opens_block = line.ends_with('{') && !line.contains(": ");
    let first = line.split([' ', '\t', ';', '{']).next().unwrap_or_default();
    let is_nginx = match first {
        "server" | "http" | "events" | "stream" | "upstream" => opens_block,
        "user" | "worker_processes" | "pid" | "error_log" | "include" | "load_module" => line.ends_with(';'),
        _ => false,
    };
    let (program, help) = match (is_nginx, opens_block) {
        (true, _) => ("nginx", "translate it: `sluicegate import FILE -o gateway.yaml`"),
        (false, true) => (
            "Caddy",
            "docs/coming-from.md has each directive here; `sluicegate init` writes a file to start from",
        ),
        (false, false) => return None,
    };
    let error = ValueError::new(codes::SHAPE, format!("this is a configuration of {program}"));
    Some((Position { line: index + 1, column: 1, width: line.chars().count() }, error.with_help(help)))
}

/// Characters that the YAML parser reports without a position, or takes for line ends that an editor does not show.
pub fn find_forbidden_character(text: &str) -> Option<(Position, ValueError)> {
    let forbidden = |c: char| {
        (c.is_control() && c != '\t')
            || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
            || c > '\u{fffd}' && c < '\u{10000}'
    };
    let lines = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    let (line, found) = lines.enumerate().find(|(_, line)| line.contains(forbidden))?;
    let column = found.chars().position(forbidden)?;
    let character = found.chars().nth(column)?;
    let message = format!("the character U+{:04X} is not allowed in the file", u32::from(character));
    let position = Position { line: line + 1, column: column + 1, width: 1 };
    let help = "remove it; if the file is UTF-16, save it as UTF-8";
    Some((position, ValueError::new(codes::SYNTAX, message).with_help(help)))
}

/// Moves `problem` to a typographic quotation mark or no-break space in its text, which is then the cause.
pub fn name_lookalike(problem: &mut Problem, lines: &[String]) {
    let Some(line) = problem.line.checked_sub(1).and_then(|index| lines.get(index)) else { return };
    let start = problem.column.saturating_sub(1);
    // A key may be followed by one instead of a space.
    let marked: Vec<char> = line.chars().skip(start).take(problem.width + 1).collect();
    let first = marked.first().copied().unwrap_or_default();
    let is_space = |c: &char| matches!(c, '\u{a0}' | '\u{202f}' | '\u{2007}');
    let (at, what, help) = match marked.iter().position(is_space) {
        _ if matches!(first, '"' | '\'') => return,
        _ if matches!(first, '\u{2018}'..='\u{201f}' | '\u{ab}') => {
            (0, "typographic quotation mark", "write plain quotation marks: \"text\"")
        }
        Some(at) => (at, "no-break space", "write an ordinary space"),
        None => return,
    };
    problem.message = format!("a {what} (U+{:04X}) stands here", u32::from(marked[at]));
    problem.suggestion = Some(help.to_owned());
    (problem.column, problem.width) = (start + at + 1, 1);
}
