//! The words of `proxy`.

use super::long_option::Long;
use super::serve::{TermsOfService, TlsOptions};
use super::usage_error::{UsageError, invalid};

/// Words of `tailwater proxy`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ProxyOptions {
    /// The servers that answer; at least one.
    pub urls: Vec<Vec<u8>>,
    /// Address to listen on.
    pub listen: Option<Vec<u8>>,
    /// `Host` sent to the servers.
    pub host: SentHost,
    /// Certificates of the servers that are accepted.
    pub certificates: OriginCertificates,
    /// Longest silence of a server.
    pub timeout: Option<Vec<u8>>,
    /// The directory of what is kept; nothing is kept without.
    pub cache: Option<Vec<u8>>,
    /// Most bytes that are cached.
    pub cache_size: Option<Vec<u8>>,
    /// TLS options.
    pub tls: TlsOptions,
}

/// `Host` sent to the servers of `proxy`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SentHost {
    /// The client's.
    #[default]
    Client,
    /// `--change-host`: the one of the URL.
    Origin,
}

/// Certificates that are taken from `https` servers of `proxy`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OriginCertificates {
    /// Certificates of authorities that the system or the user trusts, for the name of the URL.
    #[default]
    Verified,
    /// `--insecure`: any.
    Any,
}

/// Reads the words after `proxy`. `None` asks for help.
pub(super) fn parse(mut words: impl Iterator<Item = Vec<u8>>) -> Result<Option<ProxyOptions>, UsageError> {
    let mut options = ProxyOptions::default();
    while let Some(word) = words.next() {
        let Long { name, inline } = Long::of(&word);
        let mut value = |what| Long { name, inline }.value(&mut words, what);
        match name {
            b"--listen" | b"-l" => options.listen = Some(value("an address")?),
            b"--timeout" => options.timeout = Some(value("a time")?),
            b"--cache" => options.cache = Some(value("directory name")?),
            b"--cache-size" => options.cache_size = Some(value("a size")?),
            b"--tls" => options.tls.names.push(value("the name of this host")?),
            b"--acme-directory" => options.tls.directory = Some(value("a URL")?),
            b"--acme-ca" => options.tls.trusted = Some(value("file name")?),
            _ if inline.is_some() => return Err(invalid(&word)),
            b"-h" | b"-?" | b"--help" => return Ok(None),
            b"--change-host" => options.host = SentHost::Origin,
            b"--insecure" => options.certificates = OriginCertificates::Any,
            b"--accept-terms" => options.tls.terms = TermsOfService::Accepted,
            [b'-', ..] => return Err(invalid(&word)),
            _ => options.urls.push(word),
        }
    }
    if options.urls.is_empty() {
        Err(UsageError::new("no URL: where are the requests to go?"))
    } else {
        Ok(Some(options))
    }
}
