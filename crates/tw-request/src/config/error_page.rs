//! `error_page`: what answers instead of the built-in page.

use tw_conf::{ConfError, Node};

use crate::protocol::Resolve;
use crate::vars::Template;

/// Status that the client sees with the error page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorPageStatus {
    /// The code of the error.
    Same,
    /// `=`: whatever processing the page gives.
    Own,
    /// `=code`.
    Code(u16),
}

/// Location of the error page.
#[derive(Clone)]
pub enum Target {
    /// A path on this server, possibly with arguments.
    Path(Template),
    /// `@name`.
    Named(Box<[u8]>),
    /// Another site: the client is redirected.
    Url(Template),
}

/// One `error_page` entry.
#[derive(Clone)]
pub struct ErrorPage {
    /// The codes it is for.
    pub codes: Box<[u16]>,
    /// The status to send.
    pub answer: ErrorPageStatus,
    /// The page.
    pub target: Target,
}

/// An `error_page` as written.
#[derive(Debug, Clone)]
pub struct RawErrorPage {
    codes: Box<[u16]>,
    answer: ErrorPageStatus,
    target: tw_conf::Word,
}

impl RawErrorPage {
    /// Reads `code … [=[code]] uri`.
    pub fn parse(node: &Node) -> Result<Self, ConfError> {
        let Some((target, mut words)) = node.args.split_last() else { return Err(node.invalid_count()) };
        if target.bytes.starts_with(b"=") {
            return Err(node.invalid_value(target));
        }
        let mut answer = ErrorPageStatus::Same;
        if let Some((last, rest)) = words.split_last()
            && let Some(code) = last.bytes.strip_prefix(b"=")
        {
            answer = match code {
                b"" => ErrorPageStatus::Own,
                _ => ErrorPageStatus::Code(code_of(code).ok_or_else(|| node.invalid_value(last))?),
            };
            words = rest;
        }
        if words.is_empty() {
            return Err(node.invalid_count());
        }
        let codes = words.iter().map(|word| match code_of(&word.bytes) {
            Some(499) => Err(node.invalid_value(word)),
            Some(code @ 300..=599) => Ok(code),
            Some(_) => Err(node.fail(format!("value \"{word}\" must be between 300 and 599"))),
            None => Err(node.invalid_value(word)),
        });
        Ok(Self { codes: codes.collect::<Result<_, _>>()?, answer, target: target.clone() })
    }

    /// Compiles the target.
    pub fn resolve(self, cx: &mut Resolve<'_>) -> Result<ErrorPage, ConfError> {
        let target = match &*self.target.bytes {
            [b'@', ..] => {
                cx.block.use_named_location(&self.target.bytes, self.target.span);
                Target::Named(self.target.bytes.clone())
            }
            [b'/', ..] => Target::Path(cx.template(&self.target)?),
            _ => Target::Url(cx.template(&self.target)?),
        };
        Ok(ErrorPage { codes: self.codes, answer: self.answer, target })
    }
}

fn code_of(bytes: &[u8]) -> Option<u16> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}
