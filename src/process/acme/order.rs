//! One order of a certificate: account, challenges, request and download (RFC 8555, section 7).

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use instant_acme::{
    Account, AuthorizationStatus, ChallengeType, Error, ExternalAccountKey, Identifier, NewAccount, NewOrder,
    Order, OrderStatus, RetryPolicy,
};
use tokio::time::sleep;

use super::directory::DirectoryClient;
use super::keys::request_certificate;
use super::lock::OwnLock;
use super::storage::OrderAnswers;
use sluicegate_model::AcmeConfig;

/// Time for gateways that share the folder to read the answers to challenges.
const SHARED_WAIT: Duration = Duration::from_secs(2);
/// The time of the polls before the certificate is requested, and of those after that.
const POLLING_MAX: Duration = Duration::from_secs(300);
/// The waits between them, where the directory asks for none.
const POLLS: RetryPolicy =
    RetryPolicy::new().initial_delay(Duration::from_secs(1)).backoff(1.2).timeout(POLLING_MAX);
/// Characters that are shown of texts of the directory.
const SHOWN_MAX: usize = 400;

/// Why there is no certificate.
struct OrderFault {
    reason: String,
    /// The kind of challenge that was not confirmed; `None` = another kind would not help.
    refused: Option<ChallengeType>,
}

/// The parts of one attempt.
pub(super) struct Attempt<'a> {
    pub acme: &'a AcmeConfig,
    pub client: &'a DirectoryClient,
    pub lock: &'a OwnLock,
    /// http-01 can be answered.
    pub has_plain: bool,
}

impl Attempt<'_> {
    /// Orders a certificate, and returns it with its key in PEM.
    ///
    /// # Errors
    /// The reason, in which texts of the directory are escaped and cut.
    pub(super) async fn obtain(&self) -> Result<String, String> {
        let names: Vec<Identifier> = self.acme.domains.iter().cloned().map(Identifier::Dns).collect();
        let names = NewOrder::new(&names);
        let mut account = self.find_account(true).await?;
        let mut order = account.new_order(&names).await;
        if order.as_ref().is_err_and(is_account_fault) {
            account = self.find_account(false).await?;
            order = account.new_order(&names).await;
        }
        let mut kinds = vec![ChallengeType::TlsAlpn01];
        kinds.extend(self.has_plain.then_some(ChallengeType::Http01));
        let mut reasons = Vec::new();
        loop {
            let fault = match self.complete(order, &kinds).await {
                Ok(pem) => return Ok(pem),
                Err(fault) => fault,
            };
            kinds.retain(|kind| Some(kind) != fault.refused.as_ref());
            let is_last = fault.refused.is_none() || kinds.is_empty();
            reasons.push(fault.reason);
            if is_last {
                return Err(reasons.join("; "));
            }
            tracing::info!("{}", reasons[reasons.len() - 1]);
            self.lock.challenges.failed.fetch_add(1, Relaxed);
            order = account.new_order(&names).await;
        }
    }

    /// The account in the folder, or a new one that is stored there.
    async fn find_account(&self, may_exist: bool) -> Result<Account, String> {
        let (storage, path) = (&self.lock.storage, self.acme.account_path());
        let stored = path.clone();
        let known = storage.run(move |storage| Ok(storage.read_json(&stored))).await.ok().flatten();
        let builder = || Account::builder_with_http(Box::new(self.client.clone()));
        if let Some(credentials) = known.filter(|_| may_exist) {
            match builder().from_credentials(credentials).await {
                // A file that is not its account any more is replaced.
                Err(Error::KeyRejected) => {}
                account => return account.map_err(describe),
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
        let (account, credentials) = made.map_err(describe)?;
        storage.write_json(path, &credentials).await?;
        Ok(account)
    }

    async fn complete(
        &self,
        order: Result<Order, Error>,
        kinds: &[ChallengeType],
    ) -> Result<String, OrderFault> {
        let mut order = order?;
        if order.state().authorizations.len() > self.acme.domains.len() {
            return Err("the directory wants more than the names of the order".to_owned().into());
        }
        let (kind, answers) = collect_answers(&mut order, kinds).await?;
        if let Some(name) = answers.hosts.keys().find(|name| !self.acme.domains.contains(name)) {
            return Err(format!("the directory asks for {}", shown(name)).into());
        }
        if !answers.tokens.is_empty() || !answers.hosts.is_empty() {
            self.lock.publish(answers).await?;
            sleep(SHARED_WAIT).await;
            ask_for_validation(&mut order, &kind).await?;
        }
        match order.poll_ready(&POLLS).await {
            _ if order.state().status == OrderStatus::Invalid => {
                return Err(find_refusal(&mut order, &kind).await);
            }
            polled => polled?,
        };
        let (key, request) = request_certificate(&self.acme.domains).map_err(|error| error.to_string())?;
        order.finalize_csr(&request).await?;
        let chain = order.poll_certificate(&POLLS).await?;
        Ok(format!("{key}{chain}"))
    }
}

/// The first kind that is offered for all names that are not confirmed, and the answers to its challenges.
async fn collect_answers(
    order: &mut Order,
    kinds: &[ChallengeType],
) -> Result<(ChallengeType, OrderAnswers), OrderFault> {
    'kinds: for kind in kinds {
        let mut answers = OrderAnswers::default();
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            if authorization.status == AuthorizationStatus::Valid {
                continue;
            }
            let name = authorization.identifier().to_string();
            let Some(challenge) = authorization.challenge(kind.clone()) else { continue 'kinds };
            let proof = challenge.key_authorization();
            if *kind == ChallengeType::TlsAlpn01 {
                answers.hosts.insert(name.to_ascii_lowercase(), proof.digest().as_ref().to_vec());
            } else {
                answers.tokens.insert(challenge.token.clone(), proof.as_str().to_owned());
            }
        }
        return Ok((kind.clone(), answers));
    }
    let labels: Vec<&str> = kinds.iter().map(label).collect();
    Err(format!("the directory does not offer {}", labels.join(" or ")).into())
}

