//! The memory of the bodies that are read before judging: a process has room for so many bytes of them, and one network
//! for a quarter of these.
//!
//! A body takes room for each piece that was read, and may wait for it while it holds some. No bodies wait for each
//! other for ever: a piece gets room only if each older body that is still being read could then be read to its end,
//! so the oldest one always comes to its end. Bytes keep their room until they are dropped.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use parking_lot::Mutex;

/// The room of all bodies, in the bounds of one configuration.
#[derive(Debug, Default)]
pub struct BodyMemory {
    /// Bytes of room.
    most: u64,
    /// No body takes more than this.
    longest: u64,
    rooms: Arc<Mutex<Rooms>>,
}

#[derive(Debug, Default)]
struct Rooms {
    used: u64,
    /// Bytes of each network that has any.
    by_network: HashMap<u64, u64>,
    /// The bodies that are being read, the oldest first.
    readers: BTreeMap<u64, Reader>,
    next_reader: u64,
    /// Readers that wait.
    waiting: usize,
}

#[derive(Debug)]
struct Reader {
    network: u64,
    held: u64,
    /// The most that it may still take.
    left: u64,
    /// Bytes that it waits for; 0 = it does not wait.
    wanted: u64,
    waker: Option<Waker>,
}

/// The room of one body while that is read.
pub struct BodyRoom {
    memory: Arc<BodyMemory>,
    reader: u64,
    is_waiting: Cell<bool>,
}

/// Bytes with their room.
struct HeldBody {
    data: Bytes,
    memory: Arc<BodyMemory>,
    network: u64,
    room: u64,
}

// === impl BodyMemory ===

impl BodyMemory {
    /// The same room in other bounds: `most` bytes, of which a body takes at most `longest`.
    pub fn with_bounds(&self, most: u64, longest: u64) -> BodyMemory {
        BodyMemory { most, longest, rooms: self.rooms.clone() }
    }

    /// Room for a body of a client in `network`, which takes at most `bound` bytes.
    pub fn begin_reading(self: &Arc<BodyMemory>, network: u64, bound: u64) -> BodyRoom {
        let mut rooms = self.rooms.lock();
        let reader = rooms.next_reader;
        rooms.next_reader += 1;
        rooms.readers.insert(reader, Reader { network, held: 0, left: bound, wanted: 0, waker: None });
        BodyRoom { memory: self.clone(), reader, is_waiting: Cell::new(false) }
    }

    /// Whether `bytes` more have room beside what is kept for the older bodies, of all networks and of their own.
    fn has_room(&self, used: (u64, u64), kept: (u64, u64), bytes: u64) -> bool {
        used.0 + kept.0 + bytes <= self.most && used.1 + kept.1 + bytes <= self.most / 4
    }

    /// Gives room to the bodies that wait, the oldest first.
    fn serve_waiting(&self, rooms: &mut Rooms) {
        if rooms.waiting == 0 {
            return;
        }
        let Rooms { used, by_network, readers, waiting, .. } = rooms;
        let (mut kept, mut kept_here) = (0, HashMap::new());
        for reader in readers.values_mut() {
            let here = kept_here.entry(reader.network).or_insert(0);
            let used_here = by_network.get(&reader.network).copied().unwrap_or(0);
            if reader.wanted > 0 && self.has_room((*used, used_here), (kept, *here), reader.wanted) {
                let wanted = std::mem::take(&mut reader.wanted);
                reader.take(wanted, used, by_network);
                *waiting -= 1;
                reader.waker.take().inspect(Waker::wake_by_ref);
            }
            (kept, *here) = (kept.max(reader.left), (*here).max(reader.left));
        }
    }

    fn give_back(&self, rooms: &mut Rooms, network: u64, bytes: u64) {
        rooms.used -= bytes;
        if let Some(used) = rooms.by_network.get_mut(&network) {
            *used -= bytes;
            if *used == 0 {
                rooms.by_network.remove(&network);
            }
        }
        self.serve_waiting(rooms);
    }
}

impl Reader {
    fn take(&mut self, bytes: u64, used: &mut u64, by_network: &mut HashMap<u64, u64>) {
        self.held += bytes;
        self.left = self.left.saturating_sub(bytes);
        *used += bytes;
        *by_network.entry(self.network).or_insert(0) += bytes;
    }
}

// === impl BodyRoom ===

impl BodyRoom {
    /// Takes room for `bytes` more; called again with the same number until there is room.
    pub fn poll_take(&self, cx: &mut Context<'_>, bytes: u64) -> Poll<()> {
        let BodyMemory { longest, rooms, .. } = &*self.memory;
        let mut rooms = rooms.lock();
        let rooms = &mut *rooms;
        if !self.is_waiting.get() && bytes > 0 {
            let Some(reader) = rooms.readers.get_mut(&self.reader) else { return Poll::Ready(()) };
            let used_here = rooms.by_network.get(&reader.network).copied().unwrap_or(0);
            // No older body needs more than the longest one, so the usual piece need not look at them.
            if self.memory.has_room((rooms.used, used_here), (*longest, *longest), bytes) {
                reader.take(bytes, &mut rooms.used, &mut rooms.by_network);
                return Poll::Ready(());
            }
            reader.wanted = bytes;
            rooms.waiting += 1;
            self.memory.serve_waiting(rooms);
        }
        let waiting = rooms.readers.get_mut(&self.reader).filter(|reader| reader.wanted > 0);
        self.is_waiting.set(waiting.is_some());
        match waiting {
            Some(reader) => {
                reader.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }

    /// Whether the body waits for room.
    pub fn is_waiting(&self) -> bool {
        self.is_waiting.get()
    }

    /// The body is read: its bytes keep the room.
    pub fn hold(&self, data: Bytes) -> Bytes {
        let Some(Reader { network, held: room, .. }) = self.end_reading(false) else { return data };
        Bytes::from_owner(HeldBody { data, memory: self.memory.clone(), network, room })
    }

    /// Ends the reading, and gives back its room if it is `lost`.
    fn end_reading(&self, is_lost: bool) -> Option<Reader> {
        let mut rooms = self.memory.rooms.lock();
        let reader = rooms.readers.remove(&self.reader)?;
        rooms.waiting -= usize::from(reader.wanted > 0);
        self.memory.give_back(&mut rooms, reader.network, if is_lost { reader.held } else { 0 });
        Some(reader)
    }
}

impl Drop for BodyRoom {
    fn drop(&mut self) {
        self.end_reading(true);
    }
}

// === impl HeldBody ===

impl AsRef<[u8]> for HeldBody {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for HeldBody {
    fn drop(&mut self) {
        // The bytes first, so that room is never counted free while it is used.
        self.data = Bytes::new();
        self.memory.give_back(&mut self.memory.rooms.lock(), self.network, self.room);
    }
}

#[cfg(test)]
mod tests;
