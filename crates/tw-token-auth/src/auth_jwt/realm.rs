//! `auth_jwt`: the realm, and where the token of a request is.

use std::sync::Arc;

use tw_conf::{ConfError, Node, Word};
use tw_module_support::access_refusal::credentials;
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::{Template, names_in};

use super::variables;

/// `auth_jwt` as written.
pub(super) struct RawRealm {
    /// `None` for `off`.
    realm: Option<Word>,
    token: Option<Word>,
}

/// `auth_jwt`
pub(super) struct Realm {
    /// `None` for `off`: a token is read for its variables only.
    pub(super) realm: Option<Template>,
    /// Text that is the token; `None` for that of the `Authorization` field.
    token: Option<Template>,
}

impl RawRealm {
    pub(super) fn read(node: &Node) -> Result<Self, ConfError> {
        let realm = node.arg(0)?;
        let token = match node.args.get(1) {
            Some(word) => {
                let value = word.param("token").filter(|value| value.len() > 1 && value.starts_with(b"$"));
                let value = value.ok_or_else(|| node.invalid_parameter(word))?;
                Some(Word { bytes: value.into(), ..word.clone() })
            }
            None => None,
        };
        Ok(Self { realm: Some(realm.clone()).filter(|realm| !realm.is("off")), token })
    }

    /// `None` for `off` without a token.
    pub(super) fn resolve(self, cx: &mut Resolve<'_>) -> Result<Option<Arc<Realm>>, ConfError> {
        if let Some(token) = &self.token
            && names_in(&token.bytes).any(|name| variables::are_of_token(&name))
        {
            let message = format!("the token cannot be in \"{token}\", which is read from the token");
            return Err(ConfError::new(message).at(token.span));
        }
        let mut compile = |word: Option<Word>| word.map(|word| cx.template(&word)).transpose();
        let realm = Realm { realm: compile(self.realm)?, token: compile(self.token)? };
        Ok((realm.realm.is_some() || realm.token.is_some()).then(|| Arc::new(realm)))
    }
}

impl Realm {
    /// Returns `true` if a token is read for its variables only.
    pub(super) fn is_off(&self) -> bool {
        self.realm.is_none()
    }

    /// Token of a request; `None` if there is none.
    pub(super) fn token(&self, r: &Request) -> Option<Vec<u8>> {
        match &self.token {
            Some(token) => Some(token.value(r)).filter(|token| !token.is_empty()),
            None => bearer_token(r).map(<[u8]>::to_vec),
        }
    }
}

/// Bearer token of a request (RFC 6750 section 2.1).
fn bearer_token(r: &Request) -> Option<&[u8]> {
    let (scheme, token) = credentials(r)?.split_at_checked(b"Bearer ".len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"Bearer ") && !token.is_empty()).then_some(token)
}
