//! Many requests at planned moments, each on a connection of its own.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use super::client::{Ask, Client};
use super::http::Response;

/// One request of a volley; the times count from the moment its first byte was due to be sent.
#[derive(Debug)]
pub struct Shot {
    pub sent: Duration,
    /// The arrival of the head of the answer.
    pub answered: Duration,
    pub response: Response,
}

/// Sends all of `requests` at once.
#[track_caller]
pub fn volley(addr: SocketAddr, requests: impl IntoIterator<Item = Ask>) -> Vec<Shot> {
    volley_at(addr, requests.into_iter().map(|ask| (Duration::ZERO, ask)))
}

/// Sends each ask at its moment, in order; answers are read as they come.
#[track_caller]
pub fn volley_at(addr: SocketAddr, plan: impl IntoIterator<Item = (Duration, Ask)>) -> Vec<Shot> {
    let mut readers = Vec::new();
    let mut writers = Vec::new();
    for (due, ask) in plan {
        let mut client = Client::connect(addr);
        writers.push((due, ask.bytes(), client.writer()));
        readers.push(thread::spawn(move || client.response()));
    }
    let start = Instant::now();
    let mut sent = Vec::new();
    for (due, bytes, writer) in &mut writers {
        if let Some(wait) = due.checked_sub(start.elapsed()) {
            thread::sleep(wait);
        }
        sent.push(start.elapsed());
        writer.write_all(bytes).expect("the gateway takes the request");
    }
    let shots = readers.into_iter().zip(sent).map(|(reader, sent)| {
        let response = reader.join().expect("every request of a volley is answered");
        Shot { sent, answered: response.at.saturating_duration_since(start), response }
    });
    shots.collect()
}

pub fn statuses(shots: &[Shot]) -> Vec<u16> {
    shots.iter().map(|shot| shot.response.status).collect()
}

/// The answers with one status, in the order of arrival.
pub fn answered(shots: &[Shot], status: u16) -> Vec<Duration> {
    let mut times: Vec<_> =
        shots.iter().filter(|s| s.response.status == status).map(|s| s.answered).collect();
    times.sort();
    times
}

pub fn count(shots: &[Shot], status: u16) -> usize {
    shots.iter().filter(|shot| shot.response.status == status).count()
}
