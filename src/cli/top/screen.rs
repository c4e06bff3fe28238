//! The screen of `top`: its state, and how it is drawn.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Row, Table, TableState};
use tokio::time::Instant;

use super::actions::{ACTION_HELP, TopAction};
use super::reading::GatewayReading;
use super::tables::{
    BANS, KEYS, LIMITS, SERVERS, TABLES, TopOrder, TopRow, describe_paused, list_rows, list_totals,
};
use crate::cli::admin_client::{AdminFault, escape_controls};

/// The time without an answer from which the numbers are called old.
const OLD_AFTER: Duration = Duration::from_secs(4);
/// The narrowest first column; further columns need this much room beside them.
const NAME_WIDTH_MIN: u16 = 16;
const COLUMN_GAP: u16 = 2;
/// A lower screen has no room for the upstreams and the bans, unless they are chosen.
const ALL_HEIGHT_MIN: u16 = 16;
/// Rows of the upstreams, and of the bans, at most.
const LOWER_ROWS_MAX: usize = 6;

/// The question of the bottom line.
#[derive(Default)]
pub(super) enum TopPrompt {
    #[default]
    Nothing,
    Search,
    Confirm(Box<TopAction>),
}

#[derive(Default)]
pub(super) struct TopScreen {
    pub reading: GatewayReading,
    /// The moment of the numbers.
    read_at: Option<Instant>,
    /// Why the last request had no answer.
    trouble: Option<String>,
    /// The outcome of the last action, until the next key.
    pub outcome: Option<String>,
    pub colors: bool,
    /// The table that keys are for.
    pub focus: usize,
    /// The chosen row of each table by its id; `None` = the first row.
    pub chosen: [Option<String>; 4],
    pub orders: [TopOrder; 4],
    states: [TableState; 4],
    /// In small letters.
    pub search: String,
    pub prompt: TopPrompt,
}

impl TopScreen {
    pub(super) fn new(reading: GatewayReading, colors: bool) -> TopScreen {
        TopScreen { reading, read_at: Some(Instant::now()), colors, ..TopScreen::default() }
    }

    /// Keeps the old numbers if there are no new ones.
    pub(super) fn update(&mut self, outcome: Result<GatewayReading, AdminFault>) {
        match outcome {
            Ok(reading) => {
                self.reading = reading;
                self.read_at = Some(Instant::now());
                self.trouble = None;
            }
            Err(fault) => self.trouble = Some(escape_controls(fault.why().trim_end())),
        }
    }

