//! Commands as written, and the programs made of them.

use std::time::Duration;

use bytes::Bytes;
use tw_conf::{ConfError, Node, Span, Word};
use tw_http::Method;
use tw_request::protocol::Resolve;
use tw_request::vars::Template;

use super::limits::SLEEP_MAX;

/// Text of a line as written.
pub(super) struct RawText {
    words: Vec<Word>,
    line_end: bool,
}

/// A command as written.
pub(super) enum RawCommand {
    Text(RawText),
    Duplicate(Word, Word),
    Flush,
    Sleep(Word),
    ResetTimer,
    ReadBody,
    Subrequest(RawSubrequest),
    ForEach(Word, Word),
    End,
    RequestBody,
    Exec(Word, Option<Word>),
}

/// A subrequest as written.
pub(super) struct RawSubrequest {
    wait: Wait,
    method: Option<Word>,
    uri: Word,
    args: Option<Word>,
    body: Option<Word>,
}

/// Point at which the commands behind a subrequest run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// At its end.
    ForEnd,
    /// At once.
    No,
}

/// Commands as written, in their order.
#[derive(Default)]
pub(super) struct RawProgram {
    commands: Vec<RawCommand>,
    /// Place of the loop that has no end yet.
    open_loop: Option<Span>,
}

/// Commands of one location.
pub(super) struct Program {
    pub(super) commands: Box<[Command]>,
}

/// One command.
pub(super) enum Command {
    Text(Template),
    /// Count and text.
    Duplicate(Template, Template),
    Flush,
    Sleep(Template),
    ResetTimer,
    ReadBody,
    Subrequest(SubrequestCommand),
    /// A loop over the parts of a text.
    ForEach {
        separator: Template,
        text: Template,
        /// Index of its [`Command::End`].
        end: usize,
    },
    End,
    RequestBody,
    Exec(Template, Option<Template>),
}

/// A subrequest.
pub(super) struct SubrequestCommand {
    pub(super) wait: Wait,
    /// `None` for `GET` and the body of the parent, for variables.
    pub(super) method: Option<Template>,
    pub(super) uri: Template,
    pub(super) args: Option<Template>,
    pub(super) body: Option<Template>,
}

impl RawText {
    /// Reads the arguments of `echo`.
    pub(super) fn line(node: &Node) -> Self {
        let mut words = &*node.args;
        let mut line_end = true;
        while let Some((first, rest)) = words.split_first() {
            let ends_options = first.is("--");
            if first.is("-n") {
                line_end = false;
            } else if !ends_options {
                break;
            }
            words = rest;
            if ends_options {
                break;
            }
        }
        Self { words: words.to_vec(), line_end }
    }

    pub(super) fn compile(self, cx: &mut Resolve<'_>) -> Result<Template, ConfError> {
        let mut parts = Vec::new();
        for word in &self.words {
            if !parts.is_empty() {
                parts.push(Template::text(b" "));
            }
            parts.push(cx.template(word)?);
        }
        if self.line_end {
            parts.push(Template::text(b"\n"));
        }
        Ok(Template::joined(parts))
    }
}

impl RawCommand {
    pub(super) fn duplicate(node: &Node) -> Result<Self, ConfError> {
        let [count, text] = node.words()?;
        check(node, count, count_of(&count.bytes))?;
        Ok(Self::Duplicate(count.clone(), text.clone()))
    }

    pub(super) fn sleep(node: &Node) -> Result<Self, ConfError> {
        let span = node.arg(0)?;
        check(node, span, span_of(&span.bytes))?;
        Ok(Self::Sleep(span.clone()))
    }

    pub(super) fn location(node: &Node, wait: Wait) -> Result<Self, ConfError> {
        let uri = node.arg(0)?.clone();
        let args = node.args.get(1).cloned();
        check_uri(node, &uri)?;
        Ok(Self::Subrequest(RawSubrequest { wait, method: None, uri, args, body: None }))
    }

