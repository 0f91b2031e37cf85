//! Destination of `fastcgi_pass`, `uwsgi_pass` and `scgi_pass`: an address or a group, parsed once if it is constant,
//! for every request if it has variables.

use std::borrow::Cow;
use std::sync::Arc;

use tw_conf::{ConfError, Node, Word};
use tw_connect::upstream_block::{self, server, warn_without_resolver};
use tw_log::Level;
use tw_request::config::upstream::{Groups, UpstreamGroup};
use tw_request::plan::UPSTREAM;
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::Template;

/// Scheme of an address.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AddressScheme {
    /// Text with `://`; for log lines, and in front of addresses that have it.
    pub(crate) text: &'static str,
    /// Set if it may be written in a configuration.
    pub(crate) is_written: bool,
    /// Set if it stands for TLS.
    pub(crate) is_secured: bool,
}

impl AddressScheme {
    /// Scheme that is never written.
    pub(crate) const fn unwritten(text: &'static str) -> Self {
        Self { text, is_written: false, is_secured: false }
    }
}

/// The directive as written.
pub(crate) struct RawPassAddress(Word);

/// Destination of requests.
#[derive(Clone)]
pub(crate) enum PassAddress {
    /// Always there.
    Fixed(Arc<FixedAddress>),
    /// Destination that depends on the request.
    Variable {
        /// The address.
        address: Template,
        /// Groups by name.
        groups: Arc<Groups>,
    },
}

/// A target without variables.
pub(crate) struct FixedAddress {
    scheme: &'static AddressScheme,
    host: Box<[u8]>,
    group: Arc<UpstreamGroup>,
}

/// The target of one request.
pub(crate) struct AddressDestination<'a> {
    /// Scheme of the address.
    pub(crate) scheme: &'static AddressScheme,
    /// The address as written, without the scheme.
    pub(crate) host: Cow<'a, [u8]>,
    /// Upstream group that responds.
    pub(crate) group: Arc<UpstreamGroup>,
}

impl RawPassAddress {
    pub(crate) fn read(node: &Node) -> Result<Self, ConfError> {
        Ok(Self::of(node.arg(0)?.clone()))
    }

    /// Destination written as `word`.
    pub(crate) fn of(word: Word) -> Self {
        Self(word)
    }

    pub(crate) fn resolve(
        self,
        schemes: &'static [AddressScheme],
        cx: &mut Resolve<'_>,
    ) -> Result<PassAddress, ConfError> {
        let Self(word) = self;
        if word.bytes.contains(&b'$') {
            warn_without_resolver(&word, split(schemes, &word.bytes).1, cx);
            let groups = cx.block.any_upstream();
            return Ok(PassAddress::Variable { address: cx.template(&word)?, groups });
        }
        let (scheme, host) = split(schemes, &word.bytes);
        let text = String::from_utf8_lossy(host).into_owned();
        let group = upstream_block::named(&word, &text, None, cx)
            .map_err(|error| error.or_hint(hint(&text, schemes)))?;
        Ok(PassAddress::Fixed(Arc::new(FixedAddress { scheme, host: host.into(), group })))
    }
}

impl FixedAddress {
    /// Upstream group that responds.
    pub(crate) fn group(&self) -> &Arc<UpstreamGroup> {
        &self.group
    }

    /// The address as written, without the scheme.
    pub(crate) fn host(&self) -> &[u8] {
        &self.host
    }

    /// Returns `true` if the connection uses TLS.
    pub(crate) fn is_secured(&self) -> bool {
        self.scheme.is_secured
    }
}

impl PassAddress {
    /// Returns the server for `r`, for [`Handler::explain`](tw_request::plan::Handler::explain).
    pub(crate) fn explain(
        &self,
        r: &Request,
        schemes: &'static [AddressScheme],
    ) -> Option<(&'static str, String)> {
        let to = self.of(r, schemes).ok()?;
        Some((UPSTREAM, format!("{}{}", to.scheme.text, tw_log::Text(&to.host))))
    }

