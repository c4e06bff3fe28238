//! Time, processes and cores, as the kernel reports them.

use std::fs;

use rustix::time::{ClockId, clock_gettime};

/// Monotonic time in nanoseconds.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// A process and everything it started, parents first.
pub fn tree(root: u32) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        next += 1;
        for task in tasks(pid) {
            let children = fs::read_to_string(format!("{task}/children")).unwrap_or_default();
            found.extend(children.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
        }
    }
    found
}

fn tasks(pid: u32) -> Vec<String> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    entries.flatten().map(|entry| entry.path().display().to_string()).collect()
}

/// CPU time used by a process tree since its start.
#[derive(Clone, Copy, Default)]
pub struct Cpu {
    /// The scheduler's accounting, in nanoseconds: exact.
    pub total: u64,
    /// Clock ticks in user and kernel mode: coarse, good for the split only.
    pub user: u64,
    pub system: u64,
}

impl Cpu {
    pub fn of(root: u32) -> Self {
        let mut sum = Self::default();
        for pid in tree(root) {
            for task in tasks(pid) {
                let slices = fs::read_to_string(format!("{task}/schedstat")).unwrap_or_default();
                sum.total += number(&slices, 0);
                let stat = fs::read_to_string(format!("{task}/stat")).unwrap_or_default();
                // The name in parentheses may contain blanks: count the fields behind it.
                let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
                sum.user += number(fields, 11);
                sum.system += number(fields, 12);
            }
        }
        sum
    }

    pub fn since(self, before: Self) -> Self {
        Self {
            total: self.total.saturating_sub(before.total),
            user: self.user.saturating_sub(before.user),
            system: self.system.saturating_sub(before.system),
        }
    }

    /// The share of user mode, 0 to 1.
    pub fn user_share(self) -> f64 {
        self.user as f64 / (self.user + self.system).max(1) as f64
    }
}

/// Resident memory of a process tree in KiB. A page that several processes share counts once.
pub fn resident_kib(root: u32) -> u64 {
    memory_kib(root, "Pss:")
}

/// The sum of a field of `smaps_rollup` over a process tree: of `Rss:` a page counts once for each process that has it.
pub fn memory_kib(root: u32, field: &str) -> u64 {
    let of = |pid: u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix(field)).map_or(0, |rest| number(rest, 0))
    };
    tree(root).into_iter().map(of).sum()
}

/// The activity of a core since boot, in clock ticks.
#[derive(Clone, Copy, Default)]
pub struct Core {
    busy: u64,
    stolen: u64,
    all: u64,
}

impl Core {
    pub fn of(core: usize) -> Self {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        let name = format!("cpu{core} ");
        let Some(line) = text.lines().find_map(|line| line.strip_prefix(&name)) else {
            return Self::default();
        };
        let ticks: Vec<u64> = (0..8).map(|place| number(line, place)).collect();
        // user nice system idle iowait irq softirq steal
        let all: u64 = ticks.iter().sum();
        Self { busy: all - ticks[3] - ticks[4] - ticks[7], stolen: ticks[7], all }
    }

    /// Shares of the time since `before`: busy, and stolen by the host.
    pub fn shares(self, before: Self) -> (f64, f64) {
        let all = (self.all - before.all).max(1) as f64;
        ((self.busy - before.busy) as f64 / all, (self.stolen - before.stolen) as f64 / all)
    }
}

fn number(text: &str, place: usize) -> u64 {
    text.split_whitespace().nth(place).and_then(|word| word.parse().ok()).unwrap_or(0)
}
