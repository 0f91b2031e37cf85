//! Failures of upstream servers: the log line, and the status for the client.

use std::fmt;
use std::io;
use std::rc::Rc;

use rustls::InvalidMessage;
use tw_base::Errno;
use tw_core::event_loop::ConnectionsExhausted;
use tw_log::Level;
use tw_net::tls::HandshakeError;
use tw_tls::UpstreamError;

/// Cause of a failed attempt.
#[derive(Debug)]
pub enum UpstreamFailure {
    /// There is no connection.
    Connect(io::Error),
    /// None may be opened: all `worker_connections` are in use.
    ConnectionLimit(ConnectionsExhausted),
    /// There is none in time.
    ConnectTimeout,
    /// There is a connection, and TLS came to nothing.
    Handshake(Box<HandshakeError>),
    /// The certificate that is to be shown cannot be read; the text says why.
    Identity(Box<str>),
    /// The request could not be sent.
    Send(io::Error),
    /// The server does not take the request.
    SendTimeout,
    /// The response could not be read.
    Receive(io::Error),
    /// No response in time.
    ReceiveTimeout,
    /// The server closed the connection before the response was complete.
    Closed,
    /// Invalid response; the text says why.
    Invalid(Box<str>),
    /// The body of the request cannot be sent to its end, while the response comes: that is said where the body is given back.
    Unsent,
    /// Request refused unprocessed by the server; the text names the reason.
    Refused(Box<str>),
    /// The server does not choose HTTP/2 in the handshake of TLS.
    Alpn,
    /// Request that the protocol of the server cannot express; the text names the reason.
    Unsayable(Box<str>),
    /// Failure of a connection that several requests were waiting for.
    Shared(Rc<UpstreamFailure>),
    /// Response with a status that `proxy_next_upstream` names.
    Status(u16),
    /// The request may not be sent to this server (`proxy_allow_upstream`).
    Denied,
    /// No server is available.
    NoPeer,
    /// No server is available, and the queue is full.
    QueueFull,
    /// No server became available within the longest time in the queue.
    QueueTimeout,
    /// The name of the server is not known; the text says why.
    NoName(Box<str>),
}

/// Failure of an attempt at one server. Displayed as its line in the error log.
#[derive(Debug)]
pub struct AttemptFailure {
    /// Cause of the failure.
    pub cause: UpstreamFailure,
    /// Stage that the attempt had reached.
    pub stage: AttemptStage,
}

impl fmt::Display for AttemptFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Line { failure: &self.cause, stage: self.stage }.fmt(f)
    }
}

/// Stage of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptStage {
    /// Opening the connection.
    Connecting,
    /// TLS handshake.
    Handshaking,
    /// Sending the request.
    Sending,
    /// Waiting for the response head.
    ReadingHead,
    /// Waiting for the response body.
    ReadingBody,
}

/// End of a line of the error log.
impl fmt::Display for AttemptStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connecting => "while connecting to upstream",
            Self::Handshaking => "while SSL handshaking to upstream",
            Self::Sending => "while sending request to upstream",
            Self::ReadingHead => "while reading response header from upstream",
            Self::ReadingBody => "while reading upstream",
        })
    }
}

impl UpstreamFailure {
    /// Adds the stage at which it occurred.
    pub fn at(self, stage: AttemptStage) -> AttemptFailure {
        AttemptFailure { cause: self, stage }
    }

    /// Returns true if it is no fault of the server.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Shared(failure) => failure.is_local(),
            failure => matches!(failure, Self::Unsayable(_) | Self::Unsent | Self::ConnectionLimit(_)),
        }
    }

    /// The status that the client gets if no other server is asked.
    pub fn status(&self) -> u16 {
        match self {
            Self::ConnectTimeout | Self::SendTimeout | Self::ReceiveTimeout => 504,
            Self::Denied => 403,
            Self::Identity(_) | Self::ConnectionLimit(_) => 500,
            Self::Unsayable(_) | Self::Unsent => 400,
            Self::Status(status) => *status,
            Self::Shared(failure) => failure.status(),
            _ => 502,
        }
    }

    /// Log level; `None` if the failure is not logged.
    pub fn level(&self) -> Option<Level> {
        match self {
            Self::Status(_) | Self::Unsent => None,
            Self::Shared(failure) => failure.level(),
            Self::ConnectionLimit(_) => Some(Level::Alert),
            Self::Connect(error) if error.raw_os_error().is_some_and(is_crit) => Some(Level::Crit),
            _ => Some(Level::Error),
        }
    }

    /// Short description of the failure: `connection refused`. `None` if the server has responded.
    pub fn cause(&self) -> Option<impl fmt::Display + '_> {
        (!matches!(self, Self::Status(_))).then_some(Cause(self))
    }

    /// Line of the error log, without its context.
    pub fn line(&self, stage: AttemptStage) -> impl fmt::Display + '_ {
        Line { failure: self, stage }
    }
}

