//! A conversation with an authority: its directory, nonces, an account, and requests that are signed.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tw_http::Method;

use crate::account::AccountKey;
use crate::config::{self, TermsOfService};
use crate::error::{Error, Problem, in_one_line};
use crate::http_client::{HttpClient, Reply};
use crate::jws::{self, By};
use crate::message::{self, Directory, RenewalInfo};
use crate::url::Url;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Nonces of one request to an authority that issues certificates.
    ///
    /// Largest number of requests made anew because their nonce was too old (RFC 8555, section 6.5).
    const NONCES_MAX: usize = 4, count, "the order fails, and is tried again later";
}

/// Client of an authority.
pub(crate) struct Client<'a> {
    carrier: &'a HttpClient,
    key: &'a AccountKey,
    directory: Directory,
    /// The account's URL, once it is known.
    account: Option<String>,
    nonce: Option<String>,
}

impl<'a> Client<'a> {
    /// Begins with the directory.
    pub(crate) async fn open(carrier: &'a HttpClient, uri: &Url, key: &'a AccountKey) -> Result<Self, Error> {
        let reply = carrier.send(Method::Get, uri, None).await?;
        let directory = read(uri, &reply)?;
        Ok(Self { carrier, key, directory, account: None, nonce: reply.nonce })
    }

    /// Returns the thumbprint of the key for responses to challenges.
    pub(crate) fn thumbprint(&self) -> String {
        self.key.thumbprint()
    }

    /// Returns true if the authority suggests renewal windows.
    pub(crate) fn has_renewal_info(&self) -> bool {
        self.directory.renewal_info.is_some()
    }

    /// Returns true if the authority has this certificate profile.
    pub(crate) fn has_profile(&self, name: &str) -> bool {
        self.directory.meta.profiles.contains_key(name)
    }

    /// Finds or makes the account (section 7.3).
    pub(crate) async fn sign_in(&mut self, account: &config::Account) -> Result<(), Error> {
        let meta = &self.directory.meta;
        if let (Some(terms), TermsOfService::NotAccepted) = (&meta.terms_of_service, account.terms) {
            return Err(Error::TermsOfService(in_one_line(terms)));
        }
        if meta.external_account_required && account.external.is_none() {
            return Err(Error::Unsupported(
                "accounts without one that it has by other means (\"external_account_key\")".into(),
            ));
        }
        let mut wanted_value = json!({});
        let mut set = |name: &str, value: Value| {
            if let Value::Object(members) = &mut wanted_value {
                members.insert(name.to_owned(), value);
            }
        };
        if account.terms == TermsOfService::Accepted {
            set("termsOfServiceAgreed", true.into());
        }
        if !account.contacts.is_empty() {
            set("contact", account.contacts.iter().map(|contact| Value::from(&**contact)).collect());
        }
        let url = self.directory.new_account.clone();
        if let Some(external) = &account.external {
            set("externalAccountBinding", jws::bound(self.key, external, &url)?);
        }
        let reply = self.send(&url, Some(&wanted_value)).await?;
        let text = reply.location.ok_or_else(|| Error::Malformed("an account without a URL".into()))?;
        self.account = Some(text);
        Ok(())
    }

    /// Asks for a new order: its URL, and what it says.
    pub(crate) async fn new_order(&mut self, value: &Value) -> Result<(String, message::Order), Error> {
        let url = self.directory.new_order.clone();
        let reply = self.send(&url, Some(value)).await?;
        let order = parse(&reply)?;
        let at = reply.location.ok_or_else(|| Error::Malformed("an order without a URL".into()))?;
        Ok((at, order))
    }

    /// Asks for the renewal window of a certificate (RFC 9773). The request needs no signature.
    pub(crate) async fn renewal_info(&self, id: &str) -> Result<(RenewalInfo, Reply), Error> {
        let base = self.directory.renewal_info.as_deref();
        let base = base.ok_or_else(|| Error::Unsupported("to say when to replace a certificate".into()))?;
        let url = url(&format!("{}/{id}", base.trim_end_matches('/')))?;
        let reply = self.carrier.send(Method::Get, &url, None).await?;
        Ok((read(&url, &reply)?, reply))
    }

