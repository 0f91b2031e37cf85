//! A function with its arguments, as a step of a program.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tw_conf::{ConfError, Word};
use tw_log::{Level, Text};
use tw_module_support::date_format::{self, DateZone};
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::Template;

use super::super::captures::Captures;
use super::base32::Base32;
use super::random::{self, SECURE_RANDOM_MAX};
use super::upstream_list::UpstreamLists;

/// A directive as written.
pub(crate) struct RawCall {
    /// Name of the directive.
    pub(super) directive: Word,
    pub(crate) variable: Word,
    pub(super) function: Function,
    /// Arguments of the function.
    pub(super) args: Vec<Word>,
}

/// Function of a directive.
#[derive(Debug, Clone)]
pub(super) enum Function {
    /// The second argument, if the variable is empty.
    IfEmpty,
    /// Appends a text made of another one.
    Text(fn(&[u8], &mut Vec<u8>)),
    EncodeBase32,
    DecodeBase32,
    /// Appends the code of a text under a key.
    Hmac(fn(&[u8], &[u8], &mut Vec<u8>)),
    HashedUpstream,
    Random,
    /// So many of these letters.
    SecureRandom(&'static [u8]),
    /// The last number of the directive.
    Rotate(Arc<AtomicU64>),
    Today,
    Time(DateZone),
}

/// A function, and the templates of its arguments.
pub(crate) struct Call {
    function: Function,
    args: Box<[Template]>,
    base32: Base32,
    lists: UpstreamLists,
}

/// Failure of a function; its reason was logged.
pub(crate) struct CallFailed;

/// Result of a function.
pub(crate) enum CallResult {
    /// New value of the variable.
    Value(Vec<u8>),
    /// The variable keeps its value.
    Unchanged,
}

impl Call {
    pub(super) fn new(
        function: Function,
        args: Box<[Template]>,
        base32: &Base32,
        lists: &UpstreamLists,
    ) -> Self {
        Self { function, args, base32: base32.clone(), lists: lists.clone() }
    }

    /// Checks the arguments that have no variables. The error is that of the request.
    pub(super) fn check_constants(&self) -> Result<(), String> {
        let constant = |at: usize| self.args.get(at).and_then(|arg| arg.constant());
        match &self.function {
            Function::Random => {
                [constant(0), constant(1)].into_iter().flatten().try_for_each(|one| number(one).map(drop))
            }
            Function::Rotate(_) => {
                [constant(1), constant(2)].into_iter().flatten().try_for_each(|one| number(one).map(drop))
            }
            Function::SecureRandom(_) => constant(0).map_or(Ok(()), |one| length(one).map(drop)),
            Function::HashedUpstream => constant(0).map_or(Ok(()), |one| self.list(one).map(drop)),
            _ => Ok(()),
        }
    }

    /// Runs the function for `r`.
    pub(crate) fn run(&self, captures: Captures, r: &Request) -> Result<CallResult, CallFailed> {
        let arg = |at: usize| {
            let mut text = Vec::new();
            if let Some(template) = self.args.get(at) {
                captures.eval(template, r, &mut text);
            }
            text
        };
        self.result(arg).map_err(|message| {
            r.log(Level::Error, format_args!("{message}"));
            CallFailed
        })
    }

