//! The listeners of the process: which there are, and how they follow a new configuration.
//!
//! A handle on every socket is kept here besides the workers', so that another process can be given them.

use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use socket2::SockRef;

use super::bind;
use super::bind::{BindTarget, BoundListener, BoundSockets, OpenSockets, SocketFileGuard};
use super::worker_thread::WorkerCommand;
use crate::config::ListenConfig;
use crate::downstream::listener_protocol::ListenerProtocol;

#[derive(Default)]
pub struct Listeners {
    listeners: Vec<OpenListener>,
    last_id: u64,
    /// Sockets that somebody passed and nobody listens on so far.
    spare_sockets: OpenSockets,
}

struct OpenListener {
    id: u64,
    target: BindTarget,
    display_address: String,
    sockets: BoundSockets,
    protocol: Arc<ArcSwap<ListenerProtocol>>,
    socket_file: Option<SocketFileGuard>,
}

/// What becomes of the listeners: everything that could fail has been done.
pub struct PreparedListeners {
    /// The listeners that stay, by their numbers, with their new doors.
    kept: Vec<(u64, ListenerProtocol)>,
    /// With the workers' handles on their sockets.
    added: Vec<(BoundListener, BoundSockets)>,
    /// What is left of the spare sockets.
    spare: OpenSockets,
}

/// What the workers are to be told of it.
pub struct ListenerChanges {
    pub accept: Vec<(usize, WorkerCommand)>,
    /// Numbers of listeners.
    pub close: Vec<u64>,
    /// Connections that are open may not go on as they are.
    pub recheck: bool,
}

impl Listeners {
    /// `spare` are sockets that may be asked for later.
    pub fn new(bound: Vec<BoundListener>, spare: OpenSockets) -> Listeners {
        let mut listeners = Listeners { spare_sockets: spare, ..Listeners::default() };
        for bound in bound {
            listeners.add_listener(bound);
        }
        listeners
    }

    fn add_listener(&mut self, bound: BoundListener) -> (u64, Arc<ArcSwap<ListenerProtocol>>) {
        let BoundListener { target: site, display_address: shown, mut sockets, protocol: door } = bound;
        let unlink = match &mut sockets {
            BoundSockets::Tcp(_) => None,
            BoundSockets::Unix(_, unlink) => unlink.take(),
        };
        self.last_id += 1;
        self.listeners.push(OpenListener {
            id: self.last_id,
            target: site,
            display_address: shown,
            sockets,
            protocol: door.clone(),
            socket_file: unlink,
        });
        (self.last_id, door)
    }

    /// Where it is listened on, as people are told.
    pub fn display_addresses(&self) -> Vec<String> {
        self.listeners.iter().map(|open| open.display_address.clone()).collect()
    }

