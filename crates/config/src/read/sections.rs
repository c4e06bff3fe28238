//! Reads the whole file: its sections, in the order that their references need.

use std::path::Path;

use super::access::{self, IpSetReader};
use super::limits::LimitReader;
use super::upstreams::UpstreamReader;
use super::{account, bans, listen, locations, operation, reject, server, service, state};
use crate::lint;
use crate::schema::tables::root::root;
use crate::yaml::field_value::FieldValue;
use crate::yaml::tree::{Node, NodeContent};
use sluicegate_model::Config;
use sluicegate_model::diagnostics::codes;
use sluicegate_model::diagnostics::problem::{Position, ProblemSink, ValueError};

/// Reads the whole tree; the result is valid only if there are no problems. Relative paths start at `folder`.
pub(crate) fn read_sections(root: &Node, folder: &Path, sink: &ProblemSink) -> Option<Config> {
    let whole = FieldValue { node: root, path: String::new(), named_at: Position::START, sink };
    match &root.content {
        NodeContent::Map(entries) if !entries.is_empty() => {}
        NodeContent::Invalid => return None,
        NodeContent::Map(_) | NodeContent::Null => {
            let help = "write at least locations: [{ path: /, upstream: demo }]";
            whole.report_at_name(ValueError::new(codes::EMPTY, "the file is empty").with_help(help));
            return None;
        }
        NodeContent::Text(_) | NodeContent::List(_) => {
            let help = "the file is made of sections such as upstreams:, limits: and locations:";
            whole.report_at_name(ValueError::new(codes::SHAPE, "the file is not a mapping").with_help(help));
            return None;
        }
    }
    let root = whole.open_section(&root::SECTION);
    let sets = IpSetReader::read_sets(&root, folder);
    let access = access::read_access(&root, &sets);
    let mut upstreams = UpstreamReader::read_upstreams(&root, folder);
    let state = state::read_state(&root, folder);
    let mut limits = LimitReader::read_limits(&root, &sets, &state, &mut upstreams);
    let server = server::read_server(&root, &mut limits, &mut upstreams);
    let mut listen = listen::read_listen(&root, &server, folder);
    let service = service::read_service(&root, &mut listen, &server, folder, (&mut limits, &mut upstreams));
    let locations =
        locations::read_locations(&root, &mut limits, &mut upstreams, &access, (&listen, server.body_memory));
    let on_reject = reject::read_on_reject(&root, &mut upstreams);
    let limits = limits.into_limits(service.as_ref().is_some_and(|service| !service.listen.is_empty()));
    let bans = bans::read_bans(&root);
    let config = Config {
        listen,
        server,
        upstreams: upstreams.into_upstreams(),
        state: state.build_state(&limits, bans.is_some()),
        limits,
        locations,
        access,
        ip_sets: sets.collect_sets(),
        bans,
        account: account::read_account(&root, folder),
        on_reject,
        reload: operation::read_reload(&root),
        admin: operation::read_admin(&root),
        service,
        log: operation::read_log(&root),
        access_log: operation::read_access_log(&root, folder),
        tracing: operation::read_tracing(&root),
    };
    root.report_unknown();
    if !sink.has_problems() {
        lint::lint_config(&config, &whole);
    }
    Some(config)
}