    fn result(&self, arg: impl Fn(usize) -> Vec<u8>) -> Result<CallResult, String> {
        let mut out = Vec::new();
        match &self.function {
            Function::IfEmpty if !arg(0).is_empty() => return Ok(CallResult::Unchanged),
            Function::IfEmpty => out = arg(1),
            Function::Text(function) => function(&arg(0), &mut out),
            Function::EncodeBase32 => self.base32.encode(&arg(0), &mut out),
            Function::DecodeBase32 => self.base32.decode(&arg(0), &mut out),
            Function::Hmac(function) => function(&arg(0), &arg(1), &mut out),
            Function::HashedUpstream => {
                let list = self.list(&arg(0))?;
                let at = hash(&arg(1)) as usize % list.len().max(1);
                out.extend_from_slice(list.get(at).map(|name| &**name).unwrap_or_default());
            }
            Function::Random => {
                out = random::number(number(&arg(0))?, number(&arg(1))?).to_string().into_bytes();
            }
            Function::SecureRandom(letters) => random::push_secure(length(&arg(0))?, letters, &mut out)?,
            Function::Rotate(last) => {
                let value = tw_conf::units::number(&arg(0));
                out =
                    random::rotate(last, value, number(&arg(1))?, number(&arg(2))?).to_string().into_bytes();
            }
            Function::Today => push_time(b"%Y-%m-%d", DateZone::Local, &mut out),
            Function::Time(zone) => push_time(&arg(0), *zone, &mut out),
        }
        Ok(CallResult::Value(out))
    }

    fn list(&self, name: &[u8]) -> Result<&[Box<[u8]>], String> {
        let list = self.lists.iter().find(|list| *list.name == *name);
        let list = list.ok_or_else(|| format!("upstream list \"{}\" is not defined", Text(name)))?;
        Ok(&list.upstreams)
    }
}

fn number(text: &[u8]) -> Result<u64, String> {
    tw_conf::units::number(text).ok_or_else(|| format!("invalid number \"{}\"", Text(text)))
}

/// Number of letters of a random text.
fn length(text: &[u8]) -> Result<usize, String> {
    let length = number(text)?;
    let valid = usize::try_from(length).ok().filter(|length| (1..=SECURE_RANDOM_MAX).contains(length));
    valid.ok_or_else(|| format!("invalid length \"{length}\", it must be between 1 and {SECURE_RANDOM_MAX}"))
}

/// Hash of a key in lower case, as nginx has it for names.
fn hash(key: &[u8]) -> u32 {
    let hash = key
        .iter()
        .fold(0u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(byte.to_ascii_lowercase())));
    hash as u32
}

/// Appends the time; nothing if the text would be too long.
fn push_time(format: &[u8], zone: DateZone, out: &mut Vec<u8>) {
    date_format::push(format, tw_rt::clock::unix().secs, zone, out);
}

impl RawCall {
    /// Warns of a directive that stands at `http` level.
    pub(crate) fn warn_at_http_level(&self, cx: &mut Resolve<'_>) {
        let Self { directive, variable, .. } = self;
        let message =
            format!("\"{directive}\" has no effect at \"http\" level: {variable} exists and stays empty");
        cx.report(
            ConfError::warn(message)
                .at(directive.span)
                .hint("it takes effect in \"server\" and \"location\""),
        );
    }

    /// Compiles it for a block with these settings.
    pub(crate) fn compile(
        self,
        base32: &Base32,
        lists: &UpstreamLists,
        cx: &mut Resolve<'_>,
    ) -> Result<Call, ConfError> {
        let args = self.args.iter().map(|word| cx.template(word)).collect::<Result<Box<_>, _>>()?;
        let call = Call::new(self.function, args, base32, lists);
        call.check_constants().map_err(|message| ConfError::new(message).at(self.variable.span))?;
        Ok(call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_ignore_letter_case() {
        for (key, expected) in [("", 0), ("a", 97), ("A", 97), ("ab", 97 * 31 + 98)] {
            assert_eq!(hash(key.as_bytes()), expected, "{key}");
        }
        assert_eq!(
            hash(b"a long key whose hash has more bits"),
            hash(b"A LONG key whose hash has more bits")
        );
    }

    #[test]
    fn lengths_of_random_texts() {
        for (text, expected) in [("1", Some(1)), ("64", Some(64)), ("0", None), ("65", None), ("-1", None)] {
            assert_eq!(length(text.as_bytes()).ok(), expected, "{text}");
        }
        assert!(length(b"99999999999999999999999").is_err() && number(b"").is_err());
    }
}
