//! `pass` of `stream`: hands the accepted connection to another listening address of the configuration, without another connection
//! (nginx: ngx_stream_pass_module). Content phase. The engine is [`tw_stream::pass`].

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tw_conf::{Args, ConfError, Directive, STREAM_SERVER, Setting, Word, record};
use tw_core::load::Resolve;
use tw_core::module::Settings;
use tw_core::session::Session;
use tw_core::vars::Template;
use tw_log::{Level, Text};
use tw_net::{Addr, parse_listen};
use tw_stream::Stream;
use tw_stream::pass;
use tw_stream::plan::{ContentHandler, LocalFuture, Plan};
use tw_stream::session::{SessionStatus, StreamSession};

/// `pass` as written.
#[derive(Default)]
pub(crate) struct Raw {
    address: Setting<PassArgument>,
}

/// Argument of `pass`.
enum PassArgument {
    Address(Addr),
    WithVariables(Word),
}

/// `pass` of a server; not inherited.
pub(crate) struct StreamPass {
    target: Option<Target>,
}

/// Listening address that takes the connections.
enum Target {
    Fixed(Addr),
    Variable(Template<StreamSession>),
}

impl Settings<Stream> for StreamPass {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[record::new("pass", "address", STREAM_SERVER, Args::exact(1))
        .since("1.25.5")
        .doc("Hands accepted connections to the server that listens on this address, in `stream` or `http`; variables are allowed.")
        .set(|raw, node, _| {
            let word = node.arg(0)?;
            let pass_argument = if word.bytes.contains(&b'$') { PassArgument::WithVariables(word.clone()) } else { PassArgument::Address(address(&word.bytes).map_err(|error| node.error(&format!("has {error}")))?) };
            raw.address.set_once(node, pass_argument)
        })];

    fn resolve(raw: Raw, _: Option<&Self>, cx: &mut Resolve<'_, Stream>) -> Result<Self, ConfError> {
        let target = match raw.address.take() {
            None => None,
            Some(PassArgument::Address(address)) => Some(Target::Fixed(address)),
            Some(PassArgument::WithVariables(word)) => Some(Target::Variable(cx.template(&word)?)),
        };
        Ok(Self { target })
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.target.is_some() {
            plan.set_content(self.clone());
        }
    }
}

/// Reads an address with a port, or a path. Names are not resolved.
fn address(text: &[u8]) -> Result<Addr, &'static str> {
    const NO_ADDRESSES: &str = "no addresses";
    let text = std::str::from_utf8(text).map_err(|_| NO_ADDRESSES)?;
    if text.get(..5).is_some_and(|unix| unix.eq_ignore_ascii_case("unix:")) {
        let paths = parse_listen(text, 0).map_err(|_| NO_ADDRESSES)?;
        return paths.into_iter().next().ok_or(NO_ADDRESSES);
    }
    let host = text.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(text);
    match (text.parse::<SocketAddr>(), host.parse::<IpAddr>()) {
        (Ok(address), _) if address.port() > 0 => Ok(Addr::Inet(address)),
        (Ok(_), _) | (_, Ok(_)) => Err("no port"),
        _ => Err(NO_ADDRESSES),
    }
}

impl StreamPass {
    /// Listening address that takes the connection of `s`. The error is for the log.
    fn target(&self, s: &StreamSession) -> Result<Addr, String> {
        match &self.target {
            Some(Target::Fixed(target)) => Ok(target.clone()),
            Some(Target::Variable(target)) => {
                let text = target.value(s);
                address(&text).map_err(|error| format!("{error} in pass \"{}\"", Text(&text)))
            }
            None => Err("no address".to_owned()),
        }
    }
}

impl ContentHandler for StreamPass {
    fn explain(&self) -> Vec<(&'static str, String)> {
        match &self.target {
            Some(Target::Fixed(target)) => vec![("pass", target.to_string())],
            _ => vec![("pass", "depends on the session: \"pass\" has variables".to_owned())],
        }
    }

    fn explain_session(&self, s: &StreamSession) -> Vec<(&'static str, String)> {
        vec![("pass", self.target(s).map_or_else(|error| format!("none: {error}"), |to| to.to_string()))]
    }

    fn serve<'a>(&'a self, s: &'a mut StreamSession) -> LocalFuture<'a, SessionStatus> {
        Box::pin(async move {
            match self.target(s) {
                Ok(target) => pass::pass(s, &target).await,
                Err(error) => {
                    s.log(Level::Error, format_args!("{error}"));
                    SessionStatus::INTERNAL_SERVER_ERROR
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_not_resolved() {
        for (text, expected) in [
            ("127.0.0.1:80", Ok("127.0.0.1:80")),
            ("[::1]:80", Ok("[::1]:80")),
            ("unix:/a", Ok("unix:/a")),
            ("127.0.0.1", Err("no port")),
            ("127.0.0.1:0", Err("no port")),
            ("[::1]", Err("no port")),
            ("localhost:80", Err("no addresses")),
            ("unix:", Err("no addresses")),
            ("80", Err("no addresses")),
            ("", Err("no addresses")),
        ] {
            assert_eq!(
                address(text.as_bytes()).map(|address| address.to_string()),
                expected.map(str::to_owned),
                "{text}"
            );
        }
    }
}
