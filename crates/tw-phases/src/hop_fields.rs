//! Hop-by-hop fields of responses.

use std::cell::OnceCell;

use tw_http::fields::Fields;
use tw_http::{HeaderName, hop};

// DIFF(nginx): also those that `Connection` names, and `Upgrade` without a switch of protocols.
/// Hop-by-hop fields of an upstream response: those about the connection to the upstream server (RFC 9110 section 7.6.1), and
/// those about the framing of the body, which is decided anew.
pub struct HopFields<'a> {
    fields: &'a Fields,
    /// Lines of `Connection` that name other fields, once a field is looked at that may be one of them.
    connection: OnceCell<Vec<&'a [u8]>>,
    /// Set if the protocol is switched: `Upgrade` names it to the client.
    switches: bool,
}

impl<'a> HopFields<'a> {
    /// Hop-by-hop fields of a head with this status.
    pub fn of(fields: &'a Fields, status: u16) -> Self {
        Self { fields, connection: OnceCell::new(), switches: status == 101 }
    }

    /// Lines of `Connection` that name other fields. Allocates only if there are such lines.
    fn naming_lines(&self) -> &[&'a [u8]] {
        let is_usual =
            |line: &[u8]| line.eq_ignore_ascii_case(b"close") || line.eq_ignore_ascii_case(b"keep-alive");
        let names_others = |(_, name, line): (_, Option<HeaderName>, &'a [u8])| {
            (name == Some(HeaderName::Connection) && !is_usual(line)).then_some(line)
        };
        self.connection.get_or_init(|| {
            if self.fields.has(HeaderName::Connection) {
                self.fields.iter_known().filter_map(names_others).collect()
            } else {
                Vec::new()
            }
        })
    }

    /// Returns true if this field is not passed on.
    pub fn has(&self, name: &[u8], known_name: Option<HeaderName>) -> bool {
        match known_name {
            // DIFF(nginx): `Trailer` comes back if trailers are passed on.
            Some(HeaderName::ContentLength | HeaderName::Trailer) => true,
            Some(HeaderName::Upgrade) => !self.switches,
            Some(known_name) => hop::is_hop_by_hop(known_name),
            None => {
                let lines = self.naming_lines();
                !lines.is_empty() && hop::is_named(lines.iter().copied(), name)
            }
        }
    }
}
