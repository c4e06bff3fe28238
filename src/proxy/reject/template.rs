//! Texts compiled into fixed pieces and slots, so that rendering one is a few copies into one allocation.

use std::io::Write;

use http::HeaderValue;

use super::RejectContext;
use crate::base::escape;
use crate::config::{Piece, Template, Var};

/// A text ready to be rendered.
#[derive(Debug, Clone, Default)]
pub struct Script {
    parts: Box<[Part]>,
    escape: Escape,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Text(String),
    Slot(Slot),
}

/// What differs from one answer to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    RetryAfter,
    RetryAfterMs,
    RequestId,
    ClientIp,
    Account,
    Tier,
    Host,
    Uri,
    RequestUri,
    Location,
}

/// How values are made safe for the type they are written into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Escape {
    Json,
    Html,
    #[default]
    Plain,
}

/// When to come back: whole seconds for people, exact milliseconds for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Retry {
    pub seconds: Option<u64>,
    pub ms: Option<u64>,
}

/// The words that are known before any request comes.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    pub status: u16,
    pub title: String,
    pub message: Vec<Part>,
    pub limit: String,
    pub rate: String,
}

// === impl Script ===

impl Script {
    /// A template of `respond` or `redirect`, where no limit is concerned.
    pub fn plain(template: &Template, content_type: Option<&HeaderValue>) -> Script {
        let escape = content_type.map_or(Escape::Plain, Escape::of);
        Script::compile(template, escape, &Known::default())
    }

    pub(super) fn compile(template: &Template, escape: Escape, known: &Known) -> Script {
        let mut writer = ScriptWriter::new(escape);
        for piece in &template.0 {
            match piece {
                Piece::Text(text) => writer.verbatim(text),
                Piece::Var(var) => writer.variable(*var, known),
            }
        }
        writer.finish()
    }

    /// Renders the text; `context` fills the slots that a request decides.
    pub fn render(&self, context: &RejectContext<'_>) -> Vec<u8> {
        self.render_with(context, Retry::default())
    }

    pub(super) fn tells_target(&self) -> bool {
        let of_target = |slot: &Slot| matches!(slot, Slot::Host | Slot::Uri | Slot::RequestUri);
        self.parts.iter().any(|part| matches!(part, Part::Slot(slot) if of_target(slot)))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub(super) fn render_with(&self, context: &RejectContext<'_>, retry: Retry) -> Vec<u8> {
        let (mut seconds, mut ms) = (itoa::Buffer::new(), itoa::Buffer::new());
        // Templates write numbers without quotes, and nothing at all would not be JSON.
        let unknown = if self.escape == Escape::Json { "0" } else { "" };
        let seconds = retry.seconds.map_or(unknown, |n| seconds.format(n));
        let ms = retry.ms.map_or(unknown, |n| ms.format(n));
        let text = |slot: Slot| match slot {
            Slot::RetryAfter => seconds,
            Slot::RetryAfterMs => ms,
            Slot::RequestId => context.request_id,
            Slot::ClientIp => "",
            Slot::Account => context.account,
            Slot::Tier => context.tier,
            Slot::Host => context.host,
            Slot::Uri => context.uri,
            Slot::RequestUri => context.request_uri,
            Slot::Location => context.location,
        };
        // Exact unless something is escaped: a body of the right size needs no second allocation.
        let length = self.parts.iter().map(|part| match part {
            Part::Text(text) => text.len(),
            Part::Slot(slot) => text(*slot).len(),
        });
        let mut out = Vec::with_capacity(length.sum());
        for part in &self.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text.as_bytes()),
                Part::Slot(Slot::ClientIp) => {
                    if let Some(ip) = context.client_ip {
                        // Writing into a Vec cannot fail.
                        let _ = write!(out, "{ip}");
                    }
                }
                // Ids are letters, digits and marks that no type needs to escape, as are numbers.
                Part::Slot(slot @ (Slot::RequestId | Slot::RetryAfter | Slot::RetryAfterMs)) => {
                    out.extend_from_slice(text(*slot).as_bytes());
                }
                Part::Slot(slot) => self.escape.write(&mut out, text(*slot).as_bytes()),
            }
        }
        out
    }
}

// === impl Escape ===

impl Escape {
    /// The escape that a content type asks for.
    pub(super) fn of(content_type: &HeaderValue) -> Escape {
        let text = String::from_utf8_lossy(content_type.as_bytes()).to_ascii_lowercase();
        let essence = text.split(';').next().unwrap_or_default().trim();
        if essence.ends_with("/json") || essence.ends_with("+json") {
            Escape::Json
        } else if essence == "text/html" || essence.ends_with("/xml") || essence.ends_with("+xml") {
            Escape::Html
        } else {
            Escape::Plain
        }
    }

    #[inline]
    fn write(self, out: &mut Vec<u8>, text: &[u8]) {
        match self {
            Escape::Json => escape::json(out, text),
            Escape::Html => escape::html(out, text),
            Escape::Plain => out.extend_from_slice(text),
        }
    }
}

// === ScriptWriter ===

/// Builds a [`Script`], melting neighbouring texts together.
pub(super) struct ScriptWriter {
    parts: Vec<Part>,
    escape: Escape,
}

impl ScriptWriter {
    pub(super) fn new(escape: Escape) -> ScriptWriter {
        ScriptWriter { parts: Vec::new(), escape }
    }

    /// Text that is written as it is.
    pub(super) fn verbatim(&mut self, text: &str) {
        match self.parts.last_mut() {
            Some(Part::Text(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.parts.push(Part::Text(text.to_owned())),
        }
    }

    /// Text that is escaped for the type written into.
    pub(super) fn escaped(&mut self, text: &str) {
        let mut out = Vec::with_capacity(text.len());
        self.escape.write(&mut out, text.as_bytes());
        self.verbatim(&String::from_utf8_lossy(&out));
    }

    pub(super) fn slot(&mut self, slot: Slot) {
        self.parts.push(Part::Slot(slot));
    }

    pub(super) fn parts(&mut self, parts: &[Part]) {
        for part in parts {
            match part {
                Part::Text(text) => self.escaped(text),
                Part::Slot(slot) => self.slot(*slot),
            }
        }
    }

    fn variable(&mut self, var: Var, known: &Known) {
        match var {
            Var::Status if known.status > 0 => self.verbatim(&known.status.to_string()),
            Var::Status => {}
            Var::Title => self.escaped(&known.title),
            Var::Message => self.parts(&known.message),
            Var::Limit => self.escaped(&known.limit),
            Var::Rate => self.escaped(&known.rate),
            Var::Tier => self.slot(Slot::Tier),
            Var::RetryAfter => self.slot(Slot::RetryAfter),
            Var::RetryAfterMs => self.slot(Slot::RetryAfterMs),
            Var::RequestId => self.slot(Slot::RequestId),
            Var::ClientIp => self.slot(Slot::ClientIp),
            Var::Account => self.slot(Slot::Account),
            Var::Host => self.slot(Slot::Host),
            Var::Uri => self.slot(Slot::Uri),
            Var::RequestUri => self.slot(Slot::RequestUri),
            Var::Location => self.slot(Slot::Location),
        }
    }

    pub(super) fn finish(self) -> Script {
        Script { parts: self.parts.into_boxed_slice(), escape: self.escape }
    }
}
