//! Reads `service`.

use super::domains::read_domains;
use super::limits::LimitReader;
use super::listen::read_listener;
use crate::schema::tables::listen::listen;
use crate::schema::tables::root::root;
use crate::schema::tables::service::service;
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use sluicegate_model::{ListenAddress, ListenConfig, ListenerPurpose, ServerConfig, ServiceConfig, codes};

/// Reads `service`, and takes the listeners that it names out of `listen`. The inline limits of its domains are added
/// to `limits`.
pub(crate) fn read_service(
    root: &FieldReader<'_>,
    listen: &mut Vec<ListenConfig>,
    server: &ServerConfig,
    limits: &mut LimitReader<'_>,
) -> Option<ServiceConfig> {
    root.find(&root::SERVICE)?;
    root.read_section_or_none(&root::SERVICE, |fields| {
        let has_token = fields.find(&service::TOKEN).is_some_and(|value| !value.is_word("none"));
        let tokens = fields.read_list_or_word(&service::TOKEN);
        let is_absent = |value: &FieldValue<'_>| value.is_word("none");
        let lists = [&service::LISTEN, &service::RESP].map(|field| fields.find(field));
        if lists.iter().all(|value| value.as_ref().is_none_or(is_absent)) {
            fields.report_missing(
                service::LISTEN.name,
                "write listen: 127.0.0.1:9902, or resp: 127.0.0.1:6380",
            );
        }
        let mut own = Vec::new();
        for (value, purpose) in lists.into_iter().zip([ListenerPurpose::Calls, ListenerPurpose::Resp]) {
            let Some(value) = value.filter(|value| !is_absent(value)) else { continue };
            value.check_filled("write an address, e.g. 127.0.0.1:9902, or none");
            for item in value.one_or_more() {
                let is_named = |listener: &ListenConfig| {
                    listener.name.is_some() && listener.name.as_deref() == item.as_text()
                };
                let read = match listen.iter().position(is_named) {
                    Some(position) => Some((listen.remove(position), item.clone())),
                    None => {
                        let known: Vec<ListenConfig> = listen.iter().chain(&own).cloned().collect();
                        read_listener(&item, &known, server)
                    }
                };
                let Some((listener, named)) = read else { continue };
                if !has_token && is_open(&listener.address) {
                    report_open(&named);
                }
                let http2 = listener.http2 && purpose == ListenerPurpose::Calls;
                if purpose == ListenerPurpose::Resp {
                    refuse_http2(&item);
                }
                own.push(ListenConfig { purpose, http2, ..listener });
            }
        }
        let domains = read_domains(fields, limits);
        let (listen, resp) = own.into_iter().partition(|one| one.purpose == ListenerPurpose::Calls);
        ServiceConfig { listen, resp, tokens, domains }
    })
}

/// Redis clients speak no HTTP.
fn refuse_http2(item: &FieldValue<'_>) {
    let value = item.is_map().then(|| item.open_section(&listen::SECTION).find(&listen::HTTP2)).flatten();
    if let Some(value) = value {
        let message = "`http2` is not for the protocol of Redis";
        value.refuse_name(codes::FOREIGN_FIELD, message, "remove it");
    }
}

/// True if other hosts may reach the address.
fn is_open(address: &ListenAddress) -> bool {
    match address {
        ListenAddress::Address(address) => !address.ip().to_canonical().is_loopback(),
        ListenAddress::Unix(_) => false,
        ListenAddress::Port(_) | ListenAddress::Systemd(_) => true,
    }
}

fn report_open(value: &FieldValue<'_>) {
    let shown = value.written_text();
    let message = format!("the service at `{shown}` may be open to the network and has no token");
    value.refuse(
        codes::OPEN_ADMIN,
        message,
        "write token: \"${SERVICE_TOKEN}\" beside it, or an address of this host alone",
    );
}
