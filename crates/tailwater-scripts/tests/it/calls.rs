//! Calls: the request object, operations and effects, contexts, filters and streams.

use tw_script::{
    ByteBuf, CallKind, Effect, Event, FetchResponse, Field, HostMessage, HttpSnapshot, LoadError, LogLevel,
    Operation, OperationError, Outcome, ProcessMessage, Reply, ResponseHead, Snapshot, StreamSnapshot,
    Subject, Subresponse,
};

use crate::host::{Ended, Host, no_answer, request, settings};

fn host(source: &str) -> Host {
    let mut host = Host::in_thread();
    host.load(source).unwrap();
    host
}

/// Text of `r.return(200, JSON.stringify(…))` of this expression.
fn evaluate(expression: &str) -> String {
    host(&format!("export default {{ f(r) {{ r.return(200, JSON.stringify({expression})); }} }}"))
        .content("test.f")
        .text()
}

fn value(text: &str) -> Result<Reply, OperationError> {
    Ok(Reply::Value(Some(ByteBuf::from(text.as_bytes().to_vec()))))
}

fn set(host: &mut Host, function: &str) -> Option<Outcome> {
    host.run(CallKind::Set, function, &mut no_answer).outcome
}

fn text(text: &str) -> Option<Outcome> {
    Some(Outcome::Value(Some(ByteBuf::from(text.as_bytes().to_vec()))))
}

