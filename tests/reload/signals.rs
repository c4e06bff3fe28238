//! Signals at critical moments: to a starting process, and to the new process of an upgrade before it serves.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::support::*;

const SIGNALS: [Signal; 3] = [Signal::HUP, Signal::USR1, Signal::USR2];

/// A process in a group of its own, which is killed on drop.
struct Starting {
    child: Child,
    addr: SocketAddr,
}

impl Starting {
    fn new(scratch: &Scratch, yaml: &str) -> Starting {
        let addr = free_addr();
        let file = scratch.file("gateway.yaml", &format!("listen: \"{addr}\"\nadmin: none\n{yaml}"));
        let mut command = Command::new(program());
        command.arg("-c").arg(file).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Starting { child: command.spawn().expect("the binary starts"), addr }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn accepts(&self) -> bool {
        TcpStream::connect(self.addr).is_ok()
    }

    /// The process lives, or has handed over to a successor after USR2.
    #[track_caller]
    fn assert_not_killed(&mut self) {
        let status = self.child.try_wait().expect("a child can be waited for");
        assert!(
            status.is_none_or(|status| status.signal().is_none() && status.code() == Some(0)),
            "{status:?}"
        );
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Whether the process has handlers for all of [`SIGNALS`].
fn catches(pid: Pid) -> bool {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    SIGNALS.iter().all(|signal| mask >> (signal.as_raw() - 1) & 1 == 1)
}

/// From the first moment at which a process can catch signals, only TERM and INT end it, and no port accepts before. A
/// snapshot and many limits make the start long enough to hit.
#[test]
fn no_signal_ends_a_process_that_starts() {
    let scratch = Scratch::new();
    let limits: String = (0..200).map(|n| format!("  l{n}: {{ key: ip, rate: 1{n}/s }}\n")).collect();
    let snapshot = scratch.path().join("counters.bin");
    std::fs::write(&snapshot, vec![7; 16 << 20]).expect("a large file");
    let yaml = format!(
        "state: {{ snapshot: {} }}\nlimits:\n{limits}locations: [{{ path: /, respond: {{ body: ok }} }}]\n",
        snapshot.display()
    );
    for round in 0..20 {
        let mut gateway = Starting::new(&scratch, &yaml);
        let deadline = Instant::now() + PATIENCE;
        while !catches(gateway.pid()) {
            // In this order: handlers may appear between the two checks, a port may not.
            let accepts = gateway.accepts();
            assert!(!accepts || catches(gateway.pid()), "round {round}: it accepts before it has handlers");
            assert!(Instant::now() < deadline, "round {round}: it catches nothing");
        }
        // One signal per round, all of them in some rounds: USR2 makes it end in an orderly way.
        let sent = if round % 4 == 3 { &SIGNALS[..] } else { &SIGNALS[round % 4..=round % 4] };
        for n in 0..25 {
            for signal in sent {
                let _ = kill_process(gateway.pid(), *signal);
            }
            gateway.assert_not_killed();
            if n > 20 {
                thread::sleep(ms(1));
            }
        }
        eventually("an answer", || {
            gateway.assert_not_killed();
            gateway.accepts() && answers(gateway.addr)
        });
        gateway.assert_not_killed();
    }
}

fn answers(addr: SocketAddr) -> bool {
    let mut client = Client::connect(addr);
    client.try_send(get("/").bytes()).is_ok() && client.response_within(PATIENCE).is_ok()
}

/// The children of a process.
fn children(pid: u32) -> Vec<Pid> {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let is_child = |pid_of: &Pid| {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid_of.as_raw_nonzero()));
        // The name, in brackets, may contain any character.
        let parent = stat.ok().and_then(|stat| {
            let (_, rest) = stat.rsplit_once(')')?;
            rest.split_whitespace().nth(1)?.parse::<u32>().ok()
        });
        parent == Some(pid)
    };
    let pids = processes.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    pids.filter(is_child).collect()
}

/// The new process of an upgrade has its handlers long before it is ready; a signal to it changes nothing.
#[test]
fn no_signal_ends_a_successor_that_starts() {
    for signal in SIGNALS {
        let mut gateway = Gateway::start("locations: [{ path: /, respond: { body: ok } }]\n");
        // Half a head makes the hand-over take a second and a half.
        let mut slow = gateway.client();
        slow.send("GET / HT");
        gateway.signal(Signal::USR2);
        let has_started = |pid: &Pid| {
            // Before exec it has the handlers of the process that forked it.
            let environ =
                std::fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).unwrap_or_default();
            environ.split(|byte| *byte == 0).any(|one| one == b"SLUICEGATE_UPGRADE=1")
        };
        let mut found = None;
        eventually("a new process", || {
            found = children(gateway.pid()).into_iter().find(has_started);
            found.is_some()
        });
        let successor = found.expect("it was there");
        let _successor = Successor(successor.as_raw_nonzero().get());
        let (mut sent, deadline) = (0, Instant::now() + PATIENCE);
        while sent < 40 {
            assert!(Instant::now() < deadline, "{signal:?}: {sent} sent: {}", gateway.stderr());
            let is_ready = gateway.stderr().contains("the new process is ready");
            let is_caught = catches(successor);
            assert!(is_caught || !is_ready, "{signal:?}: it is ready before it has handlers");
            // USR2 makes it upgrade itself once it serves: one signal is enough.
            if is_caught && (signal != Signal::USR2 || sent == 0) {
                kill_process(successor, signal).expect("it lives");
            }
            sent += usize::from(is_caught && (is_ready || sent < 20));
            thread::sleep(ms(1));
        }
        assert_eq!(gateway.wait_left(), 0, "{signal:?}: {}", gateway.stderr());
        gateway.wait_stderr("the new process serves");
        gateway.get("/").expect(200);
        if signal == Signal::USR2 {
            eventually("a third process", || gateway.process() != successor.as_raw_nonzero().get() as u32);
            drop(Successor(gateway.process() as i32));
        }
    }
}
