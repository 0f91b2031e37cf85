//! `server_name`: names of the servers of one listening address, and the choice among them (nginx: ngx_http_core_module,
//! ngx_stream_core_module). Every protocol with virtual servers has it.

use std::sync::Arc;

use tw_conf::{ConfError, Diagnostics, Sources, Span, Word};
use tw_net::Addr;

use crate::host_names::{DuplicateHostName, HostName, HostNames, InvalidHostName, Wildcards};
use crate::load::Resolve;
use crate::module::Protocol;
use crate::regex::{BacktrackLimit, Captures, Caseless, Match, Regex};

/// Index of a server in the configuration of its protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ServerId(pub u32);

/// Servers of one listening address by name. `I` names a server.
pub struct ServerNames<I> {
    hosts: HostNames<I>,
    regexes: Vec<(Arc<Regex>, I)>,
}

/// A `server_name` argument.
#[derive(Debug, Clone)]
pub enum ServerName {
    /// A name, perhaps with a wildcard.
    Host(HostName),
    /// `~pattern`.
    Regex(Arc<Regex>),
}

/// Names of one server as written.
#[derive(Debug, Clone, Copy)]
pub struct WrittenNames<'a> {
    /// The names.
    pub names: &'a [ServerName],
    /// Their places in the configuration; fewer if one is not written.
    pub spans: &'a [Span],
    /// Place of the server.
    pub server: Option<Span>,
}

impl ServerName {
    /// Reads an argument of `server_name`.
    ///
    /// # Errors
    /// nginx's, for a name that is none.
    pub fn resolve<P: Protocol>(word: &Word, cx: &mut Resolve<'_, P>) -> Result<Self, ConfError> {
        let below_nothing = word.bytes.starts_with(b"*") && !matches!(&*word.bytes, [_, b'.', _, ..]);
        if below_nothing || word.is(".") {
            return Err(ConfError::new(format!("server name \"{word}\" is invalid")).at(word.span));
        }
        if word.bytes.contains(&b'/') {
            cx.warn(word.span, format!("server name \"{word}\" has suspicious symbols"));
        }
        if let Some(pattern) = word.bytes.strip_prefix(b"~") {
            if pattern.is_empty() {
                return Err(ConfError::new(format!("empty regex in server name \"{word}\"")).at(word.span));
            }
            // A pattern of lower-case letters only is matched as written; host names arrive in lower case anyway.
            let regex = cx.regex(pattern, Caseless::Yes).map_err(|e| {
                ConfError::new(format!("regex compilation failed: {e} in \"{word}\"")).at(word.span)
            })?;
            for (_, name) in regex.names() {
                cx.vars.capture(name, word.span)?;
            }
            return Ok(Self::Regex(regex));
        }
        let name = if word.bytes.eq_ignore_ascii_case(b"$hostname") { cx.hostname } else { &*word.bytes };
        HostName::parse(name, Wildcards::Allowed).map(Self::Host).map_err(|InvalidHostName| {
            ConfError::new(format!("invalid server name or wildcard \"{word}\"")).at(word.span)
        })
    }

    /// Reads all arguments. A server without a name has the empty one, for clients that name none.
    ///
    /// # Errors
    /// The errors of [`resolve`](Self::resolve).
    pub fn resolve_all<P: Protocol>(words: &[Word], cx: &mut Resolve<'_, P>) -> Result<Vec<Self>, ConfError> {
        let mut names = words.iter().map(|word| Self::resolve(word, cx)).collect::<Result<Vec<_>, _>>()?;
        if names.is_empty() {
            names.push(Self::Host(HostName::Exact(Box::default())));
        }
        Ok(names)
    }

    /// Returns true if `host` (lower case, without port) is one of this name.
    pub fn matches(&self, host: &[u8]) -> bool {
        match self {
            Self::Host(name) => name.matches(host),
            Self::Regex(regex) => regex.is_match(host) == Ok(Match::Yes),
        }
    }

    /// The name as it was written, in lower case; the pattern of a regular expression.
    pub fn as_written(&self) -> Vec<u8> {
        match self {
            Self::Host(name) => name.to_bytes(),
            Self::Regex(regex) => regex.pattern().as_bytes().to_vec(),
        }
    }
}

impl<I> Default for ServerNames<I> {
    fn default() -> Self {
        Self { hosts: HostNames::default(), regexes: Vec::new() }
    }
}

