//! Reads the name of a location, and the listeners of its requests.

use std::collections::HashSet;

use crate::schema::tables::locations::location;
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use sluicegate_model::diagnostics::codes;
use sluicegate_model::diagnostics::problem::{ValueError, did_you_mean};
use sluicegate_model::listen::ListenConfig;

/// `listener`: names of `listen` entries; empty = any.
pub(super) fn read_listeners(fields: &FieldReader<'_>, listen: &[ListenConfig]) -> Vec<String> {
    let Some(value) = fields.find(&location::LISTENER).filter(|value| !value.is_word("any")) else {
        return Vec::new();
    };
    if value.is_empty() {
        value.report_empty("write any, or names of listeners such as [plain, secure]");
    }
    let mut listeners: Vec<String> = Vec::new();
    for item in value.one_or_more() {
        let Some(name) = item.parse_with(|text| Ok(text.to_owned())) else { continue };
        if !listen.iter().any(|entry| entry.name.as_ref() == Some(&name)) {
            report_unknown_listener(&item, &name, listen);
        } else if !listeners.contains(&name) {
            listeners.push(name);
        }
    }
    listeners
}

fn report_unknown_listener(item: &FieldValue<'_>, name: &str, listen: &[ListenConfig]) {
    let shown = item.written_text();
    let known: Vec<&str> = listen.iter().filter_map(|entry| entry.name.as_deref()).collect();
    let help = did_you_mean(name, known.iter().copied()).unwrap_or_else(|| match known.as_slice() {
        [] => format!("name it: listen: [{{ address: \":80\", name: {shown} }}]"),
        known => format!("the listeners are {}", known.join(", ")),
    });
    let message = format!("no listener is named `{shown}`");
    item.report_at_value(ValueError::new(codes::UNDEFINED, message).with_help(help));
}

/// The names that locations have been given so far.
#[derive(Default)]
pub(super) struct LocationNames(HashSet<String>);

impl LocationNames {
    /// `name`; `None` = auto.
    pub fn read_name(&mut self, fields: &FieldReader<'_>) -> Option<String> {
        let name = fields.read(&location::NAME)?;
        let value = fields.find(&location::NAME)?;
        if !self.0.insert(name.clone()) {
            let message = format!("two locations are named `{}`", value.written_text());
            value.report_at_value(ValueError::new(codes::NAME, message));
        }
        Some(name)
    }
}
