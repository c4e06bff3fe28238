//! The log of a real nginx whose `limit_req` runs dry, judged by the limit that is the same here.

use std::thread;

use sluicegate::simulate::replay::replay_log;

use crate::support::nginx::Nginx;
use crate::support::*;
use crate::{load, stream};

/// Exact times, and nginx's own verdict.
const FORMAT: &str = "$msec $request_time $remote_addr \"$request\" $status $limit_req_status";
/// In volleys, because the log has milliseconds: whoever comes within one of the moment at which a request fits again may
/// be judged either way.
const VOLLEYS: u64 = 8;
const VOLLEY: u64 = 150;
const CLIENTS: u64 = 3;
const REQUESTS: u64 = VOLLEYS * VOLLEY * CLIENTS;

/// Sends requests from some addresses in volleys, and returns the log.
fn run_nginx(burst: &str) -> String {
    let scratch = Scratch::new();
    let log = scratch.path().join("access.log");
    let nginx = Nginx::start(
        &format!(
            "log_format exact '{FORMAT}'; limit_req_zone $binary_remote_addr zone=z:1m rate=1r/s;\n\
             server {{ listen @0@; access_log {} exact; keepalive_requests 100000; limit_req zone=z {burst}; \
             limit_req_dry_run on; location / {{ empty_gif; }} }}",
            log.display()
        ),
        1,
    );
    let addr = nginx.addr(0);
    let send = move |client: u64| {
        let mut connection = Client::connect_from(&format!("127.0.0.{}", 10 + client), addr);
        for volley in 0..VOLLEYS {
            (0..VOLLEY).for_each(|_| drop(connection.ask(&get("/"))));
            thread::sleep(ms(1_100 + 370 * ((volley + client) % 4)));
        }
    };
    let threads: Vec<_> = (0..CLIENTS).map(|client| thread::spawn(move || send(client))).collect();
    for thread in threads {
        thread.join().expect("a client");
    }
    let read = || std::fs::read_to_string(&log).unwrap_or_default();
    eventually("the log of nginx", || read().matches('\n').count() as u64 >= REQUESTS);
    read()
}

#[track_caller]
fn assert_agrees(burst: &str, limit: &str) {
    let file = format!(
        "limits: {{ z: {{ key: ip, {limit} }} }}\nlocations: [{{ path: /, upstream: demo, limits: z }}]\n"
    );
    undisturbed(|| {
        let log = run_nginx(burst);
        let report = replay_log(&mut stream(&log, Some(FORMAT)), load(&file), None, |_, _| {}, |_, _| {})
            .expect("a replay");
        let (compared, agreed) = (report.logged.compared, report.logged.agreed);
        assert_eq!(compared, REQUESTS, "{report}");
        assert!(report.logged.rejected > 100, "the limit must act: {report}");
        println!("{agreed} of {compared} agree\n{report}");
        // On a busy machine nginx judges by a clock that is some milliseconds older than the time in its log.
        ((compared - agreed) * 1_000 <= compared).then_some(())
    });
}

#[test]
fn nodelay_is_a_token_bucket() {
    assert_agrees("burst=9 nodelay", "rate: 1/s, burst: 10");
}

#[test]
fn a_burst_with_delay_is_a_queue() {
    assert_agrees("burst=5", "rate: 1/s, algorithm: leaky_bucket, burst: 1, queue: 5");
}
