//! The changes that `top` makes, each after a confirmation.

use serde_json::Value;

use super::tables::{BANS, KEYS, SERVERS};
use crate::cli::admin_client::{AdminFault, OperatorRequest, escape_controls};
use crate::cli::operator_args::{ChangeArgs, KeyArgs, OperatorVerb};
use crate::cli::operator_verbs::{encode_segment, send_verb};
use sluicegate_model::AdminConfig;

/// The keys of the actions in each table.
pub(super) const ACTION_HELP: [&str; 4] =
    ["enter goes to the keys", "b bans, u unbans, r resets", "d drains or ends it", "u unbans"];

/// A change that a row offers.
pub(super) enum TopAction {
    Operate(OperatorVerb),
    Drain { upstream: String, server: String, starts: bool },
}

impl TopAction {
    /// The action of a letter for a row of a table; `limit` is that of the keys.
    pub(super) fn choose(letter: char, table: usize, row: &Value, limit: Option<&str>) -> Option<TopAction> {
        let text = |name: &str| row[name].as_str().map(str::to_owned);
        let (length, change) = (None, ChangeArgs { reason: None, json: false });
        Some(match (table, letter) {
            (KEYS, 'b') => TopAction::Operate(OperatorVerb::Ban { whom: text("ban")?, length, change }),
            (KEYS, 'u') => TopAction::Operate(OperatorVerb::Unban { whom: text("ban")?, change }),
            (BANS, 'u') => TopAction::Operate(OperatorVerb::Unban { whom: text("banned")?, change }),
            (KEYS, 'r') => {
                let key = KeyArgs { limit: limit?.to_owned(), key: text("key")?, json: false };
                TopAction::Operate(OperatorVerb::Reset { key, tier: None, reason: None })
            }
            (SERVERS, 'd') => TopAction::Drain {
                upstream: text("of")?,
                server: text("server")?,
                starts: row["state"] != "draining",
            },
            _ => return None,
        })
    }

    pub(super) fn question(&self) -> String {
        let asked = match self {
            TopAction::Operate(OperatorVerb::Ban { whom, .. }) => format!("ban {whom} for 10 minutes"),
            TopAction::Operate(OperatorVerb::Unban { whom, .. }) => format!("end the ban of {whom}"),
            TopAction::Operate(OperatorVerb::Reset { key, .. }) => {
                format!("forget what {} of {} has used", key.key, key.limit)
            }
            TopAction::Operate(_) => String::new(),
            TopAction::Drain { upstream, server, starts: true } => format!("drain {server} of {upstream}"),
            TopAction::Drain { upstream, server, .. } => format!("end the drain of {server} of {upstream}"),
        };
        escape_controls(&asked) + "? y: yes, any other key: no"
    }

    /// Makes the change, and tells its outcome.
    pub(super) fn run(&self, admin: &AdminConfig) -> Result<String, AdminFault> {
        match self {
            TopAction::Operate(verb) => send_verb(admin, verb),
            TopAction::Drain { upstream, server, starts } => {
                let (verb, outcome) = match starts {
                    true => ("drain", "gets no new requests"),
                    false => ("undrain", "gets requests again"),
                };
                let (in_upstream, at) = (encode_segment(upstream), encode_segment(server));
                let path = format!("/upstreams/{in_upstream}/servers/{at}/{verb}");
                OperatorRequest::with_body("POST", path, String::new())
                    .send_for_text(admin, "application/json")?;
                Ok(escape_controls(&format!("{server} of {upstream} {outcome}")))
            }
        }
    }
}
