//! One file on nginx and, imported, on the gateway: the decisions that differ.

use std::mem::{Discriminant, discriminant};

use sluicegate_import::{ImportReport, import_file};

use crate::backend::Backend;
use crate::conf::{Conf, Places};
use crate::replay::{Decision, Patience, replay};
use crate::site::Case;
use crate::support::nginx::Nginx;
use crate::support::{Gateway, Scratch, free_addr, ms};
use crate::traffic::{Request, Step};

/// A request on which the rule is broken.
#[derive(Debug)]
pub struct Fault {
    pub number: usize,
    pub nginx: Decision,
    pub gateway: Decision,
    /// nginx refuses it by an address or a password, and the gateway does not.
    pub is_open_door: bool,
}

impl Fault {
    /// The same for faults that may have one cause.
    pub fn kind(&self) -> (bool, [Discriminant<Decision>; 2]) {
        (self.is_open_door, [self.nginx, self.gateway].map(|decision| discriminant(&decision)))
    }
}

/// What one file gave.
#[derive(Debug)]
pub struct Trial {
    /// The exit code of the import.
    pub exit: u8,
    /// Why the file was not understood, or the written gateway.yaml.
    pub written: String,
    /// The lost lines.
    pub lost: Vec<String>,
    /// The steps in the order in which they were sent.
    pub steps: Vec<Step>,
    /// nginx's decisions on all requests.
    pub decisions: Vec<Decision>,
    pub doors: usize,
    /// Differences that the manual names.
    pub excused: usize,
    pub faults: Vec<Fault>,
}

/// A slow machine gets more time in each further round.
pub fn patience_of(round: u32) -> Patience {
    Patience { answer: ms(80 * 4_u64.pow(round)), settle: ms([1, 4, 12][round.min(2) as usize]) }
}

impl Case {
    /// `None`: nginx does not take the file.
    pub fn run(&self, round: u32) -> Option<Trial> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        runtime.block_on(self.compare(patience_of(round)))
    }

    async fn compare(&self, patience: Patience) -> Option<Trial> {
        let sides = [Backend::listen().await, Backend::listen().await];
        let (nginx, ports) = serve(&self.conf, &sides[0])?;
        let scratch = Scratch::new();
        let own_ports = [(); 2].map(|()| free_addr().port());
        let places = Places { dir: scratch.path(), ports: own_ports, backend: sides[1].port };
        let imported = import_file(&self.conf.write(&places));
        let mut trial = Trial {
            exit: 0,
            written: String::new(),
            lost: Vec::new(),
            steps: self.steps.clone(),
            decisions: Vec::new(),
            doors: 0,
            excused: 0,
            faults: Vec::new(),
        };
        let imported = match imported {
            Ok(imported) => imported,
            Err(fault) => {
                trial.exit = 3;
                trial.written = fault.to_string();
                return Some(trial);
            }
        };
        trial.lost = list_lost(&imported.report);
        trial.exit = u8::from(!trial.lost.is_empty());
        trial.written = imported.yaml;
        let gateway = Gateway::start(&format!("{}\nadmin: none\naccess_log: none\n", trial.written));
        let denied = self.find_denied(&sides[0], patience).await;
        // nginx counts a request before it denies it, the gateway does not: what is denied comes last.
        trial.steps = order_steps(&self.steps, &denied);
        let (theirs, ours) = tokio::join!(
            replay(ports, "n", &trial.steps, &sides[0], patience),
            replay(own_ports, "g", &trial.steps, &sides[1], patience)
        );
        drop((nginx, gateway));
        trial.judge(&denied, &theirs, &ours);
        Some(trial)
    }

    /// The requests that nginx refuses by address or password, found on the file without limits and conditions.
    async fn find_denied(&self, backend: &Backend, patience: Patience) -> Vec<Request> {
        let plain = self.conf.without(&["limit_req ", "limit_conn ", "if ("]);
        let doors = ["deny ", "auth_basic ", "auth_request ", "return 403"];
        if !doors.iter().any(|word| plain.show().contains(word)) {
            return Vec::new();
        }
        let Some((_nginx, ports)) = serve(&plain, backend) else { return Vec::new() };
        let asks = self.steps.iter().filter(|step| matches!(step, Step::Ask(_)));
        let asks: Vec<Step> = asks.cloned().map(Step::without_hold).collect();
        let found = replay(ports, "p", &asks, backend, patience).await;
        let denied = asks.into_iter().zip(found).filter(|(_, found)| *found == Some(Decision::Denied));
        denied
            .filter_map(|(step, _)| if let Step::Ask(request) = step { Some(request) } else { None })
            .collect()
    }
}

