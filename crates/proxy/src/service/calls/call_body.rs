//! The bodies of calls, as types.

use std::time::Duration;

use super::call_value::{CallFault, CallText, CallValue};
use sluicegate_admission::leases::{LeaseId, UsedUnits};
use sluicegate_model::{self as model, LEASE_TIME, LEASE_TIME_MAX};

/// The longest wait that a call may ask for.
const WAIT_MAX: Duration = Duration::from_secs(3_600);

/// The body of `/check`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CheckCall<'a> {
    pub subject: CheckSubject<'a>,
    /// Units, at least 1; `None` = as configured.
    pub cost: Option<u64>,
    pub wait: Duration,
    pub lease_for: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CheckSubject<'a> {
    /// Limits by their names, and the parts of their keys.
    Limits { limits: Vec<CallText<'a>>, key: Vec<(CallText<'a>, CallText<'a>)> },
    /// The limits of the location that serves this request.
    Request(DescribedRequest<'a>),
}

/// A request that the caller has received itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct DescribedRequest<'a> {
    pub ip: CallText<'a>,
    pub method: Option<CallText<'a>>,
    pub scheme: Option<CallText<'a>>,
    pub host: Option<CallText<'a>>,
    /// The path with the query.
    pub path: CallText<'a>,
    pub headers: Vec<(CallText<'a>, CallText<'a>)>,
}

// === impl CheckCall ===