    pub(super) fn subrequest(node: &Node, wait: Wait) -> Result<Self, ConfError> {
        let method = node.arg(0)?;
        let uri = node.arg(1)?;
        check(node, method, method_of(&method.bytes))?;
        check_uri(node, uri)?;
        let mut args = None;
        let mut body = None;
        let mut words = node.args.iter().skip(2);
        while let Some(option) = words.next() {
            let place = match &*option.bytes {
                b"-q" => &mut args,
                b"-b" => &mut body,
                // DIFF(nginx): no file is read for the body of a subrequest.
                b"-f" => {
                    let error = node.fail("\"-f\" is not supported by this version of Tailwater");
                    return Err(error.at(option.span).hint("\"-b\" gives the body as a text"));
                }
                _ => return Err(node.invalid_parameter(option)),
            };
            let value = words.next();
            let missing = || node.error(&format!("has no value behind \"{option}\"")).at(option.span);
            *place = Some(value.ok_or_else(missing)?.clone());
        }
        let method = Some(method.clone());
        let uri = uri.clone();
        Ok(Self::Subrequest(RawSubrequest { wait, method, uri, args, body }))
    }

    pub(super) fn exec(node: &Node) -> Result<Self, ConfError> {
        let uri = node.arg(0)?;
        if !uri.bytes.starts_with(b"@") {
            check_uri(node, uri)?;
        }
        Ok(Self::Exec(uri.clone(), node.args.get(1).cloned()))
    }

    fn compile(self, cx: &mut Resolve<'_>) -> Result<Command, ConfError> {
        let maybe =
            |word: Option<Word>, cx: &mut Resolve<'_>| word.map(|word| cx.template(&word)).transpose();
        Ok(match self {
            Self::Text(text) => Command::Text(text.compile(cx)?),
            Self::Duplicate(count, text) => Command::Duplicate(cx.template(&count)?, cx.template(&text)?),
            Self::Flush => Command::Flush,
            Self::Sleep(span) => Command::Sleep(cx.template(&span)?),
            Self::ResetTimer => Command::ResetTimer,
            Self::ReadBody => Command::ReadBody,
            Self::Subrequest(raw) => Command::Subrequest(SubrequestCommand {
                wait: raw.wait,
                method: maybe(raw.method, cx)?,
                uri: cx.template(&raw.uri)?,
                args: maybe(raw.args, cx)?,
                body: maybe(raw.body, cx)?,
            }),
            Self::ForEach(separator, text) => {
                Command::ForEach { separator: cx.template(&separator)?, text: cx.template(&text)?, end: 0 }
            }
            Self::End => Command::End,
            Self::RequestBody => Command::RequestBody,
            Self::Exec(uri, args) => Command::Exec(cx.template(&uri)?, maybe(args, cx)?),
        })
    }
}

impl RawProgram {
    pub(super) fn add(&mut self, command: RawCommand) -> Result<(), ConfError> {
        self.commands.push(command);
        Ok(())
    }

    pub(super) fn begin_loop(&mut self, node: &Node) -> Result<(), ConfError> {
        if self.open_loop.replace(node.span).is_some() {
            return Err(node.fail("loops cannot be nested"));
        }
        let [separator, text] = node.words()?;
        if separator.bytes.is_empty() {
            return Err(node.error("has an empty separator").at(separator.span));
        }
        self.add(RawCommand::ForEach(separator.clone(), text.clone()))
    }

    pub(super) fn end_loop(&mut self, node: &Node) -> Result<(), ConfError> {
        match self.open_loop.take() {
            Some(_) => self.add(RawCommand::End),
            None => Err(node.fail("no loop to end here")),
        }
    }

    pub(super) fn compile(self, cx: &mut Resolve<'_>) -> Result<Program, ConfError> {
        if let Some(span) = self.open_loop {
            return Err(ConfError::new("a loop without \"echo_end\"").at(span));
        }
        let commands = self.commands.into_iter().map(|command| command.compile(cx));
        let mut commands = commands.collect::<Result<Box<[_]>, _>>()?;
        let mut end_behind = 0;
        for (at, command) in commands.iter_mut().enumerate().rev() {
            match command {
                Command::End => end_behind = at,
                Command::ForEach { end, .. } => *end = end_behind,
                _ => {}
            }
        }
        Ok(Program { commands })
    }
}

impl Program {
    pub(super) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Returns `true` if something has to be waited for before the response begins.
    pub(super) fn must_wait(&self) -> bool {
        self.reads_body() || self.may_leave()
    }

    /// Returns `true` if the body of the request is to be read.
    pub(super) fn reads_body(&self) -> bool {
        self.commands.iter().any(|command| matches!(command, Command::ReadBody))
    }

    /// Returns `true` if another location may answer.
    pub(super) fn may_leave(&self) -> bool {
        self.commands.iter().any(|command| matches!(command, Command::Exec(..)))
    }