/// Returns true for errors that nginx logs as `crit`, because they are not the server's but this machine's.
fn is_crit(errno: i32) -> bool {
    use rustix::io::Errno as E;
    let known_values = [
        E::CONNREFUSED,
        E::NETDOWN,
        E::NETUNREACH,
        E::HOSTDOWN,
        E::HOSTUNREACH,
        E::CONNRESET,
        E::CONNABORTED,
        E::TIMEDOUT,
    ];
    !known_values.iter().any(|candidate| candidate.raw_os_error() == errno)
}

/// Reason of a handshake to which a server has answered in another protocol, with a question to the operator.
const NOT_TLS: &str = "the answer is not TLS; does the server speak TLS on this port?";

/// Returns true if the first bytes from a server are no TLS record, as those of a server of plain HTTP.
fn is_not_tls(error: &rustls::Error) -> bool {
    matches!(error, rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType))
}

struct Cause<'a>(&'a UpstreamFailure);

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |error: &io::Error| Errno::from(error).words();
        match self.0 {
            UpstreamFailure::Receive(error) if let Some(inner) = error.get_ref() => {
                write!(f, "TLS failed: {inner}")
            }
            UpstreamFailure::Handshake(failure) => match &**failure {
                HandshakeError::Closed => f.write_str("connection closed in the handshake of TLS"),
                HandshakeError::Io(error) => write!(f, "{} in the handshake of TLS", words(error)),
                HandshakeError::Tls(error) if is_not_tls(error) => {
                    write!(f, "no handshake of TLS: {NOT_TLS}")
                }
                HandshakeError::Tls(error) => match UpstreamError::of(error) {
                    Some(error) => write!(f, "{error}"),
                    None => write!(f, "no handshake of TLS: {error}"),
                },
            },
            UpstreamFailure::Connect(error) | UpstreamFailure::Receive(error) => {
                write!(f, "{}", words(error))
            }
            UpstreamFailure::Send(error) => write!(f, "request not taken: {}", words(error)),
            UpstreamFailure::ConnectionLimit(exhausted) => write!(f, "{exhausted}"),
            UpstreamFailure::ConnectTimeout => f.write_str("no connection in time"),
            UpstreamFailure::SendTimeout => f.write_str("request not taken in time"),
            UpstreamFailure::ReceiveTimeout => f.write_str("no answer in time"),
            UpstreamFailure::Unsent => f.write_str("the body of the request broke off"),
            UpstreamFailure::Closed => f.write_str("connection closed before the answer was complete"),
            UpstreamFailure::Invalid(what)
            | UpstreamFailure::Identity(what)
            | UpstreamFailure::Refused(what)
            | UpstreamFailure::Unsayable(what) => f.write_str(what),
            UpstreamFailure::Alpn => f.write_str("HTTP/2 was not chosen in the handshake of TLS"),
            UpstreamFailure::Shared(failure) => write!(f, "{}", Cause(failure)),
            UpstreamFailure::Status(status) => write!(f, "status {status}"),
            UpstreamFailure::Denied => f.write_str("the request may not be passed to this server"),
            UpstreamFailure::NoPeer => {
                f.write_str("no server may be asked, because all are down or have failed lately")
            }
            UpstreamFailure::QueueFull => f.write_str("no server is free, and as many requests wait as may"),
            UpstreamFailure::QueueTimeout => {
                f.write_str("no server was free for as long as the request may wait")
            }
            UpstreamFailure::NoName(why) => f.write_str(why),
        }
    }
}