    /// A signed request, read as what is expected.
    pub(crate) async fn post<T: DeserializeOwned>(
        &mut self,
        url: &str,
        payload: Option<&Value>,
    ) -> Result<(T, Reply), Error> {
        let reply = self.send(url, payload).await?;
        Ok((parse(&reply)?, reply))
    }

    /// A signed request.
    pub(crate) async fn send(&mut self, to: &str, payload: Option<&Value>) -> Result<Reply, Error> {
        let to = url(to)?;
        let mut nonces = 0;
        loop {
            nonces += 1;
            let nonce = match self.nonce.take() {
                Some(nonce) => nonce,
                None => self.new_nonce().await?,
            };
            let by = self.account.as_deref().map_or(By::Key, By::Account);
            let body = jws::signed(self.key, by, &nonce, to.as_str(), payload)?;
            let mut reply = self.carrier.send(Method::Post, &to, Some(&body)).await?;
            self.nonce = reply.nonce.take();
            match check_reply(&to, &reply) {
                Err(error) if error.is("badNonce") && nonces < NONCES_MAX => {}
                judged => return judged.map(|()| reply),
            }
        }
    }

    async fn new_nonce(&self) -> Result<String, Error> {
        let from = url(&self.directory.new_nonce)?;
        let reply = self.carrier.send(Method::Head, &from, None).await?;
        reply.nonce.ok_or_else(|| Error::Malformed("it gives no nonce".into()))
    }
}

/// A URL that an authority has given.
fn url(text: &str) -> Result<Url, Error> {
    Url::parse(text).map_err(|why| Error::Malformed(format!("the URL \"{}\": {why}", in_one_line(text))))
}

fn read<T: DeserializeOwned>(url: &Url, reply: &Reply) -> Result<T, Error> {
    check_reply(url, reply)?;
    parse(reply)
}

fn parse<T: DeserializeOwned>(reply: &Reply) -> Result<T, Error> {
    serde_json::from_slice(&reply.body).map_err(|error| Error::Malformed(in_one_line(&error.to_string())))
}

fn check_reply(url: &Url, reply: &Reply) -> Result<(), Error> {
    if matches!(reply.status, 200..=299) {
        return Ok(());
    }
    match serde_json::from_slice::<message::ProblemDocument>(&reply.body) {
        Ok(said) if said.kind.is_some() => Err(problem(&said, reply)),
        _ => Err(Error::Status(url.host().into(), reply.status)),
    }
}

/// A refusal. Only one for asking too much says when to come again.
pub(crate) fn problem(said: &message::ProblemDocument, reply: &Reply) -> Error {
    let problem = Problem::new(said.kind.as_deref(), said.text().as_deref(), None);
    let is_busy = problem.kind == "rateLimited" || matches!(reply.status, 429 | 503);
    Error::Problem(Problem { retry_after: reply.retry_after.filter(|_| is_busy), ..problem })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn refusals() {
        let at = Url::parse("https://ca.example/").unwrap();
        let said = |status, body: &str| {
            let retry_after = Some(Duration::from_secs(90));
            let reply = Reply { status, retry_after, body: body.into(), ..Reply::default() };
            check_reply(&at, &reply).map_err(|error| (error.to_string(), error.retry_advice()))
        };
        use crate::error::RetryAdvice::{After, Soon};
        assert_eq!(said(201, ""), Ok(()));
        assert_eq!(
            said(500, "<html>"),
            Err(("\"ca.example\" has answered with the status 500".into(), Soon))
        );
        assert_eq!(said(302, ""), Err(("\"ca.example\" has answered with the status 302".into(), Soon)));
        let limited = r#"{"type":"urn:ietf:params:acme:error:rateLimited","detail":"too many"}"#;
        let text = "the authority has refused: too many (rateLimited)".to_owned();
        assert_eq!(said(429, limited), Err((text, After(Duration::from_secs(90)))));
        let dns =
            r#"{"type":"urn:ietf:params:acme:error:dns","detail":"all","subproblems":[{"detail":"one"}]}"#;
        assert_eq!(said(400, dns), Err(("the authority has refused: all: one (dns)".into(), Soon)));
    }
}
