//! Decision about a request: may it pass, has it solved something, or is it challenged.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use tw_core::session::Session;
use tw_core::vars::Value;
use tw_http::escape::Escape;
use tw_http::{HeaderName, Method};
use tw_log::Level;
use tw_request::body::Body;
use tw_request::client::Scheme;
use tw_request::cookie::find_cookie;
use tw_request::plan::{AccessPurpose, Handler, Outcome, Step};
use tw_request::request::Request;

use super::agents::SignedMessage;
use super::bots::{BotVerdict, claims_to_be_bot};
use super::counts::{ChallengeResult, Counts, Failure};
use super::exceptions::{self, Exemption};
use super::page::{POLICY, Page, WaitLink};
use super::token::{ClientBinding, DIFFICULTY_MAX, Purpose, Token, TokenError, TokenKey, WAITED};
use super::{DIFFICULTY, Difficulty, Terms, WAIT_ARG};

/// Field with the answer of a browser.
const ANSWER_FIELD: &str = "Challenge-Answer";
/// Text for requests that are not for a page.
const REFUSAL: &[u8] =
    b"This server asks for a proof of work. Open the site in a browser, solve it there, and try again.\n";

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Cookies of a challenge in one request.
    ///
    /// Cookies of a request that are checked: a browser may have several of different paths or domains.
    const COOKIES_MAX: usize = 4, count, "further ones do not count";
}

/// Challenge of a location.
pub(super) struct Gate {
    pub(super) terms: Terms,
    pub(super) key: Arc<TokenKey>,
    pub(super) counts: Arc<Counts>,
    /// Slot of `$challenge_status`.
    pub(super) slot: u16,
}

/// Decision about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    /// Valid cookie.
    Pass,
    Exempt(ChallengeResult),
    /// Answer to a challenge of this difficulty.
    Solved(u8),
    /// Waiting instead of answering a challenge of this difficulty.
    Waited(u8),
    /// Bad answer.
    Failed(TokenError),
    Ask,
    /// Name servers have to say if it is exempt.
    LookUp(IpAddr),
}

impl Handler for Gate {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        // The request has failed already, and this is about its error page.
        if r.state.error_status.is_some() {
            return Step::PASS;
        }
        if let Some(outcome) = self.decided(r) {
            return Step::Now(outcome);
        }
        if self.terms.condition.as_ref().is_some_and(|condition| !condition.is_set(r)) {
            return Step::PASS;
        }
        match self.decide(r) {
            Decision::LookUp(addr) => Step::Wait(Box::pin(self.look_up(r, addr))),
            decision => Step::Now(self.conclude(r, decision)),
        }
    }

    // A solved puzzle does not identify the client.
    fn access_purpose(&self) -> AccessPurpose {
        AccessPurpose::Protection
    }
}

impl Gate {
    /// Outcome for a request that was decided before, and redirected internally.
    fn decided(&self, r: &Request) -> Option<Outcome> {
        let mut status = r.scratch().take();
        status.clear();
        let outcome = match r.slot(self.slot, &mut status) {
            Value::Found => Some(Outcome::Pass),
            Value::Missing => None,
        };
        r.scratch().set(status);
        outcome
    }

    fn decide(&self, r: &Request) -> Decision {
        match exceptions::find(&self.terms.exceptions, r.client_addr(), r.head.path()) {
            Some(Exemption::Address) => return Decision::Exempt(ChallengeResult::ExemptAddress),
            Some(Exemption::Path) => return Decision::Exempt(ChallengeResult::ExemptPath),
            None => {}
        }
        let client = self.client(r);
        let now = now();
        if let Some(answer) = r.head.field(ANSWER_FIELD) {
            let checked = self.key.check_answer(answer, &client, now);
            return checked.map_or_else(Decision::Failed, Decision::Solved);
        }
        if let (Some(token), Some(wait)) = (wait_token(r.head.args()), self.terms.wait) {
            match self.key.check_wait(token, &client, now, wait) {
                Ok(bits) => return Decision::Waited(bits),
                Err(error) => self.note(r, Failure::Wait(error)),
            }
        }
        if self.has_cookie(r, &client, now) {
            return Decision::Pass;
        }
        if let Some(agents) = &self.terms.agents {
            match agents.check(&Signed(r), now) {
                Some(Ok(())) => return Decision::Exempt(ChallengeResult::ExemptAgent),
                Some(Err(error)) => self.note(r, Failure::Agent(error)),
                None => {}
            }
        }
        if let (Some(bots), Some(addr)) = (&self.terms.bots, r.client_addr().inet())
            && claims_to_be_bot(r)
        {
            match bots.recall(addr.ip(), tw_rt::clock::now()) {
                Some(BotVerdict::Verified) => return Decision::Exempt(ChallengeResult::ExemptBot),
                Some(BotVerdict::Unverified) => {}
                None => return Decision::LookUp(addr.ip()),
            }
        }
        Decision::Ask
    }

