//! The admin API: operators read, ban, change and follow.

mod answers;
mod bans;
mod certificates;
mod changes;
mod endpoints;
mod events;
mod history;
mod keys;
mod limit_changes;
mod limits;
