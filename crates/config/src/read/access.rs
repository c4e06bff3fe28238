//! Reads `ip_sets`, `access` and `bans`: named networks, rules for clients by address, and strikes.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;

use crate::schema::tables::access::{access as fields, bans, ip_set};
use crate::schema::tables::root::root as root_fields;
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use sluicegate_base::file;
use sluicegate_model::api_keys::numbered_lines;
use sluicegate_model::value::names;
use sluicegate_model::value::network_hint::suggest_network;
use sluicegate_model::{
    AccessConfig, BansConfig, IpSetConfig, NetworkList, Parsed, StatusRanges, StrikeRules, ValueError, codes,
    did_you_mean,
};

/// The sets of the file, with a note of those in use.
#[derive(Default)]
pub(crate) struct IpSetReader<'a> {
    list: Vec<IpSetConfig>,
    by_name: BTreeMap<String, usize>,
    defined: Vec<FieldValue<'a>>,
    used: RefCell<HashSet<usize>>,
}

/// Size limits of a list, in bytes and in lines.
const LIST_MAX: u64 = 64 << 20;
const LINES_MAX: usize = 2_000_000;
/// Reading a list stops after this number of wrong lines.
const WRONG_LINES_MAX: usize = 10;
/// Characters of a wrong line in its message.
const EXCERPT_MAX: usize = 40;

