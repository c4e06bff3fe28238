//! The screen of `top`.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Row, Table, TableState};
use tokio::time::Instant;

use super::reading::GatewayReading;
use super::rows::{
    KEY_COLUMNS, LIMIT_COLUMNS, SERVER_COLUMNS, TopRow, describe_keys, key_rows, limit_rows, list_totals,
    server_rows,
};
use crate::cli::admin_client::{AdminFault, escape_controls};

/// The time without an answer from which the numbers are called old.
const OLD_AFTER: Duration = Duration::from_secs(4);
/// The narrowest first column; further columns need this much room beside them.
const NAME_WIDTH_MIN: u16 = 16;
const COLUMN_GAP: u16 = 2;
/// A lower screen has no room for the upstreams.
const UPSTREAMS_HEIGHT_MIN: u16 = 16;

pub(super) struct TopScreen {
    reading: GatewayReading,
    /// The moment of the numbers.
    read_at: Instant,
    /// Why the last request had no answer.
    trouble: Option<String>,
    /// `None` = the limit with most rejections.
    chosen: Option<String>,
    colors: bool,
}

impl TopScreen {
    pub(super) fn new(reading: GatewayReading, colors: bool) -> TopScreen {
        TopScreen { reading, read_at: Instant::now(), trouble: None, chosen: None, colors }
    }

    /// Keeps the old numbers if there are no new ones.
    pub(super) fn update(&mut self, outcome: Result<GatewayReading, AdminFault>) {
        match outcome {
            Ok(reading) => {
                self.reading = reading;
                self.read_at = Instant::now();
                self.trouble = None;
            }
            Err(fault) => self.trouble = Some(escape_controls(fault.why().trim_end())),
        }
    }

    pub(super) fn chosen_limit(&self) -> Option<&str> {
        self.chosen.as_deref()
    }

    /// The place of the limit with listed keys, now or after the next answer.
    fn chosen_row(&self) -> Option<usize> {
        let name = self.chosen.as_ref().or(self.reading.limit.as_ref())?;
        self.reading.limits.iter().position(|limit| limit.limit == *name)
    }

    /// Chooses the limit so many rows below.
    pub(super) fn choose_neighbor(&mut self, step: isize) {
        let last = self.reading.limits.len().saturating_sub(1);
        let row = self.chosen_row().map_or(0, |row| row.saturating_add_signed(step).min(last));
        self.chosen = self.reading.limits.get(row).map(|limit| limit.limit.clone());
    }

    pub(super) fn draw(&self, frame: &mut Frame) {
        let part = |heading, columns, rows| Part { heading, columns, rows };
        let limits = part("limits".to_owned(), LIMIT_COLUMNS, limit_rows(&self.reading));
        let keys = part(describe_keys(&self.reading), KEY_COLUMNS, key_rows(&self.reading));
        let servers = part("upstreams".to_owned(), SERVER_COLUMNS, server_rows(&self.reading));
        let is_low = frame.area().height < UPSTREAMS_HEIGHT_MIN;
        let areas = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Fill(1),
            Constraint::Fill(1),
            Constraint::Max(if is_low { 0 } else { servers.height() }),
            Constraint::Length(1),
        ]);
        let [totals, trouble, upper, middle, lower, keys_help] = areas.areas(frame.area());
        frame.render_widget(
            Line::styled(join_fitting(&list_totals(&self.reading), totals.width), Modifier::BOLD),
            totals,
        );
        if let Some(why) = self.describe_trouble() {
            let bold = Style::new().add_modifier(Modifier::BOLD);
            let style = if self.colors { Style::new().fg(Color::Red) } else { bold };
            frame.render_widget(Line::styled(why, style), trouble);
        }
        self.draw_part(frame, upper, &limits, self.chosen_row());
        self.draw_part(frame, middle, &keys, None);
        self.draw_part(frame, lower, &servers, None);
        frame.render_widget(Line::raw("q quits, \u{2191} \u{2193} choose a limit"), keys_help);
    }

    fn describe_trouble(&self) -> Option<String> {
        let age = self.read_at.elapsed();
        match &self.trouble {
            Some(why) => Some(format!("no answer for {} s: {why}", age.as_secs())),
            None if age > OLD_AFTER => Some(format!("no answer for {} s", age.as_secs())),
            None => None,
        }
    }

    /// A row is marked if its second cell is a rate above zero or a state other than up.
    fn draw_part(&self, frame: &mut Frame, area: Rect, part: &Part, chosen: Option<usize>) {
        let [heading, below] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
        let heading_style = if self.colors { Style::new().fg(Color::Cyan) } else { Style::new() };
        frame.render_widget(Line::styled(part.heading.as_str(), heading_style), heading);
        if part.rows.is_empty() || below.is_empty() {
            return;
        }
        let widths = part.column_widths(area.width);
        let rows = part.rows.iter().map(|row| {
            let is_calm = matches!(row[1].as_str(), "0.0" | "up");
            let style = if is_calm || !self.colors { Style::new() } else { Style::new().fg(Color::Yellow) };
            Row::new(row.iter().take(widths.len()).map(|cell| Text::raw(cell.as_str()))).style(style)
        });
        let columns = Row::new(part.columns.iter().take(widths.len()).copied()).style(Modifier::BOLD);
        let table = Table::new(rows, widths.iter().copied())
            .header(columns)
            .column_spacing(COLUMN_GAP)
            .row_highlight_style(Modifier::REVERSED);
        frame.render_stateful_widget(table, below, &mut TableState::new().with_selected(chosen));
    }
}

/// The first texts that fit side by side.
fn join_fitting(texts: &[String], width: u16) -> String {
    let mut line = String::new();
    for text in texts {
        let gap = if line.is_empty() { "" } else { "  " };
        if line.chars().count() + gap.len() + text.chars().count() > usize::from(width) {
            break;
        }
        line.push_str(gap);
        line.push_str(text);
    }
    line
}

/// A table with a heading.
struct Part {
    heading: String,
    columns: [&'static str; 6],
    rows: Vec<TopRow>,
}

impl Part {
    /// Rows of the table, with the heading and the names of the columns.
    fn height(&self) -> u16 {
        u16::try_from(self.rows.len().min(6)).unwrap_or(6) + 2
    }

    /// The widths of the columns that fit: the first one takes the rest.
    fn column_widths(&self, width: u16) -> Vec<Constraint> {
        let mut left = width.saturating_sub(NAME_WIDTH_MIN);
        let mut widths = vec![Constraint::Fill(1)];
        for column in 1..self.columns.len() {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            let longest = cells.chain([self.columns[column].len()]).max().unwrap_or(0);
            let needed = u16::try_from(longest).unwrap_or(u16::MAX);
            let Some(rest) = left.checked_sub(needed.saturating_add(COLUMN_GAP)) else { break };
            left = rest;
            widths.push(Constraint::Length(needed));
        }
        widths
    }
}

#[cfg(test)]
mod tests;
