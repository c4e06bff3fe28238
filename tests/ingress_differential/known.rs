//! Differences that are no faults of the import, each with its reason.

use crate::case::{Case, Side};
use crate::requests::{Answer, Request};

pub struct Known {
    pub side: Side,
    pub reason: &'static str,
    /// `ours` is the answer of the gateway, `theirs` that of the other program.
    pub explains: fn(&Case, &Request, ours: &Answer, theirs: &Answer) -> bool,
}

pub const KNOWN: &[Known] = &[
    Known {
        side: Side::Nginx,
        reason: "*.w.test stands for all names below w.test here, and for those of one label more there",
        explains: |case, request, _, _| is_deep(case, request),
    },
    Known {
        side: Side::Nginx,
        reason: "a redirect to the path with its slash drops the query",
        explains: |_, request, ours, theirs| {
            (ours.status, theirs.status) == (301, 301) && request.target.contains('?')
        },
    },
    Known {
        side: Side::Nginx,
        reason: "a large body gets 413 even where the answer would be a redirect or the 404 of the default backend",
        explains: |_, _, ours, theirs| matches!((ours.status, theirs.status), (301 | 404, 413)),
    },
];

/// True if the host of a request is more than one label below that of a rule.
fn is_deep(case: &Case, request: &Request) -> bool {
    request.host == "u.v.w.test" && case.objects.iter().any(|object| object.host == "*.w.test")
}
