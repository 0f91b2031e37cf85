//! Calls: results, contexts, filters, streams and modules.

use tw_script::{
    ByteBuf, CallKind, Effect, Event, FetchResponse, HostMessage, LoadError, LogLevel, Operation,
    OperationError, Outcome, ProcessMessage, Reply, Snapshot, StreamSnapshot,
};

use crate::host::{Host, no_answer, request, script, set, settings, text, value};

#[test]
fn variable_functions_return_strings() {
    let source = "let count = 0; export default { a() { return 5; }, b() {}, c() { return null; }, async d() { await 1; return 2; },
        async e(r) { await 1; r.setReturnValue('late'); }, f() { setTimeout(() => 1, 1); }, g() { throw new RangeError('no'); },
        h: { i(r) { return r.uri; } }, n() { return Buffer.from([0x61, 0xff]); }, count() { return ++count; } }";
    let mut host = script(source);
    assert_eq!(set(&mut host, "test.a"), text("5"));
    assert_eq!(set(&mut host, "test.b"), Some(Outcome::Value(None)));
    assert_eq!(set(&mut host, "test.c"), Some(Outcome::Value(None)));
    assert_eq!(set(&mut host, "test.d"), text("2"));
    assert_eq!(set(&mut host, "test.e"), text("late"));
    assert_eq!(set(&mut host, "test.h.i"), text("/a b"));
    assert_eq!(set(&mut host, "test.n"), Some(Outcome::Value(Some(ByteBuf::from(vec![0x61, 0xff])))));
    for (name, message) in [
        ("test.f", "async operation inside \"test.f\" variable handler, its pending events are dropped"),
        ("test.g", "RangeError: no"),
        ("test.x", "ReferenceError: js function \"test.x\" not found"),
    ] {
        let Some(Outcome::Exception(exception)) = set(&mut host, name) else { panic!("{name}") };
        assert_eq!(exception.message, message);
    }
    // The context is used again (`js_context_reuse`).
    assert_eq!(set(&mut host, "test.count"), text("1"));
    assert_eq!(set(&mut host, "test.count"), text("2"));
}

#[test]
fn context_belongs_to_one_request_at_a_time() {
    let mut host = script("let count = 0; export default { count() { return ++count; } }");
    let count = |host: &mut Host, context| {
        let call = host.start(CallKind::Set, "test.count", context, request());
        host.finish(call, &mut no_answer).outcome
    };
    assert_eq!(count(&mut host, 1), text("1"));
    assert_eq!(count(&mut host, 1), text("2"));
    assert_eq!(count(&mut host, 2), text("1"));
    host.send(&HostMessage::Release { context: 1 });
    assert_eq!(count(&mut host, 3), text("3"));
}

#[test]
fn unhandled_rejection_is_an_exception() {
    let source = "export default { async f() { await ngx.fetch('http://a/'); }, async g(r) { try { await ngx.fetch('http://a/'); } catch (e) {
        r.return(502, e.message); } }, h() { Promise.reject(new Error('forgotten')); } }";
    let mut host = script(source);
    let mut refuse = |_: &Operation| Err(OperationError::Error("connect failed".to_owned()));
    let ended = host.run(CallKind::Content, "test.f", &mut refuse);
    assert_eq!(ended.exception().message, "Error: connect failed");
    assert_eq!(host.run(CallKind::Content, "test.g", &mut refuse).text(), "connect failed");
    assert_eq!(host.content("test.h").exception().message, "Error: forgotten");
}

#[test]
fn body_filter_gets_every_piece() {
    let source = "let n = 0; export default { f(r, data, flags) { n += data.length; r.sendBuffer(data.toUpperCase(), flags); if (flags.last) {
        r.sendBuffer(String(n), { last: true }); } }, g(r, data) { r.sendBuffer(String(Buffer.isBuffer(data))); r.done(); } }";
    let mut host = script(source);
    let piece = |host: &mut Host, call, text: &str, is_last| {
        let data = text.as_bytes().to_vec().into();
        host.send(&HostMessage::Event(Event { call, data, is_last, from_client: false }));
        let mut effects = Vec::new();
        loop {
            match host.receive() {
                Some(ProcessMessage::Effect { effect, .. }) => effects.push(effect),
                Some(ProcessMessage::Handled { call: of }) if of == call => return (effects, None),
                Some(ProcessMessage::Done { call: of, outcome }) if of == call => {
                    return (effects, Some(outcome));
                }
                other => panic!("{other:?}"),
            }
        }
    };
    let sent = |text: &str, is_last| Effect::SendBuffer {
        data: text.as_bytes().to_vec().into(),
        is_last,
        is_flushed: None,
    };
    let call = host.start(CallKind::BodyFilter, "test.f", 5, request());
    assert_eq!(piece(&mut host, call, "ab", false), (vec![sent("AB", Some(false))], None));
    // The end of the call is the answer to the last piece.
    let last = vec![sent("", Some(true)), sent("2", Some(true))];
    assert_eq!(piece(&mut host, call, "", true), (last, Some(Outcome::Value(None))));
    let call = host.start(CallKind::BodyBufferFilter, "test.g", 6, request());
    assert_eq!(piece(&mut host, call, "ab", false), (vec![sent("true", None), Effect::FilterDone], None));
    host.send(&HostMessage::Cancel { call });
    assert_eq!(
        host.content("test.missing").exception().message,
        "ReferenceError: js function \"test.missing\" not found"
    );
}

