//! The file as a whole: its top-level fields, in the order that references need.

use std::path::Path;

use super::codes;
use super::fields::Value;
use super::limits::Limits;
use super::model::Config;
use super::problem::{Complaint, Findings, Place};
use super::tree::{Content, Node};
use super::upstreams::Upstreams;
use super::{account, listen, locations, operation, reject, server};

/// Reads the whole tree; the result counts only if nothing was found. Paths start at `folder`.
pub(super) fn read(root: &Node, found: &Findings, folder: &Path) -> Option<Config> {
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
    let listen = listen::read(&mut root);
    let mut limits = Limits::read(&mut root);
    let mut upstreams = Upstreams::read(&mut root);
    let server = server::read(&mut root, &mut limits);
    let locations = locations::read(&mut root, &mut limits, &mut upstreams);
    let config = Config {
        listen,
        server,
        upstreams: upstreams.finish(),
        limits: limits.finish(),
        locations,
        account: account::read(&mut root, folder),
        on_reject: reject::read(&mut root),
        state: operation::read_state(&mut root),
        admin: operation::read_admin(&mut root),
        log: operation::read_log(&mut root),
        access_log: operation::read_access_log(&mut root),
    };
    root.later("ip_sets", &[]);
    root.later("access", &["any"]);
    root.later("bans", &[]);
    root.later("reload", &[]);
    root.close();
    Some(config)
}
