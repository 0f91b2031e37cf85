//! First byte of a small response beside a large download on the same connection.

use std::time::{Duration, Instant};

use tw_testkit::http2::{END_STREAM, Frames, frame, get, kind};

use super::{FILES, Over, Plan, Setup};
use crate::Outcome;
use crate::contestant::Running;
use crate::exec::on_core;
use crate::first_byte;
use crate::report::Report;
use crate::spans::Spans;

/// Between two small requests.
const TICK: Duration = Duration::from_millis(5);
/// Window large enough for everything, so that it never blocks.
const WINDOW: u32 = 1 << 30;
/// SETTINGS_INITIAL_WINDOW_SIZE (RFC 9113 section 6.5.2).
const INITIAL_WINDOW_SIZE: u16 = 4;

/// Measures one after the other.
pub(super) fn run(report: &mut Report, setup: &Setup, plan: &Plan) -> Outcome {
    let count = usize::try_from(plan.rounds as u128 * u128::from(plan.seconds) * 1000 / TICK.as_millis())?;
    let title = "1k beside a download of 64 MiB on the same connection, plain";
    first_byte::run(report, title, &setup.contestants(Over::Tcp, ""), plan.server_cpu, |server| {
        on_core(plan.load_cpu, || send_requests(server, count))
    })
}

/// From each small request to the first frame of its response; and how fast the download was, in megabytes per second.
fn send_requests(server: &Running, count: usize) -> Outcome<(Spans, f64)> {
    let [(_, small, _), .., (_, large, _)] = FILES;
    let mut frames = Frames::connect(server.addr())?;
    let setting = [&INITIAL_WINDOW_SIZE.to_be_bytes()[..], &WINDOW.to_be_bytes()].concat();
    frames.send(frame(kind::SETTINGS, 0, 0, &setting))?;
    frames.send(frame(kind::WINDOW_UPDATE, 0, 0, &WINDOW.to_be_bytes()))?;
    let mut download = 1;
    let mut sent = None::<(u32, Instant)>;
    let mut stream = 1;
    frames.send(get(download, large, &[]))?;
    let mut spans = Vec::with_capacity(count);
    let mut bytes = 0_u64;
    let start = Instant::now();
    let mut next = start + TICK;
    while spans.len() < count {
        let came = frames.next_frame()?.ok_or("the server has closed")?;
        if matches!(came.kind, kind::GOAWAY | kind::RST_STREAM) {
            return Err(format!("not a measurement: {came:?}").into());
        }
        if came.kind == kind::DATA && came.stream == download {
            let len = came.payload.len() as u64;
            bytes += len;
            // The window of the connection is filled up again before it is empty.
            if bytes % u64::from(WINDOW / 4) < len {
                frames.send(frame(kind::WINDOW_UPDATE, 0, 0, &(WINDOW / 4).to_be_bytes()))?;
            }
            if came.flags & END_STREAM != 0 {
                stream += 2;
                download = stream;
                frames.send(get(download, large, &[]))?;
            }
        }
        if let Some((_, since)) = sent.filter(|(id, _)| *id == came.stream && came.kind == kind::HEADERS) {
            spans.push(since.elapsed());
            next = Instant::now() + TICK;
            sent = None;
        }
        if sent.is_none() && Instant::now() >= next {
            stream += 2;
            sent = Some((stream, Instant::now()));
            frames.send(get(stream, small, &[]))?;
        }
    }
    Ok((Spans::new(spans), bytes as f64 / 1e6 / start.elapsed().as_secs_f64()))
}
