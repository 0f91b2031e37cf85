//! One order, from the wish to the certificate (RFC 8555, section 7.4).
//!
//! ```text
//! new order ─► authorizations: an answer to a challenge for each that is open ─► all valid
//!                  ─► a request for the certificate, with a key of its own ─► the chain, if it is what was asked for
//! ```

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};
use tw_http::base64::encode_url as base64url;
use tw_rt::time::{sleep, timeout};
use tw_tls::certificate::CertificateFields;
use tw_tls::chain;
use zeroize::Zeroizing;

use crate::challenge_responses::{ChallengeResponses, PostedResponse};
use crate::client::{Client, problem};
use crate::command::Record;
use crate::config::{CertificateConfig, Challenge, Issuer, Profile};
use crate::error::{Error, in_one_line};
use crate::generate;
use crate::http_client::{Reply, is_base64url};
use crate::identifier::Identifier;
use crate::issued::Issued;
use crate::message::{self, Authorization, Order, Status};
use crate::shared::{SharedIssuer, StoredChallenge};

/// First pause before something is polled again; each further one is longer.
const LOOK_MIN: Duration = Duration::from_millis(250);
const LOOK_MAX: Duration = Duration::from_secs(8);
/// The longest that an authority can ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time that the order of a certificate may take.
    ///
    /// For all of it. Authorities may take minutes to look at a name.
    const ORDER_TIME_MAX: Duration = Duration::from_secs(30 * 60), time, "it is given up, and tried again later";
    /// Authorizations of one order of a certificate.
    const AUTHORIZATIONS_MAX: usize = 200, count, "the order fails, and is tried again later";
    /// Chains of one certificate that are looked at for the preferred one.
    const ALTERNATES_MAX: usize = 8, count, "the others are not";
}

/// Places where answers to challenges are given.
pub(crate) struct Answers<'a> {
    /// Answers of this node.
    pub(crate) own: &'a Arc<ChallengeResponses>,
    /// Answers of the other nodes of a fleet.
    pub(crate) shared: Option<&'a SharedIssuer>,
}

