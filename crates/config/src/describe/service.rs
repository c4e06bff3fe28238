//! Describes the rate-limit service.

use sluicegate_model::{Config, LEASE_TIME, LEASE_TIME_MAX};

/// "calls at 127.0.0.1:9902 need no token; a lease ends after 10 seconds, …"; `None` without a service.
pub fn describe_service(config: &Config) -> Option<String> {
    let service = config.service.as_ref()?;
    let listeners = service.listen.iter().chain(&service.resp);
    let addresses: Vec<String> = listeners.map(|listen| listen.address.to_string()).collect();
    let token = match service.tokens.len() {
        0 => "no token".to_owned(),
        1 => "the token".to_owned(),
        count => format!("one of {count} tokens"),
    };
    Some(format!(
        "calls at {} need {token}; a lease ends after {} seconds, or the time that its call names, at most {} hour",
        addresses.join(", "),
        LEASE_TIME.as_secs(),
        LEASE_TIME_MAX.as_secs() / 3_600,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate as config;

    #[test]
    fn the_service_is_one_sentence() {
        let describe = |section: &str| {
            let text = format!("{section}\nlimits: {{ sms: 9/h }}\nlocations: []\n");
            let loaded = config::parse(&text, "x.yaml").unwrap_or_else(|report| panic!("{report}"));
            assert!(loaded.warnings.is_empty(), "a file for calls alone is fine: {:?}", loaded.warnings);
            describe_service(&loaded.config).unwrap()
        };
        let leases = "a lease ends after 10 seconds, or the time that its call names, at most 1 hour";
        assert_eq!(
            describe("service: { listen: 127.0.0.1:9902 }"),
            format!("calls at 127.0.0.1:9902 need no token; {leases}")
        );
        assert_eq!(
            describe(
                "service: { listen: [127.0.0.1:9902, \"unix:/run/calls.sock\"], token: [abcdefgh, ijklmnop] }"
            ),
            format!("calls at 127.0.0.1:9902, unix:/run/calls.sock need one of 2 tokens; {leases}")
        );
        let plain = config::parse("locations: [{ path: /, upstream: demo }]", "x.yaml");
        assert_eq!(describe_service(&plain.unwrap_or_else(|report| panic!("{report}")).config), None);
    }
}
