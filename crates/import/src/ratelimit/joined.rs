//! Descriptors that envoyproxy/ratelimit hides behind another one, because it compares keys and values joined by
//! `_`: `path: "*"` stands for everything that begins with `path_`, so also for entries of the key `path_prefix`.

use super::descriptor::{EntryPattern, ImportedDescriptor};
use crate::ImportReport;

/// Reports them on all levels.
pub(super) fn note_joined(level: &[ImportedDescriptor], report: &mut ImportReport) {
    // Where a wildcard begins and stands.
    let mut wildcards: Vec<(usize, &ImportedDescriptor, String)> = Vec::new();
    for (index, descriptor) in level.iter().enumerate() {
        let prefix = match &descriptor.pattern {
            EntryPattern::Prefix(prefix) => prefix.as_str(),
            EntryPattern::Any if !descriptor.is_default => "",
            _ => continue,
        };
        wildcards.push((index, descriptor, format!("{}_{prefix}", descriptor.key)));
    }
    for (index, descriptor) in level.iter().enumerate() {
        note_joined(&descriptor.children, report);
        let own = match &descriptor.pattern {
            // The very value is looked up before wildcards.
            EntryPattern::Value(_) | EntryPattern::Scattered(_) => continue,
            EntryPattern::Prefix(prefix) => format!("{}_{prefix}", descriptor.key),
            EntryPattern::Any => format!("{}_", descriptor.key),
        };
        let first = wildcards.iter().find(|(position, other, start)| {
            let is_before = descriptor.is_default || *position < index;
            let meets = own.starts_with(start.as_str()) || start.starts_with(&own);
            is_before && other.key != descriptor.key && meets
        });
        if let Some((_, other, _)) = first {
            let says = format!(
                "envoyproxy/ratelimit joins keys and values by `_`, and finds line {} for some of its calls",
                other.at.line
            );
            report.differs(&descriptor.at, &descriptor.show(), "", says);
        }
    }
}