/// An answer to a challenge, as long as it is given.
enum Given {
    PostedResponse(
        #[expect(dead_code, reason = "it is given as long as this is held")] PostedResponse,
        #[expect(dead_code, reason = "it is given by all nodes as long as this is held")]
        Option<StoredChallenge>,
    ),
    Record(#[expect(dead_code, reason = "it is there as long as this is held")] Record),
}

/// Orders a certificate, in place of the one that the authority calls `replaces`. `now` tells the time, in seconds since 1970.
pub(crate) async fn obtain(
    client: &mut Client<'_>,
    issuer: &Issuer,
    certificate: &CertificateConfig,
    answers: &Answers<'_>,
    replaces: Option<&str>,
    now: fn() -> u64,
) -> Result<Issued, Error> {
    let order = async {
        let (at, order) = begin(client, issuer, certificate, replaces).await?;
        if order.authorizations.len() > AUTHORIZATIONS_MAX {
            return Err(Error::Malformed(format!(
                "an order with more than {AUTHORIZATIONS_MAX} authorizations"
            )));
        }
        authorize(client, issuer, certificate, answers, &order.authorizations).await?;
        let order = wait(client, &at, order, Status::Ready).await?;
        let (text, key) = fetch(client, issuer, certificate, &at, order).await?;
        Issued::new(&text, &key, &certificate.identifiers, now())
    };
    match timeout(ORDER_TIME_MAX, order).await {
        Ok(done) => done,
        Err(_) => Err(Error::Unfinished("the order", ORDER_TIME_MAX)),
    }
}

async fn begin(
    client: &mut Client<'_>,
    issuer: &Issuer,
    certificate: &CertificateConfig,
    replaces: Option<&str>,
) -> Result<(String, Order), Error> {
    let identifiers: Vec<_> = certificate
        .identifiers
        .iter()
        .map(|id| json!({ "type": id.kind(), "value": id.to_string() }))
        .collect();
    let mut request = serde_json::Map::from_iter([("identifiers".to_owned(), Value::from(identifiers))]);
    match &issuer.profile {
        Some(Profile::Required(name)) if !client.has_profile(name) => {
            return Err(Error::Unsupported(format!("the profile \"{name}\"")));
        }
        Some(Profile::Required(name) | Profile::Preferred(name)) if client.has_profile(name) => {
            request.insert("profile".to_owned(), (**name).into());
        }
        _ => {}
    }
    if let Some(id) = replaces {
        request.insert("replaces".to_owned(), id.into());
        match client.new_order(&Value::Object(request.clone())).await {
            // Another order has replaced the certificate, or the authority does not know it, which is no reason to get
            // none.
            Err(Error::Problem(problem)) if matches!(&*problem.kind, "alreadyReplaced" | "malformed") => {
                request.remove("replaces");
            }
            ordered => return ordered,
        }
    }
    client.new_order(&Value::Object(request)).await
}

/// Answers the challenges of every name that is not known to be ours, and waits until all are.
async fn authorize(
    client: &mut Client<'_>,
    issuer: &Issuer,
    certificate: &CertificateConfig,
    answers: &Answers<'_>,
    urls: &[String],
) -> Result<(), Error> {
    let mut open = Vec::new();
    for url in urls {
        let (authorization, _): (Authorization, _) = client.post(url, None).await?;
        match authorization.status {
            Status::Valid => continue,
            Status::Pending => {}
            status => return Err(refused(&authorization, status)),
        }
        let identifier = identifier_of(&authorization, &certificate.identifiers)?;
        let kind = issuer.challenge.name();
        let challenge = authorization.challenges.iter().find(|challenge| challenge.kind == kind);
        let challenge = challenge
            .ok_or_else(|| Error::Unsupported(format!("the challenge {kind} for \"{identifier}\"")))?;
        if !is_base64url(&challenge.token) {
            return Err(Error::Malformed(format!("the token of a challenge for \"{identifier}\"")));
        }
        let answer = format!("{}.{}", challenge.token, client.thumbprint());
        let given = give(&issuer.challenge, identifier, &challenge.token, answer, answers).await?;
        open.push((url, challenge.url.clone(), given));
    }
    for (_, challenge, _) in &open {
        client.send(challenge, Some(&json!({}))).await?;
    }
    for (url, _, _) in &open {
        let mut pause = Pause::default();
        loop {
            let (authorization, reply): (Authorization, _) = client.post(url, None).await?;
            match authorization.status {
                Status::Valid => break,
                Status::Pending | Status::Processing => pause.wait(&reply).await,
                status => return Err(refused(&authorization, status)),
            }
        }
    }
    Ok(())
}

/// Returns the ordered name that an authorization is for. Challenges for other names are not answered.
fn identifier_of<'w>(
    authorization: &Authorization,
    identifiers: &'w [Identifier],
) -> Result<&'w Identifier, Error> {
    let message::IdentifierObject { kind, value } = &authorization.identifier;
    let is_meant = |id: &&Identifier| {
        let name = id.to_string();
        let name = if authorization.wildcard { name.strip_prefix("*.").unwrap_or_default() } else { &name };
        id.kind() == kind && id.is_wildcard() == authorization.wildcard && name.eq_ignore_ascii_case(value)
    };
    identifiers.iter().find(is_meant).ok_or_else(|| {
        Error::Malformed(format!("an authorization for \"{}\", which was not asked for", in_one_line(value)))
    })
}

fn refused(authorization: &Authorization, status: Status) -> Error {
    let said = authorization.challenges.iter().find_map(|challenge| challenge.error.as_ref());
    let name = &authorization.identifier.value;
    match said {
        Some(said) => problem(said, &Reply::default()),
        None => Error::Malformed(format!("the authorization of \"{}\" is {status:?}", in_one_line(name))),
    }
}

async fn give(
    challenge: &Challenge,
    identifier: &Identifier,
    token: &str,
    answer: String,
    answers: &Answers<'_>,
) -> Result<Given, Error> {
    let Answers { own, shared } = answers;
    let share = async |subject: &str, answer: &str, tls| match shared {
        Some(shared) => shared.share_challenge(subject, answer, tls).await.map(Some),
        None => Ok(None),
    };
    match challenge {
        Challenge::Http01 => {
            let posted = own.post_http(token, answer.clone());
            Ok(Given::PostedResponse(posted, share(token, &answer, false).await?))
        }
        Challenge::TlsAlpn01 => {
            let config = generate::for_challenge(identifier, &generate::challenge_digest(&answer))?;
            let posted = own.post_tls(&identifier.name_in_hello(), config);
            Ok(Given::PostedResponse(posted, share(&identifier.to_string(), &answer, true).await?))
        }
        Challenge::Dns01(program) => {
            let name = identifier.to_string();
            let host = name.strip_prefix("*.").unwrap_or(&name);
            Record::present(program, host, &base64url(&generate::challenge_digest(&answer)))
                .await
                .map(Given::Record)
        }
    }
}

