//! Random files of nginx, and requests that aim at their locations.

use std::collections::BTreeSet;

use crate::backend::{JUDGE, address_of};
use crate::conf::{Conf, Statement, block, line};
use crate::features::Features;
use crate::levels::Guards;
use crate::support::Dice;
use crate::traffic::{Aims, Step, roll_steps};
use crate::variables::Definitions;

/// A file with the requests to ask.
#[derive(Clone, Debug)]
pub struct Case {
    pub seed: u64,
    pub conf: Conf,
    pub steps: Vec<Step>,
}

const SEGMENTS: [&str; 5] = ["a", "b", "api", "img", "v1"];
const REGEXES: [&str; 9] = [
    "~ \\.php$",
    "~ \\.(png|jpg)$",
    "~ ^/api/.*\\.js$",
    "~ /b$",
    "~ ^/a",
    "~* \\.PNG$",
    "~* ^/IMG/",
    "~ ^/img/[0-9]+$",
    "~ x",
];
/// Expressions that the gateway cannot match.
const LOOKAROUNDS: [&str; 4] = ["~ ^/(?!b|api)", "~ /img(?=/)", "~ (?<!x)\\.php$", "~* ^/A(?!/x)(/v1)?"];
const PATHS: [&str; 16] = [
    "/",
    "/a",
    "/a/",
    "/a/b",
    "/a/x.php",
    "/b",
    "/b/x.PNG",
    "/api",
    "/api/v1/x.js",
    "/api/x",
    "/img/12",
    "/img/x.jpg",
    "/a/v1/y",
    "/b/a/img/z",
    "/ab",
    "/zzz",
];

const HOSTS: [&str; 9] =
    ["s0.test", "s0.test", "s1.test", "S0.test", "x.s1.test", "other.test", "s0.test:80", "X.s1.test.", "_"];

struct Site {
    dice: Dice,
    features: Features,
    guards: Guards,
    /// The number of the last location that forwards.
    places: u8,
    paths: BTreeSet<String>,
    upstreams: Vec<Statement>,
}

impl Case {
    pub fn roll(seed: u64) -> Case {
        let mut dice = Dice(seed.wrapping_mul(0x1_0000_0001) ^ 0x5eed);
        let features = Features::roll(&mut dice);
        let definitions = Definitions::roll(&features, &mut dice);
        let guards = Guards::new(&features, &definitions, &mut dice);
        let paths = PATHS.iter().map(|path| (*path).to_owned()).collect();
        let mut site = Site { dice, features, guards, places: 0, paths, upstreams: Vec::new() };
        let mut http = site.guards.roll_level(&site.features, &mut site.dice, 0);
        let servers = site.roll_servers();
        if site.features.has("underscores") && site.dice.one_in(2) {
            http.push(line("underscores_in_headers on"));
        }
        let mut top = definitions.statements;
        top.append(&mut site.upstreams);
        let conf = site.wrap(top, http, servers);
        let holds = site.features.has("connections");
        let aims = Aims {
            hosts: HOSTS.map(str::to_owned).to_vec(),
            paths: site.paths.iter().cloned().collect(),
            two_ports: conf.show().contains("@1@"),
            holds,
            doubles: site.features.has("doubles"),
            odd: site.features.has("odd paths"),
            forms: site.features.has("forms"),
            sizes: site.features.has("sizes"),
        };
        let steps = roll_steps(&aims, &mut site.dice);
        Case { seed, conf, steps }
    }
}

impl Site {
    /// The main file around the servers, as Debian's or as short as can be.
    fn wrap(&mut self, top: Vec<Statement>, mut level: Vec<Statement>, servers: Vec<Statement>) -> Conf {
        let mut main = vec![line("pid @DIR@/pid"), line("error_log @DIR@/error.log")];
        let mut http = Vec::new();
        if self.features.has("debian") {
            main.splice(0..0, ["user www-data", "worker_processes auto"].map(line));
            main.push(Statement::Include("modules-enabled/*.conf".to_owned(), Vec::new()));
            let stock = [
                "sendfile on",
                "tcp_nopush on",
                "types_hash_max_size 2048",
                "include /etc/nginx/mime.types",
                "default_type application/octet-stream",
                "ssl_protocols TLSv1.2 TLSv1.3",
                "ssl_prefer_server_ciphers on",
                "gzip on",
            ];
            http.extend(stock.map(line));
        }
        main.push(block("events", vec![line("worker_connections 768")]));
        let paths = ["client_body_temp_path", "proxy_temp_path", "fastcgi_temp_path", "uwsgi_temp_path"];
        let mut paths: Vec<_> = paths.iter().map(|word| line(format!("{word} @DIR@/{word}"))).collect();
        paths.extend([line("scgi_temp_path @DIR@/scgi"), line("access_log off")]);
        http.push(Statement::Include("paths.conf".to_owned(), vec![("paths.conf".to_owned(), paths)]));
        if self.features.has("includes") {
            let file = |name: &str, inside| (name.to_owned(), inside);
            let found = vec![file("conf.d/a.conf", top), file("conf.d/b.conf", std::mem::take(&mut level))];
            http.push(Statement::Include("conf.d/*.conf".to_owned(), found));
            let sites = servers.into_iter().enumerate();
            let sites = sites.map(|(number, server)| (format!("sites-enabled/{number}"), vec![server]));
            http.push(Statement::Include("sites-enabled/*".to_owned(), sites.collect()));
        } else {
            http.extend(top.into_iter().chain(level).chain(servers));
        }
        main.push(block("http", http));
        Conf(main)
    }

