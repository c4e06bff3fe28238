//! The setups that are compared end to end.

use std::path::Path;
use std::time::Duration;

use sluicegate_store::LuaScript;

use crate::cases::GCRA;
use crate::child::{self, Child, Result};
use crate::client;
use crate::peers::{Bench, GET};
use crate::store::Redis;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// nginx without any limit.
    Plain,
    /// The gateway's own counters.
    Local,
    /// The gateway's counters on Redis.
    Shared,
    /// The same with leases.
    Leased,
    /// nginx that calls Redis from Lua, once for each limit.
    Lua,
    /// The same with its calls sent together.
    LuaPipelined,
}

/// The fate of the requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    Pass,
    /// The first limit admits one per second.
    Refuse,
}

/// A started proxy that was checked to limit as it should.
pub struct Running {
    pub way: Way,
    pub fate: Fate,
    pub port: u16,
    pub child: Child,
}

// === impl Way ===

impl Way {
    pub const ALL: [Self; 6] =
        [Self::Plain, Self::Local, Self::Shared, Self::Leased, Self::Lua, Self::LuaPipelined];

    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "nginx, no limit",
            Self::Local => "sluicegate, local",
            Self::Shared => "sluicegate, redis",
            Self::Leased => "sluicegate, leased",
            Self::Lua => "nginx + Lua, redis",
            Self::LuaPipelined => "nginx + Lua, redis, pipelined",
        }
    }

    fn asks_redis(self) -> bool {
        matches!(self, Self::Shared | Self::Leased | Self::Lua | Self::LuaPipelined)
    }

    /// True if such requests are measured: without a limit none is refused, and one of so few units is not leased.
    pub fn has(self, fate: Fate) -> bool {
        fate == Fate::Pass || !matches!(self, Self::Plain | Self::Leased)
    }

    /// Starts it beside `redis` and checks that it limits, and where.
    pub fn start(self, fate: Fate, bench: &Bench, redis: &mut Redis) -> Result<Running> {
        let port = child::free_port()?;
        let folder = bench.folder.join(format!("{self:?}-{fate:?}"));
        let child = match self {
            Self::Plain => bench.nginx(&folder, "", &server(port, ""))?,
            Self::Local | Self::Shared | Self::Leased => {
                bench.gateway(&folder, port, 1000, &limits(self, fate, redis.port))?
            }
            Self::Lua | Self::LuaPipelined => lua(self, fate, bench, &folder, port, redis)?,
        };
        let mut running = Running { way: self, fate, port, child };
        running.child.wait_port(port, Duration::from_secs(10))?;
        let mut outcome = running.check(redis);
        for _ in 0..20 {
            if outcome.is_ok() || !matches!(self, Self::Shared | Self::Leased) {
                break;
            }
            // The gateway serves before it is connected to its store.
            std::thread::sleep(Duration::from_millis(200));
            outcome = running.check(redis);
        }
        outcome.map_err(|error| format!("{}, {fate:?}: {error}", self.name()))?;
        Ok(running)
    }
}

// === impl Fate ===

impl Fate {
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Refuse => "refuse",
        }
    }
}

// === impl Running ===

impl Running {
    fn check(&self, redis: &mut Redis) -> Result<()> {
        let before = redis.work()?;
        let mut statuses = Vec::new();
        for _ in 0..3 {
            statuses.push(client::probe(self.port, GET)?.0);
        }
        let calls = redis.work()?.since(before).calls;
        let (is_good, least) = match self.fate {
            Fate::Pass => (statuses.iter().all(|status| *status == 200), 3),
            // A second later one more request may pass.
            Fate::Refuse => (statuses.last() == Some(&429), 1),
        };
        if !is_good || (self.way.asks_redis() && calls < least) {
            return Err(format!("answered {statuses:?} with {calls} calls of redis").into());
        }
        Ok(())
    }
}

fn server(port: u16, words: &str) -> String {
    format!(
        "access_log off;
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{ {words} proxy_pass http://app; }}
    }}"
    )
}

fn limits(way: Way, fate: Fate, redis_port: u16) -> String {
    let first = match fate {
        Fate::Pass => "rate: 1000000/s, burst: 100000",
        Fate::Refuse => "rate: 1/s, burst: 1",
    };
    let state = match way {
        // A decision after the deadline is valid, but not the one measured here.
        Way::Shared | Way::Leased => format!(
            "state: {{ store: redis, redis: {{ url: \"redis://127.0.0.1:{redis_port}\", timeout: 200ms }} }}\n"
        ),
        _ => String::new(),
    };
    let leased = if way == Way::Leased { ", state: leased" } else { "" };
    format!(
        "    limits: [per-second, per-minute, per-hour]
limits:
  per-second: {{ key: ip, {first}{leased} }}
  per-minute: {{ key: ip, rate: 60000000/m, burst: 100000{leased} }}
  per-hour: {{ key: ip, rate: 1000000000/h, burst: 100000{leased} }}
{state}access_log: {{ output: none }}
"
    )
}

fn lua(way: Way, fate: Fate, bench: &Bench, folder: &Path, port: u16, redis: &mut Redis) -> Result<Child> {
    redis.load(GCRA)?;
    let first = if fate == Fate::Pass { "1000000, 1, 100000" } else { "1, 1, 1" };
    let code = include_str!("limiter.lua")
        .replace("SCRIPT_SHA", &LuaScript::new(GCRA).sha)
        .replace("FIRST_LIMIT", first)
        .replace("IS_PIPELINED", if way == Way::LuaPipelined { "true" } else { "false" })
        .replace("CLIENT", &format!("{way:?}-{fate:?}"))
        .replace("REDIS_PORT", &redis.port.to_string());
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("limiter.lua"), code)?;
    let modules = "load_module /usr/lib/nginx/modules/ndk_http_module.so;
load_module /usr/lib/nginx/modules/ngx_http_lua_module.so;
";
    let search = format!("lua_package_path \"{}/?.lua;/usr/share/lua/5.1/?.lua;;\";\n    ", folder.display());
    let check = "access_by_lua_block { require(\"limiter\").check() }";
    bench.nginx(folder, modules, &(search + &server(port, check)))
}
