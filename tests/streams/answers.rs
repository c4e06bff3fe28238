//! What a client reads, stream by stream, and what it must be.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::Text;
use crate::model::{Fate, Sent};
use crate::support::h2_raw::*;
use crate::support::{End, PATIENCE};

/// The answer on one stream.
#[derive(Debug, Default, Clone)]
pub struct Answer {
    pub status: u16,
    pub body: Text,
    pub has_ended: bool,
    /// The code of a reset by the gateway.
    pub reset: Option<u32>,
}

/// The answers of a connection so far.
#[derive(Debug, Default)]
pub struct Answers {
    pub streams: BTreeMap<u32, Answer>,
    pub has_pong: bool,
}

const LAST_PING: &[u8] = b"the last";

impl Answers {
    /// Reads until each request that may expect an answer has one, and everything before it has come.
    pub fn read_all(h2: &mut H2, sent: &BTreeMap<u32, Sent>) -> Result<Answers, String> {
        let deadline = Instant::now() + 2 * PATIENCE;
        let mut answers = Answers::default();
        let is_over = |answers: &Answers, one: &Sent| {
            let answer = answers.streams.get(&one.number);
            let is_over = answer.is_some_and(|answer| answer.has_ended || answer.reset.is_some());
            is_over || !one.awaits_answer() && one.fate != Fate::Malformed
        };
        while !sent.values().all(|one| is_over(&answers, one)) {
            answers.read_frame(h2, deadline).map_err(|fault| {
                let missing =
                    sent.values().filter(|one| !is_over(&answers, one)).map(|one| (one.number, &one.path));
                format!("{fault}; without an answer: {:?}", missing.collect::<Vec<_>>())
            })?;
        }
        h2.try_write(&frame(PING, 0, 0, LAST_PING)).map_err(|error| error.to_string())?;
        while !answers.has_pong {
            answers.read_frame(h2, deadline)?;
        }
        Ok(answers)
    }

    /// Reads until the gateway closes.
    pub fn read_rest(h2: &mut H2) -> Result<Answers, String> {
        let deadline = Instant::now() + PATIENCE;
        let mut answers = Answers::default();
        loop {
            match answers.read_frame(h2, deadline) {
                Err(fault) if fault == closed(End::Closed) || fault == closed(End::Reset) => {
                    return Ok(answers);
                }
                read => read?,
            }
        }
    }

    fn read_frame(&mut self, h2: &mut H2, deadline: Instant) -> Result<(), String> {
        let frame = h2.read(deadline).map_err(closed)?;
        let fault = |what: &str| Err(format!("{what} on stream {}: {frame:?}", frame.stream));
        match frame.kind {
            PING if frame.flags & ACK != 0 => self.has_pong |= frame.payload == LAST_PING,
            GOAWAY if code(&frame.payload[4..]) != NO_ERROR => {
                return Err(format!("GOAWAY {}: {:?}", code(&frame.payload[4..]), self.streams));
            }
            PUSH_PROMISE | CONTINUATION => return fault("a frame without a reason"),
            HEADERS | DATA | RST_STREAM => {
                let answer = self.streams.entry(frame.stream).or_default();
                // A second after it reset a stream, the gateway has forgotten that more may come.
                let is_late = frame.kind == RST_STREAM && code(&frame.payload) == STREAM_CLOSED;
                if is_late && answer.reset.is_some() {
                    return Ok(());
                }
                if answer.reset.is_some() || answer.has_ended && frame.kind != RST_STREAM {
                    return fault("a frame after the end");
                }
                match frame.kind {
                    RST_STREAM => answer.reset = Some(code(&frame.payload)),
                    HEADERS if answer.status < 200 => answer.status = status_of(&frame.payload),
                    DATA if answer.status >= 200 => answer.body.0.extend_from_slice(&frame.payload),
                    _ => return fault("a second head, or no first one"),
                }
                answer.has_ended |= frame.kind != RST_STREAM && frame.flags & END_STREAM != 0;
            }
            _ => {}
        }
        Ok(())
    }

    /// Compares the answers with the requests. `is_done`: the client stayed until the end.
    pub fn check(&self, sent: &BTreeMap<u32, Sent>, is_done: bool) -> Result<(), String> {
        if let Some(unknown) = self.streams.keys().find(|number| !sent.contains_key(number)) {
            return Err(format!("stream {unknown} was never opened"));
        }
        for (number, answer) in &self.streams {
            check_answer(&sent[number], answer)
                .map_err(|fault| format!("{fault}: {:?}, {answer:?}", sent[number]))?;
        }
        let unanswered = |one: &&Sent| {
            let answer = self.streams.get(&one.number);
            one.awaits_answer() && !answer.is_some_and(|answer| answer.has_ended && answer.status >= 200)
        };
        match sent.values().find(unanswered).filter(|_| is_done) {
            Some(unanswered) => {
                Err(format!("no answer: {unanswered:?}, but {:?}", self.streams.get(&unanswered.number)))
            }
            None => Ok(()),
        }
    }
}

fn closed(end: End) -> String {
    format!("the connection ended: {end:?}")
}

fn check_answer(sent: &Sent, answer: &Answer) -> Result<(), &'static str> {
    // After a whole answer the rest of the body is not wanted, and may cross the reset (RFC 9113, section 8.1).
    let is_rest_unwanted = answer.has_ended && answer.reset == Some(NO_ERROR);
    let may_be_reset = matches!(sent.fate, Fate::Reset | Fate::Malformed) || is_rest_unwanted;
    if answer.reset.is_some() && !may_be_reset {
        return Err("a reset for no reason");
    }
    if !answer.has_ended {
        return Ok(());
    }
    let is_whole = sent.fate == Fate::Complete;
    let (statuses, body): (&[u16], _) = match (sent.place(), sent.method.as_str()) {
        ("read" | "early", _) if is_whole => (&[200], Some("at")),
        ("read" | "early", _) => (&[200, 400, 408, 502], Some("at")),
        ("peek", _) if is_whole => (&[200], Some("at")),
        ("peek", _) => (&[200, 400, 408], Some("at")),
        ("respond", _) | ("put", "PUT") => (&[200], Some("at")),
        ("degraded", _) => (&[200], Some("sold out")),
        ("redirect", _) => (&[308], None),
        ("limited", _) => (&[429], None),
        ("put", _) => (&[405], None),
        ("none", _) => (&[404], None),
        ("check", _) => (&[200, 400, 405, 415], None),
        ("auth", _) => (&[400], None),
        _ => return Err("an unknown place"),
    };
    if !statuses.contains(&answer.status) {
        return Err("a wrong status");
    }
    let has_body = !answer.body.0.is_empty();
    if has_body && (sent.method == "HEAD" || sent.place() == "redirect") {
        return Err("a body that must not be");
    }
    let expected = body.filter(|_| answer.status == 200 && sent.method != "HEAD");
    let expected = expected.map(|word| format!("{word} {}", sent.path));
    if expected.is_some_and(|expected| expected.as_bytes() != answer.body.0) {
        return Err("the body of another answer");
    }
    Ok(())
}
