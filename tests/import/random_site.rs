//! Random nginx.conf files, and which limits nginx applies to a request to each of their locations.

use std::fmt::Write as _;

use crate::nginx_model::{Link, RateNumbers, ZoneNumbers};

/// SplitMix64.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    pub fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum KeyKind {
    Ip,
    Header,
    /// The header, else the address.
    HeaderOrIp,
    /// The address, but not of client 2.
    GeoExempt,
    /// The address, POST only.
    PostOnly,
    Constant,
    ServerName,
    IpAndUri,
    Host,
}

const KEYS: [KeyKind; 9] = [
    KeyKind::Ip,
    KeyKind::Header,
    KeyKind::HeaderOrIp,
    KeyKind::GeoExempt,
    KeyKind::PostOnly,
    KeyKind::Constant,
    KeyKind::ServerName,
    KeyKind::IpAndUri,
    KeyKind::Host,
];

impl KeyKind {
    fn text(self) -> &'static str {
        match self {
            KeyKind::Ip => "$binary_remote_addr",
            KeyKind::Header => "$http_x_key",
            KeyKind::HeaderOrIp => "$by_header",
            KeyKind::GeoExempt => "$by_network",
            KeyKind::PostOnly => "$by_method",
            KeyKind::Constant => "all",
            KeyKind::ServerName => "$server_name",
            KeyKind::IpAndUri => "$binary_remote_addr$uri",
            KeyKind::Host => "$host",
        }
    }

    /// `None` = not counted.
    fn of(self, request: &Probe) -> Option<String> {
        let header = (request.header > 0).then(|| format!("h{}", request.header));
        let ip = format!("ip{}", request.client);
        match self {
            KeyKind::Ip => Some(ip),
            KeyKind::Header => header,
            KeyKind::HeaderOrIp => header.or(Some(ip)),
            KeyKind::GeoExempt => (request.client != 2).then_some(ip),
            KeyKind::PostOnly => (request.method == "POST").then_some(ip),
            KeyKind::Constant => Some("all".to_owned()),
            KeyKind::ServerName | KeyKind::Host => Some(request.host.clone()),
            KeyKind::IpAndUri => Some(format!("{ip}{}", request.path)),
        }
    }
}

struct RandomZone {
    key: KeyKind,
    numbers: ZoneNumbers,
    /// As after `limit_req zone=…` or `limit_conn …`.
    usage: String,
    declaration: String,
}

/// A request that finds a location of the file.
#[derive(Debug, Clone)]
pub struct Probe {
    pub host: String,
    pub path: String,
    pub method: &'static str,
    /// 1, 2 or 3: its address is 127.N.0.1.
    pub client: u64,
    /// 0 = none.
    pub header: u64,
    pub place: usize,
}

/// A location with what nginx does there.
struct Place {
    host: String,
    path: String,
    zones: Vec<usize>,
    dry_run: bool,
    status: u16,
    /// A status without limits.
    fixed: Option<u16>,
}

pub struct RandomSite {
    zones: Vec<RandomZone>,
    places: Vec<Place>,
    servers: String,
}

/// What the directives of outer levels give.
#[derive(Clone)]
struct Inherited {
    zones: Vec<usize>,
    status: u16,
    connections: bool,
}

impl RandomSite {
    pub fn roll(seed: u64) -> RandomSite {
        let mut dice = Dice(seed.wrapping_mul(0x1_0000_0001).wrapping_add(7));
        let mut site = RandomSite { zones: Vec::new(), places: Vec::new(), servers: String::new() };
        for number in 0..4 + dice.below(4) {
            site.zones.push(RandomZone::roll(number, &mut dice));
        }
        // Zones only for dry runs, and only for connections.
        for number in 20..21 + dice.below(2) {
            site.zones.push(RandomZone::roll(number, &mut dice));
        }
        for number in 0..1 + dice.below(2) {
            site.roll_server(number, &mut dice);
        }
        site
    }

