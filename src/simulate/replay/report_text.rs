//! The result of a replay as text for people.

use std::fmt;

use super::report::{ChangedKey, ConfigChange, KeyLine, LimitLine, ReplayReport, share_of};
use crate::operate::text_table;

impl fmt::Display for ReplayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ReplayReport { requests, admitted, waited, rejected, faults, .. } = *self;
        writeln!(f, "requests  {requests}")?;
        writeln!(f, "admitted  {admitted} ({}), of which {waited} wait", percent(admitted, requests))?;
        write!(f, "rejected  {rejected} ({})", percent(rejected, requests))?;
        match &self.range {
            Some(range) => {
                let ([from, to], [least, most]) = (range.rejected, range.waited);
                writeln!(
                    f,
                    "; between {from} and {to}, and {least} to {most} wait, as the log tells seconds only"
                )?;
            }
            None => writeln!(f)?,
        }
        if faults > 0 {
            writeln!(f, "faults    {faults}: rejected for other reasons than limits")?;
        }
        self.write_logged(f)?;
        self.write_limits(f)?;
        self.write_keys(f)?;
        if let Some(change) = &self.against {
            write_change(f, change)?;
        }
        if let Some(unreadable) = self.log.describe_unreadable() {
            writeln!(f, "note: {unreadable}")?;
        }
        if self.log.without_request > 0 {
            writeln!(f, "note: {} lines are no requests", self.log.without_request)?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        Ok(())
    }
}

impl ReplayReport {
    fn write_logged(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let logged = &self.logged;
        writeln!(f, "in the log  {} rejected, {} waited", logged.rejected, logged.waited)?;
        if logged.compared > 0 {
            let share = percent(logged.agreed, logged.compared);
            let of = format!("{share} of {} verdicts", logged.compared);
            writeln!(f, "            {of} are the same as here, with those of dry runs")?;
        }
        Ok(())
    }

    fn write_limits(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = Vec::new();
        for line in self.limit_lines.iter().filter(|line| line.not_judged.is_none()) {
            let LimitLine { name, counts, keys, keys_rejected, .. } = line;
            let name = line.mode().map_or_else(|| name.clone(), |mode| format!("{name} ({mode})"));
            rows.push([
                name,
                counts.requests.to_string(),
                counts.admitted.to_string(),
                counts.waited.to_string(),
                counts.rejected.to_string(),
                keys.to_string(),
                keys_rejected.to_string(),
            ]);
        }
        const HEADER: [&str; 7] = ["limit", "requests", "admitted", "waited", "rejected", "keys", "hit"];
        f.write_str(&text_table::render_table(HEADER, rows.into_iter(), usize::MAX))?;
        for line in &self.limit_lines {
            if let Some(reason) = &line.not_judged {
                writeln!(f, "{}: not judged: {reason}", line.name)?;
            }
        }
        Ok(())
    }

    fn write_keys(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.keys.is_empty() {
            return writeln!(f, "\nno key waits or is rejected");
        }
        let rows = self.keys.iter().map(|KeyLine { limit, key, requests, waited, rejected, share }| {
            let share = format!("{:.1}%", share * 100.0);
            [key, limit, &requests.to_string(), &waited.to_string(), &rejected.to_string(), &share]
                .map(String::clone)
        });
        const HEADER: [&str; 6] = ["hit first", "limit", "requests", "waited", "rejected", "share"];
        f.write_str(&text_table::render_table(HEADER, rows, usize::MAX))
    }
}

fn write_change(f: &mut fmt::Formatter<'_>, change: &ConfigChange) -> fmt::Result {
    let ConfigChange { newly_rejected, newly_admitted, newly_rejected_by, newly_admitted_by } = change;
    writeln!(
        f,
        "\nagainst the other file: {newly_rejected} newly rejected, {newly_admitted} newly admitted"
    )?;
    for (word, changed) in [("rejected", newly_rejected_by), ("admitted", newly_admitted_by)] {
        for ChangedKey { limit, key, requests } in changed {
            let key = if key.is_empty() { "" } else { &format!("  {key}") };
            writeln!(f, "  newly {word} by {limit}{key}: {requests}")?;
        }
    }
    Ok(())
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.2}%", share_of(part, whole) * 100.0)
}
