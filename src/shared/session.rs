//! What one worker has to do with the store: it asks for decisions, gives back what was not used, and tells which
//! slots it holds.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::sync::{Notify, mpsc};

use super::debts::Charging;
use super::shared_limit::SharedLimit;
use super::slots::{Slots, Word};
use super::{Answer, Debts, Failure, Group, Held, Item, Link, Op, Packed, Reply, Script, SharedKey, Store};
use crate::base::clock::Now;

/// What is to be given back, at most; more is lost.
const GIVES_MAX: usize = 4096;
/// Gives and words in one call.
const BATCH: usize = 64;
/// Between two rounds of telling all slots, which the store keeps for ten seconds: for so long one that lost its memory
/// may grant them again.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Between two rounds of charging what is owed to the store.
const CHARGING: Duration = Duration::from_millis(100);
/// Charges that fail in one round before the rest is left to the next.
const FAILED_CHARGES_MAX: usize = 8;

/// One worker's dealings with the store.
pub struct Session {
    pub store: Arc<Store>,
    link: Link,
    pub desk: Arc<Desk>,
    /// Taken by the clerk.
    gives: Cell<Option<mpsc::Receiver<Give>>>,
    /// Names the worker to the store.
    node: u64,
}

/// Where requests leave what the store is to be told after they are gone.
pub struct Desk {
    pub slots: Slots,
    pub debts: Arc<Debts>,
    gives: mpsc::Sender<Give>,
    /// What the clerk took is not yet sent, or not yet answered.
    in_hand: AtomicBool,
    /// The clerk has nothing in hand.
    idle: Notify,
}

/// What a request took and did not use.
pub struct Give {
    pub limit: Arc<SharedLimit>,
    pub rate: usize,
    pub key: SharedKey,
    pub cost: u64,
    pub mark: u64,
}

/// One rate that the store is asked about.
pub struct Question<'a> {
    pub limit: &'a Arc<SharedLimit>,
    pub rate: usize,
    pub key: SharedKey,
    pub cost: u64,
    pub place: u16,
    pub dry_run: bool,
    /// Of a concurrency limit.
    pub held: Held,
    /// Slots that all workers of the process hold, those asked for included.
    pub in_process: u64,
    /// Units admitted without the store that it does not count yet.
    pub owed: u64,
}

/// What came back for one question.
#[derive(Debug, Clone, Copy)]
pub enum Said {
    /// `took`: the call that this question was part of charged everything.
    Answered {
        answer: Answer,
        took: bool,
    },
    Failed(Failure),
    /// The store was not asked: this process alone holds all slots.
    Full,
}

// === impl Session ===

impl Session {
    /// The session of the worker `id`, on whose runtime it is made.
    pub fn new(store: &Arc<Store>, id: usize) -> Rc<Session> {
        let (gives, given) = mpsc::channel(GIVES_MAX);
        let (in_hand, idle) = (AtomicBool::new(false), Notify::new());
        let (slots, debts) = (Slots::default(), store.debts().clone());
        let desk = Arc::new(Desk { slots, debts, gives, in_hand, idle });
        Rc::new(Session {
            link: store.link(),
            node: store.node().wrapping_add(id as u64),
            store: store.clone(),
            desk,
            gives: Cell::new(Some(given)),
        })
    }

    /// The session of the worker `id` that goes on with `before`, if that is one with the same store: the store must
    /// hear of everything a worker holds from one mouth.
    pub fn after(before: Option<&Rc<Session>>, store: &Arc<Store>, id: usize) -> Rc<Session> {
        let same = before.filter(|before| Arc::ptr_eq(&before.store, store));
        same.cloned().unwrap_or_else(|| Session::new(store, id))
    }