struct Line<'a> {
    failure: &'a UpstreamFailure,
    stage: AttemptStage,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errno = |error: &io::Error| Errno(error.raw_os_error().unwrap_or_default());
        match self.failure {
            UpstreamFailure::Connect(error) => write!(f, "connect() failed ({})", errno(error))?,
            UpstreamFailure::Handshake(failure) => write_handshake(f, failure)?,
            UpstreamFailure::Receive(error) if let Some(inner) = error.get_ref() => {
                write!(f, "SSL_read() failed (SSL: {inner})")?;
            }
            UpstreamFailure::Send(error) => write!(f, "send() failed ({})", errno(error))?,
            UpstreamFailure::Receive(error) => write!(f, "recv() failed ({})", errno(error))?,
            UpstreamFailure::ConnectionLimit(exhausted) => write!(f, "{exhausted}")?,
            UpstreamFailure::ConnectTimeout
            | UpstreamFailure::SendTimeout
            | UpstreamFailure::ReceiveTimeout => {
                f.write_str("upstream timed out (110: Connection timed out)")?;
            }
            UpstreamFailure::Unsent => f.write_str("request body broke off")?,
            UpstreamFailure::Closed => f.write_str("upstream prematurely closed connection")?,
            UpstreamFailure::Invalid(what)
            | UpstreamFailure::Identity(what)
            | UpstreamFailure::Refused(what)
            | UpstreamFailure::Unsayable(what) => f.write_str(what)?,
            UpstreamFailure::Alpn => f.write_str("upstream did not select \"h2\" by ALPN")?,
            UpstreamFailure::Shared(failure) => return Line { failure, stage: self.stage }.fmt(f),
            UpstreamFailure::Status(status) => write!(f, "upstream answered {status}")?,
            UpstreamFailure::Denied => f.write_str("access to upstream denied")?,
            UpstreamFailure::NoPeer => f.write_str("no live upstreams")?,
            UpstreamFailure::QueueFull => f.write_str("upstream queue is full")?,
            UpstreamFailure::QueueTimeout => f.write_str("upstream queue timed out")?,
            UpstreamFailure::NoName(why) => return f.write_str(why),
        }
        write!(f, " {}", self.stage)
    }
}

fn write_handshake(f: &mut fmt::Formatter<'_>, failure: &HandshakeError) -> fmt::Result {
    match failure {
        HandshakeError::Closed => f.write_str("peer closed connection in SSL handshake"),
        HandshakeError::Io(error) => match error.raw_os_error() {
            Some(errno) => write!(f, "peer closed connection in SSL handshake ({})", Errno(errno)),
            None => write!(f, "SSL_do_handshake() failed ({error})"),
        },
        HandshakeError::Tls(error) if is_not_tls(error) => {
            write!(f, "SSL_do_handshake() failed (SSL: {NOT_TLS})")
        }
        HandshakeError::Tls(error) => match UpstreamError::of(error) {
            Some(error) => write!(f, "upstream SSL {error}"),
            None => write!(f, "SSL_do_handshake() failed (SSL: {error})"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_a_status_a_level_and_a_line() {
        let refused = || UpstreamFailure::Connect(rustix::io::Errno::CONNREFUSED.into());
        let too_many = || UpstreamFailure::Connect(rustix::io::Errno::MFILE.into());
        for (failure, status, level, is_local, line) in [
            (refused(), 502, Some(Level::Error), false, "connect() failed (111: Connection refused)"),
            (too_many(), 502, Some(Level::Crit), false, "connect() failed (24: Too many open files)"),
            (UpstreamFailure::ReceiveTimeout, 504, Some(Level::Error), false, "upstream timed out (110: "),
            (UpstreamFailure::Denied, 403, Some(Level::Error), false, "access to upstream denied"),
            (UpstreamFailure::Unsent, 400, None, true, "request body broke off"),
            (UpstreamFailure::Status(503), 503, None, false, "upstream answered 503"),
            (UpstreamFailure::QueueFull, 502, Some(Level::Error), false, "upstream queue is full"),
        ] {
            let shared = UpstreamFailure::Shared(Rc::new(failure));
            let UpstreamFailure::Shared(failure) = &shared else { unreachable!("made above") };
            for failure in [&**failure, &shared] {
                assert_eq!(failure.status(), status, "{line}");
                assert_eq!(failure.level(), level, "{line}");
                assert_eq!(failure.is_local(), is_local, "{line}");
                let text = failure.line(AttemptStage::Connecting).to_string();
                assert!(text.starts_with(line) && text.ends_with(" while connecting to upstream"), "{text}");
            }
        }
    }
}
