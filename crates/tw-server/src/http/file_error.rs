//! Why a response was not sent to its end, and what the error log says of it.

use std::io;

use tw_log::Level;

use super::body::AlreadyLogged;
use super::request::Request;
use super::wire::Gone;

/// Why a response was not sent to its end.
pub(crate) enum FileError {
    /// The client was too slow.
    Timeout,
    /// The client is gone.
    Gone(io::Error),
    /// The body could not be read.
    Body(io::Error),
}

impl From<Gone> for FileError {
    fn from(gone: Gone) -> Self {
        Self::Gone(gone.into())
    }
}

impl FileError {
    /// Writes it into the error log of the location, unless that was done.
    pub(crate) fn tell(&self, r: &Request) {
        const WHILE: &str = "while sending response to client";
        match self {
            Self::Timeout => {
                r.log(Level::Info, format_args!("client timed out (110: Connection timed out) {WHILE}"));
            }
            Self::Gone(e) if e.get_ref().is_some() => r.log(Level::Info, format_args!("{e} {WHILE}")),
            Self::Gone(e) => {
                let text = tw_base::Errno(e.raw_os_error().unwrap_or_default());
                r.log(Level::Info, format_args!("send() failed ({text}) {WHILE}"));
            }
            Self::Body(e) if e.get_ref().is_some_and(|error| error.is::<AlreadyLogged>()) => {}
            Self::Body(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                r.log(Level::Alert, format_args!("file was truncated {WHILE}"));
            }
            Self::Body(e) => match e.raw_os_error() {
                Some(errno) => {
                    r.log(Level::Crit, format_args!("read() failed ({}) {WHILE}", tw_base::Errno(errno)));
                }
                None => r.log(Level::Error, format_args!("{e} {WHILE}")),
            },
        }
    }
}