/// Waits until an order is `until`, or valid already.
async fn wait(client: &mut Client<'_>, at: &str, mut order: Order, until: Status) -> Result<Order, Error> {
    let mut pause = Pause::default();
    loop {
        match order.status {
            status if status == until || status == Status::Valid => return Ok(order),
            Status::Pending | Status::Processing | Status::Ready => {}
            status => {
                return Err(match &order.error {
                    Some(said) => problem(said, &Reply::default()),
                    None => Error::Malformed(format!("the order is {status:?}")),
                });
            }
        }
        let reply;
        (order, reply) = client.post(at, None).await?;
        if order.status != until && order.status != Status::Valid {
            pause.wait(&reply).await;
        }
    }
}

/// Asks for the certificate of an order that is ready: the chain in PEM, and its key.
async fn fetch(
    client: &mut Client<'_>,
    issuer: &Issuer,
    certificate: &CertificateConfig,
    at: &str,
    order: Order,
) -> Result<(String, Zeroizing<String>), Error> {
    let key = certificate.key.generate()?;
    let request = generate::request(&certificate.identifiers, issuer.common_name, &key)?;
    let request = json!({ "csr": base64url(&request) });
    let (order, _): (Order, _) = client.post(&order.finalize, Some(&request)).await?;
    let order = wait(client, at, order, Status::Valid).await?;
    let url =
        order.certificate.ok_or_else(|| Error::Malformed("a valid order without a certificate".into()))?;
    let reply = client.send(&url, None).await?;
    let text = as_text(&reply)?;
    let key = Zeroizing::new(key.serialize_pem());
    let Some(preferred) = issuer.preferred_chain.as_deref() else { return Ok((text, key)) };
    if ends_with(&text, preferred) {
        return Ok((text, key));
    }
    for url in reply.alternates.iter().take(ALTERNATES_MAX) {
        let other = as_text(&client.send(url, None).await?)?;
        if ends_with(&other, preferred) {
            return Ok((other, key));
        }
    }
    // As in nginx, the first chain is used if none is preferred.
    Ok((text, key))
}

fn as_text(reply: &Reply) -> Result<String, Error> {
    let text =
        str::from_utf8(&reply.body).map_err(|_| Error::Malformed("a certificate that is no text".into()))?;
    Ok(text.to_owned())
}

/// Returns true if the topmost certificate of a chain was issued by the authority of this common name.
fn ends_with(text: &str, name: &str) -> bool {
    let Ok(certificates) = chain(text.as_bytes()) else { return false };
    let top: Option<&CertificateDer<'_>> = certificates.last();
    let issuer = top.and_then(CertificateFields::of).map(|facts| facts.issuer_legacy()).unwrap_or_default();
    issuer.split('/').any(|attribute| attribute.strip_prefix("CN=") == Some(name))
}

/// Pauses between looks.
struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(LOOK_MIN)
    }
}

impl Pause {
    /// Waits as long as the authority asks for, or a little longer than the last time.
    async fn wait(&mut self, reply: &Reply) {
        sleep(reply.retry_after.map_or(self.0, |span| span.clamp(LOOK_MIN, RETRY_AFTER_MAX))).await;
        self.0 = (self.0 * 2).min(LOOK_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ordered_names_are_authorized() {
        let mut identifiers = Vec::new();
        for word in ["example.com", "*.example.com", "192.0.2.1"] {
            Identifier::add(word, &mut identifiers).unwrap();
        }
        let find = |kind: &str, value: &str, wildcard| {
            let text = json!({ "status": "pending", "identifier": { "type": kind, "value": value }, "wildcard": wildcard });
            let authorization: Authorization = serde_json::from_value(text).unwrap();
            identifier_of(&authorization, &identifiers).map(ToString::to_string).ok()
        };
        assert_eq!(find("dns", "Example.com", false).as_deref(), Some("example.com"));
        assert_eq!(find("dns", "example.com", true).as_deref(), Some("*.example.com"));
        assert_eq!(find("ip", "192.0.2.1", false).as_deref(), Some("192.0.2.1"));
        for (kind, value, wildcard) in [
            ("dns", "other.example", false),
            ("dns", "192.0.2.1", false),
            ("ip", "192.0.2.2", false),
            ("dns", "", true),
        ] {
            assert_eq!(find(kind, value, wildcard), None, "{kind} {value}");
        }
    }

    #[test]
    fn the_top_of_a_chain() {
        let authority = tw_testkit::tls::Authority::new();
        let text = authority.certify(&["example.com"]).pem + &authority.pem();
        let name = CertificateFields::of(&chain(authority.pem().as_bytes()).unwrap()[0]).unwrap().subject();
        let name = name.strip_prefix("CN=").unwrap();
        assert!(ends_with(&text, name) && !ends_with(&text, "another") && !ends_with("", name));
    }
}
