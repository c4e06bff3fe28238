//! The auth services of locations, their answers, and those that a worker keeps.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, Shared, WeakShared};
use http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, LOCATION, SET_COOKIE, WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderName, Response, StatusCode};

use super::limit_chain::BuiltLimits;
use super::{Gateway, LimitChain};
use sluicegate_base::clock::{Now, duration_ns};
use sluicegate_http::request::headers::hop_by_hop::list_members;
use sluicegate_http::upstream::Upstream;
use sluicegate_model::{AuthConfig, Config, LocationConfig, LocationId, ValueSource};

/// Requests of a worker that may wait for answers at once.
const WAITING_MAX: usize = 1_000;

/// Fields of a refusal that go to the client, beside its body.
const PASSED_ON: [HeaderName; 6] =
    [WWW_AUTHENTICATE, LOCATION, SET_COOKIE, CONTENT_TYPE, CONTENT_ENCODING, CACHE_CONTROL];

/// The auth service of one location.
pub struct RouteAuth {
    /// The settings.
    pub config: AuthConfig,
    /// The upstream of the service.
    pub upstream: Arc<Upstream>,
    /// The limits before the question.
    pub chain: Arc<LimitChain>,
}

/// An answer that admits a request.
#[derive(Debug, Default)]
pub struct AuthAnswer {
    /// The fields that the upstream gets.
    pub copied: Vec<(HeaderName, HeaderValue)>,
    /// The cookies that the client gets.
    cookies: Vec<HeaderValue>,
    /// The account that it names.
    pub account: Option<Box<[u8]>>,
    /// The time for which it holds for equal requests; zero = it holds for this one alone.
    span: Duration,
}

/// The outcome of a question.
#[derive(Debug, Clone)]
pub enum AuthOutcome {
    /// The request may go on.
    Allowed(Rc<AuthAnswer>),
    /// The client gets this response, which has only the fields for it.
    Refused(Rc<Response<Bytes>>),
    /// There is no decision, for this reason.
    Failed(&'static str),
}

/// The scripted answer of the service, as an extension of requests that did not come over a connection.
#[derive(Debug, Clone)]
pub struct ScriptedService(pub Arc<Response<Bytes>>);

/// A question that several requests wait for.
pub type SharedQuestion = Shared<LocalBoxFuture<'static, AuthOutcome>>;

/// A map by keyed hashes, which need not be hashed again.
type KeyedMap<T> = HashMap<u128, T, BuildHasherDefault<HashedKey>>;

/// Half of a keyed hash.
#[derive(Default)]
pub struct HashedKey(u64);

impl Hasher for HashedKey {
    fn write(&mut self, _: &[u8]) {}

