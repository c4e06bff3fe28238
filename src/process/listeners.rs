//! The listeners of the process, and their change to a new configuration.
//!
//! Keeps a handle on every socket besides those of the workers, to hand over to another process.

use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use socket2::SockRef;

use sluicegate_model::ListenConfig;
use sluicegate_proxy::downstream::bind::{
    self, BindTarget, BoundListener, BoundSockets, OpenSockets, SocketFileGuard,
};
use sluicegate_proxy::downstream::listener_protocol::ListenerProtocol;
use sluicegate_proxy::downstream::worker_thread::WorkerCommand;

#[derive(Default)]
pub(super) struct Listeners {
    listeners: Vec<OpenListener>,
    last_id: u64,
    /// Passed sockets that no listener uses so far.
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

/// A change of the listeners; all that could fail has succeeded.
pub(super) struct PreparedListeners {
    /// The listeners that stay, by id, with their new protocols.
    kept: Vec<(u64, ListenerProtocol)>,
    /// New listeners, with the workers' handles on their sockets.
    added: Vec<(BoundListener, BoundSockets)>,
    /// The remaining spare sockets.
    spare: OpenSockets,
}

/// The commands that carry the change to the workers: to accept, the ids of listeners to close, and whether open
/// connections must be checked again.
type ListenerChanges = (Vec<(usize, WorkerCommand)>, Vec<u64>, bool);

impl Listeners {
    /// `spare` are sockets that a later configuration may use.
    pub(super) fn new(bound: Vec<BoundListener>, spare: OpenSockets) -> Listeners {
        let mut listeners = Listeners { spare_sockets: spare, ..Listeners::default() };
        for bound in bound {
            listeners.add_listener(bound);
        }
        listeners
    }

    fn add_listener(&mut self, bound: BoundListener) -> (u64, Arc<ArcSwap<ListenerProtocol>>) {
        let BoundListener { target, display_address, mut sockets, protocol } = bound;
        let socket_file = match &mut sockets {
            BoundSockets::Tcp(_) => None,
            BoundSockets::Unix(_, file_guard) => file_guard.take(),
        };
        self.last_id += 1;
        let (id, used) = (self.last_id, protocol.clone());
        self.listeners.push(OpenListener {
            id,
            target,
            display_address,
            sockets,
            protocol: used,
            socket_file,
        });
        (id, protocol)
    }

    /// The addresses of all listeners, for people.
    pub(super) fn display_addresses(&self) -> Vec<String> {
        self.listeners.iter().map(|open| open.display_address.clone()).collect()
    }

    /// Commands that make `workers` workers accept from all listeners.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub(super) fn accept_commands(&self, workers: usize) -> io::Result<Vec<(usize, WorkerCommand)>> {
        let mut commands = Vec::new();
        for open in &self.listeners {
            let theirs = open.sockets.clone_handles()?;
            commands.extend(listener_commands(open.id, &open.protocol, theirs, workers));
        }
        Ok(commands)
    }

