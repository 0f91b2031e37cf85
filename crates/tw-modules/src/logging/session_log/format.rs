//! Formats of session logs: lines with gaps for the number of bytes that the whole session has sent.

use std::sync::Arc;

use tw_conf::{ConfError, Span, Word};
use tw_core::log::LoggedSession;
use tw_core::vars::Value;
use tw_log::escape::Escape;
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::Template;

/// Variable that is a sum over the session.
const SUM: &[u8] = b"body_bytes_sent";

/// A format: texts between which the sum stands.
#[derive(Clone)]
pub(super) struct SessionFormat(Arc<[Template]>);

/// Texts of the first request of a session, between which the sum stands.
#[derive(Clone)]
pub(super) struct LineParts(Arc<[Box<[u8]>]>);

impl SessionFormat {
    /// The format `combined`.
    pub(super) fn combined(cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let (_, line) = <Request as LoggedSession>::FORMAT.unwrap_or_default();
        Self::of_text(line.as_bytes(), None, cx)
    }

    /// The format of these strings.
    pub(super) fn resolve(strings: &[Word], cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let line: Vec<u8> = strings.iter().flat_map(|word| word.bytes.iter().copied()).collect();
        Self::of_text(&line, strings.first().map(|word| word.span), cx)
    }

    fn of_text(line: &[u8], at: Option<Span>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        split(line).into_iter().map(|text| cx.template_text(text, at)).collect::<Result<_, _>>().map(Self)
    }

    /// Texts of a request.
    pub(super) fn parts(&self, r: &Request) -> LineParts {
        let text = |template: &Template| {
            let mut text = Vec::new();
            template.eval_each(r, &mut text, |text, start, value| match value {
                Value::Found => Escape::Default.escape(text, start),
                Value::Missing => Escape::Default.push_missing(text),
            });
            text.into_boxed_slice()
        };
        LineParts(self.0.iter().map(text).collect())
    }
}

impl LineParts {
    /// Bytes of all texts.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|text| text.len()).sum()
    }

    /// The line of a session that has sent so many bytes.
    pub(super) fn line(&self, bytes: u64) -> Vec<u8> {
        let mut line = self.0.join(bytes.to_string().as_bytes());
        line.push(b'\n');
        line
    }
}

/// Texts between the places of the sum.
fn split(mut line: &[u8]) -> Vec<&[u8]> {
    let mut texts = Vec::new();
    let mut from = 0;
    while let Some(dollar) = line.get(from..).and_then(|rest| rest.iter().position(|byte| *byte == b'$')) {
        let at = from + dollar;
        match sum_len(&line[at + 1..]) {
            Some(len) => {
                texts.push(&line[..at]);
                line = &line[at + 1 + len..];
                from = 0;
            }
            None => from = at + 1,
        }
    }
    texts.push(line);
    texts
}

/// Length of the name of the sum, with its braces, at the beginning of a text.
fn sum_len(text: &[u8]) -> Option<usize> {
    if let Some(inner) = text.strip_prefix(b"{") {
        return inner.strip_prefix(SUM)?.starts_with(b"}").then_some(SUM.len() + 2);
    }
    let rest = text.strip_prefix(SUM)?;
    let goes_on = rest.first().is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    (!goes_on).then_some(SUM.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_is_a_gap() {
        for (line, expected) in [
            ("a", vec!["a"]),
            ("$body_bytes_sent", vec!["", ""]),
            ("a $body_bytes_sent b", vec!["a ", " b"]),
            ("$x${body_bytes_sent}b$body_bytes_sent", vec!["$x", "b", ""]),
            ("$body_bytes_sent_x ${body_bytes_sent_x} $", vec!["$body_bytes_sent_x ${body_bytes_sent_x} $"]),
        ] {
            let texts: Vec<_> = split(line.as_bytes()).into_iter().map(String::from_utf8_lossy).collect();
            assert_eq!(texts, expected, "{line}");
        }
        let parts = LineParts([(*b"a ").into(), (*b" b").into()].into());
        assert_eq!((parts.line(17), parts.len()), (b"a 17 b\n".to_vec(), 4));
    }
}
