//! Random nginx.conf files on a real nginx and, imported, on the gateway: the same statuses on the same traces.
//!
//! Arrivals stay [`MARGIN_MS`] away from the moment at which nginx's own arithmetic would decide otherwise. A stalled
//! machine can make one request differ once but not every time: a file with differences is tried again, on fresh
//! processes, and no request may differ in each of [`ROUNDS`]. `IMPORT_FILES` sets the number of files, `IMPORT_SEED` the first seed.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_import::import_file;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::nginx_model::NginxModel;
use crate::random_site::{Dice, Probe, RandomSite};
use crate::support::nginx::Nginx;
use crate::support::{Gateway, Scratch, ms, raise_descriptors};

const FILES: u64 = 12;
/// Files whose processes run at once.
const TOGETHER: usize = 4;
const ARRIVALS: usize = 48;
const MARGIN_MS: u64 = 12;
const HOLD_MS: u64 = 250;
const ROUNDS: usize = 5;

/// A request, when it is sent, and the status that nginx's arithmetic gives it.
struct Arrival {
    probe: Probe,
    at: u64,
    hold: u64,
    status: u16,
}

fn roll_trace(site: &RandomSite, seed: u64) -> Vec<Arrival> {
    let mut dice = Dice(seed ^ 0xabcd);
    let (mut model, mut now, mut trace) = (NginxModel::default(), 20, Vec::new());
    let mut probe = site.roll_probe(&mut dice);
    let mut volley = 0;
    while trace.len() < ARRIVALS {
        if volley == 0 {
            volley = 2 + dice.below(9);
            probe = site.roll_probe(&mut dice);
        }
        volley -= 1;
        let chain = site.chain_of(&probe);
        let mut verdict = model.judge(&chain, now);
        while verdict.margin_ms < MARGIN_MS {
            now += 3;
            verdict = model.judge(&chain, now);
        }
        let hold = if site.holds(&probe) { HOLD_MS } else { 0 };
        if verdict.passes {
            model.charge(&chain, now, now + hold);
        }
        let status = site.status_of(&probe, verdict.passes);
        trace.push(Arrival { probe: probe.clone(), at: now, hold, status });
        now += if dice.below(8) == 0 { 40 + dice.below(120) } else { 6 + dice.below(8) };
    }
    trace
}

/// Answers 200 after the time that `X-Hold` names.
async fn serve_backend(listener: TcpListener) {
    loop {
        let Ok((mut stream, _)) = listener.accept().await else { return };
        tokio::spawn(async move {
            let mut read = Vec::new();
            loop {
                let end = loop {
                    if let Some(end) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                        break end + 4;
                    }
                    if stream.read_buf(&mut read).await.unwrap_or(0) == 0 {
                        return;
                    }
                };
                let head = String::from_utf8_lossy(&read[..end]).to_ascii_lowercase();
                let hold =
                    head.split("x-hold: ").nth(1).and_then(|text| text.split("\r\n").next()?.parse().ok());
                tokio::time::sleep(ms(hold.unwrap_or(0))).await;
                read.drain(..end);
                let close = head.contains("connection: close");
                if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.is_err() || close
                {
                    return;
                }
            }
        });
    }
}

async fn ask(addr: SocketAddr, start: Instant, arrival: &Arrival) -> u16 {
    tokio::time::sleep_until((start + ms(arrival.at)).into()).await;
    let Arrival { probe, hold, .. } = arrival;
    let socket = TcpSocket::new_v4().expect("a socket");
    let client = Ipv4Addr::new(127, probe.client as u8, 0, 1);
    socket.bind(SocketAddr::from((client, 0))).expect("a loopback address");
    let mut stream: TcpStream = socket.connect(addr).await.expect("the proxy accepts");
    let key = if probe.header > 0 { format!("X-Key: h{}\r\n", probe.header) } else { String::new() };
    let head = format!(
        "{} {} HTTP/1.1\r\nHost: {}\r\n{key}X-Hold: {hold}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        probe.method, probe.path, probe.host
    );
    stream.write_all(head.as_bytes()).await.expect("the proxy takes the request");
    let mut answer = Vec::new();
    // A rejection may reset the connection once it is written.
    let _ = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await;
    crate::support::http::status_of(&answer).unwrap_or(0)
}

async fn replay(addr: SocketAddr, start: Instant, trace: Arc<Vec<Arrival>>) -> Vec<u16> {
    let mut tasks = Vec::new();
    for place in 0..trace.len() {
        let trace = trace.clone();
        tasks.push(tokio::spawn(async move { ask(addr, start, &trace[place]).await }));
    }
    let mut statuses = Vec::new();
    for task in tasks {
        statuses.push(task.await.expect("every arrival is answered"));
    }
    statuses
}