    /// Asks about all of `questions`, one call per group, all calls at once.
    pub async fn ask(&self, op: Op, questions: &[Question<'_>]) -> SmallVec<[Said; 4]> {
        let items: SmallVec<[Item<'_>; 4]> = questions.iter().map(Question::item).collect();
        let groups: SmallVec<[Group; 4]> = items.iter().map(|item| self.store.group(&item.key)).collect();
        let Some(&first) = groups.first() else { return SmallVec::new() };
        if groups.iter().all(|group| *group == first) {
            return said(self.call(op, first, &items).await, items.len());
        }
        self.ask_groups(op, &items, &groups).await
    }

    async fn ask_groups(&self, op: Op, items: &[Item<'_>], groups: &[Group]) -> SmallVec<[Said; 4]> {
        let mut distinct: SmallVec<[Group; 4]> = groups.iter().copied().collect();
        distinct.sort_unstable();
        distinct.dedup();
        let of = |group: &Group| -> Vec<usize> {
            (0..items.len()).filter(|place| groups[*place] == *group).collect()
        };
        let calls = distinct.iter().map(|group| async move {
            let own: Vec<Item<'_>> = of(group).into_iter().map(|place| items[place]).collect();
            said(self.call(op, *group, &own).await, own.len())
        });
        let answers = join_all(calls).await;
        let mut answered: SmallVec<[Said; 4]> =
            items.iter().map(|_| Said::Failed(Failure::Garbled)).collect();
        for (group, said) in distinct.iter().zip(answers) {
            for (place, said) in of(group).into_iter().zip(said) {
                answered[place] = said;
            }
        }
        answered
    }

    async fn call(&self, op: Op, group: Group, items: &[Item<'_>]) -> Result<Reply, Failure> {
        let packed = Packed::new(op, self.store.prefix(), self.node, items);
        let bytes = self.link.call(group, Script::take(), &packed).await?;
        Reply::read(op, items, &bytes).ok_or(Failure::Garbled)
    }

    /// Tells the store what requests left at the desk; for ever.
    pub async fn clerk(self: Rc<Session>) {
        let Some(mut gives) = self.gives.take() else { return };
        let every = |span| {
            let mut interval = tokio::time::interval(span);
            interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            interval
        };
        let (mut heartbeat, mut charging) = (every(HEARTBEAT), every(CHARGING));
        loop {
            tokio::select! {
                give = gives.recv() => {
                    let Some(give) = give else { return };
                    self.desk.in_hand.store(true, Relaxed);
                    let mut batch = vec![give];
                    while batch.len() < BATCH && let Ok(give) = gives.try_recv() {
                        batch.push(give);
                    }
                    self.give(batch).await;
                    self.desk.in_hand.store(false, Relaxed);
                }
                () = self.desk.slots.changed.notified() => self.tell(false).await,
                _ = heartbeat.tick() => self.tell(true).await,
                _ = charging.tick() => self.charge_debts().await,
            }
            self.desk.idle.notify_waiters();
        }
    }

    /// Sent once: a give that ran twice would let more pass than the limit. A call reads before it writes, so it may be
    /// about an entry of a key only once.
    async fn give(&self, mut gives: Vec<Give>) {
        while let Some(first) = gives.first() {
            let group = self.store.group(&first.key);
            let (mut now, mut later): (Vec<Give>, Vec<Give>) = (Vec::new(), Vec::new());
            for give in gives {
                let is_known = now.iter().any(|other| other.entry() == give.entry());
                let fits = !is_known && self.store.group(&give.key) == group;
                if fits { now.push(give) } else { later.push(give) }
            }
            let items: Vec<Item<'_>> = now.iter().map(Give::item).collect();
            if self.call(Op::Give, group, &items).await.is_err() {
                now.iter().for_each(|give| give.limit.lose());
            }
            gives = later;
        }
    }

    /// Charges the store what was admitted without it, as far as it answers.
    async fn charge_debts(&self) {
        let debts = self.store.debts();
        let mut failed = 0;
        while debts.keys() > 0 && self.store.is_creditor() && failed < FAILED_CHARGES_MAX {
            let mut charges = debts.due(BATCH, Now::read());
            if charges.is_empty() {
                return;
            }
            let group = |charging: &Charging| self.store.group(&charging.key);
            charges.sort_by_key(group);
            let mut under_way = debts.under_way(&charges);
            for run in charges.chunk_by(|one, next| group(one) == group(next)) {
                let items: Vec<Item<'_>> = run.iter().map(Charging::item).collect();
                let packed = Packed::new(Op::Charge, self.store.prefix(), debts.node(), &items);
                let heard = self.link.call(group(&run[0]), Script::take(), &packed).await.is_ok();
                failed += usize::from(!heard);
                run.iter().for_each(|charging| under_way.end(&charging.key, heard));
            }
        }
    }

    /// Tells slots: of everything that is held if `all`, else of what has changed.
    async fn tell(&self, all: bool) {
        let slots = &self.desk.slots;
        let mut words = if all { slots.all() } else { slots.changes(BATCH) };
        let group = |word: &Word| self.store.group(&word.place.key);
        words.sort_by_key(group);
        for run in words.chunk_by(|one, next| group(one) == group(next)).flat_map(|run| run.chunks(BATCH)) {
            let items: Vec<Item<'_>> = run.iter().map(Word::item).collect();
            // What does not get through is told again with the next heartbeat: numbers are absolute.
            let heard = self.call(Op::Hold, group(&run[0]), &items).await.is_ok();
            run.iter().for_each(|word| slots.answered(word, heard));
        }
        if !all && words.len() == BATCH {
            slots.changed.notify_one();
        }
    }
}

fn said(reply: Result<Reply, Failure>, items: usize) -> SmallVec<[Said; 4]> {
    match reply {
        Ok(reply) => {
            let took = reply.admitted;
            reply.answers.into_iter().map(|answer| Said::Answered { answer, took }).collect()
        }
        Err(failure) => std::iter::repeat_n(Said::Failed(failure), items).collect(),
    }
}

// === impl Question ===

impl Question<'_> {
    fn item(&self) -> Item<'_> {
        Item {
            rule: &self.limit.rules[self.rate],
            key: self.key,
            cost: self.cost,
            place: self.place,
            dry_run: self.dry_run,
            held: self.held,
            mark: 0,
            owed: self.owed,
        }
    }
}

// === impl Give ===

impl Give {
    fn entry(&self) -> ([u8; 16], u32) {
        (self.key.0, self.limit.rules[self.rate].id)
    }

    fn item(&self) -> Item<'_> {
        let (rule, held) = (&self.limit.rules[self.rate], Held::default());
        let (cost, mark) = (self.cost, self.mark);
        Item { rule, key: self.key, cost, place: 0, dry_run: false, held, mark, owed: 0 }
    }
}

// === impl Desk ===

impl Desk {
    /// Waits until the store has heard everything.
    pub async fn emptied(&self) {
        loop {
            let idle = self.idle.notified();
            let has_nothing =
                self.gives.capacity() == self.gives.max_capacity() && !self.in_hand.load(Relaxed);
            if has_nothing && self.slots.are_told() {
                return;
            }
            idle.await;
        }
    }

    /// Leaves something to be given back; where too much waits for that, it is lost.
    pub fn give(&self, give: Give) {
        if let Err(error) = self.gives.try_send(give) {
            let (mpsc::error::TrySendError::Full(give) | mpsc::error::TrySendError::Closed(give)) = error;
            give.limit.lose();
        }
    }
}