    fn write_u128(&mut self, hash: u128) {
        self.0 = hash as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The questions and answers of one worker with one gateway.
pub struct AuthAnswers {
    /// One for each location.
    kept: Vec<RefCell<KeptAnswers>>,
    asked: RefCell<KeyedMap<WeakShared<LocalBoxFuture<'static, AuthOutcome>>>>,
    /// Shared by the requests that wait.
    waiting: Rc<()>,
}

/// The answers of one location by the key of their requests, the oldest first in `order`.
#[derive(Default)]
struct KeptAnswers {
    answers: KeyedMap<(Rc<AuthAnswer>, Now)>,
    order: VecDeque<(u128, Now)>,
    at_most: usize,
}

// === impl RouteAuth ===

impl RouteAuth {
    /// `None` if the location has no auth service.
    pub(super) fn new(
        built: BuiltLimits<'_>,
        location: &LocationConfig,
        upstreams: &[Arc<Upstream>],
    ) -> Option<Box<RouteAuth>> {
        let config = location.auth.clone()?;
        let upstream = upstreams[config.upstream.0].clone();
        let chain = Arc::new(LimitChain::before_question(built, &config, location));
        Some(Box::new(RouteAuth { config, upstream, chain }))
    }
}

// === impl AuthAnswer ===

impl AuthAnswer {
    /// The answer with these fields; `None` if a control byte is in one that is used, or it names two accounts.
    pub fn read(
        config: &AuthConfig,
        account: Option<&ValueSource>,
        headers: &HeaderMap,
    ) -> Option<AuthAnswer> {
        let named = match account {
            Some(ValueSource::Auth(name)) => Some(name),
            _ => None,
        };
        let lines = |name| headers.get_all(name).iter();
        let has_control = |value: &HeaderValue| value.as_bytes().iter().any(u8::is_ascii_control);
        if config.copy.iter().chain(named).flat_map(lines).any(has_control) {
            return None;
        }
        let mut accounts = named.into_iter().flat_map(lines);
        let account = accounts.next().filter(|value| !value.is_empty()).map(|value| value.as_bytes().into());
        if accounts.next().is_some() {
            return None;
        }
        let copied = |name| lines(name).map(move |value| (HeaderName::clone(name), value.clone()));
        let cookies: Vec<HeaderValue> = lines(&SET_COOKIE).cloned().collect();
        let span = config.cache.as_ref().filter(|_| cookies.is_empty()).map(|cache| cache.span);
        Some(AuthAnswer {
            copied: config.copy.iter().flat_map(copied).collect(),
            cookies,
            account,
            span: span.unwrap_or_default().min(longest_span(headers)),
        })
    }

    /// True if the answer holds for equal requests as well.
    pub fn is_shared(&self) -> bool {
        !self.span.is_zero()
    }

    /// Adds the cookies to a response.
    pub fn add_cookies(&self, headers: &mut HeaderMap) {
        headers.extend(self.cookies.iter().map(|cookie| (SET_COOKIE, cookie.clone())));
    }
}

/// The longest time for which an answer may be kept, by its `Cache-Control`.
fn longest_span(headers: &HeaderMap) -> Duration {
    let spans = headers.get_all(CACHE_CONTROL).iter().flat_map(list_members).map(|member| {
        let member = String::from_utf8_lossy(member).to_ascii_lowercase();
        match member.split_once('=') {
            Some(("max-age", seconds)) => seconds.trim_matches('"').parse().unwrap_or(0),
            None if member == "no-store" || member == "no-cache" => 0,
            _ => u64::MAX,
        }
    });
    Duration::from_secs(spans.min().unwrap_or(u64::MAX))
}

// === impl AuthOutcome ===

impl AuthOutcome {
    /// The outcome by the answer of the service of a location.
    pub fn read_answer(gateway: &Gateway, route: LocationId, mut answer: Response<Bytes>) -> AuthOutcome {
        let account = gateway.config.account.from.as_ref();
        let admitted = gateway.routes[route.0].auth.as_ref().filter(|_| answer.status().is_success());
        if let Some(auth) = admitted {
            return match AuthAnswer::read(&auth.config, account, answer.headers()) {
                Some(answer) => AuthOutcome::Allowed(Rc::new(answer)),
                None => AuthOutcome::Failed("a header of the auth service has control bytes or two values"),
            };
        }
        match answer.status() {
            StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT => {
                let fields = std::mem::take(answer.headers_mut());
                for name in PASSED_ON {
                    let lines = fields.get_all(&name).iter().cloned();
                    answer.headers_mut().extend(lines.map(|line| (name.clone(), line)));
                }
                AuthOutcome::Refused(Rc::new(answer))
            }
            _ => AuthOutcome::Failed("the auth service answered with another status"),
        }
    }

    /// True if the outcome holds for the requests that waited for it, too: a refusal is its own client's.
    pub fn is_shared(&self) -> bool {
        match self {
            AuthOutcome::Allowed(answer) => answer.is_shared(),
            AuthOutcome::Refused(_) => false,
            AuthOutcome::Failed(_) => true,
        }
    }
}

// === impl AuthAnswers ===

impl AuthAnswers {
    /// No answers yet.
    pub(super) fn new(config: &Config) -> AuthAnswers {
        let share = |location: &LocationConfig| {
            let cache = location.auth.as_ref().and_then(|auth| auth.cache.as_ref());
            let at_most = cache.map_or(0, |cache| cache.at_most.div_ceil(config.server.workers.max(1)));
            RefCell::new(KeptAnswers { at_most, ..KeptAnswers::default() })
        };
        let kept = config.locations.iter().map(share).collect();
        AuthAnswers { kept, asked: RefCell::default(), waiting: Rc::default() }
    }

    /// The answer to an equal request before.
    pub fn find_kept(&self, route: LocationId, key: u128, now: Now) -> Option<Rc<AuthAnswer>> {
        let kept = self.kept.get(route.0)?.borrow();
        kept.answers.get(&key).filter(|(_, until)| now < *until).map(|(answer, _)| answer.clone())
    }

    /// The question about an equal request that is under way.
    pub fn find_asked(&self, key: u128) -> Option<SharedQuestion> {
        self.asked.borrow().get(&key)?.upgrade()
    }

    /// Shares the question with the equal requests that come before its answer.
    pub fn share(&self, key: u128, question: LocalBoxFuture<'static, AuthOutcome>) -> SharedQuestion {
        let mut asked = self.asked.borrow_mut();
        if asked.len() >= WAITING_MAX {
            // Questions without a client are over.
            asked.retain(|_, question| question.upgrade().is_some());
        }
        let question = question.shared();
        asked.extend(question.downgrade().map(|question| (key, question)));
        question
    }

    /// Ends a question that was shared, and keeps its answer if that may be.
    pub fn finish(&self, route: LocationId, key: u128, outcome: &AuthOutcome) {
        self.asked.borrow_mut().remove(&key);
        if let (AuthOutcome::Allowed(answer), Some(kept)) = (outcome, self.kept.get(route.0))
            && answer.is_shared()
        {
            let now = Now::read_clock();
            let span = duration_ns(answer.span);
            kept.borrow_mut().keep(key, answer.clone(), now, Now(now.0.saturating_add(span)));
        }
    }

    /// Counts a request as waiting for as long as this is held; `None` = too many are.
    pub fn begin_wait(&self) -> Option<Rc<()>> {
        (Rc::strong_count(&self.waiting) <= WAITING_MAX).then(|| self.waiting.clone())
    }
}

impl KeptAnswers {
    /// Keeps an answer, in the place of the oldest ones.
    fn keep(&mut self, key: u128, answer: Rc<AuthAnswer>, now: Now, until: Now) {
        self.answers.insert(key, (answer, until));
        self.order.push_back((key, until));
        while let Some(&(oldest, ended)) = self.order.front()
            && (self.order.len() > self.at_most || ended <= now)
        {
            self.order.pop_front();
            // A later answer to an equal request has a place of its own.
            if self.answers.get(&oldest).is_some_and(|(_, until)| *until == ended) {
                self.answers.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(at_most: usize) -> KeptAnswers {
        KeptAnswers { at_most, ..KeptAnswers::default() }
    }

    #[test]
    fn the_oldest_answers_make_room() {
        let mut kept = kept(2);
        for (key, now) in [(1, 0), (2, 1), (1, 2), (3, 3)] {
            kept.keep(key, Rc::default(), Now(now), Now(now + 100));
            assert!(kept.answers.len() <= 2 && kept.order.len() <= 2, "{key}");
        }
        let mut left: Vec<u128> = kept.answers.keys().copied().collect();
        left.sort_unstable();
        assert_eq!(left, [1, 3], "the later answer of a key counts");
    }

    #[test]
    fn answers_that_have_ended_are_forgotten() {
        let mut kept = kept(100);
        for key in 0..50 {
            kept.keep(key, Rc::default(), Now(0), Now(10));
        }
        kept.keep(99, Rc::default(), Now(10), Now(20));
        assert_eq!((kept.answers.len(), kept.order.len()), (1, 1));
    }

    #[test]
    fn the_shortest_time_of_an_answer_counts() {
        let span = |lines: &[&'static str]| {
            let lines = lines.iter().map(|line| (CACHE_CONTROL, HeaderValue::from_static(line)));
            longest_span(&lines.collect())
        };
        assert_eq!(span(&[]), Duration::from_secs(u64::MAX));
        assert_eq!(span(&["max-age=5"]), Duration::from_secs(5));
        assert_eq!(span(&["private, Max-Age=\"7\"", "max-age=9"]), Duration::from_secs(7));
        for none in ["no-store", "max-age=60, NO-STORE", "no-cache", "max-age=-1", "max-age=", "max-age=0"] {
            assert_eq!(span(&[none]), Duration::ZERO, "{none}");
        }
    }
}
