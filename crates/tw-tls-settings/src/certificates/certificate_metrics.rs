//! Metrics of the certificates that servers use.

use tw_core::load::Resolve;
use tw_core::metrics::{Metric, MetricKind};
use tw_core::module::Protocol;

use super::certificate_resolver::CertificateSource;

/// A certificate that servers use, by the name of its file.
struct ServedCertificate(CertificateSource);

/// Makes the certificate known to metrics. ACME certificates have metrics of their own.
pub(crate) fn register<P: Protocol>(name: &str, source: &CertificateSource, cx: &mut Resolve<'_, P>) {
    if !matches!(source, CertificateSource::Acme(_)) {
        cx.keep(name.as_bytes(), |_| false, || ServedCertificate(source.clone()));
    }
}

pub(crate) const METRICS: &[Metric] = &[Metric {
    name: "certificate_expiry_timestamp_seconds",
    kind: MetricKind::Gauge,
    labels: &["certificate"],
    doc: "End of the validity of a certificate that servers use, in seconds since 1970, by the name of its file.",
    read: |scrape, out| {
        for (name, ServedCertificate(source)) in scrape.config().shared_objects.of_type::<ServedCertificate>()
        {
            out.float(&[&String::from_utf8_lossy(name)], source.identity().not_after as f64);
        }
    },
}];
