//! Request to explain, and its explanation.

use tw_conf::Span;
use tw_request::client::Scheme;
use tw_request::request::Request;

/// The request to explain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestToExplain {
    /// Method.
    pub method: Vec<u8>,
    /// The host as it stands in the URL: a name or an address, without port; IPv6 in brackets. Empty for a path alone, which the only
    /// server answers, or the default server of the first address.
    pub host: Vec<u8>,
    /// The port it goes to, without meaning if there is no host; `None` for that of the first address with a server of the host's name, or of
    /// the first address of all.
    pub port: Option<u16>,
    /// Scheme, if the URL has one; else that of the listening address.
    pub scheme: Option<Scheme>,
    /// Path and arguments.
    pub target: Vec<u8>,
    /// Fields of the head beside `Host` and `Connection`.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
    /// Body.
    pub body: Vec<u8>,
    /// Modules say all that they know.
    pub is_detailed: bool,
}

/// Extension of a request about which modules say all that they know.
pub struct DetailedExplanation;

/// One line of an explanation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Subject: `server`, `location` …
    pub about: &'static str,
    /// Statement.
    pub text: String,
    /// Place of the directive.
    pub span: Option<Span>,
    /// File that the line is about.
    pub file: Option<Vec<u8>>,
}

/// Explanation of a request.
#[derive(Debug, Default)]
pub struct Explanation {
    /// In the order in which it would happen.
    pub lines: Vec<Line>,
}

impl Explanation {
    pub(super) fn add(&mut self, about: &'static str, text: impl Into<String>, span: Option<Span>) {
        self.lines.push(Line { about, text: text.into(), span, file: None });
    }

    pub(super) fn add_file(&mut self, path: Vec<u8>) {
        self.lines.push(Line { about: "file", text: text(&path), span: None, file: Some(path) });
    }
}

/// Path and arguments as they are now.
pub(super) fn uri_of(r: &Request) -> String {
    let mark = if r.uri.args.is_empty() { "" } else { "?" };
    format!("{}{mark}{}", text(&r.uri.path), text(&r.uri.args))
}

pub(super) fn text(bytes: &[u8]) -> String {
    tw_log::Text(bytes).to_string()
}
