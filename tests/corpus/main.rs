//! Hostile HTTP/1: every case of the tables through the real program, nginx and HAProxy.
//!
//! A table holds one case after the other:
//!
//! - `== refused`, `== passed` or `== either` is the demand of the corpus on the cases below;
//! - `@ NAME` begins a case;
//! - `> BYTES` is the client's data: `|` is CRLF; `\r`, `\n`, `\t`, `\0`, `\xHH`, `\\` and `\|` are escapes;
//!   `\{N*TEXT}` is TEXT N times; `$get`, `$post` and `$chunked` at the beginning are common heads;
//! - `< WORDS` is the expected outcome: `refused [STATUS]`, `waits`, `passed METHOD TARGET` (once for each request that
//!   the upstream sees, in order) with `body TEXT`, `header NAME: VALUE` and `absent NAME` about it, `closes`,
//!   `answers NAME`;
//! - `~ REASON` explains a departure from the demand of the corpus;
//! - `! REASON` explains why the upstream sees more requests than nginx or HAProxy would send it.
//!
//! One more request follows on a connection that a case leaves open. It must arrive unchanged, so that no bytes of the
//! case are left over.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

use sluicegate_testkit as support;

mod recorder;
mod rivals;
mod table;

use std::sync::Mutex;

use recorder::{Recorder, Request, Seen};
use support::*;
use table::{Case, Demand, Step, Wanted};

const GUNICORN: &str = include_str!("gunicorn.txt");
const LLHTTP: &str = include_str!("llhttp.txt");
const PROBE: &str = include_str!("probe.txt");

/// Gateways side by side, so that the waits of one do not delay the others.
const LANES: usize = 4;

/// Sent after every case; no case contains it.
const LAST: &str = "GET /and-this-is-the-last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

/// Runs every case; returns the failures in the order of the table.
fn run(cases: &[Case]) -> Vec<String> {
    let queue = Mutex::new(cases.iter().enumerate());
    let wrong = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                let upstream = Recorder::new();
                let gateway = gateway_before(&upstream);
                loop {
                    let Some((index, case)) = queue.lock().unwrap().next() else { break };
                    if let Err(what) = run_case(&gateway, &upstream, case) {
                        wrong.lock().unwrap().push((index, format!("{}: {what}", case.name)));
                    }
                }
                std::thread::sleep(ms(50));
                let late = upstream.take();
                if !late.is_empty() {
                    wrong.lock().unwrap().push((usize::MAX, format!("the upstream saw later {late:?}")));
                }
            });
        }
    });
    let mut wrong = wrong.into_inner().unwrap();
    wrong.sort();
    wrong.into_iter().map(|(_, what)| what).collect()
}

pub fn gateway_before(upstream: &Recorder) -> Gateway {
    Gateway::start(&format!(
        "access_log: {{ output: none }}\nlocations:\n  - {{ path: /, upstream: \"http://{}\" }}\n",
        upstream.addr()
    ))
}

/// One case on a connection of its own.
fn run_case(gateway: &Gateway, upstream: &Recorder, case: &Case) -> Result<(), String> {
    let mut client = gateway.client();
    // A rejection may come, and the connection may close, while the test is still writing.
    let _ = client.try_send(&case.bytes);
    let open = if case.waits { wait(&mut client)? } else { answers(&mut client, case)? };
    let mut rest = 0;
    if open && !case.waits {
        let _ = client.try_send(LAST);
        rest = usize::from(client.response_within(PATIENCE).is_ok_and(|last| last.status == 200));
    }
    drop(client);
    let mut seen = Vec::new();
    for one in upstream.take() {
        match one {
            Seen::Whole(request) => seen.push(request),
            Seen::Ambiguous(what) => return Err(format!("the upstream saw {what}")),
        }
    }
    if rest > 0 && seen.pop().is_none_or(|last| last.target != b"/and-this-is-the-last") {
        return Err("the request behind it did not arrive unchanged".to_owned());
    }
    compare_requests(&case.passed().collect::<Vec<_>>(), &seen)
}

fn wait(client: &mut Client) -> Result<bool, String> {
    match client.response_within(ms(150)) {
        Ok(response) => Err(format!("answered {}", response.status)),
        Err(End::Deadline) => Ok(true),
        Err(end) => Err(format!("ended: {end:?}")),
    }
}

