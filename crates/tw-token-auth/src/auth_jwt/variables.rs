//! Variables of a token: `$jwt_claim_…`, `$jwt_header_…`, `$jwt_claims`, `$jwt_payload`, and those of `auth_jwt_claim_set` and `auth_jwt_header_set`.
//!
//! Before the access phase, for `limit_req` and the like, they have what a token says that nobody has verified yet, as in nginx.
// DIFF(nginx): From the access phase on, a token that was not found valid has none.

use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Map, Value as Json};
use tw_conf::{ConfError, Node, Word};
use tw_core::vars::SlotKind;
use tw_module_support::block::{define, variable_name};
use tw_request::config::location::Satisfy;
use tw_request::plan::{Handler, Step};
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::{Value, VarDef};

use super::claim_name::{self, Nesting};
use super::realm::Realm;
use super::settings::AuthJwt;
use crate::jose::{ClaimPath, UnverifiedToken, VerifiedToken, append_value};

const CLAIM: &str = "jwt_claim_";
const HEADER: &str = "jwt_header_";
const PAYLOAD: &str = "jwt_payload";
const CLAIMS: &str = "jwt_claims";

pub(super) const VARIABLES: &[VarDef] = &[
    VarDef::family(
        HEADER,
        |r, name, out| read(r, TokenPart::Header, |members, nesting| append(members, name, nesting, out)),
        "A parameter of the header of the token (auth_jwt).",
    ),
    VarDef::family(
        CLAIM,
        |r, name, out| read(r, TokenPart::Claims, |members, nesting| append(members, name, nesting, out)),
        "A claim of the token (auth_jwt). It is not verified before the access phase.",
    ),
    VarDef::one(
        PAYLOAD,
        payload,
        "Decrypted content of the token (auth_jwt): claims in JSON, or the signed token inside.",
    ),
    VarDef::one(
        CLAIMS,
        |r, out| read(r, TokenPart::Claims, |members, _| append_all(members, out)),
        "All claims of the token in JSON (auth_jwt). They are not verified before the access phase.",
    ),
    VarDef::one("jwt_nowtime", now, "Seconds since 1970, to compare claims with (auth_jwt_require_claim)."),
];

/// `auth_jwt_claim_set` or `auth_jwt_header_set` as written.
pub(super) struct RawVariable {
    name: Word,
    part: TokenPart,
    path: ClaimPath,
}

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

impl RawVariable {
    pub(super) fn read(node: &Node, part: TokenPart) -> Result<Self, ConfError> {
        let name = node.arg(0)?;
        variable_name(node, name)?;
        let path = node.args.iter().skip(1).map(|word| word.lossy().into());
        Ok(Self { name: name.clone(), part, path: ClaimPath::new(path) })
    }

    /// Defines the variable. Its value is not cached, because the claims of an encrypted token are known later.
    pub(super) fn define(self, cx: &mut Resolve<'_>) -> Result<(), ConfError> {
        let Self { name, part, path } = self;
        let compute = Arc::new(move |r: &Request, out: &mut Vec<u8>| {
            read(r, part, |members, nesting| match (nesting, path.single()) {
                (Some(_), Some(name)) => append_value(claim_name::find(members, name, nesting), out),
                _ => path.append(members, out),
            })
        });
        define(cx, &name, SlotKind::Volatile(compute), None)
    }
}

impl TokenState {
    /// Keeps the decision. Values that were computed before are computed anew: they may be those of an unverified token.
    pub(super) fn store(self, r: &mut Request) {
        r.extensions.put_common(Rc::new(self));
        r.bindings.forget_computed();
    }
}

/// Handler before the access phase: with `satisfy any`, what nobody has verified grants nothing, such as in a subrequest of
/// `auth_request`.
pub(super) struct BeforeAccess;

impl Handler for BeforeAccess {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        if r.plan().core.access.satisfy == Satisfy::Any && r.extensions.get::<TokenState>().is_none() {
            TokenState::Refused.store(r);
        }
        Step::PASS
    }
}

/// Handler behind the access phase: a token that `satisfy any` did not need, or that belongs to a subrequest, is not verified.
pub(super) struct AfterAccess;

impl Handler for AfterAccess {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        if matches!(r.extensions.get::<TokenState>().as_deref(), None | Some(TokenState::Unverified)) {
            TokenState::Refused.store(r);
        }
        Step::PASS
    }
}

/// Returns `true` for the names of these variables, without `$`.
pub(super) fn are_of_token(name: &str) -> bool {
    name.starts_with(CLAIM) || name.starts_with(HEADER) || name == PAYLOAD || name == CLAIMS
}

/// Reads a part of the token of `r`.
pub(super) fn read(
    r: &Request,
    part: TokenPart,
    read: impl FnOnce(&Map<String, Json>, Option<&Nesting>) -> Value,
) -> Value {
    let settings = r.plan().parts.find::<AuthJwt>();
    let realm = settings.and_then(|settings| settings.realm.as_deref());
    let nesting = settings.and_then(|settings| settings.nesting.as_deref());
    let read = |members: &_| read(members, nesting);
    if !realm.is_some_and(Realm::is_off) {
        match r.extensions.get::<TokenState>().as_deref() {
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

/// Appends the value of a member at the top, or of a nested one.
fn append(members: &Map<String, Json>, name: &[u8], nesting: Option<&Nesting>, out: &mut Vec<u8>) -> Value {
    append_value(str::from_utf8(name).ok().and_then(|name| claim_name::find(members, name, nesting)), out)
}

fn append_all(members: &Map<String, Json>, out: &mut Vec<u8>) -> Value {
    match serde_json::to_writer(out, members) {
        Ok(()) => Value::Found,
        Err(_) => Value::Missing,
    }
}

/// `$jwt_nowtime`
fn now(_: &Request, out: &mut Vec<u8>) -> Value {
    out.extend_from_slice(tw_rt::clock::unix().secs.to_string().as_bytes());
    Value::Found
}

/// `$jwt_payload`
fn payload(r: &Request, out: &mut Vec<u8>) -> Value {
    let state = r.extensions.get::<TokenState>();
    let Some(TokenState::Verified(token)) = state.as_deref() else { return Value::Missing };
    let Some(payload) = token.payload() else { return Value::Missing };
    out.extend_from_slice(payload);
    Value::Found
}
