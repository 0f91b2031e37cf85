//! Limits, against the program itself: whatever a script does, its call or its process ends in time.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tw_script::{CallKind, HostMessage, Outcome, Overrun, ProcessMessage, Reply, Settings};

use crate::host::{Host, no_answer, request, settings};

/// A process of the program, which ends with this value.
struct Program {
    host: Host,
    child: Child,
}

impl Program {
    fn start(source: &str) -> Self {
        Self::start_with(source, settings())
    }

    fn start_with(source: &str, settings: Settings) -> Self {
        let (mut host, socket) = Host::pair();
        let child = Command::new(env!("CARGO_BIN_EXE_tailwater-scripts"))
            .args(["serve", "0"])
            .stdin(Stdio::from(socket))
            .spawn()
            .unwrap();
        assert!(matches!(host.receive(), Some(ProcessMessage::Hello { .. })));
        host.load_with(source, &[], settings).unwrap();
        Self { host, child }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU time in which a call has to end: `js_timeout`, and room for a machine that does other things, too.
const LATEST: Duration = Duration::from_secs(5);

#[test]
fn endless_loops_are_interrupted() {
    let source = "export default { loop() { for (;;); }, async jobs() { for (;;) { await null; } }, caught() { try { for (;;); } catch { for (;;); } },
        sort() { for (;;) { Array.from({ length: 1000 }, (_, i) => -i).sort((a, b) => a - b); } }, regex() { /^(a+)+$/.test('a'.repeat(40) + 'b'); },
        rejections() { for (;;) { Promise.reject(new Error('x'.repeat(99))); } },
        fine() { return 'fine'; } }";
    let mut program = Program::start(source);
    for name in ["loop", "jobs", "caught", "sort", "regex", "rejections"] {
        let start = Instant::now();
        let ended = program.host.content(&format!("test.{name}"));
        assert_eq!(ended.exception().limit, "js_timeout", "{name}");
        assert!(start.elapsed() < LATEST, "{name}: {:?}", start.elapsed());
        let outcome = program.host.run(CallKind::Set, "test.fine", &mut no_answer).outcome;
        assert_eq!(outcome, Some(Outcome::Value(Some(b"fine".to_vec().into()))), "after {name}");
    }
}

#[test]
fn native_functions_that_cannot_be_interrupted_end_the_process() {
    let source = "export default {\n  repeat() { for (;;) 'x'.repeat(1e6); },\n  parse() { const s = '[' + '1,'.repeat(2e5) + '1]'; for (;;) JSON.parse(s); },\n
  fill() { const a = new Uint8Array(4e6); for (;;) a.fill(1); } }";
    for (name, line) in [("repeat", 2), ("parse", 3), ("fill", 5)] {
        let mut program = Program::start(source);
        let start = Instant::now();
        let call = program.host.start(CallKind::Content, &format!("test.{name}"), 0, request());
        let message = program.host.receive();
        assert!(start.elapsed() < LATEST, "{name}: {:?}", start.elapsed());
        match message {
            Some(ProcessMessage::Overrun(overrun)) => {
                let function = format!("test.{name}");
                let file = "/js/test.js".to_owned();
                assert_eq!(overrun, Overrun { call, script: 1, function, file, line });
                assert_eq!(program.host.receive(), None, "{name}");
                assert_eq!(program.child.wait().unwrap().code(), Some(124));
            }
            // The engine may have been asked in time.
            Some(ProcessMessage::Done { outcome: Outcome::Exception(exception), .. }) => {
                assert_eq!(exception.limit, "js_timeout");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn answers_arrive_although_the_next_call_ends_the_process() {
    let source =
        "export default { fine(r) { r.return(200, 'fine'); }, repeat() { for (;;) 'x'.repeat(1e6); } }";
    let mut program = Program::start(source);
    let names = ["test.fine", "test.fine", "test.fine", "test.repeat"];
    let (calls, messages): (Vec<_>, Vec<_>) =
        names.iter().map(|name| program.host.call(CallKind::Content, name, 0, request())).unzip();
    program.host.send_together(&messages);
    for call in &calls[..3] {
        let message = program.host.receive();
        assert!(
            matches!(&message, Some(ProcessMessage::Effect { call: known, .. }) if known == call),
            "{message:?}"
        );
        let outcome = Outcome::Value(None);
        assert_eq!(program.host.receive(), Some(ProcessMessage::Done { call: *call, outcome }));
    }
    match program.host.receive() {
        Some(ProcessMessage::Overrun(overrun)) => {
            assert_eq!((overrun.call, overrun.line), (calls[3], 1));
            assert_eq!(program.host.receive(), None);
        }
        // The engine may have been asked in time.
        Some(ProcessMessage::Done { outcome: Outcome::Exception(exception), .. }) => {
            assert_eq!(exception.limit, "js_timeout");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn answer_does_not_wait_for_a_long_call_behind_it() {
    let source = "export default { fine(r) { r.return(200, 'fine'); }, long() { for (;;); } }";
    let mut program = Program::start_with(source, Settings { timeout_ms: 2000, ..settings() });
    let (_, fine) = program.host.call(CallKind::Content, "test.fine", 0, request());
    let (_, long) = program.host.call(CallKind::Content, "test.long", 0, request());
    program.host.send_together(&[fine, long]);
    let effect = program.host.receive();
    assert!(matches!(&effect, Some(ProcessMessage::Effect { .. })), "{effect:?}");
    assert!(matches!(program.host.receive(), Some(ProcessMessage::Done { .. })));
    // The second call runs on for a long time: nothing of it has come with the first answer.
    assert!(program.host.is_silent_for(Duration::from_millis(300)));
}

#[test]
fn waiting_for_an_answer_takes_no_cpu_time() {
    let mut program = Program::start("export default { f(r) { return r.variables.a; } }");
    let call = program.host.start(CallKind::Set, "test.f", 0, request());
    let Some(ProcessMessage::Operation { token, .. }) = program.host.receive() else { panic!() };
    // Longer than `js_timeout`: nothing happens in this time.
    assert!(program.host.is_silent_for(Duration::from_millis(300)));
    let result = Ok(Reply::Value(Some(b"late".to_vec().into())));
    program.host.send(&HostMessage::Reply { call, token, result });
    let outcome = program.host.finish(call, &mut no_answer).outcome;
    assert_eq!(outcome, Some(Outcome::Value(Some(b"late".to_vec().into()))));
}

#[test]
fn process_has_no_rights() {
    let program = Program::start("export default { f() {} }");
    let status = std::fs::read_to_string(format!("/proc/{}/status", program.child.id())).unwrap();
    let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    assert_eq!(
        (value("Seccomp:"), value("NoNewPrivs:"), value("Threads:")),
        (Some("2"), Some("1"), Some("1"))
    );
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", program.child.id())).unwrap();
    assert!(limits.lines().any(|line| line.starts_with("Max file size") && line.contains(" 0 ")), "{limits}");
}

#[test]
fn confined_process_has_random_numbers_dates_and_keys() {
    let source = "export default { async f(r) { const key = await crypto.subtle.generateKey('Ed25519', true, ['sign']);
        r.return(200, [crypto.getRandomValues(new Uint8Array(4)).length, new Date(0).getTime(), isNaN(new Date().getHours()), key.privateKey.type,
        Math.random() < 1].join()); } }";
    let mut program = Program::start(source);
    assert_eq!(program.host.content("test.f").text(), "4,0,false,private,true");
}

#[test]
fn scripts_cannot_sleep() {
    let source =
        "export default { f() { Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1e9); } }";
    let ended = Program::start(source).host.content("test.f");
    assert!(matches!(ended.outcome, Some(Outcome::Exception(_))), "{ended:?}");
}

#[test]
fn memory_is_limited() {
    let source = "export default { strings() { let s = 'x'; for (;;) { s += s; } }, list() { const l = []; for (;;) { l.push(new Uint8Array(1e5)); } },
        repeat() { 'x'.repeat(1e9); }, buffer() { Buffer.alloc(1e9); }, objects() { const l = []; for (;;) { l.push({ a: [1, 2, 3] }); } },
        fine() { return 'fine'; } }";
    let mut program = Program::start_with(source, Settings { timeout_ms: 20_000, ..settings() });
    for name in ["strings", "list", "repeat", "buffer", "objects"] {
        let ended = program.host.content(&format!("test.{name}"));
        let exception = ended.exception();
        assert!(
            exception.limit == "js_memory" || exception.message.contains("string too long"),
            "{name}: {exception:?}"
        );
        let outcome = program.host.run(CallKind::Set, "test.fine", &mut no_answer).outcome;
        assert_eq!(outcome, Some(Outcome::Value(Some(b"fine".to_vec().into()))), "after {name}");
    }
}

#[test]
fn zip_bombs_are_limited() {
    let source = "import zlib from 'zlib'; export default { f(r) { const part = zlib.deflateRawSync(Buffer.alloc(1 << 20), { level: 9 });
        r.return(200, String(zlib.inflateRawSync(part).length)); zlib.inflateSync(Buffer.from(bomb, 'base64')); } };
        const bomb = 'BOMB';";
    // 64 MiB of zeros.
    let mut bomb = Vec::new();
    let mut state = zlib_rs::Deflate::new(9, true, 15);
    let zeros = vec![0; 64 << 20];
    bomb.resize(1 << 20, 0);
    let status = state.compress(&zeros, &mut bomb, zlib_rs::DeflateFlush::Finish).unwrap();
    assert_eq!(status, zlib_rs::Status::StreamEnd);
    bomb.truncate(state.total_out() as usize);
    let base64 = base64(&bomb);
    let settings = Settings { timeout_ms: 20_000, ..settings() };
    let mut program = Program::start_with(&source.replace("BOMB", &base64), settings);
    let ended = program.host.content("test.f");
    assert_eq!(ended.text(), "1048576");
    assert_eq!(ended.exception().message, "Error: the result is larger than js_memory");
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let letter = |group: &[u8], index: usize| {
        let bits = group.iter().chain([&0, &0]).take(3).fold(0u32, |bits, byte| bits << 8 | u32::from(*byte));
        if index > group.len() { '=' } else { char::from(LETTERS[(bits >> (18 - 6 * index) & 63) as usize]) }
    };
    bytes.chunks(3).flat_map(|group| (0..4).map(move |index| letter(group, index))).collect()
}

#[test]
fn recursion_is_limited() {
    let source = "export default { f() { const g = () => g(); g(); }, json() { let a = []; for (let i = 0; i < 1e5; i++) { a = [a]; } JSON.stringify(a); },
        parse() { JSON.parse('['.repeat(1e5)); } }";
    let mut program = Program::start(source);
    for name in ["f", "json", "parse"] {
        let ended = program.host.content(&format!("test.{name}"));
        assert!(matches!(ended.outcome, Some(Outcome::Exception(_))), "{name}: {ended:?}");
    }
}

#[test]
fn operations_and_timers_are_limited() {
    let source = "export default { timers() { for (;;) { setTimeout(() => 1, 1e6); } }, subrequests(r) { for (;;) { r.subrequest('/'); } } }";
    let mut host = Host::in_thread();
    host.load_with(source, &[], Settings { timeout_ms: 20_000, ..settings() }).unwrap();
    assert_eq!(host.content("test.timers").exception().message, "RangeError: too many timers");
    let call = host.start(CallKind::Content, "test.subrequests", 0, request());
    let mut count = 0;
    let exception = loop {
        match host.receive() {
            Some(ProcessMessage::Operation { .. }) => count += 1,
            Some(ProcessMessage::Done { call: of, outcome: Outcome::Exception(exception) }) if of == call => {
                break exception;
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((count, exception.message.as_str()), (1024, "RangeError: too many pending operations"));
}