    /// Orders by which `workers` workers accept from all listeners.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn accept_commands(&self, workers: usize) -> io::Result<Vec<(usize, WorkerCommand)>> {
        let mut orders = Vec::new();
        for open in &self.listeners {
            orders.extend(listener_commands(open.id, &open.protocol, open.sockets.clone_handles()?, workers));
        }
        Ok(orders)
    }

    /// Opens what `listen` has and we have not, and reads how connections begin everywhere.
    ///
    /// # Errors
    /// A sentence that names the address and the reason; nothing has changed then.
    pub fn prepare_change(
        &self,
        listen: &[ListenConfig],
        workers: usize,
    ) -> Result<PreparedListeners, String> {
        // Other handles: a configuration that is refused after all takes none away.
        let spare = self.spare_sockets.clone_handles().map_err(|error| format!("cannot listen: {error}"))?;
        let mut prepared = PreparedListeners { kept: Vec::new(), added: Vec::new(), spare };
        for entry in listen {
            let sites = bind::bind_targets(&entry.address);
            let is_taken = |id: u64| prepared.kept.iter().any(|(kept, _)| *kept == id);
            let ours = |open: &&OpenListener| sites.contains(&open.target) && !is_taken(open.id);
            let ids: Vec<u64> = self.listeners.iter().filter(ours).map(|open| open.id).collect();
            if ids.is_empty() {
                let entry = std::slice::from_ref(entry);
                for bound in bind::bind_listeners(entry, workers, &mut prepared.spare)? {
                    let theirs = bound.sockets.clone_handles();
                    let theirs = theirs
                        .map_err(|error| format!("cannot listen on {}: {error}", bound.display_address))?;
                    prepared.added.push((bound, theirs));
                }
            }
            for id in ids {
                let open = self.listeners.iter().find(|open| open.id == id);
                let before = open.map(|open| open.protocol.load_full());
                let door = ListenerProtocol::new(entry, before.as_deref())
                    .map_err(|error| format!("cannot serve {}: {error}", sites[0]))?;
                prepared.kept.push((id, door));
            }
        }
        Ok(prepared)
    }

    /// Makes `prepared` true.
    pub fn apply_change(&mut self, prepared: PreparedListeners, workers: usize) -> ListenerChanges {
        let PreparedListeners { kept: mut doors, added, spare } = prepared;
        self.spare_sockets = spare;
        let mut moves = ListenerChanges { accept: Vec::new(), close: Vec::new(), recheck: false };
        for mut open in std::mem::take(&mut self.listeners) {
            match doors.iter().position(|(id, _)| *id == open.id) {
                Some(place) => {
                    moves.recheck |= open.replace_protocol(doors.swap_remove(place).1);
                    self.listeners.push(open);
                }
                None => {
                    moves.close.push(open.id);
                    open.protocol.load().terms.mark_removed();
                    moves.recheck = true;
                    if let BindTarget::Systemd(_) = open.target {
                        // Whoever passed it will not do so again.
                        tracing::warn!("{} stays open, and nothing listens on it any more", open.target);
                        self.spare_sockets.add_sockets(open.target, open.sockets);
                    }
                }
            }
        }
        for (bound, theirs) in added {
            self.spare_sockets.take_sockets(&bound.target);
            let (id, door) = self.add_listener(bound);
            moves.accept.extend(listener_commands(id, &door, theirs, workers));
        }
        moves
    }

    /// Removes the files of unix sockets when their listeners close, and at once where there is none: the process that
    /// made them has left.
    pub fn adopt_socket_files(&mut self, files: Vec<PathBuf>) {
        for file in files {
            let site = BindTarget::Unix(file.clone());
            let unlink = SocketFileGuard::new(file);
            if let Some(open) = self.listeners.iter_mut().find(|open| open.target == site) {
                open.socket_file = Some(unlink);
                // The new file may say another than the process that made the socket was told.
                open.apply_mode(open.protocol.load().mode);
            }
        }
    }

    /// More handles on all sockets, also those that nobody listens on, for another process.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn export_sockets(&self) -> io::Result<Vec<(BindTarget, BoundSockets)>> {
        let mut all = self.spare_sockets.clone_handles()?;
        for open in &self.listeners {
            all.add_sockets(open.target.clone(), open.sockets.clone_handles()?);
        }
        Ok(all.drain_all().collect())
    }

    /// Lets go of all sockets, which another process has.
    pub fn release_sockets(&mut self) {
        for open in self.listeners.drain(..) {
            if let Some(unlink) = open.socket_file {
                unlink.keep_file();
            }
        }
    }

    /// Closes our handles; what the workers have is theirs to close.
    pub fn close_all(&mut self) {
        self.listeners.clear();
    }
}

/// Orders by which the workers accept from `theirs`, their handles on the sockets of listener `id`.
fn listener_commands(
    id: u64,
    door: &Arc<ArcSwap<ListenerProtocol>>,
    theirs: BoundSockets,
    workers: usize,
) -> Vec<(usize, WorkerCommand)> {
    let first = id as usize;
    let order = |place: usize, sockets: BoundSockets| {
        ((first + place) % workers, WorkerCommand::Accept(id, sockets, door.clone()))
    };
    match theirs {
        BoundSockets::Tcp(all) => {
            all.iter().for_each(set_nodelay);
            let one_each = all.into_iter().enumerate();
            one_each.map(|(place, socket)| order(place, BoundSockets::Tcp(vec![socket]))).collect()
        }
        // Who accepts hands over to those with fewer.
        unix @ BoundSockets::Unix(..) => vec![order(0, unix)],
    }
}