    fn roll_server(&mut self, number: u64, dice: &mut Dice) {
        let host = format!("s{number}.test");
        let mut text = format!("server {{ listen @LISTEN@; server_name {host};\n");
        let connections = dice.one_in(3) && self.zones.iter().any(RandomZone::is_connections);
        let mut outer = Inherited { zones: Vec::new(), status: 503, connections };
        self.roll_limits(&mut text, &mut outer, dice);
        for place in 0..2 + dice.below(4) {
            self.roll_location(&mut text, &host, place, &outer, dice);
        }
        if dice.one_in(2) {
            text += "location / { proxy_pass @BACKEND@; }\n";
            self.push_place(&host, "/else".to_owned(), &outer, false, None);
        }
        text += "}\n";
        self.servers += &text;
    }

    /// Writes limits of a level with some luck; they replace the inherited ones.
    fn roll_limits(&self, text: &mut String, level: &mut Inherited, dice: &mut Dice) {
        if dice.one_in(2) {
            level.status = [429, 503, 509, 420][dice.below(4) as usize];
            let _ = writeln!(text, "limit_req_status {0}; limit_conn_status {0};", level.status);
        }
        let fitting: Vec<usize> = (0..self.zones.len())
            .filter(|zone| self.zones[*zone].is_connections() == level.connections && !self.is_dry(*zone))
            .collect();
        if fitting.is_empty() || dice.one_in(3) {
            return;
        }
        let mut zones = Vec::new();
        for _ in 0..1 + dice.below(2) {
            let zone = fitting[dice.below(fitting.len() as u64) as usize];
            if !zones.contains(&zone) {
                zones.push(zone);
                let _ = writeln!(text, "{};", self.zones[zone].usage);
            }
        }
        level.zones = zones;
    }

    /// The last zones are for dry runs.
    fn is_dry(&self, zone: usize) -> bool {
        zone + 1 == self.zones.len()
    }

    fn roll_location(
        &mut self,
        text: &mut String,
        host: &str,
        place: u64,
        outer: &Inherited,
        dice: &mut Dice,
    ) {
        let (head, path) = match dice.below(5) {
            0 => (format!("= /exact{place}"), format!("/exact{place}")),
            1 => (format!("^~ /stop{place}/"), format!("/stop{place}/a.ext{place}")),
            2 => (format!("~ \\.ext{place}$"), format!("/any/a.ext{place}")),
            3 => (format!("~* ^/CASE{place}/"), format!("/case{place}/x")),
            _ => (format!("/plain{place}/"), format!("/plain{place}/x")),
        };
        let is_plain = head.starts_with('/');
        let _ = writeln!(text, "location {head} {{");
        match dice.below(8) {
            0 => {
                *text += "return 204;\n";
                self.roll_limits(text, &mut outer.clone(), dice);
                self.push_place(host, path, outer, false, Some(204));
                *text += "}\n";
                return;
            }
            1 if outer.zones.is_empty() => {
                *text += "allow 10.0.0.0/8; deny all; proxy_pass @BACKEND@;\n";
                self.push_place(host, path, outer, false, Some(403));
                *text += "}\n";
                return;
            }
            _ => {}
        }
        let mut level = outer.clone();
        let dry_zone = self.zones.len() - 1;
        let dry = dice.one_in(6) && !outer.connections && !self.zones[dry_zone].is_connections();
        if dry {
            let _ = writeln!(text, "limit_req_dry_run on; {};", self.zones[dry_zone].usage);
            level.zones = vec![dry_zone];
        } else {
            self.roll_limits(text, &mut level, dice);
        }
        *text += "proxy_pass @BACKEND@;\n";
        self.push_place(host, path, &level, dry, None);
        if is_plain && !dry && dice.one_in(2) {
            self.roll_nested(text, host, place, &level, dice);
        }
        *text += "}\n";
    }

    fn roll_nested(&mut self, text: &mut String, host: &str, place: u64, outer: &Inherited, dice: &mut Dice) {
        let (head, path) = match dice.below(3) {
            0 => (format!("= /plain{place}/one"), format!("/plain{place}/one")),
            1 => (format!("~ \\.in{place}$"), format!("/plain{place}/q.in{place}")),
            _ => (format!("/plain{place}/deep/"), format!("/plain{place}/deep/z")),
        };
        let _ = writeln!(text, "location {head} {{");
        let mut level = outer.clone();
        self.roll_limits(text, &mut level, dice);
        *text += "proxy_pass @BACKEND@;\n}\n";
        self.push_place(host, path, &level, false, None);
    }

