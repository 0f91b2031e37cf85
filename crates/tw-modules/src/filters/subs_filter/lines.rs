//! The lines of a body, and the rules for them.
//!
//! A line ends with its line break, or where it is as long as a line may be. Lines without a match are not copied. The
//! result of one rule is the text of the next one: what is longer than a line may be goes on to the next rule in parts, so a
//! body takes no more memory than one line for each rule.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tw_core::session::Session;
use tw_module_support::changed_body::{Change, End};
use tw_request::request::Request;

use super::rule::{Applied, ApplyLimits, Rule, TURN_WORK};

/// Rules in use for one body.
pub(super) struct Lines<S = Request> {
    rules: Arc<[Rule<S>]>,
    applied: Vec<Applied>,
    line_max: usize,
    /// Beginning of a line whose end has not come.
    begun: Vec<u8>,
    /// Texts that rules are to change; the last one goes first.
    texts: Vec<Text>,
}

/// A text, and the rule that changes it.
struct Text {
    rule: usize,
    bytes: Vec<u8>,
    /// Bytes of it that are done.
    at: usize,
    out: Vec<u8>,
}

impl<S: Session> Lines<S> {
    /// Rules for the body of `s`; a line has at most `line_max` bytes, which is not 0.
    pub(super) fn new(rules: Arc<[Rule<S>]>, line_max: usize, s: &S) -> Self {
        let applied = rules.iter().map(|rule| rule.begin(s)).collect();
        Self { rules, applied, line_max, begun: Vec::new(), texts: Vec::new() }
    }

    fn piece(&mut self, rest: &mut Bytes, end: End, want: usize, s: &S) -> io::Result<Option<Bytes>> {
        let mut work = TURN_WORK;
        loop {
            if !self.texts.is_empty() {
                let out = self.run(want, &mut work, s)?;
                if !out.is_empty() || work == 0 {
                    return Ok(Some(out.into()));
                }
            }
            if self.begun.is_empty() {
                let unchanged = self.unchanged(rest, &mut work);
                if unchanged > 0 {
                    return Ok(Some(rest.split_to(unchanged)));
                }
            }
            let Some(line) = self.take_line(rest, end) else { return Ok(None) };
            self.texts.push(Text::new(0, line));
        }
    }

    /// Bytes at the beginning of `rest` that no rule changes: whole lines, or everything when all rules are over.
    fn unchanged(&self, rest: &[u8], work: &mut usize) -> usize {
        if self.applied.iter().all(Applied::is_over) {
            return rest.len();
        }
        let mut at = 0;
        while *work > 0
            && let Some(len) = line_len(&rest[at..], self.line_max)
        {
            let line = &rest[at..at + len];
            *work = work.saturating_sub(self.applied.iter().map(|rule| rule.cost(len)).sum());
            if !self.applied.iter().all(|rule| rule.misses(line)) {
                break;
            }
            at += len;
        }
        at
    }

    /// The next line, with what came before `rest`; `None` if its end has not come.
    fn take_line(&mut self, rest: &mut Bytes, end: End) -> Option<Vec<u8>> {
        let room = self.line_max - self.begun.len();
        let len = line_len(rest, room);
        self.begun.extend_from_slice(&rest.split_to(len.unwrap_or(rest.len())));
        let is_whole = len.is_some() || end == End::Reached;
        (is_whole && !self.begun.is_empty()).then(|| std::mem::take(&mut self.begun))
    }

    /// Changes texts until there are about `want` bytes of the result, or `work` is used up.
    fn run(&mut self, want: usize, work: &mut usize, s: &S) -> io::Result<Vec<u8>> {
        let mut result = Vec::new();
        while *work > 0
            && result.len() < want
            && let Some(text) = self.texts.last_mut()
        {
            let (Some(rule), Some(applied)) = (self.rules.get(text.rule), self.applied.get_mut(text.rule))
            else {
                result.append(&mut text.bytes);
                self.texts.pop();
                continue;
            };
            let next = text.rule + 1;
            if applied.is_over() && text.at == 0 {
                text.rule = next;
                continue;
            }
            let room = if next == self.rules.len() { want } else { self.line_max };
            let Text { bytes, at, out, .. } = text;
            *at = applied
                .apply(rule, bytes, *at, out, ApplyLimits { room, work: &mut *work }, s)
                .map_err(|_| io::Error::other("\"subs_filter\" exceeded the limit of backtracking"))?;
            let is_done = *at >= bytes.len();
            if is_done || out.len() >= room {
                let out = std::mem::take(out);
                if is_done {
                    self.texts.pop();
                }
                self.texts.push(Text::new(next, out));
            }
        }
        Ok(result)
    }
}

impl Text {
    fn new(rule: usize, bytes: Vec<u8>) -> Self {
        Self { rule, bytes, at: 0, out: Vec::new() }
    }
}

/// Length of the line at the beginning of `text`, of which no more than `room` bytes belong together; `None` if its end
/// has not come.
fn line_len(text: &[u8], room: usize) -> Option<usize> {
    let within = &text[..room.min(text.len())];
    match memchr::memchr(b'\n', within) {
        Some(at) => Some(at + 1),
        None if within.len() == room => Some(room),
        None => None,
    }
}

impl Change for Lines {
    fn change(&mut self, rest: &mut Bytes, end: End, want: usize, r: &Request) -> io::Result<Option<Bytes>> {
        self.piece(rest, end, want, r)
    }
}

#[cfg(test)]
mod tests;
