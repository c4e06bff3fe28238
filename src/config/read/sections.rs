//! The file as a whole: its top-level fields, in the order that references need.

use std::path::Path;

use super::access::{self, IpSets};
use super::limits::Limits;
use super::upstreams::Upstreams;
use super::{account, bans, listen, locations, operation, reject, server, state};
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::{Complaint, Findings, Place};
use crate::config::lint;
use crate::config::model::Config;
use crate::config::yaml::fields::Value;
use crate::config::yaml::tree::{Content, Node};

/// Reads the whole tree; the result counts only if nothing was found. Relative paths start at `folder`.
pub(crate) fn read(root: &Node, folder: &Path, found: &Findings) -> Option<Config> {
    let whole = Value { node: root, path: String::new(), named_at: Place::START, found };
    match &root.content {
        Content::Map(entries) if !entries.is_empty() => {}
        Content::Broken => return None,
        Content::Map(_) | Content::Null => {
            let help = "write at least locations: [{ path: /, upstream: demo }]";
            whole.complain_at_name(Complaint::new(codes::EMPTY, "the file is empty").help(help));
            return None;
        }
        Content::Text(_) | Content::List(_) => {
            let help = "the file is made of sections such as upstreams:, limits: and locations:";
            whole.complain_at_name(Complaint::new(codes::SHAPE, "the file is not a mapping").help(help));
            return None;
        }
    }
    let mut root = whole.fields();
    let sets = IpSets::read(&mut root, folder);
    let access = access::read(&mut root, &sets);
    let mut upstreams = Upstreams::read(&mut root, folder);
    let state = state::read(&mut root);
    let mut limits = Limits::read(&mut root, &sets, &state, &mut upstreams);
    let server = server::read(&mut root, &mut limits, &mut upstreams);
    let listen = listen::read(&mut root, &server, folder);
    let locations = locations::read(&mut root, &mut limits, &mut upstreams, &access);
    let on_reject = reject::read(&mut root, &mut upstreams);
    let limits = limits.finish();
    let bans = bans::read(&mut root);
    let config = Config {
        listen,
        server,
        upstreams: upstreams.finish(),
        state: state.finish(&limits, bans.is_some()),
        limits,
        locations,
        access,
        ip_sets: sets.finish(),
        bans,
        account: account::read(&mut root, folder),
        on_reject,
        reload: operation::read_reload(&mut root),
        admin: operation::read_admin(&mut root),
        log: operation::read_log(&mut root),
        access_log: operation::read_access_log(&mut root),
    };
    root.close();
    if !found.has_problems() {
        lint::warn(&config, &whole);
    }
    Some(config)
}