    fn roll_servers(&mut self) -> Vec<Statement> {
        let count = if self.features.has("servers") { 2 + self.dice.below(2) } else { 1 };
        let last = ["_", "_", "\"\"", "s1.test", "*.s1.test", "s0.test d.test"][self.dice.below(6)];
        let mut names = ["s0.test", ".s1.test", last];
        names.swap(1, 1 + self.dice.below(2));
        (0..count).map(|number| self.roll_server(number, names[number])).collect()
    }

    fn roll_server(&mut self, number: usize, name: &str) -> Statement {
        let default = if number > 0 && self.dice.one_in(4) { " default_server" } else { "" };
        let default = if number == 1 { default } else { "" };
        let mut inside =
            vec![line(format!("listen 127.0.0.1:@0@{default}")), line(format!("server_name {name}"))];
        if self.dice.one_in(6) {
            inside.push(line("listen 127.0.0.1:@1@"));
        }
        if self.features.has("underscores") && self.dice.one_in(3) {
            inside.push(line(self.dice.pick(&["underscores_in_headers on", "underscores_in_headers off"])));
        }
        if self.features.has("slashes") && self.dice.one_in(2) {
            inside.push(line("merge_slashes off"));
        }
        inside.extend(self.guards.roll_level(&self.features, &mut self.dice, 1));
        if self.features.has("sets") {
            let place = self.next_place();
            inside.push(line(format!("set $spare {}", address_of(place))));
        }
        if self.features.has("rewrites") && self.dice.one_in(3) {
            inside.push(line(self.dice.pick(&[
                "rewrite ^/ab(.*)$ /a$1 last",
                "rewrite ^/zzz$ /b/ permanent",
                "rewrite ^/img/([0-9]+)$ /api/$1",
                "rewrite ^/b/(.*)$ /a/$1 last",
            ])));
        }
        if self.features.has("asks") {
            let judge = format!("proxy_pass http://{}", address_of(JUDGE));
            inside.push(block("location = /judge", vec![line("internal"), line(judge)]));
        }
        if self.features.has("files") {
            let mut tried = self.guards.roll_level(&self.features, &mut self.dice, 2);
            tried.extend(self.roll_pass("", false));
            inside.push(block("location @tried", tried));
        }
        inside.extend(self.roll_pages());
        inside.extend(self.roll_locations("/", 0, false));
        block("server", inside)
    }

    /// Pages of errors, and the locations that answer them.
    fn roll_pages(&mut self) -> Vec<Statement> {
        if !self.features.has("pages") || self.dice.one_in(2) {
            return Vec::new();
        }
        let page = self.dice.pick(&[
            "error_page 503 @busy",
            "error_page 429 503 =503 @busy",
            "error_page 503 = @spare",
            "error_page 503 =429 @busy",
            "error_page 404 500 502 /50x.html",
        ]);
        let place = self.next_place();
        let mut pages = vec![line(page)];
        if page.ends_with("@busy") {
            pages.push(block("location @busy", vec![line("return 503 busy")]));
        } else if page.ends_with("@spare") {
            let pass = format!("proxy_pass http://{}", address_of(place));
            pages.push(block("location @spare", vec![line(pass)]));
        }
        pages
    }

    fn next_place(&mut self) -> u8 {
        self.places += 1;
        self.places
    }