    pub(super) fn list_rows(&self, table: usize) -> Vec<TopRow<'_>> {
        list_rows(&self.reading.rows[table], TABLES[table], &self.search, self.orders[table])
    }

    /// The place of the chosen row; of limits the one with listed keys, now or after the next answer.
    pub(super) fn chosen_row(&self, table: usize, rows: &[TopRow<'_>]) -> Option<usize> {
        let listed = self.reading.limit.as_deref().filter(|_| table == LIMITS);
        match (&self.chosen[table], listed) {
            (Some(id), _) => rows.iter().position(|row| row.id == *id),
            (None, Some(limit)) => rows.iter().position(|row| row.value["limit"] == limit),
            (None, None) => (!rows.is_empty()).then_some(0),
        }
    }

    pub(super) fn draw(&mut self, frame: &mut Frame) {
        let is_low = frame.area().height < ALL_HEIGHT_MIN;
        let lower = |table: usize| match self.list_rows(table).len().min(LOWER_ROWS_MAX) {
            rows if (is_low || rows == 0 && table == BANS) && self.focus != table => 0,
            rows => u16::try_from(rows + 2).unwrap_or(u16::MAX),
        };
        let areas = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Fill(1),
            Constraint::Fill(1),
            Constraint::Max(lower(SERVERS)),
            Constraint::Max(lower(BANS)),
            Constraint::Length(1),
        ]);
        let [totals, trouble, limits, keys, servers, bans, help] = areas.areas(frame.area());
        let bold = Style::new().add_modifier(Modifier::BOLD);
        frame.render_widget(
            Line::styled(join_fitting(&list_totals(&self.reading), totals.width), bold),
            totals,
        );
        if let Some(why) = self.describe_trouble() {
            let style = if self.colors { Style::new().fg(Color::Red) } else { bold };
            frame.render_widget(Line::styled(why, style), trouble);
        } else if let Some(outcome) = &self.outcome {
            frame.render_widget(Line::styled(outcome.as_str(), bold), trouble);
        } else if let Some(paused) = describe_paused(&self.reading) {
            let style = if self.colors { Style::new().fg(Color::Red) } else { bold };
            frame.render_widget(Line::styled(paused, style), trouble);
        }
        let headings = ["limits".to_owned(), self.reading.describe_keys(), "upstreams".into(), "bans".into()];
        for (table, area) in [(LIMITS, limits), (KEYS, keys), (SERVERS, servers), (BANS, bans)] {
            self.draw_table(frame, area, table, &headings[table]);
        }
        frame.render_widget(Line::raw(self.describe_keyboard(help.width)), help);
    }

    fn describe_keyboard(&self, width: u16) -> String {
        let search = if self.search.is_empty() { String::new() } else { format!("/{} ", self.search) };
        match &self.prompt {
            TopPrompt::Confirm(action) => action.question(),
            TopPrompt::Search => format!("/{}_", self.search),
            TopPrompt::Nothing => {
                let general = "q quits, / searches, tab next table, < > R sort";
                let texts = [search + ACTION_HELP[self.focus], general.to_owned()];
                join_fitting(&texts, width)
            }
        }
    }

    fn describe_trouble(&self) -> Option<String> {
        let age = self.read_at.map(|at| at.elapsed()).unwrap_or_default();
        match &self.trouble {
            Some(why) => Some(format!("no answer for {} s: {why}", age.as_secs())),
            None if age > OLD_AFTER => Some(format!("no answer for {} s", age.as_secs())),
            None => None,
        }
    }

    /// A row is marked if its second cell is a rate above zero, or a server is not up.
    fn draw_table(&mut self, frame: &mut Frame, area: Rect, table: usize, heading: &str) {
        let [heading_area, mut below] =
            Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
        let heading_style = if self.colors { Style::new().fg(Color::Cyan) } else { Style::new() };
        frame.render_widget(Line::styled(heading, heading_style), heading_area);
        let rows = self.list_rows(table);
        if rows.is_empty() || below.is_empty() {
            return;
        }
        // The columns that fit: the first one takes the rest.
        let (order, mut left) = (self.orders[table], area.width.saturating_sub(NAME_WIDTH_MIN));
        let (mut titles, mut widths) = (Vec::new(), Vec::new());
        for (column, (title, _)) in TABLES[table].iter().enumerate() {
            let mark = if order.is_reversed { " \u{25b2}" } else { " \u{25bc}" };
            let title = format!("{title}{}", if order.column == Some(column) { mark } else { "" });
            let cells = rows.iter().map(|row| row.cells[column].chars().count());
            let longest = cells.chain([title.chars().count()]).max().unwrap_or(0);
            let needed = u16::try_from(longest).unwrap_or(u16::MAX);
            if column > 0 {
                let Some(rest) = left.checked_sub(needed.saturating_add(COLUMN_GAP)) else { break };
                left = rest;
            }
            widths.push(if column == 0 { Constraint::Fill(1) } else { Constraint::Length(needed) });
            titles.push(title);
        }
        let (colors, chosen) = (self.colors, self.chosen_row(table, &rows));
        let shown = rows.iter().map(|row| {
            let is_calm = row.value["is_calm"].as_bool().unwrap_or(row.cells[1] == "0.0" || table == BANS);
            let style = if is_calm || !colors { Style::new() } else { Style::new().fg(Color::Yellow) };
            let cells: Vec<_> =
                row.cells.iter().take(widths.len()).map(|cell| Text::raw(cell.clone())).collect();
            Row::new(cells).style(style)
        });
        let is_focused = self.focus == table;
        let highlight = if is_focused { Modifier::REVERSED } else { Modifier::BOLD };
        let drawn = Table::new(shown, widths.iter().copied())
            .header(Row::new(titles).style(Modifier::BOLD))
            .column_spacing(COLUMN_GAP)
            .row_highlight_style(highlight);
        let count = rows.len();
        let more_area = Rect { y: below.bottom().saturating_sub(1), height: 1, ..below };
        // The last line tells of rows without room.
        below.height -= u16::from(count >= usize::from(below.height) && below.height > 2);
        let state = &mut self.states[table];
        state.select(chosen.filter(|_| is_focused || table == LIMITS));
        frame.render_stateful_widget(drawn, below, state);
        let hidden = count.saturating_sub(state.offset() + usize::from(below.height).saturating_sub(1));
        if hidden > 0 && more_area.y >= below.bottom() {
            frame.render_widget(Line::raw(format!("{hidden} more below")), more_area);
        }
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

#[cfg(test)]
mod tests;
