//! The state of one Redis client, and the commands beside `CL.THROTTLE`.

use std::net::IpAddr;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use super::throttle::answer_throttle;
use super::{Command, SessionEnd};
use crate::gateway::worker::Worker;
use sluicegate_http::net::resp::{ProtocolVersion, ReplyWriter};
use sluicegate_model::Secret;
use sluicegate_observe::metrics::CallResult;

/// Bytes of the name that a client gives its connection.
const NAME_MAX: usize = 256;
/// Bytes of a token that is compared at all.
const TOKEN_MAX: usize = 4_096;
const COMMANDS: i64 = 12;
const VERSION: &str = env!("CARGO_PKG_VERSION");

const NO_AUTH: &str = "NOAUTH Authentication required.";
const WRONG_TOKEN: &str = "WRONGPASS the token is not valid, or the user is not 'default'";
const SYNTAX: &str = "ERR syntax error";

static CLIENTS: AtomicI64 = AtomicI64::new(0);

pub(super) struct RespClient {
    /// Unique in this process.
    id: i64,
    peer: Option<IpAddr>,
    version: ProtocolVersion,
    name: Vec<u8>,
    access: ClientAccess,
}

/// The permission to call.
struct ClientAccess {
    /// The generation of the gateway that `is_granted` holds for; 0 = none so far.
    generation: u64,
    is_granted: bool,
    /// The token that it sent and that was valid then, as a reload may take it away.
    token: Option<Secret>,
}

// === impl RespClient ===

impl RespClient {
    pub(super) fn new(peer: Option<IpAddr>) -> RespClient {
        RespClient {
            id: CLIENTS.fetch_add(1, Relaxed) + 1,
            peer,
            version: ProtocolVersion::default(),
            name: Vec::new(),
            access: ClientAccess { generation: 0, is_granted: false, token: None },
        }
    }

    /// Checks the token again if the gateway is another one.
    pub(super) fn follow_gateway(&mut self, worker: &Worker) {
        let gateway = &worker.gateway;
        if self.access.generation != gateway.generation {
            let token = self.access.token.as_ref().map(|token| token.0.as_bytes());
            self.access.is_granted = gateway.calls.authorize_token(token).is_ok();
            self.access.generation = gateway.generation;
        }
    }

