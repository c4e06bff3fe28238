//! The script of shared bans on a server of the test's own, at times that the test chooses.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use sluicegate_admission::ban::{Bans, ClientIdentity, StrikeOutcome, share_bans};
use sluicegate_base::clock::Now;
use sluicegate_limit::table::CounterKey;
use sluicegate_model::{self as model, BanKey, Rate};
use sluicegate_observe::metrics::{MetricLabels, Metrics};
use sluicegate_store::script::bans::{self, Ban, BanCursor, BanRules, BanUpdate, StrikeAnswer, StrikeReport};
use sluicegate_store::{PackedCall, SharedKey, Store};
use tokio::task::JoinHandle;

use crate::link::support::{settled, single};
use crate::support::Redis;

/// The start of the tests' time, microseconds since 1970.
pub const START_US: u64 = 1_700_000_000_000_000;
pub const SECOND_US: u64 = 1_000_000;
pub const MINUTE_US: u64 = 60 * SECOND_US;
pub const HOUR_US: u64 = 60 * MINUTE_US;

/// A server with the script loaded.
pub struct Judge {
    _redis: Redis,
    pub connection: redis::Connection,
    pub prefix: String,
    pub rules: BanRules,
}

/// Bans after three strikes in a minute: ten minutes at first, an hour at most.
pub const RULES: BanRules =
    BanRules { after: 3, period_us: MINUTE_US, first_us: 10 * MINUTE_US, longest_us: HOUR_US };

pub fn client(id: u64) -> SharedKey {
    SharedKey(u128::from(id).to_le_bytes())
}

/// Strikes of this moment.
pub fn offence(id: u64, strikes: u32) -> StrikeReport {
    StrikeReport { client: client(id), strikes, age_us: 0 }
}

pub fn config(rules: &BanRules) -> model::BansConfig {
    model::BansConfig {
        after: Rate::new(u64::from(rules.after).try_into().unwrap(), Duration::from_micros(rules.period_us)),
        first: Duration::from_micros(rules.first_us),
        longest: Duration::from_micros(rules.longest_us),
        key: BanKey::Ip,
        strikes: model::StrikeRules::default(),
    }
}

/// The local judge's answer by the same rules.
pub fn local(rules: &BanRules) -> Bans {
    Bans::adopt_from(None, &config(rules), 1000, false)
}

/// A connection of a simulated gateway.
pub fn evalsha(
    connection: &mut redis::Connection,
    packed: &PackedCall,
    at_us: Option<u64>,
) -> redis::RedisResult<Vec<u8>> {
    let mut command = redis::cmd("EVALSHA");
    command.arg(bans::ban_script().sha).arg(packed.keys.len());
    packed.keys.iter().for_each(|key| {
        command.arg(key);
    });
    command.arg(&packed.body);
    if let Some(at_us) = at_us {
        command.arg(at_us);
    }
    command.query(connection)
}

pub fn load(connection: &mut redis::Connection) {
    let script = bans::ban_script();
    let sha: String = redis::cmd("SCRIPT").arg("LOAD").arg(script.code).query(connection).unwrap();
    assert_eq!(sha, script.sha);
}

// === impl Judge ===

impl Judge {
    pub fn start() -> Judge {
        Judge::start_with(&[])
    }

    /// `options` are words of the server's command line.
    pub fn start_with(options: &[&str]) -> Judge {
        let redis = Redis::start_with(options);
        let mut connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
        load(&mut connection);
        Judge { _redis: redis, connection, prefix: "sg".into(), rules: RULES }
    }

    /// The script's answer at `at_us` after the start, or by its own clock.
    #[track_caller]
    pub fn ask(&mut self, offences: &[StrikeReport], known: BanCursor, at_us: Option<u64>) -> BanUpdate {
        let packed = bans::pack_call(&self.prefix, &self.rules, offences, &[], known);
        let answer = evalsha(&mut self.connection, &packed, at_us.map(|at| START_US + at)).unwrap();
        bans::parse_reply(&answer, offences.len()).expect("a sound answer")
    }

