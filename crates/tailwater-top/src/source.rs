//! Documents of a server: where they are, how they are fetched, and what they say.

pub mod fetch;
mod json;
mod prometheus;
pub mod snapshot;
pub mod target;
pub mod trust;

use std::fmt;

pub use fetch::Fetcher;
pub use snapshot::Snapshot;
pub use target::Target;
pub use trust::Trust;

/// Reason why a document says nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParseError {
    /// Neither JSON nor Prometheus text.
    Unknown,
    /// JSON that is cut off or damaged.
    Json(String),
    /// There is no metric of Tailwater in it.
    NoMetrics,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => {
                f.write_str("the response is neither JSON nor metrics: is this the URL of a status_page?")
            }
            Self::Json(error) => write!(f, "the response is damaged JSON: {error}"),
            Self::NoMetrics => f.write_str("the response has no metrics of Tailwater"),
        }
    }
}

/// Reads the document of `status_page?format=json`, or that of `metrics`.
///
/// # Errors
/// The document is neither of them.
pub fn parse(document: &[u8]) -> Result<Snapshot, ParseError> {
    let text = String::from_utf8_lossy(document);
    let text = text.trim_start();
    let snapshot = match text.as_bytes().first() {
        Some(b'{') => json::parse(text)?,
        Some(b'#') => prometheus::parse(text),
        _ => return Err(ParseError::Unknown),
    };
    if snapshot.families.is_empty() { Err(ParseError::NoMetrics) } else { Ok(snapshot) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_of_others_are_refused() {
        for (document, expected) in [
            ("", ParseError::Unknown),
            ("<html>", ParseError::Unknown),
            ("{}", ParseError::NoMetrics),
            ("# HELP go_goroutines x\ngo_goroutines 7\n", ParseError::NoMetrics),
        ] {
            assert_eq!(parse(document.as_bytes()).map(|_| ()), Err(expected), "{document}");
        }
        assert!(matches!(parse(b"{\"metrics\":"), Err(ParseError::Json(_))));
        assert_eq!(parse(b"\xff\xfe").map(|_| ()), Err(ParseError::Unknown));
    }

    #[test]
    fn cut_documents_never_panic() {
        let document = include_bytes!("../testdata/first.json");
        for end in (0..document.len()).step_by(97) {
            let _ = parse(&document[..end]);
        }
    }
}
