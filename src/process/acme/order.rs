//! One order of a certificate: account, challenges, request and download (RFC 8555, section 7).

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use instant_acme::{
    Account, AuthorizationStatus, ChallengeType, Error, ExternalAccountKey, Identifier, NewAccount, NewOrder,
    Order, OrderStatus,
};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::directory::DirectoryClient;
use super::keys::request_certificate;
use super::storage::Storage;
use sluicegate_model::AcmeConfig;

/// Time for gateways that share the folder to read the answers to challenges.
const SHARED_WAIT: Duration = Duration::from_secs(2);
const POLL_MIN: Duration = Duration::from_secs(1);
const POLL_MAX: Duration = Duration::from_secs(30);
/// The time of all polls of one order.
const POLLING_MAX: Duration = Duration::from_secs(300);
/// Characters that are shown of texts of the directory.
const SHOWN_MAX: usize = 400;

/// The answers to the challenges of an order.
#[derive(Debug, Clone, Default)]
pub(super) struct OrderAnswers {
    /// Key authorizations by their tokens.
    pub tokens: HashMap<String, String>,
    /// Digests for tls-alpn-01 by host names.
    pub hosts: HashMap<String, Vec<u8>>,
}

/// Why there is no certificate.
enum OrderFault {
    /// A challenge was not confirmed.
    Challenge(ChallengeType, String),
    /// Anything else.
    Other(String),
}

/// The parts of one attempt.
pub(super) struct Attempt<'a> {
    pub acme: &'a AcmeConfig,
    pub client: &'a DirectoryClient,
    pub storage: &'a Storage,
    /// http-01 can be answered.
    pub has_plain: bool,
    /// Counts an order that failed, and is followed by another.
    pub count_failed: &'a dyn Fn(),
}

