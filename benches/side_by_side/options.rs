//! The options of the command line.

use std::path::PathBuf;

use crate::child::Result;
use crate::peers::Mode;

pub const HELP: &str = "\
cargo bench --bench side_by_side -- [OPTIONS]

  --rounds N       interleaved rounds per table                        [7]
  --secs N         seconds of each run                                 [2]
  --modes A,B      none pass reject pass-bare reject-bare              [all]
  --only A,B       throughput latency throttle                         [all]
  --rate N         requests per second of the latency runs             [4000]
  --quick          3 rounds of 1 s, fewer waiters
  --smoke          1 round of 1 s: checks that all of it works
  --long           full size: 30 s of arrivals, 50,000 and 20,000 waiters where open files allow
  --write          rewrite the section in benches/results.md also after --quick
  --no-write       leave benches/results.md alone
  --gateway FILE   another sluicegate binary

--rounds, --secs, --modes and --rate are also read from BENCH_ROUNDS, BENCH_SECS, BENCH_MODES and BENCH_RATE.";

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Size {
    Smoke,
    Quick,
    Default,
    Long,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Throughput,
    Latency,
    Throttle,
}

pub struct Options {
    pub rounds: usize,
    pub secs: u64,
    pub modes: Vec<Mode>,
    pub parts: Vec<Part>,
    pub rate: u64,
    pub size: Size,
    pub write: bool,
    pub gateway: PathBuf,
    /// The arguments as typed, for the report.
    pub typed: Vec<String>,
}

impl Options {
    pub fn parse(arguments: &[String]) -> Result<Self> {
        let typed: Vec<String> = arguments.iter().filter(|word| *word != "--bench").cloned().collect();
        let mut options = Self {
            rounds: 7,
            secs: 2,
            modes: Mode::ALL.to_vec(),
            parts: vec![Part::Throughput, Part::Latency, Part::Throttle],
            rate: 4000,
            size: Size::Default,
            write: true,
            gateway: PathBuf::from(env!("CARGO_BIN_EXE_sluicegate")),
            typed: typed.clone(),
        };
        // Sizes first, so that `--rounds` overrides `--quick` in any order.
        for word in &typed {
            match word.as_str() {
                "--quick" => options.scale(Size::Quick, 3, 1),
                "--smoke" => options.scale(Size::Smoke, 1, 1),
                "--long" => options.size = Size::Long,
                _ => {}
            }
        }
        for (name, flag) in
            [("ROUNDS", "--rounds"), ("SECS", "--secs"), ("MODES", "--modes"), ("RATE", "--rate")]
        {
            if let Ok(value) = std::env::var(format!("BENCH_{name}")) {
                options.set(flag, &value)?;
            }
        }
        let mut words = typed.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--quick" | "--smoke" | "--long" => {}
                "--write" => options.write = true,
                "--no-write" => options.write = false,
                flag => {
                    let value = words.next().ok_or_else(|| format!("{flag}?\n\n{HELP}"))?;
                    options.set(flag, value)?;
                }
            }
        }
        Ok(options)
    }

    fn scale(&mut self, size: Size, rounds: usize, secs: u64) {
        (self.size, self.rounds, self.secs, self.write) = (size, rounds, secs, false);
    }

    fn set(&mut self, flag: &str, value: &str) -> Result<()> {
        match flag {
            "--rounds" => self.rounds = value.parse::<usize>()?.clamp(1, 1000),
            "--secs" => self.secs = value.parse::<u64>()?.clamp(1, 600),
            "--rate" => self.rate = value.parse::<u64>()?.clamp(10, 50_000),
            "--gateway" => self.gateway = PathBuf::from(value).canonicalize()?,
            "--modes" => {
                let known = |name| Mode::ALL.into_iter().find(|mode| mode.name() == name);
                self.modes = value
                    .split(',')
                    .map(|name| known(name).ok_or_else(|| format!("no mode {name}\n\n{HELP}").into()))
                    .collect::<Result<_>>()?;
            }
            "--only" => {
                let known = |name| match name {
                    "throughput" => Ok(Part::Throughput),
                    "latency" => Ok(Part::Latency),
                    "throttle" => Ok(Part::Throttle),
                    _ => Err(format!("no part {name}\n\n{HELP}").into()),
                };
                self.parts = value.split(',').map(known).collect::<Result<_>>()?;
            }
            _ => return Err(format!("{flag}?\n\n{HELP}").into()),
        }
        Ok(())
    }
}