#[test]
fn stream_sessions_have_events() {
    let source = "export default { access(s) { s.on('upload', (data, flags) => { if (data.length > 2 || flags.last) { s.off('upload'); s.allow(); } }); },
        deny(s) { s.deny(); }, filter(s) { s.on('upstream', (data, flags) => s.send(Buffer.concat([data, data]), flags)); },
        mixed(s) { s.on('upload', () => 1); s.on('downstream', () => 1); }, unknown(s) { s.on('x', () => 1); } }";
    let mut host = script(source);
    let session = || {
        let remote_address = b"10.0.0.1".to_vec().into();
        Snapshot::Stream(StreamSnapshot { remote_address, status: 0, is_datagram: false })
    };
    let event = |call, text: &str| {
        let data = text.as_bytes().to_vec().into();
        HostMessage::Event(Event { call, data, is_last: false, from_client: true })
    };
    let call = host.start(CallKind::StreamAccess, "test.access", 1, session());
    host.send(&event(call, "a"));
    host.send(&event(call, "abc"));
    let ended = host.finish(call, &mut no_answer);
    let subscribe = |from_client| Effect::Subscribe { from_client, from_upstream: false };
    assert_eq!(ended.effects, [subscribe(true), subscribe(false), Effect::StreamDone { code: 0 }]);
    let call = host.start(CallKind::StreamPreread, "test.deny", 1, session());
    assert_eq!(host.finish(call, &mut no_answer).effects, [Effect::StreamDone { code: 403 }]);
    let call = host.start(CallKind::StreamFilter, "test.filter", 1, session());
    host.send(&event(call, "ab"));
    assert_eq!(host.receive(), Some(ProcessMessage::Effect { call, effect: subscribe(true) }));
    let data = ByteBuf::from(b"abab".to_vec());
    let effect = Effect::StreamSend { data, from_client: true, is_last: Some(false), is_flushed: None };
    assert_eq!(host.receive(), Some(ProcessMessage::Effect { call, effect }));
    assert_eq!(host.receive(), Some(ProcessMessage::Handled { call }));
    for (name, message) in
        [("test.mixed", "mixing string and buffer"), ("test.unknown", "unknown event \"x\"")]
    {
        let call = host.start(CallKind::StreamFilter, name, 2, session());
        assert!(host.finish(call, &mut no_answer).exception().message.contains(message));
    }
}

#[test]
fn modules_import_each_other_and_report_faults() {
    let other = [("lib.js", "export function twice(x) { return x * 2; }\nexport default { twice };")];
    let source = "import lib from './lib.js'; import { twice } from './lib.js'; export default { f: () => lib.twice(twice(2)) };";
    let mut host = Host::in_thread();
    host.load_with(source, &other, settings()).unwrap();
    assert_eq!(set(&mut host, "test.f"), text("8"));
    let missing =
        LoadError::MissingImport { referrer: "/js/test.js".to_owned(), specifier: "./lib.js".to_owned() };
    assert_eq!(host.load(source), Err(missing));
    for (source, line, column, message) in [
        ("let a = 1;\nlet b = ;\n", 2, 9, "SyntaxError"),
        ("\n\nnull.x;\nexport default {};", 3, 1, "TypeError"),
        ("export let a = 1;", 0, 0, "default"),
        ("await new Promise(() => 1); export default {};", 0, 0, "waits for something"),
        ("ngx.fetch('http://a/'); export default {};", 0, 0, "not available without a request"),
    ] {
        let Err(LoadError::Exception { file, line: at, column: column_at, message: text }) =
            host.load(source)
        else {
            panic!("{source}");
        };
        assert!(text.contains(message), "{source}: {text}");
        if line > 0 {
            assert_eq!((file.as_str(), at, column_at), ("/js/test.js", line, column), "{source}");
        }
    }
    host.load("const a = await Promise.resolve('top'); export default { f: () => a };").unwrap();
    assert_eq!(set(&mut host, "test.f"), text("top"));
}