/// One file on both programs.
struct Pair {
    seed: u64,
    conf: String,
    nginx: Nginx,
    gateway: Gateway,
    trace: Arc<Vec<Arrival>>,
}

impl Pair {
    fn start(seed: u64, backend: SocketAddr) -> Pair {
        let site = RandomSite::roll(seed);
        let backend = backend.to_string();
        let nginx = Nginx::start(&site.conf("@0@", &backend), 1);
        let scratch = Scratch::new();
        let conf = format!("events {{}} http {{ {} }}", site.conf("127.0.0.1:0", &backend));
        let imported = import_file(&scratch.file("nginx.conf", &conf));
        let imported = imported.unwrap_or_else(|fault| panic!("seed {seed}: {fault}\n{conf}"));
        assert_eq!(imported.report.count_lost(), 0, "seed {seed}: {}\n{conf}", imported.report.render_text());
        let gateway = Gateway::start(&format!("{}\nadmin: none\naccess_log: none\n", imported.yaml));
        let trace = Arc::new(roll_trace(&site, seed));
        Pair { seed, conf, nginx, gateway, trace }
    }

    /// Those of the requests at `places` that differ.
    fn differences(&self, places: &[usize], nginx: &[u16], gateway: &[u16]) -> Vec<usize> {
        let mut differing = places.to_vec();
        differing.retain(|place| {
            let (theirs, ours) = (nginx[*place], gateway[*place]);
            let Arrival { probe, at, status, .. } = &self.trace[*place];
            let differs = (theirs, ours) != (*status, *status);
            if differs {
                eprintln!(
                    "  at {at} ms {} {}{} client {} header {}: arithmetic {status}, nginx {theirs}, gateway {ours}",
                    probe.method, probe.host, probe.path, probe.client, probe.header
                );
            }
            differs
        });
        differing
    }
}

/// A seed, and the requests of its file that differed in each round.
type Open = (u64, Vec<usize>);

/// Runs some files at once; returns those that still differ.
fn run_batch(files: &[Open], round: usize, statuses: &mut [usize; 2]) -> Vec<Open> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let backend = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
    let addr = backend.local_addr().expect("an address");
    runtime.spawn(serve_backend(backend));
    let pairs: Vec<Pair> = files.iter().map(|(seed, _)| Pair::start(*seed, addr)).collect();
    let start = Instant::now() + ms(50);
    let answers = runtime.block_on(async {
        let mut tasks = Vec::new();
        for pair in &pairs {
            let theirs = tokio::spawn(replay(pair.nginx.addr(0), start, pair.trace.clone()));
            let ours = tokio::spawn(replay(pair.gateway.addr(), start, pair.trace.clone()));
            tasks.push((theirs, ours));
        }
        let mut answers = Vec::new();
        for (theirs, ours) in tasks {
            answers.push((theirs.await.expect("nginx answers"), ours.await.expect("the gateway answers")));
        }
        answers
    });
    let mut open = Vec::new();
    for ((pair, (theirs, ours)), (_, places)) in pairs.iter().zip(&answers).zip(files) {
        eprintln!("round {round}, seed {}", pair.seed);
        let differing = pair.differences(places, theirs, ours);
        if differing.is_empty() {
            statuses[0] += theirs.len();
            statuses[1] += theirs.iter().filter(|status| **status >= 400).count();
            continue;
        }
        if round + 1 == ROUNDS {
            eprintln!("{}", pair.conf);
        }
        open.push((pair.seed, differing));
    }
    open
}

fn number_of(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

#[test]
fn an_imported_file_decides_as_nginx_does() {
    raise_descriptors();
    let first = number_of("IMPORT_SEED", 1);
    let seeds = first..first + number_of("IMPORT_FILES", FILES);
    let mut open: Vec<Open> = seeds.map(|seed| (seed, (0..ARRIVALS).collect())).collect();
    let mut statuses = [0; 2];
    for round in 0..ROUNDS {
        let batches = open.chunks(TOGETHER);
        open = batches.flat_map(|files| run_batch(files, round, &mut statuses)).collect();
        if open.is_empty() {
            let [all, refused] = statuses;
            eprintln!("{all} requests, {refused} of them refused, no difference");
            assert!(refused * 10 > all, "{refused} of {all} requests are refused: the files are too tame");
            return;
        }
    }
    panic!("in each of {ROUNDS} rounds these requests differed: {open:?}");
}
