//! Samples of `/metrics`, which every server that is asked for them has on its first address. Names are without `tailwater_`.

use std::fmt::Debug;
use std::str::FromStr;

use tw_testkit::Server;

use super::get;

/// The whole page.
pub(crate) fn metrics_text(server: &Server) -> String {
    get(server, "/metrics").text()
}

/// Value of one sample: `series` is its name with all of its labels, or the name of a family that has one sample.
///
/// Panics if there is none, or more than one.
pub(crate) fn metric(server: &Server, series: &str) -> u64 {
    metric_in(&metrics_text(server), series)
}

/// [`metric`] of a page.
pub(crate) fn metric_in(text: &str, series: &str) -> u64 {
    match metric_values(text, series)[..] {
        [value] => value,
        ref values => panic!("{series} has {} samples: {text}", values.len()),
    }
}

/// [`metric`] as any kind of number; `None` if there is no sample, as for what has not happened yet.
pub(crate) fn try_metric<T: FromStr<Err: Debug>>(server: &Server, series: &str) -> Option<T> {
    let text = metrics_text(server);
    let mut values = metric_values(&text, series);
    assert!(values.len() <= 1, "{series} has {} samples: {text}", values.len());
    values.pop()
}

/// Sum over the labels of a family. Panics if it has no sample.
pub(crate) fn metric_sum(server: &Server, name: &str) -> u64 {
    let text = metrics_text(server);
    let values = metric_values::<u64>(&text, name);
    assert!(!values.is_empty(), "{name} has no sample: {text}");
    values.iter().sum()
}

/// Values of all samples on a page that are called `series` or have labels behind that, in their order.
pub(crate) fn metric_values<T: FromStr<Err: Debug>>(text: &str, series: &str) -> Vec<T> {
    let samples = text.lines().filter_map(|line| line.strip_prefix("tailwater_")?.rsplit_once(' '));
    let is_of = |candidate: &str| {
        candidate.strip_prefix(series).is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
    };
    samples.filter(|(candidate, _)| is_of(candidate)).map(|(_, value)| value.parse().unwrap()).collect()
}
