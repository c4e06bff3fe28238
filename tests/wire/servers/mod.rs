//! The servers of an upstream: drained, ejected, checked, queued for, retried, named by cookies.

mod drain;
mod eject;
mod health;
mod queue;
mod queue_ends;
mod reasons;
mod retry;
mod sticky;
