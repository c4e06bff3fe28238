//! Tables of text: aligned ones for people, and the fields of CSV.

use indicatif::HumanCount;

/// Longer cells are cut.
const CELL_MAX: usize = 44;

/// An empty line, the header and at most `most` rows; nothing without rows.
pub fn render_table<const N: usize>(
    header: [&str; N],
    rows: impl ExactSizeIterator<Item = [String; N]>,
    most: usize,
) -> String {
    let more = rows.len().saturating_sub(most);
    let mut lines = vec![header.map(str::to_owned)];
    lines.extend(rows.take(most).map(|row| row.map(|cell| cut_cell(&cell))));
    if lines.len() == 1 {
        return String::new();
    }
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut out = "\n".to_owned();
    for line in &lines {
        let cells = line.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        out.push_str(line.trim_end());
        out.push('\n');
    }
    if more > 0 {
        out.push_str(&format!("and {more} more; --json shows all\n"));
    }
    out
}

/// A field of CSV (RFC 4180).
pub fn quote_csv(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

/// A number in groups of three digits.
pub fn show_count(number: u64) -> String {
    HumanCount(number).to_string()
}

/// The text of a value; a dash for none.
pub fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn cut_cell(text: &str) -> String {
    match text.chars().count() > CELL_MAX {
        true => text.chars().take(CELL_MAX - 1).chain(['\u{2026}']).collect(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_rows_are_bounded() {
        let row = |name: &str, count: usize| [name.to_owned(), count.to_string()];
        let rows = vec![row("app", 1), row("longer", 23), row("third", 4)];
        let table = render_table(["name", "n"], rows.into_iter(), 2);
        assert_eq!(table, "\nname    n\napp     1\nlonger  23\nand 1 more; --json shows all\n");
        assert_eq!(render_table(["name", "n"], Vec::new().into_iter(), 2), "");
        let long = render_table([""], vec![["x".repeat(99)]].into_iter(), 2);
        assert_eq!(long.trim().chars().count(), CELL_MAX, "{long}");
    }
}
