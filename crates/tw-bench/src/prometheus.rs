//! Parser for Prometheus text: histograms and sums of counters.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};

use tw_testkit::Client;

use super::Outcome;

/// Metrics of a server at one moment.
pub(super) struct Page(String);

impl Page {
    /// Fetches the metrics.
    pub(super) fn fetch(url: &str) -> Outcome<Self> {
        let (addr, path) = split(url)?;
        let response = Client::get(addr, path)?;
        if response.status != 200 {
            return Err(format!("{url}: status {}", response.status).into());
        }
        Ok(Self(response.text()))
    }

    /// A histogram, of the samples that have `label`, as in `cause="kernel"`; of all if it is empty.
    pub(super) fn histogram(&self, name: &str, label: &str) -> Outcome<Histogram> {
        let histogram = Histogram::parse(&self.0, name, label);
        if histogram.buckets.is_empty() {
            Err(format!("no {name}_bucket is told").into())
        } else {
            Ok(histogram)
        }
    }

    /// The sum of all samples of a counter.
    pub(super) fn sum(&self, name: &str) -> u64 {
        let values = self.0.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            rest.starts_with(['{', ' ']).then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
        });
        values.sum::<f64>() as u64
    }
}

/// Cumulative counts by upper bound, summed over all label sets.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Histogram {
    /// Bounds as bits: positive floats sort as integers do.
    buckets: BTreeMap<u64, u64>,
}

impl Histogram {
    /// Fetches a page and reads one histogram from it.
    pub(super) fn fetch(url: &str, name: &str) -> Outcome<Self> {
        Page::fetch(url)?.histogram(name, "").map_err(|error| format!("{url}: {error}").into())
    }

    fn parse(text: &str, name: &str, label: &str) -> Self {
        let mut histogram = Self::default();
        let prefix = format!("{name}_bucket{{");
        for line in text.lines().filter_map(|line| line.strip_prefix(prefix.as_str())) {
            let Some((labels, count)) = line.split_once('}') else { continue };
            if !label.is_empty() && !labels.split(',').any(|other| other.trim() == label) {
                continue;
            }
            let bound =
                labels.split(',').find_map(|label| label.trim().strip_prefix("le=\"")?.strip_suffix('"'));
            let bound = bound.and_then(|bound| match bound {
                "+Inf" => Some(f64::INFINITY),
                _ => bound.parse().ok(),
            });
            let count = count.split_ascii_whitespace().next().and_then(|count| count.parse::<f64>().ok());
            if let (Some(bound), Some(count)) = (bound, count) {
                *histogram.buckets.entry(bound.to_bits()).or_default() += count as u64;
            }
        }
        histogram
    }

    /// Increase since an earlier moment.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let difference = |(&bound, &count): (&u64, &u64)| {
            (bound, count.saturating_sub(earlier.buckets.get(&bound).copied().unwrap_or(0)))
        };
        Self { buckets: self.buckets.iter().map(difference).collect() }
    }

    /// Upper bound of the bucket that contains the quantile; `None` if nothing was counted.
    pub(super) fn quantile(&self, quantile: f64) -> Option<f64> {
        let total = *self.buckets.values().last()?;
        let rank = (total as f64 * quantile).ceil().max(1.0) as u64;
        let (bound, _) = self.buckets.iter().find(|(_, count)| **count >= rank)?;
        (total > 0).then(|| f64::from_bits(*bound))
    }
}

fn split(url: &str) -> Outcome<(SocketAddr, &str)> {
    let rest = url.strip_prefix("http://").ok_or_else(|| format!("{url}: not http"))?;
    let slash = rest.find('/').unwrap_or(rest.len());
    let (host, path) = rest.split_at(slash);
    let addr = host.to_socket_addrs()?.next().ok_or_else(|| format!("{host}: no address"))?;
    Ok((addr, if path.is_empty() { "/" } else { path }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# TYPE blocked_seconds histogram
blocked_seconds_bucket{worker=\"0\",le=\"0.001\"} 900
blocked_seconds_bucket{worker=\"0\",le=\"0.01\"} 990
blocked_seconds_bucket{worker=\"0\",le=\"+Inf\"} 1000
blocked_seconds_bucket{worker=\"1\",le=\"0.001\"} 1000
blocked_seconds_bucket{worker=\"1\",le=\"0.01\"} 1000
blocked_seconds_bucket{worker=\"1\",le=\"+Inf\"} 1000
blocked_seconds_sum 1.5
other_bucket{le=\"+Inf\"} 7
";

    #[test]
    fn quantiles_are_the_bounds_of_summed_buckets() {
        let histogram = Histogram::parse(PAGE, "blocked_seconds", "");
        for (quantile, expected) in [(0.5, 0.001), (0.95, 0.001), (0.99, 0.01), (0.999, f64::INFINITY)] {
            assert_eq!(histogram.quantile(quantile), Some(expected), "{quantile}");
        }
        assert_eq!(histogram.since(&histogram).quantile(0.5), None);
        assert_eq!(Histogram::default().quantile(0.5), None);
    }

    #[test]
    fn samples_are_taken_by_label_and_summed() {
        let page = Page(format!(
            "{PAGE}faults_total{{worker=\"0\"}} 3\nfaults_total{{worker=\"1\"}} 4\nfaults_total_x 9\n"
        ));
        assert_eq!((page.sum("faults_total"), page.sum("absent")), (7, 0));
        let one = page.histogram("blocked_seconds", "worker=\"1\"").unwrap();
        assert_eq!(one.quantile(0.999), Some(0.001));
        assert!(page.histogram("blocked_seconds", "worker=\"2\"").is_err());
    }

    #[test]
    fn a_url_is_an_address_and_a_path() {
        let addr: SocketAddr = "127.0.0.1:80".parse().unwrap();
        assert_eq!(split("http://127.0.0.1:80/a/b").unwrap(), (addr, "/a/b"));
        assert_eq!(split("http://127.0.0.1:80").unwrap(), (addr, "/"));
        assert!(split("ftp://127.0.0.1/").is_err());
    }
}