fn serve(conf: &Conf, backend: &Backend) -> Option<(Nginx, [u16; 2])> {
    if !conf.show().contains(":@0@") {
        return None;
    }
    let (scratch, ports) = (Scratch::new(), [(); 2].map(|()| free_addr().port()));
    conf.write(&Places { dir: scratch.path(), ports, backend: backend.port });
    let nginx = Nginx::serve_folder(scratch, ([127, 0, 0, 1], ports[0]).into())?;
    Some((nginx, ports))
}

fn list_lost(report: &ImportReport) -> Vec<String> {
    report
        .lost()
        .map(|finding| format!("{}: {}: {}", finding.at.line, finding.directive, finding.says))
        .collect()
}

fn is_denied(denied: &[Request], request: &Request) -> bool {
    denied.iter().any(|other| Request { holds: request.holds, ..other.clone() } == *request)
}

fn order_steps(steps: &[Step], denied: &[Request]) -> Vec<Step> {
    // nginx also counts a request that the gateway refuses because a field comes twice.
    let is_last = |step: &&Step| matches!(step, Step::Ask(request) if is_denied(denied, request) || request.repeats_field());
    let (last, first): (Vec<&Step>, Vec<&Step>) = steps.iter().partition(is_last);
    let mut ordered: Vec<Step> = first.into_iter().cloned().collect();
    ordered.push(Step::Release);
    ordered.extend(last.into_iter().cloned().map(Step::without_hold));
    ordered
}

impl Request {
    fn repeats_field(&self) -> bool {
        let names: Vec<String> = self.headers.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
        names.iter().enumerate().any(|(at, name)| names[..at].contains(name))
    }
}

impl Step {
    fn without_hold(self) -> Step {
        match self {
            Step::Ask(request) => Step::Ask(Request { holds: false, ..request }),
            Step::Release => Step::Release,
        }
    }
}

impl Trial {
    fn judge(&mut self, denied: &[Request], theirs: &[Option<Decision>], ours: &[Option<Decision>]) {
        // nginx counted a request that the gateway refused by its address, or because a field comes twice; those come
        // last.
        let mut is_spent = false;
        for (number, step) in self.steps.iter().enumerate() {
            let (Step::Ask(request), Some(nginx), Some(gateway)) = (step, theirs[number], ours[number])
            else {
                continue;
            };
            self.decisions.push(nginx);
            let is_denied = is_denied(denied, request);
            self.doors += usize::from(is_denied);
            // A closed location may let a request wait before it refuses it.
            let is_through = matches!(gateway, Decision::Served(_));
            let is_open_door = is_denied && is_through && nginx != gateway;
            let differs = self.exit == 0 && nginx != gateway;
            if !differs && !is_open_door {
                continue;
            }
            let is_repeated = request.repeats_field() && gateway == Decision::BadRequest;
            let is_counted = is_spent && matches!(nginx, Decision::Limited | Decision::Waits);
            is_spent |= is_repeated || is_denied;
            if !is_open_door && (is_repeated || is_counted || is_judged_first(is_denied, nginx, gateway)) {
                self.excused += 1;
                continue;
            }
            self.faults.push(Fault { number, nginx, gateway, is_open_door });
        }
    }
}

/// The gateway judges addresses before limits, as docs/import.md says: nobody who is denied waits or is counted.
fn is_judged_first(is_denied: bool, nginx: Decision, gateway: Decision) -> bool {
    is_denied && matches!(nginx, Decision::Limited | Decision::Waits) && gateway == Decision::Denied
}
