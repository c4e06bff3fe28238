//! Reads a file of envoyproxy/ratelimit, with its rules: `src/config/config_impl.go` of that project.

use std::collections::HashSet;

use super::descriptor::{
    CallsPerWindow, EntryPattern, ImportedDescriptor, ImportedDomain, ImportedRate, parse_unit,
};
use crate::mapping_fields::MappingFields;
use crate::source::SourceText;
use crate::{ImportReport, ReadResult};
use sluicegate_config::yaml::tree::{Node, NodeContent};

/// The most descriptors of all files: as many as a service may have rules.
const DESCRIPTORS_MAX: usize = 10_000;
/// Less than the depth of mappings and lists that the YAML reader allows, two for each level.
const DEPTH_MAX: usize = 60;

/// Reads files one after the other; their descriptors are counted together.
pub(super) struct DomainReader<'r> {
    report: &'r mut ImportReport,
    count: usize,
}

impl<'r> DomainReader<'r> {
    pub(super) fn new(report: &'r mut ImportReport) -> DomainReader<'r> {
        DomainReader { report, count: 0 }
    }

    /// Reads one file, parsed as `root`.
    pub(super) fn read_domain(&mut self, file: &SourceText, root: &Node) -> ReadResult<ImportedDomain> {
        let fields = MappingFields::open(file, root, "the file", "`domain` and `descriptors`")?;
        let no_name = || file.fault_at(root.position, "the file names no `domain`");
        let name = fields.text("domain")?.ok_or_else(no_name)?;
        self.note_others(file, &fields, "domain descriptors");
        let descriptors = self.read_list(file, &fields, &name, 1)?;
        Ok(ImportedDomain { name, at: file.line_at(root.position), descriptors })
    }

    fn read_list(
        &mut self,
        file: &SourceText,
        fields: &MappingFields<'_>,
        parent: &str,
        depth: usize,
    ) -> ReadResult<Vec<ImportedDescriptor>> {
        let Some((key, items)) = fields.list("descriptors", "")? else { return Ok(Vec::new()) };
        if depth > DEPTH_MAX {
            let message = format!("descriptors are nested more than {DEPTH_MAX} deep");
            return Err(file.fault_at(key.position, message));
        }
        let mut known = HashSet::new();
        let mut descriptors = Vec::new();
        for item in items {
            self.count += 1;
            if self.count > DESCRIPTORS_MAX {
                let message = format!("there are more than {DESCRIPTORS_MAX} descriptors");
                return Err(file.fault_at(item.position, message));
            }
            let (composite, descriptor) = self.read_descriptor(file, item, parent, depth)?;
            if !known.insert(composite.clone()) {
                return Err(
                    file.fault_at(item.position, format!("the descriptor `{composite}` is there twice"))
                );
            }
            descriptors.push(descriptor);
        }
        Ok(descriptors)
    }

    /// A descriptor, and the text by which envoyproxy/ratelimit finds it.
    fn read_descriptor(
        &mut self,
        file: &SourceText,
        item: &Node,
        parent: &str,
        depth: usize,
    ) -> ReadResult<(String, ImportedDescriptor)> {
        let fields = MappingFields::open(file, item, "a descriptor", "`key`, `value` and `rate_limit`")?;
        let key =
            fields.text("key")?.ok_or_else(|| file.fault_at(item.position, "the descriptor has no `key`"))?;
        let value = fields.text("value")?;
        let composite = match &value {
            Some(value) => format!("{parent}.{key}_{value}"),
            None => format!("{parent}.{key}"),
        };
        let pattern = value.as_deref().map_or(EntryPattern::Any, read_pattern);
        let share_threshold = fields.flag("share_threshold")?;
        if share_threshold && !key.contains('*') && !value.as_ref().is_some_and(|value| value.contains('*')) {
            return Err(file.fault_at(item.position, "`share_threshold` needs a `value` with an asterisk"));
        }
        let (shadow_mode, quota_mode) = (fields.flag("shadow_mode")?, fields.flag("quota_mode")?);
        for name in ["detailed_metric", "value_to_metric"] {
            if fields.flag(name)?
                && let Some((key, _)) = fields.find(name)
            {
                let says = "metrics have the name of the limit, and never a value of a client";
                self.report.skips(&file.line_at(key.position), name, says);
            }
        }
        if let Some((key, _)) = fields.find("metadata") {
            let says = "answers carry no metadata";
            self.report.skips(&file.line_at(key.position), "metadata", says);
        }
        let limit = match fields.find("rate_limit") {
            Some((_, node)) if !matches!(node.content, NodeContent::Null) => {
                Some(self.read_rate(file, node)?)
            }
            _ => None,
        };
        self.note_others(file, &fields, DESCRIPTOR_FIELDS);
        let children = self.read_list(file, &fields, &composite, depth + 1)?;
        let descriptor = ImportedDescriptor {
            at: file.line_at(item.position),
            key,
            pattern,
            is_default: value.is_none(),
            share_threshold,
            shadow_mode,
            quota_mode,
            limit,
            children,
        };
        Ok((composite, descriptor))
    }

    fn read_rate(&mut self, file: &SourceText, node: &Node) -> ReadResult<ImportedRate> {
        let fields = MappingFields::open(file, node, "`rate_limit`", "`unit` and `requests_per_unit`")?;
        let unlimited = fields.flag("unlimited")?;
        let name = fields.text("name")?;
        let items = fields.list("replaces", ", `- name: NAME` for each limit")?;
        let mut replaces: Vec<String> = Vec::new();
        for item in items.into_iter().flat_map(|(_, items)| items) {
            let fields = MappingFields::open(file, item, "an entry of `replaces`", "`name`")?;
            let no_name = || file.fault_at(item.position, "an entry of `replaces` has no `name`");
            let replaced = fields.text("name")?.ok_or_else(no_name)?;
            if name.as_ref() == Some(&replaced) {
                return Err(file.fault_at(item.position, format!("the limit `{replaced}` replaces itself")));
            }
            if !replaces.contains(&replaced) {
                replaces.push(replaced);
            }
        }
        let written = fields.text("unit")?;
        let unit = written.as_deref().and_then(parse_unit);
        let place = fields.find("unit").map_or(node.position, |(_, unit)| unit.position);
        self.note_others(file, &fields, RATE_FIELDS);
        let (requests, units) = (fields.number("requests_per_unit")?, fields.number("unit_multiplier")?);
        if units == Some(0) {
            return Err(file.fault_at(node.position, "`unit_multiplier` is 0"));
        }
        let numbers = match (unlimited, unit) {
            (true, Some(_)) => return Err(file.fault_at(place, "`unlimited` stands beside a `unit`")),
            (true, None) => None,
            (false, Some(unit)) => {
                Some(CallsPerWindow { requests: requests.unwrap_or(0), unit, units: units.unwrap_or(1) })
            }
            (false, None) => {
                let message = match written {
                    Some(unit) => {
                        format!("`{unit}` is not a unit: second, minute, hour, day, week, month or year")
                    }
                    None => "the `rate_limit` has no `unit`".to_owned(),
                };
                return Err(file.fault_at(place, message));
            }
        };
        Ok(ImportedRate { name, replaces, numbers })
    }

    /// Reports fields that are not read: some are ignored at this place, and others are not known at all.
    fn note_others(&mut self, file: &SourceText, fields: &MappingFields<'_>, known: &str) {
        let is_one_of = |names: &str, name: &str| names.split(' ').any(|known| known == name);
        for (key, _) in fields.iter().filter(|(key, _)| !is_one_of(known, &key.name)) {
            let at = file.line_at(key.position);
            if ["domain", DESCRIPTOR_FIELDS, RATE_FIELDS].iter().any(|names| is_one_of(names, &key.name)) {
                self.report.skips(&at, &key.name, "envoyproxy/ratelimit ignores the field at this place");
            } else {
                self.report.loses(&at, &key.name, "the field is not known; it may limit or deny");
            }
        }
    }
}

const DESCRIPTOR_FIELDS: &str = "key value rate_limit descriptors shadow_mode quota_mode detailed_metric \
     value_to_metric share_threshold metadata";

const RATE_FIELDS: &str = "unit requests_per_unit unlimited name replaces unit_multiplier";

fn read_pattern(value: &str) -> EntryPattern {
    let prefix = value.trim_end_matches('*');
    match prefix {
        _ if prefix.contains('*') => EntryPattern::Scattered(value.to_owned()),
        "" => EntryPattern::Any,
        _ if prefix.len() < value.len() => EntryPattern::Prefix(prefix.to_owned()),
        _ => EntryPattern::Value(value.to_owned()),
    }
}
