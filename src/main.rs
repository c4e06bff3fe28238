//! The `sluicegate` program: the allocator, and the way into the command line.

#![forbid(unsafe_code)]

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    sluicegate::cli::run(std::env::args_os())
}
