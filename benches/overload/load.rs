//! The clients: an open loop at random intervals, and each gives up at its deadline.

use std::cell::RefCell;
use std::io;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::answer::read_answer;
use crate::backend::Backend;
use crate::child::Result;
use crate::random::Random;
use crate::scenario::{Change, DEADLINE, Scenario};

/// Until the controllers have found their first limit.
const WARM_UP: Duration = Duration::from_secs(3);
/// Recovery is told by parts of this length.
const BIN: Duration = Duration::from_millis(500);
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: bench.test\r\n\r\n";

/// The answers to the requests of one bin.
#[derive(Default, Clone)]
struct Bin {
    served: u64,
    possible: f64,
}

#[derive(Default)]
struct Answers {
    bins: Vec<Bin>,
    /// Of the admitted, in nanoseconds; the deadline if the client left.
    latencies: Vec<u64>,
    rejected: u64,
    wrong: u64,
}

/// What a run came to.
#[derive(Clone, Copy)]
pub struct Outcome {
    /// Answers within the deadline, in percent of what was possible.
    pub goodput: f64,
    pub p99_ms: f64,
    /// Seconds below nine tenths of what is possible after the two steps.
    pub recovery: f64,
    pub wrong: u64,
}

struct Clients {
    port: u16,
    start: Instant,
    answers: RefCell<Answers>,
    idle: RefCell<Vec<TcpStream>>,
}

/// Runs a scenario against the proxy at `port`.
pub fn run(port: u16, scenario: Scenario, span: Duration, seed: u64, backend: &Backend) -> Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    let answers = local.block_on(&runtime, async {
        let count = (span.as_secs_f64() / BIN.as_secs_f64()) as usize;
        let bins = (0..count).map(|bin| {
            let capacity = scenario.change.apply((bin as f64 + 0.5) / count as f64, &backend.ability);
            Bin { served: 0, possible: capacity.min(scenario.rate()) * BIN.as_secs_f64() }
        });
        let answers = RefCell::new(Answers { bins: bins.collect(), ..Answers::default() });
        let start = Instant::now() + WARM_UP;
        let clients = Rc::new(Clients { port, start, answers, idle: RefCell::default() });
        // It warms up at its full ability.
        scenario.change.apply(if scenario.change == Change::Step { 1.0 } else { 0.0 }, &backend.ability);
        tokio::task::spawn_local(clients.clone().ask_at_rate(scenario.rate(), seed));
        for bin in 0..count {
            sleep_until(start + BIN * bin as u32).await;
            scenario.change.apply(bin as f64 / count as f64, &backend.ability);
        }
        sleep_until(start + span + DEADLINE).await;
        clients.answers.take()
    });
    Ok(answers.judge(scenario))
}

impl Clients {
    async fn ask_at_rate(self: Rc<Self>, rate: f64, seed: u64) {
        let (mut random, mut due) = (Random::new(seed), self.start - WARM_UP);
        loop {
            // A timer is no finer than a millisecond: all that are due by now are sent.
            sleep_until(due).await;
            let now = Instant::now();
            while due <= now {
                tokio::task::spawn_local(self.clone().ask(due));
                due += Duration::from_secs_f64(random.exponential() / rate);
            }
        }
    }

    /// One request on an idle connection or a new one; its client leaves at its deadline.
    async fn ask(self: Rc<Self>, due: Instant) {
        let asked = timeout_at(due + DEADLINE, self.exchange()).await;
        let Some(since) = due.checked_duration_since(self.start) else { return };
        let mut answers = self.answers.borrow_mut();
        let place = (since.as_secs_f64() / BIN.as_secs_f64()) as usize;
        let Answers { bins, latencies, rejected, wrong } = &mut *answers;
        let Some(bin) = bins.get_mut(place) else { return };
        match asked {
            Ok(Ok(200)) => {
                bin.served += 1;
                latencies.push(due.elapsed().as_nanos() as u64);
            }
            Ok(Ok(503)) => *rejected += 1,
            Err(_) => latencies.push(DEADLINE.as_nanos() as u64),
            _ => *wrong += 1,
        }
    }

    async fn exchange(&self) -> io::Result<u16> {
        let idle = self.idle.borrow_mut().pop();
        let mut stream = match idle {
            Some(stream) => stream,
            None => TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await?,
        };
        stream.set_nodelay(true)?;
        stream.write_all(REQUEST).await?;
        let (status, stays) = read_answer(&mut stream).await?;
        if stays {
            self.idle.borrow_mut().push(stream);
        }
        Ok(status)
    }
}

impl Answers {
    fn judge(mut self, scenario: Scenario) -> Outcome {
        self.latencies.sort_unstable();
        let p99 = crate::report::percentile(&self.latencies, 0.99);
        let (mut recovery, mut good) = (0.0, 0);
        let half = self.bins.len() / 2;
        for (place, bin) in self.bins.iter().enumerate() {
            good = if place == half { 0 } else { good };
            // Two good parts in a row end a recovery.
            if scenario.change == Change::Step && good < 2 {
                good = if bin.served as f64 >= 0.85 * bin.possible { good + 1 } else { 0 };
                recovery += if good == 0 { BIN.as_secs_f64() } else { 0.0 };
            }
        }
        let sum = |get: fn(&Bin) -> f64| self.bins.iter().map(get).sum::<f64>();
        Outcome {
            goodput: 100.0 * sum(|bin| bin.served as f64) / sum(|bin| bin.possible),
            p99_ms: p99 as f64 / 1e6,
            recovery,
            wrong: self.wrong,
        }
    }
}
