//! Renders an explanation as text for people.

use std::fmt;

use super::describe::format_ns;
use super::{
    ArrivalExplanation, ClassExplanation, ClientExplanation, CounterExplanation, Explanation,
    GrantExplanation, LeasedUnits, LimitExplanation, VerdictExplanation,
};

const MS: u64 = 1_000_000;

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.client {
            Some(client) => self.fmt_request(client, f)?,
            None => writeln!(f, "call      {}", self.named_limits.join(", "))?,
        }
        let ban = self.ban_left_ms.map(|left_ms| {
            let by = self
                .ban
                .as_ref()
                .map(|ban| format!(": {}, banned by {}: {}", ban.target, ban.by, ban.reason));
            format!("{} left{}", format_ns(left_ms * MS), by.unwrap_or_default())
        });
        let stop = self.stop.as_ref().map(|stop| {
            let left = match stop.left_ms {
                0 => "over, and the pace climbs".to_owned(),
                left_ms => format!("{} left", format_ns(left_ms * MS)),
            };
            let said = stop.status.map_or("nothing is left".to_owned(), |status| status.to_string());
            let wait = format_ns(stop.wait_ms * MS);
            format!("{left}: upstream {} answered {said}; wait {wait}", stop.upstream)
        });
        let token = self.token.as_ref().map(|token| match &token.why {
            None => "accepted".to_owned(),
            Some(why) => format!("not accepted: {why}"),
        });
        let account = self.account.as_ref().map(|account| match &account.name {
            Some(name) => format!("{name}, from {}", account.from),
            None if account.token_not_accepted => "none: the token is not accepted".to_owned(),
            None => format!("none: there is no {}", account.from),
        });
        let (access, tier) = (self.access.map(str::to_owned), self.tier.clone());
        let names = ["access", "ban", "stop", "servers", "token", "auth", "account", "tier"];
        let (auth, servers) = (self.auth.clone(), self.servers.clone());
        for (name, fact) in names.into_iter().zip([access, ban, stop, servers, token, auth, account, tier]) {
            fact.map_or(Ok(()), |fact| writeln!(f, "{name:<10}{fact}"))?;
        }
        match (self.limits.is_empty(), self.limits_not_judged.is_empty()) {
            (true, true) => writeln!(f, "limits    none")?,
            (true, false) => writeln!(f, "limits    not judged: {}", self.limits_not_judged.join(", "))?,
            (false, _) => writeln!(f, "limits")?,
        }
        self.limits.iter().try_for_each(|limit| limit.fmt(f))?;
        self.verdict.fmt(f)
    }
}

impl Explanation {
    /// Writes the part that a request has and a call has not.
    fn fmt_request(&self, client: &ClientExplanation, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "client    {}: {}", client.ip, client.why)?;
        writeln!(f, "host      {}", self.host.as_deref().unwrap_or("cannot be read"))?;
        writeln!(f, "path      {}", self.path.as_deref().unwrap_or("cannot be read"))?;
        match &self.arrival {
            Some(ArrivalExplanation { scheme, listener: Some(listener) }) => {
                writeln!(f, "arrival   {scheme}, listener {listener}")?
            }
            Some(ArrivalExplanation { scheme, listener: None }) => writeln!(f, "arrival   {scheme}")?,
            None => {}
        }
        match &self.location {
            Some(found) => writeln!(f, "location  {}: {}", found.location, found.why)?,
            None => writeln!(f, "location  none")?,
        }
        for other in &self.passed_over {
            writeln!(f, "          not {}: {}", other.location, other.why)?;
        }
        Ok(())
    }
}