impl<'a> IpSetReader<'a> {
    pub(crate) fn read_sets(root: &FieldReader<'a>) -> IpSetReader<'a> {
        let mut sets = IpSetReader::default();
        for (key, value) in root.find(&root_fields::IP_SETS).map(|value| value.entries()).unwrap_or_default()
        {
            value.accept_name(names::check_name(&key.name).and_then(|()| check_not_network(&key.name)));
            value.check_filled("write networks such as [10.0.0.0/8], or { file: list.txt }");
            let items = value.one_or_more();
            let networks = items.iter().flat_map(|item| match item.is_map() {
                true => read_list_file(item),
                false => item.parse_with(names::parse_network).into_iter().collect(),
            });
            sets.by_name.entry(key.name.clone()).or_insert(sets.list.len());
            sets.list.push(IpSetConfig { name: key.name.clone(), networks: networks.collect() });
            sets.defined.push(value);
        }
        sets
    }

    /// One or more networks and names of sets; `none` = no address.
    pub(crate) fn read_networks(&self, value: &FieldValue<'_>) -> NetworkList {
        let mut networks = NetworkList::default();
        if value.is_word("none") {
            return networks;
        }
        for item in value.one_or_more() {
            item.parse_with(|text| {
                match self.by_name.get(text) {
                    Some(&set) => networks.sets.push(set),
                    None => networks.written.push(self.parse_network(text, item.written_text())?),
                }
                Ok(())
            });
        }
        self.used.borrow_mut().extend(&networks.sets);
        networks
    }

    /// A network; a word that names none is meant as the name of a set.
    fn parse_network(&self, text: &str, shown: &str) -> Parsed<IpNet> {
        names::parse_network(text).map_err(|error| {
            if !names::looks_like_name(text) || suggest_network(text).is_some() {
                return error;
            }
            let near = did_you_mean(text, self.by_name.keys().map(String::as_str));
            let help = near.unwrap_or_else(|| format!("define it under ip_sets: {shown}: [10.0.0.0/8]"));
            ValueError::new(codes::UNDEFINED, format!("the address set `{shown}` is not defined"))
                .with_help(help)
        })
    }

    /// All sets. Unused ones get a warning, so it comes after everything that may use a set.
    pub(crate) fn collect_sets(&self) -> Vec<IpSetConfig> {
        for (index, (set, value)) in self.list.iter().zip(&self.defined).enumerate() {
            if !self.used.borrow().contains(&index) {
                let message = format!("the address set `{}` is defined and never used", set.name);
                value.warn_at_name(ValueError::new(codes::UNUSED, message));
            }
        }
        self.list.clone()
    }
}

/// A set called `10.0.0.1` would be mistaken for that address.
fn check_not_network(name: &str) -> Parsed<()> {
    match names::parse_network(name) {
        Ok(_) => Err(ValueError::new(codes::NAME, format!("`{name}` cannot be a name: it is an address"))),
        Err(_) => Ok(()),
    }
}

/// `{ file: list.txt }`: one network per line.
fn read_list_file(item: &FieldValue<'_>) -> Vec<IpNet> {
    let value = item.open_section(&ip_set::SECTION).read_all(|fields| fields.find_required(&ip_set::FILE));
    let Some(value) = value else { return Vec::new() };
    let folder = value.folder();
    let Some(path) = value.parse_with(|text| Ok(folder.join(text))) else { return Vec::new() };
    let bytes = file::read_capped(&path, LIST_MAX).map_err(|reason| {
        ValueError::new(codes::UNREADABLE, format!("the list `{}` {reason}", value.written_text()))
            .with_help(file::explain_path(&folder, Path::new(value.written_text())))
    });
    let listed =
        bytes.map_err(|error| vec![error]).and_then(|bytes| parse_list(&bytes, value.written_text()));
    listed.unwrap_or_else(|errors| {
        errors.into_iter().for_each(|error| value.report_at_value(error));
        Vec::new()
    })
}

/// The networks of the list named `list`; `#` begins a comment.
fn parse_list(bytes: &[u8], list: &str) -> Result<Vec<IpNet>, Vec<ValueError>> {
    let mut networks = Vec::new();
    let mut wrong = Vec::new();
    for (number, line) in numbered_lines(bytes) {
        if number > LINES_MAX {
            let message = format!("the list `{list}` has more than {LINES_MAX} lines");
            return Err(vec![ValueError::new(codes::UNREADABLE, message)]);
        }
        let text = String::from_utf8_lossy(line.split(|byte| *byte == b'#').next().unwrap_or_default());
        let text = text.trim();
        match names::parse_network(text) {
            Ok(network) => networks.push(network),
            Err(_) => {
                let shown: String = text.chars().take(EXCERPT_MAX).collect();
                let message =
                    format!("line {number} of the list `{list}`: `{shown}` is not an address or network");
                wrong.push(ValueError::new(codes::NETWORK, message));
                if wrong.len() == WRONG_LINES_MAX {
                    break;
                }
            }
        }
    }
    if wrong.is_empty() { Ok(networks) } else { Err(wrong) }
}

/// A section of access lists; fields that it does not have stay as in `access`.
pub(crate) fn read_access_over(
    value: Option<&FieldValue<'_>>,
    sets: &IpSetReader<'_>,
    access: &Arc<AccessConfig>,
) -> Arc<AccessConfig> {
    let Some(value) = value else { return access.clone() };
    if value.is_word("none") {
        return Arc::default();
    }
    value.open_section(&fields::SECTION).read_all(|written| {
        let networks = |field| written.find(field).map(|value| sets.read_networks(&value));
        let allow = written.find(&fields::ALLOW).map(|value| read_allow(&value, sets));
        Arc::new(AccessConfig {
            allow: allow.unwrap_or_else(|| access.allow.clone()),
            deny: networks(&fields::DENY).unwrap_or_else(|| access.deny.clone()),
            bypass: networks(&fields::BYPASS).unwrap_or_else(|| access.bypass.clone()),
        })
    })
}

/// `any`, or networks. An empty list is an error, because it would lock every client out.
fn read_allow(value: &FieldValue<'_>, sets: &IpSetReader<'_>) -> Option<NetworkList> {
    if value.is_word("any") {
        return None;
    }
    if value.is_empty() || value.is_word("none") {
        value.report_empty("write any, or the networks that may come in, e.g. [10.0.0.0/8]");
    }
    Some(sets.read_networks(value))
}

/// `None` = off.
pub(crate) fn read_bans(root: &FieldReader<'_>) -> Option<BansConfig> {
    root.read_section_or_none(&root_fields::BANS, |fields| {
        let (after, first) = (fields.read(&bans::AFTER), fields.read(&bans::FOR));
        let (longest, key) = (fields.read_written(&bans::MAX), fields.read(&bans::KEY));
        if let (Some(value), Some(true)) = (fields.find(&bans::MAX), longest.map(|longest| longest < first)) {
            let message = format!("the first ban would be longer than `max`, {}", value.written_text());
            value.refuse(codes::DURATION, message, "write a `max` of at least `for`");
        }
        let longest = longest.unwrap_or_else(|| bans::MAX.parse_default().max(first));
        let strikes = read_strikes(fields);
        if let (None, Some(value)) = (&after, fields.find(&bans::STRIKES)) {
            let message = "`strikes` has no effect without `after`";
            let error = ValueError::new(codes::NO_EFFECT, message);
            let error = error.with_help("write e.g. after: 20/1m beside it");
            value.warn_at_name(error);
        }
        Some(BansConfig { after: after?, first, longest, key, strikes })
    })?
}

fn read_strikes(fields: &FieldReader<'_>) -> StrikeRules {
    if let Some(value) = fields.find(&bans::STRIKES).filter(|value| value.is_empty()) {
        value.report_empty("write e.g. [reject, 401, 403, 404]");
    }
    let list = fields.read(&bans::STRIKES);
    let statuses = StatusRanges(list.iter().flatten().copied().collect());
    StrikeRules { rejections: list.contains(&None), statuses }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_networks_comments_and_blank_lines() {
        let text = "\u{feff}# offices\r\n10.0.0.0/8\r\n\r\n  192.0.2.7  # Berlin\n\t\n2001:db8::/32";
        let networks = parse_list(text.as_bytes(), "a.txt").unwrap();
        let texts: Vec<String> = networks.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32"]);
        assert_eq!(parse_list(b"", "a.txt"), Ok(vec![]));
    }

    #[test]
    fn wrong_lines_are_reported_by_number_up_to_a_limit() {
        let wrong = parse_list(b"10.0.0.1\n\n10.0.0.0/33\n\xff\n", "a.txt").unwrap_err();
        assert_eq!(
            wrong[0].message,
            "line 3 of the list `a.txt`: `10.0.0.0/33` is not an address or network"
        );
        assert!(wrong.len() == 2 && wrong[1].message.starts_with("line 4 "), "{wrong:?}");
        let many = "x".repeat(500) + "\n";
        let wrong = parse_list(many.repeat(100).as_bytes(), "a.txt").unwrap_err();
        assert!(wrong.len() == WRONG_LINES_MAX && wrong[0].message.len() < 120, "{wrong:?}");
    }

    #[test]
    fn too_many_lines_are_one_problem() {
        let fits = "\n".repeat(LINES_MAX - 1);
        assert_eq!(parse_list(fits.as_bytes(), "a.txt"), Ok(vec![]));
        let wrong = parse_list((fits + "\n::1").as_bytes(), "a.txt").unwrap_err();
        assert_eq!(wrong[0].message, "the list `a.txt` has more than 2000000 lines");
    }
}
