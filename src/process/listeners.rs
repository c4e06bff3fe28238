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
use super::bind::{Bound, Opened, Site, Sockets, Unlink};
use super::worker_thread::Order;
use crate::config::Listen;
use crate::downstream::listener_protocol::Door;

#[derive(Default)]
pub struct Listeners {
    open: Vec<Open>,
    last_id: u64,
    /// Sockets that somebody passed and nobody listens on so far.
    spare: Opened,
}

struct Open {
    id: u64,
    site: Site,
    shown: String,
    sockets: Sockets,
    door: Arc<ArcSwap<Door>>,
    unlink: Option<Unlink>,
}

/// What becomes of the listeners: everything that could fail has been done.
pub struct Prepared {
    /// The listeners that stay, by their numbers, with their new doors.
    kept: Vec<(u64, Door)>,
    /// With the workers' handles on their sockets.
    added: Vec<(Bound, Sockets)>,
    /// What is left of the spare sockets.
    spare: Opened,
}

/// What the workers are to be told of it.
pub struct Moves {
    pub accept: Vec<(usize, Order)>,
    /// Numbers of listeners.
    pub close: Vec<u64>,
    /// Connections that are open may not go on as they are.
    pub recheck: bool,
}

impl Listeners {
    /// `spare` are sockets that may be asked for later.
    pub fn new(bound: Vec<Bound>, spare: Opened) -> Listeners {
        let mut listeners = Listeners { spare, ..Listeners::default() };
        for bound in bound {
            listeners.add(bound);
        }
        listeners
    }

    fn add(&mut self, bound: Bound) -> (u64, Arc<ArcSwap<Door>>) {
        let Bound { site, shown, mut sockets, door } = bound;
        let unlink = match &mut sockets {
            Sockets::Tcp(_) => None,
            Sockets::Unix(_, unlink) => unlink.take(),
        };
        self.last_id += 1;
        self.open.push(Open { id: self.last_id, site, shown, sockets, door: door.clone(), unlink });
        (self.last_id, door)
    }

    /// Where it is listened on, as people are told.
    pub fn shown(&self) -> Vec<String> {
        self.open.iter().map(|open| open.shown.clone()).collect()
    }

    /// Orders by which `workers` workers accept from all listeners.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn accept_all(&self, workers: usize) -> io::Result<Vec<(usize, Order)>> {
        let mut orders = Vec::new();
        for open in &self.open {
            orders.extend(accept(open.id, &open.door, open.sockets.again()?, workers));
        }
        Ok(orders)
    }

    /// Opens what `listen` has and we have not, and reads how connections begin everywhere.
    ///
    /// # Errors
    /// A sentence that names the address and the reason; nothing has changed then.
    pub fn prepare(&self, listen: &[Listen], workers: usize) -> Result<Prepared, String> {
        // Other handles: a configuration that is refused after all takes none away.
        let spare = self.spare.again().map_err(|error| format!("cannot listen: {error}"))?;
        let mut prepared = Prepared { kept: Vec::new(), added: Vec::new(), spare };
        for entry in listen {
            let sites = bind::sites(&entry.address);
            let is_taken = |id: u64| prepared.kept.iter().any(|(kept, _)| *kept == id);
            let ours = |open: &&Open| sites.contains(&open.site) && !is_taken(open.id);
            let ids: Vec<u64> = self.open.iter().filter(ours).map(|open| open.id).collect();
            if ids.is_empty() {
                let entry = std::slice::from_ref(entry);
                for bound in bind::bind(entry, workers, &mut prepared.spare)? {
                    let theirs = bound.sockets.again();
                    let theirs =
                        theirs.map_err(|error| format!("cannot listen on {}: {error}", bound.shown))?;
                    prepared.added.push((bound, theirs));
                }
            }
            for id in ids {
                let open = self.open.iter().find(|open| open.id == id);
                let before = open.map(|open| open.door.load_full());
                let door = Door::new(entry, before.as_deref())
                    .map_err(|error| format!("cannot serve {}: {error}", sites[0]))?;
                prepared.kept.push((id, door));
            }
        }
        Ok(prepared)
    }

    /// Makes `prepared` true.
    pub fn follow(&mut self, prepared: Prepared, workers: usize) -> Moves {
        let Prepared { kept: mut doors, added, spare } = prepared;
        self.spare = spare;
        let mut moves = Moves { accept: Vec::new(), close: Vec::new(), recheck: false };
        for mut open in std::mem::take(&mut self.open) {
            match doors.iter().position(|(id, _)| *id == open.id) {
                Some(place) => {
                    moves.recheck |= open.enter_by(doors.swap_remove(place).1);
                    self.open.push(open);
                }
                None => {
                    moves.close.push(open.id);
                    open.door.load().admission.remove();
                    moves.recheck = true;
                    if let Site::Systemd(_) = open.site {
                        // Whoever passed it will not do so again.
                        tracing::warn!("{} stays open, and nothing listens on it any more", open.site);
                        self.spare.add(open.site, open.sockets);
                    }
                }
            }
        }
        for (bound, theirs) in added {
            self.spare.take(&bound.site);
            let (id, door) = self.add(bound);
            moves.accept.extend(accept(id, &door, theirs, workers));
        }
        moves
    }

    /// Removes the files of unix sockets when their listeners close, and at once where there is none: the process that
    /// made them has left.
    pub fn own(&mut self, files: Vec<PathBuf>) {
        for file in files {
            let site = Site::Unix(file.clone());
            let unlink = Unlink::new(file);
            if let Some(open) = self.open.iter_mut().find(|open| open.site == site) {
                open.unlink = Some(unlink);
                // The new file may say another than the process that made the socket was told.
                open.set_mode(open.door.load().mode);
            }
        }
    }

    /// More handles on all sockets, also those that nobody listens on, for another process.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn export(&self) -> io::Result<Vec<(Site, Sockets)>> {
        let mut all = self.spare.again()?;
        for open in &self.open {
            all.add(open.site.clone(), open.sockets.again()?);
        }
        Ok(all.drain().collect())
    }

    /// Lets go of all sockets, which another process has.
    pub fn leave(&mut self) {
        for open in self.open.drain(..) {
            if let Some(unlink) = open.unlink {
                unlink.keep();
            }
        }
    }

    /// Closes our handles; what the workers have is theirs to close.
    pub fn close(&mut self) {
        self.open.clear();
    }
}

