//! The third part of `bench disk`: one disk stalls while files on another are requested.
//!
//! The slow disk is a FUSE file system of the test kit whose every `open` and `read` takes a second. More clients
//! wait for it than nginx's default pool has threads. Requests for a file on a healthy disk should not be affected.

use std::time::Duration;

use serde_json::{Value, json};
use tw_testkit::disk::{Fault, Op, SlowDisk};
use tw_testkit::wait;

use super::Outcome;
use super::contestant::{Binaries, Binary, Contestant, OURS, hot_files, root_directive};
use super::exec::RunPlacement;
use super::load::{Load, LoadResult};
use super::plot::{Kind, Plot};
use super::report::{Report, Table, number, span};

const STALL: Duration = Duration::from_secs(1);
const SLOW_CONNECTIONS: usize = 64;
const HEALTHY_CONNECTIONS: usize = 16;
const SLOW_FILE_COUNT: usize = 256;

/// Directory and duration.
pub(super) struct Plan {
    pub(super) seconds: u64,
    pub(super) server_cpu: usize,
    pub(super) load_cpu: usize,
}

/// Results of one server for the healthy disk, without and with the stalls, and for the slow one.
struct Score {
    name: String,
    without: LoadResult,
    with: LoadResult,
    slow: LoadResult,
}

/// Measures and adds its table and target to the report; skips itself if nothing can be mounted.
pub(super) fn run(report: &mut Report, plan: &Plan, binaries: &Binaries) -> Outcome {
    let disk = match SlowDisk::mount() {
        Ok(disk) => disk,
        Err(why) => {
            println!("skipped, stalls of a disk: {why}\n");
            return Ok(());
        }
    };
    for number in 0..SLOW_FILE_COUNT {
        disk.write(format!("slow/{number}"), [b'x'; 4096]);
    }
    let files = hot_files(&[("32k", 32 << 10)])?;
    let server = |name, binary: &Binary, http: &str| {
        let slow = format!("location /slow/ {{ {} }}", root_directive(disk.path()));
        let root = root_directive(&files);
        Contestant::server(name, binary, &format!("access_log off; {http}"), &format!("{root} {slow}"))
    };
    let contestants = [
        server(OURS, &binaries.ours, ""),
        server("nginx, blocking", &binaries.nginx, ""),
        server("nginx, aio threads", &binaries.nginx, "aio threads;"),
    ];
    let present = contestants.iter().filter(|contestant| contestant.is_present());
    let results: Vec<Score> =
        present.map(|contestant| measure(contestant, plan, &disk)).collect::<Outcome<_>>()?;
    publish(report, &results);
    Ok(())
}

fn measure(contestant: &Contestant, plan: &Plan, disk: &SlowDisk) -> Outcome<Score> {
    let server = contestant.start(&RunPlacement::on(plan.server_cpu))?;
    let healthy = Load {
        url: server.url("/32k"),
        connections: HEALTHY_CONNECTIONS,
        seconds: plan.seconds,
        script: String::new(),
        cpu: plan.load_cpu,
    };
    let without = healthy.run()?;

    let faults = [Op::Open, Op::Read].map(|op| disk.on(op).inject(Fault::Delay(STALL)));
    let slow = Load {
        url: server.url("/"),
        connections: SLOW_CONNECTIONS,
        seconds: plan.seconds + 2 * STALL.as_secs(),
        script: format!(
            "request = function() return wrk.format(\"GET\", \"/slow/\" .. math.random(0, {})) end\n",
            SLOW_FILE_COUNT - 1
        ),
        cpu: plan.load_cpu,
    };
    let slow_running = slow.start()?;
    if !wait::until(wait::TIMEOUT, || faults.iter().any(|fault| fault.waiting() > 0)) {
        return Err(format!("{}: no request reached the slow disk", server.name).into());
    }
    let with = healthy.run()?;
    let slow = slow_running.finish()?;
    // A server that is killed while an operation is held ends only with it.
    drop(faults);
    Ok(Score { name: contestant.name.clone(), without, with, slow })
}

fn publish(report: &mut Report, results: &[Score]) {
    let columns = ["healthy", "with stalls", "p99", "p99 with", "p99.9 with", "max with", "slow/s"];
    let title = format!("{} s stalls on another disk, {SLOW_CONNECTIONS} clients there", STALL.as_secs());
    let mut table = Table::new(title, &columns);
    for Score { name, without, with, slow } in results {
        let cells = vec![
            number(without.per_second),
            number(with.per_second),
            span(without.p99),
            span(with.p99),
            span(with.p999),
            span(with.max),
            number(slow.per_second),
        ];
        table.row(name, cells);
    }
    let numbers: Vec<Value> = results
        .iter()
        .map(|Score { name, without, with, slow }| {
            json!({
                "name": name,
                "healthy_per_second": without.per_second,
                "healthy_per_second_with_stalls": with.per_second,
                "p99_us": without.p99.as_micros() as u64,
                "p99_us_with_stalls": with.p99.as_micros() as u64,
                "max_us_with_stalls": with.max.as_micros() as u64,
                "slow_per_second": slow.per_second,
            })
        })
        .collect();
    report.case(&table, Value::Array(numbers));
    let mut latency = Plot::new(Kind::Percentiles, "Healthy disk while another one stands still", " ms");
    for result in results {
        latency.line(&result.name, result.with.curve());
    }
    report.plot(&latency);
    if let Some(ours) = results.iter().find(|result| result.name == OURS) {
        let ms = |span: Duration| span.as_secs_f64() * 1e3;
        report.target(
            "stalls: p99 on the healthy disk, of that without",
            ms(ours.with.p99) / ms(ours.without.p99),
        );
    }
}