async fn ask_for_validation(order: &mut Order, kind: &ChallengeType) -> Result<(), OrderFault> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        if authorization.status == AuthorizationStatus::Valid {
            continue;
        }
        if let Some(mut challenge) = authorization.challenge(kind.clone()) {
            let fault = |error| OrderFault { reason: describe(error), refused: Some(kind.clone()) };
            challenge.set_ready().await.map_err(fault)?;
        }
    }
    Ok(())
}

/// Why an order is invalid: the first challenge that failed, or the fault of the order itself.
async fn find_refusal(order: &mut Order, kind: &ChallengeType) -> OrderFault {
    let whole = order.state().error.clone().map(|problem| describe(Error::Api(problem)));
    let mut authorizations = order.authorizations();
    while let Some(Ok(authorization)) = authorizations.next().await {
        if authorization.status == AuthorizationStatus::Invalid {
            let name = shown(&authorization.identifier().to_string());
            let problem = authorization.challenges.iter().find_map(|challenge| challenge.error.clone());
            let reason = problem.map_or("no reason".to_owned(), |problem| describe(Error::Api(problem)));
            let reason = format!("{} of {name} failed: {reason}", label(kind));
            return OrderFault { reason, refused: Some(kind.clone()) };
        }
    }
    whole.unwrap_or_else(|| "the directory rejected the order".to_owned()).into()
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

impl From<Error> for OrderFault {
    fn from(error: Error) -> OrderFault {
        describe(error).into()
    }
}

impl From<String> for OrderFault {
    fn from(reason: String) -> OrderFault {
        OrderFault { reason, refused: None }
    }
}

fn describe(error: Error) -> String {
    match error {
        Error::Api(problem) => {
            let parts = problem.subproblems.iter().map(|part| part.detail.as_deref().unwrap_or_default());
            let detail = problem.detail.as_deref().into_iter().chain(parts).collect::<Vec<_>>().join("; ");
            let kind = problem.r#type.as_deref().unwrap_or_default();
            let kind = kind.rsplit(':').next().unwrap_or_default();
            shown(&format!("the directory says {kind}: {detail}"))
        }
        Error::Timeout(_) => format!("the directory did not decide within {} s", POLLING_MAX.as_secs()),
        Error::Json(_) => "the directory answers with no usable JSON".to_owned(),
        error => shown(&format!("the directory {error}")),
    }
}

/// A text of the directory without control characters, cut.
fn shown(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { ' ' } else { char }).take(SHOWN_MAX).collect()
}
