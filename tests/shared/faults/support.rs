//! The fault run: three gateways with three limits under load, while their Redis fails again and again. Afterwards,
//! the admissions of each limit are compared with the number that it may admit.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use crate::support::fleet::{DEGRADED, by_name, counting_on, refill, span};
use crate::support::*;

/// Outages of one run.
pub const OUTAGES: u64 = 3;

const GATEWAYS: u64 = 3;
/// The limit per second, and its burst.
const RATE: u64 = 30;
const PER_HOUR: u64 = 30;
const SLOTS: u64 = 6;
const OUTAGE: Duration = ms(600);
/// How long a request holds its slot: longer than an outage, but no longer than two.
const WORK: Duration = ms(1200);

/// The targets of the clients of each gateway, in order; the other clients want slots, one each.
const OF_SECOND: usize = 0;
const OF_HOUR: usize = 1;
const OF_HOUR_IN_OUTAGES: usize = 2;
const CLIENTS: usize = 3 + SLOTS as usize;

/// Gateways under load while a fault comes and goes.
pub struct FaultRun {
    pub fleet: Fleet,
    fault: &'static str,
    in_flight: Arc<InFlight>,
    is_out: AtomicBool,
    over: AtomicBool,
}

/// Requests with a slot at the upstream, for each gateway and for all.
#[derive(Default)]
struct InFlight {
    now: [AtomicU64; GATEWAYS as usize + 1],
    most: [AtomicU64; GATEWAYS as usize + 1],
}

/// The admissions of one limit.
struct Row {
    fault: &'static str,
    limit: &'static str,
    admitted: u64,
    allowed: u64,
    /// Fewer would mean a gateway that rejects every request.
    least: u64,
}

/// Ends the clients when dropped.
struct Ending<'a>(&'a AtomicBool);

// === impl FaultRun ===

impl FaultRun {
    /// `url` gives each gateway's way to Redis.
    #[track_caller]
    pub fn start(fault: &'static str, timeout: &str, url: impl Fn(usize) -> String) -> FaultRun {
        let in_flight = Arc::new(InFlight::default());
        let counted = in_flight.clone();
        let upstream = Upstream::new(move |seen| {
            if let Some(gateway) = seen.target.strip_prefix("/slots/") {
                counted.hold(gateway.parse().expect("the index of a gateway"));
            }
            Reply::text("ok")
        });
        let second = format!("key: global, algorithm: token_bucket, rate: {RATE}/s, burst: {RATE}");
        let hour = format!("key: \"query:key\", algorithm: fixed_window, rate: {PER_HOUR}/1h");
        let slots = format!(
            "key: global, algorithm: concurrency, max_concurrent: {SLOTS}, on_reject: {{ status: 429 }}"
        );
        let fleet = Fleet::before(upstream, GATEWAYS as usize, |index, upstream| {
            let head = counting_on(&url(index), timeout);
            let rest = by_name(upstream, &[("second", &second), ("hour", &hour), ("slots", &slots)]);
            format!("{head}{rest}  - {{ path: /idle, respond: {{ body: ok }} }}\n")
        });
        fleet.wait_enforcing();
        fleet.wait_nodes(GATEWAYS as usize);
        let (is_out, over) = (AtomicBool::new(false), AtomicBool::new(false));
        FaultRun { fleet, fault, in_flight, is_out, over }
    }

    /// Runs the clients during `outages`, then prints and judges the admissions. `forgets`: how often Redis loses its
    /// memory.
    #[track_caller]
    pub fn suffer(&self, forgets: u64, outages: impl FnOnce()) {
        let fired = thread::scope(|scope| {
            let ending = Ending(&self.over);
            let targets = |gateway: usize, client: usize, _: usize| self.ask(gateway, client);
            let fired = scope.spawn(move || self.fleet.fire(CLIENTS, Until::Over(&self.over), targets));
            thread::sleep(WORK / 2);
            outages();
            drop(ending);
            fired.join().expect("the clients finish")
        });
        let rows = self.rows(forgets, &fired);
        // One table, even where several runs print at once.
        println!("{}", rows.iter().map(Row::to_string).collect::<Vec<_>>().join("\n"));
        let odd: Vec<_> = fired.iter().map(|one| one.status).filter(|s| ![200, 429].contains(s)).collect();
        assert!(odd.is_empty(), "{}: statuses beside 200 and 429: {odd:?}", self.fault);
        let wrong: Vec<_> = rows.iter().filter(|row| !row.is_fine()).map(Row::to_string).collect();
        assert!(wrong.is_empty(), "outside of what is allowed:\n{}", wrong.join("\n"));
    }

