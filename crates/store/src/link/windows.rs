//! Reads what all keys of a rate have used in a window of the calendar, from every primary.

use std::collections::HashSet;
use std::time::Duration;

use redis::{Cmd, Pipeline, from_redis_value};
use siphasher::sip128::SipHasher13;
use tokio::time::{sleep, timeout};

use super::Store;
use super::connection::{StoreConnection, check_answer};
use super::fault::{DescribedFault, StoreAddress, StoreFault};
use crate::script::read_number;
use crate::script::rule::RateRule;
use sluicegate_base::calendar::Anchor;
use sluicegate_limit::steps::WindowUsage;

/// Keys that a server looks at for one call; it answers nobody else meanwhile.
const SCAN_COUNT: usize = 200;
/// The pause between two calls, so that the requests of gateways come between them.
const SCAN_PAUSE: Duration = Duration::from_millis(2);
/// The deadline of one call.
const SCAN_TIMEOUT: Duration = Duration::from_secs(2);
/// Keys that are told apart in one reading; each takes 32 bytes.
const KEYS_MAX: usize = 1 << 21;

/// The name of a key, and its use of a window.
pub type NamedWindow = (String, WindowUsage);

/// A reading of all keys of some rates; it goes from primary to primary.
pub struct WindowScan {
    /// The rates and servers that are still to be read.
    waiting: Vec<(usize, StoreAddress)>,
    /// The rate and the server that are being read, with the cursor of the next call.
    current: Option<(usize, StoreConnection, Vec<u8>)>,
    seen: HashSet<u128>,
}

impl Store {
    /// Begins to read all keys of these rates of a limit.
    ///
    /// # Errors
    /// No server is known.
    pub fn scan_windows(&self, rates: &[usize]) -> Result<WindowScan, StoreFault> {
        let topology = self.topology.load_full();
        if topology.servers.is_empty() {
            return Err(StoreFault::Down);
        }
        let mut waiting = Vec::new();
        for server in &topology.servers {
            waiting.extend(rates.iter().map(|rate| (*rate, server.address.clone())));
        }
        Ok(WindowScan { waiting, current: None, seen: HashSet::new() })
    }

    /// Reads the present window of some more keys or, with `last`, the one before, in no order; `rules` are those of
    /// the limit. `anchor_of` tells the date of the account in the name of a key. Returns the rate as well; `None` =
    /// all keys were read.
    ///
    /// # Errors
    /// A server does not answer or does not allow it, or there are more than two million keys
    /// ([`StoreFault::Full`]). What was read is not all then.
    pub async fn read_windows(
        &self,
        scan: &mut WindowScan,
        rules: &[RateRule],
        last: bool,
        anchor_of: impl Fn(&str) -> Option<Anchor>,
    ) -> Result<Option<(usize, Vec<NamedWindow>)>, StoreFault> {
        while let Some((rate, values)) = self.read_values(scan, rules).await.map_err(|fault| fault.kind)? {
            let now = self.unix_seconds();
            let read = |value: &Vec<u8>| read_window(&rules[rate], value, (last, now), &anchor_of);
            let found: Vec<NamedWindow> = values.iter().filter_map(read).collect();
            if !found.is_empty() {
                return Ok(Some((rate, found)));
            }
        }
        Ok(None)
    }

    /// The rate and the values of some more keys that are still there.
    async fn read_values(
        &self,
        scan: &mut WindowScan,
        rules: &[RateRule],
    ) -> Result<Option<(usize, Vec<Vec<u8>>)>, DescribedFault> {
        let (rate, connection, cursor) = match scan.current.take() {
            Some(current) => {
                sleep(SCAN_PAUSE).await;
                current
            }
            None => {
                let Some((rate, address)) = scan.waiting.pop() else { return Ok(None) };
                (rate, self.connector.connect(&address).await?, b"0".to_vec())
            }
        };
        let mut command = Cmd::new();
        let pattern = rules[rate].names_pattern(&self.prefix);
        command.arg("SCAN").arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT);
        let answer = timeout(SCAN_TIMEOUT, connection.send_command(&command)).await;
        let answer = answer.map_err(|_| StoreFault::Timeout)??;
        let (next, mut names): (Vec<u8>, Vec<Vec<u8>>) =
            from_redis_value(answer).map_err(|_| StoreFault::Garbled)?;
        // A server may name a key twice, and so may both servers of one that moves.
        names.retain(|name| scan.seen.insert(SipHasher13::new().hash(name).as_u128()));
        if scan.seen.len() > KEYS_MAX {
            return Err(StoreFault::Full.into());
        }
        let mut values = Vec::with_capacity(names.len());
        if !names.is_empty() {
            let mut pipeline = Pipeline::with_capacity(names.len());
            for name in &names {
                pipeline.cmd("GET").arg(name);
            }
            let answers = timeout(SCAN_TIMEOUT, connection.send_pipeline(&pipeline)).await;
            for answer in answers.map_err(|_| StoreFault::Timeout)?? {
                let value: Option<Vec<u8>> =
                    from_redis_value(check_answer(answer)?).map_err(|_| StoreFault::Garbled)?;
                values.extend(value);
            }
        }
        if next != b"0" {
            scan.current = Some((rate, connection, next));
        }
        Ok(Some((rate, values)))
    }
}

/// The wanted window of a counter; `None` if it has counted nothing there, has no name, or is not ours.
fn read_window(
    rule: &RateRule,
    mut value: &[u8],
    (last, now): (bool, u64),
    anchor_of: impl Fn(&str) -> Option<Anchor>,
) -> Option<NamedWindow> {
    let mut numbers = [0; 12];
    for number in &mut numbers {
        *number = read_number(&mut value)?;
    }
    let name = str::from_utf8(value).ok()?;
    let name = Some(name).filter(|name| !name.is_empty() && !name.contains(char::is_control))?;
    // Between them stands the pace of a step.
    let [begins, ends, used, reserved, begins_before, used_before, reserved_before, _, rest @ ..] = numbers;
    let [reached, reached_before, quota, quota_before] = rest;
    let present = WindowUsage { quota, used, reserved, begins, ends, reached: reached as u8 };
    let before = WindowUsage {
        quota: quota_before,
        used: used_before,
        reserved: reserved_before,
        begins: begins_before,
        ends: begins,
        reached: reached_before as u8,
    };
    let next_border = |at| rule.borders(at, anchor_of(name))[2];
    let (usage, is_wanted) = match (last, ends <= now) {
        (false, is_over) => (present, !is_over),
        // The window of the counter is the last one, if nothing was counted since.
        (true, true) => (present, now < next_border(ends)),
        (true, false) => (before, begins_before > 0 && begins <= next_border(begins_before)),
    };
    (is_wanted && (usage.used > 0 || usage.reached > 0)).then(|| (name.to_owned(), usage))
}
