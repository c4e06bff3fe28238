//! nginx and HAProxy on the same cases, each in front of a recorder of its own.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use crate::recorder::Recorder;
use crate::support::nginx::Nginx;
use crate::support::*;
use crate::table::Case;

const HAPROXY: &str = "/usr/sbin/haproxy";

/// The tests' own waits: both leave unfinished requests open for longer than a test may take.
const LANES: usize = 12;

/// The number of starts of HAProxy on other ports if a port is taken.
const TRIES: usize = 5;

pub struct HaProxy {
    child: Child,
    _scratch: Scratch,
}

impl HaProxy {
    /// One listener in front of each upstream.
    fn start(upstreams: &[SocketAddr]) -> (HaProxy, Vec<SocketAddr>) {
        assert!(
            Path::new(HAPROXY).exists(),
            "{HAPROXY} is missing: install the package haproxy, which this test compares with"
        );
        // Another test may take one of the ports in between.
        (0..TRIES).find_map(|_| HaProxy::try_start(upstreams)).expect("haproxy listens")
    }

    fn try_start(upstreams: &[SocketAddr]) -> Option<(HaProxy, Vec<SocketAddr>)> {
        let addrs: Vec<_> = upstreams.iter().map(|_| free_addr()).collect();
        let mut text =
            "defaults\n  mode http\n  timeout connect 5s\n  timeout client 10s\n  timeout server 10s\n"
                .to_owned();
        for (index, (addr, upstream)) in addrs.iter().zip(upstreams).enumerate() {
            text += &format!("listen l{index}\n  bind {addr}\n  server s {upstream}\n");
        }
        let scratch = Scratch::new();
        let file = scratch.file("haproxy.cfg", &text);
        let mut child = Command::new(HAPROXY)
            .args(["-db", "-f"])
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("haproxy starts");
        for addr in &addrs {
            let mut ended = false;
            eventually("haproxy", || {
                ended = child.try_wait().expect("a child can be waited for").is_some();
                ended || TcpStream::connect_timeout(addr, PATIENCE).is_ok()
            });
            if ended {
                return None;
            }
        }
        Some((HaProxy { child, _scratch: scratch }, addrs))
    }
}

impl Drop for HaProxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The number of requests that each case makes of nginx and of HAProxy, in the order of the cases; a case is
/// over after no data for `quiet`.
pub fn counts(cases: &[&Case], quiet: Duration) -> Vec<[usize; 2]> {
    let recorders: Vec<[Recorder; 2]> = (0..LANES).map(|_| [Recorder::new(), Recorder::new()]).collect();
    let servers: String = (0..LANES)
        .map(|lane| {
            let upstream = recorders[lane][0].addr();
            format!(
                "server {{ listen @{lane}@; location / {{ proxy_http_version 1.1; proxy_pass http://{upstream}; }} }}\n"
            )
        })
        .collect();
    let nginx = Nginx::start(&servers, LANES);
    let behind: Vec<SocketAddr> = recorders.iter().map(|pair| pair[1].addr()).collect();
    let (_haproxy, haproxies) = HaProxy::start(&behind);
    let queue = Mutex::new(cases.iter().enumerate());
    let counts = Mutex::new(vec![[0; 2]; cases.len()]);
    std::thread::scope(|scope| {
        for (lane, pair) in recorders.iter().enumerate() {
            let addrs = [nginx.addr(lane), haproxies[lane]];
            let (queue, counts) = (&queue, &counts);
            scope.spawn(move || {
                loop {
                    let Some((index, case)) = queue.lock().unwrap().next() else { break };
                    for rival in 0..2 {
                        pair[rival].take();
                        send(addrs[rival], &case.bytes, quiet);
                        counts.lock().unwrap()[index][rival] = pair[rival].take().len();
                    }
                }
            });
        }
    });
    counts.into_inner().unwrap()
}

/// Sends `bytes` and reads until the peer closes or is quiet.
fn send(addr: SocketAddr, bytes: &[u8], quiet: Duration) {
    let mut client = Client::connect(addr);
    let _ = client.try_send(bytes);
    while client.skip(1, quiet).is_none() {}
}
