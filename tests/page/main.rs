//! The page for operators in a real browser: a headless Chromium between a running gateway and its admin listener.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

use sluicegate_testkit as support;

mod accessibility;
mod browser;
mod buttons;
mod live;
mod looks;
mod other_sites;
mod problems;
mod screenshots;
mod tables;
mod terminal_picture;
mod text_only;
mod tokens;
