//! `return`: answers with a code, a text or a redirect.

use bytes::Bytes;
use tw_conf::{ConfError, Node, Word};
use tw_http::target;
use tw_request::body::Body;
use tw_request::plan::Outcome;
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::Template;

/// Highest code that may be returned.
const CODE_MAX: u64 = 999;

/// `return` as written.
pub(super) struct RawReturn {
    status: u16,
    text: Option<Word>,
}

/// Response of a `return`.
pub(super) struct ReturnResponse {
    status: u16,
    text: Option<Template>,
}

impl RawReturn {
    pub(super) fn parse(node: &Node) -> Result<Self, ConfError> {
        let first = node.arg(0)?;
        match (first.number(), node.args.get(1)) {
            (None, None) if is_url(&first.bytes) => Ok(Self { status: 302, text: Some(first.clone()) }),
            (Some(code @ 0..=CODE_MAX), text) => Ok(Self { status: code as u16, text: text.cloned() }),
            _ => Err(node.fail(format!("invalid return code \"{first}\""))),
        }
    }

    pub(super) fn compile(self, cx: &mut Resolve<'_>) -> Result<ReturnResponse, ConfError> {
        let text = self.text.filter(|word| !word.bytes.is_empty());
        let text = text.map(|word| cx.template(&word)).transpose()?;
        Ok(ReturnResponse { status: self.status, text })
    }
}

impl ReturnResponse {
    /// Answers `r`.
    pub(super) fn respond(&self, r: &mut Request) -> Outcome {
        if self.text.is_none() && self.status >= 400 {
            return Outcome::Status(self.status);
        }
        // The text may ask for `$status`.
        r.response.status = self.status;
        let value = self.text.as_ref().map_or_else(Vec::new, |text| text.value(r));
        match self.status {
            // DIFF(nginx): without a URL, there is no `Location`.
            301 | 302 | 303 | 307 | 308 => {
                r.response.location = value.into();
                Outcome::Status(self.status)
            }
            444 => Outcome::Status(444),
            _ => {
                // An earlier step of this request may have set the content type.
                if r.response.content_type.is_empty() {
                    let core = r.plan().core.clone();
                    r.response.content_type =
                        core.types.find(target::exten(&r.uri.path)).unwrap_or(&core.default_type).clone();
                }
                Outcome::Respond(Body::Bytes(Bytes::from(value)))
            }
        }
    }
}

/// Returns `true` if the text is a URL for a client.
pub(super) fn is_url(text: &[u8]) -> bool {
    ["http://", "https://", "$scheme"].iter().any(|prefix| text.starts_with(prefix.as_bytes()))
}
