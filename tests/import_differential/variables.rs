//! Random `map`, `geo` and zones whose keys are made of them.

use crate::conf::{Statement, block, line};
use crate::features::Features;
use crate::support::Dice;

/// What the top of the file defines.
#[derive(Default)]
pub struct Definitions {
    pub statements: Vec<Statement>,
    /// With their dollar signs.
    pub variables: Vec<String>,
    /// Zones of `limit_req` and of `limit_conn`.
    pub rates: Vec<String>,
    pub connections: Vec<String>,
}

const KEYS: [&str; 11] = [
    "$remote_addr",
    "$server_name",
    "$host",
    "$uri",
    "$request_method",
    "$http_x_key",
    "$http_x_api_key",
    "$binary_remote_addr$uri",
    "all",
    "$server_name$uri",
    "$server_name$binary_remote_addr",
];
const ODD_KEYS: [&str; 14] = [
    "$cookie_a",
    "$arg_a",
    "$http_x_key$binary_remote_addr",
    "$host$http_x_group",
    "$request_uri",
    "$http_host",
    "$cookie_a$arg_a",
    "$http_user_agent",
    "$http_authorization",
    "$http_cookie",
    "$args",
    "$scheme$server_port",
    "$http_x_key-$http_x_group",
    "$remote_user",
];

impl Definitions {
    pub fn roll(features: &Features, dice: &mut Dice) -> Definitions {
        let mut own = Definitions::default();
        if features.has("geo") {
            (0..1 + dice.below(2)).for_each(|_| own.roll_geo(dice));
        }
        if features.has("maps") {
            (0..1 + dice.below(2)).for_each(|_| own.roll_plain_map(dice));
        }
        if features.has("odd maps") {
            (0..1 + dice.below(3)).for_each(|_| own.roll_map(features, dice));
        }
        for number in 0..2 + dice.below(3) {
            let (name, key) = (format!("r{number}"), own.roll_key(features, dice));
            let rate = dice.pick(&["1r/m", "1r/m", "2r/m"]);
            own.statements.push(line(format!("limit_req_zone {key} zone={name}:1m rate={rate}")));
            own.rates.push(name);
        }
        own.statements.push(line("limit_req_zone $binary_remote_addr zone=dry:1m rate=1r/m"));
        for number in 0..1 + dice.below(2) {
            let (name, key) = (format!("c{number}"), own.roll_key(features, dice));
            own.statements.push(line(format!("limit_conn_zone {key} zone={name}:1m")));
            own.connections.push(name);
        }
        own
    }

    fn roll_key(&self, features: &Features, dice: &mut Dice) -> String {
        if !self.variables.is_empty() && dice.one_in(2) {
            return self.variables[dice.below(self.variables.len())].clone();
        }
        match dice.below(5) {
            0..2 if features.has("odd keys") => dice.pick(&ODD_KEYS),
            0..3 => "$binary_remote_addr",
            _ => dice.pick(&KEYS),
        }
        .to_owned()
    }

    fn name_next(&mut self, word: &str) -> String {
        let name = format!("${word}{}", self.variables.len());
        self.variables.push(name.clone());
        name
    }

    fn roll_geo(&mut self, dice: &mut Dice) {
        let values = ["0", "1", "\"\""];
        let nets = ["127.0.0.1", "127.0.0.2", "127.0.0.2/31", "127.0.0.4/30", "127.0.0.0/8", "::1"];
        let mut inside = Vec::new();
        if !dice.one_in(4) {
            inside.push(line(format!("default {}", dice.pick(&values))));
        }
        for net in nets {
            if dice.one_in(3) {
                inside.push(line(format!("{net} {}", dice.pick(&values))));
            }
        }
        let head = if dice.one_in(5) { "geo $remote_addr" } else { "geo" };
        let name = self.name_next("geo");
        self.statements.push(block(format!("{head} {name}"), inside));
    }

    /// One of the forms that people copy from each other.
    fn roll_plain_map(&mut self, dice: &mut Dice) {
        let geos = self.variables.iter().filter(|name| name.starts_with("$geo"));
        let geos: Vec<String> = geos.cloned().collect();
        let (source, inside) = match dice.below(4) {
            0 => ("$request_method", ["default \"\"", "POST $binary_remote_addr"]),
            1 => ("$remote_addr", ["default $binary_remote_addr", "127.0.0.2 \"\""]),
            2 => ("$http_x_key", ["default $http_x_key", "\"\" $binary_remote_addr"]),
            _ => match geos.first() {
                Some(geo) => (geo.as_str(), ["0 \"\"", "1 $binary_remote_addr"]),
                None => return,
            },
        };
        let mut inside: Vec<Statement> = inside.map(line).to_vec();
        if source == "$request_method" && dice.one_in(2) {
            inside.push(line("PUT $binary_remote_addr"));
        }
        let source = source.to_owned();
        let name = self.name_next("map");
        self.statements.push(block(format!("map {source} {name}"), inside));
    }

    fn roll_map(&mut self, features: &Features, dice: &mut Dice) {
        let (source, patterns) = self.roll_source(dice);
        let mut values = vec!["\"\"", "$binary_remote_addr", "\"\"", "$binary_remote_addr", &source];
        if dice.one_in(3) {
            values.extend(["1", "$http_x_key", "$server_name", "0"]);
        }
        let mut inside = Vec::new();
        if !dice.one_in(4) {
            inside.push(line(format!("default {}", dice.pick(&values))));
        }
        let mut entries = Vec::new();
        for pattern in patterns {
            if dice.one_in(2) {
                entries.push(line(format!("{pattern} {}", dice.pick(&values))));
            }
        }
        let name = self.name_next("map");
        if features.has("includes") && dice.one_in(3) {
            let file = format!("maps/{}.map", &name[1..]);
            entries = vec![Statement::Include(file.clone(), vec![(file, entries)])];
        }
        inside.extend(entries);
        self.statements.push(block(format!("map {source} {name}"), inside));
    }

    /// What a map depends on, and patterns that meet it.
    fn roll_source(&self, dice: &mut Dice) -> (String, &'static [&'static str]) {
        let plain: [(&str, &[&str]); 11] = [
            ("$request_method", &["GET", "POST", "HEAD", "\"~^(PUT|DELETE)$\""]),
            ("$request_method", &["GET", "POST", "PUT", "\"~^post$\""]),
            ("$http_x_key", &["\"\"", "k1", "k2", "\"~*^k\"", "\"~2$\""]),
            ("$http_x_api_key", &["\"\"", "k1", "\"~^K\""]),
            ("$http_user_agent", &["\"~*bot\"", "\"\"", "k1"]),
            ("$cookie_a", &["\"\"", "1", "2", "\"~^[12]$\""]),
            ("$arg_a", &["\"\"", "1", "2"]),
            ("$uri", &["/a/b", "\"~^/api/\"", "\"~*\\.php$\"", "/"]),
            ("$remote_addr", &["127.0.0.2", "127.0.0.3", "\"~^127\\.0\\.0\\.[45]$\""]),
            ("$host", &["s0.test", "\"~^s1\"", "\"~*^S0\""]),
            ("$http_x_key$arg_a", &["\"\"", "k1", "k11", "1"]),
        ];
        if !self.variables.is_empty() && dice.one_in(2) {
            let name = self.variables[dice.below(self.variables.len())].clone();
            return (name, &["0", "1", "\"\""]);
        }
        let (source, patterns) = plain[dice.below(plain.len())];
        (source.to_owned(), patterns)
    }
}
