//! The admin API: operators read, ban, change and follow.

mod bans;
mod changes;
mod endpoints;
mod events;
mod keys;
mod limits;
