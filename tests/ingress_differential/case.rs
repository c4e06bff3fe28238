//! One file of objects on all three programs.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::json;
use sluicegate_import::import_file;

use crate::known::{KNOWN, Known};
use crate::nginx_conf::write_conf;
use crate::objects::{CANARIES, MAINS, Object, roll_objects, weighted_objects};
use crate::requests::{Answer, Request, ask, roll_requests, start_service};
use crate::support::nginx::Nginx;
use crate::support::{Dice, Gateway, Scratch, Upstream};
use crate::traefik::Traefik;

const REQUESTS: usize = 60;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Side {
    Nginx,
    Traefik,
}

impl Side {
    pub fn name(self) -> &'static str {
        match self {
            Side::Nginx => "nginx",
            Side::Traefik => "traefik",
        }
    }
}

pub struct Programs {
    pub nginx: PathBuf,
    pub traefik: Option<PathBuf>,
}

/// The services that all programs forward to.
pub struct Services(Vec<(&'static str, Upstream)>);

impl Services {
    pub fn start() -> Services {
        Services(MAINS.into_iter().chain(CANARIES).map(|name| (name, start_service(name))).collect())
    }
}

#[derive(Clone)]
pub struct Case {
    pub seed: u64,
    pub objects: Vec<Object>,
    pub requests: Vec<Request>,
}

/// A disagreement.
#[derive(Clone, Debug)]
pub struct Fault {
    pub side: Side,
    pub request: Request,
    /// Of the gateway, nginx and, if it runs, Traefik.
    pub answers: Vec<Answer>,
}

#[derive(Default)]
pub struct Trial {
    pub faults: Vec<Fault>,
    /// The places in `KNOWN` of the differences that occurred.
    pub known: Vec<usize>,
}

impl Case {
    /// Objects that nginx takes, and requests to them.
    pub fn roll(seed: u64) -> Case {
        let mut dice = Dice(seed.wrapping_mul(0x1_0000_0001) ^ 0x1e55);
        loop {
            let objects = roll_objects(&mut dice);
            if write_conf(&objects).is_some() {
                return Case { seed, objects, requests: roll_requests(REQUESTS, &mut dice) };
            }
        }
    }

    pub fn run(&self, programs: &Programs, services: &Services) -> Trial {
        let started = self.start(programs, services);
        let mut trial = Trial::default();
        for request in &self.requests {
            self.judge(request, &started.ask(request), &mut trial);
        }
        trial
    }

    fn judge(&self, request: &Request, answers: &[Answer], trial: &mut Trial) {
        let ours = &answers[0];
        let others = [Side::Nginx, Side::Traefik].into_iter().zip(&answers[1..]);
        for (side, theirs) in others.filter(|(_, theirs)| *theirs != ours) {
            let explains =
                |known: &Known| known.side == side && (known.explains)(self, request, ours, theirs);
            match KNOWN.iter().position(explains) {
                Some(known) => trial.known.push(known),
                None => {
                    trial.faults.push(Fault { side, request: request.clone(), answers: answers.to_vec() })
                }
            }
        }
    }

    /// The imported file; `None` if it cannot be imported, or something is lost.
    fn import(&self) -> Option<String> {
        let items: Vec<_> = self.objects.iter().map(Object::json).collect();
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
        let scratch = Scratch::new();
        let imported = import_file(&scratch.file("objects.json", &list.to_string())).ok()?;
        (imported.report.count_lost() == 0).then_some(imported.yaml)
    }

    fn start(&self, programs: &Programs, services: &Services) -> Started {
        let mut yaml = self.import().unwrap_or_else(|| panic!("seed {} is not imported whole", self.seed));
        let mut conf = write_conf(&self.objects).expect("locations that differ");
        for (name, service) in &services.0 {
            yaml = yaml.replace(&format!("http://{name}.default.svc.cluster.local:80"), &service.url());
            conf = conf.replace(&format!("@{name}@"), &service.addr().to_string());
        }
        let ports: Vec<_> = services.0.iter().map(|(name, service)| (*name, service.addr().port())).collect();
        Started {
            gateway: Gateway::start(&format!("listen: 127.0.0.1:0\nadmin: none\naccess_log: none\n{yaml}")),
            nginx: Nginx::start_program(&programs.nginx, &conf, 1),
            traefik: programs.traefik.as_ref().map(|program| Traefik::start(program, &self.objects, &ports)),
        }
    }

    /// The smallest file found on which the two sides disagree about the request of `fault`, with their answers.
    pub fn shrink(&self, fault: &Fault, programs: &Programs, services: &Services) -> String {
        let mut best = Case { requests: vec![fault.request.clone()], ..self.clone() };
        let mut found = fault.clone();
        let mut is_smaller = true;
        while std::mem::take(&mut is_smaller) {
            let mut at = 0;
            while let Some(case) = best.without(at) {
                let is_valid = write_conf(&case.objects).is_some() && case.import().is_some();
                let faults = if is_valid { case.run(programs, services).faults } else { Vec::new() };
                match faults.into_iter().find(|other| other.side == fault.side) {
                    Some(other) => (best, found, is_smaller) = (case, other, true),
                    None => at += 1,
                }
            }
        }
        best.describe(&found)
    }

    /// The case without one of its objects, paths or annotations; `None` after the last of them.
    fn without(&self, mut place: usize) -> Option<Case> {
        let mut case = self.clone();
        if place < case.objects.len() {
            case.objects.remove(place);
            return Some(case);
        }
        place -= case.objects.len();
        for object in &mut case.objects {
            if place < object.paths.len() {
                object.paths.remove(place);
                return Some(case);
            }
            place -= object.paths.len();
            if object.default.is_some() {
                if place == 0 {
                    object.default = None;
                    return Some(case);
                }
                place -= 1;
            }
            if place < object.annotations.len() {
                object.annotations.remove(place);
                return Some(case);
            }
            place -= object.annotations.len();
        }
        None
    }

    fn describe(&self, fault: &Fault) -> String {
        let mut text = format!("=== seed {}: the gateway and {}\n", self.seed, fault.side.name());
        for Object { name, created, host, paths, default, annotations } in &self.objects {
            let _ = writeln!(
                text,
                "{name}, of second {created}, at \"{host}\", default {default:?}: {annotations:?}"
            );
            for path in paths {
                let _ = writeln!(text, "    {} {} to {}", path.kind, path.text, path.service);
            }
        }
        let _ = writeln!(text, "{:?}", fault.request);
        for (name, answer) in ["gateway", "nginx", "traefik"].into_iter().zip(&fault.answers) {
            let _ = writeln!(text, "  {name}: {answer:?}");
        }
        text + &self.import().unwrap_or_default()
    }
}

struct Started {
    gateway: Gateway,
    nginx: Nginx,
    traefik: Option<Traefik>,
}

impl Started {
    fn ask(&self, request: &Request) -> Vec<Answer> {
        let addrs =
            [Some(self.gateway.addr()), Some(self.nginx.addr(0)), self.traefik.as_ref().map(Traefik::addr)];
        addrs.into_iter().flatten().map(|addr| ask(addr, request)).collect()
    }
}

/// How many of 400 requests come to a canary that has a share of 30 %, at the gateway, nginx and Traefik.
pub fn count_shares(programs: &Programs, services: &Services) -> Vec<usize> {
    let request =
        Request { method: "GET", host: "a.test", target: "/x/y", header: None, cookie: None, body: 0 };
    let case = Case { seed: 0, objects: weighted_objects(), requests: Vec::new() };
    let started = case.start(programs, services);
    let mut counts = vec![0; 3];
    for _ in 0..400 {
        for (count, answer) in counts.iter_mut().zip(started.ask(&request)) {
            *count += usize::from(answer.service.as_deref() == Some(CANARIES[0]));
        }
    }
    counts
}