impl<'a> CheckCall<'a> {
    pub(super) fn read(body: &'a [u8]) -> Result<CheckCall<'a>, CallFault> {
        let mut members = Members::read(body, &["limits", "request", "key", "cost", "wait", "lease_for"])?;
        let (limits, request, key) = (members.take("limits"), members.take("request"), members.take("key"));
        let subject = match (limits, request, key) {
            (Some(limits), None, key) => CheckSubject::Limits {
                limits: read_names(limits)?,
                key: key.map_or(Ok(Vec::new()), |key| read_texts("key", key))?,
            },
            (None, Some(request), None) => CheckSubject::Request(DescribedRequest::read(request)?),
            (None, Some(_), Some(_)) => {
                return Err(CallFault::new(
                    "key",
                    "`key` belongs to `limits`: the request has its own facts",
                ));
            }
            (Some(_), Some(_), _) => {
                return Err(CallFault::new("request", "`limits` and `request` exclude each other"));
            }
            (None, None, _) => return Err(CallFault::new("limits", "`limits` or `request` is missing")),
        };
        let cost = match members.take("cost") {
            None => None,
            Some(CallValue::Number(cost)) if cost > 0 => Some(cost),
            Some(_) => return Err(CallFault::new("cost", "`cost` must be a whole number from 1")),
        };
        let wait = members.take_span("wait", Duration::ZERO, WAIT_MAX)?;
        let lease_for = members.take_lease_time()?;
        Ok(CheckCall { subject, cost, wait, lease_for })
    }
}

// === impl DescribedRequest ===

impl<'a> DescribedRequest<'a> {
    fn read(value: CallValue<'a>) -> Result<DescribedRequest<'a>, CallFault> {
        let CallValue::Object(members) = value else {
            return Err(CallFault::new("request", "`request` must be an object"));
        };
        let names = ["ip", "method", "scheme", "host", "path", "headers"];
        let mut members = Members::new("request.", members, &names)?;
        let headers = members.take("headers");
        Ok(DescribedRequest {
            ip: members.require_text("ip")?,
            method: members.take_text("method")?,
            scheme: members.take_text("scheme")?,
            host: members.take_text("host")?,
            path: members.require_text("path")?,
            headers: headers.map_or(Ok(Vec::new()), |headers| read_texts("request.headers", headers))?,
        })
    }
}

/// Reads the body of `/release`; the lease is `None` for a text that is no id of one, as in the next calls.
pub(super) fn read_release(body: &[u8]) -> Result<Option<LeaseId>, CallFault> {
    Members::read(body, &["lease"])?.take_lease()
}

/// Reads the body of `/renew`.
pub(super) fn read_renewal(body: &[u8]) -> Result<(Option<LeaseId>, Duration), CallFault> {
    let mut members = Members::read(body, &["lease", "lease_for"])?;
    let lease_for = members.take_lease_time()?;
    Ok((members.take_lease()?, lease_for))
}

/// Reads the body of `/settle`.
pub(super) fn read_settlement(body: &[u8]) -> Result<(Option<LeaseId>, UsedUnits), CallFault> {
    let mut members = Members::read(body, &["lease", "units"])?;
    let wrong =
        || CallFault::new("units", "`units` must be a whole number, or one for each limit by its name");
    let units = match members.take("units") {
        Some(CallValue::Number(units)) => UsedUnits::All(units),
        Some(CallValue::Object(all)) if !all.is_empty() => {
            let one = |(name, units): (CallText<'_>, CallValue<'_>)| match units {
                CallValue::Number(units) => Ok((name.into_owned(), units)),
                _ => Err(wrong()),
            };
            UsedUnits::ByLimit(all.into_iter().map(one).collect::<Result<_, _>>()?)
        }
        _ => return Err(wrong()),
    };
    Ok((members.take_lease()?, units))
}

/// One name, or a list of names; each once.
fn read_names(value: CallValue<'_>) -> Result<Vec<CallText<'_>>, CallFault> {
    let wrong = |message| CallFault::new("limits", message);
    let items = match value {
        CallValue::Text(name) => return Ok(vec![name]),
        CallValue::List(items) if !items.is_empty() => items,
        _ => return Err(wrong("`limits` must be the name of a limit, or a list of names")),
    };
    let mut names: Vec<CallText<'_>> = Vec::new();
    for item in items {
        let CallValue::Text(name) = item else { return Err(wrong("each of `limits` must be a name")) };
        if names.contains(&name) {
            return Err(CallFault::new("limits", format!("the limit `{name}` is named twice")));
        }
        names.push(name);
    }
    Ok(names)
}

/// An object of texts that are not empty.
fn read_texts<'a>(field: &str, value: CallValue<'a>) -> Result<Vec<(CallText<'a>, CallText<'a>)>, CallFault> {
    let CallValue::Object(members) = value else {
        return Err(CallFault::new(field, format!("`{field}` must be an object of texts")));
    };
    let one = |(name, value)| match value {
        CallValue::Text(text) if !text.is_empty() => Ok((name, text)),
        CallValue::Number(number) => Ok((name, number.to_string().into())),
        _ => Err(CallFault::new(
            format!("{field}.{name}"),
            format!("`{field}.{name}` must be a text that is not empty"),
        )),
    };
    members.into_iter().map(one).collect()
}

/// The members of an object that are still to be read.
struct Members<'a> {
    /// The prefix of the names in messages.
    prefix: &'static str,
    members: Vec<(CallText<'a>, CallValue<'a>)>,
}

impl<'a> Members<'a> {
    fn read(body: &'a [u8], names: &[&str]) -> Result<Members<'a>, CallFault> {
        Members::new("", CallValue::read_members(body)?, names)
    }

    fn new(
        prefix: &'static str,
        mut members: Vec<(CallText<'a>, CallValue<'a>)>,
        names: &[&str],
    ) -> Result<Members<'a>, CallFault> {
        if let Some((name, _)) = members.iter().find(|(name, _)| !names.contains(&&**name)) {
            let message = format!("there is no member `{prefix}{name}`; known are {}", names.join(", "));
            return Err(CallFault::new(format!("{prefix}{name}"), message));
        }
        // null is no value.
        members.retain(|(_, value)| *value != CallValue::Null);
        Ok(Members { prefix, members })
    }

    fn take(&mut self, name: &str) -> Option<CallValue<'a>> {
        let position = self.members.iter().position(|(known, _)| known == name)?;
        Some(self.members.swap_remove(position).1)
    }

