//! Stands where `server/` goes until it is merged.

use crate::config::Config;

/// Why the gateway ended otherwise than by a signal.
#[derive(Debug)]
pub enum Fault {
    /// A listening socket could not be had.
    Listen(String),
    Run(String),
}

/// Serves nothing yet.
pub fn run(config: Config, source: &str) -> Result<(), Fault> {
    let listen = config.listen.iter().map(|listen| match listen {
        crate::config::Listen::Address(address) => std::net::TcpListener::bind(address),
        _ => std::net::TcpListener::bind("127.0.0.1:0"),
    });
    let bound: Vec<_> = listen.collect::<Result<_, _>>().map_err(|error| Fault::Listen(error.to_string()))?;
    let shown: Vec<String> =
        bound.iter().filter_map(|listener| Some(format!("http://{}", listener.local_addr().ok()?))).collect();
    crate::banner::print(&config, source, &shown, None);
    Err(Fault::Run("nothing is served yet".to_owned()))
}
