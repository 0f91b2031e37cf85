//! Variables of a token: `$jwt_claim_…`, `$jwt_header_…`, `$jwt_payload`, and those of `auth_jwt_claim_set` and `auth_jwt_header_set`.
//!
//! Before the access phase, for `limit_req` and the like, they have what a token says that nobody has verified yet, as in nginx.
// DIFF(nginx): From the access phase on, a token that was not found valid has none.

use std::rc::Rc;

use serde_json::{Map, Value as Json};
use tw_server::config::location::Satisfy;
use tw_server::http::plan::{Handler, Step};
use tw_server::http::request::Request;
use tw_server::vars::{Value, VarDef};

use super::{AuthJwt, Realm};
use crate::shared::jose::{UnverifiedToken, VerifiedToken, append_member};

const CLAIM: &str = "jwt_claim_";
const HEADER: &str = "jwt_header_";
const PAYLOAD: &str = "jwt_payload";

pub(super) const VARIABLES: &[VarDef] = &[
    VarDef::family(
        HEADER,
        |r, name, out| read(r, TokenPart::Header, |members| append_member(members, name, out)),
        "A parameter of the header of the token (auth_jwt).",
    ),
    VarDef::family(
        CLAIM,
        |r, name, out| read(r, TokenPart::Claims, |members| append_member(members, name, out)),
        "A claim of the token (auth_jwt). It is not verified before the access phase.",
    ),
    VarDef::one(
        PAYLOAD,
        payload,
        "Decrypted content of the token (auth_jwt): claims in JSON, or the signed token inside.",
    ),
];

/// Part of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenPart {
    Header,
    Claims,
}

/// Decision about the token of a request, kept with it.
pub(super) enum TokenState {
    Verified(VerifiedToken),
    /// Invalid, missing, or not asked for.
    Refused,
    /// Being verified: what it says names its keys.
    Unverified,
}

impl TokenState {
    /// Keeps the decision. Values that were computed before are computed anew: they may be those of an unverified token.
    pub(super) fn store(self, r: &mut Request) {
        r.facts.states.put_common(Rc::new(self));
        r.bindings.forget_computed();
    }
}

/// Handler before the access phase: with `satisfy any`, what nobody has verified grants nothing, such as in a subrequest of
/// `auth_request`.
pub(super) struct BeforeAccess;

impl Handler for BeforeAccess {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        if r.plan().core.access.satisfy == Satisfy::Any && r.facts.states.get::<TokenState>().is_none() {
            TokenState::Refused.store(r);
        }
        Step::PASS
    }
}

/// Handler behind the access phase: a token that `satisfy any` did not need, or that belongs to a subrequest, is not verified.
pub(super) struct AfterAccess;

impl Handler for AfterAccess {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        if matches!(r.facts.states.get::<TokenState>().as_deref(), None | Some(TokenState::Unverified)) {
            TokenState::Refused.store(r);
        }
        Step::PASS
    }
}

/// Returns `true` for the names of these variables, without `$`.
pub(super) fn are_of_token(name: &str) -> bool {
    name.starts_with(CLAIM) || name.starts_with(HEADER) || name == PAYLOAD
}

/// Reads a part of the token of `r`.
pub(super) fn read(r: &Request, part: TokenPart, read: impl FnOnce(&Map<String, Json>) -> Value) -> Value {
    let realm = r.plan().parts.find::<AuthJwt>().and_then(|settings| settings.realm.as_deref());
    if !realm.is_some_and(Realm::is_off) {
        match r.facts.states.get::<TokenState>().as_deref() {
            Some(TokenState::Verified(token)) => {
                return match part {
                    TokenPart::Header => read(token.header()),
                    TokenPart::Claims => read(token.claims()),
                };
            }
            Some(TokenState::Refused) => return Value::Missing,
            Some(TokenState::Unverified) | None => {}
        }
    }
    let token = realm.and_then(|realm| realm.token(r)).and_then(|text| UnverifiedToken::parse(&text));
    match (token, part) {
        (Some(token), TokenPart::Header) => read(token.header()),
        (Some(token), TokenPart::Claims) => read(token.claims()),
        (None, _) => Value::Missing,
    }
}

/// `$jwt_payload`
fn payload(r: &Request, out: &mut Vec<u8>) -> Value {
    let state = r.facts.states.get::<TokenState>();
    let Some(TokenState::Verified(token)) = state.as_deref() else { return Value::Missing };
    let Some(payload) = token.payload() else { return Value::Missing };
    out.extend_from_slice(payload);
    Value::Found
}