    fn push_place(&mut self, host: &str, path: String, level: &Inherited, dry_run: bool, fixed: Option<u16>) {
        let zones = if fixed.is_some() { Vec::new() } else { level.zones.clone() };
        let status = level.status;
        self.places.push(Place { host: host.to_owned(), path, zones, dry_run, status, fixed });
    }

    /// The inside of `http`.
    pub fn conf(&self, listen: &str, backend: &str) -> String {
        let mut text = "geo $limited { default 1; 127.2.0.0/16 0; }\n\
                        map $limited $by_network { 0 \"\"; 1 $binary_remote_addr; }\n\
                        map $http_x_key $by_header { \"\" $binary_remote_addr; default $http_x_key; }\n\
                        map $request_method $by_method { default \"\"; POST $binary_remote_addr; }\n"
            .to_owned();
        self.zones.iter().for_each(|zone| text += &zone.declaration);
        text += &self.servers;
        text.replace("@LISTEN@", listen).replace("@BACKEND@", &format!("http://{backend}"))
    }

    /// Volleys at some places: their requests follow each other closely, so that limits are met.
    pub fn roll_probe(&self, dice: &mut Dice) -> Probe {
        let place = dice.below(self.places.len() as u64) as usize;
        Probe {
            host: self.places[place].host.clone(),
            path: self.places[place].path.clone(),
            method: if dice.one_in(3) { "POST" } else { "GET" },
            client: 1 + dice.below(3),
            header: dice.below(3),
            place,
        }
    }

    /// The limits that nginx applies to a request.
    pub fn chain_of(&self, probe: &Probe) -> Vec<Link> {
        let place = &self.places[probe.place];
        let link = |&zone: &usize| {
            let RandomZone { key, numbers, .. } = &self.zones[zone];
            let key = key.of(probe)?;
            Some(Link { zone, key, numbers: *numbers, dry_run: place.dry_run })
        };
        place.zones.iter().filter_map(link).collect()
    }

    /// The status that nginx answers with, if the limits admit the request or not.
    pub fn status_of(&self, probe: &Probe, passes: bool) -> u16 {
        let place = &self.places[probe.place];
        place.fixed.unwrap_or(if passes { 200 } else { place.status })
    }

    /// Whether requests hold connections, so that they stay at the backend for a while.
    pub fn holds(&self, probe: &Probe) -> bool {
        self.chain_of(probe).iter().any(|link| matches!(link.numbers, ZoneNumbers::Connections(_)))
    }
}

impl RandomZone {
    fn roll(number: u64, dice: &mut Dice) -> RandomZone {
        let key = KEYS[dice.below(KEYS.len() as u64) as usize];
        if number < 20 && dice.one_in(3) {
            let most = 1 + dice.below(3);
            return RandomZone {
                key,
                numbers: ZoneNumbers::Connections(most),
                usage: format!("limit_conn z{number} {most}"),
                declaration: format!("limit_conn_zone {} zone=z{number}:1m;\n", key.text()),
            };
        }
        let (text, rate) = match dice.below(5) {
            0 => ("200r/m".to_owned(), 3333),
            1 => ("500r/m".to_owned(), 8333),
            _ => {
                let per_second = 3 + dice.below(12);
                (format!("{per_second}r/s"), per_second * 1000)
            }
        };
        let burst = dice.below(6);
        let mode = match dice.below(3) {
            _ if burst == 0 => String::new(),
            0 => format!(" burst={burst}"),
            1 => format!(" burst={burst} nodelay"),
            _ => format!(" burst={burst} delay={}", 1 + dice.below(burst)),
        };
        RandomZone {
            key,
            numbers: ZoneNumbers::Rate(RateNumbers { rate, burst }),
            usage: format!("limit_req zone=z{number}{mode}"),
            declaration: format!("limit_req_zone {} zone=z{number}:1m rate={text};\n", key.text()),
        }
    }

    fn is_connections(&self) -> bool {
        matches!(self.numbers, ZoneNumbers::Connections(_))
    }
}
