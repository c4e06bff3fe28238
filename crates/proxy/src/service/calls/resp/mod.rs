//! Redis clients: `CL.THROTTLE` and the commands that client libraries send beside it.
//!
//! Every command is answered at once, in the order of its arrival, and none waits. The numbers of a limit come with
//! each call; [`sluicegate_limit::throttle`] judges them. `client` holds the state of one connection and answers its
//! commands, `throttle` the one command that counts.

mod client;
mod throttle;

use std::net::IpAddr;

use crate::gateway::worker::Worker;
use client::RespClient;
use sluicegate_http::net::resp::{CommandReader, ProtocolFault, RequestStep};
use sluicegate_observe::metrics::CallResult;

/// Bytes of replies from which no further command is answered until the client has read them.
const REPLIES_MAX: usize = 64 * 1024;

/// The commands of one connection.
pub struct RespSession {
    reader: CommandReader,
    client: RespClient,
}

/// One command: its name and its arguments.
struct Command<'a> {
    reader: &'a CommandReader,
    input: &'a [u8],
}

/// The outcome of some input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnsweredInput {
    /// Bytes of the commands that were answered.
    pub consumed: usize,
    /// The replies reached their bound, so the rest may hold further commands.
    pub is_paused: bool,
    /// The reason to close the connection; `None` = it stays open.
    pub ends: Option<SessionEnd>,
}

/// Why the connection has to close once its replies are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEnd {
    /// The client asked for it.
    Quit,
    /// The rest of the input cannot be read.
    Fault,
}

// === impl RespSession ===

impl RespSession {
    /// `peer`: the client as far as the connection names it; `None` on a unix socket.
    pub fn new(peer: Option<IpAddr>) -> RespSession {
        RespSession { reader: CommandReader::default(), client: RespClient::new(peer) }
    }

    /// Answers the commands at the front of `input` in order.
    pub fn answer_commands(&mut self, worker: &Worker, input: &[u8], replies: &mut Vec<u8>) -> AnsweredInput {
        let mut answered = AnsweredInput { consumed: 0, is_paused: false, ends: None };
        self.client.follow_gateway(worker);
        while answered.ends.is_none() {
            if replies.len() >= REPLIES_MAX {
                answered.is_paused = true;
                break;
            }
            let input = &input[answered.consumed..];
            answered.consumed += match self.reader.read_command(input) {
                Ok(RequestStep::Partial) => break,
                Ok(RequestStep::Skip(length)) => length,
                Ok(RequestStep::Command(length)) => {
                    let command = Command { reader: &self.reader, input };
                    answered.ends = self.client.answer_command(&command, worker, replies);
                    length
                }
                Err(ProtocolFault(why)) => {
                    worker.gateway.calls.counts.count_call(worker.id, CallResult::RespNoCall);
                    self.client.reply_to(replies).write_error(&format!("ERR Protocol error: {why}"));
                    answered.ends = Some(SessionEnd::Fault);
                    0
                }
            };
        }
        answered
    }

    /// Frees the memory that only a client with commands in flight needs.
    pub fn release_memory(&mut self) {
        self.reader = CommandReader::default();
    }
}

// === impl Command ===

impl<'a> Command<'a> {
    /// The name of the command; never absent.
    fn name(&self) -> &'a [u8] {
        self.reader.argument(self.input, 0).unwrap_or_default()
    }

    /// The number of arguments behind the name.
    fn argument_count(&self) -> usize {
        self.reader.count().saturating_sub(1)
    }

    /// An argument behind the name, from 0.
    fn argument(&self, index: usize) -> Option<&'a [u8]> {
        self.reader.argument(self.input, index + 1)
    }

    /// True if the argument is this word, in any case.
    fn is_word(&self, index: usize, word: &str) -> bool {
        self.argument(index).is_some_and(|text| text.eq_ignore_ascii_case(word.as_bytes()))
    }
}