#[test]
fn calls_of_an_unloaded_script_are_refused() {
    let mut host = script("export default { async f() { await ngx.fetch('http://a/'); } }");
    let running = host.start(CallKind::Content, "test.f", 0, request());
    let Some(ProcessMessage::Operation { token, .. }) = host.receive() else { panic!() };
    host.send(&HostMessage::Unload { script: 1 });
    let refused = host.start(CallKind::Content, "test.f", 0, request());
    let outcome = Outcome::NotStarted("the script is not loaded".to_owned());
    assert_eq!(host.receive(), Some(ProcessMessage::Done { call: refused, outcome }));
    let reply = Ok(Reply::Fetched(Box::new(FetchResponse { status: 200, ..FetchResponse::default() })));
    host.send(&HostMessage::Reply { call: running, token, result: reply });
    assert_eq!(host.receive(), Some(ProcessMessage::Done { call: running, outcome: Outcome::Value(None) }));
}

#[test]
fn cancelled_call_sends_nothing_more() {
    let mut host = script(
        "export default { async f(r) { await ngx.fetch('http://a/'); r.return(200); }, g(r) { r.return(204); } }",
    );
    let call = host.start(CallKind::Content, "test.f", 0, request());
    let Some(ProcessMessage::Operation { token, .. }) = host.receive() else { panic!() };
    host.send(&HostMessage::Cancel { call });
    host.send(&HostMessage::Reply { call, token, result: Ok(Reply::Done) });
    assert_eq!(host.content("test.g").effects.len(), 1);
}

#[test]
fn messages_wait_while_a_script_asks() {
    let mut host =
        script("export default { f(r) { r.return(200, r.variables.a); }, g() { return 'second'; } }");
    let first = host.start(CallKind::Content, "test.f", 0, request());
    let Some(ProcessMessage::Operation { token, .. }) = host.receive() else { panic!() };
    let second = host.start(CallKind::Set, "test.g", 0, request());
    host.send(&HostMessage::Reply { call: first, token, result: value("v") });
    assert_eq!(host.finish(first, &mut no_answer).text(), "v");
    assert_eq!(host.finish(second, &mut no_answer).outcome, text("second"));
}

#[test]
fn calls_beyond_the_contexts_wait_with_their_events() {
    let mut host = script(
        "export default { async f(r) { await ngx.fetch('http://a/'); }, g(r, data, flags) { r.sendBuffer(data, flags); } }",
    );
    let mut running = Vec::new();
    for _ in 0..1024 {
        running.push(host.start(CallKind::Content, "test.f", 0, request()));
        assert!(matches!(host.receive(), Some(ProcessMessage::Operation { .. })));
    }
    let waiting = host.start(CallKind::BodyFilter, "test.g", 0, request());
    let data = ByteBuf::from(b"late".to_vec());
    let event = Event { call: waiting, data: data.clone(), is_last: true, from_client: false };
    host.send(&HostMessage::Event(event));
    host.send(&HostMessage::Cancel { call: running[0] });
    let ended = host.finish(waiting, &mut no_answer);
    assert_eq!(ended.effects, [Effect::SendBuffer { data, is_last: Some(true), is_flushed: None }]);
    assert_eq!(ended.outcome, Some(Outcome::Value(None)));
}

#[test]
fn exit_callbacks_run_at_the_end_of_the_request() {
    let source = "let n = 0; export default { f(r) { n += 1; njs.on('exit', () => ngx.log(ngx.WARN, 'exit ' + n)); r.return(200); }, g() { return 1; } }";
    let mut host = script(source);
    let call = host.start(CallKind::Content, "test.f", 9, request());
    assert!(host.finish(call, &mut no_answer).log().is_empty());
    host.send(&HostMessage::Release { context: 9 });
    let message = ByteBuf::from(b"exit 1".to_vec());
    let effect = Effect::Log { level: LogLevel::Warn, message };
    assert_eq!(host.receive(), Some(ProcessMessage::Effect { call: 0, effect }));
    assert_eq!(set(&mut host, "test.g"), text("1"));
}
