//! The keys of `top`.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::actions::TopAction;
use super::screen::{TopPrompt, TopScreen};
use super::tables::{KEYS, LIMITS, TABLES};

/// Longer texts are not searched for.
const SEARCH_MAX: usize = 64;

/// The work that a key press asks for.
pub(super) enum TopTask {
    Quit,
    /// Lists the keys of this limit.
    Choose(String),
    Act(Box<TopAction>),
}

impl TopScreen {
    pub(super) fn press_key(&mut self, key: KeyEvent) -> Option<TopTask> {
        self.outcome = None;
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Some(TopTask::Quit);
        }
        match std::mem::take(&mut self.prompt) {
            TopPrompt::Confirm(action) => (key.code == KeyCode::Char('y')).then_some(TopTask::Act(action)),
            TopPrompt::Search => {
                self.edit_search(key.code);
                None
            }
            TopPrompt::Nothing => self.press_command(key.code),
        }
    }

    fn edit_search(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => return,
            KeyCode::Esc => return self.search.clear(),
            KeyCode::Backspace => drop(self.search.pop()),
            KeyCode::Char(letter) if self.search.len() < SEARCH_MAX => {
                self.search.extend(letter.to_lowercase())
            }
            _ => {}
        }
        self.prompt = TopPrompt::Search;
    }

    fn press_command(&mut self, code: KeyCode) -> Option<TopTask> {
        match code {
            KeyCode::Char('q') => return Some(TopTask::Quit),
            KeyCode::Esc if !self.search.is_empty() => self.search.clear(),
            KeyCode::Esc if self.focus != LIMITS => self.focus = LIMITS,
            KeyCode::Esc => return Some(TopTask::Quit),
            KeyCode::Char('/') => self.prompt = TopPrompt::Search,
            KeyCode::Enter if self.focus == LIMITS => self.focus = KEYS,
            KeyCode::Tab => self.focus_next(),
            KeyCode::Up => return self.choose_neighbor(-1),
            KeyCode::Down => return self.choose_neighbor(1),
            KeyCode::PageUp => return self.choose_neighbor(-10),
            KeyCode::PageDown => return self.choose_neighbor(10),
            KeyCode::Char('<') => self.sort_by_neighbor(-1),
            KeyCode::Char('>') => self.sort_by_neighbor(1),
            KeyCode::Char('R') => self.orders[self.focus].is_reversed ^= true,
            KeyCode::Char(letter) => {
                let rows = self.list_rows(self.focus);
                let row = rows.get(self.chosen_row(self.focus, &rows)?)?;
                let limit = self.reading.limit.as_deref();
                let action = TopAction::choose(letter, self.focus, row.value, limit)?;
                self.prompt = TopPrompt::Confirm(Box::new(action));
            }
            _ => {}
        }
        None
    }

    /// Goes to the next table that has rows.
    fn focus_next(&mut self) {
        let mut tables = (1..=TABLES.len()).map(|step| (self.focus + step) % TABLES.len());
        self.focus = tables.find(|table| !self.list_rows(*table).is_empty()).unwrap_or(LIMITS);
    }

    /// Chooses the row so many rows below.
    fn choose_neighbor(&mut self, step: isize) -> Option<TopTask> {
        let rows = self.list_rows(self.focus);
        let last = rows.len().checked_sub(1)?;
        let row = self.chosen_row(self.focus, &rows);
        let row = &rows[row.map_or(0, |row| row.saturating_add_signed(step).min(last))];
        let limit = row.value["limit"].as_str().map(|own| row.value["of"].as_str().unwrap_or(own).to_owned());
        self.chosen[self.focus] = Some(row.id.clone());
        limit.map(TopTask::Choose)
    }

    fn sort_by_neighbor(&mut self, step: isize) {
        let count = TABLES[self.focus].len();
        let column = &mut self.orders[self.focus].column;
        *column = Some(column.map_or(0, |column| column.saturating_add_signed(step).min(count - 1)));
    }
}
