//! Whether the gateway can match the path of a location.

use crate::config::schema::tables::locations::parse_plain_path;
use crate::config::value::path_regex::PathRegex;

/// # Errors
/// Why it cannot.
pub(super) fn is_usable_path(path: &str) -> Result<(), String> {
    if path.contains("${") {
        return Err("the gateway takes `${` for a variable".to_owned());
    }
    let regex = path.strip_prefix("~*").map(|pattern| (pattern, true));
    if let Some((pattern, any_case)) =
        regex.or_else(|| path.strip_prefix('~').map(|pattern| (pattern, false)))
    {
        let compiled = PathRegex::compile(pattern.trim_start(), any_case);
        return compiled.map(|_| ()).map_err(|why| format!("the gateway cannot match the expression: {why}"));
    }
    let plain = path.strip_prefix("^~").or_else(|| path.strip_prefix('=')).unwrap_or(path);
    parse_plain_path(plain.trim_start()).map(|_| ()).map_err(|error| error.message)
}
