//! The relay of a session whose client is logged in.

use std::time::Duration;

use tw_base::Errno;
use tw_connect::observed_relay::ObservedEnd;
use tw_connect::relay::{RelayEnding, RelayFailure, RelayLimits, RelaySide, Relayed, relay};
use tw_core::session::Session;
use tw_log::Level;

use super::connect::LoggedIn;
use crate::session::MailSession;

/// Smallest number of bytes that are read at once.
const READ_MIN: usize = 1024;

/// Relays the bytes of `s` until one side has closed.
pub(crate) async fn relay_session(s: &mut MailSession, logged_in: Box<LoggedIn>) {
    let LoggedIn { transport, permit, reply, rest } = *logged_in;
    let Some(downstream) = s.take_transport() else { return };
    let settings = s.server().proxy.clone();
    let limits = RelayLimits {
        idle: settings.timeout,
        // One direction may wait as long as the other one makes progress.
        client: Duration::MAX,
        server: Duration::MAX,
        size: settings.buffer_size.max(READ_MIN),
        client_rate: None,
        server_rate: None,
        ending: RelayEnding::Either,
    };
    drop(settings);
    let event_loop = s.event_loop().clone();
    let meter = s.meter.clone();
    let client = ObservedEnd::new(RelaySide::Client, &downstream, &meter);
    let relayed = relay(&event_loop, (client, rest), (&transport, reply), limits).await;
    s.received += relayed.from_client;
    s.sent += relayed.to_client;
    drop(permit);
    s.action.set("");
    log_end(s, &relayed);
}

/// Logs the end of a session.
fn log_end(s: &MailSession, relayed: &Relayed) {
    match &relayed.result {
        Ok(_) => s.log(Level::Info, format_args!("proxied session done")),
        Err(RelayFailure::Timeout) => {
            s.log(Level::Info, format_args!("client timed out (110: Connection timed out) while proxying"));
        }
        Err(RelayFailure::Read(side, error)) => log_broken(s, "recv", *side, error, "reading from"),
        Err(RelayFailure::Write(side, error)) => log_broken(s, "send", *side, error, "sending to"),
    }
}

fn log_broken(s: &MailSession, call: &str, side: RelaySide, error: &std::io::Error, what: &str) {
    let errno = Errno(error.raw_os_error().unwrap_or_default());
    let (level, peer) = match side {
        RelaySide::Client => (Level::Info, "client"),
        RelaySide::Server => (Level::Error, "upstream"),
    };
    s.log(level, format_args!("{call}() failed ({errno}) while proxying and {what} {peer}"));
}
