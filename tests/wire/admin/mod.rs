//! The admin API: operators read, ban, change and follow.

mod answers;
mod bans;
mod changes;
mod endpoints;
mod events;
mod keys;
mod limits;
