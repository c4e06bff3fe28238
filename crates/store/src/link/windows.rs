//! Reads what all keys of a rate have used in a window of the calendar, from every primary.

use std::collections::HashSet;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use siphasher::sip128::SipHasher13;
use tokio::time::{sleep, timeout};

use super::Store;
use super::connection::{StoreConnection, check_answer};
use super::fault::StoreFault;
use crate::script::rule::RateRule;
use crate::script::{read_double, read_number};
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

impl Store {
    /// Reads the present window of every key of a rate or, with `last`, the one before; `take` gets some at a time in
    /// no order, and ends the reading with false. `anchor_of` tells the date of the account in the name of a key.
    ///
    /// # Errors
    /// A server does not answer or does not allow it, or there are more than two million keys
    /// ([`StoreFault::Full`]). What was taken is not all then.
    pub async fn read_windows(
        &self,
        rule: &RateRule,
        last: bool,
        anchor_of: impl Fn(&str) -> Option<Anchor>,
        mut take: impl AsyncFnMut(Vec<NamedWindow>) -> bool,
    ) -> Result<(), StoreFault> {
        let topology = self.topology.load_full();
        if topology.servers.is_empty() {
            return Err(StoreFault::Down);
        }
        let mut seen: HashSet<u128> = HashSet::new();
        for server in &topology.servers {
            let connection = self.connector.connect(&server.address).await.map_err(|fault| fault.kind)?;
            let mut cursor = b"0".to_vec();
            loop {
                let (next, mut names) =
                    scan_keys(&connection, &cursor, &rule.names_pattern(&self.prefix)).await?;
                // A server may name a key twice, and so may both servers of one that moves.
                names.retain(|name| seen.insert(SipHasher13::new().hash(name).as_u128()));
                if seen.len() > KEYS_MAX {
                    return Err(StoreFault::Full);
                }
                let now = self.unix_seconds();
                let values = read_values(&connection, &names).await?;
                let found = values
                    .iter()
                    .filter_map(|value| read_window(rule, value, (last, now), &anchor_of))
                    .collect();
                if !take(found).await {
                    return Ok(());
                }
                if next == b"0" {
                    break;
                }
                cursor = next;
                sleep(SCAN_PAUSE).await;
            }
        }
        Ok(())
    }
}

/// The next cursor, and the names of some keys.
async fn scan_keys(
    connection: &StoreConnection,
    cursor: &[u8],
    pattern: &str,
) -> Result<(Vec<u8>, Vec<Vec<u8>>), StoreFault> {
    let mut scan = Cmd::new();
    scan.arg("SCAN").arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT);
    let answer = timeout(SCAN_TIMEOUT, connection.send_command(&scan)).await;
    let answer = answer.map_err(|_| StoreFault::Timeout)?.map_err(|error| StoreFault::from_error(&error))?;
    let Value::Array(parts) = answer else { return Err(StoreFault::Garbled) };
    let Ok([Value::BulkString(next), Value::Array(names)]) = <[Value; 2]>::try_from(parts) else {
        return Err(StoreFault::Garbled);
    };
    let name = |name| match name {
        Value::BulkString(name) => Ok(name),
        _ => Err(StoreFault::Garbled),
    };
    Ok((next, names.into_iter().map(name).collect::<Result<_, _>>()?))
}

/// The values of those keys that are still there.
async fn read_values(connection: &StoreConnection, names: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, StoreFault> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let mut pipeline = Pipeline::with_capacity(names.len());
    for name in names {
        pipeline.cmd("GET").arg(name);
    }
    let answers = timeout(SCAN_TIMEOUT, connection.send_pipeline(&pipeline)).await;
    let answers =
        answers.map_err(|_| StoreFault::Timeout)?.map_err(|error| StoreFault::from_error(&error))?;
    let mut values = Vec::with_capacity(answers.len());
    for answer in answers {
        match check_answer(answer).map_err(|error| StoreFault::from_error(&error))? {
            Value::BulkString(value) => values.push(value),
            Value::Nil => {}
            _ => return Err(StoreFault::Garbled),
        }
    }
    Ok(values)
}

/// The wanted window of a counter; `None` if it has counted nothing there, has no name, or is not ours.
fn read_window(
    rule: &RateRule,
    mut value: &[u8],
    (last, now): (bool, u64),
    anchor_of: impl Fn(&str) -> Option<Anchor>,
) -> Option<NamedWindow> {
    let (begins, ends) = (read_number(&mut value)?, read_number(&mut value)?);
    let present = (read_number(&mut value)?, read_number(&mut value)?);
    let begins_before = read_number(&mut value)?;
    let before = (read_number(&mut value)?, read_number(&mut value)?);
    // The pace of a step.
    read_double(&mut value)?;
    let (reached, reached_before) = (read_number(&mut value)? as u8, read_number(&mut value)? as u8);
    let (quota, quota_before) = (read_number(&mut value)?, read_number(&mut value)?);
    let name = str::from_utf8(value).ok()?;
    let name = Some(name).filter(|name| !name.is_empty() && !name.contains(char::is_control))?;
    let anchor = anchor_of(name);
    let is_over = ends <= now;
    let follows = |ends: u64| (rule.borders(ends, anchor)[1]..rule.borders(ends, anchor)[2]).contains(&now);
    let usage = |begins, ends, (used, reserved), quota, reached| {
        Some(WindowUsage { quota, used, reserved, begins, ends, reached })
    };
    let usage = match (last, is_over) {
        (false, false) => usage(begins, ends, present, quota, reached),
        // The window of the counter is the last one, if nothing was counted since.
        (true, true) if follows(ends) => usage(begins, ends, present, quota, reached),
        (true, false) if begins_before > 0 && rule.borders(begins_before, anchor)[2] >= begins => {
            usage(begins_before, begins, before, quota_before, reached_before)
        }
        _ => None,
    }?;
    Some((name.to_owned(), usage))
}
