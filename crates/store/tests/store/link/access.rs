//! Users, passwords, permissions, databases.

use std::collections::BTreeSet;

use sluicegate_model::{self as model, Secret};
use sluicegate_store::{KeyGroup, LuaScript, StoreFault};
use tokio::time::sleep;

use crate::link::support::{RedisProcess, ask, echo, packed, settled, single, with_store};
use crate::support::ms;

/// The minimal rights of a gateway's user, without the prefix.
const USER: &str = "on >hunter2 resetchannels ~test:* -@all +evalsha +script|load +info +time +type +get +set +del \
                    +pexpire +rpush +lindex +llen +lrem +ltrim +hget +hgetall +hset +hdel +zadd +zcard +zrange +zrangebyscore +zrem \
                    +zremrangebyscore";

/// All commands of a gateway's scripts.
const ALL: &str = "
    redis.call('TIME')
    redis.call('TYPE', KEYS[1])
    redis.call('GET', KEYS[1])
    redis.call('SET', KEYS[1], '1', 'PX', 60000)
    redis.call('DEL', KEYS[1])
    redis.call('RPUSH', KEYS[1], 'a', 'b')
    redis.call('LINDEX', KEYS[1], 0)
    redis.call('LLEN', KEYS[1])
    redis.call('LREM', KEYS[1], 1, 'a')
    redis.call('LTRIM', KEYS[1], 1, 0)
    redis.call('HSET', KEYS[1], 'a', '1')
    redis.call('HGET', KEYS[1], 'a')
    redis.call('HGETALL', KEYS[1])
    redis.call('HDEL', KEYS[1], 'a')
    redis.call('ZADD', KEYS[1], 1, 'a')
    redis.call('ZCARD', KEYS[1])
    redis.call('ZRANGE', KEYS[1], 0, 1)
    redis.call('ZRANGEBYSCORE', KEYS[1], 0, 1)
    redis.call('ZREM', KEYS[1], 'a')
    redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, 1)
    redis.call('PEXPIRE', KEYS[1], 60000)
    return ARGV[1]";

const SCRIPTS: [&str; 10] = [
    include_str!("../../../src/script/lease.lua"),
    include_str!("../../../src/script/log.lua"),
    include_str!("../../../src/script/nodes.lua"),
    include_str!("../../../src/script/operator.lua"),
    include_str!("../../../src/script/reset.lua"),
    include_str!("../../../src/script/secret.lua"),
    include_str!("../../../src/script/calls.lua"),
    include_str!("../../../src/script/take.lua"),
    include_str!("../../../src/script/ban.lua"),
    include_str!("../../../src/script/beat.lua"),
];

#[test]
fn the_minimal_rights_are_those_that_the_scripts_need_and_the_readme_lists() {
    let commands = |script: &str| -> BTreeSet<String> {
        let calls = script.split("call('").skip(1).filter_map(|call| call.split_once('\''));
        calls.map(|(command, _)| format!("+{}", command.to_lowercase())).collect()
    };
    let needed: BTreeSet<String> = SCRIPTS.into_iter().flat_map(commands).collect();
    assert_eq!(needed, commands(ALL));
    let rights = USER.split_whitespace().filter(|word| word.starts_with('+'));
    let rights: BTreeSet<String> = rights.map(str::to_owned).collect();
    let sent_directly = ["+evalsha", "+script|load", "+info"].map(str::to_owned);
    assert_eq!(rights, needed.into_iter().chain(sent_directly).collect());
    let readme =
        include_str!("../../../../../docs/redis.md").split_whitespace().collect::<Vec<_>>().join(" ");
    let rule = USER.replace("hunter2", "PASSWORD").replace("~test:", "~sg:");
    assert!(readme.contains(&rule), "docs/redis.md shows another user than: {rule}");
    let compose = include_str!("../../../../../docker-compose.yml")
        .split_whitespace()
        .map(|word| word.replace('"', ""));
    let compose = compose.collect::<Vec<_>>().join(" ");
    let (_, rule) = rule.split_once("-@all").expect("nothing else is allowed");
    assert!(compose.contains(rule), "docker-compose.yml has another user than: {rule}");
}

/// A server with the minimal user, and the URL by which a gateway names it.
fn with_user() -> (RedisProcess, model::RedisConfig) {
    let redis = RedisProcess::start(&[]);
    let words: Vec<_> = ["ACL", "SETUSER", "gateway"].into_iter().chain(USER.split_whitespace()).collect();
    assert_eq!(redis.command(&words), "+OK");
    assert_eq!(redis.command(&["ACL", "SETUSER", "default", "off"]), "+OK");
    let mut config = single(redis.addr);
    config.user = Some(Secret("gateway".into()));
    config.password = Some(Secret("hunter2".into()));
    (redis, config)
}

#[test]
fn a_user_with_the_least_rights_is_enough() {
    let (_redis, config) = with_user();
    with_store(&config, async |store| {
        settled(&store).await;
        let link = store.open_link();
        let answer = link.call_script(KeyGroup(0), &LuaScript::new(ALL), &packed("test:{x}", "all")).await;
        assert_eq!(answer.as_deref(), Ok(&b"all"[..]));
        let answer = link.call_script(KeyGroup(0), &LuaScript::new(ALL), &packed("foreign", "all")).await;
        assert_eq!(answer, Err(StoreFault::Unauthorized), "a foreign key");
        store.deregister_gateway().await;
    });
}

#[test]
fn a_script_that_may_not_do_all_it_does_is_denied() {
    let (_redis, config) = with_user();
    with_store(&config, async |store| {
        settled(&store).await;
        let script = LuaScript::new("return redis.call('STRLEN', KEYS[1])");
        let answer = store.open_link().call_script(KeyGroup(0), &script, &packed("test:{x}", "")).await;
        assert_eq!(answer, Err(StoreFault::Unauthorized));
    });
}

#[test]
fn a_wrong_password_is_denied_again_and_again_until_it_is_right() {
    let (redis, _) = with_user();
    for (user, password) in [(Some("gateway"), Some("wrong")), (None, Some("hunter2")), (None, None)] {
        let mut config = single(redis.addr);
        config.user = user.map(|user| Secret(user.to_owned()));
        config.password = password.map(|password| Secret(password.to_owned()));
        with_store(&config, async |store| {
            sleep(ms(500)).await;
            assert!(store.is_degraded());
            assert_eq!(ask(&store.open_link(), &echo(), "x").await, Err(StoreFault::Down));
        });
    }
    let mut config = single(redis.addr);
    config.user = Some(Secret("late".into()));
    config.password = Some(Secret("hunter3".into()));
    let addr = redis.addr;
    with_store(&config, async |store| {
        sleep(ms(300)).await;
        assert!(store.is_degraded());
        // The user that may still change the rules is the one that they are about.
        let login = "AUTH gateway hunter2\r\nACL SETUSER x\r\n";
        let answer = raw(addr, login);
        assert!(answer.starts_with("+OK\r\n-NOPERM"), "{answer}");
    });
}

fn raw(addr: std::net::SocketAddr, text: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(addr).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_database_of_its_own_is_used() {
    let redis = RedisProcess::start(&[]);
    let mut config = single(redis.addr);
    config.database = 3;
    with_store(&config, async |store| {
        settled(&store).await;
        ask(&store.open_link(), &echo(), "x").await.unwrap();
    });
    assert_eq!(raw(redis.addr, "SELECT 3\r\nGET k\r\n"), "+OK\r\n$1\r\n1\r\n");
    assert_eq!(raw(redis.addr, "GET k\r\n"), "$-1\r\n");
}
