//! Other paths for upstreams: `rewrite … break`, and `proxy_pass` with a path.

use sluicegate_config as config;
use sluicegate_model::{PathRegex, Problem};

use super::regex::{is_usable_path, translate_pattern};
use crate::gateway_file::PlannedField;
use crate::yaml_text::{flow_map, quote};

/// `rewrite FROM TO break` as a field.
///
/// # Errors
/// Why the gateway has no such field.
pub(crate) fn translate_rewrite(from: &str, to: &str) -> Result<PlannedField, String> {
    let from = translate_pattern(from, false);
    is_usable_path(&format!("~ {from}"))?;
    let compiled = PathRegex::compile_with_groups(&from).map_err(|(why, _)| why)?;
    write_rewrite(&from, &translate_target(to, compiled.group_count())?)
}

/// The field `to` for an expression with `groups`; nginx puts nothing in the place of a group that is not there.
fn translate_target(to: &str, groups: usize) -> Result<String, String> {
    let (mut out, mut chars) = (String::new(), to.chars());
    while let Some(c) = chars.next() {
        match c {
            '$' => match chars.next().and_then(|digit| digit.to_digit(10)) {
                Some(group @ 1..) if group as usize > groups => {}
                Some(group @ 1..) => out.push_str(&format!("${group}")),
                _ => return Err("the gateway puts only groups of the expression into a path".to_owned()),
            },
            '?' | '#' | '%' => return Err(format!("the gateway takes no `{c}` in the path of `{to}`")),
            _ => out.push(c),
        }
    }
    Ok(out)
}

/// The fields that put the URI of `proxy_pass` in the place of a location's path.
///
/// # Errors
/// Why the gateway does not do so.
pub(super) fn replace_path(path: &str, is_exact: bool, uri: &str) -> Result<Vec<PlannedField>, String> {
    // nginx sends it as it is written, and the gateway encodes it.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-_.~".contains(c);
    if !uri.chars().all(is_plain) || uri.contains("//") {
        return Err(format!("the gateway may write `{uri}` otherwise"));
    }
    if is_exact {
        return Ok(vec![write_rewrite("^", uri)?]);
    }
    let (Some(folder), Some(prefix)) = (path.strip_suffix('/'), uri.strip_suffix('/')) else {
        let from = format!("^{}(?s-u:(.*))", regex_syntax::escape(path));
        return Ok(vec![write_rewrite(&from, &format!("{uri}$1"))?]);
    };
    let fields = [("strip", folder), ("add_prefix", prefix)].into_iter().filter(|(_, path)| !path.is_empty());
    let fields: Vec<_> = fields.map(|(name, path)| PlannedField::plain(name, quote(path))).collect();
    fields.iter().filter(|field| field.name == "add_prefix").try_for_each(check_field)?;
    Ok(fields)
}

fn write_rewrite(from: &str, to: &str) -> Result<PlannedField, String> {
    let field = PlannedField::plain("rewrite", flow_map(&[("from", quote(from)), ("to", quote(to))]));
    check_field(&field)?;
    Ok(field)
}

/// # Errors
/// Why the gateway's own check refuses the field in a location that forwards.
pub(crate) fn check_field(field: &PlannedField) -> Result<(), String> {
    let PlannedField { name, value, .. } = field;
    let text = format!("locations: [{{ path: /, upstream: demo, {name}: {value} }}]\n");
    let first = |problems: Vec<Problem>| problems.into_iter().next().map(|problem| problem.message);
    config::parse(&text, "").map(drop).map_err(|found| first(found.problems).unwrap_or_default())
}
