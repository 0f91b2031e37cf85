//! Line in the error log of a response that could not be sent to its end.

use std::io;

use tw_log::Level;

use tw_request::body::AlreadyLogged;
use tw_request::request::Request;
use tw_request::send_error::SendError;

/// Writes the failure into the error log of the location, unless that was done.
pub fn log_send_error(r: &Request, error: &SendError) {
    const WHILE: &str = "while sending response to client";
    match error {
        SendError::Timeout => {
            r.log(Level::Info, format_args!("client timed out (110: Connection timed out) {WHILE}"));
        }
        SendError::TooSlow => {
            r.client().event_loop.tally.slow_responses.add(1);
            r.log(Level::Info, format_args!("client is slower than \"send_min_rate\" {WHILE}"));
        }
        SendError::Gone(e) if e.get_ref().is_some() => r.log(Level::Info, format_args!("{e} {WHILE}")),
        SendError::Gone(e) => {
            let text = tw_base::Errno(e.raw_os_error().unwrap_or_default());
            r.log(Level::Info, format_args!("send() failed ({text}) {WHILE}"));
        }
        SendError::Body(e) if e.get_ref().is_some_and(|error| error.is::<AlreadyLogged>()) => {}
        SendError::Body(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
            r.log(Level::Alert, format_args!("file was truncated {WHILE}"));
        }
        SendError::Body(e) => match e.raw_os_error() {
            Some(errno) => {
                r.log(Level::Crit, format_args!("read() failed ({}) {WHILE}", tw_base::Errno(errno)));
            }
            None => r.log(Level::Error, format_args!("{e} {WHILE}")),
        },
    }
}
