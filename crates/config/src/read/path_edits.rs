//! Reads the changes to paths before they are forwarded: `strip`, `rewrite` and `add_prefix`.

use super::patterns;
use crate::schema::tables::locations::{location, parse_sent_path, rewrite};
use crate::yaml::field_reader::FieldReader;
use sluicegate_model::{ActionConfig, Parsed, PathRegex, PathRule, RewriteConfig, ValueError, codes};

pub(crate) fn read_strip(fields: &FieldReader<'_>, path: Option<&PathRule>) -> Option<String> {
    let strip = fields.read(&location::STRIP)?;
    let value = fields.find(&location::STRIP)?;
    let reachable = match path {
        Some(PathRule::Exact(path) | PathRule::Prefix { path, .. }) => path.starts_with(&strip),
        Some(PathRule::Regex(_)) | None => true,
    };
    if !reachable {
        let message = format!("no path of this location starts with `{}`", value.written_text());
        value.refuse(codes::PATH, message, "strip a prefix of the location's own path");
    }
    Some(strip)
}

pub(crate) fn read_rewrite(fields: &FieldReader<'_>) -> Option<RewriteConfig> {
    fields.read_section_or_none(&location::REWRITE, |fields| {
        let (from, to) = (fields.find_required(&rewrite::FROM), fields.find_required(&rewrite::TO));
        let from = from.and_then(|value| value.parse_with(patterns::compile_with_groups));
        // Without an expression each group may be one of it.
        let groups = from.as_ref().map_or(9, PathRegex::group_count);
        let to = to.and_then(|value| value.parse_with(|text| parse_new_path(text, groups)));
        Some(RewriteConfig { from: from?, to: to? })
    })?
}

/// Reports changes of paths in a location that forwards no request.
pub(crate) fn refuse_without_upstream(fields: &FieldReader<'_>, action: Option<&ActionConfig>) {
    if matches!(action, None | Some(ActionConfig::Upstream(_))) {
        return;
    }
    for name in [location::REWRITE.name, location::ADD_PREFIX.name] {
        if let Some(value) = fields.find_by_name(name).filter(|value| !value.is_word("none")) {
            let message = format!("`{name}` is for forwarded requests, and this location forwards none");
            value.refuse_name(codes::ACTION, message, "remove it, or write upstream: NAME");
        }
    }
}

/// A path with `$1` to `$9` for groups of an expression that has `groups` of them, and `$$` for a dollar.
fn parse_new_path(text: &str, groups: usize) -> Parsed<String> {
    let path = parse_sent_path(text)?;
    let mut characters = text.chars();
    while characters.any(|character| character == '$') {
        let behind = characters.next();
        let error = match (behind, behind.and_then(|digit| digit.to_digit(10))) {
            (Some('$'), _) => continue,
            (_, Some(group @ 1..)) if group as usize <= groups => continue,
            (_, Some(group @ 1..)) => ValueError::new(codes::PATH, format!("`from` has no group {group}"))
                .with_help("write ( and ) around the part of `from` that `to` takes over"),
            _ => ValueError::new(codes::PATH, "a `$` stands before no group")
                .with_help("write $1 to $9 for groups of `from`, and $$ for a dollar"),
        };
        return Err(error);
    }
    Ok(path)
}