/// Small answers must not wait for an acknowledgement of the one before. On Linux what is accepted inherits that from
/// the listening socket, which saves a call for each connection.
fn set_nodelay(listener: &TcpListener) {
    if let Err(error) = SockRef::from(listener).set_tcp_nodelay(true) {
        tracing::warn!(%error, "cannot set TCP_NODELAY");
    }
}

// === impl Open ===

impl OpenListener {
    /// Answers whether connections have to be looked at again.
    fn replace_protocol(&mut self, door: ListenerProtocol) -> bool {
        if let Ok(shown) = self.sockets.display_address(door.tls.is_some()) {
            self.display_address = shown;
        }
        let door = Arc::new(door);
        self.apply_mode(door.mode);
        let before = self.protocol.swap(door.clone());
        door.replace_previous(&before)
    }

    /// Gives a unix socket's file the mode that is wanted, if one is.
    fn apply_mode(&self, mode: Option<u32>) {
        if let (BindTarget::Unix(path), Some(mode)) = (&self.target, mode)
            && let Err(error) = bind::set_socket_mode(path, mode)
        {
            tracing::error!(%error, "the mode of {} cannot be set", self.target);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;
    use crate::config::ListenAddress;

    #[test]
    fn what_is_accepted_sends_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        set_nodelay(&listener);
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(listener.accept().unwrap().0.nodelay().unwrap());
    }

    /// A reload may keep one socket of a bare port and close the other, or ask more on one of them.
    #[test]
    fn the_sockets_of_a_bare_port_have_protocols_of_their_own() {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let bare = |port| {
            bind::bind_listeners(
                &[ListenConfig::with_address(ListenAddress::Port(port))],
                1,
                &mut OpenSockets::default(),
            )
        };
        // Another process may take the port in between.
        let bound = (0..10).find_map(|_| bare(free()).ok()).expect("a free port");
        let mut listeners = Listeners::new(bound, OpenSockets::default());
        let v4 = match &listeners.listeners.last().expect("a listener").target {
            BindTarget::Tcp(address) => ListenConfig::with_address(ListenAddress::Address(*address)),
            other => panic!("{other}"),
        };
        let prepared = listeners.prepare_change(&[v4], 1).unwrap();
        listeners.apply_change(prepared, 1);
        assert_eq!(listeners.listeners.len(), 1);
        assert!(listeners.listeners[0].protocol.load().terms.is_open(), "it stays");
    }

    #[test]
    fn a_refused_configuration_takes_no_socket_of_systemd_away() {
        let [passed, taken] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let mut spare = OpenSockets::default();
        spare.add_sockets(BindTarget::Systemd("web".to_owned()), BoundSockets::Tcp(vec![passed]));
        let mut listeners = Listeners::new(Vec::new(), spare);
        let web = || ListenConfig::with_address(ListenAddress::Systemd("web".to_owned()));
        let elsewhere = ListenConfig::with_address(ListenAddress::Address(taken.local_addr().unwrap()));
        assert!(listeners.prepare_change(&[web(), elsewhere], 1).is_err());
        drop(listeners.prepare_change(&[web()], 1).unwrap());
        assert_eq!(listeners.export_sockets().unwrap().len(), 1, "another process may want to listen on it");
        let prepared = listeners.prepare_change(&[web()], 1).unwrap();
        assert_eq!(listeners.apply_change(prepared, 1).accept.len(), 1);
        assert_eq!(listeners.export_sockets().unwrap().len(), 1);
        assert!(listeners.prepare_change(&[web(), web()], 1).is_err(), "there was one");
    }
}
