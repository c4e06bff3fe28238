//! Quotas of Cloud Endpoints: limits per minute and API key of metrics, of which each operation takes a number; and the
//! security schemes that its proxy verifies.

use super::DocumentReader;
use crate::gateway_file::PlannedField;
use crate::mapping_fields::MappingFields;
use crate::yaml_text::quote;
use crate::{FindingKind, ImportFault, ReadResult};
use sluicegate_config::yaml::tree::Node;

/// The extension of a document with the limits.
pub(super) const MANAGEMENT: &str = "x-google-management";
/// The extension of an operation with its costs.
pub(super) const QUOTA: &str = "x-google-quota";

/// A limit of `x-google-management.quota`.
pub(super) struct QuotaLimit<'d> {
    fields: MappingFields<'d>,
    metric: String,
    /// The names of the limits that are written, by their costs.
    written: Vec<(u32, String)>,
}

impl<'d> DocumentReader<'d> {
    pub(super) fn read_security(&mut self, document: &MappingFields<'d>) -> ReadResult<()> {
        self.security = document.list("security", "")?.map_or(&[][..], |(_, choices)| choices);
        let has_google =
            |fields: &MappingFields<'_>| fields.iter().any(|(key, _)| key.name.starts_with("x-google-"));
        let schemes = match document.find("swagger") {
            Some(_) => document.mapping("securityDefinitions")?,
            None => document.mapping("components")?.mapping("securitySchemes")?,
        };
        for (key, _) in schemes.iter() {
            let scheme = schemes.mapping(&key.name)?;
            let (kind, says) = if has_google(&scheme) {
                self.token_schemes.insert(&key.name);
                (FindingKind::Closed, "operations that need it answer 403: verify it by `account.jwt`")
            } else if let (true, Some(place)) = (has_google(document), scheme.text("in")?) {
                self.key_place.get_or_insert(format!("{place}:{}", scheme.require("name")?));
                (FindingKind::Lost, "keys are not verified: give them out by `account.keys`")
            } else {
                (FindingKind::NotTranslated, "the upstream verifies it as before; `account` can, too")
            };
            self.report.add(kind, &scheme.at, &key.name, says.to_owned());
        }
        Ok(())
    }

    /// True if an operation takes no request without a token that the proxy of Cloud Endpoints verifies.
    pub(super) fn needs_token(&self, operation: &MappingFields<'d>) -> ReadResult<bool> {
        let choices = operation.list("security", "")?.map_or(self.security, |(_, choices)| choices);
        let is_token = |choice: &Node| self.token_schemes.iter().any(|scheme| choice.has_field(scheme));
        Ok(!choices.is_empty() && choices.iter().all(is_token))
    }

    pub(super) fn read_quotas(&mut self, document: &MappingFields<'d>) -> ReadResult<()> {
        let management = document.mapping(MANAGEMENT)?;
        for fields in management.mapping("quota")?.items("limits")? {
            let (metric, unit) = (fields.require("metric")?, fields.require("unit")?);
            if unit != "1/min/{project}" {
                let says = format!("the `unit` must be 1/min/{{project}}, not `{unit}`");
                return Err(ImportFault::new(&fields.at, says));
            }
            self.quotas.push(QuotaLimit { fields, metric, written: Vec::new() });
        }
        if self.key_place.is_none() && !self.quotas.is_empty() {
            let says = "no security scheme has the place of API keys: quotas count by the client's address";
            self.report.loses(&management.at, MANAGEMENT, says);
        }
        Ok(())
    }

    /// The limits of the metrics that an operation takes of.
    pub(super) fn charge_metrics(&mut self, operation: &MappingFields<'d>) -> ReadResult<Vec<String>> {
        let costs = operation.mapping(QUOTA)?.mapping("metricCosts")?;
        let (mut chain, mut quotas) = (Vec::new(), std::mem::take(&mut self.quotas));
        for (key, _) in costs.iter() {
            let (at, cost) = (costs.line_of(key), costs.number(&key.name)?.unwrap_or_default());
            if cost == 0 || quotas.iter().all(|quota| quota.metric != key.name) {
                self.report.skips(&at, &key.name, "no limit counts it");
                continue;
            }
            for quota in quotas.iter_mut().filter(|quota| quota.metric == key.name) {
                if let Some((_, name)) = quota.written.iter().find(|(known, _)| *known == cost) {
                    chain.push(name.clone());
                    continue;
                }
                let mut name = quota.fields.require("name")?;
                if !quota.written.is_empty() {
                    name += &format!("-cost-{cost}");
                    let says = "each cost counts apart: requests may take more than the quota all together";
                    self.report.loses(&at, &key.name, says);
                }
                chain.push(self.push_quota(&name, &quota.fields, cost)?);
                quota.written.extend(chain.last().map(|name| (cost, name.clone())));
            }
        }
        self.quotas = quotas;
        Ok(chain)
    }

    fn push_quota(&mut self, name: &str, fields: &MappingFields<'d>, cost: u32) -> ReadResult<String> {
        let rate = format!("{}/m", fields.mapping("values")?.require("STANDARD")?);
        let (key, cost) = (quote(self.key_place.as_deref().unwrap_or("ip")), cost.to_string());
        let own = [("rate", &*rate), ("key", &key), ("missing_key", "{ reject: 401 }"), ("cost", &cost)];
        let written = [("algorithm", "fixed_window"), ("align", "clock")].into_iter().chain(own);
        let written = written.map(|(name, value)| PlannedField::plain(name, value)).collect();
        Ok(self.push_limit(name, written, &fields.at))
    }

    pub(super) fn note_unused_quotas(&mut self) {
        for QuotaLimit { fields, metric, .. } in self.quotas.iter().filter(|quota| quota.written.is_empty()) {
            self.report.skips(&fields.at, metric, "no operation takes of this metric of a limit");
        }
    }
}