    /// Opens the new listeners of `listen`, and builds the protocol of every listener.
    ///
    /// # Errors
    /// A sentence that names the address and the reason; then nothing has changed.
    pub(super) fn prepare_change(
        &self,
        listen: &[ListenConfig],
        workers: usize,
    ) -> Result<PreparedListeners, String> {
        // Cloned handles: a configuration that is rejected later takes no socket away.
        let spare = self.spare_sockets.clone_handles().map_err(|error| format!("cannot listen: {error}"))?;
        let mut prepared = PreparedListeners { kept: Vec::new(), added: Vec::new(), spare };
        for entry in listen {
            let targets = bind::bind_targets(&entry.address);
            let is_taken = |id: u64| prepared.kept.iter().any(|(kept, _)| *kept == id);
            let ours = |open: &&OpenListener| targets.contains(&open.target) && !is_taken(open.id);
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
                let protocol = ListenerProtocol::new(entry, before.as_deref())
                    .map_err(|error| format!("cannot serve {}: {error}", targets[0]))?;
                prepared.kept.push((id, protocol));
            }
        }
        Ok(prepared)
    }

    /// Puts `prepared` in force.
    pub(super) fn apply_change(&mut self, prepared: PreparedListeners, workers: usize) -> ListenerChanges {
        let PreparedListeners { kept: mut protocols, added, spare } = prepared;
        self.spare_sockets = spare;
        let (mut accept, mut close, mut recheck) = (Vec::new(), Vec::new(), false);
        for mut open in std::mem::take(&mut self.listeners) {
            match protocols.iter().position(|(id, _)| *id == open.id) {
                Some(index) => {
                    recheck |= open.replace_protocol(protocols.swap_remove(index).1);
                    self.listeners.push(open);
                }
                None => {
                    close.push(open.id);
                    open.protocol.load().terms.mark_removed();
                    recheck = true;
                    if let BindTarget::Systemd(_) = open.target {
                        // systemd will not pass it again.
                        tracing::warn!("{} stays open, and nothing listens on it any more", open.target);
                        self.spare_sockets.add_sockets(open.target, open.sockets);
                    }
                }
            }
        }
        for (bound, theirs) in added {
            self.spare_sockets.take_sockets(&bound.target);
            let (id, protocol) = self.add_listener(bound);
            accept.extend(listener_commands(id, &protocol, theirs, workers));
        }
        (accept, close, recheck)
    }

    /// Takes over the files of unix sockets from the process that made them: removes each when its listener closes, or
    /// at once without a listener.
    pub(super) fn adopt_socket_files(&mut self, files: Vec<PathBuf>) {
        for file in files {
            let target = BindTarget::Unix(file.clone());
            let file_guard = SocketFileGuard(file);
            if let Some(open) = self.listeners.iter_mut().find(|open| open.target == target) {
                open.socket_file = Some(file_guard);
                // The new file may set another mode than the one that the old process applied.
                open.apply_mode(open.protocol.load().mode);
            }
        }
    }

    /// More handles on all sockets, spare ones included, for another process.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub(super) fn export_sockets(&self) -> io::Result<Vec<(BindTarget, BoundSockets)>> {
        let mut all = self.spare_sockets.clone_handles()?;
        for open in &self.listeners {
            all.add_sockets(open.target.clone(), open.sockets.clone_handles()?);
        }
        Ok(all.drain_all().collect())
    }

    /// Drops all sockets and keeps their files: another process has taken over.
    pub(super) fn release_sockets(&mut self) {
        for open in self.listeners.drain(..) {
            if let Some(file_guard) = open.socket_file {
                file_guard.keep_file();
            }
        }
    }

    /// Closes the handles kept here; the workers close their own.
    pub(super) fn close_all(&mut self) {
        self.listeners.clear();
    }
}

/// Commands that make the workers accept from `theirs`, their handles on the sockets of listener `id`.
fn listener_commands(
    id: u64,
    protocol: &Arc<ArcSwap<ListenerProtocol>>,
    theirs: BoundSockets,
    workers: usize,
) -> Vec<(usize, WorkerCommand)> {
    let first = id as usize;
    let command = |index: usize, sockets: BoundSockets| {
        ((first + index) % workers, WorkerCommand::Accept(id, sockets, protocol.clone()))
    };
    match theirs {
        BoundSockets::Tcp(all) => {
            all.iter().for_each(set_nodelay);
            let one_each = all.into_iter().enumerate();
            one_each.map(|(index, socket)| command(index, BoundSockets::Tcp(vec![socket]))).collect()
        }
        // The worker that accepts hands connections over to workers with fewer.
        unix @ BoundSockets::Unix(..) => vec![command(0, unix)],
    }
}

/// A small answer must not wait for the acknowledgement of the previous one. On Linux accepted sockets inherit the
/// option, which saves a call per connection.
fn set_nodelay(listener: &TcpListener) {
    if let Err(error) = SockRef::from(listener).set_tcp_nodelay(true) {
        tracing::warn!(%error, "cannot set TCP_NODELAY");
    }
}

impl OpenListener {
    /// Returns whether open connections must be checked again.
    fn replace_protocol(&mut self, protocol: ListenerProtocol) -> bool {
        if let Ok(display_address) = self.sockets.display_address(&protocol) {
            self.display_address = display_address;
        }
        let protocol = Arc::new(protocol);
        self.apply_mode(protocol.mode);
        let before = self.protocol.swap(protocol.clone());
        protocol.replace_previous(&before)
    }

    /// Sets the configured mode, if any, on the file of a unix socket.
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
    use sluicegate_model::ListenAddress;

    #[test]
    fn accepted_connections_send_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        set_nodelay(&listener);
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(listener.accept().unwrap().0.nodelay().unwrap());
    }

    /// A reload may keep one socket of a bare port and close the other, or tighten only one of them.
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
    fn a_rejected_configuration_takes_no_systemd_socket_away() {
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
        assert_eq!(listeners.apply_change(prepared, 1).0.len(), 1);
        assert_eq!(listeners.export_sockets().unwrap().len(), 1);
        assert!(listeners.prepare_change(&[web(), web()], 1).is_err(), "there was one");
    }
}