    fn roll_locations(&mut self, base: &str, depth: usize, in_regex: bool) -> Vec<Statement> {
        let mut found = Vec::new();
        let mut taken = BTreeSet::new();
        let count = if depth == 0 { 2 + self.dice.below(4) } else { 1 + self.dice.below(2) };
        for _ in 0..count {
            let head = self.roll_head(base, in_regex);
            let path = head.rsplit(' ').next().unwrap_or_default().to_owned();
            let key = if head.starts_with('=') { format!("= {path}") } else { path };
            if taken.insert(key) {
                let body = self.roll_location(&head, depth);
                found.push(self.place_block(format!("location {head}"), body));
            }
        }
        if depth == 0 && !taken.contains("/") && !self.dice.one_in(4) {
            let mut body = self.roll_location("/", 9);
            if self.features.has("debian") && self.dice.one_in(5) {
                body = vec![line("try_files $uri $uri/ =404")];
            }
            found.push(block("location /", body));
        }
        found
    }

    /// A block, now and then with its inside in a file.
    fn place_block(&mut self, head: String, body: Vec<Statement>) -> Statement {
        if !self.features.has("includes") || !self.dice.one_in(4) {
            return block(head, body);
        }
        let file = format!("snippets/{}.conf", self.next_place());
        block(head, vec![Statement::Include(file.clone(), vec![(file, body)])])
    }

    fn roll_head(&mut self, base: &str, in_regex: bool) -> String {
        if in_regex || (self.features.has("regex") && self.dice.one_in(3)) {
            let looks = self.features.has("lookarounds") && self.dice.one_in(2);
            return self.dice.pick(if looks { &LOOKAROUNDS } else { &REGEXES }).to_owned();
        }
        let path = format!("{base}{}", self.dice.pick(&SEGMENTS));
        let (head, aim) = match self.dice.below(7) {
            0 => (format!("= {path}"), path),
            1 => (format!("= {path}.php"), format!("{path}.php")),
            2 => (format!("^~ {path}/"), format!("{path}/x.php")),
            3 => (path.clone(), path),
            4 => (format!("= {path}/"), path),
            _ => (format!("{path}/"), format!("{path}/x")),
        };
        self.paths.insert(aim);
        head
    }

    fn roll_location(&mut self, head: &str, depth: usize) -> Vec<Statement> {
        let is_regex = head.starts_with('~');
        let is_prefix = head.starts_with('/') || head.starts_with("^~");
        let path = head.rsplit(' ').next().unwrap_or_default();
        let mut inside = self.guards.roll_level(&self.features, &mut self.dice, 2);
        if self.features.has("returns") && self.dice.one_in(5) {
            let answers = ["204", "200 ok", "403", "404", "410", "301 /b/", "301 http://s1.test$request_uri"];
            inside.push(line(format!("return {}", self.dice.pick(&answers))));
            return inside;
        }
        if self.features.has("rewrites") && self.dice.one_in(4) {
            let rule = match self.dice.below(4) {
                0 if is_prefix => {
                    format!("rewrite ^{}(.*)$ /$1 break", path.trim_end_matches('/').to_owned() + "/")
                }
                1 => "rewrite ^/(.*)$ http://s1.test/$1 permanent".to_owned(),
                2 => "rewrite /x$ /b/ last".to_owned(),
                _ => "rewrite ^/a/(.*)$ /api/$1 last".to_owned(),
            };
            inside.push(line(rule));
        }
        if self.features.has("nested") && self.dice.one_in(12) {
            inside.push(line("internal"));
        }
        match self.features.has("files").then(|| self.dice.below(9)) {
            Some(0) => {}
            Some(1) => inside.push(line("try_files /none @tried")),
            _ => inside.extend(self.roll_pass(path, is_prefix)),
        }
        if is_prefix && depth < 2 && self.features.has("nested") && self.dice.one_in(2) {
            let base = if path.ends_with('/') { path.to_owned() } else { format!("{path}/") };
            inside.extend(self.roll_locations(&base, depth + 1, false));
        } else if is_regex && depth < 2 && self.features.has("regex inside") && self.dice.one_in(2) {
            inside.extend(self.roll_locations("/", depth + 1, true));
        }
        inside
    }

    fn roll_pass(&mut self, path: &str, is_prefix: bool) -> Vec<Statement> {
        let address = address_of(self.next_place());
        let mut found = Vec::new();
        if self.features.has("debian") && self.dice.one_in(3) {
            found.push(line("include /etc/nginx/proxy_params"));
        }
        let target = match self.dice.below(4) {
            0 if self.features.has("upstreams") => {
                let name = format!("u{}", self.places);
                let inside = vec![line(format!("server {address}")), line("keepalive 2")];
                self.upstreams.push(block(format!("upstream {name}"), inside));
                name
            }
            1 if self.features.has("sets") => "$spare".to_owned(),
            2 if self.features.has("prefixes") && is_prefix && path.ends_with('/') => format!("{address}/"),
            3 if self.features.has("prefixes") && is_prefix => format!("{address}{path}"),
            _ => address,
        };
        found.push(line(format!("proxy_pass http://{target}")));
        found
    }
}
