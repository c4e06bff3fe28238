//! `explain`: explains the decision on a request or on a call of the rate-limit service, from the file alone or from
//! the running gateway.

use std::io;

use serde_json::{Map, Value};

use super::admin_client::OperatorRequest;
use super::args::ExplainArgs;
use super::file_argument::ConfigInput;
use super::remote::lacks_admin;
use super::{ADMIN_UNREACHABLE, CommandFault, CommandResult, failed, print_result, render_json, usage};
use crate::operate::explain::{self, Query};
use sluicegate_base::clock::Now;
use sluicegate_model::Config;

/// Explains with fresh counters, or with `live` with those of the running gateway.
pub(super) fn run_explain(input: &ConfigInput, args: ExplainArgs) -> CommandResult {
    let (live, json) = (args.live, args.json);
    let query = build_query(args).map_err(usage)?;
    let config = input.load()?.config;
    let explain =
        if live { explain_live(&config, &query, json) } else { explain_offline(config, &query, json) };
    print_result(&explain?)
}

fn build_query(args: ExplainArgs) -> Result<Query, String> {
    if !args.limits.is_empty() {
        return build_call(args).map(|call| Query { call: Some(call), ..Query::default() });
    }
    if !args.keys.is_empty() || args.cost.is_some() || args.wait.is_some() {
        return Err("--key, --cost and --wait describe a call, whose limits --limits names".to_owned());
    }
    let ExplainArgs { method, url, ip, headers, auth, data, listener, .. } = args;
    let data = data.map(read_data).transpose()?;
    // The command line has both unless it names limits.
    let (method, url) = (method.unwrap_or_default(), url.unwrap_or_default());
    let ip = ip.unwrap_or_else(|| "127.0.0.1".to_owned());
    Ok(Query { method, url, ip, headers, listener, auth, data, call: None })
}

/// The body of the `/check` that the arguments describe.
fn build_call(args: ExplainArgs) -> Result<Value, String> {
    let ExplainArgs { limits, keys, cost, wait, ip, .. } = args;
    let mut key: Map<String, Value> = ip.map(|ip| ("ip".to_owned(), ip.into())).into_iter().collect();
    for part in &keys {
        let wrong = || format!("`{}` is no part of a key; write e.g. account=acme", part.escape_debug());
        let (name, value) = part.split_once('=').ok_or_else(wrong)?;
        if key.insert(name.to_owned(), value.into()).is_some() {
            return Err(format!("the part `{}` of the key is given twice", name.escape_debug()));
        }
    }
    let mut call = Map::new();
    call.insert("limits".to_owned(), limits.into());
    call.insert("key".to_owned(), key.into());
    call.extend(cost.map(|cost| ("cost".to_owned(), cost.into())));
    call.extend(wait.map(|wait| ("wait".to_owned(), wait.into())));
    Ok(call.into())
}

/// The body as given, or as of the file behind an `@`.
fn read_data(given: String) -> Result<String, String> {
    let Some(name) = given.strip_prefix('@') else { return Ok(given) };
    let read = match name {
        "-" => io::read_to_string(io::stdin().lock()),
        name => std::fs::read_to_string(name),
    };
    read.map_err(|error| format!("cannot read the body from `{}`: {error}", name.escape_debug()))
}

fn explain_offline(config: Config, query: &Query, json: bool) -> Result<String, CommandFault> {
    let gateway = explain::build_offline(config).map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(failed)?;
    let explanation = runtime.block_on(explain::explain_request(&gateway, None, query, Now::read_clock()));
    let mut explanation = explanation.map_err(usage)?;
    explanation.servers = explanation.servers.map(|_| "count as up; --live judges them".to_owned());
    Ok(if json { render_json(&explanation) } else { explanation.to_string() })
}

fn explain_live(config: &Config, query: &Query, json: bool) -> Result<String, CommandFault> {
    let unreachable = |why: &str| CommandFault::new(ADMIN_UNREACHABLE, why);
    let admin = config.admin.as_ref().ok_or_else(lacks_admin)?;
    // A struct of strings always serializes.
    let body = serde_json::to_string(query).unwrap_or_default();
    let accept = if json { "application/json" } else { "text/plain" };
    let answer = OperatorRequest::with_body("POST", "/explain", body).send(admin, accept);
    match answer.map_err(|fault| unreachable(fault.why()))? {
        (200, text) => Ok(text),
        (400..=499, why) => Err(usage(why)),
        (status, _) => Err(unreachable(&format!("the admin listener answered with {status}"))),
    }
}
