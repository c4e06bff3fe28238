//! Reads `service`.

use std::path::Path;

use super::domains::read_domains;
use super::limits::LimitReader;
use super::listen::read_listener;
use super::upstreams::UpstreamReader;
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::ValueError;
use crate::config::model::ServerConfig;
use crate::config::model::listen::{ListenAddress, ListenConfig};
use crate::config::model::service::ServiceConfig;
use crate::config::schema::tables::root::root;
use crate::config::schema::tables::service::service;
use crate::config::yaml::field_reader::FieldReader;
use crate::config::yaml::field_value::FieldValue;

/// Reads `service`, and takes the listeners that it names out of `listen`; relative paths start at `folder`. The inline
/// limits of its domains are added to `limits`.
pub(crate) fn read_service(
    root: &FieldReader<'_>,
    listen: &mut Vec<ListenConfig>,
    server: &ServerConfig,
    folder: &Path,
    (limits, upstreams): (&mut LimitReader<'_>, &mut UpstreamReader<'_>),
) -> Option<ServiceConfig> {
    root.find(&root::SERVICE)?;
    root.read_section_or_none(&root::SERVICE, |fields| {
        let has_token = fields.find(&service::TOKEN).is_some_and(|value| !value.is_word("none"));
        let tokens = fields.read_list_or_word(&service::TOKEN);
        let mut own = Vec::new();
        if let Some(value) = fields.find_required(&service::LISTEN) {
            if value.is_empty() {
                value.report_empty("write an address, e.g. listen: 127.0.0.1:9902");
            }
            for item in value.one_or_more() {
                let Some((listener, named)) = read_service_listener(&item, &own, listen, server, folder)
                else {
                    continue;
                };
                if !has_token && is_open(&listener.address) {
                    report_open(&named);
                }
                own.push(ListenConfig { for_service: true, ..listener });
            }
        }
        let domains = read_domains(fields, limits, upstreams);
        ServiceConfig { listen: own, tokens, domains }
    })
}

/// One listener of the service, and the value of its address or name.
fn read_service_listener<'a>(
    item: &FieldValue<'a>,
    own: &[ListenConfig],
    listen: &mut Vec<ListenConfig>,
    server: &ServerConfig,
    folder: &Path,
) -> Option<(ListenConfig, FieldValue<'a>)> {
    let is_named =
        |listener: &ListenConfig| listener.name.is_some() && listener.name.as_deref() == item.as_text();
    if let Some(position) = listen.iter().position(is_named) {
        return Some((listen.remove(position), item.clone()));
    }
    let known: Vec<ListenConfig> = listen.iter().chain(own).cloned().collect();
    read_listener(item, &known, server, folder)
}

/// Whether other hosts may reach the address.
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
    value.report_at_value(
        ValueError::new(codes::OPEN_ADMIN, message)
            .with_help("write token: \"${SERVICE_TOKEN}\" beside it, or an address of this host alone"),
    );
}