    /// Returns `true` if filters must not hold anything back.
    pub(super) fn flushes(&self) -> bool {
        self.commands.iter().any(|command| matches!(command, Command::Flush))
    }
}

/// Refuses an argument without variables that is invalid.
fn check<T>(node: &Node, word: &Word, value: Option<T>) -> Result<(), ConfError> {
    if value.is_some() || word.bytes.contains(&b'$') { Ok(()) } else { Err(node.invalid_value(word)) }
}

fn check_uri(node: &Node, uri: &Word) -> Result<(), ConfError> {
    check(node, uri, uri.bytes.starts_with(b"/").then_some(()))
}

/// Count of `echo_duplicate`: digits with underscores.
pub(super) fn count_of(text: &[u8]) -> Option<u64> {
    let digits: Vec<u8> = text.iter().copied().filter(|byte| *byte != b'_').collect();
    tw_conf::units::number(&digits)
}

/// Time of `echo_sleep`: seconds, with up to three decimals; at most [`SLEEP_MAX`].
pub(super) fn span_of(text: &[u8]) -> Option<Duration> {
    let mut parts = text.splitn(2, |byte| *byte == b'.');
    let whole = parts.next()?;
    let decimals = parts.next().unwrap_or_default();
    if whole.is_empty() && decimals.is_empty() || decimals.len() > 3 {
        return None;
    }
    let number = |digits: &[u8]| if digits.is_empty() { Some(0) } else { tw_conf::units::number(digits) };
    let millis = number(decimals)? * 10u64.pow(3 - decimals.len() as u32);
    Some(Duration::from_secs(number(whole)?).saturating_add(Duration::from_millis(millis)).min(SLEEP_MAX))
}

/// Method of a subrequest.
pub(super) fn method_of(text: &[u8]) -> Option<Method> {
    match Method::of(text) {
        Method::Other | Method::Connect | Method::Trace => None,
        method => Some(method),
    }
}

/// The parts of a text between separators, without empty ones.
pub(super) struct Parts {
    text: Bytes,
    separator: Box<[u8]>,
}

impl Parts {
    pub(super) fn new(text: Vec<u8>, separator: Vec<u8>) -> Self {
        Self { text: text.into(), separator: separator.into() }
    }
}

impl Iterator for Parts {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        while !self.separator.is_empty() && self.text.starts_with(&self.separator) {
            let _ = self.text.split_to(self.separator.len());
        }
        if self.text.is_empty() {
            return None;
        }
        let found_value =
            if self.separator.is_empty() { None } else { memchr::memmem::find(&self.text, &self.separator) };
        let part = self.text.split_to(found_value.unwrap_or(self.text.len()));
        let _ = self.text.split_to(found_value.map_or(0, |_| self.separator.len()));
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_times() {
        for (text, expected) in [
            ("3", Some(3)),
            ("1000_000", Some(1_000_000)),
            ("0", Some(0)),
            ("", None),
            ("_", None),
            ("-1", None),
            ("1000000000000000000", Some(1_000_000_000_000_000_000)),
            ("99999999999999999999999", None),
        ] {
            assert_eq!(count_of(text.as_bytes()), expected, "{text}");
        }
        for (text, expected) in [
            ("2", Some(2000)),
            ("2.5", Some(2500)),
            ("0.001", Some(1)),
            (".05", Some(50)),
            ("1.", Some(1000)),
            ("0", Some(0)),
            ("999999999999", Some(86_400_000)),
            ("1.2345", None),
            (".", None),
            ("", None),
            ("-1", None),
            ("1s", None),
        ] {
            let span = expected.map(Duration::from_millis);
            assert_eq!(span_of(text.as_bytes()), span, "{text}");
        }
    }

    #[test]
    fn texts_are_split() {
        for (text, separator, expected) in [
            ("cat,dog,mouse", ",", "cat|dog|mouse"),
            ("cat-a-dog-a-mouse", "-a-", "cat|dog|mouse"),
            ("a,,b,", ",", "a|b"),
            (",,a", ",", "a"),
            (",", ",", ""),
            ("", ",", ""),
            ("abc", ",", "abc"),
            ("abc", "", "abc"),
        ] {
            let parts = Parts::new(text.into(), separator.into());
            let shown: Vec<_> = parts.map(|part| String::from_utf8_lossy(&part).into_owned()).collect();
            assert_eq!(shown.join("|"), expected, "{text}");
        }
    }
}