/// Reads the responses that the case expects; returns whether the connection is still open.
fn answers(client: &mut Client, case: &Case) -> Result<bool, String> {
    for (index, step) in case.steps.iter().enumerate() {
        let to_head = matches!(step, Step::Passed(wanted) if wanted.method == "HEAD");
        let got = if to_head { Ok(client.head_response()) } else { client.response_within(PATIENCE) };
        match (step, got) {
            (_, Err(End::Deadline)) => return Err(format!("neither answer {index} nor a close")),
            (Step::Refused(None), Err(_)) => return Ok(false),
            (Step::Refused(wanted), Ok(got)) => {
                let rejection = matches!(got.status, 400..=417 | 431 | 501 | 505);
                if !rejection || wanted.is_some_and(|wanted| wanted != got.status) {
                    return Err(format!("refused with {}", got.status));
                }
            }
            (Step::Passed(_), Ok(got)) if got.status == 200 && (got.cut.is_none() || to_head) => {
                if index == 0 && case.answers.as_ref().is_some_and(|name| !got.headers.has(name)) {
                    return Err(format!("the answer lacks {:?}", case.answers));
                }
            }
            (_, got) => return Err(format!("answer {index} is {:?}", got.map(|got| got.status))),
        }
    }
    if case.closes {
        let (bytes, end) = client.rest(PATIENCE);
        let over = bytes.is_empty() && end != End::Deadline;
        return if over { Ok(false) } else { Err("the connection does not close".to_owned()) };
    }
    Ok(true)
}

fn compare_requests(wanted: &[&Wanted], seen: &[Request]) -> Result<(), String> {
    let lines: Vec<String> =
        seen.iter().map(|r| format!("{} {}", r.method, r.target.escape_ascii())).collect();
    if wanted.len() != seen.len() {
        return Err(format!("the upstream saw {lines:?}"));
    }
    for (wanted, seen) in wanted.iter().zip(seen) {
        let has = |(name, value): &(String, Vec<u8>)| seen.all(name).contains(&&value[..]);
        let right = wanted.method == seen.method
            && wanted.target == seen.target
            && wanted.body.as_ref().is_none_or(|body| *body == seen.body)
            && wanted.headers.iter().all(has)
            && wanted.absent.iter().all(|name| seen.all(name).is_empty());
        if !right {
            return Err(format!("the upstream saw {lines:?} with {seen:?}"));
        }
    }
    Ok(())
}

#[track_caller]
fn assert_all(cases: &[Case]) {
    let wrong = run(cases);
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// The cases of this demand, and the number that meet it.
fn count_met(cases: &[Case], demand: Demand) -> (usize, usize) {
    let these = || cases.iter().filter(|case| case.demand == demand);
    (these().count(), these().filter(|case| case.meets_the_demand()).count())
}

/// A case gives a reason exactly when it departs from its corpus.
#[test]
fn every_departure_from_a_corpus_has_its_reason() {
    for table in [GUNICORN, LLHTTP, PROBE] {
        for case in table::read(table) {
            assert_eq!(case.waits, case.steps.is_empty(), "{} wants nothing, or two things", case.name);
            assert_eq!(case.reason.is_none(), case.meets_the_demand(), "{}", case.name);
        }
    }
}

/// None of gunicorn's invalid requests becomes two, and at least 64 are rejected.
#[test]
fn gunicorns_requests() {
    let cases = table::read(GUNICORN);
    let (invalid, refused) = count_met(&cases, Demand::Refused);
    let (valid, passed) = count_met(&cases, Demand::Passed);
    assert!(invalid >= 74 && refused >= 64, "{refused} of {invalid}");
    assert!(valid >= 63 && valid - passed <= 19, "{passed} of {valid}");
    assert_all(&cases);
}

/// A request that a strict llhttp rejects is rejected, and one that it reads arrives as it reads it.
#[test]
fn llhttps_requests() {
    let cases = table::read(LLHTTP);
    assert!(cases.len() >= 110, "{}", cases.len());
    assert_all(&cases);
}

/// At most 6 cases of the catalogue are not met.
#[test]
fn the_catalogue_of_http11probe() {
    let cases = table::read(PROBE);
    let met = cases.iter().filter(|case| case.meets_the_demand()).count();
    assert!(cases.len() >= 161 && cases.len() - met <= 6, "{met} of {}", cases.len());
    assert_all(&cases);
}

/// No case makes more requests than the stricter of nginx and HAProxy lets through, or its table says why.
///
/// The gateway's own count is the table's: the tests above verify it.
#[test]
fn no_case_makes_more_requests_than_through_nginx_and_haproxy() {
    let cases: Vec<Case> = [GUNICORN, LLHTTP, PROBE].into_iter().flat_map(table::read).collect();
    let more = |case: &Case, rivals: &[usize; 2]| case.passed().count() > rivals[0].min(rivals[1]);
    let mut unexplained: Vec<&Case> = cases.iter().filter(|case| case.more.is_none()).collect();
    let mut counts = Vec::new();
    // On a busy machine a proxy may need longer; one that responded in time is not sent the case again.
    for quiet in [ms(200), ms(1500)] {
        counts = rivals::counts(&unexplained, quiet);
        let kept = unexplained.into_iter().zip(counts).filter(|(case, rivals)| more(case, rivals));
        (unexplained, counts) = kept.unzip();
    }
    let departures = unexplained
        .iter()
        .zip(&counts)
        .map(|(case, [nginx, haproxy])| format!("{}: nginx {nginx}, HAProxy {haproxy}", case.name));
    let departures: Vec<String> = departures.collect();
    assert!(departures.is_empty(), "{} cases:\n{}", departures.len(), departures.join("\n"));
}
