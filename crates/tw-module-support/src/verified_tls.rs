//! TLS of requests of the server's own, whose servers are always verified: `otel_exporter`, `oidc_provider`.

use tw_conf::{ConfError, Node, Word};
use tw_connect::tls_settings::TlsSettings;
use tw_connect::upstream_tls::{RawUpstreamTls, TlsProtocol};
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_server::http::acme::system_bundle;

/// Certificates between that of a server and that of an authority.
const VERIFY_DEPTH: usize = 9;

/// Trust of a directive.
pub struct VerifiedTls {
    /// File with certificates of authorities; `None` for those of the system.
    pub trusted: Option<Word>,
    /// File with revoked certificates.
    pub crl: Option<Word>,
    /// Protocol inside.
    pub inside: TlsProtocol,
}

impl VerifiedTls {
    /// Reads the files for the block `node` of the directive `name`; names in messages begin with `prefix`.
    pub fn resolve(
        self,
        node: &Node,
        name: &str,
        prefix: &'static str,
        cx: &mut Resolve<'_>,
    ) -> Result<TlsSettings<Request>, ConfError> {
        let trusted = match self.trusted {
            Some(word) => word,
            None => {
                let path = system_bundle(cx).ok_or_else(|| {
                    node.fail(format!("no certificates of authorities are found for \"{name}\""))
                        .hint("install ca-certificates, or name a file by \"trusted_certificate\"")
                })?;
                Word { bytes: path.as_bytes().into(), span: node.span, quoted: false }
            }
        };
        let mut raw = RawUpstreamTls::default();
        raw.verify.replace(node, true);
        raw.verify_depth.replace(node, VERIFY_DEPTH);
        raw.server_name.replace(node, true);
        raw.trusted_certificate.replace(node, trusted);
        if let Some(crl) = self.crl {
            raw.crl.replace(node, crl);
        }
        let mut tls = TlsSettings::resolve(raw, None, cx)?;
        tls.enable(prefix, self.inside, cx)?;
        Ok(tls)
    }
}