#[test]
fn request_has_the_values_of_its_snapshot() {
    for (expression, expected) in [
        (
            "[r.method, r.uri, r.httpVersion, r.remoteAddress, r.internal]",
            r#"["POST","/a b","1.1","127.0.0.1",false]"#,
        ),
        ("r.requestLine", r#""POST /a%20b?a=1 HTTP/1.1""#),
        ("r.args", r#"{"a":"1","b":["2","4"],"A":"3","B":"two words"}"#),
        ("r.headersIn['x-FOO']", r#""one, two""#),
        ("[r.headersIn.cookie, r.headersIn['user-agent']]", r#"["a=1; b=2","first"]"#),
        ("[r.headersIn.missing === undefined, 'Host' in r.headersIn]", "[true,true]"),
        ("Object.keys(r.headersIn)", r#"["Host","X-Foo","Cookie","User-Agent"]"#),
        ("r.rawHeadersIn.slice(1, 3)", r#"[["X-Foo","one"],["x-foo","two"]]"#),
        ("r.parent === undefined", "true"),
    ] {
        assert_eq!(evaluate(expression), expected, "{expression}");
    }
}

#[test]
fn variables_are_operations() {
    let mut host = host(
        "export default { f(r) { r.variables.b = r.variables.a + '!'; r.return(200, r.rawVariables.a.toString('hex')); } }",
    );
    let ended = host.run(CallKind::Content, "test.f", &mut |operation| match operation {
        Operation::Variable { subject: Subject::Main, .. } => value("xy"),
        Operation::SetVariable { name, value, .. } => {
            assert_eq!((name.as_slice(), value.as_slice()), (&b"b"[..], &b"xy!"[..]));
            Ok(Reply::Done)
        }
        other => panic!("{other:?}"),
    });
    assert_eq!(ended.text(), "7879");
    assert_eq!(ended.operations.len(), 3);
}

#[test]
fn failed_operation_is_an_exception_with_a_place() {
    let source = "export default { f(r) {\n  r.variables.a = 1;\n} }";
    let ended = host(source).run(CallKind::Content, "test.f", &mut |_| {
        Err(OperationError::Type("variable not found".to_owned()))
    });
    let exception = ended.exception();
    assert_eq!(exception.message, "TypeError: variable not found");
    assert_eq!((exception.file.as_str(), exception.function.as_str()), ("/js/test.js", "f"));
    assert_eq!(exception.line, 2);
    assert!(!exception.stack.contains("tailwater:"), "{}", exception.stack);
}

#[test]
fn response_head_is_asked_for_once_and_changed_here() {
    let source = "export default { f(r) {
        r.headersOut['X-A'] = ['1', '2']; r.headersOut['Set-Cookie'] = ['a', 'b']; delete r.headersOut.server; r.status = 201;
        r.return(200, JSON.stringify([r.headersOut['x-a'], r.headersOut['set-cookie'], r.headersOut.server === undefined, r.status]));
    }, g(r) { r.headersOut['Content-Length'] = 'x'; }, h(r) { r.headersOut['a b'] = 'x'; }, i(r) { r.headersOut.a = 'x\\r\\nb'; } }";
    let head = ResponseHead { status: 200, fields: vec![Field::new("Server", "t")] };
    let mut host = host(source);
    let ended = host.run(CallKind::Content, "test.f", &mut |operation| match operation {
        Operation::ResponseHead => Ok(Reply::ResponseHead(head.clone())),
        other => panic!("{other:?}"),
    });
    assert_eq!(ended.operations, [Operation::ResponseHead]);
    // Nothing of the changes is known here, because the head was asked for after them: the answer of a server has them.
    assert_eq!(ended.text(), r#"[null,null,false,200]"#);
    assert_eq!(ended.effects.len(), 5);
    for (name, message) in
        [("test.g", "positive integer"), ("test.h", "header name"), ("test.i", "header value")]
    {
        assert!(host.content(name).exception().message.contains(message), "{name}");
    }
}

#[test]
fn header_filter_changes_the_head_that_it_got() {
    let mut host = host(
        "export default { f(r) { delete r.headersOut['Content-Length']; r.headersOut.foo = r.headersOut.A + r.status; } }",
    );
    let Snapshot::Http(mut snapshot) = request() else { panic!() };
    let fields = vec![Field::new("Content-Length", "5"), Field::new("a", "b")];
    snapshot.response = Some(ResponseHead { status: 206, fields });
    let call = host.start(CallKind::HeaderFilter, "test.f", 0, Snapshot::Http(snapshot));
    let ended = host.finish(call, &mut no_answer);
    let change = |name: &str, values: &[&str]| Effect::SetResponseField {
        name: name.as_bytes().to_vec().into(),
        values: values.iter().map(|value| value.as_bytes().to_vec().into()).collect(),
    };
    assert_eq!(ended.effects, [change("Content-Length", &[]), change("foo", &["b206"])]);
}

#[test]
fn return_checks_its_status() {
    let source = "export default { a(r) { r.return(1000); }, b(r) { r.return(301, 'x\\ny'); }, c(r) { r.return(404); }, d(r) { r.return(204); } }";
    let mut host = host(source);
    assert_eq!(host.content("test.a").exception().message, "RangeError: code is out of range");
    assert_eq!(host.content("test.b").exception().message, "TypeError: invalid header value");
    assert_eq!(host.content("test.c").effects, [Effect::Return { status: 404, text: None }]);
    assert_eq!(host.content("test.d").effects, [Effect::Return { status: 204, text: Some(ByteBuf::new()) }]);
}

#[test]
fn variable_functions_return_strings() {
    let source = "let count = 0; export default { a() { return 5; }, b() {}, c() { return null; }, async d() { await 1; return 2; },
        async e(r) { await 1; r.setReturnValue('late'); }, f() { setTimeout(() => 1, 1); }, g() { throw new RangeError('no'); },
        h: { i(r) { return r.uri; } }, n() { return Buffer.from([0x61, 0xff]); }, count() { return ++count; } }";
    let mut host = host(source);
    assert_eq!(set(&mut host, "test.a"), text("5"));
    assert_eq!(set(&mut host, "test.b"), Some(Outcome::Value(None)));
    assert_eq!(set(&mut host, "test.c"), Some(Outcome::Value(None)));
    assert_eq!(set(&mut host, "test.d"), text("[object Promise]"));
    assert_eq!(set(&mut host, "test.e"), text("late"));
    assert_eq!(set(&mut host, "test.h.i"), text("/a b"));
    assert_eq!(set(&mut host, "test.n"), Some(Outcome::Value(Some(ByteBuf::from(vec![0x61, 0xff])))));
    for (name, message) in [
        ("test.f", "Error: async operation inside a variable handler"),
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
    let mut host = host("let count = 0; export default { count() { return ++count; } }");
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
fn promises_of_operations_are_settled() {
    let source = "export default { async f(r) {
        const [a, b] = await Promise.all([ngx.fetch('http://a/', { method: 'POST', body: 'x', verify: false }), r.subrequest('/b', { args: 'c=d' })]);
        r.return(200, JSON.stringify([a.status, a.headers.get('k'), await a.text(), b.status, b.responseText, b.uri, b.parent === r,
            b.headersOut.q, b.variables.v]));
    } }";
    let ended = host(source).run(CallKind::Content, "test.f", &mut |operation| match operation {
        Operation::Fetch(fetch) => {
            assert_eq!((fetch.method.as_slice(), fetch.is_verified), (&b"POST"[..], Some(false)));
            Ok(Reply::Fetched(Box::new(FetchResponse {
                status: 201,
                reason: ByteBuf::from(b"Created".to_vec()),
                fields: vec![Field::new("K", "v")],
                body: ByteBuf::from(b"body".to_vec()),
            })))
        }
        Operation::Subrequest { uri, args, is_detached: false, .. } => {
            assert_eq!((uri.as_slice(), args.as_slice()), (&b"/b"[..], &b"c=d"[..]));
            let fields = vec![Field::new("Q", "w")];
            let response = Some(ResponseHead { status: 404, fields });
            let snapshot = HttpSnapshot { uri: uri.clone(), response, ..HttpSnapshot::default() };
            Ok(Reply::Subresponse(Box::new(Subresponse {
                snapshot,
                body: Some(ByteBuf::from(b"sub".to_vec())),
            })))
        }
        Operation::Variable { subject: Subject::Subrequest(_), .. } => value("of the subrequest"),
        other => panic!("{other:?}"),
    });
    assert_eq!(ended.text(), r#"[201,"v","body",404,"sub","/b",true,"w","of the subrequest"]"#);
    assert_eq!(ended.outcome, Some(Outcome::Value(None)));
}

#[test]
fn unhandled_rejection_is_an_exception() {
    let source = "export default { async f() { await ngx.fetch('http://a/'); }, async g(r) { try { await ngx.fetch('http://a/'); } catch (e) {
        r.return(502, e.message); } }, h() { Promise.reject(new Error('forgotten')); } }";
    let mut host = host(source);
    let mut refuse = |_: &Operation| Err(OperationError::Error("connect failed".to_owned()));
    let ended = host.run(CallKind::Content, "test.f", &mut refuse);
    assert_eq!(ended.exception().message, "Error: connect failed");
    assert_eq!(host.run(CallKind::Content, "test.g", &mut refuse).text(), "connect failed");
    assert_eq!(host.content("test.h").exception().message, "Error: forgotten");
}

#[test]
fn request_bodies_have_all_forms() {
    let source = "export default { async f(r) { const a = await r.readRequestText(); const b = await r.readRequestArrayBuffer();
            r.return(200, a + b.byteLength); },
        async j(r) { r.return(200, (await r.readRequestJSON()).x); },
        g(r) { r.return(200, r.requestText + r.requestBuffer.length); },
        async h(r) { r.headersIn; const form = await r.readRequestForm(); r.return(200, JSON.stringify([form.get('a'), form.getAll('b'), form.has('c'),
            form.hasFiles()])); } }";
    let mut host = host(source);
    let body = |text: &str| {
        let text = text.to_owned();
        move |operation: &Operation| match operation {
            Operation::ReadRequestBody | Operation::RequestBody => value(&text),
            other => panic!("{other:?}"),
        }
    };
    let ended = host.run(CallKind::Content, "test.f", &mut body("héllo"));
    assert_eq!((ended.text().as_str(), ended.operations.len()), ("héllo6", 1));
    assert_eq!(host.run(CallKind::Content, "test.j", &mut body("{\"x\": 7}")).text(), "7");
    assert_eq!(host.run(CallKind::Content, "test.g", &mut body("ab")).text(), "ab2");
    let form = |host: &mut Host, kind: &str, text: &str| -> Ended {
        let Snapshot::Http(mut snapshot) = request() else { panic!() };
        snapshot.fields.push(Field::new("Content-Type", kind));
        let call = host.start(CallKind::Content, "test.h", 0, Snapshot::Http(snapshot));
        host.finish(call, &mut body(text))
    };
    let ended = form(&mut host, "application/x-www-form-urlencoded", "a=1+2&b=x&b=%C3%A9");
    assert_eq!(ended.text(), r#"["1 2",["x","é"],false,false]"#);
    let multipart = "--X\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\né\r\n--X\r\ncontent-disposition: form-data; name=b; \
        filename=\"f.txt\"\r\nContent-Type: text/plain\r\n\r\nsecret\r\n--X--\r\n";
    let ended = form(&mut host, "multipart/form-data; boundary=X", multipart);
    assert_eq!(ended.text(), r#"["é",[{"name":"f.txt"}],false,true]"#);
    let part = |head: &str| format!("--X\r\n{head}\r\n\r\nv\r\n--X--");
    for (kind, body, message) in [
        (
            "multipart/form-data; boundary=X",
            "--X\r\nnothing".to_owned(),
            "missing multipart header separator",
        ),
        ("multipart/form-data; boundary=X", "nothing".to_owned(), "malformed multipart body"),
        ("multipart/form-data; boundary=X", "--Xjunk".to_owned(), "malformed multipart boundary"),
        ("multipart/form-data; boundary=X", part("A: b"), "missing Content-Disposition header"),
        (
            "multipart/form-data; boundary=X",
            part("Content-Disposition: file; name=a"),
            "unsupported disposition type",
        ),
        (
            "multipart/form-data; boundary=X",
            part("Content-Disposition: form-data; name=\"a"),
            "unterminated quoted parameter",
        ),
        (
            "multipart/form-data; boundary=X",
            part("Content-Disposition: form-data; name=a; name=b"),
            "duplicate name parameter",
        ),
        (
            "multipart/form-data; boundary=X",
            part("Content-Disposition: form-data; name=a b"),
            "malformed Content-Disposition",
        ),
        (
            "multipart/form-data; boundary=X",
            "--X\r\nContent-Disposition: form-data; name=a\r\n\r\nv".to_owned(),
            "truncated multipart body",
        ),
        ("multipart/form-data", String::new(), "multipart boundary is required"),
        ("multipart/form-data; boundary=X; boundary=Y", String::new(), "duplicate boundary parameter"),
        ("text/plain", String::new(), "unsupported content type"),
        ("", String::new(), "request content type is required"),
        ("application/x-www-form-urlencoded", "a=%4".to_owned(), "malformed percent escape"),
        ("application/x-www-form-urlencoded", "a&".repeat(129), "maxKeys limit exceeded"),
    ] {
        let ended = form(&mut host, kind, &body);
        assert_eq!(ended.exception().message, format!("TypeError: {message}"), "{kind}: {body}");
    }
}

#[test]
fn log_lines_have_levels() {
    let source = "export default { f(r) { r.log('a'); r.warn('b'); r.error(Buffer.from('c')); ngx.log(ngx.ERR, 'd'); console.log('e', { x: 1 });
        console.error(undefined); } }";
    let ended = host(source).content("test.f");
    let level = |effect: &Effect| match effect {
        Effect::Log { level, .. } => Some(*level),
        _ => None,
    };
    use LogLevel::{Error, Info, Warn};
    assert_eq!(
        ended.effects.iter().filter_map(level).collect::<Vec<_>>(),
        [Info, Warn, Error, Error, Info, Error]
    );
    assert_eq!(ended.log(), ["a", "b", "c", "d", "e {x:1}", "undefined"]);
}