    pub(super) fn reply_to<'a>(&self, out: &'a mut Vec<u8>) -> ReplyWriter<'a> {
        ReplyWriter { out, version: self.version }
    }

    pub(super) fn answer_command(
        &mut self,
        command: &Command<'_>,
        worker: &Worker,
        replies: &mut Vec<u8>,
    ) -> Option<SessionEnd> {
        let mut reply = self.reply_to(replies);
        // Longer than every name.
        let mut upper = [0; 16];
        let name = command.name();
        let name = match upper.get_mut(..name.len()) {
            Some(upper) => {
                upper.copy_from_slice(name);
                upper.make_ascii_uppercase();
                &*upper
            }
            None => b"",
        };
        match name {
            b"AUTH" => self.answer_auth(command, worker, &mut reply),
            b"HELLO" => self.answer_hello(command, worker, replies),
            b"QUIT" => {
                reply.write_simple("OK");
                return Some(SessionEnd::Quit);
            }
            b"RESET" => {
                self.access = ClientAccess { generation: 0, is_granted: false, token: None };
                (self.version, self.name) = (ProtocolVersion::default(), Vec::new());
                self.follow_gateway(worker);
                reply.write_simple("RESET");
            }
            _ if !self.access.is_granted => {
                count(worker, CallResult::RespDenied);
                reply.write_error(NO_AUTH);
            }
            b"CL.THROTTLE" => answer_throttle(command, self.peer, worker, &mut reply),
            b"PING" => match (command.argument(0), command.argument_count()) {
                (None, _) => reply.write_simple("PONG"),
                (Some(text), 1) => reply.write_bulk(text),
                _ => wrong_count(&mut reply, "PING"),
            },
            b"ECHO" => match (command.argument(0), command.argument_count()) {
                (Some(text), 1) => reply.write_bulk(text),
                _ => wrong_count(&mut reply, "ECHO"),
            },
            b"SELECT" => match (command.argument(0), command.argument_count()) {
                (Some(b"0"), 1) => reply.write_simple("OK"),
                (Some(_), 1) => reply.write_error("ERR DB index is out of range: there is only 0"),
                _ => wrong_count(&mut reply, "SELECT"),
            },
            b"CLIENT" => self.answer_client(command, &mut reply),
            b"COMMAND" => answer_command_docs(command, &mut reply),
            b"INFO" => reply.write_bulk(
                format!("# Server\r\nsluicegate_version:{VERSION}\r\nredis_mode:standalone\r\n").as_bytes(),
            ),
            _ => {
                count(worker, CallResult::RespNoCall);
                reply.write_error_about("ERR unknown command", command.name());
            }
        }
        None
    }

    /// `AUTH TOKEN` or `AUTH default TOKEN`.
    fn answer_auth(&mut self, command: &Command<'_>, worker: &Worker, reply: &mut ReplyWriter<'_>) {
        let (user, token) = match (command.argument(0), command.argument(1), command.argument_count()) {
            (Some(token), None, 1) => (&b"default"[..], token),
            (Some(user), Some(token), 2) => (user, token),
            _ => return wrong_count(reply, "AUTH"),
        };
        if !worker.gateway.calls.needs_token() {
            return reply.write_error("ERR AUTH is not expected: the service has no token");
        }
        match self.authenticate(user, token, worker) {
            true => reply.write_simple("OK"),
            false => reply.write_error(WRONG_TOKEN),
        }
    }

    /// True if the token is valid; if not, the client keeps the access that it has.
    fn authenticate(&mut self, user: &[u8], token: &[u8], worker: &Worker) -> bool {
        // Tokens are visible ASCII, so others cannot be valid.
        let text = std::str::from_utf8(token).ok().filter(|text| text.len() <= TOKEN_MAX);
        let is_valid = worker.gateway.calls.authorize_token(Some(token)).is_ok();
        match text {
            Some(text) if is_valid && user == b"default" => {
                self.access.token = Some(Secret(text.to_owned()));
                self.access.is_granted = true;
                true
            }
            _ => {
                count(worker, CallResult::RespDenied);
                false
            }
        }
    }

    /// `HELLO [2|3 [AUTH default TOKEN] [SETNAME name]]`.
    fn answer_hello(&mut self, command: &Command<'_>, worker: &Worker, replies: &mut Vec<u8>) {
        let version = match command.argument(0) {
            None => self.version,
            Some(b"2") => ProtocolVersion::Resp2,
            Some(b"3") => ProtocolVersion::Resp3,
            Some(_) => return self.reply_to(replies).write_error("NOPROTO the versions of RESP are 2 and 3"),
        };
        let (mut index, mut name) = (1, None);
        while index < command.argument_count() {
            let (first, second) = (command.argument(index + 1), command.argument(index + 2));
            match (first, second) {
                (Some(user), Some(token)) if command.is_word(index, "AUTH") => {
                    if worker.gateway.calls.needs_token() && !self.authenticate(user, token, worker) {
                        return self.reply_to(replies).write_error(WRONG_TOKEN);
                    }
                    index += 3;
                }
                (Some(chosen), _) if command.is_word(index, "SETNAME") => {
                    if !is_client_name(chosen) {
                        return self.reply_to(replies).write_error(BAD_NAME);
                    }
                    name = Some(chosen);
                    index += 2;
                }
                _ => return self.reply_to(replies).write_error(SYNTAX),
            }
        }
        if !self.access.is_granted {
            count(worker, CallResult::RespDenied);
            return self.reply_to(replies).write_error(NO_AUTH);
        }
        self.version = version;
        if let Some(name) = name {
            self.name = name.to_vec();
        }
        self.write_hello(&mut self.reply_to(replies));
    }

    fn write_hello(&self, reply: &mut ReplyWriter<'_>) {
        reply.begin_map(7);
        for (name, text) in [("server", "sluicegate"), ("version", VERSION)] {
            reply.write_bulk(name.as_bytes());
            reply.write_bulk(text.as_bytes());
        }
        let proto = match self.version {
            ProtocolVersion::Resp2 => 2,
            ProtocolVersion::Resp3 => 3,
        };
        for (name, number) in [("proto", proto), ("id", self.id)] {
            reply.write_bulk(name.as_bytes());
            reply.write_integer(number);
        }
        for (name, text) in [("mode", "standalone"), ("role", "master")] {
            reply.write_bulk(name.as_bytes());
            reply.write_bulk(text.as_bytes());
        }
        reply.write_bulk(b"modules");
        reply.begin_array(0);
    }

    /// Answers the commands that client libraries send when they connect.
    fn answer_client(&mut self, command: &Command<'_>, reply: &mut ReplyWriter<'_>) {
        let is = |word, count| command.is_word(0, word) && command.argument_count() == count;
        match command.argument(1) {
            _ if is("ID", 1) => reply.write_integer(self.id),
            _ if is("GETNAME", 1) && self.name.is_empty() => reply.write_null(),
            _ if is("GETNAME", 1) => reply.write_bulk(&self.name),
            Some(name) if is("SETNAME", 2) => match is_client_name(name) {
                true => {
                    self.name = name.to_vec();
                    reply.write_simple("OK");
                }
                false => reply.write_error(BAD_NAME),
            },
            // The library and its version are of no use here, and no connection is evicted.
            _ if is("SETINFO", 3) || is("NO-EVICT", 2) || is("NO-TOUCH", 2) => reply.write_simple("OK"),
            _ => {
                let word = command.argument(0).unwrap_or_default();
                reply.write_error_about("ERR unknown subcommand of CLIENT, or wrong arguments of", word);
            }
        }
    }
}

const BAD_NAME: &str = "ERR the name of a connection has at most 256 visible characters and no spaces";

fn is_client_name(name: &[u8]) -> bool {
    name.len() <= NAME_MAX && name.iter().all(u8::is_ascii_graphic)
}

/// `COMMAND` and its parts: no command is described, but their number is told.
fn answer_command_docs(command: &Command<'_>, reply: &mut ReplyWriter<'_>) {
    match command.argument(0) {
        None => reply.begin_array(0),
        Some(_) if command.is_word(0, "COUNT") => reply.write_integer(COMMANDS),
        Some(_) if command.is_word(0, "DOCS") => reply.begin_map(0),
        Some(_) if command.is_word(0, "INFO") => {
            reply.begin_array(command.argument_count() - 1);
            (1..command.argument_count()).for_each(|_| reply.write_null());
        }
        Some(word) => reply.write_error_about("ERR unknown subcommand of COMMAND:", word),
    }
}

fn wrong_count(reply: &mut ReplyWriter<'_>, name: &str) {
    reply.write_error(&format!("ERR wrong number of arguments for '{name}'"));
}

fn count(worker: &Worker, result: CallResult) {
    worker.gateway.calls.counts.count_call(worker.id, result);
}