impl Attempt<'_> {
    /// Orders a certificate, and returns it with its key in PEM. `publish` makes the answers known.
    ///
    /// # Errors
    /// The reason, in which texts of the directory are escaped and cut.
    pub(super) async fn obtain<F: Future<Output = Result<(), String>>>(
        &self,
        publish: impl Fn(OrderAnswers) -> F,
    ) -> Result<String, String> {
        let mut account = self.find_account(true).await?;
        let mut is_new = false;
        let mut kinds = vec![ChallengeType::TlsAlpn01];
        kinds.extend(self.has_plain.then_some(ChallengeType::Http01));
        let mut reasons = Vec::new();
        loop {
            let order = match self.new_order(&account).await {
                Err(error) if !is_new && is_account_fault(&error) => {
                    (account, is_new) = (self.find_account(false).await?, true);
                    continue;
                }
                order => order.map_err(|error| describe(&error))?,
            };
            match self.complete(order, &kinds, &publish).await {
                Ok(pem) => return Ok(pem),
                Err(OrderFault::Other(reason)) => reasons.push(reason),
                Err(OrderFault::Challenge(failed, reason)) => {
                    tracing::info!("{reason}");
                    reasons.push(reason);
                    kinds.retain(|kind| *kind != failed);
                    if !kinds.is_empty() {
                        (self.count_failed)();
                        continue;
                    }
                }
            }
            return Err(reasons.join("; "));
        }
    }

    /// The account in the folder, or a new one that is stored there.
    async fn find_account(&self, may_exist: bool) -> Result<Account, String> {
        let (storage, path) = (self.storage.clone(), self.acme.account_path());
        let known = spawn_blocking(move || storage.read_json(&path)).await.ok().flatten();
        let builder = || Account::builder_with_http(Box::new(self.client.clone()));
        if let Some(credentials) = known.filter(|_| may_exist) {
            match builder().from_credentials(credentials).await {
                // A file that is not its account any more is replaced.
                Err(Error::KeyRejected) => {}
                account => return account.map_err(|error| describe(&error)),
            }
        }
        let contact = self.acme.email.as_ref().map(|email| format!("mailto:{email}"));
        let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
        let new =
            NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
        let eab = self.acme.eab.as_ref().map(|eab| {
            let key = URL_SAFE_NO_PAD.decode(&eab.hmac.0).map_err(|_| "the HMAC key is not base64url")?;
            Ok::<_, String>(ExternalAccountKey::new(eab.kid.clone(), &key))
        });
        let eab = eab.transpose()?;
        let made = builder().create(&new, self.acme.directory_text(), eab.as_ref()).await;
        let (account, credentials) = made.map_err(|error| describe(&error))?;
        let (storage, path) = (self.storage.clone(), self.acme.account_path());
        let written = spawn_blocking(move || storage.write_json(&path, &credentials)).await;
        written.unwrap_or_else(|error| Err(error.to_string()))?;
        Ok(account)
    }

    async fn new_order(&self, account: &Account) -> Result<Order, Error> {
        let names: Vec<Identifier> = self.acme.domains.iter().cloned().map(Identifier::Dns).collect();
        account.new_order(&NewOrder::new(&names)).await
    }

    async fn complete<F: Future<Output = Result<(), String>>>(
        &self,
        mut order: Order,
        kinds: &[ChallengeType],
        publish: &impl Fn(OrderAnswers) -> F,
    ) -> Result<String, OrderFault> {
        if order.state().authorizations.len() > self.acme.domains.len() {
            return Err(OrderFault::Other("the directory wants more than the names of the order".to_owned()));
        }
        let (kind, answers) = collect_answers(&mut order, kinds).await?;
        if let Some(name) = answers.hosts.keys().find(|name| !self.acme.domains.contains(name)) {
            return Err(OrderFault::Other(format!("the directory asks for {}", shown(name))));
        }
        if !answers.tokens.is_empty() || !answers.hosts.is_empty() {
            publish(answers).await.map_err(OrderFault::Other)?;
            sleep(SHARED_WAIT).await;
            ask_for_validation(&mut order, &kind).await?;
        }
        self.wait_for(&mut order, OrderStatus::Ready, &kind).await?;
        let (key, request) =
            request_certificate(&self.acme.domains).map_err(|error| OrderFault::Other(error.to_string()))?;
        if order.state().status == OrderStatus::Ready {
            order.finalize_csr(&request).await.map_err(other)?;
        }
        self.wait_for(&mut order, OrderStatus::Valid, &kind).await?;
        let chain = order.certificate().await.map_err(other)?;
        let chain = chain.ok_or_else(|| OrderFault::Other("the order has no certificate".to_owned()))?;
        Ok(format!("{key}{chain}"))
    }

    /// Polls the order until it is `wanted`, or further.
    async fn wait_for(
        &self,
        order: &mut Order,
        wanted: OrderStatus,
        kind: &ChallengeType,
    ) -> Result<(), OrderFault> {
        let (deadline, mut pause) = (Instant::now() + POLLING_MAX, POLL_MIN);
        loop {
            match order.state().status {
                OrderStatus::Invalid => return Err(find_refusal(order, kind).await),
                OrderStatus::Valid => return Ok(()),
                status if status == wanted => return Ok(()),
                _ if Instant::now() >= deadline => {
                    let reason = format!("the directory did not decide within {} s", POLLING_MAX.as_secs());
                    return Err(OrderFault::Other(reason));
                }
                _ => {}
            }
            sleep(self.client.retry_after().unwrap_or(pause).clamp(POLL_MIN, POLL_MAX)).await;
            pause = (pause * 2).min(POLL_MAX / 6);
            order.refresh().await.map_err(other)?;
        }
    }
}

/// The first kind that is offered for all names that are not confirmed, and the answers to its challenges.
async fn collect_answers(
    order: &mut Order,
    kinds: &[ChallengeType],
) -> Result<(ChallengeType, OrderAnswers), OrderFault> {
    for kind in kinds {
        if let Some(answers) = collect_of_kind(order, kind).await? {
            return Ok((kind.clone(), answers));
        }
    }
    let labels: Vec<&str> = kinds.iter().map(label).collect();
    Err(OrderFault::Other(format!("the directory does not offer {}", labels.join(" or "))))
}