impl<I: Copy> ServerNames<I> {
    /// Adds a name of a server.
    ///
    /// # Errors
    /// [`DuplicateHostName`]: another server has it; regular expressions do not conflict.
    pub fn add(&mut self, name: &ServerName, server: I) -> Result<(), DuplicateHostName> {
        match name {
            ServerName::Host(name) => self.hosts.add(name.clone(), server),
            ServerName::Regex(regex) => {
                self.regexes.push((regex.clone(), server));
                Ok(())
            }
        }
    }

    /// Adds all names of a server, the last of `members`. A name that another server of `address` has is ignored with a warning.
    pub fn add_server<'a>(
        &mut self,
        id: I,
        members: &[I],
        names_of: impl Fn(I) -> WrittenNames<'a>,
        address: &Addr,
        sources: &Sources,
        diagnostics: &mut Diagnostics,
    ) {
        let own = names_of(id);
        for (at, name) in own.names.iter().enumerate() {
            if self.add(name, id) == Err(DuplicateHostName) {
                let text = name.as_written();
                let first = members.iter().map(|id| names_of(*id)).find_map(|other| {
                    let at = other.names.iter().position(|name| name.as_written() == text)?;
                    other.place(at)
                });
                let text = String::from_utf8_lossy(&text);
                let error =
                    ConfError::warn(format!("conflicting server name \"{text}\" on {address}, ignored"));
                let error = match own.place(at) {
                    Some(span) => error.at(span),
                    None => error,
                };
                diagnostics.push(match first.or(own.place(at)) {
                    Some(span) => error.hint(format!("the name was given before{}", sources.tail(span))),
                    None => error,
                });
            }
        }
    }

    /// The server for `host` (lower case, without port): by name, then the first regex. A matching regex sets `captures`.
    ///
    /// # Errors
    /// [`BacktrackLimit`]: a regular expression takes too long.
    pub fn find(
        &self,
        host: &[u8],
        captures: &mut Captures,
    ) -> Result<Option<(I, Option<&Regex>)>, BacktrackLimit> {
        if let Some(server) = self.hosts.find(host) {
            return Ok(Some((server, None)));
        }
        for (regex, server) in &self.regexes {
            if !host.is_empty() && regex.captures_of_match(host, captures)? == Match::Yes {
                return Ok(Some((*server, Some(regex))));
            }
        }
        Ok(None)
    }
}

impl WrittenNames<'_> {
    fn place(&self, at: usize) -> Option<Span> {
        self.spans.get(at).copied().or(self.server)
    }
}

/// The first `server_name` as `$server_name` shows it.
pub fn display_name<P: Protocol>(words: &[Word], cx: &Resolve<'_, P>) -> Box<[u8]> {
    match words.first().map(|word| &*word.bytes) {
        None => Box::default(),
        Some(b"$hostname") => cx.hostname.into(),
        Some([b'.', rest @ ..]) => rest.into(),
        Some(bytes) => bytes.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_before_regexes() {
        let host =
            |name: &str| ServerName::Host(HostName::parse(name.as_bytes(), Wildcards::Allowed).unwrap());
        let regex =
            |pattern: &str| ServerName::Regex(Regex::new(pattern.as_bytes(), Caseless::Yes).unwrap().into());
        let mut names = ServerNames::default();
        let list = [host(".example.org"), regex(r"^www(\d+)\."), regex("^www"), regex("^$")];
        for (at, name) in list.iter().enumerate() {
            assert_eq!(names.add(name, at), Ok(()));
        }
        assert_eq!(names.add(&host("*.example.org"), 9), Err(DuplicateHostName));
        assert_eq!(names.add(&regex("^www"), 9), Ok(()));
        for (name, expected, group) in [
            ("example.org", Some(0), None),
            ("www12.example.org", Some(0), None),
            ("www12.example.com", Some(1), Some(&b"12"[..])),
            ("www.example.com", Some(2), None),
            ("other", None, None),
            ("", None, None),
        ] {
            let mut captures = Captures::default();
            let entry = names.find(name.as_bytes(), &mut captures).unwrap();
            assert_eq!(entry.map(|(server, _)| server), expected, "{name}");
            assert_eq!(captures.group(1), group, "{name}");
        }
    }
}
