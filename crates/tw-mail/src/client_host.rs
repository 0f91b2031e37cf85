//! Name of a client's host, for the auth server and XCLIENT of SMTP: the reverse name of its address, if that leads back to the address.

use std::net::IpAddr;

use tw_core::session::Session;
use tw_dns::ResolveError;
use tw_log::{Level, Text};

use crate::dialogue::smtp::is_host_name;
use crate::session::MailSession;

/// Word for a client whose host has no name.
const UNAVAILABLE: &[u8] = b"[UNAVAILABLE]";
/// Word for a client whose name could not be looked up.
const TEMPUNAVAIL: &[u8] = b"[TEMPUNAVAIL]";

/// Looks the name up; a word in brackets if there is none.
pub(crate) async fn find(s: &MailSession) -> Vec<u8> {
    let settings = &s.server().settings;
    if !settings.resolves_clients {
        return UNAVAILABLE.to_vec();
    }
    let Some(address) = s.client.addr().inet().map(|address| address.ip()) else {
        return TEMPUNAVAIL.to_vec();
    };
    match look_up(s, address).await {
        Ok(name) => name,
        Err(word) => word.to_vec(),
    }
}

async fn look_up(s: &MailSession, address: IpAddr) -> Result<Vec<u8>, &'static [u8]> {
    let resolving = &s.server().settings.resolving;
    let pool = s.client.generation.disks.default_disk().pool();
    s.action.set("in resolving client address");
    let (service, timeout) = resolving.service(true, pool).await;
    let names = service.names(address, timeout).await.map_err(|error| {
        s.log(Level::Error, format_args!("{} could not be resolved ({error})", s.client.addr_text()));
        word(&error)
    })?;
    let name = names.first().map(|name| name.as_bytes()).unwrap_or_default();
    if !is_host_name(name) {
        let address = s.client.addr_text();
        s.log(Level::Error, format_args!("{address} resolved to invalid host name \"{}\"", Text(name)));
        return Err(TEMPUNAVAIL);
    }
    s.action.set("in resolving client hostname");
    let addresses = service.addresses(name, timeout).await.map_err(|error| {
        s.log(Level::Error, format_args!("\"{}\" could not be resolved ({error})", Text(name)));
        word(&error)
    })?;
    match addresses.iter().any(|ip| ip == address) {
        true => Ok(name.to_vec()),
        false => Err(UNAVAILABLE),
    }
}

/// Word for a failed look-up: there is no such name, or it is not known now.
fn word(error: &ResolveError) -> &'static [u8] {
    match error {
        ResolveError::NotFound => UNAVAILABLE,
        _ => TEMPUNAVAIL,
    }
}
