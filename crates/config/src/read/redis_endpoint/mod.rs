//! Reads `state.redis.url`: one URL, or a list for a Cluster.

use crate::yaml::field_value::FieldValue;
use crate::yaml::tree::NodeContent;
use sluicegate_model::RedisServers;
use sluicegate_model::value::redis_url::{RedisEndpoint, parse_seed_url, parse_server_url, url_error};

/// Reads `url`; `None` after an error.
pub(crate) fn read_redis_endpoint(value: &FieldValue<'_>) -> Option<RedisEndpoint> {
    match value.node.content {
        NodeContent::List(_) => read_cluster_urls(value),
        _ => value.parse_with(parse_server_url),
    }
}

/// Some nodes of a Cluster, which share everything except their addresses.
fn read_cluster_urls(value: &FieldValue<'_>) -> Option<RedisEndpoint> {
    let items = value.one_or_more();
    if items.is_empty() {
        value.report_empty("write the URLs of some nodes of the Cluster, or one URL without a list");
    }
    let mut endpoint: Option<RedisEndpoint> = None;
    let mut seeds = Vec::new();
    for item in &items {
        let Some((seed, url)) = item.parse_with(parse_seed_url) else { continue };
        seeds.push(seed);
        match &endpoint {
            None => endpoint = Some(url),
            Some(first)
                if (first.tls, &first.user, &first.password) != (url.tls, &url.user, &url.password) =>
            {
                let message = "the nodes of a Cluster must have the same scheme, user and password";
                item.report_at_value(
                    url_error(message).with_help("write the same ones in each URL of the list"),
                );
            }
            Some(_) => {}
        }
    }
    let endpoint = endpoint.filter(|_| seeds.len() == items.len())?;
    Some(RedisEndpoint { servers: RedisServers::Cluster(seeds), ..endpoint })
}

#[cfg(test)]
mod tests;
