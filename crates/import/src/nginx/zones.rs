//! `limit_req_zone` and `limit_conn_zone`: the counters that limits share.

use std::collections::BTreeMap;

use super::key::{ZoneKey, read_key};
use super::parser::Directive;
use super::variables::VariableTable;
use crate::ImportFault;

/// The zones of the configuration by name.
pub(super) type ZoneTable<'d> = BTreeMap<String, Zone<'d>>;

#[derive(Debug)]
pub(super) struct Zone<'d> {
    pub directive: &'d Directive,
    /// Thousandths of a request per second; `None` = it counts connections.
    pub rate: Option<u64>,
    /// Why the key cannot be translated, if so.
    pub key: Result<ZoneKey, String>,
}

pub(super) fn read_zones<'d>(
    http: &'d [Directive],
    variables: &VariableTable<'_>,
) -> Result<ZoneTable<'d>, ImportFault> {
    let mut table = ZoneTable::default();
    for directive in http {
        let is_rate = match directive.name.as_str() {
            "limit_req_zone" => true,
            "limit_conn_zone" => false,
            _ => continue,
        };
        let (name, rate) = read_parameters(directive, is_rate)?;
        let key = read_key(directive.arg(0), variables, 0);
        let zone = Zone { directive, rate, key };
        if table.insert(name.clone(), zone).is_some() {
            return Err(directive.fault(format!("there are two zones `{name}`")));
        }
    }
    Ok(table)
}

/// The name of the zone, and its rate in thousandths per second.
fn read_parameters(directive: &Directive, is_rate: bool) -> Result<(String, Option<u64>), ImportFault> {
    let wrong = |message: String| directive.fault(message);
    let (mut name, mut rate) = (None, None);
    if directive.args.len() < 2 {
        return Err(wrong(format!("`{}` takes a key and a zone", directive.name)));
    }
    for parameter in &directive.args[1..] {
        if let Some(zone) = parameter.strip_prefix("zone=") {
            let text = zone.split_once(':').map_or(zone, |(name, _)| name);
            name = Some(text.to_owned()).filter(|name| !name.is_empty());
        } else if let Some(text) = parameter.strip_prefix("rate=").filter(|_| is_rate) {
            rate = Some(
                read_rate(text).ok_or_else(|| wrong(format!("`{parameter}` is not a rate such as 10r/s")))?,
            );
        } else if parameter == "sync" && is_rate {
            return Err(wrong(
                "`sync` is of NGINX Plus and is not translated: use state: { store: redis }".to_owned(),
            ));
        } else {
            return Err(wrong(format!("`{parameter}` is no parameter of `{}`", directive.name)));
        }
    }
    let name = name.ok_or_else(|| wrong(format!("`{}` names no zone", directive.name)))?;
    if is_rate && rate.is_none() {
        // nginx's default.
        rate = Some(1000);
    }
    Ok((name, rate))
}

/// `10r/s`, `10` or `30r/m` in thousandths of a request per second, rounded down as in nginx.
fn read_rate(text: &str) -> Option<u64> {
    let (digits, seconds) = match text.strip_suffix("r/s") {
        Some(digits) => (digits, 1),
        // Without a unit it is per second.
        None => text.strip_suffix("r/m").map_or((text, 1), |digits| (digits, 60)),
    };
    let number = digits.parse::<u64>().ok().filter(|number| *number > 0 && !digits.starts_with('+'))?;
    Some(number.checked_mul(1000)? / seconds).filter(|rate| *rate <= 1_000_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml_text::write_rate;

    #[test]
    fn rates_are_those_that_nginx_counts_with() {
        for (text, written) in [
            ("10r/s", "10/s"),
            ("10", "10/s"),
            ("30r/m", "1/2s"),
            ("10r/m", "83/500s"),
            ("1r/m", "2/125s"),
            ("100r/m", "833/500s"),
        ] {
            assert_eq!(write_rate(read_rate(text).unwrap()), written);
        }
        for wrong in ["", "0r/s", "r/s", "-1r/s", "1.5r/s", "10r/h", "99999999999999999999r/s", "+5r/s"] {
            assert_eq!(read_rate(wrong), None, "{wrong}");
        }
    }
}
