//! Statistics and output: medians, ratios, tables, and the section in `benches/results.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use crate::child::Result;

/// The median of the values; 0 if there are none.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[count / 2],
        count => (values[count / 2 - 1] + values[count / 2]) / 2.0,
    }
}

/// The value that the given share of the sorted values does not exceed; 0 if there are none.
pub fn percentile(sorted: &[u64], share: f64) -> u64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

/// Ratios of two rivals, taken within each round: the drift of the machine cancels out.
pub struct Ratio(Vec<f64>);

impl Ratio {
    pub fn of(own: impl Iterator<Item = f64>, other: impl Iterator<Item = f64>) -> Self {
        Self(own.zip(other).filter(|&(_, other)| other > 0.0).map(|(own, other)| own / other).collect())
    }

    pub fn middle(&self) -> String {
        if self.0.is_empty() { "–".to_owned() } else { format!("{:.2}", median(self.0.iter().copied())) }
    }

    pub fn range(&self) -> String {
        self.spread().map_or_else(|| "–".to_owned(), |[low, _, high]| format!("{low:.2}–{high:.2}"))
    }

    /// The lowest, the median and the highest; `None` if there are none.
    pub fn spread(&self) -> Option<[f64; 3]> {
        let low = self.0.iter().copied().min_by(f64::total_cmp)?;
        let high = self.0.iter().copied().max_by(f64::total_cmp)?;
        Some([low, median(self.0.iter().copied()), high])
    }
}

/// Remarks about the runs of a row, with their counts.
#[derive(Default)]
pub struct Remarks(BTreeMap<&'static str, usize>);

impl Remarks {
    pub fn note(&mut self, odd: bool, text: &'static str) {
        if odd {
            *self.0.entry(text).or_default() += 1;
        }
    }

    pub fn render(&self, rounds: usize) -> String {
        let shown = self.0.iter().map(|(text, count)| format!("{text} ({count} of {rounds} runs)"));
        shown.collect::<Vec<_>>().join("; ")
    }
}

/// Rows of text. Printed aligned, which is also valid Markdown.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(titles: &[&str]) -> Self {
        Self { rows: vec![titles.iter().map(|title| (*title).to_owned()).collect()] }
    }

    pub fn row(&mut self, cells: impl Into<Vec<String>>) {
        let cells = cells.into();
        assert_eq!(cells.len(), self.rows[0].len(), "as many cells as titles");
        self.rows.push(cells);
    }

    /// Whether a row has a remark, in the last column of every table.
    pub fn has_remarks(&self) -> bool {
        self.rows[1..].iter().any(|row| row.last().is_some_and(|cell| !cell.is_empty()))
    }

    pub fn render(&self) -> String {
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.rows[0].len()).map(width).collect();
        let number = |cell: &str| {
            cell.len() < 16 && cell.starts_with(|first: char| first.is_ascii_digit() || "–+-".contains(first))
        };
        let numeric = |column: usize| self.rows[1..].iter().all(|row| number(&row[column]));
        let mut text = String::new();
        for (place, row) in self.rows.iter().enumerate() {
            for (column, cell) in row.iter().enumerate() {
                let blanks = " ".repeat(widths[column] - cell.chars().count());
                let padded =
                    if numeric(column) { format!("{blanks}{cell}") } else { format!("{cell}{blanks}") };
                let _ = write!(text, "| {padded} ");
            }
            text.push_str("|\n");
            if place == 0 {
                for (column, width) in widths.iter().enumerate() {
                    let (line, end) = if numeric(column) {
                        ("-".repeat(width + 1), ":")
                    } else {
                        ("-".repeat(width + 2), "")
                    };
                    let _ = write!(text, "|{line}{end}");
                }
                text.push_str("|\n");
            }
        }
        text
    }
}

/// Replaces the text between the two marks `name` in `benches/results.md`.
pub fn write_section(name: &str, section: &str) -> Result<()> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/results.md");
    let (begin, end) = (format!("<!-- {name}: begin -->"), format!("<!-- {name}: end -->"));
    let text = std::fs::read_to_string(&file)?;
    let missing = || format!("benches/results.md: no section between {begin} and {end}");
    let (before, rest) = text.split_once(&begin).ok_or_else(missing)?;
    let (_, after) = rest.split_once(&end).ok_or_else(missing)?;
    Ok(std::fs::write(&file, format!("{before}{begin}\n\n{section}\n{end}{after}"))?)
}
