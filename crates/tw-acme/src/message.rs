//! Messages of an authority (RFC 8555, section 7.1; RFC 9773, section 4.2), as far as they decide something.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error;
use crate::url::Url;

/// Directory of an authority's URLs (section 7.1.1).
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Directory {
    pub(crate) new_nonce: String,
    pub(crate) new_account: String,
    pub(crate) new_order: String,
    pub(crate) renewal_info: Option<String>,
    #[serde(default)]
    pub(crate) meta: Meta,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Meta {
    pub(crate) terms_of_service: Option<String>,
    #[serde(default)]
    pub(crate) external_account_required: bool,
    /// Names of profiles, with what they are.
    #[serde(default)]
    pub(crate) profiles: BTreeMap<String, serde_json::Value>,
}

/// A status of an order or an authorization (section 7.1.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    Pending,
    Ready,
    Processing,
    Valid,
    Invalid,
    Deactivated,
    Expired,
    Revoked,
}

/// Section 7.1.3.
#[derive(Debug, Deserialize)]
pub(crate) struct Order {
    pub(crate) status: Status,
    #[serde(default)]
    pub(crate) authorizations: Vec<String>,
    pub(crate) finalize: String,
    pub(crate) certificate: Option<String>,
    pub(crate) error: Option<ProblemDocument>,
}

/// Section 7.1.4.
#[derive(Debug, Deserialize)]
pub(crate) struct Authorization {
    pub(crate) status: Status,
    pub(crate) identifier: IdentifierObject,
    #[serde(default)]
    pub(crate) challenges: Vec<ChallengeObject>,
    #[serde(default)]
    pub(crate) wildcard: bool,
}

#[derive(Debug, Deserialize)]
pub(crate) struct IdentifierObject {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) value: String,
}

/// Section 7.1.5.
#[derive(Debug, Deserialize)]
pub(crate) struct ChallengeObject {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) url: String,
    #[serde(default)]
    pub(crate) token: String,
    pub(crate) error: Option<ProblemDocument>,
}

/// RFC 7807, with the problems of each name (section 6.7.1).
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ProblemDocument {
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) detail: Option<String>,
    #[serde(default)]
    pub(crate) subproblems: Vec<ProblemDocument>,
}

impl ProblemDocument {
    /// For people: what it says, and what it says of the first name that is the reason.
    pub(crate) fn text(&self) -> Option<String> {
        let first = self.subproblems.first().and_then(|problem| problem.detail.as_deref());
        match (self.detail.as_deref(), first) {
            (Some(all), Some(first)) => Some(format!("{all}: {first}")),
            (all, first) => all.or(first).map(str::to_owned),
        }
    }
}

/// Window in which a certificate should be replaced (RFC 9773, section 4.2).
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RenewalInfo {
    pub(crate) suggested_window: Window,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Window {
    start: String,
    end: String,
}

impl Window {
    /// Seconds since 1970 between which it lies; `None` for what is no span.
    pub(crate) fn seconds(&self) -> Option<(u64, u64)> {
        let seconds = |text: &str| {
            let at: jiff::Timestamp = text.parse().ok()?;
            u64::try_from(at.as_second()).ok()
        };
        let start = seconds(&self.start)?;
        let end = seconds(&self.end)?;
        (start < end).then_some((start, end))
    }
}

/// Describes bytes, parsed as each of these messages, as logs and schedules would show them. For tests with arbitrary
/// input: see `fuzz/checks/acme.rs`.
pub fn describe(bytes: &[u8]) -> Vec<String> {
    fn read<T: DeserializeOwned>(bytes: &[u8], said: impl Fn(T) -> String) -> Option<String> {
        serde_json::from_slice(bytes).ok().map(said)
    }
    let problem = |problem: &ProblemDocument| {
        error::Problem::new(problem.kind.as_deref(), problem.text().as_deref(), None).to_string()
    };
    let url = |text: &str| Url::parse(text).map_or_else(|why| why.to_string(), |url| url.to_string());
    let all = [
        read(bytes, |directory: Directory| url(&directory.new_order)),
        read(bytes, |order: Order| {
            let authorizations: String = order.authorizations.iter().map(|text| url(text)).collect();
            format!(
                "{:?} {authorizations} {}",
                order.status,
                order.error.as_ref().map(problem).unwrap_or_default()
            )
        }),
        read(bytes, |authorization: Authorization| {
            let errors = authorization.challenges.iter().filter_map(|challenge| challenge.error.as_ref());
            format!("{:?} {}", authorization.status, errors.map(problem).collect::<String>())
        }),
        read(bytes, |said: ProblemDocument| problem(&said)),
        read(bytes, |info: RenewalInfo| format!("{:?}", info.suggested_window.seconds())),
    ];
    all.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows() {
        let window = |start: &str, end: &str| Window { start: start.into(), end: end.into() }.seconds();
        assert_eq!(window("1970-01-01T00:01:00Z", "1970-01-01T01:00:00.5+00:00"), Some((60, 3600)));
        assert_eq!(window("1970-01-01T00:01:00Z", "1970-01-01T00:01:00Z"), None);
        assert_eq!(window("tomorrow", "1970-01-01T00:01:00Z"), None);
    }
}