/// Orders by which the workers accept from `theirs`, their handles on the sockets of listener `id`.
fn accept(id: u64, door: &Arc<ArcSwap<Door>>, theirs: Sockets, workers: usize) -> Vec<(usize, Order)> {
    let first = id as usize;
    let order = |place: usize, sockets: Sockets| {
        ((first + place) % workers, Order::Accept(id, sockets, door.clone()))
    };
    match theirs {
        Sockets::Tcp(all) => {
            all.iter().for_each(send_at_once);
            let one_each = all.into_iter().enumerate();
            one_each.map(|(place, socket)| order(place, Sockets::Tcp(vec![socket]))).collect()
        }
        // Who accepts hands over to those with fewer.
        unix @ Sockets::Unix(..) => vec![order(0, unix)],
    }
}

/// Small answers must not wait for an acknowledgement of the one before. On Linux what is accepted inherits that from
/// the listening socket, which saves a call for each connection.
fn send_at_once(listener: &TcpListener) {
    if let Err(error) = SockRef::from(listener).set_tcp_nodelay(true) {
        tracing::warn!(%error, "cannot set TCP_NODELAY");
    }
}

// === impl Open ===

impl Open {
    /// Answers whether connections have to be looked at again.
    fn enter_by(&mut self, door: Door) -> bool {
        if let Ok(shown) = self.sockets.shown(door.tls.is_some()) {
            self.shown = shown;
        }
        let door = Arc::new(door);
        self.set_mode(door.mode);
        let before = self.door.swap(door.clone());
        door.replace(&before)
    }

    /// Gives a unix socket's file the mode that is wanted, if one is.
    fn set_mode(&self, mode: Option<u32>) {
        if let (Site::Unix(path), Some(mode)) = (&self.site, mode)
            && let Err(error) = bind::set_mode(path, mode)
        {
            tracing::error!(%error, "the mode of {} cannot be set", self.site);
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
        send_at_once(&listener);
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(listener.accept().unwrap().0.nodelay().unwrap());
    }

    /// A reload may keep one socket of a bare port and close the other, or ask more on one of them.
    #[test]
    fn the_sockets_of_a_bare_port_have_doors_of_their_own() {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let bare = |port| bind::bind(&[Listen::plain(ListenAddress::Port(port))], 1, &mut Opened::default());
        // Another process may take the port in between.
        let bound = (0..10).find_map(|_| bare(free()).ok()).expect("a free port");
        let mut listeners = Listeners::new(bound, Opened::default());
        let v4 = match &listeners.open.last().expect("a listener").site {
            Site::Tcp(address) => Listen::plain(ListenAddress::Address(*address)),
            other => panic!("{other}"),
        };
        let prepared = listeners.prepare(&[v4], 1).unwrap();
        listeners.follow(prepared, 1);
        assert_eq!(listeners.open.len(), 1);
        assert!(listeners.open[0].door.load().admission.is_open(), "it stays");
    }

    #[test]
    fn a_refused_configuration_takes_no_socket_of_systemd_away() {
        let [passed, taken] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let mut spare = Opened::default();
        spare.add(Site::Systemd("web".to_owned()), Sockets::Tcp(vec![passed]));
        let mut listeners = Listeners::new(Vec::new(), spare);
        let web = || Listen::plain(ListenAddress::Systemd("web".to_owned()));
        let elsewhere = Listen::plain(ListenAddress::Address(taken.local_addr().unwrap()));
        assert!(listeners.prepare(&[web(), elsewhere], 1).is_err());
        drop(listeners.prepare(&[web()], 1).unwrap());
        assert_eq!(listeners.export().unwrap().len(), 1, "another process may want to listen on it");
        let prepared = listeners.prepare(&[web()], 1).unwrap();
        assert_eq!(listeners.follow(prepared, 1).accept.len(), 1);
        assert_eq!(listeners.export().unwrap().len(), 1);
        assert!(listeners.prepare(&[web(), web()], 1).is_err(), "there was one");
    }
}
