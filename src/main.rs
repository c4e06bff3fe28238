//! The `sluicegate` program: sets the allocator and runs the command line.

#![forbid(unsafe_code)]

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    sluicegate::cli::run(std::env::args_os())
}