#[test]
fn body_filter_gets_every_piece() {
    let source = "let n = 0; export default { f(r, data, flags) { n += data.length; r.sendBuffer(data.toUpperCase(), flags); if (flags.last) {
        r.sendBuffer(String(n), { last: true }); } }, g(r, data) { r.sendBuffer(String(Buffer.isBuffer(data))); r.done(); } }";
    let mut host = host(source);
    let piece = |host: &mut Host, call, text: &str, is_last| {
        let data = text.as_bytes().to_vec().into();
        host.send(&HostMessage::Event(Event { call, data, is_last, from_client: false }));
        let mut effects = Vec::new();
        loop {
            match host.receive() {
                Some(ProcessMessage::Effect { effect, .. }) => effects.push(effect),
                Some(ProcessMessage::Handled { call: of }) if of == call => return effects,
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
    assert_eq!(piece(&mut host, call, "ab", false), [sent("AB", Some(false))]);
    assert_eq!(piece(&mut host, call, "", true), [sent("", Some(true)), sent("2", Some(true))]);
    assert_eq!(host.receive(), Some(ProcessMessage::Done { call, outcome: Outcome::Value(None) }));
    let call = host.start(CallKind::BodyBufferFilter, "test.g", 6, request());
    assert_eq!(piece(&mut host, call, "ab", false), [sent("true", None), Effect::FilterDone]);
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
    let mut host = host(source);
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
    let mut host = host("export default { async f() { await ngx.fetch('http://a/'); } }");
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
    let mut host = host(
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
        host("export default { f(r) { r.return(200, r.variables.a); }, g() { return 'second'; } }");
    let first = host.start(CallKind::Content, "test.f", 0, request());
    let Some(ProcessMessage::Operation { token, .. }) = host.receive() else { panic!() };
    let second = host.start(CallKind::Set, "test.g", 0, request());
    host.send(&HostMessage::Reply { call: first, token, result: value("v") });
    assert_eq!(host.finish(first, &mut no_answer).text(), "v");
    assert_eq!(host.finish(second, &mut no_answer).outcome, text("second"));
}

#[test]
fn dictionaries_and_files_are_operations() {
    use tw_script::{DictionaryCommand, DictionaryValue, FileCommand, FileError, FileValue};
    let source = "import fs from 'fs'; export default { d(r) { const d = ngx.shared.numbers; r.return(200, JSON.stringify([d.incr('a', 2, 5), d.get('x'),
            d.items(2), d.set('q', 1) === d])); },
        full() { ngx.shared.strings.set('a', 'b'); },
        async f(r) { r.return(200, fs.readFileSync('/x').toString('hex') + await fs.promises.readFile('/x', 'utf8')); },
        e(r) { try { fs.statSync('/no'); } catch (e) { r.return(200, [e.code, e.errno, e.path, e.message].join()); } },
        none(r) { r.return(200, String(fs.statSync('/no', { throwIfNoEntry: false }))); } }";
    let mut host = host(source);
    let ended = host.run(CallKind::Content, "test.d", &mut |operation| {
        let Operation::Dictionary { name, command } = operation else { panic!() };
        assert_eq!(name, "numbers");
        Ok(Reply::Dictionary(match command {
            DictionaryCommand::Incr { delta, init, .. } => DictionaryValue::Number(delta + init),
            DictionaryCommand::Items { count_max: 2 } => {
                DictionaryValue::Numbers(vec![(ByteBuf::from(b"k".to_vec()), 1.5)])
            }
            _ => DictionaryValue::None,
        }))
    });
    assert_eq!(ended.text(), r#"[7,null,[["k",1.5]],true]"#);
    let ended = host.run(CallKind::Content, "test.full", &mut |_| {
        Err(OperationError::SharedMemory("no space".to_owned()))
    });
    assert_eq!(ended.exception().message, "SharedMemoryError: no space");
    let ended = host.run(CallKind::Content, "test.f", &mut |operation| {
        let Operation::File(FileCommand::Read { path, .. }) = operation else { panic!() };
        assert_eq!(path.as_slice(), b"/x");
        Ok(Reply::File(FileValue::Bytes(ByteBuf::from(b"hi".to_vec()))))
    });
    assert_eq!(ended.text(), "6869hi");
    let mut missing = |_: &Operation| {
        Err(OperationError::File(FileError {
            errno: 2,
            code: "ENOENT".to_owned(),
            message: "No such file or directory".to_owned(),
            syscall: "stat".to_owned(),
            path: ByteBuf::from(b"/no".to_vec()),
        }))
    };
    let ended = host.run(CallKind::Content, "test.e", &mut missing);
    assert_eq!(ended.text(), "ENOENT,2,/no,No such file or directory");
    assert_eq!(host.run(CallKind::Content, "test.none", &mut missing).text(), "undefined");
}
