//! The clients of the queue benchmark: those that wait for their answers, and those that hang up.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use crate::answer::read_answer;
use crate::backend::{Counts, LEAVING};
use crate::child::Result;
use crate::facts;

/// Time before the measurement, until the queue has its length.
const WARM_UP: Duration = Duration::from_millis(700);

/// The clients of a run.
#[derive(Clone, Copy)]
pub struct Load {
    /// Clients that send the next request when they have the answer to the last one.
    pub clients: usize,
    /// Requests per second that arrive whatever becomes of the others.
    pub rate: u64,
    /// Clients that connect, send, hang up after `patience`, and come again.
    pub leavers: usize,
    pub patience: Duration,
}

/// The answers within the measured time.
#[derive(Default)]
pub struct Answers {
    /// Latencies of status 200, in nanoseconds, sorted.
    pub served: Vec<u64>,
    pub rejected: u64,
    /// Clients that hung up without an answer, before and within the measured time.
    pub left: u64,
    /// Connections that broke, and other statuses.
    pub wrong: u64,
    /// The most requests at once at the backend, before the clients of the run end.
    pub most: u64,
}

struct Clients {
    port: u16,
    answers: RefCell<Answers>,
    is_measuring: Cell<bool>,
    idle: RefCell<Vec<TcpStream>>,
}

/// Leavers come later: those that find no queue are served before they leave.
const LEAVERS_AFTER: Duration = Duration::from_millis(300);

/// Runs `load` against the proxy at `port`.
pub fn run(port: u16, load: Load, span: Duration, counts: &Counts) -> Result<Answers> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    Ok(local.block_on(&runtime, async {
        let clients = Rc::new(Clients {
            port,
            answers: RefCell::default(),
            is_measuring: Cell::new(false),
            idle: RefCell::default(),
        });
        for _ in 0..load.clients {
            tokio::task::spawn_local(clients.clone().ask_again_and_again());
        }
        for number in 0..load.leavers {
            let pause = LEAVERS_AFTER + load.patience * number as u32 / load.leavers as u32;
            tokio::task::spawn_local(clients.clone().leave_again_and_again(pause, load.patience));
        }
        if load.rate > 0 {
            tokio::task::spawn_local(clients.clone().ask_at_rate(load.rate));
        }
        sleep(WARM_UP).await;
        clients.is_measuring.set(true);
        sleep(span).await;
        clients.is_measuring.set(false);
        let mut answers = clients.answers.take();
        answers.served.sort_unstable();
        answers.most = counts.most.load(Relaxed);
        answers
    }))
}

impl Clients {
    async fn ask_again_and_again(self: Rc<Self>) {
        loop {
            self.ask(facts::now()).await;
        }
    }

    /// Open loop: a late request counts from the moment at which it was due.
    async fn ask_at_rate(self: Rc<Self>, rate: u64) {
        let mut tick = interval(Duration::from_millis(1));
        tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let (start, mut sent) = (facts::now(), 0);
        loop {
            tick.tick().await;
            while start + sent * 1_000_000_000 / rate <= facts::now() {
                let (clients, due) = (self.clone(), start + sent * 1_000_000_000 / rate);
                tokio::task::spawn_local(async move { clients.ask(due).await });
                sent += 1;
            }
        }
    }

    async fn leave_again_and_again(self: Rc<Self>, pause: Duration, patience: Duration) {
        sleep(pause).await;
        loop {
            let end = Instant::now() + patience;
            if let Ok(mut stream) = self.connect().await
                && stream.write_all(request(LEAVING).as_bytes()).await.is_ok()
            {
                sleep_until(end).await;
                let is_answered = stream.try_read(&mut [0]).is_ok();
                self.answers.borrow_mut().left += u64::from(!is_answered);
            }
            sleep_until(end).await;
        }
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// One request on an idle connection or a new one.
    async fn ask(&self, due: u64) {
        let idle = self.idle.borrow_mut().pop();
        let asked = async {
            let mut stream = match idle {
                Some(stream) => stream,
                None => self.connect().await?,
            };
            stream.write_all(request("/").as_bytes()).await?;
            let (status, stays) = read_answer(&mut stream).await?;
            if stays {
                self.idle.borrow_mut().push(stream);
            }
            io::Result::Ok(status)
        };
        let asked = asked.await;
        if !self.is_measuring.get() {
            return;
        }
        let mut answers = self.answers.borrow_mut();
        match asked {
            Ok(200) => answers.served.push(facts::now() - due),
            Ok(503) => answers.rejected += 1,
            _ => answers.wrong += 1,
        }
    }
}

fn request(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: bench.test\r\n\r\n")
}
