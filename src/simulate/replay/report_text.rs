//! The result of a replay as text for people.

use std::fmt;

use super::report::{ChangedKey, ConfigChange, KeyLine, LimitLine, ReplayReport, StepLine, share_of};
use super::tally::KeyTally;
use crate::operate::text_table::{self, show_count};

impl fmt::Display for ReplayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ReplayReport { requests, admitted, waited, rejected, faults, .. } = *self;
        let part = |count: u64| format!("{} ({})", show_count(count), percent(count, requests));
        let [all, waited, broken] = [requests, waited, faults].map(show_count);
        writeln!(f, "requests  {all}\nadmitted  {}, of which {waited} wait", part(admitted))?;
        write!(f, "rejected  {}", part(rejected))?;
        match &self.range {
            Some(range) => {
                let [[from, to], [least, most]] = [range.rejected, range.waited].map(|r| r.map(show_count));
                writeln!(
                    f,
                    "; between {from} and {to}, and {least} to {most} wait, as the log tells seconds only"
                )?;
            }
            None => writeln!(f)?,
        }
        if faults > 0 {
            writeln!(f, "faults    {broken}: rejected for other reasons than limits")?;
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
            writeln!(f, "note: {} lines are no requests", show_count(self.log.without_request))?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}

impl ReplayReport {
    fn write_logged(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let logged = &self.logged;
        let [rejected, waited, compared] = [logged.rejected, logged.waited, logged.compared].map(show_count);
        writeln!(f, "in the log  {rejected} rejected, {waited} waited")?;
        if logged.compared > 0 {
            let share = percent(logged.agreed, logged.compared);
            writeln!(
                f,
                "            {share} of {compared} verdicts are the same as here, with those of dry runs"
            )?;
        }
        Ok(())
    }

    fn write_limits(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = Vec::new();
        for line in self.limit_lines.iter().filter(|line| line.not_judged.is_none()) {
            let LimitLine { name, counts, keys, keys_rejected, .. } = line;
            let name = line.mode().map_or_else(|| name.clone(), |mode| format!("{name} ({mode})"));
            let KeyTally { requests, admitted, waited, rejected, .. } = *counts;
            let numbers = [requests, admitted, waited, rejected, *keys as u64, *keys_rejected as u64];
            let [requests, admitted, waited, rejected, keys, hit] = numbers.map(show_count);
            rows.push([name, requests, admitted, waited, rejected, keys, hit]);
        }
        const HEADER: [&str; 7] = ["limit", "requests", "admitted", "waited", "rejected", "keys", "hit"];
        f.write_str(&text_table::render_table(HEADER, rows.into_iter(), usize::MAX))?;
        for line in &self.limit_lines {
            if let Some(reason) = &line.not_judged {
                writeln!(f, "{}: not judged: {reason}", line.name)?;
            }
            for StepLine { at, then, reached } in &line.steps {
                writeln!(f, "{}: {} reached {at}% ({then})", line.name, show_count(*reached))?;
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
            [key, limit, &show_count(*requests), &show_count(*waited), &show_count(*rejected), &share]
                .map(String::clone)
        });
        const HEADER: [&str; 6] = ["hit first", "limit", "requests", "waited", "rejected", "share"];
        f.write_str(&text_table::render_table(HEADER, rows, usize::MAX))
    }
}

fn write_change(f: &mut fmt::Formatter<'_>, change: &ConfigChange) -> fmt::Result {
    let ConfigChange { newly_rejected, newly_admitted, newly_rejected_by, newly_admitted_by } = change;
    let [rejected, admitted] = [*newly_rejected, *newly_admitted].map(show_count);
    writeln!(f, "\nagainst the other file: {rejected} newly rejected, {admitted} newly admitted")?;
    for (word, changed) in [("rejected", newly_rejected_by), ("admitted", newly_admitted_by)] {
        for ChangedKey { limit, key, requests } in changed {
            let key = if key.is_empty() { "" } else { &format!("  {key}") };
            writeln!(f, "  newly {word} by {limit}{key}: {}", show_count(*requests))?;
        }
    }
    Ok(())
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.2}%", share_of(part, whole) * 100.0)
}
