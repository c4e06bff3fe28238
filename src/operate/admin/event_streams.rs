//! The open streams of events, and the data for their clients.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::answer::AdminBody;
use super::connections::AdminConnection;

/// Streams open at once.
pub(super) const STREAMS_MAX: usize = 8;
/// A stream ends after this time: its client connects again.
const STREAM_TIMEOUT: Duration = Duration::from_secs(3600);
/// Events that wait for a slow reader; a further one is dropped.
const EVENTS_WAITING_MAX: usize = 4;
/// A reader that takes nothing for so many events is gone.
const EVENTS_MISSED_MAX: u32 = 60;

/// The open streams.
#[derive(Default)]
pub(super) struct EventStreams(RefCell<Vec<EventStream>>);

struct EventStream {
    events: mpsc::Sender<Bytes>,
    connection: Rc<AdminConnection>,
    sees_accounts: bool,
    ends_at: Instant,
    /// Events in a row that its reader missed.
    missed: u32,
}

impl EventStreams {
    /// Opens a stream over `connection` that begins with `first`; `None` if too many are open.
    pub(super) fn open_stream(
        &self,
        connection: &Rc<AdminConnection>,
        sees_accounts: bool,
        first: Bytes,
    ) -> Option<AdminBody> {
        let mut streams = self.0.borrow_mut();
        streams.retain(|stream| !stream.events.is_closed());
        if streams.len() >= STREAMS_MAX {
            return None;
        }
        let (events, body) = mpsc::channel(EVENTS_WAITING_MAX);
        // The channel is empty.
        let _ = events.try_send(first);
        connection.extend_for(STREAM_TIMEOUT);
        let (connection, ends_at) = (connection.clone(), Instant::now() + STREAM_TIMEOUT);
        streams.push(EventStream { events, connection, sees_accounts, ends_at, missed: 0 });
        Some(AdminBody::Stream(body))
    }

    /// True if a stream of readers who see accounts, or do not, has a reader.
    pub(super) fn has_readers(&self, sees_accounts: bool) -> bool {
        let is_read =
            |stream: &EventStream| stream.sees_accounts == sees_accounts && !stream.events.is_closed();
        self.0.borrow().iter().any(is_read)
    }

    /// Sends `event` to every such stream with a reader that keeps up, and ends old ones and those without a reader.
    pub(super) fn send_event(&self, sees_accounts: bool, event: &Bytes) {
        let now = Instant::now();
        self.0.borrow_mut().retain_mut(|stream| {
            if stream.sees_accounts != sees_accounts {
                return true;
            }
            stream.missed = match stream.events.try_send(event.clone()) {
                Ok(()) => 0,
                Err(mpsc::error::TrySendError::Closed(_)) => return false,
                Err(mpsc::error::TrySendError::Full(_)) => stream.missed + 1,
            };
            if stream.missed >= EVENTS_MISSED_MAX {
                stream.connection.close();
                return false;
            }
            now < stream.ends_at
        });
    }

    /// Ends all streams.
    pub(super) fn close_all(&self) {
        self.0.borrow_mut().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::connections::AdminConnections;
    use super::*;

    /// The events that a stream holds.
    fn read_waiting(body: &mut AdminBody) -> usize {
        let AdminBody::Stream(events) = body else { panic!("no stream") };
        std::iter::from_fn(|| events.try_recv().ok()).count()
    }

    #[tokio::test(start_paused = true)]
    async fn slow_readers_miss_events_and_are_closed_in_the_end() {
        let (streams, event) = (EventStreams::default(), Bytes::from_static(b"x"));
        let guard = Rc::new(AdminConnections::default()).track_connection();
        let task = tokio::spawn(std::future::pending::<()>());
        guard.own.abort.set(task.abort_handle()).unwrap();
        let mut slow = streams.open_stream(&guard.own, false, event.clone()).unwrap();
        let mut quick = streams.open_stream(&guard.own, false, event.clone()).unwrap();
        for sent in 1..EVENTS_MISSED_MAX + EVENTS_WAITING_MAX as u32 {
            assert_eq!(read_waiting(&mut quick), 1, "event {sent}");
            assert_eq!(streams.0.borrow().len(), 2, "event {sent}");
            streams.send_event(false, &event);
        }
        assert_eq!(streams.0.borrow().len(), 1);
        assert_eq!(read_waiting(&mut slow), EVENTS_WAITING_MAX);
        assert!(task.await.unwrap_err().is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn streams_are_bounded_and_end() {
        let (streams, event) = (EventStreams::default(), Bytes::from_static(b"x"));
        let guard = Rc::new(AdminConnections::default()).track_connection();
        let open = || streams.open_stream(&guard.own, false, event.clone());
        let mut bodies: Vec<_> = (0..STREAMS_MAX).map(|_| open().unwrap()).collect();
        assert!(open().is_none());
        bodies.pop();
        bodies.push(open().unwrap());
        assert!(open().is_none());
        tokio::time::advance(STREAM_TIMEOUT).await;
        streams.send_event(false, &event);
        assert!(!streams.has_readers(false));
        assert!(open().is_some());
    }
}
