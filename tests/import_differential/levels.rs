//! Random limits and doors of one level: `http`, a server or a location.

use crate::conf::{Statement, block, line};
use crate::features::Features;
use crate::support::Dice;
use crate::variables::Definitions;

/// Steps that nginx does in their order, before it judges.
const STEPS: [&str; 9] = [
    "break",
    "set $unused 1",
    "if ($http_x_key) { return 200 ok; }",
    "if ($arg_a = 2) { break; }",
    "if ($cookie_a) { return 302 /b/; }",
    "if ($host = other.test) { return 301 http://s1.test$request_uri; }",
    "if ($remote_addr = 127.0.0.3) { return 403; }",
    "if ($http_x_group) { add_header X-Y z; }",
    "rewrite ^ http://s1.test$request_uri? redirect",
];

/// What levels can name.
pub struct Guards {
    rates: Vec<String>,
    connections: Vec<String>,
    /// Variables for conditions.
    variables: Vec<String>,
    /// Whether this file limits connections. Both kinds in one chain differ, as the manual says.
    by_connections: bool,
}

impl Guards {
    pub fn new(features: &Features, definitions: &Definitions, dice: &mut Dice) -> Guards {
        Guards {
            rates: definitions.rates.clone(),
            connections: definitions.connections.clone(),
            variables: definitions.variables.clone(),
            by_connections: features.has("connections") && !dice.one_in(6),
        }
    }

    /// `depth` is 0 in `http`, 1 in a server and 2 in its locations.
    pub fn roll_level(&self, features: &Features, dice: &mut Dice, depth: usize) -> Vec<Statement> {
        let mut found = Vec::new();
        if dice.one_in([5, 4, 2][depth]) {
            self.roll_limits(features, dice, &mut found);
        }
        if features.has("statuses") && dice.one_in(3) {
            let word = if self.by_connections { "limit_conn_status" } else { "limit_req_status" };
            found.push(line(format!("{word} {}", dice.pick(&["429", "503", "420", "509"]))));
        }
        if features.has("sizes") && dice.one_in(3) {
            found.push(line(format!("client_max_body_size {}", dice.pick(&["0", "1k", "2k", "1m"]))));
        }
        if features.has("access") && dice.one_in([8, 5, 4][depth]) {
            roll_access(dice, &mut found);
        }
        if features.has("satisfy") && dice.one_in(4) {
            found.push(line(dice.pick(&["satisfy any", "satisfy all"])));
        }
        if features.has("passwords") && dice.one_in(4) {
            let realm = if depth == 2 && dice.one_in(4) { "off" } else { "x" };
            found.extend([line(format!("auth_basic {realm}")), line("auth_basic_user_file @DIR@/htpasswd")]);
        }
        if features.has("asks") && depth > 0 && dice.one_in(4) {
            found.push(line(dice.pick(&["auth_request /judge", "auth_request /judge", "auth_request off"])));
        }
        if features.has("conditions") && depth > 0 && dice.one_in(3) {
            found.push(self.roll_condition(dice));
        }
        if features.has("steps") && depth > 0 && dice.one_in(3) {
            let step = dice.pick(&STEPS);
            found.push(match step.split_once(" { ") {
                Some((head, inside)) => block(head, vec![line(inside.trim_end_matches("; }"))]),
                None => line(step),
            });
        }
        if features.has("methods") && depth == 2 && dice.one_in(4) {
            let inside = dice.pick(&["deny all", "allow 127.0.0.2; deny all", "deny 127.0.0.4"]);
            let inside = inside.split("; ").map(line).collect();
            found.push(block(format!("limit_except {}", dice.pick(&["GET", "GET POST", "PUT"])), inside));
        }
        found
    }

    fn roll_limits(&self, features: &Features, dice: &mut Dice, found: &mut Vec<Statement>) {
        let word = if self.by_connections { "limit_conn" } else { "limit_req" };
        if features.has("dry run") && dice.one_in(3) {
            found.push(line(format!("{word}_dry_run on")));
            if !self.by_connections {
                found.push(line("limit_req zone=dry burst=1 nodelay"));
                return;
            }
        }
        let zones = if self.by_connections { &self.connections } else { &self.rates };
        let first = dice.below(zones.len());
        for number in 0..1 + dice.below(2).min(zones.len() - 1) {
            let place = (first + number) % zones.len();
            let zone = &zones[place];
            // Each zone has its own numbers, unless files with several numbers are wanted.
            let burst = if features.has("numbers") { dice.below(6) } else { 1 + place };
            if self.by_connections {
                found.push(line(format!("limit_conn {zone} {}", 1 + burst % 3)));
                continue;
            }
            // Each zone has its own way to delay, too.
            let way = if features.has("mixed delays") { dice.below(3) } else { place };
            let mode = match (burst, way) {
                (0, _) => String::new(),
                (_, 1) if features.has("delays") => format!(" burst={burst}"),
                (_, 2) if features.has("delays") => format!(" burst={burst} delay={}", 1 + burst / 2),
                _ => format!(" burst={burst} nodelay"),
            };
            found.push(line(format!("limit_req zone={zone}{mode}")));
        }
    }

    fn roll_condition(&self, dice: &mut Dice) -> Statement {
        let plain = [
            "$request_method = POST",
            "$request_method !~ ^(GET|POST)$",
            "$http_x_key",
            "$http_x_key = k1",
            "$remote_addr = 127.0.0.3",
            "$http_user_agent ~* bot",
            "$arg_a = 2",
            "$cookie_a",
        ];
        let condition = if !self.variables.is_empty() && dice.one_in(2) {
            let name = &self.variables[dice.below(self.variables.len())];
            format!("{name}{}", dice.pick(&["", " = 1", " != 0", " = \"\""]))
        } else {
            dice.pick(&plain).to_owned()
        };
        block(format!("if ({condition})"), vec![line(dice.pick(&["return 403", "return 403", "return 404"]))])
    }
}

fn roll_access(dice: &mut Dice, found: &mut Vec<Statement>) {
    let nets = ["127.0.0.1", "127.0.0.2", "127.0.0.2/31", "127.0.0.4/30", "127.0.0.5", "10.0.0.0/8", "::/0"];
    for _ in 0..1 + dice.below(2) {
        found.push(line(format!("{} {}", dice.pick(&["allow", "deny"]), dice.pick(&nets))));
    }
    if !dice.one_in(3) {
        found.push(line(dice.pick(&["deny all", "deny all", "allow all"])));
    }
}