    /// The script's answer to a gateway that knows the bans `untold`.
    #[track_caller]
    pub fn tell(&mut self, untold: &[(u64, Ban)], known: BanCursor, at_us: u64) -> BanUpdate {
        let untold: Vec<_> = untold.iter().map(|(id, ban)| (client(*id), *ban)).collect();
        let packed = bans::pack_call(&self.prefix, &self.rules, &[], &untold, known);
        let answer = evalsha(&mut self.connection, &packed, Some(START_US + at_us)).unwrap();
        bans::parse_reply(&answer, 0).expect("a sound answer")
    }

    /// The outcome of strikes at that moment.
    #[track_caller]
    pub fn strike(&mut self, id: u64, strikes: u32, at_us: u64) -> StrikeAnswer {
        self.ask(&[offence(id, strikes)], BanCursor::default(), Some(at_us)).answers[0]
    }

    /// Starts a ban by as many strikes as it takes.
    #[track_caller]
    pub fn ban(&mut self, id: u64, at_us: u64) -> Ban {
        match self.strike(id, self.rules.after, at_us) {
            StrikeAnswer::Started(ban) => ban,
            other => panic!("{other:?}"),
        }
    }

    /// The announced bans for a gateway that knows none, by the numbers of their clients.
    #[track_caller]
    pub fn announced(&mut self, at_us: u64) -> Vec<(u64, Ban)> {
        let news = self.ask(&[], BanCursor::default(), Some(at_us));
        news.announced.into_iter().map(|(client, ban)| (u128::from_le_bytes(client.0) as u64, ban)).collect()
    }

    pub fn command<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| {
            command.arg(word);
        });
        command.query(&mut self.connection).unwrap()
    }

    pub fn name(&self, id: u64) -> String {
        let packed = bans::pack_call(&self.prefix, &self.rules, &[offence(id, 1)], &[], BanCursor::default());
        String::from_utf8(packed.keys[4].clone()).unwrap()
    }
}

/// What a gateway has of bans, without its sockets.
pub struct BansGateway {
    pub bans: Arc<Bans>,
    pub store: Arc<Store>,
    tasks: [JoinHandle<()>; 2],
}

impl BansGateway {
    /// The lifetime of its store.
    pub async fn start(redis: &Redis) -> BansGateway {
        let bans = Arc::new(Bans::adopt_from(None, &config(&RULES), 10_000, true));
        let store = Store::new(&single(redis.addr()), None);
        let metrics = Metrics::new(MetricLabels { workers: 1, ..MetricLabels::default() });
        let supervised = tokio::spawn(store.clone().supervise());
        let sharing =
            tokio::task::spawn_local(share_bans(bans.clone(), metrics, store.clone(), "test".into()));
        settled(&store).await;
        BansGateway { bans, store, tasks: [supervised, sharing] }
    }

    pub fn strike(&self, id: u128) {
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let client = || ClientIdentity { ip, network: ip.into(), account: None };
        let strike = self.bans.queue_strike(&local_key(id), Now::read_clock(), client);
        assert!(matches!(strike, Some(StrikeOutcome::Counted | StrikeOutcome::Banned)), "{strike:?}");
    }

    pub fn has_banned(&self, id: u128) -> bool {
        self.bans.ban_left_ns(&local_key(id), Now::read_clock()).is_some()
    }

    /// As an operator does it.
    pub fn lift(&self, id: u128) {
        let until = self.bans.lift_ban(&local_key(id), Now::read_clock()).expect("it is banned").until;
        assert!(self.bans.share_lift(client(id as u64), until));
    }
}

impl Drop for BansGateway {
    fn drop(&mut self) {
        self.tasks.iter().for_each(|task| task.abort());
    }
}

pub fn local_key(id: u128) -> CounterKey {
    CounterKey::new(id, 0)
}

/// Runs `test` on a runtime like that of the thread that shares bans.
pub fn run_local(test: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build_local(Default::default()).unwrap().block_on(test);
}