impl fmt::Display for LimitExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {}", self.does)?;
        if let Some(why) = &self.skipped {
            writeln!(f, "    skipped: {why}")?;
        }
        if let Some(problem) = &self.problem {
            let outcome = if self.dry_run || self.unenforced { "would be refused" } else { "refused" };
            writeln!(f, "    {outcome}: {problem}")?;
        }
        if let Some(missing) = self.body {
            writeln!(f, "    {missing}; give it with --data BODY")?;
        }
        if let Some(by) = &self.counts_by {
            let units = match (self.cost, self.reserves) {
                (_, Some(units)) if self.is_named => format!(", reserves {units} until it is settled"),
                (_, Some(units)) => format!(", reserves {units} until its response is over"),
                (Some(1) | None, None) => String::new(),
                (Some(cost), None) => format!(", cost {cost}"),
            };
            writeln!(f, "    counts by {by}{units}")?;
        }
        if let Some(ClassExplanation { name, why }) = &self.class {
            writeln!(f, "    class {name}: {why}")?;
        }
        if self.unenforced && self.counts_by.is_some() {
            writeln!(f, "    unenforced: this key is not in the share that the limit acts on")?;
        }
        if let Some(GrantExplanation { left_ms, by, reason }) = &self.grant {
            writeln!(f, "    by other numbers for {}, granted by {by}: {reason}", format_ns(left_ms * MS))?;
        }
        if let Some(without) = self.without_redis {
            writeln!(f, "    {}", without_redis(without, self.dry_run || self.unenforced))?;
        }
        for counter in &self.counters {
            let rate = counter.rate.as_ref().filter(|_| self.counters.len() > 1);
            let rate = rate.map(|rate| format!("{rate}: ")).unwrap_or_default();
            write!(f, "    {rate}")?;
            counter.write_line(f, if self.dry_run || self.unenforced { "would " } else { "" })?;
        }
        Ok(())
    }
}

fn without_redis(word: &str, dry_run: bool) -> &'static str {
    match (word, dry_run) {
        ("local", _) => "Redis does not answer; this gateway's share decides",
        ("allow", _) => "Redis does not answer; the request passes",
        ("reject", false) => "Redis does not answer; the request is rejected with 503",
        ("reject", true) => "Redis does not answer; the request would be rejected with 503",
        _ => "counted in Redis; its counters are unknown offline",
    }
}

impl fmt::Display for LeasedUnits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "leased: {} here, {} in the store", self.here, self.store)
    }
}

impl CounterExplanation {
    /// `would` stands before an outcome that has no effect.
    fn write_line(&self, f: &mut fmt::Formatter<'_>, would: &str) -> fmt::Result {
        let left = if self.rate.is_some() { "left" } else { "slots free" };
        write!(f, "{} of {} {left}", self.remaining, self.of)?;
        if let Some(own) = self.own {
            write!(f, ", {own} of its own")?;
        }
        if let Some(leased) = &self.leased {
            write!(f, ", {leased}")?;
        }
        if let Some(window) = &self.window {
            write!(f, " {window}")?;
        }
        if self.remaining.units == 0 && self.reset_ms > 0 {
            write!(f, ", one more in {}", format_ns(self.reset_ms * MS))?;
        }
        match (self.outcome, self.retry_after_ms) {
            ("wait", _) if self.rate.is_none() => writeln!(f, ": {would}wait for a free one"),
            ("wait", _) => writeln!(f, ": {would}wait {}", format_ns(self.wait_ms * MS)),
            ("reject", Some(retry)) => {
                writeln!(f, ": {would}reject, it would fit in {}", format_ns(retry * MS))
            }
            ("reject", None) => writeln!(f, ": {would}reject"),
            (outcome, _) => writeln!(f, ": {outcome}"),
        }
    }
}

impl fmt::Display for VerdictExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "verdict   {}", self.outcome)?;
        if let Some(status) = self.status {
            write!(f, " with {status}")?;
        }
        if let (Some(position), Some(limit)) = (self.position, &self.limit) {
            write!(f, " at position {position} in the queue of limit {limit}, then")?;
        }
        match (self.wait_ms, &self.limit, self.servers.as_deref().or(self.cause)) {
            _ if self.position.is_some() => {}
            (Some(wait), Some(limit), _) => {
                write!(f, " {} in the queue of limit {limit}, then", format_ns(wait * MS))?
            }
            (Some(wait), None, Some(cause)) => {
                write!(f, ": {cause}, after {} in a queue", format_ns(wait * MS))?
            }
            (None, Some(limit), Some(cause)) => write!(f, " by limit {limit}: {cause}")?,
            (None, None, Some(cause)) => write!(f, ": {cause}")?,
            _ if self.then.is_none() => {}
            _ => write!(f, ":")?,
        }
        if let Some(seconds) = &self.retry_after {
            write!(f, ", Retry-After {seconds}")?;
        }
        if let Some(ms) = self.retry_after_ms {
            let turn = if self.turn.is_some() { "its turn " } else { "" };
            write!(f, " ({turn}in {})", format_ns(ms * MS))?;
        }
        match &self.then {
            Some(then) if self.cause.is_some() => writeln!(f, "; {then}"),
            Some(then) if self.servers.is_some() => writeln!(f, ", then {then}"),
            Some(then) => writeln!(f, " {then}"),
            None => writeln!(f),
        }
    }
}