    async fn look_up(&self, r: &mut Request, addr: IpAddr) -> Outcome {
        let verdict = match &self.terms.bots {
            Some(bots) => bots.look_up(r, addr).await,
            None => BotVerdict::Unverified,
        };
        let decision = match verdict {
            BotVerdict::Verified => Decision::Exempt(ChallengeResult::ExemptBot),
            BotVerdict::Unverified => Decision::Ask,
        };
        self.conclude(r, decision)
    }

    /// Counts and remembers a decision, and makes its response.
    fn conclude(&self, r: &mut Request, decision: Decision) -> Outcome {
        let (result, status) = match decision {
            Decision::Pass => (ChallengeResult::Passed, "passed"),
            Decision::Exempt(result) => (result, "exempt"),
            Decision::Solved(_) => (ChallengeResult::Solved, "solved"),
            Decision::Waited(_) => (ChallengeResult::Waited, "solved"),
            Decision::Ask | Decision::LookUp(_) if is_navigation(r) => (ChallengeResult::Asked, "asked"),
            Decision::Ask | Decision::LookUp(_) => (ChallengeResult::Refused, "refused"),
            Decision::Failed(error) => {
                self.note(r, Failure::Answer(error));
                (ChallengeResult::Refused, "failed")
            }
        };
        self.counts.count(result);
        r.set_slot(self.slot, status);
        match decision {
            Decision::Pass | Decision::Exempt(_) => Outcome::Pass,
            Decision::Solved(bits) => {
                self.set_cookie(r, bits);
                r.response.status = 204;
                Outcome::Respond(Body::Empty)
            }
            Decision::Waited(bits) => {
                self.set_cookie(r, WAITED | bits);
                r.response.location = without_wait_token(r).into();
                Outcome::Status(303)
            }
            Decision::Ask | Decision::LookUp(_) | Decision::Failed(_) => self.refuse(r, result),
        }
    }

    fn refuse(&self, r: &mut Request, result: ChallengeResult) -> Outcome {
        r.response.status = 403;
        r.response.fields.append(HeaderName::CacheControl, "no-store");
        let text = if result == ChallengeResult::Asked {
            r.response.fields.append("Content-Security-Policy", POLICY.as_str());
            r.response.fields.append("X-Content-Type-Options", "nosniff");
            r.response.content_type = Bytes::from_static(b"text/html; charset=utf-8");
            self.page(r).into()
        } else {
            r.response.content_type = Bytes::from_static(b"text/plain");
            Bytes::from_static(REFUSAL)
        };
        Outcome::Respond(Body::Bytes(text))
    }

    fn page(&self, r: &Request) -> Vec<u8> {
        let client = self.client(r);
        let now = now();
        let bits = self.difficulty(r);
        let seal = |purpose, bits| self.key.seal(purpose, Token { time: now, bits }, &client);
        let puzzle = seal(Purpose::Puzzle, bits);
        let wait_token = seal(Purpose::Wait, bits);
        let args = other_args(r.head.args());
        let wait = self.terms.wait.map(|seconds| WaitLink { seconds, args: &args, token: &wait_token });
        Page { host: client.host, puzzle: &puzzle, bits, wait }.write()
    }

    /// Leading zero bits of an answer to `r`.
    fn difficulty(&self, r: &Request) -> u8 {
        match &self.terms.difficulty {
            Difficulty::Fixed(bits) => *bits,
            Difficulty::Computed(template) => match tw_conf::units::number(&template.value(r)) {
                Some(bits) => u8::try_from(bits).unwrap_or(DIFFICULTY_MAX).min(DIFFICULTY_MAX),
                None => DIFFICULTY,
            },
        }
    }

    fn client<'r>(&self, r: &'r Request) -> ClientBinding<'r> {
        ClientBinding {
            addr: r.client_addr(),
            prefix: self.terms.prefix,
            host: r.head.host().unwrap_or_default(),
            user_agent: r.head.field_known(HeaderName::UserAgent).unwrap_or_default(),
        }
    }

    /// Returns true if the request has a valid cookie. Costs half a microsecond and one allocation for each that is checked.
    fn has_cookie(&self, r: &Request, client: &ClientBinding<'_>, now: u64) -> bool {
        let cookies = r.head.field_all(b"cookie").filter_map(|line| find_cookie(line, &self.terms.cookie));
        for cookie in cookies.take(COOKIES_MAX) {
            match self.check_cookie(r, cookie, client, now) {
                Ok(()) => return true,
                Err(error) => self.note(r, Failure::Cookie(error)),
            }
        }
        false
    }

    fn check_cookie(
        &self,
        r: &Request,
        cookie: &[u8],
        client: &ClientBinding<'_>,
        now: u64,
    ) -> Result<(), TokenError> {
        let token = self.key.open(Purpose::Pass, cookie, client)?;
        if now >= token.time {
            return Err(TokenError::Expired);
        }
        let has_waited = token.bits & WAITED != 0;
        let is_enough =
            (!has_waited || self.terms.wait.is_some()) && token.bits & !WAITED >= self.difficulty(r);
        if is_enough { Ok(()) } else { Err(TokenError::Wrong) }
    }

    fn set_cookie(&self, r: &mut Request, bits: u8) {
        let time = now().saturating_add(self.terms.expires);
        let token = self.key.seal(Purpose::Pass, Token { time, bits }, &self.client(r));
        let mut cookie = [&*self.terms.cookie, b"=", &token].concat();
        let attributes = format!("; Path=/; Max-Age={}; HttpOnly; SameSite=Lax", self.terms.expires);
        cookie.extend_from_slice(attributes.as_bytes());
        if r.client().scheme() == Scheme::Https {
            cookie.extend_from_slice(b"; Secure");
        }
        r.response.fields.append(HeaderName::SetCookie, Bytes::from(cookie));
        r.response.fields.append(HeaderName::CacheControl, "no-store");
    }

    /// Counts and logs something that did not count.
    fn note(&self, r: &Request, failure: Failure) {
        let (of, cause) = self.counts.count_failure(failure);
        r.log(Level::Info, format_args!("challenge: {of} does not count ({cause})"));
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    u64::try_from(tw_rt::clock::unix().secs).unwrap_or(0)
}

