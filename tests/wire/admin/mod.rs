//! The admin API: operators read, ban, change and follow.

mod bans;
mod calls;
mod changes;
mod events;
mod keys;
mod limits;
