//! Check of the token of a request, in the access phase or the preaccess phase.

use std::sync::Arc;

use tw_disk::DiskError;
use tw_log::Level;
use tw_module_support::access_refusal::{self, try_later};
use tw_module_support::turn_queue::{self, ClientKey, TurnWait, wait_for_turn};
use tw_phases::phases;
use tw_request::plan::{Handler, Outcome, Step};
use tw_request::request::Request;

use super::claim_requirement::{self, Check};
use super::evidence::Evidence;
use super::realm::Realm;
use super::settings::{AuthJwt, Challenge};
use super::variables::TokenState;
use crate::jose::{Token, TokenError, VerifiedToken};

/// Handler of the preaccess phase: a valid token ends no phase, because that of the limits is the same one.
pub(super) struct InPreaccess(pub(super) Arc<AuthJwt>);

impl Handler for InPreaccess {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let pass = |outcome| match outcome {
            Outcome::PhaseDone => Outcome::Pass,
            other => other,
        };
        match self.0.handle(r) {
            Step::Now(outcome) => Step::Now(pass(outcome)),
            Step::Wait(outcome) => Step::Wait(Box::pin(async move { pass(outcome.await) })),
        }
    }
}

impl Handler for AuthJwt {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let Some(Realm { realm: Some(realm), .. }) = self.realm.as_deref() else { return Step::PASS };
        let realm = realm.value(r);
        if realm == b"off" {
            return Step::PASS;
        }
        let Some(text) = self.realm.as_ref().and_then(|realm| realm.token(r)) else {
            r.log(Level::Info, format_args!("no token was provided for JWT authentication"));
            TokenState::Refused.store(r);
            return Step::Now(self.challenge(r, &realm, ""));
        };
        let token = match Token::parse(&text, self.kind, self.signature) {
            Ok(token) => token,
            Err(error) => return Step::Now(self.refuse(r, &realm, &error)),
        };
        TokenState::Unverified.store(r);
        let evidence = match self.evidence_now(r, &token) {
            Some(evidence) if !token.is_costly() => {
                let verified = token.verify(evidence.keys.iter().map(|keys| &**keys));
                return match self.decide(r, &realm, verified, &evidence) {
                    Ok(outcome) => Step::Now(outcome),
                    Err(pattern) => {
                        Step::Wait(Box::pin(async move { self.compile_and_check(r, &realm, pattern).await }))
                    }
                };
            }
            evidence => evidence,
        };
        Step::Wait(Box::pin(async move {
            let (verified, evidence) = match self.verify(r, token, evidence).await {
                Ok(verified) => verified,
                Err(outcome) => {
                    TokenState::Refused.store(r);
                    return outcome;
                }
            };
            match self.decide(r, &realm, verified, &evidence) {
                Ok(outcome) => outcome,
                Err(pattern) => self.compile_and_check(r, &realm, pattern).await,
            }
        }))
    }
}

/// Regular expression that has to be compiled before a token is checked.
struct UncompiledPattern(Box<str>);

impl AuthJwt {
    /// Verifies a token, once its keys are there. Errors are failures of this server.
    async fn verify(
        &self,
        r: &mut Request,
        token: Token,
        evidence: Option<Evidence>,
    ) -> Result<(Result<VerifiedToken, TokenError>, Evidence), Outcome> {
        let evidence = match evidence {
            Some(evidence) => evidence,
            None => self.load_evidence(r, &token).await?,
        };
        if !token.is_costly() {
            return Ok((token.verify(evidence.keys.iter().map(|keys| &**keys)), evidence));
        }
        let Ok(mut place) = self.shared.turns.enter(ClientKey::of(r.client_addr())) else {
            return Err(try_later(r, format_args!("too many tokens wait to be decrypted")));
        };
        match wait_for_turn(r, &mut place, turn_queue::WAIT_MAX).await {
            Ok(()) => {}
            Err(TurnWait::TooLong) => {
                return Err(try_later(r, format_args!("a token waited too long to be decrypted")));
            }
            Err(TurnWait::Gone(client_gone)) => return Err(phases::client_closed(r, &client_gone)),
        }
        let Some(disk) = r.disk().cloned() else { return Err(Outcome::Status(500)) };
        // The turn ends with the work, not with a client that goes away.
        let work = move || {
            let _turn = place;
            (token.verify(evidence.keys.iter().map(|keys| &**keys)), evidence)
        };
        disk.pool().run(&mut r.costs.account, work).await.map_err(|error| match error {
            DiskError::QueueFull { .. } => try_later(r, format_args!("a token was not decrypted: {error}")),
            error => {
                r.log(Level::Error, format_args!("a token was not decrypted: {error}"));
                Outcome::Status(500)
            }
        })
    }

