//! Load by `wrk`, with its exact results.
//!
//! `wrk` prints rounded figures, and no 99.9th percentile. A Lua function that runs once at the end prints the exact
//! ones; it costs nothing per request.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tw_testkit::TempDir;

use super::Outcome;
use super::contestant::find_program;
use super::exec::RunPlacement;
use super::spans::SHARES;

/// Prints all numbers in one line: see [`parse`] for their order.
const DONE: &str = r#"
done = function(summary, latency, requests)
    local e = summary.errors
    io.write(string.format("numbers %d %d %d %d %d %d %d %d %d %d %d %d\n",
        summary.requests, summary.duration, summary.bytes,
        e.connect + e.read + e.write, e.status, e.timeout,
        latency:percentile(50), latency:percentile(99), latency:percentile(99.9), latency.max,
        latency.mean, latency.stdev))
    io.write("percentiles")
    for _, share in ipairs({ @SHARES@ }) do
        io.write(string.format(" %d", latency:percentile(share * 100)))
    end
    io.write("\n")
end
"#;

/// A load to put on a server.
#[derive(Debug, Clone)]
pub(super) struct Load {
    /// `http://ADDRESS/PATH`.
    pub(super) url: String,
    pub(super) connections: usize,
    /// Whole seconds are all that `wrk` takes.
    pub(super) seconds: u64,
    /// Lua that chooses the requests; empty for the URL as it is.
    pub(super) script: String,
    pub(super) cpu: usize,
}

/// Results of a load.
///
/// Latencies are those of responses that arrived. If none did, they are the length of the load as a lower bound.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct LoadResult {
    pub(super) requests: u64,
    pub(super) per_second: f64,
    pub(super) bytes_per_second: f64,
    /// Connections refused or broken.
    pub(super) socket_errors: u64,
    /// Responses with a status over 399.
    pub(super) bad_status: u64,
    /// Responses later than [`TIMEOUT`].
    pub(super) timeouts: u64,
    pub(super) p50: Duration,
    pub(super) p99: Duration,
    pub(super) p999: Duration,
    pub(super) max: Duration,
    pub(super) mean: Duration,
    /// Standard deviation.
    pub(super) deviation: Duration,
    /// Percentiles for [`SHARES`].
    percentiles: [Duration; SHARES.len()],
}

/// Latencies over this are counted but not measured: `wrk` keeps one counter for each microsecond below it.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A load that is running. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    dir: TempDir,
}

impl LoadResult {
    /// Shares and percentiles in milliseconds, for a plot.
    pub(super) fn curve(&self) -> Vec<(f64, f64)> {
        let all = SHARES.iter().zip(self.percentiles).map(|(share, span)| (*share, span.as_secs_f64() * 1e3));
        // A percentile needs a request beyond it.
        all.filter(|(share, _)| (1.0 - share) * self.requests as f64 >= 1.0).collect()
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "requests_per_second": self.per_second,
            "p50_us": self.p50.as_micros() as u64,
            "p99_us": self.p99.as_micros() as u64,
            "p999_us": self.p999.as_micros() as u64,
            "max_us": self.max.as_micros() as u64,
            "socket_errors": self.socket_errors,
            "bad_status": self.bad_status,
            "timeouts": self.timeouts,
        })
    }
}

impl Load {
    /// Puts the load on and waits for its end.
    pub(super) fn run(&self) -> Outcome<LoadResult> {
        self.start()?.finish()
    }

    /// Puts the load on and returns at once.
    pub(super) fn start(&self) -> Outcome<Running> {
        let dir = TempDir::new("load")?;
        let script = dir.write("load.lua", format!("{}{}", self.script, done()))?;
        let mut command = RunPlacement::on(self.cpu).command(&wrk()?);
        command
            .args(["-t1", &format!("-c{}", self.connections), &format!("-d{}s", self.seconds.max(1))])
            .arg(format!("--timeout={}s", TIMEOUT.as_secs()))
            .arg("-s")
            .arg(&script)
            .arg(&self.url)
            .stdin(Stdio::null())
            .stdout(fs::File::create(dir.join("out"))?)
            .stderr(fs::File::create(dir.join("err"))?);
        Ok(Running { child: command.spawn()?, dir })
    }
}

impl Running {
    /// Waits for the end.
    pub(super) fn finish(mut self) -> Outcome<LoadResult> {
        let status = self.child.wait()?;
        let out = fs::read_to_string(self.dir.join("out"))?;
        parse(&out).ok_or_else(|| {
            let err = fs::read_to_string(self.dir.join("err")).unwrap_or_default();
            format!("wrk: {status}\n{out}{err}").into()
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lua that runs in the end.
fn done() -> String {
    let shares: Vec<String> = SHARES.iter().map(f64::to_string).collect();
    DONE.replace("@SHARES@", &shares.join(", "))
}

fn wrk() -> Outcome<PathBuf> {
    find_program("wrk").ok_or_else(|| "wrk is not on the PATH: it makes the load".into())
}

fn parse(out: &str) -> Option<LoadResult> {
    let line = out.lines().find_map(|line| line.strip_prefix("numbers "))?;
    let numbers: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
    let [requests, span_us, bytes, socket_errors, bad_status, timeouts, p50, p99, p999, max, mean, deviation] =
        numbers[..]
    else {
        return None;
    };
    let span = Duration::from_micros(span_us);
    let latency = |us| if requests > 0 { Duration::from_micros(us) } else { span };
    let seconds = span.as_secs_f64();
    let mut percentiles = [span; SHARES.len()];
    let line = out.lines().find_map(|line| line.strip_prefix("percentiles ")).unwrap_or_default();
    for (percentile, us) in percentiles.iter_mut().zip(line.split(' ').filter_map(|us| us.parse().ok())) {
        *percentile = latency(us);
    }
    Some(LoadResult {
        requests,
        per_second: requests as f64 / seconds,
        bytes_per_second: bytes as f64 / seconds,
        socket_errors,
        bad_status,
        timeouts,
        p50: latency(p50),
        p99: latency(p99),
        p999: latency(p999),
        max: latency(max),
        mean: latency(mean),
        deviation: Duration::from_micros(deviation),
        percentiles,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_numbers_is_read_among_others() {
        let out = "Running 4s test\nnumbers 1000 2000000 4000 1 2 3 10 20 30 40 12 5\npercentiles 10 11 12 13 14 15 16 17 18 19\n";
        let served = parse(out).unwrap();
        assert_eq!((served.requests, served.per_second, served.bytes_per_second), (1000, 500.0, 2000.0));
        assert_eq!((served.socket_errors, served.bad_status, served.timeouts), (1, 2, 3));
        assert_eq!((served.p50, served.max), (Duration::from_micros(10), Duration::from_micros(40)));
        assert_eq!((served.mean, served.deviation), (Duration::from_micros(12), Duration::from_micros(5)));
        assert_eq!(served.curve()[..2], [(0.5, 0.01), (0.6, 0.011)]);
        assert_eq!(served.curve().len(), 9);
        assert_eq!(parse("unable to connect"), None);

        let silent = parse("numbers 0 3000000 0 0 0 0 0 0 0 0 0 0").unwrap();
        assert_eq!((silent.per_second, silent.p99), (0.0, Duration::from_secs(3)));
    }
}