    /// Lets an outage last; some clients come only during outages.
    pub fn stay_out(&self) {
        self.stay_out_for(OUTAGE);
    }

    pub fn stay_out_for(&self, span: Duration) {
        self.is_out.store(true, SeqCst);
        thread::sleep(span);
        self.is_out.store(false, SeqCst);
    }

    /// Waits until Redis decides again, and until the requests of the outage are over.
    #[track_caller]
    pub fn recover(&self) {
        self.fleet.wait_enforcing();
        thread::sleep(WORK);
    }

    fn ask(&self, gateway: usize, client: usize) -> Ask {
        thread::sleep(match client {
            OF_SECOND => ms(20),
            // Slow enough that the first outage comes in the middle.
            OF_HOUR => ms(90),
            OF_HOUR_IN_OUTAGES => ms(15),
            // The first gateway asks most, so it holds most.
            _ => ms(20 + 30 * gateway as u64),
        });
        while client == OF_HOUR_IN_OUTAGES && !self.is_out.load(SeqCst) && !self.over.load(SeqCst) {
            thread::sleep(ms(5));
        }
        match client {
            _ if self.over.load(SeqCst) => get("/idle"),
            OF_SECOND => get("/second"),
            OF_HOUR => get("/hour?key=always"),
            OF_HOUR_IN_OUTAGES => get("/hour?key=outages"),
            _ => get(&format!("/slots/{gateway}")),
        }
    }

    fn rows(&self, forgets: u64, fired: &[Fired]) -> Vec<Row> {
        let seen = self.fleet.upstream.requests();
        let of = |target: &str| seen.iter().filter(|seen| seen.target == target).count() as u64;
        let refilled = refill(RATE, span(fired.iter().filter(|one| one.client == OF_SECOND)));
        let share = |limit: u64| limit.div_ceil(GATEWAYS);
        let hour = (1 + forgets) * PER_HOUR + self.alone("hour") * share(PER_HOUR);
        let second = refilled + (1 + forgets) * RATE + self.alone("second") * share(RATE);
        // Redis grants no more than all slots, and each gateway may hold a share that Redis does not know yet. Slots
        // that Redis forgets may be held once more; none is held through two outages.
        let forgotten = forgets.min(1) * SLOTS;
        let slots = SLOTS + forgotten + share(SLOTS) * self.alone("slots");
        let most = |index: usize| self.in_flight.most[index].load(SeqCst);
        let of_one = (0..GATEWAYS as usize).map(most).max().unwrap_or_default();
        let row =
            |limit, admitted, allowed, least| Row { fault: self.fault, limit, admitted, allowed, least };
        vec![
            row("30/s", of("/second"), second, refilled / 4),
            row("30/h", of("/hour?key=always"), hour, PER_HOUR / 3),
            row("30/h asked in outages alone", of("/hour?key=outages"), hour, PER_HOUR / 3),
            row("6 slots", most(GATEWAYS as usize), slots, SLOTS / 2),
            row("6 slots of one gateway", of_one, SLOTS, 1),
        ]
    }

    /// The gateways that decided about this limit by themselves.
    fn alone(&self, limit: &str) -> u64 {
        let limit = format!("limit=\"{limit}\"");
        let decided = |gateway: &&Gateway| gateway.metric(DEGRADED, &[&limit]) > 0.0;
        self.fleet.gateways.iter().filter(decided).count() as u64
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

// === impl InFlight ===

impl InFlight {
    fn hold(&self, gateway: usize) {
        let counters = [gateway, GATEWAYS as usize];
        for index in counters {
            self.most[index].fetch_max(self.now[index].fetch_add(1, SeqCst) + 1, SeqCst);
        }
        thread::sleep(WORK);
        for index in counters {
            self.now[index].fetch_sub(1, SeqCst);
        }
    }
}

// === impl Row ===

impl Row {
    fn is_fine(&self) -> bool {
        (self.least..=self.allowed).contains(&self.admitted)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { fault, limit, admitted, allowed, .. } = self;
        write!(f, "{fault}, {limit}, {admitted}, {allowed}")
    }
}