    /// Destination of `r`. The error, a status, is logged.
    pub(crate) fn destination(
        &self,
        r: &Request,
        schemes: &'static [AddressScheme],
    ) -> Result<AddressDestination<'_>, u16> {
        self.of(r, schemes).map_err(|message| {
            r.log(Level::Error, format_args!("{message}"));
            500
        })
    }

    /// Destination of `r`. The error is for the log.
    pub(crate) fn of(
        &self,
        r: &Request,
        schemes: &'static [AddressScheme],
    ) -> Result<AddressDestination<'_>, String> {
        match self {
            Self::Fixed(fixed) => Ok(AddressDestination {
                scheme: fixed.scheme,
                host: Cow::Borrowed(&fixed.host),
                group: fixed.group.clone(),
            }),
            Self::Variable { address, groups } => {
                let template = address;
                let address = template.value(r);
                let (scheme, host) = split(schemes, &address);
                let text = String::from_utf8_lossy(host);
                let group = match groups.find(&text) {
                    Some(group) => Ok(group.clone()),
                    None => upstream_block::alone(&text, None, || {
                        template.is_given(r, address.len() - host.len())
                    }),
                };
                let group = group.map_err(|error| format!("{error} in upstream \"{text}\""))?;
                Ok(AddressDestination { scheme, host: Cow::Owned(host.into()), group })
            }
        }
    }

    /// Returns `true` if requests may need the address of a name.
    pub(crate) fn has_names(&self) -> bool {
        self.fixed().is_none_or(|fixed| fixed.group.may_have_names())
    }

    /// The target, if it does not depend on the request.
    pub(crate) fn fixed(&self) -> Option<&Arc<FixedAddress>> {
        match self {
            Self::Fixed(fixed) => Some(fixed),
            Self::Variable { .. } => None,
        }
    }

    /// Returns `true` if connections use TLS, or may for some requests.
    pub(crate) fn may_be_secured(&self, schemes: &'static [AddressScheme]) -> bool {
        match self {
            Self::Fixed(fixed) => fixed.scheme.is_secured,
            Self::Variable { .. } => schemes.iter().any(|scheme| scheme.is_secured),
        }
    }
}

/// Hint about an address that is refused.
fn hint(text: &str, schemes: &[AddressScheme]) -> Option<String> {
    let written_values: Vec<_> =
        schemes.iter().filter(|scheme| scheme.is_written).map(|scheme| scheme.text).collect();
    let hint = server::hint(text, &written_values, None)?;
    Some(if text.starts_with("http://") || text.starts_with("https://") {
        format!("{hint}; \"proxy_pass\" is for servers that speak HTTP")
    } else {
        hint
    })
}

/// Scheme, and the rest of the address.
fn split<'a>(schemes: &'static [AddressScheme], address: &'a [u8]) -> (&'static AddressScheme, &'a [u8]) {
    const NONE: AddressScheme = AddressScheme::unwritten("");
    for scheme in schemes.iter().filter(|scheme| scheme.is_written) {
        let text = scheme.text.as_bytes();
        if let Some((begin, rest)) = address.split_at_checked(text.len())
            && begin.eq_ignore_ascii_case(text)
        {
            return (scheme, rest);
        }
    }
    (schemes.first().unwrap_or(&NONE), address)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMES: &[AddressScheme] = &[
        AddressScheme { text: "uwsgi://", is_written: true, is_secured: false },
        AddressScheme { text: "suwsgi://", is_written: true, is_secured: true },
    ];

    #[test]
    fn addresses() {
        for (address, scheme, host) in [
            ("127.0.0.1:9000", "uwsgi://", "127.0.0.1:9000"),
            ("uwsgi://a:1", "uwsgi://", "a:1"),
            ("SUWSGI://a:1", "suwsgi://", "a:1"),
            ("unix:/a", "uwsgi://", "unix:/a"),
            ("suwsgi://unix:/a", "suwsgi://", "unix:/a"),
        ] {
            let (address_scheme, rest) = split(SCHEMES, address.as_bytes());
            assert_eq!((address_scheme.text, rest), (scheme, host.as_bytes()), "{address}");
        }
        const OTHER: &[AddressScheme] = &[AddressScheme::unwritten("fastcgi://")];
        assert_eq!(split(OTHER, b"fastcgi://a:1").1, b"fastcgi://a:1");
    }
}
