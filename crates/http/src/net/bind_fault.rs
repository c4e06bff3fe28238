//! The reasons why an address cannot be listened on, and the remedies.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use tokio::time::Instant;

/// Maximum time to search for the process that has a port.
const SEARCH_MAX: Duration = Duration::from_secs(1);
/// The state of a listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";

/// The error of a bind, with the process that has the port or the right that is missing.
pub fn describe_bind_error(address: SocketAddr, error: &io::Error) -> String {
    let port = address.port();
    match error.kind() {
        io::ErrorKind::PermissionDenied if port < 1024 => {
            let program = std::env::current_exe().map(|path| path.display().to_string());
            let program = program.unwrap_or_else(|_| "sluicegate".to_owned());
            format!(
                "{error}; ports below 1024 need a right: grant it with `setcap cap_net_bind_service=+ep \
                 {program}`, or take a socket from systemd (`listen: systemd:NAME`), or choose another port"
            )
        }
        io::ErrorKind::AddrInUse => match find_listening_process(address) {
            Some(pid) if pid == std::process::id() => format!("{error}; this process has the port itself"),
            Some(pid) => format!("{error}; the port is taken by {}", describe_process(pid)),
            None => format!("{error}; the port is taken: `ss -ltnp 'sport = :{port}'` names the process"),
        },
        _ => error.to_string(),
    }
}

fn describe_process(pid: u32) -> String {
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("`{}` (process {pid})", name.trim_end().escape_debug()),
        Err(_) => format!("process {pid}"),
    }
}

/// The process that listens on the address. `None` = it belongs to another user, or was not found in time.
fn find_listening_process(address: SocketAddr) -> Option<u32> {
    let deadline = Instant::now() + SEARCH_MAX;
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let sockets: Vec<String> = tables
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| find_sockets(&table, address))
        .collect();
    if sockets.is_empty() {
        return None;
    }
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if Instant::now() > deadline {
            return None;
        }
        if has_socket(&process.path(), &sockets, deadline) {
            return Some(pid);
        }
    }
    None
}

/// The sockets of a kernel table that listen where `address` would, as `/proc/PID/fd` names them.
fn find_sockets(table: &str, address: SocketAddr) -> Vec<String> {
    let word = |bytes: &[u8]| bytes.try_into().map(u32::from_ne_bytes).unwrap_or_default();
    let own: String = match address.ip() {
        IpAddr::V4(ip) => format!("{:08X}", word(&ip.octets())),
        IpAddr::V6(ip) => ip.octets().chunks(4).map(|part| format!("{:08X}", word(part))).collect(),
    };
    let port = format!("{:04X}", address.port());
    let find = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (ip, its_port) = fields.get(1)?.split_once(':')?;
        let overlaps = address.ip().is_unspecified() || ip == own || ip.bytes().all(|digit| digit == b'0');
        let listens = fields.get(3) == Some(&LISTENING);
        (listens && its_port == port && overlaps)
            .then(|| format!("socket:[{}]", fields.get(9).unwrap_or(&"")))
    };
    table.lines().skip(1).filter_map(find).collect()
}

fn has_socket(process: &Path, sockets: &[String], deadline: Instant) -> bool {
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else { return false };
    let links = descriptors.flatten().take_while(|_| Instant::now() <= deadline);
    let mut links = links.filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
    links.any(|link| link.to_str().is_some_and(|link| sockets.iter().any(|socket| socket == link)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_low_port_names_the_remedies() {
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let told = describe_bind_error("0.0.0.0:80".parse().unwrap(), &denied);
        for remedy in ["setcap cap_net_bind_service=+ep /", "systemd:NAME", "another port"] {
            assert!(told.contains(remedy), "{told}");
        }
        let told = describe_bind_error("0.0.0.0:8080".parse().unwrap(), &denied);
        assert!(!told.contains("setcap"), "{told}");
    }

    #[test]
    fn a_taken_port_names_the_process() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let in_use = io::Error::from(io::ErrorKind::AddrInUse);
        // A slow machine may not finish the search.
        let told = describe_bind_error(address, &in_use);
        assert!(told.ends_with("this process has the port itself") || told.contains("ss -ltnp"), "{told}");
        let table = "sl local rem st\n 0: 0100007F:1F90 00000000:0000 0A 0:0 00:0 0 0 0 4711 1\n \
                     1: 00000000:1F90 00000000:0000 0A 0:0 00:0 0 0 0 4712 1\n \
                     2: 0100007F:1F90 0100007F:8888 01 0:0 00:0 0 0 0 4713 1\n \
                     3: 0200007F:1F90 00000000:0000 0A 0:0 00:0 0 0 0 4714 1\n";
        if cfg!(target_endian = "little") {
            let found = find_sockets(table, "127.0.0.1:8080".parse().unwrap());
            assert_eq!(found, ["socket:[4711]", "socket:[4712]"]);
        }
        assert_eq!(find_sockets(table, "0.0.0.0:8080".parse().unwrap()).len(), 3);
        assert!(find_sockets(table, "127.0.0.1:8081".parse().unwrap()).is_empty());
    }
}