    fn take_text(&mut self, name: &str) -> Result<Option<CallText<'a>>, CallFault> {
        match self.take(name) {
            None => Ok(None),
            Some(CallValue::Text(text)) if !text.is_empty() => Ok(Some(text)),
            Some(_) => {
                let field = format!("{}{name}", self.prefix);
                Err(CallFault::new(&field, format!("`{field}` must be a text that is not empty")))
            }
        }
    }

    fn require_text(&mut self, name: &str) -> Result<CallText<'a>, CallFault> {
        self.take_text(name)?.ok_or_else(|| {
            let field = format!("{}{name}", self.prefix);
            CallFault::new(&field, format!("`{field}` is missing"))
        })
    }

    fn take_span(&mut self, name: &str, default: Duration, most: Duration) -> Result<Duration, CallFault> {
        let wrong = |message: String| CallFault::new(name, message);
        let span = match self.take(name) {
            None => return Ok(default),
            Some(CallValue::Text(text)) => {
                model::read_duration(&text).map_err(|message| wrong(format!("`{name}`: {message}")))?
            }
            Some(_) => return Err(wrong(format!("`{name}` must be a duration such as \"2s\""))),
        };
        if span <= most {
            Ok(span)
        } else {
            Err(wrong(format!("`{name}` must be at most {}s", most.as_secs())))
        }
    }

    /// The time of a lease, at least 100 ms.
    fn take_lease_time(&mut self) -> Result<Duration, CallFault> {
        let span = self.take_span("lease_for", LEASE_TIME, LEASE_TIME_MAX)?;
        let wrong = || CallFault::new("lease_for", "`lease_for` must be at least 100ms");
        Some(span).filter(|span| *span >= Duration::from_millis(100)).ok_or_else(wrong)
    }

    fn take_lease(&mut self) -> Result<Option<LeaseId>, CallFault> {
        Ok(LeaseId::parse(&self.require_text("lease")?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_read_with_its_defaults() {
        let read = |body: &'static str| CheckCall::read(body.as_bytes()).unwrap();
        let short = read(r#"{"limits":"sms"}"#);
        let subject = CheckSubject::Limits { limits: vec!["sms".into()], key: Vec::new() };
        let (wait, lease_for) = (Duration::ZERO, LEASE_TIME);
        assert_eq!(short, CheckCall { subject, cost: None, wait, lease_for });
        let long = read(
            r#"{"limits":["a","b"],"key":{"account":"x","json:/n":7},"cost":3,"wait":"2s","lease_for":"1m"}"#,
        );
        let key = [("account", "x"), ("json:/n", "7")].map(|(name, value)| (name.into(), value.into()));
        let subject = CheckSubject::Limits { limits: vec!["a".into(), "b".into()], key: key.to_vec() };
        let (wait, lease_for) = (Duration::from_secs(2), Duration::from_secs(60));
        assert_eq!(long, CheckCall { subject, cost: Some(3), wait, lease_for });
        let null = read(r#"{"limits":"sms","key":null,"cost":null,"wait":null,"request":null}"#);
        assert_eq!(null, short);
    }

    #[test]
    fn a_call_that_is_not_understood_names_its_member() {
        for (body, field) in [
            ("", ""),
            ("[]", ""),
            ("{", ""),
            (r#"{"limits":"a","limits":"b"}"#, ""),
            ("{}", "limits"),
            (r#"{"limits":[]}"#, "limits"),
            (r#"{"limits":["a","a"]}"#, "limits"),
            (r#"{"limits":[1]}"#, "limits"),
            (r#"{"limit":"a"}"#, "limit"),
            (r#"{"limits":"a","request":{"ip":"::1","path":"/"}}"#, "request"),
            (r#"{"request":{"path":"/"}}"#, "request.ip"),
            (r#"{"request":{"ip":"::1"}}"#, "request.path"),
            (r#"{"request":{"ip":"::1","path":"/","uri":"/"}}"#, "request.uri"),
            (r#"{"request":{"ip":"::1","path":"/"},"key":{}}"#, "key"),
            (r#"{"limits":"a","key":{"ip":""}}"#, "key.ip"),
            (r#"{"limits":"a","key":{"ip":true}}"#, "key.ip"),
            (r#"{"limits":"a","cost":0}"#, "cost"),
            (r#"{"limits":"a","cost":-1}"#, "cost"),
            (r#"{"limits":"a","cost":1.5}"#, "cost"),
            (r#"{"limits":"a","cost":"1"}"#, "cost"),
            (r#"{"limits":"a","wait":2}"#, "wait"),
            (r#"{"limits":"a","wait":"2"}"#, "wait"),
            (r#"{"limits":"a","wait":"2h"}"#, "wait"),
            (r#"{"limits":"a","lease_for":"99ms"}"#, "lease_for"),
            (r#"{"limits":"a","lease_for":"61m"}"#, "lease_for"),
        ] {
            assert_eq!(CheckCall::read(body.as_bytes()).unwrap_err().field, field, "{body}");
        }
        for (body, field) in [
            (r#"{"lease":"x"}"#, "units"),
            (r#"{"lease":"x","units":-1}"#, "units"),
            (r#"{"lease":"x","units":{}}"#, "units"),
            (r#"{"lease":"x","units":{"a":"1"}}"#, "units"),
            (r#"{"units":1}"#, "lease"),
        ] {
            assert_eq!(read_settlement(body.as_bytes()).unwrap_err().field, field, "{body}");
        }
        assert_eq!(read_release(br#"{"lease":"x"}"#).unwrap(), None);
    }
}
