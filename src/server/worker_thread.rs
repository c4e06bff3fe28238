//! The life of a worker: one OS thread, one runtime, and everything a request needs without leaving it.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::accept::{Listener, accept};
use super::connection;
use super::crew::{Crew, Inbox};
use super::door::Door;
use super::listen::Sockets;
use crate::deadline::{Broken, ClientSpans, ConnectionWatch, TICK, ticks};
use crate::gateway::Gateway;
use crate::reject::Fault;
use crate::worker::Home;

/// How often a draining worker looks whether its last connection is gone.
const DRAIN_PAUSE: Duration = Duration::from_millis(10);
/// The same of one that ended its connections.
const GONE_PAUSE: Duration = Duration::from_millis(1);
/// How long connections that are ended may take to go, and the shared store to hear what the last requests gave back.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Sockets that a worker accepts from, and how connections begin there.
pub type Share = (Sockets, Arc<ArcSwap<Door>>);

/// What a worker thread is given.
pub struct Duty {
    pub id: usize,
    pub gateway: Arc<Gateway>,
    pub crew: Arc<Crew>,
    pub inbox: Inbox,
    pub sockets: Vec<Share>,
    /// Becomes true when the worker shall finish what it has and end.
    pub drain: watch::Receiver<bool>,
}

/// Works until drained.
///
/// # Errors
/// When the runtime cannot be built.
pub fn work(duty: Duty) -> io::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default())?;
    runtime.block_on(serve(duty));
    // A look-up that hangs in its thread must not hold up the way down.
    runtime.shutdown_background();
    Ok(())
}

async fn serve(duty: Duty) {
    let Duty { id, gateway, crew, mut inbox, sockets, mut drain } = duty;
    let home = Rc::new(Home::new(id, gateway));
    let accepting: Vec<JoinHandle<()>> =
        sockets.into_iter().flat_map(|share| start_accepting(share, &home, &crew)).collect();
    let sweeping = tokio::task::spawn_local(sweep(home.clone()));
    let clerk = home.worker().session.clone().map(|session| tokio::task::spawn_local(session.clerk()));
    loop {
        tokio::select! {
            arrival = inbox.recv() => match arrival {
                Some((arrival, ticket)) => connection::adopt(&home, arrival, ticket),
                None => break,
            },
            changed = drain.changed() => {
                if changed.is_err() || *drain.borrow() {
                    break;
                }
            }
        }
    }
    for task in &accepting {
        task.abort();
    }
    inbox.close();
    while let Some((arrival, ticket)) = inbox.recv().await {
        connection::adopt(&home, arrival, ticket);
    }
    while home.watches.open_count() > 0 {
        // A connection that was just handed over has not been asked yet.
        home.watches.each(ConnectionWatch::close_gracefully);
        tokio::select! {
            () = tokio::time::sleep(DRAIN_PAUSE) => {}
            Err(_) = drain.changed() => {
                end_at_once(&home).await;
                break;
            }
        }
    }
    sweeping.abort();
    if let (Some(clerk), Some(session)) = (clerk, &home.worker().session) {
        let _ = tokio::time::timeout(LAST_WORDS, session.desk.emptied()).await;
        clerk.abort();
    }
}

/// Nobody waits any more: each request ends with its line in the log, and gives back what it holds.
async fn end_at_once(home: &Home) {
    home.watches.each(ConnectionWatch::abort_now);
    let gone = async {
        while home.watches.open_count() > 0 {
            tokio::time::sleep(GONE_PAUSE).await;
        }
    };
    let _ = tokio::time::timeout(LAST_WORDS, gone).await;
}

fn start_accepting((sockets, door): Share, home: &Rc<Home>, crew: &Arc<Crew>) -> Vec<JoinHandle<()>> {
    let (listeners, unlink) = match sockets {
        Sockets::Tcp(listeners) => {
            (listeners.into_iter().map(|one| TcpListener::from_std(one).map(Listener::Tcp)).collect(), None)
        }
        Sockets::Unix(one, unlink) => (vec![UnixListener::from_std(one).map(Listener::Unix)], unlink),
    };
    let mut unlink = unlink;
    listeners
        .into_iter()
        .filter_map(|listener: io::Result<Listener>| match listener {
            Ok(listener) => Some(listener),
            Err(error) => {
                tracing::error!(%error, "cannot watch a listening socket");
                None
            }
        })
        .map(|listener| {
            let (home, crew, unlink) = (home.clone(), crew.clone(), unlink.take());
            let door = door.clone();
            tokio::task::spawn_local(async move {
                let _unlink = unlink;
                accept(listener, door, home, crew).await;
            })
        })
        .collect()
}

async fn sweep(home: Rc<Home>) {
    let mut interval = tokio::time::interval(TICK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        interval.tick().await;
        let worker = home.worker();
        let timeouts = &worker.gateway.server.timeouts;
        let spans = ClientSpans {
            header: ticks(timeouts.header),
            idle: ticks(timeouts.idle),
            body: ticks(timeouts.body),
            write: ticks(timeouts.write),
            handshake: ticks(timeouts.handshake),
        };
        home.watches.sweep(&spans, |broken| {
            let fault = match broken {
                Broken::Header => Fault::SlowHead,
                Broken::Body => Fault::SlowBody,
                Broken::Idle | Broken::Write | Broken::Opening => return,
            };
            worker.gateway.metrics.fault(worker.id, fault.index());
        });
        worker.pools.sweep();
    }
}
