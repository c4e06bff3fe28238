//! Compares the requests in a client's bytes with those that the gateway answered, logged and forwarded.

use std::collections::HashMap;

use serde_json::Value;

use crate::parser::{Answer, Request, Tail, read_answers, read_requests};
use crate::play::Received;
use crate::script::{Entry, Script};

/// A script with its requests and the answers that it got.
pub struct Played {
    pub script: Script,
    pub requests: Vec<Request>,
    pub answers: Vec<Answer>,
}

type Checked = Result<(), String>;

/// The answers to the requests of `script`, one to each, in order.
///
/// # Errors
/// An answer without a request, a request without an answer, or bytes that are no answers.
pub fn check_answers(script: Script, received: &Received) -> Result<Played, String> {
    let (requests, end) = read_requests(&script.bytes[..received.sent]);
    let methods: Vec<&str> = requests.iter().map(|request| &*request.method).collect();
    let (answers, tail) = read_answers(&received.bytes, &methods, true);
    if tail != Tail::BetweenMessages {
        return Err(format!("{tail:?} an answer ends the bytes"));
    }
    // Bytes that are no head get an answer, too, and the connection ends with it.
    let is_no_head = matches!(end, Tail::InHead | Tail::Malformed);
    let has_fault = answers.last().is_some_and(|answer| is_no_head && answer.status == 400 && answer.closes);
    if answers.len() > requests.len() + usize::from(has_fault) {
        return Err(format!("{} answers to {} requests", answers.len(), requests.len()));
    }
    if let Some(early) = answers.iter().position(|answer| answer.closes).filter(|at| at + 1 < answers.len()) {
        return Err(format!("answer {early} is the last, and another one follows"));
    }
    for (request, answer) in requests.iter().zip(&answers) {
        let is_echoed =
            ["/early/", "/large/", "/slow/", "/echo/"].iter().any(|at| request.target.starts_with(at));
        let is_own = answer.body.starts_with(request.target.as_bytes()) || request.method == "HEAD";
        if is_echoed && answer.status == 200 && !is_own {
            return Err(format!("{} got the answer of another request", request.target));
        }
    }
    let is_last = |at: usize| {
        let (request, answer) = (&requests[at], &answers[at]);
        // A body that the gateway did not read to its end ends the connection, also without a word.
        answer.closes || !request.keeps_alive || request.has_body || !request.is_complete
    };
    let may_end =
        received.was_closed && (answers.is_empty() || is_last(answers.len().min(requests.len()) - 1));
    let complete = requests.iter().filter(|request| request.is_complete).count();
    if answers.len() < complete && !may_end {
        return Err(format!("{} answers to {complete} complete requests", answers.len()));
    }
    Ok(Played { script, requests, answers })
}

/// The log knows the requests that were answered, and at most one more of each connection.
///
/// # Errors
/// A line without a request, or a request without its line.
pub fn check_log(played: &[Played], lines: &[Value]) -> Checked {
    let mut logged: HashMap<&str, &Value> = HashMap::new();
    for line in lines.iter().filter(|line| line.get("protocol").is_none()) {
        let path = line["path"].as_str().ok_or(format!("no path in {line}"))?;
        if logged.insert(path, line).is_some() {
            return Err(format!("{path} was logged twice"));
        }
    }
    let is_logged = |one: &&Played| !matches!(one.script.entry, Entry::Calls | Entry::Admin);
    for one in played.iter().filter(is_logged) {
        for (at, request) in one.requests.iter().enumerate() {
            let Some(line) = logged.remove(&*request.target) else {
                if at < one.answers.len() {
                    let script = one.script.describe();
                    return Err(format!("{request:?} is not in the log\n{script}"));
                }
                break;
            };
            let status = one.answers.get(at).map(|answer| answer.status);
            if line["method"] != *request.method || status.is_some_and(|status| line["status"] != status) {
                let script = one.script.describe();
                return Err(format!("{status:?} to {request:?} is logged as {line}\n{script}"));
            }
        }
    }
    match logged.into_values().next() {
        Some(line) => Err(format!("the log has a request that nobody sent: {line}")),
        None => Ok(()),
    }
}

/// The upstream knows requests of clients alone, each once, with their bodies.
///
/// # Errors
/// A request that no client sent, one that came twice, or one with another body.
pub fn check_upstream(played: &[Played], connections: &[Vec<u8>]) -> Checked {
    let mut sent: HashMap<&str, &Request> = HashMap::new();
    for request in played.iter().flat_map(|one| &one.requests) {
        sent.insert(&request.target, request);
    }
    for bytes in connections {
        let (seen, tail) = read_requests(bytes);
        if tail == Tail::Malformed {
            return Err(format!("the upstream read no requests: {}", bytes.escape_ascii()));
        }
        for seen in seen {
            let Some(request) = sent.remove(&*seen.target) else {
                return Err(format!("the upstream got {} twice, or nobody sent it", seen.target));
            };
            let is_body = match seen.is_complete {
                true => request.is_complete && request.body == seen.body,
                false => request.body.starts_with(&seen.body),
            };
            if request.method != seen.method || !is_body {
                return Err(format!("{request:?} came to the upstream as {seen:?}"));
            }
        }
    }
    Ok(())
}
