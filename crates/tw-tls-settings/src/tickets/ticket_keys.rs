//! Keys of the session tickets of a server (`ssl_session_ticket_key`): random ones, those of files, or those of a fleet.

use std::sync::Arc;

use tw_conf::{ConfError, Word};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_tls::Tickets;

use super::fleet_secrets::{clock, fleet_secrets, names_fleet};
use super::ticket_keys_handover;
use crate::certificates::certificate_file::contents;
use crate::directives::inheritance::Directives;

/// Keys of session tickets: random ones that live over reloads, or those of files.
pub(crate) fn resolve<P: Protocol>(
    directives: &Directives,
    cx: &mut Resolve<'_, P>,
) -> Result<Arc<Tickets>, ConfError> {
    let lifetime = directives.session_lifetime();
    // DIFF(nginx): keys that the nodes of a fleet share.
    if let Some(word) = directives.ticket_keys.iter().find(|word| names_fleet(word)) {
        if directives.ticket_keys.len() > 1 {
            let error =
                ConfError::new("\"ssl_session_ticket_key fleet=\" is the only ticket key of a server");
            return Err(error.at(word.span));
        }
        return shared_tickets(word, lifetime, cx);
    }
    if let [first, ..] = &directives.ticket_keys[..] {
        let read = |word| contents(word, "session ticket key", cx);
        let files = directives.ticket_keys.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let files: Vec<&[u8]> = files.iter().map(|file| &file[..]).collect();
        let tickets = Tickets::of_files(&files, lifetime, clock());
        return tickets.map(Arc::new).map_err(|error| ConfError::new(error.to_string()).at(first.span));
    }
    // DIFF(nginx): random keys live over reloads, and go to the next process.
    let made = ticket_keys_handover::tickets(lifetime, clock())
        .map_err(|error| ConfError::new(error.to_string()))?;
    let tickets = cx.keep(format!("tls tickets {lifetime}").as_bytes(), |_| true, || made);
    ticket_keys_handover::note(lifetime, &tickets);
    Ok(tickets)
}

/// Keys that the nodes of a fleet share, and random ones for as long as there are none.
fn shared_tickets<P: Protocol>(
    word: &Word,
    lifetime: u32,
    cx: &mut Resolve<'_, P>,
) -> Result<Arc<Tickets>, ConfError> {
    let secrets = fleet_secrets(word, "ticket keys", cx)?;
    // Of a fleet with other settings they are other ones.
    let key = [b"tls tickets ", word.bytes.as_ref(), format!(" {lifetime}").as_bytes()].concat();
    let fits = |tickets: &Tickets| tickets.shares(&secrets);
    cx.try_keep(&key, fits, || Tickets::random(lifetime, clock()).map(|own| own.with_shared(secrets.clone())))
        .map_err(|error| ConfError::new(error.to_string()))
}
