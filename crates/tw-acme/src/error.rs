//! Why there is no certificate: in one line, for the log.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tw_base::Errno;

/// Failures of an order.
#[derive(Debug)]
pub enum Error {
    /// The authority cannot be reached, or what it says cannot be read: to which host, and why.
    Network(Box<str>, String),
    /// No response in time.
    Slow(Box<str>, Duration),
    /// A response of more than this many bytes.
    TooLarge(Box<str>, usize),
    /// A status that the protocol does not know.
    Status(Box<str>, u16),
    /// A message that makes no sense.
    Malformed(String),
    /// A refusal.
    Problem(Problem),
    /// Terms of service that the configuration does not accept; their URL.
    TermsOfService(String),
    /// A feature that the authority does not have.
    Unsupported(String),
    /// A certificate that cannot be used.
    Unusable(String),
    /// An order that took longer than this.
    Unfinished(&'static str, Duration),
    /// A key, a signature or a certificate request cannot be made or read.
    Crypto(String),
    /// The state directory does not do what it should: the call, the file, and why.
    State(&'static str, PathBuf, io::Error),
    /// The fleet that shares the issuer: the engine, or what its store has.
    Fleet(String),
    /// Another node of the fleet orders; its name.
    Elsewhere(String),
    /// The program that answers in DNS has failed.
    Command(String),
}

/// Reason of a refusal (RFC 7807; RFC 8555, section 6.7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Error type, without `urn:ietf:params:acme:error:` in front.
    pub kind: String,
    /// For people, in one line.
    pub detail: String,
    /// Earliest time of another request.
    pub retry_after: Option<Duration>,
}

/// Prospects of another attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryAdvice {
    /// Another attempt may well succeed soon.
    Soon,
    /// Not before so long.
    After(Duration),
    /// Only after a change of the configuration or at the authority.
    Hopeless,
}

/// Refusals that mean what is configured, not what happens.
const HOPELESS: &[&str] = &[
    "accountDoesNotExist",
    "badCSR",
    "badPublicKey",
    "badSignatureAlgorithm",
    "externalAccountRequired",
    "invalidContact",
    "invalidProfile",
    "rejectedIdentifier",
    "unsupportedContact",
    "unsupportedIdentifier",
    "userActionRequired",
];

impl Error {
    pub(crate) fn retry_advice(&self) -> RetryAdvice {
        match self {
            Self::Problem(problem) => match problem.retry_after {
                Some(span) => RetryAdvice::After(span),
                None if HOPELESS.contains(&&*problem.kind) => RetryAdvice::Hopeless,
                None => RetryAdvice::Soon,
            },
            Self::TermsOfService(_) | Self::Unsupported(_) => RetryAdvice::Hopeless,
            _ => RetryAdvice::Soon,
        }
    }

    /// Returns true if it is this refusal.
    pub(crate) fn is(&self, kind: &str) -> bool {
        matches!(self, Self::Problem(problem) if problem.kind == kind)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(host, why) => write!(f, "\"{host}\" cannot be asked: {why}"),
            Self::Slow(host, span) => write!(f, "\"{host}\" has not answered within {} s", span.as_secs()),
            Self::TooLarge(host, max) => write!(f, "\"{host}\" has answered with more than {max} bytes"),
            Self::Status(host, status) => write!(f, "\"{host}\" has answered with the status {status}"),
            Self::Malformed(why) => write!(f, "the authority makes no sense: {why}"),
            Self::Problem(problem) => problem.fmt(f),
            Self::TermsOfService(place) => {
                write!(
                    f,
                    "the terms of service are not accepted (\"accept_terms_of_service\"), they are at {place}"
                )
            }
            Self::Unsupported(what) => write!(f, "the authority does not offer {what}"),
            Self::Unusable(why) => write!(f, "the authority has issued what cannot be used: {why}"),
            Self::Unfinished(what, span) => {
                write!(f, "{what} has not come to an end within {} s", span.as_secs())
            }
            Self::Crypto(why) => f.write_str(why),
            Self::State(call, path, error) => {
                write!(f, "{call} \"{}\" failed ({})", path.display(), Errno::from(error))
            }
            Self::Command(why) | Self::Fleet(why) => f.write_str(why),
            Self::Elsewhere(node) => write!(f, "node \"{node}\" orders"),
        }
    }
}

impl std::error::Error for Error {}

/// Longest text of an authority that goes into the log.
const DETAIL_MAX: usize = 500;

impl Problem {
    pub(crate) fn new(kind: Option<&str>, detail: Option<&str>, retry_after: Option<Duration>) -> Self {
        let kind = kind.unwrap_or("about:blank");
        let kind = kind.rsplit_once("error:").map_or(kind, |(_, kind)| kind);
        Self { kind: in_one_line(kind), detail: in_one_line(detail.unwrap_or_default()), retry_after }
    }
}

/// Makes foreign text fit for a line of the log.
pub(crate) fn in_one_line(text: &str) -> String {
    let mut line: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(DETAIL_MAX).collect();
    if line.len() < text.len() {
        line.push('…');
    }
    line
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.detail {
            "" => write!(f, "the authority has refused ({})", self.kind),
            detail => write!(f, "the authority has refused: {detail} ({})", self.kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_authorities_stay_on_one_line() {
        let problem = Problem::new(Some("urn:ietf:params:acme:error:dns"), Some("a\nb\u{1b}[1m"), None);
        assert_eq!(Error::Problem(problem).to_string(), "the authority has refused: a b [1m (dns)");
        let long = Problem::new(None, Some(&"x".repeat(10_000)), None);
        assert_eq!((long.kind.as_str(), long.detail.chars().count()), ("about:blank", DETAIL_MAX + 1));
    }

    #[test]
    fn retryable_errors() {
        let problem = |kind, after| Error::Problem(Problem::new(Some(kind), None, after));
        let hour = Duration::from_secs(3600);
        assert_eq!(
            problem("urn:ietf:params:acme:error:serverInternal", None).retry_advice(),
            RetryAdvice::Soon
        );
        assert_eq!(
            problem("urn:ietf:params:acme:error:rateLimited", Some(hour)).retry_advice(),
            RetryAdvice::After(hour)
        );
        assert_eq!(
            problem("urn:ietf:params:acme:error:rejectedIdentifier", None).retry_advice(),
            RetryAdvice::Hopeless
        );
        assert_eq!(Error::TermsOfService(String::new()).retry_advice(), RetryAdvice::Hopeless);
    }
}