async fn collect_of_kind(
    order: &mut Order,
    kind: &ChallengeType,
) -> Result<Option<OrderAnswers>, OrderFault> {
    let mut answers = OrderAnswers::default();
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.map_err(other)?;
        if authorization.status == AuthorizationStatus::Valid {
            continue;
        }
        let name = authorization.identifier().to_string();
        let Some(challenge) = authorization.challenge(kind.clone()) else { return Ok(None) };
        let proof = challenge.key_authorization();
        if *kind == ChallengeType::TlsAlpn01 {
            answers.hosts.insert(name.to_ascii_lowercase(), proof.digest().as_ref().to_vec());
        } else {
            answers.tokens.insert(challenge.token.clone(), proof.as_str().to_owned());
        }
    }
    Ok(Some(answers))
}

async fn ask_for_validation(order: &mut Order, kind: &ChallengeType) -> Result<(), OrderFault> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.map_err(other)?;
        if authorization.status == AuthorizationStatus::Valid {
            continue;
        }
        if let Some(mut challenge) = authorization.challenge(kind.clone()) {
            let fault = |error: Error| OrderFault::Challenge(kind.clone(), describe(&error));
            challenge.set_ready().await.map_err(fault)?;
        }
    }
    Ok(())
}

/// Why an order is invalid: the first challenge that failed, or the fault of the order itself.
async fn find_refusal(order: &mut Order, kind: &ChallengeType) -> OrderFault {
    let whole = order.state().error.clone().map(|problem| describe(&Error::Api(problem)));
    let mut authorizations = order.authorizations();
    while let Some(Ok(authorization)) = authorizations.next().await {
        if authorization.status == AuthorizationStatus::Invalid {
            let (kind, name) = (kind.clone(), shown(&authorization.identifier().to_string()));
            let reason = authorization.challenges.iter().find_map(|challenge| challenge.error.clone());
            let reason =
                reason.map_or_else(|| "no reason".to_owned(), |problem| describe(&Error::Api(problem)));
            let reason = format!("{} of {name} failed: {reason}", label(&kind));
            return OrderFault::Challenge(kind, reason);
        }
    }
    OrderFault::Other(whole.unwrap_or_else(|| "the directory rejected the order".to_owned()))
}

fn label(kind: &ChallengeType) -> &'static str {
    if *kind == ChallengeType::TlsAlpn01 { "tls-alpn-01" } else { "http-01" }
}

/// The directory does not know the account, or has closed it.
fn is_account_fault(error: &Error) -> bool {
    const KINDS: [&str; 2] = ["accountDoesNotExist", "unauthorized"];
    let Error::Api(problem) = error else { return false };
    let kind = problem.r#type.as_deref().and_then(|kind| kind.strip_prefix("urn:ietf:params:acme:error:"));
    kind.is_some_and(|kind| KINDS.contains(&kind))
}

fn other(error: Error) -> OrderFault {
    OrderFault::Other(describe(&error))
}

fn describe(error: &Error) -> String {
    match error {
        Error::Api(problem) => {
            let parts = problem.subproblems.iter().map(|part| part.detail.as_deref().unwrap_or_default());
            let detail = problem.detail.as_deref().into_iter().chain(parts).collect::<Vec<_>>().join("; ");
            let kind = problem.r#type.as_deref().unwrap_or_default();
            let kind = kind.rsplit(':').next().unwrap_or_default();
            shown(&format!("the directory says {kind}: {detail}"))
        }
        Error::Json(_) => "the directory answers with no usable JSON".to_owned(),
        error => shown(&format!("the directory {error}")),
    }
}

/// A text of the directory without control characters, cut.
fn shown(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { ' ' } else { char }).take(SHOWN_MAX).collect()
}