/// Returns true if a browser asks for a page to show: `Sec-Fetch-Mode` says it, or `Accept` where there is no such field, as over
/// plain HTTP.
fn is_navigation(r: &Request) -> bool {
    if !matches!(r.method(), Method::Get | Method::Head) {
        return false;
    }
    match r.head.field("Sec-Fetch-Mode") {
        Some(mode) => mode == b"navigate",
        None => {
            let accept = r.head.field_known(HeaderName::Accept).unwrap_or_default();
            accept.windows(b"text/html".len()).any(|part| part.eq_ignore_ascii_case(b"text/html"))
        }
    }
}

/// Token of a client that has waited.
fn wait_token(args: &[u8]) -> Option<&[u8]> {
    args.split(|byte| *byte == b'&').find_map(|arg| arg.strip_prefix(WAIT_ARG))
}

/// The arguments without that token.
fn other_args(args: &[u8]) -> Vec<u8> {
    let others: Vec<_> = args.split(|byte| *byte == b'&').filter(|arg| !arg.starts_with(WAIT_ARG)).collect();
    others.join(&b'&')
}

/// Address of the request without the token, relative to the server.
fn without_wait_token(r: &Request) -> Vec<u8> {
    let mut location = Vec::new();
    // Two leading slashes would be taken for the name of another server.
    let slashes = r.head.path().iter().take_while(|byte| **byte == b'/').count();
    Escape::Uri.push(&r.head.path()[slashes.saturating_sub(1)..], &mut location);
    let args = other_args(r.head.args());
    if !args.is_empty() {
        location.push(b'?');
        location.extend_from_slice(&args);
    }
    location
}

/// A request as its signature sees it (RFC 9421, section 2.2).
struct Signed<'a>(&'a Request);

impl SignedMessage for Signed<'_> {
    fn derived(&self, name: &str, out: &mut Vec<u8>) -> Option<()> {
        let Self(r) = self;
        let scheme = r.client().scheme();
        let target = r.head.target();
        // Only a target in origin form shows which part was signed.
        let path_len = target.iter().position(|byte| *byte == b'?').unwrap_or(target.len());
        let is_origin_form = target.starts_with(b"/");
        let authority = |out: &mut Vec<u8>| {
            out.extend_from_slice(r.head.host()?);
            if let Some(port) = r.head.host_port().filter(|port| *port != scheme.default_port()) {
                out.extend_from_slice(format!(":{port}").as_bytes());
            }
            Some(())
        };
        match name {
            "@method" => out.extend_from_slice(r.head.method_bytes()),
            "@authority" => authority(out)?,
            "@scheme" => out.extend_from_slice(scheme.as_str().as_bytes()),
            "@target-uri" if is_origin_form => {
                out.extend_from_slice(format!("{}://", scheme.as_str()).as_bytes());
                authority(out)?;
                out.extend_from_slice(target);
            }
            "@request-target" => out.extend_from_slice(target),
            "@path" if is_origin_form => out.extend_from_slice(&target[..path_len]),
            "@query" if path_len < target.len() => out.extend_from_slice(&target[path_len..]),
            "@query" => out.push(b'?'),
            _ => return None,
        }
        Some(())
    }

    fn field_values(&self, name: &str) -> Vec<&[u8]> {
        self.0.head.field_all(name.as_bytes()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_tokens_are_found_and_removed() {
        for (args, token, others) in [
            ("", None, ""),
            ("a=1&b=2", None, "a=1&b=2"),
            ("tailwater-challenge=x", Some("x"), ""),
            ("a=1&tailwater-challenge=x&b=2", Some("x"), "a=1&b=2"),
            ("xtailwater-challenge=x", None, "xtailwater-challenge=x"),
            ("tailwater-challenge=x&tailwater-challenge=y&c", Some("x"), "c"),
        ] {
            assert_eq!(wait_token(args.as_bytes()), token.map(str::as_bytes), "{args}");
            assert_eq!(other_args(args.as_bytes()), others.as_bytes(), "{args}");
        }
    }
}