    /// Decides about a token whose signature was checked.
    fn decide(
        &self,
        r: &mut Request,
        realm: &[u8],
        verified: Result<VerifiedToken, TokenError>,
        evidence: &Evidence,
    ) -> Result<Outcome, UncompiledPattern> {
        let checked = verified.and_then(|token| {
            let now = tw_rt::clock::unix();
            match self.validate_exp {
                true => token.check_times(now, self.leeway)?,
                false => token.check_start(now, self.leeway)?,
            }
            evidence.check(&token)?;
            Ok(token)
        });
        match checked {
            Ok(token) => TokenState::Verified(token).store(r),
            Err(error) => return Ok(self.refuse(r, realm, &error)),
        }
        self.check_requirements(r, realm)
    }

    /// Checks what the configuration requires of a verified token.
    fn check_requirements(&self, r: &mut Request, realm: &[u8]) -> Result<Outcome, UncompiledPattern> {
        let state = r.extensions.get::<TokenState>();
        let Some(TokenState::Verified(token)) = state.as_deref() else { return Ok(Outcome::Status(500)) };
        for claim in &*self.claims {
            match claim.check(r, token, self.nesting.as_deref(), self.leeway, &self.shared.patterns) {
                Check::Met => {}
                Check::Uncompiled(pattern) => return Err(UncompiledPattern(pattern)),
                Check::Unmet(unmet) => {
                    let shown = claim.shown();
                    r.log(Level::Error, format_args!("JWT validation failed: {shown} is not met: {unmet}"));
                    return Ok(self.challenge(r, realm, ", error=\"invalid_token\""));
                }
            }
        }
        let unmet = self.requirements.iter().find(|requirement| !requirement.is_met(r));
        let Some(status) = unmet.map(|unmet| unmet.status) else { return Ok(Outcome::PhaseDone) };
        r.log(
            Level::Error,
            format_args!("JWT validation failed: a value of \"auth_jwt_require\" is missing"),
        );
        Ok(match status {
            401 => self.challenge(r, realm, ", error=\"invalid_token\""),
            status => Outcome::Status(status),
        })
    }

    /// Compiles a pattern in a pool, and checks the requirements again; others may have patterns, too.
    async fn compile_and_check(&self, r: &mut Request, realm: &[u8], pattern: UncompiledPattern) -> Outcome {
        let mut uncompiled = pattern;
        // Variables may have another value each time, or other requests may use all places: this has an end.
        for _ in &*self.claims {
            let Some(disk) = r.disk().cloned() else { return Outcome::Status(500) };
            let UncompiledPattern(pattern) = uncompiled;
            let text = pattern.clone();
            let compiled =
                disk.pool().run(&mut r.costs.account, move || claim_requirement::compile(&text)).await;
            match compiled {
                Ok(compiled) => self.shared.patterns.put(pattern, compiled),
                Err(error @ DiskError::QueueFull { .. }) => {
                    return try_later(r, format_args!("a regular expression was not compiled: {error}"));
                }
                Err(error) => {
                    r.log(Level::Error, format_args!("a regular expression was not compiled: {error}"));
                    return Outcome::Status(500);
                }
            }
            match self.check_requirements(r, realm) {
                Ok(outcome) => return outcome,
                Err(another) => uncompiled = another,
            }
        }
        try_later(r, format_args!("too many regular expressions of \"auth_jwt_require_claim\" are in use"))
    }

    /// Refuses an invalid token.
    fn refuse(&self, r: &mut Request, realm: &[u8], error: &TokenError) -> Outcome {
        r.log(Level::Error, format_args!("JWT validation failed: {error}"));
        TokenState::Refused.store(r);
        self.challenge(r, realm, ", error=\"invalid_token\"")
    }

    /// Asks for a token (RFC 6750 section 3).
    fn challenge(&self, r: &mut Request, realm: &[u8], error: &str) -> Outcome {
        let challenge = match &self.challenge {
            Challenge::Standard => [b"Bearer realm=\"", realm, b"\"", error.as_bytes()].concat(),
            Challenge::Text(text) => text.value(r),
            Challenge::Omitted => Vec::new(),
        };
        access_refusal::challenge(r, challenge)
    }
}
