//! The words of `serve`, and those about certificates that `proxy` has, too.

use super::long_option::Long;
use super::usage_error::{UsageError, invalid};

/// Words of `tailwater serve`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ServeOptions {
    /// The directory; the current one if not said.
    pub directory: Option<Vec<u8>>,
    /// Address to listen on.
    pub listen: Option<Vec<u8>>,
    /// Response to a path that does not exist.
    pub absent: Absent,
    /// Compression of responses.
    pub coding: Coding,
    /// Credentials that are required: `USER:PASSWORD`.
    pub auth: Option<Vec<u8>>,
    /// Address of PHP, if scripts are run.
    pub php: Option<Vec<u8>>,
    /// TLS options.
    pub tls: TlsOptions,
}

/// Words of `serve` and `proxy` about certificates that come by themselves.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// `--tls`: names of this host; plain HTTP without any.
    pub names: Vec<Vec<u8>>,
    /// `--accept-terms`
    pub terms: TermsOfService,
    /// `--acme-directory`: the authority.
    pub directory: Option<Vec<u8>>,
    /// `--acme-ca`: whom to trust that it is the authority.
    pub trusted: Option<Vec<u8>>,
}

/// Acceptance of the terms of service of an authority.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TermsOfService {
    /// Not given.
    #[default]
    NotAccepted,
    /// Accepted.
    Accepted,
}

/// Response of `serve` to a path that does not exist.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Absent {
    /// 404.
    #[default]
    Error,
    /// `--spa`: the page in `index.html`, which knows what to show.
    Index,
}

/// Compression by `serve`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Coding {
    /// Responses go out as they are.
    #[default]
    Plain,
    /// `--compress`
    Compressed,
}

/// Reads the words after `serve`. `None` asks for help.
pub(super) fn parse(mut words: impl Iterator<Item = Vec<u8>>) -> Result<Option<ServeOptions>, UsageError> {
    let mut options = ServeOptions::default();
    while let Some(word) = words.next() {
        let Long { name, inline } = Long::of(&word);
        let mut value = |what| Long { name, inline }.value(&mut words, what);
        match name {
            b"--listen" | b"-l" => options.listen = Some(value("an address")?),
            b"--auth" => options.auth = Some(value("USER:PASSWORD")?),
            b"--php" => options.php = Some(value("an address")?),
            b"--tls" => options.tls.names.push(value("the name of this host")?),
            b"--acme-directory" => options.tls.directory = Some(value("a URL")?),
            b"--acme-ca" => options.tls.trusted = Some(value("file name")?),
            _ if inline.is_some() => return Err(invalid(&word)),
            b"-h" | b"-?" | b"--help" => return Ok(None),
            b"--spa" => options.absent = Absent::Index,
            b"--compress" => options.coding = Coding::Compressed,
            b"--accept-terms" => options.tls.terms = TermsOfService::Accepted,
            [b'-', _, ..] => return Err(invalid(&word)),
            _ if options.directory.is_some() => return Err(invalid(&word)),
            _ => options.directory = Some(word),
        }
    }
    Ok(Some(options))
}
